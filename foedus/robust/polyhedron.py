"""The client's step where the worst case has no closed form: polyhedra Cx ≤ d, and boxes under another metric than ℓ1.

It is the interior-point method of `step`, with Mehrotra's predictor and corrector, on the program of `polyhedron_form`
and with the Newton system of `polyhedron_system`; memory is linear in samples times columns². The multipliers are the
worst-case distribution itself: z_k/m is the share of a sample whose loss is piece k, and the multiplier of r over z_k
is how far that share moves.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import state
from foedus.numerics.cone import circle, cone_step, flip, jdot, scale_by, uncircle
from foedus.numerics.interior import follow, reach
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.polyhedron_form import (
    Inequalities,
    PolyhedronIterate,
    PolyhedronLayout,
    Samples,
    heights,
    layout_of,
    prepare_samples,
    residue,
)
from foedus.robust.polyhedron_system import PolyhedronSystem, aim, linearise, newton_direction, primal_residual
from foedus.robust.step import LEAST_CENTRING, SHIFT, evenness

OTHERS = 0.1  # the first products of inequalities other than pieces, relative to those of pieces


@state
class PolyhedronProjection:
    """The projection (ŵ, v) with its λ, the worst-case distribution, and the accuracy that was reached.

    `mass` is the share of each sample whose loss is each piece, and `way` its displacement times that share, with the
    label's part last where labels move.
    """

    w: Array
    lam: Array
    v: Array
    mass: Array  # (pieces, rows)
    way: Array  # (columns, pieces, rows)
    gap: Array
    residual: Array
    steps: Array


def _along(point: PolyhedronIterate, direction: PolyhedronIterate, step: Array) -> PolyhedronIterate:
    """The iterate after a step of this length."""
    return jax.tree.map(lambda a, d: a + step * d, point, direction)


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
    pieces = heights(samples, y) + jnp.sum(samples.room[:, None] * phi, axis=0)
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
    ahead = _along(at, affine, reach(_inverse_step(layout, at, affine)))
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
        following = _along(at, direction, reach(_inverse_step(layout, at, direction)))
        return following, gap, jnp.maximum(residual, jnp.max(jnp.abs(short)))

    at, gap, residual, k = follow(first, 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b)), advance)
    m = jnp.sum(at.z.piece, axis=0) + (at.z.zero if layout.zero else 0.0)
    way = pulls(layout, at.z)
    return PolyhedronProjection(at.y[:dim], at.y[dim], a + at.z.v, at.z.piece / m, way / m, gap, residual, k)
