"""FedAvg: local gradient descent, then the mean of the models (McMahan et al. 2017; full gradients as GIA V.D)."""

import jax
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, Model, Server
from foedus.algorithms.first_order import Seen, complete
from foedus.pytrees import state
from foedus.settings import settings
from foedus.terms import Data, Terms


@state
class Update:
    w: Array
    seen: Seen


@settings
class FedAvg(Descent):
    """Federated averaging with full local gradients."""

    sums = True

    def local(self, terms: Terms, client: tuple[()], model: Model, data: Data, key: Array) -> tuple[tuple[()], Update]:
        seen, g = self.look(terms, model.w, data)
        first = model.w - self.rate(model, 0) * g

        def step(j: int, u: Array) -> Array:
            return u - self.rate(model, j) * terms.gradient(u, data)

        return client, Update(jax.lax.fori_loop(1, self.k0, step, first), seen)

    def aggregate(self, terms: Terms, server: Server, replies: Update, present: Present) -> Server:
        mean = present.mean(replies)
        progress = self.judge(terms, mean.seen, complete(terms, present))
        return Server(self.settle(progress, server.w, mean.w), server.round + 1, server.gamma, progress, ())
