"""A site's part in the interior-point method for robust learning: its variables, its step, and its share in the system.

On the form of `form.py` the site's worst-case loss is V = cᵀy + Σ_i ω_i [f_0(u_i) + α_i] with α_i ≥ φ_k(u_i, e),
Gy + g ≥ 0 and Sy in the second-order cone, y = (w, λ, …). The server holds w and the adversary's weight m of the site;
λ, …, all α, and the multipliers z of these rows are the site's own. In the Newton system of the optimality conditions

    m V(y, α) + Σ_i ω_i Σ_k z_ik (φ_k − α_i) − z_gᵀ(Gy + g) − z_qᵀSy    stationary,  s z = (weight of the row)·μ

the site eliminates them, α and z sample by sample: what is left is a matrix and vectors over (w, m), affine in μ. As in
`step.py`, a sample leaves θ_k = z_k/s_k for each piece, and pairs of pieces θ_k θ_l/Σθ, so that nothing cancels.

The steps of w and m are given. The site moves its own variables by Newton's equations, and keeps a share of every
slack and multiplier, each for itself: α_i and λ are raised where w has moved too far for them. It so always has a
strictly feasible point, whatever w it is given.
"""

import dataclasses
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.algorithms.interior.robust_rows import (
    Multipliers,
    SampleRows,
    along,
    balanced,
    blocked,
    blocked_dual,
    centred,
    change,
    kept_share,
    lifted,
    no_rows,
    row_sums,
)
from foedus.base.pytrees import select, state
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.problem.losses import Huber, SmoothHinge, signed
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm, Maps, Pieces, Smooth
from foedus.robust.step import evenness

# --- losses that are linear beyond two slopes ---


@dataclass(frozen=True)
class Elastic:
    """Huber's loss or the smooth hinge: quadratic between two slopes, and linear beyond.

        f(v) = min over p, n ≥ 0 of ½r² + high·p − low·n,  r = v − p + n,  v = offset + sign·u

    is Huber's loss of v = u with slopes ±ε, and the smooth hinge of v = 1 − u with slopes 0 and 1. Beyond its two
    slopes the loss has no curvature, and a Newton step from there would know no measure. With slacks p and n and their
    multipliers z_p = m(high − r), z_n = m(r − low) a sample has the curvature of three springs in series, r, p and n:
    k = 1/(1/m + p/z_p + n/z_n). A sample's own variables are r, kept between the slopes, and p; n follows from v.
    """

    low: float
    high: float
    sign: float
    offset: float

    def of(self, u: Array) -> Array:
        """v at u."""
        return self.offset + self.sign * u


@state
class Springs:
    """The samples' part in the Newton system: values, slopes in u (towards μ = 0, per m, per μ, as is), curvature."""

    value: Array
    slopes: Array  # (4, rows)
    bend: Array
    v_0: Array  # the change of the value that own variables would make, towards μ = 0
    v_m: Array
    v_mu: Array
    gap: Array  # p·z_p + n·z_n


def first_springs(v: Array, loss: Elastic, product: Array) -> Array:
    """(r, p) with slacks in proportion to a first complementarity product. (2, rows)"""
    r = 0.5 * (jnp.clip(v, loss.low, loss.high) + 0.5 * (loss.low + loss.high))
    apart = v - r  # p − n
    return jnp.stack([r, jnp.maximum(apart, 0.0) + 2.0 * product / (loss.high - loss.low)])


def springs_of(own: Array, v: Array, loss: Elastic, m: Array) -> Springs:
    """What (r, p) come to at v; n = p − v + r."""
    (r, p), n, low, high = own, own[1] - v + own[0], loss.low, loss.high
    z_p, z_n = m * (high - r), m * (r - low)
    tp, tn = z_p / p, z_n / n
    D = tp * tn + m * (tp + tn)

    def pushed(b_p: Array, b_n: Array) -> tuple[Array, Array]:
        """The changes of m·r and of the value where p and n are pushed by b."""
        dr = -(tn * b_p - tp * b_n) / D
        dp, dn = ((tn + m) * b_p + m * b_n) / D, ((tp + m) * b_n + m * b_p) / D
        return m * dr, r * dr + high * dp - low * dn

    slope_m, v_m = pushed(-(high - r), -(r - low))
    slope_mu, v_mu = pushed(1.0 / p, 1.0 / n)
    slope_m = slope_m + r
    slopes = loss.sign * jnp.stack([m * slope_m, slope_m, slope_mu, m * r])
    value = 0.5 * r**2 + high * p - low * n
    return Springs(value, slopes, m * tp * tn / D, m * v_m, v_m, v_mu, p * z_p + n * z_n)


def step_springs(
    own: Array,
    v: Array,
    new: Array,
    dv: Array,
    loss: Elastic,
    m: Array,
    dm: Array,
    mu: Array,
    t: Array,
    rest: Array,
) -> tuple[Array, Array]:
    """(r, p) after the share t of the step in which v moves by dv, to `new`; and the inverse of the longest step.

    `rest` is the share of its distance from a bound that everything keeps at least.
    """
    (r, p), n, low, high = own, own[1] - v + own[0], loss.low, loss.high
    tp, tn = m * (high - r) / p, m * (r - low) / n
    D = tp * tn + m * (tp + tn)
    b_p, b_n = mu / p - (m + dm) * (high - r) + m * dv, mu / n - (m + dm) * (r - low) - m * dv
    dp, dn = ((tn + m) * b_p + m * b_n) / D, ((tp + m) * b_n + m * b_p) / D
    dr = dv - dp + dn
    inverse = jnp.max(jnp.stack([dr / (high - r), -dr / (r - low), -dp / p, -dn / n]), axis=0)
    r_new = jnp.clip(r + t * dr, low + rest * (r - low), high - rest * (high - r))
    p_new = jnp.maximum(jnp.maximum(p + t * dp, rest * p), new - r_new + rest * n)
    return jnp.stack([r_new, p_new]), inverse


# --- the site ---


@state
class SitePosition:
    """The site's variables at a point, and how its own part of y answers to steps of the shared one."""

    y: Array
    m: Array
    alpha: Array  # of each sample; for Huber's loss and the smooth hinge its (r, p)
    z: Array  # (pieces, rows)
    rows: Multipliers
    answer: Array  # of the own y: to the shared y, and its constant, to m and to μ (own, shared + 3)


@state
class SiteShare:
    """The site's share in the Newton system at a place; right-hand sides are `…_0` + μ·`…_mu`."""

    hessian: Array  # over the shared y
    gradient: Array
    gradient_mu: Array
    lag: Array  # the Lagrangian's gradient with the multipliers as they are
    cross: Array  # of the shared y and m
    bend: Array  # of m, with its sign turned
    v: Array  # the worst-case loss with the α as they are
    v_0: Array  # with the change that the own variables would make
    v_mu: Array
    gap: Array  # the sum of complementarity products
    excess: Array  # what a step of the own variables alone would gain
    count: Array  # the sum of the products' weights


@dataclass(frozen=True)
class RobustSite:
    """A site's data as the method sees them; `share` is q̂ of the site, with which its barrier counts."""

    form: EpigraphForm
    x: Array
    y: Array
    omega: Array
    radius: Radius
    share: Array

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def n_common(self) -> int:
        """How many entries of y the server holds: w, or all of y where λ is shared."""
        return self.form.size(self.dim) if self.form.shares_lambda else self.dim

    @property
    def nu(self) -> Array:
        """The barrier's weight of rows that are no sample's."""
        return evenness(self.omega) * self.share

    @property
    def maps(self) -> Maps:
        return self.form.maps(self.dim, self.radius)

    def rows(self, maps: Maps) -> SampleRows:
        """The rows of the site's own variables."""
        if self.form.shares_lambda:
            return no_rows(self.n_common)
        return SampleRows(maps.G, maps.g, maps.S, jnp.zeros(maps.S.shape[0]))

    def pieces(self, maps: Maps, y: Array) -> tuple[Array, Pieces | None]:
        u, e = self.form.margins(maps.R @ y, self.x, self.y), maps.E @ y
        return u, self.form.pieces(u, e, self.radius.kappa)

    def smooth(self, u: Array) -> Smooth | None:
        """The smooth part of the loss, but for losses that have variables of their own."""
        return None if self.elastic is not None else self.form.smooth(u)

    @property
    def elastic(self) -> Elastic | None:
        """The loss as `springs_of` takes it; None for losses with curvature or pieces of their own."""
        loss = self.form.ball.loss
        if isinstance(loss, Huber):
            return Elastic(-loss.eps, loss.eps, 1.0, 0.0)
        return Elastic(0.0, 1.0, -1.0, 1.0) if isinstance(loss, SmoothHinge) and not self.form.turns else None

    def start(self, common: Array, m: Array) -> SitePosition:
        """The first place, at w and m, with products in proportion to the loss there.

        A loss of 0, as of labels within the tube, says nothing: then the price of the ball does, or how far pieces are.
        """
        form, maps = self.form, self.maps
        y = common if form.shares_lambda or not form.robust else form.start(self.dim, common, self.radius)
        u, pieces = self.pieces(maps, y)
        smooth, alpha, z = form.smooth(u), jnp.zeros(0), jnp.zeros((0, 0))
        loss = jnp.zeros(()) if smooth is None else jnp.dot(self.omega, smooth.value)
        least = jnp.maximum(jnp.dot(maps.c, y), 1e-8)
        if pieces is not None:
            loss = loss + jnp.dot(self.omega, jnp.abs(jnp.max(pieces.value, axis=0)))
            least = jnp.maximum(least, 0.1 * jnp.dot(self.omega, jnp.max(jnp.abs(pieces.value), axis=0)))
        product = METHOD.first_product * jnp.maximum(loss, least)
        if pieces is not None:
            alpha = jnp.max(pieces.value, axis=0) + product * pieces.value.shape[0]
            inverse = 1.0 / (alpha - pieces.value)
            z = m * inverse / jnp.sum(inverse, axis=0)
        if (elastic := self.elastic) is not None:
            alpha = first_springs(elastic.of(u[0]), elastic, product)
        rows = centred(self.rows(maps), y, self.nu * product)
        return SitePosition(y, m, alpha, z, rows, jnp.zeros((y.shape[0] - self.n_common, self.n_common + 3)))

    def visit(
        self, at: SitePosition, first: Array, common: Array, m: Array, mu: Array, t: Array, dual: Array
    ) -> tuple[SitePosition, SiteShare, Array]:
        """The place after `recover`, or `at` where it is the first; the share there; and the inverses of `recover`."""
        moved, inverses = self.recover(at, common, m, mu, t, dual)
        place, share = self.eliminate(select(first, at, moved))
        return place, share, inverses

    def recover(
        self, at: SitePosition, common: Array, m: Array, mu: Array, t: Array, dual: Array
    ) -> tuple[SitePosition, Array]:
        """The place after the share t of a step that leads the shared y and m to the given ones.

        `dual` is the share of the multipliers' step. Second, the inverses of the longest t and of the longest `dual`
        with which nothing would have to be held back.
        """
        form, maps, n_common = self.form, self.maps, self.n_common
        rows, own_mu, rest = self.rows(maps), self.share * mu, kept_share(t)
        dx, dm = (common - at.y[:n_common]) / t, (m - at.m) / t
        dy = jnp.concatenate([dx, at.answer @ jnp.concatenate([dx, jnp.stack([jnp.ones(()), dm, mu])])])
        d_rows = change(rows, at.y, at.rows, dy, mu, self.nu)
        primal, dual_end = blocked(rows, at.y, dy), blocked_dual(at.rows, d_rows)
        new = (at.y + t * dy).at[:n_common].set(common)
        if new.shape[0] > n_common:
            new = lifted(rows, at.y, new, rest, self.dim + 1, self.dim)
        alpha, z = at.alpha, at.z
        u, pieces = self.pieces(maps, at.y)
        here = self.omega > 0
        if (elastic := self.elastic) is not None:
            dv = elastic.sign * form.moves(maps.R @ dy, self.x, self.y)[0]
            v, there = elastic.of(u[0]), elastic.of(self.pieces(maps, new)[0][0])
            alpha, inverse = step_springs(alpha, v, there, dv, elastic, at.m, dm, own_mu, t, rest)
            primal = jnp.maximum(primal, jnp.max(jnp.where(here, inverse, 0.0)))
        if pieces is not None:
            s = at.alpha - pieces.value
            theta = at.z / s
            whole = jnp.sum(theta, axis=0)
            du = form.moves(maps.R @ dy, self.x, self.y)
            dphi = (pieces.in_e @ (maps.E @ dy))[:, None] + jnp.sum(pieces.in_u * du, axis=1)
            push = own_mu / s
            dalpha = (jnp.sum(theta * dphi, axis=0) + jnp.sum(push, axis=0) - at.m - dm) / whole
            ds = dalpha - dphi
            dz = push - at.z - theta * ds
            primal = jnp.maximum(primal, jnp.max(jnp.where(here, -ds / s, 0.0)))
            dual_end = jnp.maximum(dual_end, jnp.max(jnp.where(here, -dz / at.z, 0.0)))
            _, after = self.pieces(maps, new)
            assert after is not None
            alpha = jnp.maximum(at.alpha + t * dalpha, jnp.max(after.value + rest * s, axis=0))
            z = jnp.maximum(at.z + dual * dz, rest * at.z)
            z = z * (m / jnp.sum(z, axis=0))
        multipliers = along(at.rows, d_rows, dual, rest)
        if new.shape[0] > n_common:
            multipliers = balanced(form, multipliers, self.dim)
        place = SitePosition(new, m, alpha, z, multipliers, at.answer)
        return place, jnp.stack([primal, dual_end])

    def eliminate(self, at: SitePosition) -> tuple[SitePosition, SiteShare]:
        """The site's share in the Newton system, and the place with its answer to steps."""
        form, maps, n_common, m, omega = self.form, self.maps, self.n_common, at.m, self.omega
        sets, common, size = maps.R.shape[0], maps.E.shape[0], at.y.shape[0]
        # two r come with two pieces of one r each, and then all samples turn the same way
        joint = maps.R[0] if sets == 1 else maps.R[0] + maps.R[1]
        u, pieces = self.pieces(maps, at.y)
        smooth = self.smooth(u)
        # slopes in u: towards μ = 0, per unit of m, per unit of μ, and as they are; likewise in e
        slopes, slopes_e = jnp.zeros((4, *u.shape)), jnp.zeros((4, common))
        bends, mixed, square = jnp.zeros(u.shape[1]), jnp.zeros((common, u.shape[1])), jnp.zeros((common, common))
        v, shift = jnp.dot(maps.c, at.y), jnp.zeros(())
        v_mu, gap, count = shift, shift, jnp.zeros(())
        if smooth is not None:
            v = v + jnp.dot(omega, smooth.value)
            slopes = slopes.at[:, 0].add(jnp.stack([m, jnp.ones(()), jnp.zeros(()), m])[:, None] * smooth.slope)
            bends = bends + m * smooth.bend
        if (elastic := self.elastic) is not None:
            part = springs_of(at.alpha, elastic.of(u[0]), elastic, m)
            slopes = slopes.at[:, 0].add(part.slopes.at[2].multiply(self.share))
            v, shift, bends = v + jnp.dot(omega, part.value), -jnp.dot(omega, part.v_m), bends + part.bend
            v_mu, gap = self.share * jnp.dot(omega, part.v_mu), jnp.dot(omega, part.gap)
            count = count + 2.0 * self.share
        if pieces is not None:
            in_u, in_e = pieces.in_u, pieces.in_e
            s = at.alpha - pieces.value
            theta, inverse = at.z / s, 1.0 / s
            whole, total = jnp.sum(theta, axis=0), jnp.sum(inverse, axis=0)
            portion = theta / whole
            weights = jnp.stack([m * portion, portion, self.share * (inverse - portion * total), at.z])
            slopes = slopes + jnp.sum(weights[:, :, None] * in_u, axis=1)
            slopes_e = (weights @ omega) @ in_e
            first, second = np.triu_indices(s.shape[0], 1)
            weight = theta[first] * portion[second]
            across = in_u[first] - in_u[second]
            across = across[:, 0] if sets == 1 else jnp.ones((len(first), 1))
            across_e = in_e[first] - in_e[second]
            bends = bends + jnp.sum(weight * across**2, axis=0)
            if not form.linear:
                bends = bends + jnp.sum(at.z * _soft_curve(u[0], s, at.z), axis=0)
            mixed = across_e.T @ (weight * across)
            square = (across_e * (weight @ omega)[:, None]).T @ across_e
            v, shift = v + jnp.dot(omega, at.alpha), jnp.dot(omega, 1.0 / whole)
            v_mu = self.share * jnp.dot(omega, total / whole)
            gap = jnp.dot(omega, jnp.sum(s * at.z, axis=0))
            count = count + self.share * s.shape[0]
        sign = omega * (signed(self.y) if form.ball.classifies else jnp.ones_like(self.y))
        product = self._through(jnp.concatenate([slopes.reshape(4 * sets, -1), mixed]) * sign)
        vectors = jnp.stack([m, jnp.ones(()), jnp.zeros(()), m])[:, None] * maps.c + slopes_e @ maps.E
        vectors = vectors + jnp.einsum("kad,adn->kn", product[: 4 * sets].reshape(4, sets, -1), maps.R)
        off = joint.T @ product[4 * sets :].T @ maps.E
        hessian = joint.T @ self._gram(omega * bends) @ joint + off + off.T + maps.E.T @ square @ maps.E
        rows = self.rows(maps)
        sums = row_sums(rows, at.y, at.rows, self.nu)
        hessian, gap, count = hessian + sums.hessian, gap + sums.gap, count + self.nu * rows.count
        gradient, slope_m, slope_mu, lag = vectors.at[2].add(sums.pull_mu).at[3].add(sums.pull)
        v_0, bend, excess, answer = v - m * shift, shift, jnp.zeros(()), at.answer
        if size > n_common:
            # the own variables leave: a Schur complement, scaled to a unit diagonal
            own, across = hessian[n_common:, n_common:], hessian[:n_common, n_common:]
            scale = 1.0 / jnp.sqrt(jnp.diag(own))
            lower = cholesky(own * scale[:, None] * scale + 1e-15 * jnp.eye(size - n_common))
            right = [a[n_common:, None] for a in (gradient, slope_m, slope_mu, lag)]
            moved = jnp.concatenate([across.T, *right], axis=1)
            moved = -scale[:, None] * cholesky_solve(lower, scale[:, None] * moved)
            answer, (g, c, b, r) = moved[:, : n_common + 3], moved[:, n_common:].T
            v_0, v_mu, bend = v_0 + slope_m[n_common:] @ g, v_mu + slope_m[n_common:] @ b, bend - slope_m[n_common:] @ c
            excess = -0.5 * jnp.dot(lag[n_common:], r)
            gradient, slope_m, slope_mu, lag = (
                a[:n_common] + across @ d for a, d in ((gradient, g), (slope_m, c), (slope_mu, b), (lag, r))
            )
            hessian = hessian[:n_common, :n_common] + across @ answer[:, :n_common]
        place = dataclasses.replace(at, answer=answer)
        share = SiteShare(hessian, gradient, slope_mu, lag, slope_m, bend, v, v_0, v_mu, gap, excess, count)
        return place, share

    def _through(self, columns: Array) -> Array:
        """Each column times X, and with a box times the constant column of the shift."""
        product = columns @ self.x
        if not self.form.box:
            return product
        return jnp.concatenate([product, jnp.sum(columns, axis=1, keepdims=True)], axis=1)

    def _gram(self, weights: Array) -> Array:
        gram = (self.x * weights[:, None]).T @ self.x
        if not self.form.box:
            return gram
        edge = weights @ self.x
        return jnp.block([[gram, edge[:, None]], [edge[None], jnp.sum(weights)[None, None]]])


def _soft_curve(u: Array, s: Array, z: Array) -> Array:
    """The curvature of the smooth hinge of u and of −u, 1 between its kinks, as a barrier would smooth it beyond them.

    There the loss has none, and a Newton step would know no measure. With the product sz of a slack and its multiplier
    z, springs as those of `springs_of` leave 1/(1 + z·d²/(sz)) at the distance d, which vanishes as sz does.
    """
    margin = jnp.stack([u, -u])
    away = jnp.maximum(-margin, 0.0) + jnp.maximum(margin - 1.0, 0.0)
    product = jnp.mean(s * z, axis=0)
    return product / (product + z * away**2)
