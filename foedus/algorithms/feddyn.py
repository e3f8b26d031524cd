"""FedDyn: a linear term in each local problem makes local and global optima agree (Acar et al. 2021, Algorithm 1).

A round: clients take gradient steps from the received w on
    f_i(u) − ⟨h_i, u⟩ + (α/2)‖u − w‖²,        h_i ← h_i − α(u − w),
and the server, with S the clients that answered out of m,
    h ← h − (α/m) Σ_S (u_i − w),              w ← mean over S of u_i − h/α.
Where nothing moves any more u_i = w and h_i = ∇f_i(w), and the h_i add up to 0: w is the optimum of the mean.
"""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, Present


@state
class DynServer:
    """The server's state."""

    w: Array  # the model
    h: Array  # h


@state
class DynClient:
    """A client's state."""

    h: Array  # h_i
    rate: Array  # the step of its local gradient descent, 1/(r_i + α)


@settings
class FedDyn(Algorithm):
    """Local training whose clients agree in the end, for clients whose data differ.

    The page "Write your own algorithm" builds it step by step.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = [(np.eye(2), np.array([1.0, 2.0])), (np.eye(2), np.array([3.0, 4.0]))]
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedDyn(), max_rounds=200)
        >>> run.w.round(3).tolist()
        [2.0, 3.0]
    """

    alpha: float = setting(0.1, "α, the weight of (α/2)‖u − w‖²", gt=0)
    steps: int = setting(5, "local gradient steps a round", ge=1, integer=True)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> DynServer:
        return DynServer(w0, jnp.zeros_like(w0))

    def join(self, terms: Terms, data: Data, w0: Array) -> DynClient:
        return DynClient(jnp.zeros_like(w0), 1.0 / (terms.lipschitz(w0, data) + self.alpha))

    def broadcast(self, terms: Terms, server: DynServer, draws: Array) -> Array:
        return server.w

    def local(self, terms: Terms, client: DynClient, w: Array, data: Data, key: Array) -> tuple[DynClient, Array]:
        def step(_: int, u: Array) -> Array:
            return u - client.rate * (terms.gradient(u, data) - client.h + self.alpha * (u - w))

        change = jax.lax.fori_loop(0, self.steps, step, w) - w
        return DynClient(client.h - self.alpha * change, client.rate), change

    def aggregate(self, terms: Terms, server: DynServer, replies: Array, present: Present) -> DynServer:
        mean = present.mean(replies)
        h = server.h - self.alpha * present.count / terms.clients * mean
        return DynServer(server.w + mean - h / self.alpha, h)

    def reason(self, server: DynServer, converged: bool, names: list[str]) -> str:
        return "played the rounds asked for"
