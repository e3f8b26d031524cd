"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import foedus

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules() -> list[str]:
    """The modules whose docstrings hold examples."""
    names = []
    for info in pkgutil.walk_packages(foedus.__path__, "foedus."):
        spec = info.module_finder.find_spec(info.name, None)  # pyright: ignore[reportCallIssue]
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            with open(spec.origin, encoding="utf-8") as file:
                if ">>> " in file.read():
                    names.append(info.name)
    return sorted(names)


def compiles(name: str) -> bool:
    """Whether the examples solve a problem, and so compile a program of their own: these run with the slow tests."""
    return name.startswith(("foedus.algorithms.", "foedus.app.estimators.", "foedus.robust.caps", "foedus.app.check"))


QUICK = [name for name in modules() if not compiles(name)]
SLOW = [name for name in modules() if compiles(name)]


def run_examples(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=OPTIONS)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", QUICK)
def test_examples_run(name: str):
    run_examples(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_examples_that_solve_run(name: str):
    run_examples(name)
