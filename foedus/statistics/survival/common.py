"""The partial likelihood with risk sets over all sites, from sums at the times of a grid that all parties know.

Two sums a round. The first has S0 and S1 at each time, m·(1 + d) numbers (and D0, D1 with Efron's ties); from them the
server knows a = Σ 1/φ at each time and sends it; the second has one d × d matrix, Σ_k a_k S2_k, in d(d + 1)/2 numbers
(`risk_sets.py`). The differences of S1 between two times are sums over the rows that leave between them, so the grid is
as fine as what may be told: `least` rows of each site that has any, at the least (`cells.py`).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.statistics.survival.risk_sets import Hazards, Moments, Places, moments, second
from foedus.statistics.survival.risk_sets import score_residuals as residuals_of
from foedus.statistics.survival.rows import SurvivalRows
from foedus.statistics.survival.stratified import AtModel, Standard, halves, products, reals, triangle, wholes
from foedus.sums.questions import Question


@dataclass(frozen=True, eq=False)
class GridCounts(Question):
    """How many rows are at risk at each time, how many have an event there, and what are the events' covariates?

    The answer: whole numbers (2, m), and Σ x over the events. (d,)
    """

    kind: ClassVar[str] = "survival-grid"
    words: ClassVar[int | None] = 2
    standard: Standard
    grid: np.ndarray

    @property
    def arrays(self) -> PyTree:
        return self.standard.mean, self.standard.scale, self.grid

    @property
    def shape(self) -> PyTree:
        return wholes(2, len(self.grid)), reals(len(self.standard.mean))

    def answer(self, data: SurvivalRows) -> PyTree:
        places, ones = Places.of(data, self.grid), np.ones(len(data.time))
        counts = np.rint(np.stack([places.at_risk(ones), places.events(ones)])).astype(int)
        return counts, np.sum(self.standard.of(data)[places.event], axis=0)


@dataclass(frozen=True, eq=False)
class OnGrid(AtModel):
    """A question about common risk sets at a model.

    Args:
        grid: the times. (m,)
    """

    grid: np.ndarray

    @property
    def arrays(self) -> PyTree:
        return super().arrays, self.grid

    def at(self, data: SurvivalRows) -> tuple[np.ndarray, Places, np.ndarray]:
        """Return the standardised covariates, the places on the grid, and η."""
        x = self.standard.of(data)
        return x, Places.of(data, self.grid), self.scores(x)


@dataclass(frozen=True, eq=False)
class RiskSetSums(OnGrid):
    """What are S0 and S1 (and D0 and D1) of a site's rows? m·(1 + d) + 1 numbers, twice as many with Efron's ties."""

    kind: ClassVar[str] = "survival-risk-sets"

    @property
    def shape(self) -> PyTree:
        m = len(self.grid)
        at_events = m if self.ties == "efron" else 0
        return reals(m, 1 + self.dim), reals(at_events, 1 + self.dim), reals()

    def answer(self, data: SurvivalRows) -> PyTree:
        x, places, eta = self.at(data)
        own = moments(x, places, eta)
        at_events = np.column_stack([own.events, own.events_x])
        return (
            np.column_stack([own.at_risk, own.at_risk_x]),
            at_events if self.ties == "efron" else at_events[:0],
            np.asarray(own.scores),
        )

    def moments_of(self, total: PyTree) -> Moments:
        """Return the moments of all rows."""
        at_risk, at_events, scores = total
        at_events = at_events if self.ties == "efron" else np.zeros_like(at_risk)
        return Moments(at_risk[:, 0], at_risk[:, 1:], at_events[:, 0], at_events[:, 1:], float(scores))


@dataclass(frozen=True, eq=False)
class SecondMoments(OnGrid):
    """What is Σ_k a_k S2_k + b_k D2_k of a site's rows, for some a and b? d(d + 1)/2 numbers for each pair.

    Args:
        a: the weights of the rows at risk. (pairs, m)
        b: those of the rows with an event. (pairs, m)
    """

    kind: ClassVar[str] = "survival-second"
    a: np.ndarray
    b: np.ndarray

    @property
    def arrays(self) -> PyTree:
        return *super().arrays, self.a, self.b

    @property
    def shape(self) -> PyTree:
        return reals(len(self.a), halves(self.dim))

    def answer(self, data: SurvivalRows) -> PyTree:
        x, places, eta = self.at(data)
        return np.stack([triangle(second(x, places, eta, a, b)) for a, b in zip(self.a, self.b, strict=True)])


@dataclass(frozen=True, eq=False)
class EventTrend(OnGrid):
    """What is Σ g_k x over the events of a site? d numbers.

    Args:
        g: a number for each time. (m,)
    """

    kind: ClassVar[str] = "survival-event-trend"
    g: np.ndarray

    @property
    def arrays(self) -> PyTree:
        return *super().arrays, self.g

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        return reals(self.dim)

    def answer(self, data: SurvivalRows) -> PyTree:
        x, places, _ = self.at(data)
        return self.g @ places.events(x)


@dataclass(frozen=True, eq=False)
class CommonScoreProducts(OnGrid):
    """What do the products of score residuals add up to, given what all rows say of each time?

    Args:
        of: the terms of the likelihood.
    """

    kind: ClassVar[str] = "survival-common-scores"
    of: Hazards

    @property
    def arrays(self) -> PyTree:
        return *super().arrays, self.of.a, self.of.b, self.of.a_x, self.of.b_x, self.of.mean

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        return reals(halves(self.dim))

    def answer(self, data: SurvivalRows) -> PyTree:
        x, places, eta = self.at(data)
        return triangle(products(residuals_of(x, places, eta, self.of), data.cluster))


def json_of(grid: np.ndarray) -> Json:
    """Return the grid as a plan states it."""
    return {"grid": [float(time) for time in grid]}
