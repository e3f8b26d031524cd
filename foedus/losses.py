"""Per-example losses of a linear model's prediction z = xᵀw and a target y.

A loss answers fixed questions: its value, whether it is smooth (`curvature`, the largest second derivative in z),
and what kind of target it takes. Derivatives in z come from JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.errors import FoedusError


@dataclass(frozen=True)
class Loss:
    """A loss of (z, y), elementwise. `curvature` is None where the loss has kinks or no bound is known."""

    kind: ClassVar[str] = "regression"
    convex: ClassVar[bool] = True
    curvature: ClassVar[float | None] = None
    quadratic: ClassVar[bool] = False  # whether it is ½(z − y)²

    @property
    def name(self) -> str:
        words = [f"{k}={v:g}" for k, v in vars(self).items() if isinstance(v, float)]
        return type(self).__name__ + (f"({', '.join(words)})" if words else "")

    def value(self, z: Array, y: Array) -> Array:
        raise NotImplementedError

    def slope(self, z: Array, y: Array) -> Array:
        """dℓ/dz, elementwise."""
        return jax.jvp(lambda s: self.value(s, y), (z,), (jnp.ones_like(z),))[1]

    def bend(self, z: Array, y: Array) -> Array:
        """d²ℓ/dz², elementwise."""
        return jax.jvp(lambda s: self.slope(s, y), (z,), (jnp.ones_like(z),))[1]


def positive(y: Array) -> Array:
    """Whether a label is the positive class, for labels 0/1 and -1/+1 alike."""
    return y > 0


def signed(y: Array) -> Array:
    """Labels as -1/+1, from 0/1 or -1/+1."""
    return jnp.where(positive(y), 1.0, -1.0)


class LeastSquares(Loss):
    """½(z − y)²."""

    curvature = 1.0
    quadratic = True

    def value(self, z: Array, y: Array) -> Array:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Array, y: Array) -> Array:
        return z - y

    def bend(self, z: Array, y: Array) -> Array:
        return jnp.ones_like(z)


class Logistic(Loss):
    """log(1 + e^z) − y·z with y in 0/1, written with softplus so that it is finite for every z."""

    kind = "classification"
    curvature = 0.25

    def value(self, z: Array, y: Array) -> Array:
        return jax.nn.softplus(-signed(y) * z)

    def slope(self, z: Array, y: Array) -> Array:
        return jax.nn.sigmoid(z) - positive(y)

    def bend(self, z: Array, y: Array) -> Array:
        p = jax.nn.sigmoid(z)
        return p * (1.0 - p)


class Hinge(Loss):
    """max(0, 1 − yz), y in −1/+1."""

    kind = "classification"

    def value(self, z: Array, y: Array) -> Array:
        return jnp.maximum(0.0, 1.0 - signed(y) * z)


class SmoothHinge(Loss):
    """½ − yz for yz ≤ 0, ½(1 − yz)² for 0 < yz < 1, 0 beyond."""

    kind = "classification"
    curvature = 1.0

    def value(self, z: Array, y: Array) -> Array:
        u = 1.0 - signed(y) * z
        return jnp.where(u >= 1.0, u - 0.5, 0.5 * jnp.clip(u, 0.0, 1.0) ** 2)


@dataclass(frozen=True)
class Huber(Loss):
    """½r² for |r| ≤ ε, ε(|r| − ε/2) beyond; r = z − y."""

    eps: float
    curvature: ClassVar[float | None] = 1.0

    def value(self, z: Array, y: Array) -> Array:
        r = z - y
        inside = jnp.clip(r, -self.eps, self.eps)
        return inside * (r - 0.5 * inside)


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """max(0, |z − y| − ε): support vector regression."""

    eps: float

    def value(self, z: Array, y: Array) -> Array:
        return jnp.maximum(0.0, jnp.abs(z - y) - self.eps)


@dataclass(frozen=True)
class Pinball(Loss):
    """max(−εr, (1 − ε)r), r = z − y: quantile regression at level ε."""

    eps: float

    def value(self, z: Array, y: Array) -> Array:
        r = z - y
        return jnp.maximum(-self.eps * r, (1.0 - self.eps) * r)


@dataclass(frozen=True)
class Custom(Loss):
    """A user's own `fn(z, y)`, elementwise and differentiable in JAX."""

    fn: Callable[[Array, Array], Array]
    max_curvature: float | None = None

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", "custom")

    @property
    def curvature(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.max_curvature

    def value(self, z: Array, y: Array) -> Array:
        return self.fn(z, y)


def huber(eps: float) -> Loss:
    """Huber's loss with threshold `eps` > 0."""
    return Huber(_check_eps("huber", eps, low=0.0, strict=True))


def epsilon_insensitive(eps: float) -> Loss:
    """The support-vector-regression loss with tolerance `eps` ≥ 0."""
    return EpsilonInsensitive(_check_eps("epsilon_insensitive", eps, low=0.0))


def pinball(eps: float) -> Loss:
    """The quantile loss at level `eps` in [0, 1]."""
    return Pinball(_check_eps("pinball", eps, low=0.0, high=1.0))


def _check_eps(name: str, eps: float, low: float, high: float = float("inf"), strict: bool = False) -> float:
    if not isinstance(eps, Real) or not (low < eps if strict else low <= eps) or not eps <= high:
        range_words = f"> {low:g}" if strict else f">= {low:g}" if high == float("inf") else f"in [{low:g}, {high:g}]"
        raise FoedusError(f"The 'eps' parameter of {name} must be {range_words}. Got {eps!r} instead.")
    return float(eps)


@lru_cache(maxsize=256)
def _custom(fn: Callable[[Array, Array], Array]) -> Custom:
    return Custom(fn)


def as_loss(loss: "Loss | Callable[[Array, Array], Array]") -> Loss:
    """Accept a Loss or a user's elementwise function of (z, y)."""
    if isinstance(loss, Loss):
        return loss
    if loss in (huber, epsilon_insensitive, pinball):
        raise FoedusError(f"losses.{loss.__name__} needs its eps: write losses.{loss.__name__}(0.1).")
    if callable(loss) and not isinstance(loss, type):
        return _custom(loss)
    raise FoedusError(f"loss must be one of fd.losses or a function of (z, y). Got {loss!r} instead.")


least_squares = LeastSquares()
logistic = Logistic()
hinge = Hinge()
smooth_hinge = SmoothHinge()
