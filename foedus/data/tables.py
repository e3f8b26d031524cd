"""Tables as sites keep them: CSV and Parquet files, read into columns of numbers or of words.

The rules, the same for every reader: a cell is trimmed; an empty cell and the words in `MISSING` are missing values; a
column whose every other cell is a number is a column of numbers, any other is one of words. CSV is read with pyarrow
where it is installed and with the csv module otherwise, Parquet with pyarrow.
"""

import csv
import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foedus.errors import FoedusError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?")
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".pq")


@dataclass(frozen=True)
class Words:
    """A column of words: `levels[codes[row]]`, or nothing where the code is −1."""

    codes: np.ndarray
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    @staticmethod
    def of(cells: ArrayLike) -> "Words":
        """Make a column of text cells, in which the words of MISSING are missing values."""
        levels, codes = np.unique(np.asarray(cells, dtype=str), return_inverse=True)
        return Words(codes.astype(np.int64), tuple(str(level) for level in levels)).without_missing()

    def without_missing(self) -> "Words":
        """Return the same column, in which cells with a word of MISSING have the code −1."""
        levels = [level for level in self.levels if level not in MISSING]
        place = {level: i for i, level in enumerate(levels)}
        table = np.array([place.get(level, -1) for level in self.levels] + [-1], dtype=np.int64)
        return Words(table[self.codes], tuple(levels))

    def used(self) -> "Words":
        """Return the same column without levels that no row has, in sorted order."""
        present = sorted((self.levels[i], i) for i in np.unique(self.codes[self.codes >= 0]))
        table = np.full(len(self.levels) + 1, -1, dtype=np.int64)
        for place, (_, old) in enumerate(present):
            table[old] = place
        return Words(table[self.codes], tuple(level for level, _ in present))


Column = np.ndarray | Words  # numbers, NaN where missing; or words


@dataclass(frozen=True)
class Table:
    """The columns of one file, or of a part of it, by name; `numbers` are its rows' numbers in the file, from 0."""

    source: str  # the file, as messages name it
    columns: Mapping[str, Column]
    numbers: np.ndarray
    path: Path | None = None
    separator: str = ","

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.numbers)

    def column(self, name: str, what: str) -> Column:
        """Return a column; raise, with the names of those there are, where it is missing."""
        if name not in self.columns:
            raise FoedusError(
                f"{self.source}: there is no column {name!r}, which {what} names; its columns are "
                f"{listing(self.columns)}.{did_you_mean(name, self.columns)}"
            )
        return self.columns[name]

    def take(self, rows: np.ndarray, source: str | None = None) -> "Table":
        """Return the table of some of the rows, in this order."""
        columns = {
            name: Words(column.codes[rows], column.levels) if isinstance(column, Words) else column[rows]
            for name, column in self.columns.items()
        }
        return Table(source or self.source, columns, self.numbers[rows], self.path, self.separator)

    def place(self, row: int) -> str:
        """Return where a row stands, as a person finds it: the line of a CSV file, else the row's number, from 1."""
        number = int(self.numbers[row])
        if self.path is None or self.path.suffix in (".parquet", ".pq"):
            return f"{self.source}, row {number + 1}"
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=self.separator)
            next(_rows(reader))
            for count, _ in enumerate(_rows(reader)):
                if count == number:
                    return f"{self.source}, line {reader.line_num}"
        return f"{self.source}, row {number + 1}"


def listing(names: Iterable[object], most: int = 12) -> str:
    """Return names as a part of a sentence, the first few of many."""
    names = list(names)
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def missing_in(column: Column) -> np.ndarray:
    """Return which rows of a column have no value."""
    return column.codes < 0 if isinstance(column, Words) else np.isnan(column)


def text_of(column: Column) -> Words:
    """Return a column as words: a whole number without its '.0', so that 1 and 1.0 are the same."""
    if isinstance(column, Words):
        return column
    values, codes = np.unique(column, return_inverse=True)
    numbers = values[~np.isnan(values)]
    codes = np.where(np.isnan(column), -1, codes)
    return Words(codes, tuple(number_text(value) for value in numbers)).used()


def number_text(value: float) -> str:
    """Return a number as a person writes it: 1, not 1.0."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def arrow_installed() -> bool:
    """Return whether pyarrow can be imported."""
    return importlib.util.find_spec("pyarrow") is not None


def check_file(path: Path, source: str) -> None:
    """Raise, in one sentence, where there is no file of a kind that can be read."""
    if not path.exists():
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FoedusError(f"{source}: there is no such file.{did_you_mean(path.name, near)}")
    if path.is_dir():
        raise FoedusError(f"{source} is a folder; expected a file ({', '.join(ENDINGS)}).")
    if path.suffix.lower() not in ENDINGS:
        raise FoedusError(f"{source}: its name ends in {path.suffix!r}; expected one of {', '.join(ENDINGS)}.")


def read(path: Path, separator: str = ",", source: str | None = None) -> Table:
    """Read one CSV or Parquet file.

    Args:
        path: the file.
        separator: what stands between the cells of a CSV file; a .tsv file has tabs where nothing else is said.
        source: what messages call the file; its path when left out.

    Returns:
        The table, with at least one row and at least two columns.
    """
    source = str(path) if source is None else source
    check_file(path, source)
    if path.suffix.lower() in (".parquet", ".pq"):
        columns = _read_parquet(path, source)
    else:
        if path.suffix.lower() == ".tsv" and separator == ",":
            separator = "\t"
        columns = _read_text(path, separator, source)
    rows = len(next(iter(columns.values())))
    if rows == 0:
        raise FoedusError(f"{source}: it has no rows below its header; expected one example a row.")
    table = Table(source, columns, np.arange(rows), path, separator)
    for name, column in columns.items():
        if not isinstance(column, Words) and np.any(np.isinf(column)):
            where = table.place(int(np.argmax(np.isinf(column))))
            raise FoedusError(f"{where}, column {name!r}: the number is infinite; expected a finite one.")
    return table


def _rows(reader: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows of a csv reader that are not blank lines."""
    return (row for row in reader if row and not (len(row) == 1 and not row[0].strip()))


def _header(path: Path, separator: str, source: str) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            names = next(_rows(csv.reader(file, delimiter=separator)), None)
    except OSError as error:
        raise FoedusError(f"cannot read {source}: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FoedusError(f"cannot read {source}: expected text in UTF-8 ({error}).") from None
    if names is None:
        raise FoedusError(f"{source}: it is empty; expected a first line with the names of the columns.")
    names = [name.strip() for name in names]
    if len(names) == 1:
        other = next((s for s in SEPARATORS if s != separator and s in names[0]), None)
        hint = f"; it looks separated by {SEPARATORS[other]}: say separator = {other!r} in [data]" if other else ""
        raise FoedusError(
            f"{source}: it has one column, {names[0]!r}; expected a label and features, separated by "
            f"{SEPARATORS.get(separator, repr(separator))}{hint}."
        )
    for place, name in enumerate(names):
        if not name:
            raise FoedusError(f"{source}, line 1: column {place + 1} has no name; expected one for every column.")
        if name in names[:place]:
            raise FoedusError(f"{source}, line 1: two columns are called {name!r}; expected different names.")
    if all(is_number(name) for name in names):
        raise FoedusError(
            f"{source}, line 1: it holds the numbers {listing(names, 3)}; expected the names of the columns."
        )
    return names


def is_number(cell: str) -> bool:
    """Return whether a cell is a number; Python also reads 1_000 as one, and nobody else does."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _read_text(path: Path, separator: str, source: str) -> dict[str, Column]:
    names = _header(path, separator, source)
    if arrow_installed():
        columns = _with_arrow(path, separator, names)
        if columns is not None:
            return columns
    return _with_csv(path, separator, names, source)


def _with_arrow(path: Path, separator: str, names: list[str]) -> dict[str, Column] | None:
    """The columns by pyarrow, or None where it fails: the csv module then says on which line."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def parse(types: "dict[str, pa.DataType]") -> "pa.Table":
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows_after_names=1),
            parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, null_values=list(MISSING)
            ),
        )

    with path.open(encoding="utf-8-sig") as file:
        if not file.readline().strip():
            return None  # pyarrow would count a blank first line as the header
    try:
        try:
            table = parse({})
            # what pyarrow takes for a date or a truth value is a word here
            odd = [f.name for f in table.schema if not (_numeric(f.type) or pa.types.is_string(f.type))]
            if odd:
                table = parse({name: pa.string() for name in odd})
        except pa.ArrowInvalid:  # its guess from the first rows does not fit a later one
            table = parse({name: pa.string() for name in names})
    except (pa.ArrowException, OSError):
        return None
    return {name: _from_arrow(table[name]) for name in names}


def _numeric(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _from_arrow(cells: "pa.ChunkedArray") -> Column:
    """A column of pyarrow's as one of numbers or of words, by the rules of this module."""
    import pyarrow as pa

    compute = importlib.import_module("pyarrow.compute")  # made at run time, so a type checker sees no functions in it
    kind = cells.type
    if _numeric(kind):
        return _floats(compute.cast(cells, pa.float64(), safe=False))
    if pa.types.is_dictionary(kind):
        cells, kind = compute.cast(cells, kind.value_type), kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        cells = compute.cast(cells, pa.string())
    cells = compute.utf8_trim_whitespace(cells)
    cells = compute.if_else(compute.is_in(cells, pa.array(MISSING)), None, cells)
    try:
        return _floats(compute.cast(cells, pa.float64()))
    except pa.ArrowInvalid:
        dictionary = pa.chunked_array([cells]) if isinstance(cells, pa.Array) else cells
        dictionary = dictionary.combine_chunks().dictionary_encode()
        codes = compute.fill_null(dictionary.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Words(codes, tuple(dictionary.dictionary.to_pylist())).without_missing().used()


def _floats(cells: "pa.ChunkedArray") -> np.ndarray:
    """An array of numbers that may be changed, NaN where missing."""
    compute = importlib.import_module("pyarrow.compute")
    return compute.fill_null(cells, float("nan")).to_numpy().copy()


def _with_csv(path: Path, separator: str, names: list[str], source: str) -> dict[str, Column]:
    rows: list[list[str]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
            cells = _rows(reader)
            next(cells)
            for row in cells:
                if len(row) != len(names):
                    raise FoedusError(
                        f"{source}, line {reader.line_num}: it has {len(row)} cells, but the header has {len(names)}."
                    )
                rows.append(row)
    except OSError as error:
        raise FoedusError(f"cannot read {source}: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FoedusError(f"cannot read {source}: expected text in UTF-8 ({error}).") from None
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {name: _from_cells(column) for name, column in zip(names, columns, strict=True)}


def _from_cells(cells: Sequence[str]) -> Column:
    if "_" not in "".join(cells):  # see `is_number`
        try:
            return np.fromiter(map(_number, cells), float, len(cells))
        except ValueError:
            pass
    return Words.of([cell.strip() for cell in cells]).used()


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        if cell.strip() in MISSING:
            return float("nan")
        raise


def _read_parquet(path: Path, source: str) -> dict[str, Column]:
    if not arrow_installed():
        raise FoedusError(f"{source}: a Parquet file needs pyarrow; install it with: pip install 'foedus[files]'.")
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise FoedusError(f"cannot read {source} as a Parquet file: {why}.") from None
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = _from_arrow(table[name])
        except (pa.ArrowException, TypeError):
            raise FoedusError(
                f"{source}, column {name!r}: its type is {table[name].type}; expected numbers or text."
            ) from None
    if len(columns) < 2:
        raise FoedusError(f"{source}: it has {len(columns)} column; expected a label and features.")
    return columns
