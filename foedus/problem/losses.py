"""Per-example losses of a linear model's prediction z = xᵀw and a target y.

A loss answers fixed questions: its value, whether it is convex and smooth, the largest second derivative in z where one
is known (`curvature`), and what kind of target it takes. Derivatives in z come from JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError


@dataclass(frozen=True)
class Loss:
    """A loss of a prediction z and a target y, elementwise.

    A class of your own states `value`, and what differs from this: `kind` of targets, "regression" or "classification";
    `convex`, whether it is convex in z; `smooth`, whether it has no kinks; `curvature`, a bound on its second
    derivative in z, None where none is known; `nonnegative`, whether it is never below 0. Certificates rest on these.
    Standard errors rest on `likelihood`: whether ℓ is −log P(y|z), up to a term free of z, with a second derivative
    that is the variance of y. `link` says how a score becomes a number such as y.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> z, y = jnp.array([0.0, 2.0]), jnp.array([1.0, 1.0])
        >>> fd.losses.least_squares.value(z, y).tolist(), fd.losses.least_squares.slope(z, y).tolist()
        ([0.5, 0.5], [-1.0, 1.0])
    """

    kind: ClassVar[str] = "regression"
    convex: ClassVar[bool] = True
    smooth: ClassVar[bool] = True
    curvature: ClassVar[float | None] = None
    nonnegative: ClassVar[bool] = False
    above_zero: ClassVar[bool] = False  # whether it is above 0 for every prediction
    quadratic: ClassVar[bool] = False  # whether it is ½(z − y)²
    likelihood: ClassVar[bool] = False
    link: ClassVar[str] = "identity"  # of a regression: the function of the mean of y that z is; or "log"
    log_odds: ClassVar[bool] = False  # whether z is the logarithm of the odds of the positive class
    words: ClassVar[str] = ""  # what a report calls it
    expects: ClassVar[str] = "0/1 or -1/+1"  # the targets that `wrong_targets` lets through

    @property
    def name(self) -> str:
        """What messages and reports call the loss."""
        words = [f"{k}={v:g}" for k, v in vars(self).items() if isinstance(v, float)]
        return type(self).__name__ + (f"({', '.join(words)})" if words else "")

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        """The targets among y for which the loss is not defined, in ascending order."""
        labels = set(np.unique(y).tolist()) if self.kind == "classification" else set()
        if labels <= {0.0, 1.0} or labels <= {-1.0, 1.0}:
            return []
        return sorted(labels - {0.0, 1.0}) if 0.0 in labels else sorted(labels - {-1.0, 1.0})

    @classmethod
    def answer(cls, scores: np.ndarray) -> np.ndarray:
        """The numbers that scores z stand for, where y is a number: the mean of y by the `link`."""
        return np.exp(scores) if cls.link == "log" else scores

    def value(self, z: Array, y: Array) -> Array:
        """ℓ(z, y), elementwise."""
        raise NotImplementedError

    def slope(self, z: Array, y: Array) -> Array:
        """dℓ/dz, elementwise."""
        return jax.jvp(lambda s: self.value(s, y), (z,), (jnp.ones_like(z),))[1]

    def bend(self, z: Array, y: Array) -> Array:
        """d²ℓ/dz², elementwise."""
        return jax.jvp(lambda s: self.slope(s, y), (z,), (jnp.ones_like(z),))[1]


def positive(y: Array) -> Array:
    """Return whether a label is the positive class, for labels 0/1 and -1/+1 alike."""
    return y > 0


def signed(y: Array) -> Array:
    """Return labels as -1/+1, from 0/1 or -1/+1."""
    return jnp.where(positive(y), 1.0, -1.0)


class LeastSquares(Loss):
    """The squared error ½(z − y)², as `fd.losses.least_squares`."""

    words = "least-squares loss"
    curvature = 1.0
    nonnegative = True
    quadratic = True

    def value(self, z: Array, y: Array) -> Array:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Array, y: Array) -> Array:
        return z - y

    def bend(self, z: Array, y: Array) -> Array:
        return jnp.ones_like(z)


class Logistic(Loss):
    """The logistic loss log(1 + e^z) − y·z, y in 0/1, as `fd.losses.logistic`; softplus keeps it finite for every z."""

    words = "logistic loss"
    kind = "classification"
    curvature = 0.25
    nonnegative = True
    above_zero = True
    likelihood = True
    log_odds = True

    def value(self, z: Array, y: Array) -> Array:
        return jax.nn.softplus(-signed(y) * z)

    def slope(self, z: Array, y: Array) -> Array:
        return jax.nn.sigmoid(z) - positive(y)

    def bend(self, z: Array, y: Array) -> Array:
        p = jax.nn.sigmoid(z)
        return p * (1.0 - p)


class Hinge(Loss):
    """The hinge loss max(0, 1 − yz), y in −1/+1, as `fd.losses.hinge`."""

    words = "hinge loss"
    kind = "classification"
    smooth = False
    nonnegative = True

    def value(self, z: Array, y: Array) -> Array:
        return jnp.maximum(0.0, 1.0 - signed(y) * z)


class SmoothHinge(Loss):
    """The smooth hinge: ½ − yz for yz ≤ 0, ½(1 − yz)² for 0 < yz < 1, 0 beyond; as `fd.losses.smooth_hinge`."""

    words = "smooth hinge loss"
    kind = "classification"
    curvature = 1.0
    nonnegative = True

    def value(self, z: Array, y: Array) -> Array:
        u = 1.0 - signed(y) * z
        return jnp.where(u >= 1.0, u - 0.5, 0.5 * jnp.clip(u, 0.0, 1.0) ** 2)


class Poisson(Loss):
    """The loss of counts, e^z − yz with y ≥ 0 and a mean of e^z, as `fd.losses.poisson`."""

    words = "Poisson loss"
    likelihood = True
    link = "log"
    expects = "numbers >= 0"

    def value(self, z: Array, y: Array) -> Array:
        return jnp.exp(z) - y * z

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        return np.unique(y[y < 0]).tolist()


@dataclass(frozen=True)
class Huber(Loss):
    """Huber's loss of r = z − y: ½r² for |r| ≤ ε, ε(|r| − ε/2) beyond; made by `fd.losses.huber(eps)`."""

    eps: float
    words: ClassVar[str] = "Huber loss"
    curvature: ClassVar[float | None] = 1.0
    nonnegative: ClassVar[bool] = True

    def value(self, z: Array, y: Array) -> Array:
        r = z - y
        inside = jnp.clip(r, -self.eps, self.eps)
        return inside * (r - 0.5 * inside)


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """The loss of support vector regression, max(0, |z − y| − ε); made by `fd.losses.epsilon_insensitive(eps)`."""

    eps: float
    words: ClassVar[str] = "ε-insensitive loss"
    smooth: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True

    def value(self, z: Array, y: Array) -> Array:
        return jnp.maximum(0.0, jnp.abs(z - y) - self.eps)


@dataclass(frozen=True)
class Pinball(Loss):
    """The loss of quantile regression at level ε, max(−εr, (1 − ε)r), r = z − y; made by `fd.losses.pinball(eps)`."""

    eps: float
    words: ClassVar[str] = "pinball (quantile) loss"
    smooth: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True

    def value(self, z: Array, y: Array) -> Array:
        r = z - y
        return jnp.maximum(-self.eps * r, (1.0 - self.eps) * r)


@dataclass(frozen=True)
class Custom(Loss):
    """A user's own loss. Nothing is known of a function: no bound rests on its being convex, or not negative.

    Args:
        fn: `fn(z, y)`, elementwise and differentiable in JAX.
        max_curvature: a bound on its second derivative in z, where one is known.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fourth = fd.losses.Custom(lambda z, y: (z - y) ** 4)
        >>> fourth.slope(jnp.array([2.0]), jnp.array([1.0])).tolist()
        [4.0]
    """

    fn: Callable[[Array, Array], Array]
    max_curvature: float | None = None
    convex: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", "custom")

    @property
    def curvature(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.max_curvature

    def value(self, z: Array, y: Array) -> Array:
        return self.fn(z, y)


def huber(eps: float) -> Loss:
    """Return Huber's loss, quadratic near 0 and linear beyond.

    Args:
        eps: the size of z − y at which it becomes linear, > 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.losses.huber(1.0).value(jnp.array([0.5, 3.0]), jnp.zeros(2)).tolist()
        [0.125, 2.5]
    """
    return Huber(_check_eps("huber", eps, low=0.0, strict=True))


def epsilon_insensitive(eps: float) -> Loss:
    """Return the loss of support vector regression, which passes over small errors.

    Args:
        eps: the size of z − y up to which the loss is 0, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.losses.epsilon_insensitive(0.5).value(jnp.array([0.25, 2.0]), jnp.zeros(2)).tolist()
        [0.0, 1.5]
    """
    return EpsilonInsensitive(_check_eps("epsilon_insensitive", eps, low=0.0))


def pinball(eps: float) -> Loss:
    """Return the loss of quantile regression.

    Args:
        eps: the level of the quantile, in [0, 1].

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.losses.pinball(0.25).value(jnp.array([-1.0, 1.0]), jnp.zeros(2)).tolist()
        [0.25, 0.75]
    """
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
    """Return a Loss, from one or from a user's elementwise function of (z, y)."""
    if isinstance(loss, Loss):
        return loss
    if loss in (huber, epsilon_insensitive, pinball):
        raise FoedusError(f"losses.{loss.__name__} needs its eps: write losses.{loss.__name__}(0.1).")
    if callable(loss) and not isinstance(loss, type):
        return _custom(loss)
    raise FoedusError(f"loss must be one of fd.losses or a function of (z, y). Got {loss!r} instead.")


def class_of(name: str) -> type[Loss]:
    """The class of the loss that goes by a name; `Loss` for one of a user's own."""
    found = globals().get(name.partition("(")[0])
    return found if isinstance(found, type) and issubclass(found, Loss) else Loss


least_squares = LeastSquares()
logistic = Logistic()
hinge = Hinge()
smooth_hinge = SmoothHinge()
poisson = Poisson()
