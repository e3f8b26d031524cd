"""ProxAL's subproblems by inexact ADMM, PAL's Algorithm 2: an `InnerMethod`."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from foedus.algorithms.admm import (
    Agent,
    Answer,
    Call,
    Consensus,
    LocalP,
    Status,
    agent_start,
    agent_step,
    blank_agent,
    consensus_start,
    consensus_step,
    own_rho,
    server_step,
)
from foedus.algorithms.lagrangian import Piece, full_regularizer
from foedus.numerics.newton import Solution
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Present


@dataclass(frozen=True)
class AdmmInner:
    """Algorithm 2 for the subproblem Σ P_i + h."""

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
