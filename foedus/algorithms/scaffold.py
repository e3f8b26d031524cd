"""SCAFFOLD: control variates c, c_i take the drift out of local steps (Karimireddy et al. 2020, Alg. 1, option II)."""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, DescentServer, Model, Seen, complete
from foedus.privacy.releasing import NotPrivate
from foedus.pytrees import state
from foedus.settings import setting, settings
from foedus.summing import Summing
from foedus.terms import Data, Terms


@state
class Drift:
    """How a client's model and control variate have changed, and its view of the received model."""

    dw: Array
    dc: Array
    seen: Seen


@settings
class Scaffold(NotPrivate, Summing, Descent):
    """FedAvg without client drift, for clients whose data differ much.

    Local steps are u −= γ(∇f_i(u) − c_i + c); c_i is then set from the distance travelled (option II), or, where the
    clients use an optimiser of their own, to the gradient at the received model (option I).
    """

    lr: float | str = setting("auto", "local step γ; 'auto' is 1/(k0·max r_i)", gt=0, choices=("auto",))
    global_lr: float = setting(1.0, "server step", gt=0)

    why_not_private = "it sends its control variate beside its model, and no joint bound on the two is proved here"

    def own_state(self, terms: Terms, w0: Array) -> Array:
        return jnp.zeros_like(w0)  # c

    def join(self, terms: Terms, data: Data, w0: Array) -> Array:
        return jnp.zeros_like(w0)  # c_i

    def rate(self, model: Model, step: Array | int) -> Array:
        gamma = super().rate(model, step)
        return gamma / self.k0 if self.automatic else gamma

    def local(self, terms: Terms, c_i: Array, model: Model, data: Data, key: Array) -> tuple[Array, Drift]:
        w, c = model.w, model.own
        seen, g = self.look(terms, w, data)
        u = self.descend(model, g - c_i + c, lambda v: terms.gradient(v, data) - c_i + c)
        if self.local_optimizer is not None:
            return g, Drift(u - w, g - c_i, seen)
        travelled = jnp.sum(jax.vmap(lambda j: jnp.broadcast_to(self.rate(model, j), ()))(jnp.arange(self.k0)))
        c_new = c_i - c + (w - u) / travelled
        return c_new, Drift(u - w, c_new - c_i, seen)

    def aggregate(self, terms: Terms, server: DescentServer, replies: Drift, present: Present) -> DescentServer:
        mean = present.mean(replies)
        progress = self.judge(terms, mean.seen, complete(terms, present))
        c = server.own + present.count / terms.clients * mean.dc
        return self.advance(server, progress, server.w + self.global_lr * mean.dw, c)
