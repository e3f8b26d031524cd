"""ProxAL's subproblems by Newton's method at the server: clients send derivatives and solve nothing.

With `hessians`, a reply is P_i, ∇P_i and the upper triangle of ∇²P_i at the trial point, and the server takes proximal
Newton steps with a line search: a few rounds a subproblem. Without, a reply is P_i and ∇P_i, and the server uses
L-BFGS, started from the diagonal of the Hessian, which clients send once a subproblem.

A silent client is replaced by the quadratic model of its last reply. Without Hessians there is no such model: a linear
one has no lower bound, so the search waits at its trial point until every client has evaluated it. A subproblem ends
only at a point that every client has evaluated.

A round evaluates one trial point, so the line search runs over rounds. After each, one of three things happens:
    wait     the point is good enough, but some client has not evaluated it yet: it stays the trial point (`hold`)
    accept   the decrease suffices: the trial point becomes the base, and the next trial is a full Newton step away
    shorten  it does not: the next trial is nearer to the base, on the same direction q
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.admm import LocalP, Status
from foedus.algorithms.lagrangian import DIAGONAL, Piece, full_regularizer
from foedus.base.pytrees import PyTree, select, state
from foedus.numerics.limited_memory import LimitedMemory
from foedus.numerics.newton import INNER_SHARE, SUFFICIENT, direction, proximal_direction
from foedus.numerics.second_derivatives import pack, unpack
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Present

LEAST_DIAGONAL = 1e-6  # of the largest entry: a smaller one would make a coordinate's first step of L-BFGS too long
VALUE_ROUNDING = 1e-13  # relative rounding of Σ P_i + h, a sum over all clients
FLAT = 1e-9  # a predicted decrease below this, relative to the value, drowns in its rounding
RELATIVE = 1e-6  # of the residual, to which a direction is solved where there is no tolerance
SHORTEST = 1e-8  # of a full step: a shorter one is accepted whatever its value, for the search is lost in rounding
IDLE, GRADIENT_IDLE = 30, 300  # rounds without a smaller residual that end a subproblem, with Hessians or not
SMALLER = 0.9  # a residual below this share of the smallest one is smaller
SHORTEN = (0.1, 0.5)  # the factors between which a step is shortened


@state
class Slope:
    """A client's reply: P_i at a point, its gradient, the Hessian or its diagonal (or neither), and the status."""

    value: Array
    gradient: Array
    hessian: PyTree  # the upper triangle as a vector, the diagonal, or ()
    status: Status


@state
class Search:
    """The server's line search: from `base` along `q`, at `trial` = base + size·q."""

    slopes: Slope  # the last reply of each client. (clients, …)
    point: Array  # the point it was about. (clients, dim)
    fresh: Array  # whose reply is about `trial`
    trial: Array
    base: Array
    total: Array  # ℓ at base
    gradient: Array  # of the smooth part at base
    q: Array
    slope: Array  # the predicted change of ℓ along q, a number ≤ 0
    size: Array
    residual: Array  # dist_∞(0, ∂ℓ) at base
    least: Array  # the smallest residual in this subproblem
    idle: Array  # rounds since it became smaller
    hold: Array  # whether the trial point is judged anew without a line search, because it was accepted or is the first
    diagonal: PyTree  # of Σ ∇²P_i at the start of the subproblem; () with Hessians
    memory: PyTree  # the pairs of L-BFGS since; () with Hessians


@dataclass(frozen=True)
class NewtonInner:
    """Newton (with `hessians`) or L-BFGS (without) for the subproblem Σ P_i + h.

    `server_start` and `server_step` return the server's state, the next point, and whether the subproblem is solved.
    """

    hessians: bool

    def join(self, terms: Terms, point: Array) -> tuple[()]:
        """A client's state before its first round."""
        return ()

    def blank(self, terms: Terms, point: Array) -> Search:
        """The server's state before its first round."""
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
            least=jnp.full((), jnp.inf),
            idle=jnp.zeros((), int),
            hold=jnp.zeros((), bool),
            diagonal=() if self.hessians else jnp.ones(dim),
            memory=() if self.hessians else LimitedMemory.empty(dim),
        )

    def status(self, inner: Search) -> Status:
        """The clients' last figures for the history."""
        return inner.slopes.status

    def report(self, inner: Search) -> dict[str, Array]:
        """The inner method's own numbers for the history."""
        return {"residual": inner.residual}

    def stalled(self, inner: Search) -> Array:
        """Whether the last subproblem ended because its residual did not become smaller."""
        return inner.idle > (IDLE if self.hessians else GRADIENT_IDLE)

    def residual(self, inner: Search) -> Array:
        """dist_∞(0, ∂ℓ) at the solution of the last subproblem."""
        return inner.residual

    def solver_ratio(self, inner: Search) -> Array:
        """Zero: clients only evaluate, so no local solver can miss its tolerance."""
        return jnp.zeros(())

    def client_start(
        self, terms: Terms, P: LocalP, client: tuple[()], w: Array, hint: tuple[()], status: Callable[[Piece], Status]
    ) -> tuple[tuple[()], Slope]:
        """A client's state at the start of a subproblem, and its first reply."""
        at = P(w, 2 if self.hessians else DIAGONAL)
        second = pack(at.hessian) if self.hessians else at.hessian
        return client, Slope(at.value, at.gradient, second, status(at))

    def hear(self, inner: Search, replies: Slope, present: Present) -> Search:
        """The server's state with the replies of those present."""
        slopes, fresh = inner.slopes, inner.fresh
        if isinstance(replies.hessian, tuple):
            # gradients only: the diagonal stays as it was at the start of the subproblem
            replies = Slope(replies.value, replies.gradient, slopes.hessian[present.index], replies.status)
        trial = jnp.broadcast_to(inner.trial, replies.gradient.shape)
        slopes, point, fresh = present.remember(
            (slopes, inner.point, fresh), (replies, trial, jnp.ones_like(present.here))
        )
        return replace(inner, slopes=slopes, point=point, fresh=fresh)

    def hint(self, inner: Search) -> tuple[()]:
        """The server's suggestion to the clients for the next subproblem."""
        return ()

    def broadcast(self, inner: Search) -> Array:
        """The message of an inner round."""
        return inner.trial

    def client_step(
        self, terms: Terms, P: LocalP, client: tuple[()], w: Array, status: Callable[[Piece], Status]
    ) -> tuple[tuple[()], Slope]:
        """A client's next state and its reply in an inner round."""
        at = P(w, 2 if self.hessians else 1)
        return client, Slope(at.value, at.gradient, pack(at.hessian) if self.hessians else (), status(at))

    def totals(self, server_P: LocalP, inner: Search) -> tuple[Array, Array, PyTree]:
        """The value, gradient and Hessian of Σ P_i at the trial point, with silent clients' last models."""
        dim, slopes = inner.trial.shape[0], inner.slopes
        own = server_P(inner.trial, 2 if self.hessians else 1)
        value = own.value + jnp.sum(slopes.value)
        gradient = own.gradient + jnp.sum(slopes.gradient, axis=0)
        if not self.hessians:  # every client has evaluated the trial point, or the sums are not used
            return value, gradient, ()
        away = jnp.where(inner.fresh[:, None], 0.0, inner.trial - inner.point)
        value = value + jnp.sum(slopes.gradient * away)

        def curvature_terms() -> Array:
            return jax.vmap(lambda triangle, d: unpack(triangle, dim) @ d)(slopes.hessian, away)

        # nobody is silent in most rounds, and then no client's Hessian has to be unpacked
        bend = jax.lax.cond(jnp.all(inner.fresh), lambda: jnp.zeros_like(away), curvature_terms)
        value = value + 0.5 * jnp.sum(away * bend)
        return value, gradient + jnp.sum(bend, axis=0), own.hessian + unpack(jnp.sum(slopes.hessian, axis=0), dim)

    def server_start(
        self, terms: Terms, server_P: LocalP, inner: Search, w: Array, prox: Array | float, tau: Array
    ) -> tuple[Search, Array, Array]:
        """The server's state once every client has sent its first reply."""
        # the clients' first replies are about w itself, so `hold` takes it as the base of the first step
        inner = replace(inner, trial=w, hold=jnp.ones((), bool), least=jnp.full((), jnp.inf), idle=jnp.zeros((), int))
        if not self.hessians:
            own = server_P(w, DIAGONAL).hessian
            diagonal = jnp.abs(jnp.sum(inner.slopes.hessian, axis=0) + own)  # a positive start, convex or not
            diagonal = jnp.maximum(diagonal, LEAST_DIAGONAL * jnp.max(diagonal))
            inner = replace(inner, diagonal=diagonal, memory=LimitedMemory.empty(w.shape[0]))
        return self.move(terms, server_P, inner, tau)

    def server_step(
        self, terms: Terms, server_P: LocalP, inner: Search, replies: Slope, present: Present, centre: Array,
        prox: Array | float, tau: Array,
    ) -> tuple[Search, Array, Array]:  # fmt: skip
        """The server's state after an inner round."""
        return self.move(terms, server_P, self.hear(inner, replies, present), tau)

    def move(self, terms: Terms, server_P: LocalP, inner: Search, tau: Array) -> tuple[Search, Array, Array]:
        """The search after a round, the next trial point, and whether it solves the subproblem to τ."""
        h = full_regularizer(terms)
        value, gradient, hessian = self.totals(server_P, inner)
        total, residual = value + h.value(inner.trial), h.distance(inner.trial, gradient)
        enough = total <= inner.total + SUFFICIENT * inner.size * inner.slope + VALUE_ROUNDING * jnp.abs(inner.total)
        # near the solution the decrease is lost in the rounding of the value: then the residual decides
        flat = (jnp.abs(inner.slope) <= FLAT * (1.0 + jnp.abs(inner.total))) & (residual <= inner.residual)
        finite = jnp.isfinite(total) & jnp.all(jnp.isfinite(gradient))
        accept = (inner.hold | enough | flat | (inner.size < SHORTEST)) & finite
        smaller = accept & (residual < SMALLER * inner.least)
        idle = jnp.where(smaller, 0, inner.idle + 1)
        inner = replace(inner, least=jnp.where(smaller, residual, inner.least), idle=idle)
        # the direction from the trial point, in case it is accepted: one program serves all three cases
        memory = inner.memory
        if isinstance(memory, LimitedMemory):
            step, change = inner.trial - inner.base, gradient - inner.gradient
            # with `hold` the trial point is the base already, and there is no new pair
            memory = select(inner.hold, memory, memory.add(step, change))
            if h.vanishes:
                q = memory.direction(gradient, inner.diagonal)
                slope = jnp.dot(gradient, q)
            else:
                times = memory.factors(inner.diagonal).times
                q = proximal_direction(inner.trial, gradient, times, h, INNER_SHARE * tau)
                slope = jnp.dot(gradient, q) + h.value(inner.trial + q) - h.value(inner.trial)
        else:
            q, slope, _ = direction(inner.trial, gradient, hessian, h, jnp.where(tau > 0, tau, RELATIVE * residual))
        # without a tolerance a subproblem ends where its value cannot fall any more
        lowest = (tau == 0) & (jnp.abs(slope) <= VALUE_ROUNDING * jnp.abs(total))
        near = accept & ((residual <= tau) | lowest | self.stalled(inner))
        finished = near & jnp.all(inner.fresh)
        next_search = replace(
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
        waiting = replace(
            inner, base=inner.trial, total=total, gradient=gradient, residual=residual, hold=jnp.ones((), bool)
        )
        # the minimiser of the parabola through the value and slope at base and the value at trial, within SHORTEN
        rise = total - inner.total - inner.slope * inner.size
        guess = -0.5 * inner.slope * inner.size / jnp.where(rise > 0, rise, 1.0)
        shrink = jnp.where(jnp.isfinite(guess) & (rise > 0), jnp.clip(guess, *SHORTEN), SHORTEN[0])
        size = inner.size * shrink
        shorter = replace(inner, size=size, trial=inner.base + size * inner.q, fresh=jnp.zeros_like(inner.fresh))
        new = select(near, waiting, select(accept, next_search, shorter))
        if not self.hessians:
            new = select(jnp.all(inner.fresh), new, inner)
        return new, new.trial, finished
