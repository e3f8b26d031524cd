"""Messages as bytes: a JSON header, then the arrays' bytes one after the other.

Both sides know the arrays' types and shapes from the terms (`jax.eval_shape`), so the bytes hold numbers and nothing
else. What does not fit to the last byte is refused.
"""

import dataclasses
import json
import math
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.federation.policy import Refusal

LARGEST = 1e6  # the largest number in a message under privacy: the rounding of larger ones could show through the noise
LENGTH = struct.Struct("<I")  # the length of the header, which every message begins with
LONGEST_HEADER = 2**24  # bytes: far more than a header takes, far less than would fill a memory
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # the names that a run may have: the name becomes that of a folder
LONGEST_LINE = 2000  # characters of a text from outside in a log


def seal(header: Json, payload: bytes = b"") -> bytes:
    """Join a header and a payload into one message."""
    head = json.dumps(header, sort_keys=True).encode()
    return LENGTH.pack(len(head)) + head + payload


def unseal(message: object) -> tuple[Json, bytes]:
    """Take a message apart into its header and its payload: the inverse of `seal`."""
    if not isinstance(message, bytes | bytearray) or len(message) < LENGTH.size:
        raise FoedusError("a message is cut short: its header is missing.")
    (size,) = LENGTH.unpack_from(message)
    if size > min(LONGEST_HEADER, len(message) - LENGTH.size):
        raise FoedusError("a message is cut short: its header is not whole.")
    try:
        header = json.loads(bytes(message[LENGTH.size : LENGTH.size + size]))
    except (ValueError, RecursionError):  # the second where it is nested thousands deep
        raise FoedusError("a message's header is not JSON.") from None
    if not isinstance(header, dict):
        raise FoedusError("a message's header is not a table.")
    return header, bytes(message[LENGTH.size + size :])


def structure(tree: PyTree) -> PyTree:
    """Return the types and shapes of a tree's arrays, without their values."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), tree)


def size_of(layout: PyTree) -> int:
    """Return the number of bytes that a tree with this layout takes."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize for leaf in _leaves(layout))


def _leaves(layout: PyTree) -> list[jax.ShapeDtypeStruct]:
    return jax.tree.leaves(layout)


def to_bytes(tree: PyTree, layout: PyTree) -> bytes:
    """Return the bytes of a tree's arrays in the layout's types, little end first."""
    parts = []
    for value, leaf in zip(jax.tree.leaves(tree), _leaves(layout), strict=True):
        array = np.asarray(value)
        if array.shape != tuple(leaf.shape):
            raise FoedusError(f"an array of shape {array.shape} does not fit the agreed shape {tuple(leaf.shape)}.")
        parts.append(np.ascontiguousarray(array, dtype=_wire_type(leaf)).tobytes())
    return b"".join(parts)


def from_bytes(content: bytes, layout: PyTree) -> PyTree:
    """Return the tree of NumPy arrays that `to_bytes` wrote; refuse bytes that do not fit the layout."""
    size = size_of(layout)
    if len(content) != size:
        raise FoedusError(f"the arrays take {len(content)} bytes, where the terms make it {size}.")
    arrays, start = [], 0
    for leaf in _leaves(layout):
        kind = _wire_type(leaf)
        count = int(np.prod(leaf.shape, dtype=np.int64))
        flat = np.frombuffer(content, dtype=kind, count=count, offset=start)
        if kind == np.dtype(bool) and np.any(flat.view(np.uint8) > 1):
            raise FoedusError("an array of truth values holds something else.")
        arrays.append(flat.reshape(leaf.shape).astype(leaf.dtype))
        start += count * kind.itemsize
    return jax.tree.unflatten(jax.tree.structure(layout), arrays)


def _wire_type(leaf: jax.ShapeDtypeStruct) -> np.dtype:
    return np.dtype(leaf.dtype).newbyteorder("<")


def may_be_infinite(tree: PyTree) -> list[bool]:
    """Return for each array of a reply whether it may hold infinity, as the reply's class says in `infinite`."""
    flags: list[bool] = []

    def walk(node: PyTree, free: bool) -> None:
        if dataclasses.is_dataclass(node) and not isinstance(node, type | jax.ShapeDtypeStruct):
            words = getattr(type(node), "infinite", ())
            for f in dataclasses.fields(node):
                walk(getattr(node, f.name), free or f.name in words)
            return
        flags.extend([free] * len(jax.tree.leaves(node)))

    walk(tree, False)
    return flags


def check_finite(tree: PyTree, free: list[bool]) -> None:
    """Raise where an array holds NaN, or infinity where it may not; the sentence holds no values."""
    for number, (leaf, may) in enumerate(zip(jax.tree.leaves(tree), free, strict=True)):
        array = np.asarray(leaf)
        if array.dtype.kind == "f":
            check_numbers(array, may, number)


def check_numbers(array: np.ndarray, may_be_infinite: bool, number: int) -> None:
    """Raise where an array, the one of this number in a reply, holds NaN, or infinity where it may not."""
    if np.all(np.isfinite(array)):
        return
    if np.any(np.isnan(array)):
        raise NotFinite(f"array {number} of its reply holds NaN")
    if not may_be_infinite:
        raise NotFinite(f"array {number} of its reply is infinite")


class NotFinite(FoedusError):
    """A reply holds NaN, or infinity where it may not."""


# --- what a site checks in the numbers of a message ---


def whole(value: object, least: int, most: int, name: str) -> int:
    """Return a whole number; refuse what is none, or lies outside its range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refusal("unknown", f"{name} must be a whole number from {least} to {most}")
    return value


def check_moderate(tree: PyTree, private: bool) -> None:
    """Refuse numbers that no honest run sends; under privacy also large ones, whose rounding could show through."""
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        if array.dtype.kind != "f":
            continue
        if np.any(np.isnan(array)) or (private and not np.all(np.abs(array) <= LARGEST)):
            raise Refusal("unknown", f"a message holds NaN or a number beyond {LARGEST if private else math.inf:g}")


# --- the replies of one round, as arrays with a row for each client, filled as the replies arrive ---


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a reply: its place in the bytes, its type there and in memory, and if it may hold infinity."""

    start: int
    count: int
    shape: tuple[int, ...]
    wire: np.dtype
    dtype: np.dtype
    may_be_infinite: bool


class ReplyPlan:
    """The arrays of one kind of reply, worked out once."""

    def __init__(self, layout: PyTree):
        self.layout, self.size = layout, size_of(layout)
        self.structure = jax.tree.structure(layout)
        self.leaves: list[Leaf] = []
        start = 0
        for leaf, free in zip(jax.tree.leaves(layout), may_be_infinite(layout), strict=True):
            wire, count = np.dtype(leaf.dtype).newbyteorder("<"), int(np.prod(leaf.shape, dtype=np.int64))
            self.leaves.append(Leaf(start, count, tuple(leaf.shape), wire, np.dtype(leaf.dtype), free))
            start += count * wire.itemsize

    def stack(self, clients: int) -> "ReplyStack":
        """Return a stack of this many rows of zeros."""
        return ReplyStack(self, [np.zeros((clients, *leaf.shape), leaf.dtype) for leaf in self.leaves])


class ReplyStack:
    """Rows of replies; a row is written once its bytes have passed all checks, so a refused reply leaves no trace."""

    def __init__(self, plan: ReplyPlan, arrays: list[np.ndarray]):
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
                check_numbers(flat, leaf.may_be_infinite, number)
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


def check_run_name(run: object) -> str:
    """Return the name of a run; raise where it is none, for it becomes that of a folder."""
    if not (isinstance(run, str) and RUN.fullmatch(run)):
        raise FoedusError(
            f"the name of a run must have up to 64 letters, digits, '-' and '_'. Got {one_line(repr(run), 80)} instead."
        )
    return run


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """Return a text from outside as one line without control characters, so that it cannot pass for several."""
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:most])
    return line + ("…" if len(text) > most else "")
