"""The outer loop that interior-point methods share: it keeps the best point and stops where rounding takes over."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree, T, select

GAP = 1e-11  # the duality gap to reach, relative to the size of the problem
RESIDUAL = 1e-9  # the residual of the optimality conditions, likewise
PATIENCE = 6  # steps without a better point after which further ones only move rounding errors around
STEPS = 60  # a guard, well above the 20 to 30 steps that 100,000 samples take
BACK = 0.995  # the share of the way to the boundary
ROUGH = 1e4  # PATIENCE does not count while the best merit is above this: early iterates may get worse for a while


def reach(inverse_step: Array) -> Array:
    """The step to take, from the inverse of the longest step that stays feasible; never longer than 1."""
    return jnp.minimum(1.0, BACK / jnp.maximum(inverse_step, BACK))


def along(point: T, direction: T, step: Array) -> T:
    """The iterate after a step of this length."""
    return jax.tree.map(lambda a, d: a + step * d, point, direction)


def follow(first: T, size: Array, advance: Callable[[T], tuple[T, Array, Array]]) -> tuple[T, Array, Array, Array]:
    """The best of the points from `first` on, its gap and residual, and the number of steps.

    `advance` returns the next point, and the gap and the residual of the point that it received. `size` is the scale of
    the problem, relative to which GAP and RESIDUAL are meant.
    """

    def going(loop: tuple[PyTree, ...]) -> Array:
        _, _, best_merit, _, k, since = loop
        return (best_merit > 1.0) & (k < STEPS) & (since < PATIENCE)

    def body(loop: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        at, best_point, best_merit, measures, k, since = loop
        following, gap, residual = advance(at)
        merit = jnp.maximum(gap / GAP, residual / RESIDUAL) / size  # at most 1 where both tolerances hold
        better = merit < best_merit  # false for NaN
        measures = jnp.where(better, jnp.stack([gap, residual]), measures)
        since = jnp.where(better | (best_merit > ROUGH), 0, since + 1)
        best_point, best_merit = select(better, at, best_point), jnp.where(better, merit, best_merit)
        return following, best_point, best_merit, measures, k + 1, since

    zero = jnp.zeros((), int)
    start = (first, first, jnp.asarray(jnp.finfo(float).max), jnp.full(2, jnp.inf), zero, zero)
    _, best_point, _, (gap, residual), k, _ = jax.lax.while_loop(going, body, start)
    return best_point, gap, residual, k
