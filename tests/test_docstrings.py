"""The examples in the docstrings of the problem, of privacy and of the runtimes run and print what is shown."""

import doctest
import importlib

import pytest

MODULES = [
    "constraints",
    "losses",
    "penalties",
    "privacy.ledger",
    "privacy.noise",
    "privacy.total",
    "problem",
    "regularizers",
    "run",
    "runtime.flare.driver",
    "runtime.participation",
    "runtime.spread",
    "stacked",
    "terms",
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_print_what_is_shown(module: str):
    results = doctest.testmod(importlib.import_module(f"foedus.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
