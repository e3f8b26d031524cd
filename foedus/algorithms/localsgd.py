"""Local SGD: FedAvg with minibatches drawn at each client (Stich 2019; McMahan et al. 2017)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, Model, Server
from foedus.algorithms.first_order import Progress, complete
from foedus.pytrees import state
from foedus.settings import setting, settings
from foedus.terms import Data, Terms


@state
class Update:
    w: Array
    f: Array  # on the first minibatch


def minibatch(terms: Terms, data: Data, key: Array, size: int) -> Data:
    """`size` examples drawn with replacement from those that count in f_i, each as often as it counts."""
    rows = jnp.searchsorted(jnp.cumsum(terms.share(data)), jax.random.uniform(key, (size,)), side="right")
    length = data["weight"].shape[0]
    rows = jnp.minimum(rows, length - 1)  # the sum of the shares may fall short of 1 by rounding
    taken = {k: v[rows] if v.ndim and v.shape[0] == length else v for k, v in data.items()}
    return Data(taken | {"weight": jnp.ones(size)})


@settings
class LocalSGD(Descent):
    """k0 minibatch steps a round. Its gradients are noisy, so it plays the rounds it is given."""

    sums = True

    batch: int = setting(32, "examples per step, drawn with replacement", ge=1, integer=True)
    stop: str | None = setting(None, "no stopping test: no client looks at all its data", choices=(None,))

    @property
    def passes(self) -> int:
        return 1  # a step looks at its minibatch only

    def local(self, terms: Terms, client: tuple[()], model: Model, data: Data, key: Array) -> tuple[tuple[()], Update]:
        examples = replace(terms, where=None, penalty=None)  # the mean over a batch; the penalty is the client's own

        def step(u: Array, j: Array) -> tuple[Array, Array]:
            batch = minibatch(terms, data, jax.random.fold_in(key, j), self.batch)
            f, g = examples.value_and_gradient(u, batch)
            if terms.penalty is not None:
                f, g = f + terms.penalty.value(u, data.count), g + terms.penalty.gradient(u, data.count)
            return u - self.rate(model, j) * g, f

        u, f = jax.lax.scan(step, model.w, jnp.arange(self.k0))
        return client, Update(u, f[0])

    def aggregate(self, terms: Terms, server: Server, replies: Update, present: Present) -> Server:
        mean = present.mean(replies)
        progress = Progress(mean.f, jnp.full((), jnp.inf), complete(terms, present))
        return Server(mean.w, server.round + 1, server.gamma, progress, ())

    def report(self, server: Server) -> dict[str, Array]:
        return {"minibatch_objective": server.progress.objective}
