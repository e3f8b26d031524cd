"""Concordance: how often the row with the higher score has its event first; from counts of pairs, or a histogram.

Pairs of rows of one site are counted at the site. Pairs across sites are counted from a histogram of the scores by
time: two rows in the same bin of scores may be in either order, so the answer is known within two ends.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.statistics.survival.risk_sets import Places
from foedus.statistics.survival.rows import SurvivalRows
from foedus.statistics.survival.stratified import AtModel, Standard, reals, wholes
from foedus.sums.questions import Sites

BLOCK = 512  # rows whose pairs are looked at together
WIDTH = 4.0  # deviations of the scores that bins of equal width cover, to each side


@dataclass(frozen=True)
class Concordance:
    """The share of pairs whose order the scores predict, and the ends between which it lies for certain."""

    value: float
    low: float
    high: float
    pairs: int

    @staticmethod
    def of_pairs(answer: np.ndarray) -> "Concordance":
        """Return the concordance from counts of pairs in the right order, in the wrong one, and with equal scores."""
        right, wrong, equal = (int(count) for count in answer)
        if not (total := right + wrong + equal):
            raise FoedusError("no pair of rows of one site can be compared: nobody was seen after an event.")
        value = (right + 0.5 * equal) / total
        return Concordance(value, value, value, total)

    def __str__(self) -> str:
        between = "" if self.low == self.high else f", between {self.low:.4f} and {self.high:.4f}"
        return f"{self.value:.4f}{between} ({self.pairs:,} pairs)"


@dataclass(frozen=True, eq=False)
class Pairs(AtModel):
    """How many pairs of a site's rows are in the right order, in the wrong one, and have equal scores?"""

    kind: ClassVar[str] = "survival-pairs"

    @property
    def shape(self) -> PyTree:
        return wholes(3)

    def answer(self, data: SurvivalRows) -> PyTree:
        eta = self.scores(self.standard.of(data))
        counts = np.zeros(3, dtype=np.int64)
        for rows in np.array_split(np.flatnonzero(data.event), max(1, int(np.sum(data.event)) // BLOCK)):
            later = data.time[None, :] > data.time[rows, None]
            later |= (data.time[None, :] == data.time[rows, None]) & ~data.event[None, :]
            above = eta[rows, None] - eta[None, :]
            counts += [np.sum(later & (above > 0)), np.sum(later & (above < 0)), np.sum(later & (above == 0))]
        return counts


@dataclass(frozen=True, eq=False)
class ScoreSums(AtModel):
    """What do the scores add up to, with their squares?"""

    kind: ClassVar[str] = "survival-score-sums"

    @property
    def shape(self) -> PyTree:
        return reals(2), wholes(1)

    def answer(self, data: SurvivalRows) -> PyTree:
        eta = self.scores(self.standard.of(data))
        return np.array([np.sum(eta), np.sum(eta**2)]), np.array([len(eta)])


@dataclass(frozen=True, eq=False)
class ScoreHistogram(AtModel):
    """How many rows leave at each time with a score in each bin: with an event, and without? (2, m + 1, bins)

    Rows without an event before the first time come first.
    """

    kind: ClassVar[str] = "survival-score-histogram"
    grid: np.ndarray
    edges: np.ndarray

    @property
    def arrays(self) -> PyTree:
        return super().arrays, self.grid, self.edges

    @property
    def shape(self) -> PyTree:
        return wholes(2, len(self.grid) + 1, len(self.edges) + 1)

    def answer(self, data: SurvivalRows) -> PyTree:
        places = Places.of(data, self.grid)
        bins = np.searchsorted(self.edges, self.scores(self.standard.of(data)), "right")
        counts = np.zeros((2, len(self.grid) + 1, len(self.edges) + 1), dtype=np.int64)
        np.add.at(counts, (np.where(places.event, 0, 1), places.last + 1, bins), 1)
        return counts


def from_histogram(
    sites: Sites, standard: Standard, beta: np.ndarray, ties: str, grid: np.ndarray, bins: int
) -> Concordance:
    """Return the concordance over all pairs, from two sums."""
    if not 2 <= bins <= 10_000:
        raise FoedusError(f"The 'bins' of a concordance must be from 2 to 10000. Got {bins!r} instead.")
    (total, squares), rows = sites.total(ScoreSums(standard, beta, ties))
    mean = float(total) / float(rows[0])
    deviation = np.sqrt(max(float(squares) / float(rows[0]) - mean**2, 0.0))
    edges = mean + deviation * np.linspace(-WIDTH, WIDTH, bins - 1)
    events, censored = sites.total(ScoreHistogram(standard, beta, ties, grid, edges)).astype(object)
    leave = events + censored
    after = np.cumsum(leave[::-1], axis=0)[::-1]
    right = wrong = same = 0
    for k in range(1, len(grid) + 1):
        # whoever leaves later, and whoever leaves at this time without an event, was seen after the event
        others = censored[k] + (after[k + 1] if k < len(grid) else 0)
        below = np.concatenate([[0], np.cumsum(others)])
        right += int(events[k] @ below[:-1])
        same += int(events[k] @ others)
        wrong += int(events[k] @ (below[-1] - below[1:]))
    if not (count := right + wrong + same):
        raise FoedusError("no pair of rows can be compared on this grid: nobody was seen after an event.")
    return Concordance((right + 0.5 * same) / count, right / count, (right + same) / count, count)
