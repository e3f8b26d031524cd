"""The code that the linear classifiers share: settings, the intercept, a run per class, and prediction."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from foedus.algorithms import ProxAL
from foedus.algorithms.auto import Auto
from foedus.app.estimators.plain import PlainClassifier, columns_of, linear_classifier
from foedus.app.estimators.rows import (
    Site,
    SiteRows,
    Sites,
    WeightedMask,
    check_parameter,
    distinct,
    has_weights,
    read_site,
    read_sites,
    validate_table,
    with_all_weights,
)
from foedus.app.solve import solve
from foedus.base.errors import FoedusError
from foedus.problem.losses import logistic
from foedus.problem.penalties import BesideIntercept, Ridge
from foedus.problem.problem import Problem
from foedus.problem.stacked import pad_rows, stack
from foedus.problem.terms import Constraint, Mask
from foedus.problem.weights import Weights
from foedus.protocol.algorithm import Algorithm
from foedus.runtime.run import Run

SMALL_GAP = 1e-9  # of 1 + |f|: less than this is not worth a warning


class LinearClassifierOverSites(ClassifierMixin, BaseEstimator):
    """A linear classifier that is trained over sites; the estimators derive from it.

    Those that are trained under constraints have the settings `fit_intercept`, `ridge`, `beta`, `eps1`, `eps2`,
    `max_rounds` and `seed`.
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
        """Return the score of `classes_[1]` for each row; with more than two classes, that of each class.

        The scores are log-odds where the loss is logistic.

        Args:
            X: a table, shape (rows, features), dense or sparse.

        Returns:
            The scores, shape (rows,), or (rows, classes) with more than two classes.
        """
        return self._scores(X)

    @available_if(lambda self: self._has_probabilities())
    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the model's probabilities of the classes for each row.

        With more than two classes these are the probabilities of each class against the rest, divided by their sum.

        Args:
            X: a table, shape (rows, features), dense or sparse.

        Returns:
            The probabilities in the order of `classes_`, shape (rows, classes).
        """
        return np.exp(self.predict_log_proba(X))

    @available_if(lambda self: self._has_probabilities())
    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the logarithms of the probabilities that `predict_proba` returns.

        Args:
            X: a table, shape (rows, features), dense or sparse.

        Returns:
            The logarithms in the order of `classes_`, shape (rows, classes).
        """
        odds = self._scores(X)
        if odds.ndim == 1:
            return np.column_stack([log_expit(-odds), log_expit(odds)])
        return log_expit(odds) - np.log(expit(odds).sum(axis=1, keepdims=True))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the predicted class of each row: the one with the largest score.

        Args:
            X: a table, shape (rows, features), dense or sparse.

        Returns:
            Entries of `classes_`, shape (rows,).
        """
        scores = self.decision_function(X)
        place = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
        return self.classes_[place]

    def to_sklearn(self) -> PlainClassifier:
        """Return scikit-learn's own classifier with the fitted coefficients, which predicts the same.

        It can be stored with `pickle` or `joblib` and used where neither foedus nor JAX is installed.

        Returns:
            A `LogisticRegression`, or a `LinearSVC` where the loss has no probabilities; in a `OneVsRestClassifier`
            with more than two classes, and in a `FixedThresholdClassifier` where a threshold was chosen.
        """
        check_is_fitted(self, "coef_")
        has_odds = hasattr(self, "predict_proba")
        return linear_classifier(self.classes_, self.coef_, self.intercept_, columns_of(self), probabilities=has_odds)

    def _has_probabilities(self) -> bool:
        return True

    def _scores(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self, "coef_")
        scores = np.asarray(validate_table(self, X) @ self.coef_.T + self.intercept_)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # the steps of `fit`, in order

    def _check_settings(self) -> None:
        check_parameter(self, "ridge", ge=0)
        check_parameter(self, "max_rounds", ge=1, whole=True)
        check_parameter(self, "seed", ge=0, whole=True)
        self._algorithm()

    def _algorithm(self) -> Algorithm:
        if isinstance(self.beta, str) and self.beta == "auto":
            return Auto(eps1=self.eps1, eps2=self.eps2)
        return ProxAL(beta=self.beta, eps1=self.eps1, eps2=self.eps2)

    def _take_sites(
        self,
        X: ArrayLike | Sites,
        y: ArrayLike | None,
        *,
        sites: ArrayLike | None = None,
        group: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        server: SiteRows | None = None,
        with_groups: bool = False,
    ) -> tuple[list[Site], list[Site]]:
        """Read the sites and, as a site called "server", the server's own data; set `classes_` from all labels."""
        members = read_sites(self, X, y, sites=sites, group=group, sample_weight=sample_weight, with_groups=with_groups)
        everyone = members
        if server is not None:
            if any(site.name == "server" for site in members):
                raise FoedusError("a site is called 'server', the name under which the server's own data are reported.")
            everyone = with_all_weights([*members, read_site(self, "server", server, with_groups=with_groups)])
        for site in everyone:
            try:
                check_classification_targets(site.y)
            except ValueError as error:
                raise FoedusError(f"site {site.name!r}: {str(error).splitlines()[0]}") from None
        self._take_classes(everyone)
        return everyone[: len(members)], everyone[len(members) :]

    def _take_classes(self, sites: Sequence[Site]) -> None:
        classes = distinct("labels", {site.name: site.y for site in sites})
        if len(classes) == 1:
            only = classes.tolist()[0]
            raise FoedusError(f"{type(self).__name__} needs examples of two classes. Got only one class, {only!r}.")
        self.classes_ = classes

    def _codes(self) -> list[tuple[object, str]]:
        """Return the classes that get a model of their own against all others, each with what messages call it."""
        classes = self.classes_.tolist()
        return [(classes[1], "")] if len(classes) == 2 else [(c, f" (class {c!r} against the rest)") for c in classes]

    def _train(
        self,
        sites: Sequence[Site],
        server: Site | None,
        constraints: Sequence[Constraint],
        where: Mask | None,
        algorithm: Algorithm | None = None,
        w0: np.ndarray | None = None,
        weights: Weights = "sites",
    ) -> Run:
        """Solve the constrained problem of one class; sample weights must be in the masks of the constraints."""
        penalty = None
        if self.ridge > 0:
            penalty = Ridge(float(self.ridge), per_example=False)
            penalty = BesideIntercept.of(penalty) if self.fit_intercept else penalty
        problem = Problem(
            pad_rows(stack({site.name: site.arrays(self.fit_intercept) for site in sites})),
            loss=logistic,
            where=WeightedMask(where) if has_weights(sites) else where,
            penalty=penalty,
            constraints=constraints,
            server=None if server is None else server.arrays(self.fit_intercept),
            weights=weights,
        )
        method = self._algorithm() if algorithm is None else algorithm
        return solve(problem, method, w0=w0, seed=self.seed, max_rounds=self.max_rounds)

    def _keep(self, runs: Sequence[Run], server: bool) -> None:
        """Set the attributes of a fit from the runs of its classes, and warn if a certificate does not hold."""
        self.run_ = self._by_class(runs)
        self.certificate_ = self._by_class([run.certificate for run in runs])
        self.multipliers_ = self._by_class([_by_site(run, server) for run in runs])
        self.n_rounds_ = sum(run.rounds for run in runs)
        self.sites_ = list(runs[0].names)
        self._keep_models([np.asarray(run.w) for run in runs])
        for run, (_, name) in zip(runs, self._codes(), strict=True):
            if not _is_good(run):
                rows = sorted(run.certificate.rows, key=lambda row: row.violation)
                largest = [
                    f"; the largest violation is {row.violation:.3g}, of the {row.constraint} at {row.site!r}"
                    for row in rows[-1:]
                ]
                warnings.warn(
                    f"{type(self).__name__}{name}: {run.reason}; {run.certificate.verdict()}{''.join(largest)}.",
                    ConvergenceWarning,
                    stacklevel=3,
                )

    def _by_class(self, results: Sequence[object]) -> object:
        """Return the only result of two classes, or those of more classes by class."""
        if len(results) == 1:
            return results[0]
        return dict(zip(self.classes_.tolist(), results, strict=True))

    def _keep_models(self, models: Sequence[np.ndarray]) -> None:
        """Set the coefficients and intercepts from the classes' parameters, whose last is the intercept."""
        w = np.stack(models)
        self.coef_ = w[:, : self.n_features_in_].copy()
        self.intercept_ = w[:, -1].copy() if self.fit_intercept else np.zeros(len(w))


def _is_good(run: Run) -> bool:
    """Whether the certificate holds, or all caps do and hardly anything of the objective is left to be had.

    In large units of the columns rounding alone may exceed eps1; the gap does not depend on units.
    """
    certificate = run.certificate
    gap = certificate.gap if certificate.gap is not None and certificate.kind == "minimum" else np.inf
    small = gap <= SMALL_GAP * (1.0 + abs(run.objective))
    return certificate.holds() or (small and certificate.holds(eps1=np.inf))


def _by_site(run: Run, server: bool) -> Mapping[str, float | np.ndarray]:
    """Return the multipliers of each site: a number if the site has one constraint, else an array."""
    local = run.multipliers.get("local", np.zeros((len(run.names), 0)))  # not every algorithm has multipliers
    multipliers: dict[str, np.ndarray] = dict(zip(run.names, local, strict=True))
    if server:
        multipliers["server"] = run.multipliers["global"]
    return {site: mu.item() if mu.size == 1 else mu.copy() for site, mu in multipliers.items()}
