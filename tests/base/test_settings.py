"""One way to check a value: what is allowed comes back in its form, and anything else gets one sentence."""

import numpy as np
import pytest

from foedus.base.errors import FoedusError
from foedus.base.settings import check


@pytest.mark.parametrize(
    ("value", "allowed", "result"),
    [
        (np.float32(0.5), {"gt": 0, "lt": 1}, 0.5),
        (3.0, {"ge": 1, "whole": True}, 3),
        (np.inf, {"gt": 0}, np.inf),
        ("auto", {"gt": 0, "choices": ("auto",)}, "auto"),
        (None, {"gt": 0, "none": True}, None),
        (None, {"choices": (None, "all")}, None),
        ([1.0], {"gt": 0, "also": ("a list", lambda value: isinstance(value, list))}, [1.0]),
    ],
)
def test_what_is_allowed_comes_back_as_it_is_kept(value, allowed, result):
    answer = check("The value", value, **allowed)
    assert (answer, type(answer)) == (result, type(result))


@pytest.mark.parametrize(
    ("value", "allowed", "words"),
    [
        (0, {"gt": 0, "lt": 1}, "a number > 0 and < 1. Got 0 instead."),
        (0.0, {"gt": 0.0}, "a number > 0. Got 0.0 instead."),
        (2.5, {"ge": 1, "whole": True}, "a whole number >= 1. Got 2.5 instead."),
        (24, {"ge": 1, "le": 23, "whole": True}, "a whole number from 1 to 23. Got 24 instead."),
        (True, {"ge": 0}, "a number >= 0. Got True instead."),
        (float("nan"), {"ge": 0}, "a number >= 0. Got nan instead."),
        (np.inf, {"gt": 0, "finite": True}, "a number > 0. Got inf instead."),
        ("x", {"gt": 0, "none": True}, "a number > 0 or None. Got 'x' instead."),
        ("c", {"choices": ("a", "b")}, "'a' or 'b'. Got 'c' instead."),
        (
            "nut",
            {"choices": ("one", "two", "not")},
            "one of 'one', 'two', 'not'. Got 'nut' instead. Did you mean 'not'?",
        ),
        (1, {"choices": (True, "a")}, "True or 'a'. Got 1 instead."),
    ],
)
def test_anything_else_gets_one_sentence(value, allowed, words):
    with pytest.raises(FoedusError) as caught:
        check("The value", value, **allowed)
    assert str(caught.value) == f"The value must be {words}"
