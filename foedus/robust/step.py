"""The client's step of DRFL: the projection of (b, a) onto the epigraph of its worst-case loss.

The subproblem ζv − ψᵀŵ + (c/2)‖w − ŵ‖² + (c/2)(v − z)² over (λ, α, ŵ) in Ω_s is, with b = w + ψ/c and a = z − ζ/c,

    minimise ½‖ŵ − b‖² + ½(v − a)²   subject to  v ≥ V(λ, ŵ),

and c has left it. It is solved by a primal-dual interior-point method with Mehrotra's predictor and corrector on the
form of `robust_form`. The α_i and their multipliers are eliminated sample by sample, so that a step costs one weighted
Gram matrix XᵀDX, four passes over X beside it, and a system in y; memory is linear in the samples. The barrier weighs
sample i by its ω_i: the multipliers of its pieces sum to m = v − a, whatever the number of samples.

What elimination leaves of a sample is θ_k = z_k/s_k for each of its pieces k. With P = Σθ its Hessian is the sum over
pairs k < l of θ_k θ_l/P times the square of the difference of their slopes: no term is negative, so nothing cancels.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.losses import signed
from foedus.numerics.cone import circle, cone_step, jdot, scaling, uncircle
from foedus.numerics.interior import follow, reach
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.pytrees import state
from foedus.robust.closed import Radius
from foedus.robust.form import Form, Maps, Pieces

apart = jax.lax.optimization_barrier


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


def _along(point: Point, direction: Point, step: Array) -> Point:
    return jax.tree.map(lambda a, d: a + step * d, point, direction)


def evenness(omega: Array) -> Array:
    """√Σω²: one over the root of the number of samples, where they count alike.

    The barrier of the constraints that are not a sample's is weighed with it. With 1 these few constraints would make
    up most of the gap. With Σω², as of one sample each, iterates come so near to their bounds that steps get short: on
    100,000 samples in a box it took 27 Newton systems in place of 19.
    """
    return jnp.sqrt(jnp.sum(omega**2))


def _start(form: Form, maps: Maps, x: Array, y: Array, omega: Array, radius: Radius, a: Array, b: Array) -> Point:
    inner = form.start(x.shape[1], b, radius)
    if form.shared:
        inner = inner.at[x.shape[1]].set(jnp.maximum(inner[x.shape[1]], b[-1]))
    u, e = form.margins(maps.R @ inner, x, y), maps.E @ inner
    smooth, pieces = form.smooth(u), form.pieces(u, e, radius.kappa)
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
        z_q = weak * s_q.at[1:].multiply(-1.0) / jdot(s_q, s_q)
    return Point(inner, u, m, a + m - value, alpha, s, z, s_g, weak / s_g, s_q, z_q)


@state
class _System:
    """What predictor and corrector share: the factor, the residuals, and of each sample θ, θ/Σθ and 1/Σθ."""

    lower: Array
    g_m: Array
    weight_m: Array
    r_y: Array
    r_v: Array
    r_s: Array
    r_g: Array
    right: Array  # of the predictor, but for the constraints that are not a sample's
    beta: Array  # likewise
    theta: Array
    portion: Array
    inverse: Array
    W: Any
    W_inverse: Any


def _through(form: Form, columns: list[Array], x: Array) -> Array:
    """Each column times X, and with a box times the constant column of the shift. (columns, dim or dim + 1)"""
    stacked = jnp.stack(columns)
    product = stacked @ x
    return jnp.concatenate([product, jnp.sum(stacked, axis=1, keepdims=True)], axis=1) if form.box else product


def _sign(form: Form, y: Array) -> Array:
    return signed(y) if form.ball.classifies else jnp.ones_like(y)


def _linearise(form: Form, maps: Maps, x: Array, y: Array, omega: Array, kappa: Array, a: Array, b: Array, at: Point):
    """The residuals of the optimality conditions and the factorised Newton system at a point."""
    smooth, pieces = form.smooth(at.u), form.pieces(at.u, maps.E @ at.y, kappa)
    sets, shared, held, size = maps.R.shape[0], maps.E.shape[0], b.shape[0], at.y.shape[0]
    zero, none = jnp.zeros(x.shape[0]), jnp.zeros((0, 0))
    value, shift, lost = jnp.dot(maps.c, at.y), jnp.zeros(()), jnp.zeros(())
    slope, mean, off, couplings = [zero] * sets, [zero] * sets, [], []
    slope_e, mean_e, off_e, square = (jnp.zeros(shared),) * 3 + (jnp.zeros((shared, shared)),)
    bends, joint = zero, maps.R[0]
    inverse, r_s, theta, portion = jnp.zeros(0), none, none, none
    if smooth is not None:
        value = value + jnp.dot(omega, smooth.value)
        slope[0], mean[0], bends = at.m * smooth.slope, smooth.slope, at.m * smooth.bend
    if pieces is not None:
        value = value + jnp.dot(omega, at.alpha)
        K, in_u, in_e = at.z.shape[0], pieces.in_u, pieces.in_e
        theta = at.z / at.s
        inverse = 1.0 / jnp.sum(theta, axis=0)
        theta, inverse = apart((theta, inverse))
        portion = apart(theta * inverse)
        slope = [slope[i] + _piecewise(at.z, in_u[:, i]) for i in range(sets)]
        mean = [mean[i] + _piecewise(portion, in_u[:, i]) for i in range(sets)]
        slope_e, mean_e = (at.z @ omega) @ in_e, (portion @ omega) @ in_e
        shift = jnp.dot(omega, inverse)
        # two r come with two pieces of one r each: then there is one pair, and all of its samples turn the same way
        joint = maps.R[0] if sets == 1 else jnp.einsum("ao,adn->dn", in_u[0] - in_u[1], maps.R)
        pairs = [(k, j, theta[k] * portion[j]) for k in range(K) for j in range(k + 1, K)]
        across = [in_u[k, 0] - in_u[j, 0] if sets == 1 else jnp.ones(1) for k, j, _ in pairs]
        apart_e = [in_e[k] - in_e[j] for k, j, _ in pairs]
        bends = bends + sum(weight * d**2 for (_, _, weight), d in zip(pairs, across, strict=True))
        if not form.linear:
            bends = bends + jnp.sum(at.z * pieces.bend, axis=0)
            # steps keep s = α − φ where pieces are linear, and Σ_k z_k = m always
            r_s = apart(at.alpha - pieces.value - at.s)
            pushed = theta * r_s - portion * jnp.sum(theta * r_s, axis=0)
            off = [-_piecewise(pushed, in_u[:, i]) for i in range(sets)]
            off_e = -(pushed @ omega) @ in_e
            lost = jnp.dot(omega, inverse * jnp.sum(theta * r_s, axis=0))
        if shared:
            weights = jnp.stack([jnp.dot(omega, weight) for _, _, weight in pairs])
            differences = jnp.stack(apart_e)
            square = (differences * weights[:, None]).T @ differences
            for i in range(shared):
                terms = zip(pairs, across, apart_e, strict=True)
                couplings.append(sum(weight * d * e[i] for (_, _, weight), d, e in terms))
    sign = omega * _sign(form, y)
    bends = apart(omega * bends)
    columns = [sign * column for column in (*slope, *mean, *off, *couplings)]
    product = _through(form, [*columns, *([bends] if form.box else [])], x)
    gradient = jnp.einsum("ad,adn->n", product[:sets], maps.R) + slope_e @ maps.E
    g_u = jnp.einsum("ad,adn->n", product[sets : 2 * sets], maps.R) + mean_e @ maps.E
    gram = (x * bends[:, None]).T @ x
    if form.box:
        edge = product[-1]
        gram = jnp.concatenate([jnp.concatenate([gram, edge[None, :-1]]), edge[:, None]], axis=1)
    hessian = joint.T @ gram @ joint + maps.E.T @ square @ maps.E
    if shared:
        last = 2 * sets + len(off)
        mixed = joint.T @ product[last : last + shared].T @ maps.E
        hessian = hessian + mixed + mixed.T
    theta_g = at.z_g / at.s_g
    hessian = hessian + (maps.G * theta_g[:, None]).T @ maps.G
    hessian = hessian + jnp.diag((jnp.arange(size) < held).astype(float))
    W, W_inverse = (), ()
    if form.cone:
        W, W_inverse = scaling(at.s_q, at.z_q)
        root = W_inverse @ maps.S
        hessian = hessian + root.T @ root
    weight_m, g_m = 1.0 + at.s_v / at.m + shift, maps.c + g_u
    hessian = hessian + jnp.outer(g_m, g_m) / weight_m
    # a direction in which nothing bends would stop the factorisation; the shift is far below every tolerance
    hessian = hessian + 1e-14 * jnp.diag(jnp.diag(hessian) + 1.0)
    r_y = at.m * maps.c + gradient - maps.G.T @ at.z_g - maps.S.T @ at.z_q
    r_y = r_y.at[:held].add(at.y[:held] - b)
    r_v = a + at.m - value - at.s_v
    # towards complementarity products of 0 the samples' part is the gradient with every z_k at its portion of m
    right = r_y - gradient + at.m * g_u
    if off:
        right = right + jnp.einsum("ad,adn->n", product[2 * sets : 3 * sets], maps.R) + off_e @ maps.E
    system = _System(
        cholesky(hessian), g_m, weight_m, r_y, r_v, r_s, maps.G @ at.y + maps.g - at.s_g,
        right, -r_v - at.m * shift - lost, theta, portion, inverse, W, W_inverse,
    )  # fmt: skip
    return system, pieces


@state
class _Ahead:
    """What the corrector needs of the predictor: its second-order terms, and how the samples' slacks move (ds/s)."""

    v: Array
    g: Array
    q: Any
    t: Array


def _solve(
    form: Form, maps: Maps, x: Array, y: Array, omega: Array, at: Point, system: _System, pieces: Pieces | None,
    mu: Array, ahead: _Ahead | None,
) -> Point:  # fmt: skip
    """The Newton direction towards complementarity products of mu, with the second-order terms of a first one."""
    nu = evenness(omega)
    target_v = nu * mu - (0.0 if ahead is None else ahead.v)
    target_g = nu * mu - (0.0 if ahead is None else ahead.g)
    right, beta = system.right, system.beta + target_v / at.m - at.s_v
    extra = None
    if pieces is not None and ahead is not None:
        # of a product of 0: dz·ds = −z·s·t(1 + t)
        extra = apart(mu / at.s + at.z * ahead.t * (1.0 + ahead.t))
        moved = extra - system.portion * jnp.sum(extra, axis=0)
        sign = omega * _sign(form, y)
        columns = [sign * _piecewise(moved, pieces.in_u[:, i]) for i in range(maps.R.shape[0])]
        right = right + jnp.einsum("ad,adn->n", _through(form, columns, x), maps.R)
        right = right + (moved @ omega) @ pieces.in_e @ maps.E
        beta = beta + jnp.dot(omega, jnp.sum(extra, axis=0) * system.inverse)
    tau_g = target_g / at.s_g - at.z_g - at.z_g / at.s_g * system.r_g
    right = right - maps.G.T @ tau_g
    tau_q = at.z_q
    if form.cone:
        scaled = system.W @ at.z_q
        aim = jnp.zeros_like(scaled).at[0].set(nu * mu) - circle(scaled, scaled)
        if ahead is not None:
            aim = aim - ahead.q
        tau_q = system.W_inverse @ uncircle(scaled, aim)
        right = right - maps.S.T @ tau_q
    dy = -cholesky_solve(system.lower, right + system.g_m * (beta / system.weight_m))
    dm = (jnp.dot(system.g_m, dy) + beta) / system.weight_m
    du, de = form.moves(maps.R @ dy, x, y), maps.E @ dy
    ds_v = target_v / at.m - at.s_v - at.s_v / at.m * dm
    dalpha, ds, dz = at.alpha, at.s, at.z
    if pieces is not None:
        change = (pieces.in_e @ de)[:, None] + sum(pieces.in_u[:, i] * du[i] for i in range(maps.R.shape[0]))
        pull = -at.m - dm
        if not form.linear:
            pull = pull - jnp.sum(system.theta * system.r_s, axis=0)
        if extra is not None:
            pull = pull + jnp.sum(extra, axis=0)
        dalpha = jnp.sum(system.portion * change, axis=0) + pull * system.inverse
        ds = dalpha - change
        ds = ds if form.linear else ds + system.r_s
        if extra is not None:
            ds = apart(ds)
            dz = extra - at.z - system.theta * ds
    ds_g = maps.G @ dy + system.r_g
    dz_g = tau_g - at.z_g / at.s_g * (maps.G @ dy)
    ds_q = maps.S @ dy
    dz_q = tau_q - system.W_inverse @ (system.W_inverse @ ds_q) if form.cone else at.z_q
    return Point(dy, du, dm, ds_v, dalpha, ds, dz, ds_g, dz_g, ds_q, dz_q)


def _piecewise(weights: Array, slopes: Array) -> Array:
    """Σ_k weights_k · slopes_k, written out: XLA fuses a sum of a few terms, and not a product of matrices."""
    return sum((weights[k] * slopes[k] for k in range(1, weights.shape[0])), weights[0] * slopes[0])


def _blocked(form: Form, at: Point, d: Point) -> Array:
    """The inverse of the longest step that keeps slacks and multipliers positive, samples' left out."""
    inverse = jnp.maximum(-d.m / at.m, -d.s_v / at.s_v)
    for value, change in ((at.s_g, d.s_g), (at.z_g, d.z_g)):
        if value.size:
            inverse = jnp.maximum(inverse, jnp.max(-change / value))
    if form.cone:
        inverse = jnp.maximum(inverse, jnp.maximum(cone_step(at.s_q, d.s_q), cone_step(at.z_q, d.z_q)))
    return inverse


def _gap(at: Point) -> Array:
    """The sum of the complementarity products that are not a sample's."""
    return at.m * at.s_v + jnp.dot(at.z_g, at.s_g) + jnp.dot(at.z_q, at.s_q)


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
        parts += [jnp.max(jnp.abs(r)) for r in (system.r_s, system.r_g) if r.size]
        gap = _gap(at) + (jnp.dot(omega, jnp.sum(at.z * at.s, axis=0)) if at.s.size else 0.0)
        return gap, jnp.max(jnp.stack(parts))

    first = _start(form, maps, x, y, omega, radius, a, b)
    products = evenness(omega) * count + first.s.shape[0]

    def advance(at: Point) -> tuple[Point, Array, Array]:
        # barriers: else XLA computes per-sample arrays anew for each of their uses
        system, pieces = apart(_linearise(form, maps, x, y, omega, kappa, a, b, at))
        gap, residual = measures(at, system)
        towards = partial(_solve, form, maps, x, y, omega, at, system, pieces)
        mu = gap / products
        affine = towards(jnp.zeros(()), None)
        # the samples' multipliers follow from their slacks: dz/z = −1 − ds/s
        t, blocked = jnp.zeros((0, 0)), _blocked(form, at, affine)
        if pieces is not None:
            t = apart(affine.s / at.s)
            blocked = jnp.maximum(blocked, jnp.maximum(jnp.max(-t), 1.0 + jnp.max(t)))
        way = reach(blocked)
        left = _gap(_along(at, affine, way))
        if pieces is not None:
            first, second = (jnp.dot(omega, jnp.sum(at.z * at.s * f, axis=0)) for f in (1.0, t * (1.0 + t)))
            left = left + (1.0 - way) * first - way**2 * second
        sigma = jnp.clip((left / products / mu) ** 3, 1e-8, 1.0)
        turned = circle(system.W_inverse @ affine.s_q, system.W @ affine.z_q) if form.cone else ()
        ahead = _Ahead(affine.m * affine.s_v, affine.z_g * affine.s_g, turned, t)
        direction = apart(towards(sigma * mu, ahead))
        blocked = _blocked(form, at, direction)
        if pieces is not None:
            blocked = jnp.maximum(blocked, jnp.maximum(jnp.max(-direction.s / at.s), jnp.max(-direction.z / at.z)))
        return _along(at, direction, reach(blocked)), gap, residual

    at, gap, residual, k = follow(first, 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b)), advance)
    lam = at.y[dim] if form.robust else jnp.full((), jnp.inf)
    return Projection(at.y[:dim], lam, a + at.m, gap, residual, k)
