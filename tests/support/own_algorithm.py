"""An algorithm outside foedus, as a user's module would hold it."""

import jax

from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.protocol.algorithm import Algorithm


@state
class Point:
    w: jax.Array


@settings
class Descent(Algorithm):
    """Gradient descent on the mean."""

    lr: float = setting(0.5, "step", gt=0)

    def init(self, terms, w0, own):
        return Point(w0)

    def broadcast(self, terms, server, draws):
        return server.w

    def local(self, terms, client, w, data, key):
        return client, terms.gradient(w, data)

    def aggregate(self, terms, server, replies, present):
        return Point(server.w - self.lr * present.mean(replies))
