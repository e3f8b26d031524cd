"""Numbers of any size as 64-bit words whose sums are exact: a float64 is a whole number of the smallest one, 2^-1074.

That whole number has up to 2,098 bits. It is cut into digits of 48 bits, each of which becomes a word with the number's
sign, and words of the same place are added up: with at most 2^13 terms a sum stays below 2^61 and cannot wrap. The sum
is exact, and rounded once. This is for a few numbers whose units nobody knows, such as the sums of raw columns;
a round's numbers, which are many and of moderate size, go through `fixed_point`.
"""

from collections.abc import Iterable

import numpy as np

SMALLEST = 1074  # a float64 is a whole number of units of 2^-SMALLEST
DIGIT = 48  # bits of a digit
DIGITS = 44  # of a number: 44 · 48 ≥ 1024 + 1074


def words_of(values: Iterable[float]) -> np.ndarray:
    """Return the words of finite numbers, int64. (numbers, DIGITS)"""
    rows = []
    for value in map(float, values):
        top, bottom = abs(value).as_integer_ratio()
        whole = top << (SMALLEST - (bottom.bit_length() - 1))
        sign = -1 if value < 0 else 1
        rows.append([sign * ((whole >> (DIGIT * place)) & (2**DIGIT - 1)) for place in range(DIGITS)])
    return np.array(rows, np.int64).reshape(-1, DIGITS)


def numbers_of(words: np.ndarray) -> list[float]:
    """Return the numbers whose sums these words are, each rounded once; infinite where float64 has no such number."""
    numbers = []
    for row in words.reshape(-1, DIGITS).tolist():
        whole = sum(word << (DIGIT * place) for place, word in enumerate(row))
        try:
            numbers.append(whole / (1 << SMALLEST))
        except OverflowError:
            numbers.append(float("inf") if whole > 0 else float("-inf"))
    return numbers
