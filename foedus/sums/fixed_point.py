"""Numbers as 64-bit words whose sums are exact: the one integer form of all masked sums.

A number x becomes a whole number of units of 2^-bits, in digits of SPLIT bits, each a word with a sign. The first word
is the coarsest: it counts units of 2^-coarse and is at most 2^62/terms in size. A later digit is below 2^SPLIT. So a
sum of up to 2^13 numbers stays below 2^63 in every word and cannot wrap. A number beyond the range of the first word is
clipped to it and counted. Two forms are used:

- one or two words of a resolution that an algorithm states: a round's numbers are many and of moderate size;
- `exact(terms)`: as many digits as hold every float64, for a few numbers whose units nobody knows, such as the sums of
  raw columns. A sum is exact then, and rounded once.

Counts are whole numbers from the start and take one word as they are (`questions.Coding`).
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from foedus.base.errors import FoedusError

SPLIT = 50  # bits of a digit: up to 2^13 of them stay below 2^63
MOST_TERMS = 2**13  # sites in one sum
HEAD = 62  # a sum of first words is at most 2^HEAD in size, and rounding cannot take it to 2^63
SMALLEST = 1074  # a float64 is a whole number of units of 2^-SMALLEST
EXACT_WORDS = 42  # of an exact number: 2^48 units of 2^(50·41 − 1074) are beyond the largest float64


@dataclass(frozen=True)
class FixedPoint:
    """How numbers of a sum of `terms` parts are written: units of 2^-bits, in so many 64-bit words.

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
        if self.words not in (1, 2, EXACT_WORDS):
            raise FoedusError(f"a number takes 1 or 2 words, or {EXACT_WORDS}. Got {self.words!r} instead.")
        least = SPLIT * (self.words - 1)
        most = SMALLEST if self.words == EXACT_WORDS else least + 48
        if not min(least, most) <= self.bits <= most:
            raise FoedusError(
                f"with words = {self.words}, bits must be a whole number from {min(least, most)} to {most}. "
                f"Got {self.bits!r} instead."
            )

    @property
    def coarse(self) -> int:
        """The first word counts units of 2^-coarse."""
        return self.bits - SPLIT * (self.words - 1)

    @property
    def largest(self) -> float:
        """The largest number that is not clipped; infinite for the exact form."""
        return float(2**HEAD // self.terms) * 2.0**-self.coarse

    def encode(self, values: Any, xp: ModuleType = np) -> tuple[Any, Any]:
        """Return the words of finite numbers, int64 of shape (..., words), and how many numbers were clipped.

        `xp` is the array module, numpy or jax.numpy; the arithmetic is the same to the bit.
        """
        values = xp.asarray(values, dtype=float)
        bound = self.largest
        rest = xp.clip(values, -bound, bound)
        clipped = xp.sum(xp.abs(values) > bound)
        # a bound that is rounded up in floating point must not pass: the integers are clipped as well
        most, digits = 2**HEAD // self.terms, []
        # the exact form cuts digits off: rounded up, the first one of the largest numbers would be beyond float64
        nearest = xp.trunc if self.words == EXACT_WORDS else xp.rint
        for place in range(self.words):
            unit = self.coarse + SPLIT * place
            digit = xp.clip(nearest(_times(rest, unit)).astype(np.int64), -most, most)
            digits.append(digit)
            # exact: the difference of two neighbouring multiples of the number's own last bit
            rest = rest - _times(digit.astype(float), -unit) if place + 1 < self.words else rest
            most = 2**SPLIT - 1
        return xp.stack(digits, axis=-1), clipped

    def decode(self, words: Any, xp: ModuleType = np) -> Any:
        """Return the numbers whose sum these words are; of an exact form each is rounded once, and may be infinite."""
        if self.words == EXACT_WORDS:
            shape = words.shape[:-1]
            return np.array([_number(row) for row in words.reshape(-1, EXACT_WORDS).tolist()], float).reshape(shape)
        return sum(words[..., k].astype(float) * 2.0 ** -(self.coarse + SPLIT * k) for k in range(self.words))

    @property
    def error(self) -> float:
        """By how much a sum of `terms` numbers within the range can differ from the exact one, before float64."""
        return 0.5 * self.terms * 2.0**-self.bits


def exact(terms: int) -> FixedPoint:
    """Return the form that holds every float64."""
    return FixedPoint(terms, bits=SMALLEST, words=EXACT_WORDS)


def _times(values: Any, power: int) -> Any:
    """The values times 2^power, exact where the result is a float64; one factor might be none."""
    return values * 2.0**power if abs(power) < 1000 else values * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)


def _number(words: list[int]) -> float:
    """The number of an exact form's words."""
    total = 0
    for word in words:
        total = (total << SPLIT) + word
    try:
        return total / (1 << SMALLEST)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")
