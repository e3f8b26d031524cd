"""How a text file is written: its separator, encoding and decimal sign, recognised from its first lines where not said.

A comma-separated file keeps the point as its decimal sign unless it is told otherwise: "1,5" in quotes may be a list.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from pathlib import Path

from foedus.base.errors import FoedusError

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
DECIMALS = (".", ",")
SAMPLE = 2**18  # bytes that a format is recognised from
LINES = 50  # lines of them that must have as many cells as the header
COMMA = re.compile(r"\s*[-+]?(\d{1,3}(\.\d{3})+|\d+),\d+([eE][-+]?\d+)?\s*")
POINT = re.compile(r"\s*[-+]?\d*\.\d+([eE][-+]?\d+)?\s*")
ISO = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})([ T].*)?")
DAY_FIRST = re.compile(r"(\d{1,2})[.](\d{1,2})[.](\d{4})([ T].*)?")
SLASHES = re.compile(r"(\d{1,2})[-/](\d{1,2})[-/](\d{4})([ T].*)?")
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Format:
    """How a text file is written; None for what is to be recognised from the file."""

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None

    def over(self, other: "Format") -> "Format":
        """Return this format, with the other's entries where this one says nothing."""
        rest = {name: mine if mine is not None else getattr(other, name) for name, mine in vars(self).items()}
        return replace(self, **rest)


@dataclass(frozen=True)
class TextForm:
    """A format that is known: how to open the file and read its cells."""

    separator: str = ","
    encoding: str = "utf-8-sig"
    decimal: str = "."

    def differences(self) -> str:
        """Return in words what is unusual about the file; nothing for UTF-8 with commas and points."""
        words = []
        if self.separator != ",":
            words.append(f"separated by {SEPARATORS.get(self.separator, repr(self.separator))}")
        if codecs.lookup(self.encoding).name not in ("utf-8", "utf-8-sig"):
            words.append(f"in {self.encoding}")
        if self.decimal != ".":
            words.append("with decimal commas")
        return ", ".join(words)


def ending(path: Path) -> str:
    """Return what kind of file the name promises: its ending in small letters, without a .gz after it."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def site_name(path: Path) -> str:
    """Return the name that a file gives its site: without its endings, .csv.gz being one."""
    return Path(path.name.removesuffix(".gz")).stem if path.name.endswith(".gz") else path.stem


def check_encoding(name: str, place: str) -> None:
    """Raise where Python knows no encoding of this name."""
    try:
        codecs.lookup(name)
    except LookupError:
        raise FoedusError(
            f"{place} encoding: there is no {name!r}; expected a name such as 'utf-8', 'latin-1' or 'cp1252'."
        ) from None


def recognise(path: Path, content: bytes, wanted: Format, source: str) -> TextForm:
    """Return how a text file with this content is written: as wanted, and else as its first lines say."""
    sample = content[:SAMPLE]
    if b"\0" in sample and not sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not wanted.encoding:
        raise FoedusError(f"cannot read {source}: it holds bytes that stand in no text; expected text in UTF-8.")
    encoding = wanted.encoding or encoding_of(sample)
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)  # a character cut in two at the end is left out
    except UnicodeDecodeError as error:
        raise FoedusError(f"cannot read {source}: expected text in {encoding} ({error.reason}).") from None
    whole = text if len(sample) < SAMPLE else text[: text.rfind("\n") + 1] or text
    separator = wanted.separator or separator_of(whole, "\t" if ending(path) == ".tsv" else ",")
    decimal = wanted.decimal or decimal_of(whole, separator)
    return TextForm(separator, encoding, decimal)


def encoding_of(sample: bytes) -> str:
    """Return the encoding of a file's first bytes: by its mark, else UTF-8, else Windows' and ISO's Latin alphabet."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
        return "utf-8-sig"
    except UnicodeDecodeError:
        # the bytes 0x80 to 0x9F are letters and quotes in Windows' alphabet, and nothing that is written in ISO's
        return "cp1252" if re.search(rb"[\x80-\x9f]", sample) else "latin-1"


def rows_of(reader: Iterable[list[str]]) -> Iterator[list[str]]:
    """Return the rows of a csv reader that are not blank lines."""
    return (row for row in reader if row and not (len(row) == 1 and not row[0].strip()))


def separator_of(text: str, usual: str) -> str:
    """Return the separator with which the first lines have the same number of cells, and the most of them."""
    best, most = usual, (False, 1)
    for candidate in [usual, *(s for s in SEPARATORS if s != usual)]:
        try:
            widths = [len(row) for row in islice(rows_of(csv.reader(io.StringIO(text), delimiter=candidate)), LINES)]
        except csv.Error:
            continue
        if not widths:
            continue
        score = (widths[0] > 1 and all(width == widths[0] for width in widths), widths[0])
        if score > most:
            best, most = candidate, score
    return best


def decimal_of(text: str, separator: str) -> str:
    """Return ',' where some cells are numbers with a decimal comma and none has a decimal point."""
    if separator == ",":
        return "."
    try:
        cells = [
            cell for row in islice(rows_of(csv.reader(io.StringIO(text), delimiter=separator)), 1, 500) for cell in row
        ]
    except csv.Error:
        return "."
    commas = any(COMMA.fullmatch(cell) for cell in cells)
    return "," if commas and not any(POINT.fullmatch(cell) for cell in cells) else "."


def with_point(cell: str) -> str:
    """Return a number with a decimal comma as one with a point; other text as it is."""
    if not COMMA.fullmatch(cell):
        return cell
    return cell.replace(".", "").replace(",", ".")


def days(levels: Iterable[str]) -> list[float] | None:
    """Return dates as days since 1 January 1970; None unless all are dates in one form that says which is the month.

    2024-03-01 and 1.3.2024 say so. 3/1/2024 does where another date has a day after the twelfth.
    """
    levels = list(levels)
    for pattern, order in ((ISO, (0, 1, 2)), (DAY_FIRST, (2, 1, 0))):
        matches = [pattern.fullmatch(level) for level in levels]
        if all(matches):
            return _days([tuple(int(m.group(i + 1)) for i in order) for m in matches if m])
    matches = [m for level in levels if (m := SLASHES.fullmatch(level))]
    if not levels or len(matches) < len(levels):
        return None
    first, second = (max(int(m.group(i)) for m in matches) for i in (1, 2))
    if (first > 12) == (second > 12):
        return None
    order = (3, 2, 1) if first > 12 else (3, 1, 2)
    return _days([tuple(int(m.group(i)) for i in order) for m in matches])


def _days(parts: list[tuple[int, ...]]) -> list[float] | None:
    try:
        return [float((date(*part) - EPOCH).days) for part in parts]
    except ValueError:  # there is no such day
        return None
