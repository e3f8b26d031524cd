"""InteriorPoint: a primal-dual interior-point method in which a round is an iteration and the server sees only sums.

Sites send their blocks of the Newton system with their own rows eliminated (parties.py), the server adds them up,
    (Σ K_i) dx = −Σ (∇f_i + Jᵀz + Jᵀ D c + μ Jᵀ(D/z)),
and announces w + dx; each party moves its slacks and multipliers by its own share of the way to their boundary, and
answers about the new point in the same round. A row, a slack or a multiplier never leaves its party.

A step must lessen f − μ Σ log s + ν Σ|c + s| or the residuals; one that does not is shortened in the next round, and
then the matrix is shifted. Where ΣK_i is not positive definite, its eigenvalues count with their absolute values; and
where rows are not convex, Σ|c + s| must not grow much, for an objective may fall without end away from them. μ falls
when every party says that it is near the path. The run ends where the certificate holds, with multipliers set to 0 on
rows that have room: tested at a point about which every site has spoken.

Where no party has rows, a point that is expected to pass is asked about with gradients alone (`Confirmation`): Newton's
method squares its residual near a minimum, so the ratio of the last two predicts the next one.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.algorithms.interior.learnt import rounds_of
from foedus.algorithms.interior.parties import (
    InteriorAsk,
    QuadraticModel,
    Rows,
    ServerView,
    SiteView,
    System,
    account_of,
    direction,
    moved,
    rounded,
    softness,
)
from foedus.algorithms.interior.rounds import Inquiry, Reply, SiteState, collect
from foedus.algorithms.lagrangian import Party, evaluate, refuse_kinks
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, select, state
from foedus.base.quantities import count, short
from foedus.base.settings import setting, settings
from foedus.certificate.gap import rows_convex
from foedus.numerics.limited_memory import LimitedMemory
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import CONVERGED, RUNNING, STUCK, Fit, Kind, Present
from foedus.protocol.constrained import Constrained
from foedus.protocol.summing import Summing

INFEASIBLE, UNBOUNDED, NO_STEP, NOT_FINITE, STALLED, NO_PROGRESS = 1, 2, 3, 4, 5, 6  # why a run cannot go on


@state
class Barrier:
    """The barrier parameter, and whether the point is there to be tested on the rows of h that bind."""

    mu: Array
    snapped: Array  # whether x lies on those rows, to be tested and nothing else
    tried: Array  # μ when this was last done


@state
class Damping:
    """How a step is damped, or lengthened."""

    alpha: Array  # the share of the step
    shift: Array  # of the matrix, beyond what makes it positive definite
    stretch: Array  # how many times longer than Newton's a step is, while the objective falls along straight lines


@state
class Progress:
    """What the run has reached, by which it is seen when it reaches no more."""

    top: Array  # f at the start
    least: Array  # the smallest stationarity, gap, Σ|c + s| and f so far
    idle: Array  # rounds since the stationarity became smaller, since any of these did, and since the merit did too
    patient: Array  # whether every point waits for everybody, because rows stay broken with sites' last models


@state
class InteriorServer:
    inquiry: Inquiry
    base: System  # at the last point that was accepted
    past: Array  # the parts of the merit at the last points that were accepted, newest first
    x: Array  # the point that is asked about
    towards: Array  # the end of the whole step
    own: Rows  # the server's slacks and multipliers, moved to x
    barrier: Barrier
    damping: Damping
    data: Data | None
    memory: PyTree  # the pairs of L-BFGS where curvature is learnt; else ()
    gap: Array  # ½rᵀK⁻¹r + Σ s·z at the base
    step: Array  # ‖dw‖_∞/(1 + ‖w‖_∞) of the step from there
    units: Array  # of the variables, such that each had curvature 1 at the start
    progress: Progress
    confirming: Array  # whether the next round asks for gradients alone
    done: Array
    ending: Array  # 0, or why it cannot go on


@state
class Trial:
    """What the server finds at the point that it asked about."""

    system: System
    complete: Array  # whether all sites have spoken about it
    finite: Array
    first: Array  # whether it is the run's first
    mu: Array
    units: Array
    weigh: Array  # the merit's parts: (1, −μ, ν)
    merit: Array
    worst: Array  # the largest merit of the last accepted points

    @property
    def rise(self) -> Array:
        """The size of the merit, of which differences are measured as shares."""
        return 1.0 + jnp.abs(self.worst)


@state
class Judgement:
    """Whether the point is accepted, and from which one the run goes on."""

    accepts: Array
    certified: Array  # whether the certificate holds at the point
    contradicts: Array  # whether the rows contradict each other
    at: System  # from which the run goes on
    past: Array


@state
class Step:
    """The step from the point that the run goes on from."""

    x: Array  # the next point
    dx: Array  # the whole step
    own: Rows
    alpha: Array
    memory: PyTree
    gap: Array


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
                f"InteriorPoint keeps {2 * METHOD.depth} vectors of all variables, too many for {terms.dim} of them "
                f"(at most {self.most}); leave the choice to auto."
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

    def site(self, terms: Terms, data: Data) -> SiteView:
        return SiteView(terms, data, self.eps2, self.learns(terms))

    def init(self, terms: Terms, w0: Array, own: Data | None) -> InteriorServer:
        base = self.view(terms, own).blank(w0)
        zero, one, no, infinite = jnp.zeros(()), jnp.ones(()), jnp.zeros((), bool), jnp.full((), jnp.inf)
        return InteriorServer(
            inquiry=Inquiry.first(QuadraticModel.zero(terms, self.learns(terms))),
            base=base,
            past=jnp.zeros((METHOD.memory, 3)),
            x=base.x,
            towards=base.x,
            own=base.own,
            barrier=Barrier(zero, no, infinite),
            damping=Damping(one, zero, one),
            data=own,
            memory=LimitedMemory.empty(terms.dim, METHOD.depth) if self.learns(terms) else (),
            gap=infinite,
            step=infinite,
            units=jnp.ones_like(base.x),
            progress=Progress(zero, jnp.full(4, jnp.inf), jnp.zeros(3, int), no),
            confirming=no,
            done=no,
            ending=jnp.zeros((), int),
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> SiteState:
        return self.site(terms, data).join()

    def broadcast(self, terms: Terms, server: InteriorServer, draws: Array) -> InteriorAsk:
        dim, (_, own, coupled) = terms.dim, terms.rows
        return InteriorAsk(
            about=server.inquiry.question,
            w=server.x[:dim],
            towards=server.towards[:dim] if terms.rows[0] else (),
            alpha=server.damping.alpha,
            mu=server.barrier.mu,
            nu=server.own.z[own : own + coupled],
            scale=server.base.scale if self.learns(terms) else (),
            part=server.inquiry.part if self.learns(terms) else (),
        )

    def local(
        self, terms: Terms, client: SiteState, ask: InteriorAsk, data: Data, key: Array
    ) -> tuple[SiteState, Reply]:
        return self.site(terms, data).answer(client, ask)

    def account(self, terms: Terms, message: InteriorAsk, reply: Reply) -> Account | None:
        return account_of(terms, message, reply)

    def aggregate(self, terms: Terms, server: InteriorServer, replies: Reply, present: Present) -> InteriorServer:
        parts = rounds_of(terms) if self.learns(terms) else 1

        def placed(model: QuadraticModel, part: Array) -> QuadraticModel:
            return replace(model, curvature=model.curvature.placed(terms, part)) if self.learns(terms) else model

        inquiry, complete, waits, waiting = collect(server.inquiry, replies, present, terms.clients, parts, placed)
        judgement = self.judge(terms, replace(server, inquiry=inquiry), complete)
        return select(waits, replace(server, inquiry=waiting), judgement)

    def judge(self, terms: Terms, server: InteriorServer, complete: Array) -> InteriorServer:
        """Accept the point that was asked about, or go back; then choose the next one."""
        view, inquiry = self.view(terms, server.data), server.inquiry
        trial = self.evaluate(view, server, complete)
        judgement = self.accept(view, server, trial)
        barrier = self.update_barrier(view, server, trial, judgement)
        damping, afresh, hopeless = damp(server, trial, judgement)
        step = self.advance(view, server, trial, judgement, barrier, damping, afresh)
        progress, stall = self.progress(view, server, trial, judgement, step)

        sure = complete & inquiry.exact  # what is said of the point is said by everybody
        done = judgement.certified & sure
        infeasible = jnp.where(judgement.contradicts & sure, INFEASIBLE if rows_convex(terms) else NO_PROGRESS, 0)
        ending = self.ending(judgement.at, server, trial, hopeless, infeasible)
        ending = jnp.where(ending == 0, jnp.where(sure, stall, 0), ending)
        confirming = jnp.zeros((), bool)
        if self.confirms(terms):
            expected = expects(server.base.stationarity, trial.system.stationarity, self.eps1)
            whole_step = judgement.accepts & ~trial.first & (server.damping.alpha == 1.0)
            confirming = whole_step & complete & inquiry.whole & expected
        at, dx, units = judgement.at, step.dx, trial.units
        moving = replace(
            server,
            inquiry=inquiry.next(judgement.accepts, view.learns | progress.patient),
            base=at,
            past=judgement.past,
            x=step.x,
            towards=at.x + dx,
            own=step.own,
            barrier=barrier,
            damping=replace(damping, alpha=step.alpha),
            memory=step.memory,
            gap=step.gap,
            step=jnp.max(jnp.abs(dx / units)[: terms.dim]) / (1.0 + jnp.max(jnp.abs(at.x / units)[: terms.dim])),
            units=units,
            progress=progress,
            confirming=confirming & ~done,
            done=done,
            ending=jnp.where(done, 0, ending),
        )
        unsure = (judgement.certified & ~done) | (judgement.contradicts & ~sure)
        return select(unsure, replace(server, inquiry=inquiry.again()), moving)

    def evaluate(self, view: ServerView, server: InteriorServer, complete: Array) -> Trial:
        """The system and the merit at the point that was asked about."""
        base, first, barrier = server.base, server.inquiry.id == 0, server.barrier
        new = view.system(server.x, server.inquiry.running, complete, server.own, barrier.mu, first, base)
        inequalities = view.inequalities + view.terms.clients * view.terms.rows[0]
        mu = jnp.where(first, new.number("product") / max(1, inequalities), barrier.mu)
        weigh = jnp.stack([jnp.ones(()), -mu, jnp.maximum(base.penalty, new.penalty)])
        return Trial(
            system=new,
            complete=complete,
            finite=new.finite & (server.inquiry.broken == 0),
            first=first,
            mu=mu,
            units=jnp.where(first, new.units, server.units),
            weigh=weigh,
            merit=new.merit @ weigh,
            worst=jnp.max(server.past @ weigh),
        )

    def accept(self, view: ServerView, server: InteriorServer, trial: Trial) -> Judgement:
        """Whether the point lessens the merit or the residuals, ends the run, or shows that terms cannot be met."""
        new, base, past = trial.system, server.base, server.past
        first, units, convex = trial.first, trial.units, rows_convex(view.terms)
        # where rows come nearer, and where the merit hardly changes, the residuals decide
        nearer = new.number("theta") < 0.9 * base.number("theta")
        nearer = nearer | (trial.merit <= trial.worst + 1e-3 * trial.rise)
        lessens = trial.merit <= trial.worst + 1e-12 * trial.rise
        lessens = lessens | (nearer & (new.error(units) <= 0.9 * base.error(units)))
        # away from the rows an objective may fall without end that is bounded on them
        near = new.number("theta") <= METHOD.away * jnp.max(past[:, 2]) + METHOD.leeway
        accepts = first | (lessens & (near | convex)) | ~trial.complete
        accepts = trial.finite & ~server.barrier.snapped & accepts
        certified = trial.finite & self.certified(view, new, server.gap)
        # on rows that are not convex it is no proof, but says that no small step lessens the violation
        far = METHOD.far if convex else 1e6
        evident = self.contradicts(new, units / softness(view.terms), past, far)
        contradicts = trial.finite & ~first & ~certified & evident & (accepts | convex)
        longer = jnp.where(first, new.merit, jnp.roll(past, 1, axis=0).at[0].set(new.merit))
        return Judgement(
            accepts=accepts,
            certified=certified,
            contradicts=contradicts,
            at=select(accepts | certified | contradicts, new, base),
            past=jnp.where(accepts, longer, past),
        )

    def certified(self, view: ServerView, new: System, gap: Array) -> Array:
        """Whether the certificate holds at the point that was asked about, or the gap does where eps1 is infinite."""
        passed = view.all_say(new, "passed")
        inside = view.terms.regularizer.distance(new.x[: view.terms.dim], new.certificate)
        if self.eps1 == np.inf:
            return passed & (gap <= self.gap) & (inside < np.inf)
        return passed & (inside <= self.eps1)

    def contradicts(self, new: System, units: Array, past: Array, far: float) -> Array:
        """Whether the rows contradict each other by the test of `contradiction.py`, and their violation stays."""
        stays = new.number("theta") >= METHOD.same * past[-1, 2]
        return (new.reach(units) >= far) & (new.number("violation") > self.eps2) & stays

    def update_barrier(self, view: ServerView, server: InteriorServer, trial: Trial, judgement: Judgement) -> Barrier:
        """μ falls near the path; and a point that is near the optimum is put on the rows of h that bind."""
        at, mu, old = judgement.at, trial.mu, server.barrier
        small = at.stationarity <= (0.01 * self.eps1 if self.eps1 < np.inf else 0.0)  # smaller than anybody asks for
        near_path = ((at.tilt(trial.units) <= METHOD.central * mu) | small) & view.all_say(at, "central")
        snapped, tried = jnp.zeros((), bool), old.tried
        if view.form.snaps:
            small = at.stationarity <= 0.5 * self.eps1 if self.eps1 < np.inf else server.gap <= self.gap
            snapped = judgement.accepts & small & view.all_say(at, "passed") & ((mu <= 0.1 * tried) | near_path)
            tried = jnp.where(snapped, mu, tried)
        falls = ((judgement.accepts & ~trial.first & ~snapped) | old.snapped) & near_path
        # a row that hardly binds has slack and multiplier √μ: a smaller μ is of no use, but where a test failed
        least = 0.01 * min(self.eps1, self.eps2, self.gap if self.eps1 == np.inf else np.inf) ** 2
        lowest = jnp.where(old.snapped, 1e-18, max(1e-18, least))
        lower = jnp.maximum(jnp.minimum(METHOD.fall * mu, mu**METHOD.power), jnp.minimum(lowest, mu))
        return Barrier(jnp.where(falls, lower, mu), snapped, tried)

    def advance(
        self, view: ServerView, server: InteriorServer, trial: Trial, judgement: Judgement, barrier: Barrier,
        damping: Damping, afresh: Array,
    ) -> Step:  # fmt: skip
        """The Newton step, and the next point; `afresh` says that it is no shortened step."""
        at, mu, alpha, memory, dim = judgement.at, barrier.mu, damping.alpha, server.memory, view.terms.dim
        if isinstance(memory, LimitedMemory):
            longer = memory.add(trial.system.x[:dim] - server.base.x[:dim], trial.system.change)
            memory = select(judgement.accepts & ~trial.first, longer, memory)
        dx, decrement = direction(at, memory, mu, damping.shift)
        dx = damping.stretch * dx
        change = view.along(at, dx)
        if view.form.snaps:  # the server knows how far its many rows let it go
            alpha = jnp.where(afresh, jnp.minimum(alpha, view.room(at, change, mu)), alpha)
        x = at.x + alpha * dx
        if view.form.snaps:  # slacks and multipliers stay as they are
            binds = at.own.z[view.stated :] > at.own.s[view.stated :]
            x = jnp.where(barrier.snapped, view.form.snap(at.x, binds), x)
            alpha = jnp.where(barrier.snapped, 0.0, alpha)
        own = moved(at.own, at.c, change, alpha, mu, view.equal)
        return Step(x, dx, own, alpha, memory, decrement + at.number("product"))

    def progress(
        self, view: ServerView, server: InteriorServer, trial: Trial, judgement: Judgement, step: Step
    ) -> tuple[Progress, Array]:
        """What has become smaller, and 0 or why the run stands still."""
        at, old = judgement.at, server.progress
        figures = jnp.stack([at.stationarity, step.gap, at.number("theta"), at.f])
        limits = jnp.array([METHOD.smaller, METHOD.smaller, METHOD.smaller, 1.0]) * old.least
        smaller = figures < limits.at[3].add(-1e-9 * (1.0 + jnp.abs(at.f)))
        # a start at the optimum without terms has the least of all figures: then a merit below the last ones counts
        lower = judgement.accepts & (trial.merit < jnp.min(server.past @ trial.weigh) - 1e-6 * trial.rise)
        idle = jnp.where(jnp.stack([smaller[0], jnp.any(smaller), jnp.any(smaller) | lower]), 0, old.idle + 1)
        close = view.all_say(at, "passed") & (step.gap <= self.gap * (1.0 + jnp.abs(at.f)))
        stall = jnp.where(idle[2] > METHOD.long_idle, NO_PROGRESS, 0)
        stall = jnp.where((idle[0] > METHOD.idle) & close, STALLED, stall)
        if view.learns:  # what L-BFGS says of the gap is too rough to end a run by
            stall = jnp.zeros((), int)
        progress = Progress(
            top=jnp.where(trial.first, trial.system.f, old.top),
            least=jnp.where(smaller, figures, old.least),
            idle=idle,
            patient=old.patient | ((idle[1] > METHOD.patient) & (at.number("violation") > self.eps2)),
        )
        return progress, stall

    def ending(self, at: System, server: InteriorServer, trial: Trial, hopeless: Array, infeasible: Array) -> Array:
        """Why the run cannot go on, or 0."""
        top = server.progress.top
        deep = at.f < top - 1e10 * (1.0 + jnp.abs(top))  # what is called unbounded
        unbounded = deep & (at.number("violation") <= self.eps2 + 1e-12 * jnp.max(jnp.abs(at.x)))  # but for rounding
        why = jnp.where(hopeless, NO_STEP, jnp.where(unbounded, UNBOUNDED, infeasible))
        return jnp.where(trial.first, jnp.where(trial.finite, 0, NOT_FINITE), why)

    def ended(self, server: InteriorServer) -> Array:
        return jnp.where(server.done, CONVERGED, jnp.where(server.ending > 0, STUCK, RUNNING))

    def parameters(self, terms: Terms, server: InteriorServer) -> Array:
        return server.base.x[: terms.dim]

    def client_multipliers(self, terms: Terms, client: SiteState) -> Array:
        return client.trial.place.multipliers

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
            "barrier": server.barrier.mu,
            "gap": server.gap,
            "step": server.damping.alpha,
        }

    def reason(self, server: InteriorServer, converged: bool, names: list[str]) -> str:
        base, ending, points = server.base, int(server.ending), int(server.inquiry.id)
        violation = f"the largest violations of all parties add up to {float(base.number('violation')):.3g}"
        if converged:
            both = f"first-order optimal and feasible to {short(self.eps1)}"
            apart = f"first-order optimal to {short(self.eps1)} and feasible to {short(self.eps2)}"
            reached = both if self.eps1 == self.eps2 else apart
            what = f"optimal to within a gap of {short(self.gap)}" if self.eps1 == np.inf else reached
            # a long step alone may follow a direction in which nothing changes, as with columns that repeat each other
            falls = float(server.step) >= METHOD.long and float(server.gap) >= 0.01 * abs(float(base.f))
            if not falls:
                return f"converged after {count(points, 'iteration')}: {what}"
            return f"converged: {what}, but the objective still falls along a long step: there may be no minimiser"
        if ending == INFEASIBLE:
            return f"no feasible point was found: {violation}"
        if ending == UNBOUNDED:
            return f"the objective is unbounded: it has fallen to {float(base.f):.3g}, and still falls"
        if ending == NOT_FINITE:
            return "the functions or their derivatives are not finite at the start; start elsewhere"
        if ending in (NO_STEP, NO_PROGRESS):
            why = "no step was found that lessens the residuals" if ending == NO_STEP else "no residual becomes smaller"
            if float(base.number("violation")) > self.eps2:
                return f"no feasible point was found from this start: {violation}, and {why}"
            return f"{why}; stationarity is {float(base.stationarity):.2g}, and {violation}{steep(base)}"
        if ending == STALLED:
            return (
                f"rounding allows no smaller residuals: stationarity is {float(base.stationarity):.2g} in the units of "
                f"the columns, {violation}, and another step would lower the objective by about "
                f"{float(server.gap):.1g}{steep(base)}"
            )
        missing = f", still waiting for {len(names) - int(server.inquiry.heard)} of {len(names)} clients"
        waiting = missing if server.inquiry.rounds else ""
        left = f"stationarity is {float(base.stationarity):.2g}, and {violation}{steep(base)}"
        return f"stopped at the limit of rounds{waiting}: {left}"


def damp(server: InteriorServer, trial: Trial, judgement: Judgement) -> tuple[Damping, Array, Array]:
    """How the next step is damped; whether it is no shortened step; and whether no shift of the matrix helps.

    A rejected step is cut to the minimum of the parabola through the merit and its slope −2·decrement at the base and
    the merit at the point; one that gets too short is replaced by the step of a shifted matrix.
    """
    old, base, accepts = server.damping, server.base, judgement.accepts
    slope = 2.0 * (server.gap - base.number("product")) * old.alpha * old.stretch
    fall = base.merit @ trial.weigh - trial.merit
    straight = ~trial.first & (old.alpha == 1.0) & (jnp.abs(fall - slope) <= 1e-3 * slope)
    stretch = jnp.where(accepts, jnp.where(straight, METHOD.longer * old.stretch, 1.0), old.stretch)
    guess = 0.5 * slope / jnp.maximum(slope - fall, 1e-300)
    cut = jnp.clip(guess, METHOD.least_cut, METHOD.most_cut)
    cut = jnp.where(trial.finite & jnp.isfinite(guess), cut, METHOD.least_cut)
    afresh = accepts | server.barrier.snapped
    alpha = jnp.where(afresh, 1.0, cut * old.alpha)
    short = alpha < METHOD.shortest
    less = jnp.where(old.shift > 1e-6, 0.1 * old.shift, 0.0)
    shift = jnp.where(short, jnp.maximum(100.0 * old.shift, 1e-3), jnp.where(accepts, less, old.shift))
    return Damping(jnp.where(short, 1.0, alpha), shift, stretch), afresh | short, short & (shift > 1e8)


def steep(base: System) -> str:
    """What very large multipliers mean, to go at the end of a sentence."""
    size = float(base.number("weight")) ** 0.5
    if size < 1e4 * (1.0 + float(base.force)):
        return ""
    return f"; multipliers have grown to {size:.1g}, so there may be none that a certificate could hold with"


# --- the round that only confirms ---


def expects(before: Array, now: Array, eps1: float) -> Array:
    """Whether the stationarity after the next full step is expected to be within eps1, from the last two."""
    return now * (now / jnp.maximum(before, 1e-300)) ** 2 <= 0.1 * eps1


@state
class Gradient:
    """A site's reply: f_i/n and its gradient."""

    f: Array
    g: Array


@dataclass(frozen=True)
class Confirmation(Accountable):
    """The kind of round in which sites send gradients alone; a point that fails is asked about again."""

    eps1: float

    def broadcast(self, terms: Terms, server: InteriorServer, draws: Array) -> Array:
        return server.x[: terms.dim]

    def local(self, terms: Terms, client: SiteState, w: Array, data: Data, key: Array) -> tuple[SiteState, Gradient]:
        shares, _ = evaluate(Party(terms), w, data)
        return client, Gradient(shares.f, shares.g)

    def account(self, terms: Terms, message: Array, reply: Gradient) -> Account:
        n = terms.clients
        g = n * np.asarray(reply.g)
        return Account(np.asarray(message), np.atleast_1d(np.max(np.abs(g), initial=0.0)), n * float(reply.f), g)

    def aggregate(self, terms: Terms, server: InteriorServer, replies: Gradient, present: Present) -> InteriorServer:
        count, inquiry = present.count, server.inquiry
        total = jax.tree.map(lambda mean: count * mean, present.mean(replies))
        value, slope = terms.regularizer.epigraph(terms.dim).smooth(server.x)
        residual = terms.regularizer.distance(server.x[: terms.dim], total.g)
        done = (count == terms.clients) & (residual <= self.eps1)
        again = replace(server, confirming=jnp.zeros((), bool))
        lag = jnp.pad(total.g, (0, slope.shape[0] - terms.dim)) + slope
        base = replace(server.base, x=server.x, f=total.f + value, lag=lag, certificate=total.g, own=server.own)
        ended = replace(again, base=base, inquiry=replace(inquiry, id=inquiry.id + 1), done=done)
        return select(done, ended, again)
