"""Files as hospitals write them: separator, encoding, decimal comma, dates, .gz and .xlsx are recognised per file."""

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from foedus.app import cli
from foedus.base.errors import FoedusError
from foedus.data import tables
from foedus.data.columns import Words
from foedus.data.formats import Format, days
from foedus.data.remedies import remedies_of

ROWS = [
    ("größe", "stadt", "seit", "gesund"),
    ("1.85", "Köln", "2024-03-01", "yes"),
    ("12.5", "Zürich", "2024-03-31", "no"),
    ("", "Köln", "2023-12-24", "yes"),
]
DAYS = [float((date.fromisoformat(row[2]) - date(1970, 1, 1)).days) for row in ROWS[1:]]


def text(separator: str = ",", decimal: str = ".", dates: str = "{}-{}-{}") -> str:
    lines = []
    for number, row in enumerate(ROWS):
        year, month, day = row[2].split("-") if number else ("", "", "")
        written = dates.format(year, month, day) if number else row[2]
        lines.append(separator.join((row[0].replace(".", decimal), row[1], written, row[3])))
    return "\n".join(lines) + "\n"


FILES = {
    "plain.csv": text().encode(),
    "mark.csv": text().encode("utf-8-sig"),
    "latin.csv": text().encode("latin-1"),
    "windows.csv": text(";", ",").replace("Köln", "Köln „Süd“").encode("cp1252"),
    "wide.csv": text("\t", ",").encode("utf-16"),
    "semicolons.csv": text(";", ",", "{2}.{1}.{0}").encode(),
    "bars.txt": text("|", ",", "{2}/{1}/{0}").encode("latin-1"),
    "american.csv": text(",", ".", "{1}/{2}/{0}").encode(),
    "tabs.tsv": text("\t").encode(),
    "packed.csv.gz": gzip.compress(text(";", ",").encode("latin-1")),
}


@pytest.mark.parametrize("name", FILES)
def test_the_way_a_file_is_written_is_recognised(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(FILES[name])
    table = tables.read(tmp_path / name)
    assert list(table.columns) == list(ROWS[0])
    np.testing.assert_array_equal(table.columns["größe"], [1.85, 12.5, np.nan])
    np.testing.assert_array_equal(table.columns["seit"], DAYS)
    town = table.columns["stadt"]
    assert isinstance(town, Words)
    assert [town.levels[code].removesuffix(" „Süd“") for code in town.codes] == ["Köln", "Zürich", "Köln"]
    assert table.dates == {"seit"}
    assert table.place(2).endswith("line 4")


def test_an_excel_file_is_read_like_a_text_file(tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(ROWS[0])
    for size, town, day, well in ROWS[1:]:
        book.active.append([float(size) if size else None, town, date.fromisoformat(day), well == "yes"])
    book.save(tmp_path / "t.xlsx")
    table = tables.read(tmp_path / "t.xlsx")
    np.testing.assert_array_equal(table.columns["größe"], [1.85, 12.5, np.nan])
    np.testing.assert_array_equal(table.columns["seit"], DAYS)
    well = table.columns["gesund"]
    assert [well.levels[code] for code in well.codes] == ["true", "false", "true"]
    assert table.place(1).endswith("row 2")


def test_days_need_a_form_that_says_which_is_the_month():
    assert days(["1/2/2024", "3/4/2024"]) is None
    assert days(["1/2/2024", "13/4/2024"]) == days(["2024-02-01", "2024-04-13"])
    assert days(["1/2/2024", "4/13/2024"]) == days(["2024-01-02", "2024-04-13"])
    assert days(["13/2/2024", "4/13/2024"]) is None
    assert days(["2023-02-29"]) is None
    assert days(["north"]) is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("cut.csv.gz", gzip.compress(b"a,b\n1,2\n" * 500)[:-20], "cannot read"),
        ("none.csv.gz", b"a,b\n1,2\n", "[Nn]ot a gzip"),
        ("sheet.xlsx", b"a,b\n1,2\n", "as an Excel file"),
        ("t.parquet.gz", b"", "without .gz"),
        ("t.doc", b"", "expected one of .csv, .tsv, .txt, .xlsx"),
    ],
    ids=["cut.csv.gz", "none.csv.gz", "sheet.xlsx", "t.parquet.gz", "t.doc"],
)
def test_a_broken_file_gets_one_sentence(name: str, content: bytes, words: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FoedusError, match=words) as caught:
        tables.read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_what_is_said_goes_before_what_is_recognised(tmp_path: Path):
    (tmp_path / "t.csv").write_bytes(b'a,b\n"1,5",2\n"2,5",3\n')
    assert isinstance(tables.read(tmp_path / "t.csv").columns["a"], Words)
    np.testing.assert_array_equal(tables.read(tmp_path / "t.csv", Format(decimal=",")).columns["a"], [1.5, 2.5])
    (tmp_path / "u.csv").write_bytes("ö,b\n1,2\n".encode())
    with pytest.raises(FoedusError, match="expected text in ascii"):
        tables.read(tmp_path / "u.csv", Format(encoding="ascii"))


def test_remedies_are_applied_in_order(tmp_path: Path):
    (tmp_path / "t.csv").write_text("id,alter,ill\n1,24,ja\n2,36,nein\n3,-999,ja\n")
    request = {
        "drop": ["id"],
        "rename": {"alter": "age"},
        "map": {"ill": {"ja": 1, "nein": 0}, "age": {"-999": ""}},
        "scale": {"age": 1 / 12},
    }
    table = remedies_of(request, "[data.sites.a]").apply(tables.read(tmp_path / "t.csv"), "[data.sites.a]")
    assert list(table.columns) == ["age", "ill"]
    np.testing.assert_allclose(table.columns["age"], [2.0, 3.0, np.nan])
    np.testing.assert_array_equal(table.columns["ill"], [1.0, 0.0, 1.0])


EXPERIMENT = """\
[data]
files = "sites/*"
label = "ill"
positive = "yes"
{sites}
[algorithm]
name = "FedAvg"
"""
CLEAN = "age;dose;ill\n" + "".join(f"{30 + i};{i % 7 / 2:.1f};{'yes' if i % 3 else 'no'}\n" for i in range(40))


def test_check_reads_messy_files_after_their_remedies_without_touching_them(tmp_path: Path, monkeypatch, capsys):
    """A site with other words, units, names and codes passes `check` once its section says what they mean."""
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/north.csv").write_text(CLEAN.replace(".", ","), encoding="latin-1")
    messy = "alter,dose,ill\n" + "".join(
        f"{12 * (31 + i)},{'-999' if i in (3, 9) else f'{i % 7 / 2:.1f}'},{'TRUE' if i % 3 else 'FALSE'}\n"
        for i in range(40)
    )
    (tmp_path / "sites/south.csv.gz").write_bytes(gzip.compress(messy.encode()))
    monkeypatch.chdir(tmp_path)
    remedies = """
[data.sites.south]
rename.alter = "age"
map.ill = { TRUE = "yes", FALSE = "no" }
map.dose."-999" = ""
scale.age = 0.0833333333
"""
    Path("study.toml").write_text(EXPERIMENT.format(sites=""))
    assert cli.run(["check", "study.toml"]) == 2
    assert "'age'" in capsys.readouterr().err
    Path("study.toml").write_text(EXPERIMENT.format(sites=remedies))
    before = {p: p.read_bytes() for p in Path("sites").iterdir()}
    assert cli.run(["check", "study.toml"]) == 0
    assert "everything fits" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in Path("sites").iterdir()} == before
