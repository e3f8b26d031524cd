"""Robust estimators: the least worst-case loss over sites whose future differs from their past, by DRFL."""

import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, Self, cast

import jax.numpy as jnp
import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from foedus import losses
from foedus.algorithms import DRFL
from foedus.errors import FoedusError
from foedus.estimators.linear import ONE_SITE, LinearClassifierOverSites, Site, _are_sites, _one_per_row, _roomy
from foedus.losses import Loss
from foedus.problem import Problem, stack
from foedus.run import Run
from foedus.solve import solve

RADII = (1e-4, 1e-3, 1e-2, 1e-1)
"""The radii that radius="cv" chooses from."""


class _OverBalls:
    """What the two share: their settings, the fit by DRFL, and the choice of the radius."""

    loss: str
    radius: Any
    radii: Sequence[float]
    folds: int
    kappa: float
    theta: float
    p: Any
    metric: str
    support: Any
    fit_intercept: bool
    max_rounds: int
    seed: int

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _drfl(self, radius: Any) -> DRFL:
        return DRFL(
            radius=radius, kappa=self.kappa, theta=self.theta, p=self.p, metric=self.metric, support=self.support,
            intercept=bool(self.fit_intercept),
        )  # fmt: skip

    def _solve(self, sites: Sequence[Site], radius: Any) -> Run:
        arrays = {site.name: site.arrays(self.fit_intercept) for site in sites}
        problem = Problem(_roomy(stack(arrays)), loss=self._loss())
        return solve(problem, self._drfl(radius), seed=self.seed, max_rounds=self.max_rounds)

    def _choose(self, sites: Sequence[Site]) -> float:
        """The radius of least mean held-out loss: every site deals its own rows into folds and reports sums only."""
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
                kept = [Site(s.name, s.x[fold[s.name] != k], s.y[fold[s.name] != k]) for s in sites]
                w = np.asarray(self._solve(kept, float(radius)).w)
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

    def _check_all(self, known: tuple[str, ...]) -> None:
        if self.loss not in known:
            raise FoedusError(
                f"The 'loss' parameter of {type(self).__name__} must be one of {', '.join(map(repr, known))}. "
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


class RobustClassifier(_OverBalls, LinearClassifierOverSites):
    """A linear classifier of least worst-case loss: over a Wasserstein ball around each site's data, and over weights.

    Args:
        loss: "hinge", "smooth_hinge" or "logistic".
        radius: ρ of every site's ball; a tuple with one for each site; or "cv" to choose from `radii` by held-out loss.
        radii: what "cv" chooses from.
        folds: of the cross-validation; each site deals out its own rows.
        kappa: κ, the cost of turning a label; infinite: labels stay.
        theta: θ, how far the sites' weights may be from their shares of the rows; 2 for any weights.
        p: the norm of θ: 1, 2 or "inf".
        metric: the norm in which rows of X move: "l1", "l2" or "linf".
        support: where rows may be: None, (low, high) or (C, d); with hinge only.
        fit_intercept: whether the model has an intercept, which no distribution moves.
        max_rounds: communication rounds at most.
        seed: keys the folds.

    Attributes:
        classes_, coef_, intercept_, sites_, n_rounds_, run_, n_features_in_: as in `NeymanPearsonClassifier`.
        radius_: the radius used; cv_losses_: the held-out mean loss by radius, after "cv".
        worst_case_: every site's worst-case loss, and the weights that hurt; print it for a table.
    """

    def __init__(
        self, loss: str = "hinge", *, radius: Any = 0.01, radii: Sequence[float] = RADII, folds: int = 5,
        kappa: float = float("inf"), theta: float = 0.0, p: Any = 1, metric: str = "l1", support: Any = None,
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

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Fit over `{"st-mary": (X, y), ...}` or a list of (X, y); or over X, y with a site's name for each row."""
        self._check_all(("hinge", "smooth_hinge", "logistic"))
        members = self._take_sites(X, y, sites, None, grouped=False)
        self._take_classes(members)
        coded = [Site(s.name, s.x, np.where(s.y == self.classes_[1], 1.0, -1.0)) for s in members]
        self._train_over(coded)
        self.coef_ = self._w[None, : self.n_features_in_].copy()
        self.intercept_ = self._w[-1:].copy() if self.fit_intercept else np.zeros(1)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of `classes_`, as the logistic model has them; a hinge model has none."""
        if self.loss != "logistic":
            raise FoedusError("RobustClassifier(loss='logistic') has probabilities; a hinge loss has none.")
        odds = self.decision_function(X)
        return np.column_stack([expit(-odds), expit(odds)])


class RobustRegressor(_OverBalls, RegressorMixin, BaseEstimator):
    """A linear regressor of least worst-case loss: over a Wasserstein ball around each site's data, and over weights.

    Args:
        loss: "huber", "epsilon_insensitive" (support vector regression) or "quantile".
        eps: Huber's threshold, the tube's half width, or the quantile's level in [0, 1].
        kappa: κ, the cost of moving a target by one; infinite: targets stay.

    The other settings and attributes are those of `RobustClassifier`.
    """

    n_features_in_: int

    def __init__(
        self, loss: str = "huber", *, eps: float | None = None, radius: Any = 0.01, radii: Sequence[float] = RADII,
        folds: int = 5, kappa: float = float("inf"), theta: float = 0.0, p: Any = 1, metric: str = "l1",
        support: Any = None, fit_intercept: bool = True, max_rounds: int = 5000, seed: int = 0,
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
        usual = {"huber": 1.35, "epsilon_insensitive": 0.1, "quantile": 0.5}[self.loss]
        made = {"huber": losses.huber, "epsilon_insensitive": losses.epsilon_insensitive, "quantile": losses.pinball}
        return made[self.loss](usual if self.eps is None else self.eps)

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> Self:
        """Fit over `{"st-mary": (X, y), ...}` or a list of (X, y); or over X, y with a site's name for each row."""
        self._check_all(("huber", "epsilon_insensitive", "quantile"))
        self._loss()
        if y is None and _are_sites(X):
            named = X.items() if hasattr(X, "items") else ((str(i), site) for i, site in enumerate(X))
            members = []
            for name, site in named:
                try:
                    x, target = validate_data(
                        self, site[0], site[1], dtype=np.float64, y_numeric=True, reset=not members
                    )
                except ValueError as error:
                    raise FoedusError(f"site {name!r}: {str(error).splitlines()[0]}") from None
                members.append(Site(str(name), np.asarray(x), np.asarray(target, dtype=float)))
        else:
            X, y = cast(Any, validate_data(self, X, cast(Any, y), dtype=np.float64, y_numeric=True))
            names = np.full(len(y), ONE_SITE) if sites is None else _one_per_row("sites", sites, len(y)).astype(str)
            members = [Site(str(n), X[names == n], np.asarray(y, dtype=float)[names == n]) for n in np.unique(names)]
        self._train_over(members)
        self.coef_ = self._w[: self.n_features_in_].copy()
        self.intercept_ = float(self._w[-1]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predicted target of each row of X."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.coef_ + self.intercept_
