"""The figures that a site sends for preprocessing: counts, sums, ranges and sets of words; exact, or with noise.

`preprocess` says which figures are needed and what is made of them; here a site computes its own from its own table.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data.columns import Column, Words, missing_in, text_of
from foedus.data.tables import Table

UNIT = 2.0**24  # what a row adds to a noisy sum is rounded to 1/UNIT of the most it can: sums over 2^27 rows are exact
ABSENT = "(missing)"  # the category of missing words
NUMBER = 8  # bytes of a float64, in which figures are sent


@dataclass(frozen=True)
class Sums:
    """What a site sends in round 1, by the names of the columns."""

    count: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)  # squared deviations from the site's own mean, added up
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The size of the message: 8 bytes a number, and UTF-8 with one byte between two words."""
        numbers = sum(len(part) for part in (self.count, self.total, self.least, self.most, self.spread))
        return NUMBER * numbers + sum(len("\n".join(words).encode()) for words in self.words.values())


@dataclass(frozen=True)
class FiguresRequest:
    """What the server asks for in round 1: the columns whose sums, ranges, words or spreads it needs.

    A spread is what a site sends where its own sums are seen: from all of them the squared deviations from the common
    mean follow, and there is no second round.
    """

    sums: tuple[str, ...]
    ranges: tuple[str, ...]
    words: tuple[str, ...]
    spread: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size of the message: the names in UTF-8, with one byte between two."""
        return len("\n".join((*self.sums, "", *self.ranges, "", *self.words, *self.spread)).encode())


def answer(table: Table, request: FiguresRequest) -> Sums:
    """Compute a site's reply in round 1, from its own table alone."""
    values = {name: present_numbers(table.columns[name]) for name in {*request.sums, *request.ranges}}
    return Sums(
        count={name: len(values[name]) for name in request.sums},
        total={name: float(np.sum(values[name])) for name in request.sums},
        least={name: float(np.min(values[name], initial=np.inf)) for name in request.ranges},
        most={name: float(np.max(values[name], initial=-np.inf)) for name in request.ranges},
        spread=deviations(table, {name: _mean(values[name]) for name in request.spread}),
        words={name: _levels(table.columns[name]) for name in request.words},
    )


def _mean(values: np.ndarray) -> float:
    return float(np.sum(values)) / len(values) if len(values) else 0.0


def deviations(table: Table, means: Mapping[str, float]) -> dict[str, float]:
    """Compute the sums of squared deviations from the means: a site's reply in round 2, or its spreads."""
    with np.errstate(over="ignore"):  # an infinite sum is told in a sentence
        return {name: float(np.sum((present_numbers(table.columns[name]) - mean) ** 2)) for name, mean in means.items()}


def about_the_mean(replies: Iterable[Sums], name: str, mean: float) -> float:
    """Return the squared deviations of a column from the common mean, from each site's about its own mean.

    Σ(x − m)² = Σ(x − mᵢ)² + n(mᵢ − m)² at each site, where mᵢ is its own mean.
    """
    with np.errstate(over="ignore"):
        parts = [
            one.spread[name] + one.count[name] * np.square(one.total[name] / one.count[name] - mean)
            for one in replies
            if one.count[name]
        ]
    return float(sum(parts))


@dataclass(frozen=True)
class FigureNoise:
    """Laplace noise that one site adds to its figures, calibrated to stated bounds; each figure spends ε/`figures`."""

    bounds: Mapping[str, tuple[float, float]]
    epsilon: float
    figures: int
    draw: Callable[[float, float], float]  # a value and a scale: the value with Laplace noise of that scale
    noted: list[tuple[str, float, float]] = field(default_factory=list)  # what was sent, its sensitivity and scale

    def add(self, what: str, shares: np.ndarray, most: float) -> float:
        """Return the sum over rows of share·most with noise, and note its sensitivity and the noise's scale.

        A share, in [0, 1], is what a row adds of the most that it can add, and is rounded to 1/UNIT. Sums of such
        numbers are exact, so that no rounding depends on other rows, and the noise is added before they are scaled.
        """
        scale = self.figures / self.epsilon
        self.noted.append((what, most, most * scale))
        return most * self.draw(float(np.sum(np.rint(shares * UNIT)) / UNIT), scale)

    def first(self, table: Table, request: FiguresRequest) -> Sums:
        """Return the reply of round 1 with noise on its counts and sums."""
        values = {name: present_numbers(table.columns[name]) for name in request.sums}
        count = {name: self.add(f"the number of values of {name}", np.ones(len(values[name])), 1.0) for name in values}
        total = {}
        for name in values:
            low, high = self.bounds[name]
            # Where a row with a value is replaced by one without, the sum itself changes by up to max(|low|, |high|),
            # but the sum of (value − low) by at most high − low. So that sum gets the noise, and the noisy count times
            # low is added back, which spends nothing more.
            shares = (np.clip(values[name], low, high) - low) / (high - low)
            total[name] = self.add(f"the sum of {name} above {low:g}", shares, high - low) + count[name] * low
        return Sums(count=count, total=total, words={name: _levels(table.columns[name]) for name in request.words})

    def second(self, table: Table, means: Mapping[str, float]) -> dict[str, float]:
        """Return the reply of round 2 with noise; a value in the bounds adds at most the largest squared deviation."""
        replies = {}
        for name, mean in means.items():
            low, high = self.bounds[name]
            furthest = max(mean - low, high - mean)
            shares = ((np.clip(present_numbers(table.columns[name]), low, high) - mean) / furthest) ** 2
            replies[name] = self.add(f"the squared deviations of {name}", shares, furthest**2)
        return replies


def _numbers(column: Column) -> np.ndarray:
    """A column that is one of numbers: `sites.gather` and `sketch.cohort_from` have seen to it."""
    assert not isinstance(column, Words)
    return column


def present_numbers(column: Column) -> np.ndarray:
    """Return the numbers of a column without its missing values."""
    numbers = _numbers(column)
    return numbers[~np.isnan(numbers)] if np.isnan(np.sum(numbers)) else numbers  # mostly none is missing


def _levels(column: Column) -> tuple[str, ...]:
    """The words of a column; missing ones are a word of their own."""
    levels = text_of(column).used().levels
    return (*levels, ABSENT) if missing_in(column).any() else levels


def word_counts(column: Column) -> dict[str, int]:
    """Count the rows in which each word of a column stands; missing ones under their own name."""
    words = text_of(column)
    counts = {level: int(np.sum(words.codes == code)) for code, level in enumerate(words.levels)}
    return counts | {ABSENT: int(np.sum(missing_in(column)))}


def noises(
    sites: Iterable[str], bounds: Mapping[str, tuple[float, float]], epsilon: float | None, figures: int, seed: int
) -> dict[str, FigureNoise | None]:
    """Return each site's noise for a simulation, from draws keyed by the site's name; None where ε is not stated."""
    if epsilon is None:
        return dict.fromkeys(sites)
    return {name: FigureNoise(bounds, epsilon, figures, _seeded_laplace(seed, name)) for name in sites}


def _seeded_laplace(seed: int, site: str) -> Callable[[float, float], float]:
    """Laplace noise that anyone can repeat from the seed: it is for simulation and protects nobody."""
    draws = np.random.default_rng([seed, zlib.crc32(site.encode())])
    return lambda value, scale: float(value + draws.laplace(scale=scale))


def released_figures(
    request: FiguresRequest,
    bounds: Mapping[str, tuple[float, float]],
    epsilon: float,
    figures: int,
    means: Mapping[str, float],
) -> tuple[tuple[str, float, float], ...]:
    """List what every site sends with noise, each figure with its sensitivity and its scale.

    All of it depends on public settings alone, so a site whose figures are all 0 releases the same list.
    """
    idle = FigureNoise(dict(bounds), epsilon, figures, lambda value, scale: value)
    nothing = Table("", dict.fromkeys((*request.sums, *request.words), np.zeros(0)), np.zeros(0))
    idle.first(nothing, request)
    idle.second(nothing, {name: means[name] for name in request.sums})
    return tuple(idle.noted)


class Answers(Protocol):
    """Whoever answers for the sites: tables in this process, or sites over a network."""

    @property
    def sites(self) -> int:
        """The number of sites."""
        ...

    # positional only, so that an implementation may call its parameter otherwise
    def first(self, request: FiguresRequest, /) -> list[Sums]:
        """Return every site's reply in round 1."""
        ...

    def second(self, means: Mapping[str, float], /) -> list[dict[str, float]]:
        """Return every site's reply in round 2."""
        ...

    def rows(self) -> int:
        """Return the number of rows of all sites."""
        ...


class Replies:
    """One site's replies, with its noise if it adds any."""

    def __init__(self, table: Table, noise: FigureNoise | None):
        self.noise, self.table = noise, table

    def first(self, request: FiguresRequest) -> Sums:
        """Return the site's reply in round 1."""
        return answer(self.table, request) if self.noise is None else self.noise.first(self.table, request)

    def second(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the site's reply in round 2."""
        return deviations(self.table, means) if self.noise is None else self.noise.second(self.table, means)

    def rows(self) -> int:
        """Return the number of the site's rows."""
        return self.table.rows


class Here:
    """Answers from the sites' tables, all of which are in this process."""

    def __init__(self, tables: Mapping[str, Table], noise_of: Mapping[str, FigureNoise | None]):
        self.replies = [Replies(table, noise_of[name]) for name, table in tables.items()]

    @property
    def sites(self) -> int:
        return len(self.replies)

    def first(self, request: FiguresRequest) -> list[Sums]:
        return [one.first(request) for one in self.replies]

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]:
        return [one.second(means) for one in self.replies]

    def rows(self) -> int:
        return sum(one.rows() for one in self.replies)


def check_private(scale: str, without_bounds: list[str], words: list[str]) -> None:
    """Raise where ε is stated and some figure could not be given noise of a known sensitivity."""
    if scale != "standard":
        raise FoedusError("epsilon in [preprocess] goes with scale = 'standard'; other scales need the bounds alone.")
    if without_bounds:
        raise FoedusError(
            f"epsilon in [preprocess] needs the bounds of every column of numbers; those of {without_bounds[0]!r} are "
            "missing in [preprocess.bounds]."
        )
    if words:
        raise FoedusError(
            f"epsilon in [preprocess] needs the categories of every column of words; those of {words[0]!r} are "
            "missing in [preprocess.categories]."
        )
