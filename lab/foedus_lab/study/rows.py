"""The results of a study: one JSON object a line, of which a crash can tear the last one only; the same as CSV."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole

ACCURACIES = (1e-2, 1e-4, 1e-6, 1e-8)  # relative gaps
KEY = ("problem", "data", "algorithm", "settings", "seed")
MEASURED, ABSENT, FAILED = "measured", "left out", "failed"


def tag(accuracy: float) -> str:
    """Return an accuracy as it stands in the names of columns: 1e-4."""
    return f"{accuracy:.0e}".replace("e-0", "e-")


class Results:
    """The rows of a results file by their key; a row is added to the file as soon as it is measured."""

    def __init__(self, path: Path, fields: tuple[str, ...] = KEY):
        self.path, self.fields = path, fields
        self.rows: dict[tuple[object, ...], Json] = {}
        self.torn = False
        if path.exists():
            text, _, rest = path.read_text().rpartition("\n")
            self.torn = rest != ""  # the row that was being written when the machine stopped is measured again
            for number, line in enumerate(text.splitlines(), start=1):
                try:
                    row = json.loads(line)
                    self.rows[self.key(row)] = row
                except (ValueError, KeyError, TypeError):
                    raise FoedusError(f"{path}: line {number} is no row of a study; move the file away.") from None

    def key(self, row: Json) -> tuple[object, ...]:
        """Return what tells a row from all others."""
        return tuple(row[name] for name in self.fields)

    def __contains__(self, key: tuple[object, ...]) -> bool:
        return key in self.rows

    def add(self, row: Json) -> None:
        """Add a row to the file, or write the whole file anew where the row takes another's place."""
        anew = self.torn or self.key(row) in self.rows
        self.rows[self.key(row)] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if anew:
            write_whole(self.path, "".join(json.dumps(r) + "\n" for r in self.rows.values()).encode())
            self.torn = False
        else:
            with self.path.open("ab") as file:
                file.write(json.dumps(row).encode() + b"\n")

    def __iter__(self) -> Iterator[Json]:
        return iter(self.rows.values())


def to_csv(rows: Iterable[Json]) -> bytes:
    """Return the rows as a table with a column for every field that occurs."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    """A value as a table shows it: five digits of a number, a dictionary as JSON."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return json.dumps(value) if isinstance(value, dict) else value
