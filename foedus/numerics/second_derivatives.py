"""Second derivatives of a party's functions: a Gram matrix of its examples, and what is not of that form.

A symmetric matrix travels packed, as its upper triangle, row by row. A Gram matrix of many rows is made a band of rows
after the other: a product of all rows and their weights would be as large as X.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.numerics.interpreter.sparse import Entries, by_entries

LONG = 2**15  # rows beyond which bands pay: they stay in the processor's cache, and memory is spared
BAND = 2**12  # rows of a band
EXACT = 500  # columns up to which a matrix is made for its diagonal


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


def _curve_by_entries(
    x: Entries, d: np.ndarray, w: np.ndarray, diagonal: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    triangle, product = x.triangle(d), x.times(d * x.times(w), transposed=True)
    if diagonal is None:
        return triangle, product
    triangle[diagonal_places(len(w))] += diagonal
    return triangle, product + diagonal * w


def _curve(gram: Array, w: Array, diagonal: Array | None) -> tuple[Array, Array]:
    K = gram if diagonal is None else gram + jnp.diag(diagonal)
    return pack(K), K @ w


@by_entries(_curve_by_entries)
def curve_along(x: Array, d: Array, w: Array, diagonal: Array | None = None) -> tuple[Array, Array]:
    """The matrix K = XᵀDX, plus a diagonal one, packed, and K·w."""
    return _curve(weighted_gram(x, d), w, diagonal)


@by_entries(_curve_by_entries)
def convex_curve_along(x: Array, d: Array, w: Array, diagonal: Array | None = None) -> tuple[Array, Array]:
    """The same for a d that is never negative."""
    return _curve(weighted_gram(x, d, convex=True), w, diagonal)


@dataclass(frozen=True)
class PlainHessian:
    """A matrix that is not of the form XᵀDX, as a function of the rows' multipliers v."""

    matrix: Callable[[Array], Array] | None  # None where it is diagonal
    diagonal: Callable[[Array], Array]  # of functions of a user's own a guess
    of_row: bool = False  # whether it belongs to a row, and not to f

    def exact_diagonal(self, v: Array, dim: int) -> Array:
        """Its diagonal; of functions of a user's own exact up to EXACT columns."""
        return self.diagonal(v) if self.matrix is None or dim > EXACT else jnp.diag(self.matrix(v))


@dataclass(frozen=True)
class SecondDerivatives:
    """The second derivatives of a party's functions at a point: ∇²f/n + Σ v_r ∇²c_r as a function of v."""

    dim: int
    x: Array | None  # the examples, where there are functions of xᵀw
    grams: list[tuple[slice | None, Array, Array]]  # (rows, weights of examples, ℓ'') of the functions of xᵀw
    others: list[PlainHessian]
    convex: bool  # whether D ≥ 0 whatever v is: f is a convex function of xᵀw, and no row is one

    def _weight(self, v: Array) -> Array:
        assert self.x is not None
        weight = jnp.zeros(self.x.shape[0])
        for at, weights, second in self.grams:
            weight = weight + (weights if at is None else v[at] @ weights) * second
        return weight

    def matrix(self, v: Array) -> Array:
        """The matrix, dim × dim."""
        total = jnp.zeros((self.dim, self.dim))
        if self.grams and self.x is not None:
            total = weighted_gram(self.x, self._weight(v), convex=self.convex)
        for other in self.others:
            total = total + (jnp.diag(other.diagonal(v)) if other.matrix is None else other.matrix(v))
        return total

    def along(self, v: Array, w: Array) -> tuple[Array, Array]:
        """The matrix, packed, and its product with w."""
        flat = [other.diagonal(v) for other in self.others if other.matrix is None]
        diagonal = sum(flat[1:], flat[0]) if flat else None
        if self.grams and self.x is not None:
            curve = convex_curve_along if self.convex else curve_along
            triangle, product = curve(self.x, self._weight(v), w, diagonal)
        else:
            triangle, product = jnp.zeros(self.dim * (self.dim + 1) // 2), jnp.zeros(self.dim)
            if diagonal is not None:
                triangle, product = triangle.at[diagonal_places(self.dim)].set(diagonal), diagonal * w
        for other in self.others:
            if other.matrix is not None:
                matrix = other.matrix(v)
                triangle, product = triangle + pack(matrix), product + matrix @ w
        return triangle, product

    def diagonal(self, v: Array) -> Array:
        """Its diagonal, without the matrix; the mean of it, as a guess, for functions of a user's own."""
        total = jnp.zeros(self.dim)
        if self.grams and self.x is not None:
            total = jnp.sum(self._weight(v)[:, None] * self.x * self.x, axis=0)
        for other in self.others:
            total = total + other.diagonal(v)
        return total

    def rows_diagonal(self, v: Array) -> Array:
        """The diagonal of Σ v_r ∇²c_r alone; of a user's own functions exact up to EXACT columns."""
        total = jnp.zeros(self.dim)
        for at, weights, second in self.grams:
            if at is not None and self.x is not None:
                total = total + jnp.sum(((v[at] @ weights) * second)[:, None] * self.x**2, axis=0)
        for other in self.others:
            if other.of_row:
                total = total + other.exact_diagonal(v, self.dim)
        return total


def mean_curvature(f: Callable[[Array], Array], w: Array) -> Array:
    """An estimate of the mean of the diagonal of ∇²f(w), from one product with random signs, at every coordinate."""
    signs = jax.random.rademacher(jax.random.key(0), w.shape, w.dtype)
    product = jax.jvp(jax.grad(f), (w,), (signs,))[1]
    return jnp.full_like(w, jnp.mean(signs * product))
