"""Kaplan-Meier curves and the log-rank test, from counts of rows at the times of a grid that all parties know.

A site tells how many rows of each group have had an event, and how many have left without one, until each time. Of
fewer than `least` rows it tells nothing: it leaves out times of the grid until both counts have risen by so many, so
that rows leave later than they did; a group whose events, or whose rows without one, are fewer is withheld there. Both
are counted and said, and then there is no log-rank test: a coarser grid has one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.notebook import html_of, text_table
from foedus.base.pytrees import PyTree
from foedus.base.quantities import number
from foedus.base.settings import check
from foedus.data.baseline import LEAST
from foedus.data.masked_sums import InSums
from foedus.data.sites import in_order
from foedus.data.sums import ABSENT, Replies
from foedus.statistics.describe import of_enough_rows
from foedus.statistics.survival.cox import Test, grid_of
from foedus.statistics.survival.risk_sets import Places
from foedus.statistics.survival.rows import Outcome, SiteTable, SurvivalRows, common_names, here, outcome_of, tables_of
from foedus.statistics.survival.stratified import wholes
from foedus.sums.questions import Here, Question

MOST_GROUPS = 50
SHOWN = 8  # times of a printed curve


@dataclass(frozen=True, eq=False)
class CurveCounts(Question):
    """Of each group: how many rows, whether they are withheld, and how many have left until each time, and how?

    Args:
        grid: the times. (m,)
        groups: the words of the column of groups; ("",) without one.
        least: of fewer rows than this nothing is told.
    """

    kind: ClassVar[str] = "survival-curves"
    grid: np.ndarray
    groups: tuple[str, ...]
    least: int

    @property
    def arrays(self) -> PyTree:
        return self.grid

    @property
    def shape(self) -> PyTree:
        return wholes(len(self.groups), 3), wholes(len(self.groups), 2, len(self.grid))

    def answer(self, data: SurvivalRows) -> PyTree:
        rows = np.zeros((len(self.groups), 3), dtype=int)
        left = np.zeros((len(self.groups), 2, len(self.grid)), dtype=int)
        for g, group in enumerate(self.groups):
            own = data if data.group is None else data.take(data.group == group)
            places = Places.of(own, self.grid)
            here_at = places.last >= 0
            leaving = np.bincount(places.last[here_at], minlength=len(self.grid))
            events = np.bincount(places.last[places.event], minlength=len(self.grid))
            without = leaving - events
            rest, without[-1] = without[-1], 0  # these are at risk until the end
            cells = np.array([np.sum(events), np.sum(without), rest])
            if np.any((cells > 0) & (cells < self.least)):
                rows[g, 1] = 1
                continue
            rows[g, 0] = np.sum(here_at)
            exact = np.cumsum([events, without], axis=1)
            left[g] = _in_steps(exact, self.least)
            rows[g, 2] = np.any(left[g] != exact)
        return rows, left


def _in_steps(counts: np.ndarray, least: int) -> np.ndarray:
    """Rising counts of two kinds, told at the times at which both have risen, and will yet rise, by enough or not."""
    steps, last = np.zeros_like(counts), np.zeros(len(counts), dtype=int)
    for k, value in enumerate(counts.T):
        changes = np.concatenate([value - last, counts[:, -1] - value])
        if np.all((changes == 0) | (changes >= least)):
            last = value
        steps[:, k] = last
    return steps


@dataclass(frozen=True, eq=False)
class Curve:
    """The Kaplan-Meier curve of one group, at the times of the grid.

    Attributes:
        times: of the grid.
        at_risk: rows at risk at each time.
        events: at each time.
        withheld: how many sites withhold their rows of this group.
        coarser: how many sites leave out times of the grid.
    """

    times: np.ndarray
    at_risk: np.ndarray
    events: np.ndarray
    withheld: int
    coarser: int

    @property
    def survival(self) -> np.ndarray:
        """The chance to have no event until each time."""
        return np.cumprod(1.0 - self.events / np.maximum(self.at_risk, 1))

    @property
    def errors(self) -> np.ndarray:
        """The standard errors of the chances, by Greenwood's formula."""
        others = self.at_risk - self.events
        terms = np.where(others > 0, self.events / np.maximum(self.at_risk * others, 1), 0.0)
        return self.survival * np.sqrt(np.cumsum(terms))

    @property
    def median(self) -> float:
        """The first time at which half have had an event; infinite where there is none."""
        below = np.flatnonzero(self.survival <= 0.5)
        return float(self.times[below[0]]) if len(below) else float("inf")


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of all groups, and the log-rank test that they are one; None with a single group, or where counts of
    few rows are not told at their times."""

    by_group: Mapping[str, Curve]
    test: Test | None

    def __getitem__(self, group: str) -> Curve:
        return self.by_group[group]

    def __str__(self) -> str:
        rows = []
        for group, own in self.by_group.items():
            for k in np.unique(np.linspace(0, len(own.times) - 1, SHOWN).astype(int)):
                mark = f" †{own.withheld}" if own.withheld else ""
                rows.append((group + mark, number(float(own.times[k])), number(int(own.at_risk[k])),
                             f"{own.survival[k]:.4f}", f"{own.errors[k]:.4f}"))  # fmt: skip
        lines = text_table(("", "time", "at risk", "survival", "std. error"), rows)
        if any(own.coarser for own in self.by_group.values()):
            lines.append("Some sites leave out times of the grid, at which few rows leave: take a coarser one.")
        if any(own.withheld for own in self.by_group.values()):
            lines.append("†: so many sites withhold their rows, which are few; the curve is over the others.")
        return "\n".join(lines if self.test is None else [*lines, f"Log-rank test: {self.test}."])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))


def kaplan_meier(
    formula: str,
    sites: Mapping[str, SiteTable],
    *,
    grid: Sequence[float] | np.ndarray,
    least: int = LEAST,
    secure: bool = False,
) -> Curves:
    """Return Kaplan-Meier curves over sites with the log-rank test between groups, from counts on a grid of times.

    Args:
        formula: "Surv(time, event) ~ 1", or with a column of groups, as "Surv(time, event) ~ ward".
        sites: by name, each a dict of columns, a data frame or a file.
        grid: the times. An event between two of them counts at the later one; a row without an event leaves at the
            earlier one. With the time of every event, and `least` 1, the curves are those of the pooled rows.
        least: of fewer rows than this a site tells nothing, nor the words of a group that has fewer.
        secure: whether sums are masked, so that totals alone are seen.

    Example:
        >>> import foedus as fd
        >>> north = {"time": [5, 8, 12, 20], "event": [1, 1, 0, 1]}
        >>> south = {"time": [3, 9, 14], "event": [1, 0, 1]}
        >>> curves = fd.kaplan_meier("Surv(time, event) ~ 1", {"n": north, "s": south}, grid=range(3, 21), least=1)
        >>> curves[""].survival[-1].round(3), curves[""].median
        (np.float64(0.0), 14.0)
    """
    check("The 'least' of kaplan_meier", least, ge=1, whole=True)
    times, tables = grid_of(grid), tables_of(sites)
    stated = outcome_of(formula, common_names(tables))
    if len(stated.columns) > 1:
        raise FoedusError(
            f"the formula {formula!r} names {len(stated.columns)} columns; expected one with groups, or 1."
        )
    outcome = Outcome(stated.time, stated.event, group=stated.columns[0] if stated.columns else "")
    source, groups = here(tables, outcome, secure), ("",)
    if outcome.group:
        frequent = {site: of_enough_rows(table, (outcome.group,), least) for site, table in tables.items()}
        replies = Here({site: Replies(table, None) for site, table in frequent.items()}, secure)
        words = InSums(replies, formula, MOST_GROUPS).values((outcome.group,))[outcome.group]
        groups = in_order({*words} - {ABSENT})
    rows, left = source.total(CurveCounts(times, groups, least))
    before = np.concatenate([np.zeros((len(groups), 1), dtype=int), left.sum(axis=1)[:, :-1]], axis=1)
    at_risk, events = rows[:, :1] - before, np.diff(left[:, 0], axis=1, prepend=0)
    curves = {
        group: Curve(times, at_risk[g], events[g], int(rows[g, 1]), int(rows[g, 2])) for g, group in enumerate(groups)
    }
    is_exact = len(groups) > 1 and not np.any(rows[:, 1:])
    return Curves(curves, _log_rank(at_risk.astype(float), events.astype(float)) if is_exact else None)


def _log_rank(at_risk: np.ndarray, events: np.ndarray) -> Test | None:
    """The log-rank test: events less those expected in each group, over their covariance if the groups are one."""
    used = np.any(at_risk > 0, axis=1)
    n, d = at_risk[used].sum(axis=0), events[used].sum(axis=0)
    share = at_risk[used] / np.maximum(n, 1.0)
    excess = (events[used] - share * d).sum(axis=1)
    factor = d * (n - d) / np.maximum(n - 1.0, 1.0)
    covariance = np.diag((share * factor).sum(axis=1)) - (share * factor) @ share.T
    freedom = int(np.sum(used)) - 1
    if freedom < 1 or not np.any(d):
        return None
    return Test(float(excess[:-1] @ np.linalg.lstsq(covariance[:-1, :-1], excess[:-1])[0]), freedom)
