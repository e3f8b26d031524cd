"""Methods with noise on what clients send, and what the private forms of FedAvg, FedProx and FedGiA share.

`Noisy` is what all of them share: a client releases z_i = w_i + noise while its budget lasts, and the server uses the
last z_i of everybody. With sound noise gradients are clipped, the sensitivity of z_i is proved, and nothing else is
sent. The constants that the plain methods compute from the data and send in the clear are replaced by public ones: step
sizes come from the bound on the rows of X instead of the clients' Lipschitz constants, and there is no stopping test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree, state
from foedus.privacy import clipping, sensitivity
from foedus.privacy.noise import Sound
from foedus.privacy.release import Spent, all_spent, release, release_columns, speaks
from foedus.privacy.releasing import Releasing
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import RUNNING, STUCK, Algorithm, Fit, OtherForm, Present, name_of


class Noisy(Releasing):
    """A method whose clients release z_i = w_i + noise while their budgets last."""

    @property
    def sound(self) -> Sound | None:
        """The noise, where it comes with a guarantee."""
        return self.noise if isinstance(self.noise, Sound) else None

    def fit(self, problem: Problem) -> Fit:
        fit = super().fit(problem)
        if self.sound is None:
            return fit
        terms, noise = problem.terms, self.sound
        clipping.check(self, terms, noise, name_of(self))
        return replace(fit, condense=lambda data: clipping.condense(terms, data, noise))

    def model(self, terms: Terms, z: Array, spoke: Array) -> Array:
        """The next w, from everybody's last z_i and the clients that have just sent one."""
        raise NotImplementedError

    def collect(
        self, terms: Terms, server: PyTree, replies: PyTree, present: Present
    ) -> tuple[Array, Array, Array, Array]:
        """The table of z_i, who has just sent a new one, how often each client has by now, and the next w."""
        z = present.remember(server.z, replies.z)
        spoke = present.remember(jnp.zeros(terms.clients, bool), replies.spoke)
        w = jnp.where(jnp.any(spoke), self.model(terms, z, spoke), server.w)
        return z, spoke, server.releases + spoke.astype(int), w

    def budgets_are_spent(self, server: PyTree) -> Array:
        """Whether every client's budget is spent."""
        return all_spent(self.noise, server.releases)

    def release_record(self, clients: PyTree) -> Mapping[str, Array]:
        return release_columns(clients.spent)


def private_steps(
    terms: Terms, noise: Sound, w: Array, data: Data, rate: Callable[[int | Array], Array], gradients: int, pull: float
) -> tuple[Array, Array]:
    """The increment d = u − w of so many clipped gradient steps on f_i(u) + (pull/2)‖u − w‖², and its sensitivity."""
    rows = clipping.rows_of(terms, data, noise)

    def step(j: int | Array, d: Array) -> Array:
        g = clipping.clipped_gradient(terms, w + d, data, noise, rows)
        return d - rate(j) * (g + pull * d)

    d = jax.lax.fori_loop(1, gradients, step, step(0, jnp.zeros_like(w)))
    rates = [rate(j) for j in range(gradients)]
    return d, sensitivity.several_steps(terms, noise, data.count, rates, jnp.sum(jnp.abs(w)), pull)


# --- the private forms of methods that have no noise of their own ---


@state
class NoisyServer:
    """The server's state of a private form."""

    w: Array
    z: Array  # each client's last release. (m, dim)
    round: Array
    releases: Array  # how often each client has released


@state
class NoisyClient:
    """A client's state in a private form."""

    pi: Array  # π_i of FedGiA; unused otherwise
    z: Array  # its last release
    spent: Spent


@state
class NoisyReply:
    """A private client's reply: z_i, and whether it is new."""

    z: Array
    spoke: Array


@dataclass(frozen=True)
class PrivateForm(Noisy, OtherForm):
    """The functions that all private forms share; `plain` is the method itself, with its settings."""

    plain: Algorithm  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Sound  # pyright: ignore[reportIncompatibleVariableOverride]

    def init(self, terms: Terms, w0: Array, own: Data | None) -> PyTree:
        z = jnp.broadcast_to(w0, (terms.clients, terms.dim))
        return NoisyServer(w0, z, jnp.zeros((), int), jnp.zeros(terms.clients, int))

    def join(self, terms: Terms, data: Data, w0: Array) -> NoisyClient:
        return NoisyClient(jnp.zeros_like(w0), w0, Spent.nothing())

    def send(
        self, client: NoisyClient, w: Array, pi: Array, increment: Array, bound: Array, delta: Array, key: Array
    ) -> tuple[NoisyClient, NoisyReply]:
        """The new state and a release of the increment of w; the old ones once the budget is spent.

        `bound` is the sensitivity of the increment, `delta` that of the state which the next round starts from.
        """
        spoke = speaks(self.noise, client.spent, jnp.ones((), bool))
        spent, z = release(self.noise, client.spent, w, increment, bound, delta, key, spoke)
        z = jnp.where(spoke, z, client.z)
        return NoisyClient(jnp.where(spoke, pi, client.pi), z, spent), NoisyReply(z, spoke)

    def aggregate(self, terms: Terms, server: PyTree, replies: NoisyReply, present: Present) -> PyTree:
        z, _, releases, w = self.collect(terms, server, replies, present)
        return NoisyServer(w, z, server.round + 1, releases)

    def ended(self, server: PyTree) -> Array:
        return jnp.where(self.budgets_are_spent(server), STUCK, RUNNING)

    def reason(self, server: PyTree, converged: bool, names: list[str]) -> str:
        if bool(self.budgets_are_spent(server)):
            return "every client's privacy budget is spent"
        return "played the rounds asked for; a stopping test would have to be paid for"
