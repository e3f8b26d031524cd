"""A lower bound on the best possible worst case from an adversary that somebody proposes.

Weak duality needs no trust: whatever weights, labels and displacements an adversary chooses, the loss of no model falls
below what it gains, so a proposal only has to be made feasible before it is evaluated. An interior-point method ends
with such a proposal in its multipliers. Here it is cut back to what is allowed (the weights to Q, the transport to the
radius, every displaced sample to the support), and made to gain as much against every model: its gain is D + rᵀw, and
slopes, labels and ways are moved until r = 0 up to rounding (in `bounded` where the support has sides). Nothing in it
depends on where the proposal comes from; an error there shows as a gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from foedus.problem import losses
from foedus.problem.losses import Loss
from foedus.problem.regularizers import Zero
from foedus.robust.bound import REPAIRS, Game, Horizon, conjugate, ends, is_kinked, response, sign_of
from foedus.robust.weights import nearest_weights

SOFT = 1e-8  # the barrier of the repair, relative to the objective
ALMOST = 1.01  # ratio of the radius to the transport up to which all of it is used
TINY = 1e-300
LIGHTEST = 1e-100  # a sample of less weight has no say; an optimum of 0 counts as this
METRIC_ORDER = {"l1": 1, "l2": 2, "linf": np.inf}


@dataclass(frozen=True)
class Proposal:
    """What an adversary does to one site's samples; rows beyond the site's samples may follow and are ignored.

    `mass` has the share of each sample on each piece of the loss that is not 0: with the hinge the falling piece and,
    where labels turn, the same with the other label; with pinball and ε-insensitive the rising and the falling piece;
    with the other losses the share whose label turns, if any.
    """

    weight: float  # q of the site
    mass: np.ndarray  # (pieces, rows)
    slope: np.ndarray | None  # of each sample, Huber's loss alone
    total_way: np.ndarray  # (sets of slopes, columns): mass times displacement, upwards on rising pieces
    way: np.ndarray | None  # (columns, pieces, rows): of each sample instead, over a polyhedron


def cut_rows(proposal: Proposal, count: int) -> Proposal:
    """The proposal without the rows that fill a site's arrays up."""
    slope, way = proposal.slope, proposal.way
    return replace(
        proposal,
        mass=proposal.mass[:, :count] if len(proposal.mass) else np.zeros((0, count)),
        slope=None if slope is None else slope[:count],
        way=None if way is None else way[:, :, :count],
    )


def as_one_site(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals of all sites as that of one site which has all the samples, where there is one ball for all."""
    slopes, ways = [p.slope for p in proposals if p.slope is not None], [p.way for p in proposals if p.way is not None]
    return [
        Proposal(
            1.0, np.concatenate([p.mass for p in proposals], axis=1), np.concatenate(slopes) if slopes else None,
            proposals[0].total_way, np.concatenate(ways, axis=2) if ways else None,
        )
    ]  # fmt: skip


def weights_of(game: Game, proposals: Sequence[Proposal]) -> np.ndarray:
    """The proposed weights of the sites, brought into Q."""
    if game.theta == 0 or len(proposals) == 1:
        return game.q_hat
    return nearest_weights(np.array([p.weight for p in proposals]), game.q_hat, game.theta, game.p)


@dataclass(frozen=True)
class Attack:
    """A choice of the adversary where samples may be anywhere; what it gains against w is D + rᵀw."""

    turn: np.ndarray  # the share of each sample whose label turns
    a: np.ndarray  # the slope of the loss with its own label
    a_turn: np.ndarray  # and with the other label
    way: np.ndarray  # mass times displacement of each site, all at the steepest slope of the loss. (sites, columns)


def attack_of(game: Game, w: np.ndarray, proposals: Sequence[Proposal]) -> Attack:
    """The proposal in these letters; smooth losses have their slopes at the model w."""
    ball, loss, y = game.ball, game.ball.loss, game.y
    mass = np.clip(np.concatenate([p.mass for p in proposals], axis=1), 0.0, 1.0)
    z, hinge = game.x @ w, isinstance(loss, losses.Hinge)
    turn = mass[-1] if ball.classifies and len(mass) > hinge else np.zeros(len(y))
    a_turn = sign_of(y) if hinge else np.zeros(len(y))
    if hinge:
        a = -sign_of(y) * np.minimum(mass[0] / np.maximum(1.0 - turn, TINY), 1.0)
    elif isinstance(loss, losses.EpsilonInsensitive | losses.Pinball):
        up, down = ball.slopes
        total = np.maximum(np.sum(mass, axis=0), 1.0 if isinstance(loss, losses.EpsilonInsensitive) else TINY)
        a = (up * mass[0] - down * mass[1]) / total
    elif isinstance(loss, losses.Huber):
        a = np.concatenate([np.zeros(0) if p.slope is None else p.slope for p in proposals])
    else:
        a, a_turn = response(loss, z, y, 1.0), response(loss, z, -sign_of(y), 1.0)
    return Attack(turn, a, a_turn, np.stack([p.total_way[0] for p in proposals]))


def within_radius(game: Game, at: Attack) -> Attack:
    """The attack with as much transport as the radius allows, or as much as it had where that was much less."""
    fill = fill_factor(game.rho, transport(game, at))
    return replace(at, turn=np.minimum(at.turn * fill[game.site], 1.0), way=at.way * fill[:, None])


def transport(game: Game, at: Attack) -> np.ndarray:
    """What each site's attack takes of its radius."""
    labels = np.bincount(game.site, game.share * at.turn, len(game.rho))
    price = game.kappa if np.any(labels) else 0.0
    return price * labels + np.linalg.norm(at.way, ord=METRIC_ORDER[game.ball.metric], axis=1)


def slope_of(game: Game, q: np.ndarray, at: Attack) -> np.ndarray:
    """r, without the regulariser."""
    r = game.x.T @ (q[game.site] * game.share * ((1.0 - at.turn) * at.a + at.turn * at.a_turn))
    r[: at.way.shape[1]] += game.ball.lipschitz * (q @ at.way)
    return r


def balance(game: Game, q: np.ndarray, at: Attack, horizon: Horizon, s: np.ndarray) -> Attack:
    """The attack with slopes, labels and ways moved until r + s = 0 and the radius is used, as their bounds allow.

    Each step is the one that loses least against the model that was found: a share between 0 and 1 costs nothing to
    move, since its sample lies on the edge between two pieces, and is weighed by the square of its room to its bounds,
    as a barrier would; a slope of a smooth loss by the curvature of its cost.
    """
    (low, high), T, dim = ends(game.ball.loss, game.y), horizon.T, len(s)
    white, soft = game.x @ T, SOFT * max(horizon.best, LIGHTEST)
    weight, each = q[game.site] * game.share, np.arange(len(game.y))
    lightness = np.where(weight > LIGHTEST, 1.0 / np.maximum(weight, LIGHTEST), 0.0)
    labels_turn = bool(np.any(at.turn > 0))
    size = max(float(np.linalg.norm((T @ horizon.v)[: at.way.shape[1]])), TINY)

    def missing(at: Attack) -> np.ndarray:
        used = transport(game, at)
        over = np.where(game.rho <= ALMOST * used, used - game.rho, 0.0)
        return np.concatenate([T.T @ (slope_of(game, q, at) + s), over])

    for _ in range(REPAIRS):
        # the unknowns' rows in the equations, r and each site's transport, and how freely each unknown moves
        rows = [np.zeros((len(each), dim + len(q)))]
        rows[0][:, :dim] = (weight * (1.0 - at.turn))[:, None] * white
        freedom = [_freedom(game.ball.loss, at.a, low, high, soft) * lightness]
        if labels_turn:
            rows.append(np.zeros_like(rows[0]))
            rows[1][:, :dim] = (weight * (at.a_turn - at.a))[:, None] * white
            rows[1][each, dim + game.site] = game.kappa * game.share
            freedom.append(np.minimum(at.turn, 1.0 - at.turn) ** 2 / soft * lightness)
        if np.any(game.rho > 0):
            for k in range(len(q)):
                more = _way_freedom(game.ball.metric, at.way[k], soft, size)
                rows.append(np.zeros((at.way.shape[1], dim + len(q))))
                rows[-1][:, :dim] = q[k] * game.ball.lipschitz * T[: at.way.shape[1]]
                rows[-1][:, dim + k] = _growth(game.ball.metric, at.way[k])
                rows[-1] = more.T @ rows[-1]  # by directions that are free to move
                freedom.append(np.full(more.shape[1], 1.0 / max(q[k], TINY)))
        system = sum(((part * free[:, None]).T @ part for part, free in zip(rows, freedom, strict=True)), 0.0)
        short = missing(at)
        if not np.all(np.isfinite(system)):
            break
        unit = 1.0 / np.sqrt(np.maximum(np.diag(system), TINY))
        price = unit * (np.linalg.pinv(unit[:, None] * system * unit, hermitian=True) @ (unit * short))
        steps = [free * (part @ price) for part, free in zip(rows, freedom, strict=True)]
        turn, way = at.turn, at.way
        if labels_turn:
            turn = np.clip(turn - steps[1], 0.0, 1.0)
        if np.any(game.rho > 0):
            back = [
                _way_freedom(game.ball.metric, way[k], soft, size) @ step for k, step in enumerate(steps[-len(q) :])
            ]
            way = way - np.stack(back)
        after = replace(at, a=np.clip(at.a - steps[0], low, high), turn=turn, way=way)
        if not np.linalg.norm(missing(after)) < np.linalg.norm(short):
            break
        at = after
    return within_radius(game, at)


def _freedom(loss: Loss, a: np.ndarray, low: np.ndarray, high: np.ndarray, soft: float) -> np.ndarray:
    """By how much a slope moves for a unit of the margin."""
    barrier = np.minimum(a - low, high - a) ** 2 / soft
    if is_kinked(loss):
        return barrier
    own = np.abs(a) * (1.0 - np.abs(a)) if isinstance(loss, losses.Logistic) else 1.0
    return own * barrier / (own + barrier + TINY)


def _way_freedom(metric: str, way: np.ndarray, soft: float, size: float) -> np.ndarray:
    """A square root of the matrix by which a site's way moves for a unit of w; (columns, directions)."""
    length = np.abs(way)
    if metric == "l2":  # along itself, in exchange for labels; and across as far as w turns
        return np.column_stack([way / np.sqrt(soft), np.eye(len(way)) * np.sqrt(np.linalg.norm(way) / size)])
    free = length if metric == "l1" else np.maximum(np.max(length, initial=0.0) - length, 0.0)
    directions = np.diag(free / np.sqrt(soft))
    return directions if metric == "l1" else np.column_stack([directions, way / np.sqrt(soft)])


def _growth(metric: str, way: np.ndarray) -> np.ndarray:
    """The gradient of the metric's norm at a way."""
    size = np.abs(way)
    if metric == "l2":
        return way / max(float(np.linalg.norm(way)), TINY)
    if metric == "l1":
        return np.sign(way)
    top = size >= (1.0 - 1e-9) * np.max(size, initial=0.0)
    return np.sign(way) * top / max(float(np.sum(top)), 1.0)


def fill_factor(rho: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The factor of each site's transport that keeps it within the radius, or uses up what is left where it is little.

    A method that has not come to its end exactly leaves a small share of the radius; to leave it unused would count
    in the first order of that error.
    """
    ratio = rho / np.maximum(used, TINY)
    return np.where(ratio <= ALMOST, ratio, 1.0)


def subgradient(game: Game, w: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, float]:
    """A subgradient of the regulariser near −rest, taken at a point p near w, and h(p) − sᵀp."""
    h = game.regularizer
    if isinstance(h, Zero):
        return np.zeros(len(w)), 0.0
    step = 1e-3 * max(float(np.linalg.norm(w)), 1e-3) / max(float(np.linalg.norm(rest)), 1e-300)
    ahead = w - step * rest
    p = np.asarray(h.prox(jnp.asarray(ahead), step))
    s = (ahead - p) / step
    return s, float(h.value(jnp.asarray(p))) - float(s @ p)


def lower_bound(game: Game, w: np.ndarray, horizon: Horizon, proposals: Sequence[Proposal]) -> float:
    """A lower bound of the objective of every model within the horizon, where samples may be anywhere."""
    q = weights_of(game, proposals)
    at = attack_of(game, w, proposals)
    s, constant = subgradient(game, w, slope_of(game, q, at))
    at = balance(game, q, at, horizon, s)
    mass, y = q[game.site] * game.share, game.y
    cost = (1.0 - at.turn) * conjugate(game.ball.loss, at.a, y)
    if np.any(at.turn > 0):
        cost = cost + at.turn * conjugate(game.ball.loss, at.a_turn, -sign_of(y))
    D = constant - float(mass @ cost)
    if not game.ball.classifies:  # what is left of the radius moves labels, on the steeper side of the loss
        D += float(q @ np.maximum(game.rho - transport(game, at), 0.0)) * game.ball.lipschitz / game.kappa
    return horizon.least(D, horizon.T.T @ (slope_of(game, q, at) + s))
