"""How much of the objective is still to be had at a point: an estimate, and where there is a ridge a proved bound.

At (w, μ) let r be the residual of the stationarity condition and K the Hessian of the Lagrangian. On the face of the
rows that bind (∇cᵀd = 0) and of the coordinates that a regulariser holds, one more Newton step would gain ½rᵀK⁺r. Rows
with a multiplier that are not at their cap add |μc|. The sum does not change when a column or a row is given in other
units: a column's unit multiplies r, K and ∇c alike, and a row enters as μ∇c only.

If the Lagrangian is convex with strong convexity σ, it is at most ‖r‖²/2σ above its minimum, and its minimum is at most
the best possible objective: ‖r‖²/2σ + Σ|μc| is a bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.certificate.rows import Row
from foedus.problem.constraints import Linear, LossRows
from foedus.problem.regularizers import Regularizer
from foedus.problem.terms import Data, Terms

LONG, BAND = 2**15, 2**12  # beyond so many rows a product over rows is made of bands of so many, to spare memory
FLAT = 1e-11  # of the largest eigenvalue: directions in which there is no curvature, or on which no row acts
LEFT_OVER = 1e-6  # of ‖r‖: a residual along flat directions that is larger than this gains without end
CURVED = 1e-7  # of the largest eigenvalue: negative curvature beyond this is not rounding


@dataclass(frozen=True)
class Gap:
    """What is still to be had: an `estimate` and a proved `bound`, None where they are not known; what the point is.

    `kind` is "minimum", "saddle point" or "maximum", as the curvature on the binding face says; `note` says why there
    is no estimate.
    """

    estimate: float | None
    bound: float | None
    kind: str
    note: str = ""


@dataclass(frozen=True)
class Curves:
    """The second-order part of a measurement, summed over all parties."""

    gradient: np.ndarray  # of the Lagrangian's smooth part
    hessian: np.ndarray  # K
    pull: np.ndarray  # Σ (μ∇c)(μ∇c)ᵀ over all rows
    slack: float  # Σ|μc| over all rows
    strong: float  # σ of the objective, 0 where none is proved
    convex: bool  # whether the Lagrangian is proved to be convex


def sums_losses(terms: Terms) -> bool:
    """Whether the Lagrangian is a weighted sum of the examples' losses, beside a penalty that sees no example."""
    return terms.loss is not None and all(isinstance(c, LossRows) for c in terms.constraints if c.scope != "global")


def rows_convex(terms: Terms) -> bool:
    """Whether every row is convex, and every equation linear."""
    losses = (c.loss_in(terms) for c in terms.constraints if isinstance(c, LossRows))
    shapes = (c.convex and (not c.equality or isinstance(c, Linear)) for c in terms.constraints)
    return all(shapes) and all(loss.convex for loss in losses)


def price_of(measured: Sequence[Row], terms: Terms, unseen: float = 0.0) -> tuple[float, bool]:
    """Σ|μc| over the rows, and whether the Lagrangian is known to be convex."""
    slack = unseen + sum(row.complementarity for row in measured)
    objective = terms.loss is not None and terms.loss.convex and (terms.penalty is None or terms.penalty.convex)
    signs = math.isfinite(slack) and all(row.multiplier >= 0 for row in measured if row.kind == "<=")
    return slack, objective and signs and rows_convex(terms)


def hessian(gradient: Callable[[Array], Array], w: Array) -> Array:
    """The derivative of a gradient, one column after the other: a smaller program than the whole matrix at once."""
    return jax.lax.map(lambda e: jax.jvp(gradient, (w,), (e,))[1], jnp.eye(w.size))


def bends_of_losses(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> Array:
    """The second derivative of a site's Lagrangian in each example's score, where `sums_losses` holds. (rows,)

    It is found by automatic differentiation of the stated losses in the scores z = Xw: the Lagrangian is separable in
    them, so its Hessian in z is diagonal and the product with a vector of ones is that diagonal.
    """

    def of_scores(z: Array) -> Array:
        assert terms.loss is not None
        total = jnp.sum(terms.share(data) * terms.loss.value(z, data["y"])) / terms.clients
        for scope, multipliers in (("local", mu), ("coupled", nu / terms.clients)):
            start = 0
            for c in terms.constraints:
                if isinstance(c, LossRows) and c.scope == scope:
                    weights = c.weights(data)
                    some = multipliers[start : start + weights.shape[0]]
                    total += jnp.sum((some @ weights) * c.loss_in(terms).value(z, data["y"]))
                    start += weights.shape[0]
        return total

    z = data["x"] @ w
    return jax.jvp(jax.grad(of_scores), (z,), (jnp.ones_like(z),))[1]


def hessian_of_losses(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> Array:
    """The Hessian XᵀDX of a site's Lagrangian, where `sums_losses` holds: two passes over X, not two a column."""
    x, bends = data["x"], bends_of_losses(terms, w, mu, nu, data)
    long = len(x) // BAND * BAND if len(x) > LONG else 0  # rows in whole bands
    gram = x[long:].T @ (bends[long:, None] * x[long:])
    if long:
        bands = (x[:long].reshape(-1, BAND, terms.dim), bends[:long].reshape(-1, BAND))
        gram += jnp.sum(jax.lax.map(lambda band: band[0].T @ (band[1][:, None] * band[0]), bands), axis=0)
    penalty = terms.penalty_of(data)
    return gram if penalty is None else gram + jax.hessian(lambda u: penalty.value(u) / terms.clients)(w)


def tied(h: Regularizer) -> str:
    """Why there is no estimate under a regulariser whose faces are not known here."""
    return f"{h.name} ties coordinates together in a way for which there is no estimate"


def ridge_bound(gradient: np.ndarray, h: Regularizer, w: np.ndarray, slack: float, strong: float) -> float | None:
    """The proved bound ‖r‖²/2σ + Σ|μc| of a convex Lagrangian, None where no ridge gives one; it needs no matrix."""
    face = h.face(w, gradient)
    sigma = strong + h.ridge
    if face is None or sigma <= 0 or not np.all(np.isfinite(gradient)):
        return None
    return float(face.r @ face.r) / (2.0 * sigma) + slack + face.slack


def measure_gap(curves: Curves, h: Regularizer, w: np.ndarray) -> Gap:
    """The gap at w."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):  # a run that has diverged ends at such numbers
        return _measure(curves, h, w)


def _measure(curves: Curves, h: Regularizer, w: np.ndarray) -> Gap:
    face = h.face(w, curves.gradient)
    if face is None:
        return Gap(None, None, "minimum", tied(h))
    if not (np.all(np.isfinite(curves.hessian)) and np.all(np.isfinite(curves.gradient))):
        return Gap(None, None, "minimum")
    r, free, slack = face.r, face.free, curves.slack + face.slack
    bound = ridge_bound(curves.gradient, h, w, curves.slack, curves.strong) if curves.convex else None
    K = curves.hessian + face.times(np.eye(len(w)))
    K, pull, r = K[np.ix_(free, free)], curves.pull[np.ix_(free, free)], r[free]
    # columns in units in which each has curvature 1; a column without curvature keeps its own
    diagonal = np.abs(np.diag(K))
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    K, pull, r = K * scale[:, None] * scale, pull * scale[:, None] * scale, r * scale
    for normal in face.normals[:, free] * scale:  # as long as the longest of the rows
        size = max(float(np.max(np.abs(np.diag(pull)), initial=0.0)), 1e-300) if np.any(pull) else 1.0
        pull = pull + size * np.outer(normal, normal) / max(float(normal @ normal), 1e-300)
    basis = _null_space(pull)
    K, r = basis.T @ K @ basis, basis.T @ r
    if not len(r):
        return Gap(slack, bound, "minimum")
    if not (np.all(np.isfinite(K)) and np.all(np.isfinite(r))):
        return Gap(None, None, "minimum")
    values, vectors = np.linalg.eigh(0.5 * (K + K.T))
    kind, gain = gain_along(values, vectors.T @ r)
    return Gap(None if gain is None else gain + slack, None if gain is None else bound, kind)


def gain_along(values: np.ndarray, along: np.ndarray) -> tuple[str, float | None]:
    """What the point is, and ½rᵀK⁺r, from the eigenvalues of K and the components of r; None at no minimum."""
    top = float(np.max(np.abs(values)))
    if np.min(values) < -CURVED * top:
        return "maximum" if np.all(values < CURVED * top) else "saddle point", None
    curved = values > FLAT * max(top, 1e-300)
    flat = float(np.linalg.norm(along[~curved]))
    if flat > LEFT_OVER * max(float(np.linalg.norm(along)), 1e-300) and flat > np.sqrt(np.finfo(float).eps):
        return "minimum", math.inf
    return "minimum", 0.5 * float(np.sum(along[curved] ** 2 / values[curved]))


def _null_space(pull: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the directions along which no binding row changes."""
    if not pull.size or not np.any(pull):
        return np.eye(len(pull))
    size = np.sqrt(np.abs(np.diag(pull)))
    values, vectors = np.linalg.eigh(pull / max(float(np.max(size)) ** 2, 1e-300))
    return vectors[:, values <= FLAT * max(float(np.max(values)), 1e-300)]
