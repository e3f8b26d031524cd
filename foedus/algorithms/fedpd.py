"""FedPD: primal-dual local updates with periodic averaging (Zhang et al. 2020, oracle I, option I; as GIA V.D)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, Model, Server
from foedus.algorithms.first_order import Seen, complete
from foedus.pytrees import state
from foedus.settings import setting, settings
from foedus.terms import Data, Terms


@state
class Client:
    x: Array  # x_i
    lam: Array  # λ_i


@state
class Update:
    x0: Array  # x_i + ηλ_i
    seen: Seen


@settings
class FedPD(Descent):
    """k0 times a round: `steps` gradient steps on the local augmented Lagrangian, then λ_i and the local x_0."""

    k0: int = setting(1, "primal-dual updates a round", ge=1, integer=True)
    steps: int = setting(5, "gradient steps per update", ge=1, integer=True)
    lr: float | str = setting("auto", "η_1, the gradient step; 'auto' is 1/(2·max r_i)", gt=0, choices=("auto",))
    eta: float | str = setting("auto", "η of the penalty 1/(2η); 'auto' is 1/max r_i", gt=0, choices=("auto",))

    @property
    def automatic(self) -> bool:
        return "auto" in (self.lr, self.eta)

    def own_state(self, terms: Terms, w0: Array) -> Any:
        """The last x_0 of each client, and its last view of the model: a silent client's stay in the mean."""
        blank = Seen(jnp.zeros(terms.clients), jnp.zeros((terms.clients, terms.dim)) if self.stop else ())
        return Update(jnp.broadcast_to(w0, (terms.clients, terms.dim)), blank)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> Server:
        server = super().init(terms, w0, own)
        if not self.automatic:
            return server
        return Server(server.w, server.round, jnp.zeros(()), server.progress, server.own)

    def join(self, terms: Terms, data: Data, w0: Array) -> Client:
        return Client(w0, jnp.zeros_like(w0))

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> Model:
        return Model(server.w, server.gamma, server.round, ())

    def local(self, terms: Terms, client: Client, model: Model, data: Data, key: Array) -> tuple[Client, Update]:
        seen, _ = self.look(terms, model.w, data)
        eta = model.gamma if isinstance(self.eta, str) else self.eta

        def update(carry: tuple[Array, Array, Array], j: Array) -> tuple[tuple[Array, Array, Array], None]:
            x, lam, x0 = carry
            rate = (
                0.5 * self.rate(model, j) if isinstance(self.lr, str) else self.rate(model, j) / model.gamma * self.lr
            )

            def step(_: int, u: Array) -> Array:
                return u - rate * (terms.gradient(u, data) + lam + (u - x0) / eta)

            x = jax.lax.fori_loop(0, self.steps, step, x)
            lam = lam + (x - x0) / eta
            return (x, lam, x + eta * lam), None

        (x, lam, x0), _ = jax.lax.scan(update, (client.x, client.lam, model.w), jnp.arange(self.k0))
        return Client(x, lam), Update(x0, seen)

    def aggregate(self, terms: Terms, server: Server, replies: Update, present: Present) -> Server:
        table = present.remember(server.own, replies)
        mean = jax.tree.map(lambda rows: jnp.mean(rows, axis=0), table)
        progress = self.judge(terms, mean.seen, complete(terms, present))
        w = self.settle(progress, server.w, mean.x0)
        return Server(w, server.round + 1, server.gamma, progress, table)
