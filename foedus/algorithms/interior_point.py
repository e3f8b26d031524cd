"""InteriorPoint: a primal-dual interior-point method in which a round is an iteration and the server sees only sums.

For a barrier parameter μ, the Newton system of the perturbed optimality conditions has one block for each party. A
party eliminates its own slacks and multipliers, and what is left of its block is a matrix and vectors over the shared
variables (interior_point_rows.py). Sites send these, the server adds them up,
    (Σ K_i) dx = −Σ (∇f_i + Jᵀz + Jᵀ D c + μ Jᵀ(D/z)),
and announces w + dx; each party moves its slacks and multipliers by its own share of the way to their boundary, and
answers about the new point in the same round. A row, a slack or a multiplier never leaves its party.

A step must lessen f − μ Σ log s + ν Σ|c + s| or the residuals; one that does not is shortened in the next round, and
then the matrix is shifted. Where ΣK_i is not positive definite, its eigenvalues count with their absolute values; and
where rows are not convex, Σ|c + s| must not grow much, for an objective may fall without end away from them. μ falls
when every party says that it is near the path. The run ends where the certificate holds, with multipliers set to 0 on
rows that have room: tested at a point about which every site has spoken.
"""

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior_point_confirm import Confirmation, expects
from foedus.algorithms.interior_point_learnt import DEPTH, rounds_of
from foedus.algorithms.interior_point_rows import CENTRAL, moved, rounded, softness
from foedus.algorithms.interior_point_server import ServerView, System, direction
from foedus.algorithms.interior_point_site import (
    InteriorAsk,
    InteriorClient,
    InteriorReply,
    QuadraticModel,
    account_of,
    answer,
    joined,
)
from foedus.algorithms.interior_point_state import (
    INFEASIBLE,
    NO_PROGRESS,
    NO_STEP,
    NOT_FINITE,
    STALLED,
    UNBOUNDED,
    InteriorServer,
    reason_of,
)
from foedus.algorithms.lagrangian import refuse_kinks
from foedus.base.errors import FoedusError
from foedus.base.pytrees import select
from foedus.base.settings import setting, settings
from foedus.certificate.gap import rows_convex
from foedus.numerics.limited_memory import LimitedMemory
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import CONVERGED, RUNNING, STUCK, Fit, Kind, Present
from foedus.protocol.constrained import Constrained
from foedus.protocol.summing import Summing

FALL, POWER, FLOOR = 0.2, 1.5, 1e-18  # μ becomes min(FALL·μ, μ^POWER), and not less than FLOOR
ENOUGH = 0.01  # of ε²: a smaller μ is of no use, for a row that hardly binds has slack and multiplier √μ
NEAR = 0.01  # of ε1: μ need not wait for a smaller stationarity
BACK = (0.05, 0.5)  # a step that was rejected is shortened by a factor between these
SHORTEST = 1e-3  # instead of a shorter step, the matrix is shifted
AWAY, LEEWAY = 2.0, 0.1  # on rows that are not convex a step may raise Σ|c + s| by this factor, and by this much
MEMORY = 3  # a step is accepted where the merit is below its largest value at this many accepted points
FAR, FARTHER = 1e3, 1e6  # a run ends where no point within so many units meets the terms, if convex; if not
SAME = 0.9  # a violation that is still above this share of that MEMORY points ago does not shrink
STRAIGHT, LONGER = 1e-3, 10.0  # a step is straight up to this share of its fall; the next one is so many times longer
ROUNDING = 1e-12  # of the largest coordinate: a row broken by this little is met
DEEP = 1e10  # an objective that has fallen by this share of 1 + |f| is called unbounded
SMALLER, FALLS, LOWER = 0.7, 1e-9, 1e-6  # smaller: a residual below this share; f and merit fallen by these of 1 + |f|
PATIENT = 10  # rounds with broken rows and without anything smaller, after which every point waits for all sites
IDLE, LONG_IDLE = 20, 60  # rounds without a smaller stationarity at a small gap, and without anything smaller: a stall
STREAK = 3  # rounds that everybody must have answered before whole models are asked for again


@settings
class InteriorPoint(Accountable, Constrained, Summing):
    """Any smooth problem, with constraints or without, to a certificate in few rounds.

    It is Newton's method on the optimality conditions, an interior-point method whose iterations are rounds.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> cap = fd.constraints.Linear(C=[[1.0, 0.0]], d=[1.5])
        >>> problem = fd.Problem(sites, loss=fd.losses.least_squares, constraints=[cap])
        >>> run = fd.solve(problem, fd.InteriorPoint())
        >>> run.w.round(3).tolist(), run.certificate.holds(1e-6, 1e-6)
        ([1.5, 3.0], True)
    """

    eps1: float = setting(1e-6, "stationarity to reach; infinity asks for the gap instead", gt=0)
    eps2: float = setting(1e-6, "feasibility and complementarity to reach", gt=0)
    gap: float = setting(1e-6, "estimated distance to the optimal objective to reach, where eps1 is infinite", gt=0)
    curvature: str = setting(
        "auto",
        "'exact': sites send Hessians; 'learnt': the server learns them from gradients; 'auto': exact up to 500 "
        "variables",
        choices=("auto", "exact", "learnt"),
    )

    words: ClassVar[int] = 2  # K_i grows as slacks vanish, while residuals are small
    dense: ClassVar[int] = 500  # variables up to which 'auto' lets sites send Hessians: a message of 1 MB
    most: ClassVar[int] = 200_000  # variables at most: the pairs of L-BFGS take 200 MB

    def fit(self, problem: Problem) -> Fit:
        terms = problem.terms
        terms.regularizer.epigraph(terms.dim)  # which refuses where there is none
        refuse_kinks(self, terms)
        if terms.dim > self.most:
            raise FoedusError(
                f"InteriorPoint keeps {2 * DEPTH} vectors of all variables, too many for {terms.dim} of them (at most "
                f"{self.most}); use ProxAL with constraints, FedGiA or Scaffold without."
            )
        return Fit(self, problem, max_rounds=500, few_rounds=not self.learns(terms))

    def learns(self, terms: Terms) -> bool:
        """Whether the server learns the curvature of the smooth part, in place of adding up matrices."""
        return self.curvature == "learnt" or (self.curvature == "auto" and terms.dim > self.dense)

    def confirms(self, terms: Terms) -> bool:
        """Whether a last round may do with gradients: no party has rows, and the sites send matrices."""
        rows = sum(terms.rows) > 0 or terms.regularizer.epigraph(terms.dim).snaps
        return not rows and not self.learns(terms) and self.eps1 < np.inf

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self, Confirmation(self.eps1)

    def phase(self, server: InteriorServer) -> Array:
        return jnp.where(server.confirming, 1, 0)

    def view(self, terms: Terms, data: Data | None) -> ServerView:
        return ServerView(terms, data, self.eps2, self.learns(terms))

    def init(self, terms: Terms, w0: Array, own: Data | None) -> InteriorServer:
        view = self.view(terms, own)
        base, zero, count, no = view.blank(w0), jnp.zeros(()), jnp.zeros((), int), jnp.zeros((), bool)
        nothing = QuadraticModel.zero(terms, self.learns(terms))
        return InteriorServer(
            base=base,
            past=jnp.zeros((MEMORY, 3)),
            x=base.x,
            towards=base.x,
            own=base.own,
            alpha=jnp.ones(()),
            mu=zero,
            shift=zero,
            stretch=jnp.ones(()),
            id=count,
            rejected=count - 1,
            whole=~no,
            snapped=no,
            tried=jnp.full((), jnp.inf),
            fresh=nothing,
            heard=zero,
            broken=zero,
            lasts=count,
            part=count,
            running=nothing,
            streak=count,
            data=own,
            memory=LimitedMemory.empty(terms.dim, DEPTH) if self.learns(terms) else (),
            gap=jnp.full((), jnp.inf),
            step=jnp.full((), jnp.inf),
            top=zero,
            least=jnp.full(4, jnp.inf),
            idle=jnp.zeros(3, int),
            units=jnp.ones_like(base.x),
            patient=no,
            confirming=no,
            done=no,
            ending=count,
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> InteriorClient:
        return joined(terms, self.learns(terms))

    def broadcast(self, terms: Terms, server: InteriorServer, draws: Array) -> InteriorAsk:
        dim, (_, own, coupled) = terms.dim, terms.rows
        nu = server.own.z[own : own + coupled]
        return InteriorAsk(
            w=server.x[:dim],
            towards=server.towards[:dim] if terms.rows[0] else (),
            alpha=server.alpha,
            mu=server.mu,
            nu=nu,
            id=server.id,
            rejected=server.rejected,
            whole=server.whole,
            scale=server.base.scale if self.learns(terms) else (),
            part=server.part if self.learns(terms) else (),
        )

    def local(
        self, terms: Terms, client: InteriorClient, ask: InteriorAsk, data: Data, key: Array
    ) -> tuple[InteriorClient, InteriorReply]:
        return answer(terms, client, ask, data, self.eps2, self.learns(terms))

    def account(self, terms: Terms, message: InteriorAsk, reply: InteriorReply) -> Account | None:
        return account_of(terms, message, reply)

    def aggregate(
        self, terms: Terms, server: InteriorServer, replies: InteriorReply, present: Present
    ) -> InteriorServer:
        n, count = terms.clients, present.count
        total = jax.tree.map(lambda mean: count * mean, present.mean(replies))
        full = count == n
        server = replace(
            server,
            lasts=server.lasts + 1,
            streak=jnp.where(full, server.streak + 1, 0),
            heard=server.heard + jnp.round(total.heard),
            broken=server.broken + jnp.round(total.broken),
        )
        whole, model, last = server.whole, total.model, jnp.ones((), bool)
        if self.learns(terms):
            model = replace(model, curvature=model.curvature.placed(terms, server.part))
            last = server.part == rounds_of(terms) - 1
        fresh = jax.tree.map(jnp.add, server.fresh, model)
        summed = jax.tree.map(jnp.add, server.running, model)
        everybody = server.heard >= n
        complete = jnp.where(whole, everybody & last, full)
        at = select(whole, fresh, summed)
        more = jnp.where(everybody, 1, 0)  # the next of the point's rounds, or the same one for those who were silent
        waiting = replace(server, fresh=fresh, part=server.part + more, heard=jnp.where(everybody, 0.0, server.heard))
        judged = self.judge(terms, replace(server, running=at), at, complete)
        return select(whole & ~complete, waiting, judged)

    def judge(self, terms: Terms, server: InteriorServer, at: QuadraticModel, complete: Array) -> InteriorServer:
        """Accept the point that was asked about, or go back; then choose the next one."""
        view, base, dim = self.view(terms, server.data), server.base, terms.dim
        first, convex = server.id == 0, rows_convex(terms)
        new = view.system(server.x, at, complete, server.own, server.mu, first, base)
        finite = new.finite & (server.broken == 0)
        inequalities = view.inequalities + terms.clients * terms.rows[0]
        mu = jnp.where(first, new.number("product") / max(1, inequalities), server.mu)

        units = jnp.where(first, new.units, server.units)
        weigh = jnp.stack([jnp.ones(()), -mu, jnp.maximum(base.penalty, new.penalty)])
        worst = jnp.max(server.past @ weigh)
        merit, rise = new.merit @ weigh, 1.0 + jnp.abs(worst)
        # where rows come nearer, and where the merit hardly changes, the residuals decide
        nearer = (new.number("theta") < 0.9 * base.number("theta")) | (merit <= worst + 1e-3 * rise)
        lessened = (merit <= worst + 1e-12 * rise) | (nearer & (new.error(units) <= 0.9 * base.error(units)))
        # away from the rows an objective may fall without end that is bounded on them
        near = new.number("theta") <= AWAY * jnp.max(server.past[:, 2]) + LEEWAY
        accept = finite & ~server.snapped & (first | (lessened & (near | convex)) | ~complete)
        certified = finite & self.certified(terms, view, new, server)
        # on rows that are not convex it is no proof, but says that no small step lessens the violation
        evident = self.contradicts(new, units / softness(terms), server.past, FAR if convex else FARTHER)
        contradicts = finite & ~first & ~certified & evident & (accept | convex)
        following = select(accept | certified | contradicts, new, base)
        past = jnp.where(first, new.merit, jnp.roll(server.past, 1, axis=0).at[0].set(new.merit))
        past = jnp.where(accept, past, server.past)

        small = following.stationarity <= (NEAR * self.eps1 if self.eps1 < np.inf else 0.0)
        near_path = ((following.tilt(units) <= CENTRAL * mu) | small) & view.all_say(following, "central")
        snapped, tried = jnp.zeros((), bool), server.tried
        if view.form.snaps:
            small = following.stationarity <= 0.5 * self.eps1 if self.eps1 < np.inf else server.gap <= self.gap
            snapped = accept & small & view.all_say(following, "passed") & ((mu <= 0.1 * tried) | near_path)
            tried = jnp.where(snapped, mu, tried)
        falls = ((accept & ~first & ~snapped) | server.snapped) & near_path
        lowest = max(FLOOR, ENOUGH * min(self.eps1, self.eps2, self.gap if self.eps1 == np.inf else np.inf) ** 2)
        lowest = jnp.where(server.snapped, FLOOR, lowest)  # the test failed there
        mu = jnp.where(falls, jnp.maximum(jnp.minimum(FALL * mu, mu**POWER), jnp.minimum(lowest, mu)), mu)

        # the parabola through the merit and its slope −2·decrement at the base and the merit at the point
        slope = 2.0 * (server.gap - base.number("product")) * server.alpha * server.stretch
        fall = base.merit @ weigh - merit
        straight = ~first & (server.alpha == 1.0) & (jnp.abs(fall - slope) <= STRAIGHT * slope)
        stretch = jnp.where(accept, jnp.where(straight, LONGER * server.stretch, 1.0), server.stretch)
        guess = 0.5 * slope / jnp.maximum(slope - fall, 1e-300)
        back = jnp.where(finite & jnp.isfinite(guess), jnp.clip(guess, *BACK), BACK[0])
        alpha = jnp.where(accept | server.snapped, 1.0, back * server.alpha)
        steeper = alpha < SHORTEST
        eased = jnp.where(server.shift > 1e-6, 0.1 * server.shift, 0.0)
        shift = jnp.where(steeper, jnp.maximum(100.0 * server.shift, 1e-3), jnp.where(accept, eased, server.shift))
        alpha = jnp.where(steeper, 1.0, alpha)
        fresh_start = accept | server.snapped | steeper
        memory = server.memory
        if isinstance(memory, LimitedMemory):
            longer = memory.add(new.x[:dim] - base.x[:dim], new.change)
            memory = select(accept & ~first, longer, memory)
        dx, decrement = direction(following, memory, mu, shift)
        gap, dx = decrement + following.number("product"), stretch * dx
        change = view.along(following, dx)
        if view.form.snaps:  # the server knows how far its many rows let it go
            alpha = jnp.where(fresh_start, jnp.minimum(alpha, view.room(following, change, mu)), alpha)
        x = following.x + alpha * dx
        if view.form.snaps:  # slacks and multipliers stay as they are
            binds = following.own.z[view.stated :] > following.own.s[view.stated :]
            x = jnp.where(snapped, view.form.snap(following.x, binds), x)
            alpha = jnp.where(snapped, 0.0, alpha)
        own = moved(following.own, following.c, change, alpha, mu, view.equal)

        nothing = QuadraticModel.zero(terms, view.learns)
        held = replace(
            server,
            whole=jnp.ones((), bool),
            fresh=nothing,
            heard=jnp.zeros(()),
            broken=jnp.zeros(()),
        )
        exact = server.whole | (server.streak >= STREAK)
        done = certified & complete & exact
        confirming = jnp.zeros((), bool)
        if self.confirms(terms):
            expected = expects(base.stationarity, new.stationarity, self.eps1)
            confirming = accept & ~first & complete & server.whole & (server.alpha == 1.0) & expected
        figures = jnp.stack([following.stationarity, gap, following.number("theta"), following.f])
        limits = jnp.array([SMALLER, SMALLER, SMALLER, 1.0]) * server.least
        smaller = figures < limits.at[3].add(-FALLS * (1.0 + jnp.abs(following.f)))
        # a start at the optimum without terms has the least of all figures: then a merit below the last ones counts
        lower = accept & (merit < jnp.min(server.past @ weigh) - LOWER * rise)
        idle = jnp.where(jnp.stack([smaller[0], jnp.any(smaller), jnp.any(smaller) | lower]), 0, server.idle + 1)
        close = view.all_say(following, "passed") & (gap <= self.gap * (1.0 + jnp.abs(following.f)))
        patient = server.patient | ((idle[1] > PATIENT) & (following.number("violation") > self.eps2))
        stalled = jnp.where((idle[0] > IDLE) & close, STALLED, jnp.where(idle[2] > LONG_IDLE, NO_PROGRESS, 0))
        stalled = jnp.where(complete & exact, stalled, 0)
        if self.learns(terms):  # what L-BFGS says of the gap is too rough to end a run by
            stalled = jnp.zeros((), int)
        infeasible = jnp.where(contradicts & complete & exact, INFEASIBLE if convex else NO_PROGRESS, 0)
        ending = self.ending(following, server, finite, steeper & (shift > 1e8), infeasible)
        ending = jnp.where(ending == 0, stalled, ending)
        moving = replace(
            server,
            base=following,
            past=past,
            x=x,
            towards=following.x + dx,
            own=own,
            alpha=alpha,
            mu=mu,
            shift=shift,
            stretch=stretch,
            id=server.id + 1,
            rejected=jnp.where(accept, server.rejected, server.id),
            whole=view.learns | patient | jnp.where(server.whole, server.lasts <= 1, server.streak >= STREAK),
            memory=memory,
            snapped=snapped,
            tried=tried,
            fresh=nothing,
            heard=jnp.zeros(()),
            broken=jnp.zeros(()),
            lasts=jnp.zeros((), int),
            part=jnp.zeros((), int),
            gap=gap,
            step=jnp.max(jnp.abs(dx / units)[:dim]) / (1.0 + jnp.max(jnp.abs(following.x / units)[:dim])),
            top=jnp.where(first, new.f, server.top),
            least=jnp.where(smaller, figures, server.least),
            idle=idle,
            units=units,
            patient=patient,
            confirming=confirming & ~done,
            done=done,
            ending=jnp.where(done, 0, ending),
        )
        return select((certified & ~done) | (contradicts & ~(complete & exact)), held, moving)

    def certified(self, terms: Terms, view: ServerView, new: System, server: InteriorServer) -> Array:
        """Whether the certificate holds at the point that was asked about, or the gap does where eps1 is infinite."""
        passed = view.all_say(new, "passed")
        inside = terms.regularizer.distance(new.x[: terms.dim], new.certificate)
        if self.eps1 == np.inf:
            return passed & (server.gap <= self.gap) & (inside < np.inf)
        return passed & (inside <= self.eps1)

    def contradicts(self, new: System, units: Array, past: Array, far: float) -> Array:
        """Whether the rows contradict each other by the test of `contradiction.py`, and their violation stays."""
        stays = new.number("theta") >= SAME * past[-1, 2]
        return (new.reach(units) >= far) & (new.number("violation") > self.eps2) & stays

    def ending(self, at: System, server: InteriorServer, finite: Array, lost: Array, infeasible: Array) -> Array:
        """Why the run cannot go on, or 0."""
        deep = at.f < server.top - DEEP * (1.0 + jnp.abs(server.top))
        unbounded = deep & (at.number("violation") <= self.eps2 + ROUNDING * jnp.max(jnp.abs(at.x)))
        no_start = (server.id == 0) & ~finite
        why = jnp.where(lost, NO_STEP, jnp.where(unbounded, UNBOUNDED, infeasible))
        return jnp.where(no_start, NOT_FINITE, jnp.where(server.id == 0, 0, why))

    def ended(self, server: InteriorServer) -> Array:
        return jnp.where(server.done, CONVERGED, jnp.where(server.ending > 0, STUCK, RUNNING))

    def parameters(self, terms: Terms, server: InteriorServer) -> Array:
        return server.base.x[: terms.dim]

    def client_multipliers(self, terms: Terms, client: InteriorClient) -> Array:
        return client.trial.multipliers

    def server_multipliers(self, terms: Terms, server: InteriorServer) -> dict[str, Array]:
        _, own, coupled = terms.rows
        base = server.base
        z = rounded(base.own, base.c, self.view(terms, server.data).equal, self.eps2)
        return {"global": z[:own], "coupled": z[own : own + coupled]}

    def report(self, server: InteriorServer) -> dict[str, Array]:
        base = server.base
        return {
            "objective": base.f,
            "stationarity": base.stationarity,
            "feasibility": base.number("violation"),
            "barrier": server.mu,
            "gap": server.gap,
            "step": server.alpha,
        }

    def reason(self, server: InteriorServer, converged: bool, names: list[str]) -> str:
        return reason_of(server, converged, len(names), self.eps1, self.eps2, self.gap)
