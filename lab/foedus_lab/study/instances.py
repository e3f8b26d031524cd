"""The problems of the study: each is stated for foedus, and once more in NumPy, which measures models and references.

An instance knows the objective and the largest violation of any model, and the least objective there is. Both are
computed from the pooled rows by code that no algorithm uses. `gap` is (f − f*)/|f*|, and where a model breaks a
constraint by more than that, the violation: a model within 1e-4 is both that good and that nearly feasible.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from foedus import constraints, losses, penalties
from foedus.problem.problem import Problem
from foedus.problem.terms import group, label
from foedus_lab.papers.proxal_examples import Quadratic
from foedus_lab.study import reference
from foedus_lab.study.reference import Reference
from foedus_lab.study.tables import SOURCES, Sample

RIDGE = 1e-2  # μ of (μ/2)‖w‖², which makes every logistic problem well posed, also on rows that can be separated
SATURATION = 1e-1  # μ of the non-convex penalty (μ/2)·Σ w²/(1 + w²)
CAP, FAIR = 0.3, 0.1  # the cap on the loss of label 1, and on the gap between two groups' losses
RADIUS, THETA, HUBER = 0.02, 0.3, 1.0  # the balls around rows, the ball around the sites' weights, Huber's ε
BLOCK, NUMBERS = 64, 2**26  # models that are measured at a time, and predictions, which bound memory
ROWS = 2**19  # rows whose curvature is computed at a time, for the same reason
FEW = 1000  # sites up to which they have names; more are given as stacked arrays


@dataclass(frozen=True)
class Instance:
    """A problem on one draw of its data, and how a model of it is judged."""

    problem: Problem
    judge: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # models in; objectives and violations out
    best: Reference
    curve: reference.Curve | None = None  # the objective with its derivatives, where a reference was computed from it

    def gap(self, models: np.ndarray) -> np.ndarray:
        """Return for each model the larger of its relative gap and its violation, and at least 0."""
        with np.errstate(over="ignore", invalid="ignore"):  # the models of a run that diverges
            rows = max(a.shape[0] * a.shape[1] for a in jax.tree.leaves(self.problem.data) if a.ndim > 1)
            size = max(1, min(BLOCK, NUMBERS // rows))
            parts = [self.judge(models[start : start + size]) for start in range(0, len(models), size)]
            f, violation = (np.concatenate(values) for values in zip(*parts, strict=True))
            gap = np.maximum(np.maximum((f - self.best.value) / abs(self.best.value), violation), 0.0)
        return np.where(np.isfinite(gap), gap, np.inf)


@dataclass(frozen=True)
class ProblemClass:
    """A class of problems, by name, with the data sets of the quick and of the full grid."""

    title: str
    build: Callable[[str, int, bool], Instance]  # data set, seed, quick
    quick: tuple[str, ...]
    full: tuple[str, ...]
    objective: str = "mean"  # "mean", "robust" or "private": which algorithms solve it
    epsilon: float | None = None  # the privacy total of a private problem


# --- losses in NumPy: value, slope and bend of xᵀw ---


def _logistic(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, np.where(y > 0, -z, z))


def _logistic_parts(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    p = 0.5 * (1.0 + np.tanh(0.5 * z))
    return _logistic(z, y), p - (y > 0), p * (1.0 - p)


def _mean_curve(sample: Sample, weight: np.ndarray) -> reference.Curve:
    """Σ weight·logistic(xᵀw), with its gradient and Hessian; rows are taken in parts, which bounds memory."""

    def part(w: np.ndarray, at: slice) -> tuple[float, np.ndarray, np.ndarray]:
        X, share = sample.X[at], weight[at]
        value, slope, bend = _logistic_parts(X @ w, sample.y[at])
        return float(share @ value), X.T @ (share * slope), (X.T * (share * bend)) @ X

    def curve(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        parts = [part(w, slice(start, start + ROWS)) for start in range(0, len(weight), ROWS)]
        f, g, H = parts[0]
        for value, slope, bend in parts[1:]:
            f, g, H = f + value, g + slope, H + bend
        return f, g, H

    return curve


@dataclass(frozen=True)
class LossRowCurves:
    """Rows Σ weight·logistic(xᵀw) − cap, one for each row of the weights."""

    sample: Sample
    weights: np.ndarray  # (rows, examples)
    cap: float

    def value(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope, _ = _logistic_parts(self.sample.X @ w, self.sample.y)
        return self.weights @ value - self.cap, (self.weights * slope) @ self.sample.X

    def hessian(self, w: np.ndarray, mu: np.ndarray) -> np.ndarray:
        return _mean_curve(self.sample, mu @ self.weights)(w)[2]


def _with_penalty(curve: reference.Curve, ridge: float, saturation: float = 0.0) -> reference.Curve:
    def both(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        f, g, H = curve(w)
        one = 1.0 + w**2
        f += float(0.5 * ridge * w @ w + 0.5 * saturation * np.sum(w**2 / one))
        bend = ridge + saturation * (1.0 - 3.0 * w**2) / one**3
        return f, g + ridge * w + saturation * w / one**2, H + np.diag(bend)

    return both


def _penalty(models: np.ndarray, ridge: float, saturation: float = 0.0) -> np.ndarray:
    return 0.5 * ridge * np.sum(models**2, axis=1) + 0.5 * saturation * np.sum(models**2 / (1.0 + models**2), axis=1)


# --- the classes ---


def _binary(sample: Sample) -> Sample:
    """The sample with labels 0/1: a generated set has numbers, whose signs are the labels."""
    if set(np.unique(sample.y)) <= {0.0, 1.0}:
        return sample
    return Sample(sample.X, (sample.y > 0).astype(float), sample.sites, sample.rows, sample.group)


def least_squares(data: str, seed: int, quick: bool) -> Instance:
    """Least squares."""
    sample = SOURCES[data].sample(seed, quick)
    X, y = sample.X, sample.y
    w = np.linalg.lstsq(X, y, rcond=None)[0]

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0.5 * np.mean((models @ X.T - y) ** 2, axis=1), np.zeros(len(models))

    best = Reference(float(judge(w[None])[0][0]), w, "numpy.linalg.lstsq")
    return Instance(Problem(sample.clients(), loss=losses.least_squares), judge, best)


def logistic(data: str, seed: int, quick: bool, saturation: float = 0.0) -> Instance:
    """Logistic regression with a ridge, or with the non-convex penalty."""
    return logistic_instance(_binary(SOURCES[data].sample(seed, quick)), saturation)


def logistic_instance(sample: Sample, saturation: float = 0.0) -> Instance:
    """Return logistic regression on a sample with labels 0/1."""
    ridge = RIDGE if saturation == 0 else 0.0
    penalty = penalties.Ridge(RIDGE, False) if saturation == 0 else penalties.Saturating(saturation, False)
    curve = _with_penalty(_mean_curve(sample, np.full(len(sample.y), 1.0 / len(sample.y))), ridge, saturation)

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = np.mean(_logistic(models @ sample.X.T, sample.y), axis=1)
        return value + _penalty(models, ridge, saturation), np.zeros(len(models))

    clients = sample.clients() if sample.sites <= FEW else sample.stacked()
    problem = Problem(clients, loss=losses.logistic, penalty=penalty)
    rows, columns = sample.X.shape
    if columns <= rows or saturation:
        return Instance(problem, judge, reference.newton(curve, columns), curve)
    # with a ridge the optimum is a sum of rows: w = Qv, where the columns of Q span them, and |w| = |v|
    Q = np.linalg.qr(sample.X.T)[0]
    short = Sample(sample.X @ Q, sample.y, sample.sites, sample.rows)
    best = reference.newton(_with_penalty(_mean_curve(short, np.full(rows, 1.0 / rows)), ridge), rows)
    return Instance(problem, judge, Reference(best.value, Q @ best.w, best.method), curve)


def _site_means(sample: Sample, mask: np.ndarray) -> np.ndarray:
    """Weights (sites, all rows) whose products with values by row are each site's mean over the rows of the mask."""
    at = sample.by_site(mask.astype(float))
    share = at / np.sum(at, axis=1, keepdims=True)
    return np.concatenate([np.eye(sample.sites)[:, [s]] * share[s] for s in range(sample.sites)], axis=1)


def neyman_pearson(data: str, seed: int, quick: bool) -> Instance:
    """The least loss on label 0 while the loss on label 1 is at most CAP at every site."""
    sample = _binary(SOURCES[data].sample(seed, quick))
    zero, one = _site_means(sample, sample.y == 0), _site_means(sample, sample.y > 0)
    weight = np.mean(zero, axis=0)

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = _logistic(models @ sample.X.T, sample.y)
        return value @ weight + _penalty(models, RIDGE), np.max(value @ one.T - CAP, axis=1)

    problem = Problem(
        sample.clients(),
        loss=losses.logistic,
        where=label(0),
        penalty=penalties.Ridge(RIDGE, False),
        constraints=[constraints.LossCap(label(1), CAP)],
    )
    curve = _with_penalty(_mean_curve(sample, weight), RIDGE)
    best = reference.minimum_under(curve, LossRowCurves(sample, one, CAP), sample.X.shape[1])
    return Instance(problem, judge, best)


def fairness(data: str, seed: int, quick: bool) -> Instance:
    """The least loss while the losses of two groups differ by at most FAIR at every site; the rows are not convex."""
    sample = _binary(SOURCES[data].sample(seed, quick))
    assert sample.group is not None
    differences = _site_means(sample, sample.group == 0) - _site_means(sample, sample.group == 1)
    rows = LossRowCurves(sample, np.concatenate([differences, -differences]), FAIR)

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = _logistic(models @ sample.X.T, sample.y)
        return np.mean(value, axis=1) + _penalty(models, RIDGE), np.max(np.abs(value @ differences.T), axis=1) - FAIR

    problem = Problem(
        sample.clients(),
        loss=losses.logistic,
        penalty=penalties.Ridge(RIDGE, False),
        constraints=[constraints.LossGap(group(0), group(1), FAIR)],
    )
    curve = _with_penalty(_mean_curve(sample, np.full(len(sample.y), 1.0 / len(sample.y))), RIDGE)
    best = reference.minimum_under(curve, rows, sample.X.shape[1])
    return Instance(problem, judge, best)


def quadratic(data: str, seed: int, quick: bool) -> Instance:
    """Quadratic programs under linear equations at every site and at the server, drawn as in the ProxAL paper."""
    program = Quadratic.as_described(seed, 100 if quick else 300, 5)
    A, b = np.sum(program.A, axis=0), np.sum(program.b, axis=0)
    C, d = np.concatenate(program.C), np.concatenate(program.d)

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value = 0.5 * np.sum((models @ A) * models, axis=1) + models @ b
        return value, np.max(np.abs(models @ C.T + d), axis=1)

    return Instance(program.problem(), judge, reference.equations(A, b, C, d))


def worst_mean(values: np.ndarray, theta: float) -> np.ndarray:
    """Return the largest Σ q_s v_s over weights with ‖q − 1/S‖₁ ≤ θ: weight moves from least to largest."""
    size = values.shape[-1]
    order = np.sort(values, axis=-1)
    left, top = min(0.5 * theta, 1.0 - 1.0 / size), order[..., -1]
    worst = np.mean(order, axis=-1)
    for j in range(size - 1):
        portion = min(left, 1.0 / size)
        worst = worst + portion * (top - order[..., j])
        left -= portion
    return worst


def robust(data: str, seed: int, quick: bool, loss: str) -> Instance:
    """The least worst case over the sites' weights and balls around their rows, labels fixed."""
    sample = SOURCES[data].sample(seed, quick)
    sample = sample if loss == "huber" else _binary(sample)
    slope = HUBER if loss == "huber" else 1.0
    sign = np.where(sample.y > 0, 1.0, -1.0)

    def by_row(z: np.ndarray) -> np.ndarray:
        if loss == "hinge":
            return np.maximum(0.0, 1.0 - sign * z)
        if loss == "logistic":
            return _logistic(z, sample.y)
        inside = np.clip(z - sample.y, -HUBER, HUBER)
        return inside * (z - sample.y - 0.5 * inside)

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means = np.mean(sample.by_site(by_row(models @ sample.X.T)), axis=-1)
        size = RADIUS * slope * np.max(np.abs(models), axis=1)
        return worst_mean(means, THETA) + size, np.zeros(len(models))

    loss_object = {"hinge": losses.hinge, "logistic": losses.logistic, "huber": losses.huber(HUBER)}[loss]
    best = reference.robust(sample.X, sample.y, sample.sites, loss, HUBER, RADIUS, THETA, slope)
    exact = Reference(min(best.value, float(judge(best.w[None])[0][0])), best.w, best.method)
    return Instance(Problem(sample.clients(), loss=loss_object), judge, exact)


_GENERATED = ("generated-alike", "generated-apart", "generated-steep")
_LIBSVM = ("phishing", "phishing-skewed", "a9a", "w8a")
_BREAST = ("breast-cancer", "breast-cancer-skewed")
_ROBUST = ("heart", "breast-cancer")

PROBLEMS: dict[str, ProblemClass] = {
    "least-squares": ProblemClass("least squares", least_squares, (*_GENERATED, "diabetes"), (*_GENERATED, "diabetes")),
    "logistic": ProblemClass(
        "logistic regression with a ridge",
        logistic,
        (*_GENERATED, *_BREAST, *_LIBSVM),
        (*_GENERATED, *_BREAST, *_LIBSVM, "adult", "toxicity"),
    ),
    "nonconvex-logistic": ProblemClass(
        "logistic regression with a non-convex penalty",
        partial(logistic, saturation=SATURATION),
        _BREAST,
        (*_BREAST, "phishing", "toxicity"),
    ),
    "neyman-pearson": ProblemClass(
        "Neyman-Pearson: a cap on one class's loss at every site",
        neyman_pearson,
        ("breast-cancer", "monks-1", "breast-cancer-wisconsin"),
        ("breast-cancer", "monks-1", "breast-cancer-wisconsin"),
    ),
    "fairness": ProblemClass(
        "fairness: a small gap between two groups' losses at every site",
        fairness,
        ("adult", *_GENERATED[:2]),
        ("adult", *_GENERATED[:2]),
    ),
    "quadratic-programs": ProblemClass("quadratic programs under equations", quadratic, ("paper-25",), ("paper-25",)),
    "robust-hinge": ProblemClass(
        "robust support vector machine", partial(robust, loss="hinge"), _ROBUST, _ROBUST, "robust"
    ),
    "robust-logistic": ProblemClass(
        "robust logistic regression", partial(robust, loss="logistic"), _ROBUST, _ROBUST, "robust"
    ),
    "robust-huber": ProblemClass(
        "robust Huber regression",
        partial(robust, loss="huber"),
        ("abalone", "diabetes"),
        ("abalone", "diabetes"),
        "robust",
    ),
    "private-1": ProblemClass(
        "private logistic regression, ε = 1", logistic, ("adult-large",), ("adult-large",), "private", 1.0
    ),
    "private-8": ProblemClass(
        "private logistic regression, ε = 8", logistic, ("adult-large",), ("adult-large",), "private", 8.0
    ),
}
"""The problem classes by name."""
