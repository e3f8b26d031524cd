"""How results look in a notebook: the sentences and tables that `print` shows, as HTML."""

import re
from html import escape


def html_of(text: str) -> str:
    """Return printed text as HTML: titles over a rule of dashes begin a table, whose cells two spaces part."""
    lines, parts = text.split("\n"), []
    while lines:
        if len(lines) > 1 and re.fullmatch(r"-{5,}", lines[1]):
            titles = _cells(lines[0])
            rows = []
            lines = lines[2:]
            while lines and len(_cells(lines[0])) == len(titles):
                rows.append(_cells(lines.pop(0)))
            body = "".join(_row(row, "td") for row in rows)
            parts.append(f"<table><thead>{_row(titles, 'th')}</thead><tbody>{body}</tbody></table>")
        else:
            parts.append(f"<div>{escape(lines.pop(0))}</div>")
    return "".join(parts)


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def _row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
