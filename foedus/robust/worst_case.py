"""The worst-case loss of any linear model over a Wasserstein ball, and the distribution that attains it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.errors import FoedusError
from foedus.losses import Loss, as_loss
from foedus.robust import closed, polyhedron
from foedus.robust.closed import PIECEWISE_LINEAR, Ball, Radius
from foedus.robust.distribution import Distribution, attaining, attaining_in_polyhedron, filled, mean_loss, still
from foedus.robust.form import Form
from foedus.robust.support import check_inside, is_support, kind_of, sides
from foedus.stacked import stack


@dataclass(frozen=True)
class WorstCase:
    """One client's worst case: its value, the mean loss it starts from, λ (the price of a unit of radius), moves."""

    value: float
    nominal: float
    lam: float
    radius: float
    distribution: Distribution | None = None


@partial(jax.jit, static_argnames=("ball",))
def _closed(ball: Ball, w: Array, x: Array, y: Array, share: Array, radius: Radius) -> tuple[Array, Array]:
    return closed.worst_case(ball, w, x, y, share, radius)


def worst_case_loss(
    w: Any,
    data: Any,
    radius: float,
    *,
    loss: Loss,
    kappa: float = float("inf"),
    metric: str = "l1",
    support: Any = None,
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
    """
    return worst_case(
        w, data, radius, loss=loss, kappa=kappa, metric=metric, support=support, intercept=intercept, moves=False
    ).value


def worst_case(
    w: Any,
    data: Any,
    radius: float,
    *,
    loss: Loss,
    kappa: float = float("inf"),
    metric: str = "l1",
    support: Any = None,
    intercept: bool = False,
    share: Any = None,
    moves: bool = True,
    height: int = 0,
) -> WorstCase:
    """The worst case of the model xᵀw as `worst_case_loss` has it, with λ and, where it is known, the distribution.

    `share` are the samples' weights, alike without; data of at most `height` rows share one compiled program.
    """
    if metric not in closed.DUAL:
        raise FoedusError(f"The 'metric' argument must be 'l1', 'l2' or 'linf'. Got {metric!r} instead.")
    if not radius >= 0 or not kappa > 0:
        raise FoedusError(f"radius must be >= 0 and kappa > 0. Got {radius!r} and {kappa!r} instead.")
    if support is not None and not is_support(support):
        raise FoedusError(f"support must be None, (low, high) or (C, d). Got {support!r} instead.")
    ball = Ball(as_loss(loss), metric, kind_of(support), intercept)
    ball.check()
    stacked = stack([data])
    x, y = (np.asarray(stacked.arrays[key], dtype=float)[0] for key in ("x", "y"))
    w = np.asarray(w, dtype=float)
    if w.shape != x.shape[1:]:
        raise FoedusError(f"w must have one entry for each of {x.shape[1]} columns of X. Got shape {w.shape} instead.")
    share = np.full(len(y), 1.0 / len(y)) if share is None else np.asarray(share, dtype=float)
    width = x.shape[1] - intercept
    rows = filled(x, y, share, height=height)
    nominal = float(mean_loss(ball.loss, jnp.asarray(w), *rows))
    low = high = C = d = np.zeros(0)
    if support is not None:
        low, high, C, d = sides("argument", support, ball, width)
        check_inside(x[:, :width], y, C, d)
    if radius == 0:
        return WorstCase(nominal, nominal, float("inf"), 0.0, still(x, y, share, nominal) if moves else None)
    at = Radius(*(jnp.asarray(v, dtype=float) for v in (radius, kappa, low, high)))
    if not ball.closed:
        form = Form(ball, flips=bool(np.isfinite(kappa)))
        # no loss is negative, so that v is drawn down to the worst case
        below, within = jnp.asarray(-1.0), (jnp.asarray(C), jnp.asarray(d))
        found = polyhedron.project(form, *rows, at, *within, below, jnp.asarray(w), fixed=True)
        if not (float(found.gap) <= 1e-6 and float(found.residual) <= 1e-6):
            raise FoedusError(
                "the worst case over the support (C, d) was not found to 1e-6; scale X, and C and d with it, "
                "to numbers of like size."
            )
        spread = attaining_in_polyhedron(ball, w, x, y, share, at, found, C, d) if moves else None
        return WorstCase(float(found.v), nominal, float(found.lam), float(radius), spread)
    found, lam = (float(v) for v in _closed(ball, jnp.asarray(w), *rows, at))
    known = moves and isinstance(ball.loss, PIECEWISE_LINEAR)
    spread = attaining(ball, w, x, y, share, at, lam) if known else None
    return WorstCase(found, nominal, lam, float(radius), spread)
