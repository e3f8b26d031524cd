"""The largest eigenvalue of a symmetric operator, by a few Lanczos steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree
from foedus.numerics.lapack import eigh

GOLDEN = 1.6180339887  # cosines of its multiples never repeat, so that no symmetry of the operator hides an eigenvector
BREAKDOWN = 1e-14  # relative size of a residual below which the Krylov space is exhausted


def largest_eigenvalue(apply: Callable[[Array], Array], dim: int, steps: int = 16) -> Array:
    """An estimate of max |λ| from above: the largest Ritz value plus its residual.

    The residual bounds the distance to a true eigenvalue, so for a positive semi-definite operator the estimate is
    not below the eigenvalue that the Krylov space approximates. The start is the same vector each time.
    """
    steps = min(steps, dim)
    start = jnp.cos(1.0 + jnp.arange(dim, dtype=float) * GOLDEN)
    start = start / jnp.linalg.norm(start)

    def step(carry: tuple[PyTree, ...], _: None) -> tuple[tuple[PyTree, ...], tuple[Array, Array]]:
        basis, q, previous, beta, k = carry
        basis = basis.at[k].set(q)
        v = apply(q) - beta * previous
        alpha = jnp.dot(v, q)
        v = v - alpha * q
        v = v - basis.T @ (basis @ v)  # keeps the basis orthogonal in floating point
        norm = jnp.linalg.norm(v)
        alive = norm > BREAKDOWN * (jnp.abs(alpha) + beta + 1e-300)
        beta = jnp.where(alive, norm, 0.0)
        following = jnp.where(alive, v / jnp.where(alive, norm, 1.0), 0.0)
        return (basis, following, q, beta, k + 1), (alpha, beta)

    first = (jnp.zeros((steps, dim)), start, jnp.zeros(dim), jnp.zeros(()), 0)
    _, (alpha, beta) = jax.lax.scan(step, first, length=steps)
    tridiagonal = jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)
    values, vectors = eigh(tridiagonal)
    residual = jnp.abs(beta[-1] * vectors[-1])
    return jnp.max(jnp.abs(values) + residual)
