"""What a site sends for preprocessing: counts, sums, ranges and sets of words; exact, or with noise added."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from foedus.data.tables import Table, missing_in, text_of
from foedus.errors import FoedusError

ABSENT = "(missing)"  # the category of missing words
NUMBER = 8  # bytes


@dataclass(frozen=True)
class Sums:
    """What a site sends in round 1."""

    count: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        numbers = sum(len(part) for part in (self.count, self.total, self.least, self.most))
        return NUMBER * numbers + sum(len("\n".join(words).encode()) for words in self.words.values())


@dataclass(frozen=True)
class Ask:
    """What the server asks for in round 1: the columns by what is needed of them."""

    sums: tuple[str, ...]
    ranges: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return len("\n".join((*self.sums, "", *self.ranges, "", *self.words)).encode())


def answer(table: Table, ask: Ask) -> Sums:
    """A site's reply in round 1, from its own table alone."""
    known = {name: _known(table.columns[name]) for name in {*ask.sums, *ask.ranges}}
    return Sums(
        count={name: len(known[name]) for name in ask.sums},
        total={name: float(np.sum(known[name])) for name in ask.sums},
        least={name: float(np.min(known[name], initial=np.inf)) for name in ask.ranges},
        most={name: float(np.max(known[name], initial=-np.inf)) for name in ask.ranges},
        words={name: _levels(table.columns[name]) for name in ask.words},
    )


def deviations(table: Table, means: Mapping[str, float]) -> dict[str, float]:
    """A site's reply in round 2: the sums of squared deviations from the means."""
    return {name: float(np.sum((_known(table.columns[name]) - mean) ** 2)) for name, mean in means.items()}


@dataclass(frozen=True)
class Noise:
    """Laplace noise that one site adds to its figures, calibrated to stated bounds; ε/`figures` for each of them."""

    bounds: Mapping[str, tuple[float, float]]
    epsilon: float
    figures: int
    draw: Callable[[float, float], float]  # a value and a scale: the value with Laplace noise of that scale
    noted: list[tuple[str, float, float]] = field(default_factory=list)  # what was sent, its sensitivity and scale

    def clipped(self, table: Table) -> Table:
        """The table with its numbers within the bounds."""
        held = {name: np.clip(table.columns[name], *ends) for name, ends in self.bounds.items()}  # pyright: ignore
        return Table(table.source, {**table.columns, **held}, table.numbers)

    def add(self, what: str, value: float, sensitivity: float) -> float:
        scale = sensitivity * self.figures / self.epsilon
        self.noted.append((what, sensitivity, scale))
        return self.draw(value, scale)

    def first(self, sums: Sums) -> Sums:
        count = {name: self.add(f"the number of values of {name}", value, 1.0) for name, value in sums.count.items()}
        total = {}
        for name, value in sums.total.items():
            low, high = self.bounds[name]
            # noise goes to the sum of (value − low), whose range is known; the noisy count brings low back
            above = self.add(f"the sum of {name} above {low:g}", value - sums.count[name] * low, high - low)
            total[name] = above + count[name] * low
        return Sums(count=count, total=total, words=sums.words)

    def second(self, squares: Mapping[str, float], means: Mapping[str, float]) -> dict[str, float]:
        found = {}
        for name, value in squares.items():
            furthest = max(means[name] - self.bounds[name][0], self.bounds[name][1] - means[name])
            found[name] = self.add(f"the squared deviations of {name}", value, furthest**2)
        return found


def _known(column: Any) -> np.ndarray:
    return column[~np.isnan(column)]


def _levels(column: Any) -> tuple[str, ...]:
    levels = text_of(column).used().levels
    return (*levels, ABSENT) if missing_in(column).any() else levels


def word_counts(column: Any) -> dict[str, int]:
    """In how many rows each word of a column stands; missing ones under their own name."""
    words = text_of(column)
    counts = {level: int(np.sum(words.codes == code)) for code, level in enumerate(words.levels)}
    return counts | {ABSENT: int(np.sum(missing_in(column)))}


def noises(
    sites: Iterable[str], bounds: Mapping[str, tuple[float, float]], epsilon: float | None, figures: int, seed: int
) -> dict[str, Noise | None]:
    """Each site's noise, from draws keyed by its own name."""
    if epsilon is None:
        return dict.fromkeys(sites)
    return {name: Noise(bounds, epsilon, figures, _simulated(seed, name)) for name in sites}


def _simulated(seed: int, site: str) -> Callable[[float, float], float]:
    """Noise that can be repeated from the seed, for simulation only."""
    draws = np.random.default_rng([seed, zlib.crc32(site.encode())])
    return lambda value, scale: float(value + draws.laplace(scale=scale))


def noted(
    ask: Ask, bounds: Mapping[str, tuple[float, float]], epsilon: float, figures: int, means: Mapping[str, float]
) -> tuple[tuple[str, float, float], ...]:
    """What every site sends with noise, its sensitivity and its scale, which depend on nothing but what is public."""
    idle = Noise(dict(bounds), epsilon, figures, lambda value, scale: value)
    none = dict.fromkeys(ask.sums, 0.0)
    idle.first(Sums(count=dict(none), total=dict(none)))
    idle.second(none, means)
    return tuple(idle.noted)


class Answers(Protocol):
    """Whoever answers for the sites: tables in this process, or sites over a network."""

    @property
    def sites(self) -> int: ...

    def first(self, ask: Ask) -> list[Sums]: ...

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]: ...


class Replies:
    """One site's replies, with its noise if it adds any."""

    def __init__(self, table: Table, noise: Noise | None):
        self.noise, self.table = noise, table if noise is None else noise.clipped(table)

    def first(self, ask: Ask) -> Sums:
        reply = answer(self.table, ask)
        return reply if self.noise is None else self.noise.first(reply)

    def second(self, means: Mapping[str, float]) -> dict[str, float]:
        reply = deviations(self.table, means)
        return reply if self.noise is None else self.noise.second(reply, means)


class Here:
    """The sites' tables, in this process."""

    def __init__(self, tables: Mapping[str, Table], noise_of: Mapping[str, Noise | None]):
        self.replies = [Replies(table, noise_of[name]) for name, table in tables.items()]

    @property
    def sites(self) -> int:
        return len(self.replies)

    def first(self, ask: Ask) -> list[Sums]:
        return [one.first(ask) for one in self.replies]

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]:
        return [one.second(means) for one in self.replies]


def check_private(scale: str, unbounded: list[str], words: list[str]) -> None:
    if scale != "standard":
        raise FoedusError("epsilon in [preprocess] goes with scale = 'standard'; other scales need the bounds alone.")
    if unbounded:
        raise FoedusError(
            f"epsilon in [preprocess] needs the bounds of every column of numbers; those of {unbounded[0]!r} are "
            "missing in [preprocess.bounds]."
        )
    if words:
        raise FoedusError(
            f"epsilon in [preprocess] needs the categories of every column of words; those of {words[0]!r} are "
            "missing in [preprocess.categories]."
        )
