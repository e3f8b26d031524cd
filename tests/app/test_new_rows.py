"""New rows are read as the training read the files of their site, and what is far from the training is told."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import messy_hearts
import pytest

from foedus.app import cli

STUDY = """\
[data]
files = "clinics/*.csv"
label = "ill"
positive = "yes"
[data.sites."bünde"]
map.ill.ja = "yes"
map.ill.nein = "no"
decimal = ","
[data.sites.celle]
scale.chol = 38.67
[data.sites.dorsten]
map.ill.YES = "yes"
map.ill.NO = "no"
map.pressure."-999" = ""
[data.sites.emden]
rename.AGE_YEARS = "age"
[data.sites.fulda]
map.pain.Typical = "typical"
map.pain.Atypical = "atypical"
map.pain.None_seen = "none seen"
[problem]
penalty = { name = "Ridge", mu = 0.001 }
[algorithm]
name = "auto"
"""
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clinics, a model of theirs in runs/study, and later rows in both codings."""
    folder = tmp_path_factory.mktemp("clinics")
    later = messy_hearts.write(folder)
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    (folder / "common").mkdir()
    for name, rows in later.items():
        (folder / f"common/{name}.csv").write_bytes(messy_hearts.CLINICS[0].text(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.run(["run", "study.toml", "--quiet"]) == 0
    return folder


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.run([*arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def scores(text: str) -> list[str]:
    return [row["score"] for row in csv.DictReader(io.StringIO(text))]


@pytest.mark.parametrize("clinic", [clinic.name for clinic in messy_hearts.CLINICS])
def test_rows_of_a_site_are_read_as_in_training(clinic: str, ask: Ask):
    """The same patients in the common coding are the oracle; a row whose pressure is unknown there is left out."""
    _, common, _ = ask("predict", "runs/study", f"common/{clinic}.csv", "--site", "altona")
    expected = scores(common)
    status, named, notes = ask("predict", "runs/study", f"later/{clinic}.csv")
    assert status == 0
    Path("other.csv").write_bytes(Path(f"later/{clinic}.csv").read_bytes())
    _, stated, _ = ask("predict", "runs/study", "other.csv", "--site", clinic)
    assert stated == named
    assert ("is read as the file of" in notes) == (clinic != "altona")
    got = scores(named)
    assert len(got) == len(expected) == 30
    if clinic == "dorsten":
        patients = csv.DictReader(Path("common/dorsten.csv").read_text().splitlines())
        known = [row["pressure"][-1] != "7" for row in patients]
        got, expected = ([x for x, ok in zip(part, known, strict=True) if ok] for part in (got, expected))
    tolerance = 0.01 if clinic == "celle" else 0.0  # mmol/l to two decimals
    assert [float(x) for x in got] == pytest.approx([float(x) for x in expected], abs=tolerance)


def test_rows_of_an_unknown_file_are_not_read_in_silence(ask: Ask):
    Path("new.csv").write_bytes(Path("later/celle.csv").read_bytes())
    for command in (("predict", "runs/study", "new.csv"), ("evaluate", "runs/study", "new.csv")):
        status, out, error = ask(*command)
        assert (status, out) == (2, "")
        assert "say whose rows these are" in error
        assert "altona, bünde, celle" in error
    status, _, error = ask("predict", "runs/study", "new.csv", "--site", "elsewhere")
    assert status == 0
    assert "'elsewhere' is no site of this run" in error
    assert "in 30 of 30 rows 'chol' is far from the numbers of the training" in error


def test_evaluate_takes_the_site_before_the_file(ask: Ask):
    files = [f"{path.stem}={path}" for path in sorted(Path("later").glob("*.csv"))]
    status, out, _ = ask("evaluate", "runs/study", *files)
    assert status == 0, out
    Path("again.csv").write_bytes(Path("later/emden.csv").read_bytes())
    _, own, _ = ask("evaluate", "runs/study", "emden=again.csv", "--json")
    _, common, _ = ask("evaluate", "runs/study", "altona=common/emden.csv", "--json")
    figures = [part.partition('"overall"')[2].partition('"loss"')[0] for part in (own, common)]
    assert figures[0] == figures[1] != ""
    assert ask("evaluate", "runs/study", "emden=again.csv", "emden=common/emden.csv")[0] == 2


def test_numbers_far_from_the_training_are_counted_and_refused_when_asked(ask: Ask):
    text = Path("common/altona.csv").read_text().splitlines()
    ages = [line.split(",", 1) for line in text[1:]]
    months = [f"{12 * int(age)},{rest}" if place < 20 else f"{age},{rest}" for place, (age, rest) in enumerate(ages)]
    Path("months.csv").write_text("\n".join([text[0], *months]) + "\n")
    status, out, error = ask("predict", "runs/study", "months.csv", "--site", "altona")
    assert status == 0
    assert len(scores(out)) == 30
    first = int(ages[0][0]) * 12
    assert f"in 20 of 30 rows 'age' is far from the numbers of the training ({first} in line 2;" in error
    for command in ("predict", "evaluate"):
        file = "months.csv" if command == "predict" else "altona=months.csv"
        more = ["--site", "altona", "--out", "months-out.csv"] if command == "predict" else []
        status, out, error = ask(command, "runs/study", file, "--strict", *more)
        assert (status, out) == (2, "")
        assert "'age'" in error
        assert "--strict" in error
    assert not Path("months-out.csv").exists()
    assert ask("predict", "runs/study", "later/altona.csv", "--strict")[2] == ""
