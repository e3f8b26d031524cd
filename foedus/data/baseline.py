"""Table 1: who the rows of each site are, as counts, means and deviations, without a figure about few rows.

A column of words whose distribution at a site has a level with fewer than `LEAST` rows is left out at that site as a
whole, and then over all sites too: what is left out of one cell could be worked out from the others.
"""

from collections.abc import Mapping

import numpy as np

from foedus.base.files import Json
from foedus.base.quantities import number, percent
from foedus.data.columns import Column, Words, missing_in, text_of
from foedus.data.preprocess import Number, Preprocessing
from foedus.data.sites import Cohort

LEAST = 5  # rows of a level, or rows without a value, below which nothing is said
MOST_SITES = 8  # with more sites the columns are those of all sites together alone
MOST_LEVELS = 12  # of a column; more are only counted
MOST_COLUMNS = 60  # of a wider table the first are shown
FEW, ALL = "too few", "All sites"


def baseline(cohort: Cohort, held_out: Mapping[str, int] | None = None) -> Json:
    """Return Table 1 of the cohort: `sites`, and `lines` of a title and a text for each site, and for all of them.

    Args:
        cohort: the tables of all sites, before rows are held out.
        held_out: by site, how many of the rows take no part in training.
    """
    tables = cohort.tables
    sites = [*tables, ALL] if 1 < len(tables) <= MOST_SITES else [ALL] if len(tables) > 1 else [*tables]
    lines: list[tuple[str, dict[str, str]]] = [("Rows", _counts({s: t.rows for s, t in tables.items()}))]
    if held_out and any(held_out.values()):
        lines.append(("of these held out to evaluate the model", _counts({s: held_out.get(s, 0) for s in tables})))
    if cohort.dropped:
        counts = {s: cohort.dropped.get(s, 0) for s in tables}
        lines.append(("Left out before: a value is missing", _counts(counts)))
    roles = cohort.roles
    named = [(roles.label, bool(cohort.labels))] + ([(roles.group, True)] if roles.group else [])
    named += [(name, name in cohort.words) for name in cohort.features[:MOST_COLUMNS]]
    for name, holds_words in named:
        columns = {s: t.columns[name] for s, t in tables.items()}
        lines += _words(name, columns) if holds_words else _numbers(name, columns)
        lines += _missing(name, columns)
    return {"sites": sites, "lines": [[title, *(cells[s] for s in sites)] for title, cells in lines]}


def baseline_of_rules(rules: Preprocessing) -> Json:
    """Return what the rules of preprocessing say of the columns over all sites; over a network nothing more is told."""
    if rules.scale != "standard":
        return {"sites": [ALL], "lines": []}
    numbers = [rule for rule in rules.columns if isinstance(rule, Number)]
    lines = [[f"{rule.name}, mean (SD)", f"{number(rule.shift)} ({number(rule.scale)})"] for rule in numbers]
    return {"sites": [ALL], "lines": lines}


def _counts(counts: Mapping[str, int]) -> dict[str, str]:
    return {**{s: number(n) for s, n in counts.items()}, ALL: number(sum(counts.values()))}


def _numbers(name: str, columns: Mapping[str, Column]) -> list[tuple[str, dict[str, str]]]:
    """A line of means and deviations; a site with few values tells none."""
    values = {s: _values(column) for s, column in columns.items()}
    cells = {s: _mean(v) for s, v in values.items()}
    hidden = any(0 < len(v) < LEAST for v in values.values())
    cells[ALL] = FEW if hidden else _mean(np.concatenate([*values.values()]))
    return [(f"{name}, mean (SD)", cells)]


def _values(column: Column) -> np.ndarray:
    values = np.array([]) if isinstance(column, Words) else np.asarray(column, dtype=float)
    return values[np.isfinite(values)]


def _mean(values: np.ndarray) -> str:
    if len(values) < LEAST:
        return FEW if len(values) else "–"
    return f"{number(float(np.mean(values)))} ({number(float(np.std(values, ddof=1)))})"


def _words(name: str, columns: Mapping[str, Column]) -> list[tuple[str, dict[str, str]]]:
    """A line for each level: how many rows have it, and their share of those with a value."""
    words = {s: text_of(column) for s, column in columns.items()}
    levels = sorted({level for own in words.values() for level in own.used().levels})
    if len(levels) > MOST_LEVELS:
        return [(f"{name}: {len(levels)} levels", {**dict.fromkeys(columns, "–"), ALL: "–"})]
    counts = {
        s: {level: int(np.sum(own.codes == own.levels.index(level))) if level in own.levels else 0 for level in levels}
        for s, own in words.items()
    }
    hidden = {s for s, own in counts.items() if any(0 < n < LEAST for n in own.values())}
    total = {level: sum(own[level] for own in counts.values()) for level in levels}
    lines = []
    for level in levels:
        cells = {s: FEW if s in hidden else _share(own[level], sum(own.values())) for s, own in counts.items()}
        cells[ALL] = FEW if hidden else _share(total[level], sum(total.values()))
        lines.append((f"{name} = {level}", cells))
    return lines


def _missing(name: str, columns: Mapping[str, Column]) -> list[tuple[str, dict[str, str]]]:
    """A line on rows without a value, where there are any."""
    rows = {s: len(column) for s, column in columns.items()}
    counts = {s: int(np.sum(missing_in(column))) for s, column in columns.items()}
    if not any(counts.values()):
        return []
    hidden = {s for s, n in counts.items() if 0 < n < LEAST or 0 < rows[s] - n < LEAST}
    cells = {s: FEW if s in hidden else _share(n, rows[s]) for s, n in counts.items()}
    cells[ALL] = FEW if hidden else _share(sum(counts.values()), sum(rows.values()))
    return [(f"{name}, missing", cells)]


def _share(count: int, rows: int) -> str:
    return f"{number(count)} ({percent(count / rows)})" if rows else "–"
