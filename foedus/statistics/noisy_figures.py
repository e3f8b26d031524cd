"""The figures that follow from counts and sums with noise, with intervals that include the noise.

A rate or a mean q is a quotient: x̃ of rows or losses over ñ rows, both with noise. For the true q of the rows' law,
x̃ − q·ñ has mean 0, the variance n·v(q) of the rows, and noise of a known law. The interval holds every q with

    |x̃ − q·ñ| ≤ √(z²·n·v(q) + Q(q)²) + ½,

as Wilson (1927) and Fieller (1954) do it: v(q) is q(1 − q) for a rate, and for a mean of values in [0, b] the largest
variance that it can have, q(b − q) (Bhatia and Davis 2000). Q(q) is the quantile of the noise: the normal one, or
Chernoff's bound for a sum of Laplace draws. z and Q are those of 97 %, which leaves room for the normal approximation
of the rows' part; n is ñ and its own noise's quantile. `tests/privacy/test_noisy_evaluation.py` measures the coverage.

The area under the curve A is treated alike: with positives P and negatives N by cells and S the matrix that says which
pairs are in the right order, Pᵀ(S − A)N has mean 0. Pairs that share a cell count as wrong for the lower end and as
right for the upper.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from foedus.problem.constraints import LossCap, LossGap
from foedus.problem.terms import Data, Terms
from foedus.statistics import intervals
from foedus.statistics.figures import TITLES, Tenth, TermFigure, gap_or_cap, term_figures
from foedus.statistics.intervals import NOTHING, Figure
from foedus.statistics.noisy import CELLS, CENTRES, LARGEST, TENTH_OF_CELL
from foedus.statistics.tally import TENTHS

LEVEL = 0.97
HALVINGS = 24  # of a bisection: an end is found to 1e-7 of its range, and the outer value is taken


@dataclass(frozen=True)
class NoisyTally:
    """What one site has sent, or the sum of what several have: the parts, the scale of their noise, and how many."""

    sums: Mapping[str, np.ndarray]
    scales: Mapping[str, float]
    kind: str
    parties: int = 1

    def quantile(self, weights: np.ndarray) -> float:
        """Return what the sum of the noise, each draw times scale and weight, exceeds in size with at most 3 %."""
        if not np.any(weights):
            return 0.0
        if self.kind == "gaussian":
            return _z() * math.sqrt(self.parties * float(weights @ weights))
        # Chernoff: P(|Σ w L| > x) ≤ 2 exp(−t x) Π (1 − w²t²)^−parties for every t below 1/max|w|
        t = np.linspace(0.02, 0.98, 49) / np.max(np.abs(weights))
        logs = -self.parties * np.sum(np.log1p(-((weights[:, None] * t) ** 2)), axis=0)
        return float(np.min((math.log(2.0 / (1.0 - LEVEL)) + logs) / t))

    def rows(self) -> float:
        """Return the number of rows, with noise."""
        return float(np.sum(self.sums["outcomes"]))


@cache
def _z() -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + LEVEL / 2.0))


def _quotient(
    x: float,
    n: float,
    noise: Callable[[float], float],
    variance: Callable[[float], float],
    low: float,
    high: float,
    few: float,
) -> Figure:
    """The quotient x/n with its interval within [low, high]; nothing where n is not above its own noise, `few`."""
    if n <= few:
        return NOTHING
    value = min(max(x / n, low), high)
    most = n + few

    def allows(q: float) -> bool:
        return abs(x - q * n) <= math.sqrt(_z() ** 2 * most * max(variance(q), 0.0) + noise(q) ** 2) + 0.5

    def end(outer: float) -> float:
        inner = value
        if allows(outer) or not allows(inner):
            return outer
        for _ in range(HALVINGS):
            middle = 0.5 * (inner + outer)
            inner, outer = (middle, outer) if allows(middle) else (inner, middle)
        return outer

    return Figure(value, end(low), end(high), round(n))


def _rate(sums: NoisyTally, part: str, wrong: Sequence[int], right: Sequence[int]) -> Figure:
    """The share of the counts `wrong` of a part in these and the counts `right`."""
    flat, scale = sums.sums[part].ravel(), sums.scales[part]
    x, y = float(np.sum(flat[list(wrong)])), float(np.sum(flat[list(right)]))
    ones, others = np.full(len(wrong), scale), np.full(len(right), scale)
    few = sums.quantile(np.concatenate([ones, others]))
    return _quotient(
        x, x + y, lambda q: sums.quantile(np.concatenate([(1 - q) * ones, -q * others])), lambda q: q * (1 - q),
        0.0, 1.0, few,
    )  # fmt: skip


def _mean(
    sums: NoisyTally, part: str, low: float, high: float, variance: Callable[[float], float] | None = None
) -> Figure:
    """The mean over all rows of values in [low, high] whose sum a part holds."""
    counts = np.full(4, sums.scales["outcomes"])
    scale = np.array([sums.scales[part]])
    return _quotient(
        float(sums.sums[part][0]),
        sums.rows(),
        lambda q: sums.quantile(np.concatenate([scale, q * counts])),
        variance or (lambda q: (q - low) * (high - q)),
        low,
        high,
        sums.quantile(counts),
    )


def _term(sums: NoisyTally, part: str) -> Figure:
    """The mean loss of a term's rows, from their number and the sum of their losses."""
    (n, x), scale = sums.sums[part].tolist(), sums.scales[part]
    return _quotient(
        LARGEST * x, n, lambda q: sums.quantile(np.array([LARGEST * scale, q * scale])), lambda q: q * (LARGEST - q),
        0.0, LARGEST, sums.quantile(np.array([scale])),
    )  # fmt: skip


def _order(ties: float) -> np.ndarray:
    """The matrix S: 1 where the cell of the positive is above that of the negative, and `ties` where it is the same."""
    return np.tril(np.ones((CELLS, CELLS)), -1) + ties * np.eye(CELLS)


def area(sums: NoisyTally) -> tuple[Figure, float]:
    """Return the area under the curve, and half of what pairs that share a cell leave open."""
    positives, negatives = sums.sums["cells"]
    scale = sums.scales["cells"]
    m, n = float(positives.sum()), float(negatives.sum())
    few = sums.quantile(np.full(CELLS, scale))
    if min(m, n) <= few:
        return NOTHING, 0.0

    def quotient(ties: float) -> Figure:
        S = _order(ties)

        def noise(a: float) -> float:
            R = S - a
            return sums.quantile(scale * np.concatenate([R @ negatives, R.T @ positives])) / n

        # Pᵀ(S − A)N / n is x − A·m with x = PᵀSN / n; the variance of an area is at most A(1 − A) / min(m, n)
        x = float(positives @ S @ negatives) / n
        return _quotient(x, m, noise, lambda a: a * (1 - a) * m / min(m, n), 0.0, 1.0, 0.0)

    middle, least, most = quotient(0.5), quotient(0.0), quotient(1.0)
    return Figure(middle.value, least.low, most.high, round(m + n)), 0.5 * (most.value - least.value)


def figures_of(sums: NoisyTally) -> dict[str, Figure]:
    """Return the figures by name."""
    figures = {
        "loss": _mean(sums, "loss", 0.0, LARGEST),
        "sensitivity": _rate(sums, "outcomes", (0,), (1,)),
        "specificity": _rate(sums, "outcomes", (3,), (2,)),
        "ppv": _rate(sums, "outcomes", (0,), (2,)),
        "npv": _rate(sums, "outcomes", (3,), (1,)),
        "accuracy": _rate(sums, "outcomes", (0, 3), (1, 2)),
        "miss_rate": _rate(sums, "outcomes", (1,), (0,)),
        "false_alarms": _rate(sums, "outcomes", (2,), (3,)),
        "auc": area(sums)[0],
    }
    if "brier" in sums.sums:
        figures["brier"] = brier = _mean(sums, "brier", 0.0, 1.0)
        # E(p − y)² is the Brier score, so that its upper end bounds the variance of p − y
        figures["calibration"] = _mean(sums, "calibration", -1.0, 1.0, lambda q: brier.high - q * q)
    return {name: figures[name] for name in TITLES if name in figures}


def tenths_of(sums: NoisyTally) -> tuple[Tenth, ...]:
    """Return what happened to the rows of each tenth of the probabilities that has more rows than noise."""
    if "brier" not in sums.sums:
        return ()
    tenths = []
    counts = np.maximum(sums.sums["cells"].sum(axis=0), 0.0)
    for place in range(TENTHS):
        cells = np.flatnonzero(place == TENTH_OF_CELL)
        figure = _rate(sums, "cells", cells.tolist(), (cells + CELLS).tolist())
        if figure.known and counts[cells].sum() > 0:
            tenths.append(Tenth(float(np.average(CENTRES[cells], weights=counts[cells])), figure))
    return tuple(tenths)


def terms_of(
    terms: Terms, names: Sequence[str], each: Mapping[str, NoisyTally], total: NoisyTally
) -> tuple[TermFigure, ...]:
    """Return every loss that a term caps below `LARGEST`: at each site, over all rows, or on the mean over sites."""

    def rows(term: LossCap | LossGap, k: int, sums: NoisyTally) -> list[Figure]:
        return gap_or_cap(term, [_term(sums, f"term {k}.{side}") for side in range(len(term.masks()))])

    def mean(term: LossCap | LossGap, k: int, sums: NoisyTally) -> list[Figure]:
        figures = zip(*(rows(term, k, one) for one in each.values()), strict=True)
        means = [intervals.average([one for one in row if one.known]) for row in figures]
        return means or [NOTHING] * len(term.labels(terms, Data({})))

    results = term_figures(terms, names, each, total, rows, mean)
    return tuple(t if t.cap < LARGEST else TermFigure(t.site, t.constraint, t.cap, NOTHING, t.kind) for t in results)


def area_error(sums: NoisyTally) -> float:
    """Return half of what pairs that share a cell leave open in the area under the curve."""
    return area(sums)[1]
