"""Figures for preprocessing of which only sums over sites are seen.

Counts, sums and squared deviations are added up exactly, whatever their units. The words of columns are joined as sets
(`foedus/sums/word_sets.py`): the server learns which words there are and how many sites have each, not which sites. The
least and the greatest value of a column are no sums, and are refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.data.sums import NUMBER, FiguresRequest, Replies, Sums
from foedus.sums.questions import Coding, Question, Sites
from foedus.sums.word_sets import WordTable

ATTEMPTS = 4  # at reading the words of a sum, each with another salt: four fail for 50 words with probability 1e-11


@dataclass(frozen=True)
class ColumnFigures(Question):
    """What do the columns of a site add up to, and which words do they hold?

    Args:
        request: the columns whose sums, or words, are asked for.
        capacity: the most different words of a column.
        salt: sorts words into cells.
        noise: on the sums, as it is stated.
    """

    kind: ClassVar[str] = "sums"
    request: FiguresRequest
    capacity: int
    salt: str
    noise: Json | None = None

    @property
    def fields(self) -> Json:
        table = {"capacity": self.capacity, "salt": self.salt}
        return {"columns": asdict(self.request), "noise": self.noise, "table": table}

    @property
    def shape(self) -> PyTree:
        numbers = jax.ShapeDtypeStruct((2, len(self.request.sums)), float)
        return numbers, {name: jax.ShapeDtypeStruct((t.size,), int) for name, t in self._tables().items()}

    def answer(self, data: Replies) -> PyTree:
        return self.in_cells(data.first(self.request))

    def in_cells(self, sums: Sums) -> PyTree:
        """Return figures as they are added up; raise where one is not finite, or a word too long."""
        numbers = _finite([[part[name] for name in self.request.sums] for part in (sums.count, sums.total)])
        return numbers, {name: table.encode(sums.words[name]) for name, table in self._tables().items()}

    def sums_of(self, total: PyTree) -> tuple[Sums, tuple[str, ...]]:
        """Return the sums over all sites, and the columns whose words cannot be read from this total."""
        (counts, totals), cells = total
        words: dict[str, tuple[str, ...]] = {}
        for name, table in self._tables().items():
            if (levels := table.words_of(cells[name])) is not None:
                words[name] = levels
        names = self.request.sums
        count, sums = (dict(zip(names, map(float, row), strict=True)) for row in (counts, totals))
        return Sums(count=count, total=sums, words=words), tuple(n for n in self.request.words if n not in words)

    def check(self, answer: PyTree) -> None:
        """A total may be infinite, which is told with its column."""

    def _tables(self) -> dict[str, WordTable]:
        return {name: WordTable(self.capacity, f"{self.salt}\0{name}".encode()) for name in self.request.words}


@dataclass(frozen=True)
class SquaredDeviations(Question):
    """What do the squared deviations of columns from these means add up to?

    Args:
        means: of the columns.
        noise: on the sums, as it is stated.
    """

    kind: ClassVar[str] = "squares"
    means: Mapping[str, float]
    noise: Json | None = None

    @property
    def fields(self) -> Json:
        return {"means": dict(self.means), "noise": self.noise}

    @property
    def shape(self) -> PyTree:
        return jax.ShapeDtypeStruct((len(self.means),), float)

    def answer(self, data: Replies) -> np.ndarray:
        return self.in_order(data.second(self.means))

    def in_order(self, squares: Mapping[str, float]) -> np.ndarray:
        """Return the figures as they are added up; raise where one is not finite."""
        return _finite([squares[name] for name in self.means])

    def check(self, answer: PyTree) -> None:
        """A total may be infinite, which is told with its column."""


@dataclass(frozen=True)
class RowCount(Question):
    """How many rows does a site train on? Sites that weigh by their rows need the total."""

    kind: ClassVar[str] = "rows"

    @property
    def shape(self) -> PyTree:
        return jax.ShapeDtypeStruct((), int)

    def answer(self, data: Replies) -> np.ndarray:
        return np.asarray(data.rows())


def _finite(values: list[float] | list[list[float]]) -> np.ndarray:
    if not np.all(np.isfinite(numbers := np.array(values, dtype=float))):
        raise FoedusError("a column holds numbers too large to add up; rescale it.")
    return numbers


@dataclass
class InSums:
    """The sites' answers, of which only sums over all of them are seen; for `preprocess.fit`.

    Args:
        source: the sites.
        salt: of the run, which sorts words into cells.
        capacity: the most different words of a column.
        noise: on the sums, as it is stated.
    """

    source: Sites
    salt: str
    capacity: int
    noise: Json | None = None
    rounds: int = 0
    up: int = 0
    down: int = 0
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the words of columns that were asked for before

    @property
    def sites(self) -> int:
        """The number of sites."""
        return len(self.source.names)

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
            question = ColumnFigures(ask, self.capacity, f"{self.salt}\0{attempt}", self.noise)
            sums, unread = question.sums_of(self._total(question, ask.nbytes))
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
        total = self._total(SquaredDeviations(dict(means), self.noise), NUMBER * len(means))
        return [dict(zip(means, map(float, total), strict=True))]

    def rows(self) -> int:
        """Return the number of rows of all sites."""
        return int(self._total(RowCount(), 0))

    def _total(self, question: Question, down: int) -> PyTree:
        self.rounds, self.down = self.rounds + 1, self.down + down * self.sites
        self.up += NUMBER * Coding.of(question.form, self.sites).size * self.sites
        return self.source.total(question)
