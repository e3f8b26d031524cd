"""Gaps of rates between groups: smooth forms of them for training, and thresholds chosen from counts.

A rate is a mean of 0 and 1, which no derivative sees. In training it is replaced by the mean of a sigmoid of the score,
three times as steep as the probability itself. Afterwards the sites count how many rows of each group and class lie in
each cell of the scores; from the sum of these counts follows what every threshold would do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.app.estimators.rows import Site
from foedus.problem.losses import Loss, as_loss
from foedus.problem.terms import Data, Mask
from foedus.statistics.tally import CELLS, LIMIT, STEP

STEEPNESS = 3.0  # of the sigmoids, in units of the log-odds
EDGES = np.append(np.arange(CELLS) * STEP - LIMIT, np.inf)  # thresholds: the lower ends of the cells, and none at all


def error_rate(z: Array, y: Array) -> Array:
    """A smooth form of the share of wrong answers."""
    return jax.nn.sigmoid(-STEEPNESS * (2.0 * y - 1.0) * z)


def selection_rate(z: Array, y: Array) -> Array:
    """A smooth form of the share of positive answers."""
    return jax.nn.sigmoid(STEEPNESS * z)


def miss_rate(z: Array, y: Array) -> Array:
    """A smooth form of the share of missed positives, over positives."""
    return jax.nn.sigmoid(-STEEPNESS * z)


SURROGATES: dict[str, Loss] = {
    "error": as_loss(error_rate),
    "selection": as_loss(selection_rate),
    "miss": as_loss(miss_rate),
}


@dataclass(frozen=True)
class Positives:
    """The rows of a subset whose label is 1."""

    mask: Mask

    def __call__(self, data: Data) -> Array:
        return self.mask(data) * jnp.where(data["y"] == 1.0, 1.0, 0.0)

    def __str__(self) -> str:
        return f"positives of {self.mask}"


@dataclass(frozen=True)
class ScoreCounts:
    """The weight of the rows of each group and class in each cell of the scores, (groups, 2, cells); they add up."""

    weight: np.ndarray

    @staticmethod
    def of(site: Site, scores: np.ndarray, groups: int) -> "ScoreCounts":
        """Count a site's own rows, whose labels are 0 and 1 and whose groups are numbers."""
        assert site.group is not None
        cell = np.clip(np.floor((scores + LIMIT) / STEP), 0, CELLS - 1).astype(int)
        place = (site.group.astype(int) * 2 + site.y.astype(int)) * CELLS + cell
        weight = np.bincount(place, weights=site.weight, minlength=groups * 2 * CELLS)
        return ScoreCounts(weight.reshape(groups, 2, CELLS).astype(float))

    def __add__(self, other: "ScoreCounts") -> "ScoreCounts":
        return ScoreCounts(self.weight + other.weight)

    def figures(self, of: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the wrong answers of each group and its rate for each threshold of `EDGES`. (groups, edges) each"""
        above = np.cumsum(self.weight[:, :, ::-1], axis=2)[:, :, ::-1]
        chosen = np.concatenate([above, np.zeros((len(above), 2, 1))], axis=2)
        total = self.weight.sum(axis=2)
        wrong = total[:, 1:] - chosen[:, 1] + chosen[:, 0]
        parts = {
            "error": (wrong, total.sum(axis=1)),
            "selection": (chosen.sum(axis=1), total.sum(axis=1)),
            "miss": (total[:, 1:] - chosen[:, 1], total[:, 1]),
        }
        count, among = parts[of]
        return wrong, count / np.maximum(among, 1e-300)[:, None]


def common_cut(counts: ScoreCounts, of: str, max_gap: float) -> float:
    """Return the threshold for all groups with the fewest wrong answers whose gap is allowed; else the least gap."""
    wrong, rate = counts.figures(of)
    gap, errors = np.ptp(rate, axis=0), wrong.sum(axis=0)
    allowed = gap <= max_gap
    best = np.argmin(np.where(allowed, errors, np.inf)) if allowed.any() else np.argmin(gap)
    return float(EDGES[best])


def group_cuts(counts: ScoreCounts, of: str, max_gap: float) -> list[float]:
    """Return thresholds by group with the fewest wrong answers in all whose rates differ by no more than the gap.

    Some window [r, r + gap] holds all rates. For each r that is a rate of some group at some threshold, each group
    takes the threshold with the fewest wrong answers among those within the window.
    """
    wrong, rate = counts.figures(of)
    best, cuts = np.inf, [0] * len(wrong)
    for low in np.unique(rate):
        inside = (rate >= low) & (rate <= low + max_gap)
        if not inside.any(axis=1).all():
            continue
        errors = np.where(inside, wrong, np.inf)
        if (total := float(errors.min(axis=1).sum())) < best:
            best, cuts = total, errors.argmin(axis=1).tolist()
    return [float(EDGES[k]) for k in cuts]


def gap_of(site: Site, answers: np.ndarray, of: str, groups: Sequence[int]) -> float:
    """Return the gap of a rate between the groups of one site, from its answers (truth values)."""
    assert site.group is not None
    weight = np.ones(len(site.y)) if site.weight is None else site.weight
    values = {"error": answers != (site.y == 1), "selection": answers, "miss": ~answers}[of]
    rates = []
    for group in groups:
        rows = (site.group == group) & ((site.y == 1) | (of != "miss"))
        if rows.any():
            rates.append(float(np.average(values[rows], weights=weight[rows])))
    return max(rates) - min(rates) if rates else float("nan")
