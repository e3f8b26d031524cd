"""Messages as the wire sees them: what one client receives, and how many bytes that is."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Algorithm, Each
from foedus.terms import Data, Terms


def _is_each(node: Any) -> bool:
    return isinstance(node, Each)


def leaves_for(message: Any, index: Array | None) -> tuple[list[Array], list[int | None], Any]:
    """A message as leaves for the clients `index` (None: all, in order), the client axis of each leaf, and the tree.

    `Each` fields come with a leading axis over those clients; the others are shared.
    """
    nodes, tree = jax.tree.flatten(message, is_leaf=_is_each)
    parts, leaves, axes = [], [], []
    for node in nodes:
        flat, part = jax.tree.flatten(node.values if _is_each(node) else node)
        parts.append((part, len(flat)))
        for leaf in flat:
            leaves.append(leaf if index is None or not _is_each(node) else leaf[index])
            axes.append(0 if _is_each(node) else None)
    return leaves, axes, (tree, tuple(parts))


def assemble(leaves: list[Array], structure: Any) -> Any:
    """The message as one client reads it, from its leaves."""
    tree, parts = structure
    nodes, start = [], 0
    for part, size in parts:
        nodes.append(jax.tree.unflatten(part, leaves[start : start + size]))
        start += size
    return jax.tree.unflatten(tree, nodes)


def message_for(message: Any, client: int) -> Any:
    """The message that one client receives."""
    return jax.tree.map(
        lambda node: jax.tree.map(lambda v: v[client], node.values) if _is_each(node) else node,
        message,
        is_leaf=_is_each,
    )


def nbytes(tree: Any) -> int:
    """The bytes of a tree's arrays."""
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _shapes(tree: Any, drop: int) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a)[drop:], a.dtype), tree)


def traffic_of(
    algorithm: Algorithm, terms: Terms, server: Any, clients: Any, data: Data
) -> tuple[tuple[int, int], ...]:
    """For each kind of round: the bytes one client receives, and the bytes it sends. Nothing is computed.

    `clients` and `data` are stacked on a leading client axis.
    """
    leaves, tree = jax.tree.flatten((_shapes(server, 0), _shapes(clients, 1), _shapes(data, 1)))
    return _traffic(algorithm, terms, tuple(leaves), tree)


@lru_cache(maxsize=256)
def _traffic(algorithm: Algorithm, terms: Terms, leaves: tuple[Any, ...], tree: Any) -> tuple[tuple[int, int], ...]:
    server, client, data = jax.tree.unflatten(tree, leaves)
    key = jax.eval_shape(lambda: jax.random.key(0))
    draws = jax.ShapeDtypeStruct((terms.clients,), float)
    sizes = []
    for kind in algorithm.kinds:
        one = jax.eval_shape(lambda s, d, kind=kind: message_for(kind.broadcast(terms, s, d), 0), server, draws)
        reply = jax.eval_shape(lambda c, m, d, k, kind=kind: kind.local(terms, c, m, d, k)[1], client, one, data, key)
        sizes.append((nbytes(one), nbytes(reply)))
    return tuple(sizes)
