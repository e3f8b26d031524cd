"""What the histograms of the scores say at every threshold: ROC curve, decision curve, and the calibration slope.

A tally counts the scores of positives and negatives in cells of 1/64. Where a site joined cells, because few rows are
in them, a cell has a first and a last place; the curves then lie in the middle of what both ends allow.

The decision curve (Vickers and Elkin 2006) is the net benefit of treating whoever has a predicted probability of at
least p: true positives per row, less false positives per row times p/(1 − p), which is what one false positive costs
whoever would treat at p.

The calibration slope (Cox 1958) is b in log-odds P(y = 1) = a + b·score, fitted to the new rows by maximum likelihood.
Below 1 the predictions are too extreme, as those of an overfitted model are. Its interval is Wald's with the sandwich
errors, which do not assume that the line is right.
"""

import math
from dataclasses import dataclass

import numpy as np

from foedus.statistics.intervals import FEWEST, LEVEL, NOTHING, Figure
from foedus.statistics.tally import CELLS, LIMIT, STEP, Tally

POINTS = 100  # the most points of a curve
WIDEST = 0.25  # of the scores' deviation: with joint cells that are wider on average, the slope is not known
STEPS = 50  # of Newton's method for the slope, which takes about six
FURTHEST = 30.0  # a slope beyond this says that the classes are apart, and that there is none
TOLERANCE = 1e-10  # of the gradient for each row
EDGES = np.arange(CELLS + 1) * STEP - LIMIT  # where cells begin and end


@dataclass(frozen=True)
class Curves:
    """The curves over all thresholds; each is empty where it is not known.

    Attributes:
        roc: pairs of the share of negatives and of positives that are called positive, from (0, 0) to (1, 1).
        benefit: by threshold on the probability: it, the net benefit of the model, and that of treating everybody.
    """

    roc: tuple[tuple[float, float], ...] = ()
    benefit: tuple[tuple[float, float, float], ...] = ()


def curves_of(sums: Tally) -> Curves:
    """Return the curves of a tally of two classes with rows of both."""
    if "outcomes" not in sums:
        return Curves()
    m, n = (float(sums[f"{side}.first"].sum()) for side in ("positives", "negatives"))
    if m == 0 or n == 0:
        return Curves()
    positives, negatives = (_above(sums, side) for side in ("positives", "negatives"))
    benefit: tuple[tuple[float, float, float], ...] = ()
    if "brier" in sums:  # scores are log-odds
        stated = np.linspace(0.01, 0.99, POINTS - 1)
        places = np.round((np.log(stated / (1.0 - stated)) + LIMIT) / STEP).astype(int)
        p = 1.0 / (1.0 + np.exp(-EDGES[places]))  # of the edge of a cell, where counts are exact
        cost = p / (1.0 - p)
        model = (positives[places] - negatives[places] * cost) / (m + n)
        everybody = (m - n * cost) / (m + n)
        benefit = tuple(zip(p.tolist(), model.tolist(), everybody.tolist(), strict=True))
    return Curves(_thin(negatives / n, positives / m), benefit)


def _above(sums: Tally, side: str) -> np.ndarray:
    """How many rows of a class have a score from each edge on. (CELLS + 1,)"""
    counts = 0.5 * (sums[f"{side}.first"] + sums[f"{side}.last"])
    return np.append(np.cumsum(counts[::-1])[::-1], 0.0)


def _thin(across: np.ndarray, upward: np.ndarray) -> tuple[tuple[float, float], ...]:
    """The corners of a curve from the highest threshold to the lowest, thinned to at most `POINTS`."""
    points = list(dict.fromkeys(zip(across[::-1].tolist(), upward[::-1].tolist(), strict=True)))
    if len(points) > POINTS:
        keep = np.unique(np.linspace(0, len(points) - 1, POINTS).astype(int))
        points = [points[i] for i in keep.tolist()]
    return tuple(points)


def calibration_slope(sums: Tally) -> Figure:
    """Return the calibration slope with its interval; nothing where scores are no log-odds or the classes are apart."""
    if "brier" not in sums:
        return NOTHING
    centres = EDGES[:-1] + 0.5 * STEP
    ends = [0.5 * (sums[f"{side}.first"] + sums[f"{side}.last"]) for side in ("positives", "negatives")]
    widths = sum(float((sums[f"{side}.last"] - sums[f"{side}.first"]) @ centres) for side in ("positives", "negatives"))
    used = np.flatnonzero(ends[0] + ends[1])
    z, ones, zeros = centres[used], ends[0][used], ends[1][used]
    rows = ones + zeros
    total = float(rows.sum())
    if total < FEWEST or min(ones.sum(), zeros.sum()) < 2:
        return NOTHING
    deviation = math.sqrt(float(rows @ (z - rows @ z / total) ** 2) / total)
    if deviation == 0 or widths / total > WIDEST * deviation or _apart(ones, zeros):
        return NOTHING
    A = np.column_stack([np.ones_like(z), z])
    line = np.array([0.0, 1.0])
    for _ in range(STEPS):
        p = _probability(A @ line)
        gradient = A.T @ (ones - rows * p)
        if np.max(np.abs(gradient)) <= TOLERANCE * total:
            break
        H = (A.T * (rows * p * (1.0 - p))) @ A
        step = np.linalg.solve(H + 1e-12 * total * np.eye(2), gradient)
        line = line + _damped(step, gradient, A, line, ones, rows)
        if np.max(np.abs(line)) > FURTHEST:
            return NOTHING
    else:
        return NOTHING
    p = _probability(A @ line)
    inverse = np.linalg.inv((A.T * (rows * p * (1.0 - p))) @ A)
    meat = (A.T * (ones * (1.0 - p) ** 2 + zeros * p**2)) @ A
    error = math.sqrt(float((inverse @ meat @ inverse)[1, 1]) * total / (total - 2))
    from scipy.special import ndtri  # SciPy takes long to import

    reach = float(ndtri(0.5 + LEVEL / 2.0)) * error
    return Figure(float(line[1]), float(line[1] - reach), float(line[1] + reach), round(total))


def _apart(ones: np.ndarray, zeros: np.ndarray) -> bool:
    """Whether a threshold divides the classes, so that the likelihood has no maximum."""
    up, down = np.flatnonzero(ones), np.flatnonzero(zeros)
    return bool(up.min() >= down.max() or down.min() >= up.max())


def _probability(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(z, -500, 500)))


def _damped(
    step: np.ndarray, slope: np.ndarray, A: np.ndarray, line: np.ndarray, ones: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """The step, halved until the likelihood rises."""

    def likelihood(at: np.ndarray) -> float:
        z = A @ at
        return float(ones @ z - rows @ np.logaddexp(0.0, z))

    before, share = likelihood(line), 1.0
    while likelihood(line + share * step) < before + 1e-4 * share * float(slope @ step) - 1e-12 * abs(before):
        share *= 0.5
        if share < 1e-6:
            break
    return share * step
