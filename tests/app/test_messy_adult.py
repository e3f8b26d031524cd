"""Six messy files of Adult from `init` to the report, with commands and an experiment file alone."""

import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest

import foedus as fd
from foedus.app import cli

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


def truly_messy(folder: Path, rows_of_each: int = 1000) -> None:
    """Write six files, five of which a person would have to mend: forms, spellings, units, codes and names differ."""
    with gzip.open(SOURCE, "rt") as file:
        rows = [[cell.strip() for cell in line.split(",")] for line in file if line.count(",") == 14]
    order, place = np.random.default_rng(0).permutation(len(rows)), {name: j for j, name in enumerate(COLUMNS)}
    parts = {s: [list(rows[i]) for i in order[k * rows_of_each : (k + 1) * rows_of_each]] for k, s in enumerate(SITES)}
    for row in parts["hill"]:  # semicolons, decimal commas, and letters in Latin-1
        row[place["hours"]] += ",5"
        row[place["country"]] = row[place["country"]].replace("Columbia", "Colômbia")
    for row in parts["lake"]:  # labels with a full stop
        row[place["income"]] += "."
    for row in parts["north"]:  # ages in months, tabs and other ends of lines
        row[place["age"]] = str(12 * int(row[place["age"]]))
    for number, row in enumerate(parts["south"]):  # a code for hours that are not known, and words in small letters
        row[place["hours"]] = "-999" if number % 12 == 0 else row[place["hours"]]
        row[place["sex"]] = row[place["sex"]].lower()
    parts["valley"] = [[f" {cell} " for cell in row] for row in parts["valley"]]
    forms = {"hill": (";", "latin-1", "\n"), "north": ("\t", "utf-8", "\r\n"), "south": (",", "utf-8-sig", "\n")}
    for site, mine in parts.items():
        separator, encoding, end = forms.get(site, (",", "utf-8", "\n"))
        head = [name.replace("hours", "hours per week") if site == "valley" else name for name in COLUMNS]
        text = end.join(separator.join(cells) for cells in [head, *mine]) + end
        (folder / f"{site}.csv").write_bytes(text.encode(encoding))


def test_six_messy_files_are_mended_by_pasting_what_check_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("sites").mkdir()
    truly_messy(Path("sites"))
    before = {path.name: path.read_bytes() for path in Path("sites").iterdir()}

    def foedus(*arguments: str) -> tuple[int, str, str]:
        status = cli.run(list(arguments))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    told = ("--label", "income", "--positive", ">50K", "--max-loss", "0.6")
    assert foedus("init", "adult.toml", "--data", "sites/*.csv", *told)[0] == 0
    text = Path("adult.toml").read_text().replace('# drop = ["patient"]', 'drop = ["fnlwgt", "education"]')
    Path("adult.toml").write_text(text)
    status, _, error = foedus("check", "adult.toml")
    assert status == 2
    assert "rename in [data.sites.valley], as { 'hours per week' = 'hours' }" in error
    remedies = {"valley": ["rename = { 'hours per week' = 'hours' }"]}
    Path("adult.toml").write_text(text + "[data.sites.valley]\n" + remedies["valley"][0] + "\n")
    status, doubts, _ = foedus("check", "adult.toml")
    assert status == 2  # without its positives the site "lake" cannot keep the cap
    for site, line in re.findall(r"under \[data\.sites\.(\w+)\]: (.+)", doubts):
        remedies.setdefault(site, []).append(line)
    assert remedies.keys() == {"lake", "north", "south", "valley"}
    pasted = "".join(f"[data.sites.{site}]\n" + "\n".join(lines) + "\n" for site, lines in remedies.items())
    rate = '[[constraints]]\ntype = "MissRate"\nat_most = 0.25\nconfidence = 0.95\n'
    Path("adult.toml").write_text(f"{text}{pasted}{rate}[evaluate]\nholdout = 0.2\n")
    status, checked, error = foedus("check", "adult.toml")
    assert (status, "everything fits" in checked) == (0, True), checked + error
    assert foedus("run", "adult.toml")[0] == 0
    run = fd.load("runs/adult")
    assert run.certificate.holds()
    assert run.evaluation is not None
    assert run.evaluation["auc"].value > 0.87
    Path("new.csv").write_bytes(before["coast.csv"])
    assert foedus("evaluate", "runs/adult", "new.csv")[0] == 0
    assert foedus("report", "runs/adult")[0] == 0
    assert "On new.csv" in Path("runs/adult/report.html").read_text()
    assert {path.name: path.read_bytes() for path in Path("sites").iterdir()} == before, "no source file was touched"
