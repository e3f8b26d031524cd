"""Pages, pictures and files from the templates beside this module; in HTML, what a template is given is escaped."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from foedus.base.quantities import duration, number, size

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("foedus.app.report"),
        autoescape=lambda name: name is None or not name.endswith(".toml"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {"number": number, "size": size, "duration": duration, "pad": "{:<26}".format}
    return environment


def render(template: str, **values: object) -> str:
    """Return a template of the folder `templates`, filled with the values."""
    return _environment().get_template(template).render(values)


@functools.cache
def _macros() -> object:
    return _environment().get_template("pieces.html").module


def piece(macro: str, *values: object, **options: object) -> Markup:
    """Return a piece of HTML: a macro of `templates/pieces.html`, called with the values."""
    return getattr(_macros(), macro)(*values, **options)


def paragraphs(texts: Iterable[str]) -> Markup:
    """Return each text as a paragraph."""
    return Markup("").join(Markup("<p>{}</p>").format(text) for text in texts)


@dataclass(frozen=True)
class Column:
    """The head of a column: n for figures, t for words, v for a verdict, wide for a bar; a remark to point at."""

    title: str
    kind: str = "n"
    remark: str = ""


@dataclass(frozen=True)
class Cell:
    """What a cell says or draws, the value to sort by, a remark below it, and how it differs from its column."""

    text: str
    sort: object = None
    below: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a table: its name, its cells, how it is marked, and the colour of its run."""

    name: str
    cells: Sequence[Cell]
    mark: str = ""
    colour: int | None = None


def table(columns: Sequence[Column], lines: Sequence[Line], kind: str = "sortable") -> Markup:
    """Return a table whose first column has the lines' names."""
    return piece("table", columns, lines, kind)


def columns(*titles: str, kind: str = "n") -> list[Column]:
    """Return columns of one kind."""
    return [Column(title, kind) for title in titles]
