"""JAX's random bits in NumPy: the counter-based generator Threefry-2x32 (Salmon et al. 2011), as `jax.random` uses it.

A key is two 32-bit words on a last axis. The bits are those of JAX, so that a draw does not depend on how it is played.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of the generator's even and odd groups of four rounds
PARITY = np.uint32(0x1BD11BDA)  # the constant of its key schedule
GROUPS = 5  # of four rounds each


def threefry(k0: np.ndarray, k1: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt the counter (x0, x1) with the key (k0, k1), element by element; all are uint32."""
    with np.errstate(over="ignore"):
        schedule = (k0, k1, k0 ^ k1 ^ PARITY)
        x0, x1 = x0 + k0, x1 + k1
        for group in range(GROUPS):
            for turn in ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))
                x1 = x0 ^ x1
            x0 = x0 + schedule[(group + 1) % 3]
            x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def fold_in(keys: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The keys that `jax.random.fold_in` makes of keys and numbers."""
    data = np.asarray(data, dtype=np.uint32)
    keys = np.broadcast_to(keys, (*np.broadcast_shapes(keys.shape[:-1], data.shape), 2))
    return np.stack(threefry(keys[..., 0], keys[..., 1], np.zeros_like(data), data), axis=-1)


def key_words(seeds: np.ndarray) -> np.ndarray:
    """The keys that `jax.random.key` makes of seeds."""
    words = np.asarray(seeds).astype(np.uint64)
    return np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def random_key(seed: int) -> jax.Array:
    """The key `jax.random.key(seed)`, without a compilation."""
    return jax.random.wrap_key_data(jax.device_put(key_words(np.asarray(seed))))


def _counted(keys: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt 0, 1, 2, … in an array of this shape with each of the keys."""
    shape = tuple(int(k) for k in shape)
    counts = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    ones = (1,) * len(shape)
    k0, k1 = (keys[..., i].reshape(keys.shape[:-1] + ones) for i in (0, 1))
    return threefry(k0, k1, (counts >> np.uint64(32)).astype(np.uint32), counts.astype(np.uint32))


def bits(keys: np.ndarray, shape: Sequence[int], width: int) -> np.ndarray:
    """Random bits of each key: an array of this shape with words of 8, 16, 32 or 64 bits."""
    high, low = _counted(keys, shape)
    if width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(np.dtype(f"uint{width}"))


def split(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """As many new keys of each key as this shape has places."""
    return np.stack(_counted(keys, shape), axis=-1)
