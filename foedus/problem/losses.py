"""Per-example losses of a linear model's prediction z = xᵀw and a target y.

A loss answers fixed questions: its value, whether it is convex and smooth, the largest second derivative in z where one
is known (`curvature`), and what kind of target it takes. Derivatives in z come from JAX.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import digamma, gammaln

from foedus.base.errors import FoedusError

ROOT2, ROOT2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)
FAR = -25.0  # below it Φ is taken from its series, which is then right to 13 digits


@dataclass(frozen=True)
class Loss:
    """A loss of a prediction z and a target y, elementwise.

    A class of your own states `value`, and what differs from this: `kind` of targets, "regression" or "classification";
    `convex`, whether it is convex in z; `smooth`, whether it has no kinks; `curvature`, a bound on its second
    derivative in z, None where none is known; `nonnegative`, whether it is never below 0. Certificates rest on these.
    Standard errors rest on `likelihood`: whether ℓ is −φ·log P(y|z), up to a term free of z. Such a loss states its
    `information`, what the second derivative is on average, and its `figures`, of which a table of coefficients has the
    deviance and the likelihood. `link` says how a score becomes a number such as y.

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
    ratio: ClassVar[str] = ""  # what exp(coefficient) is called
    has_dispersion: ClassVar[bool] = False  # whether the variance of y has a factor φ that is estimated
    words: ClassVar[str] = ""  # what a report calls it
    expects: ClassVar[str] = "0/1 or -1/+1"  # the targets that `wrong_targets` lets through

    @property
    def targets(self) -> int:
        """How many numbers the target of a row is."""
        return 1

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

    def information(self, z: Array, y: Array) -> Array:
        """What d²ℓ/dz² is on average over y, if z is right; the same with a canonical link."""
        return self.bend(z, y)

    def figures(self, z: Array, y: Array) -> Array:
        """The unit deviance, Pearson's squared residual, and terms of log P for `log_likelihood`. (3 or more, rows)"""
        raise FoedusError(f"{self.name} is no likelihood.")

    def log_likelihood(self, sums: np.ndarray, rows: float, dispersion: float) -> float:
        """log P of all rows, from the sums of the terms that `figures` gives; NaN where it is not known."""
        return float(sums[0])


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
    likelihood = True
    has_dispersion = True

    def value(self, z: Array, y: Array) -> Array:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Array, y: Array) -> Array:
        return z - y

    def bend(self, z: Array, y: Array) -> Array:
        return jnp.ones_like(z)

    def figures(self, z: Array, y: Array) -> Array:
        return jnp.stack([(y - z) ** 2] * 3)

    def log_likelihood(self, sums: np.ndarray, rows: float, dispersion: float) -> float:
        return -0.5 * rows * (math.log(2.0 * math.pi * float(sums[0]) / rows) + 1.0) if sums[0] > 0 else math.nan


class Binomial(Loss):
    """−log P(y) of a class y in 0/1 whose probability is a function of the score; a subclass states which."""

    kind = "classification"
    nonnegative = True
    above_zero = True
    likelihood = True

    def probability(self, z: Array) -> Array:
        """The probability of the positive class."""
        raise NotImplementedError

    def figures(self, z: Array, y: Array) -> Array:
        loss, p = self.value(z, y), self.probability(z)
        return jnp.stack([2.0 * loss, (positive(y) - p) ** 2 / (p * (1.0 - p)), -loss])


class Logistic(Binomial):
    """The logistic loss log(1 + e^z) − y·z, y in 0/1, as `fd.losses.logistic`; softplus keeps it finite for every z."""

    words = "logistic loss"
    curvature = 0.25
    log_odds = True
    ratio = "odds ratio"

    def probability(self, z: Array) -> Array:
        return jax.nn.sigmoid(z)

    def value(self, z: Array, y: Array) -> Array:
        return jax.nn.softplus(-signed(y) * z)

    def slope(self, z: Array, y: Array) -> Array:
        return jax.nn.sigmoid(z) - positive(y)

    def bend(self, z: Array, y: Array) -> Array:
        p = jax.nn.sigmoid(z)
        return p * (1.0 - p)


class Probit(Binomial):
    """The loss −log Φ(±z) of a class, Φ the normal distribution function; as `fd.losses.probit`."""

    words = "probit loss"
    curvature = 1.0

    def probability(self, z: Array) -> Array:
        return jax.scipy.special.ndtr(z)

    def value(self, z: Array, y: Array) -> Array:
        return -_log_ndtr(signed(y) * z)

    def slope(self, z: Array, y: Array) -> Array:
        s = signed(y)
        return -s * _mills(s * z)

    def bend(self, z: Array, y: Array) -> Array:
        t = signed(y) * z
        r = _mills(t)
        return r * (t + r)

    def information(self, z: Array, y: Array) -> Array:
        return _mills(z) * _mills(-z)


class Cloglog(Binomial):
    """The loss of a class with probability 1 − exp(−e^z), as of an event within a time; as `fd.losses.cloglog`."""

    words = "complementary log-log loss"
    ratio = "hazard ratio"

    def probability(self, z: Array) -> Array:
        return -jnp.expm1(-jnp.exp(z))

    def value(self, z: Array, y: Array) -> Array:
        h = jnp.exp(z)
        # log(1 − e^−h) near h = 0 is z − h/2 + …
        event = jnp.where(h < 1e-5, z - 0.5 * h, jnp.log(-jnp.expm1(-jnp.maximum(h, 1e-5))))
        return jnp.where(positive(y), -event, h)

    def slope(self, z: Array, y: Array) -> Array:
        h = jnp.exp(z)
        return jnp.where(positive(y), -_share_of_hazard(h), h)

    def bend(self, z: Array, y: Array) -> Array:
        h = jnp.exp(z)
        r = _share_of_hazard(h)
        return jnp.where(positive(y), r * (h + r - 1.0), h)

    def information(self, z: Array, y: Array) -> Array:
        h = jnp.exp(z)
        return h * _share_of_hazard(h)


def _share_of_hazard(h: Array) -> Array:
    """h/(e^h − 1), which is 1 at 0."""
    small = jnp.maximum(h, 1e-8)
    return jnp.where(h < 1e-8, 1.0 - 0.5 * h, small * jnp.exp(-small) / -jnp.expm1(-small))


def _log_ndtr(t: Array) -> Array:
    """log Φ(t); far below 0 by Φ(t) ≈ φ(t)/(−t)·(1 − 1/t² + 3/t⁴ − 15/t⁶ + 105/t⁸)."""
    near, far = jnp.maximum(t, FAR), jnp.minimum(t, FAR)
    return jnp.where(
        t > FAR,
        jnp.where(t > 0, jnp.log1p(-0.5 * jax.lax.erfc(near / ROOT2)), jnp.log(0.5 * jax.lax.erfc(-near / ROOT2))),
        -0.5 * far**2 - jnp.log(-far * ROOT2PI) + jnp.log(_tail(far)),
    )


def _mills(t: Array) -> Array:
    """φ(t)/Φ(t), the slope of log Φ."""
    near, far = jnp.maximum(t, FAR), jnp.minimum(t, FAR)
    return jnp.where(
        t > FAR, jnp.exp(-0.5 * near**2) / ROOT2PI / (0.5 * jax.lax.erfc(-near / ROOT2)), -far / _tail(far)
    )


def _tail(t: Array) -> Array:
    s = 1.0 / t**2
    return 1.0 - s * (1.0 - 3.0 * s * (1.0 - 5.0 * s * (1.0 - 7.0 * s * (1.0 - 9.0 * s))))


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
    ratio = "rate ratio"

    def value(self, z: Array, y: Array) -> Array:
        return jnp.exp(z) - y * z

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        return np.unique(y[y < 0]).tolist()

    def figures(self, z: Array, y: Array) -> Array:
        mean = jnp.exp(z)
        deviance = 2.0 * (_times_log(y, y) - y * z - (y - mean))
        return jnp.stack([deviance, (y - mean) ** 2 / mean, y * z - mean - gammaln(y + 1.0)])


@dataclass(frozen=True)
class NegativeBinomial(Loss):
    """The loss of counts of mean e^z and variance e^z + αe^2z; made by `fd.losses.negative_binomial(alpha)`."""

    alpha: float
    words: ClassVar[str] = "negative binomial loss"
    likelihood: ClassVar[bool] = True
    link: ClassVar[str] = "log"
    expects: ClassVar[str] = "numbers >= 0"
    ratio: ClassVar[str] = "rate ratio"

    def value(self, z: Array, y: Array) -> Array:
        return (y + 1.0 / self.alpha) * jax.nn.softplus(z + math.log(self.alpha)) - y * z

    def information(self, z: Array, y: Array) -> Array:
        mean = jnp.exp(z)
        return mean / (1.0 + self.alpha * mean)

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        return np.unique(y[y < 0]).tolist()

    def figures(self, z: Array, y: Array) -> Array:
        mean, theta = jnp.exp(z), 1.0 / self.alpha
        deviance = 2.0 * (
            _times_log(y, y) - y * z - (y + theta) * jnp.log((1 + self.alpha * y) / (1 + self.alpha * mean))
        )
        constant = gammaln(y + theta) - gammaln(theta) - gammaln(y + 1.0) + y * math.log(self.alpha)
        # the last term is the derivative of log P in α, of which the dispersion is found
        rise = theta**2 * (digamma(theta) - digamma(y + theta) + jnp.log1p(self.alpha * mean)) + y * theta
        rise -= (y + theta) * mean / (1.0 + self.alpha * mean)
        pearson = (y - mean) ** 2 / (mean + self.alpha * mean**2)
        return jnp.stack([deviance, pearson, constant - self.value(z, y), rise])


class Gamma(Loss):
    """The loss of positive numbers whose deviation grows with their mean e^z: z + y·e^−z, as `fd.losses.gamma`."""

    words = "gamma loss"
    likelihood = True
    has_dispersion = True
    link = "log"
    expects = "numbers > 0"
    ratio = "ratio of means"

    def value(self, z: Array, y: Array) -> Array:
        return z + y * jnp.exp(-z)

    def information(self, z: Array, y: Array) -> Array:
        return jnp.ones_like(z)

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        return np.unique(y[y <= 0]).tolist()

    def figures(self, z: Array, y: Array) -> Array:
        share, log_y = y * jnp.exp(-z), jnp.log(y)
        return jnp.stack([2.0 * (share - 1.0 - log_y + z), (share - 1.0) ** 2, log_y - z - share, log_y])

    def log_likelihood(self, sums: np.ndarray, rows: float, dispersion: float) -> float:
        shape = 1.0 / dispersion
        return rows * (shape * math.log(shape) - math.lgamma(shape)) + shape * float(sums[0]) - float(sums[1])


@dataclass(frozen=True)
class Tweedie(Loss):
    """The loss of amounts that are often 0, of variance φ·e^pz with 1 < p < 2; made by `fd.losses.tweedie(power)`."""

    power: float
    words: ClassVar[str] = "Tweedie loss"
    likelihood: ClassVar[bool] = True
    has_dispersion: ClassVar[bool] = True
    link: ClassVar[str] = "log"
    expects: ClassVar[str] = "numbers >= 0"
    ratio: ClassVar[str] = "ratio of means"

    def value(self, z: Array, y: Array) -> Array:
        p = self.power
        return y * jnp.exp((1.0 - p) * z) / (p - 1.0) + jnp.exp((2.0 - p) * z) / (2.0 - p)

    def information(self, z: Array, y: Array) -> Array:
        return jnp.exp((2.0 - self.power) * z)

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        return np.unique(y[y < 0]).tolist()

    def figures(self, z: Array, y: Array) -> Array:
        p, mean = self.power, jnp.exp(z)
        own = jnp.maximum(y, 0.0) ** (2.0 - p) / ((1.0 - p) * (2.0 - p))
        return jnp.stack([2.0 * (own + self.value(z, y)), (y - mean) ** 2 / mean**p, jnp.zeros_like(z)])

    def log_likelihood(self, sums: np.ndarray, rows: float, dispersion: float) -> float:
        return math.nan  # a series without a closed form


def _times_log(a: Array, b: Array) -> Array:
    """a·log b, 0 where a is."""
    return jnp.where(a > 0, a * jnp.log(jnp.where(a > 0, b, 1.0)), 0.0)


@dataclass(frozen=True)
class ByRow(Loss):
    """A loss whose rows have an offset, which is added to the score, or a weight; made by `fd.losses.by_row`.

    The target of a row is then several numbers: y, and in this order its offset and its weight.
    """

    loss: Loss
    offset: bool = False
    weight: bool = False

    def __post_init__(self) -> None:
        for name in (
            "kind",
            "convex",
            "smooth",
            "nonnegative",
            "likelihood",
            "link",
            "log_odds",
            "ratio",
            "has_dispersion",
        ):
            object.__setattr__(self, name, getattr(self.loss, name))
        object.__setattr__(self, "expects", self.loss.expects)
        object.__setattr__(self, "curvature", None if self.weight else self.loss.curvature)

    @property
    def name(self) -> str:
        parts = [word for word, has in (("offset", self.offset), ("weight", self.weight)) if has]
        return f"{self.loss.name} with {' and '.join(parts)}"

    @property
    def targets(self) -> int:
        return 1 + self.offset + self.weight

    def wrong_targets(self, y: np.ndarray) -> list[float]:
        return self.loss.wrong_targets(y[..., 0])

    def _parts(self, z: Array, y: Array) -> tuple[Array, Array, Array | float]:
        weight = y[..., 1 + self.offset] if self.weight else 1.0
        return (z + y[..., 1] if self.offset else z), y[..., 0], weight

    def value(self, z: Array, y: Array) -> Array:
        z, y, weight = self._parts(z, y)
        return weight * self.loss.value(z, y)

    def slope(self, z: Array, y: Array) -> Array:
        z, y, weight = self._parts(z, y)
        return weight * self.loss.slope(z, y)

    def bend(self, z: Array, y: Array) -> Array:
        z, y, weight = self._parts(z, y)
        return weight * self.loss.bend(z, y)

    def information(self, z: Array, y: Array) -> Array:
        z, y, weight = self._parts(z, y)
        return weight * self.loss.information(z, y)

    def figures(self, z: Array, y: Array) -> Array:
        z, y, weight = self._parts(z, y)
        return weight * self.loss.figures(z, y)

    def log_likelihood(self, sums: np.ndarray, rows: float, dispersion: float) -> float:
        if self.weight and self.loss.has_dispersion:
            return math.nan  # φ over the weight is another number for each row
        return self.loss.log_likelihood(sums, rows, dispersion)


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


def negative_binomial(alpha: float) -> Loss:
    """Return the loss of counts that vary more than Poisson's.

    Args:
        alpha: the dispersion, > 0: counts of mean m have the variance m + alpha·m².

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.losses.negative_binomial(0.5).slope(jnp.zeros(1), jnp.array([4.0])).tolist()
        [-2.0]
    """
    return NegativeBinomial(_check_eps("negative_binomial", alpha, low=0.0, strict=True, argument="alpha"))


def tweedie(power: float) -> Loss:
    """Return the loss of amounts of which many are 0, such as costs or rain.

    Args:
        power: p, between 1 and 2: amounts of mean m have a variance in proportion to m^p.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.losses.tweedie(1.5).slope(jnp.zeros(2), jnp.array([0.0, 4.0])).tolist()
        [1.0, -3.0]
    """
    if not isinstance(power, Real) or not 1 < power < 2:
        raise FoedusError(f"The 'power' parameter of tweedie must be between 1 and 2. Got {power!r} instead.")
    return Tweedie(float(power))


def by_row(loss: Loss, *, offset: bool = False, weight: bool = False) -> Loss:
    """Return a loss whose rows bring an offset or a weight with their y, as columns of y.

    Args:
        loss: of the score and y.
        offset: whether y has a column of numbers that are added to the scores, such as the logarithm of a time.
        weight: whether y has a column of weights > 0, by which the losses are multiplied; it is the last one.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> loss = fd.losses.by_row(fd.losses.poisson, offset=True)
        >>> loss.slope(jnp.zeros(1), jnp.array([[3.0, 0.0]])).tolist()
        [-2.0]
    """
    return ByRow(loss, offset, weight)


def _check_eps(
    name: str, eps: float, low: float, high: float = float("inf"), strict: bool = False, argument: str = "eps"
) -> float:
    if not isinstance(eps, Real) or not (low < eps if strict else low <= eps) or not eps <= high:
        range_words = f"> {low:g}" if strict else f">= {low:g}" if high == float("inf") else f"in [{low:g}, {high:g}]"
        raise FoedusError(f"The {argument!r} parameter of {name} must be {range_words}. Got {eps!r} instead.")
    return float(eps)


@lru_cache(maxsize=256)
def _custom(fn: Callable[[Array, Array], Array]) -> Custom:
    return Custom(fn)


def as_loss(loss: "Loss | Callable[[Array, Array], Array]") -> Loss:
    """Return a Loss, from one or from a user's elementwise function of (z, y)."""
    if isinstance(loss, Loss):
        return loss
    if loss in (huber, epsilon_insensitive, pinball, negative_binomial, tweedie):
        (setting,) = inspect.signature(loss).parameters
        example = 1.5 if loss is tweedie else 0.1
        raise FoedusError(f"losses.{loss.__name__} needs its {setting}: write losses.{loss.__name__}({example}).")
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
probit = Probit()
cloglog = Cloglog()
gamma = Gamma()
