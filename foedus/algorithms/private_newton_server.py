"""The server's part of PrivateNewton: whitening, an estimate of every cap with its variance, and the next step.

All of it is computed from releases, so nothing here costs privacy. In whitened coordinates u, w = T·u, the mean of the
rows' xxᵀ is about the identity, and the objective's curvature is at most κ, that of the loss.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr

from foedus.base.pytrees import state
from foedus.certificate.private import PrivateRow
from foedus.numerics.lapack import eigh
from foedus.privacy.central import NoiseShares
from foedus.privacy.noise import Sound

CURVED = 0.5  # a cap's curvature in the step's model, as a share of κ: its group is a part of the rows
EXPECTED = 0.15  # and in the prediction of its slope after a step
UNCERTAIN = 0.1  # the standard deviation of that curvature where slopes at both ends of a step are known
RELATIVE = 0.3  # the standard deviation of a predicted change, as a share of it: clipped slopes are too short
DRIFT = 1.0  # how far a step moves a cap's gradient beyond what is expected, as a share of κ times its length
MOMENTUM = 0.4  # the weight of the past in the objective's gradient, where there are caps
DAMPED = 6.0  # from this step on, steps of a problem with caps become shorter, by this number over the step's
LONGEST = 1.5  # the longest step in u
LARGEST = 0.5  # the largest multiplier in a step: beyond, the caps contradict each other in the model
SWEEPS, HALVINGS = 20, 30  # of the dual's coordinates
FORESEEN = 0.5  # the share of what may go wrong that the margin is made for; the rest is left to the model's errors
REPEATS = 4  # solutions of the step's model, each with the margin that the one before asks for
TINY = 1e-300


def whitening(packed: Array, spread: Array, dim: int) -> Array:
    """Return T with Tᵀ(A + λI)T = I from noisy moments A; λ is the size that the noise's spectrum has.

    `packed` is the upper triangle with √2 off the diagonal, each entry with noise of standard deviation `spread`: the
    norm of a symmetric matrix of such noise is about √(2·dim)·spread.
    """
    rows, columns = jnp.triu_indices(dim)
    half = jnp.zeros((dim, dim)).at[rows, columns].set(packed * jnp.where(rows == columns, 0.5, 0.5**0.5))
    values, vectors = eigh(half + half.T)
    return vectors / jnp.sqrt(jnp.maximum(values, 0.0) + jnp.maximum(spread * (2.0 * dim) ** 0.5, 1e-12))


@state
class CapEstimate:
    """What is known of every cap: its excess with mean and variance, and its gradient in u, which is its slope.

    Both are Kalman filters over rounds: a step makes the past less certain, a release makes it more certain.
    """

    mean: Array  # (clients, caps)
    variance: Array  # infinite before the first release. (clients, caps)
    slope: Array  # (clients, caps, dim)
    slope_variance: Array  # of one entry of the slope. (clients, caps)

    @staticmethod
    def nothing(clients: int, caps: int, dim: int) -> "CapEstimate":
        """Return the estimate before the first release."""
        unknown = jnp.full((clients, caps), jnp.inf)
        return CapEstimate(jnp.zeros((clients, caps)), unknown, jnp.zeros((clients, caps, dim)), unknown)

    def doubt(self, variance: Array, change: Array, square: Array, kappa: float) -> Array:
        """The variance of what a step of this squared length changes, where slopes have this variance."""
        return variance * square + (RELATIVE * change) ** 2 + (UNCERTAIN * kappa * square) ** 2

    def updated(
        self, step: Array, value: Array, error: Array, slope: Array, slope_error: Array, here: Array, kappa: float
    ) -> "CapEstimate":
        """Join a release after a step: values and slopes, with these standard deviations, of the clients that are here.

        The values before are carried over the step by the mean of the slopes at its two ends, so that no curvature has
        to be known.
        """
        square, before = jnp.sum(step**2), pooled_slopes(self)
        drift = (DRIFT * kappa) ** 2 * square / step.size
        slopes, slope_variance = joined(
            self.slope + EXPECTED * kappa * step, self.slope_variance + drift, slope, slope_error, here
        )
        estimate = replace(self, slope=slopes, slope_variance=slope_variance)
        after = pooled_slopes(estimate)
        change = 0.5 * (before.slope + after.slope) @ step
        doubt = self.doubt(0.5 * (before.variance + after.variance), change, square, kappa)
        mean, variance = joined(self.mean + change, self.variance + doubt, value, error, here)
        return replace(estimate, mean=mean, variance=variance)


def joined(mean: Array, variance: Array, value: Array, error: Array, here: Array) -> tuple[Array, Array]:
    """Return mean and variance of numbers of which a new value with standard deviation `error` is known where `here`.

    An infinite variance means that nothing was known before. The mean may have one axis more than the variance.
    """
    first = jnp.isinf(variance)
    gain = jnp.where(first, 1.0, variance / (jnp.where(first, 1.0, variance) + error**2))
    gain = jnp.where(here, gain, 0.0)
    after = jnp.where(first & here, error**2, (1.0 - gain) * jnp.where(first, 0.0, variance))
    wide = gain.reshape(gain.shape + (1,) * (mean.ndim - gain.ndim))
    return mean + wide * (value - mean), jnp.where(first & ~here, jnp.inf, after)


@state
class PooledSlopes:
    """Every cap's slope, moved towards the mean over clients by as much as noise makes them differ."""

    slope: Array  # (clients, caps, dim)
    variance: Array  # of one entry, given all releases. (clients, caps)
    mixture: Array  # the weight of each client's own estimate in that of every client. (clients, clients, caps)


def pooled_slopes(estimate: CapEstimate) -> PooledSlopes:
    """Return the slopes under a normal law over clients, whose variance τ² comes from the releases themselves.

    This is the random-effects estimate of DerSimonian and Laird (1986), with one τ² for all entries of a cap's slope:
    where clients differ by more than noise, τ² is large and everybody keeps its own slope.
    """
    slope, variance = estimate.slope, estimate.slope_variance
    known = jnp.isfinite(variance)
    weight = jnp.where(known, 1.0 / jnp.where(known, variance, 1.0), 0.0)
    many, total, dim = jnp.sum(known, axis=0), jnp.maximum(jnp.sum(weight, axis=0), TINY), slope.shape[-1]
    centre = jnp.einsum("nk,nkd->kd", weight / total, slope)
    spread = jnp.sum(weight[..., None] * (slope - centre) ** 2, axis=(0, 2))
    divisor = jnp.maximum(total - jnp.sum(weight**2, axis=0) / total, TINY)
    tau = jnp.maximum((spread / dim - (many - 1)) / divisor, 0.0)
    own = jnp.where(many > 1, tau / (tau + jnp.where(known, variance, 1.0)), 1.0)
    weight = jnp.where(known, 1.0 / (tau + jnp.where(known, variance, 1.0)), 0.0)
    total = jnp.maximum(jnp.sum(weight, axis=0), TINY)
    shared = (1.0 - own)[:, None, :] * (weight / total)[None, :, :]
    mixture = own[:, None, :] * jnp.eye(slope.shape[0])[:, :, None] + shared
    posterior = own * jnp.where(known, variance, 0.0) + (1.0 - own) ** 2 / total
    return PooledSlopes(jnp.einsum("nmk,mkd->nkd", mixture, slope), jnp.where(known, posterior, 0.0), mixture)


def quantile(level: float) -> float:
    """Return the quantile of the normal law."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(level)


def widest_margin(confidence: float, rows: int) -> float:
    """Return how many standard deviations below its cap a row is kept where every row is as near to it as allowed."""
    return quantile(1.0 - FORESEEN * (1.0 - confidence) / max(rows, 1))


def joint_margin(levels: Array, margin: Array, confidence: float) -> Array:
    """Return the least margin with which all rows hold together with this confidence, in standard deviations.

    `levels` are the rows' predicted values with `margin`; another margin moves them all by the difference. A row far
    below its cap takes next to nothing of what may go wrong, so that the others may come nearer.
    """
    budget = FORESEEN * (1.0 - confidence)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        fails = jnp.sum(ndtr(levels + margin - middle)) > budget
        return jnp.where(fails, middle, low), jnp.where(fails, high, middle)

    start = jnp.full((), quantile(1.0 - budget)), jnp.full((), widest_margin(confidence, levels.size))
    return jax.lax.fori_loop(0, HALVINGS, halve, start)[1]


def careful_step(
    gradient: Array, estimate: CapEstimate, confidence: float, kappa: float, bend_of_all: Array, mixed: Array
) -> tuple[Array, Array, CapEstimate]:
    """Return the step, the multipliers, and the estimate without the optimism of a step that follows noise.

    A step −(g + Σλa)/b follows the noise of the caps' slopes, so that a slope promises more than it keeps: by
    cov(a, Σλa)·dim/b on average, and by `mixed`·dim/b, where `mixed` is the covariance of an entry of a and of g. The
    margin grows by it and by what the step itself makes uncertain, in rounds, for λ depends on the margin.
    """
    dim, rows, pooled = gradient.size, estimate.mean.size, pooled_slopes(estimate)
    optimism, wary, known = jnp.zeros_like(estimate.mean), estimate, jnp.isfinite(estimate.variance)
    margin = jnp.full((), widest_margin(confidence, rows))
    step, multipliers = newton_step(gradient, wary, pooled.slope, margin, kappa, bend_of_all)
    for _ in range(REPEATS if rows else 0):
        noise = jnp.where(jnp.isfinite(estimate.slope_variance), estimate.slope_variance, 0.0)
        followed = jnp.einsum("nmk,mk,pmk,pk->nk", pooled.mixture, noise, pooled.mixture, multipliers)
        optimism = (followed + mixed) * dim / (bend_of_all + CURVED * kappa * jnp.sum(multipliers))
        change, square = pooled.slope @ step, jnp.sum(step**2)
        doubt = estimate.doubt(pooled.variance, change, square, kappa)
        wary = replace(estimate, mean=estimate.mean + optimism, variance=estimate.variance + doubt)
        levels = (wary.mean + change + 0.5 * CURVED * kappa * square) / jnp.sqrt(wary.variance)
        margin = joint_margin(jnp.where(known, levels, -jnp.inf), margin, confidence)
        step, multipliers = newton_step(gradient, wary, pooled.slope, margin, kappa, bend_of_all)
    # the next release carries values over the step by the slopes of both its ends, of which the first one is followed
    return step, multipliers, replace(estimate, mean=estimate.mean + 0.5 * optimism)


def newton_step(
    gradient: Array, estimate: CapEstimate, slope: Array, margin: Array, kappa: float, bend_of_all: Array
) -> tuple[Array, Array]:
    """Return the step and the multipliers of  min g·v + b/2|v|²  s.t.  c + m·σ + a·v + κ'/2|v|² ≤ 0 for every cap.

    A cap of which nothing is known yet is left out. The dual is solved coordinate by coordinate, each by bisection:
    v = −(g + Σλa)/(b + κ'Σλ), so that all a multiplier changes follows from the products of gradients.
    """
    dim = gradient.size
    a = slope.reshape(-1, dim)
    known = jnp.isfinite(estimate.variance).ravel()
    c = (estimate.mean + margin * jnp.sqrt(jnp.where(jnp.isfinite(estimate.variance), estimate.variance, 0.0))).ravel()
    c, a, bend = jnp.where(known, c, -jnp.inf), jnp.where(known[:, None], a, 0.0), CURVED * kappa
    rows = jnp.concatenate([gradient[None, :], a])
    products = rows @ rows.T

    def excess(i: Array, weights: Array, image: Array, square: Array, change: Array) -> Array:
        """The model's value of row i where its multiplier grows by `change`."""
        total = bend_of_all + bend * (jnp.sum(weights[1:]) + change)
        along = image[i + 1] + change * products[i + 1, i + 1]
        length = square + 2.0 * change * image[i + 1] + change**2 * products[i + 1, i + 1]
        return c[i] - along / total + 0.5 * bend * length / total**2

    def coordinate(i: Array, weights: Array) -> Array:
        image = products @ weights
        square = jnp.dot(weights, image)
        now = weights[i + 1]

        def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            above = excess(i, weights, image, square, middle - now) > 0
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        _, high = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros(()), jnp.full((), LARGEST)))
        none = excess(i, weights, image, square, -now) <= 0
        return weights.at[i + 1].set(jnp.where(none, 0.0, high))

    def sweep(_: Array, weights: Array) -> Array:
        return jax.lax.fori_loop(0, c.size, coordinate, weights)

    weights = jnp.zeros(1 + c.size).at[0].set(1.0)
    if c.size:
        weights = jax.lax.fori_loop(0, SWEEPS, sweep, weights)
    step = -(weights @ rows) / (bend_of_all + bend * jnp.sum(weights[1:]))
    length = jnp.maximum(jnp.linalg.norm(step), 1e-300)
    return step * jnp.minimum(1.0, LONGEST / length), weights[1:].reshape(estimate.mean.shape)


def interval(mean: float, error: float, confidence: float) -> tuple[float, float]:
    """Return the two-sided interval of a normal variable's mean, from one draw with this standard deviation."""
    reach = quantile(0.5 + 0.5 * confidence) * error
    return (mean - reach, mean + reach) if math.isfinite(reach) else (-math.inf, math.inf)


def row_of(
    site: str, constraint: str, cap: float, excess: tuple[float, float], share: tuple[float, float],
    confidence: float, multiplier: float,
) -> PrivateRow:  # fmt: skip
    """Return what is said about a cap, from its excess and its group's share, each with the error of its release."""
    low, high = interval(*excess, confidence)
    # the mean loss is cap + excess/share: half of what may go wrong is spent on each of the two
    both = 0.5 + 0.5 * confidence
    bottom, top = interval(*excess, both)
    least, most = interval(*share, both)
    least, most = max(least, 0.0), min(most, 1.0)
    if not least > 0 or not np.isfinite(bottom):
        value, value_low, value_high = np.nan, -np.inf, np.inf
    else:
        value = cap + excess[0] / min(max(share[0], least), most)
        value_low = max(0.0, cap + bottom / (least if bottom < 0 else most))
        value_high = cap + top / (most if top < 0 else least)
    return PrivateRow(
        site, constraint, cap, *excess, low, high, float(value), float(value_low), float(value_high), multiplier
    )


def spread_of(noise: Sound, scales: Array, answered: Array, alone: bool) -> Array:
    """The standard deviation of the noise in a sum over clients, from the scales of each one's.

    With caps, clients release slopes with all the noise `alone`; the moments are then smoothed as if they did so, too,
    for directions in which the rows hardly vary would carry that noise into the model.
    """
    if isinstance(noise, NoiseShares) and not alone:
        return jnp.max(scales) * jnp.sqrt(answered / (noise.sites - noise.tolerate))
    return jnp.sqrt(jnp.sum(scales**2))
