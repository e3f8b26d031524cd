"""Products over many rows, a band of rows after the other: a product of all rows and their weights is as large as X."""

import jax
import jax.numpy as jnp
from jax import Array

LONG = 2**15  # rows beyond which bands pay: they stay in the processor's cache, and memory is spared
BAND = 2**12  # rows of a band


def weighted_gram(x: Array, d: Array, convex: bool = False) -> Array:
    """XᵀDX, (dim, dim), for x of shape (rows, dim) and the diagonal d of D; `convex` says that d is never negative."""
    rows, dim = x.shape
    if rows <= LONG:
        if convex:  # as the square of one matrix, of which half of the product is enough
            half = x * jnp.sqrt(d)[:, None]
            return half.T @ half
        return (x * d[:, None]).T @ x
    whole = rows - rows % BAND
    bands = (x[:whole].reshape(-1, BAND, dim), d[:whole].reshape(-1, BAND))
    rest = (x[whole:] * d[whole:, None]).T @ x[whole:]
    return jax.lax.scan(lambda sum, band: (sum + (band[0] * band[1][:, None]).T @ band[0], None), rest, bands)[0]
