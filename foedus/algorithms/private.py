"""Methods with noise on what clients send, and the private forms of FedAvg, FedProx and FedGiA.

`Noisy` is what all of them share: a client releases z_i = w_i + noise while its budget lasts, and the server uses the
last z_i of everybody. With sound noise gradients are clipped, the sensitivity of z_i is proved, and nothing else is
sent. The constants that the plain methods compute from the data and send in the clear are replaced by public ones: step
sizes come from the bound on the rows of X instead of the clients' Lipschitz constants, and there is no stopping test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.descent import Descent, FirstOrder, ModelMessage
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, select, state
from foedus.privacy import clipping, sensitivity
from foedus.privacy.central import NoiseShares
from foedus.privacy.noise import Noise, Sound
from foedus.privacy.release import Spent, all_spent, release, release_columns, speaks
from foedus.privacy.releasing import Releasing, only_for_paper
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import RUNNING, STUCK, Algorithm, Fit, OtherForm, Present, name_of
from foedus.protocol.summing import Summing


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

    plain: FirstOrder  # pyright: ignore[reportIncompatibleVariableOverride]
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


class Descending(Releasing):
    """FedAvg and FedProx, whose private form is `PrivateDescent`."""

    noise = None

    def with_noise(self, noise: Noise, problem: Problem) -> Algorithm:
        assert isinstance(self, Descent)
        if not isinstance(noise, Sound):
            raise only_for_paper(noise)
        if self.server_optimizer is not None or self.local_optimizer is not None:
            raise FoedusError(
                f"{name_of(self)} with an optimiser of optax has no private form: one example's effect on what a "
                "client sends has no proved bound; leave server= and local= out."
            )
        if self.combine != "mean":
            raise FoedusError(
                f"{name_of(self)}(aggregate={self.combine!r}) has no private form: its sums are over noisy replies of "
                "those that spoke; take aggregate='mean'."
            )
        return PrivateDescent(replace(self, stop=None), noise)

    @property
    def needs_rows(self) -> bool:
        assert isinstance(self, Descent)
        return self.gradients > 1


@state
class SpeakingServer:
    """The server's state of private descent, which needs only sums."""

    w: Array
    round: Array
    left: Array  # the releases that all clients together may still make; infinite without a budget


@dataclass(frozen=True)
class PrivateDescent(PrivateForm, Summing):
    """FedAvg or FedProx with noise: a round's gradient steps from the received w, then a release of their result.

    The sensitivity of one step is γΔ, because w is public. That of several steps is `sensitivity.descent`'s, for which
    the rows of X have to be bounded. Clients keep nothing from round to round. The server takes the mean over those
    that have just spoken, which is a sum over their number.
    """

    plain: Descent

    def fit(self, problem: Problem) -> Fit:
        fit, loss = super().fit(problem), problem.terms.loss
        if isinstance(self.noise, NoiseShares):
            self._check_shares(self.noise, problem.terms)
        if self.plain.gradients > 1:
            sensitivity.check_several(problem.terms, self.noise, name_of(self))
        elif self.plain.lr == "auto" and (loss is None or loss.curvature is None):
            raise FoedusError(
                f"{name_of(self)}(lr='auto') would ask the clients for their Lipschitz constants, which are private; "
                "give lr, or take a loss of xᵀw with bounded curvature."
            )
        return fit

    def _check_shares(self, noise: NoiseShares, terms: Terms) -> None:
        """Refuse what is not proved for noise in shares, whose scale must be the same number at every client."""
        if self.plain.gradients > 1:
            raise FoedusError(
                f"{name_of(self)} with Central takes one gradient a round, for the sensitivity of several depends on "
                "the client; use k0=1, or Local."
            )
        noise.check_useful(terms.dim)

    def broadcast(self, terms: Terms, server: NoisyServer, draws: Array) -> ModelMessage:
        return ModelMessage(server.w, jnp.zeros(()), server.round, ())

    def local(
        self, terms: Terms, client: NoisyClient, model: ModelMessage, data: Data, key: Array
    ) -> tuple[NoisyClient, NoisyReply]:
        plain, w = self.plain, model.w
        per = plain.gradients // plain.k0
        # without a bound on the rows this curvature is a guess, but then there is only one step, whose sensitivity γΔ
        # holds for any γ
        curvature = sensitivity.public_curvature(terms, self.noise, self.noise.rows_range(data.count)[0])
        base = 1.0 / curvature if isinstance(plain.lr, str) else jnp.asarray(plain.lr)
        model = replace(model, gamma=base)
        rows = clipping.rows_of(terms, data, self.noise)

        def step(j: int | Array, d: Array) -> Array:  # d = u − w
            g = clipping.clipped_gradient(terms, w + d, data, self.noise, rows)
            return d - plain.rate(model, j // per) * (g + plain.pull * d)

        d = jax.lax.fori_loop(1, plain.gradients, step, step(0, jnp.zeros_like(w)))
        rates = [plain.rate(model, j // per) for j in range(plain.gradients)]
        bound = sensitivity.several_steps(terms, self.noise, data.count, rates, jnp.sum(jnp.abs(w)), plain.pull)
        if isinstance(self.noise, NoiseShares):
            # who has spent its budget adds its share of the noise all the same: the others' rows rely on it
            d = jnp.where(speaks(self.noise, client.spent, jnp.ones((), bool)), d, 0.0)
            spent, z = release(self.noise, client.spent, w, d, bound, jnp.zeros(()), key, jnp.ones((), bool))
            spoke = speaks(self.noise, client.spent, jnp.ones((), bool))
            return NoisyClient(client.pi, client.z, select(spoke, spent, client.spent)), NoisyReply(z, spoke)
        after, reply = self.send(client, w, client.pi, d, bound, jnp.zeros(()), key)
        return after, replace(reply, z=jnp.where(reply.spoke, reply.z, 0.0))  # who is silent adds nothing to the sum

    def init(self, terms: Terms, w0: Array, own: Data | None) -> SpeakingServer:
        most = jnp.inf if self.noise.most is None else float(self.noise.most * terms.clients)
        return SpeakingServer(w0, jnp.zeros((), int), jnp.asarray(most))

    def aggregate(self, terms: Terms, server: SpeakingServer, replies: NoisyReply, present: Present) -> SpeakingServer:
        mean = present.mean(NoisyReply(replies.z, replies.spoke.astype(float)))
        speakers = jnp.rint(present.count * mean.spoke)
        start = server.w if isinstance(self.noise, NoiseShares) else jnp.zeros_like(server.w)
        w = jnp.where(speakers > 0, start + mean.z * present.count / jnp.maximum(speakers, 1), server.w)
        return SpeakingServer(w, server.round + 1, server.left - speakers)

    def budgets_are_spent(self, server: SpeakingServer) -> Array:
        return server.left <= 0
