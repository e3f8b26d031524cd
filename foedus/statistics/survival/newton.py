"""Newton's method for a log-likelihood of which only sums over sites are seen: one evaluation is one round, or two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foedus.base.errors import FoedusError
from foedus.statistics.survival.risk_sets import Triple

ENOUGH = 1e-16  # of the Newton decrement: the last step is below 1e-8 standard errors, and leaves an error of 1e-16
LARGEST_STEP = 4.0  # of one standardised coefficient, in a step
STEADY = 1e-3  # of a coefficient: a longer last step is one towards infinity
SMALLEST = 1e-6  # share of a step, below which no step raises the likelihood
FLAT = 1e-10  # of the largest eigenvalue: directions about which the rows say nothing
SAME = 1e-13  # relative rounding of a log-likelihood, up to which it counts as not smaller
MOST = 60  # evaluations


@dataclass(frozen=True, eq=False)
class Maximum:
    """Where a log-likelihood is largest: the point, its value, the information there, and the evaluations it took."""

    point: np.ndarray
    value: float
    information: np.ndarray
    start: Triple
    evaluations: int


def maximise(
    evaluate: Callable[[np.ndarray], Triple], start: np.ndarray, names: Sequence[str], bounded: int | None = None
) -> Maximum:
    """Maximise a concave log-likelihood.

    Args:
        evaluate: returns the value, the gradient, and minus the second derivatives.
        start: the first point.
        names: of its entries, for sentences.
        bounded: how many of the entries are standardised coefficients, which must not grow without end; all of them
            when left out.
    """
    bounded = len(start) if bounded is None else bounded
    point, at = start, evaluate(start)
    first, count = at, 1
    while True:
        value, gradient, information = at
        check_information(information, names)
        step = np.linalg.solve(information, gradient)
        if float(gradient @ step) <= ENOUGH:
            _check_end(step[:bounded], point[:bounded], names)
            return Maximum(point + step, value, information, first, count)
        scale = min(1.0, LARGEST_STEP / max(float(np.max(np.abs(step[:bounded]), initial=0.0)), 1e-300))
        while True:
            trial = point + scale * step
            if count >= MOST or scale < SMALLEST:
                _check_end(step[:bounded], point[:bounded], names)
                raise FoedusError(f"the likelihood is not at its maximum after {count} evaluations.")
            new, count = evaluate(trial), count + 1
            # at the end the difference drowns in rounding; a full step is right there
            if np.isfinite(new[0]) and new[0] >= value - SAME * (1.0 + abs(value)):
                break
            scale *= 0.5
        point, at = trial, new


def _check_end(step: np.ndarray, point: np.ndarray, names: Sequence[str]) -> None:
    """Raise where steps do not become small although the likelihood gains nothing more: its maximum is at infinity."""
    far = np.abs(step) > STEADY * (1.0 + np.abs(point))
    if np.any(far):
        raise FoedusError(
            f"the coefficient of {names[int(np.argmax(np.abs(step)))]!r} grows without end, as where its values part "
            "the rows with an event from those without; leave the column out, or merge its rare values."
        )


def check_information(information: np.ndarray, names: Sequence[str]) -> None:
    """Raise where some direction is one about which the rows say nothing."""
    diagonal = np.sqrt(np.maximum(np.diag(information), 1e-300))
    values, vectors = np.linalg.eigh(information / diagonal[:, None] / diagonal)
    if not len(values) or values[0] > FLAT * max(float(values[-1]), 1e-300):
        return
    part = np.abs(vectors[:, 0])
    culprits = [repr(names[int(j)]) for j in np.flatnonzero(part > 0.1 * part.max())]
    if len(culprits) == 1:
        raise FoedusError(f"the rows say nothing about {culprits[0]}: it does not vary among the rows at risk.")
    raise FoedusError(
        f"the columns {', '.join(culprits)} are collinear, so their coefficients are not determined; leave one out."
    )
