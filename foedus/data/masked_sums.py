"""Figures for preprocessing of which only sums over sites are seen: 64-bit words that are added up under masks.

Counts, sums and squared deviations are added up exactly, whatever their units (`secure/exact.py`). The words of columns
are joined as sets (`secure/word_sets.py`): the server learns which words there are and how many sites have each, not
which sites. The least and the greatest value of a column are no sums, and are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data.sums import NUMBER, FiguresRequest, Here, Sums
from foedus.sums import exact
from foedus.sums.site import check_enough
from foedus.sums.word_sets import WordTable

ATTEMPTS = 4  # at reading the words of a sum, each with another salt: four fail for 50 words with probability 1e-11


@dataclass(frozen=True)
class FigureLayout:
    """How the figures of a request stand in the words of a vector; every party works it out from the request.

    Args:
        request: the columns whose sums, or words, are asked for.
        capacity: the most different words of a column.
        salt: sorts words into cells.
    """

    request: FiguresRequest
    capacity: int
    salt: str

    @property
    def size(self) -> int:
        """The 64-bit words of a vector."""
        tables = sum(table.size for table in self._tables().values())
        return 2 * exact.DIGITS * len(self.request.sums) + tables

    def encode(self, sums: Sums) -> np.ndarray:
        """Return a site's words; raise where a figure is not finite, or a word too long."""
        values = [part[name] for part in (sums.count, sums.total) for name in self.request.sums]
        tables = [table.encode(sums.words[name]) for name, table in self._tables().items()]
        return np.concatenate([_exact(values).ravel(), *tables])

    def sums_of(self, total: np.ndarray) -> tuple[Sums, tuple[str, ...]]:
        """Return the sums over all sites, and the columns whose words cannot be read from this one."""
        names = self.request.sums
        end = 2 * exact.DIGITS * len(names)
        values = exact.numbers_of(total[:end])
        words: dict[str, tuple[str, ...]] = {}
        for name, table in self._tables().items():
            start, end = end, end + table.size
            if (levels := table.words_of(total[start:end])) is not None:
                words[name] = levels
        count = dict(zip(names, values[: len(names)], strict=True))
        sums = Sums(count=count, total=dict(zip(names, values[len(names) :], strict=True)), words=words)
        return sums, tuple(name for name in self.request.words if name not in words)

    def _tables(self) -> dict[str, WordTable]:
        return {name: WordTable(self.capacity, f"{self.salt}\0{name}".encode()) for name in self.request.words}


@dataclass(frozen=True)
class SquaresLayout:
    """How sums of squared deviations from these means stand in the words of a vector."""

    means: Mapping[str, float]

    @property
    def size(self) -> int:
        """The 64-bit words of a vector."""
        return exact.DIGITS * len(self.means)

    def encode(self, squares: Mapping[str, float]) -> np.ndarray:
        """Return a site's words."""
        return _exact([squares[name] for name in self.means]).ravel()

    def squares_of(self, total: np.ndarray) -> dict[str, float]:
        """Return the sums over all sites."""
        return dict(zip(self.means, exact.numbers_of(total), strict=True))


def _exact(values: Iterable[float]) -> np.ndarray:
    values = list(values)
    if not np.all(np.isfinite(values)):
        raise FoedusError("a column holds numbers too large to add up; rescale it.")
    return exact.words_of(values)


@dataclass
class InSums:
    """The sites' answers, of which only sums over all of them are seen; for `preprocess.fit`.

    Args:
        sites: how many there are.
        salt: of the run, which sorts words into cells.
        capacity: the most different words of a column.
        add_up: returns the sum of the sites' words for a layout.
    """

    sites: int
    salt: str
    capacity: int
    add_up: Callable[[FigureLayout | SquaresLayout], np.ndarray]
    rounds: int = 0
    up: int = 0
    down: int = 0
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the words of columns that were asked for before

    def __post_init__(self) -> None:
        check_enough(self.sites, "sites")

    def values(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the words of columns, at any site."""
        return {**self.first(FiguresRequest((), (), tuple(names)))[0].words}

    def first(self, request: FiguresRequest) -> list[Sums]:
        """Return the sums over all sites, as one reply."""
        if request.ranges:
            raise FoedusError(
                f"[preprocess] scale = 'minmax': masked sums (secure) tell no least and no greatest value; state those "
                f"of {request.ranges[0]!r} in [preprocess.bounds], or use scale = 'standard'."
            )
        ask = replace(request, words=tuple(name for name in request.words if name not in self.known))
        result = Sums()
        for attempt in range(ATTEMPTS):
            if not (ask.sums or ask.words):
                return [replace(result, words={name: self.known[name] for name in request.words})]
            layout = FigureLayout(ask, self.capacity, f"{self.salt}\0{attempt}")
            sums, unread = layout.sums_of(self._played(layout, ask.nbytes))
            result = sums if attempt == 0 else result
            self.known |= sums.words
            ask = FiguresRequest((), (), unread)
        if not ask.words:
            return [replace(result, words={name: self.known[name] for name in request.words})]
        raise FoedusError(
            f"the column {ask.words[0]!r} holds more different words than masked sums (secure) can list "
            f"(max_categories = {self.capacity}); state them in [preprocess.categories], leave it out with drop in "
            "[data], or raise the limit."
        )

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]:
        """Return the sums of squared deviations over all sites, as one reply."""
        layout = SquaresLayout(dict(means))
        return [layout.squares_of(self._played(layout, NUMBER * len(means)))]

    def _played(self, layout: FigureLayout | SquaresLayout, down: int) -> np.ndarray:
        self.rounds, self.down = self.rounds + 1, self.down + down * self.sites
        self.up += NUMBER * layout.size * self.sites
        return self.add_up(layout)


def in_sums_here(tables: Here, salt: str, capacity: int) -> InSums:
    """Return the sums of tables that are all in this process, in the integers that sites mask."""

    def add_up(layout: FigureLayout | SquaresLayout) -> np.ndarray:
        if isinstance(layout, SquaresLayout):
            return sum_of(layout.encode(one.second(layout.means)) for one in tables.replies)
        return sum_of(layout.encode(one.first(layout.request)) for one in tables.replies)

    return InSums(tables.sites, salt, capacity, add_up)


def sum_of(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sum of the sites' words."""
    return np.sum(np.stack(list(vectors)), axis=0)
