"""Robust estimators: DRFL minimises the worst-case loss over sites whose future data differ from their past data."""

import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Self, TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from foedus import losses
from foedus.algorithms import DRFL
from foedus.errors import FoedusError
from foedus.estimators.linear import (
    ONE_SITE,
    LinearClassifierOverSites,
    Site,
    Sites,
    are_sites,
    name_sites,
    one_per_row,
    pad_rows,
    site_parts,
    validate_rows,
    validate_table,
)
from foedus.losses import Loss
from foedus.problem import Problem, stack
from foedus.run import Run
from foedus.solve import solve

RADII = (1e-4, 1e-3, 1e-2, 1e-1)
"""The radii that radius="cv" chooses from."""

Radius: TypeAlias = float | Sequence[float] | str
Support: TypeAlias = tuple[ArrayLike, ArrayLike] | None


class _WorstCaseEstimator:
    """The code that both robust estimators share: their settings, the fit by DRFL, and the choice of the radius."""

    loss: str
    radius: Radius
    radii: Sequence[float]
    folds: int
    kappa: float
    theta: float
    p: int | str
    metric: str
    support: Support
    fit_intercept: bool
    max_rounds: int
    seed: int

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _drfl(self, radius: float | Sequence[float]) -> DRFL:
        return DRFL(
            radius=radius, kappa=self.kappa, theta=self.theta, p=self.p, metric=self.metric, support=self.support,
            intercept=bool(self.fit_intercept),
        )  # fmt: skip

    def _solve(self, sites: Sequence[Site], radius: float | Sequence[float]) -> Run:
        arrays = {site.name: site.arrays(self.fit_intercept) for site in sites}
        problem = Problem(pad_rows(stack(arrays)), loss=self._loss())
        return solve(problem, self._drfl(radius), seed=self.seed, max_rounds=self.max_rounds)

    def _choose(self, sites: Sequence[Site]) -> float:
        """Return the radius of least mean held-out loss; each site divides its own rows and reports only sums."""
        if not all(isinstance(r, Real) and np.isfinite(float(r)) and float(r) >= 0 for r in self.radii):
            raise FoedusError(f"The 'radii' of {type(self).__name__} must be numbers >= 0. Got {self.radii!r} instead.")
        loss, rng = self._loss(), np.random.default_rng(self.seed)
        fold = {site.name: rng.permutation(len(site.y)) % self.folds for site in sites}
        short = next((site.name for site in sites if len(site.y) < 2 * self.folds), None)
        if short is not None:
            raise FoedusError(
                f"site {short!r}: radius='cv' with {self.folds} folds needs {2 * self.folds} rows at every site."
            )
        scores = []
        for radius in self.radii:
            total = count = 0.0
            for k in range(self.folds):
                training = [Site(s.name, s.x[fold[s.name] != k], s.y[fold[s.name] != k]) for s in sites]
                w = np.asarray(self._solve(training, float(radius)).w)
                for site in sites:
                    out = fold[site.name] == k
                    x, y = (part[out] for part in site.arrays(self.fit_intercept)[:2])
                    total += float(np.sum(np.asarray(loss.value(jnp.asarray(x @ w), jnp.asarray(y)))))
                    count += len(y)
            scores.append(total / count)
        self.cv_losses_ = dict(zip(map(float, self.radii), scores, strict=True))
        return float(self.radii[int(np.argmin(scores))])

    def _train_over(self, sites: Sequence[Site]) -> None:
        radius = self._choose(sites) if isinstance(self.radius, str) else self.radius
        run = self._solve(sites, radius)
        self.radius_ = radius
        self.run_, self.worst_case_, self.n_rounds_ = run, run.worst_case, run.rounds
        self.sites_ = [site.name for site in sites]
        self._w = np.asarray(run.w)
        if not run.converged:
            warnings.warn(f"{type(self).__name__}: {run.reason}.", ConvergenceWarning, stacklevel=3)

    def _check_all(self, choices: tuple[str, ...]) -> None:
        if self.loss not in choices:
            raise FoedusError(
                f"The 'loss' parameter of {type(self).__name__} must be one of {', '.join(map(repr, choices))}. "
                f"Got {self.loss!r} instead."
            )
        if isinstance(self.radius, str) and self.radius != "cv":
            raise FoedusError(
                f"The 'radius' parameter of {type(self).__name__} must be a number >= 0 or 'cv'. "
                f"Got {self.radius!r} instead."
            )
        for name, least in (("folds", 2), ("max_rounds", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise FoedusError(
                    f"The {name!r} parameter of {type(self).__name__} must be a whole number >= {least}. "
                    f"Got {value!r} instead."
                )
        self._drfl(0.0 if isinstance(self.radius, str) else self.radius)


# each regression loss with the usual value of its parameter; 1.35 gives Huber's loss 95 % efficiency for normal errors
REGRESSION_LOSSES: dict[str, tuple[float, Callable[[float], Loss]]] = {
    "huber": (1.35, losses.huber),
    "epsilon_insensitive": (0.1, losses.epsilon_insensitive),
    "quantile": (0.5, losses.pinball),
}


class RobustClassifier(_WorstCaseEstimator, LinearClassifierOverSites):
    """Fit a linear classifier of least worst-case loss.

    The worst case is taken over all distributions in a Wasserstein ball around each site's data, and over all weights
    of the sites near their shares of the rows.

    Args:
        loss: "hinge", "smooth_hinge" or "logistic".
        radius: ρ of every site's ball; a tuple gives each site its own, and "cv" chooses one of `radii` by held-out
            loss.
        radii: the radii that "cv" chooses from.
        folds: the number of folds of the cross-validation; each site divides its own rows.
        kappa: κ, the cost of changing a label; with an infinite cost labels do not change.
        theta: θ, the largest distance of the sites' weights from their shares of the rows; 2 allows any weights.
        p: the norm of that distance: 1, 2 or "inf".
        metric: the norm in which rows of X move: "l1", "l2" or "linf".
        support: the set that rows of X stay in: None for all of space, (low, high) for a box, or (C, d) for the
            polyhedron Cx ≤ d; the last two are for the hinge loss only.
        fit_intercept: whether the model has an intercept; its constant column does not move.
        max_rounds: the largest number of communication rounds.
        seed: the seed of the folds.

    Attributes:
        classes_: the two classes, sorted.
        coef_, intercept_: the model of the score of `classes_[1]`; shapes (1, features) and (1,).
        sites_: the names of the sites.
        n_rounds_: the number of communication rounds.
        run_: the `Run`, with its traffic and history.
        n_features_in_, feature_names_in_: as in scikit-learn.
        radius_: the radius that was used.
        cv_losses_: after radius="cv", the held-out mean loss by radius.
        worst_case_: the worst-case loss of every site and the worst weights of the sites; print it for a table.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> draw = np.random.default_rng(0)
        >>> X = draw.normal(size=(120, 3))
        >>> y = np.where(X[:, 0] + 0.5 * draw.normal(size=120) > 0, "ill", "well")
        >>> hospital = np.repeat(["north", "south", "west"], 40)
        >>> model = fd.RobustClassifier("logistic", radius=0.05, theta=0.2).fit(X, y, sites=hospital)
        >>> model.worst_case_.value > model.run_.objective  # the worst case exceeds the loss on the data as they are
        True
        >>> model.score(X, y) > 0.8
        True
    """

    def __init__(
        self, loss: str = "hinge", *, radius: Radius = 0.01, radii: Sequence[float] = RADII, folds: int = 5,
        kappa: float = float("inf"), theta: float = 0.0, p: int | str = 1, metric: str = "l1", support: Support = None,
        fit_intercept: bool = True, max_rounds: int = 5000, seed: int = 0,
    ):  # fmt: skip
        self.loss = loss
        self.radius = radius
        self.radii = radii
        self.folds = folds
        self.kappa = kappa
        self.theta = theta
        self.p = p
        self.metric = metric
        self.support = support
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.seed = seed

    def _loss(self) -> Loss:
        return {"hinge": losses.hinge, "smooth_hinge": losses.smooth_hinge, "logistic": losses.logistic}[self.loss]

    def fit(self, X: ArrayLike | Sites, y: ArrayLike | None = None, *, sites: ArrayLike | None = None) -> Self:
        """Train the classifier over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the labels of the table.
            sites: the name of the site of each row of the table; without it, all rows are one site.

        Returns:
            The fitted classifier itself.
        """
        self._check_all(("hinge", "smooth_hinge", "logistic"))
        members = self._take_sites(X, y, sites, None, with_groups=False)
        self._take_classes(members)
        recoding = [Site(s.name, s.x, np.where(s.y == self.classes_[1], 1.0, -1.0)) for s in members]
        self._train_over(recoding)
        self.coef_ = self._w[None, : self.n_features_in_].copy()
        self.intercept_ = self._w[-1:].copy() if self.fit_intercept else np.zeros(1)
        return self

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probabilities of both classes for each row; only loss="logistic" has them.

        Args:
            X: a table, shape (rows, features).

        Returns:
            The probabilities in the order of `classes_`, shape (rows, 2).
        """
        if self.loss != "logistic":
            raise FoedusError("RobustClassifier(loss='logistic') has probabilities; a hinge loss has none.")
        odds = self.decision_function(X)
        return np.column_stack([expit(-odds), expit(odds)])


class RobustRegressor(_WorstCaseEstimator, RegressorMixin, BaseEstimator):
    """Fit a linear regressor of least worst-case loss.

    The worst case is taken over all distributions in a Wasserstein ball around each site's data, and over all weights
    of the sites near their shares of the rows.

    Args:
        loss: "huber", "epsilon_insensitive" (support vector regression) or "quantile".
        eps: Huber's threshold, the tube's half width, or the quantile's level in [0, 1]; None means 1.35, 0.1 or 0.5.
        radius: ρ of every site's ball; a tuple gives each site its own, and "cv" chooses one of `radii` by held-out
            loss.
        radii: the radii that "cv" chooses from.
        folds: the number of folds of the cross-validation; each site divides its own rows.
        kappa: κ, the cost of moving a target by one; with an infinite cost targets do not move.
        theta: θ, the largest distance of the sites' weights from their shares of the rows; 2 allows any weights.
        p: the norm of that distance: 1, 2 or "inf".
        metric: the norm in which rows of X move: "l1", "l2" or "linf".
        support: the set that rows of X stay in, as in `RobustClassifier`.
        fit_intercept: whether the model has an intercept; its constant column does not move.
        max_rounds: the largest number of communication rounds.
        seed: the seed of the folds.

    Attributes:
        coef_, intercept_: the model; shape (features,) and a number.
        sites_: the names of the sites.
        n_rounds_: the number of communication rounds.
        run_: the `Run`, with its traffic and history.
        n_features_in_, feature_names_in_: as in scikit-learn.
        radius_: the radius that was used.
        cv_losses_: after radius="cv", the held-out mean loss by radius.
        worst_case_: the worst-case loss of every site and the worst weights of the sites; print it for a table.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> draw = np.random.default_rng(0)
        >>> X = draw.normal(size=(120, 3))
        >>> y = X @ [1.0, -1.0, 0.5] + 0.3 * draw.normal(size=120)
        >>> hospital = np.repeat(["north", "south", "west"], 40)
        >>> model = fd.RobustRegressor("huber", radius=0.01).fit(X, y, sites=hospital)
        >>> model.score(X, y) > 0.9
        True
    """

    n_features_in_: int

    def __init__(
        self, loss: str = "huber", *, eps: float | None = None, radius: Radius = 0.01, radii: Sequence[float] = RADII,
        folds: int = 5, kappa: float = float("inf"), theta: float = 0.0, p: int | str = 1, metric: str = "l1",
        support: Support = None, fit_intercept: bool = True, max_rounds: int = 5000, seed: int = 0,
    ):  # fmt: skip
        self.loss = loss
        self.eps = eps
        self.radius = radius
        self.radii = radii
        self.folds = folds
        self.kappa = kappa
        self.theta = theta
        self.p = p
        self.metric = metric
        self.support = support
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.seed = seed

    def _loss(self) -> Loss:
        usual, loss = REGRESSION_LOSSES[self.loss]
        return loss(usual if self.eps is None else self.eps)

    def fit(self, X: ArrayLike | Sites, y: ArrayLike | None = None, *, sites: ArrayLike | None = None) -> Self:
        """Train the regressor over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the targets of the table.
            sites: the name of the site of each row of the table; without it, all rows are one site.

        Returns:
            The fitted regressor itself.
        """
        self._check_all(tuple(REGRESSION_LOSSES))
        self._loss()
        members = []
        if y is None and are_sites(X):
            for name, site in name_sites(X):
                features, targets, _ = site_parts(name, site, with_groups=False)
                try:
                    x, target = validate_rows(self, features, targets, reset=not members, numeric=True)
                except ValueError as error:
                    raise FoedusError(f"site {name!r}: {str(error).splitlines()[0]}") from None
                members.append(Site(name, x, target.astype(float)))
        else:
            x, target = validate_rows(self, X, y, numeric=True)
            rows = len(target)
            names = np.full(rows, ONE_SITE) if sites is None else one_per_row("sites", sites, rows).astype(str)
            members = [Site(str(n), x[names == n], target.astype(float)[names == n]) for n in np.unique(names)]
        self._train_over(members)
        self.coef_ = self._w[: self.n_features_in_].copy()
        self.intercept_ = float(self._w[-1]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predicted target of each row.

        Args:
            X: a table, shape (rows, features).

        Returns:
            The targets, shape (rows,).
        """
        check_is_fitted(self, "coef_")
        return validate_table(self, X) @ self.coef_ + self.intercept_
