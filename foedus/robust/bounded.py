"""The lower bound of `proposal` where samples stay in a box or in a polyhedron Cx ≤ d.

The losses are piecewise linear there. The adversary splits each sample: a share b_k of it goes to a place x̂ + δ_k, with
Cx ≤ d, where its loss is piece k, c_k + g_k·xᵀw. So its gain is D + rᵀw with r = Σ q ω b_k g_k (x̂ + δ_k), and its
transport Σ ω b_k ‖δ_k‖ must stay within the radius. Shares are moved between the pieces of a sample, in proportion to
themselves and without more transport at any site, until r = 0 up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foedus.problem import losses
from foedus.robust.bound import REPAIRS, Game, Horizon, sign_of
from foedus.robust.proposal import METRIC_ORDER, Proposal, subgradient, weights_of

MOST_NUMBERS = 20_000_000  # rows times columns and sites; beyond this, some arrays of that size take too much memory
ROOM = 1.0 - 1e-10  # share of the radius that is spent, so that rounding does not exceed it
TINY = 1e-300
LENGTHS = (1.0, 0.5, 0.2, 0.1, 0.03, 0.01)  # shares of a step that are tried


@dataclass(frozen=True)
class Sides:
    """The half-spaces Cx ≤ d, whose C has a column more where they bound labels, and the ends of a box."""

    C: np.ndarray
    d: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Places:
    """Where the adversary sends samples: pieces first, then the rows of all sites."""

    share: np.ndarray  # b, (pieces, rows)
    rest: np.ndarray  # the share that stays without a loss; 0 with pinball, of which no piece is 0. (rows,)
    slope: np.ndarray  # g, (pieces, rows)
    constant: np.ndarray  # c, (pieces, rows)
    toll: np.ndarray  # κ for a label that turns, 0 for others. (pieces, 1)
    delta: np.ndarray  # δ of the columns, and of the label where that moves within the support. (pieces, rows, columns)


def lower_bound(game: Game, sides: Sides, w: np.ndarray, horizon: Horizon, proposals: Sequence[Proposal]) -> float:
    """A lower bound of the objective of every model within the horizon, where samples stay within the sides.

    Args:
        game: the robust problem, with the samples of all sites.
        sides: the support.
        w: the model that was found.
        horizon: the models among which the best one is.
        proposals: what the adversary does at each site; nothing is assumed of it.
    """
    q = weights_of(game, proposals)
    places = within_radius(game, feasible(game, sides, proposals))
    s, constant = subgradient(game, w, np.linalg.solve(horizon.T.T, slope_of(game, q, places, horizon.T)))
    fixed = horizon.T.T @ s
    places = within_radius(game, balance(game, q, places, horizon.T, fixed))
    gains = places.constant - places.slope * (places.delta[:, :, dim_of(game) :].sum(axis=2))
    D = constant + float((q[game.site] * game.share) @ np.sum(places.share * gains, axis=0))
    if not game.ball.classifies and sides.C.shape[1] <= dim_of(game):
        # no side bounds labels: the rest of the radius moves one of them, on the steeper side of the loss
        left = np.maximum(game.rho - transport(game, places), 0.0)
        D += float(q @ left) * game.ball.lipschitz / game.kappa
    return horizon.least(D, slope_of(game, q, places, horizon.T) + fixed)


def dim_of(game: Game) -> int:
    """The number of columns that move."""
    return game.x.shape[1] - game.ball.intercept


def feasible(game: Game, sides: Sides, proposals: Sequence[Proposal]) -> Places:
    """The proposal with shares that sum to 1 and with no sample outside of the support."""
    ball, loss, width, y = game.ball, game.ball.loss, dim_of(game), game.y
    share = np.maximum(np.nan_to_num(np.concatenate([p.mass for p in proposals], axis=1)), 0.0)
    total = np.sum(share, axis=0)
    pinball, tube = isinstance(loss, losses.Pinball), getattr(loss, "eps", 0.0)
    share = share / np.maximum(total, TINY if pinball else 1.0)
    rest = np.zeros(len(y)) if pinball else np.maximum(1.0 - total, 0.0)
    if ball.classifies:
        slope = np.stack([-sign_of(y), sign_of(y)])[: len(share)]
        constant, toll = np.ones_like(slope), np.array([[0.0], [game.kappa]])[: len(share)]
    else:
        slope = np.stack([np.full(len(y), ball.slopes[0]), np.full(len(y), -ball.slopes[1])])
        constant, toll = -slope * y - (0.0 if pinball else tube), np.zeros((2, 1))
    if proposals[0].way is None:
        delta = _in_box(game, sides, proposals, share, slope)
    else:
        way = np.nan_to_num(np.concatenate([p.way for p in proposals if p.way is not None], axis=2))
        delta = np.moveaxis(way, 0, -1) / np.maximum(share, TINY)[:, :, None]
        delta[share <= 0.0] = 0.0
    points = np.column_stack([game.x[:, :width], y])[:, : sides.C.shape[1]]
    room = np.maximum(sides.d - points @ sides.C.T, 0.0)
    along = delta[:, :, : sides.C.shape[1]] @ sides.C[:, : delta.shape[2]].T
    beyond = np.where(along > room, room / np.where(along > room, along, 1.0), 1.0)
    return Places(share, rest, slope, constant, toll, delta * np.min(beyond, axis=2, initial=1.0)[:, :, None])


def _in_box(
    game: Game, sides: Sides, proposals: Sequence[Proposal], share: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    """The displacements in a box, of which the proposal has a sum over samples: all go the same share of their room."""
    x = game.x[:, : dim_of(game)]
    up, down = sides.high - x, x - sides.low
    delta = np.zeros((*slope.shape, x.shape[1]))
    for s, p in enumerate(proposals):
        rows = game.site == s
        for k, way in enumerate(p.total_way):
            pieces = slice(None) if len(p.total_way) == 1 else slice(k, k + 1)
            rises = (slope[pieces, rows, None] > 0) == (way > 0)
            room = np.where(rises, up[rows], -down[rows])
            whole = np.einsum("kn,kni->i", game.share[rows] * share[pieces, rows], np.abs(room))
            delta[pieces, rows] = room * np.minimum(np.abs(np.nan_to_num(way)) / np.maximum(whole, TINY), 1.0)
    return delta


def transport(game: Game, places: Places) -> np.ndarray:
    """The transport of each site."""
    return np.bincount(game.site, game.share * np.sum(places.share * cost_of(game, places), axis=0), len(game.rho))


def cost_of(game: Game, places: Places) -> np.ndarray:
    """The transport of a unit of share. (pieces, rows)"""
    width = dim_of(game)
    length = np.linalg.norm(places.delta[:, :, :width], ord=METRIC_ORDER[game.ball.metric], axis=2)
    label = np.abs(places.delta[:, :, width:]).sum(axis=2)
    return length + (game.kappa * label if places.delta.shape[2] > width else 0.0) + places.toll


def within_radius(game: Game, places: Places) -> Places:
    """The places drawn back towards the samples, and labels back to their class, until the radius suffices."""
    back = np.minimum(1.0, ROOM * game.rho / np.maximum(transport(game, places), TINY))[game.site]
    share = np.where(places.toll > 0, back * places.share, places.share)
    rest = places.rest + np.sum(places.share - share, axis=0)
    return replace(places, share=share, rest=rest, delta=back[:, None] * places.delta)


def slope_of(game: Game, q: np.ndarray, places: Places, T: np.ndarray) -> np.ndarray:
    """r in whitened coordinates."""
    width, weight = dim_of(game), (q[game.site] * game.share) * places.share * places.slope
    r = game.x.T @ np.sum(weight, axis=0)
    r[:width] += np.einsum("kn,kni->i", weight, places.delta[:, :, :width])
    return T.T @ r


def balance(game: Game, q: np.ndarray, places: Places, T: np.ndarray, fixed: np.ndarray) -> Places:
    """The places with shares moved until r + fixed = 0, and with as much transport at each site as before."""
    width, S = dim_of(game), len(q)
    point = np.repeat(game.x[None], len(places.share), axis=0)
    point[:, :, :width] += places.delta[:, :, :width]
    mass, omega = q[game.site] * game.share, np.maximum(game.share, TINY)
    onto = np.zeros((len(mass), S))
    onto[np.arange(len(mass)), game.site] = game.share / np.maximum(game.rho, TINY)[game.site]
    white = (mass * places.slope)[:, :, None] * (point @ T)
    rows = np.concatenate([white, cost_of(game, places)[:, :, None] * onto], axis=2)
    b, rest = places.share, places.rest
    goal = np.concatenate([-fixed, np.einsum("kn,kni->i", b, rows)[len(fixed) :]])
    for _ in range(3 * REPAIRS):
        missing = np.einsum("kn,kni->i", b, rows) - goal
        # a share moves by itself times what it does beyond the mean of its sample's shares
        mean = np.einsum("kn,kni->ni", b, rows)
        flat = rows.reshape(-1, rows.shape[2])
        system = (flat * np.ravel(b / omega)[:, None]).T @ flat - (mean / omega[:, None]).T @ mean
        if not np.all(np.isfinite(system)):
            break
        price = np.linalg.pinv(system, hermitian=True) @ missing
        at_mean, step = mean @ price / omega, rows @ price / omega
        for length in LENGTHS:  # a whole step can fail where shares are cut off at 0
            after = np.maximum(b * (1.0 + length * (at_mean - step)), 0.0)
            still = np.maximum(rest * (1.0 + length * at_mean), 0.0)
            total = np.maximum(np.sum(after, axis=0) + still, TINY)
            after, still = after / total, still / total
            if np.linalg.norm(np.einsum("kn,kni->i", after, rows) - goal) < np.linalg.norm(missing):
                b, rest = after, still
                break
        else:
            break
    return replace(places, share=b, rest=rest)
