"""Checkpoints: the state of a run in one file, which is always whole because it is renamed after it is written."""

import hashlib
import time
from pathlib import Path

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack, write_whole
from foedus.base.pytrees import PyTree, device_array

MAGIC = b"foedus checkpoint 2\n"  # how the file begins; then the SHA-256 of the content, then the content
MARK = len(MAGIC) + hashlib.sha256().digest_size


def _tokens(tree: PyTree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


class Checkpoint:
    """The file that a run is saved in while it goes on.

    Args:
        path: the file.
        fingerprint: stands for the problem, the settings and the seed; a file with another one is refused.
        every: the least number of seconds between two writes.
    """

    def __init__(self, path: str | Path, fingerprint: str, every: float = 1.0):
        self.path, self.fingerprint, self.every = Path(path), fingerprint, every
        self.last = time.monotonic()
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise FoedusError(f"checkpoint {str(path)!r}: expected a file name in a folder that exists.")

    def load(self, like: PyTree) -> tuple[PyTree, dict[str, np.ndarray]] | None:
        """Return the state and the history that were saved, or None where there is no file yet.

        `like` is a state of the same structure, into which the saved arrays are put.
        """
        if not self.path.exists():
            return None
        arrays, note = read(self.path)
        leaves = [arrays[f"carry{i}"] for i in range(note["leaves"])]
        if note["fingerprint"] != self.fingerprint:
            raise FoedusError(
                f"checkpoint {self.path}: it belongs to another run (problem, algorithm, seed or participation differ);"
                " give another file name, or delete it to start anew."
            )
        tree = jax.tree.structure(like)
        carry = jax.tree.unflatten(tree, [device_array(leaf) for leaf in leaves])
        return carry, {name[8:]: array for name, array in arrays.items() if name.startswith("history.")}

    def keep(self, carry: PyTree, history: dict[str, np.ndarray], final: bool = False) -> None:
        """Write the file if the last write was long enough ago, or if this is the `final` state."""
        now = time.monotonic()
        if not final and now - self.last < self.every:
            return
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(carry)]
        arrays = {f"carry{i}": leaf for i, leaf in enumerate(leaves)}
        arrays |= {f"history.{name}": values for name, values in history.items()}
        content = pack(arrays, {"fingerprint": self.fingerprint, "leaves": len(leaves)})
        write_whole(self.path, MAGIC + hashlib.sha256(content).digest() + content, private=True)
        self.last = time.monotonic()


def read(path: Path) -> tuple[dict[str, np.ndarray], Json]:
    """Return the arrays of a checkpoint and what it notes; raise where it is not whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FoedusError(f"checkpoint {path}: it cannot be read ({error.strerror}).") from None
    if not content.startswith(MAGIC) or hashlib.sha256(content[MARK:]).digest() != content[len(MAGIC) : MARK]:
        raise FoedusError(f"checkpoint {path}: it is damaged or of another version; delete it to start anew.")
    return unpack(content[MARK:])


def rounds_in(path: Path) -> int:
    """Return how many rounds the history of a checkpoint holds."""
    return next((len(array) for name, array in read(path)[0].items() if name.startswith("history.")), 0)


def _digest(leaves: list[np.ndarray]) -> str:
    total = hashlib.sha256()
    for leaf in leaves:
        total.update(f"{leaf.dtype}{leaf.shape}".encode())
        total.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]
    return total.hexdigest()


def fingerprint(*parts: PyTree) -> str:
    """Return a digest of what a run depends on: settings by their text, arrays by their bytes."""
    total = hashlib.sha256()
    for part in parts:
        leaves, tree = jax.tree.flatten(part)
        total.update(str(tree).encode() + b"".join(_tokens(part)[i].encode() for i in range(len(leaves))))
        total.update(_digest([np.asarray(leaf) for leaf in leaves if not isinstance(leaf, str)]).encode())
        total.update("".join(leaf for leaf in leaves if isinstance(leaf, str)).encode())
    return total.hexdigest()
