"""ProxAL: a proximal augmented Lagrangian over local, global and coupled constraints (PAL Algorithm 1).

Outer step k, τ_k = s̄/(k+1)²: find w^{k+1} with dist_∞(0, ∂ℓ_k(w^{k+1})) ≤ τ_k, where ℓ_k = Σ_{i=0}^n P_{i,k} + h and
    P_{i,k}(w) = f_i(w)/n + (‖[μ_i + βc_i(w)]₊‖² − ‖μ_i‖²)/(2β) + ‖w − w^k‖²/(2(n+1)β);
then each owner sets μ_i ← [μ_i + βc_i(w^{k+1})]₊. Stop when ‖w^{k+1} − w^k‖_∞ + βτ_k ≤ βε1 and max ‖Δμ_i‖_∞ ≤ βε2.

With β = "auto" it is β_k, from 10: it is multiplied by a pace after an outer step that left more than SHRINK of the
stationarity ‖w^{k+1} − w^k‖_∞/β_k or of the violation, while subproblems stay cheap. Few of them are then solved, each
from near its answer. A β_k that never falls is the proximal method of multipliers still (Rockafellar 1976), and the
stopping test with β_k for β gives the same certificate.

Three inner methods (proxal_admm.py, proxal_newton.py) solve the subproblem to the same τ_k. The outer round tells the
clients w^{k+1} and takes back ‖Δμ_i‖_∞ together with the first reply of the next subproblem, so that no round is spent
on starting it. It is repeated until every client has answered: a dual step nobody missed is what makes the certificate
one over all clients, whoever was silent on the way. Its replies also hold what two further tests need: the gradient
of the squared violations, which vanishes where terms cannot be met, and each client's share in the coupled rows.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from foedus.algorithm import CONVERGED, RUNNING, STUCK, Each, Fit, Kind, Present
from foedus.algorithms.admm import LocalP, Status
from foedus.algorithms.lagrangian import (
    Excess,
    Party,
    Piece,
    Share,
    equalities,
    excess,
    extended,
    piece,
    share,
    violation,
)
from foedus.algorithms.proxal_admm import AdmmInner
from foedus.algorithms.proxal_newton import NewtonInner
from foedus.algorithms.proxal_state import Account, Client, News, Server, Told, Track
from foedus.constrained import Constrained
from foedus.privacy.releasing import NotPrivate
from foedus.problem import Problem
from foedus.pytrees import select
from foedus.settings import setting, settings
from foedus.terms import Data, Terms

FAR = 1e3  # no point closer than FAR·(1 + ‖w‖₁) meets the terms: then they are called infeasible
START, MOST = 10.0, 1e7  # of β = "auto"
SHRINK = 0.25  # an outer step that leaves more than this of a residual was slow
CHEAP = 10  # rounds that a subproblem may take, if β is to grow after it; ten times as many with gradients only
STEEP = 1e9  # h/STEEP is but the indicator of its domain


@settings
class ProxAL(Constrained, NotPrivate):
    """Constrained federated optimisation by the published augmented Lagrangian method; it ends in a certificate."""

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

    dense: ClassVar[int] = 500  # variables up to which 'auto' has clients send Hessians: a message of 1 MB
    releases: ClassVar[dict[str, str]] = {
        "newton": "the value, gradient and Hessian of its augmented Lagrangian (Newton steps)",
        "lbfgs": "the value and gradient of its augmented Lagrangian (L-BFGS steps)",
        "admm": "the solution of its augmented subproblem (ADMM steps)",
    }

    def fit(self, problem: Problem) -> Fit:
        return Fit(replace(self, inner=self.inner_for(problem.terms)), problem, max_rounds=50_000)

    def inner_for(self, terms: Terms) -> str:
        """The inner method, where "auto" leaves it open."""
        if self.inner != "auto":
            return self.inner
        size = terms.dim + terms.clients * terms.rows[2]
        return "newton" if size <= self.dense else "lbfgs"

    def privacy_refusal(self, terms: Terms) -> str:
        return (
            f"each round it sends {self.releases[self.inner_for(terms)]} and how far its multipliers moved, and both "
            "are functions of multipliers that carry the data from round to round without a bound"
        )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return Outer(self), Inner(self)

    @property
    def method(self) -> Any:
        if self.inner == "admm":
            return AdmmInner(self.rho, self.q)
        return NewtonInner(hessians=self.inner != "lbfgs")

    @property
    def grows(self) -> bool:
        return self.beta == "auto" and self.inner != "admm"

    @property
    def first_beta(self) -> float:
        return START if isinstance(self.beta, str) else self.beta

    def prox(self, terms: Terms, beta: Array) -> Array:
        return 1.0 / ((terms.clients + 1) * beta)

    def tau(self, k: Array) -> Array:
        return self.s_bar / (k + 1.0) ** 2

    def client_P(self, terms: Terms, client: Client, data: Data) -> LocalP:
        party, beta, prox = Party(terms), client.beta, self.prox(terms, client.beta)

        def P(u: Array, order: int) -> Piece:
            return piece(
                party, u, data, client.mu, client.centre, beta=beta, prox=prox, index=client.index, order=order
            )

        return P

    def server_P(self, terms: Terms, server: Server, beta: Array) -> LocalP:
        party, prox = Party(terms, server=True), self.prox(terms, beta)

        def P(u: Array, order: int) -> Piece:
            return piece(party, u, server.own, server.mu, server.centre, beta=beta, prox=prox, order=order)

        return P

    def close_step(self, terms: Terms, server: Server, ready: Array) -> Server:
        """The server after a round: where it is `ready`, w is w^{k+1}, and β for the next subproblem is chosen."""
        track, beta = server.track, server.beta
        if self.grows:
            own = self.server_P(terms, server, beta)(server.w, 1).c
            broken = jnp.maximum(jnp.max(self.method.status(server.inner).violation), 0.0)
            broken = jnp.maximum(broken, violation(Party(terms, server=True), server.own, own))
            residual = jnp.max(jnp.abs(server.w - server.centre)) / beta
            slow = (residual > self.eps1) & ~(residual <= SHRINK * track.residual)
            slow |= (broken > self.eps2) & ~(broken <= SHRINK * track.broken)
            cheap = track.rounds <= (CHEAP if self.inner == "newton" else 10 * CHEAP)
            beta = jnp.where(ready & slow & cheap, jnp.minimum(track.pace * beta, MOST), beta)
            pace = jnp.where(cheap, track.pace, jnp.sqrt(track.pace))
            judged = replace(track, residual=residual, broken=broken, pace=pace)
            track = select(ready, judged, track)
        track = replace(track, k=jnp.where(ready, track.k + 1, track.k))
        return replace(server, track=track, last_beta=jnp.where(ready, server.beta, server.last_beta), beta=beta)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> Server:
        n = terms.clients
        each = jnp.zeros((n, terms.rows[2]))
        point = jnp.concatenate([w0, jnp.zeros(n * terms.rows[2])])
        return Server(
            w=point,
            centre=point,
            mu=jnp.zeros(Party(terms, server=True).rows),
            beta=jnp.full((), self.first_beta),
            last_beta=jnp.full((), self.first_beta),
            own=own,
            inner=self.method.blank(terms, point),
            outer=jnp.ones((), bool),
            accounts=Account(
                dmu=jnp.zeros(n),
                product=jnp.zeros(n),
                excess=Excess(jnp.zeros(n), jnp.zeros((n, *point.shape))),
                share=Share(each, each, jnp.zeros(n)) if terms.rows[2] else (),
            ),
            heard=jnp.zeros(n, bool),
            track=Track.blank(),
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> Client:
        point = jnp.concatenate([w0, jnp.zeros(terms.clients * terms.rows[2])])
        mu, none = jnp.zeros(Party(terms).rows), jnp.full((), -1)
        beta, index = jnp.full((), self.first_beta), jnp.zeros((), int)
        return Client(mu, beta, point, none, index, jnp.zeros(()), self.method.join(terms, point))

    def phase(self, server: Server) -> Array:
        return jnp.where(server.outer, 0, 1)

    def ended(self, server: Server) -> Array:
        track = server.track
        return jnp.where(track.done, CONVERGED, jnp.where(track.stuck, STUCK, RUNNING))

    def parameters(self, terms: Terms, server: Server) -> Array:
        return server.w[: terms.dim]

    def client_multipliers(self, terms: Terms, client: Client) -> Array:
        return client.mu[: terms.rows[0]]

    def server_multipliers(self, terms: Terms, server: Server) -> dict[str, Array]:
        _, own, coupled = terms.rows
        return {
            "global": server.mu[:own],
            "coupled": self.coupled(terms, server, server.mu[own:]) if coupled else server.mu[own:],
        }

    def coupled(self, terms: Terms, server: Server, nu: Array) -> Array:
        """The coupled rows' multipliers: ν, and 0 on rows that are slack.

        The slack of such a row is anywhere between its clients' rows and Σ s ≤ 0, so ν may be small and not zero.
        """
        c = jnp.mean(server.accounts.share.c, axis=0)
        equal = equalities(Party(terms, server=True), server.own)[terms.rows[1] :]
        return jnp.where(equal | (c >= -self.eps2), nu, 0.0)

    def report(self, server: Server) -> dict[str, Array]:
        status = self.method.status(server.inner)
        return {
            "objective": jnp.mean(status.f),
            "feasibility": jnp.maximum(jnp.max(status.violation), 0.0),
            "outer": server.track.k,
        } | self.method.report(server.inner)

    def reason(self, server: Server, converged: bool, names: list[str]) -> str:
        track = server.track
        missed = float(self.method.missed(server.inner))
        note = f"; a subproblem solver ended at {missed:.1g} times its tolerance" if missed > 1 else ""
        if converged:
            return f"the stopping test of Algorithm 1 holds after {int(track.k)} outer steps{note}"
        least = float(track.least)
        whose = "the server" if int(track.least_at) == len(names) else f"client {names[int(track.least_at)]!r}"
        found = f"the smallest violation found is {least:.3g}, at {whose}" if least < float("inf") else ""
        spoken = server.heard if bool(server.outer) else server.inner.fresh
        silent = [name for name, heard in zip(names, spoken, strict=True) if not bool(heard)]
        if bool(track.stuck) and int(track.k) < self.max_outer:
            return f"no point was found that meets the terms: {found}, and no small step lessens it"
        if bool(track.stuck):
            if least > self.eps2:
                return f"the terms were not met in {self.max_outer} outer steps; {found}"
            return f"stopped after {self.max_outer} outer steps: the terms are met, the model is not yet optimal"
        if bool(server.outer) and silent and least == float("inf"):
            return f"stopped at the limit of rounds, still waiting to hear from client {silent[0]!r}"
        held = bool(server.outer) or bool(server.inner.hold)
        waiting = f"still waiting for client {silent[0]!r}; " if held and silent else ""
        end = found or "no outer step was finished"
        return f"stopped at the limit of rounds in outer step {int(track.k)}; {waiting}{end}"


@dataclass(frozen=True)
class Outer:
    """A new point w^k is announced: multipliers are updated, and the next subproblem starts."""

    settings: ProxAL

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> News:
        algorithm, (_, own, coupled) = self.settings, terms.rows
        nu = algorithm.server_P(terms, server, server.last_beta)(server.w, 1).v[own:] if coupled else ()
        index = Each(jnp.arange(terms.clients)) if coupled else ()
        beta = server.beta if algorithm.grows else ()
        return News(server.w, server.track.k, beta, nu, index, algorithm.method.hint(server.inner))

    def local(self, terms: Terms, client: Client, news: News, data: Data, key: Array) -> tuple[Client, Told]:
        algorithm, party, coupled = self.settings, Party(terms), terms.rows[2]
        index = news.index if coupled else client.index
        old = replace(client, index=index)
        at = algorithm.client_P(terms, old, data)(news.w, 1)
        update = (news.k > client.k) & (client.k >= 0)  # the first point is only a place to start from
        mu = jnp.where(update, at.v, client.mu)
        account = Account(
            dmu=jnp.where(update, jnp.max(jnp.abs(mu - client.mu), initial=0.0), client.dmu),
            product=jnp.max(jnp.abs(mu * at.c), initial=0.0),
            excess=excess(party, news.w, data, index),
            share=share(party, news.w[: terms.dim], data, mu, news.nu) if coupled else (),
        )
        beta = news.beta if algorithm.grows else client.beta
        new = Client(mu, beta, news.w, news.k, index, account.dmu, client.inner)

        def status(here: Piece) -> Status:
            return Status(here.f * terms.clients, violation(party, data, here.c))

        P = algorithm.client_P(terms, new, data)
        inner, first = algorithm.method.client_start(terms, P, client.inner, news.w, news.hint, status)
        return replace(new, inner=inner), Told(account, first)

    def aggregate(self, terms: Terms, server: Server, replies: Told, present: Present) -> Server:
        algorithm, track = self.settings, server.track
        accounts, heard = present.remember(
            (server.accounts, server.heard), (replies.account, jnp.ones_like(present.here))
        )
        inner = algorithm.method.hear(server.inner, replies.first, present)
        waiting = replace(server, inner=inner, accounts=accounts, heard=heard)

        own = algorithm.server_P(terms, server, server.last_beta)(server.w, 1)
        update = track.k > 0
        mu = jnp.where(update, own.v, server.mu)
        track = self.follow(terms, waiting, own, mu)
        next_round = replace(waiting, mu=mu, centre=server.w, track=select(update, track, server.track))
        started, w, ready = algorithm.method.server_start(
            terms,
            algorithm.server_P(terms, next_round, server.beta),
            inner,
            server.w,
            algorithm.prox(terms, server.beta),
            algorithm.tau(track.k),
        )
        over = next_round.track.done | next_round.track.stuck
        next_round = replace(
            next_round,
            w=jnp.where(over, server.w, w),
            inner=select(over, inner, started),
            outer=ready,
            heard=jnp.zeros_like(heard),
        )
        next_round = algorithm.close_step(terms, next_round, ready & ~over)
        return select(jnp.all(heard), next_round, waiting)

    def follow(self, terms: Terms, server: Server, own: Piece, mu: Array) -> Track:
        """The stopping test of Algorithm 1, and the test for terms that cannot be met; `mu` is the server's new μ_0."""
        algorithm, track, accounts = self.settings, server.track, server.accounts
        beta, eps1, eps2, party = server.last_beta, algorithm.eps1, algorithm.eps2, Party(terms, server=True)
        dw = jnp.max(jnp.abs(server.w - server.centre))
        dmu = jnp.maximum(jnp.max(accounts.dmu), jnp.max(jnp.abs(mu - server.mu), initial=0.0))
        product = jnp.maximum(jnp.max(accounts.product), jnp.max(jnp.abs(mu * own.c), initial=0.0))
        violations = jnp.append(algorithm.method.status(server.inner).violation, violation(party, server.own, own.c))
        worst, at = jnp.maximum(jnp.max(violations), 0.0), jnp.argmax(violations)
        # |μ·c| is not part of PAL's test; a certificate has it, so a run that stops must have it too
        done = (dw + beta * algorithm.tau(track.k - 1) <= beta * eps1) & (dmu <= beta * eps2) & (product <= eps2)
        if terms.rows[2]:
            done &= self.coupled_rows_hold(terms, server, mu, dw / beta + algorithm.tau(track.k - 1))
        past = jnp.concatenate([worst[None], track.violations[:-1]])
        least = jnp.minimum(worst, track.least)
        stalled = (worst > 0.99 * past[-1]) & (least > eps2) & self.hopeless(terms, server)
        return replace(
            track,
            rounds=jnp.zeros((), int),
            dw=dw,
            dmu=dmu,
            product=product,
            violations=past,
            least=least,
            least_at=jnp.where(worst < track.least, at, track.least_at),
            done=done,
            stuck=~done & (stalled | (track.k >= algorithm.max_outer)),
        )

    def coupled_rows_hold(self, terms: Terms, server: Server, mu: Array, residual: Array) -> Array:
        """Whether the coupled rows as they were stated pass, where the problem over (w, s) leaves `residual`."""
        algorithm, share, nu = self.settings, server.accounts.share, mu[terms.rows[1] :]
        stated = algorithm.coupled(terms, server, nu)
        c = jnp.mean(share.c, axis=0)
        changed = jnp.dot(jnp.mean(share.steepness, axis=0), jnp.abs(nu - stated))
        stationary = residual + jnp.sum(share.spread) + changed <= algorithm.eps1
        distance = jnp.where(stated != 0, jnp.abs(c), jnp.maximum(c, 0.0))
        return stationary & (jnp.max(distance) <= algorithm.eps2) & (jnp.max(jnp.abs(stated * c)) <= algorithm.eps2)

    def hopeless(self, terms: Terms, server: Server) -> Array:
        """Whether no point near this one meets the terms, if they are convex.

        θ, half the sum of squared violations, is then convex, and 0 at a point w* that meets the terms; so
        θ(w) ≤ ⟨∇θ(w), w − w*⟩ ≤ dist_∞(0, ∇θ + N(w))·‖w − w*‖₁ with the normal cone N of h's domain. A stationary
        point of θ > 0 is where the method ends, too, on terms that are not convex.
        """
        each, own = server.accounts.excess, excess(Party(terms, server=True), server.w, server.own)
        theta, gradient = own.theta + jnp.sum(each.theta), own.gradient + jnp.sum(each.gradient, axis=0)
        slope = extended(terms).distance(server.w, STEEP * gradient) / STEEP
        return theta >= slope * FAR * (1.0 + jnp.sum(jnp.abs(server.w)))


@dataclass(frozen=True)
class Inner:
    """One round of the inner method."""

    settings: ProxAL

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> Any:
        return self.settings.method.broadcast(server.inner)

    def local(self, terms: Terms, client: Client, message: Any, data: Data, key: Array) -> tuple[Client, Any]:
        algorithm, party = self.settings, Party(terms)

        def status(here: Piece) -> Status:
            return Status(here.f * terms.clients, violation(party, data, here.c))

        P = algorithm.client_P(terms, client, data)
        inner, reply = algorithm.method.client_step(terms, P, client.inner, message, status)
        return replace(client, inner=inner), reply

    def aggregate(self, terms: Terms, server: Server, replies: Any, present: Present) -> Server:
        algorithm, track = self.settings, server.track
        inner, w, done = algorithm.method.server_step(
            terms,
            algorithm.server_P(terms, server, server.beta),
            server.inner,
            replies,
            present,
            server.centre,
            algorithm.prox(terms, server.beta),
            algorithm.tau(track.k),
        )
        after = replace(server, w=w, inner=inner, outer=done, track=replace(track, rounds=track.rounds + 1))
        return algorithm.close_step(terms, after, done)
