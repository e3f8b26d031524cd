"""Noise as an object: what is drawn, how a client's part is clipped, and what is promised for it.

`PaperLaplace` is EPM's Eq. (39), for comparison: its scale depends on the data, so no guarantee follows from it.
`Laplace` and `Gaussian` are calibrated to a sensitivity that is proved (`foedus/privacy/sensitivity.py`).
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.settings import check

RELATIONS = {
    "replace": "replacing one example",
    "add-or-remove": "leaving out one example's contribution, the number of examples kept fixed",
}
NEIGHBOURS = tuple(RELATIONS)
SAMPLERS = ("simulation", "opendp")


class Noise:
    """Noise that a client adds to what it sends."""

    sound: ClassVar[bool] = False  # whether a guarantee follows from it
    epsilon: float

    def _number(self, name: str, *, above: float = 0.0, below: float = math.inf, optional: bool = False) -> None:
        what, most = f"The {name!r} of {type(self).__name__}", below if below < math.inf else None
        object.__setattr__(self, name, check(what, getattr(self, name), gt=above, lt=most, finite=True, none=optional))


@dataclass(frozen=True)
class PaperLaplace(Noise):
    """The Laplace noise of EPM's Eq. (39), for comparison; no formal guarantee follows from it.

    Its scale is 2‖g_i‖₁/(ε·μ) with the client's own gradient g_i, so the scale itself depends on the data.

    Args:
        epsilon: the ε that the paper names, which is nominal.
        standardised: draw as the paper's released code does: centred and divided by the draw's own standard deviation,
            so that its entries sum to zero.

    Example:
        >>> import foedus as fd
        >>> print(fd.PaperLaplace(0.1))
        Laplace noise of Eq. (39), nominal epsilon 0.1 a release (no formal guarantee)
    """

    epsilon: float
    standardised: bool = False

    def __post_init__(self) -> None:
        self._number("epsilon")

    def draw(self, key: Array, g: Array, mu: Array) -> Array:
        """One noise vector, for the gradient g and the proximal weight μ of the last local step."""
        e = jax.random.laplace(key, g.shape)
        if self.standardised:
            e = (e - jnp.mean(e)) / jnp.std(e, ddof=1)
        return e * (2.0 * jnp.sum(jnp.abs(g)) / (self.epsilon * mu))

    def __str__(self) -> str:
        return f"Laplace noise of Eq. (39), nominal epsilon {self.epsilon:g} a release (no formal guarantee)"


@dataclass(frozen=True, kw_only=True)
class Sound(Noise):
    """Noise calibrated to a proved sensitivity: one release is private by itself, and releases compose.

    Args:
        epsilon: of one release.
        clip: the most that one example's gradient may measure, in the 1-norm (Laplace) or 2-norm (Gaussian).
        neighbours: the relation that `epsilon` is for: "replace", one example by another, or "add-or-remove", one
            example's contribution is left out, the number of examples kept fixed.
        rows: a bound on the 2-norm of the rows of X; longer rows are scaled down to it. Methods with several gradients
            a round and FedGiA need it, for it bounds the curvature of the loss.
        most: the most releases of one client, after which it sends nothing new; a budget sets it.
        sampler: "simulation" draws with jax.random; "opendp" releases through OpenDP's exact samplers.
    """

    epsilon: float
    clip: float
    neighbours: str = "replace"
    rows: float | None = None
    most: int | None = None
    sampler: str = "simulation"
    total: tuple[float, float] | None = field(default=None, metadata={"hidden": True})  # (ε, δ) that `Local` shared out
    # whether leaving an example out moves every release half as far as replacing one can
    halves: bool = field(default=True, metadata={"hidden": True})

    sound: ClassVar[bool] = True
    order: ClassVar[int]  # of the norm
    delta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        self._number("epsilon")
        self._number("clip")
        self._number("rows", optional=True)
        for name, choices in (("neighbours", NEIGHBOURS), ("sampler", SAMPLERS)):
            if getattr(self, name) not in choices:
                words = " or ".join(map(repr, choices))
                raise FoedusError(
                    f"The {name!r} of {type(self).__name__} must be {words}. Got {getattr(self, name)!r} instead."
                )
        if self.most is not None and (isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 0):
            raise FoedusError(
                f"The 'most' of {type(self).__name__} must be a whole number >= 0 or None. Got {self.most!r} instead."
            )

    @property
    def kind(self) -> str:
        """The name of the noise: "Laplace" or "Gaussian"."""
        return type(self).__name__

    @property
    def released(self) -> str:
        """What a client releases with this noise, in words."""
        return "each client's noisy parameters, in each round"

    @property
    def ledger_note(self) -> str:
        """What a site's ledger says behind the name of a release, where the noise is not all its own."""
        return ""

    @property
    def alone(self) -> "Sound":
        """The noise with which a client protects what it sends without any other client's noise."""
        return self

    def divisor(self, count: Array) -> Array:
        """The number by which a client with so many examples divides a sum over them; a public constant."""
        return count

    def rows_range(self, count: Array) -> tuple[Array, Array]:
        """The fewest and the most examples that the sensitivity of a client with `count` of them is computed for."""
        return count, count

    def allowance(self, reach: Array, size: int) -> Array:
        """What rounding adds to the sensitivity of `size` numbers, for models of 1-norm at most `reach`."""
        return 2.0**-40 * reach

    def furthest(self, reach: Array) -> Array:
        """The 1-norm of a model for which rounding is charged, where that of the received one is `reach`."""
        return reach

    def within(self, reach: Array) -> Array:
        """Whether rounding is allowed for with models of this 1-norm; beyond, a client sends noise alone."""
        return jnp.ones((), bool)

    def beside(self, w: Array, increment: Array) -> Array:
        """What a client sends of a released increment of the received model w."""
        return w + increment

    @property
    def gradient_change(self) -> float:
        """The most by which the sum of clipped gradients can change between neighbouring data sets."""
        return (2.0 if self.neighbours == "replace" else 1.0) * self.clip

    @property
    def multiplier(self) -> float:
        """The scale of the noise per unit of sensitivity."""
        raise NotImplementedError

    def scale(self, sensitivity: Array) -> Array:
        """The scale of the noise for a release of this sensitivity."""
        return self.multiplier * sensitivity

    def release(self, value: Array, scale: Array, key: Array) -> Array:
        """Return the value with noise of this scale; where the scale is not a number > 0, noise alone."""
        good = (scale > 0) & jnp.isfinite(scale)
        value, scale = jnp.where(good & jnp.isfinite(value), value, 0.0), jnp.where(good, scale, 1.0)
        if self.sampler == "opendp":
            from foedus.privacy.sampling import release_inside

            return release_inside(type(self).__name__.lower(), value, scale)
        return value + scale * self._unit(key, value.shape)

    def _unit(self, key: Array, shape: tuple[int, ...]) -> Array:
        raise NotImplementedError

    @property
    def promise(self) -> str:
        """The guarantee of one release, in words."""
        small = f", delta {self.delta:.4g}" if self.delta else ""
        return f"epsilon {self.epsilon:.4g}{small} a release, for {RELATIONS[self.neighbours]}"

    def __str__(self) -> str:
        return (
            f"{type(self).__name__} noise, gradients clipped at {self.clip:g} in the {self.order}-norm: {self.promise}"
        )


@dataclass(frozen=True, kw_only=True)
class Laplace(Sound):
    """Laplace noise of scale sensitivity/ε in the 1-norm: each release is ε-differentially private.

    Args:
        epsilon: the ε of one release.
        clip: the most that one example's gradient may measure in the 1-norm; longer ones are shortened.
        neighbours: the relation that `epsilon` is for: "replace", one example by another, or "add-or-remove", one
            example's contribution is left out, the number of examples kept fixed.
        rows: a bound on the 2-norm of the rows of X; longer rows are scaled down to it. Methods with several gradients
            a round and FedGiA need it.
        most: the most releases of one client; a budget sets it.
        sampler: "simulation" draws with jax.random; "opendp" releases through OpenDP's exact samplers.

    Example:
        >>> import foedus as fd
        >>> print(fd.Laplace(epsilon=0.5, clip=1.0))
        Laplace noise, gradients clipped at 1 in the 1-norm: epsilon 0.5 a release, for replacing one example
    """

    order: ClassVar[int] = 1

    @property
    def multiplier(self) -> float:
        return 1.0 / self.epsilon

    def _unit(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.laplace(key, shape)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Sound):
    """Gaussian noise, the least that makes each release (ε, δ)-differentially private (Balle and Wang 2018, Thm 8).

    Args:
        epsilon: the ε of one release.
        delta: the δ of one release, in (0, 1).
        clip: the most that one example's gradient may measure in the 2-norm; longer ones are shortened.
        neighbours: "replace" or "add-or-remove", as for `Laplace`.
        rows: a bound on the 2-norm of the rows of X, as for `Laplace`.
        most: the most releases of one client; a budget sets it.
        sampler: "simulation" draws with jax.random; "opendp" releases through OpenDP's exact samplers.

    Example:
        >>> import foedus as fd
        >>> noise = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=1.0)
        >>> round(noise.multiplier, 3)  # the standard deviation per unit of sensitivity
        3.731
    """

    delta: float  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    order: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("delta", below=1.0)

    @property
    def multiplier(self) -> float:
        return gaussian_multiplier(self.epsilon, self.delta)

    def _unit(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape)


@lru_cache(maxsize=256)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest σ, for sensitivity 1, with Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ) ≤ δ, by bisection."""
    from scipy.special import log_ndtr

    def excess(sigma: float) -> float:
        a, b = 0.5 / sigma, epsilon * sigma
        first, second = float(log_ndtr(a - b)), epsilon + float(log_ndtr(-a - b))
        return math.exp(first) * -math.expm1(second - first) - delta if second < first else -delta

    low, high = 1e-6, 1.0
    while excess(high) > 0:
        high *= 2.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
