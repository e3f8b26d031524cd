"""FedPD: primal-dual local updates with periodic averaging (Zhang et al. 2020, oracle I, option I; as GIA V.D)."""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.fedavg import (
    DescentServer,
    FirstOrder,
    Greet,
    ModelMessage,
    Progress,
    View,
    complete,
    step_size,
)
from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.privacy.releasing import NotPrivate
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Kind, Present


@state
class PrimalDual:
    """A client's x_i and λ_i."""

    x: Array  # x_i
    lam: Array  # λ_i


@state
class LocalAverage:
    """A client's x_0 = x_i + ηλ_i, and its view of the received model."""

    x0: Array
    view: View


@settings
class FedPD(FirstOrder, NotPrivate):
    """Solves smooth problems with clients whose data differ, also if some of them are silent now and then.

    k0 times a round a client takes `steps` gradient steps on its augmented Lagrangian, then updates λ_i and x_0. The
    server averages everybody's last x_0.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedPD())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    k0: int = setting(1, "primal-dual updates a round", ge=1, integer=True)
    steps: int = setting(5, "gradient steps per update", ge=1, integer=True)
    lr: float | str = setting("auto", "η_1, the gradient step; 'auto' is 1/(2·max r_i)", gt=0, choices=("auto",))
    eta: float | str = setting("auto", "η of the penalty 1/(2η); 'auto' is 1/max r_i", gt=0, choices=("auto",))
    decay: float | str | None = setting(
        None, "None: constant; 'log': lr/log2(k+2), GIA V.D; a number: lr/(1 + k/decay)", gt=0, choices=("log",)
    )

    why_not_private = "its multipliers carry the data from round to round, and one example's effect has no proved bound"

    @property
    def automatic(self) -> bool:
        return "auto" in (self.lr, self.eta)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (Greet(self), self) if self.automatic else (self,)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> DescentServer:
        # the last x_0 of each client, and its last view of the model: a silent client's stay in the mean
        blank = View(jnp.zeros(terms.clients), jnp.zeros((terms.clients, terms.dim)) if self.stop else ())
        table = LocalAverage(jnp.broadcast_to(w0, (terms.clients, terms.dim)), blank)
        gamma = 0.0 if self.automatic or isinstance(self.lr, str) else self.lr
        return DescentServer(w0, jnp.zeros((), int), jnp.asarray(gamma), Progress.none(), table)

    def phase(self, server: DescentServer) -> Array:
        return (server.gamma > 0).astype(int) if self.automatic else jnp.zeros((), int)

    def join(self, terms: Terms, data: Data, w0: Array) -> PrimalDual:
        return PrimalDual(w0, jnp.zeros_like(w0))

    def broadcast(self, terms: Terms, server: DescentServer, draws: Array) -> ModelMessage:
        return ModelMessage(server.w, server.gamma, server.round, ())

    def local(
        self, terms: Terms, client: PrimalDual, model: ModelMessage, data: Data, key: Array
    ) -> tuple[PrimalDual, LocalAverage]:
        view, _ = self.look(terms, model.w, data)
        eta = model.gamma if isinstance(self.eta, str) else self.eta

        def update(carry: tuple[Array, Array, Array], j: Array) -> tuple[tuple[Array, Array, Array], None]:
            x, lam, x0 = carry
            gamma = step_size(model.gamma, self.decay, model.round * self.k0 + j)
            rate = 0.5 * gamma if isinstance(self.lr, str) else gamma / model.gamma * self.lr

            def step(_: int, u: Array) -> Array:
                return u - rate * (terms.gradient(u, data) + lam + (u - x0) / eta)

            x = jax.lax.fori_loop(0, self.steps, step, x)
            lam = lam + (x - x0) / eta
            return (x, lam, x + eta * lam), None

        (x, lam, x0), _ = jax.lax.scan(update, (client.x, client.lam, model.w), jnp.arange(self.k0))
        return PrimalDual(x, lam), LocalAverage(x0, view)

    def aggregate(self, terms: Terms, server: DescentServer, replies: LocalAverage, present: Present) -> DescentServer:
        table = present.remember(server.own, replies)
        mean = jax.tree.map(lambda rows: jnp.mean(rows, axis=0), table)
        progress = self.judge(terms, mean.view, complete(terms, present))
        w = self.settle(progress, server.w, mean.x0)
        return DescentServer(w, server.round + 1, server.gamma, progress, table)
