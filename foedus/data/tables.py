"""Tables as sites keep them: CSV, Excel and Parquet files, read into columns of numbers or of words.

The rules, the same for every reader: a cell is trimmed; an empty cell and the words in `MISSING` are missing values; a
column whose every other cell is a number is a column of numbers, one of dates is read as days since 1 January 1970, any
other is one of words. Files are read with pyarrow, Excel's with openpyxl too.
"""

import csv
import gzip
import hashlib
import importlib.util
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from foedus.base.engine import return_memory
from foedus.base.errors import FoedusError, did_you_mean
from foedus.data.columns import (
    MISSING,
    Column,
    Words,
    arrow_texts,
    from_arrow,
    from_dates,
    is_number,
    listing,
    number_text,
    numeric,
)
from foedus.data.formats import SEPARATORS, Format, TextForm, ending, recognise, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".csv", ".tsv", ".txt", ".xlsx", ".parquet", ".pq")
DIGESTS = 4096  # of files that are remembered

Key = tuple[Path, int, int]
_digests: dict[Key, bytes] = {}


@dataclass(frozen=True)
class Table:
    """The columns of one file, or of a part of it, by name; `numbers` are its rows' numbers in the file, from 0."""

    source: str  # the file, as messages name it
    columns: Mapping[str, Column]
    numbers: np.ndarray
    path: Path | None = None
    form: TextForm = field(default_factory=TextForm)
    dates: frozenset[str] = frozenset()  # the columns that were dates and are days since 1 January 1970

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
        return replace(self, source=source or self.source, columns=columns, numbers=self.numbers[rows])

    def without_rows(self) -> "Table":
        """Return the table as one that knows how many rows it had, and nothing else about them."""
        return replace(self, columns={}, numbers=np.broadcast_to(np.zeros(1, dtype=np.int64), self.rows))

    def place(self, row: int) -> str:
        """Return where a row stands, as a person finds it: the line of a CSV file, else the row's number, from 1."""
        number = int(self.numbers[row])
        if self.path is None or ending(self.path) in (".parquet", ".pq", ".xlsx"):
            return f"{self.source}, row {number + 1}"
        with open_text(read_bytes(self.path, self.source), self.form.encoding) as file:
            reader = csv.reader(file, delimiter=self.form.separator)
            next(rows_of(reader))
            for count, _ in enumerate(rows_of(reader)):
                if count == number:
                    return f"{self.source}, line {reader.line_num}"
        return f"{self.source}, row {number + 1}"


def key_of(path: Path) -> Key:
    """Return what a file is known by as long as nobody changes it: its path, its length and its time of change."""
    status = path.stat()
    return path.absolute(), status.st_size, status.st_mtime_ns


def read_bytes(path: Path, source: str) -> bytes:
    """Return the bytes of a file, decompressed if it ends in .gz; its digest is remembered."""
    try:
        key = key_of(path)
        content = path.read_bytes()
        if key not in _digests:
            remember(key, hashlib.sha256(content).digest())
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise FoedusError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}.") from None


def digest_of(path: Path) -> bytes:
    """Return the SHA-256 digest of a file, from memory as long as its length and its time of change stay the same."""
    key = key_of(path)
    if key not in _digests:
        with path.open("rb") as file:
            remember(key, hashlib.file_digest(file, "sha256").digest())
    return _digests[key]


def remember(key: Key, digest: bytes) -> None:
    """Keep the digest of a file."""
    _digests[key] = digest
    while len(_digests) > DIGESTS:
        del _digests[next(iter(_digests))]


def open_text(content: bytes, encoding: str) -> TextIO:
    """Return the text of a file for the csv module."""
    return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, newline="")


def check_file(path: Path, source: str) -> None:
    """Raise, in one sentence, where there is no file of a kind that can be read."""
    if not path.exists():
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FoedusError(f"{source}: there is no such file.{did_you_mean(path.name, near)}")
    if path.is_dir():
        raise FoedusError(f"{source} is a folder; expected a file ({', '.join(ENDINGS)}).")
    if ending(path) not in ENDINGS:
        raise FoedusError(
            f"{source}: its name ends in {path.suffix!r}; expected one of {', '.join(ENDINGS)}, or a text "
            "file with .gz after it."
        )
    if path.suffix.lower() == ".gz" and ending(path) not in (".csv", ".tsv", ".txt"):
        raise FoedusError(f"{source}: a {ending(path)} file is compressed already; expected it without .gz.")


def read(path: Path, wanted: Format | None = None, source: str | None = None) -> Table:
    """Read one CSV, Excel or Parquet file.

    Args:
        path: the file; a text file may be compressed (.gz).
        wanted: how a text file is written; what it leaves open is recognised from the file.
        source: what messages call the file; its path when left out.

    Returns:
        The table, with at least one row and at least two columns.
    """
    source = str(path) if source is None else source
    check_file(path, source)
    for package in ("pyarrow", "openpyxl") if ending(path) == ".xlsx" else ("pyarrow",):
        if importlib.util.find_spec(package) is None:
            raise FoedusError(f"{source}: reading it needs {package}; install it with: pip install 'foedus[files]'.")
    form, content = TextForm(), read_bytes(path, source)
    if ending(path) in (".parquet", ".pq"):
        columns = _read_parquet(content, source)
    elif ending(path) == ".xlsx":
        columns = _read_excel(content, source)
    else:
        form = recognise(path, content, wanted or Format(), source)
        columns = _read_text(content, form, source)
    del content
    return checked_table(source, columns, "it has no rows below its header; expected one example a row", path, form)


def checked_table(
    source: str, columns: Mapping[str, Column], empty: str, path: Path | None = None, form: TextForm | None = None
) -> Table:
    """Return the table of columns, dates as days; raise, saying `empty`, where they have no rows, or infinite ones."""
    rows = len(next(iter(columns.values())))
    if rows == 0:
        raise FoedusError(f"{source}: {empty}.")
    dates = {name: column for name in columns if (column := from_dates(columns[name])) is not None}
    numbers = np.arange(rows, dtype=np.int32)
    table = Table(source, {**columns, **dates}, numbers, path, form or TextForm(), frozenset(dates))
    for name, column in columns.items():
        if not isinstance(column, Words) and np.any(np.isinf(column)):
            where = table.place(int(np.argmax(np.isinf(column))))
            raise FoedusError(f"{where}, column {name!r}: the number is infinite; expected a finite one.")
    return table


def _header(content: bytes, form: TextForm, source: str) -> list[str]:
    try:
        with open_text(content, form.encoding) as file:
            names = next(rows_of(csv.reader(file, delimiter=form.separator)), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_text(source, form, error) from None
    if names is None:
        raise FoedusError(f"{source}: it is empty; expected a first line with the names of the columns.")
    return _check_names([name.strip() for name in names], form, source)


def _check_names(names: list[str], form: TextForm, source: str) -> list[str]:
    """Return the names of the columns, if there are two at least and each has one of its own."""
    if len(names) == 1:
        other = next((s for s in SEPARATORS if s != form.separator and s in names[0]), None)
        hint = f"; it looks separated by {SEPARATORS[other]}: say separator = {other!r} in [data]" if other else ""
        raise FoedusError(
            f"{source}: it has one column, {names[0]!r}; expected a label and features, separated by "
            f"{SEPARATORS.get(form.separator, repr(form.separator))}{hint}."
        )
    before: set[str] = set()
    for place, name in enumerate(names):
        if not name:
            raise FoedusError(f"{source}, line 1: column {place + 1} has no name; expected one for every column.")
        if name in before:
            raise FoedusError(f"{source}, line 1: two columns are called {name!r}; expected different names.")
        before.add(name)
    if all(is_number(name) for name in names):
        raise FoedusError(
            f"{source}, line 1: it holds the numbers {listing(names, 3)}; expected the names of the columns."
        )
    return names


def _read_text(content: bytes, form: TextForm, source: str) -> dict[str, Column]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    names = _header(content, form, source)
    encoding = "utf8" if form.encoding == "utf-8-sig" else form.encoding
    with open_text(content, form.encoding) as file:  # pyarrow would count a blank first line as the header
        blank = next(number for number, line in enumerate(file) if line.strip())

    def parse(types: "dict[str, pa.DataType]") -> "pa.Table":
        return arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(
                column_names=names, skip_rows=blank, skip_rows_after_names=1, encoding=encoding, use_threads=False
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=form.separator,
                newlines_in_values=True,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, null_values=list(MISSING), decimal_point=form.decimal
            ),
            memory_pool=pa.system_memory_pool(),
        )

    try:
        try:
            table = parse({})
            # what pyarrow takes for a date or a truth value is a word here
            odd = [f.name for f in table.schema if not (numeric(f.type) or pa.types.is_string(f.type))]
            if odd:
                table = parse({name: pa.string() for name in odd})
        except pa.ArrowInvalid:  # its guess from the first rows does not fit a later one
            table = parse({name: pa.string() for name in names})
    except (pa.ArrowException, OSError, ValueError) as error:
        _check_rows(content, form, names, source)
        raise FoedusError(f"cannot read {source}: {str(error).partition(chr(10))[0]}.") from None
    columns: dict[str, Column] = {}
    cells = table.columns[::-1]
    del table
    for name in names:  # each column is let go of once it is copied, so that the table is never held twice
        columns[name] = from_arrow(cells.pop(), form.decimal)
    return_memory()
    return columns


def _check_rows(content: bytes, form: TextForm, names: list[str], source: str) -> None:
    """Raise, with the line as a person counts it, where a row has more or fewer cells than the header."""
    try:
        with open_text(content, form.encoding) as file:
            reader = csv.reader(file, delimiter=form.separator)
            for row in rows_of(reader):
                if len(row) != len(names):
                    raise FoedusError(
                        f"{source}, line {reader.line_num}: it has {len(row)} cells, but the header has {len(names)}."
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_text(source, form, error) from None


def _not_text(source: str, form: TextForm, error: Exception) -> FoedusError:
    return FoedusError(
        f"cannot read {source}: expected text in {form.encoding} ({error}); "
        "say its encoding in [data], for instance encoding = 'latin-1'."
    )


def _read_excel(content: bytes, source: str) -> dict[str, Column]:
    """The first sheet of an Excel file; its first row holds the names."""
    from zipfile import BadZipFile

    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        rows = [row for row in book.worksheets[0].iter_rows(values_only=True) if any(v is not None for v in row)]
        book.close()
    except (OSError, BadZipFile, KeyError, ValueError, IndexError) as error:
        raise FoedusError(f"cannot read {source} as an Excel file: {error}.") from None
    if not rows:
        raise FoedusError(f"{source}: its first sheet is empty; expected a first row with the names of the columns.")
    names = _check_names([_excel_text(cell) for cell in rows[0]], TextForm(), source)
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else ([] for _ in names)
    return {name: from_arrow(arrow_texts(map(_excel_text, cells))) for name, cells in zip(names, columns, strict=True)}


def _excel_text(cell: object) -> str:
    """A cell of Excel as a CSV file says it; an error in a formula is a missing value."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, int | float):
        return number_text(cell)
    text = "" if cell is None else str(cell).strip()  # a date is written as in ISO 8601
    return "" if text.startswith("#") and text.rstrip("!?").isupper() else text


def _read_parquet(content: bytes, source: str) -> dict[str, Column]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise FoedusError(f"cannot read {source} as a Parquet file: {why}.") from None
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = from_arrow(table[name])
        except (pa.ArrowException, TypeError):
            raise FoedusError(
                f"{source}, column {name!r}: its type is {table[name].type}; expected numbers or text."
            ) from None
    if len(columns) < 2:
        raise FoedusError(f"{source}: it has {len(columns)} column; expected a label and features.")
    return columns
