"""Means of the clients' replies that a few wrong ones cannot move far.

The plain mean goes wherever one client wants it. The trimmed mean leaves out, number by number, the largest and the
smallest fifth (Yin et al. 2018); the geometric median is the point with the least sum of distances (Pillutla et al.
2022). Both move by a bounded amount whatever fewer than a fifth, or fewer than half, of the clients send. Where
clients' data differ, both also differ from the plain mean: the answer is then not that over all data.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.protocol.algorithm import Present

T = TypeVar("T")

MEANS = ("mean", "trimmed", "median")
TRIM = 0.2  # the share of the clients that a trimmed mean leaves out at each end
STEPS = 200  # of Weiszfeld's iteration at the most; it ends by itself where nothing moves any more


def mean_of(how: str, replies: T, present: Present) -> T:
    """Return the mean of the replies over the clients that answered.

    Args:
        how: 'mean'; 'trimmed', without the largest and smallest fifth of each number; 'median', the geometric median
            of each array.
        replies: arrays with a leading client axis.
        present: who answered.

    Returns:
        The mean, without the client axis.
    """
    if how == "mean":
        return present.mean(replies)
    if how == "trimmed":
        return jax.tree.map(lambda rows: trimmed_mean(rows, present.here), replies)
    return jax.tree.map(
        lambda rows: geometric_median(rows.reshape(rows.shape[0], -1), present.here).reshape(rows.shape[1:]), replies
    )


def largest_of(numbers: Array, present: Present) -> Array:
    """Return the largest number among the clients that answered, without the largest fifth."""
    ascending = jnp.sort(jnp.where(present.here, numbers, jnp.inf))
    cut = jnp.floor(TRIM * present.count + 1e-9).astype(int)
    return ascending[jnp.maximum(present.count - cut, 1) - 1]


def trimmed_mean(rows: Array, here: Array) -> Array:
    """Return the mean of each number without the largest and smallest ⌊TRIM·m⌋ of the m clients that are here."""
    count = jnp.sum(here)
    cut = jnp.floor(TRIM * count + 1e-9).astype(int)
    absent = ~here.reshape((-1,) + (1,) * (rows.ndim - 1))
    ascending = jnp.sort(jnp.where(absent, jnp.inf, rows), axis=0)  # who is absent comes last
    rank = jnp.arange(rows.shape[0]).reshape(absent.shape)
    counts = (rank >= cut) & (rank < count - cut)
    return jnp.sum(jnp.where(counts, ascending, 0.0), axis=0) / jnp.maximum(count - 2 * cut, 1)


def geometric_median(rows: Array, here: Array) -> Array:
    """Return the point with the least sum of distances to the rows that are here, by Weiszfeld's iteration.

    It starts from the medians of the single numbers, so that no row, however far, decides where it starts. Distances
    are floored at a billionth of the usual one: at a row itself the weight would be infinite.
    """
    start = _medians(rows, here)
    usual = _medians(jnp.linalg.norm(rows - start, axis=1), here)
    floor = 1e-9 * usual + 1e-300

    def step(at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, _, number = at
        weight = jnp.where(here, 1.0 / jnp.maximum(jnp.linalg.norm(rows - x, axis=1), floor), 0.0)
        share = weight / jnp.maximum(jnp.sum(weight), 1e-300)
        after = share @ jnp.where(here[:, None], rows, 0.0)
        return after, jnp.linalg.norm(after - x), number + 1

    def moves(at: tuple[Array, Array, Array]) -> Array:
        return (at[1] > 1e-12 * (usual + 1e-300)) & (at[2] < STEPS)

    return jax.lax.while_loop(moves, step, (start, jnp.full((), jnp.inf), jnp.zeros((), int)))[0]


def _medians(rows: Array, here: Array) -> Array:
    """The median of each number over the clients that are here."""
    absent = ~here.reshape((-1,) + (1,) * (rows.ndim - 1))
    ascending = jnp.sort(jnp.where(absent, jnp.inf, rows), axis=0)
    count = jnp.maximum(jnp.sum(here), 1)
    return 0.5 * (ascending[(count - 1) // 2] + ascending[count // 2])
