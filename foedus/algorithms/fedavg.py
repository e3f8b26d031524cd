"""FedAvg: local gradient descent, then the mean of the models (McMahan et al. 2017; full gradients as GIA V.D)."""

from dataclasses import replace

import numpy as np
from jax import Array

from foedus.algorithms.descent import Descent, DescentServer, ModelMessage, View, complete
from foedus.algorithms.private import Descending
from foedus.base.pytrees import PyTree, state
from foedus.base.settings import settings
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import Present
from foedus.protocol.buffered import Buffered
from foedus.protocol.summing import Summing


@state
class LocalModel:
    """A client's model after its local steps, and its view of the received one."""

    w: Array
    view: View


class LateModels(Buffered, Accountable):
    """Of a model that started from an earlier one, the change counts; and a change can be held against others."""

    def account(self, terms: Terms, message: ModelMessage, reply: PyTree) -> Account:
        w = np.asarray(message.w)
        f, g = reply.view.figures() if isinstance(reply, LocalModel) else (None, None)
        return Account(w, np.asarray(reply.w) - w, f, g)

    def catch_up(
        self, terms: Terms, server: DescentServer, message: ModelMessage, reply: LocalModel, weight: Array
    ) -> LocalModel:
        return replace(reply, w=server.w + weight * (reply.w - message.w))


@settings
class FedAvg(Descending, LateModels, Descent, Summing):
    """The baseline that other methods are compared with: local gradient steps, then the mean of the models.

    A client takes k0 full-gradient steps from the received model; the server averages the models of those that
    answered. Where the clients' data differ and k0 > 1, the result is near the optimum, but not at it.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedAvg())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    def local(
        self, terms: Terms, client: tuple[()], model: ModelMessage, data: Data, key: Array
    ) -> tuple[tuple[()], LocalModel]:
        view, g = self.look(terms, model.w, data)
        return client, LocalModel(self.descend(model, g, lambda u: terms.gradient(u, data)), view)

    def aggregate(self, terms: Terms, server: DescentServer, replies: LocalModel, present: Present) -> DescentServer:
        mean = self.mean(replies, present)
        return self.advance(server, self.judge(terms, mean.view, complete(terms, present)), mean.w)
