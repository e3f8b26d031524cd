"""The site file: which data a site brings, and what it allows. It stays at the site; nobody else reads it."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from foedus.algorithm import Algorithm
from foedus.errors import FoedusError, did_you_mean
from foedus.runtime.checkpoint import write_whole

SITE_FILE = "foedus.toml"


@dataclass(frozen=True)
class Policy:
    """What a site allows; every limit is checked at the site, before any of its data is used."""

    algorithms: tuple[str, ...] = ("*",)  # by name; "*" allows all
    modules: tuple[str, ...] = ()  # modules beside foedus whose functions may run on the data
    min_rows: int = 1  # a site with fewer rows than this stays out
    privacy: bool = False  # whether an algorithm must add noise to what it sends
    max_epsilon: float = math.inf  # the most privacy loss in one run
    max_epsilon_total: float = math.inf  # the most in all runs together
    max_message: int = 2**30  # bytes in one reply
    own_keys: bool = False  # whether random draws at this site use a secret of its own instead of the run's seed

    def refuse(self, algorithm: Algorithm, rounds: int, spent: float) -> str | None:
        """The sentence with which this policy forbids the algorithm, or None where it is allowed."""
        if "*" not in self.algorithms and algorithm.name not in self.algorithms:
            return f"its policy allows {_list(self.algorithms)}, not {algorithm.name}"
        noise = getattr(algorithm, "noise", None)
        if noise is None:
            limited = self.privacy or self.max_epsilon < math.inf or self.max_epsilon_total < math.inf
            return f"its policy asks for privacy, and {algorithm.name} adds no noise here" if limited else None
        epsilon = float(noise.epsilon) * rounds  # basic composition: never less than what the run can spend
        if epsilon > self.max_epsilon:
            return f"its policy allows epsilon {self.max_epsilon:g} a run, and {rounds} rounds may spend {epsilon:g}"
        if spent + epsilon > self.max_epsilon_total:
            return (
                f"its policy allows epsilon {self.max_epsilon_total:g} in all, and with this run "
                f"{spent + epsilon:g} may be spent"
            )
        return None


def _list(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else "no algorithm"


@dataclass(frozen=True)
class Source:
    """Where a site's data are: a CSV file and its columns, or an .npz file with the arrays by name."""

    file: Path
    x: tuple[str, ...] = ()  # columns of the features; all others when left out
    y: str | None = None
    group: str | None = None
    intercept: bool = False  # whether a column of ones is put last

    def read(self) -> dict[str, np.ndarray]:
        """The site's arrays by name."""
        if not self.file.is_file():
            raise FoedusError(f"the data file {self.file} is missing.")
        return self._npz() if self.file.suffix == ".npz" else self._csv()

    def _npz(self) -> dict[str, np.ndarray]:
        try:
            with np.load(self.file, allow_pickle=False) as kept:
                return {name: np.asarray(kept[name]) for name in kept.files}
        except (OSError, ValueError, EOFError, KeyError) as error:
            raise FoedusError(f"the data file {self.file} cannot be read as .npz ({error}).") from None

    def _csv(self) -> dict[str, np.ndarray]:
        try:
            table = np.genfromtxt(self.file, delimiter=",", names=True, dtype=float, encoding="utf-8-sig", ndmin=1)
        except (OSError, ValueError) as error:
            raise FoedusError(
                f"the data file {self.file} cannot be read as CSV ({str(error).splitlines()[0]})."
            ) from None
        found = table.dtype.names or ()
        if self.y is None:
            raise FoedusError(f"the site file names no column y for {self.file}; expected one of {', '.join(found)}.")
        for name in (*self.x, self.y, *((self.group,) if self.group else ())):
            if name not in found:
                raise FoedusError(f"{self.file} has no column {name!r}.{did_you_mean(name, found)}")
        columns = self.x or tuple(name for name in found if name not in (self.y, self.group))
        x = np.column_stack([table[name] for name in columns])
        arrays = {"x": np.column_stack([x, np.ones(len(x))]) if self.intercept else x, "y": table[self.y]}
        return arrays | ({"group": table[self.group]} if self.group else {})


@dataclass(frozen=True)
class SiteFile:
    """A site file, read and checked."""

    data: Source | None
    policy: Policy

    @staticmethod
    def read(path: Path) -> "SiteFile":
        """The site file at `path`; a wrong key or value ends in a sentence that names it."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FoedusError(f"the site file {path} is missing.") from None
        except (OSError, ValueError) as error:
            raise FoedusError(f"the site file {path} cannot be read: {error}.") from None
        for part in content:
            if part not in ("data", "policy"):
                raise FoedusError(f"{path}: [{part}] is unknown; expected [data] and [policy].")
        data = content.get("data")
        source = None
        if data is not None:
            kept = _fields(path, "data", Source, data)
            if "file" not in kept:
                raise FoedusError(f"{path}: [data] needs the key file.")
            kept["file"] = (path.parent / kept["file"]).absolute()
            source = Source(**kept)
        return SiteFile(source, Policy(**_fields(path, "policy", Policy, content.get("policy", {}))))


def _fields(path: Path, part: str, cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {f.name: getattr(f.type, "__name__", str(f.type)) for f in fields(cls)}
    made: dict[str, Any] = {}
    for key, value in given.items():
        if key not in kinds:
            raise FoedusError(f"{path}: [{part}] has no key {key!r}.{did_you_mean(key, kinds)}")
        kind = kinds[key]
        if kind.startswith("tuple"):
            fits, words = isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of names"
            value = tuple(value) if fits else value
        elif kind == "bool":
            fits, words = isinstance(value, bool), "true or false"
        elif kind == "int":
            fits, words = isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number >= 0"
        elif kind == "float":
            fits, words = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0, "a number >= 0"
        else:
            fits, words = isinstance(value, str), "text in quotes"
        if not fits:
            raise FoedusError(f"{path}: the key {key!r} of [{part}] must be {words}. Got {value!r} instead.")
        made[key] = value
    return made


class Spent:
    """The privacy that a site has spent in all its runs, kept in a file of its own."""

    def __init__(self, path: Path):
        self.path = path
        self.runs: dict[str, float] = {}
        if path.exists():
            try:
                self.runs = {str(k): float(v) for k, v in json.loads(path.read_text()).items()}
            except (ValueError, AttributeError, TypeError):
                raise FoedusError(f"the record of spent privacy {path} is damaged; it must not be lost.") from None

    def besides(self, run: str) -> float:
        """What other runs have spent."""
        return sum(value for key, value in self.runs.items() if key != run)

    def note(self, run: str, epsilon: float) -> None:
        """Record what a run may have spent by now."""
        self.runs[run] = max(epsilon, self.runs.get(run, 0.0))
        write_whole(self.path, json.dumps(self.runs, indent=1, sort_keys=True).encode())
