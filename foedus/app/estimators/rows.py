"""How the estimators read what `fit` is given: tables and sites, labels, groups and weights, with a sentence each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from jax import Array
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data

from foedus.base.errors import FoedusError
from foedus.base.settings import check
from foedus.problem.terms import Data, Mask

ONE_SITE = "all"  # the name of the only site of a table without site names
WEIGHTS = "importance"  # the name of the array of sample weights; "weight" is taken, for rows that fill a rectangle

SiteRows: TypeAlias = Sequence[ArrayLike] | Mapping[str, ArrayLike]
"""One site's rows: (X, y) or (X, y, group), or a dict with the keys x, y, group and sample_weight."""

Sites: TypeAlias = Mapping[str, SiteRows] | Sequence[SiteRows]
"""All sites: a dict by name, or a list, in which case their names are "0", "1", …"""

ClassWeight: TypeAlias = Mapping[object, float] | str | None
"""Weights by class; "balanced" gives every class the same total weight, and None each row its own."""


@dataclass(frozen=True)
class Site:
    """One site's rows after validation; `fit` recodes labels as numbers, and groups as 0, 1, …"""

    name: str
    x: np.ndarray
    y: np.ndarray
    group: np.ndarray | None = None
    weight: np.ndarray | None = None

    def rows(self, index: np.ndarray) -> "Site":
        """Return the site with some of its rows, by number or by a mask."""
        group, weight = (None if part is None else part[index] for part in (self.group, self.weight))
        return Site(self.name, self.x[index], self.y[index], group, weight)

    def arrays(self, fit_intercept: bool) -> dict[str, np.ndarray]:
        """Return the arrays of the optimisation problem; an intercept is a last column of ones."""
        x = np.column_stack([self.x, np.ones(len(self.x))]) if fit_intercept else self.x
        extra = {"group": self.group, WEIGHTS: self.weight}
        return {"x": x, "y": self.y} | {key: part for key, part in extra.items() if part is not None}


@dataclass(frozen=True)
class WeightedMask:
    """A subset of the rows in which each row counts by its sample weight; without a mask, all rows."""

    mask: Mask | None = None

    def __call__(self, data: Data) -> Array:
        return data[WEIGHTS] if self.mask is None else data[WEIGHTS] * self.mask(data)

    def __str__(self) -> str:
        return str(self.mask or "all rows")


def check_parameter(estimator: object, name: str, **allowed: Any) -> None:
    """Raise a sentence where a parameter of an estimator is not allowed; `allowed` is what `base.settings.check` takes.

    The parameter itself stays as it was given, which scikit-learn's `clone` asks for.
    """
    what = f"The {name!r} parameter of {type(estimator).__name__}"
    check(what, getattr(estimator, name), finite=True, **allowed)


def read_sites(
    estimator: BaseEstimator,
    X: ArrayLike | Sites,
    y: ArrayLike | None,
    *,
    sites: ArrayLike | None = None,
    group: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    with_groups: bool = False,
    numeric: bool = False,
) -> list[Site]:
    """Read the sites from either form of `fit`; rows of weight 0 are left out.

    It sets `n_features_in_` of the estimator and, if the columns of X have names, `feature_names_in_`.

    Args:
        estimator: the estimator that is fitted.
        X: the sites, or one table with `y`.
        y: the labels or targets of the table.
        sites: the name of the site of each row of the table.
        group: the group of each row of the table.
        sample_weight: the weight of each row of the table.
        with_groups: whether the estimator knows of groups.
        numeric: whether targets must be numbers.
    """
    if y is None and are_sites(X):
        if sites is not None or group is not None or sample_weight is not None:
            raise FoedusError(
                "fit(sites) takes neither sites= nor group= nor sample_weight=; a site's group comes third, "
                "(X, y, group), and a dict has the key 'sample_weight'."
            )
        members = [
            read_site(estimator, name, site, with_groups=with_groups, numeric=numeric, first=i == 0)
            for i, (name, site) in enumerate(name_sites(X))
        ]
        return with_all_weights(members)
    x, labels = validate_rows(estimator, X, y, numeric=numeric)
    groups = one_per_row("group", group, len(labels)) if with_groups and group is not None else None
    weights = None if sample_weight is None else row_weights(sample_weight, len(labels))
    whole = Site(ONE_SITE, x, labels, groups, weights)
    if sites is None:
        return [without_empty_rows(whole)]
    names = np.array([str(name) for name in one_per_row("sites", sites, len(labels)).tolist()])
    return [without_empty_rows(replace(whole.rows(names == name), name=str(name))) for name in np.unique(names)]


def read_site(
    estimator: BaseEstimator, name: str, site: object, *, with_groups: bool, numeric: bool = False, first: bool = False
) -> Site:
    """Read one site from a tuple or a dict; the first site decides what the columns of X are."""
    x, y, group, weight = site_parts(name, site, with_groups)
    try:
        x, y = validate_rows(estimator, x, y, reset=first, numeric=numeric)
        group = one_per_row("group", group, len(y)) if with_groups and group is not None else None
        weight = None if weight is None else row_weights(weight, len(y))
    except ValueError as error:
        raise FoedusError(f"site {name!r}: {str(error).splitlines()[0]}") from None
    return without_empty_rows(Site(name, x, y, group, weight))


def without_empty_rows(site: Site) -> Site:
    """Return the site without its rows of weight 0, which must not be all."""
    if site.weight is None or np.all(site.weight > 0):
        return site
    if not np.any(site.weight > 0):
        raise FoedusError(
            f"site {site.name!r}: every sample_weight is zero; expected one above 0, or leave the site out."
        )
    return site.rows(site.weight > 0)


def with_all_weights(sites: Sequence[Site]) -> list[Site]:
    """Return the sites with weights of 1 where only others have weights."""
    if all(site.weight is None for site in sites):
        return list(sites)
    return [site if site.weight is not None else replace(site, weight=np.ones(len(site.y))) for site in sites]


def merge_copies(site: Site) -> Site:
    """Return the site with copies of a row merged into one of their total weight, and its rows in a fixed order.

    A model depends on the distribution of the rows alone. This saves work, and a weight of 2 gives exactly what two
    copies give, to the last bit: sums are added up in the same order. A site without copies and without
    weights is returned as it is.
    """
    parts = [site.x, site.y] if site.group is None else [site.x, site.y, site.group]
    table = np.ascontiguousarray(np.column_stack(parts) + 0.0)  # + 0.0 turns −0 into 0
    rows = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1])))[:, 0]
    _, first, place = np.unique(rows, return_index=True, return_inverse=True)
    if site.weight is None and len(first) == len(rows):
        return site
    weight = np.ones(len(rows)) if site.weight is None else site.weight
    return replace(site.rows(first), weight=np.bincount(place, weights=weight))


def weigh_classes(estimator: BaseEstimator, sites: Sequence[Site], classes: np.ndarray, by: ClassWeight) -> list[Site]:
    """Return the sites whose rows' weights are multiplied by those of their classes.

    "balanced" needs the classes' total weights alone: a class gets total / (classes · its total), as in scikit-learn.
    """
    if by is None:
        return list(sites)
    weights = [np.ones(len(site.y)) if site.weight is None else site.weight for site in sites]
    if isinstance(by, str):
        if by != "balanced":
            raise FoedusError(_class_weight_message(estimator, by))
        totals = [
            sum(float(w[site.y == c].sum()) for site, w in zip(sites, weights, strict=True)) for c in classes.tolist()
        ]
        factors = [sum(totals) / (len(totals) * total) for total in totals]
    else:
        known = classes.tolist()
        unknown = next((c for c in by if c not in known), None)
        if unknown is not None:
            raise FoedusError(
                f"The 'class_weight' of {type(estimator).__name__} names the class {unknown!r}; expected {known}."
            )
        factors = [by.get(c, 1.0) for c in known]
        if not all(isinstance(f, int | float | np.number) and 0 < f < np.inf for f in factors):
            raise FoedusError(_class_weight_message(estimator, by))
    place = [np.searchsorted(classes, site.y) for site in sites]
    return [
        replace(site, weight=w * np.asarray(factors, dtype=float)[at])
        for site, w, at in zip(sites, weights, place, strict=True)
    ]


def _class_weight_message(estimator: BaseEstimator, by: object) -> str:
    return (
        f"The 'class_weight' parameter of {type(estimator).__name__} must be 'balanced', a dict of numbers > 0 by "
        f"class, or None. Got {by!r} instead."
    )


def distinct(what: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the sorted distinct values of all sites, which must be all words or all numbers."""
    words = {name: column.dtype.kind in "OUST" for name, column in columns.items()}
    first, *others = words
    for name in others:
        if words[name] != words[first]:
            kinds = ["words" if words[site] else "numbers" for site in (name, first)]
            raise FoedusError(f"site {name!r}: its {what} are {kinds[0]}, but those of {first!r} are {kinds[1]}.")
    return np.unique(np.concatenate(list(columns.values())))


def are_sites(X: object) -> TypeGuard[Sites]:
    """Whether the first argument of `fit` is a collection of sites rather than one table."""
    if isinstance(X, Mapping):
        return True
    if not isinstance(X, list | tuple):
        return False
    return all(isinstance(site, Mapping) or (isinstance(site, list | tuple) and _begins_with_table(site)) for site in X)


def _begins_with_table(site: Sequence[ArrayLike]) -> bool:
    # a data frame tells its shape; np.ndim would first copy it into an array
    return len(site) > 0 and (len(getattr(site[0], "shape", ())) == 2 or np.ndim(site[0]) == 2)


def name_sites(sites: Sites) -> list[tuple[str, SiteRows]]:
    """Return the sites with their names, or raise an error if there is none or two have the same name."""
    if isinstance(sites, Mapping):
        by_name = [(str(name), site) for name, site in sites.items()]
    else:
        by_name = [(str(i), site) for i, site in enumerate(sites)]
    if not by_name:
        raise FoedusError("fit needs at least one site. Got none.")
    names = [name for name, _ in by_name]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FoedusError(f"two sites are called {twice!r}; expected a name of its own for each.")
    return by_name


def site_parts(name: str, site: object, with_groups: bool) -> tuple[object, object, object, object]:
    """Return X, y, the group and the weights of one site from a tuple or a dict; None for what it does not have."""
    weight = None
    if isinstance(site, Mapping):
        x, y, group, weight = (site.get(key) for key in ("x", "y", "group", "sample_weight"))
    elif isinstance(site, tuple | list) and len(site) in (2, 3):
        x, y, group = [*site, None][:3]
    else:
        x = y = group = None
    if x is None or y is None or (with_groups and group is None):
        form = "(X, y, group)" if with_groups else "(X, y)"
        raise FoedusError(f"site {name!r}: expected {form} or a dict of these arrays. Got {_describe(site)} instead.")
    return x, y, group, weight


def _describe(site: object) -> str:
    if isinstance(site, Mapping):
        return f"a dict of {sorted(map(str, site))}"
    if isinstance(site, tuple | list):
        return f"a {type(site).__name__} of {len(site)} entries"
    return type(site).__name__


def validate_table(estimator: BaseEstimator, X: object) -> np.ndarray:
    """Return X as floats, dense or sparse, after scikit-learn's checks; its columns must be those of the fit."""
    return validate_data(estimator, X, dtype=np.float64, reset=False, accept_sparse=("csr", "csc"))  # pyright: ignore


def validate_rows(
    estimator: BaseEstimator, X: object, y: object, *, reset: bool = True, numeric: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return X as floats, and y, after scikit-learn's checks; `reset` makes the columns of X those of the estimator.

    A sparse X is made dense, since the compiled program works on dense arrays.
    """
    options = {"dtype": np.float64, "reset": reset, "y_numeric": numeric, "accept_sparse": ("csr", "csc")}
    x, labels = validate_data(estimator, X, y, **options)  # pyright: ignore[reportArgumentType]
    return np.asarray(x.toarray() if issparse(x) else x), np.asarray(labels)  # pyright: ignore


def one_per_row(what: str, entries: object, rows: int) -> np.ndarray:
    """Return a column of names or numbers, one for each row of X, or raise an error if one is missing."""
    values = np.asarray(column_or_1d(entries))
    if len(values) != rows:
        raise FoedusError(f"{what} must have one entry for each of the {rows} rows of X. Got {len(values)} instead.")
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise FoedusError(f"{what} has {value!r} at row {row}; expected a name or a number.")
    return values


def row_weights(entries: object, rows: int) -> np.ndarray:
    """Return the sample weights, one number >= 0 for each row of X and not all 0; one number serves all rows."""
    values = np.asarray(entries, dtype=object)
    values = np.full(rows, values[()]) if values.ndim == 0 else values
    if values.shape != (rows,):
        raise FoedusError(
            f"sample_weight must have one entry for each of the {rows} rows of X. Got shape {values.shape} instead."
        )
    try:
        numbers = values.astype(float)
    except (TypeError, ValueError):
        numbers = np.full(rows, np.nan)
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if np.any(wrong):
        row = int(np.argmax(wrong))
        raise FoedusError(f"sample_weight has {values.tolist()[row]!r} at row {row}; expected a number >= 0.")
    if not np.any(numbers > 0):
        raise FoedusError("every sample_weight is zero; expected at least one above 0.")
    return numbers


def has_weights(sites: Iterable[Site]) -> bool:
    """Return whether the rows of these sites have sample weights."""
    return any(site.weight is not None for site in sites)
