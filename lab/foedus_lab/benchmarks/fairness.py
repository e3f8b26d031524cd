"""FairClassifier with a gap of errors on Adult, against fairlearn's reductions."""

import importlib.util
import time

import numpy as np

import foedus as fd
from foedus.data import loaders
from foedus.data.loaders import ADULT_COLUMNS, ADULT_NUMBERS
from foedus_lab.benchmarks.harness import Measurement

RIDGE = 1e-4  # of the mean loss

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def adult_groups() -> tuple[Rows, Rows]:
    """Return the training and the test rows of Adult: numbers standardised, words as 0/1 columns, label, sex."""
    tables = []
    for name in ("adult.data", "adult.test"):
        raw = loaders.read_adult(name)
        columns = {k: raw[k].astype(float) if k in ADULT_NUMBERS else raw[k] for k in ADULT_COLUMNS if k != "fnlwgt"}
        tables.append((columns, np.where(raw["income"] == ">50K", 1, 0), raw["sex"]))
    sites = {"all": tables[0][0] | {"income": tables[0][1]}}
    ready = fd.data.prepare(sites, label="income", intercept=False)
    first, second = ((ready.transform(columns), y, sex) for columns, y, sex in tables)
    return first, second


def _figures(answers: np.ndarray, y: np.ndarray, sex: np.ndarray) -> dict[str, object]:
    wrong = answers != y
    rates = [float(wrong[sex == group].mean()) for group in np.unique(sex)]
    return {"accuracy": f"{1 - wrong.mean():.4f}", "gap of errors": f"{max(rates) - min(rates):.4f}"}


def errors(quick: bool) -> list[Measurement]:
    """Measure accuracy and the gap of errors between the sexes on Adult's test rows, and the seconds of training."""
    (X, y, sex), (X_test, y_test, sex_test) = adult_groups()
    from sklearn.linear_model import LogisticRegression

    tick = time.perf_counter()
    free = LogisticRegression(C=1.0 / (len(y) * RIDGE), max_iter=1000).fit(X, y)
    seconds = time.perf_counter() - tick
    lines = [
        Measurement("LogisticRegression, no terms", seconds, extra=_figures(free.predict(X_test), y_test, sex_test))
    ]
    for gap in (0.015,) if quick else (0.05, 0.02, 0.015, 0.01):
        tick = time.perf_counter()
        model = fd.FairClassifier(gap, of="error", ridge=RIDGE, eps1=1e-4, eps2=1e-4).fit(X, y, group=sex)
        seconds = time.perf_counter() - tick
        line = Measurement(f"FairClassifier({gap}, of='error')", seconds)
        line.extra = _figures(model.predict(X_test), y_test, sex_test)
        lines.append(line)
    if importlib.util.find_spec("fairlearn") is None:
        reported: dict[str, object] = {"accuracy": "0.805", "gap of errors": "0.021", "source": "as reported"}
        return [*lines, Measurement("fairlearn's reductions", float("nan"), extra=reported)]
    from fairlearn.reductions import ErrorRateParity, ExponentiatedGradient  # pyright: ignore[reportMissingImports]

    tick = time.perf_counter()
    rival = ExponentiatedGradient(LogisticRegression(max_iter=1000), ErrorRateParity(difference_bound=0.01))
    rival.fit(X, y, sensitive_features=sex)
    seconds = time.perf_counter() - tick
    answers = np.asarray(rival.predict(X_test, random_state=0))
    return [
        *lines,
        Measurement("fairlearn's reductions, bound 0.01", seconds, extra=_figures(answers, y_test, sex_test)),
    ]
