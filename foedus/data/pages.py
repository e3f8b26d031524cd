"""Large columns in pages of memory of their own, which go back to the system part by part as rows are copied.

A table of columns becomes an array of rows: a page of the array holds numbers of all columns. Where a site has most of
the rows, columns that are let go of only as a whole would be in memory twice.
"""

import mmap
import sys

import numpy as np
from numpy.typing import DTypeLike

GIVES_BACK = sys.platform == "linux"  # elsewhere the advice means something else, or there is none


def in_pages(count: int, dtype: DTypeLike) -> np.ndarray:
    """Return an array of zeros, in pages of its own where the system has such."""
    if not GIVES_BACK:
        return np.zeros(count, dtype)
    size = max(1, count * np.dtype(dtype).itemsize)
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype, count)


def give_back(column: np.ndarray, start: int, stop: int) -> None:
    """Give the memory of the numbers from `start` to `stop` back to the system; they are lost.

    Pages go back as a whole, so some at both ends may stay. Arrays that `in_pages` did not make are not changed.
    """
    pages = column.base.obj if isinstance(column.base, memoryview) else None
    if not isinstance(pages, mmap.mmap):
        return
    first = -(-start * column.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    last = min(stop, len(column)) * column.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)
