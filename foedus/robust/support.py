"""Where samples can lie: everywhere, in a box (low, high), or in a polyhedron (C, d) of all x with Cx ≤ d."""

import numpy as np
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.problem.problem import Problem
from foedus.robust.closed import Ball

Support = tuple[ArrayLike, ArrayLike] | None
"""(low, high), (C, d), or None for everywhere."""

OUTSIDE = 1e-9  # the violation of Cx ≤ d that is still taken for rounding


def is_support(value: object) -> bool:
    """Whether a value is (low, high) or (C, d): numbers or vectors, or a matrix and a vector."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    try:
        first, second = (np.asarray(part, dtype=float) for part in value)
    except (TypeError, ValueError):
        return False
    if np.any(np.isnan(first)) or np.any(np.isnan(second)):
        return False
    if first.ndim == 2:
        return second.shape == first.shape[:1]
    shapes = {part.shape for part in (first, second)} - {()}
    return first.ndim <= 1 and second.ndim <= 1 and len(shapes) <= 1 and bool(np.all(first < second))


def kind_of(support: Support) -> str:
    """The kind of a support: 'everything', 'box' or 'polyhedron'."""
    if support is None:
        return "everything"
    return "polyhedron" if np.ndim(support[0]) == 2 else "box"


def sides(
    name: str, support: tuple[ArrayLike, ArrayLike], ball: Ball, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The low and high ends of a box (empty for a polyhedron), and the half-spaces Cx ≤ d of either.

    `name` says in messages where the support was given.
    """
    first, second = (np.asarray(part, dtype=float) for part in support)
    if ball.support == "box":
        if max(first.size, second.size) not in (1, width):
            raise FoedusError(
                f"The 'support' {name} must have one end for each of {width} columns. "
                f"Got {max(first.size, second.size)} instead."
            )
        low, high = (np.broadcast_to(part, width) for part in (first, second))
        return low, high, np.vstack([np.eye(width), -np.eye(width)]), np.concatenate([high, -low])
    if first.shape[1] not in (width, width + (not ball.classifies)):
        raise FoedusError(f"The 'support' {name} must have a C of {width} columns. Got {first.shape[1]} instead.")
    return np.zeros(0), np.zeros(0), first, second


def check_inside(x: np.ndarray, y: np.ndarray, C: np.ndarray, d: np.ndarray, whose: str = "") -> None:
    """Raise where a sample lies outside the support; x comes without the column of an intercept."""
    points = np.column_stack([x, y]) if C.shape[1] > x.shape[1] else x
    over = points @ C.T - d
    if np.any(over > OUTSIDE):
        row = int(np.argmax(np.max(over, axis=1)))
        raise FoedusError(f"{whose}row {row} lies outside the support by {np.max(over):.3g}; widen it, or scale X.")


def support_arrays(name: str, support: Support, ball: Ball, problem: Problem, width: int) -> dict[str, np.ndarray]:
    """The arrays beside each client's data: the ends of the box, and half-spaces where there is no closed form."""
    n = problem.terms.clients
    if ball.support == "everything":
        return {"robust.low": np.zeros((n, 0)), "robust.high": np.zeros((n, 0))}
    assert support is not None
    low, high, C, d = sides(name, support, ball, width)
    x, y = (np.asarray(problem.data[key]) for key in ("x", "y"))
    for i, (client_name, rows) in enumerate(zip(problem.names, problem.counts, strict=True)):
        check_inside(x[i, :rows, :width], y[i, :rows], C, d, f"client {client_name!r}: ")
    arrays = {"robust.low": np.tile(low, (n, 1)), "robust.high": np.tile(high, (n, 1))}
    if not ball.has_closed_form:
        arrays |= {"robust.C": np.tile(C, (n, 1, 1)), "robust.d": np.tile(d, (n, 1))}
    return arrays
