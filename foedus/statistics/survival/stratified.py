"""The partial likelihood with risk sets by site: a site works out its own, and sends its value and two derivatives.

No time leaves a site. Three questions: the likelihood; the products of score residuals, for robust errors; and the
derivatives for covariates times a function of time, for the test of proportional hazards.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.statistics.survival.risk_sets import Hazards, Moments, Places, hazards, likelihood, moments, second
from foedus.statistics.survival.risk_sets import score_residuals as residuals_of
from foedus.statistics.survival.rows import SurvivalRows
from foedus.sums.questions import Question

TRANSFORMS = {"identity": lambda time: time, "log": np.log}


@dataclass(frozen=True, eq=False)
class Standard:
    """Columns brought to mean 0 and deviation 1, by sums over all sites.

    Args:
        mean: of each column. (d,)
        scale: the deviation of each. (d,)
    """

    mean: np.ndarray
    scale: np.ndarray

    def of(self, rows: SurvivalRows) -> np.ndarray:
        """Return the standardised covariates of some rows."""
        return (rows.x - self.mean) / self.scale


def triangle(matrix: np.ndarray) -> np.ndarray:
    """Return the upper half of a symmetric matrix, with its diagonal, as a vector."""
    return matrix[np.triu_indices(len(matrix))]


def square(half: np.ndarray, dim: int) -> np.ndarray:
    """Return the symmetric matrix of which this is the upper half."""
    matrix = np.zeros((dim, dim))
    matrix[np.triu_indices(dim)] = half
    return matrix + np.triu(matrix, 1).T


def halves(dim: int) -> int:
    """Return the numbers of an upper half."""
    return dim * (dim + 1) // 2


def reals(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an array of real numbers."""
    return jax.ShapeDtypeStruct(shape, float)


def wholes(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an array of whole numbers."""
    return jax.ShapeDtypeStruct(shape, int)


@dataclass(frozen=True, eq=False)
class ColumnMoments(Question):
    """How many rows and events, and what do the covariates add up to?

    The answer: whole numbers of rows, of events, and of rows left out; and of each column its sum, the squared
    deviations from the site's own mean, and the rows times that mean squared.
    """

    kind: ClassVar[str] = "survival-columns"
    dim: int

    @property
    def fields(self) -> Json:
        return {"dim": self.dim}

    @property
    def shape(self) -> PyTree:
        return wholes(3), reals(3, self.dim)

    def answer(self, data: SurvivalRows) -> PyTree:
        counts = np.array([len(data.time), int(np.sum(data.event)), data.missing])
        mean = np.mean(data.x, axis=0) if len(data.x) else np.zeros(self.dim)
        within = np.sum((data.x - mean) ** 2, axis=0)
        return counts, np.stack([np.sum(data.x, axis=0), within, len(data.x) * mean**2])


@dataclass(frozen=True, eq=False)
class AtModel(Question):
    """A question about the partial likelihood at a model; the sums are of moderate size, for columns are standardised.

    Args:
        standard: of the columns.
        beta: the model, in standardised columns. (d,)
        ties: "efron" or "breslow".
    """

    words: ClassVar[int | None] = 2
    standard: Standard
    beta: np.ndarray
    ties: str

    @property
    def fields(self) -> Json:
        return {"ties": self.ties}

    @property
    def arrays(self) -> PyTree:
        return np.stack([self.beta, self.standard.mean, self.standard.scale])

    @property
    def dim(self) -> int:
        """The number of covariates."""
        return len(self.beta)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return η of some rows."""
        return x @ self.beta


@dataclass(frozen=True, eq=False)
class OwnRiskSets:
    """The risk sets of one site at a model."""

    x: np.ndarray
    places: Places
    grid: np.ndarray
    counts: np.ndarray
    eta: np.ndarray
    total: Moments
    of: Hazards

    @staticmethod
    def at(question: AtModel, data: SurvivalRows) -> "OwnRiskSets":
        """Return the risk sets of a site, at the times of its own events."""
        x = question.standard.of(data)
        grid = np.unique(data.time[data.event])
        places = Places.of(data, grid)
        eta = question.scores(x)
        eta = eta - np.max(eta, initial=-np.inf) if len(eta) else eta  # a common factor of a site's e^η cancels
        total = moments(x, places, eta)
        counts = np.rint(places.events(np.ones(len(x)))).astype(int)
        return OwnRiskSets(x, places, grid, counts, eta, total, hazards(total, counts, question.ties))

    def second(self, weights: np.ndarray) -> np.ndarray:
        """Return Σ_k w_k times the information at time k."""
        return second(
            self.x, self.places, self.eta, weights * self.of.a, weights * self.of.b
        ) - self.of.outer(weights)  # fmt: skip


@dataclass(frozen=True, eq=False)
class PartialLikelihood(AtModel):
    """What is a site's own log partial likelihood, with its derivatives? The answer: 1 + d + d(d + 1)/2 numbers."""

    kind: ClassVar[str] = "survival-partial"

    @property
    def shape(self) -> PyTree:
        return reals(), reals(self.dim), reals(halves(self.dim))

    def answer(self, data: SurvivalRows) -> PyTree:
        own = OwnRiskSets.at(self, data)
        event_x = np.sum(own.x[own.places.event], axis=0)
        matrix = second(own.x, own.places, own.eta, own.of.a, own.of.b)
        value, gradient, information = likelihood(own.total, own.of, event_x, matrix)
        return np.asarray(value), gradient, triangle(information)


@dataclass(frozen=True, eq=False)
class ScoreProducts(AtModel):
    """What do the products of score residuals add up to? Rows of a cluster are added up first. d(d + 1)/2 numbers."""

    kind: ClassVar[str] = "survival-scores"

    @property
    def shape(self) -> PyTree:
        return reals(halves(self.dim))

    def answer(self, data: SurvivalRows) -> PyTree:
        own = OwnRiskSets.at(self, data)
        return triangle(products(residuals_of(own.x, own.places, own.eta, own.of), data.cluster))


def products(residuals: np.ndarray, cluster: np.ndarray | None) -> np.ndarray:
    """Return Σ u uᵀ over rows, or over the sums of clusters."""
    if cluster is not None:
        total = np.zeros((int(cluster.max(initial=-1)) + 1, residuals.shape[1]))
        np.add.at(total, cluster, residuals)
        residuals = total
    return residuals.T @ residuals


@dataclass(frozen=True, eq=False)
class TimeTrend(AtModel):
    """What are the derivatives for covariates times a function g of time? d + 2·d(d + 1)/2 numbers.

    The answer: Σ g (x − what is expected) over the events, and the information weighted by g and by g².

    Args:
        transform: g, a name of TRANSFORMS.
        centre: subtracted from g; it changes no test.
        unit: g is divided by it.
    """

    kind: ClassVar[str] = "survival-trend"
    transform: str = "identity"
    centre: float = 0.0
    unit: float = 1.0

    @property
    def fields(self) -> Json:
        return {"ties": self.ties, "transform": self.transform, "centre": self.centre, "unit": self.unit}

    @property
    def shape(self) -> PyTree:
        return reals(self.dim), reals(2, halves(self.dim))

    def answer(self, data: SurvivalRows) -> PyTree:
        own = OwnRiskSets.at(self, data)
        g = (TRANSFORMS[self.transform](own.grid) - self.centre) / self.unit
        if not np.all(np.isfinite(g)):
            raise FoedusError(f"transform = {self.transform!r} needs times > 0 at every event.")
        event_x = own.places.events(own.x)
        gradient = g @ (event_x - own.counts[:, None] * own.of.mean)
        return gradient, np.stack([triangle(own.second(g)), triangle(own.second(g * g))])


@dataclass(frozen=True, eq=False)
class EventTimes(Question):
    """What do the (transformed) times of events add up to, with their squares? For the centre of a trend alone."""

    kind: ClassVar[str] = "survival-times"
    transform: str

    @property
    def fields(self) -> Json:
        return {"transform": self.transform}

    @property
    def shape(self) -> PyTree:
        return reals(2)

    def answer(self, data: SurvivalRows) -> PyTree:
        g = TRANSFORMS[self.transform](data.time[data.event]) if np.any(data.event) else np.zeros(0)
        if not np.all(np.isfinite(g)):
            raise FoedusError(f"transform = {self.transform!r} needs times > 0 at every event.")
        return np.array([np.sum(g), np.sum(g * g)])
