"""What an operation is made from, before there are arrays."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Operation = Callable[..., Any]


class Shaped(Protocol):
    """What is known of an array before it is there."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


class CannotInterpret(Exception):
    """An operation that is not here: the program must be compiled."""
