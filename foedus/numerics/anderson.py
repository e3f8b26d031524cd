"""Anderson acceleration of a fixed-point iteration ξ ← ξ + g(ξ), which falls back on plain steps where it fails.

It is type II with a short memory, as splitting solvers for cone programs use it: the next point is the combination of
the last few plain steps whose residuals g cancel best. If the residual at an accelerated point is larger than GROWTH
times the smallest one so far, that point is dropped, the memory is cleared, and the iteration goes on with the plain
step from the last good point. A plain step of a non-expansive map cannot increase the residual. The comparison is with
the smallest residual, not with the last one, because small increases over many steps would add up otherwise.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import select, state
from foedus.numerics.lapack import cholesky, cholesky_solve

LENGTH = 10  # differences in the memory
GROWTH = 1.5  # the factor over the smallest ‖g‖ beyond which an accelerated point is dropped
RIDGE = (
    1e-12  # relative to the trace of the Gram matrix: it stays definite when the last residuals are nearly dependent
)
FAR = 100.0  # how many times larger than the last a point may be: farther off, clients' solvers lose their digits


@state
class AndersonMemory:
    """The last point and its residual, the differences between earlier ones, and the plain step to fall back on."""

    xi: Array
    g: Array
    steps: Array  # differences of consecutive points ξ. (LENGTH, size)
    changes: Array  # differences of their residuals g. (LENGTH, size)
    count: Array  # points since the memory was last empty
    plain: Array  # xi + g
    size: Array  # the smallest ‖g‖ of the points that were not dropped


def blank(size: int, length: int = LENGTH) -> AndersonMemory:
    """The memory before the first point, for points of `size` numbers."""
    zero, table = jnp.zeros(size), jnp.zeros((length, size))
    return AndersonMemory(zero, zero, table, table, jnp.zeros((), int), zero, jnp.asarray(jnp.inf))


def forget(memory: AndersonMemory, growth: Array | float | None = None) -> AndersonMemory:
    """An empty memory. `growth` is the factor by which the smallest residual so far may have been rescaled.

    The next residuals are compared with growth times the smallest one. Without `growth` that one is forgotten too.
    """
    fresh = blank(memory.xi.shape[0], memory.steps.shape[0])
    return fresh if growth is None else dataclasses.replace(fresh, size=growth * memory.size)


def advance(memory: AndersonMemory, xi: Array, g: Array) -> tuple[Array, AndersonMemory, Array]:
    """The next point from the residual g at xi, the next memory, and whether xi was dropped."""
    size = jnp.sqrt(jnp.sum(g**2))
    # written with ~(≤), so that a NaN counts as worse; the first point after an empty memory came from a plain step
    worse = ~(size <= GROWTH * memory.size) & (memory.count > 1)

    # the newest differences overwrite the oldest; before the second point there is no difference to store
    length = memory.steps.shape[0]
    has_previous = memory.count > 0
    slot = (memory.count - 1) % length
    steps = memory.steps.at[slot].set(jnp.where(has_previous, xi - memory.xi, 0.0))
    changes = memory.changes.at[slot].set(jnp.where(has_previous, g - memory.g, 0.0))

    # γ minimises ‖g − γᵀ·changes‖ by its normal equations; an empty slot has a zero row, and a 1 on the diagonal there
    # makes its γ zero instead of the factorisation fail
    gram = changes @ changes.T
    ridge = RIDGE * jnp.trace(gram) + jnp.where(jnp.diag(gram) > 0, 0.0, 1.0)
    gamma = cholesky_solve(cholesky(gram + jnp.diag(jnp.broadcast_to(ridge, (length,)))), changes @ g)
    mixture = xi + g - gamma @ (steps + changes)

    # nearly dependent residuals can throw the mixture far away
    near = jnp.max(jnp.abs(mixture)) <= FAR * (1.0 + jnp.max(jnp.abs(xi)))  # false for NaN too
    following = jnp.where(has_previous & near, mixture, xi + g)
    next_memory = AndersonMemory(xi, g, steps, changes, memory.count + 1, xi + g, jnp.minimum(size, memory.size))
    # a dropped point: go on with the plain step from the last good point, and keep its residual as the measure
    fresh = forget(memory, growth=1.0)
    return jnp.where(worse, memory.plain, following), select(worse, fresh, next_memory), worse
