"""The outer loop that the interior-point methods share: it keeps the best point, and ends where rounding does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.pytrees import select

GAP = 1e-11  # the duality gap to reach, relative to the size of the problem
RESIDUAL = 1e-9  # the residual of the optimality conditions, likewise
PATIENCE = 6  # steps without a better point, after which rounding has the last word
STEPS = 60
BACK = 0.995  # the share of the way to the boundary


def reach(blocked: Array) -> Array:
    """The step to take, given the inverse of the longest one."""
    return jnp.minimum(1.0, BACK / jnp.maximum(blocked, BACK))


def follow(
    first: Any, size: Array, advance: Callable[[Any], tuple[Any, Array, Array]]
) -> tuple[Any, Array, Array, Array]:
    """The best of the points from `first` on, its gap and residual, and how many steps were taken.

    `advance` gives the next point with the gap and the residual of the point it was given; `size` is the problem's.
    """

    def going(loop):
        _, _, best, _, k, since = loop
        return (best > 1.0) & (k < STEPS) & (since < PATIENCE)

    def body(loop):
        at, kept, best, measured, k, since = loop
        following, gap, residual = advance(at)
        merit = jnp.maximum(gap / GAP, residual / RESIDUAL) / size
        better = merit < best  # false for NaN
        measured = jnp.where(better, jnp.stack([gap, residual]), measured)
        since = jnp.where(better | (best > 1e4), 0, since + 1)
        return following, select(better, at, kept), jnp.where(better, merit, best), measured, k + 1, since

    zero = jnp.zeros((), int)
    start = (first, first, jnp.asarray(jnp.finfo(float).max), jnp.full(2, jnp.inf), zero, zero)
    _, kept, _, (gap, residual), k, _ = jax.lax.while_loop(going, body, start)
    return kept, gap, residual, k
