"""Symmetric matrices as vectors: the upper triangle, row by row."""

import jax.numpy as jnp
import numpy as np
from jax import Array


def pack(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix as a vector."""
    return jnp.ravel(matrix)[np.ravel_multi_index(np.triu_indices(matrix.shape[0]), matrix.shape)]


def unpack(triangle: Array, dim: int) -> Array:
    """The inverse of `pack`."""
    upper = jnp.zeros((dim, dim)).at[np.triu_indices(dim)].set(triangle)
    return upper + jnp.triu(upper, 1).T


def diagonal_places(dim: int) -> np.ndarray:
    """Where the diagonal lies in a packed matrix."""
    row = np.arange(dim)
    return row * (2 * dim + 1 - row) // 2
