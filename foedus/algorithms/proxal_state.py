"""The states and messages of ProxAL's outer rounds, and the protocol of its inner methods."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.admm import LocalP, Status
from foedus.algorithms.lagrangian import Excess, Party, Piece, Share, equalities, excess, full_regularizer, violation
from foedus.base.pytrees import PyTree, state
from foedus.certificate.contradiction import reach
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Present

GROWTH = 3.0  # the first factor by which β = "auto" grows; its square root after each subproblem that was not cheap
SEARCH = 1e10  # the β of a subproblem in which the violations alone count
FAR = 1e3  # terms that no point within so many units of its columns meets are called infeasible
PAST = 3  # outer points over which the violation has to shrink


AHEAD, UNDER_WAY, OVER = 0, 1, 2


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


class InnerMethod(Protocol):
    """A method that solves ProxAL's subproblems: `server_start` and `server_step` return (state, point, finished)."""

    def join(self, terms: Terms, point: Array, /) -> PyTree:
        """A client's state before its first round."""
        ...

    def blank(self, terms: Terms, point: Array, /) -> PyTree:
        """The server's state before its first round."""
        ...

    def status(self, inner: PyTree, /) -> Status:
        """The clients' last figures for the history."""
        ...

    def report(self, inner: PyTree, /) -> dict[str, Array]:
        """The inner method's own numbers for the history."""
        ...

    def stalled(self, inner: PyTree, /) -> Array:
        """Whether the last subproblem ended above its tolerance, because its residual did not become smaller."""
        ...

    def residual(self, inner: PyTree, /) -> Array:
        """dist_∞(0, ∂ℓ) at the solution of the last subproblem, or a bound on it."""
        ...

    def solver_ratio(self, inner: PyTree, /) -> Array:
        """The worst residual of a local or server solver, relative to its tolerance."""
        ...

    def hint(self, inner: PyTree, /) -> PyTree:
        """The server's suggestion to the clients for the next subproblem."""
        ...

    def hear(self, inner: PyTree, replies: PyTree, present: Present, /) -> PyTree:
        """The server's state with the replies of those present."""
        ...

    def client_start(
        self, terms: Terms, P: LocalP, client: PyTree, w: Array, hint: PyTree, status: Callable[[Piece], Status], /
    ) -> tuple[PyTree, PyTree]:
        """A client's state at the start of a subproblem, and its first reply."""
        ...

    def server_start(
        self, terms: Terms, server_P: LocalP, inner: PyTree, w: Array, prox: Array, tau: Array, /
    ) -> tuple[PyTree, Array, Array]:
        """The server's state once every client has sent its first reply."""
        ...

    def broadcast(self, inner: PyTree, /) -> PyTree:
        """The message of an inner round."""
        ...

    def client_step(
        self, terms: Terms, P: LocalP, client: PyTree, message: PyTree, status: Callable[[Piece], Status], /
    ) -> tuple[PyTree, PyTree]:
        """A client's next state and its reply in an inner round."""
        ...

    def server_step(
        self, terms: Terms, server_P: LocalP, inner: PyTree, replies: PyTree, present: Present, centre: Array,
        prox: Array, tau: Array, /,
    ) -> tuple[PyTree, Array, Array]:  # fmt: skip
        """The server's state after an inner round."""
        ...


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
