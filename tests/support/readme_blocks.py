"""Blocks of code on pages."""

import re

import pytest

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


ROUNDING = 1e-7  # residuals of a run to 1e-6 that are smaller than this depend on rounding


NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)( m?s\b)?")


def _place(number: re.Match[str]) -> str:
    return "# s" if number[2] else "#"


def same(shown: str, printed: str) -> None:
    """The words and the figures agree to the digit; residuals, which rounding changes, to 2 %; times are any.

    A residual is a number with a negative exponent; one below 1e-7 need only be as small.
    """
    assert NUMBER.sub(_place, shown) == NUMBER.sub(_place, printed)
    for said, found in zip(NUMBER.finditer(shown), NUMBER.finditer(printed), strict=True):
        expected, number = float(said[1]), float(found[1])
        if said[2]:
            continue
        if "e-" not in said[1]:
            assert said[1] == found[1], f"in {printed!r}"
        elif expected < ROUNDING:
            assert 0.0 < number < 10.0 * ROUNDING, f"in {printed!r}"
        else:
            assert number == pytest.approx(expected, rel=0.02), f"in {printed!r}"
