"""The client's step of DRFL: the projection of (b, a) onto the epigraph of its worst-case loss.

The subproblem ζv − ψᵀŵ + (c/2)‖w − ŵ‖² + (c/2)(v − z)² over (λ, α, ŵ) in Ω_s is, with b = w + ψ/c and a = z − ζ/c,

    minimise ½‖ŵ − b‖² + ½(v − a)²   subject to  v ≥ V(λ, ŵ),

and c has left it. It is solved by a primal-dual interior-point method with Mehrotra's predictor and corrector on the
form of `robust_form`. The α_i and their multipliers are eliminated sample by sample, so that a step costs one weighted
Gram matrix XᵀDX, a few products with X, and a system in y; memory is linear in the samples. The barrier weighs sample i
by its ω_i: the multipliers of its pieces sum to m = v − a, whatever the number of samples.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import select, state
from foedus.local.cholesky import cholesky, cholesky_solve
from foedus.local.robust_form import Form, Maps, Pieces, Smooth
from foedus.local.worst_case import Radius

apart = jax.lax.optimization_barrier

GAP = 1e-11  # the duality gap to reach, relative to the size of the problem
RESIDUAL = 1e-9  # the residual of the optimality conditions, likewise
PATIENCE = 6  # steps without a better point, after which rounding has the last word
STEPS = 60
BACK = 0.995  # the share of the way to the boundary


@state
class Projection:
    """(ŵ, v) with its λ, the duality gap and the residual at which the method stopped, and its steps."""

    w: Array
    lam: Array
    v: Array
    gap: Array
    residual: Array
    steps: Array


@state
class Point:
    """An iterate: y, u = its margins, the multiplier m, and slacks s with multipliers z of all inequalities."""

    y: Array
    u: Array
    m: Array
    s_v: Array
    alpha: Array
    s: Array
    z: Array
    s_g: Array
    z_g: Array
    s_q: Array
    z_q: Array


def _weighed(weights: Array, slopes: Array) -> Array:
    """Σ_k weights_k · slopes_k, as a sum that is fused with its neighbours; a product over pieces would not be."""
    return jnp.sum(weights[:, None] * slopes, axis=0)


def _along(point: Point, direction: Point, step: Array) -> Point:
    return jax.tree.map(lambda a, d: a + step * d, point, direction)


# --- the second-order cone, as in CVXOPT's notes: NT scaling W with W z = W⁻¹ s ---


def _jdot(a: Array, b: Array) -> Array:
    return a[0] * b[0] - jnp.dot(a[1:], b[1:])


def _circle(a: Array, b: Array) -> Array:
    return jnp.concatenate([jnp.dot(a, b)[None], a[0] * b[1:] + b[0] * a[1:]])


def _uncircle(a: Array, r: Array) -> Array:
    """x with a ∘ x = r."""
    first = _jdot(a, r) / _jdot(a, a)
    return jnp.concatenate([first[None], (r[1:] - first * a[1:]) / a[0]])


def _scaling(s: Array, z: Array) -> tuple[Array, Array]:
    """W and W⁻¹."""
    size_s, size_z = jnp.sqrt(_jdot(s, s)), jnp.sqrt(_jdot(z, z))
    s, z = s / size_s, z / size_z
    sign = -jnp.ones_like(s).at[0].set(-1.0)
    gamma = jnp.sqrt(0.5 * (1.0 + jnp.dot(s, z)))
    w = (s + sign * z) / (2.0 * gamma)
    v = w.at[0].add(1.0) / jnp.sqrt(2.0 * (w[0] + 1.0))
    J, scale = jnp.diag(sign), jnp.sqrt(size_s / size_z)
    return scale * (2.0 * jnp.outer(v, v) - J), (2.0 * jnp.outer(sign * v, sign * v) - J) / scale


def _cone_step(s: Array, ds: Array) -> Array:
    """The inverse of the longest step that stays in the cone; 0 where there is none."""
    size = jnp.sqrt(_jdot(s, s))
    unit = s / size
    along = _jdot(unit, ds)
    rest = ds[1:] - (along + ds[0]) / (unit[0] + 1.0) * unit[1:]
    return (jnp.sqrt(jnp.sum(rest**2)) - along) / size


# --- the method ---


def evenness(omega: Array) -> Array:
    """Σω²: one over the number of samples, where they count alike.

    The barrier of the constraints that are not a sample's is weighed with it, so that they count like one sample each.
    """
    return jnp.sum(omega**2)


def _start(form: Form, maps: Maps, x: Array, y: Array, omega: Array, radius: Radius, a: Array, b: Array) -> Point:
    inner = form.start(x.shape[1], b, radius)
    if form.shared:
        inner = inner.at[x.shape[1]].set(jnp.maximum(inner[x.shape[1]], b[-1]))
    u, e = form.margins(maps.R @ inner, x, y), maps.E @ inner
    smooth, pieces = form.smooth(u), form.pieces(u, e, y, radius.kappa)
    value = jnp.dot(maps.c, inner) + (0.0 if smooth is None else jnp.dot(omega, smooth.value))
    alpha, s, z = jnp.zeros(0), jnp.zeros((0, 0)), jnp.zeros((0, 0))
    if pieces is not None:
        alpha = jnp.max(pieces.value, axis=0) + 1.0
        value = value + jnp.dot(omega, alpha)
        s = alpha - pieces.value
    m = jnp.maximum(value - a, 0.0) + 1.0
    if pieces is not None:
        z = m * (1.0 / s) / jnp.sum(1.0 / s, axis=0)
    s_g, s_q = maps.G @ inner + maps.g, maps.S @ inner
    z_q, weak = s_q, evenness(omega) * m
    if form.cone:
        z_q = weak * s_q.at[1:].multiply(-1.0) / _jdot(s_q, s_q)
    return Point(inner, u, m, a + m - value, alpha, s, z, s_g, weak / s_g, s_q, z_q)


@state
class _System:
    """What predictor and corrector share: the factor, θ, the sums over pieces, and the residuals."""

    lower: Array
    g_m: Array
    weight_m: Array
    r_y: Array
    r_v: Array
    r_alpha: Array
    r_s: Array
    r_g: Array
    theta: Array
    total: Array
    mean_u: Array
    mean_e: Array
    W: Any
    W_inverse: Any


def _linearise(form: Form, maps: Maps, x: Array, y: Array, omega: Array, kappa: Array, a: Array, b: Array, at: Point):
    """The residuals of the optimality conditions and the factorised Newton system at a point."""
    e = maps.E @ at.y
    smooth, pieces = apart((form.smooth(at.u), form.pieces(at.u, e, y, kappa)))
    sets, held = maps.R.shape[0], b.shape[0]
    value = jnp.dot(maps.c, at.y)
    slope_u, slope_e = jnp.zeros((sets, x.shape[0])), jnp.zeros((maps.E.shape[0], x.shape[0]))
    mean_u, mean_e = slope_u, slope_e
    curve = jnp.zeros(x.shape[0])
    r_alpha, r_s, theta, total = jnp.zeros(0), at.s, at.s, jnp.zeros(0)
    spread = jnp.zeros((sets + maps.E.shape[0],) * 2 + (x.shape[0],))
    shift = jnp.zeros(())
    if smooth is not None:
        value = value + jnp.dot(omega, smooth.value)
        slope_u = slope_u.at[0].add(at.m * smooth.slope)
        mean_u = mean_u.at[0].add(smooth.slope)
        curve = curve + at.m * smooth.bend
    if pieces is not None:
        value = value + jnp.dot(omega, at.alpha)
        slope_u = slope_u + _weighed(at.z, pieces.in_u)
        slope_e = _weighed(at.z, pieces.in_e)
        curve = curve + jnp.sum(at.z * pieces.bend, axis=0)
        theta = at.z / at.s
        total = jnp.sum(theta, axis=0)
        slopes = jnp.concatenate([pieces.in_u, pieces.in_e], axis=1)
        theta, centre = apart((theta, _weighed(theta, slopes) / total))
        off = apart(slopes - centre)
        spread = apart(jnp.sum(theta[:, None, None] * off[:, :, None] * off[:, None], axis=0))
        mean_u, mean_e = mean_u + centre[:sets], centre[sets:]
        r_alpha = at.m - jnp.sum(at.z, axis=0)
        r_s = at.alpha - pieces.value - at.s
        shift = jnp.dot(omega, 1.0 / total)
    spread = spread.at[0, 0].add(curve)
    sign = jnp.where(y > 0, 1.0, -1.0) if form.ball.classifies else jnp.ones_like(y)
    weighted = omega * sign
    # columns of one product with X: the gradient, ∂V/∂y, and the coupling of u with e
    columns = [weighted * slope_u, weighted * mean_u]
    columns += [weighted * spread[i, sets:] for i in range(sets)]
    product = jnp.concatenate(columns) @ x
    gradient = jnp.einsum("ad,adn->n", product[:sets], maps.R) + (slope_e @ omega) @ maps.E
    g_m = maps.c + jnp.einsum("ad,adn->n", product[sets : 2 * sets], maps.R) + (mean_e @ omega) @ maps.E
    hessian = maps.E.T @ (spread[sets:, sets:] @ omega) @ maps.E
    shared = maps.E.shape[0]
    for i in range(sets):
        coupling = product[2 * sets + i * shared : 2 * sets + (i + 1) * shared]
        mixed = maps.R[i].T @ coupling.T @ maps.E
        hessian = hessian + mixed + mixed.T
        for j in range(i, sets):
            gram = (x * (omega * spread[i, j])[:, None]).T @ x
            part = maps.R[i].T @ gram @ maps.R[j]
            hessian = hessian + part + (part.T if i != j else 0.0)
    theta_g = at.z_g / at.s_g
    hessian = hessian + (maps.G * theta_g[:, None]).T @ maps.G
    hessian = hessian + jnp.diag((jnp.arange(at.y.shape[0]) < held).astype(float))
    W, W_inverse = (), ()
    if form.cone:
        W, W_inverse = _scaling(at.s_q, at.z_q)
        root = W_inverse @ maps.S
        hessian = hessian + root.T @ root
    weight_m = 1.0 + at.s_v / at.m + shift
    hessian = hessian + jnp.outer(g_m, g_m) / weight_m
    # a direction in which nothing bends would stop the factorisation; the shift is far below every tolerance
    hessian = hessian + 1e-14 * jnp.diag(jnp.diag(hessian) + 1.0)
    r_y = at.m * maps.c + gradient - maps.G.T @ at.z_g - maps.S.T @ at.z_q
    r_y = r_y.at[:held].add(at.y[:held] - b)
    r_v = a + at.m - value - at.s_v
    r_g = maps.G @ at.y + maps.g - at.s_g
    system = _System(
        cholesky(hessian), g_m, weight_m, r_y, r_v, r_alpha, r_s, r_g, theta, total, mean_u, mean_e, W, W_inverse
    )
    return system, smooth, pieces


def _direction(
    form: Form, maps: Maps, x: Array, y: Array, omega: Array, at: Point, system: _System,
    smooth: Smooth | None, pieces: Pieces | None, mu: Array, second: Point | None,
) -> Point:  # fmt: skip
    """The Newton direction towards complementarity products of mu, with the second-order terms of a first one."""
    nu = evenness(omega)
    target_v = nu * mu - (0.0 if second is None else second.m * second.s_v)
    sign = jnp.where(y > 0, 1.0, -1.0) if form.ball.classifies else jnp.ones_like(y)
    right = system.r_y
    beta = -system.r_v + target_v / at.m - at.s_v
    tau = pull = jnp.zeros(0)
    if pieces is not None:
        target = mu - (0.0 if second is None else second.z * second.s)
        tau = target / at.s - at.z - system.theta * system.r_s
        pull = jnp.sum(tau, axis=0) - system.r_alpha
        centre_u = system.mean_u if smooth is None else system.mean_u.at[0].add(-smooth.slope)
        in_u = _weighed(tau, pieces.in_u) - centre_u * pull
        in_e = _weighed(tau, pieces.in_e) - system.mean_e * pull
        right = right + jnp.einsum("ad,adn->n", (omega * sign * in_u) @ x, maps.R) + (in_e @ omega) @ maps.E
        beta = beta + jnp.dot(omega, pull / system.total)
    target_g = nu * mu - (0.0 if second is None else second.z_g * second.s_g)
    tau_g = target_g / at.s_g - at.z_g - at.z_g / at.s_g * system.r_g
    right = right - maps.G.T @ tau_g
    tau_q = at.z_q
    if form.cone:
        scaled = system.W @ at.z_q
        aim = jnp.zeros_like(scaled).at[0].set(nu * mu) - _circle(scaled, scaled)
        if second is not None:
            aim = aim - _circle(system.W_inverse @ second.s_q, system.W @ second.z_q)
        tau_q = system.W_inverse @ _uncircle(scaled, aim)
        right = right - maps.S.T @ tau_q
    dy = -cholesky_solve(system.lower, right + system.g_m * (beta / system.weight_m))
    dm = (jnp.dot(system.g_m, dy) + beta) / system.weight_m
    du, de = form.moves(maps.R @ dy, x, y), maps.E @ dy
    ds_v = target_v / at.m - at.s_v - at.s_v / at.m * dm
    dalpha, ds, dz = at.alpha, at.s, at.z
    if pieces is not None:
        change = jnp.sum(pieces.in_u * du, axis=1) + jnp.sum(pieces.in_e * de[:, None], axis=1)
        dalpha = (jnp.sum(system.theta * change, axis=0) + pull - dm) / system.total
        ds = dalpha - change + system.r_s
        dz = system.theta * (change - dalpha) + tau
    ds_g = maps.G @ dy + system.r_g
    dz_g = tau_g - at.z_g / at.s_g * (maps.G @ dy)
    ds_q = maps.S @ dy
    dz_q = tau_q - system.W_inverse @ (system.W_inverse @ ds_q) if form.cone else at.z_q
    return Point(dy, du, dm, ds_v, dalpha, ds, dz, ds_g, dz_g, ds_q, dz_q)


def _longest(form: Form, at: Point, d: Point) -> Array:
    """The longest step, at most 1/BACK, that keeps slacks and multipliers positive."""
    inverse = jnp.maximum(-d.m / at.m, -d.s_v / at.s_v)
    for value, change in ((at.s, d.s), (at.z, d.z), (at.s_g, d.s_g), (at.z_g, d.z_g)):
        if value.size:
            inverse = jnp.maximum(inverse, jnp.max(-change / value))
    if form.cone:
        inverse = jnp.maximum(inverse, jnp.maximum(_cone_step(at.s_q, d.s_q), _cone_step(at.z_q, d.z_q)))
    return 1.0 / jnp.maximum(inverse, BACK)


def _gap(omega: Array, at: Point) -> Array:
    """The sum of all complementarity products, samples weighted: the duality gap of a feasible point."""
    total = at.m * at.s_v + jnp.dot(at.z_g, at.s_g) + jnp.dot(at.z_q, at.s_q)
    return total + (jnp.sum((at.z * at.s) @ omega) if at.s.size else 0.0)


@partial(jax.jit, static_argnames=("form",))
def project(form: Form, x: Array, y: Array, omega: Array, radius: Radius, a: Array, b: Array) -> Projection:
    """Project (b, a) onto the epigraph of the worst-case loss.

    Args:
        form: the static part.
        x: the samples (rows, dim); y: their labels; omega: their weights, which sum to one (0 for filling rows).
        radius: ρ, κ and the box.
        a: what v is drawn to; b: what w is drawn to, and λ as its last entry where the form shares it.
    """
    dim = x.shape[1]
    kappa = radius.kappa
    maps = form.maps(dim, radius)
    count = 1 + maps.G.shape[0] + (1 if form.cone else 0)

    def measures(at: Point, system: _System) -> tuple[Array, Array]:
        parts = [jnp.max(jnp.abs(system.r_y)), jnp.abs(system.r_v)]
        parts += [jnp.max(jnp.abs(r)) for r in (system.r_s, system.r_alpha, system.r_g) if r.size]
        return _gap(omega, at), jnp.max(jnp.stack(parts))

    first = _start(form, maps, x, y, omega, radius, a, b)
    products = evenness(omega) * count + first.s.shape[0]
    scale = 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b))

    def merit(gap: Array, residual: Array) -> Array:
        return jnp.maximum(gap / GAP, residual / RESIDUAL) / scale

    def going(loop):
        _, _, best, _, k, since = loop
        return (best > 1.0) & (k < STEPS) & (since < PATIENCE)

    def body(loop):
        at, kept, best, measured, k, since = loop
        # barriers: else XLA computes per-sample arrays anew for each of their uses
        system, smooth, pieces = apart(_linearise(form, maps, x, y, omega, kappa, a, b, at))
        gap, residual = measures(at, system)
        better = merit(gap, residual) < best  # false for NaN
        kept = select(better, at, kept)
        best = jnp.where(better, merit(gap, residual), best)
        measured = jnp.where(better, jnp.stack([gap, residual]), measured)
        towards = partial(_direction, form, maps, x, y, omega, at, system, smooth, pieces)
        mu = gap / products
        affine = apart(towards(jnp.zeros(()), None))
        reach = jnp.minimum(1.0, BACK * _longest(form, at, affine))
        ahead = _gap(omega, _along(at, affine, reach)) / products
        sigma = jnp.clip((ahead / mu) ** 3, 1e-8, 1.0)
        direction = apart(towards(sigma * mu, affine))
        step = jnp.minimum(1.0, BACK * _longest(form, at, direction))
        return _along(at, direction, step), kept, best, measured, k + 1, jnp.where(better | (best > 1e4), 0, since + 1)

    zero = jnp.zeros((), int)
    blank = (first, first, jnp.asarray(jnp.finfo(float).max), jnp.full(2, jnp.inf), zero, zero)
    _, at, _, (gap, residual), k, _ = jax.lax.while_loop(going, body, blank)
    lam = at.y[dim] if form.robust else jnp.full((), jnp.inf)
    return Projection(at.y[:dim], lam, a + at.m, gap, residual, k)
