"""Columns of numbers or of words, and how the cells of a file become one of them."""

import importlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foedus.data.formats import days, with_point

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?")


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


def listing(names: Iterable[object], most: int = 12) -> str:
    """Return names as a part of a sentence, the first few of many."""
    names = list(names)
    text = ", ".join(map(str, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def counted(rows: int) -> str:
    """Return a number of rows in words: 1 row, 2 rows."""
    return f"{rows:,} row" + ("" if rows == 1 else "s")


def is_invisible(character: str) -> bool:
    """Return whether nobody sees a character, such as a zero-width space, or sees it as a part of the one before."""
    kind = unicodedata.category(character)
    return kind in ("Cf", "Cc", "Mn") or (kind == "Zs" and character != " ")


def visible_form(text: str) -> str:
    """Return a text as it looks: composed characters, ordinary spaces, and none that have no width."""
    spaced = (" " if unicodedata.category(c) == "Zs" else c for c in unicodedata.normalize("NFC", text))
    return "".join(c for c in spaced if unicodedata.category(c) not in ("Cf", "Cc"))


def with_codes(text: str) -> str:
    """Return a text in quotes, with the codes of characters that nobody sees."""
    codes = "".join(ascii(c)[1:-1] if is_invisible(c) else c for c in text)
    return repr(codes).replace("\\\\", "\\")


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


def is_number(cell: str) -> bool:
    """Return whether a cell is a number; Python also reads 1_000 as one, and nobody else does."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def numeric(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def from_arrow(cells: "pa.ChunkedArray | pa.StringArray", decimal: str = ".") -> Column:
    """A column of pyarrow's as one of numbers or of words, by the rules of this module."""
    import pyarrow as pa

    compute = importlib.import_module("pyarrow.compute")  # made at run time, so a type checker sees no functions in it
    kind = cells.type
    if numeric(kind):
        return _floats(cells if kind == pa.float64() else compute.cast(cells, pa.float64(), safe=False))
    if pa.types.is_dictionary(kind):
        cells, kind = compute.cast(cells, kind.value_type), kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        cells = compute.cast(cells, pa.string())
    cells = compute.utf8_trim_whitespace(cells)
    nothing = pa.nulls(1, cells.type)[0]  # `scalar` would import pandas
    cells = compute.if_else(compute.is_in(cells, arrow_texts(MISSING)), nothing, cells)
    try:
        return _floats(compute.cast(cells, pa.float64()))
    except pa.ArrowInvalid:
        dictionary = pa.chunked_array([cells]) if isinstance(cells, pa.Array) else cells
        dictionary = dictionary.combine_chunks().dictionary_encode()
        codes = np.nan_to_num(_floats(compute.cast(dictionary.indices, pa.float64())), nan=-1.0).astype(np.int64)
        words = Words(codes, tuple(dictionary.dictionary.to_pylist())).without_missing().used()
        return words if decimal == "." else _with_commas(words)


def arrow_texts(texts: Iterable[str]) -> "pa.StringArray":
    """Return texts as an array of pyarrow's; its own `array` imports pandas, in case it was given something of it."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(encoded)))


def _with_commas(words: Words) -> Column:
    """A column whose every word is a number with a decimal comma as one of numbers."""
    levels = [with_point(level) for level in words.levels]
    if not all(map(is_number, levels)):
        return words
    return np.array([*map(float, levels), np.nan])[words.codes]


def _floats(cells: "pa.ChunkedArray") -> np.ndarray:
    """An array of numbers that may be changed, NaN where missing.

    The numbers are copied from pyarrow's buffers: its own `to_numpy` imports pandas, which takes 40 MB.
    """
    chunks = cells.chunks if hasattr(cells, "chunks") else [cells]
    numbers, start = np.empty(len(cells)), 0
    for chunk in chunks:
        own = numbers[start : start + len(chunk)]
        start += len(chunk)
        valid, values = chunk.buffers()
        own[:] = np.frombuffer(values, np.float64, len(chunk), 8 * chunk.offset) if len(chunk) else own
        if chunk.null_count:
            bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
            own[bits[chunk.offset : chunk.offset + len(chunk)] == 0] = np.nan
    return numbers


def from_dates(column: Column) -> np.ndarray | None:
    """A column of dates as days since 1 January 1970; None for any other."""
    if not isinstance(column, Words) or not column.levels or (numbers := days(column.levels)) is None:
        return None
    return np.array([*numbers, np.nan])[column.codes]
