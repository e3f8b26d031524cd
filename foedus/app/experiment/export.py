"""Exports a linear model as a scikit-learn pipeline that takes raw rows and answers like `foedus predict`."""

import builtins
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from foedus.app.experiment.predict import SavedModel, open_model
from foedus.base.errors import FoedusError
from foedus.data.columns import MISSING
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

    Stored with joblib, it can be loaded where scikit-learn is installed and neither foedus nor JAX is.
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
            part = FunctionTransformer(_portable(_affine), kw_args=settings, feature_names_out="one-to-one")
        else:
            settings = {"absent": ABSENT, "missing": MISSING}
            words = FunctionTransformer(_portable(_words), kw_args=settings, feature_names_out="one-to-one")
            categories: Any = [list(rule.levels)]  # a type checker knows only the default, "auto"
            levels = OneHotEncoder(categories=categories, handle_unknown="ignore", sparse_output=False)
            part = make_pipeline(words, levels)
        steps.append((rule.name, part, [place]))
    sample = [[0.0 if isinstance(rule, Number) else rule.levels[0] for rule in rules.columns]]
    prepare = ColumnTransformer(steps, verbose_feature_names_out=False)
    # one row is enough: every step has its numbers already, and fitting only tells scikit-learn the columns
    prepare.fit(_table(sample, [rule.name for rule in rules.columns]))
    return Pipeline([("prepare", prepare), ("model", _estimator(model))])


def _affine(x, shift, scale, fill):
    """(x − shift)/scale, with `fill` for NaN."""
    import numpy

    x = numpy.asarray(x, dtype=float)
    return (numpy.where(numpy.isnan(x), fill, x) - shift) / scale


def _words(x, absent, missing):
    """Words as foedus reads them: trimmed, a whole number without its '.0', missing ones as a word of their own."""
    import numpy

    def word(cell):
        if cell is None or (isinstance(cell, float) and numpy.isnan(cell)):
            return absent
        if isinstance(cell, int | float | numpy.number) and not isinstance(cell, bool | numpy.bool_):
            value = float(cell)
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        text = str(cell).strip()
        return absent if text in missing else text

    return numpy.array([[word(cell) for cell in row] for row in numpy.asarray(x, dtype=object)], dtype=object)


def _portable(function: FunctionType) -> Any:
    """Return a function that is stored with its code, so that whoever loads it needs joblib and not foedus.

    It may name nothing of this module, and is stored for one version of Python, as scikit-learn's own objects are.
    """
    from joblib.externals.loky import wrap_non_picklable_objects

    copy = FunctionType(function.__code__, {"__builtins__": builtins}, function.__name__)
    copy.__module__, copy.__doc__ = "__main__", function.__doc__  # what is defined there is stored with its code
    return wrap_non_picklable_objects(copy)


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
