"""Slacks and multipliers of one party's rows, and the step that they take along a displacement of the shared variables.

Rows c(x) ≤ 0 have slacks s > 0 and multipliers z > 0; rows c(x) = 0 have a multiplier of either sign, and no slack.
With Jacobian J, and D = 1/(s/z + δ), or 1/δ on equations, the Newton step of the perturbed conditions along dx is
    dz = D(J dx + c + μ/z),   ds = μ/z − s − (s/z) dz,          without the terms in μ on equations,
and eliminating it leaves Jᵀ D J in the matrix and Jᵀ D c + μ Jᵀ(D/z) in the right-hand side of the shared system. δ is
the proximal term of the method of multipliers: it bounds the matrix's entries where a slack tends to zero.
"""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.base.pytrees import state
from foedus.problem.terms import Terms


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
