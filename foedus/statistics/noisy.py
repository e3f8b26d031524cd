"""A site's part of an evaluation under privacy: a few counts and sums of bounded terms, each with noise.

What a row adds to each part is bounded whatever the row is, so the most by which replacing one row moves a part is a
number that everybody knows:

    part                                                  a row adds                        moves by (1-norm, 2-norm)
    right and wrong answers of each class, 4 counts       1 to one of them                  2, √2
    scores of each class in 16 cells, 32 counts           1 to one of them                  2, √2
    loss                                                  min(loss, LARGEST) in [0, 4]      4, 4
    Brier score                                           (p − y)² in [0, 1]                1, 1
    calibration                                           p − y in [−1, 1]                  2, 2
    rows of a term, and their loss over LARGEST           (1, a) with a in [0, 1], or (0, 0)    2, √2

What a row adds to a sum is rounded to a multiple of 2^-24 first, so that no rounding of the sum depends on other rows.

Every part is a release of its own with a fixed share of ε: with Laplace noise (δ = 0) the shares add up to 1; with
Gaussian noise the squares of sensitivity over scale do, times the square that one release of (ε, δ) has.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.privacy.noise import gaussian_multiplier
from foedus.privacy.total import Local
from foedus.problem.terms import Data, Terms
from foedus.statistics.tally import TENTHS, Rule, loss_of, subsets

UNIT = 2.0**24  # what a row adds to a sum is rounded to 1/UNIT: sums over up to 2^27 rows are then exact
LARGEST = 4.0  # a row's loss counts up to this; the logistic loss is 4 where 1.8 % was predicted for what happened
# the cells of predicted probabilities: every tenth is a union of cells, and rare classes have cells of their own; with
# more of them the area under the curve would have more noise than it gains in precision
PROBABILITIES = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4)
EDGES = np.array([math.log(p / (1 - p)) for p in PROBABILITIES])
EDGES = np.concatenate([EDGES, [0.0], -EDGES[::-1]])
CELLS = len(EDGES) + 1
CENTRES = np.convolve(np.concatenate([[0.0], 1 / (1 + np.exp(-EDGES)), [1.0]]), [0.5, 0.5], "valid")
TENTH_OF_CELL = np.minimum((CENTRES * TENTHS).astype(int), TENTHS - 1)

Draw = Callable[[str, np.ndarray, float], np.ndarray]
"""Adds noise to a vector: the kind of noise, the vector, and the scale."""


@dataclass(frozen=True)
class Part:
    """One release: its shape, the most by which replacing one row moves it, and its share of ε."""

    name: str
    shape: tuple[int, ...]
    change: tuple[float, float]  # in the 1-norm and in the 2-norm
    weight: float
    words: str


@dataclass(frozen=True)
class EvaluationNoise:
    """The ε and δ that an evaluation spends of each row it looks at; Laplace noise where δ = 0, else Gaussian."""

    epsilon: float
    delta: float = 0.0
    sampler: str = "simulation"

    def __post_init__(self) -> None:
        Local(epsilon=self.epsilon, delta=self.delta, sampler=self.sampler)  # checks the three

    @property
    def kind(self) -> str:
        """The kind of noise."""
        return "gaussian" if self.delta > 0 else "laplace"

    @property
    def words(self) -> str:
        """What was spent and what that means for the figures, as a sentence without its full stop."""
        small = f", delta {self.delta:g}" if self.delta else ""
        caveat = "SIMULATED " if self.sampler == "simulation" else ""
        return (
            f"noise was added at each site ({caveat}epsilon {self.epsilon:g}{small} of each of these rows), to numbers "
            f"of rows too; the intervals include it, and a row's loss counts up to {LARGEST:g}"
        )

    def scales(self, terms: Terms) -> dict[str, float]:
        """Return the scale of the noise of each part."""
        parts = parts_of(terms)
        whole = sum(part.weight for part in parts)
        if self.kind == "laplace":
            return {part.name: part.change[0] * whole / (part.weight * self.epsilon) for part in parts}
        sigma = gaussian_multiplier(self.epsilon, self.delta)
        return {part.name: part.change[1] * sigma * math.sqrt(whole / part.weight) for part in parts}

    def releases(self, terms: Terms) -> tuple[tuple[str, float, float], ...]:
        """Return what a ledger notes: what is released, its sensitivity, and the scale of the noise."""
        scales, norm = self.scales(terms), 0 if self.kind == "laplace" else 1
        return tuple((f"evaluation: {p.words}", p.change[norm], scales[p.name]) for p in parts_of(terms))

    def to_json(self) -> Json:
        """Return the noise as JSON holds it."""
        return dict(vars(self))


def parts_of(terms: Terms) -> list[Part]:
    """Return the parts of an evaluation under privacy; they follow from what all parties know."""
    check_classes(terms)
    one, two = (1.0, 1.0), (2.0, 2.0)
    count, bounded = (2.0, math.sqrt(2.0)), (LARGEST, LARGEST)
    parts = [
        Part("outcomes", (4,), count, 3.0, "right and wrong answers of each class"),
        Part("cells", (2, CELLS), count, 4.0, "scores of each class in cells"),
        Part("loss", (1,), bounded, 1.0, "sum of losses"),
    ]
    if terms.loss is not None and terms.loss.log_odds:
        parts.append(Part("brier", (1,), one, 1.0, "sum of squared distances of probabilities from labels"))
        parts.append(Part("calibration", (1,), two, 1.0, "sum of probabilities minus labels"))
    for k, side, _, _ in subsets(terms):
        parts.append(Part(f"term {k}.{side}", (2,), count, 2.0, f"rows and losses of term {k + 1}, part {side + 1}"))
    return parts


def check_classes(terms: Terms) -> None:
    """Raise where the label is a number: its errors have no bound, so no noise of a fixed size covers them."""
    if terms.loss is None or terms.loss.kind != "classification":
        raise FoedusError(
            "under privacy a model is evaluated on two classes; the errors of a predicted number have no bound, so "
            "that no noise of a fixed size covers them."
        )


def shapes(terms: Terms) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array that a site sends."""
    return {part.name: part.shape for part in parts_of(terms)}


def exact_parts(terms: Terms, w: np.ndarray, arrays: Sequence[np.ndarray], rule: Rule) -> dict[str, np.ndarray]:
    """Return the parts of one site's rows, (X, y) or (X, y, group), without noise: they must not leave the site."""
    check_classes(terms)
    assert terms.loss is not None
    X, y = np.asarray(arrays[0], dtype=float), np.asarray(arrays[1], dtype=float)
    data = Data({**dict(zip(("x", "y", "group"), map(np.asarray, arrays), strict=False)), "weight": np.ones(len(y))})
    scores, positive = X @ w, y > 0
    scores = np.where(np.isfinite(scores), scores, 0.0)  # row by row: one NaN in a sum would show through the noise
    answers = rule.positive(scores)
    kinds = [answers & positive, ~answers & positive, answers & ~positive, ~answers & ~positive]
    cell = np.searchsorted(EDGES, scores, side="left")
    losses = _bounded(loss_of(terms.loss, scores, y))
    result = {
        "outcomes": np.array([np.sum(kind) for kind in kinds], dtype=float),
        "cells": np.stack([np.bincount(cell[mask], minlength=CELLS) for mask in (positive, ~positive)]).astype(float),
        "loss": _sum(losses),
    }
    if terms.loss.log_odds:
        gap = 1.0 / (1.0 + np.exp(-np.clip(scores, -700, 700))) - positive
        result |= {"brier": _sum(gap**2), "calibration": _sum(gap)}
    for k, side, term, place in subsets(terms):
        mask = np.asarray(term.masks()[place](data), dtype=bool)
        own = losses if term.loss in (None, terms.loss) else _bounded(loss_of(term.loss, scores, y))
        result[f"term {k}.{side}"] = np.append(float(np.sum(mask)), _sum(own[mask] / LARGEST))
    return result


def _sum(values: np.ndarray) -> np.ndarray:
    """The sum of the values, each rounded to a multiple of 1/UNIT, so that adding them up rounds nothing. (1,)"""
    return np.array([np.sum(np.rint(values * UNIT)) / UNIT])


def _bounded(losses: np.ndarray) -> np.ndarray:
    """The losses within [0, LARGEST]; a loss that is not a number counts as the largest."""
    return np.clip(np.where(np.isnan(losses), LARGEST, losses), 0.0, LARGEST)


def release(terms: Terms, noise: EvaluationNoise, exact: Mapping[str, np.ndarray], draw: Draw) -> dict[str, np.ndarray]:
    """Return the parts with noise, which may leave the site."""
    scales = noise.scales(terms)
    return {
        name: np.asarray(draw(noise.kind, exact[name].ravel(), scales[name])).reshape(shape)
        for name, shape in shapes(terms).items()
    }


def drawing(noise: EvaluationNoise, seed: int, site: str) -> Draw:
    """Return what draws the noise of a site: OpenDP, or a generator with a seed where the noise is simulated."""
    if noise.sampler == "opendp":
        from foedus.privacy.sampling import release as exact_release

        return exact_release
    generator = np.random.default_rng([seed, zlib.crc32(site.encode()), zlib.crc32(b"evaluation")])

    def draw(kind: str, value: np.ndarray, scale: float) -> np.ndarray:
        own = generator.laplace if kind == "laplace" else generator.normal
        return value + own(scale=scale, size=value.shape)

    return draw
