"""Numbers, counts, bytes and durations are written one way everywhere."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foedus.base.quantities import count, duration, number, percent, short, size


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999.4, "999 B"),
        (999.6, "1 kB"),
        (1500, "1.5 kB"),
        (123_456, "123 kB"),
        (5e12, "5000 GB"),
    ],
)
def test_bytes_in_words(value: float, words: str):
    assert size(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0004, "0 ms"), (0.5, "500 ms"),
     (0.9999, "1.0 s"), (9.94, "9.9 s"), (9.97, "10 s"), (75, "75 s"), (120, "2 min"),
     (599, "9 min 59 s"), (601, "10 min"), (7200, "2.0 h")],
)  # fmt: skip
def test_seconds_in_words(seconds: float, words: str):
    assert duration(seconds) == words


def test_one_thing_is_singular_and_a_minus_is_a_minus():
    assert [count(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert (number(-3), number(-2.5e-7), number(math.inf), number(math.nan)) == ("−3", "−2.5e−7", "∞", "not a number")
    assert (short(1e-6), short(0.5), percent(-0.05)) == ("1e-6", "0.5", "−5.0 %")


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_number_reads_back_to_four_digits(value: float):
    assert float(number(value).replace(",", "").replace("−", "-")) == pytest.approx(value, rel=5.1e-4)
