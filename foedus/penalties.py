"""Smooth penalties that belong to each client's f_i, scaled by its number of examples d_i."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.errors import FoedusError


@dataclass(frozen=True)
class Penalty:
    """A smooth term of f_i: (mu / 2d_i)·size(w), or (mu / 2)·size(w) with `per_example=False`."""

    mu: float
    per_example: bool = True
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise FoedusError(f"The 'mu' parameter of {type(self).__name__} must be >= 0. Got {self.mu!r} instead.")

    def scale(self, count: Array) -> Array:
        return self.mu / count if self.per_example else jnp.full_like(count, self.mu)

    def value(self, w: Array, count: Array) -> Array:
        return 0.5 * self.scale(count) * jnp.sum(self.size(w))

    def gradient(self, w: Array, count: Array) -> Array:
        return 0.5 * self.scale(count) * jax.grad(lambda v: jnp.sum(self.size(v)))(w)

    def bend(self, w: Array, count: Array) -> Array:
        """The diagonal of the Hessian."""
        slope = jax.grad(lambda v: jnp.sum(self.size(v)))
        return 0.5 * self.scale(count) * jax.jvp(slope, (w,), (jnp.ones_like(w),))[1]

    def curvature(self, count: Array) -> Array:
        """An upper bound on |second derivative|."""
        return self.scale(count)

    def size(self, w: Array) -> Array:
        raise NotImplementedError


class Ridge(Penalty):
    """(mu / 2d_i) ‖w‖²."""

    def size(self, w: Array) -> Array:
        return w**2


class Saturating(Penalty):
    """(mu / 2d_i) Σ w²/(1 + w²): non-convex, bounded, of curvature at most mu/d_i (GIA Example V.3)."""

    convex = False

    def size(self, w: Array) -> Array:
        return w**2 / (1.0 + w**2)


@dataclass(frozen=True)
class BesideIntercept(Penalty):
    """Another penalty of all coordinates but the last, the intercept."""

    inside: Penalty | None = None

    @staticmethod
    def of(inside: Penalty) -> "BesideIntercept":
        return BesideIntercept(inside.mu, inside.per_example, inside)

    @property
    def convex(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inside is None or self.inside.convex

    def size(self, w: Array) -> Array:
        assert self.inside is not None
        return self.inside.size(w).at[-1].set(0.0)
