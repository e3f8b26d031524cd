"""Cox's partial likelihood as sums over the rows at risk, one entry for each time of a grid.

With η = xᵀβ, and a row at risk at a time g_k until it leaves, let

    S0_k = Σ e^η,  S1_k = Σ x e^η,  S2_k = Σ x xᵀ e^η    over the rows at risk at g_k,
    D0_k, D1_k, D2_k                                     the same over the d_k rows with an event there.

Breslow's form of ties has the terms φ = S0_k, d_k times each; Efron's the terms φ_kl = S0_k − (l/d_k) D0_k for
l = 0, …, d_k − 1, and with z_kl = (S1_k − (l/d_k) D1_k)/φ_kl

    log-likelihood  Σ η − Σ_kl log φ_kl,      gradient  Σ x − Σ_kl z_kl      (first sums over the events),
    information     Σ_kl [S2_k − (l/d_k) D2_k]/φ_kl − Σ_kl z_kl z_klᵀ.

**The second moments need one matrix.** Σ_k a_k S2_k with a_k = Σ_l 1/φ_kl is Σ_j x_j x_jᵀ e^{η_j} A(j), where A(j) is
the sum of a_k up to the time at which row j leaves: once a is known, a site sends one matrix instead of one for each
time. D2 adds b_k = −Σ_l (l/d_k)/φ_kl to A(j) for a row with an event at g_k. The products z zᵀ need S1 and D1 alone.

A time between two of the grid: an event counts at the next one, a row without an event leaves after the last one
before. So a grid that holds every time of an event changes nothing, and rows that outlive the grid leave at its end.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from foedus.statistics.survival.rows import SurvivalRows

TIES = ("efron", "breslow")


@dataclass(frozen=True, eq=False)
class Places:
    """Where the rows stand on a grid of m times.

    Args:
        last: the last place at which a row is at risk; −1 for one that is never. (rows,)
        event: whether it has an event there. (rows,)
        size: m.
    """

    last: np.ndarray
    event: np.ndarray
    size: int

    @staticmethod
    def of(rows: SurvivalRows, grid: np.ndarray) -> "Places":
        """Return the places of rows on a grid of ascending times."""
        last = np.where(rows.event, np.searchsorted(grid, rows.time), np.searchsorted(grid, rows.time, "right") - 1)
        event = rows.event & (last < len(grid))
        return Places(np.minimum(last, len(grid) - 1), event, len(grid))

    def at_risk(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of values over the rows at risk at each time. (rows, …) -> (m, …)"""
        here = self.last >= 0
        return _by_place(self.last[here], values[here], self.size)[::-1].cumsum(axis=0)[::-1]

    def events(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of values over the rows with an event at each time. (rows, …) -> (m, …)"""
        return _by_place(self.last[self.event], values[self.event], self.size)

    def until_leaving(self, values: np.ndarray) -> np.ndarray:
        """Return for each row the sum of values over the times at which it is at risk. (m, …) -> (rows, …)"""
        total = np.concatenate([np.zeros((1, *values.shape[1:])), values.cumsum(axis=0)])
        return total[self.last + 1]

    def at_event(self, values: np.ndarray) -> np.ndarray:
        """Return for each row the value at its event, 0 without one. (m, …) -> (rows, …)"""
        here = values[np.maximum(self.last, 0)]
        return np.where(self.event.reshape(-1, *[1] * (values.ndim - 1)), here, 0.0)


def _by_place(places: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(size + 1))
    total = np.concatenate([np.zeros((1, *values.shape[1:])), values[order].cumsum(axis=0, dtype=float)])
    return np.diff(total[starts], axis=0)


@dataclass(frozen=True, eq=False)
class Moments:
    """S0 (m,), S1 (m, d), D0 (m,), D1 (m, d) of some rows, and Σ η over their events; a sum of them is one of all."""

    at_risk: np.ndarray
    at_risk_x: np.ndarray
    events: np.ndarray
    events_x: np.ndarray
    scores: float


def moments(x: np.ndarray, places: Places, eta: np.ndarray) -> Moments:
    """Return the moments of some rows at scores η."""
    e = np.exp(eta)
    e_x = x * e[:, None]
    return Moments(
        places.at_risk(e), places.at_risk(e_x), places.events(e), places.events(e_x),
        float(np.sum(eta[places.event])),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Hazards:
    """What follows from the moments of all rows: the terms of the likelihood, one for each time and tie.

    Args:
        a: Σ_l 1/φ_kl, the increase of the baseline hazard. (m,)
        b: −Σ_l (l/d_k)/φ_kl. (m,)
        a_x: Σ_l z_kl/φ_kl. (m, d)
        b_x: −Σ_l (l/d_k) z_kl/φ_kl. (m, d)
        mean: Σ_l z_kl/d_k, what the covariates of an event at this time are expected to be. (m, d)
        log: Σ_kl log φ_kl.
        outer: Σ_l z_kl z_klᵀ, times the weights of the times; a function of them.
    """

    a: np.ndarray
    b: np.ndarray
    a_x: np.ndarray
    b_x: np.ndarray
    mean: np.ndarray
    log: float
    z: np.ndarray
    place: np.ndarray
    times: np.ndarray

    def outer(self, weights: np.ndarray) -> np.ndarray:
        """Return Σ w_k Σ_l z_kl z_klᵀ."""
        return (self.z * (self.times * weights[self.place])[:, None]).T @ self.z


def hazards(total: Moments, counts: np.ndarray, ties: str) -> Hazards:
    """Return the terms of the likelihood, from the moments of all rows and the number of events at each time."""
    m = len(counts)
    if ties == "efron":
        place = np.repeat(np.arange(m), counts)
        share = (np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)) / np.maximum(counts, 1)[place]
        times = np.ones(len(place))
    else:
        place = np.flatnonzero(counts)
        share, times = np.zeros(len(place)), counts[place].astype(float)
    phi = total.at_risk[place] - share * total.events[place]
    z = (total.at_risk_x[place] - share[:, None] * total.events_x[place]) / phi[:, None]

    def sums(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.bincount(place, weights, m), _by_place(place, weights[:, None] * z, m)

    (a, a_x), (b, b_x) = sums(times / phi), sums(-share * times / phi)
    mean = sums(times)[1] / np.maximum(counts, 1)[:, None]
    return Hazards(a, b, a_x, b_x, mean, float(np.sum(times * np.log(phi))), z, place, times)


def second(x: np.ndarray, places: Places, eta: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Σ_k a_k S2_k + b_k D2_k of some rows: one matrix, whatever the number of times."""
    weight = np.exp(eta) * (places.until_leaving(a) + places.at_event(b))
    return (x * weight[:, None]).T @ x


def score_residuals(x: np.ndarray, places: Places, eta: np.ndarray, of: Hazards) -> np.ndarray:
    """Return each row's part of the gradient, in the sense of its influence; their sum is the gradient. (rows, d)"""
    a, b = places.until_leaving(of.a), places.at_event(of.b)
    compensator = x * (a + b)[:, None] - places.until_leaving(of.a_x) - places.at_event(of.b_x)
    return np.where(places.event[:, None], x - places.at_event(of.mean), 0.0) - np.exp(eta)[:, None] * compensator


Triple: TypeAlias = tuple[float, np.ndarray, np.ndarray]
"""A log-likelihood, its gradient, and minus its second derivatives."""


def likelihood(total: Moments, of: Hazards, event_x: np.ndarray, second_moments: np.ndarray) -> Triple:
    """Return the log-likelihood, its gradient and the information."""
    gradient = event_x - of.times @ of.z
    return total.scores - of.log, gradient, second_moments - of.outer(np.ones(len(of.a)))
