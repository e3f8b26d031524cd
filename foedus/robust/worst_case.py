"""The worst-case loss of any linear model over a Wasserstein ball, and the distribution that attains it."""

from dataclasses import dataclass

import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.pytrees import device_array
from foedus.numerics.interpreter.dispatch import jit_if_large
from foedus.problem.losses import Loss, as_loss
from foedus.problem.stacked import Client, stack
from foedus.robust import closed, polyhedron
from foedus.robust.closed import PIECEWISE_LINEAR, Ball, Radius
from foedus.robust.distribution import Distribution, attaining, attaining_in_polyhedron, mean_loss, pad_rows, still
from foedus.robust.form import EpigraphForm
from foedus.robust.support import Support, check_inside, is_support, kind_of, sides

ACCURATE = 1e-6  # the gap and residual beyond which a worst case over a polyhedron is refused


@dataclass(frozen=True)
class WorstCase:
    """One client's worst case: its value, the mean loss of its data, and the distribution that attains it."""

    value: float
    nominal: float  # the mean loss of the data themselves
    lam: float  # λ, by how much the worst case grows with a unit of radius
    radius: float
    distribution: Distribution | None = None


@jit_if_large("ball")
def _closed_form(ball: Ball, w: Array, x: Array, y: Array, share: Array, radius: Radius) -> tuple[Array, Array]:
    """A compiled `closed.worst_case`."""
    return closed.worst_case(ball, w, x, y, share, radius)


@float64()
def worst_case_loss(
    w: ArrayLike,
    data: Client,
    radius: float,
    *,
    loss: Loss,
    kappa: float = float("inf"),
    metric: str = "l1",
    support: Support = None,
    intercept: bool = False,
) -> float:
    """The largest mean loss of the model xᵀw over all distributions within `radius` of the data.

    Args:
        w: the parameters, of any linear model.
        data: (X, y).
        radius: ρ, the Wasserstein radius; 0 gives the mean loss.
        loss: one of huber, epsilon_insensitive, pinball, hinge, smooth_hinge, logistic.
        kappa: κ, the cost of moving a label (by one, in regression; to the other class, in classification).
        metric: the norm of ‖x − x̂‖: "l1", "l2" or "linf".
        support: where samples may be: None, (low, high) or (C, d) for Cx <= d; hinge, epsilon_insensitive, pinball.
        intercept: whether the last column of X is a constant that does not move.

    Returns:
        The worst-case mean loss, at least the mean loss of the data.

    Example:
        >>> import foedus as fd, numpy as np
        >>> data = (np.array([[2.0], [3.0]]), np.array([1.0, 1.0]))
        >>> round(fd.robust.worst_case_loss([0.5], data, 0.1, loss=fd.losses.hinge), 6)
        0.05
    """
    return worst_case(
        w, data, radius, loss=loss, kappa=kappa, metric=metric, support=support, intercept=intercept, moves=False
    ).value


@float64()
def worst_case(
    w: ArrayLike,
    data: Client,
    radius: float,
    *,
    loss: Loss,
    kappa: float = float("inf"),
    metric: str = "l1",
    support: Support = None,
    intercept: bool = False,
    share: ArrayLike | None = None,
    moves: bool = True,
    height: int = 0,
) -> WorstCase:
    """The worst case of the model xᵀw over all distributions within `radius` of the data, and where it comes from.

    Args:
        w: the parameters, of any linear model.
        data: (X, y).
        radius: ρ, the Wasserstein radius; 0 gives the mean loss.
        loss: one of huber, epsilon_insensitive, pinball, hinge, smooth_hinge, logistic.
        kappa: κ, the cost of moving a label (by one, in regression; to the other class, in classification).
        metric: the norm of ‖x − x̂‖: "l1", "l2" or "linf".
        support: where samples may be: None, (low, high) or (C, d) for Cx <= d; hinge, epsilon_insensitive, pinball.
        intercept: whether the last column of X is a constant that does not move.
        share: the samples' weights, which sum to 1; equal ones when left out.
        moves: whether to compute the distribution too; it is known for hinge, epsilon_insensitive and pinball.
        height: data of at most so many rows share one compiled program.

    Returns:
        The value, the mean loss of the data, λ, and the distribution that attains the worst case, or None.

    Example:
        >>> import foedus as fd, numpy as np
        >>> data = (np.array([[2.0], [3.0]]), np.array([1.0, 1.0]))
        >>> case = fd.robust.worst_case([0.5], data, 0.1, loss=fd.losses.hinge)
        >>> round(case.value, 6), case.nominal, round(float(case.distribution.cost), 6)
        (0.05, 0.0, 0.1)
    """
    if metric not in closed.DUAL:
        raise FoedusError(f"The 'metric' argument must be 'l1', 'l2' or 'linf'. Got {metric!r} instead.")
    if not radius >= 0 or not kappa > 0:
        raise FoedusError(f"radius must be >= 0 and kappa > 0. Got {radius!r} and {kappa!r} instead.")
    if support is not None and not is_support(support):
        raise FoedusError(f"support must be None, (low, high) or (C, d). Got {support!r} instead.")
    ball = Ball(as_loss(loss), metric, kind_of(support), intercept)
    ball.check()
    arrays = stack([data]).arrays
    x, y = (np.asarray(arrays[key], dtype=float)[0] for key in ("x", "y"))
    w = np.asarray(w, dtype=float)
    if w.shape != x.shape[1:]:
        raise FoedusError(f"w must have one entry for each of {x.shape[1]} columns of X. Got shape {w.shape} instead.")
    share = np.full(len(y), 1.0 / len(y)) if share is None else np.asarray(share, dtype=float)
    width = x.shape[1] - intercept
    rows = pad_rows(x, y, share, height=height)
    nominal = float(mean_loss(ball.loss, device_array(w), *rows))
    low = high = C = d = np.zeros(0)
    if support is not None:
        low, high, C, d = sides("argument", support, ball, width)
        check_inside(x[:, :width], y, C, d)
    if radius == 0:
        return WorstCase(nominal, nominal, float("inf"), 0.0, still(x, y, share, nominal) if moves else None)
    at = Radius(*(device_array(np.asarray(v, dtype=float)) for v in (radius, kappa, low, high)))
    if not ball.has_closed_form:
        form = EpigraphForm(ball, flips=bool(np.isfinite(kappa)))
        # with w kept, the projection of (w, a) onto the epigraph is (w, V(w)) for any a below V(w); no loss is negative
        below, within = device_array(-1.0), (device_array(C), device_array(d))
        projection = polyhedron.project(form, *rows, at, *within, below, device_array(w), keep_w=True)
        if not (float(projection.gap) <= ACCURATE and float(projection.residual) <= ACCURATE):
            raise FoedusError(
                "the worst case over the support (C, d) was not found to 1e-6; scale X, and C and d with it, "
                "to numbers of like size."
            )
        spread = attaining_in_polyhedron(ball, w, x, y, share, at, projection, C, d) if moves else None
        return WorstCase(float(projection.v), nominal, float(projection.lam), float(radius), spread)
    padded_x, padded_y, padded_share = rows
    value, lam = (float(v) for v in _closed_form(ball, device_array(w), padded_x, padded_y, padded_share, at))
    has_distribution = moves and isinstance(ball.loss, PIECEWISE_LINEAR)
    spread = attaining(ball, w, x, y, share, at, lam) if has_distribution else None
    return WorstCase(value, nominal, lam, float(radius), spread)
