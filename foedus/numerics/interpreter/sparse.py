"""Tables that are mostly zeros: products that read their other entries alone.

With k entries other than zero in a row, a product with a vector takes k multiplications a row in place of all columns,
and XᵀDX takes k(k + 1)/2 in place of columns². For the latter, the products of each two entries of a row are computed
once; XᵀDX is then the product of a sparse matrix, (pairs of columns) × rows, with the diagonal of D.

What is sparse is decided from the numbers in a table alone, so that the same data always take the same way.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.marks import with_mark
from foedus.numerics.interpreter.shapes import Operation

SAMPLE = 2**16  # numbers of a stack of tables that are looked at before any table is
SHARE = 0.6  # of the tables' bytes: what is kept beside them takes no more; Adult as a9a codes it takes 0.49
SLACK = 2.0  # a sample may ask for so many times more than all rows turn out to do
LEAST = 2**21  # multiplications that XᵀDX of a table takes: for fewer, the calls take longer than they save
MOST_COLUMNS = 2**15  # so that the number of a pair of columns has 32 bits
BAND = 2**20  # numbers that are searched for entries at a time
INDEX, FLOAT = np.dtype(np.int32), np.dtype(np.float64)


class SparseTables(np.ndarray):
    """A stack of tables, (clients, rows, columns), that are mostly zeros; an array like others to who knows no more.

    Its part `tables[i]` is the `SparseTable` of one client, with what has been computed for it before.
    """

    parts: "tuple[Entries, ...]" = ()

    def __getitem__(self, place: Any) -> Any:
        part = super().__getitem__(place)
        if not self.parts or not isinstance(place, int):
            return part
        table = part.view(SparseTable)
        table.entries = self.parts[place]
        return table


class SparseTable(np.ndarray):
    """The table of one client with its entries; what is computed from it is an array without them."""

    entries: "Entries | None" = None


def entries_of(value: Any) -> "Entries | None":
    """The entries of a table for which products by entries pay; None for every other array."""
    return value.entries if type(value) is SparseTable else None


def mark_sparse(tree: PyTree) -> PyTree:
    """The tree of stacked arrays, in which stacks of tables that are mostly zeros are `SparseTables`.

    A few rows tell of most dense tables, so that these cost nothing.

    Example:
        >>> import numpy as np
        >>> stack = np.zeros((2, 500, 100))
        >>> stack[:, :, 0] = 1.0
        >>> table = mark_sparse({"x": stack})["x"][0]
        >>> entries_of(table).triangle(np.full(500, 0.5))[:2].tolist()
        [250.0, 0.0]
    """
    return jax.tree.map(_as_sparse, tree)


def _as_sparse(leaf: Any) -> Any:
    if np.ndim(leaf) != 3 or leaf.dtype != float:
        return leaf
    stack, (_, rows, columns) = np.asarray(leaf), leaf.shape
    if rows * columns**2 < LEAST or columns > MOST_COLUMNS or not stack.size or not stack.flags.c_contiguous:
        return leaf
    table = stack.reshape(-1, columns)
    if _entries(table[:: max(1, stack.size // SAMPLE)], SLACK * SHARE) is None:
        return leaf
    entries = _entries(table, SHARE)
    parts = None if entries is None else _by_table(entries, stack.shape)
    if parts is None:
        return leaf
    tables = stack.view(SparseTables)
    tables.parts = parts
    return tables


def _pairs_in(counts: np.ndarray) -> np.ndarray:
    """How many pairs there are of so many entries, each with itself included."""
    return counts * (counts + 1) // 2


def _kept_bytes(rows: int, numbers: int, *, all_one: bool) -> int:
    """The bytes of so many entries and pairs, of which two lists say where each row begins."""
    return INDEX.itemsize * (2 * rows + numbers) + (0 if all_one else FLOAT.itemsize * numbers)


def _entries(table: np.ndarray, share: float) -> "Entries | None":
    """The entries of a table; None if these and their pairs take more than a share of its bytes."""
    rows, columns = table.shape
    band, numbers, all_one = max(1, BAND // columns), 0, True
    column, starts, values = [], [np.zeros(1, int)], []
    for first in range(0, rows, band):
        part = table[first : first + band]
        places = np.flatnonzero(part != 0.0)
        column.append((places % columns).astype(INDEX))
        values.append(part.reshape(-1)[places])
        ends = np.searchsorted(places, columns * np.arange(1, len(part) + 1))
        starts.append(starts[-1][-1] + ends)
        numbers += len(places) + int(np.sum(_pairs_in(np.diff(ends, prepend=0))))
        all_one = all_one and bool(np.all(values[-1] == 1.0))
        if _kept_bytes(first + len(part), numbers, all_one=all_one) > share * table.nbytes:
            return None
    values = np.ones(0) if all_one else np.concatenate(values)
    return Entries((rows, columns), np.concatenate(column), np.concatenate(starts), values, all_one=all_one)


def _by_table(entries: "Entries", shape: tuple[int, ...]) -> "tuple[Entries, ...] | None":
    """The entries of each table of a stack, from those of all; None where the ones that they share take too much."""
    tables, rows, columns = shape
    starts, ones = entries.starts, np.ones(0)
    if entries.all_one:
        pairs = np.sum(_pairs_in(np.diff(starts)).reshape(tables, rows), axis=1)
        own = _kept_bytes(tables * rows, len(entries.column) + int(np.sum(pairs)), all_one=True)
        if own + FLOAT.itemsize * np.max(pairs) > SHARE * FLOAT.itemsize * tables * rows * columns:
            return None
        ones = np.ones(np.max(pairs))
    parts = []
    for table in range(tables):
        start = starts[table * rows : (table + 1) * rows + 1]
        own = slice(start[0], start[-1])
        values = ones if entries.all_one else entries.values[own]
        begins = (start - start[0]).astype(INDEX)
        parts.append(Entries((rows, columns), entries.column[own], begins, values, all_one=entries.all_one))
    return tuple(parts)


class Entries:
    """The entries of a table other than zero, row by row.

    Args:
        shape: of the table.
        column: the column of each entry.
        starts: where each row of entries begins, and where the last one ends.
        values: the entries; where these are `all_one`, as many ones as there are pairs of entries, or more.
        all_one: whether all entries are 1.
    """

    def __init__(
        self, shape: tuple[int, int], column: np.ndarray, starts: np.ndarray, values: np.ndarray, *, all_one: bool
    ):
        self.shape, self.column, self.starts, self.values, self.all_one = shape, column, starts, values, all_one

    @cached_property
    def _matrices(self) -> tuple[Any, Any]:
        """The table and its transpose, sparse."""
        from scipy.sparse import csc_array, csr_array

        rows, columns = self.shape
        parts = self.values[: len(self.column)], self.column, self.starts
        return _fill(csr_array((rows, columns)), *parts), _fill(csc_array((columns, rows)), *parts)

    @cached_property
    def _pairs(self) -> Any:
        """The products x_ri·x_rj, i ≤ j, as a sparse matrix (place of ij in the upper triangle) × (row r)."""
        from scipy.sparse import csc_array

        (rows, columns), column, starts = self.shape, self.column, self.starts
        entry = np.arange(len(column), dtype=INDEX)
        partners = np.repeat(starts[1:], np.diff(starts)) - entry  # of an entry: itself and those after it in the row
        first = np.concatenate([np.zeros(1, INDEX), np.cumsum(partners, dtype=INDEX)])
        left = np.repeat(entry, partners)
        right = np.arange(first[-1], dtype=INDEX) - np.repeat(first[:-1] - entry, partners)
        before = column * (2 * columns - 1 - column) // 2  # so that the place of ij is this of i, plus j
        values = self.values[: len(left)] if self.all_one else self.values[left] * self.values[right]
        empty = csc_array((columns * (columns + 1) // 2, rows))
        return _fill(empty, values, before[left] + column[right], first[starts])

    def times(self, vector: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """The product X·vector, or Xᵀ·vector."""
        return self._matrices[int(transposed)] @ vector

    def triangle(self, d: np.ndarray) -> np.ndarray:
        """The upper triangle of XᵀDX, row by row, for the diagonal d of D."""
        return self._pairs @ d


def _fill(matrix: Any, values: np.ndarray, indices: np.ndarray, starts: np.ndarray) -> Any:
    """The empty sparse matrix with this content; SciPy's constructor would copy arrays that several matrices share."""
    matrix.data, matrix.indices, matrix.indptr = values, indices, starts
    return matrix


def by_entries(shortcut: Callable[..., Any]) -> Callable[[Callable[..., PyTree]], Callable[..., PyTree]]:
    """Decorate a function of a table and more arrays, which NumPy's player computes otherwise for a sparse table.

    Args:
        shortcut: takes the table's `Entries` and the other arrays, and returns a tuple of the function's results.

    Returns:
        The decorator. XLA compiles the function itself.
    """

    def way(dense: Operation) -> Operation:
        def call(table: np.ndarray, *values: np.ndarray) -> Any:
            entries = entries_of(table)
            return dense(table, *values) if entries is None else shortcut(entries, *values)

        return call

    return lambda function: with_mark(function, way)
