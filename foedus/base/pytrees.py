"""States, messages and replies are frozen dataclasses that JAX treats as trees of arrays."""

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

T = TypeVar("T")

PyTree: TypeAlias = Any
"""Any nesting of `@state` dataclasses, dicts, lists and tuples around arrays."""


@dataclass_transform(frozen_default=True)
def state(cls: type[T]) -> type[T]:
    """A frozen dataclass registered as a pytree: a state, a message or a reply."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def select(condition: Array, yes: T, no: T) -> T:
    """A choice between two states of the same shape."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def device_array(values: ArrayLike) -> Array:
    """An array of JAX's; `jnp.asarray` would compile a program for each shape."""
    return jax.device_put(np.asarray(values))


def strong(tree: T) -> T:
    """The tree without weak types: JAX would compile again for a state whose types changed after the first round."""
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, jnp.result_type(a)), tree)


def nbytes(tree: PyTree) -> int:
    """The bytes of a tree's arrays."""
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@dataclass(frozen=True)
class Traffic:
    """The bytes of all messages' arrays over a run: `up` from the clients, `down` to them."""

    up: int
    down: int
