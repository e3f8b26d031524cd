"""Products, factors and triangular systems in NumPy."""

import math

import numpy as np

from foedus.numerics.interpreter.shapes import CannotInterpret, Operation, Shaped
from foedus.numerics.interpreter.sparse import entries_of


def make_dot(params: dict, x: Shaped, y: Shaped, out: Shaped) -> Operation:
    """`lax.dot_general`: a product over some axes, for each entry of others."""
    pairs = [[[int(k) for k in axes] for axes in pair] for pair in params["dimension_numbers"]]
    (over_x, over_y), (batch_x, batch_y) = pairs
    free_x = [k for k in range(len(x.shape)) if k not in over_x and k not in batch_x]
    free_y = [k for k in range(len(y.shape)) if k not in over_y and k not in batch_y]
    many = tuple(x.shape[k] for k in batch_x)
    left, right, inner = (math.prod(s.shape[k] for k in axes) for s, axes in ((x, free_x), (y, free_y), (x, over_x)))
    order_x, order_y = [*batch_x, *free_x, *over_x], [*batch_y, *over_y, *free_y]
    shape_x, shape_y = (*many, left, inner), (*many, inner, right)
    one_axis = not batch_x and len(over_x) == 1

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if one_axis and right == 1 and (entries := entries_of(a)) is not None:
            return entries.times(np.reshape(b, inner), transposed=over_x == [0]).reshape(out.shape)
        if one_axis and left == 1 and (entries := entries_of(b)) is not None:
            return entries.times(np.reshape(a, inner), transposed=over_y == [0]).reshape(out.shape)
        a = np.transpose(a, order_x).reshape(shape_x)
        b = np.transpose(b, order_y).reshape(shape_y)
        return np.matmul(a, b).reshape(out.shape)

    return dot


def make_cholesky(params: dict, x: Shaped, out: Shaped) -> Operation:
    """The lower Cholesky factor; NaN where there is none."""

    def one(a: np.ndarray) -> np.ndarray:
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            return np.full(a.shape, np.nan)

    def cholesky(a: np.ndarray) -> np.ndarray:
        if a.ndim == 2:
            return one(a)
        flat = a.reshape(-1, *a.shape[-2:])
        return np.stack([one(m) for m in flat]).reshape(out.shape) if len(flat) else np.zeros(out.shape)

    return cholesky


LEAF = 32  # rows that are substituted one by one; larger systems are cut into halves


def _substitute(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution of a lower triangular system, by substitution."""
    size = len(lower)
    if size > LEAF:
        half = size // 2
        first = _substitute(lower[:half, :half], right[:half])
        rest = right[half:] - lower[half:, :half] @ first
        return np.concatenate([first, _substitute(lower[half:, half:], rest)])
    solution, diagonal = np.array(right, dtype=float), np.diagonal(lower)
    for i in range(size):
        if i:
            solution[i] -= lower[i, :i] @ solution[:i]
        solution[i] /= diagonal[i]
    return solution


def make_triangular(params: dict, a: Shaped, b: Shaped, out: Shaped) -> Operation:
    """`lax.linalg.triangular_solve`; not by LAPACK, whose threads take longer to start than a small system needs."""
    if np.dtype(out.dtype) != np.float64 or params["unit_diagonal"]:
        raise CannotInterpret("triangular_solve in another form")
    left, transpose_a = params["left_side"], bool(params["transpose_a"])
    # x·op(A) = b is op(A)ᵀ·xᵀ = bᵀ
    transpose = transpose_a == left
    lower = bool(params["lower"]) != transpose

    def one(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        matrix = matrix.T if transpose else matrix
        right = right if left else right.T
        # an upper triangular system is a lower one when both axes are read backwards
        solution = _substitute(matrix, right) if lower else _substitute(matrix[::-1, ::-1], right[::-1])[::-1]
        return solution if left else solution.T

    def triangular(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        if right.ndim == 2:
            return one(matrix, right)
        pairs = zip(matrix.reshape(-1, *matrix.shape[-2:]), right.reshape(-1, *right.shape[-2:]), strict=True)
        return np.stack([one(m, r) for m, r in pairs]).reshape(out.shape)

    return triangular


def make_eigh(params: dict, x: Shaped, *outs: Shaped) -> Operation:
    """The eigenvectors and eigenvalues of a symmetric matrix."""
    if params.get("subset_by_index") is not None:
        raise CannotInterpret("some eigenvalues only")
    low = "L" if params["lower"] else "U"

    def eigh(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not np.all(np.isfinite(a)):
            return np.full(a.shape, np.nan), np.full(a.shape[:-1], np.nan)
        values, vectors = np.linalg.eigh(a, UPLO=low)
        return vectors, values

    return eigh
