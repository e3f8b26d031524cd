"""The code that the estimators share: reading sites, the intercept, a run of ProxAL, and prediction."""

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from foedus.algorithms import ProxAL
from foedus.data import Stacked
from foedus.errors import FoedusError
from foedus.losses import logistic
from foedus.penalties import BesideIntercept, Ridge
from foedus.problem import Problem
from foedus.run import Run
from foedus.solve import solve
from foedus.stacked import stack
from foedus.terms import Constraint, Mask

SMALL = 256  # rows of all sites together; padding up to this number costs less than compiling for another shape
ONE_SITE = "all"  # the name of the only site of a table without site names

SiteRows: TypeAlias = Sequence[ArrayLike] | Mapping[str, ArrayLike]
"""One site's rows: (X, y) or (X, y, group), or a dict with the keys x, y and group."""

Sites: TypeAlias = Mapping[str, SiteRows] | Sequence[SiteRows]
"""All sites: a dict by name, or a list, in which case their names are "0", "1", …"""


@dataclass(frozen=True)
class Site:
    """One site's rows after validation; `fit` recodes labels as numbers, and groups as 0, 1, …"""

    name: str
    x: np.ndarray
    y: np.ndarray
    group: np.ndarray | None = None

    def arrays(self, fit_intercept: bool) -> tuple[np.ndarray, ...]:
        """The arrays of the optimisation problem; an intercept is a last column of ones."""
        x = np.column_stack([self.x, np.ones(len(self.x))]) if fit_intercept else self.x
        return (x, self.y) if self.group is None else (x, self.y, self.group)


class LinearClassifierOverSites(ClassifierMixin, BaseEstimator):
    """A binary linear classifier whose constraints hold at every site; the estimators derive from it.

    All of them have the settings `fit_intercept`, `ridge`, `beta`, `eps1`, `eps2`, `max_rounds` and `seed`.
    """

    fit_intercept: bool
    ridge: float
    beta: float | str
    eps1: float
    eps2: float
    max_rounds: int
    seed: int
    n_features_in_: int  # set by scikit-learn's validate_data

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the log-odds of `classes_[1]` for each row.

        Args:
            X: a table, shape (rows, features).

        Returns:
            The log-odds, shape (rows,).
        """
        return self._log_odds(X)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the model's probabilities of both classes for each row.

        Args:
            X: a table, shape (rows, features).

        Returns:
            The probabilities in the order of `classes_`, shape (rows, 2).
        """
        odds = self._log_odds(X)
        return np.column_stack([expit(-odds), expit(odds)])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predicted class of each row.

        Args:
            X: a table, shape (rows, features).

        Returns:
            Entries of `classes_`, shape (rows,).
        """
        second = self.decision_function(X) > 0
        return self.classes_[second.astype(int)]

    def _log_odds(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self, "coef_")
        return validate_table(self, X) @ self.coef_[0] + self.intercept_[0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_class = False
        return tags

    # the steps of `fit`, in order

    def _check_settings(self) -> None:
        self._check("ridge", ge=0)
        self._check("max_rounds", ge=1, whole=True)
        self._check("seed", ge=0, whole=True)
        self._algorithm()

    def _check(
        self,
        name: str,
        *,
        gt: float | None = None,
        ge: float | None = None,
        lt: float | None = None,
        whole: bool = False,
        optional: bool = False,
    ) -> None:
        """Raise an error of one sentence if a setting is not a number in its range."""
        value: object = getattr(self, name)
        if optional and value is None:
            return
        within = {">": gt, ">=": ge, "<": lt}
        tests = {">": operator.gt, ">=": operator.ge, "<": operator.lt}
        if isinstance(value, Integral if whole else Real) and not isinstance(value, bool):
            number = float(value)
            if np.isfinite(number) and all(tests[sign](number, v) for sign, v in within.items() if v is not None):
                return
        limits = [f"{sign} {limit:g}" for sign, limit in within.items() if limit is not None]
        requirement = f"a {'whole ' if whole else ''}number {' and '.join(limits)}{' or None' if optional else ''}"
        raise FoedusError(
            f"The {name!r} parameter of {type(self).__name__} must be {requirement}. Got {value!r} instead."
        )

    def _algorithm(self) -> ProxAL:
        return ProxAL(beta=self.beta, eps1=self.eps1, eps2=self.eps2)

    def _take_sites(
        self,
        X: ArrayLike | Sites,
        y: ArrayLike | None,
        sites: ArrayLike | None,
        group: ArrayLike | None,
        *,
        with_groups: bool,
    ) -> list[Site]:
        """Read the sites from either form of `fit`.

        Sets `n_features_in_` and, if the columns of X have names, `feature_names_in_`.
        """
        if y is None and are_sites(X):
            if sites is not None or group is not None:
                raise FoedusError(
                    "fit(sites) takes neither sites= nor group=; a site's group comes third: (X, y, group)."
                )
            return [
                self._from_site(name, site, with_groups, first=i == 0) for i, (name, site) in enumerate(name_sites(X))
            ]
        x, labels = validate_rows(self, X, y)
        check_classification_targets(labels)
        groups = None
        if with_groups:
            if group is None:
                raise FoedusError(f"{type(self).__name__} needs the group of each row: fit(X, y, group=...).")
            groups = one_per_row("group", group, len(labels))
        if sites is None:
            return [Site(ONE_SITE, x, labels, groups)]
        names = np.array([str(name) for name in one_per_row("sites", sites, len(labels)).tolist()])
        return [
            Site(str(name), x[names == name], labels[names == name], None if groups is None else groups[names == name])
            for name in np.unique(names)
        ]

    def _from_site(self, name: str, site: object, with_groups: bool, first: bool = False) -> Site:
        x, y, group = site_parts(name, site, with_groups)
        try:
            x, y = validate_rows(self, x, y, reset=first)
            check_classification_targets(y)
            group = one_per_row("group", group, len(y)) if with_groups else None
        except ValueError as error:
            raise FoedusError(f"site {name!r}: {str(error).splitlines()[0]}") from None
        return Site(name, x, y, group)

    def _take_server(self, server: SiteRows | None, members: Sequence[Site], *, with_groups: bool) -> list[Site]:
        """Return the server's own data, if it has any, as a site called "server"."""
        if server is None:
            return []
        if any(site.name == "server" for site in members):
            raise FoedusError("a site is called 'server', the name under which the server's own data are reported.")
        return [self._from_site("server", server, with_groups)]

    def _take_classes(self, sites: Sequence[Site]) -> None:
        """Set `classes_`, from the labels of all sites."""
        classes = distinct("labels", {site.name: site.y for site in sites})
        if len(classes) == 1:
            only = classes.tolist()[0]
            raise FoedusError(f"{type(self).__name__} needs examples of two classes. Got only one class, {only!r}.")
        if len(classes) > 2:
            raise FoedusError(
                "Only binary classification is supported. The type of the target is multiclass, "
                f"with {len(classes)} classes."
            )
        self.classes_ = classes

    def _train(
        self,
        sites: Sequence[Site],
        server: Site | None,
        constraints: Sequence[Constraint],
        where: Mask | None,
    ) -> None:
        """Solve the constrained problem, keep the run, and warn if its certificate does not hold."""
        penalty = None
        if self.ridge > 0:
            penalty = Ridge(float(self.ridge), per_example=False)
            penalty = BesideIntercept.of(penalty) if self.fit_intercept else penalty
        problem = Problem(
            pad_rows(stack({site.name: site.arrays(self.fit_intercept) for site in sites})),
            loss=logistic,
            where=where,
            penalty=penalty,
            constraints=constraints,
            server=None if server is None else server.arrays(self.fit_intercept),
        )
        run = solve(problem, self._algorithm(), seed=self.seed, max_rounds=self.max_rounds)
        self.run_ = run
        self.certificate_ = run.certificate
        self.n_rounds_ = run.rounds
        self.sites_ = [site.name for site in sites]
        self.multipliers_ = _by_site(run, server is not None)
        w = np.asarray(run.w)
        self.coef_ = w[None, : self.n_features_in_].copy()
        self.intercept_ = w[-1:].copy() if self.fit_intercept else np.zeros(1)
        if not run.certificate.holds():
            worst = max(run.certificate.rows, key=lambda row: row.violation)
            warnings.warn(
                f"{type(self).__name__}: {run.reason}; {run.certificate.verdict()}; the largest violation is "
                f"{worst.violation:.3g}, of the {worst.constraint} at {worst.site!r}.",
                ConvergenceWarning,
                stacklevel=3,
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


def site_parts(name: str, site: object, with_groups: bool) -> tuple[object, object, object]:
    """Return X, y and the group of one site from a tuple or a dict; the group is None if it has none."""
    if isinstance(site, Mapping):
        x, y, group = (site.get(key) for key in ("x", "y", "group"))
    elif isinstance(site, tuple | list) and len(site) in (2, 3):
        x, y, group = [*site, None][:3]
    else:
        x = y = group = None
    if x is None or y is None or (with_groups and group is None):
        form = "(X, y, group)" if with_groups else "(X, y)"
        raise FoedusError(f"site {name!r}: expected {form} or a dict of these arrays. Got {_describe(site)} instead.")
    return x, y, group


def validate_table(estimator: BaseEstimator, X: object) -> np.ndarray:
    """Return X as floats after scikit-learn's checks; its columns must be those that the estimator was fitted on."""
    return np.asarray(validate_data(estimator, X, dtype=np.float64, reset=False))  # pyright: ignore[reportArgumentType]


def validate_rows(
    estimator: BaseEstimator, X: object, y: object, *, reset: bool = True, numeric: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return X as floats, and y, after scikit-learn's checks; `reset` makes the columns of X those of the estimator."""
    x, labels = validate_data(estimator, X, y, dtype=np.float64, reset=reset, y_numeric=numeric)  # pyright: ignore[reportArgumentType]
    return np.asarray(x), np.asarray(labels)


def _describe(site: object) -> str:
    if isinstance(site, Mapping):
        return f"a dict of {sorted(map(str, site))}"
    if isinstance(site, tuple | list):
        return f"a {type(site).__name__} of {len(site)} entries"
    return type(site).__name__


def one_per_row(what: str, entries: object, rows: int) -> np.ndarray:
    """Return a column of names or numbers, one for each row of X, or raise an error if one is missing."""
    values = np.asarray(column_or_1d(entries))
    if len(values) != rows:
        raise FoedusError(f"{what} must have one entry for each of the {rows} rows of X. Got {len(values)} instead.")
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise FoedusError(f"{what} has {value!r} at row {row}; expected a name or a number.")
    return values


def pad_rows(sites: Stacked) -> Stacked:
    """Pad all sites with rows of weight 0, up to one of a few numbers of rows.

    JAX compiles a program for each shape. After padding, the folds of a cross-validation share one program, and so do
    most small problems.
    """
    # With step = 2^(bits − 3) the numbers of rows are four to each power of two: at most a quarter is padding.
    rows = max(sites.rows, SMALL // sites.clients, 4)
    step = 2 ** (rows.bit_length() - 3)
    filling = rows + -rows % step - sites.rows
    arrays = {
        key: np.pad(array, [(0, 0), (0, filling)] + [(0, 0)] * (np.ndim(array) - 2), mode="edge")
        for key, array in sites.arrays.items()
    }
    counts = np.full(sites.clients, sites.rows) if sites.counts is None else sites.counts
    return Stacked(arrays, counts, sites.names)


def _by_site(run: Run, server: bool) -> dict[str, float | np.ndarray]:
    """Return the multipliers of each site: a number if the site has one constraint, else an array."""
    multipliers: dict[str, np.ndarray] = dict(zip(run.names, run.multipliers["local"], strict=True))
    if server:
        multipliers["server"] = run.multipliers["global"]
    return {site: mu.item() if mu.size == 1 else mu.copy() for site, mu in multipliers.items()}
