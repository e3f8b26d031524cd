"""Local SGD: FedAvg with minibatches drawn at each client (Stich 2019; McMahan et al. 2017)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.fedavg import Descent, DescentServer, LateModels, ModelMessage, Progress, complete
from foedus.base.pytrees import PyTree, state
from foedus.base.settings import setting, settings
from foedus.privacy.releasing import NotPrivate
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Present
from foedus.protocol.summing import Summing


@state
class BatchModel:
    """A client's model after its local steps, and its loss on the first minibatch."""

    w: Array
    f: Array


def minibatch(terms: Terms, data: Data, key: Array, size: int) -> Data:
    """A sample of `size` examples that count in f_i, drawn with replacement and in proportion to their weights."""
    share = terms.counting(data) / jnp.sum(terms.counting(data))
    rows = jnp.searchsorted(jnp.cumsum(share), jax.random.uniform(key, (size,)), side="right")
    length = data["weight"].shape[0]
    rows = jnp.minimum(rows, length - 1)  # the sum of the shares may fall short of 1 by rounding
    batch = {k: v[rows] if v.ndim and v.shape[0] == length else v for k, v in data.items()}
    return Data(batch | {"weight": jnp.ones(size)})


def batch_gradient(terms: Terms, w: Array, data: Data, key: Array, size: int | None) -> tuple[Array, Array]:
    """f_i and its gradient at w, on a minibatch of this size; None: on all examples."""
    if size is None:
        return terms.value_and_gradient(w, data)
    examples = replace(terms, where=None, penalty=None)  # the mean over a batch; the penalty is the client's own
    f, g = examples.value_and_gradient(w, minibatch(terms, data, key, size))
    penalty = terms.penalty_of(data)
    return (f, g) if penalty is None else (f + penalty.value(w), g + penalty.gradient(w))


@settings
class LocalSGD(NotPrivate, LateModels, Descent, Summing):
    """FedAvg for clients with too many rows to use all of them in each step: local steps use minibatches.

    Its gradients are noisy, so it has no stopping test and plays the rounds it is given.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.LocalSGD(lr=0.1), max_rounds=200)
        >>> run.rounds, run.w.round(0).tolist()
        (200, [2.0, 3.0])
    """

    batch: int = setting(32, "examples per step, drawn with replacement", ge=1, integer=True)
    stop: str | None = setting(None, "no stopping test: no client looks at all its data", choices=(None,))

    why_not_private = "its minibatches are drawn with replacement, so one example can count many times in a step"

    def local(
        self, terms: Terms, client: tuple[()], model: ModelMessage, data: Data, key: Array
    ) -> tuple[tuple[()], BatchModel]:
        optimizer = None if self.local_optimizer is None else self.local_optimizer.transform

        def step(at: tuple[Array, PyTree], j: Array) -> tuple[tuple[Array, PyTree], Array]:
            u, memory = at
            f, g = batch_gradient(terms, u, data, jax.random.fold_in(key, j), self.batch)
            if optimizer is None:
                return (u - self.rate(model, j) * g, ()), f
            from optax import apply_updates  # which takes a tenth of a second, and few runs use

            change, memory = optimizer.update(g, memory, u)
            return (jnp.asarray(apply_updates(u, change)), memory), f

        start = (model.w, () if optimizer is None else optimizer.init(model.w))
        (u, _), f = jax.lax.scan(step, start, jnp.arange(self.k0))
        return client, BatchModel(u, f[0])

    def aggregate(self, terms: Terms, server: DescentServer, replies: BatchModel, present: Present) -> DescentServer:
        mean = self.mean(replies, present)
        return self.advance(server, Progress(mean.f, jnp.full((), jnp.inf), complete(terms, present)), mean.w)

    def report(self, server: DescentServer) -> dict[str, Array]:
        return {"minibatch_objective": server.progress.objective}
