"""The worst case over a polyhedron Cx ≤ d, and over boxes under another metric than ℓ1, where it has no closed form.

Corollaries B.2 to B.4 give every sample and every piece k of the loss multipliers φ ≥ 0 of the half-spaces:

    α ≥ h_k(w, λ) + φᵀ(d − Cx̂),   ‖r‖_* ≤ λ,   r = slope·w − Cᵀφ,

and for a label that moves too, |−slope − cᵀφ| ≤ κλ. Arrays have samples on their last axis, pieces before them.

The client's step is the interior-point method of `step`, with Mehrotra's predictor and corrector; memory is linear in
samples times columns². The multipliers are the worst-case distribution itself: z_k/m is the share of a sample whose
loss is piece k, and the multiplier of r over z_k is how far that share moves.

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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import state
from foedus.numerics.cone import circle, cone_step, flip, jdot, scale_by, scaling_point, uncircle
from foedus.numerics.interior import along, follow, reach
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.problem import losses
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.step import LEAST_CENTRING, SHIFT, evenness

OTHERS = 0.1  # the first products of inequalities other than pieces, relative to those of pieces
ROUNDING = 2.0**-54  # the least pivot, as a share of the entry of the diagonal
LEAF, MOST_IN_BLOCKS = 9, 24  # columns of a matrix that is not cut into blocks, because it is small or large


# --- the program: samples, inequalities, iterates ---


@dataclass(frozen=True)
class PolyhedronLayout:
    """The static part of the program."""

    metric: str
    width: int  # columns that move
    label: bool  # whether labels move within the support
    has_floor: bool  # whether labels move without a bound, which puts a floor under λ
    zero: bool  # whether one piece of the loss is 0
    server_entries: int  # the entries of (w, λ) that are drawn to b
    keep_w: bool  # whether w stays as it is

    @property
    def first(self) -> int:
        """The number of columns before r: 1 for e, where the metric ties λ to all of r at once, else 0."""
        return int(self.metric != "l1")

    @property
    def lanes(self) -> slice:
        """The columns that have a bound of their own, |r_j| ≤ λ, or κλ for the label."""
        return slice(0 if self.metric == "l1" else self.width, self.width + self.label)

    def products(self, pieces: int, half_spaces: int) -> int:
        """The number of complementarity products of a sample; a cone's is one."""
        of_metric = {"l1": 2 * self.width, "l2": 1, "linf": 2 * self.width + 1}[self.metric]
        return pieces * (1 + half_spaces + 2 * self.label + of_metric) + self.zero


def layout_of(form: EpigraphForm, dim: int, columns: int, keep_w: bool = False) -> PolyhedronLayout:
    """The layout for `dim` columns of X and a C of so many columns."""
    ball = form.ball
    width, labels = dim - ball.intercept, form.flips and not ball.classifies
    return PolyhedronLayout(
        ball.metric, width, labels and columns > width, labels and columns == width,
        not isinstance(ball.loss, losses.Pinball), 0 if keep_w else form.server_entries(dim), keep_w,
    )  # fmt: skip


@state
class Samples:
    """The samples in the form that the method uses: pieces h = constant + slope·xᵀw − toll·λ, and the room d − Cx̂."""

    x: Array  # (columns, rows)
    omega: Array
    slope: Array  # (pieces, rows)
    constant: Array
    toll: Array  # (pieces,)
    C: Array  # (half-spaces, columns of r)
    room: Array  # (half-spaces, rows)
    reach: Array  # (lanes,): 1, or κ for the label
    rho: Array
    floor: Array  # the least λ, where labels move without a bound


@state
class Inequalities:
    """One number for every inequality: the slacks, or their multipliers."""

    v: Array  # v ≥ V; its multiplier is m = v − a
    piece: Array  # (pieces, rows)
    zero: Array  # (rows,), or nothing
    phi: Array  # (half-spaces, pieces, rows)
    lane: Array  # (2, lanes, pieces, rows): reach·λ − r and reach·λ + r
    side: Array  # (2, columns, pieces, rows), metric ℓ∞: t − r and t + r with t ≥ |r|
    total: Array  # (pieces, rows), likewise: λ − Σt
    floor: Array  # λ less its floor
    cone: Array  # (1 + columns, pieces, rows), metric ℓ2: (λ, r)


@state
class PolyhedronIterate:
    """An iterate, or a direction; φ is its own slack, as s.phi."""

    y: Array  # (w, λ)
    alpha: Array  # (rows,)
    s: Inequalities
    z: Inequalities


def prepare_samples(
    form: EpigraphForm, layout: PolyhedronLayout, x: Array, y: Array, omega: Array, radius: Radius, C: Array, d: Array
) -> Samples:
    """A client's data in the form that the method uses."""
    ball = form.ball
    # filling rows become copies of a sample: with their zeros they could block a step that no sample blocks
    some = jnp.argmax(omega)
    x, y = jnp.where((omega > 0)[:, None], x, x[some]), jnp.where(omega > 0, y, y[some])
    slope, constant = ball.pieces(y)
    if ball.classifies and not form.turns:
        slope, constant = slope[:1], constant[:1]
    toll = jnp.stack([jnp.zeros(()), radius.kappa]) if form.turns else jnp.zeros(slope.shape[0])
    room = d[:, None] - C[:, : layout.width] @ x[:, : layout.width].T
    if C.shape[1] > layout.width:
        room = room - C[:, layout.width :] * y
    reach = jnp.ones(layout.width + 1).at[layout.width].set(radius.kappa)
    floor = ball.lipschitz / radius.kappa if layout.has_floor else jnp.zeros(())
    return Samples(
        x.T, omega, slope, constant, toll, C[:, : layout.width + layout.label],
        jnp.maximum(room, 0.0), reach[layout.lanes], radius.rho, floor,
    )  # fmt: skip


def piece_values(samples: Samples, y: Array) -> Array:
    """The value h of every piece before samples move. (pieces, rows)"""
    return samples.constant + samples.slope * (y[:-1] @ samples.x) - samples.toll[:, None] * y[-1]


def residue(layout: PolyhedronLayout, samples: Samples, w: Array, phi: Array) -> Array:
    """The vectors r = slope·w − Cᵀφ, with −slope − cᵀφ for a label. (columns, pieces, rows)"""
    r = samples.slope * w[: layout.width, None, None]
    r = jnp.concatenate([r, -samples.slope[None]]) if layout.label else r
    return r - jnp.tensordot(samples.C.T, phi, 1)


# --- the Newton system ---


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
    piece = at.alpha - piece_values(samples, at.y) - jnp.sum(samples.room[:, None] * at.s.phi, axis=0) - at.s.piece
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


# --- the client's step ---


@state
class PolyhedronProjection:
    """The projection (ŵ, v) with its λ, the worst-case distribution, and the accuracy that was reached.

    `mass` is the share of each sample whose loss is each piece, and `move` its displacement times that share, with the
    label's part last where labels move.
    """

    w: Array
    lam: Array
    v: Array
    mass: Array  # (pieces, rows)
    move: Array  # (columns, pieces, rows)
    gap: Array
    residual: Array
    steps: Array


def _start(layout: PolyhedronLayout, samples: Samples, a: Array, b: Array, w: Array) -> PolyhedronIterate:
    """A strictly interior iterate at w.

    φ, t, λ, α and m are chosen in this order, each large enough to leave slack in the inequalities that it is in.
    """
    (J, rows), K = samples.room.shape, samples.slope.shape[0]
    size = 1.0 + jnp.max(jnp.abs(w))
    phi = jnp.full((J, K, rows), 0.1 * size / J)
    r = residue(layout, samples, w, phi)
    moving, none = r[: layout.width], jnp.zeros((0, K, rows))
    t = jnp.abs(moving) + 0.05 * size
    length = {
        "l1": jnp.zeros(()), "l2": jnp.max(jnp.sqrt(jnp.sum(moving**2, axis=0))), "linf": jnp.max(jnp.sum(t, axis=0)),
    }[layout.metric]  # fmt: skip
    lane = r[layout.lanes]
    longest = jnp.max(jnp.abs(lane) / samples.reach[:, None, None], initial=0.0)
    lam = 1.0 + 1.1 * jnp.maximum(jnp.maximum(length, longest), samples.floor)
    if layout.server_entries > w.shape[0]:
        lam = jnp.maximum(lam, b[-1])
    y = jnp.append(w, lam)
    pieces = piece_values(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
    alpha = jnp.maximum(jnp.max(pieces, axis=0), 0.0) + 1.0
    value = samples.rho * lam + jnp.dot(samples.omega, alpha)
    m = jnp.maximum(value - a, 0.0) + 1.0
    limit = samples.reach[:, None, None] * lam
    s = Inequalities(
        a + m - value, alpha - pieces, alpha if layout.zero else jnp.zeros(0), phi,
        jnp.stack([limit - lane, limit + lane]),
        jnp.stack([t - moving, t + moving]) if layout.metric == "linf" else jnp.zeros((2, 0, K, rows)),
        lam - jnp.sum(t, axis=0) if layout.metric == "linf" else jnp.zeros((0, rows)),
        (lam - samples.floor)[None] if layout.has_floor else jnp.zeros(0),
        jnp.concatenate([jnp.full((1, K, rows), lam), moving]) if layout.metric == "l2" else none,
    )  # fmt: skip
    # the multipliers of the pieces sum to m; the many other inequalities start with a tenth of the pieces' product,
    # which saves a step or two
    each = m / (K + layout.zero)
    z = jax.tree.map(lambda slack: OTHERS * each / slack, s)
    cone = OTHERS * each * flip(s.cone) / jdot(s.cone, s.cone) if layout.metric == "l2" else none
    z = dataclasses.replace(z, v=m, piece=each / s.piece, zero=each / s.zero, cone=cone)
    return PolyhedronIterate(y, alpha, s, dataclasses.replace(z, floor=evenness(samples.omega) * each / s.floor))


def gap_of(layout: PolyhedronLayout, samples: Samples, s: Inequalities, z: Inequalities) -> Array:
    """The sum of the complementarity products, where those of a sample are weighed with its ω."""
    each = jnp.sum(s.piece * z.piece, axis=0) + jnp.sum(s.phi * z.phi, axis=(0, 1))
    each = each + jnp.sum(s.lane * z.lane, axis=(0, 1, 2)) + jnp.sum(s.side * z.side, axis=(0, 1, 2))
    each = each + jnp.sum(s.total * z.total, axis=0) + jnp.sum(s.cone * z.cone, axis=(0, 1))
    if layout.zero:
        each = each + s.zero * z.zero
    return jnp.dot(samples.omega, each) + s.v * z.v + jnp.sum(s.floor * z.floor)


def pulls(layout: PolyhedronLayout, z: Inequalities) -> Array:
    """The multiplier of r, which is mass times displacement. (columns, pieces, rows)"""
    lane = z.lane[0] - z.lane[1]
    if layout.metric == "l1":
        return lane
    return jnp.concatenate([z.side[0] - z.side[1] if layout.metric == "linf" else -z.cone[1:], lane])


def _residuals(
    layout: PolyhedronLayout, samples: Samples, at: PolyhedronIterate, a: Array, b: Array
) -> tuple[Array, Array]:
    """The residual of a + m = V + s_v, and the largest residual of all, with stationarity in w, λ, α and φ."""
    z, dim = at.z, samples.x.shape[0]
    way = pulls(layout, z)
    value = samples.rho * at.y[dim] + jnp.dot(samples.omega, at.alpha)
    own = samples.slope * samples.omega
    in_w = samples.x @ jnp.sum(own * z.piece, axis=0)
    in_w = in_w.at[: layout.width].add(jnp.einsum("ikn,kn->i", way[: layout.width], own))
    limit = jnp.sum(samples.reach[:, None, None] * (z.lane[0] + z.lane[1]), axis=(0, 1)) + jnp.sum(z.total, axis=0)
    limit = limit + jnp.sum(z.cone[:1], axis=(0, 1)) + jnp.sum(samples.toll[:, None] * z.piece, axis=0)
    in_lam = samples.rho * z.v - jnp.dot(samples.omega, limit) - jnp.sum(z.floor)
    slope = jnp.append(in_w, in_lam)
    slope = slope.at[: layout.server_entries].add(at.y[: layout.server_entries] - b)
    slope = slope[dim:] if layout.keep_w else slope
    in_alpha = z.v - jnp.sum(z.piece, axis=0) - (z.zero if layout.zero else 0.0)
    in_phi = z.piece * samples.room[:, None] - z.phi - jnp.tensordot(samples.C, way, 1)
    v_residual = a + z.v - value - at.s.v
    parts = [jnp.max(jnp.abs(part)) for part in (slope, in_alpha, in_phi, v_residual)]
    return v_residual, jnp.max(jnp.stack(parts))


def _inverse_step(layout: PolyhedronLayout, at: PolyhedronIterate, d: PolyhedronIterate) -> Array:
    """The inverse of the longest step that keeps slacks and multipliers positive."""
    ends = [jnp.zeros(1)]
    for value, change in ((at.s, d.s), (at.z, d.z)):
        if layout.metric == "l2":
            ends.append(jnp.ravel(cone_step(value.cone, change.cone)))
            value, change = (dataclasses.replace(rows, cone=jnp.zeros(0)) for rows in (value, change))
        ends += jax.tree.leaves(jax.tree.map(lambda v, c: jnp.ravel(-c / v), value, change))
    return jnp.max(jnp.concatenate(ends))


def _with_distance(layout: PolyhedronLayout, system: PolyhedronSystem) -> tuple[Array, Array]:
    """The factor of the system in (w, λ) with ½‖ŵ − b‖² and m in it, and the coefficient of m in its own equation."""
    hessian, size = system.hessian, system.hessian.shape[0]
    drawn = size - 1 if layout.keep_w else layout.server_entries
    hessian = hessian + jnp.diag((jnp.arange(size) < drawn).astype(float))
    weight_m = 1.0 + 1.0 / system.theta.v + system.bend
    hessian = hessian + jnp.outer(system.g_m, system.g_m) / weight_m
    hessian = hessian + SHIFT * jnp.diag(jnp.diag(hessian) + 1.0)  # far below every tolerance
    return cholesky(hessian), weight_m


def _corrector(
    layout: PolyhedronLayout,
    samples: Samples,
    at: PolyhedronIterate,
    system: PolyhedronSystem,
    mu: Array,
    weak: Array,
    affine: PolyhedronIterate,
) -> Inequalities:
    """The target ẑ of the corrector: products of σμ, less the predictor's second-order terms.

    Mehrotra's σ is the cube of the share of the gap that the predictor would leave.
    """
    ahead = along(at, affine, reach(_inverse_step(layout, at, affine)))
    mu = mu * jnp.clip(
        (gap_of(layout, samples, ahead.s, ahead.z) / gap_of(layout, samples, at.s, at.z)) ** 3, LEAST_CENTRING, 1.0
    )
    hat = jax.tree.map(lambda s, ds, dz: (mu - ds * dz) / s, at.s, affine.s, affine.z)
    hat = dataclasses.replace(
        hat, v=(weak * mu - affine.s.v * affine.z.v) / at.s.v,
        floor=(weak * mu - affine.s.floor * affine.z.floor) / at.s.floor,
    )  # fmt: skip
    if layout.metric == "l2":
        # the cone's second-order term, in the scaled space in which s and z are the same vector
        same = system.scale * scale_by(system.point, at.z.cone)
        ds_scaled = scale_by(flip(system.point), affine.s.cone) / system.scale
        aim = -circle(ds_scaled, system.scale * scale_by(system.point, affine.z.cone))
        hat = dataclasses.replace(hat, cone=uncircle(same, aim.at[0].add(mu)))
    return hat


def one_by_one(form: EpigraphForm) -> Callable[..., PolyhedronProjection]:
    """The function `project` for `vmap`, one client after the other: one client's arrays fit into a core's cache."""
    return jax.custom_batching.sequential_vmap(partial(project, form))


@partial(jax.jit, static_argnames=("form", "keep_w"))
def project(
    form: EpigraphForm, x: Array, y: Array, omega: Array, radius: Radius, C: Array, d: Array, a: Array, b: Array,
    keep_w: bool = False,
) -> PolyhedronProjection:  # fmt: skip
    """Project (b, a) onto the epigraph of the worst-case loss, as `step.project`; with `keep_w`, w = b stays.

    C and d are the half-spaces Cx ≤ d; C has a column more where they bound labels too.
    """
    dim = x.shape[1]
    layout = layout_of(form, dim, C.shape[1], keep_w)
    samples = prepare_samples(form, layout, x, y, omega, radius, C, d)
    targets = jnp.zeros(0) if keep_w else b
    first = _start(layout, samples, a, targets, b[:dim])
    weak, K = evenness(omega), samples.slope.shape[0]
    # how many products there are, weighed as in the gap
    products = layout.products(K, samples.room.shape[0]) + weak * (1 + layout.has_floor)

    def advance(at: PolyhedronIterate) -> tuple[PolyhedronIterate, Array, Array]:
        system = linearise(layout, samples, at)
        gap = gap_of(layout, samples, at.s, at.z)
        v_residual, residual = _residuals(layout, samples, at, a, targets)
        short = primal_residual(layout, samples, system.sigma, at)

        lower, weight_m = _with_distance(layout, system)

        def towards(_: int, ahead: tuple[Inequalities, PolyhedronIterate]) -> tuple[Inequalities, PolyhedronIterate]:
            hat = ahead[0]
            goal = aim(layout, samples, system, short, hat)
            start = goal.rise + at.z.v + hat.v / system.theta.v - v_residual
            right = goal.right.at[: layout.server_entries].add(targets - at.y[: layout.server_entries])
            dy = cholesky_solve(lower, right - system.g_m * (start / weight_m))
            dy = dy.at[:dim].set(0.0) if layout.keep_w else dy
            m = (jnp.dot(system.g_m, dy) + start) / weight_m
            direction = newton_direction(layout, samples, at, system, short, hat, goal, dy, m)
            return _corrector(layout, samples, at, system, gap / products, weak, direction), direction

        # first the predictor, whose target ẑ is 0, then the corrector; a loop, so that both share one compiled program
        _, direction = jax.lax.fori_loop(0, 2, towards, (jax.tree.map(jnp.zeros_like, at.z), at))
        following = along(at, direction, reach(_inverse_step(layout, at, direction)))
        return following, gap, jnp.maximum(residual, jnp.max(jnp.abs(short)))

    at, gap, residual, k = follow(first, 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b)), advance)
    m = jnp.sum(at.z.piece, axis=0) + (at.z.zero if layout.zero else 0.0)
    way = pulls(layout, at.z)
    return PolyhedronProjection(at.y[:dim], at.y[dim], a + at.z.v, at.z.piece / m, way / m, gap, residual, k)
