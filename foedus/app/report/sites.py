"""The certificate as tables of bars: each constraint at each site against its cap, for one run or for several."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from foedus.app.report import words
from foedus.app.report.render import Cell, Column, Line, columns, paragraphs, piece, table
from foedus.base.quantities import number
from foedus.certificate.measure import Row
from foedus.certificate.private import BROKEN, KEPT, PrivateCertificate
from foedus.runtime.run import Run

COLUMNS = 6  # the most runs that get a column each in a comparison
MOST = 500  # rows of a table; a longer one shows those with the least slack
BADGES = {"met": "✓ holds", "binding": "● binding", "broken": "✕ violated"}
FIRST, VERDICT = (
    [Column("Site", ""), Column("Constraint", ""), Column("Value against cap", "wide")],
    Column("Verdict", "v"),
)


def standing(row: Row, eps2: float) -> str:
    """Return how a row compares with its cap; a value within eps2 of the cap, on either side, is "binding"."""
    if not row.violation <= eps2:
        return "broken"
    return "binding" if row.slack <= eps2 else "met"


def tightest_rows(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Return the rows to show, and a sentence if some are left out."""
    if len(rows) <= MOST:
        return list(rows), ""
    tightest = sorted(range(len(rows)), key=lambda i: rows[i].slack if math.isfinite(rows[i].slack) else -math.inf)
    note = f"Of {number(len(rows))} constraints, the {MOST} with the least slack are shown; run.json has all."
    return [rows[i] for i in sorted(tightest[:MOST])], note


def scales(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return for each constraint the range of its bars, which is the same at all sites so that bars can be compared."""
    ranges: dict[str, tuple[float, float]] = {}
    for row in rows:
        low, high = ranges.get(row.constraint, (0.0, 0.0))
        values = [v for v in (row.value, row.cap) if math.isfinite(v)]
        ranges[row.constraint] = min([low, *values]), max([high, *values])
    return {name: (low, low + 1.12 * (high - low) if high > low else low + 1.0) for name, (low, high) in ranges.items()}


def percent_of(value: float, low: float, high: float) -> float:
    """Return where a value lies between the ends of a scale, in per cent; what is not finite lies at the end."""
    return 100.0 * min(max((value - low) / (high - low), 0.0), 1.0) if math.isfinite(value) else 100.0


def certificate(run: Run) -> Markup:
    """Return every constraint at every site against its cap, as it was measured on the training rows."""
    c = run.certificate
    if c.silent:
        return paragraphs([words.not_measured(run)])
    counts = paragraphs(words.counts_of_constraints(run))
    if counts and not c.rows:
        return counts
    if not c.rows:
        return Markup("") if run.decision is not None else paragraphs([words.NO_CONSTRAINTS])
    rows, note = tightest_rows(c.rows)
    standings = [standing(row, c.eps2) for row in rows]
    scale = scales(rows)
    top = max((abs(row.multiplier) for row in rows if math.isfinite(row.multiplier)), default=0.0) or 1.0
    lines = []
    for row, kind in zip(rows, standings, strict=True):
        zero, end = sorted(percent_of(value, *scale[row.constraint]) for value in (0.0, row.value))
        cap = percent_of(row.cap, *scale[row.constraint])
        cells = [
            Cell(row.constraint),
            Cell(piece("bar", kind, zero, max(end - zero, 0.4), cap), row.value),
            Cell(number(row.value), row.value),
            Cell(("= " if row.kind == "==" else "") + number(row.cap), row.cap),
            Cell(number(row.slack), row.slack),
            Cell(
                piece("price", number(row.multiplier), percent_of(abs(row.multiplier), 0, top)),
                row.multiplier,
                mark="price",
            ),
            Cell(piece("badge", kind, BADGES[kind]), row.slack),
        ]
        lines.append(Line(row.site, cells, kind))
    heads = [*FIRST, *columns("Value", "Cap", "Slack", "Multiplier"), VERDICT]
    badges = [(kind, text, standings.count(kind)) for kind, text in BADGES.items()]
    tools = piece("tools", badges, len(rows) > 8)
    return counts + tools + _by_term(heads, lines) + piece("note", f"Measured on the training rows. {note}")


def residuals(run: Run) -> Markup:
    """Return the residuals of the optimality conditions beside their tolerances, and the optimality gap."""
    c = run.certificate
    if c.silent:
        return paragraphs([words.not_measured(run)])
    figures = [("stationarity", c.stationarity, c.eps1)]
    if c.rows or c.counts:
        figures += [(name, getattr(c, name), c.eps2) for name in ("feasibility", "complementarity", "distance")]
    return piece("met", figures) + paragraphs(text for part in words.optimality(run) for text in part)


def _by_term(heads: list[Column], lines: list[Line], kind: str = "sortable") -> Markup:
    """Return a table whose second column names the constraint, which is left out where there is only one."""
    if len({line.cells[0].text for line in lines}) > 1:
        return table(heads, lines, f"{kind} terms")
    return table([heads[0], *heads[2:]], [Line(line.name, line.cells[1:], line.mark) for line in lines], kind)


def bars(titles: Sequence[str], rows: Sequence[tuple[str, float, tuple[str, ...]]]) -> Markup:
    """Return a table of sites with a bar for one figure, the figure, and further ones as text, under `titles`."""
    top = max((value for _, value, _ in rows if math.isfinite(value)), default=0.0) or 1.0
    lines = [
        Line(
            name,
            [
                Cell(piece("bar", "", 0.0, percent_of(value, 0.0, top)), value),
                Cell(number(value), value),
                *map(Cell, others),
            ],
        )
        for name, value, others in rows
    ]
    return table([Column(titles[0], ""), Column(titles[1], "wide"), *columns(*titles[2:])], lines)


def span(low: float, high: float) -> str:
    """Return an interval in words, as "0.37 to 0.47"; "no interval" where an end is not finite."""
    return f"{number(low)} to {number(high)}" if math.isfinite(low) and math.isfinite(high) else "no interval"


def interval_bar(kind: str, ends: tuple[float, float], value: float, cap: float, scale: tuple[float, float]) -> Markup:
    """Return an interval as a bar, with marks at the value and at the cap."""
    start = percent_of(ends[0], *scale) if math.isfinite(ends[0]) else 0.0
    wide = max(percent_of(ends[1], *scale) - start, 0.5)
    middle = percent_of(value, *scale) if math.isfinite(value) else None
    return piece("bar", f"range {kind}", start, wide, percent_of(cap, *scale), middle)


def noisy_table(certificate: PrivateCertificate) -> Markup:
    """Return a table of every cap as it was measured under noise: intervals of value and excess, noise, verdict."""
    every = certificate.rows
    rows = sorted(every, key=lambda row: -row.high)[:MOST] if len(every) > MOST else every
    top = max((v for row in rows for v in (row.cap, row.value_high) if math.isfinite(v)), default=0.0)
    scale = (0.0, 1.12 * top if top > 0 else 1.0)
    lines = []
    for row in rows:
        kind, mark = {KEPT: ("met", "✓"), BROKEN: ("broken", "✕")}.get(row.standing, ("binding", "?"))
        cells = [
            Cell(row.constraint),
            Cell(interval_bar(kind, (row.value_low, row.value_high), row.value, row.cap, scale), row.value),
            Cell(
                number(row.value) if math.isfinite(row.value) else "–", row.value, span(row.value_low, row.value_high)
            ),
            Cell(number(row.cap), row.cap),
            Cell(number(row.excess), row.excess, span(row.low, row.high)),
            Cell(number(row.noise), row.noise),
            Cell(piece("badge", kind, f"{mark} {certificate.verdict(row)}"), row.high),
        ]
        lines.append(Line(row.site, cells, kind))
    heads = [*FIRST, *columns("Value about", "Cap", "Excess", "Noise"), VERDICT]
    note = f"Of {number(len(every))} caps, the {MOST} with the largest excess are shown." if len(every) > MOST else ""
    return _by_term(heads, lines, "noisy sortable") + piece("note", note)


def dots(runs: Mapping[str, Run]) -> Markup:
    """Return a table of every constraint at every site with a dot for each run, against the cap."""
    terms: dict[tuple[str, str], dict[str, Row]] = {}
    for name, run in runs.items():
        for row in run.certificate.rows:
            terms.setdefault((row.site, row.constraint), {})[name] = row
    if not terms:
        return Markup("")
    scale = scales([row for mine in terms.values() for row in mine.values()])
    most = max(50, min(MOST, 4000 // len(runs)))  # about 4000 dots keep the page small
    selection = set(sorted(terms, key=lambda key: min(row.slack for row in terms[key].values()))[:most])
    places = {name: i for i, name in enumerate(runs)}
    lines = []
    for (site, constraint), mine in terms.items():
        if (site, constraint) not in selection:
            continue
        marks = [
            {
                "name": name,
                "value": row.value,
                "colour": places[name] % 8,
                "left": percent_of(row.value, *scale[constraint]),
                "at": places[name] / max(len(runs) - 1, 1),  # dots of equal values stay apart
            }
            for name, row in mine.items()
        ]
        caps = [percent_of(cap, *scale[constraint]) for cap in sorted({row.cap for row in mine.values()})]
        drawing = piece("dots", min(len(runs), 4), caps, marks)
        lines.append(Line(site, [Cell(constraint), Cell(drawing), *_figures_of_runs(mine, runs)]))
    heads = [*FIRST, *(columns(*runs) if len(runs) <= COLUMNS else [Column("Least slack"), Column("In run", "")])]
    note = (
        f"Of {number(len(terms))} constraints, the {most} with the least slack are shown." if len(terms) > most else ""
    )
    return piece("tools", [], len(selection) > 8) + _by_term(heads, lines) + piece("note", note)


def _figures_of_runs(mine: Mapping[str, Row], runs: Mapping[str, Run]) -> list[Cell]:
    """Return the cells of a constraint at a site: its value in each run, or of many runs the least slack."""
    if len(runs) > COLUMNS:
        tightest = min(mine, key=lambda name: mine[name].slack)
        return [Cell(number(mine[tightest].slack), mine[tightest].slack), Cell(tightest)]
    cells = []
    for name, run in runs.items():
        row = mine.get(name)
        mark = "broken" if row is not None and standing(row, run.certificate.eps2) == "broken" else ""
        cells.append(Cell("–", "") if row is None else Cell(number(row.value), row.value, mark=mark))
    return cells
