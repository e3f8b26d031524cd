"""Kinds of rounds that say they need only sums do: a server that sees nobody's own reply ends in the same state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL, DIM, problem

from foedus.protocol.algorithm import Present, name_of
from foedus.protocol.summing import Summing

SUMMING = [case for case in ALL if isinstance(case.algorithm, Summing)]


def test_the_averaging_methods_say_so():
    averaging = {"FedAvg", "FedProx", "InteriorPoint", "LocalSGD", "Scaffold"}
    assert averaging <= {name_of(case.algorithm) for case in SUMMING}


@pytest.mark.parametrize("case", SUMMING, ids=str)
def test_only_the_mean_of_the_replies_matters(case):
    algorithm, terms = case.algorithm, problem(case.problem).over(np.zeros(DIM)).terms
    rng = np.random.default_rng(0)
    server = algorithm.init(terms, jnp.asarray(rng.normal(size=DIM)), None)
    data = jax.tree.map(lambda a: a[0], problem(case.problem).data)
    client = algorithm.join(terms, data, jnp.zeros(DIM))
    message = algorithm.broadcast(terms, server, jnp.zeros(terms.clients))
    reply = algorithm.local(terms, client, message, data, jax.random.key(0))[1]
    here = np.array([True, True, False, True, True])
    replies = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=(terms.clients, *jnp.shape(a)))), reply)
    blurred = jax.tree.map(lambda a: jnp.broadcast_to(jnp.mean(a[here], axis=0), a.shape), replies)
    present = Present(jnp.arange(terms.clients), jnp.asarray(here))
    seen, unseen = (algorithm.aggregate(terms, server, told, present) for told in (replies, blurred))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), seen, unseen)
