"""The client's step where the worst case has no closed form: polyhedra Cx ≤ d, and boxes under another metric than ℓ1.

It is the interior-point method of `robust_step`, with Mehrotra's predictor and corrector, on the program of
`polyhedron_form` and with the Newton system of `polyhedron_system`; memory is linear in samples times columns².
Multipliers are the worst-case distribution itself: z_k/m is the share of a sample that goes by piece k, and the
multiplier of r, over z_k, is how far.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus import losses
from foedus.numerics.cone import circle, cone_step, flip, jdot, scale_by, uncircle
from foedus.numerics.interior import follow, reach
from foedus.pytrees import state
from foedus.robust.closed import Radius
from foedus.robust.form import Form
from foedus.robust.polyhedron_form import Given, Plan, Point, Rows, given_samples, heights, residue
from foedus.robust.polyhedron_system import System, linearise, newton_direction, primal_residual
from foedus.robust.step import evenness


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


def _along(point: Point, direction: Point, step: Array) -> Point:
    return jax.tree.map(lambda a, d: a + step * d, point, direction)


def _start(plan: Plan, given: Given, a: Array, b: Array, w: Array) -> Point:
    """An interior point at w."""
    (J, rows), K = given.room.shape, given.slope.shape[0]
    size = 1.0 + jnp.max(jnp.abs(w))
    phi = jnp.full((J, K, rows), 0.1 * size / J)
    r = residue(plan, given, w, phi)
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
    pieces = heights(given, y) + jnp.sum(given.room[:, None] * phi, axis=0)
    alpha = jnp.maximum(jnp.max(pieces, axis=0), 0.0) + 1.0
    value = given.rho * lam + jnp.dot(given.omega, alpha)
    m = jnp.maximum(value - a, 0.0) + 1.0
    bound = given.reach[:, None, None] * lam
    s = Rows(
        a + m - value, alpha - pieces, alpha if plan.zero else jnp.zeros(0), phi,
        jnp.stack([bound - lane, bound + lane]),
        jnp.stack([t - moving, t + moving]) if plan.metric == "linf" else jnp.zeros((2, 0, K, rows)),
        lam - jnp.sum(t, axis=0) if plan.metric == "linf" else jnp.zeros((0, rows)),
        (lam - given.floor)[None] if plan.floored else jnp.zeros(0),
        jnp.concatenate([jnp.full((1, K, rows), lam), moving]) if plan.metric == "l2" else none,
    )  # fmt: skip
    # pieces share m; a tenth of their product for the rest, of which there is more, takes a step or two off
    each = m / (K + plan.zero)
    z = jax.tree.map(lambda slack: 0.1 * each / slack, s)
    cone = 0.1 * each * flip(s.cone) / jdot(s.cone, s.cone) if plan.metric == "l2" else none
    z = dataclasses.replace(z, v=m, piece=each / s.piece, zero=each / s.zero, cone=cone)
    return Point(y, alpha, s, dataclasses.replace(z, floor=evenness(given.omega) * each / s.floor))


def _gap(plan: Plan, given: Given, s: Rows, z: Rows) -> Array:
    """The sum of the complementarity products, a sample's weighed with its share."""
    each = jnp.sum(s.piece * z.piece, axis=0) + jnp.sum(s.phi * z.phi, axis=(0, 1))
    each = each + jnp.sum(s.lane * z.lane, axis=(0, 1, 2)) + jnp.sum(s.side * z.side, axis=(0, 1, 2))
    each = each + jnp.sum(s.total * z.total, axis=0) + jnp.sum(s.cone * z.cone, axis=(0, 1))
    if plan.zero:
        each = each + s.zero * z.zero
    return jnp.dot(given.omega, each) + s.v * z.v + jnp.sum(s.floor * z.floor)


def _pulls(plan: Plan, z: Rows) -> Array:
    """The multiplier of r: mass times displacement. (columns, pieces, rows)"""
    lane = z.lane[0] - z.lane[1]
    if plan.metric == "l1":
        return lane
    return jnp.concatenate([z.side[0] - z.side[1] if plan.metric == "linf" else -z.cone[1:], lane])


def _residuals(plan: Plan, given: Given, at: Point, a: Array, b: Array) -> tuple[Array, Array]:
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


def _blocked(plan: Plan, at: Point, d: Point) -> Array:
    """The inverse of the longest step that keeps slacks and multipliers positive."""
    ends = [jnp.zeros(1)]
    for value, change in ((at.s, d.s), (at.z, d.z)):
        if plan.metric == "l2":
            ends.append(jnp.ravel(cone_step(value.cone, change.cone)))
            value, change = (dataclasses.replace(rows, cone=jnp.zeros(0)) for rows in (value, change))
        ends += jax.tree.leaves(jax.tree.map(lambda v, c: jnp.ravel(-c / v), value, change))
    return jnp.max(jnp.concatenate(ends))


def _corrector(plan: Plan, given: Given, at: Point, system: System, mu: Array, weak: Array, affine: Point) -> Rows:
    """ẑ towards products of σμ, with σ by how far the predictor reaches, and with its second-order terms."""
    ahead = _along(at, affine, reach(_blocked(plan, at, affine)))
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


def one_by_one(form: Form) -> Any:
    """`project` for `vmap`, one client after the other: what a step works on then fits into a core's cache."""
    return jax.custom_batching.sequential_vmap(partial(project, form))


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
    plan = Plan(
        ball.metric, width, labels and C.shape[1] > width, labels and C.shape[1] == width,
        not isinstance(ball.loss, losses.Pinball), 0 if fixed else form.held(dim), fixed,
    )  # fmt: skip
    given = given_samples(form, plan, x, y, omega, radius, C, d)
    held = jnp.zeros(0) if fixed else b
    first = _start(plan, given, a, held, b[:dim])
    weak, K = evenness(omega), given.slope.shape[0]
    each = K * (1 + given.room.shape[0] + 2 * given.reach.shape[0]) + plan.zero
    each = each + K * {"l1": 0, "l2": 1, "linf": 2 * width + 1}[plan.metric]
    products = each + weak * (1 + plan.floored)

    def advance(at: Point) -> tuple[Point, Array, Array]:
        system = linearise(plan, given, at)
        gap = _gap(plan, given, at.s, at.z)
        missed, residual = _residuals(plan, given, at, a, held)
        short = primal_residual(plan, given, system.sigma, at)

        def towards(_: Any, ahead: tuple[Rows, Point]) -> tuple[Rows, Point]:
            direction = newton_direction(plan, given, at, system, missed, short, held, ahead[0])
            return _corrector(plan, given, at, system, gap / products, weak, direction), direction

        # first the predictor, whose products are drawn to 0, then the corrector: one program for both
        _, direction = jax.lax.fori_loop(0, 2, towards, (jax.tree.map(jnp.zeros_like, at.z), at))
        following = _along(at, direction, reach(_blocked(plan, at, direction)))
        return following, gap, jnp.maximum(residual, jnp.max(jnp.abs(short)))

    at, gap, residual, k = follow(first, 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b)), advance)
    m = jnp.sum(at.z.piece, axis=0) + (at.z.zero if plan.zero else 0.0)
    way = _pulls(plan, at.z)
    return Moves(at.y[:dim], at.y[dim], a + at.z.v, at.z.piece / m, way / m, gap, residual, k)
