"""FedAvg, FedProx and FedGiA with sound noise: clipped gradients, proved sensitivities, nothing else sent.

`solve(..., privacy=...)` puts these in the place of the plain methods. What the plain methods find from the data and
send in the clear is replaced by what all parties know: step sizes come from the bound on the rows of X instead of the
clients' Lipschitz constants, and there is no stopping test.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Algorithm, Each, Present
from foedus.algorithms.descent import Descent, Model
from foedus.algorithms.fedgia import FedGiA
from foedus.algorithms.sfedavg import several_gradients, steps_sensitivity
from foedus.errors import FoedusError
from foedus.losses import LeastSquares
from foedus.privacy import clipping, sensitivity
from foedus.privacy.noise import Sound
from foedus.privacy.release import Spent, all_spent, observed, release, speaks
from foedus.pytrees import state
from foedus.terms import Data, Terms


@state
class Server:
    w: Array
    z: Array  # what each client released last. (m, dim)
    round: Array
    releases: Array  # how often each client has released


@state
class Client:
    pi: Array  # π_i of FedGiA; unused otherwise
    z: Array  # what it released last
    spent: Spent


@state
class Update:
    z: Array
    spoke: Array  # whether z is new


@dataclass(frozen=True)
class Private(Algorithm):
    """What the private methods share; `method` holds the settings of the plain one."""

    method: Any
    noise: Sound
    examples: int = 0  # in all; public, as every d_i is

    keeps_lost = True

    @property
    def name(self) -> str:
        return self.method.name

    def check(self, terms: Terms) -> None:
        super().check(terms)
        clipping.check(terms, self.noise, self.name)

    def top(self, terms: Terms, count: Array | float) -> Array:
        """The largest curvature of a client's objective that the bound on the rows allows."""
        assert self.noise.rows is not None
        return jnp.asarray(sensitivity.curvature(terms, self.noise.rows, jnp.asarray(count))[1])

    def init(self, terms: Terms, w0: Array, own: Data | None) -> Server:
        z = jnp.broadcast_to(w0, (terms.clients, terms.dim))
        return Server(w0, z, jnp.zeros((), int), jnp.zeros(terms.clients, int))

    def join(self, terms: Terms, data: Data, w0: Array) -> Client:
        return Client(jnp.zeros_like(w0), w0, Spent.nothing())

    def condense(self, terms: Terms, data: Data) -> Data:
        return clipping.condensed(terms, data, self.noise)

    def send(
        self, client: Client, w: Array, pi: Array, increment: Array, moved: Array, carried: Array, key: Array
    ) -> tuple[Client, Update]:
        """The new state and a release of the increment of w; the old ones once the budget is spent."""
        spoke = speaks(self.noise, client.spent, jnp.ones((), bool))
        spent, z = release(self.noise, client.spent, w, increment, moved, carried, key, spoke)
        z = jnp.where(spoke, z, client.z)
        return Client(jnp.where(spoke, pi, client.pi), z, spent), Update(z, spoke)

    def mean(self, z: Array, spoke: Array) -> Array:
        raise NotImplementedError

    def aggregate(self, terms: Terms, server: Server, replies: Update, present: Present) -> Server:
        z = present.remember(server.z, replies.z)
        spoke = present.remember(jnp.zeros(terms.clients, bool), replies.spoke)
        w = jnp.where(jnp.any(spoke), self.mean(z, spoke), server.w)
        return Server(w, z, server.round + 1, server.releases + spoke.astype(int))

    def stuck(self, server: Server) -> Array:
        return all_spent(self.noise, server.releases)

    def observe(self, clients: Client) -> dict[str, Array]:
        return observed(clients.spent)

    def reason(self, server: Server, converged: bool, names: list[str]) -> str:
        if bool(all_spent(self.noise, server.releases)):
            return "every client's privacy budget is spent"
        return "played the rounds asked for; a stopping test would have to be paid for"


class PrivateDescent(Private):
    """FedAvg or FedProx: a round's gradient steps from the received w, then a release of where they end.

    The sensitivity of one step is γΔ, for w is known; of several, that of `sensitivity.descent`, for which the rows of
    X have to be bounded. Clients keep nothing from round to round.
    """

    method: Descent

    def check(self, terms: Terms) -> None:
        super().check(terms)
        if self.method.passes > 1:
            several_gradients(terms, self.noise, self.name)
        elif self.method.lr == "auto" and (terms.loss is None or terms.loss.curvature is None):
            raise FoedusError(
                f"{self.name}(lr='auto') would ask the clients for their Lipschitz constants, which are private; give "
                "lr, or take a smooth loss of xᵀw."
            )

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> Model:
        return Model(server.w, jnp.zeros(()), server.round, ())

    def local(self, terms: Terms, client: Client, model: Model, data: Data, key: Array) -> tuple[Client, Update]:
        method, w = self.method, model.w
        pull, steps = getattr(method, "mu", 0.0), getattr(method, "steps", 1)
        # of several steps no guarantee rests on a guess, for without a bound on the rows there is only one
        known = sensitivity.public_curvature(terms, self.noise, data.count)
        base = 1.0 / known if isinstance(method.lr, str) else jnp.asarray(method.lr)
        model = replace(model, gamma=base)
        rows = clipping.rows_of(terms, data, self.noise)

        def step(j: int | Array, d: Array) -> Array:  # d = u − w
            g = clipping.clipped_gradient(terms, w + d, data, self.noise, rows)
            return d - method.rate(model, j // steps) * (g + pull * d)

        d = jax.lax.fori_loop(1, method.passes, step, step(0, jnp.zeros_like(w)))
        rates = [method.rate(model, j // steps) for j in range(method.passes)]
        moved = steps_sensitivity(terms, self.noise, data, rates, pull)
        return self.send(client, w, client.pi, d, moved, jnp.zeros(()), key)

    def mean(self, z: Array, spoke: Array) -> Array:
        return jnp.where(spoke, 1.0, 0.0) @ z / jnp.maximum(jnp.sum(spoke), 1)


@state
class Order:
    x: Array
    chosen: Any


class PrivateGiA(Private):
    """FedGiA with H_i = r·I, r from the bound on the rows; the state π_i is carried (`sensitivity.inexact_admm`)."""

    method: FedGiA

    def check(self, terms: Terms) -> None:
        super().check(terms)
        kind = type(self.noise).__name__
        if self.method.H == "gram":
            raise FoedusError(
                f"FedGiA(H='gram') multiplies what a client sends by the inverse of its Gram matrix, whose sensitivity "
                f"is not known; with {kind} noise use H='diagonal'."
            )
        if terms.loss is None or terms.loss.curvature is None or self.noise.rows is None:
            raise FoedusError(
                f"FedGiA with {kind} noise needs a smooth loss of xᵀw and {kind}(rows=...), a bound on the 2-norm of "
                "the rows of X, in the place of the clients' Lipschitz constants, which are private."
            )

    def sigma(self, terms: Terms) -> Array:
        """σ = t·r/m with Table III's t, all of it public; the plain method would correct a bold t by looking at f."""
        t = self.method.t
        if t is None:
            bold = max(0.025, 4.0 * math.log(max(self.examples, 2)) / terms.dim)
            t = 0.15 if isinstance(terms.loss, LeastSquares) else bold
        typical = self.examples / terms.clients
        return t * self.top(terms, typical) / terms.clients

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> Order:
        m = terms.clients
        size = math.ceil(self.method.alpha * m - 1e-9)
        chosen = jnp.zeros(m, bool).at[jnp.argsort(draws)[:size]].set(True)
        return Order(server.w, Each(chosen & (server.round > 0)))  # the first round has C empty, as in the plain method

    def local(self, terms: Terms, client: Client, order: Order, data: Data, key: Array) -> tuple[Client, Update]:
        m, k0, sigma = terms.clients, self.method.k0, self.sigma(terms)
        a = 1.0 / (self.top(terms, data.count) / m + sigma)
        g = clipping.clipped_gradient(terms, order.x, data, self.noise) / m
        before = (1.0 - sigma * a) ** (k0 - 1) * (g + client.pi)
        step = jnp.where(order.chosen, -a * before, 0.0)  # x_i − x
        pi = jnp.where(order.chosen, before * (1.0 - sigma * a) - g, -g)
        change = sensitivity.change(self.noise, data.count) / m
        carried, moved = sensitivity.inexact_admm(client.spent.carried, change, a, sigma, k0, order.chosen)
        return self.send(client, order.x, pi, step + pi / sigma, moved, carried, key)

    def mean(self, z: Array, spoke: Array) -> Array:
        return jnp.mean(z, axis=0)
