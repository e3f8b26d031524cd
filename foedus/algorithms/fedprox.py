"""FedProx: local steps held near the received model by (mu/2)‖u − w‖² (Li et al. 2020, Alg. 2; as GIA V.D)."""

from jax import Array

from foedus.algorithms.descent import Descent, DescentServer, ModelMessage, complete
from foedus.algorithms.fedavg import LateModels, LocalModel
from foedus.algorithms.private import Descending
from foedus.base.settings import setting, settings
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Present
from foedus.protocol.summing import Summing


@settings
class FedProx(Descending, LateModels, Descent, Summing):
    """FedAvg for clients whose data differ: a proximal term keeps the local steps near the received model.

    A client takes k0 times `steps` gradient steps a round on f_i(u) + (mu/2)‖u − w‖².

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedProx())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
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

    def local(
        self, terms: Terms, client: tuple[()], model: ModelMessage, data: Data, key: Array
    ) -> tuple[tuple[()], LocalModel]:
        view, g = self.look(terms, model.w, data)

        def gradient(u: Array) -> Array:
            return terms.gradient(u, data) + self.mu * (u - model.w)

        return client, LocalModel(self.descend(model, g, gradient), view)

    def aggregate(self, terms: Terms, server: DescentServer, replies: LocalModel, present: Present) -> DescentServer:
        mean = self.mean(replies, present)
        return self.advance(server, self.judge(terms, mean.view, complete(terms, present)), mean.w)
