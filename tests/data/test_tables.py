"""Tables: every reader gives the same columns, and a row is named as a person finds it."""

from pathlib import Path

import numpy as np
import pytest
from cases import properties
from hypothesis import given
from hypothesis import strategies as st

from foedus.base.errors import FoedusError
from foedus.data import tables
from foedus.data.columns import Words, missing_in, text_of
from foedus.data.formats import TextForm
from foedus.data.tables import Table

TEXT = """\
\ufeffage, dose ,ward,since,well
61, 1.5 ,north,2024-01-31,true
NA,2e3,"north, new",2024-02-01,false

 47,?, south ,,true
"""


def shown(table: Table) -> dict[str, list[object]]:
    """The cells as plain values, None where missing."""
    cells: dict[str, list[object]] = {}
    for name, column in table.columns.items():
        if isinstance(column, Words):
            cells[name] = [None if code < 0 else column.levels[code] for code in column.codes]
        else:
            cells[name] = [None if np.isnan(value) else value for value in column]
    return cells


@pytest.fixture(params=["pyarrow", "csv"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tables, "arrow_installed", lambda: request.param == "pyarrow")
    return request.param


def test_cells_are_numbers_words_or_missing(reader: str, tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_text(TEXT, encoding="utf-8")
    assert shown(tables.read(path)) == {
        "age": [61.0, None, 47.0],
        "dose": [1.5, 2000.0, None],
        "ward": ["north", "north, new", "south"],
        "since": [19753.0, 19754.0, None],  # days since 1 January 1970
        "well": ["true", "false", "true"],
    }


CELLS = st.sampled_from(["1", "-2.5", " 3e1", "", "NA", "?", "a", "b c", "x_1", "1_0", "2024-01-01", "true", "été"])


@properties
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8))
def test_both_readers_agree(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    path.write_text("a,b,c\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    with_arrow = tables._with_arrow(path.read_bytes(), TextForm(), ["a", "b", "c"])
    assert with_arrow is not None
    other = tables._with_csv(path.read_bytes(), TextForm(), ["a", "b", "c"], "table")
    numbers = np.arange(len(rows))
    assert shown(Table("t", with_arrow, numbers)) == shown(Table("t", other, numbers))


def test_a_guess_from_the_first_rows_is_corrected(tmp_path: Path):
    path = tmp_path / "long.csv"
    rows = "".join(f"{i},1\n" for i in range(200_000))  # more than the block that pyarrow guesses from
    path.write_text("a,b\n" + rows + "word,2\n")
    column = tables.read(path).columns["a"]
    assert isinstance(column, Words)
    assert column.levels[column.codes[-1]] == "word"


def test_a_row_is_named_by_its_line(reader: str, tmp_path: Path):
    path = tmp_path / "lines.csv"
    path.write_text('note,x\n"two\nlines",1\n\nplain,2\nlast,3\n')
    table = tables.read(path)
    assert table.rows == 3
    assert table.place(0).endswith("line 3")  # where the row ends
    assert table.place(1).endswith("line 5")
    assert table.take(np.array([2])).place(0).endswith("line 6")


def test_parquet_gives_what_csv_gives(tmp_path: Path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {
            "age": pa.array([61, None, 47], pa.int32()),
            "dose": pa.array([1.5, 2000.0, None]),
            "ward": pa.array(["north", "south", None]).dictionary_encode(),
            "well": pa.array([True, False, True]),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    read = tables.read(tmp_path / "t.parquet")
    assert shown(read) == {
        "age": [61.0, None, 47.0],
        "dose": [1.5, 2000.0, None],
        "ward": ["north", "south", None],
        "well": ["true", "false", "true"],
    }
    assert read.place(1).endswith("row 2")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "arrow_installed", lambda: False)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(FoedusError, match=r"pip install 'foedus\[files\]'"):
        tables.read(tmp_path / "t.parquet")


def test_numbers_as_words_and_back():
    column = np.array([1.0, 0.5, np.nan, 1.0, -2.0])
    words = text_of(column)
    assert [None if c < 0 else words.levels[c] for c in words.codes] == ["1", "0.5", None, "1", "-2"]
    np.testing.assert_array_equal(missing_in(words), missing_in(column))
