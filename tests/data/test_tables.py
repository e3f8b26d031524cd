"""Tables: every reader gives the same columns, and a row is named as a person finds it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from cases import properties
from hypothesis import given
from hypothesis import strategies as st

from foedus.base.errors import FoedusError
from foedus.data import tables
from foedus.data.columns import MISSING, Words, is_number, missing_in, text_of
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


def test_cells_are_numbers_words_or_missing(tmp_path: Path):
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


def by_the_rules(cells: list[str]) -> list[object]:
    """What a column holds by the rules of the module, found by Python's own reading of each cell."""
    texts = [None if cell.strip() in MISSING else cell.strip() for cell in cells]
    if all(text is None or is_number(text) for text in texts):
        return [None if text is None else float(text) for text in texts]
    if all(text is None or text == "2024-01-01" for text in texts):
        return [None if text is None else 19723.0 for text in texts]
    return texts


@properties
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8))
def test_cells_are_read_by_the_rules(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    path.write_text("a,b,c\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert shown(tables.read(path)) == {name: by_the_rules(c) for name, c in zip("abc", columns, strict=True)}


def test_blank_lines_are_no_rows_wherever_they_stand(tmp_path: Path):
    path = tmp_path / "blank.csv"
    path.write_text("\n  \na,b\n\n1,2\n   \n3,4\n\n")
    table = tables.read(path)
    assert shown(table) == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    assert table.place(1).endswith("line 7")


def test_a_guess_from_the_first_rows_is_corrected(tmp_path: Path):
    path = tmp_path / "long.csv"
    rows = "".join(f"{i},1\n" for i in range(200_000))  # more than the block that pyarrow guesses from
    path.write_text("a,b\n" + rows + "word,2\n")
    column = tables.read(path).columns["a"]
    assert isinstance(column, Words)
    assert column.levels[column.codes[-1]] == "word"


def test_a_row_is_named_by_its_line(tmp_path: Path):
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


@pytest.mark.parametrize(("name", "needed"), [("t.parquet", "pyarrow"), ("t.csv", "pyarrow"), ("t.xlsx", "openpyxl")])
def test_a_file_that_cannot_be_read_without_a_package_says_what_to_install(name, needed, tmp_path, monkeypatch):
    installed = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda other: None if other == needed else installed(other))
    (tmp_path / name).write_bytes(b"a,b\n1,2\n")
    with pytest.raises(FoedusError, match=rf"needs {needed}; install it with: pip install 'foedus\[files\]'"):
        tables.read(tmp_path / name)


def test_numbers_as_words_and_back():
    column = np.array([1.0, 0.5, np.nan, 1.0, -2.0])
    words = text_of(column)
    assert [None if c < 0 else words.levels[c] for c in words.codes] == ["1", "0.5", None, "1", "-2"]
    np.testing.assert_array_equal(missing_in(words), missing_in(column))
