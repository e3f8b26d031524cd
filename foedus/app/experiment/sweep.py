"""Sweeps: a list where a file expects one value makes one run for each; several lists make all combinations."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from foedus.base.errors import FoedusError
from foedus.base.files import Json

Settings: TypeAlias = Json
"""All settings of one run, section by section, with the defaults filled in; `keys.SECTIONS` has the keys."""

Place: TypeAlias = tuple[str | int, ...]
"""Where a value stands in the settings: the keys and list positions that lead to it."""

MOST_RUNS = 1000  # more are taken for a mistake: each has a folder, and all are built before the first is run


@dataclass(frozen=True)
class Several:
    """Values of which each makes a run."""

    values: tuple[object, ...]


@dataclass(frozen=True)
class RunCase:
    """One run that a file asks for: all its settings, and a word for each list that sets it apart from the others."""

    settings: Settings
    algorithm: tuple[str, ...] = ()  # the words of lists in [algorithm]
    others: tuple[str, ...] = ()  # the words of all other lists

    @property
    def name(self) -> str:
        """The words, separated by commas; empty for the only run of a file without lists."""
        return ",".join((*self.algorithm, *self.others))


def expand(settings: Mapping[str, Any]) -> tuple[RunCase, ...]:
    """Return all combinations of the swept values, each with a name of what sets it apart."""
    points = list(_points(settings, ()))
    total = 1
    for _, several in points:
        total *= len(several.values)
    if total > MOST_RUNS:
        raise FoedusError(f"its lists make {total} runs; expected at most {MOST_RUNS}.")
    cases = []
    for combination in itertools.product(*(several.values for _, several in points)):
        swept_settings: Settings = copy.deepcopy(dict(settings))
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


def expand_algorithms(settings: Settings) -> list[tuple[tuple[tuple[Place, object], ...], Settings]]:
    """Expand the lists in [algorithm], with the places and values that were chosen for each.

    Several algorithms are the values of a list themselves, and the lists inside one of them appear only after that one
    has been chosen. So they are expanded after all other lists.
    """
    points = list(_points(settings["algorithm"], ("algorithm",)))
    variants = []
    for combination in itertools.product(*(several.values for _, several in points)):
        one = copy.deepcopy(settings)
        for (path, _), value in zip(points, combination, strict=True):
            _set_at(one, path, value)
        variants.append((tuple((path, value) for (path, _), value in zip(points, combination, strict=True)), one))
    return variants


def _points(node: object, path: Place) -> Iterator[tuple[Place, Several]]:
    """All lists of values in the settings, with their places."""
    if isinstance(node, Several):
        yield path, node
    elif isinstance(node, dict):
        for key, part in node.items():
            yield from _points(part, (*path, key))
    elif isinstance(node, list):
        for place, part in enumerate(node):
            yield from _points(part, (*path, place))


def _set_at(settings: Settings, path: Place, value: object) -> None:
    node: Any = settings  # a dict or a list, as the path says
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value


def _word(path: Place, value: object) -> str:
    """A few characters for the name of a run, fit for the name of a folder."""
    if isinstance(value, dict):
        return str(value.get("name", value.get("type")))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    last = path[-1] if not (path[0] == "partition" and path[-1] == "seed") else "partition_seed"
    return f"{last}={text}".replace("/", "-").replace(" ", "").replace(",", ";")
