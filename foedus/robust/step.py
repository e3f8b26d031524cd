"""The client's step of DRFL: the projection of (b, a) onto the epigraph of its worst-case loss.

The subproblem ζv − ψᵀŵ + (c/2)‖w − ŵ‖² + (c/2)(v − z)² over (λ, α, ŵ) in Ω_s is, with b = w + ψ/c and a = z − ζ/c,

    minimise ½‖ŵ − b‖² + ½(v − a)²   subject to  v ≥ V(λ, ŵ),

in which c no longer occurs. It is solved by a primal-dual interior-point method with Mehrotra's predictor and corrector
on the program of `form`. The α_i and their multipliers are eliminated sample by sample, so that a step costs one
weighted Gram matrix XᵀDX, four passes over X beside it, and a system in y; memory is linear in the samples. The barrier
weighs sample i by its ω_i: the multipliers of its pieces sum to m = v − a, whatever the number of samples.

Variables: y, and per sample α_i, slacks s_k = α_i − φ_k ≥ 0 and multipliers z_k ≥ 0 of its pieces; s_v = v − V ≥ 0 with
the multiplier m (v itself is a + m); s_g, z_g of Gy + g ≥ 0; s_q, z_q of Sy in the cone. The optimality conditions are

    r_y    (y − b on the server's entries) + m·c + Σ_i ω_i Σ_k z_k ∇φ_k + m·Σ_i ω_i ∇f_0 − Gᵀz_g − Sᵀz_q = 0
    r_v    a + m − V(y, α) − s_v = 0,    r_s    α − φ − s = 0,    r_g    Gy + g − s_g = 0
    and    Σ_k z_k = m for every sample, which all iterates satisfy;  every product s·z → 0.

The elimination: with θ_k = z_k/s_k, dz_k = (target)/s_k − z_k − θ_k·ds_k and ds_k = dα − ∇φ_k·dy, the condition
Σ_k dz_k = dm determines dα from dy and dm. With P = Σθ, the Hessian that is left of a sample is the sum over pairs
k < l of θ_k θ_l/P times the square of the difference of their slopes: no term is negative, so nothing cancels. The
multiplier m is eliminated last, as the rank-one term g_m g_mᵀ/weight_m.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree, state
from foedus.numerics.cone import circle, cone_step, jdot, scaling, uncircle
from foedus.numerics.interior import along, follow, reach
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.problem.losses import signed
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm, Maps, Pieces

SHIFT = 1e-14  # relative shift of the diagonal: a direction without curvature would stop the factorisation
LEAST_CENTRING = 1e-8  # Mehrotra's σ is not taken smaller: a target of 0 would lead straight to the boundary

barrier = jax.lax.optimization_barrier
"""Without it XLA fuses a per-sample array into each of its uses, and computes it anew for each."""


@state
class Projection:
    """The projection (ŵ, v) with its λ, the duality gap and the residual that were reached, and the number of steps."""

    w: Array
    lam: Array
    v: Array
    gap: Array
    residual: Array
    steps: Array


@state
class Iterate:
    """An iterate, or a direction: y with its margins u, the multiplier m, and slacks s with multipliers z."""

    y: Array
    u: Array
    m: Array
    s_v: Array  # v − V
    alpha: Array  # (rows,)
    s: Array  # of the pieces, (pieces, rows)
    z: Array  # likewise; Σ_k z_k = m
    s_g: Array  # of Gy + g ≥ 0
    z_g: Array
    s_q: Array  # of the cone
    z_q: Array


def evenness(omega: Array) -> Array:
    """The weight √Σω² of barrier terms that belong to no sample: 1/√N for N samples of equal weight.

    With the weight 1 these few constraints would make up most of the gap. With Σω², the weight of one sample, iterates
    come so near to their bounds that steps get short: on 100,000 samples in a box it took 27 Newton systems, not 19.
    """
    return jnp.sqrt(jnp.sum(omega**2))


def _start(
    form: EpigraphForm, maps: Maps, x: Array, y: Array, omega: Array, radius: Radius, a: Array, b: Array
) -> Iterate:
    """A strictly interior iterate, whose pieces share m so that their products s·z are equal within a sample."""
    inner = form.start(x.shape[1], b, radius)
    if form.shares_lambda:
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
    return Iterate(inner, u, m, a + m - value, alpha, s, z, s_g, weak / s_g, s_q, z_q)


@state
class _NewtonSystem:
    """The parts that predictor and corrector share: the factor, the residuals, and per sample θ, θ/Σθ and 1/Σθ."""

    lower: Array  # of the Hessian in y, with the samples and m eliminated
    g_m: Array  # the gradient of V in y along the eliminated α: how m enters the equations of y
    weight_m: Array  # the coefficient of dm in its own equation
    r_y: Array
    r_v: Array
    r_s: Array
    r_g: Array
    right: Array  # the predictor's right side in y, without the constraints that belong to no sample
    beta: Array  # the same for the equation of m
    theta: Array  # θ = z/s
    portion: Array  # θ_k/Σθ
    inverse: Array  # 1/Σθ
    W: PyTree  # the cone's scaling; () without a cone
    W_inverse: PyTree


def _through(form: EpigraphForm, columns: list[Array], x: Array) -> Array:
    """The products of per-sample columns with X, in one pass; with a box also their sums, for the shift o.

    (columns, dim or dim + 1)
    """
    rows = jnp.stack(columns)
    product = rows @ x
    return jnp.concatenate([product, jnp.sum(rows, axis=1, keepdims=True)], axis=1) if form.box else product


def _sign(form: EpigraphForm, y: Array) -> Array:
    """The factor of xᵀr in u: the label in classification, 1 in regression."""
    return signed(y) if form.ball.classifies else jnp.ones_like(y)


def _linearise(
    form: EpigraphForm, maps: Maps, x: Array, y: Array, omega: Array, kappa: Array, a: Array, b: Array, at: Iterate
) -> tuple[_NewtonSystem, Pieces | None]:
    """The residuals of the optimality conditions and the factorised Newton system at an iterate.

    Everything that a sample contributes is collected as columns over samples (slopes, means, couplings) and multiplied
    by X once.
    """
    # names in _e are the parts in the shared numbers e, the others the parts in u
    smooth, pieces = form.smooth(at.u), form.pieces(at.u, maps.E @ at.y, kappa)
    sets, n_e, n_server, size = maps.R.shape[0], maps.E.shape[0], b.shape[0], at.y.shape[0]
    zero, none = jnp.zeros(x.shape[0]), jnp.zeros((0, 0))
    value, shift, beta_shift = jnp.dot(maps.c, at.y), jnp.zeros(()), jnp.zeros(())
    slope, mean, off, couplings = [zero] * sets, [zero] * sets, [], []
    slope_e, mean_e, off_e, square = (jnp.zeros(n_e),) * 3 + (jnp.zeros((n_e, n_e)),)
    bends, joint = zero, maps.R[0]
    inverse, r_s, theta, portion = jnp.zeros(0), none, none, none
    if smooth is not None:
        value = value + jnp.dot(omega, smooth.value)
        slope[0], mean[0], bends = at.m * smooth.slope, smooth.slope, at.m * smooth.bend
    if pieces is not None:
        value = value + jnp.dot(omega, at.alpha)
        K, in_u, in_e = at.z.shape[0], pieces.in_u, pieces.in_e
        # slope: Σ z_k ∂φ_k, the samples' part of r_y; mean: Σ (θ_k/P) ∂φ_k, how α follows y; shift: how α follows m
        theta = at.z / at.s
        inverse = 1.0 / jnp.sum(theta, axis=0)
        theta, inverse = barrier((theta, inverse))
        portion = barrier(theta * inverse)
        slope = [slope[i] + _piecewise(at.z, in_u[:, i]) for i in range(sets)]
        mean = [mean[i] + _piecewise(portion, in_u[:, i]) for i in range(sets)]
        slope_e, mean_e = (at.z @ omega) @ in_e, (portion @ omega) @ in_e
        shift = jnp.dot(omega, inverse)
        # two r come with two pieces of one r each: then there is one pair, whose slope difference is the same row of
        # `joint` for all samples
        joint = maps.R[0] if sets == 1 else jnp.einsum("ao,adn->dn", in_u[0] - in_u[1], maps.R)
        pairs = [(k, j, theta[k] * portion[j]) for k in range(K) for j in range(k + 1, K)]
        across = [in_u[k, 0] - in_u[j, 0] if sets == 1 else jnp.ones(1) for k, j, _ in pairs]
        apart_e = [in_e[k] - in_e[j] for k, j, _ in pairs]
        bends = bends + sum(weight * d**2 for (_, _, weight), d in zip(pairs, across, strict=True))
        if not form.linear:
            bends = bends + jnp.sum(at.z * pieces.bend, axis=0)
            # steps keep s = α − φ only where pieces are linear; else r_s enters the right side and the equation of m
            r_s = barrier(at.alpha - pieces.value - at.s)
            push = theta * r_s - portion * jnp.sum(theta * r_s, axis=0)
            off = [-_piecewise(push, in_u[:, i]) for i in range(sets)]
            off_e = -(push @ omega) @ in_e
            beta_shift = jnp.dot(omega, inverse * jnp.sum(theta * r_s, axis=0))
        if n_e:
            # the pairs' Hessian in (u, e): its block in e alone, and its couplings of u with e
            weights = jnp.stack([jnp.dot(omega, weight) for _, _, weight in pairs])
            differences = jnp.stack(apart_e)
            square = (differences * weights[:, None]).T @ differences
            for i in range(n_e):
                terms = zip(pairs, across, apart_e, strict=True)
                couplings.append(sum(weight * d * e[i] for (_, _, weight), d, e in terms))
    sign = omega * _sign(form, y)
    bends = barrier(omega * bends)
    columns = [sign * column for column in (*slope, *mean, *off, *couplings)]
    product = _through(form, [*columns, *([bends] if form.box else [])], x)
    gradient = jnp.einsum("ad,adn->n", product[:sets], maps.R) + slope_e @ maps.E
    g_u = jnp.einsum("ad,adn->n", product[sets : 2 * sets], maps.R) + mean_e @ maps.E
    gram = (x * bends[:, None]).T @ x
    if form.box:
        # the shift o is a further column of ones in X
        edge = product[-1]
        gram = jnp.concatenate([jnp.concatenate([gram, edge[None, :-1]]), edge[:, None]], axis=1)
    hessian = joint.T @ gram @ joint + maps.E.T @ square @ maps.E
    if n_e:
        last = 2 * sets + len(off)
        cross = joint.T @ product[last : last + n_e].T @ maps.E
        hessian = hessian + cross + cross.T
    # the rows of G with their weights θ, the identity of ½‖ŵ − b‖², and the cone in its scaling
    theta_g = at.z_g / at.s_g
    hessian = hessian + (maps.G * theta_g[:, None]).T @ maps.G
    hessian = hessian + jnp.diag((jnp.arange(size) < n_server).astype(float))
    W, W_inverse = (), ()
    if form.cone:
        W, W_inverse = scaling(at.s_q, at.z_q)
        root = W_inverse @ maps.S
        hessian = hessian + root.T @ root
    # m is eliminated: dm = (g_mᵀdy + β)/weight_m, where s_v/m and the samples' shift add to the 1 of ½(v − a)²
    weight_m, g_m = 1.0 + at.s_v / at.m + shift, maps.c + g_u
    hessian = hessian + jnp.outer(g_m, g_m) / weight_m
    hessian = hessian + SHIFT * jnp.diag(jnp.diag(hessian) + 1.0)  # far below every tolerance
    r_y = at.m * maps.c + gradient - maps.G.T @ at.z_g - maps.S.T @ at.z_q
    r_y = r_y.at[:n_server].add(at.y[:n_server] - b)
    r_v = a + at.m - value - at.s_v
    # for products of 0 (the predictor) elimination turns the samples' part Σ z_k ∂φ_k into m times the mean slope
    right = r_y - gradient + at.m * g_u
    if off:
        right = right + jnp.einsum("ad,adn->n", product[2 * sets : 3 * sets], maps.R) + off_e @ maps.E
    system = _NewtonSystem(
        cholesky(hessian), g_m, weight_m, r_y, r_v, r_s, maps.G @ at.y + maps.g - at.s_g,
        right, -r_v - at.m * shift - beta_shift, theta, portion, inverse, W, W_inverse,
    )  # fmt: skip
    return system, pieces


@state
class _Ahead:
    """The predictor's second-order terms ds·dz for the corrector, and ds/s of the samples' slacks."""

    v: Array
    g: Array
    q: PyTree  # of the cone; () without one
    t: Array  # ds/s, (pieces, rows)


def _solve(
    form: EpigraphForm, maps: Maps, x: Array, y: Array, omega: Array, at: Iterate, system: _NewtonSystem,
    pieces: Pieces | None, mu: Array, ahead: _Ahead | None,
) -> Iterate:  # fmt: skip
    """The Newton direction towards complementarity products of mu.

    The predictor has mu = 0 and ahead = None; the corrector subtracts the predictor's second-order terms.
    """
    nu = evenness(omega)
    target_v = nu * mu - (0.0 if ahead is None else ahead.v)
    target_g = nu * mu - (0.0 if ahead is None else ahead.g)
    right, beta = system.right, system.beta + target_v / at.m - at.s_v
    extra = None
    if pieces is not None and ahead is not None:
        # the target over s: the predictor aims at products of 0, so dz/z = −1 − t and its dz·ds is −z·s·t(1 + t)
        extra = barrier(mu / at.s + at.z * ahead.t * (1.0 + ahead.t))
        push = extra - system.portion * jnp.sum(extra, axis=0)
        sign = omega * _sign(form, y)
        columns = [sign * _piecewise(push, pieces.in_u[:, i]) for i in range(maps.R.shape[0])]
        right = right + jnp.einsum("ad,adn->n", _through(form, columns, x), maps.R)
        right = right + (push @ omega) @ pieces.in_e @ maps.E
        beta = beta + jnp.dot(omega, jnp.sum(extra, axis=0) * system.inverse)
    # dz_g and dz_q without their parts in dy
    tau_g = target_g / at.s_g - at.z_g - at.z_g / at.s_g * system.r_g
    right = right - maps.G.T @ tau_g
    tau_q = at.z_q
    if form.cone:
        Wz = system.W @ at.z_q
        aim = jnp.zeros_like(Wz).at[0].set(nu * mu) - circle(Wz, Wz)
        if ahead is not None:
            aim = aim - ahead.q
        tau_q = system.W_inverse @ uncircle(Wz, aim)
        right = right - maps.S.T @ tau_q
    # back substitution: dy, then dm, dα, the slacks and the multipliers
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
            ds = barrier(ds)
            dz = extra - at.z - system.theta * ds
    ds_g = maps.G @ dy + system.r_g
    dz_g = tau_g - at.z_g / at.s_g * (maps.G @ dy)
    ds_q = maps.S @ dy
    dz_q = tau_q - system.W_inverse @ (system.W_inverse @ ds_q) if form.cone else at.z_q
    return Iterate(dy, du, dm, ds_v, dalpha, ds, dz, ds_g, dz_g, ds_q, dz_q)


def _piecewise(weights: Array, slopes: Array) -> Array:
    """The sum Σ_k weights_k · slopes_k, written out: XLA fuses a few terms, but not a product of matrices."""
    return sum((weights[k] * slopes[k] for k in range(1, weights.shape[0])), weights[0] * slopes[0])


def _inverse_step(form: EpigraphForm, at: Iterate, d: Iterate) -> Array:
    """The inverse of the longest step that keeps slacks and multipliers positive, those of samples left out."""
    inverse = jnp.maximum(-d.m / at.m, -d.s_v / at.s_v)
    for value, change in ((at.s_g, d.s_g), (at.z_g, d.z_g)):
        if value.size:
            inverse = jnp.maximum(inverse, jnp.max(-change / value))
    if form.cone:
        inverse = jnp.maximum(inverse, jnp.maximum(cone_step(at.s_q, d.s_q), cone_step(at.z_q, d.z_q)))
    return inverse


def _gap(at: Iterate) -> Array:
    """The sum of the complementarity products that belong to no sample."""
    return at.m * at.s_v + jnp.dot(at.z_g, at.s_g) + jnp.dot(at.z_q, at.s_q)


@partial(jax.jit, static_argnames=("form",))
def project(form: EpigraphForm, x: Array, y: Array, omega: Array, radius: Radius, a: Array, b: Array) -> Projection:
    """Project (b, a) onto the epigraph of the worst-case loss.

    Args:
        form: the static part of the program.
        x: the samples, (rows, dim).
        y: their labels.
        omega: their weights, which sum to one; 0 for filling rows.
        radius: ρ, κ and the box.
        a: the number that is projected.
        b: the point that is projected, with λ as its last entry where the server shares it.

    Returns:
        The projection (ŵ, v) and how accurate it is.
    """
    dim = x.shape[1]
    kappa = radius.kappa
    maps = form.maps(dim, radius)
    count = 1 + maps.G.shape[0] + (1 if form.cone else 0)

    def measures(at: Iterate, system: _NewtonSystem) -> tuple[Array, Array]:
        parts = [jnp.max(jnp.abs(system.r_y)), jnp.abs(system.r_v)]
        parts += [jnp.max(jnp.abs(r)) for r in (system.r_s, system.r_g) if r.size]
        gap = _gap(at) + (jnp.dot(omega, jnp.sum(at.z * at.s, axis=0)) if at.s.size else 0.0)
        return gap, jnp.max(jnp.stack(parts))

    first = _start(form, maps, x, y, omega, radius, a, b)
    products = evenness(omega) * count + first.s.shape[0]

    def advance(at: Iterate) -> tuple[Iterate, Array, Array]:
        system, pieces = barrier(_linearise(form, maps, x, y, omega, kappa, a, b, at))
        gap, residual = measures(at, system)
        towards = partial(_solve, form, maps, x, y, omega, at, system, pieces)
        mu = gap / products
        affine = towards(jnp.zeros(()), None)
        # the predictor's multipliers of samples follow from their slacks: dz/z = −1 − ds/s
        t, inverse_step = jnp.zeros((0, 0)), _inverse_step(form, at, affine)
        if pieces is not None:
            t = barrier(affine.s / at.s)
            inverse_step = jnp.maximum(inverse_step, jnp.maximum(jnp.max(-t), 1.0 + jnp.max(t)))
        way = reach(inverse_step)
        # the gap after the predictor's step; (1 + way·t)(1 − way − way·t) of s·z is (1 − way) − way²·t(1 + t)
        gap_ahead = _gap(along(at, affine, way))
        if pieces is not None:
            first, second = (jnp.dot(omega, jnp.sum(at.z * at.s * f, axis=0)) for f in (1.0, t * (1.0 + t)))
            gap_ahead = gap_ahead + (1.0 - way) * first - way**2 * second
        # Mehrotra's centring: little where the predictor alone would close most of the gap
        sigma = jnp.clip((gap_ahead / products / mu) ** 3, LEAST_CENTRING, 1.0)
        cone_term = circle(system.W_inverse @ affine.s_q, system.W @ affine.z_q) if form.cone else ()
        ahead = _Ahead(affine.m * affine.s_v, affine.z_g * affine.s_g, cone_term, t)
        direction = barrier(towards(sigma * mu, ahead))
        inverse_step = _inverse_step(form, at, direction)
        if pieces is not None:
            inverse_step = jnp.maximum(
                inverse_step, jnp.maximum(jnp.max(-direction.s / at.s), jnp.max(-direction.z / at.z))
            )
        return along(at, direction, reach(inverse_step)), gap, residual

    at, gap, residual, k = follow(first, 1.0 + jnp.abs(a) + jnp.max(jnp.abs(b)), advance)
    lam = at.y[dim] if form.robust else jnp.full((), jnp.inf)
    return Projection(at.y[:dim], lam, a + at.m, gap, residual, k)
