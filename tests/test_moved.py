"""Names of version 0.1 work for one version more, and say what to write instead."""

import importlib
import sys

import pytest

import foedus as fd
import foedus.algorithm
from foedus.moved import MOVED


@pytest.mark.parametrize("old", sorted(MOVED))
def test_a_module_that_moved_is_found_under_its_old_name_with_a_warning(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{MOVED[old]}; the old name goes in 0.3"):
        module = importlib.import_module(old)
    home = importlib.import_module(MOVED[old])
    shared = [name for name in vars(home) if not name.startswith("_")]
    assert shared
    assert all(getattr(module, name) is getattr(home, name) for name in shared)


def test_names_that_left_the_protocol_are_found_with_a_warning():
    for name, home in (("state", "pytrees"), ("select", "pytrees"), ("setting", "settings"), ("settings", "settings")):
        with pytest.warns(DeprecationWarning, match=f"import {name} from foedus.{home}"):
            assert getattr(foedus.algorithm, name) is getattr(importlib.import_module(f"foedus.{home}"), name)
    with pytest.raises(AttributeError, match="nonsense"):
        foedus.algorithm.nonsense  # noqa: B018


def test_an_algorithm_still_has_its_name_with_a_warning():
    with pytest.warns(DeprecationWarning, match="__name__"):
        assert fd.FedAvg().name == "FedAvg"
    assert not hasattr(fd.FedAvg(), "nonsense")


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("foedus.local_nonsense")
