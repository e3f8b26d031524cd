"""FedNova: federated averaging that does not favour the clients that take more steps (Wang et al. 2020, section 4).

A client takes τ_i local steps u ← u − ηv, v ← ρv + g(u), from the received w, and sends its normalised change
    d_i = (w − u)/(η‖a_i‖₁),     ‖a_i‖₁ = (τ_i − ρ(1 − ρ^τ_i)/(1 − ρ))/(1 − ρ),
in which every gradient of the round has the same weight as if there had been one step; ‖a_i‖₁ = τ_i without momentum.
The server steps along the mean of these:  w ← w − η τ_eff (1/m)Σ d_i,  τ_eff = (1/m)Σ ‖a_i‖₁   (Eqs. (8)-(10)).
FedAvg would minimise Σ τ_i f_i instead of Σ f_i.
"""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.localsgd import batch_gradient
from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Present
from foedus.protocol.summing import Summing


@state
class NovaServer:
    """The server's state."""

    w: Array


@state
class NormalizedChange:
    """A client's reply."""

    d: Array  # d_i
    a: Array  # ‖a_i‖₁


@settings
class FedNova(Summing):
    """FedAvg for clients of different size that each work through all their rows in a round.

    A client takes a step for each `batch` of its rows, `epochs` times: large clients take many and small ones few. The
    server averages their directions and not their models, so that the large ones do not decide where the run ends.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedNova(batch=None), max_rounds=200)
        >>> run.w.round(3).tolist()
        [2.0, 3.0]
    """

    epochs: int = setting(1, "how often a client works through its rows in a round", ge=1, integer=True)
    batch: int | None = setting(
        32, "rows per step, drawn with replacement; None: all", ge=1, integer=True, choices=(None,)
    )
    lr: float = setting(0.1, "η, the local step", gt=0)
    momentum: float = setting(0.0, "ρ, the local momentum, which starts anew in each round", ge=0, lt=1)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> NovaServer:
        return NovaServer(w0)

    def broadcast(self, terms: Terms, server: NovaServer, draws: Array) -> Array:
        return server.w

    def local(
        self, terms: Terms, client: tuple[()], w: Array, data: Data, key: Array
    ) -> tuple[tuple[()], NormalizedChange]:
        rho = self.momentum
        tau = self.epochs * (1.0 if self.batch is None else jnp.ceil(data.count / self.batch))

        def step(j: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            u, v = at
            v = rho * v + batch_gradient(terms, u, data, jax.random.fold_in(key, j), self.batch)[1]
            return u - self.lr * v, v

        steps = jnp.asarray(tau).astype(int)
        u, _ = jax.lax.fori_loop(jnp.zeros_like(steps), steps, step, (w, jnp.zeros_like(w)))
        a = (tau - rho * (1.0 - rho**tau) / (1.0 - rho)) / (1.0 - rho)
        return client, NormalizedChange((w - u) / (self.lr * a), jnp.asarray(a))

    def aggregate(self, terms: Terms, server: NovaServer, replies: NormalizedChange, present: Present) -> NovaServer:
        mean = present.mean(replies)
        return NovaServer(server.w - self.lr * mean.a * mean.d)

    def reason(self, server: NovaServer, converged: bool, names: list[str]) -> str:
        return "played the rounds asked for"
