"""The client's step where the worst case has no closed form: polyhedra Cx ≤ d, and boxes under another metric than ℓ1.

Corollaries B.2 to B.4 give every sample i and piece k of the loss multipliers φ ≥ 0 of the half-spaces,

    α ≥ h_k(w, λ) + φᵀ(d − Cx̂),   ‖r‖_* ≤ λ,   r = slope·w − Cᵀφ.

It is the interior-point method of `robust_step`, with Mehrotra's predictor and corrector, in which φ and α are
eliminated sample by sample. A Newton step is a least-squares problem: every slack s with multiplier z is drawn to
ẑ/θ with the weight θ = z/s. Seen from (r, s_k), φ adds to the inverse weights: N = diag of those + BᵀΘ⁻¹B with
B = [C, d − Cx̂], as large as there are columns of X whatever the number of half-spaces. With T N Tᵀ = 1 and s_k in the
last row of the triangular T, only that row sees α: what is left of a piece is a slope in (w, λ), that of the sample
where it has moved to, and a weight g; pieces meet in pairs as in `robust_step`, and nothing cancels. What remains is a
system in (w, λ), and memory is linear in samples times columns².

Multipliers are the worst-case distribution itself: z_k/m is the share of a sample that goes by piece k, and the
multiplier of r, over z_k, is how far.

Arrays have samples on their last axis, pieces before them.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus import losses
from foedus.algorithm import select, state
from foedus.local.cone import circle, cone_step, flip, jdot, scale_by, scaling_point, uncircle
from foedus.local.lapack import cholesky, cholesky_solve
from foedus.local.robust_form import Form
from foedus.local.robust_step import BACK, GAP, PATIENCE, RESIDUAL, STEPS, evenness
from foedus.local.worst_case import Ball, Radius
from foedus.losses import signed


@state
class Moves:
    """(ŵ, v) with its λ, where the worst case sends each sample, and how well the method ended.

    `mass` is the share of each sample that goes by each piece, and `way` its displacement times that share, a label's
    part last where labels move.
    """

    w: Array
    lam: Array
    v: Array
    mass: Array  # (pieces, rows)
    way: Array  # (columns, pieces, rows)
    gap: Array
    residual: Array
    steps: Array


@dataclass(frozen=True)
class _Plan:
    """What is fixed when a program is compiled."""

    metric: str
    width: int  # columns that move
    label: bool  # whether a label moves too, within the support
    floored: bool  # whether a label moves that the support leaves alone
    zero: bool  # whether one piece of the loss is 0
    held: int  # entries of (w, λ) that are drawn to b
    fixed: bool  # whether w stays

    @property
    def first(self) -> int:
        """How many columns stand before r: λ, where the metric ties it to all of r at once."""
        return int(self.metric != "l1")

    @property
    def lanes(self) -> slice:
        """The columns of which each has a bound of its own: |r_j| ≤ λ, or κλ for the label."""
        return slice(0 if self.metric == "l1" else self.width, self.width + self.label)


@state
class _Given:
    """The samples as the method sees them: pieces h = constant + slope·xᵀw − toll·λ, and their room d − Cx̂."""

    x: Array  # (columns, rows)
    omega: Array
    slope: Array  # (pieces, rows)
    constant: Array
    toll: Array  # (pieces,)
    turn: Array  # of the label's column of r: −slope, (pieces, rows)
    C: Array  # (half-spaces, columns of r)
    room: Array  # (half-spaces, rows)
    reach: Array  # (lanes,): 1, or κ for the label
    rho: Array
    floor: Array


@state
class _Rows:
    """One number for every inequality: the slacks, or their multipliers."""

    v: Array  # v ≥ V; its multiplier is m = v − a
    piece: Array  # (pieces, rows)
    zero: Array  # (rows,), or nothing
    phi: Array  # (half-spaces, pieces, rows)
    lane: Array  # (2, lanes, pieces, rows): reach·λ − r and reach·λ + r
    side: Array  # (2, columns, pieces, rows), metric ℓ∞: t − r and t + r with t ≥ |r|
    total: Array  # (pieces, rows), likewise: λ − Σt
    floor: Array  # λ less its least
    cone: Array  # (1 + columns, pieces, rows), metric ℓ2: (λ, r)


@state
class _Point:
    y: Array  # (w, λ)
    alpha: Array
    s: _Rows
    z: _Rows


@state
class _Inner:
    """The inverse weights of (e,) r and s_k without what φ adds: a diagonal, e with r, and uuᵀ upon r."""

    own: Array  # (columns, pieces, rows)
    cross: Array  # (columns that move, pieces, rows), or nothing
    u: Array  # likewise

    def times(self, v: Array) -> Array:
        """The product with v. (columns, pieces, rows)"""
        product, width = self.own * v, self.cross.shape[0]
        if width:
            product = product.at[0].add(jnp.sum(self.cross * v[1 : width + 1], axis=0))
            product = product.at[1 : width + 1].add(self.cross * v[0])
        if self.u.shape[0]:
            product = product.at[1 : width + 1].add(self.u * jnp.sum(self.u * v[1 : width + 1], axis=0))
        return product


@state
class _System:
    lower: Array
    g_m: Array
    weight_m: Array
    inner: _Inner
    T: Array
    tau: Array
    g: Array  # (pieces, or one more for that which is 0, rows)
    slopes: Array  # (w and λ, pieces as in g, rows)
    beta: Array  # how λ enters (e,) r, (columns, pieces, rows)
    sigma: Array  # (columns that move, pieces, rows): e = λ − σᵀr, where the metric ties λ to r
    theta: _Rows
    point: Array  # of the cone
    scale: Array


def _given(
    form: Form, plan: _Plan, x: Array, y: Array, omega: Array, radius: Radius, C: Array, d: Array
) -> _Given:
    ball, toll = form.ball, jnp.zeros(1)
    # filling rows are copies of a sample, so that none of them shortens a step
    some = jnp.argmax(omega)
    x, y = jnp.where((omega > 0)[:, None], x, x[some]), jnp.where(omega > 0, y, y[some])
    if ball.classifies:
        sign = signed(y)
        slope, constant = -sign[None], jnp.ones((1, y.shape[0]))
        if form.turns:
            slope, constant = jnp.stack([-sign, sign]), jnp.ones((2, y.shape[0]))
            toll = jnp.stack([jnp.zeros(()), radius.kappa])
    else:
        up, down = ball.slopes
        tube = ball.loss.eps if isinstance(ball.loss, losses.EpsilonInsensitive) else 0.0
        slope = jnp.stack([jnp.full(y.shape, up), jnp.full(y.shape, -down)])
        constant, toll = -slope * y - tube, jnp.zeros(2)
    room = d[:, None] - C[:, : plan.width] @ x[:, : plan.width].T
    if C.shape[1] > plan.width:
        room = room - C[:, plan.width :] * y
    reach = jnp.ones(plan.width + 1).at[plan.width].set(radius.kappa)
    floor = ball.lipschitz / radius.kappa if plan.floored else jnp.zeros(())
    return _Given(
        x.T, omega, slope, constant, toll, -slope, C[:, : plan.width + plan.label],
        jnp.maximum(room, 0.0), reach[plan.lanes], radius.rho, floor,
    )  # fmt: skip


def _heights(given: _Given, y: Array) -> Array:
    """h of every piece. (pieces, rows)"""
    return given.constant + given.slope * (y[:-1] @ given.x) - given.toll[:, None] * y[-1]


def _along(point: _Point, direction: _Point, step: Array) -> _Point:
    return jax.tree.map(lambda a, d: a + step * d, point, direction)


def _residue(plan: _Plan, given: _Given, w: Array, phi: Array) -> Array:
    """r = slope·w − Cᵀφ, and for a label −slope − cᵀφ. (columns, pieces, rows)"""
    r = given.slope * w[: plan.width, None, None]
    r = jnp.concatenate([r, given.turn[None]]) if plan.label else r
    return r - jnp.tensordot(given.C.T, phi, 1)


def _start(plan: _Plan, given: _Given, a: Array, b: Array, w: Array) -> _Point:
    """An interior point at w."""
    (J, rows), K = given.room.shape, given.slope.shape[0]
    size = 1.0 + jnp.max(jnp.abs(w))
    phi = jnp.full((J, K, rows), 0.1 * size / J)
    r = _residue(plan, given, w, phi)
    moving, none = r[: plan.width], jnp.zeros((0, K, rows))
    t = jnp.abs(moving) + 0.05 * size
    length = {
        "l1": jnp.zeros(()), "l2": jnp.max(jnp.sqrt(jnp.sum(moving**2, axis=0))), "linf": jnp.max(jnp.sum(t, axis=0)),
    }[plan.metric]  # fmt: skip
    lane = r[plan.lanes]
    longest = jnp.max(jnp.abs(lane) / given.reach[:, None, None], initial=0.0)
    lam = 1.0 + 1.1 * jnp.maximum(jnp.maximum(length, longest), given.floor)
    if plan.held > w.shape[0]:
        lam = jnp.maximum(lam, b[-1])
    y = jnp.append(w, lam)
    pieces = _heights(given, y) + jnp.sum(given.room[:, None] * phi, axis=0)
    alpha = jnp.maximum(jnp.max(pieces, axis=0), 0.0) + 1.0
    value = given.rho * lam + jnp.dot(given.omega, alpha)
    m = jnp.maximum(value - a, 0.0) + 1.0
    bound = given.reach[:, None, None] * lam
    s = _Rows(
        a + m - value, alpha - pieces, alpha if plan.zero else jnp.zeros(0), phi, jnp.stack([bound - lane, bound + lane]),
        jnp.stack([t - moving, t + moving]) if plan.metric == "linf" else jnp.zeros((2, 0, K, rows)),
        lam - jnp.sum(t, axis=0) if plan.metric == "linf" else jnp.zeros((0, rows)),
        (lam - given.floor)[None] if plan.floored else jnp.zeros(0),
        jnp.concatenate([jnp.full((1, K, rows), lam), moving]) if plan.metric == "l2" else none,
    )  # fmt: skip
    weak = evenness(given.omega)
    each = m / (K + plan.zero)
    z = jax.tree.map(lambda slack: each / slack, s)
    cone = each * flip(s.cone) / jdot(s.cone, s.cone) if plan.metric == "l2" else none
    return _Point(y, alpha, s, z.__class__(m, z.piece, z.zero, z.phi, z.lane, z.side, z.total, weak * z.floor, cone))


def _whiten(N: Array) -> Array:
    """The lower triangular T with T N Tᵀ = 1, for a batch on the last axes."""
    index = jnp.arange(N.shape[0]).reshape(-1, *(1,) * (N.ndim - 2))
    across = index[:, None]

    def eliminate(j: Any, M: Array) -> Array:
        # in place: columns before j hold what the elimination did to the unit matrix
        factor = jnp.where(index > j, M[:, j] / M[j, j], 0.0)[:, None]
        return jnp.where((across > j) & (index == j), -factor, M - factor * M[j])

    M = jax.lax.fori_loop(0, N.shape[0], eliminate, N)
    size = jnp.sqrt(jnp.abs(jnp.sum(jnp.where(across == index, M, 0.0), axis=1)))
    return jnp.where(across > index, M, jnp.where(across == index, 1.0, 0.0)) / size[:, None]


def _met(plan: _Plan, given: _Given, inner: _Inner, sigma: Array, loose: Array) -> Array:
    """N: the inverse weights with what φ adds."""
    width, (_, K, rows) = plan.width, loose.shape
    squares = (given.C[:, :, None] * given.C[:, None, :]).reshape(given.C.shape[0], -1)
    among = jnp.tensordot(squares.T, loose, 1).reshape(given.C.shape[1], given.C.shape[1], K, rows)
    roomy = loose * given.room[:, None]
    across = jnp.tensordot(given.C.T, roomy, 1)
    corner = [across, jnp.sum(roomy * given.room[:, None], axis=0)[None]]
    top = []
    if plan.first:
        turned = -jnp.sum(among[:, :width] * sigma, axis=1)
        shifted = -jnp.sum(across[:width] * sigma, axis=0)[None]
        edge = -jnp.sum(turned[:width] * sigma, axis=0)[None]
        turned = turned.at[:width].add(inner.cross)
        top, corner = [jnp.concatenate([edge, turned, shifted])[None]], [shifted, *corner]
        if inner.u.shape[0]:
            among = among.at[:width, :width].add(inner.u[:, None] * inner.u)
        among = jnp.concatenate([turned[:, None], among], axis=1)
    body = jnp.concatenate([among, across[:, None]], axis=1)
    N = jnp.concatenate([*top, body, jnp.concatenate(corner)[None]])
    return N + jnp.eye(N.shape[0])[:, :, None, None] * inner.own


def _linearise(plan: _Plan, given: _Given, at: _Point) -> _System:
    """The factorised Newton system at a point."""
    theta = jax.tree.map(lambda z, s: z / s, at.z, at.s)
    tied, width, (K, rows) = plan.first, plan.width, given.slope.shape
    size = tied + width + plan.label + 1
    omega, none = given.omega, jnp.zeros((0, K, rows))
    point, scale, sigma, cross, u, first = none, none[0:0], none, none, none, []
    if plan.metric == "l2":
        point, scale = scaling_point(at.s.cone, at.z.cone)
        long = jnp.sqrt(jnp.sum(point[1:] ** 2, axis=0))
        sigma, sharp = point[1:] / jnp.maximum(long, 1e-300), (scale / (point[0] + long)) ** 2
        first = [(2.0 * sharp)[None], jnp.broadcast_to(scale**2, sigma.shape)]
        cross, u = -sharp * sigma, jnp.sqrt(2.0) * scale * point[1:]
    elif plan.metric == "linf":
        less, more = 1.0 / theta.side
        sigma, tight = jnp.where(more > less, 1.0, -1.0), jnp.minimum(less, more)
        first = [(1.0 / theta.total + jnp.sum(tight, axis=0))[None], 0.25 * (less + more)]
        cross = -0.5 * sigma * tight
    lanes = slice(tied + plan.lanes.start, size - 1)
    both = theta.lane[0] + theta.lane[1]
    reach = given.reach[:, None, None]
    column = jnp.zeros((size - 1, K, rows)).at[:tied].set(1.0)
    column = column.at[lanes].set(reach * (theta.lane[1] - theta.lane[0]) / both)
    bend = jnp.sum(4.0 * reach**2 * theta.lane[0] * theta.lane[1] / both, axis=0)  # of λ alone
    inner = _Inner(jnp.concatenate([*first, 1.0 / both, 1.0 / theta.piece[None]]), cross, u)
    loose = 1.0 / theta.phi
    T = _whiten(_met(plan, given, inner, sigma, loose))
    # the last pivot anew, as a sum of squares: eliminated, it is a difference of large numbers
    last = T[-1]
    met = jnp.tensordot(given.C, _upon_r(plan, last[:-1], sigma), 1) + given.room[:, None] * last[-1]
    T = T.at[-1].divide(jnp.sqrt(jnp.sum(met**2 * loose, axis=0) + jnp.sum(last * inner.times(last), axis=0)))
    root, tau, g = T[:-1, :-1], T[-1, :-1] / T[-1, -1], T[-1, -1] ** 2
    dim = given.x.shape[0]
    free = 0.0 if plan.fixed else 1.0
    moved = jnp.concatenate([given.x, jnp.zeros((1, rows))])[:, None] * jnp.ones((1, K, 1))
    moved = moved.at[:width].add(-_upon_r(plan, tau, sigma)[:width]) * given.slope * free
    slopes = moved.at[dim].set(-given.toll[:, None] - jnp.sum(tau * column, axis=0))
    if plan.zero:
        g = jnp.concatenate([g, theta.zero[None]])
        slopes = jnp.concatenate([slopes, jnp.zeros((dim + 1, 1, rows))], axis=1)
    share = jnp.sqrt(omega)
    upon = root[:, tied : tied + width] - (root[:, :1] * sigma if tied else 0.0)
    seen = jnp.concatenate([upon * given.slope * free, _ahead(root, column)[:, None]], axis=1) * share
    hessian = jnp.tensordot(seen, seen, ((0, 2, 3), (0, 2, 3)))
    index = jnp.append(jnp.arange(width), dim)
    hessian = jnp.zeros((dim + 1, dim + 1)).at[index[:, None], index].set(hessian)
    whole = jnp.sum(g, axis=0)
    for k, j, weight in _pairs(g, whole):
        apart = (slopes[:, k] - slopes[:, j]) * jnp.sqrt(omega * weight)
        hessian = hessian + apart @ apart.T
    hessian = hessian.at[dim, dim].add(jnp.sum(omega * bend) + jnp.sum(theta.floor))
    hessian = hessian + jnp.diag((jnp.arange(dim + 1) < (dim if plan.fixed else plan.held)).astype(float))
    g_m = jnp.einsum("ikn,kn,n->i", slopes, g / whole, omega).at[dim].add(given.rho)
    weight_m = 1.0 + 1.0 / theta.v + jnp.dot(omega, 1.0 / whole)
    hessian = hessian + jnp.outer(g_m, g_m) / weight_m
    # a direction in which nothing bends would stop the factorisation; the shift is far below every tolerance
    hessian = hessian + 1e-14 * jnp.diag(jnp.diag(hessian) + 1.0)
    return _System(cholesky(hessian), g_m, weight_m, inner, T, tau, g, slopes, column, sigma, theta, point, scale)


def _brought(plan: _Plan, given: _Given, sigma: Array, phi: Array) -> Array:
    """What φ takes from (e,) r and s_k."""
    taken = jnp.tensordot(given.C.T, phi, 1)
    first = [-jnp.sum(sigma * taken[: plan.width], axis=0)[None]] if plan.first else []
    return jnp.concatenate([*first, taken, jnp.sum(given.room[:, None] * phi, axis=0)[None]])


def _short(plan: _Plan, given: _Given, sigma: Array, at: _Point) -> Array:
    """By how much the slacks of (e,) r and s_k have come away from what (w, λ, α, φ) make them."""
    lane = 0.5 * (at.s.lane[1] - at.s.lane[0])
    own = {"l1": [lane], "l2": [at.s.cone[1:], lane], "linf": [0.5 * (at.s.side[1] - at.s.side[0]), lane]}[plan.metric]
    r = _residue(plan, given, at.y[:-1], at.s.phi) - jnp.concatenate(own)
    piece = at.alpha - _heights(given, at.y) - jnp.sum(given.room[:, None] * at.s.phi, axis=0) - at.s.piece
    first = [-jnp.sum(sigma * r[: plan.width], axis=0)[None]] if plan.first else []
    return jnp.concatenate([*first, r, piece[None]])


def _upon_r(plan: _Plan, pull: Array, sigma: Array) -> Array:
    """What a pull on (e,) r is upon r alone."""
    return pull[1:].at[: plan.width].add(-pull[0] * sigma) if plan.first else pull


def _ahead(T: Array, v: Array) -> Array:
    """Tv, written out: XLA makes slow products of many small matrices."""
    return jnp.sum(T * v[None], axis=1)


def _back(T: Array, v: Array) -> Array:
    """Tᵀv."""
    return jnp.sum(T * v[:, None], axis=0)


def _pairs(g: Array, whole: Array) -> list[tuple[int, int, Array]]:
    pieces = range(g.shape[0])
    return [(k, j, g[k] * g[j] / whole) for k in pieces for j in pieces if k < j]


def _direction(
    plan: _Plan, given: _Given, at: _Point, system: _System, residual: Array, short: Array, b: Array, hat: _Rows
) -> _Point:
    """The Newton direction on which multipliers become ẑ − θ·ds; of a cone `hat` is W ẑ."""
    theta, tied, width, dim = system.theta, plan.first, plan.width, given.x.shape[0]
    omega, K = given.omega, given.slope.shape[0]
    # where every slack is drawn to
    parts = []
    if plan.metric == "l2":
        long = system.point[0] + jnp.sqrt(jnp.sum(system.point[1:] ** 2, axis=0))
        sharp = (hat.cone[0] - jnp.sum(system.sigma * hat.cone[1:], axis=0)) / long
        parts += [system.scale * sharp[None], system.scale * scale_by(system.point, hat.cone)[1:]]
    elif plan.metric == "linf":
        less, more = hat.side / theta.side
        tight = jnp.sum(jnp.where(system.sigma > 0, less, more), axis=0) + hat.total / theta.total
        parts += [tight[None], 0.5 * (more - less)]
    both = theta.lane[0] + theta.lane[1]
    parts += [(hat.lane[1] - hat.lane[0]) / both, (hat.piece / theta.piece)[None]]
    loose = hat.phi / theta.phi
    near = jnp.concatenate(parts)
    drawn = near + _brought(plan, given, system.sigma, loose) - short
    root = system.T[:-1, :-1]
    back = _back(root, _ahead(root, drawn[:-1]))
    constant = drawn[-1] + jnp.sum(system.tau * drawn[:-1], axis=0)
    if plan.zero:
        constant = jnp.concatenate([constant, (hat.zero / theta.zero)[None]])
    right = jnp.zeros(dim + 1)
    if not plan.fixed:
        upon = _upon_r(plan, back, system.sigma)[:width]
        right = right.at[:width].add(jnp.einsum("ikn,kn,n->i", upon, given.slope, omega))
        right = right.at[: plan.held].add(b - at.y[: plan.held])
    pushed = 2.0 * given.reach[:, None, None] * (theta.lane[1] * hat.lane[0] + theta.lane[0] * hat.lane[1]) / both
    bent = jnp.sum(back * system.beta, axis=0) + jnp.sum(pushed, axis=0)
    right = right.at[dim].add(jnp.sum(omega * bent) + jnp.sum(hat.floor))
    whole = jnp.sum(system.g, axis=0)
    for k, j, weight in _pairs(system.g, whole):
        right = right - (system.slopes[:, k] - system.slopes[:, j]) @ (omega * weight * (constant[k] - constant[j]))
    mean = jnp.sum(system.g * constant, axis=0) / whole
    start = jnp.dot(omega, mean) + at.z.v + hat.v / theta.v - residual
    dy = cholesky_solve(system.lower, right - system.g_m * (start / system.weight_m))
    m = (jnp.dot(system.g_m, dy) + start) / system.weight_m
    ends = jnp.einsum("ikn,i->kn", system.slopes, dy) + constant
    dalpha = (jnp.sum(system.g * ends, axis=0) - m) / whole
    # of each piece, dα less where it ends: written so that a piece that holds all of a sample has its multiplier m
    over = jnp.stack([(jnp.sum(system.g * (ends - end), axis=0) - m) / whole for end in ends])
    dw, dlam = (jnp.zeros(dim) if plan.fixed else dy[:dim]), dy[dim]
    rise = given.slope * (dw @ given.x) - given.toll[:, None] * dlam
    turned = given.slope * dw[:width, None, None]
    wanted = system.beta * dlam
    wanted = wanted.at[tied : tied + width].add(turned)
    if tied:
        wanted = wanted.at[0].add(-jnp.sum(system.sigma * turned, axis=0))
    white = _ahead(root, wanted - drawn[:-1])
    white = jnp.concatenate([white, (system.T[-1, -1] * over[:K])[None]])
    pull = _back(system.T, white)
    upon = _upon_r(plan, pull[:-1], system.sigma)
    z_phi = -jnp.tensordot(given.C, upon, 1) - given.room[:, None] * pull[-1]
    dphi = loose - z_phi / theta.phi
    # slacks move as their multipliers say; θ of a φ that stays positive is tiny, and divides rounding, so that they miss
    # what φ says by a little: a second solve corrects φ, and what is still missed is left to the next step
    ends = near + system.inner.times(pull)
    wanted = jnp.concatenate([wanted, (dalpha - rise)[None]]) + short
    missed = wanted - ends - _brought(plan, given, system.sigma, dphi)
    again = _back(system.T, _ahead(system.T, missed))
    more = jnp.tensordot(given.C, _upon_r(plan, again[:-1], system.sigma), 1) + given.room[:, None] * again[-1]
    dphi = dphi + more / theta.phi
    dr = (ends[:-1] - system.beta * dlam)[tied:]
    lane, bound, side, total, cone = dr[plan.lanes], given.reach[:, None, None] * dlam, at.s.side, at.s.total, at.s.cone
    dr = dr[:width]
    if plan.metric == "linf":
        near, span = hat.side / theta.side, theta.side[0] + theta.side[1]
        t = (theta.side[0] * (near[0] + dr) + theta.side[1] * (near[1] - dr)) / span
        rest = dlam - hat.total / theta.total - jnp.sum(t, axis=0)
        t = t + rest / (1.0 / theta.total + jnp.sum(1.0 / span, axis=0)) / span
        side, total = jnp.stack([t - dr, t + dr]), dlam - jnp.sum(t, axis=0)
    elif plan.metric == "l2":
        cone = jnp.concatenate([jnp.full((1, K, omega.shape[0]), dlam), dr])
    ds = _Rows(
        (hat.v - m) / theta.v, ends[-1], dalpha if plan.zero else at.s.zero, dphi,
        jnp.stack([bound - lane, bound + lane]), side, total, jnp.full(at.s.floor.shape, dlam), cone,
    )  # fmt: skip
    # multipliers from the pulls: so they meet stationarity to rounding, however steep the weights
    z_side, z_total, z_cone = at.z.side, at.z.total, at.z.cone
    if plan.metric == "linf":
        z_total = -pull[0]
        z_side = 0.5 * jnp.stack([z_total + upon[:width], z_total - upon[:width]])
    elif plan.metric == "l2":
        z_cone = -jnp.concatenate([pull[:1], upon[:width]])
    z = _Rows(
        m, -pull[-1], -system.g[-1] * over[-1] if plan.zero else at.z.zero, z_phi,
        hat.lane - theta.lane * ds.lane, z_side, z_total, hat.floor - theta.floor * ds.floor, z_cone,
    )  # fmt: skip
    dz = jax.tree.map(lambda after, before: after - before, z, at.z)
    return _Point(dy.at[:dim].set(dw), dalpha, ds, dz)


def _gap(plan: _Plan, given: _Given, s: _Rows, z: _Rows) -> Array:
    """The sum of the complementarity products, a sample's weighed with its share."""
    each = jnp.sum(s.piece * z.piece, axis=0) + jnp.sum(s.phi * z.phi, axis=(0, 1))
    each = each + jnp.sum(s.lane * z.lane, axis=(0, 1, 2)) + jnp.sum(s.side * z.side, axis=(0, 1, 2))
    each = each + jnp.sum(s.total * z.total, axis=0) + jnp.sum(s.cone * z.cone, axis=(0, 1))
    if plan.zero:
        each = each + s.zero * z.zero
    return jnp.dot(given.omega, each) + s.v * z.v + jnp.sum(s.floor * z.floor)


def _pulls(plan: _Plan, z: _Rows) -> Array:
    """The multiplier of r: mass times displacement. (columns, pieces, rows)"""
    lane = z.lane[0] - z.lane[1]
    if plan.metric == "l1":
        return lane
    return jnp.concatenate([z.side[0] - z.side[1] if plan.metric == "linf" else -z.cone[1:], lane])


def _residuals(plan: _Plan, given: _Given, at: _Point, a: Array, b: Array) -> tuple[Array, Array]:
    """By how much v = a + m misses V + s_v, and the largest violation of stationarity."""
    z, dim = at.z, given.x.shape[0]
    way = _pulls(plan, z)
    value = given.rho * at.y[dim] + jnp.dot(given.omega, at.alpha)
    own = given.slope * given.omega
    in_w = given.x @ jnp.sum(own * z.piece, axis=0)
    in_w = in_w.at[: plan.width].add(jnp.einsum("ikn,kn->i", way[: plan.width], own))
    bound = jnp.sum(given.reach[:, None, None] * (z.lane[0] + z.lane[1]), axis=(0, 1)) + jnp.sum(z.total, axis=0)
    bound = bound + jnp.sum(z.cone[:1], axis=(0, 1)) + jnp.sum(given.toll[:, None] * z.piece, axis=0)
    in_lam = given.rho * z.v - jnp.dot(given.omega, bound) - jnp.sum(z.floor)
    slope = jnp.append(in_w, in_lam)
    slope = slope.at[: plan.held].add(at.y[: plan.held] - b)
    slope = slope[dim:] if plan.fixed else slope
    in_alpha = z.v - jnp.sum(z.piece, axis=0) - (z.zero if plan.zero else 0.0)
    in_phi = z.piece * given.room[:, None] - z.phi - jnp.tensordot(given.C, way, 1)
    missed = a + z.v - value - at.s.v
    parts = [jnp.max(jnp.abs(part)) for part in (slope, in_alpha, in_phi, missed)]
    return missed, jnp.max(jnp.stack(parts))


def _blocked(plan: _Plan, at: _Point, d: _Point) -> Array:
    """The inverse of the longest step that keeps slacks and multipliers positive."""
    inverse = jnp.zeros(())
    for values, changes in ((at.s, d.s), (at.z, d.z)):
        for field in dataclasses.fields(_Rows):
            value, change = getattr(values, field.name), getattr(changes, field.name)
            if field.name == "cone":
                ends = cone_step(value, change) if plan.metric == "l2" else jnp.zeros(0)
            else:
                ends = -change / value
            inverse = jnp.maximum(inverse, jnp.max(ends, initial=0.0))
    return inverse


def _corrector(
    plan: _Plan, given: _Given, at: _Point, system: _System, mu: Array, weak: Array, affine: _Point
) -> _Rows:
    """ẑ towards products of σμ, with σ by how far the predictor reaches, and with its second-order terms."""
    reach = jnp.minimum(1.0, BACK / jnp.maximum(_blocked(plan, at, affine), BACK))
    ahead = _along(at, affine, reach)
    mu = mu * jnp.clip((_gap(plan, given, ahead.s, ahead.z) / _gap(plan, given, at.s, at.z)) ** 3, 1e-8, 1.0)
    hat = jax.tree.map(lambda s, ds, dz: (mu - ds * dz) / s, at.s, affine.s, affine.z)
    hat = dataclasses.replace(
        hat, v=(weak * mu - affine.s.v * affine.z.v) / at.s.v,
        floor=(weak * mu - affine.s.floor * affine.z.floor) / at.s.floor,
    )  # fmt: skip
    if plan.metric == "l2":
        same = system.scale * scale_by(system.point, at.z.cone)
        turned = scale_by(flip(system.point), affine.s.cone) / system.scale
        aim = -circle(turned, system.scale * scale_by(system.point, affine.z.cone))
        hat = dataclasses.replace(hat, cone=uncircle(same, aim.at[0].add(mu)))
    return hat


@partial(jax.jit, static_argnames=("form", "fixed"))
def project(
    form: Form, x: Array, y: Array, omega: Array, radius: Radius, C: Array, d: Array, a: Array, b: Array,
    fixed: bool = False,
) -> Moves:  # fmt: skip
    """Project (b, a) onto the epigraph of the worst-case loss, as `robust_step.project`; `fixed`: with w = b.

    C and d are the half-spaces Cx ≤ d, with a column more where they hold labels too.
    """
    ball, dim = form.ball, x.shape[1]
    width = dim - ball.intercept
    labels = form.flips and not ball.classifies
    plan = _Plan(
        ball.metric, width, labels and C.shape[1] > width, labels and C.shape[1] == width,
        not isinstance(ball.loss, losses.Pinball), 0 if fixed else form.held(dim), fixed,
    )  # fmt: skip
    given = _given(form, plan, x, y, omega, radius, C, d)
    held = jnp.zeros(0) if fixed else b
    first = _start(plan, given, a, held, b[:dim])
    weak, K = evenness(omega), given.slope.shape[0]
    each = K * (1 + given.room.shape[0] + 2 * given.reach.shape[0]) + plan.zero
    each = each + K * {"l1": 0, "l2": 1, "linf": 2 * width + 1}[plan.metric]
    products = each + weak * (1 + plan.floored)
    scale = 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b))

    def merit(gap: Array, residual: Array) -> Array:
        return jnp.maximum(gap / GAP, residual / RESIDUAL) / scale

    def going(loop):
        _, _, best, _, k, since = loop
        return (best > 1.0) & (k < STEPS) & (since < PATIENCE)

    def body(loop):
        at, kept, best, measured, k, since = loop
        system = _linearise(plan, given, at)
        gap = _gap(plan, given, at.s, at.z)
        missed, residual = _residuals(plan, given, at, a, held)
        better = merit(gap, residual) < best  # false for NaN
        kept = select(better, at, kept)
        best = jnp.where(better, merit(gap, residual), best)
        measured = jnp.where(better, jnp.stack([gap, residual]), measured)
        mu = gap / products
        short = _short(plan, given, system.sigma, at)

        def towards(_: Any, ahead: tuple[_Rows, _Point]) -> tuple[_Rows, _Point]:
            direction = _direction(plan, given, at, system, missed, short, held, ahead[0])
            return _corrector(plan, given, at, system, mu, weak, direction), direction

        # first the predictor, whose products are drawn to 0, then the corrector: one program for both
        _, direction = jax.lax.fori_loop(0, 2, towards, (jax.tree.map(jnp.zeros_like, at.z), at))
        step = jnp.minimum(1.0, BACK / jnp.maximum(_blocked(plan, at, direction), BACK))
        return _along(at, direction, step), kept, best, measured, k + 1, jnp.where(better | (best > 1e4), 0, since + 1)

    zero = jnp.zeros((), int)
    blank = (first, first, jnp.asarray(jnp.finfo(float).max), jnp.full(2, jnp.inf), zero, zero)
    _, at, _, (gap, residual), k, _ = jax.lax.while_loop(going, body, blank)
    m = jnp.sum(at.z.piece, axis=0) + (at.z.zero if plan.zero else 0.0)
    way = _pulls(plan, at.z)
    return Moves(at.y[:dim], at.y[dim], a + at.z.v, at.z.piece / m, way / m, gap, residual, k)
