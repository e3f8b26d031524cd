"""Faults planted in clean data: each is doubted in a sentence that names site, column and value; clean data are not."""

import csv
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from foedus.app import cli
from foedus.app.experiment import starter
from foedus.data import loaders, sites
from foedus.data.doubts import Doubt, doubts
from foedus.data.tables import Table
from foedus_lab import datasets

Rows = list[dict[str, str]]
with_data = pytest.mark.skipif("FOEDUS_DATA" not in os.environ, reason="FOEDUS_DATA is not set")

CHECKED = """\
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
group = "sex"
[algorithm]
name = "ProxAL"
"""


def hospitals() -> dict[str, Rows]:
    return {site: list(csv.DictReader(io.StringIO(text))) for site, text in starter.hospitals().items()}


def write(folder: Path, held: dict[str, Rows], text: str = CHECKED) -> None:
    (folder / "hospitals").mkdir(exist_ok=True)
    for site, rows in held.items():
        with (folder / f"hospitals/{site}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    (folder / "study.toml").write_text(text)


def each(column: str, change: Callable[[str], str]) -> Callable[[Rows], None]:
    def apply(rows: Rows) -> None:
        for row in rows:
            row[column] = change(row[column]) if row[column] else ""

    return apply


def some(column: str, value: str, every: int = 15) -> Callable[[Rows], None]:
    def apply(rows: Rows) -> None:
        for row in rows[::every]:
            row[column] = value

    return apply


def numbered(rows: Rows, start: int = 1) -> None:
    for place, row in enumerate(rows, start=start):
        row["patient_id"] = str(place)


def stamped(rows: Rows) -> None:
    for place, row in enumerate(rows):
        row["admitted"] = f"2024-{place % 12 + 1:02d}-{place % 3 + 1:02d}"


def once(column: str, value: str) -> Callable[[Rows], None]:
    def apply(rows: Rows) -> None:
        rows[7][column] = value

    return apply


def copied(rows: Rows) -> None:
    for row in rows:
        row["back_again"] = {"yes": "ja", "no": "nein"}[row["readmitted"]]


def scored(rows: Rows) -> None:
    for place, row in enumerate(rows):
        row["back_again"] = f"{(10.5 if row['readmitted'] == 'yes' else 0.25) + place / 100}"


def umlauts(rows: Rows) -> None:
    """The same word with one letter at two hospitals, and with a letter and a mark in some rows of the others."""
    marked = len(rows) in (120, 80)  # city, lakeside
    for row in rows[::5] if marked else rows:
        row["ward"] = row["ward"].replace("surgery", "Geba\u0308rklinik" if marked else "Geb\u00e4rklinik")


@dataclass(frozen=True)
class Fault:
    """What is done to one hospital, or to all, and the words that the doubt must have."""

    name: str
    change: Callable[[Rows], None]
    column: str
    words: tuple[str, ...]
    at: str | None = "lakeside"  # None: at every hospital

    def __str__(self) -> str:
        return self.name


TRUTHS = {"yes": "True", "no": "False"}
SWAPPED = {"yes": "no", "no": "yes"}
FAULTS = [
    Fault("a label with a dot", each("readmitted", lambda v: v + "."), "readmitted", ("'yes.'", "same way")),
    Fault("a label in capitals", each("readmitted", str.upper), "readmitted", ("'YES'", "'yes'")),
    Fault("booleans beside yes and no", each("smoker", TRUTHS.__getitem__), "smoker", ("'True'", "'yes'", "one pair")),
    Fault("labels as booleans", each("readmitted", TRUTHS.__getitem__), "readmitted", ("'True'", "one pair")),
    Fault("labels as 1 and 0", each("readmitted", {"yes": "1", "no": "0"}.__getitem__), "readmitted", ("'1'", "'yes'")),
    Fault("labels as 2 and 1", each("readmitted", {"yes": "2", "no": "1"}.__getitem__), "readmitted", ("'2'",)),
    Fault("words in another case", each("ward", str.capitalize), "ward", ("'Surgery'", "'surgery'")),
    Fault("words padded inside", each("ward", lambda v: v.replace(" ", "  ")), "ward", ("'internal  medicine'",)),
    Fault("words with underscores", each("ward", lambda v: v.replace(" ", "_")), "ward", ("'internal_medicine'",)),
    Fault("words as codes of their own", each("ward", lambda v: f"W{len(v)}"), "ward", ("'W7'", "no other site")),
    Fault("ages in months", each("age", lambda v: str(12 * int(v))), "age", ("times as large", "months to years")),
    Fault("a column times 1000", each("creatinine", lambda v: f"{1000 * float(v):.0f}"), "creatinine",
          ("1,100 times as large", "one unit")),
    Fault("a column divided by 1000", each("blood_pressure", lambda v: f"{float(v) / 1000}"), "blood_pressure",
          ("times as small", "one unit")),
    Fault("-999 for not known", some("age", "-999"), "age", ("-999", "leave these cells empty")),
    Fault("9999 for not known", some("blood_pressure", "9999"), "blood_pressure", ("9999", "6 rows")),
    Fault("-1 for not known", some("previous_stays", "-1"), "previous_stays", ("-1 stands in 6 rows",)),
    Fault("99 for not known", some("creatinine", "99"), "creatinine", ("99 stands in 6 rows",)),
    Fault("one age of 6,300", once("age", "6300"), "age", ("6300 stands in 1 row", "far from all other values")),
    Fault("one age of 250", once("age", "250"), "age", ("250 stands in 1 row", "far from all other values")),
    Fault("a cell of 1e30", once("creatinine", "1e30"), "creatinine", ("1e+30 stands in 1 row", "correct it")),
    Fault("one value far below", once("blood_pressure", "-5000"), "blood_pressure", ("-5000 stands in 1 row",)),
    Fault("a column equal to the label", copied, "back_again", ("label 'readmitted' of every row", "drop ="), at=None),
    Fault("a number that tells the label", scored, "back_again", ("the label 'readmitted' of every row",), at=None),
    Fault("a zero-width space", each("ward", lambda v: v + "\u200b"), "ward", ("surgery\\u200b", "look the same")),
    Fault("a no-break space", each("ward", lambda v: v.replace(" ", "\xa0")), "ward", ("\\xa0", "look the same")),
    Fault("a composed letter", umlauts, "ward", ("'Geba\\u0308rklinik'", "'Gebärklinik'", "look the same"), at=None),
    Fault("a site of one row", lambda rows: rows.__delitem__(slice(1, None)), "", ("it has one row", "merge it")),
    Fault("swapped labels", each("readmitted", SWAPPED.__getitem__), "readmitted", ("wrong way round", "swapped")),
    Fault("a constant column", each("blood_pressure", lambda _: "120"), "blood_pressure", ("80 rows have 120",)),
    Fault("a constant word", each("ward", lambda _: "surgery"), "ward", ("have surgery", "varies elsewhere")),
    Fault("one group only", each("sex", lambda _: "F"), "sex", ("have F",)),
    Fault("only one class", each("readmitted", lambda _: "no"), "readmitted", ("80 rows count as 'no'",)),
    Fault("only the other class", each("readmitted", lambda _: "yes"), "readmitted", ("80 rows count as 'yes'",)),
    Fault("duplicated rows", lambda rows: rows.extend(rows[:20]), "", ("20 of its 100 rows are copies",)),
    Fault("five duplicated rows", lambda rows: rows.extend(rows[:5]), "", ("5 of its 85 rows are copies",)),
    Fault("an empty column", each("creatinine", lambda _: ""), "creatinine", ("100 % of its values are missing",)),
    Fault("many missing values", some("age", "", 2), "age", ("50 % of its values are missing",)),
    Fault("a patient's number", numbered, "patient_id", ("identifier", 'drop = ["patient_id"]'), at=None),
    Fault("dates as words", stamped, "admitted", ("holds dates", "days since 1970-01-01"), at=None),
    Fault("decimal commas everywhere", each("creatinine", lambda v: f"{round(float(v), 1)}".replace(".", ",")),
          "creatinine", ("decimal comma", "point"), at=None),
]  # fmt: skip


def planted(fault: Fault) -> dict[str, Rows]:
    held = hospitals()
    for site, rows in held.items():
        if fault.at in (None, site):
            fault.change(rows)
    return held


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_doubted(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, planted(fault))
    status = cli.run(["check", "study.toml"])
    told = capsys.readouterr().out
    assert status in (0, 2)  # 2 where the file is refused besides
    assert "everything fits" not in told
    site = fault.at or "city, lakeside"
    lines = [line for line in told.splitlines() if line.startswith("  ") and site in line.partition(":")[0]]
    about = [line for line in lines if (f"column {fault.column!r}" in line if fault.column else "column" not in line)]
    assert any(all(word in line for word in fault.words) for line in about), told


MENDED = {
    "a label with a dot", "a label in capitals", "booleans beside yes and no", "labels as booleans",
    "words in another case", "words with underscores", "ages in months", "a column times 1000",
    "-999 for not known", "9999 for not known", "swapped labels",
}  # fmt: skip


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in MENDED], ids=str)
def test_the_lines_that_a_doubt_offers_mend_the_fault(fault: Fault, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, planted(fault))
    cli.run(["check", "study.toml"])
    offer = [line.split("under [data.sites.lakeside]: ")[1] for line in capsys.readouterr().out.splitlines()
             if "under [data.sites.lakeside]: " in line]  # fmt: skip
    assert offer
    remedies = "\n".join(["[data.sites.lakeside]", *dict.fromkeys(offer), "[algorithm]"])
    write(tmp_path, planted(fault), CHECKED.replace("[algorithm]", remedies))
    assert cli.run(["check", "study.toml"]) == 0
    about = [line for line in capsys.readouterr().out.splitlines() if f"lakeside, column {fault.column!r}" in line]
    assert about == []


def test_the_same_rows_at_two_sites_are_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    held = hospitals()
    held["valley"] += held["city"][:30]
    write(tmp_path, held)
    assert cli.run(["check", "study.toml"]) == 0
    assert "city: 30 of its rows stand at valley too" in capsys.readouterr().out


def without(column: str) -> Callable[[Rows], None]:
    def apply(rows: Rows) -> None:
        for row in rows:
            del row[column]

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("creatinine"), ("lakeside.csv", "'creatinine'")),
        (each("creatinine", lambda v: v.replace(".", ",")), ("lakeside.csv, line", "'creatinine'", "with a point")),
    ],
    ids=["a column missing at one site", "a decimal comma at one site"],
)
def test_a_fault_that_cannot_be_read_is_refused(change, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    held = hospitals()
    change(held["lakeside"])
    write(tmp_path, held)
    assert cli.run(["check", "study.toml"]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words), told


def test_the_invented_hospitals_are_not_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["init", "--example"]) == 0
    capsys.readouterr()
    assert cli.run(["check", "hospital.toml"]) == 0
    told = capsys.readouterr().out
    assert "hospital.toml: everything fits" in told
    assert re.search(r"6\d \[\d\d, \d\d\]", told)  # the sites side by side


def dealt(table: Table, number: int, seed: int) -> dict[str, Table]:
    order = np.random.default_rng(seed).permutation(table.rows)
    return {f"site {k}": table.take(np.sort(rows)) for k, rows in enumerate(np.array_split(order, number))}


def doubted(name: str, number: int, seed: int = 0) -> list[Doubt]:
    if name == "heart":
        X, y = datasets.heart()
        table = Table(name, {f"x{j}": column for j, column in enumerate(X.T)} | {"ill": y}, np.arange(len(y)))
        return doubts(sites.gather(dealt(table, number, seed), sites.Roles("ill")))
    known = loaders.data_set(name)
    roles = sites.Roles(known.label, known.positive, known.group)
    return doubts(sites.gather(dealt(loaders.load(name), number, seed), roles))


@pytest.mark.parametrize("number", [2, 5, 20])
@pytest.mark.parametrize(
    "name",
    [
        "breast-cancer",
        "monks-1",
        *(pytest.param(name, marks=with_data) for name in ("adult", "heart", "breast-cancer-wisconsin")),
    ],
)
def test_clean_data_are_not_doubted(name: str, number: int):
    assert list(map(str, doubted(name, number))) == []


@with_data
def test_labels_of_adult_with_a_dot_at_one_site_are_doubted():
    """As in adult.test, which ends every line with a dot: every row there would silently be negative."""
    table = loaders.load("adult")
    held = dealt(table, 5, 0)
    spoilt = held["site 3"]
    income = spoilt.columns["income"]
    dotted = type(income)(income.codes, tuple(level + "." for level in income.levels))
    held["site 3"] = Table(spoilt.source, {**spoilt.columns, "income": dotted}, spoilt.numbers)
    found = doubts(sites.gather(held, sites.Roles("income", ">50K", "sex")))
    told = [str(doubt) for doubt in found if doubt.column == "income"]
    assert any("site 3" in text and "'>50K.'" in text and "'>50K'" in text for text in told)
    assert any("site 3" in text and "count as 'not >50K'" in text for text in told)


# where `check` and `run` used to disagree

EACH = "{ city = -2, lakeside = 1, st-mary = 1, valley = 1 }"
PRIVATE = "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n"
CAP = '[[constraints]]\ntype = "{kind}"\n{where}\nat_most = {cap}\n'


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (PRIVATE, ("[privacy]", "ProxAL has no private form")),
        (CAP.format(kind="LossCap", where='where = "label yes"', cap=-1), ("at_most", ">= 0", "-1")),
        (CAP.format(kind="LossGap", where='first = "group F"\nsecond = "group M"', cap=-0.1), ("at_most", "-0.1")),
        (CAP.format(kind="LossCap", where='where = "label yes"', cap=EACH), ("at_most of 'city'", "-2")),
    ],
    ids=["privacy with ProxAL", "a negative cap", "a negative gap", "a negative cap at one site"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "run"])
def test_check_refuses_what_run_refuses(
    command: str, more: str, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, hospitals(), CHECKED + more)
    before = sorted(tmp_path.rglob("*"))
    assert cli.run([command, "study.toml"]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words), told
    assert told.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
