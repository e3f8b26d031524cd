"""PrivateNewton: noisy second moments once, then a few preconditioned steps; caps are held by public multipliers.

The first round releases the mean of xxᵀ over all rows, with noise. The server makes of it a matrix T that whitens the
rows, and everybody works with x̃ = Tᵀx from then on: there rows are about √dim long in every direction, so that clipping
and noise treat all directions alike, and steps of 1/κ need few rounds (a bound on the curvature, Böhning and Lindsay
1988, with noisy moments in place of exact ones).

Each following round releases the mean of clipped gradients and, where mean losses are capped, the gradient and the
excess of every cap. Multipliers, estimates and steps are functions of what was released, so that nothing that depends
on the data is carried from round to round, and every release has a fixed sensitivity given the past. A last round
measures the caps at the returned model; `run.certificate.private` has what came of it.

What a site releases is a mean over rows of something that one row alone decides, given public numbers: the model, the
public matrix, the caps. So each has a fixed sensitivity, whatever was released before. d is the divisor of the mean.

    moments    xxᵀ of rows cut to length B              √2·B²/d (replace), B²/d (leave out): xxᵀ has Frobenius norm ‖x‖²
    gradients  clip(s·x̃, C) over rows, by block         2C·m/d, C·m/d: a row is in at most m² of the blocks
    excess     1_g·(min(ℓ, L) − cap)                    L/d and no more: it lies between −cap and L − cap, or is 0
    share      1_g                                      1/d
x̃ = x·T with the public matrix T. A cap on the mean loss over a group, Σ_g ℓ/|g| ≤ cap, is the row Σ 1_g·(ℓ − cap) ≤ 0,
which needs no division by |g|, a private number; losses are cut at L.

The server computes with releases alone, so nothing there costs privacy. In whitened coordinates u, w = T·u, the mean of
the rows' xxᵀ is about the identity, and the objective's curvature is at most κ, that of the loss.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, state
from foedus.base.settings import setting, settings
from foedus.certificate.private import PrivateCertificate, PrivateRow
from foedus.numerics.lapack import eigh, lu_solve
from foedus.privacy import clipping
from foedus.privacy.central import NoiseShares
from foedus.privacy.clipping import HUGE, TINY
from foedus.privacy.composition import gaussian_epsilon
from foedus.privacy.noise import Gaussian, Noise, Sound
from foedus.privacy.release import Spent, release_columns, release_vector
from foedus.privacy.releasing import Releasing, only_for_paper
from foedus.privacy.sensitivity import ROUNDING, change_of_mean, steepness
from foedus.problem.constraints import LossCap
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms, Where
from foedus.protocol.algorithm import RUNNING, STUCK, Algorithm, Each, Fit, Kind, Present, name_of, refuse
from foedus.protocol.constrained import Constrained
from foedus.protocol.summing import Summing

STEPS, STEPS_WITH_CAPS = 8, 16  # rounds between the first and, with caps, the last
CLIP, CLIP_WITH_CAPS = 0.45, 0.55  # the usual clip over the length √dim that whitened rows have on average
MOST_COLUMNS = 1000  # the public matrix travels in every message
VALUE_SHARE = 1.0  # a cap's value weighs as much in a round's release as the gradients do
GROUP_SHARE = 0.3  # a group's share of the rows, beside its excess, in the release that measures
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


# --- what a site releases ---


@dataclass(frozen=True)
class Limits:
    """The public numbers that bound what a row adds."""

    clip: float  # C
    length: float  # B
    loss: tuple[float, float]  # L = first + second·cap

    def cut(self, caps: Array) -> Array:
        """L for each cap."""
        return self.loss[0] + self.loss[1] * jnp.abs(caps)


def caps_of(terms: Terms) -> tuple[LossCap, ...]:
    """Return the caps of a problem, all of which a client can release with bounded sensitivity; refuse the others."""
    for constraint in terms.constraints:
        if not isinstance(constraint, LossCap) or constraint.kind != "<=":
            raise FoedusError(
                f"PrivateNewton takes LossCap(..., kind='<=') alone: no bound is proved on what one example changes in "
                f"{type(constraint).__name__}."
            )
        if constraint.scope != "local":
            raise FoedusError(
                f"PrivateNewton takes no cap of scope {constraint.scope!r}: a mean over clients of group means divides "
                "by how many examples a group has at each client, which is private; use scope='local'."
            )
        limits = constraint.limit.values() if isinstance(constraint.limit, Mapping) else [constraint.limit]
        if constraint.skip or None in limits:
            raise FoedusError(
                "PrivateNewton takes no cap that is left out at a client: that a client has no row of a group is an "
                "exact figure about its rows; leave skip= and None out."
            )
        if not isinstance(constraint.where, Where):
            raise FoedusError(
                "PrivateNewton needs fd.label(v) or fd.group(v) as the group of a cap: of a function of all rows "
                "nobody knows what one row changes."
            )
        if constraint.loss is not None and constraint.loss != terms.loss:
            raise FoedusError("PrivateNewton needs caps on the problem's own loss; leave loss= out of LossCap.")
    return tuple(c for c in terms.constraints if isinstance(c, LossCap))


def disjoint(caps: Sequence[LossCap]) -> bool:
    """Whether no row can be in two of the groups: they are different values of one array."""
    masks = [cap.where for cap in caps if isinstance(cap.where, Where)]
    return len({mask.key for mask in masks}) <= 1 and len({mask.value for mask in masks}) == len(masks)


def limits_of_caps(terms: Terms, data: Data) -> Array:
    """Return the public limit of each cap at this client. (caps,)"""
    return jnp.concatenate([jnp.zeros(0), *(cap.caps(terms, data) for cap in caps_of(terms))])


def groups_of(terms: Terms, data: Data) -> Array:
    """Return for each cap and row whether the row is in the cap's group. (caps, rows)"""
    masks = [cap.where(data).astype(float) for cap in caps_of(terms)]
    return jnp.stack(masks) if masks else jnp.zeros((0, data["weight"].shape[0]))


def shares_of(data: Data, noise: Sound) -> Array:
    """Return the weight of each row in a mean."""
    return data["weight"] / noise.divisor(data.count)


def moments(terms: Terms, data: Data, noise: Sound, length: float) -> Array:
    """Return the upper triangle of the mean of xxᵀ, with √2 off the diagonal, so that norms are Frobenius norms."""
    x = data["x"]
    size = jnp.maximum(jnp.max(jnp.abs(x), axis=1, keepdims=True), TINY)
    norm = jnp.linalg.norm(x / size, axis=1, keepdims=True)
    x = _finite(x * jnp.minimum(1.0, length / size / jnp.maximum(norm, TINY)))
    gram = (x * shares_of(data, noise)[:, None]).T @ x
    if terms.penalty is not None and terms.loss is not None and terms.loss.curvature:
        gram = gram + terms.penalty.curvature(data.count) / terms.loss.curvature * jnp.eye(terms.dim)
    rows, columns = jnp.triu_indices(terms.dim)
    return gram[rows, columns] * jnp.where(rows == columns, 1.0, 2.0**0.5)


def moments_change(terms: Terms, noise: Sound, length: float, count: Array) -> Array:
    """Return the sensitivity of `moments`: ‖xxᵀ − yyᵀ‖² = ‖x‖⁴ + ‖y‖⁴ − 2(xᵀy)² ≤ 2B⁴ in the Frobenius norm."""
    changed = (2.0**0.5 if noise.neighbours == "replace" else 1.0) * length**2
    bend = 1.0 if terms.loss is None else terms.loss.curvature or 1.0
    rounding = ROUNDING * terms.dim * steepness(terms, noise.rows_range(count)[0]) / bend  # of the penalty's diagonal
    return change_of_mean(noise, changed, length**2, count) + rounding


def _finite(rows: Array) -> Array:
    good = jnp.all(jnp.isfinite(rows), axis=1, keepdims=True)
    return jnp.where(good, rows, 0.0)


@dataclass(frozen=True)
class Blocks:
    """How gradients are cut into blocks: with `cells`, the rows of no group, then those of each group.

    The gradient of all rows is then the sum of the blocks, and a row is in one of them. Otherwise the first block has
    all rows, and a row is in at most 1 + the number of different arrays that groups are made from.
    """

    cells: bool
    multiplicity: float  # √ of the most blocks that a row is in

    @staticmethod
    def of(terms: Terms) -> "Blocks":
        """Return the blocks for the caps of these terms."""
        caps = caps_of(terms)
        if disjoint(caps):
            return Blocks(True, 1.0)
        keys = {cap.where.key for cap in caps if isinstance(cap.where, Where)}
        return Blocks(False, (1.0 + (len(keys) if disjoint_values(caps) else len(caps))) ** 0.5)


def disjoint_values(caps: Sequence[LossCap]) -> bool:
    """Whether no two groups are the same value of the same array."""
    masks = [(cap.where.key, cap.where.value) for cap in caps if isinstance(cap.where, Where)]
    return len({*masks}) == len(masks)


def look(
    terms: Terms, w: Array, root: Array, data: Data, noise: Sound, limits: Limits, cells: bool
) -> tuple[Array, Array]:
    """Return the mean clipped gradient (of the rows of no group, or of all rows), and for each cap gradient and value.

    Gradients are those of the whitened rows x·T. A value is the excess over the cap, in units of which one row changes
    it by at most 2C·VALUE_SHARE/d, or half of that where a row is left out. (dim,) and (caps, dim + 1)
    """
    assert terms.loss is not None
    x, y, share = data["x"], data["y"], shares_of(data, noise)
    white = _finite(x @ root)
    size = jnp.maximum(jnp.max(jnp.abs(white), axis=1), TINY)
    length = size * jnp.linalg.norm(white / size[:, None], axis=1)
    slope, bound = terms.loss.slope(x @ w, y), jnp.minimum(limits.clip / jnp.maximum(length, TINY), HUGE)
    slope = jnp.clip(jnp.where(jnp.isnan(slope), 0.0, slope), -bound, bound)
    groups = groups_of(terms, data)
    everyone = jnp.ones_like(share) if not cells else 1.0 - jnp.sum(groups, axis=0)
    gradient = (share * slope * everyone) @ white
    if terms.penalty is not None:
        gradient = gradient + terms.penalty.gradient(w, data.count) @ root
    own = (groups * share * slope) @ white
    caps = limits_of_caps(terms, data)
    values = excess(terms, w, data, noise, limits) * value_weight(noise, limits, caps)
    return gradient, jnp.concatenate([own, values[:, None]], axis=1)


def excess(terms: Terms, w: Array, data: Data, noise: Sound, limits: Limits) -> Array:
    """Return Σ 1_g·(min(ℓ, L) − cap) over rows, divided by d, for each cap. (caps,)"""
    assert terms.loss is not None
    caps = limits_of_caps(terms, data)[:, None]
    losses = terms.loss.value(data["x"] @ w, data["y"])[None, :]
    losses = jnp.where(jnp.isnan(losses), 0.0, jnp.clip(losses, 0.0, limits.cut(caps)))
    return jnp.sum(groups_of(terms, data) * shares_of(data, noise) * (losses - caps), axis=1)


def value_change(noise: Sound, limits: Limits, caps: Array) -> Array:
    """Return by how much one row changes Σ 1_g·(min(ℓ, L) − cap): by L if replaced, by L − cap or cap if left out."""
    cut, size = limits.cut(caps), jnp.abs(caps)
    left_out = jnp.maximum(cut - caps, size)
    return jnp.maximum(cut, left_out) if noise.neighbours == "replace" else left_out


def value_weight(noise: Sound, limits: Limits, caps: Array) -> Array:
    """Return the factor of a cap's value in a release, which makes its change that of the gradients, times a share."""
    return VALUE_SHARE * noise.gradient_change / value_change(noise, limits, caps)


def look_change(
    terms: Terms, noise: Sound, limits: Limits, blocks: Blocks, count: Array, w: Array, root: Array
) -> Array:
    """Return the sensitivity of `look`: gradients and values together.

    Values: where groups are disjoint, a row that is replaced changes at most two of them.
    """
    reach, longest = noise.furthest(jnp.sum(jnp.abs(w))), jnp.linalg.norm(root)
    rounding = ROUNDING * terms.dim * steepness(terms, noise.rows_range(count)[0]) * reach * longest
    caps = caps_of(terms)
    changed_values = min(2, len(caps)) if disjoint(caps) else len(caps)
    factor = (blocks.multiplicity**2 + changed_values * VALUE_SHARE**2) ** 0.5
    return factor * change_of_mean(noise, noise.gradient_change, noise.gradient_change, count) + rounding


def measure(terms: Terms, w: Array, data: Data, noise: Sound, limits: Limits) -> Array:
    """Return for each cap its excess, in units of what one row can change it by, and its group's share. (caps, 2)"""
    caps = limits_of_caps(terms, data)
    group = jnp.sum(groups_of(terms, data) * shares_of(data, noise), axis=1)
    values = excess(terms, w, data, noise, limits) / value_change(noise, limits, caps)
    return jnp.stack([values, GROUP_SHARE * group], axis=1)


def measure_change(terms: Terms, noise: Sound, count: Array) -> Array:
    """Return the sensitivity of `measure`."""
    caps = caps_of(terms)
    changed_values = min(2, len(caps)) if disjoint(caps) else len(caps)
    factor = (changed_values * (1.0 + GROUP_SHARE**2)) ** 0.5
    return factor * change_of_mean(noise, 1.0, 1.0, count)


# --- what the server makes of it ---


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
    common = (1.0 - own)[:, None, :] * (weight / total)[None, :, :]
    mixture = own[:, None, :] * jnp.eye(slope.shape[0])[:, :, None] + common
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


# --- the algorithm ---


@state
class NewtonServer:
    """The server's state; all of it follows from releases."""

    w: Array
    u: Array  # w = root @ u
    root: Array  # T
    round: Array
    estimate: CapEstimate
    step: Array  # the last one, in u
    gradient: Array  # in u, with memory where there are caps
    error: Array  # the scale of each client's noise in its last release. (clients,)
    multipliers: Array  # (clients, caps)
    measured: Array  # excess and share of each cap, as released last. (clients, caps, 2)
    caps: Array  # (clients, caps)
    measure_error: Array  # the scale of the noise in `measured`, 0 for clients that did not measure. (clients,)


@state
class NewtonClient:
    """A client's state: its record, and the multipliers of its own rows for a certificate that is measured outside."""

    spent: Spent
    mu: Array


@state
class NewtonMessage:
    """The model, the public matrix, the client's place in what only it fills, and its multipliers."""

    w: Array
    root: Array
    place: PyTree  # `Each` on its way, a client's own number when it has arrived
    multipliers: PyTree


@state
class NewtonReply:
    """A release: a part to be added up, and a part that only this client fills, at its place."""

    z: Array
    slots: Array  # (clients, caps, numbers)
    scale: Array  # of the noise, at the client's place; 0 where it is silent. (clients,)
    caps: Array  # the limits of the client's caps, at its place. (clients, caps)


@settings
class PrivateNewton(Releasing, Summing, Constrained):
    """Private training in about ten rounds, with or without caps on mean losses: noisy moments, then Newton-like steps.

    For a smooth loss of xᵀw with Gaussian noise: `privacy=fd.Local(epsilon=, delta=)`, or `fd.Central(...)` with
    `secure=True`. `LossCap` constraints are held with a margin that follows from the noise, and
    `run.certificate.private` says for each whether it is kept, broken, or cannot be told.

    Example:
        >>> import foedus as fd, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(20000, 3))
        >>> y = (x @ np.array([1.0, -1.0, 0.5]) + rng.logistic(size=20000) > 0) * 1.0
        >>> problem = fd.Problem(fd.data.split(x, y, clients=5), loss=fd.losses.logistic)
        >>> total = fd.Central(epsilon=1.0, delta=1e-5, clip=3.0)  # the usual clip, 1 here, would make w a third longer
        >>> run = fd.solve(problem, fd.PrivateNewton(), privacy=total, secure=True)
        >>> run.rounds, bool(np.linalg.norm(run.w - [1.0, -1.0, 0.5]) < 0.2)
        (9, True)
    """

    rounds: int | None = setting(None, "rounds in all; None: 9, and 18 with caps", integer=True, ge=2)
    confidence: float = setting(0.95, "with which all caps are to hold, and of each measured interval", gt=0.5, lt=1)
    loss_clip: float | None = setting(
        None, "the largest loss of an example that counts in a cap; None: 2 + 4·cap", gt=0
    )
    noise: Noise | None = setting(
        None,
        "the noise of one release, which solve(privacy=...) sets",
        also=("a noise, as fd.Gaussian", lambda v: isinstance(v, Noise)),
    )

    eps1: ClassVar[float] = 1e-3  # pyright: ignore[reportIncompatibleVariableOverride]
    eps2: ClassVar[float] = 1e-3  # pyright: ignore[reportIncompatibleVariableOverride]

    # --- what is fixed before the first round ---

    def rounds_for(self, terms: Terms) -> int:
        """The rounds in all: moments, steps and, with caps, a measurement."""
        return self.rounds or (2 + STEPS_WITH_CAPS if terms.constraints else 1 + STEPS)

    def private_rounds(self, problem: Problem) -> int:
        return self.rounds_for(problem.terms)

    def usual_clip(self, terms: Terms, columns: int) -> float:
        """With caps a row's gradient may be longer: clipping turns away from the optimum by more than noise does."""
        return max(1.0, (CLIP_WITH_CAPS if terms.constraints else CLIP) * terms.dim**0.5)

    def with_noise(self, noise: Noise, problem: Problem) -> Algorithm:
        if not isinstance(noise, Sound):
            raise only_for_paper(noise)
        return replace(self, noise=replace(noise, halves=False), rounds=noise.most or self.rounds)

    @property
    def sound(self) -> Sound:
        """The noise."""
        assert isinstance(self.noise, Sound)
        return self.noise

    def fit(self, problem: Problem) -> Fit:
        terms = problem.terms
        if self.noise is None:
            raise FoedusError(f"{name_of(self)} is for private training alone: give solve privacy=fd.Local(...).")
        if not isinstance(self.noise, Gaussian):
            raise FoedusError(f"{name_of(self)} needs Gaussian noise, so a total with delta > 0.")
        if terms.loss is None or terms.loss.curvature is None:
            raise FoedusError(f"{name_of(self)} needs a loss of xᵀw with bounded curvature; use FedAvg(k0=1).")
        if terms.dim > MOST_COLUMNS:
            raise FoedusError(f"{name_of(self)} takes up to {MOST_COLUMNS} columns, and there are {terms.dim}.")
        refuse(self, terms, constraints=False)
        clipping.check(self, terms, self.noise, name_of(self))
        caps, least = caps_of(terms), 3 if terms.constraints else 2
        if self.rounds_for(terms) < least:
            raise FoedusError(f"{name_of(self)} needs {least} rounds at least here. Got {self.rounds} instead.")
        if isinstance(self.noise, NoiseShares):
            self.noise.check_useful(terms.dim)
        kappa = float(terms.loss.curvature)
        ready = replace(self, rounds=self.rounds_for(terms), noise=replace(self.noise, halves=False))
        assert len(caps) == terms.rows[0] and kappa > 0
        return Fit(ready, problem, max_rounds=ready.rounds_for(terms))

    def limits(self, terms: Terms) -> Limits:
        """The public bounds on what a row adds."""
        length = self.sound.rows or terms.dim**0.5
        loss = (2.0, 4.0) if self.loss_clip is None else (self.loss_clip, 0.0)
        return Limits(self.sound.clip, length, loss)

    # --- the protocol ---

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (Moments(self), Looks(self), Measures(self))

    def phase(self, server: NewtonServer) -> Array:
        looks_end = self._rounds - (1 if server.multipliers.size else 0)
        return jnp.where(server.round == 0, 0, jnp.where(server.round < looks_end, 1, 2))

    @property
    def _rounds(self) -> int:
        assert self.rounds is not None
        return self.rounds

    def init(self, terms: Terms, w0: Array, own: Data | None) -> NewtonServer:
        n, caps, dim = terms.clients, terms.rows[0], terms.dim
        return NewtonServer(
            w=w0,
            u=w0,
            root=jnp.eye(dim),
            round=jnp.zeros((), int),
            estimate=CapEstimate.nothing(n, caps, dim),
            step=jnp.zeros(dim),
            gradient=jnp.zeros(dim),
            error=jnp.zeros(n),
            multipliers=jnp.zeros((n, caps)),
            measured=jnp.zeros((n, caps, 2)),
            caps=jnp.zeros((n, caps)),
            measure_error=jnp.zeros(n),
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> NewtonClient:
        return NewtonClient(Spent.nothing(), jnp.zeros(terms.rows[0]))

    def broadcast(self, terms: Terms, server: NewtonServer, draws: Array) -> NewtonMessage:
        place = jnp.arange(terms.clients)
        return NewtonMessage(server.w, server.root, Each(place), Each(server.multipliers))

    def send(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, common: Array, own: Array,
        sensitivity: Array, key: Array,
    ) -> tuple[NewtonClient, NewtonReply]:  # fmt: skip
        """A client's next state and its release of the two parts."""
        noise, place = self.sound, message.place
        reach = jnp.sum(jnp.abs(message.w))
        spent, speaks, z, mine = release_vector(noise, client.spent, reach, common, own.ravel(), sensitivity, key)
        slots = jnp.zeros((terms.clients, *own.shape)).at[place].set(mine.reshape(own.shape))
        scale = jnp.zeros(terms.clients).at[place].set(jnp.where(speaks, spent.scale, 0.0))
        caps = jnp.zeros((terms.clients, own.shape[0])).at[place].set(limits_of_caps(terms, data))
        return replace(client, spent=spent), NewtonReply(z, slots, scale, caps)

    def ended(self, server: NewtonServer) -> Array:
        return jnp.where(server.round >= self._rounds, STUCK, RUNNING)

    def reason(self, server: PyTree, converged: bool, names: list[str]) -> str:
        return "played its rounds; a stopping test would have to be paid for"

    def release_record(self, clients: NewtonClient) -> Mapping[str, Array]:
        return release_columns(clients.spent)

    # --- what is said about caps ---

    def client_multipliers(self, terms: Terms, client: NewtonClient) -> Array:
        return client.mu

    def server_multipliers(self, terms: Terms, server: NewtonServer) -> dict[str, Array]:
        return {"global": jnp.zeros(terms.rows[1]), "coupled": jnp.zeros(terms.rows[2])}

    def private_certificate(self, terms: Terms, server: PyTree, names: list[str]) -> PrivateCertificate | None:
        constraints = caps_of(terms)
        if not constraints:
            return None
        limits, noise, rows = self.limits(terms), self.sound, []
        change = np.asarray(value_change(noise, limits, jnp.asarray(server.caps)))
        for i, name in enumerate(names):
            for k, constraint in enumerate(constraints):
                scale = float(server.measure_error[i])
                error = scale * float(change[i, k]) if scale > 0 else np.inf
                excess = float(server.measured[i, k, 0]) * float(change[i, k]) if scale > 0 else np.nan
                share = float(server.measured[i, k, 1]) / GROUP_SHARE
                rows.append(
                    row_of(
                        name, f"loss on {constraint.where}", float(server.caps[i, k]), (excess, error),
                        (share, scale / GROUP_SHARE), self.confidence, float(server.multipliers[i, k]),
                    )
                )  # fmt: skip
        delta = noise.delta if noise.total is None else noise.total[1]
        clip = float(np.max(np.asarray(limits.cut(jnp.asarray(server.caps)))))
        return PrivateCertificate(tuple(rows), self.confidence, gaussian_epsilon(noise.multiplier, delta), delta, clip)


# --- the kinds of rounds ---


class Round:
    """What the kinds of rounds share."""

    def __init__(self, algorithm: PrivateNewton):
        self.algorithm = algorithm

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Round) and self.algorithm == other.algorithm

    def __hash__(self) -> int:
        return hash((type(self), self.algorithm))

    def broadcast(self, terms: Terms, server: NewtonServer, draws: Array) -> NewtonMessage:
        return self.algorithm.broadcast(terms, server, draws)

    def total(self, server: NewtonServer, replies: NewtonReply, present: Present) -> tuple[NewtonReply, Array, Array]:
        """The sum of the replies, who has spoken, and how many."""
        total = jax.tree.map(lambda mean: mean * present.count, present.mean(replies))
        here = total.scale > 0
        return total, here, jnp.sum(here)


class Moments(Round):
    """The first round: second moments of the rows."""

    def local(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, key: Array
    ) -> tuple[NewtonClient, NewtonReply]:
        noise, limits = self.algorithm.sound, self.algorithm.limits(terms)
        packed = moments(terms, data, noise, limits.length)
        change = moments_change(terms, noise, limits.length, data.count)
        own = jnp.zeros((terms.rows[0], 0))
        return self.algorithm.send(terms, client, message, data, packed, own, change, key)

    def aggregate(self, terms: Terms, server: NewtonServer, replies: NewtonReply, present: Present) -> NewtonServer:
        total, _, speakers = self.total(server, replies, present)
        spread = spread_of(self.algorithm.sound, total.scale, present.count, terms.rows[0] > 0)
        spread = spread / jnp.maximum(speakers, 1)
        root = whitening(total.z / jnp.maximum(speakers, 1), spread, terms.dim)
        root = jnp.where(speakers > 0, root, server.root)
        return replace(server, root=root, u=lu_solve(root, server.w), round=server.round + 1, caps=total.caps)


class Looks(Round):
    """A step: clipped gradients, and for every cap its gradient and its excess."""

    def local(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, key: Array
    ) -> tuple[NewtonClient, NewtonReply]:
        noise, limits, blocks = self.algorithm.sound, self.algorithm.limits(terms), Blocks.of(terms)
        common, own = look(terms, message.w, message.root, data, noise, limits, blocks.cells)
        change = look_change(terms, noise, limits, blocks, data.count, message.w, message.root)
        return self.algorithm.send(terms, client, message, data, common, own, change, key)

    def aggregate(self, terms: Terms, server: NewtonServer, replies: NewtonReply, present: Present) -> NewtonServer:
        assert terms.loss is not None and terms.loss.curvature is not None
        noise, limits, kappa = self.algorithm.sound, self.algorithm.limits(terms), float(terms.loss.curvature)
        total, here, speakers = self.total(server, replies, present)
        gradient = total.z
        estimate = server.estimate
        error = jnp.where(here, total.scale, server.error)
        caps = jnp.where(here[:, None], total.caps, server.caps)
        if terms.rows[0]:
            slope = total.slots[..., :-1]
            if Blocks.of(terms).cells:
                gradient = gradient + jnp.sum(slope, axis=(0, 1))
            weight = value_weight(noise, limits, caps)
            value, value_error = total.slots[..., -1] / weight, error[:, None] / weight
            present_rows = jnp.broadcast_to(here[:, None], value.shape)
            estimate = estimate.updated(server.step, value, value_error, slope, error[:, None], present_rows, kappa)
        gradient, bend = gradient / jnp.maximum(speakers, 1), jnp.asarray(kappa)
        if terms.rows[0]:
            past = jnp.where(server.round <= 1, 0.0, MOMENTUM)
            gradient = past * server.gradient + (1.0 - past) * gradient
            bend = kappa * jnp.maximum(1.0, server.round / DAMPED)
        # with cells the noise of a cap's slope is part of the gradient's
        cells = bool(terms.rows[0]) and Blocks.of(terms).cells
        mixed = (1.0 - MOMENTUM) * estimate.slope_variance / terms.clients if cells else jnp.zeros(())
        step, multipliers, estimate = careful_step(gradient, estimate, self.algorithm.confidence, kappa, bend, mixed)
        step = jnp.where(speakers > 0, step, 0.0)
        u = server.u + step
        return replace(
            server, w=server.root @ u, u=u, round=server.round + 1, estimate=estimate, step=step, error=error,
            gradient=jnp.where(speakers > 0, gradient, server.gradient), multipliers=multipliers, caps=caps,
        )  # fmt: skip


class Measures(Round):
    """The last round, where there are caps: each one's excess at the returned model, and its group's share of rows."""

    def local(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, key: Array
    ) -> tuple[NewtonClient, NewtonReply]:
        noise, limits = self.algorithm.sound, self.algorithm.limits(terms)
        own = measure(terms, message.w, data, noise, limits)
        change = measure_change(terms, noise, data.count)
        common = jnp.zeros(1)  # noise alone: whoever adds up needs no special case
        after, reply = self.algorithm.send(terms, client, message, data, common, own, change, key)
        # L = f + Σλ·excess, and the row that a certificate knows is the group's mean loss − cap, excess over share
        share = jnp.sum(groups_of(terms, data) * data["weight"], axis=1) / data.count
        return replace(after, mu=message.multipliers * share), reply

    def aggregate(self, terms: Terms, server: NewtonServer, replies: NewtonReply, present: Present) -> NewtonServer:
        total, here, _ = self.total(server, replies, present)
        return replace(
            server, measured=total.slots, measure_error=jnp.where(here, total.scale, 0.0), round=server.round + 1,
            caps=jnp.where(here[:, None], total.caps, server.caps),
        )  # fmt: skip
