"""A site's part of an evaluation: sums and histograms over its own rows, of sizes that do not depend on the rows.

Everything that is said about a model on new rows follows from the sum of the sites' tallies, and a site's own figures
from its own tally. The same sums can therefore travel masked, so that nobody sees those of a single site.

A histogram has a cell for each 1/64 of a score from −16 to 16. The area under the curve that follows from it is known
up to the pairs of a positive and a negative that share a cell. A site whose policy lets no figure about fewer than
`least` rows leave joins neighbouring cells until each has that many rows, or none; it sends where the joint cells begin
and where they end, so that the area is still bracketed: it is largest with every positive at the end of its cell and
every negative at the beginning, and smallest the other way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import jax
import numpy as np

from foedus.problem.constraints import LossCap, LossGap
from foedus.problem.losses import Loss
from foedus.problem.terms import Data, Terms
from foedus.statistics.intervals import moments

LIMIT = 16.0  # scores beyond are counted in the outermost cells: a probability is 0 or 1 to 7 digits there
STEP = 2.0**-6  # the width of a cell, in units of the score (log-odds for the logistic loss)
CELLS = int(2 * LIMIT / STEP)
TENTHS = 10  # parts of [0, 1] in which predicted probabilities are compared with what happened


@dataclass(frozen=True)
class Rule:
    """How scores become answers: positive above 0, or from `cut` on where a threshold was chosen."""

    cut: float | None = None

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return whether each score is called positive."""
        return scores > 0 if self.cut is None else scores >= self.cut


def text_of(number: float) -> float | str:
    """Return a number as JSON holds it, which has no infinite ones."""
    return number if abs(number) < float("inf") else str(number)


Tally: TypeAlias = Mapping[str, np.ndarray]
"""Sums and histograms by name; tallies of several sites add up, array by array."""


def shapes(terms: Terms, groups: int = 0) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a tally of so many groups; it follows from what all parties know."""
    assert terms.loss is not None
    sizes: dict[str, tuple[int, ...]] = {"loss": (5,)}
    if terms.loss.kind == "classification":
        sizes |= {f"{side}.{end}": (CELLS,) for side in ("positives", "negatives") for end in ("first", "last")}
        sizes |= {"outcomes": (4,)} | ({"groups": (groups, 4)} if groups else {})
        if terms.loss.log_odds:
            sizes |= {"brier": (5,), "calibration": (5,), "tenths": (TENTHS, 3)}
    else:
        sizes |= {"absolute": (5,), "square": (5,), "target": (5,), "cross": (2,)}
    return sizes | {f"term {k}.{side}": (5,) for k, side, _, _ in subsets(terms)}


def is_count(name: str) -> bool:
    """Return whether an array of a tally holds numbers of rows alone."""
    return name in ("outcomes", "groups") or name.startswith(("positives", "negatives"))


def subsets(terms: Terms) -> list[tuple[int, int, LossCap | LossGap, int]]:
    """Return the subsets of rows that terms cap the loss of: number of the term, side, term, place of its mask."""
    return [
        (k, side, c, side)
        for k, c in enumerate(terms.constraints)
        if isinstance(c, LossCap | LossGap) and c.scope != "global"
        for side in range(len(c.masks()))
    ]


@partial(jax.jit, static_argnames=("loss",))
def _loss_values(loss: Loss, z: jax.Array, y: jax.Array) -> jax.Array:
    return loss.value(z, y)


def loss_of(loss: Loss, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the loss of each row; rows are filled up to a power of two, so that few shapes are compiled."""
    full = 1 << max(6, (len(y) - 1).bit_length())
    fill = (0, full - len(y))
    return np.asarray(_loss_values(loss, np.pad(scores, fill), np.pad(y, fill)))[: len(y)]


def tally(
    terms: Terms, w: np.ndarray, arrays: Sequence[np.ndarray], rule: Rule, least: int = 1, groups: int = 0
) -> Tally:
    """Return the tally of one site's rows, (X, y) or (X, y, group); all zeros where a part has fewer than `least` rows.

    A part is the rows of a class, or the rows whose loss a term caps. A part without any row is no part. The counts of
    the groups, numbered from 0, are all zero where a class of any group has fewer: what is left out of a total could
    be worked out from the others.
    """
    loss = terms.loss
    assert loss is not None
    X, y = np.asarray(arrays[0], dtype=float), np.asarray(arrays[1], dtype=float)
    names = ("x", "y", "group")
    data = Data({**dict(zip(names, map(np.asarray, arrays), strict=False)), "weight": np.ones(len(y))})
    scores = X @ w
    masks = {(k, side): np.asarray(c.masks()[place](data), dtype=bool) for k, side, c, place in subsets(terms)}
    parts = [int(mask.sum()) for mask in masks.values()] + [len(y)]
    if loss.kind == "classification":
        parts += [int(np.sum(y > 0)), int(np.sum(y <= 0))]
    if any(0 < rows < least for rows in parts) or not len(y):
        return nothing(terms, groups)
    losses = loss_of(loss, scores, y)
    sums = {"loss": moments(losses)}
    classes = loss.kind == "classification"
    sums |= _classes(loss, scores, y > 0, rule, least) if classes else _numbers(w, loss.answer(scores), y)
    if classes and groups:
        sums["groups"] = _by_group(scores, y > 0, np.asarray(arrays[2]), rule, least, groups)
    for k, side, c, _ in subsets(terms):
        own = losses if c.loss is None or c.loss == loss else loss_of(c.loss, scores, y)
        sums[f"term {k}.{side}"] = moments(own[masks[k, side]])
    return sums


def nothing(terms: Terms, groups: int = 0) -> Tally:
    """Return the tally of a site that has no rows, or tells nothing about them."""
    return {name: np.zeros(shape) for name, shape in shapes(terms, groups).items()}


def outcomes(answers: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the counts of true positives, false negatives, false positives and true negatives. (4,)"""
    counts = [np.sum(answers & y), np.sum(~answers & y), np.sum(answers & ~y), np.sum(~answers & ~y)]
    return np.array(counts, dtype=float)


def _by_group(scores: np.ndarray, y: np.ndarray, group: np.ndarray, rule: Rule, least: int, groups: int) -> np.ndarray:
    """The four counts of each group; all zeros where a class of any group, or of no group, has too few rows."""
    answers = rule.positive(scores)
    masks = [group == g for g in range(groups)]
    others = ~np.any(masks, axis=0)
    sizes = [np.sum(mask & side) for mask in (*masks, others) for side in (y, ~y)]
    if any(0 < size < least for size in sizes):
        return np.zeros((groups, 4))
    return np.array([outcomes(answers[mask], y[mask]) for mask in masks])


def _classes(loss: Loss, scores: np.ndarray, y: np.ndarray, rule: Rule, least: int) -> dict[str, np.ndarray]:
    """The histograms of the scores by class, the four counts of answers, and how probabilities compare with labels."""
    sums = {"outcomes": outcomes(rule.positive(scores), y)}
    cells = np.clip(np.floor((scores + LIMIT) / STEP), 0, CELLS - 1).astype(int)
    for side, mask in (("positives", y), ("negatives", ~y)):
        histogram = np.bincount(cells[mask], minlength=CELLS).astype(float)
        sums[f"{side}.first"], sums[f"{side}.last"] = joint_cells(histogram, least)
    if loss.log_odds:
        p = 1.0 / (1.0 + np.exp(-np.clip(scores, -700, 700)))
        sums |= {"brier": moments((p - y) ** 2), "calibration": moments(p - y)}
        sums["tenths"] = _tenths(p, y, least)
    return sums


def joint_cells(histogram: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the histogram with joint cells of at least `least` rows, counted at their first and at their last cell."""
    if least <= 1 or not histogram.any():
        return histogram, histogram
    first, last = np.zeros_like(histogram), np.zeros_like(histogram)
    start, rows, total = 0, 0.0, float(histogram.sum())
    for cell, count in enumerate(histogram.tolist()):
        rows += count
        total -= count
        # what is left must be enough for a joint cell of its own, or it joins this one
        if rows >= least and (total >= least or cell == len(histogram) - 1):
            first[start], last[cell] = rows, rows
            start, rows = cell + 1, 0.0
    return first, last


def _tenths(p: np.ndarray, y: np.ndarray, least: int) -> np.ndarray:
    """Rows, Σp and Σy in each tenth of the predicted probabilities; tenths with few rows of a class are joined."""
    tenth = np.minimum((p * TENTHS).astype(int), TENTHS - 1)
    sums = np.array([np.bincount(tenth, v, minlength=TENTHS) for v in (np.ones(len(p)), p, y.astype(float))]).T
    if least <= 1:
        return sums
    joint = np.zeros_like(sums)
    start, running = 0, np.zeros(3)
    for place in range(TENTHS):
        running = running + sums[place]
        rest = sums[place + 1 :].sum(axis=0)
        if _enough(running, least) and (_enough(rest, least) or place == TENTHS - 1):
            joint[(start + place) // 2] = running
            start, running = place + 1, np.zeros(3)
    return joint


def _enough(sums: np.ndarray, least: int) -> bool:
    """Whether there are at least so many rows of both classes."""
    return bool(sums[2] >= least and sums[0] - sums[2] >= least)


def _numbers(w: np.ndarray, answers: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The sums that R², the root mean squared error and the mean absolute error follow from.

    Targets are taken from the last number of the model, which everybody knows and which is near their mean where the
    model has an intercept: sums of squares then lose no digits.
    """
    error, target = y - answers, y - float(w[-1])
    powers = np.array([np.sum(target**j) for j in range(5)])
    cross = np.array([np.sum(error**2 * target), np.sum(error**2 * target**2)])
    return {"absolute": moments(np.abs(error)), "square": moments(error**2), "target": powers, "cross": cross}
