"""Smooth penalties that belong to each client's f_i, scaled by its number of examples d_i."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.errors import FoedusError


@dataclass(frozen=True)
class Penalty:
    """A smooth term of f_i: (mu / 2d_i)·Σ size(w), or (mu / 2)·Σ size(w) with `per_example=False`.

    Args:
        mu: the weight, >= 0.
        per_example: whether the weight is divided by the client's number of examples d_i.
    """

    mu: float
    per_example: bool = True
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise FoedusError(f"The 'mu' parameter of {type(self).__name__} must be >= 0. Got {self.mu!r} instead.")

    def scale(self, count: Array) -> Array:
        """The weight for a client with `count` examples."""
        return self.mu / count if self.per_example else jnp.full_like(count, self.mu)

    def value(self, w: Array, count: Array) -> Array:
        """The penalty at w, for a client with `count` examples."""
        return 0.5 * self.scale(count) * jnp.sum(self.size(w))

    def gradient(self, w: Array, count: Array) -> Array:
        """The gradient of the penalty at w."""
        return 0.5 * self.scale(count) * jax.grad(lambda v: jnp.sum(self.size(v)))(w)

    def bend(self, w: Array, count: Array) -> Array:
        """The diagonal of the Hessian."""
        slope = jax.grad(lambda v: jnp.sum(self.size(v)))
        return 0.5 * self.scale(count) * jax.jvp(slope, (w,), (jnp.ones_like(w),))[1]

    def curvature(self, count: Array) -> Array:
        """An upper bound on the absolute second derivatives."""
        return self.scale(count)

    def size(self, w: Array) -> Array:
        """What each coordinate adds to the penalty, before the weight."""
        raise NotImplementedError


@dataclass(frozen=True)
class SitePenalty:
    """The penalty in one client's f_i, with the factor by which that f_i weighs; made by `Terms.penalty_of`."""

    penalty: Penalty
    count: Array
    factor: Array | float = 1.0

    def value(self, w: Array) -> Array:
        """The penalty at w."""
        return self.factor * self.penalty.value(w, self.count)

    def gradient(self, w: Array) -> Array:
        """The gradient of the penalty at w."""
        return self.factor * self.penalty.gradient(w, self.count)

    def bend(self, w: Array) -> Array:
        """The diagonal of the Hessian."""
        return self.factor * self.penalty.bend(w, self.count)

    @property
    def curvature(self) -> Array:
        """An upper bound on the absolute second derivatives."""
        return self.factor * self.penalty.curvature(self.count)


class Ridge(Penalty):
    """The ridge penalty (mu / 2d_i)·‖w‖² of each client.

    Args:
        mu: the weight, >= 0.
        per_example: whether it is divided by the client's number of examples d_i.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> float(fd.penalties.Ridge(0.5).value(jnp.array([1.0, 3.0]), jnp.array(5.0)))
        0.5
    """

    def size(self, w: Array) -> Array:
        return w**2


class Saturating(Penalty):
    """The penalty (mu / 2d_i)·Σ w²/(1 + w²): non-convex, bounded, of curvature at most mu/d_i (GIA Example V.3).

    Args:
        mu: the weight, >= 0.
        per_example: whether it is divided by the client's number of examples d_i.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> float(fd.penalties.Saturating(2.0, per_example=False).value(jnp.array([1.0, 0.0]), jnp.array(5.0)))
        0.5
    """

    convex = False

    def size(self, w: Array) -> Array:
        return w**2 / (1.0 + w**2)


@dataclass(frozen=True)
class BesideIntercept(Penalty):
    """A penalty that leaves out the last coordinate, the intercept."""

    inside: Penalty | None = None

    @staticmethod
    def of(inside: Penalty) -> "BesideIntercept":
        """Return this penalty without its part for the last coordinate."""
        return BesideIntercept(inside.mu, inside.per_example, inside)

    @property
    def convex(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inside is None or self.inside.convex

    def size(self, w: Array) -> Array:
        assert self.inside is not None
        return self.inside.size(w).at[-1].set(0.0)
