"""The certificate as tables of bars: each term at each site against its cap, for one run or for several."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from foedus.app.report.words import number
from foedus.certificate.measure import Row
from foedus.certificate.private import BROKEN, KEPT, PrivateCertificate
from foedus.runtime.run import Run

COLUMNS = 6  # the most runs that get a column each in a comparison
MOST = 500  # rows of a table; a longer one shows those with the least slack
BADGES = {"met": ("met", "✓ kept"), "binding": ("binding", "● at its cap"), "broken": ("broken", "✕ broken")}


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
    note = f"Of {number(len(rows))} rows, the {MOST} with the least slack are shown; run.json has all of them."
    return [rows[i] for i in sorted(tightest[:MOST])], note


def scales(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return for each constraint the range of its bars, which is the same at all sites so that bars can be compared."""
    ranges: dict[str, tuple[float, float]] = {}
    for row in rows:
        low, high = ranges.get(row.constraint, (0.0, 0.0))
        values = [v for v in (row.value, row.cap) if math.isfinite(v)]
        ranges[row.constraint] = min([low, *values]), max([high, *values])
    return {name: (low, low + 1.12 * (high - low) if high > low else low + 1.0) for name, (low, high) in ranges.items()}


def _percent(value: float, scale: tuple[float, float]) -> float:
    low, high = scale
    return 100.0 * min(max((value - low) / (high - low), 0.0), 1.0) if math.isfinite(value) else 100.0


def bar(row: Row, scale: tuple[float, float], verdict: str) -> str:
    """Return the value as a bar from zero, with a mark at the cap."""
    zero, end = sorted((_percent(0.0, scale), _percent(row.value, scale)))
    return (
        f'<div class="bar {verdict}"><i style="left:{zero:.2f}%;width:{max(end - zero, 0.4):.2f}%"></i>'
        f'<u style="left:{_percent(row.cap, scale):.2f}%"></u></div>'
    )


def table(run: Run) -> str:
    """Return a table of every term at every site: value against cap, slack, multiplier, verdict."""
    rows, note = tightest_rows(run.certificate.rows)
    several = len({row.constraint for row in rows}) > 1
    scale = scales(rows)
    top = max((abs(row.multiplier) for row in rows if math.isfinite(row.multiplier)), default=0.0) or 1.0
    body = []
    for place, row in enumerate(rows):
        verdict, words = BADGES[standing(row, run.certificate.eps2)]
        term = f'<td data-v="{escape(row.constraint)}">{escape(row.constraint)}</td>' if several else ""
        price = 100.0 * min(abs(row.multiplier) / top, 1.0) if math.isfinite(row.multiplier) else 0.0
        body.append(
            f'<tr class="{verdict}" data-place="{place}"><th scope="row" data-v="{escape(row.site)}">{escape(row.site)}'
            f'</th>{term}<td class="wide" data-v="{row.value!r}">{bar(row, scale[row.constraint], verdict)}</td>'
            f'<td class="n" data-v="{row.value!r}"><span class="mini">value</span>{number(row.value)}</td>'
            f'<td class="n" data-v="{row.cap!r}"><span class="mini">cap</span>'
            f"{'= ' if row.kind == '==' else ''}{number(row.cap)}</td>"
            f'<td class="n" data-v="{row.slack!r}"><span class="mini">slack</span>{number(row.slack)}</td>'
            f'<td class="n price" data-v="{row.multiplier!r}"><span class="mini">multiplier</span>'
            f'{number(row.multiplier)}<s style="width:{price:.1f}%"></s></td>'
            f'<td class="v" data-v="{row.slack!r}"><span class="badge {verdict}">{words}</span></td></tr>'
        )
    heads = [
        "Site",
        *(["Term"] if several else []),
        "Value against cap",
        "Value",
        "Cap",
        "Slack",
        "Multiplier",
        "Verdict",
    ]
    counts = {name: sum(standing(row, run.certificate.eps2) == name for row in rows) for name in BADGES}
    chips = "".join(
        f'<button type="button" class="badge {name}" data-only="{name}">{BADGES[name][1]} <b>{n}</b></button>'
        for name, n in counts.items()
        if n
    )
    return (
        f'<div class="tools">{chips}{_find(len(rows))}</div><div class="{_scroll(len(rows))}">'
        f'<table class="sites sortable{" terms" if several else ""}"><thead><tr>{_heads(heads)}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
        + (f'<p class="note">{escape(note)}</p>' if note else "")
    )


def bars(titles: Sequence[str], rows: Sequence[tuple[str, float, tuple[str, ...]]]) -> str:
    """Return a table of sites with a bar for one figure, the figure, and further ones as text, under `titles`."""
    top = max((value for _, value, _ in rows if math.isfinite(value)), default=0.0) or 1.0
    body = []
    for name, value, others in rows:
        wide = 100.0 * min(max(value / top, 0.0), 1.0) if math.isfinite(value) else 100.0
        further = "".join(
            f'<td class="n"><span class="mini">{escape(title)}</span>{escape(text)}</td>'
            for title, text in zip(titles[3:], others, strict=True)
        )
        body.append(
            f'<tr><th scope="row" data-v="{escape(name)}">{escape(name)}</th><td class="wide" data-v="{value!r}">'
            f'<div class="bar"><i style="width:{wide:.2f}%"></i></div></td><td class="n" data-v="{value!r}">'
            f'<span class="mini">{escape(titles[2])}</span>{number(value)}</td>{further}</tr>'
        )
    heads = "".join(
        f'<th scope="col" class="{("", "wide")[i] if i < 2 else "n"}">{escape(title)}</th>'
        for i, title in enumerate(titles)
    )
    return (
        f'<div class="{_scroll(len(rows))}"><table class="sites sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def span(low: float, high: float) -> str:
    """Return an interval in words, as "0.37 to 0.47"; "no interval" where an end is not finite."""
    return f"{number(low)} to {number(high)}" if math.isfinite(low) and math.isfinite(high) else "no interval"


def noisy_table(certificate: PrivateCertificate) -> str:
    """Return a table of every cap as it was measured under noise: intervals of value and excess, noise, verdict."""
    rows = sorted(certificate.rows, key=lambda row: -row.high)[:MOST]
    rows = rows if len(certificate.rows) > MOST else list(certificate.rows)
    several = len(certificate.constraints) > 1
    top = max((v for row in rows for v in (row.cap, row.value_high) if math.isfinite(v)), default=0.0)
    scale = (0.0, 1.12 * top if top > 0 else 1.0)
    body = []
    for place, row in enumerate(rows):
        verdict = {KEPT: "met", BROKEN: "broken"}.get(row.standing, "binding")
        mark = {KEPT: "✓", BROKEN: "✕"}.get(row.standing, "?")
        start = _percent(row.value_low, scale) if math.isfinite(row.value_low) else 0.0
        wide = max(_percent(row.value_high, scale) - start, 0.4)
        value = number(row.value) if math.isfinite(row.value) else "–"
        cap, verdict_words = _percent(row.cap, scale), f"{mark} {certificate.verdict(row)}"
        middle = f'<b style="left:{_percent(row.value, scale):.2f}%"></b>' if math.isfinite(row.value) else ""
        term = f'<td data-v="{escape(row.constraint)}">{escape(row.constraint)}</td>' if several else ""
        body.append(
            f'<tr class="{verdict}" data-place="{place}"><th scope="row" data-v="{escape(row.site)}">{escape(row.site)}'
            f'</th>{term}<td class="wide" data-v="{row.value!r}"><div class="bar range {verdict}">'
            f'<i style="left:{start:.2f}%;width:{wide:.2f}%"></i>{middle}<u style="left:{cap:.2f}%">'
            f'</u></div></td><td class="n" data-v="{row.value!r}"><span class="mini">value about</span>'
            f"{value}<small>{span(row.value_low, row.value_high)}</small></td>"
            f'<td class="n" data-v="{row.cap!r}"><span class="mini">cap</span>{number(row.cap)}</td>'
            f'<td class="n" data-v="{row.excess!r}"><span class="mini">excess</span>{number(row.excess)}'
            f"<small>{span(row.low, row.high)}</small></td>"
            f'<td class="n" data-v="{row.noise!r}"><span class="mini">noise</span>{number(row.noise)}</td>'
            f'<td class="v" data-v="{row.high!r}"><span class="badge {verdict}">{verdict_words}</span>'
            "</td></tr>"
        )
    heads = ["Site", *(["Term"] if several else []), "Value against cap", "Value about", "Cap", "Excess", "Noise"]
    note = f"Of {number(len(certificate.rows))} caps, the {MOST} with the largest excess are shown."
    return (
        f'<div class="{_scroll(len(rows))}"><table class="sites noisy sortable{" terms" if several else ""}"><thead>'
        f"<tr>{_heads([*heads, 'Verdict'])}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        + (f'<p class="note">{note}</p>' if len(certificate.rows) > MOST else "")
    )


def _heads(titles: Sequence[str]) -> str:
    kinds = {"Value against cap": "wide", "Verdict": "v", "Site": "", "Term": "", "In run": ""}
    return "".join(f'<th scope="col" class="{kinds.get(title, "n")}">{escape(title)}</th>' for title in titles)


def _find(rows: int) -> str:
    return '<label class="find script">Find a site <input type="search"></label>' if rows > 8 else ""


def _scroll(rows: int) -> str:
    return "scroll tall" if rows > 25 else "scroll"


def _columns(mine: Mapping[str, Row], runs: Mapping[str, Run]) -> str:
    """Return the cells of a term at a site: its value in each run, or with many runs the one with the least slack."""
    if len(runs) > COLUMNS:
        tightest = min(mine, key=lambda name: mine[name].slack)
        return (
            f'<td class="n" data-v="{mine[tightest].slack!r}"><span class="mini">Least slack</span>'
            f'{number(mine[tightest].slack)}</td><td data-v="{escape(tightest)}">{escape(tightest)}</td>'
        )
    cells = ""
    for name, run in runs.items():
        row = mine.get(name)
        mark = "broken" if row is not None and standing(row, run.certificate.eps2) == "broken" else ""
        cells += (
            f'<td class="n {mark}" data-v="{"" if row is None else repr(row.value)}">'
            f'<span class="mini">{escape(name)}</span>'
            f"{'–' if row is None else number(row.value)}</td>"
        )
    return cells


def dots(runs: Mapping[str, Run]) -> str:
    """Return a table of every term at every site with a dot for each run, against the cap."""
    terms: dict[tuple[str, str], dict[str, Row]] = {}
    for name, run in runs.items():
        for row in run.certificate.rows:
            terms.setdefault((row.site, row.constraint), {})[name] = row
    if not terms:
        return ""
    scale = scales([row for mine in terms.values() for row in mine.values()])
    most = max(50, min(MOST, 4000 // len(runs)))  # about 4000 dots keep the page small
    selection = set(sorted(terms, key=lambda key: min(row.slack for row in terms[key].values()))[:most])
    colours = {name: i % 8 for i, name in enumerate(runs)}
    height = {name: i / max(len(runs) - 1, 1) for i, name in enumerate(runs)}  # dots of equal values stay apart
    several = len({constraint for _, constraint in terms}) > 1
    body = []
    for (site, constraint), mine in terms.items():
        if (site, constraint) not in selection:
            continue
        caps = sorted({row.cap for row in mine.values()})
        marks = "".join(f'<u style="left:{_percent(cap, scale[constraint]):.2f}%"></u>' for cap in caps)
        marks += "".join(
            f'<i class="c{colours[name]}" data-series="{escape(name)}" title="{escape(name)}: {number(row.value)}" '
            f'style="left:{_percent(row.value, scale[constraint]):.2f}%;--at:{height[name]:.2f}"></i>'
            for name, row in mine.items()
        )
        term = f'<td data-v="{escape(constraint)}">{escape(constraint)}</td>' if several else ""
        body.append(
            f'<tr><th scope="row" data-v="{escape(site)}">{escape(site)}</th>{term}'
            f'<td class="wide"><div class="dots" style="--runs:{min(len(runs), 4)}">{marks}</div></td>'
            f"{_columns(mine, runs)}</tr>"
        )
    heads = ["Site", *(["Term"] if several else []), "Value against cap"]
    heads += runs if len(runs) <= COLUMNS else ["Least slack", "In run"]
    note = f"Of {number(len(terms))} rows, the {most} with the least slack are shown." if len(terms) > most else ""
    return (
        f'<div class="tools">{_find(len(selection))}</div><div class="{_scroll(len(selection))}">'
        f'<table class="sites sortable{" terms" if several else ""}"><thead><tr>{_heads(heads)}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>" + (f'<p class="note">{note}</p>' if note else "")
    )
