"""Likelihoods of several scores a row, as objectives: a class among several, and a class in an order.

Each is an objective of `Problem(objective=…)` for clients with X and y, and says what tables of coefficients ask of it:
−log P of each row, from which its slopes and second derivatives follow.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.problem.terms import Data


@dataclass(frozen=True)
class Likelihood:
    """The mean of −log P(y) over a client's rows, y one of the numbers 0, 1, … below `classes`.

    Args:
        classes: how many there are.
    """

    classes: int
    likelihood: ClassVar[bool] = True
    has_dispersion: ClassVar[bool] = False
    ratio: ClassVar[str] = "odds ratio"

    def __post_init__(self) -> None:
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 2:
            raise FoedusError(f"{type(self).__name__} needs at least 2 classes. Got {self.classes!r} instead.")

    @property
    def __name__(self) -> str:
        return f"{type(self).__name__}({self.classes})"

    def __call__(self, w: Any, data: Data) -> Array:
        return data.mean(self.by_row(w, data["x"], data["y"]))

    def by_row(self, w: Any, x: Array, y: Array) -> Array:
        """−log P of each row. (rows,)"""
        raise NotImplementedError

    def log_likelihood(self, sums: np.ndarray, rows: float, dispersion: float) -> float:
        """log P of all rows."""
        return float(sums[0])


class Multinomial(Likelihood):
    """A class among several: the scores of all but the first are xᵀw_k, w of shape (columns, classes − 1).

    Example:
        >>> import foedus as fd, numpy as np
        >>> X, y = np.column_stack([np.arange(6.0), np.ones(6)]), np.array([0, 1, 0, 2, 1, 2])
        >>> problem = fd.Problem([(X, y)], objective=fd.likelihoods.Multinomial(3))
        >>> fd.solve(problem, fd.InteriorPoint(), w0=np.zeros((2, 2))).w.shape
        (2, 2)
    """

    def by_row(self, w: Any, x: Array, y: Array) -> Array:
        scores = jnp.concatenate([jnp.zeros((x.shape[0], 1)), x @ w], axis=1)
        own = jnp.sum(jnp.where(y[:, None] == jnp.arange(self.classes), scores, 0.0), axis=1)
        top = jnp.max(scores, axis=1)
        return jnp.log(jnp.sum(jnp.exp(scores - top[:, None]), axis=1)) + top - own


class Ordinal(Likelihood):
    """A class in an order, with P(y ≤ k) = σ(cut_k − xᵀw): proportional odds. w is {"cuts": …, "w": …}.

    Example:
        >>> import foedus as fd, numpy as np
        >>> X, y = np.arange(6.0)[:, None], np.array([0, 1, 0, 2, 1, 2])
        >>> problem = fd.Problem([(X, y)], objective=fd.likelihoods.Ordinal(3))
        >>> start = {"cuts": np.array([-1.0, 1.0]), "w": np.zeros(1)}
        >>> float(fd.solve(problem, fd.InteriorPoint(), w0=start).w["w"][0]) > 0
        True
    """

    def by_row(self, w: Any, x: Array, y: Array) -> Array:
        cuts, z = w["cuts"], x @ w["w"]
        first, last = y == 0, y == self.classes - 1
        which = jnp.arange(self.classes - 1)
        upper = jnp.sum(jnp.where(y[:, None] == which, cuts, 0.0), axis=1) - z
        lower = jnp.sum(jnp.where(y[:, None] == which + 1, cuts, 0.0), axis=1) - z
        # σ(b) − σ(a) = σ(b)·σ(−a)·(1 − e^(a − b))
        width = jnp.where(first | last, 1.0, upper - lower)
        between = jnp.where(first | last, 0.0, -jnp.log(-jnp.expm1(-width)))
        return jnp.where(last, 0.0, jax.nn.softplus(-upper)) + jnp.where(first, 0.0, jax.nn.softplus(lower)) + between
