"""Inexact ADMM for Σ P_i + h (PAL Algorithm 2): the clients' and the server's step.

ε_{t+1} = q^t. Start: u_i = w̃⁰, λ_i = −∇P_i(w̃⁰), ũ_i = u_i + λ_i/ρ.
Server: w^{t+1} ≈ argmin P_0 + h + Σ (ρ/2)‖ũ_i − w‖², to dist_∞ ≤ ε_{t+1}.
Client: ε̃_i = ‖∇P_i(w^{t+1}) + λ_i − ρ(w^{t+1} − u_i)‖_∞ with the old u_i, λ_i;
        u_i ≈ argmin P_i(u) + ⟨λ_i, u − w^{t+1}⟩ + (ρ/2)‖u − w^{t+1}‖², to ‖∇‖_∞ ≤ ε_{t+1};  λ_i += ρ(u_i − w^{t+1}).
Stop when ε_{t+1} + Σ ε̃_i ≤ τ; the answer is w^{t+1}, at which ε̃ was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from foedus.algorithms.lagrangian import Piece, full_regularizer
from foedus.base.pytrees import PyTree, select, state
from foedus.numerics import lbfgs, newton
from foedus.numerics.newton import Solution
from foedus.problem.regularizers import Regularizer
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Present

LocalP = Callable[[Array, int], Piece]
"""P_i as a function of a point and the order of derivatives that are needed."""

WINDOWS = tuple(range(20, 201, 20))  # the steps at which ρ may change; finitely many, as the convergence proof needs
NOISE = 1e-10  # relative residuals below this are rounding, which says nothing about ρ
ROUNDING = 1e-6  # the share of λ/ρ below which the length of w is not trusted
DEAD = 2.0  # a change of ρ by less than this factor is not worth disturbing the iteration
MOST = 10.0  # the largest factor by which ρ changes at once
TINY = 1e-300  # keeps a quotient finite where numerator and denominator are both 0
EPS_FLOOR = 1e-4  # ε stops falling at this share of τ, which more accuracy would not serve and rounding cannot give
DENSE = 600  # variables of an own objective up to which clients form its Hessian


@state
class Status:
    """A client's figures at the received model for the history: f_i and its largest constraint violation."""

    f: Array
    violation: Array

    infinite: ClassVar[tuple[str, ...]] = ("violation",)  # −inf for a client without rows


@state
class Agent:
    """A client's state in ADMM: u_i, λ_i, and its last answer."""

    u: Array
    lam: Array
    t: Array  # the step it answered last; a repeated call gets the same answer again
    answer: "Answer"
    lower: Array  # the Cholesky factor of the last Newton step, empty where L-BFGS solves


@state
class Answer:
    """A client's reply: ũ_i, and the residuals from which the server stops and chooses ρ."""

    u_tilde: Array
    rho: Array  # the ρ that is inside ũ
    eps: Array  # ε̃_i
    gap: Array  # ‖u_i − w‖² and ‖λ_i‖², for the choice of ρ
    force: Array
    residual: Array  # the residual that the local solver reached, relative to its tolerance
    status: Status

    infinite: ClassVar[tuple[str, ...]] = ("eps",)  # until the first step there is none


@state
class Call:
    """The message of one ADMM step: w^{t+1}, ε_{t+1}, ρ, t."""

    w: Array
    eps: Array
    rho: Array
    t: Array


def newtonian(terms: Terms) -> bool:
    """Whether clients solve by Newton steps: for linear models, and own objectives of few enough variables."""
    return terms.linear or terms.dim <= DENSE


def blank_agent(terms: Terms, point: Array) -> Agent:
    """A client's state before the first round."""
    zero, dim = jnp.zeros(()), point.shape[0]
    answer = Answer(point, jnp.ones(()), zero, zero, zero, zero, Status(zero, zero))
    lower = jnp.zeros((dim, dim) if newtonian(terms) else (0, 0))
    return Agent(point, jnp.zeros_like(point), jnp.full((), -1), answer, lower)


def agent_start(P: LocalP, agent: Agent, w: Array, rho: Array, status: Callable[[Piece], Status]) -> Agent:
    """The start of a subproblem at a client: u_i = w, λ_i = −∇P_i(w)."""
    here = P(w, 1)
    lam = -here.gradient
    zero = jnp.zeros(())
    answer = Answer(w + lam / rho, rho, jnp.full((), jnp.inf), zero, jnp.sum(lam**2), zero, status(here))
    return Agent(w, lam, jnp.zeros((), int), answer, agent.lower)


def agent_step(P: LocalP, agent: Agent, call: Call, status: Callable[[Piece], Status]) -> Agent:
    """One step of Algorithm 2 at a client; a repeated call changes nothing."""
    w, rho = call.w, call.rho
    here = P(w, 1)
    # ε̃_i is measured with the old u_i and λ_i: together with ε_{t+1} it bounds the residual of Σ P_i + h at w itself
    eps = jnp.max(jnp.abs(here.gradient + agent.lam - rho * (w - agent.u)))

    def quadratic(u: Array) -> tuple[Array, Array]:
        away = u - w
        return jnp.dot(agent.lam, away) + 0.5 * rho * jnp.sum(away**2), agent.lam + rho * away

    if agent.lower.size:

        def evaluate(u: Array, order: int) -> tuple[Array, Array, PyTree]:
            at, (value, slope) = P(u, order), quadratic(u)
            second = at.hessian + rho * jnp.eye(u.shape[0]) if order == 2 else ()
            return at.value + value, at.gradient + slope, second

        # λ_i and w move little from step to step, so the factor of the last Hessian is tried first
        solution = newton.minimise_again(evaluate, agent.u, call.eps, agent.lower)
        lower = solution.lower
    else:
        lower = agent.lower
        solution = lbfgs.minimise(lambda u: P(u, 1).value + quadratic(u)[0], agent.u, call.eps)
    lam = agent.lam + rho * (solution.w - w)
    gap = jnp.sum((solution.w - w) ** 2)
    answer = Answer(solution.w + lam / rho, rho, eps, gap, jnp.sum(lam**2), solution.residual / call.eps, status(here))
    following = Agent(solution.w, lam, call.t, answer, lower)
    # the server repeats a call until everybody has answered; a second update of λ_i would be wrong
    return select(call.t > agent.t, following, agent)


@state
class Consensus:
    """The server's state in ADMM: the last answer of each client, and who has answered for the present w."""

    w: Array
    t: Array
    rho: Array  # for the next local steps
    answers: Answer  # (clients, …)
    fresh: Array  # whose answer is about the present w
    eps: Array  # ε of the present w
    residual: Array  # the residual that the server's solver reached for the present w, relative to ε
    worst_residual: Array  # of the clients' solvers, so far
    hold: Array  # whether w stays until all have answered for it, because the stopping test may hold there
    primal: Array  # the sums of the relative residuals since ρ was last considered
    dual: Array

    @staticmethod
    def blank(terms: Terms, w: Array) -> "Consensus":
        """The state before anybody has answered."""
        n, dim = terms.clients, w.shape[0]
        column, zero = jnp.zeros(n), jnp.zeros(())
        answers = Answer(jnp.zeros((n, dim)), column, column, column, column, column, Status(column, column))
        no = jnp.zeros((), bool)
        return Consensus(w, jnp.zeros((), int), zero, answers, jnp.zeros(n, bool), zero, zero, zero, no, zero, zero)

    def hear(self, replies: Answer, present: Present) -> "Consensus":
        """The state with the answers of the clients that are present."""
        answers, fresh = present.remember((self.answers, self.fresh), (replies, jnp.ones_like(present.here)))
        return replace(self, answers=answers, fresh=fresh)


def server_step(
    h: Regularizer, server_P: LocalP | None, at: Consensus, centre: Array, prox: Array | float, eps: Array
) -> newton.Solution:
    """The server's w, which minimises P_0 + h + Σ (ρ_i/2)‖ũ_i − w‖².

    Without constraint rows at the server P_0 is a proximal term, and the minimum is one prox of h. With rows it takes
    (proximal) Newton steps.
    """
    rho, u = at.answers.rho, at.answers.u_tilde
    weight = jnp.sum(rho)
    middle = rho @ u
    if server_P is None:
        total = weight + prox
        w = h.prox((middle + prox * centre) / total, 1.0 / total)
        return newton.Solution(w, h.distance(w, total * w - middle - prox * centre), jnp.zeros((), int))

    def evaluate(w: Array, order: int) -> tuple[Array, Array, PyTree]:
        # P_0 holds its proximal term already; the sum over clients is expanded around w, up to a constant
        mine = server_P(w, order)
        value = 0.5 * weight * jnp.sum(w**2) - jnp.dot(middle, w)
        second = mine.hessian + weight * jnp.eye(w.shape[0]) if order == 2 else ()
        return mine.value + value, mine.gradient + weight * w - middle, second

    return newton.minimise(evaluate, at.w, eps, h=h)


def balance_rho(at: Consensus, w: Array) -> tuple[Array, Array, Array]:
    """The ρ for the next local steps, and the sums of the relative residuals ‖u − w‖/‖w‖ and ρ‖Δw‖/‖λ‖ behind it.

    The ratio of the two residuals does not depend on the scales of w and P (Wohlberg 2017). Single residuals oscillate,
    so ρ follows their sums over windows. It may change at the ends of ten windows and then stays, so that ADMM's
    convergence proof applies.
    """
    n = at.fresh.shape[0]
    # w is the mean of ũ_i = u_i + λ_i/ρ: where it is far smaller than they are, its own length is rounding
    length = jnp.maximum(n * jnp.sum(w**2), (ROUNDING / at.rho) ** 2 * jnp.sum(at.answers.force))
    primal = at.primal + jnp.sqrt(jnp.sum(at.answers.gap) / (length + TINY))
    dual = at.dual + at.rho * jnp.sqrt(n * jnp.sum((w - at.w) ** 2) / (jnp.sum(at.answers.force) + TINY))
    due = jnp.isin(at.t, jnp.asarray(WINDOWS))
    factor = jnp.clip(jnp.sqrt(primal / jnp.maximum(dual, TINY)), 1.0 / MOST, MOST)
    telling = jnp.maximum(primal, dual) > NOISE
    rho = jnp.where(due & telling & (jnp.abs(jnp.log(factor)) > jnp.log(DEAD)), at.rho * factor, at.rho)
    return rho, jnp.where(due, 0.0, primal), jnp.where(due, 0.0, dual)


def consensus_start(
    terms: Terms, w: Array, latest: Consensus, step: Callable[[Consensus, Array], newton.Solution]
) -> Consensus:
    """The first w of a subproblem, once every client has sent its first ũ_i."""
    n, eps = terms.clients, jnp.ones(())
    at = replace(
        latest, w=w, rho=jnp.mean(latest.answers.rho), eps=eps, hold=jnp.zeros((), bool), fresh=jnp.zeros(n, bool)
    )
    solution = step(at, eps)
    return replace(at, w=solution.w, t=jnp.ones((), int), residual=solution.residual / eps)


def consensus_step(
    at: Consensus,
    replies: Answer,
    present: Present,
    tau: Array,
    q: float,
    adaptive: bool,
    step: Callable[[Consensus, Array], newton.Solution],
) -> tuple[Consensus, Array]:
    """The state after a round of answers, and whether w solves the subproblem to τ.

    ε + Σ ε̃_i ≤ τ with answers of which some are old is no proof yet: then w stays (`hold`) until every client has
    answered for it. Otherwise the server steps on with whoever answered.
    """
    latest = at.hear(replies, present)
    near = at.eps + jnp.sum(latest.answers.eps) <= tau
    worst = jnp.maximum(jnp.maximum(at.worst_residual, at.residual), present.max(replies.residual))
    latest = replace(latest, worst_residual=worst, hold=near)
    eps = jnp.maximum(at.eps * q, EPS_FLOOR * tau)
    solution = step(latest, eps)
    rho, primal, dual = balance_rho(latest, solution.w) if adaptive else (at.rho, at.primal, at.dual)
    following = replace(
        latest,
        w=solution.w,
        t=at.t + 1,
        rho=rho,
        primal=primal,
        dual=dual,
        fresh=jnp.zeros_like(latest.fresh),
        eps=eps,
        residual=solution.residual / eps,
    )
    return select(near, latest, following), near & jnp.all(latest.fresh)


def own_rho(P: LocalP, w: Array, rho: float | str, hint: Array) -> Array:
    """The first ρ_i: the setting; or the last subproblem's, if there was one; or a mean curvature of P_i.

    That is the geometric mean of the Hessian's eigenvalues, det(H)^(1/dim), read off its Cholesky factor.
    """
    if not isinstance(rho, str):
        return jnp.asarray(rho)
    _, lower = newton.make_definite(P(w, 2).hessian)
    return jnp.where(hint > 0, hint, jnp.exp(2.0 * jnp.mean(jnp.log(jnp.diag(lower)))))


@dataclass(frozen=True)
class AdmmInner:
    """Algorithm 2 for ProxAL's subproblems Σ P_i + h; `NewtonInner` says what each function is."""

    rho: float | str
    q: float

    def join(self, terms: Terms, point: Array) -> Agent:
        return blank_agent(terms, point)

    def blank(self, terms: Terms, point: Array) -> Consensus:
        return Consensus.blank(terms, point)

    def status(self, inner: Consensus) -> Status:
        return inner.answers.status

    def report(self, inner: Consensus) -> dict[str, Array]:
        return {"residual": inner.eps + jnp.sum(inner.answers.eps), "rho": inner.rho, "solver": inner.worst_residual}

    def stalled(self, inner: Consensus) -> Array:
        """False: Algorithm 2 goes on until its tolerance is met."""
        return jnp.zeros((), bool)

    def residual(self, inner: Consensus) -> Array:
        """What Algorithm 2 holds against τ, which bounds dist_∞(0, ∂ℓ)."""
        return inner.eps + jnp.sum(inner.answers.eps)

    def solver_ratio(self, inner: Consensus) -> Array:
        """The worst residual of a local or server solver, relative to its tolerance."""
        return inner.worst_residual

    def client_start(
        self, terms: Terms, P: LocalP, client: Agent, w: Array, hint: Array, status: Callable[[Piece], Status]
    ) -> tuple[Agent, Answer]:
        agent = agent_start(P, client, w, own_rho(P, w, self.rho, hint), status)
        return agent, agent.answer

    def hear(self, inner: Consensus, replies: Answer, present: Present) -> Consensus:
        return inner.hear(replies, present)

    def hint(self, inner: Consensus) -> Array:
        return inner.rho

    def solver(
        self, terms: Terms, server_P: LocalP, centre: Array, prox: Array | float
    ) -> Callable[[Consensus, Array], Solution]:
        """The server's step; without rows at the server, P_0 is its proximal term alone and the step is one prox."""
        own = server_P if terms.rows[1] + terms.rows[2] > 0 else None
        return lambda at, eps: server_step(full_regularizer(terms), own, at, centre, prox, eps)

    def server_start(
        self, terms: Terms, server_P: LocalP, inner: Consensus, w: Array, prox: Array | float, tau: Array
    ) -> tuple[Consensus, Array, Array]:
        first = consensus_start(terms, w, inner, self.solver(terms, server_P, w, prox))
        return first, first.w, jnp.zeros((), bool)

    def broadcast(self, inner: Consensus) -> Call:
        return Call(inner.w, inner.eps, inner.rho, inner.t)

    def client_step(
        self, terms: Terms, P: LocalP, client: Agent, call: Call, status: Callable[[Piece], Status]
    ) -> tuple[Agent, Answer]:
        agent = agent_step(P, client, call, status)
        return agent, agent.answer

    def server_step(
        self, terms: Terms, server_P: LocalP, inner: Consensus, replies: Answer, present: Present, centre: Array,
        prox: Array | float, tau: Array,
    ) -> tuple[Consensus, Array, Array]:  # fmt: skip
        solver = self.solver(terms, server_P, centre, prox)
        at, finished = consensus_step(inner, replies, present, tau, self.q, self.rho == "auto", solver)
        return at, at.w, finished
