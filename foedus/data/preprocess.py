"""Preprocessing that no site has to pool its rows for: scales and vocabularies from per-site sums and sets.

Round 1: the server names the columns; a site sends, for a column of numbers, how many values it has and their sum (to
standardise, or to fill in missing ones) or the smallest and the largest (for min-max), and for a column of words the
set of words. Round 2, to standardise: the server sends the means, and a site sends its sums of squared deviations from
them, which unlike sums of squares lose no digits. Nothing is asked about columns whose bounds or categories the file
states. The bytes are 8 for a number, and UTF-8 with one byte between two words.

These messages are exact: a site's sums and sets are seen by the server. Where that is too much, state the bounds and
the categories.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foedus.data.sites import Cohort
from foedus.data.tables import Table, Words, is_number, listed, missing_in, text_of
from foedus.errors import FoedusError, did_you_mean

SCHEMA = 1
SCALES = ("standard", "minmax", "none")
ABSENT = "(missing)"  # the category of missing words
NUMBER = 8  # bytes


@dataclass(frozen=True)
class Number:
    """A column of numbers: (value − shift)/scale, with `fill` for a missing value."""

    name: str
    shift: float = 0.0
    scale: float = 1.0
    fill: float = 0.0


@dataclass(frozen=True)
class Category:
    """A column of words: one 0/1 column for each level; an unknown word is 0 in all of them."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class Sums:
    """What a site sends in round 1."""

    count: dict[str, int] = field(default_factory=dict)
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


def _known(column: Any) -> np.ndarray:
    return column[~np.isnan(column)]


def _levels(column: Any) -> tuple[str, ...]:
    levels = text_of(column).used().levels
    return (*levels, ABSENT) if missing_in(column).any() else levels


@dataclass(frozen=True)
class Preprocessing:
    """How raw rows become the model's numbers, and its answers words; kept beside the model."""

    columns: tuple[Number | Category, ...]
    label: str
    labels: tuple[str, ...] = ()  # what counts as 0 and what as 1; empty for a regression
    group: str | None = None
    groups: tuple[str, ...] = ()
    intercept: bool = True
    missing: str = "mean"
    scale: str = "standard"
    rounds: int = 0
    up: int = 0
    down: int = 0

    @property
    def names(self) -> list[str]:
        """What each entry of the model belongs to."""
        named = [
            [c.name] if isinstance(c, Number) else [f"{c.name}={level}" for level in c.levels] for c in self.columns
        ]
        return [name for part in named for name in part] + (["(intercept)"] if self.intercept else [])

    def transform(self, table: Table) -> np.ndarray:
        """The numbers of raw rows; a missing value is filled, or NaN throughout its row where it must not be filled."""
        parts = []
        for rule in self.columns:
            column = table.columns.get(rule.name)
            if column is None:
                raise FoedusError(
                    f"{table.source}: there is no column {rule.name!r}, which the model needs."
                    f"{did_you_mean(rule.name, table.columns)}"
                )
            parts.append(self._number(table, rule, column) if isinstance(rule, Number) else _indicators(rule, column))
        X = np.column_stack([*parts, np.ones(table.rows)] if self.intercept else parts)
        if self.missing != "mean":
            absent = np.any([missing_in(table.columns[rule.name]) for rule in self.columns], axis=0)
            if absent.any() and self.missing == "error":
                row = int(np.argmax(absent))
                name = next(r.name for r in self.columns if missing_in(table.columns[r.name])[row])
                raise FoedusError(f"{table.place(row)}, column {name!r}: a value is missing, and the model fills none.")
            X[absent] = np.nan
        return X

    def _number(self, table: Table, rule: Number, column: Any) -> np.ndarray:
        if isinstance(column, Words):
            row = next(i for i, code in enumerate(column.codes) if code >= 0 and not is_number(column.levels[code]))
            cell = column.levels[column.codes[row]]
            raise FoedusError(f"{table.place(row)}, column {rule.name!r}: expected a number. Got {cell!r} instead.")
        return (np.where(np.isnan(column), rule.fill, column) - rule.shift) / rule.scale

    def unknown(self, table: Table) -> dict[str, int]:
        """How many rows of each column of words have a word that no site had in training."""
        found = {}
        for rule in self.columns:
            if isinstance(rule, Category):
                column = text_of(table.columns[rule.name])
                strange = np.array([level not in rule.levels for level in column.levels] + [False])
                if count := int(strange[column.codes].sum()):
                    found[rule.name] = count
        return found

    def to_json(self) -> dict[str, Any]:
        kept = asdict(self)
        kept["columns"] = [
            {"kind": "number" if isinstance(c, Number) else "category"} | asdict(c) for c in self.columns
        ]
        return {"schema": SCHEMA} | kept

    @staticmethod
    def from_json(kept: dict[str, Any]) -> "Preprocessing":
        kept = dict(kept)
        if kept.pop("schema", None) != SCHEMA:
            raise FoedusError(f"the preprocessing was written by another version (expected schema {SCHEMA}).")
        columns: list[Number | Category] = []
        for rule in kept.pop("columns"):
            rule = dict(rule)
            if rule.pop("kind") == "number":
                columns.append(Number(**rule))
            else:
                columns.append(Category(rule["name"], tuple(rule["levels"])))
        tuples = {name: tuple(kept.pop(name)) for name in ("labels", "groups")}
        return Preprocessing(columns=tuple(columns), **tuples, **kept)

    @staticmethod
    def load(path: Path) -> "Preprocessing":
        try:
            return Preprocessing.from_json(json.loads(path.read_text()))
        except FoedusError as error:
            raise FoedusError(f"{path}: {error}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FoedusError(f"{path} cannot be read as the preprocessing of a model: {error}.") from None


def _indicators(rule: Category, column: Any) -> np.ndarray:
    words = text_of(column)
    place = {level: i for i, level in enumerate(rule.levels)}
    absent = place.get(ABSENT, -1)
    table = np.array([place.get(level, -1) for level in words.levels] + [absent], dtype=int)  # code −1 takes the last
    chosen = table[words.codes]
    out = np.zeros((len(chosen), len(rule.levels)))
    seen = np.flatnonzero(chosen >= 0)
    out[seen, chosen[seen]] = 1.0
    return out


def fit(
    cohort: Cohort,
    *,
    scale: str = "standard",
    intercept: bool = True,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, tuple[str, ...]] | None = None,
) -> Preprocessing:
    """Find the scales and vocabularies over the sites of a cohort, in at most two rounds."""
    roles, bounds, categories = cohort.roles, dict(bounds or {}), dict(categories or {})
    _check_stated(cohort, bounds, categories)
    numbers = [name for name in cohort.features if name not in cohort.words and name not in bounds]
    words = [name for name in cohort.features if name in cohort.words and name not in categories]
    fills = roles.missing == "mean"
    ask = Ask(
        sums=tuple(numbers) if scale == "standard" or fills else (),
        ranges=tuple(numbers) if scale == "minmax" else (),
        words=(*words, *[c for c in (roles.label if roles.classification else None, roles.group) if c is not None]),
    )
    sites, rounds, up, down = cohort.tables.values(), 0, 0, 0
    replies = [Sums() for _ in sites]
    if ask.sums or ask.ranges or ask.words:
        replies = [answer(table, ask) for table in sites]
        rounds, down, up = 1, ask.nbytes * len(sites), sum(reply.nbytes for reply in replies)
    counts = {name: sum(reply.count[name] for reply in replies) for name in ask.sums}
    for name in [name for name, count in counts.items() if count == 0]:
        raise FoedusError(f"the column {name!r} has no value at any site; leave it out with drop in [data].")
    means = {name: sum(reply.total[name] for reply in replies) / counts[name] for name in ask.sums}
    squares: dict[str, float] = {}
    if scale == "standard" and means:
        second = [deviations(table, means) for table in sites]
        squares = {name: sum(reply[name] for reply in second) for name in means}
        rounds, down, up = 2, down + NUMBER * len(means) * len(sites), up + NUMBER * len(means) * len(sites)
    columns: list[Number | Category] = []
    for name in cohort.features:
        if name in cohort.words:
            found = {word for reply in replies for word in reply.words.get(name, ())}
            levels = categories.get(name) or tuple(sorted(found))
            if len(levels) > roles.max_categories:
                raise FoedusError(
                    f"the column {name!r} holds {len(levels)} different words ({listed(levels, 3)}), more than "
                    f"max_categories = {roles.max_categories}; leave it out with drop in [data], or raise the limit."
                )
            columns.append(Category(name, levels))
        elif name in bounds:
            low, high = bounds[name]
            columns.append(Number(name, low, high - low, 0.5 * (low + high)))
        elif scale == "minmax":
            low = min(reply.least[name] for reply in replies)
            high = max(reply.most[name] for reply in replies)
            columns.append(Number(name, low, high - low if high > low else 1.0, means.get(name, 0.0)))
        elif scale == "standard":
            deviation = (squares[name] / counts[name]) ** 0.5
            tiny = deviation <= 1e-12 * max(abs(means[name]), 1e-300)
            columns.append(Number(name, means[name], 1.0 if tiny else deviation, means[name]))
        else:
            columns.append(Number(name, fill=means.get(name, 0.0)))
    for rule in columns:
        if isinstance(rule, Number) and not np.all(np.isfinite([rule.shift, rule.scale])):
            raise FoedusError(f"the column {rule.name!r} holds numbers too large to scale; rescale it at the sites.")
    return Preprocessing(
        columns=tuple(columns),
        label=roles.label,
        labels=cohort.labels,
        group=roles.group,
        groups=cohort.groups,
        intercept=intercept,
        missing=roles.missing,
        scale=scale,
        rounds=rounds,
        up=up,
        down=down,
    )


def _check_stated(cohort: Cohort, bounds: Mapping[str, Any], categories: Mapping[str, Any]) -> None:
    """Stated bounds and categories are of features of their kind."""
    for what, stated, wordy in (("bounds", bounds, False), ("categories", categories, True)):
        for name in stated:
            if name not in cohort.features:
                hint = did_you_mean(name, cohort.features)
                raise FoedusError(f"{name!r} in [preprocess.{what}] is not one of the features.{hint}")
            if (name in cohort.words) != wordy:
                holds = "words" if name in cohort.words else "numbers"
                raise FoedusError(f"{name!r} in [preprocess.{what}] is a column of {holds}; {what} do not fit it.")


def sites_of(cohort: Cohort, rules: Preprocessing) -> dict[str, tuple[np.ndarray, ...]]:
    """The sites as `Problem` takes them: (X, y), or (X, y, group)."""
    return {name: arrays_of(cohort, rules, table) for name, table in cohort.tables.items()}


def arrays_of(cohort: Cohort, rules: Preprocessing, table: Table) -> tuple[np.ndarray, ...]:
    """One table's (X, y), or (X, y, group)."""
    group = cohort.group(table)
    return (rules.transform(table), cohort.y(table), *([] if group is None else [group]))
