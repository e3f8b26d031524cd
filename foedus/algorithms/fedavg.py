"""FedAvg: local gradient descent, then the mean of the models (McMahan et al. 2017; full gradients as GIA V.D)."""

from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, DescentServer, Model, Seen, complete
from foedus.algorithms.private import Descending
from foedus.pytrees import state
from foedus.settings import settings
from foedus.summing import Summing
from foedus.terms import Data, Terms


@state
class Trained:
    """A client's model after its local steps, and its view of the received one."""

    w: Array
    seen: Seen


@settings
class FedAvg(Descending, Summing, Descent):
    """Federated averaging with full local gradients: the method to compare others with."""

    def local(self, terms: Terms, client: tuple[()], model: Model, data: Data, key: Array) -> tuple[tuple[()], Trained]:
        seen, g = self.look(terms, model.w, data)
        return client, Trained(self.descend(model, g, lambda u: terms.gradient(u, data)), seen)

    def aggregate(self, terms: Terms, server: DescentServer, replies: Trained, present: Present) -> DescentServer:
        mean = present.mean(replies)
        return self.advance(server, self.judge(terms, mean.seen, complete(terms, present)), mean.w)
