"""The server's part in the interior-point method: the system that the sites' sums make with its own rows, and steps.

Its own rows are those of global scope, the coupled ones, whose values and Jacobians the sites add up, and those that
stand for a regulariser. They are treated as a site treats its own.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior_point_learnt import Learnt, LearntShare, learnt, solve_learnt
from foedus.algorithms.interior_point_rows import (
    NUMBERS,
    Rows,
    RowSums,
    blank_rows,
    damped,
    farthest,
    number,
    row_sums,
    rows_step,
    settled,
    started,
    stiffness,
)
from foedus.algorithms.interior_point_site import OwnRows, QuadraticModel
from foedus.algorithms.lagrangian import Party, equalities, evaluate
from foedus.base.pytrees import PyTree, select, state
from foedus.certificate.contradiction import reach
from foedus.certificate.gap import rows_convex
from foedus.numerics.lapack import cholesky, cholesky_solve, eigh
from foedus.numerics.packed import unpack
from foedus.problem.epigraph import Epigraph
from foedus.problem.terms import Data, Terms

SHIFT = 1e-12  # added to the unit diagonal of the scaled matrix
GENTLE, REFINEMENTS = 1e-7, 5  # a larger one, and steps of refinement that undo it
HIDES = 1.001  # a decrement that is so many times that with the larger shift is partly hidden by it
SHORTEST_ROOM = 0.01  # a step is tried at least at this share, whatever the slacks of the server's rows
LEAST_DIAGONAL = 1e-40  # of the largest entry: a smaller one is no curvature but rounding
FLAT = 1e-9  # the least curvature of a scaled matrix that is not positive definite


@state
class System:
    """The shared system at a point x = (w, t), from all parties."""

    x: Array
    K: Array | Learnt
    lag: Array  # the Lagrangian's gradient
    a: Array  # the right-hand side is lag + a + μ b
    b: Array
    certificate: Array  # the gradient that a certificate is about, over w: h's own part is left out
    f: Array  # with the smooth part of h
    force: Array  # a bound on ‖∇f‖_∞
    numbers: Array  # NUMBERS, summed over the parties
    own: Rows
    c: Array  # the server's rows
    J: Array  # the Jacobian of those that the problem states
    change: Array  # of the smooth part's gradient since the last point, where curvature is learnt
    pull: Array  # Jᵀz over all parties' rows

    def reach(self, units: Array) -> Array:
        """How many of these units away a point must be that meets the terms, if they are convex: contradiction.py."""
        return reach(self.number("price"), self.pull, units)

    def number(self, name: str) -> Array:
        """One of NUMBERS."""
        return number(self.numbers, name)

    @property
    def scale(self) -> Array:
        """The units of the columns in which each has curvature 1, where that is learnt."""
        return self.K.scale if isinstance(self.K, Learnt) else jnp.ones(())

    @property
    def merit(self) -> Array:
        """The parts of the merit function, to be weighed by (1, −μ, ν)."""
        return jnp.stack([self.f, self.number("logs"), self.number("theta")])

    @property
    def penalty(self) -> Array:
        """ν of the merit function: at least the largest multiplier."""
        return jnp.maximum(1.2 * jnp.sqrt(self.number("weight")), 1e-6)

    @property
    def stationarity(self) -> Array:
        return jnp.max(jnp.abs(self.lag))

    @property
    def units(self) -> Array:
        """The units of the variables in which each has curvature 1; 1 for those without any."""
        if isinstance(self.K, Learnt):
            diagonal = jnp.pad(self.K.diagonal, (0, self.x.shape[0] - self.K.diagonal.shape[0]))
            diagonal = diagonal + self.K.blocks.diagonal()
        else:
            diagonal = jnp.abs(jnp.diag(self.K))
        return jnp.where(diagonal > 0, 1.0 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0)), 1.0)

    def tilt(self, units: Array) -> Array:
        """The stationarity with the variables in these units."""
        return jnp.max(jnp.abs(units * self.lag))

    def error(self, units: Array) -> Array:
        """The largest residual, with the variables in these units."""
        return jnp.maximum(self.tilt(units), jnp.sqrt(self.number("square")))

    @property
    def finite(self) -> Array:
        parts = jax.tree.leaves((self.K, self.lag, self.a, self.b, self.f, self.numbers))
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts]))


@dataclass(frozen=True)
class ServerView:
    """What the server knows of the problem: the terms, its own data, and the accuracy that is asked for."""

    terms: Terms
    data: Data | None
    eps2: float
    learns: bool  # whether the server learns the curvature of the smooth part

    @property
    def form(self) -> Epigraph:
        return self.terms.regularizer.epigraph(self.terms.dim)

    @property
    def size(self) -> int:
        return self.terms.dim + self.form.extra

    @property
    def equal(self) -> np.ndarray:
        """Which of the server's rows are equations: global, then coupled, then those of h."""
        stated = equalities(Party(self.terms, server=True), self._held) if self.stated else np.zeros(0, bool)
        return np.concatenate([stated, self.form.equal])

    @property
    def stated(self) -> int:
        """How many of the server's rows the problem states; the others stand for h."""
        return self.terms.rows[1] + self.terms.rows[2]

    @property
    def inequalities(self) -> int:
        """How many inequalities all parties have together, but for the sites' local ones."""
        return int(np.sum(~self.equal))

    @property
    def _held(self) -> Data:
        return self.data if self.data is not None else Data({"weight": jnp.ones(1)})

    def blank(self, w0: Array) -> System:
        x, n, rows, zero = self.form.start(w0), self.size, len(self.equal), jnp.zeros(())
        vector, one = jnp.zeros(n), jnp.ones(self.terms.dim)
        K: Array | Learnt = jnp.eye(n)
        if self.learns:
            blocks = self.form.blocks(x, jnp.ones(rows - self.stated), jnp.zeros(rows - self.stated))
            nothing = LearntShare.zero(self.terms)
            K = replace(learnt(self.terms, nothing, one, blocks, jnp.zeros((self.stated, n)), one), diagonal=one)
        return System(
            x, K, vector, vector, vector, jnp.zeros(self.terms.dim), zero, zero, jnp.zeros(len(NUMBERS)),
            blank_rows(rows), jnp.zeros(rows), jnp.zeros((self.stated, n)), jnp.zeros(self.terms.dim),
            vector,
        )  # fmt: skip

    def along(self, system: System, dx: Array) -> Array:
        """The change of the server's rows along dx, to first order."""
        return jnp.concatenate([system.J @ dx, self.form.along(system.x, dx)])

    def room(self, system: System, change: Array, mu: Array) -> Array:
        """The share of a step with this change of the rows that keeps the slacks of the rows of h positive."""
        ds, _ = rows_step(system.own, system.c, change, mu, self.equal)
        far = farthest(system.own.s[self.stated :], ds[self.stated :], self.form.equal, mu)
        return jnp.maximum(far, SHORTEST_ROOM)

    def system(
        self, x: Array, at: QuadraticModel, complete: Array, rows: Rows, mu: Array, first: Array, base: System
    ) -> System:
        """The system at x from the sums `at`; `rows` are the server's as they were moved there from the base.

        Where not every site has spoken of x, the models of the silent ones are shifted to it.
        """
        terms, dim, rest, stated = self.terms, self.terms.dim, self.form.extra, self.stated
        w, equal = x[:dim], self.equal
        f, gradient = self.form.smooth(x)
        lag = gradient + jnp.pad(at.lag, (0, rest))

        c, J, bends = jnp.zeros(0), jnp.zeros((0, dim)), None
        if terms.rows[1]:
            shares, bends = evaluate(Party(terms, server=True), w, self.data)
            c, J = shares.c, shares.J
        if terms.rows[2]:
            q, Q = at.coupled.c, at.coupled.J
            q = q + jnp.where(complete, 0.0, Q @ w - at.coupled.bent)
            c, J = jnp.concatenate([c, q]), jnp.concatenate([J, Q])
        c, J = jnp.concatenate([c, self.form.rows(x)]), jnp.pad(J, ((0, 0), (0, rest)))

        def pull(v: Array) -> Array:
            return v[:stated] @ J + self.form.pull(x, v[stated:])

        sums, certificate = RowSums.none(self.size), at.lag
        if terms.rows[0]:
            certificate = at.local.certificate
        if len(equal):
            steep = jnp.max(jnp.abs(J), initial=0.0)
            if len(equal) > stated:
                steep = jnp.maximum(steep, self.form.steepness(x))
            rows = select(first, started(c, steep, jnp.max(jnp.abs(lag)), equal), settled(rows, c, mu, equal))
            own_mu = jnp.where(first, jnp.sum(rows.s * rows.z) / max(1, self.inequalities), mu)
            here = Rows(rows.s[:stated], rows.z[:stated], rows.delta[:stated])
            here = damped(here, c[:stated], J, x, own_mu, equal[:stated], at.force, rows_convex(terms))
            rows = replace(rows, delta=rows.delta.at[:stated].set(here.delta))
            sums = row_sums(rows, c, pull, own_mu, self.eps2, equal)
            certificate = certificate + sums.kept[:stated] @ J[:, :dim]

        D, z = stiffness(rows, equal), rows.z[: terms.rows[1]]
        drift, change = jnp.zeros(dim), jnp.zeros(dim)
        if self.learns:
            own = bends.diagonal(z) if bends is not None else jnp.zeros(dim)
            weighed = jnp.sqrt(D[:stated])[:, None] * J
            blocks = self.form.blocks(x, D[stated:], rows.z[stated:])
            K: Array | Learnt = learnt(terms, at.curvature, base.scale, blocks, weighed, own)
            change = at.curvature.change + z @ (J - base.J)[: terms.rows[1], :dim]
        else:
            K = jnp.pad(unpack(at.curvature, dim), (0, rest))
            drift = jnp.where(complete, 0.0, K[:dim, :dim] @ w - at.bent)
            K = K + (J * D[:stated, None]).T @ J + self.form.blocks(x, D[stated:], rows.z[stated:]).dense()
            if bends is not None:
                K = K.at[:dim, :dim].add(bends.matrix(z))
        local = at.local if terms.rows[0] else OwnRows.none(dim)
        return System(
            x=x,
            K=K,
            lag=lag + sums.jz + jnp.pad(drift, (0, rest)),
            a=sums.a + jnp.pad(local.a, (0, rest)),
            b=sums.b + jnp.pad(local.b, (0, rest)),
            certificate=certificate + drift,
            f=f + at.f,
            force=at.force + jnp.max(jnp.abs(gradient), initial=0.0),
            numbers=sums.numbers + local.numbers,
            own=rows,
            c=c,
            J=J,
            change=change,
            pull=sums.jz + jnp.pad(local.pull, (0, rest)),
        )

    def all_say(self, system: System, name: str) -> Array:
        """Whether all parties with rows say yes to a test."""
        parties = 1.0 + (self.terms.clients if self.terms.rows[0] else 0)
        return jnp.round(system.number(name)) >= parties


def direction(system: System, memory: PyTree, mu: Array, shift: Array) -> tuple[Array, Array]:
    """The Newton step, and the decrement ½rᵀK⁻¹r; `memory` holds L-BFGS's pairs where curvature is learnt.

    The matrix is scaled to a unit diagonal, so that nothing depends on the units of the columns, and `shift` or more is
    added there: none of consequence where the problem is convex, as much as is needed where it is not.
    """
    r = system.lag + system.a + mu * system.b
    if isinstance(system.K, Learnt):
        dx = -solve_learnt(system.K, memory, r, shift)
        return dx, -0.5 * jnp.dot(r, dx)
    diagonal = jnp.abs(jnp.diag(system.K))
    top = jnp.max(diagonal)
    scale = 1.0 / jnp.sqrt(jnp.maximum(diagonal, jnp.where(top > 0, LEAST_DIAGONAL * top, 1.0)))
    scaled = system.K * scale[:, None] * scale

    def factor(shift: Array | float) -> Array:
        return cholesky(scaled + shift * jnp.eye(r.shape[0]))

    def bent_up(right: Array) -> Array:
        values, vectors = eigh(scaled)
        return vectors @ ((vectors.T @ right) / (jnp.maximum(jnp.abs(values), FLAT) + first))

    first = jnp.maximum(shift, SHIFT)
    alone = factor(first)
    definite = jnp.isfinite(alone[-1, -1])
    dx = -scale * jax.lax.cond(definite, lambda v: cholesky_solve(alone, v), bent_up, scale * r)
    # Along directions without curvature, rounding would be divided by SHIFT. A larger shift, undone by refinement
    # wherever there is curvature, keeps it small: the same data in another order give the same model.
    gentle = factor(jnp.asarray(GENTLE))
    y = cholesky_solve(gentle, scale * r)
    for _ in range(REFINEMENTS):
        y = y + cholesky_solve(gentle, scale * r - scaled @ y)
    # a decrement that the larger shift hides is a real slope without curvature, which a long step shall follow
    hides = -jnp.dot(r, dx) > HIDES * jnp.dot(scale * r, y)
    dx = jnp.where(definite & (shift < GENTLE) & ~hides, -scale * y, dx)
    return dx, -0.5 * jnp.dot(r, dx)
