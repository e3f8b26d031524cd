"""The server's part of PrivateNewton: whitening, an estimate of every cap with its variance, and the next step.

All of it is computed from releases, so nothing here costs privacy. In whitened coordinates u, w = T·u, the mean of the
rows' xxᵀ is about the identity, and the objective's curvature is at most κ, that of the loss.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.numerics.lapack import eigh
from foedus.privacy.central import NoiseShares
from foedus.privacy.noise import Sound
from foedus.private_certificate import PrivateRow
from foedus.pytrees import state

CURVED = 0.5  # a cap's curvature in the step's model, as a share of κ: its group is a part of the rows
EXPECTED = 0.25  # and in the prediction of its next value
UNCERTAIN = 0.15  # the standard deviation of that prediction's curvature, as a share of κ
MEMORY = 0.25  # the weight of the past in the estimate of a cap's gradient
MOMENTUM = 0.4  # and in that of the objective's, where there are caps
DAMPED = 6.0  # from this step on, steps of a problem with caps become shorter, by this number over the step's
LONGEST = 1.5  # the longest step in u
LARGEST = 20.0  # the largest multiplier in a step: beyond, the caps contradict each other in the model
SWEEPS, HALVINGS = 20, 30  # of the dual's coordinates
CAUTION = 1.0  # the share of the expected optimism of a step that the margin grows by
REPEATS = 3  # solutions of the step's model, each with the margin that the one before asks for


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
    """What is known of every cap's excess: its mean and variance, and its gradient in u. (clients, caps)"""

    mean: Array
    variance: Array  # infinite before the first release
    slope: Array  # (clients, caps, dim)

    @staticmethod
    def nothing(clients: int, caps: int, dim: int) -> "CapEstimate":
        """Return the estimate before the first release."""
        return CapEstimate(
            jnp.zeros((clients, caps)), jnp.full((clients, caps), jnp.inf), jnp.zeros((clients, caps, dim))
        )

    def moved(self, step: Array, slope_error: Array, kappa: float) -> "CapEstimate":
        """Predict the excess after a step; the variance grows by what gradient and curvature are not known to."""
        square = jnp.sum(step**2)
        mean = self.mean + self.slope @ step + 0.5 * EXPECTED * kappa * square
        doubt = slope_error**2 * square + (UNCERTAIN * kappa * square) ** 2
        return CapEstimate(mean, self.variance + doubt, self.slope)

    def updated(self, value: Array, error: Array, slope: Array, here: Array) -> "CapEstimate":
        """Join a release of values with standard deviation `error`, and of slopes, of the clients that are here."""
        first = jnp.isinf(self.variance)
        gain = jnp.where(first, 1.0, self.variance / (self.variance + error**2))
        mean = self.mean + gain * (value - self.mean)
        variance = jnp.where(first, error**2, (1.0 - gain) * self.variance)
        mixture = jnp.where(first[..., None], slope, MEMORY * self.slope + (1.0 - MEMORY) * slope)
        return CapEstimate(
            jnp.where(here, mean, self.mean),
            jnp.where(here, variance, self.variance),
            jnp.where(here[..., None], mixture, self.slope),
        )


def quantile(level: float) -> float:
    """Return the quantile of the normal law."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(level)


def margin_factor(confidence: float, rows: int) -> float:
    """Return how many standard deviations below its cap a row is kept, so that all rows hold with this confidence."""
    return quantile(1.0 - (1.0 - confidence) / max(rows, 1))


def careful_step(
    gradient: Array, estimate: CapEstimate, margin: float, kappa: float, bend_of_all: Array, error: Array, mixed: float
) -> tuple[Array, Array, CapEstimate]:
    """Return the step, the multipliers, and the estimate without the optimism of a step that follows noise.

    A step −(g + Σλa)/b follows the noise of a cap's own slope, so that the slope promises more than it keeps: by
    λ·var(a)·dim/b on average, and by that of the share `mixed` with which the noise of a is part of g as well. The
    margin grows by it, in rounds, for λ depends on the margin. `error` is the standard deviation of one entry of each
    slope as released. (clients, caps)
    """
    dim, memory = gradient.size, (1.0 - MEMORY) / (1.0 + MEMORY)
    optimism = jnp.zeros_like(estimate.mean)
    step, multipliers = newton_step(gradient, estimate, margin, kappa, bend_of_all)
    for repeat in range(REPEATS if estimate.mean.size else 0):
        if repeat > 0:
            wary = CapEstimate(estimate.mean + optimism, estimate.variance, estimate.slope)
            step, multipliers = newton_step(gradient, wary, margin, kappa, bend_of_all)
        total = bend_of_all + CURVED * kappa * jnp.sum(multipliers)
        optimism = CAUTION * (memory * multipliers + mixed) * error**2 * dim / total
    return step, multipliers, CapEstimate(estimate.mean + optimism, estimate.variance, estimate.slope)


def newton_step(
    gradient: Array, estimate: CapEstimate, margin: float, kappa: float, bend_of_all: Array
) -> tuple[Array, Array]:
    """Return the step and the multipliers of  min g·v + b/2|v|²  s.t.  c + m·σ + a·v + κ'/2|v|² ≤ 0 for every cap.

    A cap of which nothing is known yet is left out. The dual is solved coordinate by coordinate, each by bisection:
    v = −(g + Σλa)/(b + κ'Σλ), so that all a multiplier changes follows from the products of gradients.
    """
    dim = gradient.size
    a = estimate.slope.reshape(-1, dim)
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
