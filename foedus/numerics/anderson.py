"""Anderson acceleration of a fixed-point iteration ξ ← ξ + g(ξ), with a way back where it does not help.

Type II with a short memory, as splitting solvers for cone programs use it: the next point combines the last few so that
their residuals g cancel best. An accelerated step after which the residual is larger than GROWTH times the smallest
seen is taken back, and the memory cleared; a plain step of a non-expansive map cannot make it grow. Measured against
the smallest, and not the last, growth cannot add up over many steps.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.pytrees import select, state

LENGTH = 10
GROWTH = 1.5  # of ‖g‖, that a step may bring before it is taken back
RIDGE = 1e-12
FAR = 100.0  # how many times larger than the last a point may be: farther off, clients' solvers lose their digits


@state
class Memory:
    """The last point and residual, differences of those before, and the plain step to fall back on."""

    xi: Array
    g: Array
    steps: Array  # (LENGTH, size)
    changes: Array  # (LENGTH, size)
    count: Array
    plain: Array
    size: Array  # the smallest ‖g‖ of the points that were kept


def blank(size: int, length: int = LENGTH) -> Memory:
    zero, table = jnp.zeros(size), jnp.zeros((length, size))
    return Memory(zero, zero, table, table, jnp.zeros((), int), zero, jnp.asarray(jnp.inf))


def forget(memory: Memory, growth: Array | float | None = None) -> Memory:
    """The memory of a start; `growth`: by how much the residual may have grown with what made the past worthless."""
    fresh = blank(memory.xi.shape[0], memory.steps.shape[0])
    return fresh if growth is None else dataclasses.replace(fresh, size=growth * memory.size)


def advance(memory: Memory, xi: Array, g: Array) -> tuple[Array, Memory, Array]:
    """The next point, given the residual g at xi, the memory then, and whether xi is taken back."""
    size = jnp.sqrt(jnp.sum(g**2))
    worse = ~(size <= GROWTH * memory.size) & (memory.count > 1)
    length = memory.steps.shape[0]
    known = memory.count > 0
    slot = (memory.count - 1) % length
    steps = memory.steps.at[slot].set(jnp.where(known, xi - memory.xi, 0.0))
    changes = memory.changes.at[slot].set(jnp.where(known, g - memory.g, 0.0))
    gram = changes @ changes.T
    ridge = RIDGE * jnp.trace(gram) + jnp.where(jnp.diag(gram) > 0, 0.0, 1.0)
    gamma = cholesky_solve(cholesky(gram + jnp.diag(jnp.broadcast_to(ridge, (length,)))), changes @ g)
    mixed = xi + g - gamma @ (steps + changes)
    near = jnp.max(jnp.abs(mixed)) <= FAR * (1.0 + jnp.max(jnp.abs(xi)))  # not so for NaN either
    good = known & near
    following = jnp.where(good, mixed, xi + g)
    kept = Memory(xi, g, steps, changes, memory.count + 1, xi + g, jnp.minimum(size, memory.size))
    # taken back: the plain step from the last point that was kept
    back = forget(memory, growth=1.0)
    return jnp.where(worse, memory.plain, following), select(worse, back, kept), worse
