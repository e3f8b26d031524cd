"""ProxAL: a proximal augmented Lagrangian method for local, global and coupled constraints (PAL Algorithm 1).

Outer step k, τ_k = s̄/(k+1)²: find w^{k+1} with dist_∞(0, ∂ℓ_k(w^{k+1})) ≤ τ_k, where ℓ_k = Σ_{i=0}^n P_{i,k} + h and
    P_{i,k}(w) = f_i(w)/n + (‖[μ_i + βc_i(w)]₊‖² − ‖μ_i‖²)/(2β) + ‖w − w^k‖²/(2(n+1)β);
then each owner sets μ_i ← [μ_i + βc_i(w^{k+1})]₊. Stop when ‖w^{k+1} − w^k‖_∞ + βτ_k ≤ βε1 and max ‖Δμ_i‖_∞ ≤ βε2.

With β = "auto" it is β_k, which starts at 10. It is multiplied by a factor, the pace, after an outer step that left
more than SHRINK of the stationarity ‖w^{k+1} − w^k‖_∞/β_k or of the violation, as long as subproblems stay cheap. Few
subproblems are solved then, each from a point near its solution. With β_k that never falls it still is the proximal
method of multipliers (Rockafellar 1976), and the stopping test with β_k for β gives the same certificate.

Three inner methods (`AdmmInner` in admm.py, `NewtonInner` in proxal_newton.py with and without Hessians) solve the
subproblem to the same τ_k. In an outer round the
server sends w^{k+1} to the clients, and each answers with ‖Δμ_i‖_∞ and its first reply of the next subproblem, so that
no round is spent on starting it. The outer round is repeated until every client has answered: because every client
takes every dual step, the certificate covers all clients, whoever was silent in between. The replies also carry the
figures of two further tests: the gradient of the squared violations, which vanishes where the terms cannot be met, and
each client's part in the coupled rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.admm import AdmmInner, LocalP, Status
from foedus.algorithms.lagrangian import (
    Excess,
    Party,
    Piece,
    Share,
    equalities,
    excess,
    full_regularizer,
    piece,
    refuse_kinks,
    share,
    violation,
)
from foedus.algorithms.proxal_newton import NewtonInner
from foedus.base.pytrees import PyTree, select, state
from foedus.base.settings import setting, settings
from foedus.certificate.contradiction import reach
from foedus.privacy.releasing import NotPrivate
from foedus.problem.pooled import pool
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import CONVERGED, RUNNING, STUCK, Each, Fit, Kind, Present
from foedus.protocol.constrained import Constrained

START, MOST = 10.0, 1e7  # the first and the largest β = "auto"
SHRINK = 0.25  # an outer step that leaves more than this of a residual was slow
CHEAP, GRADIENT_ROUNDS = 10, 100  # rounds of a subproblem after which β may still grow, with Hessians or without
DEEP = 1e7  # an objective that has fallen by this share of 1 + |f| is called unbounded
STALLS = 3  # subproblems in a row that ended above their tolerance, after which the method gives up
NO_PROGRESS = 0.99  # a violation that is still above this share of that three outer points ago does not shrink
GROWTH = 3.0  # the first factor by which β = "auto" grows; its square root after each subproblem that was not cheap
SEARCH = 1e10  # the β of a subproblem in which the violations alone count
FAR = 1e3  # terms that no point within so many units of its columns meets are called infeasible
PAST = 3  # outer points over which the violation has to shrink
AHEAD, UNDER_WAY, OVER = 0, 1, 2

RELEASES = {
    "newton": "the value, gradient and Hessian of its augmented Lagrangian (Newton steps)",
    "lbfgs": "the value and gradient of its augmented Lagrangian (L-BFGS steps)",
    "admm": "the solution of its augmented subproblem (ADMM steps)",
}


@state
class OuterProgress:
    """The progress of the outer loop: step counter, residuals, and whether it has finished or given up."""

    k: Array  # the number of the point that is announced, or of the subproblem that is being solved
    dw: Array  # ‖w^k − w^{k−1}‖_∞
    dmu: Array  # max_i ‖μ_i^k − μ_i^{k−1}‖_∞, the server's included
    product: Array  # max |μ·c|
    violations: Array  # at the last outer points, newest first
    least: Array  # the smallest violation of all outer points
    least_at: Array  # the client whose row it was; n stands for the server
    rounds: Array  # that the present subproblem has taken
    residual: Array  # ‖w^k − w^{k−1}‖_∞/β when β was last considered
    violation: Array  # the violation at w^k then
    pace: Array  # the factor by which β grows
    left: Array  # the residual of the last subproblem
    top: Array  # f at the first outer point
    deep: Array  # whether f has fallen so far below it that it is called unbounded
    stalls: Array  # subproblems in a row that ended above their tolerance
    search: Array  # the state of the search for evidence: AHEAD, UNDER_WAY or OVER
    resume: Array  # the β with which the run goes on after it
    finished: Array  # whether the stopping test holds
    gave_up: Array  # whether the terms seem infeasible, or max_outer is reached

    @staticmethod
    def blank() -> "OuterProgress":
        """The progress before the first outer step."""
        far, none, no = jnp.full((), jnp.inf), jnp.zeros((), int), jnp.zeros((), bool)
        return OuterProgress(
            none, far, far, far, jnp.full(PAST, jnp.inf), far, none, none, far, far, jnp.full((), GROWTH), far,
            far, no, none, none, far, no, no,
        )  # fmt: skip


@state
class Account:
    """A client's figures at the point w^k."""

    dmu: Array  # ‖Δμ_i‖_∞
    product: Array  # |μ·c|_∞
    excess: Excess
    share: PyTree  # its part in the coupled rows; () without any

    @staticmethod
    def blank(clients: int, size: int, coupled: int) -> "Account":
        """The table of all clients' accounts before anybody has answered, for points of this size."""
        each = jnp.zeros((clients, coupled))
        return Account(
            dmu=jnp.zeros(clients),
            product=jnp.zeros(clients),
            excess=Excess(jnp.zeros(clients), jnp.zeros((clients, size)), jnp.zeros((clients, size))),
            share=Share(each, each, jnp.zeros(clients)) if coupled else (),
        )


@state
class ProxalServer:
    """The server's state."""

    w: Array  # (w, s): the point that the next message is about
    centre: Array  # w^k
    mu: Array  # μ_0
    beta: Array  # of the subproblem that is being solved, or the next one
    last_beta: Array  # of the subproblem whose solution is announced
    own: Data | None  # the server's own data
    inner: PyTree  # the inner method's state
    outer: Array  # whether the next round is an outer one
    accounts: Account  # the clients' answers to it
    has_answered: Array
    track: OuterProgress


@state
class ProxalClient:
    """A client's state."""

    mu: Array  # μ_i
    beta: Array
    centre: Array  # w^k
    k: Array  # the last outer point it has taken in; −1 before the first
    index: Array  # its place among the clients, which coupled rows need
    dmu: Array  # ‖Δμ_i‖_∞ of the last update: a repeated outer round gets the same answer
    inner: PyTree  # the inner method's state


@state
class OuterMessage:
    """The outer message: the point w^k and k; with coupled rows, their multiplier and a client's place among the s."""

    w: Array
    k: Array
    beta: PyTree  # of the next subproblem, where it is not a setting; else ()
    nu: PyTree
    index: PyTree
    hint: PyTree  # the inner method's suggestion to its clients, as ADMM's last ρ


@state
class OuterReply:
    """The outer reply: the account of this point, and the first reply of the next subproblem."""

    account: Account
    first: PyTree


@settings
class ProxAL(Constrained, NotPrivate):
    """Solves problems with constraints at each client, at the server or on the mean over clients, with a certificate.

    It is PAL's proximal augmented Lagrangian method: a sequence of unconstrained subproblems, each solved over the
    clients, with a multiplier step after each. `run.multipliers` has the price of each constraint.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> ball = fd.constraints.NormBall(radius=2.0)
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares, constraints=[ball]), fd.ProxAL())
        >>> run.converged, round(float(run.w @ run.w), 2)
        (True, 4.0)
    """

    beta: float | str = setting(
        "auto",
        "β of the augmented Lagrangian; 'auto' starts at 10 and grows, but not with 'admm'",
        gt=0,
        choices=("auto",),
    )
    inner: str = setting(
        "auto",
        "'admm': PAL Algorithm 2; 'newton': clients send gradients and Hessians of P_i; 'lbfgs': gradients only; "
        "'auto': newton up to 500 variables, lbfgs beyond",
        choices=("auto", "admm", "newton", "lbfgs"),
    )
    rho: float | str = setting("auto", "ρ of the inner ADMM; 'auto' adapts it", gt=0, choices=("auto",))
    q: float = setting(0.9, "ε_{t+1} = q^t of the inner ADMM", gt=0, lt=1)
    s_bar: float = setting(1e-3, "s̄ of τ_k = s̄/(k+1)²", gt=0)
    eps1: float = setting(1e-3, "stationarity to reach", gt=0)
    eps2: float = setting(1e-3, "feasibility and complementarity to reach", gt=0)
    max_outer: int = setting(200, "outer steps at most", ge=1, integer=True)

    dense: ClassVar[int] = 500  # variables up to which 'auto' lets clients send Hessians: a message of 1 MB

    def fit(self, problem: Problem) -> Fit:
        refuse_kinks(self, problem.terms)
        return Fit(replace(self, inner=self.inner_for(problem.terms)), problem, max_rounds=50_000)

    def inner_for(self, terms: Terms) -> str:
        """The inner method, where "auto" leaves it open."""
        if self.inner != "auto":
            return self.inner
        size = terms.dim + terms.clients * terms.rows[2]
        return "newton" if size <= self.dense else "lbfgs"

    def privacy_refusal(self, terms: Terms) -> str:
        return why_not_private(self.inner_for(terms))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return OuterRound(self), InnerRound(self)

    @property
    def method(self) -> AdmmInner | NewtonInner:
        """The inner method, with its settings."""
        if self.inner == "admm":
            return AdmmInner(self.rho, self.q)
        return NewtonInner(hessians=self.inner != "lbfgs")

    @property
    def grows(self) -> bool:
        """Whether β changes from step to step, and therefore travels in the outer message."""
        return self.beta == "auto" and self.inner != "admm"

    @property
    def first_beta(self) -> float:
        """The β of the first subproblem."""
        return START if isinstance(self.beta, str) else self.beta

    def prox(self, terms: Terms, beta: Array) -> Array:
        """The weight 1/((n+1)β) of each party's proximal term."""
        return 1.0 / ((terms.clients + 1) * beta)

    def tau(self, k: Array) -> Array:
        """The tolerance τ_k of subproblem k; it is halved each time where eps1 would not be reached otherwise."""
        tau = self.s_bar / (k + 1.0) ** 2
        return jnp.minimum(tau, jnp.maximum(self.s_bar * 0.5**k, 0.25 * self.eps1)) if self.is_tight else tau

    def tolerance(self, server: ProxalServer) -> Array:
        """The tolerance of the subproblem that is being solved; 0 stands for the limit of rounding."""
        return jnp.where(self.searches(server.beta), 0.0, self.tau(server.track.k))

    def searches(self, beta: Array) -> Array:
        """Whether β is that of the search for evidence, and not one that a user has set."""
        return (beta >= SEARCH) & self.grows

    @property
    def is_tight(self) -> bool:
        """Whether eps1 is below every τ_k."""
        return self.eps1 < self.s_bar / self.max_outer**2 and self.inner != "admm"

    def client_P(self, terms: Terms, client: ProxalClient, data: Data) -> LocalP:
        """The client's P_{i,k}."""
        party, beta, prox = Party(terms), client.beta, self.prox(terms, client.beta)

        def P(u: Array, order: int) -> Piece:
            return piece(
                party, u, data, client.mu, client.centre, beta=beta, prox=prox, index=client.index, order=order
            )

        return P

    def server_P(self, terms: Terms, server: ProxalServer, beta: Array) -> LocalP:
        """The server's P_{0,k}."""
        party, prox = Party(terms, server=True), self.prox(terms, beta)

        def P(u: Array, order: int) -> Piece:
            return piece(party, u, server.own, server.mu, server.centre, beta=beta, prox=prox, order=order)

        return P

    def next_mu(self, terms: Terms, server: ProxalServer) -> Array:
        """The server's multipliers after the subproblem whose solution is announced; a search leaves them."""
        v = self.server_P(terms, server, server.last_beta)(server.w, 1).v
        return jnp.where(self.searches(server.last_beta), server.mu, v)

    def close_step(self, terms: Terms, server: ProxalServer, ready: Array) -> ProxalServer:
        """The server after a round; `ready` says that w is w^{k+1}, and then β for the next subproblem is chosen."""
        track, beta = server.track, server.beta
        if self.grows:
            own = self.server_P(terms, server, beta)(server.w, 1).c
            worst = jnp.maximum(jnp.max(self.method.status(server.inner).violation), 0.0)
            worst = jnp.maximum(worst, violation(Party(terms, server=True), server.own, own))
            residual = jnp.max(jnp.abs(server.w - server.centre)) / beta
            slow = (residual > self.eps1) & ~(residual <= SHRINK * track.residual)
            slow |= (worst > self.eps2) & ~(worst <= SHRINK * track.violation)
            cheap = track.rounds <= (CHEAP if self.inner == "newton" else GRADIENT_ROUNDS)
            next_beta = jnp.where(slow & cheap, jnp.minimum(track.pace * beta, MOST), beta)
            pace = jnp.where(cheap, track.pace, jnp.sqrt(track.pace))
            next_track = replace(track, residual=residual, violation=worst, pace=pace)
            if self.inner == "newton":
                stands_still = (worst > self.eps2) & (worst > NO_PROGRESS * track.violations[-2])
                next_track, next_beta = step_of_search(next_track, next_beta, stands_still)
            track, beta = select(ready, (next_track, next_beta), (track, beta))
        track = replace(track, k=jnp.where(ready, track.k + 1, track.k))
        return replace(server, track=track, last_beta=jnp.where(ready, server.beta, server.last_beta), beta=beta)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> ProxalServer:
        n = terms.clients
        w0 = terms.regularizer.prox(w0, 0.0)  # from outside the domain of h no step would be seen to lessen it
        point = jnp.concatenate([w0, jnp.zeros(n * terms.rows[2])])
        return ProxalServer(
            w=point,
            centre=point,
            mu=jnp.zeros(Party(terms, server=True).rows),
            beta=jnp.full((), self.first_beta),
            last_beta=jnp.full((), self.first_beta),
            own=own,
            inner=self.method.blank(terms, point),
            outer=jnp.ones((), bool),
            accounts=Account.blank(n, point.shape[0], terms.rows[2]),
            has_answered=jnp.zeros(n, bool),
            track=OuterProgress.blank(),
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> ProxalClient:
        point = jnp.concatenate([w0, jnp.zeros(terms.clients * terms.rows[2])])
        mu, none = jnp.zeros(Party(terms).rows), jnp.full((), -1)
        beta, index = jnp.full((), self.first_beta), jnp.zeros((), int)
        return ProxalClient(mu, beta, point, none, index, jnp.zeros(()), self.method.join(terms, point))

    def phase(self, server: ProxalServer) -> Array:
        return jnp.where(server.outer, 0, 1)

    def ended(self, server: ProxalServer) -> Array:
        track = server.track
        return jnp.where(track.finished, CONVERGED, jnp.where(track.gave_up, STUCK, RUNNING))

    def parameters(self, terms: Terms, server: ProxalServer) -> Array:
        return server.w[: terms.dim]

    def client_multipliers(self, terms: Terms, client: ProxalClient) -> Array:
        return client.mu[: terms.rows[0]]

    def server_multipliers(self, terms: Terms, server: ProxalServer) -> dict[str, Array]:
        _, own, coupled = terms.rows
        return {
            "global": server.mu[:own],
            "coupled": coupled_multipliers(terms, server, server.mu[own:], self.eps2) if coupled else server.mu[own:],
        }

    def report(self, server: ProxalServer) -> dict[str, Array]:
        status = self.method.status(server.inner)
        return {
            "objective": jnp.mean(status.f),
            "feasibility": jnp.maximum(jnp.max(status.violation), 0.0),
            "outer": server.track.k,
        } | self.method.report(server.inner)

    def reason(self, server: ProxalServer, converged: bool, names: list[str]) -> str:
        ratio = float(self.method.solver_ratio(server.inner))
        return reason_of(server, converged, names, ratio, self)


@dataclass(frozen=True)
class OuterRound:
    """The outer round: the point w^k is announced, multipliers are updated, and the next subproblem starts."""

    settings: ProxAL

    def broadcast(self, terms: Terms, server: ProxalServer, draws: Array) -> OuterMessage:
        algorithm, (_, own, coupled) = self.settings, terms.rows
        nu = algorithm.next_mu(terms, server)[own:] if coupled else ()
        index = Each(jnp.arange(terms.clients)) if coupled else ()
        beta = server.beta if algorithm.grows else ()
        return OuterMessage(server.w, server.track.k, beta, nu, index, algorithm.method.hint(server.inner))

    def local(
        self, terms: Terms, client: ProxalClient, news: OuterMessage, data: Data, key: Array
    ) -> tuple[ProxalClient, OuterReply]:
        algorithm, party, coupled = self.settings, Party(terms), terms.rows[2]
        index = news.index if coupled else client.index
        old = replace(client, index=index)
        at = algorithm.client_P(terms, old, data)(news.w, 1)
        # the first point is only a place to start from, and the end of a search says nothing of the multipliers
        update = (news.k > client.k) & (client.k >= 0) & ~algorithm.searches(client.beta)
        mu = jnp.where(update, at.v, client.mu)
        account = Account(
            # a repeated round must not report Δμ = 0, so the last one is repeated too
            dmu=jnp.where(update, jnp.max(jnp.abs(mu - client.mu), initial=0.0), client.dmu),
            product=jnp.max(jnp.abs(mu * at.c), initial=0.0),
            excess=excess(party, news.w, data, index),
            share=share(party, news.w[: terms.dim], data, mu, news.nu) if coupled else (),
        )
        beta = news.beta if algorithm.grows else client.beta
        new = ProxalClient(mu, beta, news.w, news.k, index, account.dmu, client.inner)

        P, status = algorithm.client_P(terms, new, data), status_at(party, data)
        inner, first = algorithm.method.client_start(terms, P, client.inner, news.w, news.hint, status)
        return replace(new, inner=inner), OuterReply(account, first)

    def aggregate(self, terms: Terms, server: ProxalServer, replies: OuterReply, present: Present) -> ProxalServer:
        algorithm, track = self.settings, server.track
        accounts, has_answered = present.remember(
            (server.accounts, server.has_answered), (replies.account, jnp.ones_like(present.here))
        )
        inner: PyTree = algorithm.method.hear(server.inner, replies.first, present)
        waiting = replace(server, inner=inner, accounts=accounts, has_answered=has_answered)

        own = algorithm.server_P(terms, server, server.last_beta)(server.w, 1)
        update = track.k > 0
        mu = jnp.where(update, algorithm.next_mu(terms, server), server.mu)
        track = self.follow(terms, waiting, own, mu)
        next_round = replace(waiting, mu=mu, centre=server.w, track=select(update, track, server.track))
        next_inner, w, ready = algorithm.method.server_start(
            terms,
            algorithm.server_P(terms, next_round, server.beta),
            inner,
            server.w,
            algorithm.prox(terms, server.beta),
            algorithm.tolerance(next_round),
        )
        over = next_round.track.finished | next_round.track.gave_up
        next_round = replace(
            next_round,
            w=jnp.where(over, server.w, w),
            inner=select(over, inner, next_inner),
            outer=ready,
            has_answered=jnp.zeros_like(has_answered),
        )
        next_round = algorithm.close_step(terms, next_round, ready & ~over)
        return select(jnp.all(has_answered), next_round, waiting)

    def follow(self, terms: Terms, server: ProxalServer, own: Piece, mu: Array) -> OuterProgress:
        """The stopping test of Algorithm 1 and the test for infeasible terms; `mu` is the server's new μ_0."""
        algorithm, track, accounts = self.settings, server.track, server.accounts
        beta, eps1, eps2, party = server.last_beta, algorithm.eps1, algorithm.eps2, Party(terms, server=True)
        dw = jnp.max(jnp.abs(server.w - server.centre))
        dmu = jnp.maximum(jnp.max(accounts.dmu), jnp.max(jnp.abs(mu - server.mu), initial=0.0))
        product = jnp.maximum(jnp.max(accounts.product), jnp.max(jnp.abs(mu * own.c), initial=0.0))
        violations = jnp.append(algorithm.method.status(server.inner).violation, violation(party, server.own, own.c))
        worst, at = jnp.maximum(jnp.max(violations), 0.0), jnp.argmax(violations)
        # |μ·c| is not part of PAL's test, but the certificate measures it, so it has to be small when the run stops
        left = algorithm.method.residual(server.inner)
        stalled = algorithm.method.stalled(server.inner)
        # of tolerances that τ_k would never reach, and of a subproblem that stalled, the residual itself is the measure
        tau = jnp.where(stalled | algorithm.is_tight, left, algorithm.tau(track.k - 1))
        search = algorithm.searches(beta)
        finished = ~search & (dw + beta * tau <= beta * eps1) & (dmu <= beta * eps2) & (product <= eps2)
        if terms.rows[2]:
            finished &= coupled_rows_hold(terms, server, mu, dw / beta + tau, eps1, eps2)
        stalls = jnp.where(search, track.stalls, jnp.where(stalled, track.stalls + 1, 0))
        f = jnp.mean(algorithm.method.status(server.inner).f)
        top = jnp.where(jnp.isfinite(track.top), track.top, f)
        deep = f < top - DEEP * (1.0 + jnp.abs(top))
        past = jnp.concatenate([worst[None], track.violations[:-1]])
        least = jnp.minimum(worst, track.least)
        no_progress = (search | (worst > NO_PROGRESS * past[-1])) & (least > eps2) & is_hopeless(terms, server)
        return replace(
            track,
            rounds=jnp.zeros((), int),
            dw=dw,
            dmu=dmu,
            product=product,
            violations=past,
            least=least,
            least_at=jnp.where(worst < track.least, at, track.least_at),
            left=left,
            top=top,
            deep=deep,
            stalls=stalls,
            finished=finished,
            gave_up=~finished & (no_progress | deep | (stalls >= STALLS) | (track.k >= algorithm.max_outer)),
        )


@dataclass(frozen=True)
class InnerRound:
    """A round of the inner method."""

    settings: ProxAL

    def broadcast(self, terms: Terms, server: ProxalServer, draws: Array) -> PyTree:
        return self.settings.method.broadcast(server.inner)

    def local(
        self, terms: Terms, client: ProxalClient, message: PyTree, data: Data, key: Array
    ) -> tuple[ProxalClient, PyTree]:
        algorithm = self.settings
        P, status = algorithm.client_P(terms, client, data), status_at(Party(terms), data)
        inner, reply = algorithm.method.client_step(terms, P, client.inner, message, status)
        return replace(client, inner=inner), reply

    def aggregate(self, terms: Terms, server: ProxalServer, replies: PyTree, present: Present) -> ProxalServer:
        algorithm, track = self.settings, server.track
        inner, w, finished = algorithm.method.server_step(
            terms,
            algorithm.server_P(terms, server, server.beta),
            server.inner,
            replies,
            present,
            server.centre,
            algorithm.prox(terms, server.beta),
            algorithm.tolerance(server),
        )
        after = replace(server, w=w, inner=inner, outer=finished, track=replace(track, rounds=track.rounds + 1))
        return algorithm.close_step(terms, after, finished)


def coupled_multipliers(terms: Terms, server: ProxalServer, nu: Array, eps2: float) -> Array:
    """The multipliers of the coupled rows: ν, and 0 on rows that are slack.

    The slack of a coupled row may sit at its clients' rows or at Σ s ≤ 0: ν of a slack row may be small but not zero.
    """
    c = jnp.mean(server.accounts.share.c, axis=0)
    equal = equalities(Party(terms, server=True), server.own)[terms.rows[1] :]
    return jnp.where(equal | (c >= -eps2), nu, 0.0)


def is_hopeless(terms: Terms, server: ProxalServer) -> Array:
    """Whether no point near this one meets the terms, if they are convex.

    It is the test of `contradiction.py` with the violations themselves as multipliers: they add up to 2θ and
    pull by ∇θ, where θ is half the sum of squared violations. The unit of a column is √(2θ/∂²θ): moved by it
    alone, the column would change θ by θ. A stationary point of θ > 0 is where the method ends, too, on terms that
    are not convex.
    """
    each, own = server.accounts.excess, excess(Party(terms, server=True), server.w, server.own)
    total = jax.tree.map(lambda mine, others: mine + jnp.sum(others, axis=0), own, each)
    unit = jnp.where(total.bend > 0, jnp.sqrt(2.0 * total.theta / jnp.where(total.bend > 0, total.bend, 1.0)), 0.0)
    return reach(2.0 * total.theta, total.gradient, unit, full_regularizer(terms), server.w) >= FAR


def status_at(party: Party, data: Data) -> Callable[[Piece], Status]:
    """A client's figures for the history, as a function of its P_i at a point."""
    return lambda here: Status(here.f * party.terms.clients, violation(party, data, here.c))


def step_of_search(track: OuterProgress, beta: Array, stands_still: Array) -> tuple[OuterProgress, Array]:
    """The progress and β for the next subproblem, with a search for evidence where the violation stands still.

    In units of columns that differ much, the proximal term and the tolerances of the method keep it from the point of
    least violation, where the evidence is. Once in a run it therefore solves one subproblem for the violations alone,
    with β = SEARCH, to the limit of rounding: Newton's steps do not depend on units. No multiplier moves by it, and
    where the terms can be met after all, the run goes on from there with the β that it had.
    """
    begins = (track.search == AHEAD) & stands_still
    ends = track.search == UNDER_WAY
    search = jnp.where(begins, UNDER_WAY, jnp.where(ends, OVER, track.search))
    next_beta = jnp.where(begins, SEARCH, jnp.where(ends, track.resume, beta))
    return replace(track, search=search, resume=jnp.where(begins, beta, track.resume)), next_beta


def coupled_rows_hold(
    terms: Terms, server: ProxalServer, mu: Array, residual: Array, eps1: float, eps2: float
) -> Array:
    """Whether the certificate of the coupled rows themselves holds.

    The problem over (w, s) has its own certificate, with stationarity `residual`. Without s, a client's multipliers μ_i
    stand where ν/n should be, and rows that are slack get the multiplier 0: both changes are bounded here and added to
    the residual.
    """
    share, nu = server.accounts.share, mu[terms.rows[1] :]
    final_nu = coupled_multipliers(terms, server, nu, eps2)
    c = jnp.mean(share.c, axis=0)
    shift = jnp.dot(jnp.mean(share.steepness, axis=0), jnp.abs(nu - final_nu))
    stationary = residual + jnp.sum(share.spread) + shift <= eps1
    distance = jnp.where(final_nu != 0, jnp.abs(c), jnp.maximum(c, 0.0))
    return stationary & (jnp.max(distance) <= eps2) & (jnp.max(jnp.abs(final_nu * c)) <= eps2)


def why_not_private(inner: str) -> str:
    """Why ProxAL with this inner method has no private form, to go at the end of a sentence."""
    return (
        f"each round it sends {RELEASES[inner]} and how far its multipliers moved, and both are functions of "
        "multipliers that carry the data from round to round without a bound"
    )


def residuals_left(track: OuterProgress, beta: float, eps1: float, eps2: float) -> str:
    """Which of the figures of the stopping test are still above their tolerance."""
    figures = (
        ("the stationarity", float(track.dw) / beta + float(track.left), eps1),
        ("the step of the multipliers", float(track.dmu) / beta, eps2),
        ("|μ·c|", float(track.product), eps2),
    )
    return ", ".join(f"{name} is {value:.2g} > {limit:g}" for name, value, limit in figures if not value <= limit)


def reason_of(server: ProxalServer, converged: bool, names: list[str], solver_ratio: float, settings: "ProxAL") -> str:
    """A sentence on why the run ended; `solver_ratio` is how far a subproblem solver missed its tolerance."""
    track, eps2, max_outer = server.track, settings.eps2, settings.max_outer
    note = f"; a subproblem solver ended at {solver_ratio:.1g} times its tolerance" if solver_ratio > 1 else ""
    if converged:
        return f"converged, by the stopping test of Algorithm 1, after {int(track.k)} outer steps{note}"
    least = float(track.least)
    whose = "the server" if int(track.least_at) == len(names) else f"client {names[int(track.least_at)]!r}"
    note_on_least = f"the smallest violation found is {least:.3g}, at {whose}" if least < float("inf") else ""
    answers = server.has_answered if bool(server.outer) else server.inner.fresh
    silent = [name for name, answer in zip(names, answers, strict=True) if not bool(answer)]
    if bool(track.deep):
        now = float(track.violations[0])
        if now > eps2 * (1.0 + float(abs(server.w).max())):
            away = f"the objective falls without end away from them, where the violation is {now:.3g}"
            return f"no feasible point was found from this start: {note_on_least}; {away}"
        return "the objective is unbounded: it falls without end"
    if bool(track.gave_up):
        left = residuals_left(track, float(server.last_beta), settings.eps1, eps2)
        at_limit = int(track.k) >= max_outer
        if bool(track.stalls) and not at_limit:
            stalled = f"stalled after {int(track.k)} outer steps, for rounding allows no smaller residuals"
            if least > eps2:
                return f"no feasible point was found: {note_on_least}; it {stalled}"
            return f"{stalled}: the constraints are met; {left}"
        if not at_limit:
            return f"no feasible point was found: {note_on_least}, and no small step lessens it"
        if least > eps2:
            return f"the constraints were not met in {max_outer} outer steps; {note_on_least}; {left}"
        return f"stopped after {max_outer} outer steps: the constraints are met, the model is not yet optimal; {left}"
    if bool(server.outer) and silent and least == float("inf"):
        return f"stopped at the limit of rounds, still waiting to hear from client {silent[0]!r}"
    must_wait = bool(server.outer) or bool(server.inner.hold)
    waiting = f"still waiting for client {silent[0]!r}; " if must_wait and silent else ""
    end = note_on_least or "no outer step was finished"
    return f"stopped at the limit of rounds in outer step {int(track.k)}; {waiting}{end}"


@settings
class CentralProxAL(ProxAL):
    """Solves the pooled problem by ProxAL with all data in one place: what a federation is compared with.

    It is PAL's Algorithm 3. The data are sent to the server once, and counted as traffic; its rounds are evaluations in
    one place, not communication.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.CentralProxAL())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    inner: str = setting("newton", "subproblems are solved by (proximal) Newton", choices=("newton",))

    def fit(self, problem: Problem) -> Fit:
        return replace(super().fit(problem), problem=pool(problem))

    def privacy_refusal(self, terms: Terms) -> str:
        return "it sends the data themselves to the server"
