"""How results are shown: tables as text, as HTML for a notebook and as LaTeX; bounds rounded to their true side."""

import re
from collections.abc import Collection, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from html import escape


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table: titles, a rule, and the rows; the columns `left` hold words, the others figures."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.ljust(w) if j in left else cell.rjust(w) for j, (cell, w) in cells)

    return [line(titles), "-" * len(line(titles)), *(line(row).rstrip() for row in rows)]


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "∞": r"$\infty$",
}


def latex_table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return a table as a `tabular` of LaTeX with the rules of booktabs."""

    def cell(text: str) -> str:
        return "".join(SPECIAL.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in str(text))

    def line(row: Sequence[str]) -> str:
        return " & ".join(map(cell, row)) + r" \\"

    columns = "".join("l" if j in left else "r" for j in range(len(titles)))
    body = [line(titles), r"\midrule", *map(line, rows)]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"])


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


def at_most(value: float) -> str:
    """Return an upper bound to two digits, rounded up, so that what is printed is one too."""
    return _outward(value, 2, ROUND_CEILING)


def at_least(value: float) -> str:
    """Return a lower bound to six digits, rounded down."""
    return _outward(value, 6, ROUND_FLOOR)


def _outward(value: float, digits: int, rounding: str) -> str:
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))):.{digits}g}"
