"""A lower bound on the best possible worst case from an adversary that somebody proposes.

Weak duality needs no trust: whatever weights, labels and displacements an adversary chooses, the loss of no model falls
below what it gains, so a proposal only has to be made feasible before it is evaluated. An interior-point method ends
with such a proposal in its multipliers. Here it is cut back to what is allowed (the weights to Q, the transport to the
radius, every displaced sample to the support), and made to gain as much against every model: its gain is D + rᵀw, and
masses or slopes are moved until r = 0 up to rounding (`bound.Choice`, `bound.repair`, and `bounded` for supports with
sides). Nothing in it depends on where the proposal comes from; an error there shows as a gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from foedus import losses
from foedus.regularizers import Zero
from foedus.robust.bound import Choice, Game, Horizon, repair, response, sign_of
from foedus.robust.weights import nearest_weights

ALMOST = 1.01  # ratio of the radius to the transport up to which all of it is used
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


def pooled(proposals: Sequence[Proposal]) -> list[Proposal]:
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


def choose(game: Game, w: np.ndarray, proposals: Sequence[Proposal]) -> Choice:
    """The proposal as a feasible choice of the adversary, where samples may be anywhere; w is the model returned."""
    ball, loss, y, S = game.ball, game.ball.loss, game.y, len(game.rho)
    q = weights_of(game, proposals)
    mass = np.clip(np.concatenate([p.mass for p in proposals], axis=1), 0.0, 1.0)
    z = game.x @ w
    turned, a_flip = np.zeros(len(y)), np.zeros(len(y))
    own = mass[0] if isinstance(loss, losses.Hinge) else np.zeros(len(y))
    if ball.classifies and len(mass) > isinstance(loss, losses.Hinge):
        turned, a_flip = mass[-1], response(loss, z, -sign_of(y), 1e-300)
        a_flip = sign_of(y) if isinstance(loss, losses.Hinge) else a_flip
    length = np.array([np.linalg.norm(p.total_way[0], ord=METRIC_ORDER[ball.metric]) for p in proposals])
    paid = np.bincount(game.site, game.share * turned, S) * (game.kappa if np.any(turned) else 0.0)
    fill = filled(game.rho, paid + length)
    turned = np.minimum(turned * fill[game.site], 1.0)
    if isinstance(loss, losses.Hinge):
        a = -sign_of(y) * np.minimum(own / np.maximum(1.0 - turned, 1e-300), 1.0)
    elif isinstance(loss, losses.EpsilonInsensitive | losses.Pinball):
        up, down = ball.slopes
        total = np.maximum(np.sum(mass, axis=0), 1.0 if isinstance(loss, losses.EpsilonInsensitive) else 1e-300)
        a = (up * mass[0] - down * mass[1]) / total
    elif isinstance(loss, losses.Huber):
        a = np.concatenate([np.zeros(0) if p.slope is None else p.slope for p in proposals])
    else:
        a = response(loss, z, y, 1.0)
    b = game.share * turned
    # what is spent on ‖w‖, and in regression the rest on labels
    norm_part, labels = np.zeros(len(w)), np.zeros(S)
    for s, p in enumerate(proposals):
        norm_part[: p.total_way.shape[1]] += q[s] * ball.lipschitz * fill[s] * p.total_way[0]
    if not ball.classifies:
        labels = ball.lipschitz * np.maximum(game.rho - fill * length, 0.0) / game.kappa
    mass_own, mass_flip = q[game.site] * (game.share - b), q[game.site] * b
    rest = game.x.T @ (mass_own * a + mass_flip * a_flip) + norm_part
    s, constant = subgradient(game, w, rest)
    return Choice(
        np.nan, rest + s, q, mass_own, mass_flip, a, a_flip, norm_part, float(q @ labels) + constant, s
    )  # fmt: skip


def filled(rho: np.ndarray, spent: np.ndarray) -> np.ndarray:
    """The factor of each site's transport that leaves it within the radius, or uses up what is left where that is little.

    A method that has not come to its end exactly leaves a small share of the radius; to leave it unused would count
    in the first order of that error.
    """
    ratio = rho / np.maximum(spent, 1e-300)
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
    return horizon.least(*repair(game, choose(game, w, proposals), horizon.T))
