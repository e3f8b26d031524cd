"""The gap's estimate where there are too many columns for a matrix: from products of the Hessian with vectors.

Two products are asked for, both sums over sites, which a simulation adds up here and real sites send in messages, under
masks or not: with the Hessian K of the Lagrangian, and with P = Σ(μ∇c)(μ∇c)ᵀ over the rows. As many products with P as
there are rows, and a few more, span the rows, so the server finds the face on which none of them changes. On it,
Lanczos' method makes a small matrix T from one product with K after the other, started from the residual r; what T says
of ½rᵀK⁺r grows towards it from below (Golub and Meurant 1994). It is taken when it has settled, and otherwise the gap
is not known. Columns are scaled to a unit diagonal of K, so that units do not matter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import PyTree, device_array, state
from foedus.certificate.gap import FLAT, Gap, bends_of_losses, gain_along, sums_losses, tied
from foedus.numerics.interpreter.dispatch import jit_if_large
from foedus.problem.constraints import Linear
from foedus.problem.regularizers import Regularizer
from foedus.problem.sizes import cut
from foedus.problem.terms import Data, Terms, rows

MOST = 200  # products with K at most
NUMBERS = 2 * 10**7  # in the vectors that Lanczos' method keeps
SPARE = 4  # products with P beyond the number of rows
MOST_ROWS = 1000  # of all sites together
SETTLED, LATELY = 0.01, 10  # settled: the last so many products have changed the estimate by less than this share
NOTHING = 1e-13  # of the largest eigenvalue: a next vector so short is rounding, and T knows all
SWEEPS, PROBES = 6, 8  # with which the diagonal of K is estimated, where it has no closed form
HEAVY = 1e5  # multipliers beyond this are scaled down where only the directions of rows matter
CURVATURE, ROWS, DIAGONAL = "curvature", "rows", "diagonal"
"""What sites are asked for: products with K, products with P of their own rows, and the diagonal of K."""
BATCH = 8  # vectors in one question, at the most
Ask: TypeAlias = Callable[[str, np.ndarray], np.ndarray]
"""Takes what is asked for and vectors (up to BATCH, dim); returns the sum over the sites of their products."""


@state
class Bends:
    """What a site needs for products at one point: bends of its examples' losses, and its rows' weighed slopes."""

    losses: PyTree  # (rows,), or () where the Lagrangian is no sum of losses
    rows: Array  # μ∇c, (local rows, dim)


def _lagrangian(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> Array:
    total = terms.value(w, data) / terms.clients
    for scope, weights in (("local", mu), ("coupled", nu / terms.clients)):
        parts = [rows(terms, c, w, data) for c in terms.constraints if c.scope == scope]
        total += jnp.sum(weights * jnp.concatenate(parts)) if parts else 0.0
    return total


def site_bends(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> Bends:
    """What a site keeps for its products."""
    local = [c for c in terms.constraints if c.scope == "local"]
    slopes = [jax.jacrev(lambda u, c=c: rows(terms, c, u, data))(w) for c in local]
    J = jnp.concatenate(slopes) if slopes else jnp.zeros((0, w.size))
    weighed = (mu / jnp.maximum(1.0, jnp.max(jnp.abs(mu), initial=0.0) / HEAVY))[:, None] * J
    return Bends(bends_of_losses(terms, w, mu, nu, data) if sums_losses(terms) else (), weighed)


def site_products(terms: Terms, kind: str, w: Array, mu: Array, nu: Array, bends: Bends, data: Data, V: Array) -> Array:
    """A site's products with the vectors V, or for DIAGONAL a single row."""
    if kind == ROWS:
        return (V @ bends.rows.T) @ bends.rows
    penalty = terms.penalty_of(data)
    if kind == DIAGONAL:
        squares = (bends.losses @ data["x"] ** 2)[None]
        return squares if penalty is None else squares + penalty.bend(w) / terms.clients
    if isinstance(bends.losses, tuple):
        slope = jax.grad(lambda u: _lagrangian(terms, u, mu, nu, data))
        return jax.vmap(lambda v: jax.jvp(slope, (w,), (v,))[1])(V)
    x = data["x"]
    # a single vector, as Lanczos' method asks for: XLA would make a copy of x for a product of two matrices
    product = ((bends.losses * (x @ V[0])) @ x)[None] if len(V) == 1 else (bends.losses * (V @ x.T)) @ x
    if penalty is None:
        return product
    slope = jax.grad(lambda u: penalty.value(u) / terms.clients)
    return product + jax.vmap(lambda v: jax.jvp(slope, (w,), (v,))[1])(V)


@jit_if_large("terms")
def _all_bends(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> Bends:
    return jax.vmap(lambda own, d: site_bends(terms, w, own, nu, d))(mu, data)


@jit_if_large("terms", "kind", "add_up")
def _all_products(
    terms: Terms, kind: str, add_up: Callable[[Array], PyTree], w: Array, mu: Array, nu: Array, bends: Bends,
    data: Data, V: Array,
) -> PyTree:  # fmt: skip
    return add_up(jax.vmap(lambda own, b, d: site_products(terms, kind, w, own, nu, b, d, V))(mu, bends, data))


def plain_sum(each: Array) -> Array:
    """The sum over the sites."""
    return jnp.sum(each, axis=0)


def ask_here(
    terms: Terms,
    w: Array,
    mu: Array,
    nu: Array,
    data: Data,
    groups: list[tuple[np.ndarray, int]] | None = None,
    add_up: Callable[[Array], PyTree] = plain_sum,
) -> Callable[[str, np.ndarray], PyTree]:
    """An `Ask` of sites whose data are all here.

    Args:
        terms: the terms of the problem.
        w: the point.
        mu: the multipliers of the sites' own rows.
        nu: those of the coupled rows.
        data: all sites' arrays on a leading axis.
        groups: sites of similar size, and the height of each group, where that saves work; the sums are added up.
        add_up: takes all sites' products, on a leading axis.
    """
    pieces = [(mu, data)] if groups is None else [(mu[group], cut(data, group, height)) for group, height in groups]
    # each program would otherwise copy the data again
    pieces = [(own, jax.tree.map(device_array, part)) for own, part in pieces]
    bends = [_all_bends(terms, w, own, nu, part) for own, part in pieces]

    def ask(kind: str, V: np.ndarray) -> PyTree:
        vectors = device_array(V)
        products = [
            jax.tree.map(np.asarray, _all_products(terms, kind, add_up, w, own, nu, bent, part, vectors))
            for (own, part), bent in zip(pieces, bends, strict=True)
        ]
        return products[0] if len(products) == 1 else sum(products[1:], start=products[0])

    return ask


@dataclass(frozen=True)
class Server:
    """What the server has at the point: the residual's parts, its own rows, and products that are sums over sites."""

    w: np.ndarray
    gradient: np.ndarray  # of the Lagrangian's smooth part
    times: Callable[[np.ndarray], np.ndarray]  # K V for several vectors
    rows_times: Callable[[np.ndarray], np.ndarray]  # P V, of the sites' own rows
    diagonal: np.ndarray | None  # of K, where it has a closed form
    count: int  # of the sites' own rows
    own: np.ndarray  # the weighed slopes μ∇c of the other rows
    most: int = MOST  # products with K at the most, one after the other


def at_point(
    terms: Terms, own_data: Data | None, w: Array, nu: Array, own_mu: Array, gradient: np.ndarray,
    slopes: np.ndarray, ask: Ask, most: int = MOST,
) -> Server:  # fmt: skip
    """A `Server` that asks its sites.

    Args:
        terms: the terms of the problem.
        own_data: the server's own data.
        w: the point.
        nu: the multipliers of the coupled rows.
        own_mu: those of the server's rows.
        gradient: the sum of the sites' gradients of the Lagrangian.
        slopes: the gradient of each coupled row.
        ask: the question to the sites.
        most: how often they are asked for products with K, one after the other, at the most.
    """
    stated = [c for c in terms.constraints if c.scope == "global"]

    def own_rows(u: Array) -> Array:
        return jnp.concatenate([rows(terms, c, u, own_data or Data({"weight": np.ones(1)})) for c in stated])

    def own_gradient(u: Array) -> Array:
        return jax.grad(lambda x: jnp.sum(own_mu * own_rows(x)))(u)

    def times(V: np.ndarray) -> np.ndarray:
        product = ask(CURVATURE, V)
        if not stated:
            return product
        return product + np.asarray(jax.vmap(lambda v: jax.jvp(own_gradient, (w,), (v,))[1])(jnp.asarray(V)))

    def rows_times(V: np.ndarray) -> np.ndarray:
        padded = np.pad(V, ((0, -len(V) % BATCH), (0, 0)))  # questions of one shape
        parts = [ask(ROWS, padded[k : k + BATCH]) for k in range(0, len(padded), BATCH)]
        return np.concatenate(parts)[: len(V)]

    diagonal = None
    if sums_losses(terms) and all(isinstance(c, Linear) for c in stated):
        diagonal = ask(DIAGONAL, np.zeros((1, terms.dim)))[0]
    own = np.asarray(nu)[:, None] * slopes
    if stated:
        own = np.concatenate([np.asarray(own_mu[:, None] * jax.jacrev(own_rows)(w)), own])
        gradient = gradient + np.asarray(own_gradient(w))
    count = terms.clients * terms.rows[0]
    return Server(np.asarray(w), gradient, times, rows_times, diagonal, count, own, most)


def measure_wide(at: Server, h: Regularizer, slack: float, bound: float | None, convex: bool) -> Gap:
    """The gap at a point, without a matrix; `slack` is Σμ|c|, and `convex` whether the Lagrangian is known to be so."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        gap = _measure(at, h, convex)
        face = h.face(at.w, at.gradient)
    estimate = None if gap.estimate is None or face is None else gap.estimate + slack + face.slack
    return replace(gap, estimate=estimate, bound=bound if gap.kind == "minimum" else None)


def _measure(at: Server, h: Regularizer, convex: bool) -> Gap:
    face, dim = h.face(at.w, at.gradient), len(at.w)
    if face is None:
        return Gap(None, None, "minimum", tied(h))
    if not np.all(np.isfinite(at.gradient)):
        return Gap(None, None, "minimum")
    if at.count > MOST_ROWS:
        return Gap(None, None, "minimum", f"{at.count} rows at {dim} columns are too many")
    r, free = face.r, face.free

    def times(V: np.ndarray) -> np.ndarray:
        return at.times(V) + face.times(V)

    scale = np.where(free, _scale(times, dim) if at.diagonal is None else _units(at.diagonal + face.curvature), 0.0)
    basis = _rows_span(at, face.normals, scale)
    if len(basis) >= np.sum(free):  # the rows leave no direction
        return Gap(0.0, None, "minimum")

    def inside(v: np.ndarray) -> np.ndarray:
        return v - basis.T @ (basis @ v)

    def on_face(v: np.ndarray) -> np.ndarray:
        return inside(scale * times((scale * v)[None])[0])

    if not convex:
        start = np.where(free, np.random.default_rng(0).normal(size=dim), 0.0)
        for values, _, _ in _lanczos(on_face, inside(start), at.most):
            kind, gain = gain_along(values, np.zeros_like(values))
            if gain is None:
                return Gap(None, None, kind)
    return _estimate(on_face, inside(scale * r), at.most)


def _estimate(on_face: Callable[[np.ndarray], np.ndarray], r: np.ndarray, most: int) -> Gap:
    past: list[float | None] = []
    kind, gain = "minimum", 0.0
    for values, along, complete in _lanczos(on_face, r, most):
        kind, gain = gain_along(values, along)
        if gain is None:
            return Gap(None, None, kind)
        before = past[-LATELY] if len(past) >= LATELY else None
        if complete or (before is not None and abs(gain - before) <= SETTLED * gain):
            return Gap(gain, None, kind)
        past.append(gain)
    if not past:  # there is no residual on the face
        return Gap(0.0, None, kind)
    return Gap(None, None, kind, f"its estimate did not settle within {len(past)} products with the Hessian")


def _lanczos(
    times: Callable[[np.ndarray], np.ndarray], r: np.ndarray, most: int
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """After each product: the eigenvalues of T, the components of r along them, and whether T knows all that r sees.

    Every vector is made orthogonal to all before it, twice, so that rounding makes no copies of eigenvalues.
    """
    size, most = float(np.linalg.norm(r)), max(1, min(MOST, most, len(r), NUMBERS // len(r)))
    if not (size > 0 and np.isfinite(size)):
        return
    V = np.zeros((most + 1, len(r)))
    V[0] = r / size
    diagonal, beside = np.zeros(most), np.zeros(most)
    for k in range(most):
        v = times(V[k])
        diagonal[k] = float(v @ V[k])
        for _ in range(2):
            v = v - V[: k + 1].T @ (V[: k + 1] @ v)
        beside[k] = float(np.linalg.norm(v))
        if not np.isfinite(beside[k]):
            return
        T = np.diag(diagonal[: k + 1]) + np.diag(beside[:k], 1) + np.diag(beside[:k], -1)
        values, vectors = np.linalg.eigh(T)
        complete = k + 1 == len(r) or beside[k] <= NOTHING * float(np.max(np.abs(values)))
        yield values, size * vectors[0], complete
        if complete:
            return
        V[k + 1] = v / beside[k]


def _units(diagonal: np.ndarray) -> np.ndarray:
    """The units in which each column has curvature 1; a column without curvature keeps its own."""
    size = np.abs(diagonal)
    return 1.0 / np.sqrt(np.where(size > 0, size, 1.0))


def _scale(times: Callable[[np.ndarray], np.ndarray], dim: int) -> np.ndarray:
    """Units from random products; a sweep in the units of the one before sees columns of other sizes better."""
    rng, scale = np.random.default_rng(0), np.ones(dim)
    for _ in range(SWEEPS):
        signs = rng.choice([-1.0, 1.0], size=(PROBES, dim))
        scale = scale * _units(np.mean(signs * scale * times(scale * signs), axis=0))
    return scale


def _rows_span(at: Server, normals: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the directions along which rows change, or that leave the domain, in these units."""
    parts = [at.own * scale, normals * scale]
    if at.count:
        few = min(at.count + SPARE, len(scale))
        Omega = np.random.default_rng(1).normal(size=(few, len(scale)))
        parts.append(at.rows_times(Omega * scale) * scale)
    together = np.concatenate([part / max(float(np.max(np.abs(part), initial=0.0)), 1e-300) for part in parts])
    if not together.size or not np.any(together):
        return np.zeros((0, len(scale)))
    _, values, vectors = np.linalg.svd(together, full_matrices=False)
    return vectors[values > FLAT * values[0]]
