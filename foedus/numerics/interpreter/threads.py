"""The threads of NumPy's matrix products.

A product of long, narrow matrices is over before a second thread has begun. Where other processes want the cores, the
threads wait for each other, and such a product takes thirty times as long as on one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

NARROW = 512  # columns up to which one thread is used


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def threads_for(columns: int) -> Iterator[None]:
    """Within this context, products of matrices with so many columns are computed by as many threads as pay.

    Example:
        >>> with threads_for(columns=31):
        ...     pass
    """
    if columns > NARROW:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
