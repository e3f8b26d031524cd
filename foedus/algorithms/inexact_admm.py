"""InexactADMM: PAL's Algorithm 2 on its own, for problems with a regulariser and without constraints."""

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
from foedus.algorithms.lagrangian import Party, Piece, piece
from foedus.base.pytrees import select, state
from foedus.base.settings import setting, settings
from foedus.numerics import newton
from foedus.privacy.releasing import NotPrivate
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Fit, Kind, Present, refuse


@state
class AdmmServer:
    """The server's state of InexactADMM."""

    w: Array
    consensus: Consensus
    has_started: Array  # whether every client has sent its first ũ_i
    finished: Array


@state
class AdmmGreeting:
    """The message of the first round: the point to start from."""

    w: Array


@settings
class InexactADMM(NotPrivate):
    """Solves problems with a regulariser h, such as the lasso, and without constraints.

    It is PAL's Algorithm 2 on its own. Each client minimises its own objective plus a quadratic that draws it to the
    server's w, the server takes one prox of h, and multipliers make them agree. The run ends when the residual of the
    optimality condition of Σ f_i + h is at most `tol`.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> problem = fd.Problem(sites, loss=fd.losses.least_squares, regularizer=fd.regularizers.L1(1.2))
        >>> run = fd.solve(problem, fd.InexactADMM())
        >>> run.converged, (run.w.round(3) + 0.0).tolist()
        (True, [0.0, 0.6])
    """

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
        return AdmmStart(self), AdmmStep(self)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> AdmmServer:
        no = jnp.zeros((), bool)
        return AdmmServer(w0, Consensus.blank(terms, w0), no, no)

    def join(self, terms: Terms, data: Data, w0: Array) -> Agent:
        return blank_agent(terms, w0)

    def phase(self, server: AdmmServer) -> Array:
        return server.has_started.astype(int)

    def ended(self, server: AdmmServer) -> Array:
        return server.finished

    def report(self, server: AdmmServer) -> dict[str, Array]:
        answers = server.consensus.answers
        return {
            "objective": jnp.mean(answers.status.f),
            "residual": server.consensus.eps + jnp.sum(answers.eps),
            "rho": server.consensus.rho,
        }

    def reason(self, server: AdmmServer, converged: bool, names: list[str]) -> str:
        silent = [name for name, fresh in zip(names, server.consensus.fresh, strict=True) if not bool(fresh)]
        if silent and not (converged or bool(server.has_started)):
            return f"stopped at the limit of rounds, still waiting to hear from client {silent[0]!r}"
        residual = float(server.consensus.eps + jnp.sum(server.consensus.answers.eps))
        if converged:
            return f"ε + Σ ε̃_i = {residual:.2g} <= {self.tol:g}"
        return f"stopped at the limit of rounds with ε + Σ ε̃_i = {residual:.2g} > {self.tol:g}"

    def local_P(self, terms: Terms, data: Data) -> LocalP:
        """P_i = f_i/n, without rows and without a proximal term."""
        party, zeros = Party(terms), jnp.zeros(terms.dim)
        return lambda u, order: piece(party, u, data, jnp.zeros(0), zeros, beta=1.0, prox=0.0, order=order)

    def status(self, terms: Terms) -> Callable[[Piece], Status]:
        """A client's figures for the history, as a function of P_i at a point."""
        return lambda at: Status(at.f * terms.clients, jnp.zeros(()))

    def server_solver(self, terms: Terms) -> Callable[[Consensus, Array], newton.Solution]:
        """The server's step as a function of its state and the tolerance; there is no P_0."""
        return lambda at, eps: server_step(terms.regularizer, None, at, jnp.zeros(terms.dim), 0.0, eps)


@dataclass(frozen=True)
class AdmmStart:
    """The first round, in which clients set λ_i = −∇P_i(w0); it is repeated until everybody has answered."""

    method: InexactADMM

    def broadcast(self, terms: Terms, server: AdmmServer, draws: Array) -> AdmmGreeting:
        return AdmmGreeting(server.w)

    def local(self, terms: Terms, client: Agent, hello: AdmmGreeting, data: Data, key: Array) -> tuple[Agent, Answer]:
        P = self.method.local_P(terms, data)
        agent = agent_start(
            P, client, hello.w, own_rho(P, hello.w, self.method.rho, jnp.zeros(())), self.method.status(terms)
        )
        return agent, agent.answer

    def aggregate(self, terms: Terms, server: AdmmServer, replies: Answer, present: Present) -> AdmmServer:
        latest = server.consensus.hear(replies, present)
        first = consensus_start(terms, server.w, latest, self.method.server_solver(terms))
        ready = jnp.all(latest.fresh)
        w = jnp.where(ready, first.w, server.w)
        return AdmmServer(w, select(ready, first, latest), ready, server.finished)


@dataclass(frozen=True)
class AdmmStep:
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
        at, finished = consensus_step(
            server.consensus, replies, present, jnp.asarray(method.tol), method.q, method.rho == "auto", solver
        )
        return AdmmServer(at.w, at, server.has_started, finished)
