"""Preprocessing without pooling rows: each site sends only sums, counts and its sets of words.

Round 1: the server names the columns; a site sends, for a column of numbers, how many values it has and their sum (to
standardise, or to fill in missing ones) or the smallest and the largest (for min-max), and for a column of words the
set of words. Round 2, to standardise: the server sends the means, and a site sends its sums of squared deviations from
them, which unlike sums of squares lose no digits. Nothing is asked about columns whose bounds or categories the file
states. The bytes are 8 for a number, and UTF-8 with one byte between two words.

These messages are exact: a site's sums and sets are seen by the server, or with `secure` only sums over all sites
(`masked_sums.py`). Where that is too much, state the bounds and the categories; then nothing is asked. With `epsilon`
as well, columns of stated bounds are standardised by noisy counts and sums: a site clips its values to the bounds and
adds Laplace noise to each figure. Replacing one row changes a count by at most 1, a sum of (value − low) by at most
high − low, and a sum of squared deviations from m in [low, high] by at most max(m − low, high − m)²; with k figures in
all, each is released with ε/k, which adds up to ε for that row. Which values the label and the group have is public.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from foedus.base.engine import return_memory
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import Json
from foedus.data.column_sums import ColumnSums, play_rounds
from foedus.data.columns import Column, Words, counted, is_number, listing, missing_in, number_text, text_of
from foedus.data.formula import Design, FormulaColumns, check_references, stated_spline
from foedus.data.masked_sums import InSums
from foedus.data.sites import Cohort, Roles
from foedus.data.sums import (
    ABSENT,
    NUMBER,
    Answers,
    FiguresRequest,
    Here,
    check_private,
    noises,
    present_numbers,
    released_figures,
)
from foedus.data.tables import Table
from foedus.problem.stacked import LARGE, Stacked, aligned, few_heights
from foedus.sums import questions

SCHEMA = 1
IN_WORDS = {
    "standard": "standardised",
    "quantile": "scaled by median and quartiles",
    "minmax": "scaled to [0, 1]",
    "none": "as they are",
}
SCALES = tuple(IN_WORDS)
BAND = 4096  # rows that are prepared at a time
FIGURES = 3  # of a column that is standardised with noise: the count, the sum and the sum of squared deviations
NARROWEST = 1e-3  # of the stated width: the least deviation that is believed of noisy sums
SPREADS = 2.0  # deviations of the noise that a noisy variance must exceed to count as more than noise
CONSTANT = 1e-12  # relative to the mean: a smaller deviation is rounding error, and the column is constant
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)  # of a column that are kept, rounded, beside its rule
NORMAL = (1.349, 4.653)  # how far the quartiles, and the quantiles of 1 % and 99 %, of a normal law are apart
FAR = 4.0  # deviations from the mean that count as far where no quantiles are known: of any column at most 1 row in 16


@dataclass(frozen=True)
class Number:
    """A column of numbers: (value − shift)/scale, with `fill` for a missing value.

    `quantiles` are those of QUANTILES in training, rounded so that none is a row's own value; empty where the rows were
    not in one place, as with real sites. A value beyond `ends` is far from those of the training.
    """

    name: str
    shift: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    quantiles: tuple[float, ...] = ()
    ends: tuple[float, float] | None = None

    @staticmethod
    def from_json(record: Json) -> "Number":
        """Read the rule from its fields."""
        ends, quantiles = record.get("ends"), tuple(record.get("quantiles", ()))
        return Number(**record | {"quantiles": quantiles, "ends": None if ends is None else (ends[0], ends[1])})


@dataclass(frozen=True)
class Category:
    """A column of words: one 0/1 column for each level; an unknown word is 0 in all of them."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class Preprocessing:
    """The rules that turn raw rows into the model's numbers, and its answers into words; kept beside the model."""

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
    epsilon: float | None = None  # what the preparation spent of a row's privacy; None where it was exact
    noted: tuple[tuple[str, float, float], ...] = ()  # what each site sent with noise: its sensitivity and scale
    exact: tuple[str, ...] = ()  # the features about which sites sent exact sums, ranges or words
    formula: str = ""  # of which the model's numbers are the columns; empty: every column is one, or one a word
    total_rows: int | None = None  # of all sites, where they told it because sites weigh by their rows

    @property
    def names(self) -> list[str]:
        """The column, or column and word, that each entry of the model belongs to."""
        if self.formula:
            columns = {c.name: np.array([1.0 if isinstance(c, Number) else _plain(c)[0]], object) for c in self.columns}
            return self._columns_of_formula(columns)[1]
        blocks = [
            [c.name] if isinstance(c, Number) else [f"{c.name}={level}" for level in c.levels] for c in self.columns
        ]
        return [name for part in blocks for name in part] + (["(intercept)"] if self.intercept else [])

    def transform(self, table: Table, out: np.ndarray | None = None) -> np.ndarray:
        """Return the numbers of raw rows; where the rules fill no missing values, a row with one is NaN throughout.

        The numbers are written into `out` where it is given, (rows, numbers).
        """
        X = np.empty((table.rows, len(self.names))) if out is None else out
        if self.formula:
            for rule in self.columns:
                table.column(rule.name, "the model")
            X[:] = self._by_formula(table)
            if self.missing != "mean":
                X[self._absent(table)] = np.nan
            return X
        numbers: list[tuple[int, Number, np.ndarray]] = []
        place = 0
        for rule in self.columns:
            column = table.columns.get(rule.name)
            if column is None:
                raise FoedusError(
                    f"{table.source}: there is no column {rule.name!r}, which the model needs."
                    f"{did_you_mean(rule.name, table.columns)}"
                )
            if isinstance(rule, Number):
                numbers.append((place, rule, self._number(table, rule, column)))
                place += 1
            else:
                X[:, place : place + len(rule.levels)] = _indicators(rule, column)
                place += len(rule.levels)
        absent = self._absent(table) if self.missing != "mean" else None
        for start in range(0, table.rows, BAND):  # a band of rows stays in the cache while its columns are written
            band = slice(start, start + BAND)
            for place, rule, column in numbers:
                values = column[band]
                X[band, place] = (np.where(np.isnan(values), rule.fill, values) - rule.shift) / rule.scale
        if self.intercept:
            X[:, -1] = 1.0
        if absent is not None:
            X[absent] = np.nan
        return X

    @cached_property
    def design(self) -> Design:
        """The formula, with the levels of categories and the means and deviations of numbers."""
        levels = {rule.name: _plain(rule) for rule in self.columns if isinstance(rule, Category)}
        numbers = {rule.name: rule for rule in self.columns if isinstance(rule, Number)}
        states = {}
        for step in Design(self.formula).steps():
            place = f"{step.key!r} in the formula"
            if step.name in ("center", "standardize"):
                if step.source not in numbers or step.settings or self.scale != "standard":
                    raise FoedusError(
                        f"{place}: in an experiment file it takes a column of numbers, with no settings and with "
                        "scale = 'standard' in [preprocess]."
                    )
                rule = numbers[step.source]
                wide = rule.scale if step.name == "standardize" else None
                states[step.key] = {"ddof": 0, "center": np.float64(rule.shift), "scale": wide}
            elif step.name == "bs":
                states[step.key] = stated_spline(step)
            elif not (step.name == "poly" and step.settings.get("raw") is True):
                raise FoedusError(
                    f"{place}: what it learns is not asked for in an experiment file; use center, standardize, or "
                    "poly(…, raw=True)."
                )
        design = Design(self.formula, levels, states)
        check_references(design)
        return design

    def _columns_of_formula(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
        """The model's numbers in some rows and their names, the constant last."""
        words = tuple(rule.name for rule in self.columns if isinstance(rule, Category))
        plain = {name: own if name in words else own.astype(float) for name, own in columns.items()}
        X, names = self.design.columns_of(FormulaColumns(plain, words))
        order = sorted(range(len(names)), key=lambda j: names[j] == "(intercept)")
        return X[:, order], [names[j] for j in order]

    def _by_formula(self, table: Table) -> np.ndarray:
        columns = {}
        for rule in self.columns:
            column = table.columns[rule.name]
            if isinstance(rule, Number):
                values = self._number(table, rule, column)
                assert not isinstance(values, Words)
                columns[rule.name] = np.where(np.isnan(values), rule.fill, values)
            else:
                words = text_of(column)
                # a word that counts as none at this site, or that no site had, is one of no level
                names = [level if level in rule.levels else None for level in words.levels]
                absent = ABSENT if ABSENT in rule.levels else None
                columns[rule.name] = np.array([*names, absent], dtype=object)[words.codes]
        return self._columns_of_formula(columns)[0]

    def _absent(self, table: Table) -> np.ndarray:
        """Return which rows lack a value; raise where that is an error."""
        absent = np.any([missing_in(table.columns[rule.name]) for rule in self.columns], axis=0)
        if absent.any() and self.missing == "error":
            row = int(np.argmax(absent))
            name = next(r.name for r in self.columns if missing_in(table.columns[r.name])[row])
            raise FoedusError(f"{table.place(row)}, column {name!r}: a value is missing, and the model fills none.")
        return absent

    def _number(self, table: Table, rule: Number, column: Column) -> np.ndarray:
        if isinstance(column, Words):
            row = next(i for i, code in enumerate(column.codes) if code >= 0 and not is_number(column.levels[code]))
            cell = column.levels[column.codes[row]]
            raise FoedusError(f"{table.place(row)}, column {rule.name!r}: expected a number. Got {cell!r} instead.")
        return column

    def strange(self, table: Table) -> list[str]:
        """Return a sentence for each column in which rows hold what the training has not seen: words, far numbers."""
        sentences = []
        for rule in self.columns:
            column = table.columns.get(rule.name)
            if column is None:
                continue  # `transform` raises
            if isinstance(rule, Category):
                words = text_of(column)
                new = np.array([level not in rule.levels for level in words.levels] + [False])
                if rows := int(new[words.codes].sum()):
                    examples = [level for level in words.used().levels if level not in rule.levels]
                    sentences.append(
                        f"in {rows:,} of {counted(table.rows)} {rule.name!r} is a word that no site had in training "
                        f"({listing(map(repr, examples), 3)}); it counts as none"
                    )
            elif not isinstance(column, Words) and (ends := rule.ends) is not None:
                far = (column < ends[0]) | (column > ends[1])
                if rows := int(far.sum()):
                    first = int(np.argmax(far))
                    sentences.append(
                        f"in {rows:,} of {counted(table.rows)} {rule.name!r} is far from the numbers of the training "
                        f"({number_text(float(column[first]))} in {table.place(first).rpartition(', ')[2]}; "
                        f"usual is {ends[0]:.3g} to {ends[1]:.3g}); look at its unit"
                    )
        return sentences

    def to_json(self) -> Json:
        """Return the rules as a JSON object."""
        columns = [{"kind": "number" if isinstance(c, Number) else "category"} | vars(c) for c in self.columns]
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"schema": SCHEMA} | own | {"columns": columns}

    @staticmethod
    def from_json(record: Json) -> "Preprocessing":
        """Read what `to_json` wrote."""
        record = dict(record)
        if record.pop("schema", None) != SCHEMA:
            raise FoedusError(f"the preprocessing was written by another version (expected schema {SCHEMA}).")
        columns: list[Number | Category] = []
        for rule in record.pop("columns"):
            rule = dict(rule)
            if rule.pop("kind") == "number":
                columns.append(Number.from_json(rule))
            else:
                columns.append(Category(rule["name"], tuple(rule["levels"])))
        tuples = {name: tuple(record.pop(name, ())) for name in ("labels", "groups", "exact")}
        tuples["noted"] = tuple(tuple(figure) for figure in record.pop("noted", ()))
        return Preprocessing(columns=tuple(columns), **tuples, **record)

    @staticmethod
    def load(path: Path) -> "Preprocessing":
        """Read the rules from a file, or say in one sentence why that cannot be done."""
        try:
            return Preprocessing.from_json(json.loads(path.read_text()))
        except FoedusError as error:
            raise FoedusError(f"{path}: {error}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FoedusError(f"{path} cannot be read as the preprocessing of a model: {error}.") from None


def _plain(rule: Category) -> tuple[str, ...]:
    """The levels of a category, with those that count as none at a site."""
    return tuple(level.removesuffix("\0") for level in rule.levels)


def _indicators(rule: Category, column: Column) -> np.ndarray:
    """The 0/1 columns of a column of words."""
    words = text_of(column)
    place = {level: i for i, level in enumerate(rule.levels)}
    absent = place.get(ABSENT, -1)
    table = np.array([place.get(level, -1) for level in words.levels] + [absent], dtype=int)  # code −1 takes the last
    places = table[words.codes]
    out = np.zeros((len(places), len(rule.levels)))
    rows = np.flatnonzero(places >= 0)
    out[rows, places[rows]] = 1.0
    return out


def fit(
    cohort: Cohort,
    *,
    scale: str = "standard",
    intercept: bool = True,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, tuple[str, ...]] | None = None,
    epsilon: float | None = None,
    seed: int = 0,
    secure: bool = False,
    answers: Answers | None = None,
    count_rows: bool = False,
    private: bool = False,
    formula: str = "",
) -> Preprocessing:
    """Find the scales and vocabularies over the sites of a cohort, in at most two rounds.

    Args:
        cohort: the sites' tables.
        scale: "standard" by mean and deviation, "quantile" by median and quartiles, "minmax" or "none".
        intercept: whether a column of ones is added.
        bounds: (low, high) of columns of numbers; they are scaled by them and the sites are not asked.
        categories: the words of columns of words; the sites are not asked.
        epsilon: standardise the columns of stated bounds by noisy sums that spend this much privacy in all.
        seed: keys the noise.
        secure: whether only sums over sites are seen.
        answers: who answers for the sites; the cohort's own tables when left out.
        count_rows: whether the sites are asked for their number of rows, of which the rules keep the total.
        private: whether the training is private, so that no quantiles of the rows are kept.
        formula: of which the model's numbers are the columns; every column, or every word, is one when left out.

    Returns:
        The rules, and with them the rounds and bytes that they took and the privacy that they spent.
    """
    roles, bounds, categories = cohort.roles, dict(bounds or {}), dict(categories or {})
    _check_columns(cohort, bounds, categories)
    numbers = [name for name in cohort.features if name not in cohort.words and (name not in bounds or epsilon)]
    words = [name for name in cohort.features if name in cohort.words and name not in categories]
    if epsilon is not None:
        check_private(scale, [n for n in numbers if n not in bounds], words)
    in_one_place = answers is None and epsilon is None and not secure and not private
    if scale == "quantile" and numbers and not in_one_place:
        raise FoedusError(
            "[preprocess] scale = 'quantile' needs the sites' rows in one place, without [privacy] and secure; state "
            "the bounds of columns in [preprocess.bounds], or use scale = 'standard'."
        )
    request = FiguresRequest(
        sums=tuple(numbers) if scale == "standard" or roles.missing == "mean" else (),
        ranges=tuple(numbers) if scale == "minmax" else (),
        words=(*words, *valued_columns(roles)),
    )
    figures = FIGURES * len(numbers)
    if answers is None:
        answers = here = Here(cohort.tables, noises(cohort.tables, bounds, epsilon, figures, seed))
        if secure:
            replies = dict(zip(cohort.tables, here.replies, strict=True))
            answers = InSums(questions.Here(replies, secure=True), str(seed), roles.max_categories)
            answers.values(valued_columns(roles))  # the values of label and group are asked for first
    total_rows = answers.rows() if count_rows else None
    sums = play_rounds(answers, request, scale == "standard", None if epsilon is None else bounds)
    columns: list[Number | Category] = []
    for name in cohort.features:
        if name in cohort.words:
            columns.append(Category(name, _checked_levels(name, categories.get(name) or sums.words[name], roles)))
        elif name not in numbers:
            low, high = bounds[name]
            columns.append(Number(name, low, high - low, 0.5 * (low + high), ends=(low, high)))
        else:
            # Laplace noise of scale b has the variance 2b², and the noises of all sites add up
            spread = 0.0 if epsilon is None else figures / epsilon * (2.0 * answers.sites) ** 0.5
            quantiles = quantiles_of(cohort.tables, name) if in_one_place else ()
            columns.append(_number(sums, name, scale, bounds.get(name), spread, quantiles))
    for rule in columns:
        if isinstance(rule, Number) and not np.all(np.isfinite([rule.shift, rule.scale])):
            raise FoedusError(f"the column {rule.name!r} holds numbers too large to scale; rescale it at the sites.")
    exact = () if epsilon is not None else {*request.sums, *request.ranges, *words}
    by_site = count_rows and not isinstance(answers, InSums)  # a round that the sums do not know of
    rules = Preprocessing(
        columns=tuple(columns),
        label=roles.label,
        labels=cohort.labels,
        group=roles.group,
        groups=cohort.groups,
        intercept=intercept,
        missing=roles.missing,
        scale=scale,
        rounds=sums.rounds + by_site,
        up=sums.up + NUMBER * answers.sites * by_site,
        down=sums.down,
        epsilon=epsilon if numbers else None,
        noted=() if epsilon is None else released_figures(request, bounds, epsilon, figures, sums.means),
        exact=tuple(name for name in cohort.features if name in exact),
        total_rows=total_rows,
        formula=formula,
    )
    if formula and rules.design.has_intercept != intercept:
        raise FoedusError(
            f"the formula {formula!r} and intercept in [preprocess] do not agree on a constant; write '- 1' into the "
            "formula and intercept = false, or neither."
        )
    return rules


def quantiles_of(tables: Mapping[str, Table], name: str) -> tuple[float, ...]:
    """Return the quantiles of a column over all sites, rounded away from the median; none where it has no value.

    The outer ones are rounded to about a tenth of the spread, the quartiles and the median to about a hundredth.
    """
    values = np.concatenate([present_numbers(table.columns[name]) for table in tables.values()])
    if not len(values):
        return ()
    with np.errstate(over="ignore", invalid="ignore"):  # numbers too large to scale are refused in a sentence
        exact = np.quantile(values, QUANTILES)
        spread = exact[-2] - exact[1] or exact[-1] - exact[0]
        if not 0 < spread < np.inf:
            return tuple(map(float, exact)) if spread == 0 else ()
    power = 10.0 ** np.floor(np.log10(0.1 * spread))
    coarse = power * next(digit for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= 0.0999 * spread)
    units = np.array([coarse, coarse, *[coarse / 10.0] * 3, coarse, coarse])
    steps = exact / units
    brackets = units * np.concatenate([np.floor(steps[:3]), np.rint(steps[3:4]), np.ceil(steps[4:])])
    return tuple(float(f"{value:.12g}") for value in brackets)


def _usual(quantiles: tuple[float, ...]) -> tuple[float, float]:
    """Return the ends beyond which a value is far from those of the training.

    It is beyond the least and the greatest, and farther beyond the quantiles of 1 % and 99 % than these are apart; in
    a column of positive numbers below that of 1 % also where the ratio is as large.
    """
    least, low, *_, high, most = quantiles
    return min(least, low * low / high if low > 0 else 2.0 * low - high), max(most, 2.0 * high - low)


def _number(
    sums: ColumnSums,
    name: str,
    scale: str,
    bounds: tuple[float, float] | None,
    spread: float = 0.0,
    quantiles: tuple[float, ...] = (),
) -> Number:
    """Return the rule of a column.

    `spread` is the deviation of the noise on a sum over sites, per unit of sensitivity; `quantiles` those of the rows,
    where they are known.
    """
    mean = sums.means.get(name, 0.0)
    ends = _usual(quantiles) if quantiles else bounds
    if scale == "none":
        return Number(name, fill=mean, quantiles=quantiles, ends=ends)
    if scale == "quantile":
        _, low, first, middle, third, high, _ = quantiles
        width = (third - first) / NORMAL[0] or (high - low) / NORMAL[1]
        return Number(name, middle, width or 1.0, mean if name in sums.means else middle, quantiles, ends)
    if scale == "minmax":
        low, high = sums.ends[name]
        return Number(name, low, high - low if high > low else 1.0, mean, quantiles, ends or (low, high))
    variance = sums.squares[name] / sums.counts[name]
    if bounds is not None:
        # Noise may have made the variance tiny or negative, and dividing by it would blow the column up. So it is at
        # least what the noise alone could have made, and at most (width/2)², which no column in the bounds exceeds.
        width, furthest = bounds[1] - bounds[0], max(mean - bounds[0], bounds[1] - mean)
        least = max((NARROWEST * width) ** 2, SPREADS * spread * furthest**2 / sums.counts[name])
        variance = float(np.clip(max(variance, least), None, (0.5 * width) ** 2))
    deviation = variance**0.5
    deviation = 1.0 if deviation <= CONSTANT * max(abs(mean), 1e-300) else deviation
    ends = ends or (mean - FAR * deviation, mean + FAR * deviation)
    return Number(name, mean, deviation, mean, quantiles, ends)


def _checked_levels(name: str, levels: tuple[str, ...], roles: Roles) -> tuple[str, ...]:
    """The levels of a column of words; raise where they are too many."""
    if len(levels) > roles.max_categories:
        raise FoedusError(
            f"the column {name!r} holds {len(levels)} different words ({listing(levels, 3)}), more than "
            f"max_categories = {roles.max_categories}; leave it out with drop in [data], or raise the limit."
        )
    return levels


def valued_columns(roles: Roles) -> tuple[str, ...]:
    """Return the columns whose values are told beside those of features: the label of a classification, the group."""
    return tuple(c for c in (roles.label if roles.classification else None, roles.group) if c is not None)


def _check_columns(cohort: Cohort, bounds: Mapping[str, object], categories: Mapping[str, object]) -> None:
    """Raise where bounds are stated of a column that is none of numbers, or categories of one that is none of words."""
    for what, columns, wordy in (("bounds", bounds, False), ("categories", categories, True)):
        for name in columns:
            if name not in cohort.features:
                hint = did_you_mean(name, cohort.features)
                raise FoedusError(f"{name!r} in [preprocess.{what}] is not one of the features.{hint}")
            if (name in cohort.words) != wordy:
                holds = "words" if name in cohort.words else "numbers"
                raise FoedusError(f"{name!r} in [preprocess.{what}] is a column of {holds}; {what} do not fit it.")


def sites_of(cohort: Cohort, rules: Preprocessing) -> dict[str, tuple[np.ndarray, ...]]:
    """Return the arrays of each site as `Problem` takes them: (X, y), or (X, y, group)."""
    return {name: arrays_of(cohort, rules, table) for name, table in cohort.tables.items()}


def stacked_of(cohort: Cohort, rules: Preprocessing, release: bool = False) -> Stacked:
    """Return the arrays of all sites on a leading axis, as `Problem` would stack those of `sites_of`.

    With `release` each table lets go of its columns once they are copied, so that the rows are never held twice; the
    cohort then knows its sites' numbers of rows, and their rows no more.
    """
    counts = np.array([table.rows for table in cohort.tables.values()])
    height = int(counts.max())
    if len(set(counts.tolist())) > 1 and 8 * len(counts) * height * len(rules.names) <= LARGE:
        height = few_heights(height)  # another division of the rows then needs no new program
    shape = (len(counts), height)
    arrays = {"x": aligned((*shape, len(rules.names))), "y": aligned(shape)}
    for name in ("group", "cluster"):
        arrays |= {} if getattr(cohort.roles, name) is None else {name: aligned(shape)}
    for i, name in enumerate([*cohort.tables]):  # an iterator over items would hold on to the table before
        table = cohort.tables[name]
        arrays["y"][i, : table.rows] = cohort.y(table)
        if "group" in arrays:
            arrays["group"][i, : table.rows] = cohort.group(table)
        if "cluster" in arrays:
            arrays["cluster"][i, : table.rows] = cohort.cluster(table)
        rules.transform(table, arrays["x"][i, : table.rows])
        for array in arrays.values():
            array[i, table.rows :] = array[i, table.rows - 1]
        if release:
            cohort.tables[name] = table = table.without_rows()
            return_memory()
    return Stacked(arrays, None if len(set(counts.tolist())) == 1 else counts, tuple(cohort.tables))


def arrays_of(cohort: Cohort, rules: Preprocessing, table: Table) -> tuple[np.ndarray, ...]:
    """Return the arrays of one table: (X, y), or (X, y, group)."""
    group = cohort.group(table)
    return (rules.transform(table), cohort.y(table), *([] if group is None else [group]))
