"""DRFL, AFL and WAFL by a primal-dual interior-point method in which a round is an iteration and sites send sums.

The shared variables are the model w and the adversary's weights q of the sites. A site eliminates all that is its own
(`foedus.robust.interior_site`): the price λ_s, the losses α_s of its samples, slacks and multipliers. The server adds
up what is left, solves for the steps of w and q (`robust_interior_server`), and names the next point, about which sites
answer in the same round. So that no agreement on a step length is needed, the whole step is taken, and every slack and
every multiplier of every party is held back by itself where it would leave its bounds.

The error of a point is the sum of complementarity products, plus what a Newton step towards stationarity would gain: an
estimate of how far the objective is above its minimum. A step must lessen it. Otherwise the server goes back, and takes
the longest step at which nobody had to be held back, which the sites have told as counts of those who can take each of
a few lengths. The run ends where the error is small beside the objective, at a point about which every site has spoken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.robust_interior_server import (
    Direction,
    Position,
    RobustServerView,
    RobustSums,
    agreed,
    first_shared,
    says_yes,
)
from foedus.algorithms.robust_model import RobustModel
from foedus.base.pytrees import select, state
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import CONVERGED, RUNNING, STUCK, Each, OtherForm, Present
from foedus.protocol.summing import Summing
from foedus.robust.closed import Radius
from foedus.robust.interior_polyhedron import PolyhedronPosition, PolyhedronSite
from foedus.robust.interior_proposal import propose
from foedus.robust.interior_site import RobustSite, SitePosition, SiteShare
from foedus.robust.proposal import Proposal
from foedus.robust.stress import Robust, Stress

FALLS = ((0.7, 0.1), (0.2, 0.3), (0.0, 0.8))  # μ falls to this share of the error where steps were longer than that
BEARABLE = 10.0  # times the error, at which a step that was shortened already is shortened again
SHORT = 0.05  # shares of a step below this are taken, whatever the error
STREAK = 3  # rounds that everybody must have answered before whole shares are asked for again
FALL = 0.9  # an error below this share of another one is smaller
PATIENCE = 12  # points that do not lessen the error, after which rounding has the last word
CLOSE = 1e-4  # the relative error at which that counts as converged
LEAST_SCALE = 1e-2  # of the first objective: where the optimum is all but 0, its share would ask for the impossible


@state
class Visit:
    """A place of a site, with its number among the points asked about."""

    id: Array
    place: SitePosition | PolyhedronPosition


@state
class RobustClient:
    base: Visit  # the last place that the server went on from, as far as the site knows
    trial: Visit  # the place it was asked about last
    sent: RobustSums  # what the server's sum has of this site
    whole: Array  # the number of the last point about which it sent the whole


@state
class RobustAsk:
    """The question: the share in the system at the point x with the weight m, the end of the share t of a step."""

    x: Array
    m: Each
    index: Each
    mu: Array
    t: Array
    dual: Array
    id: Array
    rejected: Array
    whole: Array


@state
class RobustReply:
    sums: RobustSums
    heard: Array  # 1 for a site's first whole share at this point
    broken: Array  # 1 where it is not finite; the site then sends nothing else


@state
class RobustServer:
    base: Position  # the last position that was accepted
    error: Array  # there
    trial: Position  # the one that is asked about
    course: Direction  # from the base to it
    t: Array
    dual: Array
    reach: Array  # the shorter of the steps at which nobody had to be held back, last time
    id: Array
    rejected: Array
    whole: Array
    fresh: RobustSums  # of the whole shares at the trial
    heard: Array
    broken: Array
    lasts: Array
    running: RobustSums  # of all sites' last shares
    streak: Array
    best: Array  # x with the least error at which everybody has spoken
    least: Array
    since: Array  # points asked about since then
    value: Array
    top: Array  # the objective at the start
    own: Data
    done: Array
    stuck: Array


@dataclass(frozen=True)
class RobustInterior(OtherForm, Robust, Summing):
    """The interior-point form of DRFL, AFL or WAFL, whose settings are `plain`."""

    plain: RobustModel  # pyright: ignore[reportIncompatibleVariableOverride]

    def desk(self, terms: Terms, own: Data) -> RobustServerView:
        return RobustServerView(terms, self.plain.form(terms), self.plain.p, own)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> RobustServer:
        own = self.plain.server_data(terms) if own is None else own
        desk = self.desk(terms, own)
        start, no, zero, count = desk.start(w0), jnp.zeros((), bool), jnp.zeros(()), jnp.zeros((), int)
        nothing, big, one = RobustSums.zero(desk.held, terms.clients), jnp.full((), jnp.inf), jnp.ones(())
        course = Direction(jnp.zeros_like(start.x), jnp.zeros_like(start.xi), zero)
        return RobustServer(
            start, big, start, course, one, one, one, count, count - 1, ~no, nothing, zero, zero, count, nothing, count,
            start.x, big, count, zero, zero, own, no, no,
        )  # fmt: skip

    def join(self, terms: Terms, data: Data, w0: Array) -> RobustClient:
        site = self.site(terms, data)
        shared = first_shared(terms, site.form, data["robust.kappa"], w0)
        blank = Visit(jnp.full((), -1), site.start(shared, site.share))
        return RobustClient(blank, blank, RobustSums.zero(site.held, terms.clients), jnp.full((), -1))

    def site(self, terms: Terms, data: Data) -> RobustSite | PolyhedronSite:
        rho = jnp.zeros(()) if self.plain.shares_lambda else data["robust.rho"]
        radius = Radius(rho, data["robust.kappa"], data["robust.low"], data["robust.high"])
        form, omega = self.plain.form(terms), terms.share(data)
        if form.polyhedral:
            within = data["robust.C"], data["robust.d"]
            return PolyhedronSite(form, data["x"], data["y"], omega, radius, data["robust.share"], *within)
        return RobustSite(form, data["x"], data["y"], omega, radius, data["robust.share"])

    def broadcast(self, terms: Terms, server: RobustServer, draws: Array) -> RobustAsk:
        desk, at = self.desk(terms, server.own), server.trial
        return RobustAsk(
            x=at.x[: desk.held],
            m=Each(desk.weights(at)),
            index=Each(jnp.arange(terms.clients)),
            mu=server.course.mu,
            t=server.t,
            dual=server.dual,
            id=server.id,
            rejected=server.rejected,
            whole=server.whole,
        )

    def local(
        self, terms: Terms, client: RobustClient, ask: RobustAsk, data: Data, key: Array
    ) -> tuple[RobustClient, RobustReply]:
        site, trial, m = self.site(terms, data), client.trial, jnp.asarray(ask.m)
        base = select((trial.id > ask.rejected) & (trial.id < ask.id), trial, client.base)
        first = ask.id == 0  # then the point is where the site has started
        at = cast(Any, base.place)  # of the kind that this site itself has made
        place, share, inverses = site.visit(at, first, ask.x, m, ask.mu, ask.t, ask.dual)
        steps = [jnp.where(first, 1.0, says_yes(inverse)) for inverse in inverses]
        sums = self.stated(terms, share, ask.x, m, jnp.asarray(ask.index), *steps)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((sums, place))]))
        heard = client.whole != ask.id
        told = jax.tree.map(
            lambda new, old: jnp.where(finite, jnp.where(ask.whole, jnp.where(heard, new, 0.0), new - old), 0.0),
            sums,
            client.sent,
        )
        visit = Visit(ask.id, place)
        whole = jnp.where(ask.whole, ask.id, client.whole)
        here = RobustClient(base, visit, sums, whole)
        unable = RobustClient(base, trial, client.sent, whole)
        reply = RobustReply(told, jnp.where(heard, 1.0, 0.0), jnp.where(finite, 0.0, 1.0))
        return select(finite, here, unable), reply

    def stated(
        self, terms: Terms, share: SiteShare, x: Array, m: Array, index: Array, primal: Array, dual: Array
    ) -> RobustSums:
        """A site's share as it is added to those of the others."""
        bent = jnp.dot(share.cross, x) - share.bend * m
        row = jnp.concatenate([share.cross, jnp.stack([share.bend, share.v, share.v_0, share.v_mu, bent])])
        return RobustSums(
            hessian=share.hessian[np.triu_indices(x.shape[0])],
            gradient=share.gradient,
            gradient_mu=share.gradient_mu,
            lag=share.lag,
            bent=share.hessian @ x + share.cross * m,
            table=jnp.zeros((terms.clients, row.shape[0])).at[index].set(row),
            numbers=jnp.stack([share.gap, share.excess, share.count]),
            primal=primal,
            dual=dual,
        )

    def aggregate(self, terms: Terms, server: RobustServer, replies: RobustReply, present: Present) -> RobustServer:
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
        fresh = jax.tree.map(jnp.add, server.fresh, total.sums)
        summed = jax.tree.map(jnp.add, server.running, total.sums)
        complete = jnp.where(server.whole, server.heard >= n, full)
        at = select(server.whole, fresh, summed)
        judged = self.judge(terms, replace(server, running=at), at, complete)
        return select(server.whole & ~complete, replace(server, fresh=fresh), judged)

    def judge(self, terms: Terms, server: RobustServer, at: RobustSums, complete: Array) -> RobustServer:
        """Go on from the position that was asked about, or back; then choose the next one."""
        desk, first = self.desk(terms, server.own), server.id == 0
        system = desk.system(server.trial, at, complete)
        finite = system.finite & (server.broken == 0)
        careful = server.t < 1.0
        # a short step may raise the error, which the next ones make up for; where the loss bends, it may be too long
        bearable = careful & ((system.error <= BEARABLE * server.error) | (server.t < SHORT))
        accept = finite & (first | bearable | (system.error <= server.error) | ~complete)
        base, error = select(accept, server.trial, server.base), jnp.where(accept, system.error, server.error)

        # the steps at which nobody would have been held back
        own_primal, own_dual, _ = desk.reach(server.base, server.course)
        primal, dual = (agreed(c, terms.clients, own) for c, own in ((at.primal, own_primal), (at.dual, own_dual)))
        primal, dual = (jnp.where(first, 1.0, step) for step in (primal, dual))
        shorter = jnp.minimum(primal, dual)
        # after a step that had to be shortened μ falls by less, or the next one would be shortened as well
        length = shorter * jnp.where(first, 1.0, server.t)
        fall = jnp.select([length > bound for bound, _ in FALLS], [share for _, share in FALLS])
        mu = fall * system.error / system.count
        (d0, xi0), (d1, xi1) = system.solve(0), system.solve(1)
        course = select(accept, Direction(d0 + mu * d1, xi0 + mu * xi1, mu), server.course)
        # a step that was careful already and still broke is shortened again
        back = jnp.where(careful, 0.3 * server.t, 1.0)
        t = jnp.where(accept, 1.0, jnp.minimum(jnp.minimum(primal, 0.9), back))
        dual = jnp.where(accept, 1.0, jnp.minimum(dual, back))
        trial = desk.step(base, course, t, dual)

        top = jnp.where(first, system.value, server.top)  # no optimum is above it, however far away the run is now
        scale = jnp.clip(jnp.abs(system.value), LEAST_SCALE * top, top)
        # what counts is a point about which everybody has spoken, and not through sums of changes alone
        exact = complete & (server.whole | (server.streak >= STREAK))
        better = accept & complete & (system.error < FALL * server.least)
        least = jnp.where(better, system.error, server.least)
        # a run that has come far away, as from a start with next to no curvature, is on its way back
        falls = accept & (system.error < FALL * server.error)
        since = jnp.where(better, 0, server.since + (complete & ~falls))
        ended = since >= PATIENCE + terms.clients
        near = finite & (system.error <= self.plain.tol * scale)
        done = near & exact
        still = ended & (least <= CLOSE * scale)
        nothing = jax.tree.map(jnp.zeros_like, server.fresh)
        # the same point again, until every site has sent its whole share there
        confirmed = replace(
            server, whole=jnp.ones((), bool), fresh=nothing, heard=jnp.zeros(()), broken=jnp.zeros(())
        )  # fmt: skip
        moving = replace(
            server,
            base=base,
            error=error,
            trial=trial,
            course=course,
            t=t,
            dual=dual,
            reach=shorter,
            id=server.id + 1,
            rejected=jnp.where(accept, server.rejected, server.id),
            whole=jnp.where(server.whole, server.lasts <= 1, server.streak >= STREAK),
            fresh=nothing,
            heard=jnp.zeros(()),
            broken=jnp.zeros(()),
            lasts=jnp.zeros((), int),
            best=jnp.where(better | done, server.trial.x, server.best),
            least=least,
            since=since,
            value=jnp.where(accept, system.value, server.value),
            top=top,
            done=done | still,
            stuck=ended & ~still,
        )
        return select(near & ~exact, confirmed, moving)

    def ended(self, server: RobustServer) -> Array:
        return jnp.where(server.done, CONVERGED, jnp.where(server.stuck, STUCK, RUNNING))

    def parameters(self, terms: Terms, server: RobustServer) -> Array:
        return server.best[: terms.dim]

    def report(self, server: RobustServer) -> dict[str, Array]:
        return {"worst_case": server.value, "gap": server.error, "barrier": server.course.mu, "step": server.reach}

    def reason(self, server: RobustServer, converged: bool, names: list[str]) -> str:
        error = float(server.least)
        if converged:
            return f"estimated distance to the optimum {error:.2g} of {float(server.value):.4g}"
        if not np.isfinite(error):
            return "stopped at the limit of rounds before all clients had answered about one point"
        if bool(server.stuck):
            return f"no step comes nearer to the optimum than an estimated {error:.2g}"
        return f"stopped at the limit of rounds with an estimated distance to the optimum of {error:.2g}"

    def stress(self, problem: Problem, w: np.ndarray, proposals: Sequence[Proposal] | None = None) -> Stress:
        """The worst case of the returned model, client by client."""
        return self.plain.stress(problem, w, proposals)

    def propose(self, terms: Terms, server: RobustServer, clients: Sequence[RobustClient]) -> list[Proposal]:
        """What the worst case does at each client: the multipliers at the last point that was accepted."""
        form = self.plain.form(terms)
        shared = server.base.of_x if form.shares_lambda and not form.polyhedral else None
        visits = [c.trial if int(c.trial.id) > int(server.rejected) else c.base for c in clients]
        return [propose(form, terms.dim, visit.place, shared) for visit in visits]
