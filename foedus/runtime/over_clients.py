"""One client's function over all clients: messages taken apart for `vmap`, and clients in blocks."""

from collections.abc import Callable

import jax
from jax import Array

from foedus.pytrees import PyTree
from foedus.runtime import spine


def message_leaves(message: PyTree, index: Array | None) -> tuple[list[Array], list[int | None], PyTree]:
    """Take a message apart for `vmap`: its leaves, the client axis of each leaf (0 or None), and its structure.

    `Each` fields keep a leading axis over the clients `index` (None: all, in order); the others are shared. `vmap`
    takes one axis for each input, and a message mixes fields with and without one, so it travels as leaves.
    """
    nodes, tree = jax.tree.flatten(message, is_leaf=spine.is_each)
    parts, leaves, axes = [], [], []
    for node in nodes:
        flat, part = jax.tree.flatten(node.values if spine.is_each(node) else node)
        parts.append((part, len(flat)))
        for leaf in flat:
            leaves.append(leaf if index is None or not spine.is_each(node) else leaf[index])
            axes.append(0 if spine.is_each(node) else None)
    return leaves, axes, (tree, tuple(parts))


def message_from(leaves: list[Array], structure: PyTree) -> PyTree:
    """Put a message together as one client reads it: the inverse of `message_leaves`, inside `vmap`."""
    tree, parts = structure
    nodes, start = [], 0
    for part, size in parts:
        nodes.append(jax.tree.unflatten(part, leaves[start : start + size]))
        start += size
    return jax.tree.unflatten(tree, nodes)


def over_clients(
    one: Callable[..., PyTree], args: tuple[PyTree, ...], axes: tuple[int | None, ...], block: int | None
) -> PyTree:
    """`vmap` over the client axis of `args`: all clients at once, or block by block."""
    if block is None:
        return jax.vmap(one, in_axes=axes)(*args)
    split = [i for i, axis in enumerate(axes) if axis == 0]

    def call(parts: list[PyTree]) -> PyTree:
        whole = list(args)
        for i, part in zip(split, parts, strict=True):
            whole[i] = part
        return one(*whole)

    return jax.lax.map(call, [args[i] for i in split], batch_size=block)
