"""The Newton system of the worst case over a polyhedron, with φ and α eliminated sample by sample.

A Newton step is a least-squares problem: every slack s with multiplier z is drawn to its target ẑ/θ with the weight
θ = z/s. The step is computed by three eliminations.

1. φ, for each sample and piece. Minimising over φ adds inverse weights: a problem in (r, s_k) remains, with the matrix
   of inverse weights N = (those of the metric and of s_k) + BᵀΘ⁻¹B, where B = [C, d − Cx̂]. N is as large as there are
   columns of X, whatever the number of half-spaces.
2. r and s_k. With the triangular T for which T N Tᵀ = 1, and s_k last, only the last row of T depends on α. What
   remains of a piece is a slope in (w, λ), that of the sample at the place where it has moved to, and a weight g.
3. α. The pieces of a sample meet in pairs as in `step`, and a system in (w, λ) and m remains, for all samples together.

Four measures keep rounding errors away from the solution.
- The metrics ℓ2 and ℓ∞ tie λ to all of r, and where ‖r‖_* is nearly λ the weights of λ and r are nearly dependent. So
  e = λ − σᵀr takes the place of λ, with σ the subgradient of the norm, and all entries of the matrix in e are formulas
  without a difference of large numbers.
- The last pivot, that of s_k, is computed as a sum of squares.
- Multipliers are computed from the pulls N⁻¹(…) themselves, so that they satisfy stationarity.
- Slacks move as their multipliers say. φ's weights divide rounding by tiny numbers, so that φ may not fit them: a
  second solve with the same factors corrects φ, and the primal residual in the next step the rest.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import state
from foedus.numerics.cone import scale_by, scaling_point
from foedus.robust.polyhedron_form import Inequalities, PolyhedronIterate, PolyhedronLayout, Samples, heights, residue

ROUNDING = 2.0**-54  # the least pivot, as a share of the entry of the diagonal
LEAF, MOST_IN_BLOCKS = 9, 24  # columns of a matrix that is not cut into blocks, because it is small or large


@state
class OwnWeights:
    """The inverse weights of (e,) r and s_k before φ is eliminated: a diagonal, the row of e, and uuᵀ in r."""

    own: Array  # the diagonal, (columns, pieces, rows)
    cross: Array  # between e and r, (columns that move, pieces, rows), or nothing
    u: Array  # (columns that move, pieces, rows), metric ℓ2, or nothing

    def times(self, v: Array) -> Array:
        """The product of this matrix with v. (columns, pieces, rows)"""
        product, width = self.own * v, self.cross.shape[0]
        if width:
            product = product.at[0].add(jnp.sum(self.cross * v[1 : width + 1], axis=0))
            product = product.at[1 : width + 1].add(self.cross * v[0])
        if self.u.shape[0]:
            product = product.at[1 : width + 1].add(self.u * jnp.sum(self.u * v[1 : width + 1], axis=0))
        return product


@state
class PolyhedronSystem:
    """The Newton system in (w, λ), with what the back substitution needs of each sample."""

    hessian: Array  # of the system in (w, λ)
    g_m: Array  # how m enters it: the slope of the worst-case loss
    bend: Array  # by how much that loss falls with m
    own_weights: OwnWeights
    T: Array  # of step 2 above
    tau: Array  # the last row of T over its pivot: how s_k follows (e,) r
    g: Array  # (pieces, or one more for that which is 0, rows)
    slopes: Array  # (w and λ, pieces as in g, rows)
    column: Array  # how λ enters (e,) r, (columns, pieces, rows)
    sigma: Array  # (columns that move, pieces, rows): e = λ − σᵀr, where the metric ties λ to r
    theta: Inequalities
    point: Array  # the scaling point of the cone, metric ℓ2
    scale: Array


def _whiten(N: Array, least: Array) -> Array:
    """The lower triangular T with T N Tᵀ = 1, for a batch on the last axes.

    It eliminates in all samples at once; LAPACK would be called for one small matrix after the other. A matrix is cut
    into blocks that are whitened one after the other, which halves the work; the products of blocks of large matrices
    would take much memory. No pivot is below `least`, one for each column: where entries cancel, rounding may leave 0.
    """
    size, half = N.shape[0], N.shape[0] // 2
    if LEAF < size <= MOST_IN_BLOCKS:
        first, beside = _whiten(N[:half, :half], least[:half]), N[half:, :half]
        factor = jnp.sum(beside[:, None] * first, axis=2)
        rest = _whiten(N[half:, half:] - jnp.sum(factor[:, None] * factor, axis=2), least[half:])
        back = jnp.sum(factor[:, :, None] * first, axis=1)
        lower = -jnp.sum(rest[:, :, None] * back, axis=1)
        top = jnp.concatenate([first, jnp.zeros_like(beside).swapaxes(0, 1)], axis=1)
        return jnp.concatenate([top, jnp.concatenate([lower, rest], axis=1)])
    index = jnp.arange(size, dtype=jnp.uint32).reshape(-1, *(1,) * (N.ndim - 2))

    def eliminate(j: Array, M: Array) -> Array:
        # in place: column j, which is no longer needed, becomes that of the transformed unit matrix times the pivot
        # d_j. Its entries M_ij − f_i d_j would be 0; with 2d_j in the row they are −f_i d_j, without a mask over M
        pivot, row = jnp.maximum(M[j, j], least[j]), M[j]
        factor = jnp.where(index > j, M[:, j] / pivot, 0.0)
        return M - factor[:, None] * jnp.where(index == j, 2.0 * pivot, row)

    # an index without a sign needs no test for one that counts from the end
    M = jax.lax.fori_loop(jnp.uint32(0), jnp.uint32(size), eliminate, N)
    pivots = jnp.maximum(jnp.stack([M[j, j] for j in range(size)]), least)
    lower, unit = (part.reshape(size, size, *(1,) * (N.ndim - 2)) for part in (np.tri(size, k=-1), np.eye(size)))
    return (M * lower / pivots + unit) / jnp.sqrt(pivots)[:, None]


def _inverse_weights(
    layout: PolyhedronLayout, samples: Samples, own_weights: OwnWeights, sigma: Array, loose: Array
) -> Array:
    """The matrix N: the own weights plus BᵀΘ⁻¹B, where `loose` is Θ⁻¹; with e, its row is −σᵀ times that of r."""
    width, (_, K, rows) = layout.width, loose.shape
    squares = (samples.C[:, :, None] * samples.C[:, None, :]).reshape(samples.C.shape[0], -1)
    among = jnp.tensordot(squares.T, loose, 1).reshape(samples.C.shape[1], samples.C.shape[1], K, rows)
    roomy = loose * samples.room[:, None]
    across = jnp.tensordot(samples.C.T, roomy, 1)
    corner = [across, jnp.sum(roomy * samples.room[:, None], axis=0)[None]]
    top = []
    if layout.first:
        e_r = -jnp.sum(among[:, :width] * sigma, axis=1)
        e_s = -jnp.sum(across[:width] * sigma, axis=0)[None]
        e_e = -jnp.sum(e_r[:width] * sigma, axis=0)[None]
        e_r = e_r.at[:width].add(own_weights.cross)
        top, corner = [jnp.concatenate([e_e, e_r, e_s])[None]], [e_s, *corner]
        if own_weights.u.shape[0]:
            among = among.at[:width, :width].add(own_weights.u[:, None] * own_weights.u)
        among = jnp.concatenate([e_r[:, None], among], axis=1)
    body = jnp.concatenate([among, across[:, None]], axis=1)
    N = jnp.concatenate([*top, body, jnp.concatenate(corner)[None]])
    return N + jnp.eye(N.shape[0])[:, :, None, None] * own_weights.own


def linearise(layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate) -> PolyhedronSystem:
    """The Newton system at an iterate, with everything but (w, λ) and m eliminated."""
    theta = jax.tree.map(lambda z, s: z / s, at.z, at.s)
    tied, width, (K, rows) = layout.first, layout.width, samples.slope.shape
    size = tied + width + layout.label + 1
    omega, none = samples.omega, jnp.zeros((0, K, rows))
    point, scale, sigma, cross, u, first = none, none[0:0], none, none, none, []
    # --- the own inverse weights of (e,) r, by the metric ---
    if layout.metric == "l2":
        # the cone's inverse weights are W² = scale²(2ppᵀ − J) with the scaling point p = (p_0, p̄). With σ = p̄/‖p̄‖ its
        # entry of e is scale²·2(p_0 − ‖p̄‖)², and p_0 − ‖p̄‖ = 1/(p_0 + ‖p̄‖) because p_0² − ‖p̄‖² = 1
        point, scale = scaling_point(at.s.cone, at.z.cone)
        long = jnp.sqrt(jnp.sum(point[1:] ** 2, axis=0))
        sigma, sharp = point[1:] / jnp.maximum(long, 1e-300), (scale / (point[0] + long)) ** 2
        first = [(2.0 * sharp)[None], jnp.broadcast_to(scale**2, sigma.shape)]
        cross, u = -sharp * sigma, jnp.sqrt(2.0) * scale * point[1:]
    elif layout.metric == "linf":
        # t is eliminated: of t − r and t + r the tighter one decides about σ, and e collects the tighter ones
        less, more = 1.0 / theta.side
        sigma, tight = jnp.where(more > less, 1.0, -1.0), jnp.minimum(less, more)
        first = [(1.0 / theta.total + jnp.sum(tight, axis=0))[None], 0.25 * (less + more)]
        cross = -0.5 * sigma * tight
    # columns with a bound of their own: two slacks reach·λ ∓ r_j with weights θ_0, θ_1 are one of weight θ_0 + θ_1 on
    # r_j − column·λ, and one on λ alone
    lanes = slice(tied + layout.lanes.start, size - 1)
    both = theta.lane[0] + theta.lane[1]
    reach = samples.reach[:, None, None]
    column = jnp.zeros((size - 1, K, rows)).at[:tied].set(1.0)
    column = column.at[lanes].set(reach * (theta.lane[1] - theta.lane[0]) / both)
    bend = jnp.sum(4.0 * reach**2 * theta.lane[0] * theta.lane[1] / both, axis=0)  # on λ alone
    own_weights = OwnWeights(jnp.concatenate([*first, 1.0 / both, 1.0 / theta.piece[None]]), cross, u)
    loose = 1.0 / theta.phi
    N = _inverse_weights(layout, samples, own_weights, sigma, loose)
    T = _whiten(N, ROUNDING * jnp.stack([N[j, j] for j in range(size)]))
    # the last pivot lᵀNl anew, as a sum of squares: from the elimination it is a difference of large numbers
    last = T[-1]
    phi_part = jnp.tensordot(samples.C, _upon_r(layout, last[:-1], sigma), 1) + samples.room[:, None] * last[-1]
    T = T.at[-1].divide(
        jnp.sqrt(jnp.sum(phi_part**2 * loose, axis=0) + jnp.sum(last * own_weights.times(last), axis=0))
    )
    root, tau, g = T[:-1, :-1], T[-1, :-1] / T[-1, -1], T[-1, -1] ** 2
    # --- the slope of each piece in (w, λ): x at the place where the sample has moved to ---
    dim = samples.x.shape[0]
    free = 0.0 if layout.keep_w else 1.0
    new_x = jnp.concatenate([samples.x, jnp.zeros((1, rows))])[:, None] * jnp.ones((1, K, 1))
    in_w = new_x.at[:width].add(-_upon_r(layout, tau, sigma)[:width]) * samples.slope * free
    slopes = in_w.at[dim].set(-samples.toll[:, None] - jnp.sum(tau * column, axis=0))
    if layout.zero:
        g = jnp.concatenate([g, theta.zero[None]])
        slopes = jnp.concatenate([slopes, jnp.zeros((dim + 1, 1, rows))], axis=1)
    # --- the system in (w, λ): what r keeps of (w, λ), the pairs of pieces, λ's own bounds, and m ---
    share = jnp.sqrt(omega)
    upon = root[:, tied : tied + width] - (root[:, :1] * sigma if tied else 0.0)
    factors = jnp.concatenate([upon * samples.slope * free, _ahead(root, column)[:, None]], axis=1) * share
    hessian = jnp.tensordot(factors, factors, ((0, 2, 3), (0, 2, 3)))
    index = jnp.append(jnp.arange(width), dim)
    hessian = jnp.zeros((dim + 1, dim + 1)).at[index[:, None], index].set(hessian)
    whole = jnp.sum(g, axis=0)
    for k, j, weight in _pairs(g, whole):
        apart = (slopes[:, k] - slopes[:, j]) * jnp.sqrt(omega * weight)
        hessian = hessian + apart @ apart.T
    hessian = hessian.at[dim, dim].add(jnp.sum(omega * bend) + jnp.sum(theta.floor))
    g_m = jnp.einsum("ikn,kn,n->i", slopes, g / whole, omega).at[dim].add(samples.rho)
    bend_m = jnp.dot(omega, 1.0 / whole)
    return PolyhedronSystem(
        hessian, g_m, bend_m, own_weights, T, tau, g, slopes, column, sigma, theta, point, scale
    )  # fmt: skip


def _phi_effect(layout: PolyhedronLayout, samples: Samples, sigma: Array, phi: Array) -> Array:
    """The amount Bᵀφ by which φ lowers (e,) r and s_k."""
    in_r = jnp.tensordot(samples.C.T, phi, 1)
    first = [-jnp.sum(sigma * in_r[: layout.width], axis=0)[None]] if layout.first else []
    return jnp.concatenate([*first, in_r, jnp.sum(samples.room[:, None] * phi, axis=0)[None]])


def primal_residual(layout: PolyhedronLayout, samples: Samples, sigma: Array, at: PolyhedronIterate) -> Array:
    """The difference between (e,) r and s_k as functions of (w, λ, α, φ) and as the slacks have them."""
    lane = 0.5 * (at.s.lane[1] - at.s.lane[0])
    own = {"l1": [lane], "l2": [at.s.cone[1:], lane], "linf": [0.5 * (at.s.side[1] - at.s.side[0]), lane]}[
        layout.metric
    ]
    r = residue(layout, samples, at.y[:-1], at.s.phi) - jnp.concatenate(own)
    piece = at.alpha - heights(samples, at.y) - jnp.sum(samples.room[:, None] * at.s.phi, axis=0) - at.s.piece
    first = [-jnp.sum(sigma * r[: layout.width], axis=0)[None]] if layout.first else []
    return jnp.concatenate([*first, r, piece[None]])


def _upon_r(layout: PolyhedronLayout, pull: Array, sigma: Array) -> Array:
    """The force on r of a pull on (e, r), as e = λ − σᵀr; without e it is the pull itself."""
    return pull[1:].at[: layout.width].add(-pull[0] * sigma) if layout.first else pull


def _ahead(T: Array, v: Array) -> Array:
    """The product Tv, written out: XLA is slow at products of many small matrices."""
    return jnp.sum(T * v[None], axis=1)


def _back(T: Array, v: Array) -> Array:
    """The product Tᵀv."""
    return jnp.sum(T * v[:, None], axis=0)


def _pairs(g: Array, whole: Array) -> list[tuple[int, int, Array]]:
    """The pairs k < j of pieces with their weights g_k g_j/Σg, which elimination of α leaves."""
    pieces = range(g.shape[0])
    return [(k, j, g[k] * g[j] / whole) for k in pieces for j in pieces if k < j]


def _draws(layout: PolyhedronLayout, system: PolyhedronSystem, hat: Inequalities) -> Array:
    """The targets ẑ/θ of (e,) r and s_k by their own slacks. (columns, pieces, rows)"""
    theta, parts = system.theta, []
    if layout.metric == "l2":
        long = system.point[0] + jnp.sqrt(jnp.sum(system.point[1:] ** 2, axis=0))
        sharp = (hat.cone[0] - jnp.sum(system.sigma * hat.cone[1:], axis=0)) / long
        parts = [system.scale * sharp[None], system.scale * scale_by(system.point, hat.cone)[1:]]
    elif layout.metric == "linf":
        less, more = hat.side / theta.side
        tight = jnp.sum(jnp.where(system.sigma > 0, less, more), axis=0) + hat.total / theta.total
        parts = [tight[None], 0.5 * (more - less)]
    lane = (hat.lane[1] - hat.lane[0]) / (theta.lane[0] + theta.lane[1])
    return jnp.concatenate([*parts, lane, (hat.piece / theta.piece)[None]])


@state
class Aim:
    """Where the slacks are drawn to in a Newton step, and the right-hand sides that are left of it."""

    near: Array  # the targets ẑ/θ of (e,) r and s_k by their own slacks
    loose: Array  # that of φ
    targets: Array  # of (e,) r and s_k, with φ eliminated
    constant: Array  # of each piece's end
    right: Array  # of the system in (w, λ)
    rise: Array  # what the worst-case loss gains beside g_mᵀdy − bend·m


def aim(layout: PolyhedronLayout, samples: Samples, system: PolyhedronSystem, short: Array, hat: Inequalities) -> Aim:
    """The right-hand sides for multipliers that become ẑ − θ·ds; all of them are linear in (short, ẑ).

    For the cone, `hat` is W ẑ; `short` is the primal residual.
    """
    theta, dim, omega, g = system.theta, samples.x.shape[0], samples.omega, system.g
    near, loose = _draws(layout, system, hat), hat.phi / theta.phi
    targets = near + _phi_effect(layout, samples, system.sigma, loose) - short
    root = system.T[:-1, :-1]
    back = _back(root, _ahead(root, targets[:-1]))
    constant = targets[-1] + jnp.sum(system.tau * targets[:-1], axis=0)
    if layout.zero:
        constant = jnp.concatenate([constant, (hat.zero / theta.zero)[None]])
    right = jnp.zeros(dim + 1)
    if not layout.keep_w:
        upon = _upon_r(layout, back, system.sigma)[: layout.width]
        right = right.at[: layout.width].add(jnp.einsum("ikn,kn,n->i", upon, samples.slope, omega))
    # the part of the lanes' targets that concerns λ alone
    on_lam = theta.lane[1] * hat.lane[0] + theta.lane[0] * hat.lane[1]
    on_lam = 2.0 * samples.reach[:, None, None] * on_lam / (theta.lane[0] + theta.lane[1])
    in_lam = jnp.sum(back * system.column, axis=0) + jnp.sum(on_lam, axis=0)
    right = right.at[dim].add(jnp.sum(omega * in_lam) + jnp.sum(hat.floor))
    whole = jnp.sum(g, axis=0)
    for k, j, weight in _pairs(g, whole):
        right = right - (system.slopes[:, k] - system.slopes[:, j]) @ (omega * weight * (constant[k] - constant[j]))
    return Aim(near, loose, targets, constant, right, jnp.dot(omega, jnp.sum(g * constant, axis=0) / whole))


def newton_direction(
    layout: PolyhedronLayout,
    samples: Samples,
    at: PolyhedronIterate,
    system: PolyhedronSystem,
    short: Array,
    hat: Inequalities,
    aim: Aim,
    dy: Array,
    m: Array,
) -> PolyhedronIterate:
    """The Newton direction of everything that goes with the step dy of (w, λ) and the new m."""
    theta, tied, width, dim, g = system.theta, layout.first, layout.width, samples.x.shape[0], system.g
    near, loose, targets = aim.near, aim.loose, aim.targets
    ends = jnp.einsum("ikn,i->kn", system.slopes, dy) + aim.constant
    whole = jnp.sum(g, axis=0)
    dalpha = (jnp.sum(g * ends, axis=0) - m) / whole
    # dα − end, written with differences of ends: a piece that has all of a sample gets exactly the multiplier m
    over = jnp.stack([(jnp.sum(g * (ends - end), axis=0) - m) / whole for end in ends])
    dw, dlam = dy[:dim], dy[dim]
    # the change of (e,) r by (w, λ), before φ; the pull N⁻¹(change − targets) is minus the multiplier
    in_w = samples.slope * dw[:width, None, None]
    change = (system.column * dlam).at[tied : tied + width].add(in_w)
    if tied:
        change = change.at[0].add(-jnp.sum(system.sigma * in_w, axis=0))
    white = _ahead(system.T[:-1, :-1], change - targets[:-1])
    pull = _back(system.T, jnp.concatenate([white, (system.T[-1, -1] * over[: len(samples.slope)])[None]]))
    upon = _upon_r(layout, pull[:-1], system.sigma)
    z_phi = -jnp.tensordot(samples.C, upon, 1) - samples.room[:, None] * pull[-1]
    # slacks move as their multipliers say; where dφ does not fit them, a second solve with the same T corrects it
    slack_step, dphi = near + system.own_weights.times(pull), loose - z_phi / theta.phi
    rise = samples.slope * (dw @ samples.x) - samples.toll[:, None] * dlam
    change = jnp.concatenate([change, (dalpha - rise)[None]]) + short
    again = _back(system.T, _ahead(system.T, change - slack_step - _phi_effect(layout, samples, system.sigma, dphi)))
    more = jnp.tensordot(samples.C, _upon_r(layout, again[:-1], system.sigma), 1) + samples.room[:, None] * again[-1]
    dphi = dphi + more / theta.phi
    dr = (slack_step[:-1] - system.column * dlam)[tied:]
    lane, limit = dr[layout.lanes], samples.reach[:, None, None] * dlam
    lane = jnp.stack([limit - lane, limit + lane])
    ds = Inequalities(
        (hat.v - m) / theta.v, slack_step[-1], dalpha if layout.zero else at.s.zero, dphi, lane, at.s.side, at.s.total,
        jnp.full(at.s.floor.shape, dlam), at.s.cone,
    )  # fmt: skip
    z = Inequalities(
        m, -pull[-1], -system.g[-1] * over[-1] if layout.zero else at.z.zero, z_phi, hat.lane - theta.lane * lane,
        at.z.side, at.z.total, hat.floor - theta.floor * ds.floor, at.z.cone,
    )  # fmt: skip
    if layout.metric == "linf":
        side, total = _sides(system, hat, dr[:width], dlam)
        ds = dataclasses.replace(ds, side=side, total=total)
        z_side = 0.5 * jnp.stack([upon[:width] - pull[0], -pull[0] - upon[:width]])
        z = dataclasses.replace(z, side=z_side, total=-pull[0])
    elif layout.metric == "l2":
        ds = dataclasses.replace(ds, cone=jnp.concatenate([jnp.full((1, *lane.shape[2:]), dlam), dr[:width]]))
        z = dataclasses.replace(z, cone=-jnp.concatenate([pull[:1], upon[:width]]))
    return PolyhedronIterate(dy, dalpha, ds, jax.tree.map(lambda after, before: after - before, z, at.z))


def _sides(system: PolyhedronSystem, hat: Inequalities, dr: Array, dlam: Array) -> tuple[Array, Array]:
    """The steps of t ∓ r and λ − Σt, with the t that minimises the least-squares problem for these r and λ."""
    theta, near = system.theta, hat.side / system.theta.side
    span = theta.side[0] + theta.side[1]
    t = (theta.side[0] * (near[0] + dr) + theta.side[1] * (near[1] - dr)) / span
    rest = dlam - hat.total / theta.total - jnp.sum(t, axis=0)
    t = t + rest / (1.0 / theta.total + jnp.sum(1.0 / span, axis=0)) / span
    return jnp.stack([t - dr, t + dr]), dlam - jnp.sum(t, axis=0)
