"""A table of numbers, as text for the terminal and as Markdown."""

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PaperTable:
    """Text cells under headings; a row whose first cell is empty belongs to the group of the row above it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PaperTable":
        """Return the table whose fields a JSON file has."""
        rows = tuple(map(tuple, content["rows"]))
        return cls(content["title"], tuple(content["columns"]), rows, tuple(content["notes"]))

    def __str__(self) -> str:
        """Return the table as text for a terminal."""
        from rich import box
        from rich.console import Console
        from rich.table import Table

        grid = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(self.columns):
            grid.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row, following in zip(self.rows, (*self.rows[1:], None), strict=True):
            grid.add_row(*row, end_section=following is not None and following[0] != "")
        screen = shutil.get_terminal_size().columns
        console = Console(file=io.StringIO(), width=1000, markup=False, highlight=False, color_system=None)
        natural = console.measure(grid).maximum
        console.width = max(
            screen, natural, len(self.title)
        )  # numbers are never cut off; a narrow terminal wraps the lines
        console.print(grid)
        for note in self.notes:
            console.print(f"- {note}")
        screen_text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        return "\n".join(line.rstrip() for line in screen_text.splitlines())

    def markdown(self) -> str:
        """Return the table as a section of a Markdown page."""
        lines = [f"## {self.title}", "", _line(self.columns), _line(("---", *["---:"] * (len(self.columns) - 1)))]
        lines += [_line(row) for row in self.rows]
        lines += ["", *[f"- {note}" for note in self.notes]] if self.notes else []
        return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
