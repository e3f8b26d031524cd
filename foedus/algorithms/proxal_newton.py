"""ProxAL's subproblems by Newton's method at the server: clients send derivatives of P_i instead of solving for it.

With `hessians`, a reply is P_i, ∇P_i and the upper triangle of ∇²P_i at the trial point, and the server takes proximal
Newton steps with a line search: a few rounds a subproblem. Without, a reply is P_i and ∇P_i, and the server's metric is
L-BFGS started from the diagonal of the Hessian, which clients send once a subproblem.

A silent client is represented by the quadratic model it sent last; a subproblem ends only at a point about which every
client has spoken.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.admm import LocalP, Status
from foedus.algorithms.lagrangian import Piece, extended
from foedus.numerics.limited_memory import Memory
from foedus.numerics.newton import SUFFICIENT, direction
from foedus.pytrees import select, state
from foedus.regularizers import Zero
from foedus.terms import Terms


@state
class Slope:
    """P_i at a point: value, gradient, the packed Hessian or its diagonal (or neither), and the status."""

    value: Array
    gradient: Array
    hessian: Any
    status: Status


@state
class Search:
    """The server's line search: from `base` along `q`, at `trial` = base + size·q."""

    slopes: Slope  # (clients, …), last heard
    point: Array  # where each was measured. (clients, dim)
    fresh: Array  # who has spoken about `trial`
    trial: Array
    base: Array
    total: Array  # ℓ at base
    gradient: Array  # of the smooth part at base
    q: Array
    slope: Array
    size: Array
    residual: Array
    hold: Array
    diagonal: Any  # of Σ ∇²P_i at the start of the subproblem, and the pairs since; () with Hessians
    memory: Any


def pack(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix as a vector."""
    return matrix[np.triu_indices(matrix.shape[0])]


def unpack(packed: Array, dim: int) -> Array:
    """The inverse of `pack`."""
    upper = jnp.zeros((dim, dim)).at[np.triu_indices(dim)].set(packed)
    return upper + jnp.triu(upper, 1).T


@dataclass(frozen=True)
class NewtonInner:
    """Newton (with `hessians`) or L-BFGS (without) on Σ P_i + h."""

    hessians: bool

    def join(self, terms: Terms, point: Array) -> tuple[()]:
        return ()

    def blank(self, terms: Terms, point: Array) -> Search:
        n, dim = terms.clients, point.shape[0]
        column, zero = jnp.zeros(n), jnp.zeros(())
        second = jnp.zeros((n, dim * (dim + 1) // 2 if self.hessians else dim))
        return Search(
            slopes=Slope(column, jnp.zeros((n, dim)), second, Status(column, column)),
            point=jnp.broadcast_to(point, (n, dim)),
            fresh=jnp.zeros(n, bool),
            trial=point,
            base=point,
            total=zero,
            gradient=jnp.zeros(dim),
            q=jnp.zeros(dim),
            slope=zero,
            size=jnp.ones(()),
            residual=jnp.full((), jnp.inf),
            hold=jnp.zeros((), bool),
            diagonal=() if self.hessians else jnp.ones(dim),
            memory=() if self.hessians else Memory.empty(dim),
        )

    def status(self, inner: Search) -> Status:
        return inner.slopes.status

    def report(self, inner: Search) -> dict[str, Array]:
        return {"residual": inner.residual}

    def missed(self, inner: Search) -> Array:
        """Clients only evaluate, so no solver can miss its tolerance."""
        return jnp.zeros(())

    def client_start(
        self, terms: Terms, P: LocalP, client: tuple[()], w: Array, hint: tuple[()], status: Callable[[Piece], Status]
    ) -> tuple[tuple[()], Slope]:
        at = P(w, 2)
        second = pack(at.hessian) if self.hessians else jnp.diag(at.hessian)
        return client, Slope(at.value, at.gradient, second, status(at))

    def hear(self, inner: Search, replies: Slope, present: Present) -> Search:
        slopes, fresh = inner.slopes, inner.fresh
        if isinstance(replies.hessian, tuple):  # gradients only: the diagonal stays as it was at the start
            replies = Slope(replies.value, replies.gradient, slopes.hessian[present.index], replies.status)
        trial = jnp.broadcast_to(inner.trial, replies.gradient.shape)
        slopes, point, fresh = present.remember(
            (slopes, inner.point, fresh), (replies, trial, jnp.ones_like(present.here))
        )
        return replace(inner, slopes=slopes, point=point, fresh=fresh)

    def hint(self, inner: Search) -> tuple[()]:
        return ()

    def broadcast(self, inner: Search) -> Array:
        return inner.trial

    def client_step(
        self, terms: Terms, P: LocalP, client: tuple[()], w: Array, status: Callable[[Piece], Status]
    ) -> tuple[tuple[()], Slope]:
        at = P(w, 2 if self.hessians else 1)
        return client, Slope(at.value, at.gradient, pack(at.hessian) if self.hessians else (), status(at))

    def totals(self, server_P: LocalP, inner: Search) -> tuple[Array, Array, Any]:
        """Σ P_i, its gradient and Hessian at the trial point; silent clients by their last model."""
        dim, slopes = inner.trial.shape[0], inner.slopes
        away = jnp.where(inner.fresh[:, None], 0.0, inner.trial - inner.point)
        own = server_P(inner.trial, 2 if self.hessians else 1)
        value = own.value + jnp.sum(slopes.value)
        gradient = own.gradient + jnp.sum(slopes.gradient, axis=0)
        value = value + jnp.sum(slopes.gradient * away)
        if not self.hessians:
            return value, gradient, ()

        def bent() -> Array:
            return jax.vmap(lambda packed, d: unpack(packed, dim) @ d)(slopes.hessian, away)

        bend = jax.lax.cond(jnp.all(inner.fresh), lambda: jnp.zeros_like(away), bent)
        value = value + 0.5 * jnp.sum(away * bend)
        return value, gradient + jnp.sum(bend, axis=0), own.hessian + unpack(jnp.sum(slopes.hessian, axis=0), dim)

    def server_start(
        self, terms: Terms, server_P: LocalP, inner: Search, w: Array, prox: Array | float, tau: Array
    ) -> tuple[Search, Array, Array]:
        inner = replace(inner, trial=w, hold=jnp.ones((), bool))
        if not self.hessians:
            own = jnp.diag(server_P(w, 2).hessian)
            diagonal = jnp.abs(jnp.sum(inner.slopes.hessian, axis=0) + own)  # a positive start, convex or not
            diagonal = jnp.maximum(diagonal, 1e-6 * jnp.max(diagonal))
            inner = replace(inner, diagonal=diagonal, memory=Memory.empty(w.shape[0]))
        return self.move(terms, server_P, inner, tau)

    def server_step(
        self, terms: Terms, server_P: LocalP, inner: Search, replies: Slope, present: Present, centre: Array,
        prox: Array | float, tau: Array,
    ) -> tuple[Search, Array, Array]:  # fmt: skip
        return self.move(terms, server_P, self.hear(inner, replies, present), tau)

    def move(self, terms: Terms, server_P: LocalP, inner: Search, tau: Array) -> tuple[Search, Array, Array]:
        """Judge the trial point and choose the next; returns the search, that point, and whether it is the answer."""
        h = extended(terms)
        value, gradient, hessian = self.totals(server_P, inner)
        total, residual = value + h.value(inner.trial), h.distance(inner.trial, gradient)
        enough = total <= inner.total + SUFFICIENT * inner.size * inner.slope + 1e-13 * jnp.abs(inner.total)
        flat = (jnp.abs(inner.slope) <= 1e-9 * (1.0 + jnp.abs(inner.total))) & (residual <= inner.residual)
        accept = (
            (inner.hold | enough | flat | (inner.size < 1e-8)) & jnp.isfinite(total) & jnp.all(jnp.isfinite(gradient))
        )
        near = accept & (residual <= tau)
        done = near & jnp.all(inner.fresh)

        memory = inner.memory
        if isinstance(memory, Memory):
            step, change = inner.trial - inner.base, gradient - inner.gradient
            memory = select(inner.hold, memory, memory.add(step, change))
            if isinstance(h, Zero):
                q = memory.direction(gradient, inner.diagonal)
                slope = jnp.dot(gradient, q)
            else:
                q, slope, _ = direction(inner.trial, gradient, memory.matrix(inner.diagonal), h, tau)
        else:
            q, slope, _ = direction(inner.trial, gradient, hessian, h, tau)
        moved = replace(
            inner,
            base=inner.trial,
            total=total,
            gradient=gradient,
            q=q,
            slope=slope,
            size=jnp.ones(()),
            residual=residual,
            memory=memory,
            hold=jnp.zeros((), bool),
            trial=inner.trial + q,
            fresh=jnp.zeros_like(inner.fresh),
        )
        held = replace(
            inner, base=inner.trial, total=total, gradient=gradient, residual=residual, hold=jnp.ones((), bool)
        )
        # the parabola through the value and slope at base and the value at trial, kept within [0.1, 0.5] of the step
        rise = total - inner.total - inner.slope * inner.size
        guess = -0.5 * inner.slope * inner.size / jnp.where(rise > 0, rise, 1.0)
        shrink = jnp.where(jnp.isfinite(guess) & (rise > 0), jnp.clip(guess, 0.1, 0.5), 0.1)
        size = inner.size * shrink
        back = replace(inner, size=size, trial=inner.base + size * inner.q, fresh=jnp.zeros_like(inner.fresh))
        new = select(near, held, select(accept, moved, back))
        return new, new.trial, done
