"""Columns in pages of their own: what is given back is gone, the rest stays, and a table becomes the same numbers."""

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from foedus.data.pages import give_back, in_pages
from foedus.data.preprocess import Number, Preprocessing
from foedus.data.tables import Table

PAGE = mmap.PAGESIZE // 8  # numbers in a page
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives pages back, and says how much memory a process takes"
)


def filled(count: int) -> np.ndarray:
    column = in_pages(count, float)
    column[:] = np.arange(1, count + 1)
    return column


@linux
def test_whole_pages_between_the_bounds_are_lost_and_nothing_else():
    column = filled(5 * PAGE)
    give_back(column, PAGE - 1, 3 * PAGE + 1)
    expected = np.arange(1, 5 * PAGE + 1, dtype=float)
    expected[PAGE : 3 * PAGE] = 0
    np.testing.assert_array_equal(column, expected)


def test_other_arrays_and_bounds_beyond_the_end_are_no_matter():
    plain = np.arange(4.0 * PAGE)
    give_back(plain, 0, 4 * PAGE)
    np.testing.assert_array_equal(plain, np.arange(4.0 * PAGE))
    short = filled(3)
    give_back(short, 0, 4096)
    np.testing.assert_array_equal(short, [1, 2, 3])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@linux
@pytest.mark.parametrize("missing", ["mean", "drop"])
def test_one_large_site_is_never_in_memory_twice(missing):
    rows, count = 200_000, 20
    names = tuple(f"x{i}" for i in range(count))
    rules = Preprocessing(columns=tuple(Number(name, 1.0, 2.0, 0.0) for name in names), label="y", missing=missing)
    columns = {name: filled(rows) for name in names}
    columns["x3"][5] = np.nan
    expected = rules.transform(Table("site", columns, np.arange(rows)))
    out = in_pages(expected.size, float).reshape(expected.shape)
    before = resident()
    rules.transform(Table("site", columns, np.arange(rows)), out, release=True)
    assert resident() - before < 0.4 * expected.nbytes
    np.testing.assert_array_equal(out, expected)
