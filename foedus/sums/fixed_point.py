"""Numbers as 64-bit words whose sums are exact: the fixed point that masked sums work in.

A number x becomes a whole number of units of 2^-bits. With one word that is all. With two words a coarse part, in units
of 2^-(bits - SPLIT), and the rest, in units of 2^-bits, are two words that are summed apart; this is for methods whose
numbers differ by many orders of magnitude. A coarse part is at most 2^62/terms in size and a rest at most 2^(SPLIT-1),
so a sum of `terms` numbers stays below 2^63 and cannot wrap. A number beyond the range is clipped to it and counted.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from foedus.base.errors import FoedusError

SPLIT = 50  # bits of the rest: 2^49 in size, so that up to 2^13 rests stay below 2^63
MOST_TERMS = 2**13  # sites in one sum
HEAD = 62  # a sum of coarse parts is at most 2^HEAD in size, and rounding cannot take it to 2^63


@dataclass(frozen=True)
class FixedPoint:
    """How numbers of a sum of `terms` parts are written: units of 2^-bits, in one 64-bit word or two.

    Args:
        terms: the most numbers that are added up.
        bits: the resolution is 2^-bits.
        words: 64-bit words for a number.

    Example:
        >>> import numpy as np
        >>> point = FixedPoint(terms=3)
        >>> words, clipped = point.encode(np.array([0.5, -1.25]))
        >>> point.decode(3 * words).tolist(), int(clipped)
        ([1.5, -3.75], 0)
    """

    terms: int
    bits: int = 40
    words: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.terms <= MOST_TERMS:
            raise FoedusError(f"a masked sum has from 1 to {MOST_TERMS} terms. Got {self.terms!r} instead.")
        if self.words not in (1, 2):
            raise FoedusError(f"a number takes 1 or 2 words. Got {self.words!r} instead.")
        least = 0 if self.words == 1 else SPLIT
        if not least <= self.bits <= least + 48:
            raise FoedusError(
                f"with words = {self.words}, bits must be a whole number from {least} to {least + 48}. "
                f"Got {self.bits!r} instead."
            )

    @property
    def coarse(self) -> int:
        """The first word counts units of 2^-coarse."""
        return self.bits - SPLIT * (self.words - 1)

    @property
    def largest(self) -> float:
        """The largest number that is not clipped."""
        return float(2**HEAD // self.terms) * 2.0**-self.coarse

    def encode(self, values: Any, xp: ModuleType = np) -> tuple[Any, Any]:
        """Return the words of finite numbers, int64 of shape (..., words), and how many numbers were clipped.

        `xp` is the array module, numpy or jax.numpy; the arithmetic is the same to the bit.
        """
        values = xp.asarray(values, dtype=float)
        bound = self.largest
        inside = xp.clip(values, -bound, bound)
        clipped = xp.sum(xp.abs(values) > bound)
        # a bound that is rounded up in floating point must not pass: the integers are clipped as well
        most = 2**HEAD // self.terms
        head = xp.clip(xp.rint(inside * 2.0**self.coarse).astype(np.int64), -most, most)
        if self.words == 1:
            return head[..., None], clipped
        # exact: the difference of two neighbouring multiples of the number's own last bit
        rest = inside - head.astype(float) * 2.0**-self.coarse
        half = 2 ** (SPLIT - 1)
        tail = xp.clip(xp.rint(rest * 2.0**self.bits).astype(np.int64), -half, half)
        return xp.stack([head, tail], axis=-1), clipped

    def decode(self, words: Any, xp: ModuleType = np) -> Any:
        """Return the numbers whose sum these words are."""
        numbers = words[..., 0].astype(float) * 2.0**-self.coarse
        return numbers if self.words == 1 else numbers + words[..., 1].astype(float) * 2.0**-self.bits

    @property
    def error(self) -> float:
        """By how much a sum of `terms` numbers within the range can differ from the exact one, before float64."""
        return 0.5 * self.terms * 2.0**-self.bits
