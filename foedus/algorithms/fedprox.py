"""FedProx: local steps held near the received model by (mu/2)‖u − w‖² (Li et al. 2020, Alg. 2; as GIA V.D)."""

from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, DescentServer, Model, complete
from foedus.algorithms.fedavg import Trained
from foedus.algorithms.private import Descending
from foedus.settings import setting, settings
from foedus.summing import Summing
from foedus.terms import Data, Terms


@settings
class FedProx(Descending, Summing, Descent):
    """FedAvg whose local steps stay near the received model, for clients whose data differ.

    k0 times a round it takes `steps` gradient steps on f_i(u) + (mu/2)‖u − w‖².
    """

    k0: int = setting(1, "inexact proximal solves a round", ge=1, integer=True)
    mu: float = setting(1e-4, "weight of the proximal term", ge=0)
    steps: int = setting(5, "gradient steps per solve", ge=1, integer=True)

    @property
    def gradients(self) -> int:
        return self.k0 * self.steps

    @property
    def pull(self) -> float:
        return self.mu

    def local(self, terms: Terms, client: tuple[()], model: Model, data: Data, key: Array) -> tuple[tuple[()], Trained]:
        seen, g = self.look(terms, model.w, data)

        def gradient(u: Array) -> Array:
            return terms.gradient(u, data) + self.mu * (u - model.w)

        return client, Trained(self.descend(model, g, gradient), seen)

    def aggregate(self, terms: Terms, server: DescentServer, replies: Trained, present: Present) -> DescentServer:
        mean = present.mean(replies)
        return self.advance(server, self.judge(terms, mean.seen, complete(terms, present)), mean.w)
