"""What the estimators share: sites in scikit-learn's manners, the intercept, a run of ProxAL, and prediction."""

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
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

SMALL = 256  # rows, of all sites together, below which filling costs nothing to speak of
ONE_SITE = "all"  # what the only site is called where none is named


@dataclass(frozen=True)
class Site:
    """One site's rows, checked; labels are coded 0/1 once the classes are known, and groups 0, 1, …"""

    name: str
    x: np.ndarray
    y: np.ndarray
    group: np.ndarray | None = None

    def arrays(self, fit_intercept: bool) -> tuple[np.ndarray, ...]:
        x = np.column_stack([self.x, np.ones(len(self.x))]) if fit_intercept else self.x
        return (x, self.y) if self.group is None else (x, self.y, self.group)


class LinearClassifierOverSites(ClassifierMixin, BaseEstimator):
    """A binary linear classifier whose terms hold at every site; the estimators derive from it.

    Settings that all of them have: `fit_intercept`, `ridge`, `beta`, `eps1`, `eps2`, `max_rounds`, `seed`.
    """

    fit_intercept: bool
    ridge: float
    beta: float | str
    eps1: float
    eps2: float
    max_rounds: int
    seed: int
    n_features_in_: int  # set by scikit-learn's validate_data

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of `classes_[1]` for each row of X."""
        return self._log_odds(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of `classes_` for each row of X, as the model has them. (rows, 2)"""
        odds = self._log_odds(X)
        return np.column_stack([expit(-odds), expit(odds)])

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row of X."""
        second = self.decision_function(X) > 0
        return self.classes_[second.astype(int)]

    def _log_odds(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.coef_[0] + self.intercept_[0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        assert tags.classifier_tags is not None
        tags.classifier_tags.multi_class = False
        return tags

    # what a fit is made of, in order

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
        """Raise, in one sentence, where a setting is not a number in its range."""
        value: Any = getattr(self, name)
        if optional and value is None:
            return
        number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
        within = {">": gt, ">=": ge, "<": lt}
        tests = {">": operator.gt, ">=": operator.ge, "<": operator.lt}
        if (
            not number
            or not np.isfinite(float(value))
            or not all(tests[k](value, v) for k, v in within.items() if v is not None)
        ):
            limits = [f"{sign} {limit:g}" for sign, limit in within.items() if limit is not None]
            expected = f"a {'whole ' if whole else ''}number {' and '.join(limits)}{' or None' if optional else ''}"
            raise FoedusError(
                f"The {name!r} parameter of {type(self).__name__} must be {expected}. Got {value!r} instead."
            )

    def _algorithm(self) -> ProxAL:
        return ProxAL(beta=self.beta, eps1=self.eps1, eps2=self.eps2)

    def _take_sites(self, X: Any, y: Any, sites: Any, group: Any, *, grouped: bool) -> list[Site]:
        """The sites from either form of `fit`; sets `n_features_in_` and, where X has names, `feature_names_in_`."""
        if y is None and _are_sites(X):
            if sites is not None or group is not None:
                raise FoedusError(
                    "fit(sites) takes neither sites= nor group=; a site's group comes third: (X, y, group)."
                )
            return self._from_sites(X, grouped)
        X, y = validate_data(self, X, cast(Any, y), dtype=np.float64)
        check_classification_targets(y)
        if grouped:
            if group is None:
                raise FoedusError(f"{type(self).__name__} needs the group of each row: fit(X, y, group=...).")
            group = _one_per_row("group", group, len(y))
        if sites is None:
            return [Site(ONE_SITE, X, y, group)]
        names = np.array([str(name) for name in _one_per_row("sites", sites, len(y)).tolist()])
        return [
            Site(str(name), X[names == name], y[names == name], None if group is None else group[names == name])
            for name in np.unique(names)
        ]

    def _from_sites(self, sites: Any, grouped: bool) -> list[Site]:
        if isinstance(sites, Mapping):
            named = [(str(name), site) for name, site in sites.items()]
        else:
            named = [(str(i), site) for i, site in enumerate(sites)]
        if not named:
            raise FoedusError("fit needs at least one site. Got none.")
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FoedusError(f"two sites are called {twice!r}; expected a name of its own for each.")
        return [self._from_site(name, site, grouped, first=i == 0) for i, (name, site) in enumerate(named)]

    def _from_site(self, name: str, site: Any, grouped: bool, first: bool = False) -> Site:
        form = "(X, y, group)" if grouped else "(X, y)"
        if isinstance(site, Mapping):
            parts = [site.get(key) for key in ("x", "y", "group")]
        elif isinstance(site, tuple | list) and len(site) in (2, 3):
            parts = [*site, None][:3]
        else:
            parts = [None, None, None]
        x, y, group = parts
        if x is None or y is None or (grouped and group is None):
            raise FoedusError(
                f"site {name!r}: expected {form} or a dict of these arrays. Got {_describe(site)} instead."
            )
        try:
            x, y = cast(Any, validate_data(self, x, y, dtype=np.float64, reset=first))
            check_classification_targets(y)
            group = _one_per_row("group", group, len(y)) if grouped else None
        except ValueError as error:
            raise FoedusError(f"site {name!r}: {str(error).splitlines()[0]}") from None
        return Site(name, x, y, group)

    def _take_server(self, server: Any, members: Sequence[Site], *, grouped: bool) -> list[Site]:
        """The server's own data as a site called "server", if it has any."""
        if server is None:
            return []
        if any(site.name == "server" for site in members):
            raise FoedusError("a site is called 'server', the name under which the server's own data are reported.")
        return [self._from_site("server", server, grouped)]

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
        """Solve the problem that the terms state, keep the run, and warn where its certificate does not hold."""
        penalty = None
        if self.ridge > 0:
            penalty = Ridge(float(self.ridge), per_example=False)
            penalty = BesideIntercept.of(penalty) if self.fit_intercept else penalty
        problem = Problem(
            _roomy(stack({site.name: site.arrays(self.fit_intercept) for site in sites})),
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
    """The values that occur at any site, sorted; they must be all words or all numbers."""
    words = {name: column.dtype.kind in "OUST" for name, column in columns.items()}
    first, *others = words
    for name in others:
        if words[name] != words[first]:
            found = ["words" if words[site] else "numbers" for site in (name, first)]
            raise FoedusError(f"site {name!r}: its {what} are {found[0]}, but those of {first!r} are {found[1]}.")
    return np.unique(np.concatenate(list(columns.values())))


def _are_sites(X: Any) -> bool:
    """Whether the first argument of `fit` is a collection of sites rather than one table."""
    if isinstance(X, Mapping):
        return True
    if not isinstance(X, list | tuple):
        return False
    return all(isinstance(site, Mapping) or (isinstance(site, list | tuple) and _holds_table(site)) for site in X)


def _holds_table(site: Sequence[Any]) -> bool:
    return len(site) > 0 and (len(getattr(site[0], "shape", ())) == 2 or np.ndim(site[0]) == 2)


def _describe(site: Any) -> str:
    if isinstance(site, Mapping):
        return f"a dict of {sorted(map(str, site))}"
    if isinstance(site, tuple | list):
        return f"a {type(site).__name__} of {len(site)} entries"
    return type(site).__name__


def _one_per_row(what: str, values: Any, rows: int) -> np.ndarray:
    """A column of names or numbers, one for each row of X, none of them missing."""
    values = column_or_1d(values)
    if len(values) != rows:
        raise FoedusError(f"{what} must have one entry for each of the {rows} rows of X. Got {len(values)} instead.")
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise FoedusError(f"{what} has {value!r} at row {row}; expected a name or a number.")
    return values


def _roomy(stacked: Stacked) -> Stacked:
    """The sites filled up to one of a few numbers of rows, with rows of weight 0.

    A program is compiled for each shape; filled up, the folds of a cross-validation share one, and small problems do.
    """
    rows = max(stacked.rows, SMALL // stacked.clients, 4)
    step = 2 ** (rows.bit_length() - 3)
    filling = rows + -rows % step - stacked.rows
    arrays = {
        key: np.pad(array, [(0, 0), (0, filling)] + [(0, 0)] * (np.ndim(array) - 2), mode="edge")
        for key, array in stacked.arrays.items()
    }
    counts = np.full(stacked.clients, stacked.rows) if stacked.counts is None else stacked.counts
    return Stacked(arrays, counts, stacked.names)


def _by_site(run: Run, server: bool) -> dict[str, Any]:
    """The multipliers of each site: a number where it has one, else an array."""
    tables: Iterable[tuple[str, np.ndarray]] = zip(run.names, run.multipliers["local"], strict=True)
    held = dict(tables) | ({"server": run.multipliers["global"]} if server else {})
    return {site: mu.item() if mu.size == 1 else mu.copy() for site, mu in held.items()}
