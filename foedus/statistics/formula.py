"""What a formula learns from the rows of all sites, by questions.

The levels of a category come from sets of words, means and deviations from sums, and a quantile from counts of rows
below thresholds, 63 at a time, until one number is left between them. A knot that is found so is a row's value, and so
are a spline's ends; whoever writes bs(x, knots=[…], lower_bound=…, upper_bound=…) is told none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.data.columns import Words, is_number, listing, missing_in
from foedus.data.formula import Design, FormulaColumns, Step, check_references, spline_state
from foedus.data.masked_sums import InSums
from foedus.data.sites import in_order
from foedus.data.sums import Replies
from foedus.data.tables import Table
from foedus.statistics.survival.stratified import reals, wholes
from foedus.sums.questions import Here, Question, Sites

MOST_LEVELS = 500  # of a category
FANS = 63  # thresholds in one question
LARGEST = np.iinfo(np.int64).max


class FormulaRows:
    """One site's rows that lack no value that the formula names.

    Args:
        table: of the site.
        design: of which the columns are taken.
        more: columns beside those of the formula.
    """

    def __init__(self, table: Table, design: Design, more: Sequence[str] = ()):
        names = (*design.names, *more)
        for name in names:
            table.column(name, "the formula")
        keep = ~np.logical_or.reduce([missing_in(table.columns[name]) for name in names])
        if not np.any(keep):
            raise FoedusError(f"{table.source}: no row has a value in every column of the formula.")
        self.missing = int(np.sum(~keep))
        self.table = table.take(np.flatnonzero(keep))

    @property
    def words(self) -> tuple[str, ...]:
        """The columns that hold words."""
        return tuple(name for name, column in self.table.columns.items() if isinstance(column, Words))

    @cached_property
    def columns(self) -> FormulaColumns:
        """The columns as arrays by name."""
        plain: dict[str, np.ndarray] = {}
        for name, column in self.table.columns.items():
            if isinstance(column, Words):
                levels = np.array([*column.levels, None], dtype=object)
                plain[name] = levels[column.codes]
            else:
                plain[name] = np.asarray(column)
        return FormulaColumns(plain, self.words)


@dataclass(frozen=True, eq=False)
class Below(Question):
    """How many rows of an expression are at or below each threshold?

    Args:
        design: with what is known so far.
        source: the expression.
        thresholds: (any shape)
    """

    kind: ClassVar[str] = "formula-below"
    design: Design
    source: str
    thresholds: np.ndarray

    @property
    def fields(self) -> Json:
        return {"of": self.source}

    @property
    def arrays(self) -> PyTree:
        return self.thresholds

    @property
    def shape(self) -> PyTree:
        return wholes(*self.thresholds.shape)

    def answer(self, data: FormulaRows) -> PyTree:
        values = np.sort(self.design.evaluate(self.source, data.columns))
        return np.searchsorted(values, self.thresholds, side="right").astype(int)


@dataclass(frozen=True, eq=False)
class PowerSums(Question):
    """What do the rows of an expression v, a weight u and their products add up to: n, Σu, Σvu?

    Args:
        design: with what is known so far.
        source: the expression v.
        centre: u is (v − centre)²; None: u is 1.
        polynomial: u is the squared polynomial with these numbers (α, norms) instead; None: as `centre` says.
    """

    kind: ClassVar[str] = "formula-sums"
    design: Design
    source: str
    centre: float | None = None
    polynomial: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def fields(self) -> Json:
        return {"of": self.source, "centre": self.centre, "polynomial": self.polynomial}

    @property
    def shape(self) -> PyTree:
        return wholes(), reals(), reals()

    def answer(self, data: FormulaRows) -> PyTree:
        v = self.design.evaluate(self.source, data.columns)
        u = np.ones_like(v)
        if self.polynomial is not None:
            alpha, norms = self.polynomial
            last, now = np.zeros_like(v), np.ones_like(v)
            for k, a in enumerate(alpha):
                last, now = now, (v - a) * now - (norms[k] / norms[k - 1] * last if k else 0.0)
            u = now**2
        elif self.centre is not None:
            u = (v - self.centre) ** 2
        return len(v), np.sum(u), np.sum(v * u)


def learn(
    formula: str, tables: Mapping[str, Table], more: Sequence[str], secure: bool, responses: Sequence[str] = ()
) -> tuple[Design, Here]:
    """Return the formula with all that it learns from the rows of all sites, and the sites with these rows.

    Args:
        formula: as it is written.
        tables: by site.
        more: columns beside those of the formula, which must not be missing either.
        secure: whether sums alone are seen.
        responses: columns whose levels are learnt, beside those of categories.
    """
    design = Design(formula)
    _check_names(design, tables, more)
    sites = Here({site: FormulaRows(table, design, more) for site, table in tables.items()}, secure)
    rows: Mapping[str, FormulaRows] = sites.data  # pyright: ignore[reportAssignmentType]
    words = sorted({name for own in rows.values() for name in own.words})
    for name in (name for name in words if name in design.names):
        for site, own in rows.items():
            if name not in own.words:
                raise FoedusError(f"the column {name!r} holds numbers at site {site!r}, and words at others.")
    columns = sorted({*design.categories(words).values(), *responses})
    answers = InSums(Here({site: Replies(own.table, None) for site, own in rows.items()}, secure), formula, MOST_LEVELS)
    levels = {
        name: _as_numbers(in_order({*words_of}), name in words) for name, words_of in answers.values(columns).items()
    }
    design = Design(formula, levels)
    check_references(design)
    for step in design.steps():
        state = _spline(design, step, sites) if step.name == "bs" else _moments(design, step, sites)
        design = Design(formula, levels, {**design.states, step.key: state})
    return design, sites


def _moments(design: Design, step: Step, sites: Sites) -> dict[str, Any]:
    """What center, scale, standardize and poly keep of all rows."""
    settings = step.settings
    rows, _, total = sites.total(PowerSums(design, step.source))
    if step.name == "poly":
        degree, raw = int(settings.get("degree", 1)), settings.get("raw", False)
        alpha, norms = [], []
        for k in range(0 if raw else degree + 1):
            _, norm, product = sites.total(PowerSums(design, step.source, None, (tuple(alpha), tuple(norms))))
            norms.append(float(norm))
            alpha += [float(product) / float(norm)] if k < degree else []
        return {} if raw else {"alpha": dict(enumerate(alpha)), "norms2": dict(enumerate(norms))}
    centre = settings.get("center", True) if step.name != "center" else True
    wide = step.name != "center" and settings.get("rescale" if step.name == "standardize" else "scale", True)
    ddof = settings.get("ddof", 0 if step.name == "standardize" else 1)
    mean = float(total) / int(rows)
    _, squares, _ = sites.total(PowerSums(design, step.source, mean if centre else 0.0))
    return {
        "ddof": ddof,
        "center": np.float64(mean) if centre is True else None if centre is False else np.float64(centre),
        "scale": np.sqrt(float(squares) / (int(rows) - ddof)) if wide is True else None,
    }


def _spline(design: Design, step: Step, sites: Sites) -> dict[str, Any]:
    """What bs keeps of all rows: its ends and its knots."""
    settings = step.settings
    df, knots, degree = settings.get("df"), settings.get("knots"), int(settings.get("degree", 3))
    low, high = settings.get("lower_bound"), settings.get("upper_bound")
    if df is not None and knots is not None:
        raise FoedusError(f"{step.key!r} in the formula: give df or knots, and not both.")
    inner = 0 if df is None else int(df) - degree - bool(settings.get("include_intercept", False))
    if inner < 0:
        raise FoedusError(f"{step.key!r} in the formula: df must be at least {int(df or 0) - inner}. Got {df} instead.")
    if settings.get("extrapolation", "raise") != "raise" and inner:
        raise FoedusError(f"{step.key!r} in the formula: with extrapolation state the knots, and not df.")
    places = np.linspace(0.0, 1.0, inner + 2)[1:-1]
    ends = [end for end, limit in ((0.0, low), (1.0, high)) if limit is None]
    places_found = iter(_quantiles(design, step.source, sites, [*ends, *places]) if ends or inner else [])
    low, high = (next(places_found) if limit is None else float(limit) for limit in (low, high))
    between = list(places_found) if inner else [float(k) for k in knots or ()]
    return spline_state(step, (low, high), between)


def _quantiles(design: Design, source: str, sites: Sites, shares: Sequence[float]) -> list[float]:
    """The quantiles of all rows, as NumPy has them: a row's value, or what lies between two."""
    rows = int(sites.total(Below(design, source, np.array([np.inf])))[0])
    places = [(rows - 1) * share for share in shares]
    ranks = sorted({rank for p in places for rank in (int(np.floor(p)), int(np.ceil(p)))})
    values = dict(zip(ranks, _order_statistics(design, source, sites, ranks), strict=True))
    result = []
    for p in places:
        a, b, t = values[int(np.floor(p))], values[int(np.ceil(p))], p - np.floor(p)
        result.append(b - (b - a) * (1.0 - t) if t >= 0.5 else a + (b - a) * t)
    return result


def _order_statistics(design: Design, source: str, sites: Sites, ranks: Sequence[int]) -> list[float]:
    """The values of the rows with these ranks, from counts at or below thresholds: each question leaves 1/64 of them.

    float64 numbers are in the order of the integers that stand for them, which are halved until one is left.
    """
    counts = np.array(ranks) + 1
    low, high = np.full(len(ranks), -LARGEST), np.full(len(ranks), LARGEST)  # the answer is in (low, high]
    while np.any(high - 1 > low):
        step = [[int(a) + (int(b) - int(a)) * k // (FANS + 1) for k in range(1, FANS + 1)]
                for a, b in zip(low.tolist(), high.tolist(), strict=True)]  # fmt: skip
        thresholds = np.array(step, dtype=np.int64)
        enough = np.asarray(sites.total(Below(design, source, _number(thresholds)))) >= counts[:, None]
        first = np.argmax(enough, axis=1)
        some, row = enough.any(axis=1), np.arange(len(ranks))
        before = np.where(some, first - 1, FANS - 1)
        low, high = (
            np.where(before >= 0, np.maximum(thresholds[row, before], low), low),
            np.where(some, thresholds[row, first], high),
        )
    return [float(value) for value in _number(high)]


def _number(order: np.ndarray) -> np.ndarray:
    """The float64 at a place in their order; places beyond the infinite ones are infinite."""
    bits = np.where(order >= 0, order, np.int64(-LARGEST - 1) - order)
    with np.errstate(invalid="ignore"):
        values = bits.astype(np.int64).view(np.float64)
    return np.where(np.isnan(values), np.where(order >= 0, np.inf, -np.inf), values)


def _as_numbers(levels: tuple[str, ...], wordy: bool) -> tuple[Any, ...]:
    if wordy or not all(map(is_number, levels)):
        return levels
    numbers = [float(level) for level in levels]
    return tuple(int(n) for n in numbers) if all(n == int(n) for n in numbers) else tuple(numbers)


def _check_names(design: Design, tables: Mapping[str, Table], more: Sequence[str]) -> None:
    everyone = {name for table in tables.values() for name in table.columns}
    for name in (*design.names, *more):
        if name not in everyone:
            raise FoedusError(
                f"no site has a column {name!r}, which the formula names; their columns are "
                f"{listing(sorted(everyone), 20)}.{did_you_mean(name, everyone)}"
            )
