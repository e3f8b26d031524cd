"""A lower bound on the best possible worst case from an adversary that somebody proposes.

Weak duality needs no trust: whatever weights, labels and displacements an adversary chooses, the loss of no model falls
below what it gains, so a proposal only has to be made feasible before it is evaluated. An interior-point method ends
with such a proposal in its multipliers. Here it is cut back to what is allowed (the weights to Q, the transport to the
radius, every displaced sample to the support), and made to gain as much against every model: its gain is D + rᵀw, and
slopes, labels and moves are changed until r = 0 up to rounding. Nothing in it depends on where the proposal comes
from; an error there shows as a gap.

Where samples may be anywhere, a choice of the adversary is an `Attack`. In a box or in a polyhedron Cx ≤ d, where
losses are piecewise linear, it is `Places`: a share b_k of each sample goes to a place x̂ + δ_k, with Cx ≤ d, where its
loss is piece k, c_k + g_k·xᵀw. So its gain is D + rᵀw with r = Σ q ω b_k g_k (x̂ + δ_k), and its transport Σ ω b_k ‖δ_k‖
must stay within the radius.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from foedus.problem import losses
from foedus.problem.losses import Loss
from foedus.problem.regularizers import Zero
from foedus.robust.bound import REPAIRS, Game, Horizon, conjugate, ends, is_kinked, response, sign_of
from foedus.robust.closed import ORDER
from foedus.robust.weights import nearest_weights

SOFT = 1e-8  # the barrier of the repair, relative to the objective
ALMOST = 1.01  # ratio of the radius to the transport up to which all of it is used
TINY = 1e-300
MOST_NUMBERS = 20_000_000  # rows times columns and sites; beyond this, some arrays of that size take too much memory
ROOM = 1.0 - 1e-10  # share of the radius that is spent on places, so that rounding does not exceed it
LENGTHS = (1.0, 0.5, 0.2, 0.1, 0.03, 0.01)  # shares of a step that are tried
LIGHTEST = 1e-100  # a sample of less weight has no say; an optimum of 0 counts as this


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
    total_move: np.ndarray  # (sets of slopes, columns): mass times displacement, upwards on rising pieces
    move: np.ndarray | None  # (columns, pieces, rows): of each sample instead, over a polyhedron


def cut_rows(proposal: Proposal, count: int) -> Proposal:
    """The proposal without the rows that fill a site's arrays up."""
    slope, move = proposal.slope, proposal.move
    return replace(
        proposal,
        mass=proposal.mass[:, :count] if len(proposal.mass) else np.zeros((0, count)),
        slope=None if slope is None else slope[:count],
        move=None if move is None else move[:, :, :count],
    )


def as_one_site(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals of all sites as that of one site which has all the samples, where there is one ball for all."""
    slopes, moves = (
        [p.slope for p in proposals if p.slope is not None],
        [p.move for p in proposals if p.move is not None],
    )
    return [
        Proposal(
            1.0, np.concatenate([p.mass for p in proposals], axis=1), np.concatenate(slopes) if slopes else None,
            proposals[0].total_move, np.concatenate(moves, axis=2) if moves else None,
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
    move: np.ndarray  # mass times displacement of each site, all at the steepest slope of the loss. (sites, columns)

    @staticmethod
    def of(game: Game, w: np.ndarray, proposals: Sequence[Proposal]) -> "Attack":
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
        return Attack(turn, a, a_turn, np.stack([p.total_move[0] for p in proposals]))

    def within_radius(self, game: Game) -> "Attack":
        """The attack with as much transport as the radius allows, or as much as it had where that was much less."""
        fill = fill_factor(game.rho, self.transport(game))
        return replace(self, turn=np.minimum(self.turn * fill[game.site], 1.0), move=self.move * fill[:, None])

    def transport(self, game: Game) -> np.ndarray:
        """What each site's attack takes of its radius."""
        labels = np.bincount(game.site, game.share * self.turn, len(game.rho))
        price = game.kappa if np.any(labels) else 0.0
        return price * labels + np.linalg.norm(self.move, ord=ORDER[game.ball.metric], axis=1)

    def slope(self, game: Game, q: np.ndarray) -> np.ndarray:
        """r, without the regulariser."""
        r = game.x.T @ (q[game.site] * game.share * ((1.0 - self.turn) * self.a + self.turn * self.a_turn))
        r[: self.move.shape[1]] += game.ball.lipschitz * (q @ self.move)
        return r

    def gain(self, game: Game, q: np.ndarray) -> float:
        """D, without the regulariser and the labels that no side bounds."""
        mass, y = q[game.site] * game.share, game.y
        cost = (1.0 - self.turn) * conjugate(game.ball.loss, self.a, y)
        if np.any(self.turn > 0):
            cost = cost + self.turn * conjugate(game.ball.loss, self.a_turn, -sign_of(y))
        return -float(mass @ cost)

    def balanced(self, game: Game, q: np.ndarray, horizon: Horizon, s: np.ndarray) -> "Attack":
        """The attack with slopes, labels and moves such that r + s = 0 and the radius is used, as their bounds allow.

        Each step is the one that loses least against the model that was found: a share between 0 and 1 costs nothing
        to move, since its sample lies on the edge between two pieces, and is weighed by the square of its room to its
        bounds, as a barrier would; a slope of a smooth loss by the curvature of its cost.
        """
        at = self
        (low, high), T, dim = ends(game.ball.loss, game.y), horizon.T, len(s)
        white, soft = game.x @ T, SOFT * max(horizon.best, LIGHTEST)
        weight, each = q[game.site] * game.share, np.arange(len(game.y))
        lightness = np.where(weight > LIGHTEST, 1.0 / np.maximum(weight, LIGHTEST), 0.0)
        labels_turn = bool(np.any(at.turn > 0))
        size = max(float(np.linalg.norm((T @ horizon.v)[: at.move.shape[1]])), TINY)

        def missing(at: "Attack") -> np.ndarray:
            used = at.transport(game)
            over = np.where(game.rho <= ALMOST * used, used - game.rho, 0.0)
            return np.concatenate([T.T @ (at.slope(game, q) + s), over])

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
                    more = _move_freedom(game.ball.metric, at.move[k], soft, size)
                    rows.append(np.zeros((at.move.shape[1], dim + len(q))))
                    rows[-1][:, :dim] = q[k] * game.ball.lipschitz * T[: at.move.shape[1]]
                    rows[-1][:, dim + k] = _growth(game.ball.metric, at.move[k])
                    rows[-1] = more.T @ rows[-1]  # by directions that are free to move
                    freedom.append(np.full(more.shape[1], 1.0 / max(q[k], TINY)))
            system = sum(((part * free[:, None]).T @ part for part, free in zip(rows, freedom, strict=True)), 0.0)
            short = missing(at)
            if not np.all(np.isfinite(system)):
                break
            unit = 1.0 / np.sqrt(np.maximum(np.diag(system), TINY))
            price = unit * (np.linalg.pinv(unit[:, None] * system * unit, hermitian=True) @ (unit * short))
            steps = [free * (part @ price) for part, free in zip(rows, freedom, strict=True)]
            turn, move = at.turn, at.move
            if labels_turn:
                turn = np.clip(turn - steps[1], 0.0, 1.0)
            if np.any(game.rho > 0):
                back = [
                    _move_freedom(game.ball.metric, move[k], soft, size) @ step
                    for k, step in enumerate(steps[-len(q) :])
                ]
                move = move - np.stack(back)
            after = replace(at, a=np.clip(at.a - steps[0], low, high), turn=turn, move=move)
            if not np.linalg.norm(missing(after)) < np.linalg.norm(short):
                break
            at = after
        return at.within_radius(game)


def _freedom(loss: Loss, a: np.ndarray, low: np.ndarray, high: np.ndarray, soft: float) -> np.ndarray:
    """By how much a slope moves for a unit of the margin."""
    barrier = np.minimum(a - low, high - a) ** 2 / soft
    if is_kinked(loss):
        return barrier
    own = np.abs(a) * (1.0 - np.abs(a)) if isinstance(loss, losses.Logistic) else 1.0
    return own * barrier / (own + barrier + TINY)


def _move_freedom(metric: str, move: np.ndarray, soft: float, size: float) -> np.ndarray:
    """A square root of the matrix by which a site's move changes for a unit of w; (columns, directions)."""
    length = np.abs(move)
    if metric == "l2":  # along itself, in exchange for labels; and across as far as w turns
        return np.column_stack([move / np.sqrt(soft), np.eye(len(move)) * np.sqrt(np.linalg.norm(move) / size)])
    free = length if metric == "l1" else np.maximum(np.max(length, initial=0.0) - length, 0.0)
    directions = np.diag(free / np.sqrt(soft))
    return directions if metric == "l1" else np.column_stack([directions, move / np.sqrt(soft)])


def _growth(metric: str, move: np.ndarray) -> np.ndarray:
    """The gradient of the metric's norm at a move."""
    size = np.abs(move)
    if metric == "l2":
        return move / max(float(np.linalg.norm(move)), TINY)
    if metric == "l1":
        return np.sign(move)
    top = size >= (1.0 - 1e-9) * np.max(size, initial=0.0)
    return np.sign(move) * top / max(float(np.sum(top)), 1.0)


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
    rise: np.ndarray  # g, (pieces, rows)
    constant: np.ndarray  # c, (pieces, rows)
    toll: np.ndarray  # κ for a label that turns, 0 for others. (pieces, 1)
    delta: np.ndarray  # δ of the columns, and of the label where that moves within the support. (pieces, rows, columns)

    @staticmethod
    def of(game: Game, sides: Sides, proposals: Sequence[Proposal]) -> "Places":
        """The proposal with shares that sum to 1, within the radius, and with no sample outside of the support."""
        ball, width, y = game.ball, dim_of(game), game.y
        share = np.maximum(np.nan_to_num(np.concatenate([p.mass for p in proposals], axis=1)), 0.0)
        total = np.sum(share, axis=0)
        pinball = isinstance(ball.loss, losses.Pinball)
        share = share / np.maximum(total, TINY if pinball else 1.0)
        rest = np.zeros(len(y)) if pinball else np.maximum(1.0 - total, 0.0)
        slope, constant = (part[: len(share)] for part in ball.pieces(y))
        toll = np.array([[0.0], [game.kappa if ball.classifies else 0.0]])[: len(share)]
        if proposals[0].move is None:
            delta = _in_box(game, sides, proposals, share, slope)
        else:
            move = np.nan_to_num(np.concatenate([p.move for p in proposals if p.move is not None], axis=2))
            delta = np.moveaxis(move, 0, -1) / np.maximum(share, TINY)[:, :, None]
            delta[share <= 0.0] = 0.0
        points = np.column_stack([game.x[:, :width], y])[:, : sides.C.shape[1]]
        room = np.maximum(sides.d - points @ sides.C.T, 0.0)
        along = delta[:, :, : sides.C.shape[1]] @ sides.C[:, : delta.shape[2]].T
        beyond = np.where(along > room, room / np.where(along > room, along, 1.0), 1.0)
        delta = delta * np.min(beyond, axis=2, initial=1.0)[:, :, None]
        return Places(share, rest, slope, constant, toll, delta).within_radius(game)

    def within_radius(self, game: Game) -> "Places":
        """The places drawn back towards the samples, and labels back to their class, until the radius suffices."""
        back = np.minimum(1.0, ROOM * game.rho / np.maximum(self.transport(game), TINY))[game.site]
        share = np.where(self.toll > 0, back * self.share, self.share)
        rest = self.rest + np.sum(self.share - share, axis=0)
        return replace(self, share=share, rest=rest, delta=back[:, None] * self.delta)

    def transport(self, game: Game) -> np.ndarray:
        """The transport of each site."""
        return np.bincount(game.site, game.share * np.sum(self.share * self.cost(game), axis=0), len(game.rho))

    def cost(self, game: Game) -> np.ndarray:
        """The transport of a unit of share. (pieces, rows)"""
        width = dim_of(game)
        length = np.linalg.norm(self.delta[:, :, :width], ord=ORDER[game.ball.metric], axis=2)
        label = np.abs(self.delta[:, :, width:]).sum(axis=2)
        return length + (game.kappa * label if self.delta.shape[2] > width else 0.0) + self.toll

    def slope(self, game: Game, q: np.ndarray) -> np.ndarray:
        """r, without the regulariser."""
        width, weight = dim_of(game), (q[game.site] * game.share) * self.share * self.rise
        r = game.x.T @ np.sum(weight, axis=0)
        r[:width] += np.einsum("kn,kni->i", weight, self.delta[:, :, :width])
        return r

    def gain(self, game: Game, q: np.ndarray) -> float:
        """D, without the regulariser and the labels that no side bounds."""
        gains = self.constant - self.rise * (self.delta[:, :, dim_of(game) :].sum(axis=2))
        return float((q[game.site] * game.share) @ np.sum(self.share * gains, axis=0))

    def balanced(self, game: Game, q: np.ndarray, horizon: Horizon, s: np.ndarray) -> "Places":
        """The places with shares moved until r + s = 0, and with as much transport at each site as before."""
        T, width, S = horizon.T, dim_of(game), len(q)
        fixed = T.T @ s
        point = np.repeat(game.x[None], len(self.share), axis=0)
        point[:, :, :width] += self.delta[:, :, :width]
        mass, omega = q[game.site] * game.share, np.maximum(game.share, TINY)
        onto = np.zeros((len(mass), S))
        onto[np.arange(len(mass)), game.site] = game.share / np.maximum(game.rho, TINY)[game.site]
        white = (mass * self.rise)[:, :, None] * (point @ T)
        rows = np.concatenate([white, self.cost(game)[:, :, None] * onto], axis=2)
        b, rest = self.share, self.rest
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
        return replace(self, share=b, rest=rest).within_radius(game)


def dim_of(game: Game) -> int:
    """The number of columns that move."""
    return game.x.shape[1] - game.ball.intercept


def _in_box(
    game: Game, sides: Sides, proposals: Sequence[Proposal], share: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    """The displacements in a box, of which the proposal has a sum over samples: all go the same share of their room."""
    x = game.x[:, : dim_of(game)]
    up, down = sides.high - x, x - sides.low
    delta = np.zeros((*slope.shape, x.shape[1]))
    for s, p in enumerate(proposals):
        rows = game.site == s
        for k, move in enumerate(p.total_move):
            pieces = slice(None) if len(p.total_move) == 1 else slice(k, k + 1)
            rises = (slope[pieces, rows, None] > 0) == (move > 0)
            room = np.where(rises, up[rows], -down[rows])
            whole = np.einsum("kn,kni->i", game.share[rows] * share[pieces, rows], np.abs(room))
            delta[pieces, rows] = room * np.minimum(np.abs(np.nan_to_num(move)) / np.maximum(whole, TINY), 1.0)
    return delta


def lower_bound(
    game: Game, w: np.ndarray, horizon: Horizon, proposals: Sequence[Proposal], sides: Sides | None = None
) -> float:
    """A lower bound of the objective of every model within the horizon.

    Args:
        game: the robust problem, with the samples of all sites.
        w: the model that was found.
        horizon: the models among which the best one is.
        proposals: what the adversary does at each site; nothing is assumed of it.
        sides: the support; None where samples may be anywhere.
    """
    q = weights_of(game, proposals)
    at = Attack.of(game, w, proposals) if sides is None else Places.of(game, sides, proposals)
    s, constant = subgradient(game, w, at.slope(game, q))
    at = at.balanced(game, q, horizon, s)
    D = constant + at.gain(game, q)
    if not game.ball.classifies and (sides is None or sides.C.shape[1] <= dim_of(game)):
        # nothing bounds labels: what is left of the radius moves them, on the steeper side of the loss
        D += float(q @ np.maximum(game.rho - at.transport(game), 0.0)) * game.ball.lipschitz / game.kappa
    return horizon.least(D, horizon.T.T @ (at.slope(game, q) + s))
