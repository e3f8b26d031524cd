"""The server's part in the interior-point method for robust learning: the shared system, its own rows, and steps.

The robust problem is the saddle  min over w, max over q in Q  of  Σ_s q_s V_s(w) + h(w), with q = q̂ + θξ. The server
holds x = (w, …) and ξ. Its own rows are those of Q in ξ: q ≥ 0 and ‖ξ‖_p ≤ 1, with |ξ| ≤ τ where p = 1; and in x those
of a regulariser, and of the norm of w where λ is shared. From the sites come sums alone: their matrix K over x,
vectors, and a table in which only row s is site s's, with the row and the column of q_s in the shared matrix.

    [ K + rows        Bᵀ       ] [dx]      [ r_x ]
    [    B      −(C + rows)    ] [dξ]  = − [ r_ξ ],    eᵀdξ = 0,     B = θ·∂V/∂x,  C = θ²·diag(bend)

is solved by eliminating ξ: what is left is positive definite, and is scaled to a unit diagonal, so that nothing depends
on the units of the columns.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import state
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.problem.regularizers import Box, ElasticNet, Regularizer, Zero
from foedus.problem.terms import Data, Terms
from foedus.robust.closed import Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.interior_rows import (
    EDGE,
    Multipliers,
    SampleRows,
    SampleRowSums,
    along,
    balanced,
    blocked,
    blocked_dual,
    centred,
    change,
    kept_share,
    lifted,
    paired,
    row_sums,
)

SHIFT = 1e-14  # added to the unit diagonal of a scaled matrix
GRID = np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02])  # steps that sites say yes or no to
SHORTEST = 0.01  # the step where nobody says yes
ALLOWED = 0.99  # share of the way to the boundary at which a site says yes
TABLE = ("bend", "v", "v_0", "v_mu", "bent")  # what the table has beside the row ∂V/∂x
NUMBERS = ("gap", "excess", "count")


@state
class RobustSums:
    """The sites' shares in the system, added up; or one site's, whose row of the table is its own."""

    hessian: Array  # over the shared variables, its upper triangle
    gradient: Array
    gradient_mu: Array
    lag: Array
    bent: Array  # K_s·x_s + cross_s·m_s, with which a silent site's share is brought to a new point
    table: Array  # (clients, shared + TABLE)
    numbers: Array  # NUMBERS
    primal: Array  # how many sites say yes to each primal step of GRID
    dual: Array

    @staticmethod
    def zero(held: int, clients: int) -> "RobustSums":
        vector, steps = jnp.zeros(held), jnp.zeros(len(GRID))
        return RobustSums(
            jnp.zeros(held * (held + 1) // 2), vector, vector, vector, vector,
            jnp.zeros((clients, held + len(TABLE))), jnp.zeros(len(NUMBERS)), steps, steps,
        )  # fmt: skip


@state
class Position:
    """Where the server is: x, ξ (with τ), and the multipliers of its rows."""

    x: Array
    xi: Array
    of_x: Multipliers
    of_xi: Multipliers


@state
class Direction:
    dx: Array
    dxi: Array
    mu: Array


@state
class RobustSystem:
    """The shared system at a position, from all parties."""

    scale: Array
    lower: Array  # of what is left of the matrix in x
    B: Array
    inverse: Array  # of C with its rows, upon eᵀξ = 0
    A: Array
    C: Array
    r_x: tuple[Array, Array, Array]  # towards μ = 0, per unit of μ, and as multipliers are
    r_xi: tuple[Array, Array, Array]
    value: Array  # the objective
    gap: Array  # the sum of complementarity products
    error: Array  # gap, and what a step towards stationarity would gain
    count: Array  # the sum of the products' weights

    def solve(self, k: int) -> tuple[Array, Array]:
        """The Newton step for the k-th of the right-hand sides."""
        r_x, r_xi = self.r_x[k], self.r_xi[k]
        right = self.scale * (r_x + self.B.T @ (self.inverse @ r_xi))
        dx = -self.scale * cholesky_solve(self.lower, right)
        return dx, self.inverse @ (r_xi + self.B @ dx)

    @property
    def finite(self) -> Array:
        return jnp.isfinite(self.error) & jnp.isfinite(self.lower[-1, -1])


def takes(h: Regularizer) -> bool:
    """Whether the method has rows for a regulariser."""
    return isinstance(h, Zero | ElasticNet) or (isinstance(h, Box) and h.low < h.high)


def first_shared(terms: Terms, form: EpigraphForm, kappa: Array, w0: Array) -> Array:
    """The shared variables at the start, as all parties know them: w0, inside the box of a regulariser."""
    h = terms.regularizer
    if isinstance(h, Box):
        width = 0.1 * min(h.high - h.low, 10.0)
        w0 = jnp.clip(w0, h.low + width, h.high - width)
    none = jnp.zeros(0)
    return form.start(terms.dim, w0, Radius(jnp.zeros(()), kappa, none, none)) if form.shares_lambda else w0


@dataclass(frozen=True)
class RobustServerView:
    """What the server knows: the terms, the form of the sites' problem, the norm of Q, and its numbers in `own`."""

    terms: Terms
    form: EpigraphForm
    p: Any
    own: Data

    @property
    def held(self) -> int:
        """How many variables the sites share."""
        return self.form.size(self.terms.dim) if self.form.shares_lambda else self.terms.dim

    @property
    def absolute(self) -> bool:
        """Whether variables t ≥ |w| stand for an ℓ1 norm."""
        h = self.terms.regularizer
        return isinstance(h, ElasticNet) and h.lam1 > 0

    @property
    def size(self) -> int:
        return self.held + (self.terms.dim if self.absolute else 0)

    @property
    def nu(self) -> float:
        """The barrier's weight of the server's rows.

        With 1/S, as of one site each, q comes so near to its bounds that steps get short: with ten sites, 61 rounds in
        place of 25.
        """
        return 1.0

    @property
    def of_x(self) -> SampleRows:
        """The rows in x."""
        dim, n, h = self.terms.dim, self.size, self.terms.regularizer
        eye = jnp.eye(n)
        G, g, S = [jnp.zeros((0, n))], [jnp.zeros(0)], jnp.zeros((0, n))
        if self.form.shares_lambda:
            ends = jnp.zeros(dim - self.form.ball.intercept if self.form.box else 0)
            maps = self.form.maps(dim, Radius(jnp.zeros(()), self.own["robust.kappa"], ends, ends))
            rest = ((0, 0), (0, n - self.held))
            G, g, S = [jnp.pad(maps.G, rest)], [maps.g], jnp.pad(maps.S, rest)
        if self.absolute:
            t = eye[self.held :]
            G, g = [*G, t - eye[:dim], t + eye[:dim]], [*g, jnp.zeros(2 * dim)]
        if isinstance(h, Box):
            for sign, end in ((1.0, h.low), (-1.0, h.high)):
                if np.isfinite(end):
                    G, g = [*G, sign * eye[:dim]], [*g, jnp.full(dim, -sign * end)]
        return SampleRows(jnp.concatenate(G), jnp.concatenate(g), S, jnp.zeros(S.shape[0]))

    @property
    def of_xi(self) -> SampleRows:
        """The rows of Q in ξ, with τ where p = 1."""
        n = self.terms.clients
        size = 2 * n if self.p == 1 else n
        xi, none = jnp.eye(size)[:n], jnp.zeros((0, size))
        G, g = [self.own["robust.theta"] * xi], [self.own["robust.q_hat"]]
        S, h = none, jnp.zeros(0)
        if self.p == 1:
            tau = jnp.eye(size)[n:]
            G += [tau - xi, tau + xi, -jnp.sum(tau, axis=0)[None]]
            g += [jnp.zeros(2 * n), jnp.ones(1)]
        elif self.p == "inf":
            G, g = [*G, -xi, xi], [*g, jnp.ones(2 * n)]
        else:
            S, h = jnp.concatenate([jnp.zeros((1, n)), xi]), jnp.zeros(n + 1).at[0].set(1.0)
        return SampleRows(jnp.concatenate(G), jnp.concatenate(g), S, h)

    def weights(self, at: Position) -> Array:
        """q = q̂ + θξ."""
        return self.own["robust.q_hat"] + self.own["robust.theta"] * at.xi[: self.terms.clients]

    def start(self, w0: Array) -> Position:
        """An interior position at w0."""
        n = self.terms.clients
        x = first_shared(self.terms, self.form, self.own["robust.kappa"], w0)
        if self.absolute:
            x = jnp.concatenate([x, jnp.abs(w0) + 1.0])
        xi, nu = jnp.zeros(n), jnp.asarray(self.nu)
        if self.p == 1:
            xi = jnp.concatenate([xi, jnp.full(n, 0.5 / n)])
        return Position(x, xi, centred(self.of_x, x, nu), centred(self.of_xi, xi, nu))

    def cost(self, x: Array) -> tuple[Array, Array, Array]:
        """The server's own part in the objective, with gradient and the diagonal of the Hessian."""
        dim, h = self.terms.dim, self.terms.regularizer
        c, bend = jnp.zeros(self.size), jnp.zeros(self.size)
        if self.form.shares_lambda:
            c = c.at[dim].set(self.own["robust.price"])
        if isinstance(h, ElasticNet):
            c = c.at[self.held :].set(h.lam1)
            bend = bend.at[:dim].set(h.lam2)
        return jnp.dot(c, x) + 0.5 * jnp.dot(bend, x**2), c + bend * x, bend

    def system(self, at: Position, sums: RobustSums, complete: Array) -> RobustSystem:
        """The system at a position; where not all sites spoke of it, the silent ones' shares are brought to it."""
        n, held, size = self.terms.clients, self.held, self.size
        theta, q, x = self.own["robust.theta"], self.weights(at), at.x[: self.held]
        upper = np.triu_indices(held)
        K = jnp.zeros((held, held)).at[upper].set(sums.hessian)
        K = K + K.T - jnp.diag(jnp.diag(K))
        cross = sums.table[:, :held]
        bend, v, v_0, v_mu, bent = sums.table[:, held:].T
        drift = jnp.where(complete, 0.0, K @ x + cross.T @ q - sums.bent)
        shift = jnp.where(complete, 0.0, cross @ x - bend * q - bent)
        v, v_0 = v + shift, v_0 + shift
        rest = (0, size - held)
        own, gradient, ridge = self.cost(at.x)
        rows: SampleRowSums = row_sums(self.of_x, at.x, at.of_x, jnp.asarray(self.nu))
        A = jnp.pad(K, rest) + jnp.diag(ridge) + rows.hessian
        r_x = (
            jnp.pad(sums.gradient + drift, rest) + gradient,
            jnp.pad(sums.gradient_mu, rest) + rows.pull_mu,
            jnp.pad(sums.lag + drift, rest) + gradient + rows.pull,
        )
        more = at.xi.shape[0] - n
        weights: SampleRowSums = row_sums(self.of_xi, at.xi, at.of_xi, jnp.asarray(self.nu))
        C = jnp.diag(jnp.pad(theta**2 * bend, (0, more))) + weights.hessian
        B = jnp.pad(theta * cross, ((0, more), rest))
        r_xi = (
            jnp.pad(theta * v_0, (0, more)),
            jnp.pad(theta * v_mu, (0, more)) - weights.pull_mu,
            jnp.pad(theta * v, (0, more)) - weights.pull,
        )
        inverse = _inverse_upon(C, jnp.pad(jnp.ones(n), (0, more)))
        whole = A + B.T @ inverse @ B
        diagonal = jnp.diag(whole)
        top = jnp.max(diagonal)
        top = jnp.where(top > 0, top, 1.0)  # 0 where every column is
        scale = 1.0 / jnp.sqrt(jnp.maximum(diagonal, 1e-30 * top))
        lower = cholesky(whole * scale[:, None] * scale + SHIFT * jnp.eye(size))
        gap, excess, count = sums.numbers
        gap = gap + rows.gap + weights.gap
        count = count + self.nu * (self.of_x.count + self.of_xi.count)
        found = RobustSystem(
            scale, lower, B, inverse, A, C, r_x, r_xi, jnp.dot(q, v) + own, gap, gap + excess, count
        )  # fmt: skip
        dx, dxi = found.solve(2)
        gain = 0.5 * jnp.dot(dx, A @ dx) + 0.5 * jnp.dot(dxi, C @ dxi)
        return RobustSystem(
            scale, lower, B, inverse, A, C, r_x, r_xi, found.value, gap, found.error + gain, count
        )  # fmt: skip

    def reach(self, at: Position, d: Direction) -> tuple[Array, Array, tuple[Multipliers, Multipliers]]:
        """The inverses of the longest steps of the server's own, and the steps of its multipliers."""
        nu = jnp.asarray(self.nu)
        of_x = change(self.of_x, at.x, at.of_x, d.dx, d.mu, nu)
        of_xi = change(self.of_xi, at.xi, at.of_xi, d.dxi, d.mu, nu)
        primal = jnp.maximum(blocked(self.of_x, at.x, d.dx), blocked(self.of_xi, at.xi, d.dxi))
        dual = jnp.maximum(blocked_dual(at.of_x, of_x), blocked_dual(at.of_xi, of_xi))
        return primal, dual, (of_x, of_xi)

    def step(self, at: Position, d: Direction, t: Array, dual: Array) -> Position:
        """The position after the share t of a step, and `dual` of the multipliers' steps."""
        dim, h, rows, rest = self.terms.dim, self.terms.regularizer, self.of_x, kept_share(t)
        _, _, (of_x, of_xi) = self.reach(at, d)
        x = at.x + t * d.dx
        if isinstance(h, Box):  # each coordinate keeps its distance from the ends by itself
            w = jnp.clip(x[:dim], h.low + rest * (at.x[:dim] - h.low), h.high - rest * (h.high - at.x[:dim]))
            x = x.at[:dim].set(w)
        lam = dim if self.form.shares_lambda and self.form.robust else None
        if self.size > dim:
            x = lifted(rows, at.x, x, rest, dim if lam is None else dim + 1, lam)
        way = jnp.minimum(t, EDGE / jnp.maximum(blocked(self.of_xi, at.xi, d.dxi), EDGE))
        of_x = along(at.of_x, of_x, dual, rest)
        if lam is not None:
            of_x = balanced(self.form, of_x, dim)
        if self.absolute:
            assert isinstance(h, ElasticNet)
            of_x = paired(of_x, rows.G.shape[0] - 2 * dim, dim, jnp.asarray(h.lam1))
        of_xi = along(at.of_xi, of_xi, dual, rest)
        if self.p == 1:
            n = self.terms.clients
            of_xi = paired(of_xi, n, n, of_xi.z[-1])
        return Position(x, at.xi + way * d.dxi, of_x, of_xi)


def _inverse_upon(C: Array, e: Array) -> Array:
    """The inverse of C on the vectors with eᵀξ = 0."""
    scale = 1.0 / jnp.sqrt(jnp.diag(C))
    lower = cholesky(C * scale[:, None] * scale + SHIFT * jnp.eye(C.shape[0]))
    inverse = scale[:, None] * cholesky_solve(lower, jnp.diag(scale))
    along_e = inverse @ e
    return inverse - jnp.outer(along_e, along_e) / jnp.dot(e, along_e)


def agreed(counts: Array, parties: int, own: Array) -> Array:
    """The longest step of GRID that all parties say yes to, and that the server's own rows allow."""
    all_yes = (jnp.round(counts) >= parties) & says_yes(own)
    return jnp.max(jnp.where(all_yes, jnp.asarray(GRID), SHORTEST))


def says_yes(inverse: Array) -> Array:
    """Which of GRID's steps stay inside, given the inverse of the longest one."""
    return jnp.asarray(GRID) * inverse <= ALLOWED
