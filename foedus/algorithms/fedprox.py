"""FedProx: local steps held near the received model by (mu/2)‖u − w‖² (Li et al. 2020, Alg. 2; as GIA V.D)."""

import jax
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, Model, Server
from foedus.algorithms.fedavg import FedAvg, Update
from foedus.settings import setting, settings
from foedus.terms import Data, Terms


@settings
class FedProx(Descent):
    """k0 times a round, `steps` gradient steps on f_i(u) + (mu/2)‖u − w‖²."""

    sums = True

    k0: int = setting(1, "inexact proximal solves a round", ge=1, integer=True)
    mu: float = setting(1e-4, "weight of the proximal term", ge=0)
    steps: int = setting(5, "gradient steps per solve", ge=1, integer=True)

    def local(self, terms: Terms, client: tuple[()], model: Model, data: Data, key: Array) -> tuple[tuple[()], Update]:
        seen, g = self.look(terms, model.w, data)
        first = model.w - self.rate(model, 0) * g

        def step(j: int, u: Array) -> Array:
            pull = self.mu * (u - model.w)
            return u - self.rate(model, j // self.steps) * (terms.gradient(u, data) + pull)

        return client, Update(jax.lax.fori_loop(1, self.k0 * self.steps, step, first), seen)

    def aggregate(self, terms: Terms, server: Server, replies: Update, present: Present) -> Server:
        return FedAvg.aggregate(self, terms, server, replies, present)  # pyright: ignore[reportArgumentType]
