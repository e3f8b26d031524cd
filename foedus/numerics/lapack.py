"""LAPACK's routines in a form that is safe under `vmap`: they take one matrix after the other.

Two batched LAPACK calls in one program can each occupy the threads that the other waits for, and then neither ends.
"""

import jax
import jax.numpy as jnp
from jax import Array


@jax.custom_batching.sequential_vmap
def cholesky(matrix: Array) -> Array:
    """The lower Cholesky factor; NaN where the matrix is not positive definite."""
    return jnp.linalg.cholesky(matrix)


@jax.custom_batching.sequential_vmap
def cholesky_solve(lower: Array, right: Array) -> Array:
    """The solution (L·Lᵀ)⁻¹·right, for a vector or a matrix."""
    return jax.scipy.linalg.cho_solve((lower, True), right)


@jax.custom_batching.sequential_vmap
def lu_solve(matrix: Array, right: Array) -> Array:
    """The solution matrix⁻¹·right of a system that need not be symmetric or definite."""
    return jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(matrix), right)


@jax.custom_batching.sequential_vmap
def eigh(matrix: Array) -> tuple[Array, Array]:
    """The eigenvalues and eigenvectors of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors
