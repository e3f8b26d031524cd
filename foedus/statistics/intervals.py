"""Confidence intervals of rates, means and areas, at 95 %, from counts and sums alone.

A rate has the exact interval of Clopper and Pearson (1934), which covers at least 95 % whatever the rate is. Rows of
several sites with different rates are no binomial sample; their count of errors then varies less than a binomial one
with the same mean (Hoeffding 1956), so the interval stays conservative.

An area under the curve, A, estimated from m positives and n negatives, has a variance of at most A(1 − A)/min(m, n),
whatever the scores' laws are (Birnbaum and Klose 1957). The interval is Wilson's with min(m, n) in the place of the
sample size.

A mean of a quantity without a known bound has no interval that is exact for every law. Ours is Student's, with two
allowances for skew, of which losses have much: the third moment moves the quantile as in Johnson (1978), and the part
of the rows that n rows need not have shown, of share −log(0.05)/n (the "rule of three"), counts with the largest value.
(Σx⁶)^⅙ stands for that value: it is never smaller, and it comes from a sum. `test_intervals.py` measures the
coverage on losses of several models; it was at least 95 % from 60 rows on. Below `FEWEST` rows there is no interval.
"""

import math
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
FEWEST = 60  # rows below which a mean has no interval: a skewed loss is then covered too rarely
UNSEEN = -math.log(1.0 - LEVEL)  # with n rows, a part of this share / n may not have shown up


@dataclass(frozen=True)
class Figure:
    """A figure with its interval at 95 %, and the number of rows that it rests on; NaN where it is not known."""

    value: float
    low: float
    high: float
    rows: int

    @property
    def known(self) -> bool:
        """Whether there is a figure at all."""
        return not math.isnan(self.value)

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def to_json(self) -> list[float | None]:
        """Return the figure as JSON holds it; null stands for NaN."""
        return [None if math.isnan(v) else v for v in (self.value, self.low, self.high)] + [self.rows]

    @staticmethod
    def from_json(record: list[float | None]) -> "Figure":
        """Read what `to_json` wrote."""
        value, low, high = (math.nan if v is None else float(v) for v in record[:3])
        return Figure(value, low, high, int(record[3] or 0))


NOTHING = Figure(math.nan, math.nan, math.nan, 0)


def rate(count: float, rows: float) -> Figure:
    """Return the share `count`/`rows` with the interval of Clopper and Pearson."""
    k, n = round(count), round(rows)
    if n == 0:
        return NOTHING
    tail = (1.0 - LEVEL) / 2.0
    from scipy.special import betaincinv  # here and below where it is used: SciPy takes long to import

    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1.0 - tail))
    return Figure(k / n, low, high, n)


def area(value: float, least: float, most: float, positives: float, negatives: float) -> Figure:
    """Return an area under the curve that is known to lie in [`least`, `most`], with Wilson's interval around both."""
    n = min(round(positives), round(negatives))
    if n == 0:
        return NOTHING
    from scipy.special import ndtri

    z = float(ndtri(0.5 + LEVEL / 2.0))

    def wilson(a: float) -> tuple[float, float]:
        centre, half = a + z * z / (2 * n), z * math.sqrt(max(a * (1 - a), 0.0) / n + z * z / (4 * n * n))
        return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)

    # at 0 and 1 rounding may leave the value itself outside
    low, high = min(value, max(0.0, wilson(least)[0])), max(value, min(1.0, wilson(most)[1]))
    return Figure(float(value), float(low), float(high), round(positives + negatives))


def moments(values: np.ndarray) -> np.ndarray:
    """Return the number of values, their sum, and the sums of their squares, cubes and sixth powers. (5,)"""
    return np.array([np.sum(values**power) for power in (0, 1, 2, 3, 6)], dtype=float)


def mean(sums: np.ndarray, *, low: float = -math.inf, high: float = math.inf) -> Figure:
    """Return the mean of the values whose `moments` are given; `low` and `high` are bounds that no value exceeds."""
    n, first, second, third, sixth = map(float, sums)
    if n < 1:
        return NOTHING
    centre = first / n
    if n < FEWEST:
        return Figure(centre, math.nan, math.nan, round(n))
    variance = max(second - n * centre**2, 0.0) / (n - 1)
    deviation, error = math.sqrt(variance), math.sqrt(variance / n)
    skew = 0.0
    if deviation > 0:
        skew = (third - 3 * centre * second + 3 * centre**2 * first - n * centre**3) / (n * deviation**3)
    from scipy.special import stdtrit

    q = float(stdtrit(n - 1, 0.5 + LEVEL / 2.0))
    bend = abs(skew) * (1 + 2 * q * q) / (6 * math.sqrt(n)) * error
    unseen = UNSEEN * sixth ** (1 / 6) / n
    # a quantity that cannot be negative hides its largest values only; one of either sign may hide both ends
    below = q * error + (bend if skew < 0 else 0.0) + (0.0 if low >= 0 else unseen)
    above = q * error + (bend if skew > 0 else 0.0) + unseen
    return Figure(centre, max(low, centre - below), min(high, centre + above), round(n))


def difference(first: Figure, second: Figure) -> Figure:
    """Return first − second; the distances to the ends add up like independent errors (Zou and Donner 2008)."""
    low = first.value - second.value - math.hypot(first.value - first.low, second.high - second.value)
    high = first.value - second.value + math.hypot(first.high - first.value, second.value - second.low)
    return Figure(first.value - second.value, low, high, first.rows + second.rows)


def average(figures: list[Figure]) -> Figure:
    """Return the mean of independent figures, each with the same weight, with its interval."""
    if not figures:
        return NOTHING
    n = len(figures)
    value = sum(f.value for f in figures) / n
    below = math.sqrt(sum((f.value - f.low) ** 2 for f in figures)) / n
    above = math.sqrt(sum((f.high - f.value) ** 2 for f in figures)) / n
    return Figure(value, value - below, value + above, sum(f.rows for f in figures))
