"""Ordinary models over sites, without terms: logistic regression and least squares, as on the pooled rows."""

from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn import linear_model
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from foedus.algorithms.auto import Auto
from foedus.app.estimators.linear import LinearClassifierOverSites
from foedus.app.estimators.plain import columns_of, linear_regressor
from foedus.app.estimators.rows import (
    Sites,
    WeightedMask,
    check_parameter,
    has_weights,
    merge_copies,
    read_sites,
    validate_table,
    with_all_weights,
)
from foedus.app.solve import solve
from foedus.problem import losses
from foedus.problem.penalties import BesideIntercept, Ridge
from foedus.problem.problem import Problem
from foedus.problem.stacked import pad_rows, stack
from foedus.runtime.run import Run

WEIGHTS = ("rows", "sites")


class LogisticRegression(LinearClassifierOverSites):
    """Fit a logistic regression over sites; with weights="rows" it is that of the pooled rows.

    Args:
        ridge: weight of the penalty (ridge/2)‖coef‖², beside the mean loss; it leaves the intercept out.
        weights: "rows" for the mean over all rows, as in a fit of the pooled rows; "sites" for the mean over sites.
        fit_intercept: whether the model has an intercept.
        eps1: the stationarity at which training ends.
        max_rounds: the largest number of communication rounds of training.
        seed: keys random draws, where the algorithm has any.

    Attributes:
        classes_: the classes, sorted.
        coef_, intercept_: the model of the log-odds; of more than two classes, each against the rest.
        n_rounds_: the number of communication rounds.
        run_: the `Run`, or with more than two classes one for each class.
        sites_: the names of the sites.
        certificate_, multipliers_: as of estimators with terms; there are none here.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> draw = np.random.default_rng(0)
        >>> X = draw.normal(size=(240, 3))
        >>> y = np.where(X[:, 0] + draw.normal(size=240) > 0, "ill", "well")
        >>> hospital = np.repeat(["north", "south", "west"], 80)
        >>> model = fd.LogisticRegression(ridge=0.01).fit(X, y, sites=hospital)
        >>> model.predict(X[:2]).tolist(), model.n_rounds_ < 10
        (['well', 'well'], True)
    """

    __metadata_request__fit: ClassVar = {"sites": True, "sample_weight": True}
    eps2 = 1e-6  # of estimators with terms
    beta = "auto"

    def __init__(
        self,
        *,
        ridge: float = 0.0,
        weights: str = "rows",
        fit_intercept: bool = True,
        eps1: float = 1e-8,
        max_rounds: int = 10_000,
        seed: int = 0,
    ):
        self.ridge = ridge
        self.weights = weights
        self.fit_intercept = fit_intercept
        self.eps1 = eps1
        self.max_rounds = max_rounds
        self.seed = seed

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
            sample_weight: the weight of each row of the table.

        Returns:
            The fitted classifier itself.
        """
        self._check_settings()
        check_parameter(self, "weights", choices=WEIGHTS)
        members, _ = self._take_sites(X, y, sites=sites, sample_weight=sample_weight)
        runs = []
        for label, _ in self._codes():
            binary = [merge_copies(replace(site, y=(site.y == label).astype(float))) for site in members]
            runs.append(self._train(with_all_weights(binary), None, (), None, weights=self.weights))
        self._keep(runs, server=False)
        return self


class LinearRegression(RegressorMixin, BaseEstimator):
    """Fit a linear regression over sites by least squares; with weights="rows" it is that of the pooled rows.

    Args:
        ridge: weight of the penalty (ridge/2)‖coef‖² beside half the mean square; it leaves the intercept out.
        weights: "rows" for the mean over all rows, as in a fit of the pooled rows; "sites" for the mean over sites.
        fit_intercept: whether the model has an intercept.
        eps1: the stationarity at which training ends.
        max_rounds: the largest number of communication rounds.
        seed: keys random draws, where the algorithm has any.

    Attributes:
        coef_, intercept_: the model; shape (features,) and a number.
        n_rounds_: the number of communication rounds.
        run_: the `Run`, with its traffic and history.
        sites_: the names of the sites.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> X = np.arange(12.0).reshape(6, 2) ** 1.5
        >>> sites = ["north", "south"] * 3
        >>> model = fd.LinearRegression().fit(X, X @ [1.0, -1.0] + 0.5, sites=sites)
        >>> model.coef_.round(6).tolist(), round(model.intercept_, 6)
        ([1.0, -1.0], 0.5)
    """

    n_features_in_: int
    __metadata_request__fit: ClassVar = {"sites": True, "sample_weight": True}

    def __init__(
        self,
        *,
        ridge: float = 0.0,
        weights: str = "rows",
        fit_intercept: bool = True,
        eps1: float = 1e-8,
        max_rounds: int = 10_000,
        seed: int = 0,
    ):
        self.ridge = ridge
        self.weights = weights
        self.fit_intercept = fit_intercept
        self.eps1 = eps1
        self.max_rounds = max_rounds
        self.seed = seed

    def fit(
        self,
        X: ArrayLike | Sites,
        y: ArrayLike | None = None,
        *,
        sites: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train the regression over sites.

        Args:
            X: a list, or a dict by name, of the sites' `(X, y)`; or one table (rows, features), with `y`.
            y: the targets of the table.
            sites: the name of the site of each row of the table; without it, all rows are one site.
            sample_weight: the weight of each row of the table.

        Returns:
            The fitted regression itself.
        """
        check_parameter(self, "ridge", ge=0)
        check_parameter(self, "weights", choices=WEIGHTS)
        check_parameter(self, "max_rounds", ge=1, whole=True)
        members = read_sites(self, X, y, sites=sites, sample_weight=sample_weight, numeric=True)
        members = with_all_weights([replace(site, y=site.y.astype(float)) for site in members])
        penalty = Ridge(float(self.ridge), per_example=False) if self.ridge > 0 else None
        problem = Problem(
            pad_rows(stack({site.name: site.arrays(self.fit_intercept) for site in members})),
            loss=losses.least_squares,
            where=WeightedMask() if has_weights(members) else None,
            penalty=BesideIntercept.of(penalty) if penalty is not None and self.fit_intercept else penalty,
            weights=self.weights,
        )
        self.run_: Run = solve(problem, Auto(eps1=self.eps1), seed=self.seed, max_rounds=self.max_rounds)
        self.n_rounds_, self.sites_ = self.run_.rounds, [site.name for site in members]
        w = np.asarray(self.run_.w)
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

    def to_sklearn(self) -> linear_model.LinearRegression:
        """Return scikit-learn's `LinearRegression` with the fitted coefficients, which predicts the same.

        Returns:
            A fitted `sklearn.linear_model.LinearRegression`.
        """
        check_is_fitted(self, "coef_")
        return linear_regressor(self.coef_, self.intercept_, columns_of(self))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
