"""SCAFFOLD: control variates c, c_i take the drift out of local steps (Karimireddy et al. 2020, Alg. 1, option II)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.fedavg import Descent, DescentServer, ModelMessage, View, complete
from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.privacy.releasing import NotPrivate
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import Present
from foedus.protocol.summing import Summing


@state
class Drift:
    """How a client's model and control variate have changed, and its view of the received model."""

    dw: Array
    dc: Array
    view: View


@settings
class Scaffold(NotPrivate, Accountable, Descent, Summing):
    """FedAvg for clients whose data differ much: control variates remove the drift of the local steps.

    Local steps are u −= γ(∇f_i(u) − c_i + c). Then c_i is set to the mean gradient along these steps (option II), or,
    where the clients use an optimiser of their own, to the gradient at the received model (option I).

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.Scaffold())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    lr: float | str = setting("auto", "local step γ; 'auto' is 1/(k0·max r_i)", gt=0, choices=("auto",))
    global_lr: float = setting(1.0, "server step", gt=0)
    combine: str = setting(
        "mean", "its control variates add up to 0 over plain means alone", choices=("mean",), alias="aggregate"
    )

    why_not_private = "it sends its control variate beside its model, and no joint bound on the two is proved here"

    def own_state(self, terms: Terms, w0: Array) -> Array:
        return jnp.zeros_like(w0)  # c

    def join(self, terms: Terms, data: Data, w0: Array) -> Array:
        return jnp.zeros_like(w0)  # c_i

    def rate(self, model: ModelMessage, step: Array | int) -> Array:
        gamma = super().rate(model, step)
        return gamma / self.k0 if self.automatic else gamma

    def local(self, terms: Terms, c_i: Array, model: ModelMessage, data: Data, key: Array) -> tuple[Array, Drift]:
        w, c = model.w, model.own
        view, g = self.look(terms, w, data)
        u = self.descend(model, g - c_i + c, lambda v: terms.gradient(v, data) - c_i + c)
        if self.local_optimizer is not None:
            return g, Drift(u - w, g - c_i, view)
        # (w − u)/Σγ is the mean of the gradients along the steps, corrected by c_i − c
        total_rate = jnp.sum(jax.vmap(lambda j: jnp.broadcast_to(self.rate(model, j), ()))(jnp.arange(self.k0)))
        c_new = c_i - c + (w - u) / total_rate
        return c_new, Drift(u - w, c_new - c_i, view)

    def account(self, terms: Terms, message: ModelMessage, reply: Drift) -> Account:
        return Account(np.asarray(message.w), np.asarray(reply.dw), *reply.view.figures())

    def aggregate(self, terms: Terms, server: DescentServer, replies: Drift, present: Present) -> DescentServer:
        mean = present.mean(replies)
        progress = self.judge(terms, mean.view, complete(terms, present))
        c = server.own + present.count / terms.clients * mean.dc
        return self.advance(server, progress, server.w + self.global_lr * mean.dw, c)
