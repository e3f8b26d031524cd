"""Who the rows are: Table 1 by site, and the rows that took no part."""

from markupsafe import Markup

from foedus.app.report.render import Cell, Column, Line, columns, piece, table
from foedus.base.files import Json
from foedus.data.baseline import FEW, LEAST

NOTE = (
    f'"{FEW}" stands where a level, or the rows without a value, are fewer than {LEAST}; the total is then left out '
    "too. SD is the standard deviation of the rows."
)


def section(request: Json) -> Markup:
    """Return Table 1 from the request of a page; empty where none was made."""
    content = request.get("cohort") or {}
    lines = content.get("lines") or []
    if not lines:
        return Markup("")
    shown = [Line(str(title), [Cell(str(text)) for text in cells]) for title, *cells in lines]
    return table([Column("", ""), *columns(*content["sites"])], shown, "baseline") + piece("note", NOTE)
