"""Robust estimators: DRFL minimises the worst-case loss over sites whose future data differ from their past data."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar, Self, TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from foedus.algorithms import DRFL
from foedus.app.estimators.linear import LinearClassifierOverSites
from foedus.app.estimators.plain import columns_of, linear_regressor
from foedus.app.estimators.rows import (
    ClassWeight,
    Site,
    Sites,
    WeightedMask,
    check_parameter,
    has_weights,
    merge_copies,
    read_sites,
    validate_table,
    weigh_classes,
    with_all_weights,
)
from foedus.app.solve import solve
from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.problem import losses
from foedus.problem.losses import Loss
from foedus.problem.problem import Problem
from foedus.problem.stacked import pad_rows, stack
from foedus.runtime.run import Run

RADII = (1e-4, 1e-3, 1e-2, 1e-1)
"""The radii that radius="cv" chooses from."""

Radius: TypeAlias = float | Sequence[float] | str
Support: TypeAlias = tuple[ArrayLike, ArrayLike] | None


@dataclass(frozen=True)
class WorstCaseFit:
    """The run of one linear model, its radius, and the held-out losses by radius where it was chosen by them."""

    run: Run
    radius: float | Sequence[float]
    held_out: dict[float, float] | None


class WorstCaseEstimator:
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
        where = WeightedMask() if has_weights(sites) else None
        problem = Problem(pad_rows(stack(arrays)), loss=self._loss(), where=where)
        algorithm = self._drfl(radius)
        run = solve(problem, algorithm, seed=self.seed, max_rounds=self.max_rounds)
        if run.converged or algorithm.method is not None:
            return run
        # where most samples lie on the straight parts of a loss, the interior-point method may take no further step
        other = solve(problem, replace(algorithm, method="splitting"), seed=self.seed, max_rounds=self.max_rounds)
        return other if other.converged else run

    @float64()
    def _held_out_losses(self, sites: Sequence[Site]) -> dict[float, float]:
        """Return the mean held-out loss by radius; each site divides its own rows and reports only sums."""
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
                training = [site.rows(fold[site.name] != k) for site in sites]
                w = np.asarray(self._solve(training, float(radius)).w)
                for site in sites:
                    rows = site.rows(fold[site.name] == k)
                    z = rows.arrays(self.fit_intercept)["x"] @ w
                    weight = np.ones(len(z)) if rows.weight is None else rows.weight
                    total += float(weight @ np.asarray(loss.value(jnp.asarray(z), jnp.asarray(rows.y))))
                    count += float(weight.sum())
            scores.append(total / count)
        return dict(zip(map(float, self.radii), scores, strict=True))

    def _train_over(self, sites: Sequence[Site], name: str = "") -> "WorstCaseFit":
        """Choose a radius and solve; `name` is what a warning calls the class that is told from the others."""
        radius, scores = self.radius, None
        if isinstance(radius, str):
            scores = self._held_out_losses(sites)
            radius = min(scores, key=scores.__getitem__)
        run = self._solve(sites, radius)
        if not run.converged:
            warnings.warn(f"{type(self).__name__}{name}: {run.reason}.", ConvergenceWarning, stacklevel=3)
        return WorstCaseFit(run, radius, scores)

    def _check_all(self, choices: tuple[str, ...]) -> None:
        check_parameter(self, "loss", choices=choices)
        if isinstance(self.radius, str):
            check_parameter(self, "radius", ge=0, choices=("cv",))
        for name, least in (("folds", 2), ("max_rounds", 1), ("seed", 0)):
            check_parameter(self, name, ge=least, whole=True)
        self._drfl(0.0 if isinstance(self.radius, str) else self.radius)


# each regression loss with the usual value of its parameter; 1.35 gives Huber's loss 95 % efficiency for normal errors
REGRESSION_LOSSES: dict[str, tuple[float, Callable[[float], Loss]]] = {
    "huber": (1.35, losses.huber),
    "epsilon_insensitive": (0.1, losses.epsilon_insensitive),
    "quantile": (0.5, losses.pinball),
}


class RobustClassifier(WorstCaseEstimator, LinearClassifierOverSites):
    """Fit a linear classifier of least worst-case loss.

    The worst case is taken over all distributions in a Wasserstein ball around each site's data, and over all weights
    of the sites near their shares of the rows. More than two classes are fitted one against the rest, each with a worst
    case of its own.

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
        class_weight: weights by class, which multiply the rows' weights: a dict, "balanced" for classes of the same
            total weight, or None.
        fit_intercept: whether the model has an intercept; its constant column does not move.
        max_rounds: the largest number of communication rounds.
        seed: the seed of the folds.

    Attributes:
        classes_: the classes, sorted.
        coef_, intercept_: the model of the score of `classes_[1]`, shapes (1, features) and (1,); with more than two
            classes, a row for each class against the rest.
        sites_: the names of the sites.
        n_rounds_: the number of communication rounds.
        run_: the `Run`, with its traffic and history.
        n_features_in_, feature_names_in_: as in scikit-learn.
        radius_: the radius that was used.
        cv_losses_: after radius="cv", the held-out mean loss by radius.
        worst_case_: the worst-case loss of every site and the worst weights of the sites; print it for a table.

    With more than two classes, `run_`, `worst_case_`, `radius_` and `cv_losses_` are dicts by class.

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

    # what `fit` asks for when scikit-learn routes metadata, unless set_fit_request says otherwise
    __metadata_request__fit: ClassVar = {"sites": True, "sample_weight": True}

    def __init__(
        self, loss: str = "hinge", *, radius: Radius = 0.01, radii: Sequence[float] = RADII, folds: int = 5,
        kappa: float = float("inf"), theta: float = 0.0, p: int | str = 1, metric: str = "l1", support: Support = None,
        class_weight: ClassWeight = None, fit_intercept: bool = True, max_rounds: int = 5000, seed: int = 0,
    ):  # fmt: skip
        self.loss = loss
        self.class_weight = class_weight
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

    def fit(
        self,
        X: ArrayLike | Sites,
        y: ArrayLike | None = None,
        *,
        sites: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train the classifier over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the labels of the table.
            sites: the name of the site of each row of the table; without it, all rows are one site.
            sample_weight: the weight of each row of the table, in its site's loss and in the site's share of the rows.

        Returns:
            The fitted classifier itself.
        """
        self._check_all(("hinge", "smooth_hinge", "logistic"))
        members, _ = self._take_sites(X, y, sites=sites, sample_weight=sample_weight)
        members = weigh_classes(self, members, self.classes_, self.class_weight)
        fits = []
        for label, name in self._codes():
            recoding = [replace(site, y=np.where(site.y == label, 1.0, -1.0)) for site in members]
            fits.append(self._train_over(with_all_weights([merge_copies(site) for site in recoding]), name))
        self.run_ = self._by_class([fit.run for fit in fits])
        self.worst_case_ = self._by_class([fit.run.worst_case for fit in fits])
        self.radius_ = self._by_class([fit.radius for fit in fits])
        if self.radius == "cv":
            self.cv_losses_ = self._by_class([fit.held_out for fit in fits])
        self.n_rounds_ = sum(fit.run.rounds for fit in fits)
        self.sites_ = [site.name for site in members]
        self._keep_models([np.asarray(fit.run.w) for fit in fits])
        return self

    def _has_probabilities(self) -> bool:
        if self.loss == "logistic":
            return True
        raise AttributeError("RobustClassifier(loss='logistic') has probabilities; a hinge loss has none.")


class RobustRegressor(WorstCaseEstimator, RegressorMixin, BaseEstimator):
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

    # what `fit` asks for when scikit-learn routes metadata, unless set_fit_request says otherwise
    __metadata_request__fit: ClassVar = {"sites": True, "sample_weight": True}

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

    def fit(
        self,
        X: ArrayLike | Sites,
        y: ArrayLike | None = None,
        *,
        sites: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train the regressor over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the targets of the table.
            sites: the name of the site of each row of the table; without it, all rows are one site.
            sample_weight: the weight of each row of the table, in its site's loss and in the site's share of the rows.

        Returns:
            The fitted regressor itself.
        """
        self._check_all(tuple(REGRESSION_LOSSES))
        self._loss()
        members = read_sites(self, X, y, sites=sites, sample_weight=sample_weight, numeric=True)
        numbers = [merge_copies(replace(site, y=site.y.astype(float))) for site in members]
        fit = self._train_over(with_all_weights(numbers))
        self.run_, self.worst_case_, self.radius_ = fit.run, fit.run.worst_case, fit.radius
        if fit.held_out is not None:
            self.cv_losses_ = fit.held_out
        self.n_rounds_, self.sites_ = fit.run.rounds, [site.name for site in members]
        w = np.asarray(fit.run.w)
        self.coef_ = w[: self.n_features_in_].copy()
        self.intercept_ = float(w[-1]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predicted target of each row.

        Args:
            X: a table, shape (rows, features), dense or sparse.

        Returns:
            The targets, shape (rows,).
        """
        check_is_fitted(self, "coef_")
        return validate_table(self, X) @ self.coef_ + self.intercept_

    def to_sklearn(self) -> LinearRegression:
        """Return scikit-learn's `LinearRegression` with the fitted coefficients, which predicts the same.

        It can be stored with `pickle` or `joblib` and used where neither foedus nor JAX is installed.
        """
        check_is_fitted(self, "coef_")
        return linear_regressor(self.coef_, self.intercept_, columns_of(self))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
