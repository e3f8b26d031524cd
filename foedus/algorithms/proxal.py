"""ProxAL: a proximal augmented Lagrangian method for local, global and coupled constraints (PAL Algorithm 1).

Outer step k, τ_k = s̄/(k+1)²: find w^{k+1} with dist_∞(0, ∂ℓ_k(w^{k+1})) ≤ τ_k, where ℓ_k = Σ_{i=0}^n P_{i,k} + h and
    P_{i,k}(w) = f_i(w)/n + (‖[μ_i + βc_i(w)]₊‖² − ‖μ_i‖²)/(2β) + ‖w − w^k‖²/(2(n+1)β);
then each owner sets μ_i ← [μ_i + βc_i(w^{k+1})]₊. Stop when ‖w^{k+1} − w^k‖_∞ + βτ_k ≤ βε1 and max ‖Δμ_i‖_∞ ≤ βε2.

With β = "auto" it is β_k, which starts at 10. It is multiplied by a factor, the pace, after an outer step that left
more than SHRINK of the stationarity ‖w^{k+1} − w^k‖_∞/β_k or of the violation, as long as subproblems stay cheap. Few
subproblems are solved then, each from a point near its solution. With β_k that never falls it still is the proximal
method of multipliers (Rockafellar 1976), and the stopping test with β_k for β gives the same certificate.

Three inner methods (proxal_admm.py, proxal_newton.py) solve the subproblem to the same τ_k. In an outer round the
server sends w^{k+1} to the clients, and each answers with ‖Δμ_i‖_∞ and its first reply of the next subproblem, so that
no round is spent on starting it. The outer round is repeated until every client has answered: because every client
takes every dual step, the certificate covers all clients, whoever was silent in between. The replies also carry the
figures of two further tests: the gradient of the squared violations, which vanishes where the terms cannot be met, and
each client's part in the coupled rows.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from foedus.algorithms.admm import LocalP
from foedus.algorithms.lagrangian import Party, Piece, excess, piece, refuse_kinks, share, violation
from foedus.algorithms.proxal_admm import AdmmInner
from foedus.algorithms.proxal_newton import NewtonInner
from foedus.algorithms.proxal_state import (
    SEARCH,
    Account,
    InnerMethod,
    OuterMessage,
    OuterProgress,
    OuterReply,
    ProxalClient,
    ProxalServer,
    coupled_multipliers,
    coupled_rows_hold,
    is_hopeless,
    status_at,
    step_of_search,
)
from foedus.algorithms.proxal_words import reason_of, why_not_private
from foedus.base.pytrees import PyTree, select
from foedus.base.settings import setting, settings
from foedus.privacy.releasing import NotPrivate
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
    def method(self) -> InnerMethod:
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
        inner = algorithm.method.hear(server.inner, replies.first, present)
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
