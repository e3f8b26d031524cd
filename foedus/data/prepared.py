"""`prepare` does in Python what an experiment file does: scales, categories and missing values over sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.data import preprocess
from foedus.data.columns import Column, Words
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Roles, gather
from foedus.data.tables import Table


@dataclass(frozen=True)
class Prepared:
    """The sites' rows as numbers, and the rules that made them.

    `fd.Problem` takes it as its clients, and its runs then predict raw rows; the estimators take `sites` or `in_words`.

    Attributes:
        sites: by site, (X, y), or (X, y, group).
        rules: the rules, with the rounds and bytes that finding them took.
    """

    sites: dict[str, tuple[np.ndarray, ...]]
    rules: Preprocessing

    @property
    def in_words(self) -> dict[str, tuple[np.ndarray, ...]]:
        """The same sites with the label and the group as the data say them, which the estimators then speak of."""
        labels, groups = (np.array(words) for words in (self.rules.labels, self.rules.groups))
        sites = {}
        for name, (X, y, *group) in self.sites.items():
            own = labels[y.astype(int)] if len(labels) else y
            sites[name] = (X, own, *(groups[g.astype(int)] for g in group))
        return sites

    @property
    def names(self) -> list[str]:
        """The column, or column and word, that each column of X belongs to."""
        return self.rules.names

    def transform(self, rows: Mapping[str, ArrayLike]) -> np.ndarray:
        """Return the numbers of raw rows by the same rules.

        Args:
            rows: raw columns by name, as a dict or a data frame; the label is not needed.
        """
        return self.rules.transform(table_of("the new rows", rows))


def prepare(
    sites: Mapping[str, object],
    *,
    label: str,
    positive: object = None,
    group: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "mean",
    max_categories: int = 50,
    classification: bool = True,
    scale: str = "standard",
    intercept: bool = True,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
) -> Prepared:
    """Turn raw columns of several sites into numbers, by rules found from sums and sets of words alone.

    Args:
        sites: by site, its columns by name, as a dict or a data frame. Columns of numbers are scaled; each word of a
            column of words becomes a column of 0 and 1.
        label: the column to predict.
        positive: the label that counts as 1; labels 0/1, -1/1 and false/true need none.
        group: the column with the group of each row.
        features: the columns to predict from; all others when left out.
        drop: columns to leave out.
        categorical: columns of numbers that are codes, not quantities.
        missing: "mean" fills in, "drop" leaves rows out, "error" refuses.
        max_categories: the most different words in a column.
        classification: whether the label is one of two classes; otherwise it is a number.
        scale: "standard", "minmax" or "none".
        intercept: whether X gets a last column of ones; the estimators add an intercept themselves.
        bounds: (low, high) of columns of numbers; the sites are not asked about them.
        categories: the words of columns of words; the sites are not asked about them.

    Returns:
        The sites' arrays and the rules.

    Example:
        >>> import foedus as fd
        >>> north = {"age": [30.0, 50.0, None], "ward": ["a", "b", "a"], "ill": ["no", "yes", "yes"]}
        >>> south = {"age": [40.0, 60.0], "ward": ["b", "c"], "ill": ["no", "yes"]}
        >>> ready = fd.data.prepare({"north": north, "south": south}, label="ill", positive="yes")
        >>> ready.names
        ['age', 'ward=a', 'ward=b', 'ward=c', '(intercept)']
        >>> problem = fd.Problem(ready, loss=fd.losses.logistic)
        >>> ready.transform({"age": [45.0], "ward": ["c"]}).tolist()
        [[0.0, 0.0, 0.0, 1.0, 1.0]]
    """
    if not isinstance(sites, Mapping) or not sites:
        raise FoedusError("prepare needs the sites' columns by site, as in prepare({'north': {...}, 'south': {...}}).")
    if missing not in ("mean", "drop", "error"):
        raise FoedusError(f"The 'missing' of prepare must be 'mean', 'drop' or 'error'. Got {missing!r} instead.")
    if scale not in preprocess.SCALES:
        raise FoedusError(
            f"The 'scale' of prepare must be one of {', '.join(preprocess.SCALES)}. Got {scale!r} instead."
        )
    roles = Roles(
        label=label,
        positive=None if positive is None else _word(positive),
        group=group,
        features=None if features is None else tuple(features),
        drop=tuple(drop),
        categorical=tuple(categorical),
        missing=missing,
        max_categories=max_categories,
        classification=classification,
    )
    cohort = gather({str(name): table_of(f"site {str(name)!r}", columns) for name, columns in sites.items()}, roles)
    words = {name: tuple(levels) for name, levels in (categories or {}).items()}
    rules = preprocess.fit(cohort, scale=scale, intercept=intercept, bounds=bounds, categories=words)
    return Prepared(preprocess.sites_of(cohort, rules), rules)


def is_columns(rows: object) -> TypeGuard[Mapping[str, ArrayLike]]:
    """Return whether these are columns by name: a dict, or a data frame of pandas or polars."""
    return hasattr(rows, "keys") or hasattr(rows, "get_column")


def table_of(source: str, columns: object) -> Table:
    """The columns of one site as a table, after checks."""
    if not is_columns(columns):
        raise FoedusError(f"{source}: expected columns by name. Got {type(columns).__name__} instead.")
    names = columns if hasattr(columns, "keys") else getattr(columns, "columns")  # noqa: B009  polars has no keys
    by_name = {str(name): _column(source, str(name), columns[name]) for name in names}
    rows = {name: len(column) for name, column in by_name.items()}
    first = next(iter(rows), None)
    if first is None or rows[first] == 0:
        raise FoedusError(f"{source}: it has no rows.")
    for name, count in rows.items():
        if count != rows[first]:
            raise FoedusError(f"{source}: the column {name!r} has {count} rows, but {first!r} has {rows[first]}.")
    return Table(source, by_name, np.arange(rows[first]))


def _column(source: str, name: str, values: ArrayLike) -> Column:
    """A column of numbers, NaN where missing, or of words."""
    cells = np.asarray(values)
    if cells.ndim != 1:
        raise FoedusError(f"{source}: the column {name!r} has shape {cells.shape}; expected one value a row.")
    if cells.dtype.kind in "iuf":
        numbers = cells.astype(float)
    elif cells.dtype.kind == "M":
        return _days(cells)
    else:
        plain = [None if value is None or value != value else value for value in np.asarray(values, object).tolist()]
        if any(isinstance(value, date) for value in plain) and all(
            value is None or isinstance(value, date) for value in plain
        ):
            return _days(np.array([None if value is None else value.isoformat()[:19] for value in plain], "M8[s]"))
        if not all(
            value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in plain
        ):
            return Words.of(["" if value is None else _word(value) for value in plain]).used()
        numbers = np.array([np.nan if value is None else float(value) for value in plain])
    if np.any(np.isinf(numbers)):
        row = int(np.argmax(np.isinf(numbers)))
        raise FoedusError(f"{source}, row {row}, column {name!r}: the number is infinite; expected a finite one.")
    return numbers


def _days(moments: np.ndarray) -> np.ndarray:
    """Dates and times as days since 1 January 1970, as files are read; NaN where one is missing."""
    seconds = moments.astype("M8[s]")
    return np.where(np.isnat(seconds), np.nan, seconds.astype(np.int64) / 86400.0)


def _word(value: object) -> str:
    """A value as a file would say it: 1, not 1.0, and true, not True."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
