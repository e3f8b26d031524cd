"""SCAFFOLD: control variates c, c_i take the drift out of local steps (Karimireddy et al. 2020, Alg. 1, option II)."""

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
class Update:
    dw: Array
    dc: Array
    seen: Seen


@settings
class Scaffold(Descent):
    """Local steps u −= γ(∇f_i(u) − c_i + c), with c_i set from the distance travelled."""

    sums = True

    lr: float | str = setting("auto", "local step γ; 'auto' is 1/(k0·max r_i)", gt=0, choices=("auto",))
    global_lr: float = setting(1.0, "server step", gt=0)

    def own_state(self, terms: Terms, w0: Array) -> Array:
        return jnp.zeros_like(w0)  # c

    def join(self, terms: Terms, data: Data, w0: Array) -> Array:
        return jnp.zeros_like(w0)  # c_i

    def rate(self, model: Model, step: Array | int) -> Array:
        gamma = super().rate(model, step)
        return gamma / self.k0 if self.automatic else gamma

    def local(self, terms: Terms, c_i: Array, model: Model, data: Data, key: Array) -> tuple[Array, Update]:
        w, c = model.w, model.own
        seen, g = self.look(terms, w, data)
        first = w - self.rate(model, 0) * (g - c_i + c)

        def step(j: int, u: Array) -> Array:
            return u - self.rate(model, j) * (terms.gradient(u, data) - c_i + c)

        u = jax.lax.fori_loop(1, self.k0, step, first)
        travelled = jnp.sum(jax.vmap(lambda j: jnp.broadcast_to(self.rate(model, j), ()))(jnp.arange(self.k0)))
        c_new = c_i - c + (w - u) / travelled
        return c_new, Update(u - w, c_new - c_i, seen)

    def aggregate(self, terms: Terms, server: Server, replies: Update, present: Present) -> Server:
        mean = present.mean(replies)
        progress = self.judge(terms, mean.seen, complete(terms, present))
        w = self.settle(progress, server.w, server.w + self.global_lr * mean.dw)
        c = server.own + present.count / terms.clients * mean.dc
        return Server(w, server.round + 1, server.gamma, progress, c)
