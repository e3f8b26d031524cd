"""The Newton system of the worst case over a polyhedron, with φ and α eliminated sample by sample.

A Newton step is a least-squares problem: every slack s with multiplier z is drawn to ẑ/θ with the weight θ = z/s. Seen
from (r, s_k), φ adds to the inverse weights: N = those of the metric and of s_k + BᵀΘ⁻¹B with B = [C, d − Cx̂], as
large as there are columns of X whatever the number of half-spaces. With T N Tᵀ = 1 and s_k in the last row of the
triangular T, only that row sees α: what is left of a piece is a slope in (w, λ), that of the sample where it has moved
to, and a weight g. Pieces meet in pairs as in `robust_step`, and a system in (w, λ) remains.

Rounding is kept away from the answer in four places. The metrics ℓ2 and ℓ∞ tie λ to all of r, and where ‖r‖_* = λ the
weights of λ and r differ by their square: so e = λ − σᵀr stands for λ, with σ the subgradient of the norm, and all its
entries are known without a difference. The last pivot, of s_k, is measured as a sum of squares. Multipliers come from
the pulls N⁻¹(…) themselves, so that they meet stationarity. And slacks move as their multipliers say: what φ, whose
weights divide rounding by tiny numbers, misses of that is met by a second solve, and the rest by the next step.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.numerics.cone import scale_by, scaling_point
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.pytrees import state
from foedus.robust.polyhedron_form import Given, Plan, Point, Rows, heights, residue


@state
class Inner:
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
class System:
    lower: Array
    g_m: Array
    weight_m: Array
    inner: Inner
    T: Array
    tau: Array
    g: Array  # (pieces, or one more for that which is 0, rows)
    slopes: Array  # (w and λ, pieces as in g, rows)
    column: Array  # how λ enters (e,) r, (columns, pieces, rows)
    sigma: Array  # (columns that move, pieces, rows): e = λ − σᵀr, where the metric ties λ to r
    theta: Rows
    point: Array  # of the cone
    scale: Array


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


def _met(plan: Plan, given: Given, inner: Inner, sigma: Array, loose: Array) -> Array:
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


def linearise(plan: Plan, given: Given, at: Point) -> System:
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
    inner = Inner(jnp.concatenate([*first, 1.0 / both, 1.0 / theta.piece[None]]), cross, u)
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
    return System(cholesky(hessian), g_m, weight_m, inner, T, tau, g, slopes, column, sigma, theta, point, scale)


def _brought(plan: Plan, given: Given, sigma: Array, phi: Array) -> Array:
    """What φ takes from (e,) r and s_k."""
    taken = jnp.tensordot(given.C.T, phi, 1)
    first = [-jnp.sum(sigma * taken[: plan.width], axis=0)[None]] if plan.first else []
    return jnp.concatenate([*first, taken, jnp.sum(given.room[:, None] * phi, axis=0)[None]])


def primal_residual(plan: Plan, given: Given, sigma: Array, at: Point) -> Array:
    """By how much the slacks of (e,) r and s_k have come away from what (w, λ, α, φ) make them."""
    lane = 0.5 * (at.s.lane[1] - at.s.lane[0])
    own = {"l1": [lane], "l2": [at.s.cone[1:], lane], "linf": [0.5 * (at.s.side[1] - at.s.side[0]), lane]}[plan.metric]
    r = residue(plan, given, at.y[:-1], at.s.phi) - jnp.concatenate(own)
    piece = at.alpha - heights(given, at.y) - jnp.sum(given.room[:, None] * at.s.phi, axis=0) - at.s.piece
    first = [-jnp.sum(sigma * r[: plan.width], axis=0)[None]] if plan.first else []
    return jnp.concatenate([*first, r, piece[None]])


def _upon_r(plan: Plan, pull: Array, sigma: Array) -> Array:
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


def _draws(plan: Plan, system: System, hat: Rows) -> Array:
    """Where (e,) r and s_k are drawn to by their own slacks. (columns, pieces, rows)"""
    theta, parts = system.theta, []
    if plan.metric == "l2":
        long = system.point[0] + jnp.sqrt(jnp.sum(system.point[1:] ** 2, axis=0))
        sharp = (hat.cone[0] - jnp.sum(system.sigma * hat.cone[1:], axis=0)) / long
        parts = [system.scale * sharp[None], system.scale * scale_by(system.point, hat.cone)[1:]]
    elif plan.metric == "linf":
        less, more = hat.side / theta.side
        tight = jnp.sum(jnp.where(system.sigma > 0, less, more), axis=0) + hat.total / theta.total
        parts = [tight[None], 0.5 * (more - less)]
    lane = (hat.lane[1] - hat.lane[0]) / (theta.lane[0] + theta.lane[1])
    return jnp.concatenate([*parts, lane, (hat.piece / theta.piece)[None]])


def _reduced(
    plan: Plan, given: Given, at: Point, system: System, missed: Array, b: Array, hat: Rows, drawn: Array
) -> tuple[Array, Array, Array, Array]:
    """The step of (w, λ), the new m, the step of α, and dα less where each piece ends."""
    theta, dim, omega, g = system.theta, given.x.shape[0], given.omega, system.g
    root = system.T[:-1, :-1]
    back = _back(root, _ahead(root, drawn[:-1]))
    constant = drawn[-1] + jnp.sum(system.tau * drawn[:-1], axis=0)
    if plan.zero:
        constant = jnp.concatenate([constant, (hat.zero / theta.zero)[None]])
    right = jnp.zeros(dim + 1)
    if not plan.fixed:
        upon = _upon_r(plan, back, system.sigma)[: plan.width]
        right = right.at[: plan.width].add(jnp.einsum("ikn,kn,n->i", upon, given.slope, omega))
        right = right.at[: plan.held].add(b - at.y[: plan.held])
    pushed = theta.lane[1] * hat.lane[0] + theta.lane[0] * hat.lane[1]
    pushed = 2.0 * given.reach[:, None, None] * pushed / (theta.lane[0] + theta.lane[1])
    bent = jnp.sum(back * system.column, axis=0) + jnp.sum(pushed, axis=0)
    right = right.at[dim].add(jnp.sum(omega * bent) + jnp.sum(hat.floor))
    whole = jnp.sum(g, axis=0)
    for k, j, weight in _pairs(g, whole):
        right = right - (system.slopes[:, k] - system.slopes[:, j]) @ (omega * weight * (constant[k] - constant[j]))
    start = jnp.dot(omega, jnp.sum(g * constant, axis=0) / whole) + at.z.v + hat.v / theta.v - missed
    dy = cholesky_solve(system.lower, right - system.g_m * (start / system.weight_m))
    dy = dy.at[:dim].set(0.0) if plan.fixed else dy
    m = (jnp.dot(system.g_m, dy) + start) / system.weight_m
    ends = jnp.einsum("ikn,i->kn", system.slopes, dy) + constant
    dalpha = (jnp.sum(g * ends, axis=0) - m) / whole
    # written so that a piece that holds all of a sample has its multiplier m
    over = jnp.stack([(jnp.sum(g * (ends - end), axis=0) - m) / whole for end in ends])
    return dy, m, dalpha, over


def newton_direction(
    plan: Plan, given: Given, at: Point, system: System, missed: Array, short: Array, b: Array, hat: Rows
) -> Point:
    """The Newton direction on which multipliers become ẑ − θ·ds; of a cone `hat` is W ẑ.

    `missed` is what v lacks of its equation, `short` the primal residual, b what (w, λ) is drawn to.
    """
    theta, tied, width, dim = system.theta, plan.first, plan.width, given.x.shape[0]
    near, loose = _draws(plan, system, hat), hat.phi / theta.phi
    drawn = near + _brought(plan, given, system.sigma, loose) - short
    dy, m, dalpha, over = _reduced(plan, given, at, system, missed, b, hat, drawn)
    dw, dlam = dy[:dim], dy[dim]
    turned = given.slope * dw[:width, None, None]
    wanted = (system.column * dlam).at[tied : tied + width].add(turned)
    if tied:
        wanted = wanted.at[0].add(-jnp.sum(system.sigma * turned, axis=0))
    white = _ahead(system.T[:-1, :-1], wanted - drawn[:-1])
    pull = _back(system.T, jnp.concatenate([white, (system.T[-1, -1] * over[: len(given.slope)])[None]]))
    upon = _upon_r(plan, pull[:-1], system.sigma)
    z_phi = -jnp.tensordot(given.C, upon, 1) - given.room[:, None] * pull[-1]
    # slacks move as their multipliers say, and a second solve takes φ along
    moved, dphi = near + system.inner.times(pull), loose - z_phi / theta.phi
    rise = given.slope * (dw @ given.x) - given.toll[:, None] * dlam
    wanted = jnp.concatenate([wanted, (dalpha - rise)[None]]) + short
    again = _back(system.T, _ahead(system.T, wanted - moved - _brought(plan, given, system.sigma, dphi)))
    more = jnp.tensordot(given.C, _upon_r(plan, again[:-1], system.sigma), 1) + given.room[:, None] * again[-1]
    dphi = dphi + more / theta.phi
    dr = (moved[:-1] - system.column * dlam)[tied:]
    lane, bound = dr[plan.lanes], given.reach[:, None, None] * dlam
    lane = jnp.stack([bound - lane, bound + lane])
    ds = Rows(
        (hat.v - m) / theta.v, moved[-1], dalpha if plan.zero else at.s.zero, dphi, lane, at.s.side, at.s.total,
        jnp.full(at.s.floor.shape, dlam), at.s.cone,
    )  # fmt: skip
    z = Rows(
        m, -pull[-1], -system.g[-1] * over[-1] if plan.zero else at.z.zero, z_phi, hat.lane - theta.lane * lane,
        at.z.side, at.z.total, hat.floor - theta.floor * ds.floor, at.z.cone,
    )  # fmt: skip
    if plan.metric == "linf":
        side, total = _sides(system, hat, dr[:width], dlam)
        ds = dataclasses.replace(ds, side=side, total=total)
        z_side = 0.5 * jnp.stack([upon[:width] - pull[0], -pull[0] - upon[:width]])
        z = dataclasses.replace(z, side=z_side, total=-pull[0])
    elif plan.metric == "l2":
        ds = dataclasses.replace(ds, cone=jnp.concatenate([jnp.full((1, *lane.shape[2:]), dlam), dr[:width]]))
        z = dataclasses.replace(z, cone=-jnp.concatenate([pull[:1], upon[:width]]))
    return Point(dy, dalpha, ds, jax.tree.map(lambda after, before: after - before, z, at.z))


def _sides(system: System, hat: Rows, dr: Array, dlam: Array) -> tuple[Array, Array]:
    """How t ∓ r and λ − Σt move, with the best t."""
    theta, near = system.theta, hat.side / system.theta.side
    span = theta.side[0] + theta.side[1]
    t = (theta.side[0] * (near[0] + dr) + theta.side[1] * (near[1] - dr)) / span
    rest = dlam - hat.total / theta.total - jnp.sum(t, axis=0)
    t = t + rest / (1.0 / theta.total + jnp.sum(1.0 / span, axis=0)) / span
    return jnp.stack([t - dr, t + dr]), dlam - jnp.sum(t, axis=0)
