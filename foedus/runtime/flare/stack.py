"""Stack: the replies of one round as arrays with a row for each client, filled as the replies arrive."""

from dataclasses import dataclass

import jax
import numpy as np

from foedus.errors import FoedusError
from foedus.pytrees import PyTree
from foedus.runtime.flare import packing


@dataclass(frozen=True)
class Leaf:
    """One array of a reply: its place in the bytes, its type there and in memory, and if it may hold infinity."""

    start: int
    count: int
    shape: tuple[int, ...]
    wire: np.dtype
    dtype: np.dtype
    may_be_infinite: bool


class Plan:
    """The arrays of one kind of reply, worked out once."""

    def __init__(self, layout: PyTree):
        self.layout, self.size = layout, packing.size_of(layout)
        self.structure = jax.tree.structure(layout)
        self.leaves: list[Leaf] = []
        start = 0
        for leaf, free in zip(jax.tree.leaves(layout), packing.may_be_infinite(layout), strict=True):
            wire, count = np.dtype(leaf.dtype).newbyteorder("<"), int(np.prod(leaf.shape, dtype=np.int64))
            self.leaves.append(Leaf(start, count, tuple(leaf.shape), wire, np.dtype(leaf.dtype), free))
            start += count * wire.itemsize

    def stack(self, clients: int) -> "Stack":
        """Return a stack of this many rows of zeros."""
        return Stack(self, [np.zeros((clients, *leaf.shape), leaf.dtype) for leaf in self.leaves])


class Stack:
    """Rows of replies; a row is written once its bytes have passed all checks, so a refused reply leaves no trace."""

    def __init__(self, plan: Plan, arrays: list[np.ndarray]):
        self.plan, self.arrays = plan, arrays

    def put(self, row: int, content: bytes) -> None:
        """Write a reply's bytes into a row; raise where they do not fit, or hold NaN or infinity where they may not."""
        plan = self.plan
        if len(content) != plan.size:
            raise FoedusError(f"the arrays take {len(content)} bytes, where the terms make it {plan.size}.")
        values = [np.frombuffer(content, leaf.wire, leaf.count, leaf.start) for leaf in plan.leaves]
        for number, (leaf, flat) in enumerate(zip(plan.leaves, values, strict=True)):
            if leaf.wire.kind == "b" and np.any(flat.view(np.uint8) > 1):
                raise FoedusError("an array of truth values holds something else.")
            if leaf.wire.kind == "f":
                packing.check_numbers(flat, leaf.may_be_infinite, number)
        for array, leaf, flat in zip(self.arrays, plan.leaves, values, strict=True):
            array[row] = flat.reshape(leaf.shape)

    def place(self, row: int, reply: PyTree) -> None:
        """Write a reply that is a tree of arrays into a row."""
        for array, value in zip(self.arrays, jax.tree.leaves(reply), strict=True):
            array[row] = np.asarray(value)

    def row(self, row: int) -> PyTree:
        """Return one row as a reply."""
        return jax.tree.unflatten(self.plan.structure, [array[row] for array in self.arrays])

    @property
    def tree(self) -> PyTree:
        """The replies, stacked on a leading client axis."""
        return jax.tree.unflatten(self.plan.structure, self.arrays)
