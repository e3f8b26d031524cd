"""The weights of clients in Q = {q in the simplex, ‖q − q̂‖_p ≤ θ}: projections, and the worst q for given losses."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import device_array
from foedus.numerics.interpreter.dispatch import jit_if_large

HALVINGS = 80  # bisections: the 53 bits of a number, and more for an interval much wider than its root is large
LOG_RANGE = 35.0  # e^±35 covers every step t between rounding and the far end of the ball

Norm = int | float | str
"""The p of ‖·‖_p: 1, 2 or "inf"."""


def ball_projection(u: Array, radius: Array, p: Norm) -> Array:
    """The projection onto ‖·‖_p ≤ radius for p in 1, 2, "inf"; radius may be 0."""
    if p == "inf":
        return jnp.clip(u, -radius, radius)
    if p == 2:
        size = jnp.sqrt(jnp.sum(u**2))
        return u * jnp.minimum(1.0, radius / jnp.where(size > 0, size, 1.0))
    # ℓ1: soft thresholding at the cut that leaves the norm at the radius, found among the sorted sizes
    descending = jnp.sort(jnp.abs(u))[::-1]
    excess = (jnp.cumsum(descending) - radius) / jnp.arange(1, u.shape[0] + 1)
    last = jnp.sum(descending > excess) - 1
    cut = jnp.where(radius > 0, excess[jnp.maximum(last, 0)], jnp.inf)
    shrunk = jnp.sign(u) * jnp.maximum(jnp.abs(u) - cut, 0.0)
    return jnp.where(jnp.sum(jnp.abs(u)) <= radius, u, shrunk)


def dual_norm(u: Array, p: Norm) -> Array:
    """The dual norm ‖u‖_{p*}, with 1/p + 1/p* = 1."""
    if p == 1:
        return jnp.max(jnp.abs(u))
    return jnp.sum(jnp.abs(u)) if p == "inf" else jnp.sqrt(jnp.sum(u**2))


def simplex_projection(u: Array) -> Array:
    """The projection onto the simplex, by sorting."""
    descending = jnp.sort(u)[::-1]
    excess = (jnp.cumsum(descending) - 1.0) / jnp.arange(1, u.shape[0] + 1)
    return jnp.maximum(u - excess[jnp.sum(descending > excess) - 1], 0.0)


def _root(decreasing: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The zero of a decreasing function between `low` and `high`, by bisection."""

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        above = decreasing(middle) > 0
        return jnp.where(above, middle, ends[0]), jnp.where(above, ends[1], middle)

    low, high = jax.lax.fori_loop(0, HALVINGS, halve, (low, high))
    return 0.5 * (low + high)


def weights_projection(u: Array, q_hat: Array, theta: Array, p: Norm) -> Array:
    """The point of Q that is nearest to u.

    Each norm has one multiplier that is found by bisection: for p = ∞ that of Σq = 1, for p = 2 that of the ball, and
    for p = 1 one for the gains and one for the losses.
    """
    if p == "inf":
        low, high = jnp.maximum(q_hat - theta, 0.0), q_hat + theta
        shift = _root(lambda tau: jnp.sum(jnp.clip(u - tau, low, high)) - 1.0, jnp.min(u - high), jnp.max(u - low))
        return jnp.clip(u - shift, low, high)
    near = simplex_projection(u)
    if p == 2:
        # (y + μq̂)/(1 + μ), projected, with the μ that puts it on the ball; share = μ/(1 + μ)
        def far(share: Array) -> Array:
            return jnp.sum((simplex_projection(u + share * (q_hat - u)) - q_hat) ** 2) - theta**2

        share = _root(far, jnp.zeros(()), jnp.ones(()))
        return jnp.where(jnp.sum((near - q_hat) ** 2) <= theta**2, near, simplex_projection(u + share * (q_hat - u)))
    # on the ℓ1 ball the gains of q over q̂ sum to θ/2 and so do its losses, so that the two parts are projected apart
    more, size = u - q_hat, 1.0 + jnp.max(jnp.abs(u - q_hat)) + theta
    gain = _root(lambda tau: jnp.sum(jnp.maximum(more - tau, 0.0)) - 0.5 * theta, -size, size)
    loss = _root(lambda tau: jnp.sum(jnp.minimum(q_hat, jnp.maximum(-more - tau, 0.0))) - 0.5 * theta, -size, size)
    nearest = q_hat + jnp.maximum(more - gain, 0.0) - jnp.minimum(q_hat, jnp.maximum(-more - loss, 0.0))
    return jnp.where(jnp.sum(jnp.abs(near - q_hat)) <= theta, near, nearest)


def nearest_weights(u: np.ndarray, q_hat: np.ndarray, theta: float, p: Norm) -> np.ndarray:
    """The point of Q that is nearest to u, by sorting where `weights_projection` bisects; for p = 2 they are one."""
    if p == 2:
        return np.asarray(_projection_in_ball(device_array(u), device_array(q_hat), device_array(theta)))
    if p == "inf":
        low, high = np.maximum(q_hat - theta, 0.0), q_hat + theta
        return np.clip(u - _level(u, low, high, 1.0), low, high)
    near = np.maximum(u - _level(u, np.zeros_like(u), np.full_like(u, np.inf), 1.0), 0.0)
    if np.sum(np.abs(near - q_hat)) <= theta:
        return near
    more, nothing = u - q_hat, np.zeros_like(u)
    gain = _level(more, nothing, np.full_like(u, np.inf), 0.5 * theta)
    loss = _level(-more, nothing, q_hat, 0.5 * theta)
    return q_hat + np.maximum(more - gain, 0.0) - np.clip(-more - loss, 0.0, q_hat)


def _level(u: np.ndarray, low: np.ndarray, high: np.ndarray, total: float) -> float:
    """The t with Σ clip(u − t, low, high) = total; this sum is linear in t between bends at u − high and u − low."""
    lowest = float(np.sum(low))
    high = np.minimum(high, low + 2.0 * max(total - lowest, 0.0))  # no entry gets half of this
    ends = np.concatenate([u - high, u - low])
    bends = np.concatenate([-np.ones_like(u), np.ones_like(u)])
    order = np.argsort(ends, kind="stable")
    t, slope = ends[order], np.cumsum(bends[order])
    # from the right, where the sum is Σ low, upwards
    steps = -slope[:-1] * np.diff(t)
    above = lowest + np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]])
    total = min(total, float(above[0]))  # which it is but for rounding
    k = int(np.sum(above >= total)) - 1  # the last bend at which the sum is not below the total
    return float(t[k]) if k == len(t) - 1 else float(t[k] + (above[k] - total) / max(-slope[k], 1.0))


_projection_in_ball = jax.jit(partial(weights_projection, p=2))  # compiled: it is called some thousand times


@jit_if_large()
def _heaviest_in_ball(values: Array, q_hat: Array, theta: Array) -> Array:
    """The projection of q̂ + t·values onto the simplex, with the t that puts it on the ball, or the largest there is."""
    below = values - jnp.max(values)
    unit = jnp.max(jnp.abs(below))

    def at(log_t: Array) -> Array:
        return simplex_projection(q_hat + jnp.exp(log_t) / unit * below)

    log_t = _root(
        lambda log_t: theta**2 - jnp.sum((at(log_t) - q_hat) ** 2), jnp.asarray(-LOG_RANGE), jnp.asarray(LOG_RANGE)
    )
    return at(log_t)


def heaviest(values: np.ndarray, q_hat: np.ndarray, theta: float, p: Norm) -> np.ndarray:
    """The q in Q with the largest Σ q_s·values_s: the adversary's weights for these losses."""
    values, q_hat = np.asarray(values, dtype=float), np.asarray(q_hat, dtype=float)
    order = np.argsort(-values, kind="stable")
    if p == 2:
        if np.ptp(values) == 0 or theta == 0:
            return q_hat.copy()
        return np.asarray(_heaviest_in_ball(device_array(values), device_array(q_hat), device_array(theta)))
    # p = ∞: from the lowest weights, give what is missing to 1 to the largest values first, each up to q̂ + θ.
    # p = 1: take up to θ/2 from the smallest values, and give all of it to the largest.
    q = np.maximum(q_hat - theta, 0.0) if p == "inf" else q_hat.copy()
    room = 1.0 - q.sum() if p == "inf" else min(0.5 * theta, 1.0 - q_hat[order[0]])
    if p != "inf":
        remaining = room
        for s in order[::-1]:
            loss = min(q[s], remaining) if s != order[0] else 0.0
            q[s], remaining = q[s] - loss, remaining - loss
    for s in order:
        gain = min(room, q_hat[s] + theta - q[s]) if p == "inf" else room
        q[s], room = q[s] + gain, room - gain
    return q
