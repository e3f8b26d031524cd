"""Six messy files of Adult from `init` to the report, with commands and an experiment file alone."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

import foedus as fd
from foedus import cli

SOURCE = Path(os.environ.get("FOEDUS_DATA", "nowhere")) / "adult.data.gz"
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "hours", "country", "income",
)  # fmt: skip
SITES = ("coast", "hill", "lake", "north", "south", "valley")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOURCE.is_file(), reason="FOEDUS_DATA has no adult.data.gz"),
]


def messy(folder: Path, rows_of_each: int = 1500) -> None:
    """Write six files of different rows with blanks around cells, missing values, and columns in another order."""
    with gzip.open(SOURCE, "rt") as file:
        rows = [[cell.strip() for cell in line.split(",")] for line in file if line.count(",") == 14]
    draw = np.random.default_rng(0)
    order = draw.permutation(len(rows))
    for k, site in enumerate(SITES):
        mine = [rows[i] for i in order[k * rows_of_each : (k + 1) * rows_of_each]]
        places = list(draw.permutation(len(COLUMNS))) if site == "hill" else list(range(len(COLUMNS)))
        lines = [",".join(COLUMNS[j] for j in places)]
        for row in mine:
            cells = [f" {row[j]} " if site == "lake" else row[j] for j in places]
            if site == "north" and draw.random() < 0.05:
                cells[places.index(0)] = "NA"  # an age that is not known
            lines.append(",".join(cells))
        end = "\r\n" if site == "south" else "\n"
        (folder / f"{site}.csv").write_text(end.join(lines) + end, newline="")


def test_init_check_run_evaluate_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("sites").mkdir()
    messy(Path("sites"))
    Path("sites/valley.csv").rename("new.csv")  # a site that takes no part in training

    def foedus(*arguments: str) -> str:
        status = cli.run(list(arguments))
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    foedus(
        "init", "adult.toml", "--data", "sites/*.csv", "--label", "income", "--positive", ">50K", "--max-loss", "0.6"
    )
    text = Path("adult.toml").read_text().replace('# drop = ["patient"]', 'drop = ["fnlwgt", "education"]')
    rate = '\n[[constraints]]\ntype = "MissRate"\nat_most = 0.2\nconfidence = 0.95\n'
    Path("adult.toml").write_text(text + rate + "\n[evaluate]\nholdout = 0.2\n")
    assert "held out to evaluate the model on" in foedus("check", "adult.toml")
    foedus("run", "adult.toml")
    run = fd.load("runs/adult")
    assert run.certificate.holds()
    assert run.evaluation is not None
    assert run.evaluation.total == 5 * 300
    assert run.evaluation["auc"].value > 0.88
    assert run.evaluation["miss_rate"].low <= 0.2
    assert all(row.standing in ("holds", "open") for row in run.evaluation.terms if row.constraint == "miss rate")
    table = run.summary()
    assert table["education_num"].low > 0  # more schooling, more income, in years of it
    assert abs(table["age"].value) < 0.2
    assert "on new.csv (1,500 rows)" in foedus("evaluate", "runs/adult", "new.csv")
    foedus("report", "runs/adult")
    page = Path("runs/adult/report.html").read_text()
    assert "On 1\u202f500 rows of new.csv it gives the right answer to" in page
    assert "What the model is" in page
    assert "On new.csv" in page
    assert r"education\_num" in foedus("card", "runs/adult", "--out", "-")
