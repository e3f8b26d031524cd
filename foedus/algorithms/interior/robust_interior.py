"""DRFL, AFL and WAFL by a primal-dual interior-point method in which a round is an iteration and sites send sums.

The robust problem is the saddle  min over w, max over q in Q  of  Σ_s q_s V_s(w) + h(w), with q = q̂ + θξ. The server
holds x = (w, …) and ξ. A site eliminates all that is its own (`robust_site`): the price λ_s, the losses α_s of its
samples, slacks and multipliers. The server's own rows are those of Q in ξ: q ≥ 0 and ‖ξ‖_p ≤ 1, with |ξ| ≤ τ where
p = 1; and in x those of a regulariser, and of the norm of w where λ is shared. From the sites come sums alone: their
matrix K over x, vectors, and a table in which only row s is site s's, with the row and the column of q_s in the shared
matrix.

    [ K + rows        Bᵀ       ] [dx]      [ r_x ]
    [    B      −(C + rows)    ] [dξ]  = − [ r_ξ ],    eᵀdξ = 0,     B = θ·∂V/∂x,  C = θ²·diag(bend)

is solved by eliminating ξ: what is left is positive definite, and is scaled to a unit diagonal, so that nothing depends
on the units of the columns. The server names the next point, about which sites answer in the same round. So that no
agreement on a step length is needed, the whole step is taken, and every slack and every multiplier of every party is
held back by itself where it would leave its bounds.

The error of a point is the sum of complementarity products, plus what a Newton step towards stationarity would gain: an
estimate of how far the objective is above its minimum. A step must lessen it. Otherwise the server goes back, and takes
the longest step at which nobody had to be held back, which the sites have told as counts of those who can take each of
a few lengths. The run ends where the error is small beside the objective, at a point about which every site has spoken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.algorithms.interior.robust_polyhedron import PolyhedronPosition, PolyhedronSite
from foedus.algorithms.interior.robust_rows import (
    Multipliers,
    SampleRows,
    SampleRowSums,
    along,
    balanced,
    blocked,
    blocked_dual,
    centred,
    change,
    kept_share,
    lifted,
    paired,
    row_sums,
)
from foedus.algorithms.interior.robust_site import RobustSite, SitePosition, SiteShare
from foedus.algorithms.interior.rounds import Inquiry, Question, Reply, SiteState, collect, reply_of
from foedus.algorithms.robust_model import RobustModel
from foedus.base.pytrees import select, state
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.problem import losses
from foedus.problem.problem import Problem
from foedus.problem.regularizers import Box, ElasticNet, Regularizer, Zero
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import CONVERGED, RUNNING, STUCK, Each, OtherForm, Present
from foedus.protocol.summing import Summing
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.proposal import Proposal
from foedus.robust.stress import Robust, Stress

SHIFT = 1e-14  # added to the unit diagonal of a scaled matrix: a rounding error
GRID = np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02])  # steps that sites say yes or no to
TABLE = ("bend", "v", "v_0", "v_mu", "image")  # what the table has beside the row ∂V/∂x
NUMBERS = ("gap", "excess", "count")


# --- the server's system ---


@state
class RobustSums:
    """The sites' shares in the system, added up; or one site's, whose row of the table is its own."""

    hessian: Array  # over the shared variables, its upper triangle
    gradient: Array
    gradient_mu: Array
    lag: Array
    image: Array  # K_s·x_s + cross_s·m_s, with which a silent site's share is brought to a new point
    table: Array  # (clients, shared + TABLE)
    numbers: Array  # NUMBERS
    primal: Array  # how many sites say yes to each primal step of GRID
    dual: Array

    @staticmethod
    def zero(n_common: int, clients: int) -> "RobustSums":
        vector, steps = jnp.zeros(n_common), jnp.zeros(len(GRID))
        return RobustSums(
            jnp.zeros(n_common * (n_common + 1) // 2), vector, vector, vector, vector,
            jnp.zeros((clients, n_common + len(TABLE))), jnp.zeros(len(NUMBERS)), steps, steps,
        )  # fmt: skip


@state
class Position:
    """Where the server is: x, ξ (with τ), and the multipliers of its rows."""

    x: Array
    xi: Array
    of_x: Multipliers
    of_xi: Multipliers


@state
class Direction:
    dx: Array
    dxi: Array
    mu: Array


@state
class RobustSystem:
    """The shared system at a position, from all parties."""

    scale: Array
    lower: Array  # of what is left of the matrix in x
    B: Array
    inverse: Array  # of C with its rows, upon eᵀξ = 0
    r_x: tuple[Array, Array, Array]  # towards μ = 0, per unit of μ, and as multipliers are
    r_xi: tuple[Array, Array, Array]
    value: Array  # the objective
    error: Array  # the complementarity products, added up, and what a step towards stationarity would gain
    count: Array  # the sum of the products' weights

    def solve(self, k: int) -> tuple[Array, Array]:
        """The Newton step for the k-th of the right-hand sides."""
        r_x, r_xi = self.r_x[k], self.r_xi[k]
        right = self.scale * (r_x + self.B.T @ (self.inverse @ r_xi))
        dx = -self.scale * cholesky_solve(self.lower, right)
        return dx, self.inverse @ (r_xi + self.B @ dx)

    @property
    def finite(self) -> Array:
        return jnp.isfinite(self.error) & jnp.isfinite(self.lower[-1, -1])


def takes(h: Regularizer) -> bool:
    """Whether the method has rows for a regulariser."""
    return isinstance(h, Zero | ElasticNet) or (isinstance(h, Box) and h.low < h.high)


def first_shared(terms: Terms, form: EpigraphForm, kappa: Array, w0: Array) -> Array:
    """The shared variables at the start, as all parties know them: w0, inside the box of a regulariser."""
    h = terms.regularizer
    if isinstance(h, Box):
        width = 0.1 * min(h.high - h.low, 10.0)
        w0 = jnp.clip(w0, h.low + width, h.high - width)
    none = jnp.zeros(0)
    return form.start(terms.dim, w0, Radius(jnp.zeros(()), kappa, none, none)) if form.shares_lambda else w0


@dataclass(frozen=True)
class RobustServerView:
    """What the server knows: the terms, the form of the sites' problem, the norm of Q, and its numbers in `own`."""

    terms: Terms
    form: EpigraphForm
    p: Any
    own: Data

    @property
    def n_common(self) -> int:
        """How many variables the sites share."""
        return self.form.size(self.terms.dim) if self.form.shares_lambda else self.terms.dim

    @property
    def absolute(self) -> bool:
        """Whether variables t ≥ |w| stand for an ℓ1 norm."""
        h = self.terms.regularizer
        return isinstance(h, ElasticNet) and h.lam1 > 0

    @property
    def size(self) -> int:
        return self.n_common + (self.terms.dim if self.absolute else 0)

    @property
    def nu(self) -> float:
        """The barrier's weight of the server's rows.

        With 1/S, as of one site each, q comes so near to its bounds that steps get short: with ten sites, 61 rounds in
        place of 25.
        """
        return 1.0

    @property
    def of_x(self) -> SampleRows:
        """The rows in x."""
        dim, n, h = self.terms.dim, self.size, self.terms.regularizer
        eye = jnp.eye(n)
        G, g, S = [jnp.zeros((0, n))], [jnp.zeros(0)], jnp.zeros((0, n))
        if self.form.shares_lambda:
            ends = jnp.zeros(dim - self.form.ball.intercept if self.form.box else 0)
            maps = self.form.maps(dim, Radius(jnp.zeros(()), self.own["robust.kappa"], ends, ends))
            rest = ((0, 0), (0, n - self.n_common))
            G, g, S = [jnp.pad(maps.G, rest)], [maps.g], jnp.pad(maps.S, rest)
        if self.absolute:
            t = eye[self.n_common :]
            G, g = [*G, t - eye[:dim], t + eye[:dim]], [*g, jnp.zeros(2 * dim)]
        if isinstance(h, Box):
            for sign, end in ((1.0, h.low), (-1.0, h.high)):
                if np.isfinite(end):
                    G, g = [*G, sign * eye[:dim]], [*g, jnp.full(dim, -sign * end)]
        return SampleRows(jnp.concatenate(G), jnp.concatenate(g), S, jnp.zeros(S.shape[0]))

    @property
    def of_xi(self) -> SampleRows:
        """The rows of Q in ξ, with τ where p = 1."""
        n = self.terms.clients
        size = 2 * n if self.p == 1 else n
        xi, none = jnp.eye(size)[:n], jnp.zeros((0, size))
        G, g = [self.own["robust.theta"] * xi], [self.own["robust.q_hat"]]
        S, h = none, jnp.zeros(0)
        if self.p == 1:
            tau = jnp.eye(size)[n:]
            G += [tau - xi, tau + xi, -jnp.sum(tau, axis=0)[None]]
            g += [jnp.zeros(2 * n), jnp.ones(1)]
        elif self.p == "inf":
            G, g = [*G, -xi, xi], [*g, jnp.ones(2 * n)]
        else:
            S, h = jnp.concatenate([jnp.zeros((1, n)), xi]), jnp.zeros(n + 1).at[0].set(1.0)
        return SampleRows(jnp.concatenate(G), jnp.concatenate(g), S, h)

    def weights(self, at: Position) -> Array:
        """q = q̂ + θξ."""
        return self.own["robust.q_hat"] + self.own["robust.theta"] * at.xi[: self.terms.clients]

    def start(self, w0: Array) -> Position:
        """An interior position at w0."""
        n = self.terms.clients
        x = first_shared(self.terms, self.form, self.own["robust.kappa"], w0)
        if self.absolute:
            x = jnp.concatenate([x, jnp.abs(w0) + 1.0])
        xi, nu = jnp.zeros(n), jnp.asarray(self.nu)
        if self.p == 1:
            xi = jnp.concatenate([xi, jnp.full(n, 0.5 / n)])
        return Position(x, xi, centred(self.of_x, x, nu), centred(self.of_xi, xi, nu))

    def cost(self, x: Array) -> tuple[Array, Array, Array]:
        """The server's own part in the objective, with gradient and the diagonal of the Hessian."""
        dim, h = self.terms.dim, self.terms.regularizer
        c, bend = jnp.zeros(self.size), jnp.zeros(self.size)
        if self.form.shares_lambda:
            c = c.at[dim].set(self.own["robust.price"])
        if isinstance(h, ElasticNet):
            c = c.at[self.n_common :].set(h.lam1)
            bend = bend.at[:dim].set(h.lam2)
        return jnp.dot(c, x) + 0.5 * jnp.dot(bend, x**2), c + bend * x, bend

    def system(self, at: Position, sums: RobustSums, complete: Array) -> RobustSystem:
        """The system at a position; where not all sites spoke of it, the silent ones' shares are brought to it."""
        n, n_common, size = self.terms.clients, self.n_common, self.size
        theta, q, x = self.own["robust.theta"], self.weights(at), at.x[: self.n_common]
        upper = np.triu_indices(n_common)
        K = jnp.zeros((n_common, n_common)).at[upper].set(sums.hessian)
        K = K + K.T - jnp.diag(jnp.diag(K))
        cross = sums.table[:, :n_common]
        bend, v, v_0, v_mu, image = sums.table[:, n_common:].T
        drift = jnp.where(complete, 0.0, K @ x + cross.T @ q - sums.image)
        shift = jnp.where(complete, 0.0, cross @ x - bend * q - image)
        v, v_0 = v + shift, v_0 + shift
        rest = (0, size - n_common)
        own, gradient, ridge = self.cost(at.x)
        rows: SampleRowSums = row_sums(self.of_x, at.x, at.of_x, jnp.asarray(self.nu))
        A = jnp.pad(K, rest) + jnp.diag(ridge) + rows.hessian
        r_x = (
            jnp.pad(sums.gradient + drift, rest) + gradient,
            jnp.pad(sums.gradient_mu, rest) + rows.pull_mu,
            jnp.pad(sums.lag + drift, rest) + gradient + rows.pull,
        )
        more = at.xi.shape[0] - n
        weights: SampleRowSums = row_sums(self.of_xi, at.xi, at.of_xi, jnp.asarray(self.nu))
        C = jnp.diag(jnp.pad(theta**2 * bend, (0, more))) + weights.hessian
        B = jnp.pad(theta * cross, ((0, more), rest))
        r_xi = (
            jnp.pad(theta * v_0, (0, more)),
            jnp.pad(theta * v_mu, (0, more)) - weights.pull_mu,
            jnp.pad(theta * v, (0, more)) - weights.pull,
        )
        inverse = _inverse_upon(C, jnp.pad(jnp.ones(n), (0, more)))
        whole = A + B.T @ inverse @ B
        diagonal = jnp.diag(whole)
        top = jnp.max(diagonal)
        top = jnp.where(top > 0, top, 1.0)  # 0 where every column is
        scale = 1.0 / jnp.sqrt(jnp.maximum(diagonal, 1e-30 * top))
        lower = cholesky(whole * scale[:, None] * scale + SHIFT * jnp.eye(size))
        gap, excess, count = sums.numbers
        gap = gap + rows.gap + weights.gap
        count = count + self.nu * (self.of_x.count + self.of_xi.count)
        system = RobustSystem(
            scale=scale,
            lower=lower,
            B=B,
            inverse=inverse,
            r_x=r_x,
            r_xi=r_xi,
            value=jnp.dot(q, v) + own,
            error=gap + excess,
            count=count,
        )
        dx, dxi = system.solve(2)
        gain = 0.5 * jnp.dot(dx, A @ dx) + 0.5 * jnp.dot(dxi, C @ dxi)
        return replace(system, error=system.error + gain)

    def reach(self, at: Position, d: Direction) -> tuple[Array, Array, tuple[Multipliers, Multipliers]]:
        """The inverses of the longest steps of the server's own, and the steps of its multipliers."""
        nu = jnp.asarray(self.nu)
        of_x = change(self.of_x, at.x, at.of_x, d.dx, d.mu, nu)
        of_xi = change(self.of_xi, at.xi, at.of_xi, d.dxi, d.mu, nu)
        primal = jnp.maximum(blocked(self.of_x, at.x, d.dx), blocked(self.of_xi, at.xi, d.dxi))
        dual = jnp.maximum(blocked_dual(at.of_x, of_x), blocked_dual(at.of_xi, of_xi))
        return primal, dual, (of_x, of_xi)

    def step(self, at: Position, d: Direction, t: Array, dual: Array) -> Position:
        """The position after the share t of a step, and `dual` of the multipliers' steps."""
        dim, h, rows, rest = self.terms.dim, self.terms.regularizer, self.of_x, kept_share(t)
        _, _, (of_x, of_xi) = self.reach(at, d)
        x = at.x + t * d.dx
        if isinstance(h, Box):  # each coordinate keeps its distance from the ends by itself
            w = jnp.clip(x[:dim], h.low + rest * (at.x[:dim] - h.low), h.high - rest * (h.high - at.x[:dim]))
            x = x.at[:dim].set(w)
        lam = dim if self.form.shares_lambda and self.form.robust else None
        if self.size > dim:
            x = lifted(rows, at.x, x, rest, dim if lam is None else dim + 1, lam)
        way = jnp.minimum(t, METHOD.edge / jnp.maximum(blocked(self.of_xi, at.xi, d.dxi), METHOD.edge))
        of_x = along(at.of_x, of_x, dual, rest)
        if lam is not None:
            of_x = balanced(self.form, of_x, dim)
        if self.absolute:
            assert isinstance(h, ElasticNet)
            of_x = paired(of_x, rows.G.shape[0] - 2 * dim, dim, jnp.asarray(h.lam1))
        of_xi = along(at.of_xi, of_xi, dual, rest)
        if self.p == 1:
            n = self.terms.clients
            of_xi = paired(of_xi, n, n, of_xi.z[-1])
        return Position(x, at.xi + way * d.dxi, of_x, of_xi)


def _inverse_upon(C: Array, e: Array) -> Array:
    """The inverse of C on the vectors with eᵀξ = 0."""
    scale = 1.0 / jnp.sqrt(jnp.diag(C))
    lower = cholesky(C * scale[:, None] * scale + SHIFT * jnp.eye(C.shape[0]))
    inverse = scale[:, None] * cholesky_solve(lower, jnp.diag(scale))
    along_e = inverse @ e
    return inverse - jnp.outer(along_e, along_e) / jnp.dot(e, along_e)


def agreed(counts: Array, parties: int, own: Array) -> Array:
    """The longest step of GRID that all parties say yes to, and that the server's own rows allow."""
    all_yes = (jnp.round(counts) >= parties) & says_yes(own)
    return jnp.max(jnp.where(all_yes, jnp.asarray(GRID), 0.01))  # a short step where nobody says yes


def says_yes(inverse: Array) -> Array:
    """Which of GRID's steps stay inside, given the inverse of the longest one."""
    return jnp.asarray(GRID) * inverse <= METHOD.allowed


# --- the method ---


@state
class RobustAsk:
    """The question: the share in the system at the point x with the weight m, the end of the share t of a step."""

    about: Question
    x: Array
    m: Each
    index: Each
    mu: Array
    t: Array
    dual: Array


@state
class RobustServer:
    inquiry: Inquiry
    base: Position  # the last position that was accepted
    error: Array  # there
    trial: Position  # the one that is asked about
    course: Direction  # from the base to it
    t: Array
    dual: Array
    reach: Array  # the shorter of the steps at which nobody had to be held back, last time
    best: Array  # x with the least error at which everybody has spoken
    least: Array
    since: Array  # points asked about since then
    value: Array
    top: Array  # the objective at the start
    own: Data
    done: Array
    stuck: Array


@state
class Reach:
    """The steps at which nobody would have been held back."""

    primal: Array
    dual: Array

    @property
    def shorter(self) -> Array:
        return jnp.minimum(self.primal, self.dual)


@dataclass(frozen=True)
class RobustInterior(OtherForm, Robust, Summing):
    """The interior-point form of DRFL, AFL or WAFL, whose settings are `plain`."""

    plain: RobustModel  # pyright: ignore[reportIncompatibleVariableOverride]

    def view(self, terms: Terms, own: Data) -> RobustServerView:
        return RobustServerView(terms, self.plain.form(terms), self.plain.p, own)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> RobustServer:
        own = self.plain.server_data(terms) if own is None else own
        view = self.view(terms, own)
        start, no, infinite, one = view.start(w0), jnp.zeros((), bool), jnp.full((), jnp.inf), jnp.ones(())
        return RobustServer(
            inquiry=Inquiry.first(RobustSums.zero(view.n_common, terms.clients)),
            base=start,
            error=infinite,
            trial=start,
            course=Direction(jnp.zeros_like(start.x), jnp.zeros_like(start.xi), jnp.zeros(())),
            t=one,
            dual=one,
            reach=one,
            best=start.x,
            least=infinite,
            since=jnp.zeros((), int),
            value=jnp.zeros(()),
            top=jnp.zeros(()),
            own=own,
            done=no,
            stuck=no,
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> SiteState:
        site = self.site(terms, data)
        common = first_shared(terms, site.form, data["robust.kappa"], w0)
        return SiteState.before(site.start(common, site.share), RobustSums.zero(site.n_common, terms.clients))

    def site(self, terms: Terms, data: Data) -> RobustSite | PolyhedronSite:
        rho = jnp.zeros(()) if self.plain.shares_lambda else data["robust.rho"]
        radius = Radius(rho, data["robust.kappa"], data["robust.low"], data["robust.high"])
        form, omega = self.plain.form(terms), terms.share(data)
        if form.polyhedral:
            within = data["robust.C"], data["robust.d"]
            return PolyhedronSite(form, data["x"], data["y"], omega, radius, data["robust.share"], *within)
        return RobustSite(form, data["x"], data["y"], omega, radius, data["robust.share"])

    def broadcast(self, terms: Terms, server: RobustServer, draws: Array) -> RobustAsk:
        view, at = self.view(terms, server.own), server.trial
        return RobustAsk(
            about=server.inquiry.question,
            x=at.x[: view.n_common],
            m=Each(view.weights(at)),
            index=Each(jnp.arange(terms.clients)),
            mu=server.course.mu,
            t=server.t,
            dual=server.dual,
        )

    def local(self, terms: Terms, client: SiteState, ask: RobustAsk, data: Data, key: Array) -> tuple[SiteState, Reply]:
        site, start, m = self.site(terms, data), client.start(ask.about), jnp.asarray(ask.m)
        first = ask.about.id == 0  # then the point is where the site has started
        at = cast(Any, start.place)  # of the kind that this site itself has made
        place, share, inverses = site.visit(at, first, ask.x, m, ask.mu, ask.t, ask.dual)
        steps = [jnp.where(first, 1.0, says_yes(inverse)) for inverse in inverses]
        sums = self.stated(terms, share, ask.x, m, jnp.asarray(ask.index), *steps)
        return reply_of(client, ask.about, ask.about.id, start, start, place, sums)

    def stated(
        self, terms: Terms, share: SiteShare, x: Array, m: Array, index: Array, primal: Array, dual: Array
    ) -> RobustSums:
        """A site's share as it is added to those of the others."""
        image = jnp.dot(share.cross, x) - share.bend * m
        row = jnp.concatenate([share.cross, jnp.stack([share.bend, share.v, share.v_0, share.v_mu, image])])
        return RobustSums(
            hessian=share.hessian[np.triu_indices(x.shape[0])],
            gradient=share.gradient,
            gradient_mu=share.gradient_mu,
            lag=share.lag,
            image=share.hessian @ x + share.cross * m,
            table=jnp.zeros((terms.clients, row.shape[0])).at[index].set(row),
            numbers=jnp.stack([share.gap, share.excess, share.count]),
            primal=primal,
            dual=dual,
        )

    def aggregate(self, terms: Terms, server: RobustServer, replies: Reply, present: Present) -> RobustServer:
        inquiry, complete, waits, waiting = collect(server.inquiry, replies, present, terms.clients)
        judgement = self.judge(terms, replace(server, inquiry=inquiry), complete)
        return select(waits, replace(server, inquiry=waiting), judgement)

    def judge(self, terms: Terms, server: RobustServer, complete: Array) -> RobustServer:
        """Go on from the position that was asked about, or back; then choose the next one."""
        view, inquiry = self.view(terms, server.own), server.inquiry
        system = view.system(server.trial, inquiry.running, complete)
        finite = system.finite & (inquiry.broken == 0)
        accepts = self.accept(server, system, finite, complete)
        reach = self.reach(view, server)
        moving = self.advance(view, server, system, accepts, reach)
        return self.stop(terms, server, moving, system, finite, accepts, complete)

    def accept(self, server: RobustServer, system: RobustSystem, finite: Array, complete: Array) -> Array:
        """Whether the position lessens the error."""
        # a short step may raise the error, which the next ones make up for; where the loss bends, it may be too long
        bearable = (system.error <= METHOD.bearable * server.error) | (server.t < 0.05)
        lessens = (system.error <= server.error) | ((server.t < 1.0) & bearable)
        return finite & ((server.inquiry.id == 0) | lessens | ~complete)

    def reach(self, view: RobustServerView, server: RobustServer) -> Reach:
        """The steps that all parties say yes to."""
        first, at, clients = server.inquiry.id == 0, server.inquiry.running, view.terms.clients
        own_primal, own_dual, _ = view.reach(server.base, server.course)
        primal, dual = (agreed(c, clients, own) for c, own in ((at.primal, own_primal), (at.dual, own_dual)))
        return Reach(*(jnp.where(first, 1.0, step) for step in (primal, dual)))

    def advance(
        self, view: RobustServerView, server: RobustServer, system: RobustSystem, accepts: Array, reach: Reach
    ) -> RobustServer:
        """The server with the barrier's μ, the direction, the length of the step, and the next position."""
        base, error = select(accepts, server.trial, server.base), jnp.where(accepts, system.error, server.error)
        # after a step that had to be shortened μ falls by less, or the next one would be shortened as well
        length = reach.shorter * jnp.where(server.inquiry.id == 0, 1.0, server.t)
        falls = METHOD.falls_after
        fall = jnp.select([length > bound for bound, _ in falls], [share for _, share in falls])
        mu = fall * system.error / system.count
        (d0, xi0), (d1, xi1) = system.solve(0), system.solve(1)
        course = select(accepts, Direction(d0 + mu * d1, xi0 + mu * xi1, mu), server.course)
        # a step that was careful already and still broke is shortened again
        back = jnp.where(server.t < 1.0, 0.3 * server.t, 1.0)
        t = jnp.where(accepts, 1.0, jnp.minimum(jnp.minimum(reach.primal, 0.9), back))
        dual = jnp.where(accepts, 1.0, jnp.minimum(reach.dual, back))
        return replace(
            server,
            base=base,
            error=error,
            trial=view.step(base, course, t, dual),
            course=course,
            t=t,
            dual=dual,
            reach=reach.shorter,
            value=jnp.where(accepts, system.value, server.value),
        )

    def stop(
        self, terms: Terms, server: RobustServer, moving: RobustServer, system: RobustSystem, finite: Array,
        accepts: Array, complete: Array,
    ) -> RobustServer:  # fmt: skip
        """The next server: at the next position, or about to ask about the same one again; and whether the run ends."""
        inquiry = server.inquiry
        # no optimum is above the first objective, however far away the run is now
        top = jnp.where(inquiry.id == 0, system.value, server.top)
        # where the optimum is all but 0, a share of it would ask for the impossible
        scale = jnp.clip(jnp.abs(system.value), 1e-2 * top, top)
        # what counts is a point about which everybody has spoken
        better = accepts & complete & (system.error < METHOD.improved * server.least)
        least = jnp.where(better, system.error, server.least)
        # a run that has come far away, as from a start with next to no curvature, is on its way back
        falls = accepts & (system.error < METHOD.improved * server.error)
        since = jnp.where(better, 0, server.since + (complete & ~falls))
        ended = since >= METHOD.patience + terms.clients
        sure = complete & inquiry.exact
        near = finite & (system.error <= self.plain.tol * scale)
        done = near & sure
        still = ended & (least <= 1e-4 * scale)  # rounding has the last word, and the error is small
        moving = replace(
            moving,
            inquiry=inquiry.next(accepts),
            best=jnp.where(better | done, server.trial.x, server.best),
            least=least,
            since=since,
            top=top,
            done=done | still,
            stuck=ended & ~still,
        )
        return select(near & ~sure, replace(server, inquiry=inquiry.again()), moving)

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

    def propose(self, terms: Terms, server: RobustServer, clients: Sequence[SiteState]) -> list[Proposal]:
        """What the worst case does at each client: the multipliers at the last point that was accepted."""
        form = self.plain.form(terms)
        common = server.base.of_x if form.shares_lambda and not form.polyhedral else None
        visits = [c.trial if int(c.trial.id) > int(server.inquiry.rejected) else c.base for c in clients]
        return [propose(form, terms.dim, visit.place, common) for visit in visits]


def propose(
    form: EpigraphForm, dim: int, place: SitePosition | PolyhedronPosition, common: Multipliers | None
) -> Proposal:
    """The proposal of one site, whose arrays are NumPy's.

    Args:
        form: the program that the site solves.
        dim: the number of columns of X.
        place: where the site ended.
        common: the multipliers of the rows in λ where λ is the server's, and then counts with weight 1.
    """
    weight = float(place.m)
    if isinstance(place, PolyhedronPosition):
        z, metric = place.iterate.z, form.ball.metric
        lane, side = (np.asarray(pair[0]) - np.asarray(pair[1]) for pair in (z.lane, z.side))
        parts = {"l1": [lane], "l2": [-np.asarray(z.cone)[1:], lane], "linf": [side, lane]}[metric]
        return Proposal(weight, np.asarray(z.piece) / weight, None, np.zeros((1, 0)), np.concatenate(parts) / weight)
    mass, slope = np.asarray(place.z) / weight, None
    if len(mass) and not isinstance(form.ball.loss, losses.Pinball):
        mass = mass[1:]  # the first piece is 0, or what the sample would lose anyway
    if isinstance(form.ball.loss, losses.Huber):
        slope = np.asarray(place.alpha)[0]
    rows, unit = (place.rows, weight) if common is None else (common, 1.0)
    return Proposal(weight, mass, slope, total_move(form, dim, np.asarray(rows.z), np.asarray(rows.q)) / unit, None)


def total_move(form: EpigraphForm, dim: int, z: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Mass times displacement, from the multipliers of the rows ‖r‖_* ≤ λ as `EpigraphForm.maps` orders them."""
    width, ball = dim - form.ball.intercept, form.ball
    if not form.robust:
        return np.zeros((1, width))
    first = int(not ball.classifies)
    if form.box:
        starts = [first + 4 * width * k for k in range(form.clips)]
        return np.stack([z[k : k + width] - z[k + width : k + 2 * width] for k in starts])
    if ball.metric == "l2":
        return -q[None, 1:]
    up, down = z[first : first + width], z[first + width : first + 2 * width]
    return (up - down)[None] / (ball.lipschitz if ball.metric == "linf" else 1.0)
