"""One party's share of the problem, P_i, with value, gradient and Hessian from a single pass over its data.

With the party's rows c ≤ 0 (or = 0), multipliers μ and a proximal centre,
    P(w) = f_i(w)/n + (‖[μ + βc(w)]₊‖² − ‖μ‖²)/(2β) + (prox/2)‖w − centre‖²,      no [·]₊ on equality rows,
and the server's P_0 has no f. A coupled constraint adds variables: the point is (w, s), s of shape (clients, rows), a
client has the rows c̃_i(w) ≤ n·s_i and the server Σ s_i ≤ 0 (PAL 001, Eqs. (3)-(4); the factor n makes a residual in s
of ε bound the multipliers' spread by ε/n, which is what the certificate of the coupled constraint itself needs).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, state
from foedus.numerics.second_derivatives import PlainHessian, SecondDerivatives, mean_curvature
from foedus.problem.constraints import Linear, LossRows, NormBall
from foedus.problem.regularizers import Leading, Regularizer
from foedus.problem.terms import Constraint, Data, Terms, rows
from foedus.protocol.algorithm import Algorithm, name_of

DIAGONAL = 3  # the order of a `piece` with the diagonal of its Hessian in place of the matrix


@dataclass(frozen=True)
class Party:
    """A client or the server, as the one that evaluates its own rows."""

    terms: Terms
    server: bool = False

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints this party evaluates on its own data: local rows first, then coupled ones."""
        scopes = ("global",) if self.server else ("local", "coupled")
        return tuple(c for scope in scopes for c in self.terms.constraints if c.scope == scope)

    @property
    def rows(self) -> int:
        """The number of its rows, with its part of the coupled ones."""
        local, own, coupled = self.terms.rows
        return own + coupled if self.server else local + coupled


def refuse_kinks(algorithm: Algorithm, terms: Terms) -> None:
    """Raise where the objective or a row is a loss with kinks: there, second derivatives say nothing of its minimum."""
    for loss in (terms.loss, *(c.loss for c in terms.constraints if isinstance(c, LossRows))):
        if loss is not None and not loss.smooth:
            raise FoedusError(
                f"{name_of(algorithm)} needs second derivatives, and the loss {loss.name} has kinks; use a smooth loss "
                "(smooth_hinge, huber, logistic), or AFL without constraints, which handles kinks exactly."
            )


def equalities(party: Party, data: Data | None) -> np.ndarray:
    """Which of the party's rows are equalities, the server's sum of s included. (rows,)"""
    marks: list[bool] = []
    for c in party.constraints:
        count = jax.eval_shape(lambda d, c=c: c.caps(party.terms, d), data).shape[0]
        marks += [c.equality] * count
    if party.server:
        marks += [c.equality for c in party.terms.constraints if c.scope == "coupled"][:1] * party.terms.rows[2]
    return np.array(marks, dtype=bool)


def full_regularizer(terms: Terms) -> Regularizer:
    """The regulariser h as a function of (w, s), where it acts on the model alone."""
    h = terms.regularizer
    return Leading(h, terms.dim) if terms.rows[2] and not h.vanishes else h


@state
class Shares:
    """A party's functions at a point: f_i/n with its gradient, the rows with their Jacobian."""

    f: Array
    g: Array
    c: Array
    J: Array


def evaluate(party: Party, w: Array, data: Data | None) -> tuple[Shares, SecondDerivatives]:
    """The functions f/n and c with first derivatives at the model w, and their second derivatives.

    Everything that depends on xᵀw shares one product: f and the rows that are losses differ only in the weights of the
    examples, so that the Hessian is a single Gram matrix XᵀDX whose diagonal D sums these weights.
    """
    terms, n, dim = party.terms, party.terms.clients, party.terms.dim
    constraints = party.constraints
    if data is None:
        data = Data({"weight": jnp.ones(1)})
    linear = terms.loss is not None and "x" in data
    f, g = jnp.zeros(()), jnp.zeros(dim)
    pieces: list[tuple[Array, Array]] = []  # (c, J) of each constraint
    grams: list[tuple[slice | None, Array, Array]] = []
    others: list[PlainHessian] = []

    if not party.server:
        if linear:
            assert terms.loss is not None
            x, y, share = data["x"], data["y"], terms.share(data) / n
            z = x @ w
            f, g = jnp.dot(share, terms.loss.value(z, y)), (share * terms.loss.slope(z, y)) @ x
            grams.append((None, share, terms.loss.bend(z, y)))
            if (penalty := terms.penalty_of(data)) is not None:
                f, g = f + penalty.value(w) / n, g + penalty.gradient(w) / n
                curve = penalty.bend(w) / n
                others.append(PlainHessian(None, lambda v: curve))
        else:
            f, g = terms.value_and_gradient(w, data)
            f, g = f / n, g / n
            hessian = PlainHessian(
                lambda v: terms.hessian(w, data) / n,
                lambda v: mean_curvature(lambda u: terms.value(u, data) / n, w),
            )
            others.append(hessian)

    start = 0
    for constraint in constraints:
        if isinstance(constraint, LossRows):
            loss, x, y = constraint.loss_in(terms), data["x"], data["y"]
            z = x @ w
            weights = constraint.weights(data)
            c = weights @ loss.value(z, y) - constraint.caps(terms, data)
            J = (weights * loss.slope(z, y)) @ x
            grams.append((slice(start, start + c.shape[0]), weights, loss.bend(z, y)))
        elif isinstance(constraint, Linear):
            c, J = rows(terms, constraint, w, data), data[f"{constraint.key}.C"]
        elif isinstance(constraint, NormBall):
            c, J = rows(terms, constraint, w, data), 2.0 * w[None, :]
            others.append(PlainHessian(None, lambda v, at=start: jnp.full(dim, 2.0 * v[at]), of_row=True))
        else:
            c = rows(terms, constraint, w, data)
            J = jax.jacrev(lambda u, k=constraint: rows(terms, k, u, data))(w)
            at = slice(start, start + c.shape[0])

            def weighed(u: Array, v: Array, k: Constraint = constraint, at: slice = at) -> Array:
                return jnp.dot(v[at], rows(terms, k, u, data))

            hessian = PlainHessian(
                lambda v, g=weighed: jax.hessian(g)(w, v),
                lambda v, g=weighed: mean_curvature(lambda u: g(u, v), w),
                of_row=True,
            )
            others.append(hessian)
        pieces.append((c, J))
        start += c.shape[0]

    c = jnp.concatenate([c for c, _ in pieces]) if pieces else jnp.zeros(0)
    J = jnp.concatenate([J for _, J in pieces]) if pieces else jnp.zeros((0, dim))
    convex = len(grams) == 1 and grams[0][0] is None and terms.loss is not None and terms.loss.convex
    return Shares(f, g, c, J), SecondDerivatives(dim, data["x"] if grams else None, grams, others, convex)


@state
class Piece:
    """The function P at a point, with f and c for progress reports."""

    value: Array
    gradient: Array
    hessian: PyTree  # an array; its diagonal for order DIAGONAL, () for order 1
    f: Array  # f_i/n, 0 at the server
    c: Array
    v: Array  # μ + βc, its positive part on inequality rows: the next multipliers


def over_both(party: Party, shares: Shares, point: Array, index: Array | None) -> tuple[Array, Array]:
    """The party's rows and their Jacobian over (w, s)."""
    n, dim, coupled = party.terms.clients, party.terms.dim, party.terms.rows[2]
    s = point[dim:]
    c, J = shares.c, jnp.pad(shares.J, ((0, 0), (0, s.shape[0])))
    if coupled and not party.server:
        # a client's coupled rows are c̃_i(w) − n·s_i, with its own s_i among all clients' s
        assert index is not None
        first = c.shape[0] - coupled
        places = dim + index * coupled + jnp.arange(coupled)
        c = c.at[first:].add(-n * point[places])
        J = J.at[first + jnp.arange(coupled), places].add(-n)
    elif coupled:
        # the server's are Σ s_i
        sums = jnp.tile(jnp.eye(coupled), (1, n))
        c = jnp.concatenate([c, sums @ s])
        J = jnp.concatenate([J, jnp.pad(sums, ((0, 0), (dim, 0)))])
    return c, J


def piece(
    party: Party,
    point: Array,
    data: Data | None,
    mu: Array,
    centre: Array,
    *,
    beta: Array | float,
    prox: Array | float,
    index: Array | None = None,
    order: int = 2,
) -> Piece:
    """P_i at `point` = (w, s), where `index` is the client's place among the s.

    Order 1 leaves the Hessian out, DIAGONAL gives its diagonal alone and never makes the matrix.
    """
    shares, derivatives = evaluate(party, point[: party.terms.dim], data)
    c, J = over_both(party, shares, point, index)
    equal = equalities(party, data)
    rest = point.shape[0] - party.terms.dim
    v = mu + beta * c
    v = jnp.where(equal, v, jnp.maximum(v, 0.0))
    away = point - centre
    value = shares.f + (jnp.sum(v**2) - jnp.sum(mu**2)) / (2.0 * beta) + 0.5 * prox * jnp.sum(away**2)
    gradient = jnp.pad(shares.g, (0, rest)) + J.T @ v + prox * away
    second: PyTree = ()
    # [·]₊² is differentiable once: this is the generalised Hessian, to which only rows with v > 0 contribute
    active = jnp.where(equal | (v > 0), 1.0, 0.0)
    if order == DIAGONAL:
        second = jnp.pad(derivatives.diagonal(v), (0, rest)) + beta * active @ J**2 + prox
    elif order == 2:
        second = jnp.pad(derivatives.matrix(v), (0, rest)) + beta * (J * active[:, None]).T @ J
        second = second + prox * jnp.eye(point.shape[0])
    return Piece(value, gradient, second, shares.f, c, v)


def violation(party: Party, data: Data | None, c: Array) -> Array:
    """The largest entry of c, and of |c| on equality rows; −inf for a party without rows."""
    equal = equalities(party, data)
    return jnp.max(jnp.where(equal, jnp.abs(c), c), initial=-jnp.inf)


@state
class Excess:
    """The squared violation θ = ‖[c]₊‖²/2 of a party's rows (c itself on equalities), with derivatives over (w, s)."""

    theta: Array
    gradient: Array
    bend: Array  # ∂²θ of each column


def excess(party: Party, point: Array, data: Data | None, index: Array | None = None) -> Excess:
    """The squared violation of the party's rows at a point, and its derivatives."""
    shares, derivatives = evaluate(party, point[: party.terms.dim], data)
    c, J = over_both(party, shares, point, index)
    equal = equalities(party, data)
    over = jnp.where(equal, c, jnp.maximum(c, 0.0))
    bend = jnp.where(equal | (c > 0), 1.0, 0.0) @ J**2
    bend = bend + jnp.pad(jnp.abs(derivatives.rows_diagonal(over)), (0, point.shape[0] - party.terms.dim))
    return Excess(0.5 * jnp.sum(over**2), J.T @ over, bend)


@state
class Share:
    """A client's part in the coupled rows, with the server's multiplier ν."""

    c: Array  # c̃_i(w)
    steepness: Array  # ‖∇c̃_i‖_∞ of each row
    spread: Array  # ‖∇c̃_i(μ_i − ν/n)‖_∞


def share(party: Party, w: Array, data: Data, mu: Array, nu: Array) -> Share:
    """One client's part in the certificate of a coupled constraint."""
    first = party.rows - party.terms.rows[2]
    shares, _ = evaluate(party, w, data)
    c, J = shares.c[first:], shares.J[first:]
    return Share(c, jnp.max(jnp.abs(J), axis=1), jnp.max(jnp.abs((mu[first:] - nu / party.terms.clients) @ J)))
