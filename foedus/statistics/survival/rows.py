"""The rows of one site as survival analysis takes them: a time, whether the event happened then, and covariates.

A formula names the columns: "Surv(time, event) ~ age + stage"; "." stands for all columns that it does not name.
Rows in which one of them is missing are left out and counted, as R does it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError, did_you_mean
from foedus.data import tables
from foedus.data.columns import Column, Words, is_number, listing, missing_in, text_of
from foedus.data.tables import Table
from foedus.sums.questions import Here, Sites

SiteTable: TypeAlias = Table | Mapping[str, ArrayLike] | str | Path
"""One site's columns: a dict of arrays, a data frame, a file, or a table of `foedus.data`."""

SURV = re.compile(r"\s*Surv\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)\s*~\s*(.+?)\s*", re.DOTALL)
EVERY = "."  # in a formula: all columns that it does not name


@dataclass(frozen=True)
class Outcome:
    """Which columns hold the time, the event and the covariates.

    Args:
        time: the column of the time until the event, or until the patient was last seen.
        event: the column that is 1 where the event happened, 0 where it did not.
        columns: the covariates.
        cluster: a column within whose values rows may depend on each other; "" without.
        group: a column whose values are compared; "" without.
    """

    time: str
    event: str
    columns: tuple[str, ...] = ()
    cluster: str = ""
    group: str = ""

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        return tuple(dict.fromkeys(n for n in (self.time, self.event, *self.columns, self.cluster, self.group) if n))


@dataclass(frozen=True, eq=False)
class SurvivalRows:
    """One site's rows.

    Args:
        time: of the event, or of the last sight. (rows,)
        event: whether it happened. (rows,)
        x: the covariates. (rows, columns)
        missing: the rows that were left out because a value is missing.
        cluster: which cluster a row belongs to. (rows,)
        group: the word that a row has in the column of groups. (rows,)
    """

    time: np.ndarray
    event: np.ndarray
    x: np.ndarray
    missing: int = 0
    cluster: np.ndarray | None = None
    group: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> "SurvivalRows":
        """Return some of the rows."""
        cluster, group = (None if part is None else part[rows] for part in (self.cluster, self.group))
        return SurvivalRows(self.time[rows], self.event[rows], self.x[rows], self.missing, cluster, group)


def table_of(site: str, content: SiteTable) -> Table:
    """Return a site's columns as a table, from any form in which they are given."""
    if isinstance(content, Table):
        return content
    if isinstance(content, str | Path):
        return tables.read(Path(content))
    if not hasattr(content, "keys"):
        raise FoedusError(
            f"site {site!r}: expected columns by name, as in a dict or a data frame, or a file. "
            f"Got {type(content).__name__} instead."
        )
    columns: dict[str, Column] = {str(name): _column(site, str(name), content[name]) for name in content}
    if not columns:
        raise FoedusError(f"site {site!r}: it has no columns.")
    rows = {len(column) for column in columns.values()}
    if len(rows) > 1:
        first = next(iter(columns))
        other = next(name for name, column in columns.items() if len(column) != len(columns[first]))
        raise FoedusError(
            f"site {site!r}: the column {first!r} has {len(columns[first])} rows, but {other!r} has "
            f"{len(columns[other])}."
        )
    return Table(f"site {site!r}", columns, np.arange(rows.pop()))


def _column(site: str, name: str, values: Any) -> Column:
    cells = np.asarray(values)
    if cells.ndim != 1:
        raise FoedusError(f"site {site!r}: the column {name!r} has shape {cells.shape}; expected one value a row.")
    if cells.dtype.kind in "biuf":
        return cells.astype(float)
    try:
        return cells.astype(float)  # numbers and missing values as objects
    except (TypeError, ValueError):
        return Words.of(np.array(["" if v is None or v != v else str(v).strip() for v in cells.tolist()], dtype=str))


def outcome_of(formula: str, names: Sequence[str], cluster: str = "") -> Outcome:
    """Read a formula such as "Surv(time, event) ~ age + stage".

    Args:
        formula: the formula.
        names: the columns that every site has, for ".".
        cluster: a column that is no covariate.
    """
    match = SURV.fullmatch(formula) if isinstance(formula, str) else None
    if match is None:
        raise FoedusError(f"expected a formula such as 'Surv(time, event) ~ age + stage'. Got {formula!r} instead.")
    time, event, right = match.groups()
    terms = [term.strip() for term in right.split("+")]
    columns: list[str] = []
    for term in terms:
        if term in (time, event):
            raise FoedusError(f"the formula {formula!r} has {term!r} on both sides; take it out of the right one.")
        if term == EVERY:
            columns += [name for name in names if name not in (time, event, cluster, *terms)]
        elif term and term != "1":
            columns.append(term)
        elif not term:
            raise FoedusError(f"the formula {formula!r} has a + without a column beside it.")
    if len({*columns}) < len(columns):
        double = next(name for name in columns if columns.count(name) > 1)
        raise FoedusError(f"the formula {formula!r} names {double!r} twice.")
    return Outcome(time, event, tuple(columns), cluster)


def rows_of(table: Table, outcome: Outcome) -> SurvivalRows:
    """Return the rows of one site; raise, in a sentence with the site's name, what cannot be read."""
    columns = {name: table.column(name, "the formula") for name in outcome.used}
    for name in (outcome.time, outcome.event, *outcome.columns):
        column = columns[name]
        if isinstance(column, Words):
            words = listing([repr(level) for level in column.used().levels if not is_number(level)], 3)
            raise FoedusError(f"{table.source}: the column {name!r} holds the words {words}; expected numbers.")
        if np.any(np.isinf(column)):
            raise FoedusError(f"{table.place(int(np.argmax(np.isinf(column))))}: {name!r} is infinite.")
    keep = ~np.logical_or.reduce([missing_in(column) for column in columns.values()])
    time, event = np.asarray(columns[outcome.time])[keep], np.asarray(columns[outcome.event])[keep]
    place = np.flatnonzero(keep)
    if np.any(time < 0):
        row = int(place[np.argmax(time < 0)])
        raise FoedusError(
            f"{table.place(row)}: the time {outcome.time!r} is {time[time < 0][0]:g}; expected a number >= 0."
        )
    wrong = ~np.isin(event, (0.0, 1.0))
    if np.any(wrong):
        row = int(place[np.argmax(wrong)])
        raise FoedusError(
            f"{table.place(row)}: the event {outcome.event!r} is {event[wrong][0]:g}; expected 1 where it happened and "
            "0 where it did not."
        )
    x = [np.asarray(columns[name])[keep] for name in outcome.columns]
    cluster = group = None
    if outcome.cluster:
        cluster = np.unique(text_of(columns[outcome.cluster]).codes[keep], return_inverse=True)[1]
    if outcome.group:
        words = text_of(columns[outcome.group])
        group = np.array(words.levels, dtype=object)[words.codes[keep]] if np.any(keep) else np.zeros(0, dtype=object)
    matrix = np.column_stack(x) if x else np.zeros((int(keep.sum()), 0))
    return SurvivalRows(time, event > 0, matrix, int(np.sum(~keep)), cluster, group)


def tables_of(sites: Mapping[str, SiteTable]) -> dict[str, Table]:
    """Return the tables of all sites."""
    if not isinstance(sites, Mapping) or not sites:
        raise FoedusError(f"expected the sites by name, as {{'north': columns, …}}. Got {sites!r} instead.")
    return {str(name): table_of(str(name), content) for name, content in sites.items()}


def common_names(by_site: Mapping[str, Table]) -> tuple[str, ...]:
    """Return the columns that every site has, in the order of the first."""
    first, *others = by_site.values()
    return tuple(name for name in first.columns if all(name in other.columns for other in others))


def here(by_site: Mapping[str, Table], outcome: Outcome, secure: bool) -> Sites:
    """Return the sites in this process, which answer questions about their rows."""
    everyone = {name for table in by_site.values() for name in table.columns}
    for name in outcome.used:
        if name not in everyone:
            raise FoedusError(
                f"no site has a column {name!r}; their columns are {listing(sorted(everyone))}."
                f"{did_you_mean(name, everyone)}"
            )
    return Here({site: rows_of(table, outcome) for site, table in by_site.items()}, secure)
