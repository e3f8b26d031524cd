"""The worst-case loss of any linear model over a Wasserstein ball, and the distribution that attains it."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.pytrees import device_array
from foedus.numerics.interpreter.dispatch import jit_if_large
from foedus.problem import losses
from foedus.problem.losses import Loss, as_loss
from foedus.problem.stacked import Client, stack
from foedus.robust import closed, polyhedron
from foedus.robust.closed import PIECEWISE_LINEAR, Ball, Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.polyhedron import PolyhedronProjection
from foedus.robust.support import Support, check_inside, is_support, kind_of, sides

ACCURATE = 1e-6  # the gap and residual beyond which a worst case over a polyhedron is refused
NUDGE = 1e-9  # the relative change of λ that shows which samples move just above and just below it
LAST_DIGIT = 1e-15  # the same for λ near 0
SLIVER = 1e-7  # the mass that is sent far away where the supremum is not attained
MATTERS = 1e-6  # the share of the radius below which a tiny mass may as well stay
SLACK = 1e-9  # how far rounding may lead out of the support, and the share of the radius that may be left unused


# --- the distribution ---


@dataclass(frozen=True)
class Distribution:
    """A distribution in the ball: mass[k] of sample source[k] sits at (x[k], y[k]).

    `loss` is its mean loss, `cost` its transport cost, which is at most the radius. Where no distribution attains the
    worst case (`attained` is false), this one comes within a mass of 1e-7 of it.
    """

    source: np.ndarray
    mass: np.ndarray
    x: np.ndarray
    y: np.ndarray
    loss: float
    cost: float
    attained: bool


@jit_if_large("loss")
def mean_loss(loss: Loss, w: Array, x: Array, y: Array, share: Array) -> Array:
    """The mean loss of the model w with these weights."""
    return jnp.dot(share, loss.value(x @ w, y))


def pad_rows(*rows: np.ndarray, height: int = 0) -> list[Array]:
    """The arrays, filled with zeros up to one of four sizes between powers of two.

    Clients of many sizes thus share few compiled programs.
    """
    least = max(len(rows[0]), int(height), 1)
    step = 1 << max((least - 1).bit_length() - 3, 3)
    more = -(-least // step) * step - len(rows[0])
    return [device_array(np.concatenate([a, np.zeros((more, *a.shape[1:]))])) for a in rows]


def still(x: np.ndarray, y: np.ndarray, share: np.ndarray, loss: float) -> Distribution:
    """The distribution of the data themselves."""
    return Distribution(np.arange(len(y)), share, x, y, loss, 0.0, True)


class Destinations(NamedTuple):
    """The best place of each sample at some price λ."""

    point: np.ndarray
    flips: np.ndarray  # whether its label turns to the other class
    cost: np.ndarray
    piece: np.ndarray  # the piece of the loss that is largest there; −1 for the piece that is 0


def _best(ball: Ball, w: np.ndarray, x: np.ndarray, y: np.ndarray, radius: Radius, lam: float) -> Destinations:
    """The place of each sample that maximises its loss less λ times the cost of going there."""
    moving = x.shape[1] - ball.intercept
    rows, kappa = len(y), float(radius.kappa)
    value = np.full(rows, -np.inf if isinstance(ball.loss, losses.Pinball) else 0.0)
    point, flips, cost = x.copy(), np.zeros(rows, bool), np.zeros(rows)
    piece = np.full(rows, -1)
    for k, (slope, constant) in enumerate(zip(*ball.pieces(y), strict=True)):
        flip = ball.classifies and k == 1
        if flip and not np.isfinite(kappa):
            continue
        there, way = x.copy(), np.zeros(rows)
        if ball.support == "box":
            g = slope[:, None] * w[:moving]
            ends = np.where(g > 0, np.asarray(radius.high), np.asarray(radius.low))
            there[:, :moving] = np.where(np.abs(g) > lam, ends, x[:, :moving])
            way = np.sum(np.abs(there - x), axis=1)
        worth = constant + slope * (there @ w) - lam * way - (kappa * lam if flip else 0.0)
        better = worth > value
        value = np.where(better, worth, value)
        point = np.where(better[:, None], there, point)
        flips = np.where(better, flip, flips)
        cost = np.where(better, way + (kappa if flip else 0.0), cost)
        piece = np.where(better, k, piece)
    return Destinations(point, flips, cost, piece)


def attaining(
    ball: Ball, w: np.ndarray, x: np.ndarray, y: np.ndarray, share: np.ndarray, radius: Radius, lam: float
) -> Distribution:
    """A distribution in the ball whose mean loss is the worst case.

    At the optimal λ some samples are indifferent between two places. Just above λ they take the cheaper one, just below
    it the dearer one; the distribution mixes both so that the cost is the radius. Where λ is the smallest that is
    allowed, there is no "below": then the rest of the radius moves one sample along a ray on which its loss grows by λ
    for every unit of cost.
    """
    rho, least = float(radius.rho), float(closed.smallest_lambda(ball, jnp.asarray(w), radius))
    above = _best(ball, w, x, y, radius, lam * (1.0 + NUDGE) + LAST_DIGIT)
    cost_above = float(share @ above.cost)
    parts = [(above, 1.0)]
    attained, extra = True, None
    if lam > least * (1.0 + 4.0 * NUDGE) + 1e-14:
        below = _best(ball, w, x, y, radius, lam * (1.0 - NUDGE) - LAST_DIGIT)
        most = float(share @ below.cost)
        mix = np.clip((rho - cost_above) / (most - cost_above), 0.0, 1.0) if most > cost_above else 0.0
        parts = [(above, 1.0 - mix), (below, mix)]
    elif rho > cost_above and least > 0:
        extra, attained = _ray(ball, w, x, y, share, radius, above, rho - cost_above)
    source, mass, points, labels, costs = [], [], [], [], []
    for (point, flips, cost, _), weight in parts:
        if weight > 0:
            source.append(np.arange(len(y)))
            mass.append(weight * share)
            points.append(point)
            labels.append(_labels(ball, y, flips))
            costs.append(cost)
    if extra is not None:
        i, part, there, label, way = extra
        mass[0] = mass[0].copy()
        mass[0][i] -= part
        source.append(np.array([i]))
        mass.append(np.array([part]))
        points.append(there[None])
        labels.append(np.array([label]))
        costs.append(np.array([way]))
    columns = [np.concatenate(part) for part in (source, mass, points, labels, costs)]
    has_mass = columns[1] > 0
    source_, mass_, x_, y_, cost_ = (part[has_mass] for part in columns)
    loss = float(mean_loss(ball.loss, jnp.asarray(w), *pad_rows(x_, y_, mass_)))
    return Distribution(source_, mass_, x_, y_, loss, float(mass_ @ cost_), attained)


def attaining_in_polyhedron(
    ball: Ball, w: np.ndarray, x: np.ndarray, y: np.ndarray, share: np.ndarray, radius: Radius,
    projection: PolyhedronProjection, C: np.ndarray, d: np.ndarray,
) -> Distribution:  # fmt: skip
    """The distribution that attains the worst case over a polyhedron, read off its multipliers.

    A mass below SLIVER is too small for its displacement move/mass to be accurate. It stays where it is, unless its
    transport uses a noticeable part of the radius: then the supremum is not attained but approached by ever smaller
    masses sent ever farther, and a mass of SLIVER takes its place.
    """
    rows, width, rho, kappa = len(y), x.shape[1] - ball.intercept, float(radius.rho), float(radius.kappa)
    mass, move = np.asarray(projection.mass)[:, :rows], np.asarray(projection.move)[:, :, :rows]
    is_sliver = (mass < SLIVER) & (share * np.sum(np.abs(move), axis=0) > MATTERS * rho)
    mass = np.where(is_sliver, SLIVER, np.where(mass < SLIVER, 0.0, mass))
    attained = not np.any(is_sliver)
    step = move / np.where(mass > 0, mass, np.inf)
    # rounding must not lead farther out of the support than its check allows
    within = np.column_stack([x[:, :width], y])[:, : C.shape[1]] @ C.T  # (rows, half-spaces)
    room, along = np.maximum(d - within, 0.0).T[:, None] + SLACK, np.tensordot(C[:, : len(step)], step, 1)
    step = step * np.min(np.where(along > room, room / np.where(along > room, along, 1.0), 1.0), axis=0)
    points = np.repeat(x[None], len(mass), axis=0)
    points[:, :, :width] += np.moveaxis(step[:width], 0, -1)
    labels = np.repeat(y[None], len(mass), axis=0)
    if len(step) > width:
        labels = labels + step[width]
    if ball.classifies:
        labels[1:] = _labels(ball, y, np.ones(rows, bool))

    def cost() -> np.ndarray:
        distance = np.linalg.norm((points - x)[:, :, :width], ord=closed.ORDER[ball.metric], axis=2)
        label_change = (labels != y).astype(float) if ball.classifies else np.abs(labels - y)
        return distance + (kappa * label_change if np.isfinite(kappa) else 0.0)

    remaining = rho - float(np.sum(share * mass * cost()))
    if not ball.classifies and C.shape[1] == width and np.isfinite(kappa) and remaining > SLACK * rho:
        # the support does not bound labels: the rest of the radius moves one of them, on the steeper side of the loss
        slopes = np.array([ball.slopes[0], -ball.slopes[1]])[:, None]
        steep = np.where(np.abs(slopes) >= ball.lipschitz, share * mass, -1.0)
        k, i = np.unravel_index(int(np.argmax(steep)), steep.shape)
        if mass[k, i] == 0:
            mass[k, i], attained = SLIVER, False
        labels[k, i] -= np.sign(slopes[k, 0]) * remaining / (kappa * share[i] * mass[k, i])
    # rounding must not make the transport dearer than the radius
    total_cost = float(np.sum(share * mass * cost()))
    mass = mass * min(1.0, rho / max(total_cost, 1e-300))
    stays = np.maximum(1.0 - np.sum(mass, axis=0), 0.0)
    whole = mass.sum(axis=0) + stays
    parts = [(share * part / whole, at, to) for part, at, to in zip(mass, points, labels, strict=True)]
    parts.append((share * stays / whole, x, y))
    source = np.tile(np.arange(rows), len(parts))
    mass_, x_, y_ = (np.concatenate([part[k] for part in parts]) for k in range(3))
    costs = np.concatenate([np.ravel(cost()), np.zeros(rows)])
    has_mass = mass_ > 0
    source, mass_, x_, y_, costs = (part[has_mass] for part in (source, mass_, x_, y_, costs))
    loss = float(mean_loss(ball.loss, jnp.asarray(w), *pad_rows(x_, y_, mass_)))
    return Distribution(source, mass_, x_, y_, loss, float(mass_ @ costs), attained)


def _labels(ball: Ball, y: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """The labels, with the other class where one flips; classes are ±1 or 0 and 1, as in the data."""
    if not ball.classifies:
        return y.copy()
    other = np.where(y > 0, float(np.min(y)) if np.min(y) <= 0 else -1.0, 1.0)
    return np.where(flips, other, y)


def _ray(
    ball: Ball,
    w: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    share: np.ndarray,
    radius: Radius,
    above: Destinations,
    remaining: float,
) -> tuple[tuple[int, float, np.ndarray, float, float], bool]:
    """The sample on which the rest of the radius is spent, and whether the worst case is attained by that.

    Returned are (its index, the mass of it that moves, its new place, its new label, the cost per unit of mass).
    """
    point, flips, cost, piece = above
    (slopes, constants), moving = ball.pieces(y), x.shape[1] - ball.intercept
    steep = 0 if ball.slopes[0] >= ball.slopes[1] else 1
    # a sample can move along the ray if the piece that is largest for it has the steepest slope already
    candidates = piece >= 0 if ball.classifies else np.abs(slopes[:, 0])[piece] >= ball.lipschitz
    candidates = np.asarray(candidates) & (piece >= 0) & (share > 0)
    attained = bool(np.any(candidates))
    if attained:
        i = int(np.argmax(np.where(candidates, share, -1.0)))
        k, part = int(piece[i]), float(share[i])
    else:
        # none has: a sliver of the sample that is nearest to such a piece goes far enough for its loss to grow
        growing = [0] if ball.classifies else [0, 1] if ball.slopes[0] == ball.slopes[1] else [steep]
        short = constants[growing] + slopes[growing] * (x @ w)
        short = np.where(share > 0, short, -np.inf)
        j, i = np.unravel_index(int(np.argmax(short)), short.shape)
        i, k, part = int(i), growing[int(j)], SLIVER * float(share[int(i)])
        point, flips, cost = x, np.zeros(len(y), bool), np.zeros(len(y))
    slope = float(slopes[k, i])
    there, label, way = point[i].copy(), float(_labels(ball, y, flips)[i]), remaining / part
    direction = np.sign(slope) * w[:moving]
    size = float(closed.norm(jnp.asarray(w[:moving]), closed.DUAL[ball.metric]))
    label_moves = not ball.classifies and (ball.support != "everything" or size * float(radius.kappa) < 1.0)
    # the direction that gains most per unit of cost: the label, the largest coordinate, all signs, or w itself
    if label_moves:
        label -= np.sign(slope) * way / float(radius.kappa)
    elif ball.metric == "l1":
        j = int(np.argmax(np.abs(direction)))
        there[j] += np.sign(direction[j]) * way
    elif ball.metric == "linf":
        there[:moving] += np.sign(direction) * way
    else:
        there[:moving] += direction / size * way
    return (i, part, there, label, way + float(cost[i])), attained


# --- the worst case ---


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
