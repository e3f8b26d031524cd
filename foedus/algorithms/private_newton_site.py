"""What a client of PrivateNewton computes from its rows, and by how much one row can change it.

Every function here is a mean over rows of something that one row alone decides, given public numbers: the model, the
public matrix, the caps. So each has a fixed sensitivity, whatever was released before. d is the divisor of the mean.

    moments    xxᵀ of rows cut to length B              √2·B²/d (replace), B²/d (leave out): xxᵀ has Frobenius norm ‖x‖²
    gradients  clip(s·x̃, C) over rows, by block         2C·m/d, C·m/d: a row is in at most m² of the blocks
    excess     1_g·(min(ℓ, L) − cap)                    L/d and no more: it lies between −cap and L − cap, or is 0
    share      1_g                                      1/d
x̃ = x·T with the public matrix T. A cap on the mean loss over a group, Σ_g ℓ/|g| ≤ cap, is the row Σ 1_g·(ℓ − cap) ≤ 0,
which needs no division by |g|, a private number; losses are cut at L.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from foedus.base.errors import FoedusError
from foedus.privacy.clipping import HUGE, TINY
from foedus.privacy.noise import Sound
from foedus.privacy.sensitivity import ROUNDING, change_of_mean, steepness
from foedus.problem.constraints import LossCap
from foedus.problem.terms import Data, Terms, Where

VALUE_SHARE = 1.0  # a cap's value weighs as much in a round's release as the gradients do
GROUP_SHARE = 0.3  # a group's share of the rows, beside its excess, in the release that measures


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


# --- moments ---


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


# --- gradients and values ---


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


# --- measuring ---


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
