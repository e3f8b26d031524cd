"""Inexact ADMM for Σ P_i + h (PAL Algorithm 2): the clients' and the server's step, and the algorithm on its own.

ε_{t+1} = q^t. Start: u_i = w̃⁰, λ_i = −∇P_i(w̃⁰), ũ_i = u_i + λ_i/ρ.
AdmmServer: w^{t+1} ≈ argmin P_0 + h + Σ (ρ/2)‖ũ_i − w‖², to dist_∞ ≤ ε_{t+1}.
Client: ε̃_i = ‖∇P_i(w^{t+1}) + λ_i − ρ(w^{t+1} − u_i)‖_∞ with the old u_i, λ_i;
        u_i ≈ argmin P_i(u) + ⟨λ_i, u − w^{t+1}⟩ + (ρ/2)‖u − w^{t+1}‖², to ‖∇‖_∞ ≤ ε_{t+1};  λ_i += ρ(u_i − w^{t+1}).
Stop when ε_{t+1} + Σ ε̃_i ≤ τ; the answer is w^{t+1}, at which ε̃ was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Fit, Kind, Present, refuse
from foedus.algorithms.lagrangian import Party, Piece, piece
from foedus.numerics import lbfgs, newton
from foedus.privacy.releasing import NotPrivate
from foedus.problem import Problem
from foedus.pytrees import select, state
from foedus.regularizers import Regularizer
from foedus.settings import setting, settings
from foedus.terms import Data, Terms

LocalP = Callable[[Array, int], Piece]  # point, order -> P_i there


@state
class Status:
    """What a client says of the received model for the history: f_i and its worst row."""

    f: Array
    violation: Array


@state
class Agent:
    """A client's part of ADMM."""

    u: Array
    lam: Array
    t: Array  # the step answered last: asked again, it answers the same
    answer: "Answer"
    lower: Array  # the Cholesky factor of the last Newton step, empty where L-BFGS solves


@state
class Answer:
    u_tilde: Array
    rho: Array  # the ρ that is inside ũ
    eps: Array  # ε̃_i
    gap: Array  # ‖u_i − w‖² and ‖λ_i‖², for the choice of ρ
    force: Array
    residual: Array  # what the local solver reached, relative to what was asked
    status: Status

    infinite: ClassVar[tuple[str, ...]] = ("eps",)  # until the first step there is none


@state
class Call:
    """The message of one ADMM step: w^{t+1}, ε_{t+1}, ρ, t."""

    w: Array
    eps: Array
    rho: Array
    t: Array


def blank_agent(terms: Terms, point: Array) -> Agent:
    """A client before the first round."""
    zero, dim = jnp.zeros(()), point.shape[0]
    answer = Answer(point, jnp.ones(()), zero, zero, zero, zero, Status(zero, zero))
    lower = jnp.zeros((dim, dim) if newtonian(terms) else (0, 0))
    return Agent(point, jnp.zeros_like(point), jnp.full((), -1), answer, lower)


def agent_start(P: LocalP, agent: Agent, w: Array, rho: Array, status: Callable[[Piece], Status]) -> Agent:
    """u_i = w, λ_i = −∇P_i(w)."""
    here = P(w, 1)
    lam = -here.gradient
    zero = jnp.zeros(())
    answer = Answer(w + lam / rho, rho, jnp.full((), jnp.inf), zero, jnp.sum(lam**2), zero, status(here))
    return Agent(w, lam, jnp.zeros((), int), answer, agent.lower)


def agent_step(P: LocalP, agent: Agent, call: Call, status: Callable[[Piece], Status]) -> Agent:
    """One step of Algorithm 2 at a client; a repeated call changes nothing."""
    w, rho = call.w, call.rho
    here = P(w, 1)
    eps = jnp.max(jnp.abs(here.gradient + agent.lam - rho * (w - agent.u)))

    def quadratic(u: Array) -> tuple[Array, Array]:
        away = u - w
        return jnp.dot(agent.lam, away) + 0.5 * rho * jnp.sum(away**2), agent.lam + rho * away

    if agent.lower.size:

        def evaluate(u: Array, order: int) -> tuple[Array, Array, Any]:
            at, (value, slope) = P(u, order), quadratic(u)
            second = at.hessian + rho * jnp.eye(u.shape[0]) if order == 2 else ()
            return at.value + value, at.gradient + slope, second

        found = newton.minimise_again(evaluate, agent.u, call.eps, agent.lower)
        lower = found.lower
    else:
        lower = agent.lower
        found = lbfgs.minimise(lambda u: P(u, 1).value + quadratic(u)[0], agent.u, call.eps)
    lam = agent.lam + rho * (found.w - w)
    gap = jnp.sum((found.w - w) ** 2)
    answer = Answer(found.w + lam / rho, rho, eps, gap, jnp.sum(lam**2), found.residual / call.eps, status(here))
    moved = Agent(found.w, lam, call.t, answer, lower)
    return select(call.t > agent.t, moved, agent)


@state
class Consensus:
    """The server's part of ADMM: the last word of each client, and who has spoken about the present w."""

    w: Array
    t: Array
    rho: Array  # for the next local steps
    answers: Answer  # (clients, …)
    fresh: Array
    eps: Array  # ε of the present w
    residual: Array  # what the server's solver reached for the present w, relative to ε
    worst_residual: Array  # of the clients' solvers, so far
    hold: Array  # w stays until all have spoken about it: the stopping test may pass
    primal: Array  # the sums of the relative residuals since ρ was last looked at
    dual: Array

    @staticmethod
    def blank(terms: Terms, w: Array) -> "Consensus":
        n, dim = terms.clients, w.shape[0]
        column, zero = jnp.zeros(n), jnp.zeros(())
        answers = Answer(jnp.zeros((n, dim)), column, column, column, column, column, Status(column, column))
        no = jnp.zeros((), bool)
        return Consensus(w, jnp.zeros((), int), zero, answers, jnp.zeros(n, bool), zero, zero, zero, no, zero, zero)

    def hear(self, replies: Answer, present: Present) -> "Consensus":
        """Take in the answers of those present."""
        answers, fresh = present.remember((self.answers, self.fresh), (replies, jnp.ones_like(present.here)))
        return replace(self, answers=answers, fresh=fresh)


def server_step(
    h: Regularizer, server_P: LocalP | None, at: Consensus, centre: Array, prox: Array | float, eps: Array
) -> newton.Solution:
    """argmin P_0 + h + Σ (ρ_i/2)‖ũ_i − w‖²: closed where the server holds no rows, (proximal) Newton where it does."""
    rho, u = at.answers.rho, at.answers.u_tilde
    weight = jnp.sum(rho)
    middle = rho @ u
    if server_P is None:
        total = weight + prox
        w = h.prox((middle + prox * centre) / total, 1.0 / total)
        return newton.Solution(w, h.distance(w, total * w - middle - prox * centre), jnp.zeros((), int))

    def evaluate(w: Array, order: int) -> tuple[Array, Array, Any]:
        mine = server_P(w, order)
        value = 0.5 * weight * jnp.sum(w**2) - jnp.dot(middle, w)
        second = mine.hessian + weight * jnp.eye(w.shape[0]) if order == 2 else ()
        return mine.value + value, mine.gradient + weight * w - middle, second

    return newton.minimise(evaluate, at.w, eps, h=h)


def balanced(at: Consensus, w: Array) -> tuple[Array, Array, Array]:
    """ρ for the next local steps, and the sums of the relative residuals ‖u − w‖/‖w‖ and ρ‖Δw‖/‖λ‖ it is chosen from.

    Their ratio is free of the scales of w and of P (Wohlberg 2017). The residuals swing, so ρ follows their sums over
    windows, which grow, so that ρ changes finitely often and ADMM's convergence proof applies.
    """
    n = at.fresh.shape[0]
    # w is the mean of ũ_i = u_i + λ_i/ρ: where it is far smaller than they are, its own length is rounding
    length = jnp.maximum(n * jnp.sum(w**2), (ROUNDING / at.rho) ** 2 * jnp.sum(at.answers.force))
    primal = at.primal + jnp.sqrt(jnp.sum(at.answers.gap) / (length + 1e-300))
    dual = at.dual + at.rho * jnp.sqrt(n * jnp.sum((w - at.w) ** 2) / (jnp.sum(at.answers.force) + 1e-300))
    due = jnp.isin(at.t, jnp.asarray(WINDOWS))
    factor = jnp.clip(jnp.sqrt(primal / jnp.maximum(dual, 1e-300)), 0.1, 10.0)
    heard = jnp.maximum(primal, dual) > NOISE
    rho = jnp.where(due & heard & (jnp.abs(jnp.log(factor)) > jnp.log(DEAD)), at.rho * factor, at.rho)
    return rho, jnp.where(due, 0.0, primal), jnp.where(due, 0.0, dual)


WINDOWS = tuple(range(20, 201, 20))
NOISE = 1e-10  # residuals below this are rounding, which says nothing about ρ
ROUNDING = 1e-6  # the share of λ/ρ below which the length of w is not trusted
DEAD = 2.0  # a change by less than this factor is not worth disturbing the iteration

EPS_FLOOR = 1e-4  # ε stops falling at this share of τ, which more accuracy would not serve and rounding cannot give


def consensus_start(
    terms: Terms, w: Array, heard: Consensus, step: Callable[[Consensus, Array], newton.Solution]
) -> Consensus:
    """The first w of a subproblem, once every client has sent its first ũ_i."""
    n, eps = terms.clients, jnp.ones(())
    at = replace(
        heard, w=w, rho=jnp.mean(heard.answers.rho), eps=eps, hold=jnp.zeros((), bool), fresh=jnp.zeros(n, bool)
    )
    found = step(at, eps)
    return replace(at, w=found.w, t=jnp.ones((), int), residual=found.residual / eps)


def consensus_step(
    at: Consensus,
    replies: Answer,
    present: Present,
    tau: Array,
    q: float,
    adaptive: bool,
    step: Callable[[Consensus, Array], newton.Solution],
) -> tuple[Consensus, Array]:
    """Take in the answers; returns the next state and whether w is the subproblem's answer."""
    heard = at.hear(replies, present)
    near = at.eps + jnp.sum(heard.answers.eps) <= tau
    worst = jnp.maximum(jnp.maximum(at.worst_residual, at.residual), present.max(replies.residual))
    heard = replace(heard, worst_residual=worst, hold=near)
    eps = jnp.maximum(at.eps * q, EPS_FLOOR * tau)
    found = step(heard, eps)
    rho, primal, dual = balanced(heard, found.w) if adaptive else (at.rho, at.primal, at.dual)
    moved = replace(
        heard,
        w=found.w,
        t=at.t + 1,
        rho=rho,
        primal=primal,
        dual=dual,
        fresh=jnp.zeros_like(heard.fresh),
        eps=eps,
        residual=found.residual / eps,
    )
    return select(near, heard, moved), near & jnp.all(heard.fresh)


def own_rho(P: LocalP, w: Array, rho: float | str, hint: Array) -> Array:
    """ρ_i to start with: as given; or what served the last subproblem; or the geometric mean of P_i's curvatures."""
    if not isinstance(rho, str):
        return jnp.asarray(rho)
    _, lower = newton.shifted(P(w, 2).hessian)
    return jnp.where(hint > 0, hint, jnp.exp(2.0 * jnp.mean(jnp.log(jnp.diag(lower)))))


@state
class AdmmServer:
    w: Array
    consensus: Consensus
    started: Array
    done: Array


@state
class Hello:
    w: Array


@settings
class InexactADMM(NotPrivate):
    """PAL's Algorithm 2 on its own, for problems with a regulariser and without constraints."""

    rho: float | str = setting(
        "auto", "penalty ρ; 'auto' starts from the curvature and balances", gt=0, choices=("auto",)
    )
    q: float = setting(0.9, "ε_{t+1} = q^t", gt=0, lt=1)
    tol: float = setting(1e-5, "τ: stop when ε_{t+1} + Σ ε̃_i <= τ, which bounds dist_∞(0, ∇f + ∂h)", gt=0)

    why_not_private = (
        "its local solves end when their own gradient is small, so one example's effect has no known bound"
    )

    def fit(self, problem: Problem) -> Fit:
        refuse(self, problem.terms, regularizer=False)
        return Fit(self, problem, max_rounds=20_000)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return Start(self), Step(self)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> AdmmServer:
        no = jnp.zeros((), bool)
        return AdmmServer(w0, Consensus.blank(terms, w0), no, no)

    def join(self, terms: Terms, data: Data, w0: Array) -> Agent:
        return blank_agent(terms, w0)

    def phase(self, server: AdmmServer) -> Array:
        return server.started.astype(int)

    def ended(self, server: AdmmServer) -> Array:
        return server.done

    def report(self, server: AdmmServer) -> dict[str, Array]:
        answers = server.consensus.answers
        return {
            "objective": jnp.mean(answers.status.f),
            "residual": server.consensus.eps + jnp.sum(answers.eps),
            "rho": server.consensus.rho,
        }

    def reason(self, server: AdmmServer, converged: bool, names: list[str]) -> str:
        silent = [name for name, heard in zip(names, server.consensus.fresh, strict=True) if not bool(heard)]
        if silent and not (converged or bool(server.started)):
            return f"stopped at the limit of rounds, still waiting to hear from client {silent[0]!r}"
        reached = float(server.consensus.eps + jnp.sum(server.consensus.answers.eps))
        if converged:
            return f"ε + Σ ε̃_i = {reached:.2g} <= {self.tol:g}"
        return f"stopped at the limit of rounds with ε + Σ ε̃_i = {reached:.2g} > {self.tol:g}"

    def local_P(self, terms: Terms, data: Data) -> LocalP:
        party, zeros = Party(terms), jnp.zeros(terms.dim)
        return lambda u, order: piece(party, u, data, jnp.zeros(0), zeros, beta=1.0, prox=0.0, order=order)

    def status(self, terms: Terms) -> Callable[[Piece], Status]:
        return lambda at: Status(at.f * terms.clients, jnp.zeros(()))

    def server_solver(self, terms: Terms) -> Callable[[Consensus, Array], newton.Solution]:
        return lambda at, eps: server_step(terms.regularizer, None, at, jnp.zeros(terms.dim), 0.0, eps)


def newtonian(terms: Terms) -> bool:
    """Whether clients solve by Newton: linear models, and own objectives small enough for a dense Hessian."""
    return terms.linear or terms.dim <= 600


@dataclass(frozen=True)
class Start:
    """The first round: λ_i = −∇P_i(w0)."""

    method: InexactADMM

    def broadcast(self, terms: Terms, server: AdmmServer, draws: Array) -> Hello:
        return Hello(server.w)

    def local(self, terms: Terms, client: Agent, hello: Hello, data: Data, key: Array) -> tuple[Agent, Answer]:
        P = self.method.local_P(terms, data)
        agent = agent_start(
            P, client, hello.w, own_rho(P, hello.w, self.method.rho, jnp.zeros(())), self.method.status(terms)
        )
        return agent, agent.answer

    def aggregate(self, terms: Terms, server: AdmmServer, replies: Answer, present: Present) -> AdmmServer:
        heard = server.consensus.hear(replies, present)
        started = consensus_start(terms, server.w, heard, self.method.server_solver(terms))
        ready = jnp.all(heard.fresh)
        return AdmmServer(jnp.where(ready, started.w, server.w), select(ready, started, heard), ready, server.done)


@dataclass(frozen=True)
class Step:
    """One step of Algorithm 2."""

    method: InexactADMM

    def broadcast(self, terms: Terms, server: AdmmServer, draws: Array) -> Call:
        at = server.consensus
        return Call(at.w, at.eps, at.rho, at.t)

    def local(self, terms: Terms, client: Agent, call: Call, data: Data, key: Array) -> tuple[Agent, Answer]:
        P = self.method.local_P(terms, data)
        agent = agent_step(P, client, call, self.method.status(terms))
        return agent, agent.answer

    def aggregate(self, terms: Terms, server: AdmmServer, replies: Answer, present: Present) -> AdmmServer:
        solver, method = self.method.server_solver(terms), self.method
        at, done = consensus_step(
            server.consensus, replies, present, jnp.asarray(method.tol), method.q, method.rho == "auto", solver
        )
        return AdmmServer(at.w, at, server.started, done)
