"""describe: Table 1 over sites, from counts, sums and histograms that each site computes from its own rows.

A site tells no figure about fewer than `least` rows, and none from which such a one follows:

- of a column's counts (its words, other words, missing ones) it withholds small ones and the smallest beside them, so
  that the number of rows does not give one back: another partition would have been told in the same way;
- of numbers it withholds all figures where few rows have a value, or few have none: the count would tell the other;
  where all but few rows have the same value, and where sums tell a count of few rows, as of a column of 0 and 1;
- of a crosstab with a small cell it withholds the whole, for its margins are known;
- of a histogram it tells the rows below an edge as a range, from bins that hold enough rows together;
- words of few rows are not frequent: they are counted together as other words.

A sum counts how many sites withhold a figure; it is over the others, and says so. Masked or not, it has the same bits.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.base.notebook import html_of, text_table
from foedus.base.pytrees import PyTree
from foedus.base.quantities import count, number, percent
from foedus.base.settings import check
from foedus.data.baseline import FEW, LEAST, MOST_LEVELS, MOST_SITES
from foedus.data.columns import Column, Words, listing, text_of
from foedus.data.masked_sums import InSums
from foedus.data.sites import in_order
from foedus.data.sums import ABSENT, Replies
from foedus.data.tables import Table
from foedus.statistics.survival.rows import SiteTable, tables_of
from foedus.statistics.survival.stratified import reals, wholes
from foedus.sums.questions import Here, Question, Sites, ask_all
from foedus.sums.word_sets import LONGEST

OTHERS = "(other words)"  # of few rows
BESIDE = (OTHERS, ABSENT)  # the cells of a column beside its words
EDGES = 257  # of a histogram
CAPACITY = 500  # the most words of a column
ALL = ""  # the site of a figure over all sites
MARK = "†"
WIDER = 1 + 1e-9  # a histogram reaches so far beyond the quantiles that it must hold


@dataclass(frozen=True)
class Figure:
    """One number of a description.

    Args:
        column: that it is about; "" for the rows themselves.
        what: "rows", "values", "missing", "count", "mean", "deviation", "quantile", "spread" or "difference".
        level: the word that is counted, or the share of a quantile.
        group: the word of the column `by` that the rows have; "" for all rows.
        site: its name; "" for all sites.
        value: None where it is withheld, or where there are no rows.
        upper: a quantile lies between `value` and this.
        withheld: how many sites withhold it.
    """

    column: str
    what: str
    level: str = ""
    group: str = ""
    site: str = ALL
    value: float | None = None
    upper: float | None = None
    withheld: int = 0


@dataclass(frozen=True, eq=False)
class Layout:
    """What all parties know of the columns.

    Args:
        levels: of each column of words, in order.
        numbers: the columns of numbers.
        by: the column of words by which the others are told too; "" without.
        least: of fewer rows than this nothing is told.
    """

    levels: Mapping[str, tuple[str, ...]]
    numbers: tuple[str, ...]
    by: str
    least: int

    def cells(self, name: str) -> tuple[str, ...]:
        """Return the cells into which the rows fall: words, or whether there is a number."""
        return (*self.levels[name], *BESIDE) if name in self.levels else ("", ABSENT)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.numbers, *self.levels)

    @property
    def groups(self) -> int:
        """The cells of the column `by`; 0 without."""
        return len(self.cells(self.by)) if self.by else 0

    @property
    def crosstabs(self) -> tuple[str, ...]:
        """The columns that are told by groups."""
        return tuple(name for name in self.names if name != self.by) if self.by else ()

    @property
    def fields(self) -> Json:
        """What a message says of it."""
        levels = {name: list(words) for name, words in self.levels.items()}
        return {"levels": levels, "numbers": list(self.numbers), "by": self.by, "least": self.least}


def protect(counts: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of a partition, 0 where they are withheld, and which are.

    Example:
        >>> protect(np.array([40, 3, 0, 25]), least=5)
        (array([40,  0,  0,  0]), array([0, 1, 0, 1]))
    """
    mask = (counts > 0) & (counts < least)
    if np.any(mask):
        # those up to a limit, which are not all the same: then any order of these counts is told in the same way
        for limit in np.unique(counts[counts > 0]):
            mask |= (counts > 0) & (counts <= limit)
            some = counts[mask]
            if np.sum(some) >= least and np.min(some) < np.max(some):
                break
        mask |= np.max(counts) < least  # where all are small, zeros too: else 3 rows in 3 cells would be known
    return np.where(mask, 0, counts), mask.astype(int)


class SiteRows:
    """One site's rows, each in a cell of every column.

    Args:
        table: of the site.
        layout: of the columns.
    """

    def __init__(self, table: Table, layout: Layout):
        self.rows, self.is_small = table.rows, table.rows < layout.least
        self.values, self.places = {}, {}
        for name in layout.names:
            cells, column = layout.cells(name), table.columns.get(name, np.full(table.rows, np.nan))
            if name in layout.numbers:
                assert not isinstance(column, Words)
                if np.any(np.isinf(column)):
                    raise FoedusError(f"{table.place(int(np.argmax(np.isinf(column))))}: {name!r} is infinite.")
                self.values[name], self.places[name] = column, np.isnan(column).astype(int)
                continue
            words, place = text_of(column), {word: i for i, word in enumerate(cells)}
            codes = [place.get(word, place[OTHERS]) for word in words.levels]
            self.places[name] = np.array([*codes, place[ABSENT]])[words.codes]

    def counts(self, name: str, layout: Layout) -> np.ndarray:
        """Return how many rows are in each cell."""
        return np.bincount(self.places[name], minlength=len(layout.cells(name)))

    def crosstab(self, name: str, layout: Layout) -> np.ndarray:
        """Return how many rows are in each pair of a cell and a group."""
        size = len(layout.cells(name)) * layout.groups
        pairs = self.places[name] * layout.groups + self.places[layout.by]
        return np.bincount(pairs, minlength=size).reshape(-1, layout.groups)

    def tells(self, name: str, layout: Layout, by_group: bool = False) -> bool:
        """Return whether figures of a column of numbers, or all of a crosstab, are told."""
        counts = self.crosstab(name, layout) if by_group else self.counts(name, layout)
        return not (self.is_small or np.any((counts > 0) & (counts < layout.least)))

    def parts(self, name: str, layout: Layout) -> list[np.ndarray | None]:
        """Return the numbers of all rows, and then of each group; None where figures of them are withheld."""
        values, places = self.values[name], self.places[name] == 0
        whole = values[places]
        shows = self.tells(name, layout) and not _says_few(whole, layout.least)
        if not layout.by:
            return [whole if shows else None]
        groups = [values[places & (self.places[layout.by] == group)] for group in range(layout.groups)]
        few = not self.tells(name, layout, by_group=True) or any(_says_few(own, layout.least) for own in groups)
        return [whole if shows else None, *(None if few or not shows else own for own in groups)]


def _says_few(values: np.ndarray, least: int) -> bool:
    """Whether a count of few rows follows from a number of rows, a sum and a sum of squares, or nearly so."""
    _, rows = np.unique(values, return_counts=True)
    others = int(np.sum(rows) - np.max(rows, initial=0))
    return 0 < others < least or (len(rows) <= 3 and bool(np.any(rows < least)))


@dataclass(frozen=True, eq=False)
class Counts(Question):
    """How many rows are in each cell of each column, and what do the numbers add up to?

    Args:
        layout: of the columns.
    """

    kind: ClassVar[str] = "describe-counts"
    layout: Layout

    @property
    def fields(self) -> Json:
        return self.layout.fields

    @property
    def shape(self) -> PyTree:
        one = self.layout
        return {
            "rows": wholes(2),
            "cells": {name: wholes(2, len(one.cells(name))) for name in one.names},
            "crosstabs": {name: wholes(len(one.cells(name)) * one.groups + 1) for name in one.crosstabs},
            "over": wholes(len(one.numbers), 1 + one.groups, 2),
            "sums": reals(len(one.numbers), 1 + one.groups),
        }

    def answer(self, data: SiteRows) -> PyTree:
        one = self.layout
        cells, crosstabs = {}, {}
        for name in one.names:
            counts = data.counts(name, one)
            cells[name] = np.stack(protect(counts, one.least))
            if data.is_small:
                cells[name] = np.stack([np.zeros_like(counts), np.ones_like(counts)])
        for name in one.crosstabs:
            shows = data.tells(name, one, by_group=True)
            crosstab = data.crosstab(name, one).ravel()
            crosstabs[name] = np.append(crosstab if shows else np.zeros_like(crosstab), int(not shows))
        parts = [[([], 1) if part is None else (part, 0) for part in data.parts(name, one)] for name in one.numbers]
        sums = [[np.sum(part) for part, _ in own] for own in parts]
        over = [[(len(part), withheld) for part, withheld in own] for own in parts]
        return {
            "rows": np.array([0, 1] if data.is_small else [data.rows, 0]),
            "cells": cells,
            "crosstabs": crosstabs,
            "over": np.array(over, dtype=int).reshape(len(one.numbers), 1 + one.groups, 2),
            "sums": np.array(sums, dtype=float).reshape(len(one.numbers), 1 + one.groups),
        }


@dataclass(frozen=True, eq=False)
class Spreads(Question):
    """How far are numbers from a site's own means, and its means from the common ones, in squares added up?

    Args:
        layout: of the columns.
        means: over all sites, of all rows and of each group. (numbers, 1 + groups)
    """

    kind: ClassVar[str] = "describe-spreads"
    layout: Layout
    means: np.ndarray

    @property
    def fields(self) -> Json:
        return self.layout.fields

    @property
    def arrays(self) -> PyTree:
        return self.means

    @property
    def shape(self) -> PyTree:
        return reals(*self.means.shape, 2)

    def answer(self, data: SiteRows) -> PyTree:
        squares = np.zeros((*self.means.shape, 2))
        for i, name in enumerate(self.layout.numbers):
            for j, part in enumerate(data.parts(name, self.layout)):
                if part is not None and len(part):
                    mean = np.mean(part)
                    squares[i, j] = np.sum((part - mean) ** 2), len(part) * (mean - self.means[i, j]) ** 2
        return squares


@dataclass(frozen=True, eq=False)
class Histograms(Question):
    """How many rows are at or below each edge? At least so many, and at most so many: bins hold enough rows together.

    Args:
        layout: of the columns.
        edges: of each column of numbers, increasing. (numbers, EDGES)
    """

    kind: ClassVar[str] = "describe-histograms"
    layout: Layout
    edges: np.ndarray

    @property
    def fields(self) -> Json:
        return self.layout.fields

    @property
    def arrays(self) -> PyTree:
        return self.edges

    @property
    def shape(self) -> PyTree:
        return wholes(2, *self.edges.shape)

    def answer(self, data: SiteRows) -> PyTree:
        below = np.zeros((2, *self.edges.shape), dtype=int)
        for i, name in enumerate(self.layout.numbers):
            whole = data.parts(name, self.layout)[0]
            values = np.sort(whole if whole is not None else [])
            exact = np.searchsorted(values, self.edges[i], side="right")
            steps = [0]  # the numbers of rows that are told, each `least` rows or more beyond the one before
            for rows in exact.tolist():
                if rows - steps[-1] >= self.layout.least and len(values) - rows >= self.layout.least:
                    steps.append(rows)
            steps.append(len(values))
            ladder = np.array(steps)
            below[0, i] = ladder[np.searchsorted(ladder, exact, side="right") - 1]
            below[1, i] = ladder[np.searchsorted(ladder, exact, side="left")]
        return below


@dataclass(frozen=True)
class Description:
    """Table 1 over sites; print it, or write it with `to_csv`.

    Attributes:
        figures: all numbers, of all sites together and of each site whose answers are seen.
        sites: their names.
        layout: of the columns.
        of_two_kinds: columns that hold words at some sites and numbers at others.
    """

    figures: tuple[Figure, ...]
    sites: tuple[str, ...]
    layout: Layout
    of_two_kinds: tuple[str, ...] = ()

    def figure(self, column: str, what: str, level: str = "", group: str = "", site: str = ALL) -> Figure:
        """Return one number."""
        key = (column, what, level, group, site)
        for one in self.figures:
            if (one.column, one.what, one.level, one.group, one.site) == key:
                return one
        raise FoedusError(f"the description has no figure {key!r}.")

    def to_csv(self) -> str:
        """Return all figures as CSV, one a line; a figure that is withheld has an empty value."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("column", "figure", "level", "group", "site", "value", "upper", "withheld_by_sites"))
        for one in self.figures:
            value, upper = ("" if v is None else repr(v) for v in (one.value, one.upper))
            writer.writerow((one.column, one.what, one.level, one.group, one.site, value, upper, one.withheld))
        return file.getvalue()

    def lines(self) -> tuple[list[str], list[list[str]]]:
        """Return the titles and the lines of the table as texts."""
        each = [site for site in self.sites if any(one.site == site for one in self.figures)]
        columns = [ALL, *each] if len(each) <= MOST_SITES else [ALL]
        by_line: dict[tuple[str, str], dict[str, str]] = {}
        index = {(one.column, one.what, one.level, one.group, one.site): one for one in self.figures}
        lacking = {one.column for one in self.figures if one.what == "missing" and (one.value or one.withheld)}
        for one in self.figures:
            words = self.layout.levels.get(one.column, ())
            if one.site not in columns or (one.what == "count" and len(words) > MOST_LEVELS):
                continue
            if one.what == "missing" and one.column not in lacking:
                continue
            if (title := _title(one, self.layout)) is not None:
                by_line.setdefault((one.column, title), {})[one.site] = _text(one, index)
        for name in self.layout.levels:
            for site in each if columns != [ALL] else ():
                own = [one for one in self.figures if (one.column, one.what, one.site) == (name, "difference", site)]
                values = [abs(one.value) for one in own if one.value is not None]
                text = FEW if any(one.withheld for one in own) else number(max(values)) if values else "–"
                by_line.setdefault((name, f"{name}, largest difference from the others"), {})[site] = text
            if len(words := self.layout.levels[name]) > MOST_LEVELS:
                by_line[name, f"{name}: {count(len(words), 'word')}"] = {}
        order = {name: i for i, name in enumerate(("", *self.layout.names))}
        titles = ["", *("All sites" if site == ALL else site for site in columns)]
        keys = sorted(by_line, key=lambda key: order[key[0]])
        return titles, [[key[1], *(by_line[key].get(site, "") for site in columns)] for key in keys]

    def notes(self) -> list[str]:
        """Return what a reader must know about the table."""
        least = self.layout.least
        notes = [
            f'"{FEW}" and {MARK}: withheld because it is about fewer than {least} rows, or would tell such a figure. '
            f"{MARK}2 means that 2 sites withhold it: the figure is over the others, and a count is at least that.",
            "SD: of rows. Quantiles lie between the two numbers. Differences are standardised: of a site from the "
            "others, in deviations; the spread is that of the sites' means.",
        ]
        if self.of_two_kinds:
            notes.append(
                f"Words at some sites and numbers at others, so counted as words: {listing(self.of_two_kinds)}."
            )
        return notes

    def __str__(self) -> str:
        return "\n".join([*text_table(*self.lines()), *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(str(self))


def _title(one: Figure, layout: Layout) -> str | None:
    """The line of the table in which a figure stands; None for one that stands beside another, or in the file alone."""
    of_group = f" | {layout.by} = {one.group}" if one.group else ""
    if one.what in ("values", "deviation") or (one.what == "difference" and one.column in layout.levels):
        return None
    if one.what == "missing":
        return f"{one.column}, missing{of_group}"
    if one.what == "count":
        return f"{one.column} = {one.level}{of_group}"
    if one.what == "quantile":
        return f"{one.column}, " + {"0.25": "first quartile", "0.5": "median", "0.75": "third quartile"}.get(
            one.level, f"{100 * float(one.level):g} %"
        )
    words = {"rows": "Rows", "mean": "mean (SD)", "spread": "spread of site means", "difference": "difference"}
    return f"{one.column}, {words[one.what]}{of_group}" if one.column else words[one.what]


def _text(one: Figure, index: Mapping[tuple[str, str, str, str, str], Figure]) -> str:
    """A figure as text, with what stands beside it."""
    if one.value is None:
        return FEW if one.withheld else "–"
    mark = f" {MARK}{one.withheld}" if one.withheld and one.site == ALL else ""
    if one.what in ("count", "missing"):
        rows = index["", "rows", "", "", one.site]
        values = index.get((one.column, "values", "", one.group, one.site))
        whole = rows if one.what == "missing" else values
        if mark:
            return f"≥ {number(one.value)}{mark}"
        if whole is None or not whole.value or whole.withheld or one.group:
            return number(one.value)
        return f"{number(one.value)} ({percent(one.value / whole.value)})"
    if one.what == "mean":
        deviation = index[one.column, "deviation", one.level, one.group, one.site].value
        return f"{number(one.value)}" + ("" if deviation is None else f" ({number(deviation)})") + mark
    if one.upper is not None:
        return f"{number(one.value)} to {number(one.upper)}{mark}"
    return f"{number(one.value)}{mark}"


def describe(
    sites: Mapping[str, SiteTable],
    *,
    by: str | None = None,
    categorical: Sequence[str] = (),
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    least: int = LEAST,
    secure: bool = False,
) -> Description:
    """Describe the rows of sites as on their pooled rows: counts, means, deviations, quantiles, words, crosstabs.

    Args:
        sites: by name, each site's columns: a dict, a data frame, or a file.
        by: a column of words, or of codes, by which the others are told too.
        categorical: columns of numbers that are codes, not quantities.
        quantiles: shares between 0 and 1; of each a bracket is told that holds it.
        least: of fewer rows than this nothing is told; 1 tells all.
        secure: let sums over sites alone be seen.

    Example:
        >>> import foedus as fd
        >>> north = {"age": [30, 41, 52, 66, 71], "ward": ["A", "A", "B", "B", "B"]}
        >>> south = {"age": [35, 44, 70, 58, 62], "ward": ["A", "B", "B", "B", "B"]}
        >>> told = fd.describe({"north": north, "south": south}, least=2)
        >>> told.figure("age", "mean").value, told.figure("ward", "count", "A")
        (52.9, Figure(column='ward', what='count', level='A', group='', site='', value=2.0, upper=None, withheld=1))
    """
    check("The 'least' of describe", least, ge=1, whole=True)
    for share in quantiles:
        check("A share in 'quantiles' of describe", share, gt=0, lt=1)
    tables = tables_of(sites)
    layout, of_two_kinds = _layout(tables, by, categorical, least, secure)
    here = Here({site: SiteRows(table, layout) for site, table in tables.items()}, secure)
    return Description(_figures(here, layout, quantiles), here.names, layout, of_two_kinds)


def _layout(
    tables: Mapping[str, Table], by: str | None, categorical: Sequence[str], least: int, secure: bool
) -> tuple[Layout, tuple[str, ...]]:
    """What all parties know of the columns, from the names that they have and the words of enough rows."""
    names = tuple(dict.fromkeys(name for table in tables.values() for name in table.columns))
    for name in (*([] if by is None else [by]), *categorical):
        if name not in names:
            raise FoedusError(
                f"no site has a column {name!r}; their columns are {listing(names, 20)}.{did_you_mean(name, names)}"
            )
    kinds = {
        name: {isinstance(t.columns[name], Words) for t in tables.values() if _has_values(t, name)} for name in names
    }
    wordy = tuple(name for name in names if True in kinds[name] or name == by or name in categorical)
    frequent = {site: of_enough_rows(table, wordy, least) for site, table in tables.items()}
    vocabulary: dict[str, tuple[str, ...]] = {}
    if wordy:
        replies = Here({site: Replies(table, None) for site, table in frequent.items()}, secure)
        vocabulary = InSums(replies, "describe", CAPACITY).values(wordy)
    levels = {name: in_order({*vocabulary[name]} - {ABSENT}) for name in wordy}
    of_two_kinds = tuple(name for name in wordy if len(kinds[name]) == 2)
    return Layout(levels, tuple(name for name in names if name not in wordy), by or "", least), of_two_kinds


def _has_values(table: Table, name: str) -> bool:
    column = table.columns.get(name)
    return column is not None and (isinstance(column, Words) or not np.all(np.isnan(column)))


def of_enough_rows(table: Table, names: Sequence[str], least: int) -> Table:
    """Return the columns of words, in which words of few rows, and those that no sum takes, are missing."""
    columns: dict[str, Column] = {}
    for name in names:
        words = text_of(table.columns.get(name, np.full(table.rows, np.nan)))
        rows = np.bincount(words.codes[words.codes >= 0], minlength=len(words.levels))
        keep = [n >= least and len(word.encode()) <= LONGEST for word, n in zip(words.levels, rows, strict=True)]
        codes = [i if keeps and words.levels[i] not in BESIDE else -1 for i, keeps in enumerate(keep)]
        columns[name] = Words(np.array([*codes, -1])[words.codes], words.levels).used()
    return replace(table, columns=columns)


def _figures(sites: Sites, layout: Layout, quantiles: Sequence[float]) -> tuple[Figure, ...]:
    """Ask the three questions, and make figures of the sums and of the single answers that are seen."""
    each, total = ask_all(sites, Counts(layout))
    rows = total["over"][..., 0]  # of which there are sums (numbers, 1 + groups)
    means = np.divide(total["sums"], rows, out=np.zeros(rows.shape), where=rows > 0)
    each_spread, spread = ask_all(sites, Spreads(layout, means))
    edges = np.zeros((len(layout.numbers), EDGES))
    for i in range(len(layout.numbers)):
        reach = _reach(int(rows[i, 0]), quantiles) * math.sqrt(np.sum(spread[i, 0]) / max(rows[i, 0], 1)) * WIDER
        reach += 1e-12 * max(abs(means[i, 0]), 1e-300)
        edges[i] = means[i, 0] + reach * np.linspace(-1, 1, EDGES)
    each_below, below = ask_all(sites, Histograms(layout, edges))
    figures = [*_of_rows(ALL, total, spread, below, edges, layout, quantiles)]
    for i, name in enumerate(layout.numbers):
        figures.append(Figure(name, "spread", value=_ratio(spread[i, 0], int(rows[i, 0])),
                              withheld=int(total["over"][i, 0, 1])))  # fmt: skip
    for site, own in each.items():
        within = np.stack([each_spread[site][..., 0], np.zeros(rows.shape)], axis=-1)
        figures += _of_rows(site, own, within, each_below[site], edges, layout, quantiles)
        figures += _differences(site, own, total, each_spread[site], spread, means, layout)
    return tuple(figures)


def _ranks(rows: int, share: float) -> tuple[int, int]:
    """The ranks, from 1, of the two rows between which NumPy and pandas have a quantile."""
    place = (rows - 1) * share
    return math.floor(place) + 1, math.ceil(place) + 1


def _reach(rows: int, quantiles: Sequence[float]) -> float:
    """How many deviations from the mean the quantiles can be at the most, by Cantelli's inequality.

    If r of n rows are at or below μ − kσ, then r/n is at most 1/(1 + k²).
    """
    most = 0.0
    for low, high in (_ranks(rows, share) for share in quantiles if rows):
        most = max(most, rows / low - 1, rows / (rows - high + 1) - 1)
    return math.sqrt(most)


def _ratio(squares: np.ndarray, rows: int) -> float | None:
    within, between = map(float, squares)
    return math.sqrt(between / (within + between) * (rows - 1) / rows) if rows > 1 and within + between > 0 else None


def _of_rows(
    site: str, counts: PyTree, squares: np.ndarray, below: np.ndarray, edges: np.ndarray, layout: Layout,
    quantiles: Sequence[float],
) -> Iterator[Figure]:  # fmt: skip
    """The figures of one site's answers, or of their totals."""

    def figure(column: str, what: str, value: float | None, withheld: Any = 0, **more: Any) -> Figure:
        return Figure(column, what, site=site, value=None if value is None else float(value),
                      withheld=int(withheld), **more)  # fmt: skip

    def count_figure(column: str, what: str, value: int, withheld: int, **more: Any) -> Figure:
        return figure(column, what, None if withheld and not value else value, withheld, **more)

    rows, small = counts["rows"]
    yield count_figure("", "rows", rows, small)
    groups = layout.cells(layout.by) if layout.by else ()
    n, sums = counts["over"][..., 0], counts["sums"]
    for name in layout.names:
        (cells, mask), titles = counts["cells"][name], layout.cells(name)
        present = rows - cells[-1]
        yield count_figure(name, "missing", cells[-1], mask[-1])
        if not (small or mask[-1]):
            yield count_figure(name, "values", present, 0)
        if name in layout.levels:
            for title, value, marks in zip(titles[:-1], cells, mask, strict=False):
                if title != OTHERS or value or marks:
                    yield count_figure(name, "count", value, marks, level=title)
            if name in layout.crosstabs:
                crosstab, marks = counts["crosstabs"][name], counts["crosstabs"][name][-1]
                for (i, j), value in np.ndenumerate(crosstab[:-1].reshape(-1, len(groups))):
                    if (titles[i] not in BESIDE and groups[j] not in BESIDE) or value:
                        what = "missing" if titles[i] == ABSENT else "count"
                        level = "" if what == "missing" else titles[i]
                        yield count_figure(name, what, value, marks, level=level, group=groups[j])
            continue
        i = layout.numbers.index(name)
        for j, group in enumerate(("", *groups)):
            withheld = counts["over"][i, j, 1]
            if group in BESIDE and not n[i, j]:
                continue
            mean = sums[i, j] / n[i, j] if n[i, j] else None
            deviation = math.sqrt(np.sum(squares[i, j]) / (n[i, j] - 1)) if n[i, j] > 1 else None
            yield figure(name, "mean", mean, withheld, group=group)
            yield figure(name, "deviation", deviation, withheld, group=group)
        for share in quantiles:
            low = high = None
            if n[i, 0]:
                first, last = _ranks(int(n[i, 0]), share)
                before = np.flatnonzero(below[1, i] < first)
                after = np.flatnonzero(below[0, i] >= last)
                low = edges[i, before[-1]] if len(before) else -math.inf
                high = edges[i, after[0]] if len(after) else math.inf
            yield figure(name, "quantile", low, counts["over"][i, 0, 1], level=f"{share:g}",
                         upper=None if high is None else float(high))  # fmt: skip


def _differences(
    site: str, own: PyTree, total: PyTree, squares: np.ndarray, all_squares: np.ndarray, means: np.ndarray,
    layout: Layout,
) -> Iterator[Figure]:  # fmt: skip
    """How far a site is from the others, in deviations: the mean over √((s² + s'²)/2), or a share over its own."""
    own_rows, rows = (counts["over"][:, 0, 0] for counts in (own, total))
    for i, name in enumerate(layout.numbers):
        n, others, value = int(own_rows[i]), int(rows[i] - own_rows[i]), None
        if n > 1 and others > 1:
            mean = own["sums"][i, 0] / n
            rest = (total["sums"][i, 0] - own["sums"][i, 0]) / others
            of_rest = np.sum(all_squares[i, 0]) - np.sum(squares[i, 0]) - others * (rest - means[i, 0]) ** 2
            value = _standard(mean - rest, squares[i, 0, 0] / (n - 1), max(of_rest, 0.0) / (others - 1))
        yield Figure(name, "difference", site=site, value=value, withheld=int(own["over"][i, 0, 1]))
    for name, levels in layout.levels.items():
        (mine, mask), (everyone, marks) = own["cells"][name], total["cells"][name]
        n = int(own["rows"][0] - mine[-1])
        others = int(total["rows"][0] - everyone[-1]) - n
        for j, level in enumerate(levels):
            withheld = int(mask[j] or marks[j] or mask[-1] or marks[-1] or total["rows"][1])
            value = None
            if not withheld and n > 0 and others > 0:
                p, q = mine[j] / n, (everyone[j] - mine[j]) / others
                value = _standard(p - q, p * (1 - p), q * (1 - q))
            yield Figure(name, "difference", level, site=site, value=value, withheld=withheld)


def _standard(difference: float, one: float, other: float) -> float | None:
    """A difference in deviations; None where there are none."""
    deviation = math.sqrt((one + other) / 2)
    return float(difference / deviation) if deviation > 0 else 0.0 if difference == 0 else None
