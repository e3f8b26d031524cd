"""A round that only confirms: where no party has rows, and the next point is expected to pass, no matrix is sent.

Newton's method squares its residual near a minimum, so the ratio of the last two predicts the next one. A point that is
predicted to be within the tolerance is asked about with gradients alone; should it fail, it is asked about again.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior_point_site import InteriorClient
from foedus.algorithms.interior_point_state import InteriorServer
from foedus.algorithms.lagrangian import Party, evaluate
from foedus.base.pytrees import select, state
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import Present

SURE = 0.1  # of eps1: a prediction below this is trusted


def expects(before: Array, now: Array, eps1: float) -> Array:
    """Whether the stationarity after the next full step is expected to be within eps1, from the last two."""
    return now * (now / jnp.maximum(before, 1e-300)) ** 2 <= SURE * eps1


@state
class Gradient:
    """A site's reply: f_i/n and its gradient."""

    f: Array
    g: Array


@dataclass(frozen=True)
class Confirmation(Accountable):
    """The kind of round in which sites send gradients alone."""

    eps1: float

    def broadcast(self, terms: Terms, server: InteriorServer, draws: Array) -> Array:
        return server.x[: terms.dim]

    def local(
        self, terms: Terms, client: InteriorClient, w: Array, data: Data, key: Array
    ) -> tuple[InteriorClient, Gradient]:
        shares, _ = evaluate(Party(terms), w, data)
        return client, Gradient(shares.f, shares.g)

    def account(self, terms: Terms, message: Array, reply: Gradient) -> Account:
        n = terms.clients
        g = n * np.asarray(reply.g)
        return Account(np.asarray(message), np.atleast_1d(np.max(np.abs(g), initial=0.0)), n * float(reply.f), g)

    def aggregate(self, terms: Terms, server: InteriorServer, replies: Gradient, present: Present) -> InteriorServer:
        count = present.count
        total = jax.tree.map(lambda mean: count * mean, present.mean(replies))
        value, slope = terms.regularizer.epigraph(terms.dim).smooth(server.x)
        residual = terms.regularizer.distance(server.x[: terms.dim], total.g)
        done = (count == terms.clients) & (residual <= self.eps1)
        again = replace(server, confirming=jnp.zeros((), bool))
        lag = jnp.pad(total.g, (0, slope.shape[0] - terms.dim)) + slope
        base = replace(server.base, x=server.x, f=total.f + value, lag=lag, certificate=total.g, own=server.own)
        ended = replace(again, base=base, id=server.id + 1, done=done)
        return select(done, ended, again)
