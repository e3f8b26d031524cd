"""Exports a linear model as a scikit-learn pipeline that takes raw rows and answers like `foedus predict`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foedus.app.experiment.predict import SavedModel, open_model
from foedus.base.errors import FoedusError
from foedus.data.columns import MISSING, number_text
from foedus.data.preprocess import Number
from foedus.data.sums import ABSENT

if TYPE_CHECKING:
    from pandas import DataFrame
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.model_selection import FixedThresholdClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.svm import LinearSVC


def to_sklearn(model: SavedModel | Path | str) -> "Pipeline":
    """Return the model of a run directory as a fitted scikit-learn Pipeline over a pandas table of raw rows.

    A model without columns of words also takes an array whose columns are `feature_names_in_`, in this order. The
    estimator is a LogisticRegression for the logistic loss, a LinearSVC for other losses of two classes, and a
    LinearRegression otherwise. Where a term on a rate chose a threshold, it is inside a FixedThresholdClassifier.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    if not isinstance(model, SavedModel):
        model = open_model(Path(model))
    rules = model.rules
    model.check_linear()
    steps = []
    for place, rule in enumerate(rules.columns):
        if isinstance(rule, Number):
            fill = rule.fill if rules.missing == "mean" else float("nan")
            settings = {"shift": rule.shift, "scale": rule.scale, "fill": fill}
            part = FunctionTransformer(_affine, kw_args=settings, feature_names_out="one-to-one")
        else:
            words = FunctionTransformer(_words, feature_names_out="one-to-one")
            categories: Any = [list(rule.levels)]  # a type checker knows only the default, "auto"
            levels = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
            part = make_pipeline(words, levels)
        steps.append((rule.name, part, [place]))
    sample = [[0.0 if isinstance(rule, Number) else rule.levels[0] for rule in rules.columns]]
    prepare = ColumnTransformer(steps, verbose_feature_names_out=False)
    # one row is enough: every step has its numbers already, and fitting only tells scikit-learn the columns
    prepare.fit(_table(sample, [rule.name for rule in rules.columns]))
    return Pipeline([("prepare", prepare), ("model", _estimator(model))])


def _affine(x: ArrayLike, shift: float, scale: float, fill: float) -> np.ndarray:
    """(x − shift)/scale, with `fill` for NaN."""
    x = np.asarray(x, dtype=float)
    return (np.where(np.isnan(x), fill, x) - shift) / scale


def _words(x: ArrayLike) -> np.ndarray:
    """Words as foedus reads them: trimmed, a whole number without its '.0', missing ones as a word of their own."""

    def word(cell: object) -> str:
        if cell is None or (isinstance(cell, float) and np.isnan(cell)):
            return ABSENT
        if isinstance(cell, int | float | np.number) and not isinstance(cell, bool | np.bool_):
            return number_text(float(cell))
        text = str(cell).strip()
        return ABSENT if text in MISSING else text

    cells = np.asarray(x, dtype=object)
    return np.array([[word(cell) for cell in row] for row in cells], dtype=object)


def _table(rows: list[list[float | str]], names: list[str]) -> "DataFrame | np.ndarray":
    """Rows as a pandas table, or as an array where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return np.array(rows, dtype=object)
    return pandas.DataFrame(rows, columns=names)


def _estimator(model: SavedModel) -> "LinearRegression | LogisticRegression | LinearSVC | FixedThresholdClassifier":
    """The estimator with the model's numbers in the attributes where scikit-learn looks for them."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.svm import LinearSVC

    rules, w = model.rules, model.w
    coefficients = w[:-1] if rules.intercept else w
    constant = float(w[-1]) if rules.intercept else 0.0
    estimator: Any  # a type checker does not know the attributes that `fit` makes
    if model.loss.link != "identity" and not rules.labels:
        raise FoedusError(f"no estimator of scikit-learn can be given a model of the {model.loss.words}; take ONNX.")
    if not rules.labels:
        estimator = LinearRegression(fit_intercept=rules.intercept)
        estimator.coef_, estimator.intercept_ = coefficients.copy(), constant
    else:
        estimator = LogisticRegression() if model.loss.log_odds else LinearSVC()
        estimator.fit_intercept = rules.intercept
        classes, sign = np.array(rules.labels), 1.0
        if classes[0] > classes[1]:  # scikit-learn keeps them sorted
            classes, sign = classes[::-1].copy(), -1.0
        estimator.classes_ = classes
        estimator.coef_, estimator.intercept_ = sign * coefficients[None, :], np.array([sign * constant])
        estimator.n_iter_ = np.array([model.run.rounds])
    estimator.n_features_in_ = len(coefficients)
    return estimator if model.rule.cut is None else _with_threshold(estimator, rules.labels, model.rule.cut)


def _with_threshold(estimator: Any, labels: tuple[str, ...], cut: float) -> "FixedThresholdClassifier":
    """The estimator with a threshold on its score in the place of 0."""
    from sklearn.model_selection import FixedThresholdClassifier

    # scikit-learn's scores are those of its second class, in sorted order
    threshold: Any = cut  # a type checker knows only the default, "auto"
    classifier: Any = FixedThresholdClassifier(
        estimator, threshold=threshold, pos_label=labels[1], response_method="decision_function"
    )
    classifier.estimator_ = estimator
    return classifier
