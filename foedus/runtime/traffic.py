"""The bytes of a round's messages, and the shapes of what is exchanged: found without computing anything."""

from functools import lru_cache
from typing import TypeAlias

import jax
import jax.numpy as jnp

from foedus.base.pytrees import PyTree, nbytes
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, Kind
from foedus.runtime.spine import message_for
from foedus.sums.masking import Masking

Bytes: TypeAlias = tuple[tuple[int, int], ...]
"""For each kind of round: the bytes one client receives, and the bytes it sends."""


def traffic_of(
    algorithm: Algorithm, terms: Terms, server: PyTree, clients: PyTree, data: Data, masking: Masking | None = None
) -> Bytes:
    """Return the bytes of a round's messages, from shapes alone; `clients` and `data` have a client axis first."""
    leaves, tree = jax.tree.flatten((_shapes(server, 0), _shapes(clients, 1), _shapes(data, 1)))
    return _traffic(algorithm, terms, tuple(leaves), tree, masking)


def reply_shapes(kind: Kind, terms: Terms, server: PyTree, clients: PyTree, data: Data) -> PyTree:
    """Return the shapes of one client's reply in a kind of round; `clients` and `data` have a client axis first."""
    return exchange_shapes(kind, terms, _shapes(server, 0), _shapes(clients, 1), _shapes(data, 1))[2]


def _shapes(tree: PyTree, drop: int) -> PyTree:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a)[drop:], a.dtype), tree)


def exchange_shapes(
    kind: Kind, terms: Terms, server: PyTree, client: PyTree, data: Data
) -> tuple[PyTree, PyTree, PyTree]:
    """Return the shapes of the message that one client receives, of its state afterwards, and of its reply."""
    key, draws = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((terms.clients,), float)
    message = jax.eval_shape(lambda s, d: message_for(kind.broadcast(terms, s, d), 0), server, draws)
    after, reply = jax.eval_shape(lambda c, m, d, k: kind.local(terms, c, m, d, k), client, message, data, key)
    return message, after, reply


@lru_cache(maxsize=256)
def _traffic(
    algorithm: Algorithm,
    terms: Terms,
    leaves: tuple[jax.ShapeDtypeStruct, ...],
    tree: PyTree,
    masking: Masking | None,
) -> Bytes:
    server, client, data = jax.tree.unflatten(tree, leaves)
    sizes = []
    for kind in algorithm.kinds:
        message, _, reply = exchange_shapes(kind, terms, server, client, data)
        if masking is None:
            sizes.append((nbytes(message), nbytes(reply)))
        else:
            numbers = sum(int(leaf.size) for leaf in jax.tree.leaves(reply))
            sizes.append(masking.traffic(nbytes(message), numbers, terms.clients))
    return tuple(sizes)
