"""What the parties compute in InteriorPoint: a site's share in the shared system, and the system of all parties.

For a barrier parameter μ, the Newton system of the perturbed optimality conditions has one block for each party. A
party eliminates its own slacks and multipliers, and what is left of its block is a matrix and vectors over the shared
variables: a site's `QuadraticModel` at the point it is asked about. The server adds its own rows to the sum of these:
those of global scope, the coupled ones, whose values and Jacobians the sites add up, and those that stand for a
regulariser. They are treated as a site treats its own. Where curvature is learnt, there is no matrix and no change of
it: sites are always asked for the whole, and the server waits for everybody.

A party's rows c(x) ≤ 0 have slacks s > 0 and multipliers z > 0; rows c(x) = 0 have a multiplier of either sign, and no
slack. With Jacobian J, and D = 1/(s/z + δ), or 1/δ on equations, the Newton step of the perturbed conditions along dx
is
    dz = D(J dx + c + μ/z),   ds = μ/z − s − (s/z) dz,          without the terms in μ on equations,
and eliminating it leaves Jᵀ D J in the matrix and Jᵀ D c + μ Jᵀ(D/z) in the right-hand side of the shared system. δ is
the proximal term of the method of multipliers: it bounds the matrix's entries where a slack tends to zero.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.algorithms.interior.learnt import Learnt, LearntShare, learnt, learnt_share, rounds_of, solve_learnt
from foedus.algorithms.interior.rounds import Question, Reply, SiteState, Visit, reply_of
from foedus.algorithms.lagrangian import Party, Shares, equalities, evaluate
from foedus.base.pytrees import PyTree, select, state
from foedus.certificate.contradiction import reach
from foedus.certificate.gap import rows_convex
from foedus.numerics.lapack import cholesky, cholesky_solve, eigh
from foedus.numerics.second_derivatives import SecondDerivatives, pack, unpack
from foedus.problem.epigraph import Epigraph
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account

SHIFT, GENTLE = 1e-12, 1e-7  # added to the unit diagonal of the scaled matrix; the larger one is undone by refinement


# --- the rows of a party ---


@state
class Rows:
    """The slacks and the multipliers of a party's rows."""

    s: Array
    z: Array
    delta: Array  # δ of each row


NUMBERS = (
    "logs",  # Σ log s
    "theta",  # Σ |c + s|
    "square",  # Σ (c + s)²
    "weight",  # Σ z²
    "product",  # Σ s·z
    "price",  # Σ z·c
    "violation",  # the party's largest
    "passed",  # 1 where the rows pass the certificate's tests
    "central",  # 1 where the products s·z are near μ
)


@state
class RowSums:
    """What a party's rows add to the sums; none of it depends on how many rows there are."""

    jz: Array  # Jᵀz
    a: Array  # Jᵀ D c
    b: Array  # Jᵀ(D/z)
    kept: Array  # the certificate's multipliers, one for each row: for the party itself
    numbers: Array  # NUMBERS

    @staticmethod
    def none(dim: int) -> "RowSums":
        """What no rows add."""
        vector = jnp.zeros(dim)
        numbers = jnp.array([1.0 if name in ("passed", "central") else 0.0 for name in NUMBERS])
        return RowSums(vector, vector, vector, jnp.zeros(0), numbers)


def number(numbers: Array, name: str) -> Array:
    """One of NUMBERS."""
    return numbers[NUMBERS.index(name)]


def started(c: Array, steep: Array, force: Array, equal: np.ndarray) -> Rows:
    """First slacks, and multipliers that weigh a share of a gradient of size `force`, with s·z the same on all rows.

    `steep` is the largest entry of the rows' Jacobian. If each of many rows pushed like one of a few, the first barrier
    problem would lead far away from where f is small, and the way back would take most of the rounds.
    """
    weight = METHOD.weight / max(1.0, int(np.sum(~equal)) / METHOD.many)
    size = jnp.maximum(jnp.max(jnp.abs(c), initial=0.0), 1e-3)
    z = weight * jnp.where(steep > 0, jnp.clip(force / jnp.where(steep > 0, steep, 1.0), 1e-3, 1e6), 1.0)
    s = jnp.maximum(-c, METHOD.room * size)
    mu = z * jnp.exp(jnp.mean(jnp.log(s)))
    return Rows(jnp.where(equal, 0.0, s), jnp.where(equal, 0.0, mu / s), jnp.full_like(s, METHOD.delta))


def safe(rows: Rows, equal: np.ndarray) -> tuple[Array, Array]:
    """Slacks and multipliers by which one may divide: 1 on equations."""
    return jnp.where(equal, 1.0, rows.s), jnp.where(equal, 1.0, rows.z)


def stiffness(rows: Rows, equal: np.ndarray) -> Array:
    """D."""
    s, z = safe(rows, equal)
    return jnp.where(equal, 1.0 / rows.delta, 1.0 / (s / z + rows.delta))


def damped(rows: Rows, c: Array, J: Array, x: Array, mu: Array, equal: np.ndarray, force: Array, convex: bool) -> Rows:
    """The rows with δ at x: so large that the rounding of c, which is that of J·x, moves the sum Jᵀz by little.

    Where an inequality is farther than rounding from what it shall be, −μ/z, δ may be smaller: its multiplier moves by
    their distance over δ in a step, and where terms leave little room it has a long way to go. Of convex rows only
    those that pull much harder than the objective, whose slope is `force`, have a long way. Far from being met they
    keep the larger δ, or multipliers of terms that cannot be met would grow beyond all evidence.
    """
    size = jnp.abs(J) @ jnp.abs(x)
    gap = jnp.where(equal, 0.0, jnp.abs(c + mu / safe(rows, equal)[1]))
    clear = jnp.clip(1e-13 * size / jnp.where(gap > 0, gap, 1.0), METHOD.least_share, 1.0)
    slope = jnp.max(jnp.abs(J), axis=1, initial=0.0)
    far = (gap <= 1e-4 * size) & (rows.z * slope > 10.0 * force) if convex else jnp.ones_like(equal)
    delta = METHOD.delta * jnp.maximum(1.0, 0.1 * slope * size)
    return replace(rows, delta=delta * jnp.where((gap > 0) & far, clear, 1.0))


def softness(terms: Terms) -> float:
    """How many times too small the matrix makes a column's unit: with equations it holds their slopes times 1/δ."""
    return METHOD.delta**0.5 if any(c.equality for c in terms.constraints) else 1.0


def farthest(v: Array, dv: Array, equal: np.ndarray, mu: Array) -> Array:
    """The longest step along dv, at most 1, that keeps v > 0 on inequalities."""
    falls = (dv < 0) & ~equal
    ratio = jnp.min(jnp.where(falls, -v / jnp.where(falls, dv, 1.0), jnp.inf), initial=jnp.inf)
    return jnp.minimum(1.0, jnp.maximum(METHOD.boundary, 1.0 - mu) * ratio)


def rows_step(rows: Rows, c: Array, change: Array, mu: Array, equal: np.ndarray) -> tuple[Array, Array]:
    """The Newton step (ds, dz) of slacks and multipliers, where `change` is J·dx."""
    s, z = safe(rows, equal)
    pull = jnp.where(equal, 0.0, mu / z)
    dz = stiffness(rows, equal) * (change + c + pull)
    return pull - s - s / z * dz, dz


def moved(rows: Rows, c: Array, change: Array, alpha: Array, mu: Array, equal: np.ndarray) -> Rows:
    """The party's own step, where `change` is J·dx, and the shared variables take alpha of dx; none where that is 0."""
    s, z = safe(rows, equal)
    ds, dz = rows_step(rows, c, change, mu, equal)
    far = jnp.minimum(alpha, farthest(s, ds, equal, mu))
    along = jnp.where(equal | (alpha == 0), alpha, farthest(z, dz, equal, mu))
    return Rows(jnp.where(equal, 0.0, s + far * ds), rows.z + along * dz, rows.delta)


def settled(rows: Rows, c: Array, mu: Array, equal: np.ndarray) -> Rows:
    """The rows at their new values c: a row with room has exactly its room as slack, and products stay near μ.

    A product below least_product·μ is raised, by the slack of a row that binds and by the multiplier of one that does
    not.
    """
    s, z = safe(rows, equal)
    s = jnp.maximum(s, -c)
    least = METHOD.least_product * mu
    low = s * z < least
    s, z = jnp.where(low & (z >= s), least / z, s), jnp.where(low & (z < s), least / s, z)
    z = jnp.minimum(z, 1e6 * mu / s)  # not far above the path either
    return Rows(jnp.where(equal, 0.0, s), jnp.where(equal, rows.z, z), rows.delta)


def rounded(rows: Rows, c: Array, equal: np.ndarray, eps2: float) -> Array:
    """The multipliers that a certificate is about: 0 on inequalities with room to spare."""
    return jnp.where(equal | (c >= -eps2), rows.z, 0.0)


def row_sums(
    rows: Rows, c: Array, pull: Callable[[Array], Array], mu: Array, eps2: float, equal: np.ndarray
) -> RowSums:
    """What the rows add to the sums, at the point where they are c; `pull` takes v to Jᵀv."""
    s, z = safe(rows, equal)
    D = stiffness(rows, equal)
    kept = rounded(rows, c, equal, eps2)
    gap = jnp.where(equal, c, c + rows.s)
    product = jnp.where(equal, mu, s * z)
    broken = jnp.where(equal, jnp.abs(c), jnp.maximum(c, 0.0))
    distance = jnp.where(kept > 0, jnp.abs(c), broken)
    priced = jnp.where(equal, 0.0, jnp.abs(kept * c))
    central = (
        (jnp.max(jnp.abs(gap * jnp.where(equal, 1.0, z)), initial=0.0) <= METHOD.central * mu)
        & (jnp.max(product, initial=0.0) <= (1.0 + METHOD.central) * mu)
        & jnp.all(product >= 0.01 * mu)
    )
    passed = jnp.maximum(jnp.max(distance, initial=0.0), jnp.max(priced, initial=0.0)) <= eps2
    numbers = (
        jnp.sum(jnp.where(equal, 0.0, jnp.log(s))),
        jnp.sum(jnp.abs(gap)),
        jnp.sum(gap**2),
        jnp.minimum(jnp.sum(rows.z**2), 1e13),  # of contradicting terms it has no end, and masked sums have a range
        jnp.sum(jnp.where(equal, 0.0, s * z)),
        jnp.sum(rows.z * c),
        jnp.max(broken, initial=0.0),
        jnp.where(passed, 1.0, 0.0),
        jnp.where(central, 1.0, 0.0),
    )
    jz, a, b = pull(rows.z), pull(D * c), pull(jnp.where(equal, 0.0, D / z))
    return RowSums(jz, a, b, kept, jnp.stack(numbers))


def matrix(rows: Rows, J: Array, equal: np.ndarray) -> Array:
    """Jᵀ D J."""
    return (J * stiffness(rows, equal)[:, None]).T @ J


def blank_rows(count: int) -> Rows:
    """Rows before their first values are known."""
    return Rows(jnp.ones(count), jnp.ones(count), jnp.full(count, METHOD.delta))


# --- a site ---


@state
class OwnRows:
    """The sums that only a site with rows of its own has a part in."""

    a: Array  # Jᵀ D c
    b: Array  # Jᵀ(D/z)
    certificate: Array  # ∇f + Jᵀz with the certificate's multipliers
    pull: Array  # Jᵀz
    numbers: Array  # NUMBERS

    @staticmethod
    def none(dim: int) -> "OwnRows":
        """What no rows add."""
        vector = jnp.zeros(dim)
        return OwnRows(vector, vector, vector, vector, jnp.zeros(len(NUMBERS)))


@state
class Coupled:
    """A site's share in the coupled rows and their Jacobian, both over n, and the Jacobian times w_i."""

    c: Array
    J: Array
    image: Array


@state
class QuadraticModel:
    """A site's share in the shared system at a point w_i, or the sum of such shares."""

    curvature: Any  # K_i, its upper triangle; or a LearntShare
    lag: Array  # ∇f_i/n + Jᵀz
    image: Any  # K_i·w_i, or () where curvature is learnt
    f: Array  # f_i/n
    force: Array  # ‖∇f_i/n‖_∞
    local: Any  # OwnRows, or () without local rows
    coupled: Any  # Coupled, or () without coupled rows

    @staticmethod
    def zero(terms: Terms, learns: bool) -> "QuadraticModel":
        dim, (rows, _, coupled), zero = terms.dim, terms.rows, jnp.zeros(())
        vector = jnp.zeros(dim)
        return QuadraticModel(
            curvature=LearntShare.zero(terms) if learns else jnp.zeros(dim * (dim + 1) // 2),
            lag=vector,
            image=() if learns else vector,
            f=zero,
            force=zero,
            local=OwnRows.none(dim) if rows else (),
            coupled=Coupled(jnp.zeros(coupled), jnp.zeros((coupled, dim)), jnp.zeros(coupled)) if coupled else (),
        )


@state
class Place:
    """A site's rows at a point: slacks and multipliers, c and J."""

    w: Array
    rows: Rows
    c: Array
    J: Array
    multipliers: Array  # the certificate's
    slopes: Any  # ∇f_i/n, and the Jacobian of the coupled rows over n, where curvature is learnt; else ()


@state
class InteriorAsk:
    """The question: the model at the point w, which is the share alpha of the way from the base to `towards`."""

    about: Question
    w: Array
    towards: Any  # () without local rows
    alpha: Array
    mu: Array
    nu: Array  # the coupled rows' multipliers
    scale: Any  # units for the products with Jᵀ D J, where curvature is learnt; else ()
    part: Any  # which of the rounds for which this point is asked about, where curvature is learnt; else ()


@dataclass(frozen=True)
class SiteView:
    """What a site knows of the problem: the terms, its data, and the accuracy that is asked for."""

    terms: Terms
    data: Data
    eps2: float
    learns: bool  # whether the server learns the curvature of the smooth part

    @property
    def equal(self) -> np.ndarray:
        """Which of the site's local rows are equations."""
        return equalities(Party(self.terms), self.data)[: self.terms.rows[0]]

    def join(self) -> SiteState:
        """The site before its first answer."""
        rows, dim = self.terms.rows[0], self.terms.dim
        slopes = (jnp.zeros(dim), jnp.zeros((self.terms.rows[2], dim))) if self.learns else ()
        place = Place(
            jnp.zeros(dim), blank_rows(rows), jnp.zeros(rows), jnp.zeros((rows, dim)), jnp.zeros(rows), slopes
        )
        return SiteState.before(place, () if self.learns else QuadraticModel.zero(self.terms, self.learns))

    def answer(self, site: SiteState, ask: InteriorAsk) -> tuple[SiteState, Reply]:
        """The site's step to the point it is asked about, and its model there."""
        start, first = site.start(ask.about), (site.trial.id < 0) | (ask.about.id == 0)
        shares, derivatives = evaluate(Party(self.terms), ask.w, self.data)
        rows, mu = self.recover(start.place, ask, shares, first)
        model, place = self.eliminate(start.place, ask, shares, derivatives, rows, mu, first)
        tag = ask.about.id * rounds_of(self.terms) + ask.part if self.learns else ask.about.id
        return reply_of(site, ask.about, tag, start, select(first, Visit(ask.about.id, place), start), place, model)

    def recover(self, base: Place, ask: InteriorAsk, shares: Shares, first: Array) -> tuple[Rows, Array]:
        """The site's slacks and multipliers at the point, by its own share of the step from the base; and μ there."""
        terms, equal, count = self.terms, self.equal, self.terms.rows[0]
        c, J, force = shares.c[:count], shares.J[:count], terms.clients * jnp.max(jnp.abs(shares.g))
        change = base.J @ (ask.towards - base.w) if count else jnp.zeros(0)
        stepped = settled(moved(base.rows, base.c, change, ask.alpha, ask.mu, equal), c, ask.mu, equal)
        steep = jnp.max(jnp.abs(J), initial=0.0)
        rows = select(first, started(c, steep, force, equal), stepped)
        mu = jnp.where(ask.about.id == 0, jnp.sum(rows.s * rows.z) / max(1, int(np.sum(~equal))), ask.mu)
        return damped(rows, c, J, ask.w, mu, equal, force, rows_convex(terms)), mu

    def eliminate(
        self, base: Place, ask: InteriorAsk, shares: Shares, derivatives: SecondDerivatives, rows: Rows, mu: Array,
        first: Array,
    ) -> tuple[QuadraticModel, Place]:  # fmt: skip
        """The site's model at the point, with its slacks and multipliers eliminated, and its place there."""
        terms, equal, count, n = self.terms, self.equal, self.terms.rows[0], self.terms.clients
        c, J, q, Q = shares.c[:count], shares.J[:count], shares.c[count:], shares.J[count:] / n
        force = jnp.max(jnp.abs(shares.g))
        # while the server has no multiplier of a coupled row, it is one that weighs a tenth of ∇f_i
        steep = n * jnp.max(jnp.abs(Q), axis=1, initial=0.0)
        guess = 0.1 * force / jnp.maximum(steep, 1e-6 * force + 1e-300)
        nu = jnp.where(ask.about.id == 0, guess, ask.nu / n)
        weights, slopes = jnp.concatenate([rows.z, nu]), ()
        if self.learns:
            slopes = (shares.g, Q)
            change = shares.g - base.slopes[0] + rows.z @ (J - base.J) + n * nu @ (Q - base.slopes[1])
            change = jnp.where(first, 0.0, change)
            D, diagonal = stiffness(rows, equal), derivatives.diagonal(weights)
            curvature: Any = learnt_share(terms, diagonal, change, D, J, ask.scale, ask.part)
            image: Any = ()
        else:
            curvature, image = derivatives.along(weights, ask.w)
            if count:
                K = matrix(rows, J, equal)
                curvature, image = curvature + pack(K), image + K @ ask.w
        local, lag, kept = (), shares.g, rows.z
        if count:
            sums = row_sums(rows, c, lambda v: v @ J, mu, self.eps2, equal)
            lag = lag + sums.jz
            kept = sums.kept
            local = OwnRows(sums.a, sums.b, shares.g + kept @ J, sums.jz, sums.numbers)
        model = QuadraticModel(
            curvature=curvature,
            lag=lag,
            image=image,
            f=shares.f,
            force=force,
            local=local,
            coupled=Coupled(q / n, Q, Q @ ask.w) if terms.rows[2] else (),
        )
        if self.learns:  # everything but the products is sent in the first of the point's rounds
            rest = jax.tree.map(lambda new: jnp.where(ask.part == 0, new, 0.0), model)
            model = replace(rest, curvature=replace(rest.curvature, products=curvature.products))
        return model, Place(ask.w, rows, c, J, kept, slopes)


def account_of(terms: Terms, ask: InteriorAsk, reply: Reply) -> Account | None:
    """What a reply with a whole model says of the site's function; its gradient is known where it has no rows."""
    model, n = reply.share, terms.clients
    if not bool(ask.about.whole) or float(reply.broken) or not float(reply.heard):
        return None
    if not isinstance(ask.part, tuple) and int(ask.part):  # products alone
        return None
    w, size = np.asarray(ask.w), n * np.atleast_1d(model.force)
    g = n * np.asarray(model.lag) if isinstance(model.local, tuple) else None
    if isinstance(model.image, tuple):
        return Account(w, size, n * float(model.f), g)
    K = np.zeros((terms.dim, terms.dim))
    K[np.triu_indices(terms.dim)] = model.curvature
    return Account(w, size, n * float(model.f), g, K + np.triu(K, 1).T, np.asarray(model.image))


# --- the server ---


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
        return jnp.maximum(far, 0.01)  # a step is tried at least at this share

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

        c, J, derivatives = jnp.zeros(0), jnp.zeros((0, dim)), None
        if terms.rows[1]:
            shares, derivatives = evaluate(Party(terms, server=True), w, self.data)
            c, J = shares.c, shares.J
        if terms.rows[2]:
            q, Q = at.coupled.c, at.coupled.J
            q = q + jnp.where(complete, 0.0, Q @ w - at.coupled.image)
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
            own = derivatives.diagonal(z) if derivatives is not None else jnp.zeros(dim)
            weighed = jnp.sqrt(D[:stated])[:, None] * J
            blocks = self.form.blocks(x, D[stated:], rows.z[stated:])
            K: Array | Learnt = learnt(terms, at.curvature, base.scale, blocks, weighed, own)
            change = at.curvature.change + z @ (J - base.J)[: terms.rows[1], :dim]
        else:
            K = jnp.pad(unpack(at.curvature, dim), (0, rest))
            drift = jnp.where(complete, 0.0, K[:dim, :dim] @ w - at.image)
            K = K + (J * D[:stated, None]).T @ J + self.form.blocks(x, D[stated:], rows.z[stated:]).dense()
            if derivatives is not None:
                K = K.at[:dim, :dim].add(derivatives.matrix(z))
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
    scale = 1.0 / jnp.sqrt(jnp.maximum(diagonal, jnp.where(top > 0, 1e-40 * top, 1.0)))
    scaled = system.K * scale[:, None] * scale

    def factor(shift: Array | float) -> Array:
        return cholesky(scaled + shift * jnp.eye(r.shape[0]))

    def bent_up(right: Array) -> Array:
        values, vectors = eigh(scaled)
        return vectors @ ((vectors.T @ right) / (jnp.maximum(jnp.abs(values), 1e-9) + first))

    first = jnp.maximum(shift, SHIFT)
    alone = factor(first)
    definite = jnp.isfinite(alone[-1, -1])
    dx = -scale * jax.lax.cond(definite, lambda v: cholesky_solve(alone, v), bent_up, scale * r)
    # Along directions without curvature, rounding would be divided by SHIFT. A larger shift, undone by
    # refinement wherever there is curvature, keeps it small: the same data in another order give the same model.
    gentle = factor(jnp.asarray(GENTLE))
    y = cholesky_solve(gentle, scale * r)
    for _ in range(5):
        y = y + cholesky_solve(gentle, scale * r - scaled @ y)
    # a decrement that the larger shift hides is a real slope without curvature, which a long step shall follow
    hides = -jnp.dot(r, dx) > METHOD.hidden * jnp.dot(scale * r, y)
    dx = jnp.where(definite & (shift < GENTLE) & ~hides, -scale * y, dx)
    return dx, -0.5 * jnp.dot(r, dx)
