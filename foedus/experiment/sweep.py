"""Sweeps: a list in a file where one value is expected makes one run for each; several lists, all combinations."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foedus.errors import FoedusError

MOST_RUNS = 1000


@dataclass(frozen=True)
class Several:
    """Values of which each makes a run."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class RunCase:
    """One run that a file asks for: what sets it apart from the others, a word for each list, and all its settings."""

    settings: dict[str, Any]
    algorithm: tuple[str, ...] = ()  # words of lists in [algorithm]
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Empty for the only run of a file without lists."""
        return ",".join((*self.algorithm, *self.others))


def expand(settings: Mapping[str, Any]) -> tuple[RunCase, ...]:
    """All combinations of the swept values, each with a name of what sets it apart."""
    points = list(_points(settings, ()))
    total = 1
    for _, several in points:
        total *= len(several.values)
    if total > MOST_RUNS:
        raise FoedusError(f"its lists make {total} runs; expected at most {MOST_RUNS}.")
    cases = []
    for combination in itertools.product(*(several.values for _, several in points)):
        swept_settings: Any = copy.deepcopy(dict(settings))
        for (path, _), value in zip(points, combination, strict=True):
            _set_at(swept_settings, path, copy.deepcopy(value))
        for extra, one in expand_algorithms(swept_settings):
            words = [(path, _word(path, value)) for (path, _), value in zip(points, combination, strict=True)]
            words += [(path, _word(path, value)) for path, value in extra]
            own = tuple(word for path, word in words if path[0] == "algorithm")
            cases.append(RunCase(one, own, tuple(word for path, word in words if path[0] != "algorithm")))
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise FoedusError(f"two of its runs are both called {name!r}; its lists hold a value twice.")
    return tuple(cases)


def expand_algorithms(settings: dict[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The lists inside one of several algorithms, which the outer product does not see."""
    points = list(_points(settings["algorithm"], ("algorithm",)))
    variants = []
    for combination in itertools.product(*(several.values for _, several in points)):
        one = copy.deepcopy(settings)
        for (path, _), value in zip(points, combination, strict=True):
            _set_at(one, path, value)
        variants.append((tuple((path, value) for (path, _), value in zip(points, combination, strict=True)), one))
    return variants


def _points(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Several]]:
    if isinstance(node, Several):
        yield path, node
    elif isinstance(node, dict):
        for key, part in node.items():
            yield from _points(part, (*path, key))
    elif isinstance(node, list):
        for place, part in enumerate(node):
            yield from _points(part, (*path, place))


def _set_at(settings: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        settings = settings[step]
    settings[path[-1]] = value


def _word(path: tuple[Any, ...], value: Any) -> str:
    """A few characters for the name of a run, fit for the name of a folder."""
    if isinstance(value, dict):
        return str(value.get("name", value.get("type")))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    last = path[-1] if not (path[0] == "partition" and path[-1] == "seed") else "partition_seed"
    return f"{last}={text}".replace("/", "-").replace(" ", "").replace(",", ";")
