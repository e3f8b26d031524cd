"""Fitted estimators as scikit-learn's own: they predict the same, and neither foedus nor JAX is needed for it."""

from typing import TypeAlias

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import LabelBinarizer
from sklearn.svm import LinearSVC

PlainClassifier: TypeAlias = LogisticRegression | LinearSVC | OneVsRestClassifier | FixedThresholdClassifier
Columns: TypeAlias = dict[str, object]
"""`n_features_in_` and, where the columns have names, `feature_names_in_`."""


def columns_of(estimator: object) -> Columns:
    """Return what a fitted estimator knows of its columns."""
    return {k: getattr(estimator, k) for k in ("n_features_in_", "feature_names_in_") if hasattr(estimator, k)}


def linear_classifier(
    classes: np.ndarray, coef: np.ndarray, intercept: np.ndarray, columns: Columns, *, probabilities: bool
) -> PlainClassifier:
    """Return a linear model of scikit-learn with these coefficients: of log-odds, or of scores without probabilities.

    Args:
        classes: the classes, sorted.
        coef: the coefficients, one row for two classes and else one for each class against the rest.
        intercept: the intercepts, one for each row of `coef`.
        columns: `n_features_in_` and, where known, `feature_names_in_`.
        probabilities: whether the scores are log-odds.
    """
    kind = LogisticRegression if probabilities else LinearSVC
    if len(coef) == 1 or not probabilities:  # several classes of LinearSVC are one against the rest already
        return _filled(kind(), columns, classes_=classes, coef_=coef.copy(), intercept_=intercept.copy())
    halves = np.array([0, 1])
    members = [
        _filled(kind(), columns, classes_=halves, coef_=row[None].copy(), intercept_=at[None].copy())
        for row, at in zip(coef, intercept, strict=True)
    ]
    binarizer = LabelBinarizer(sparse_output=True).fit(classes)
    rest = OneVsRestClassifier(kind())
    return _filled(rest, columns, estimators_=members, label_binarizer_=binarizer, classes_=classes)


def with_threshold(model: PlainClassifier, cut: float, pos_label: object, columns: Columns) -> FixedThresholdClassifier:
    """Return a classifier that answers `pos_label` from these log-odds on."""
    settings = {"threshold": cut, "pos_label": pos_label, "response_method": "decision_function"}
    return _filled(FixedThresholdClassifier(model, **settings), columns, estimator_=model)


def linear_regressor(coef: np.ndarray, intercept: float, columns: Columns) -> LinearRegression:
    """Return a linear regression of scikit-learn with these coefficients."""
    return _filled(LinearRegression(), columns, coef_=coef.copy(), intercept_=intercept)


def _filled(model, columns: Columns, **attributes: object):
    """Return the model with the attributes that a fit would have given it."""
    for name, value in (columns | attributes).items():
        setattr(model, name, value)
    return model
