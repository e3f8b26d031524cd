"""A certificate from sums: what sites measure is added up, and their own rows stay with them.

A site keeps the values and multipliers of its own rows. It sends a yes or no for each: whether the row is kept within
eps2, whether |μ·c| and the distance to the normal cone are, and whether the multiplier has the right sign. All of that
is added up with its part of the gradient and of the second derivatives, so nobody learns which site said no.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import PyTree, state
from foedus.certificate.contradiction import UnseenRows
from foedus.certificate.gap import rows_convex
from foedus.certificate.measure import Certificate, Multipliers, SitePart, join_parts
from foedus.certificate.rows import RowCount
from foedus.numerics.second_derivatives import pack, unpack
from foedus.problem.terms import Data, Terms


@state
class SummedPart:
    """What one site adds to the measurement, or the sum over sites: no field is about a single site's row."""

    shared: SitePart  # with no local rows and no multipliers of them; of its matrices the upper triangles
    kept: Array  # 1 for each own row within eps2
    complementary: Array  # 1 where |μ·c| is
    near: Array  # 1 where the distance to the normal cone is
    signed: Array  # 1 where an inequality's multiplier is not negative
    slack: Array  # Σ|μ·c| over all rows
    price: Array  # Σ z·c over all rows for z = μ, and for z = the violations
    weight: Array  # Σ|z|


def own_rows(terms: Terms, data: Data) -> list[tuple[str, str]]:
    """Return the label and the kind of each row that every site holds for itself."""
    local = (c for c in terms.constraints if c.scope == "local")
    return [(label, c.kind) for c in local for label in c.labels(terms, data)]


def summed_part(terms: Terms, part: SitePart, eps2: float, data: Data) -> SummedPart:
    """Return what a site sends of its part; of its data the shapes are used."""
    equal = np.array([kind == "==" for _, kind in own_rows(terms, data)], bool)
    c, mu, none = part.local, part.mu, jnp.zeros(0)
    violation = jnp.where(equal, jnp.abs(c), jnp.maximum(c, 0.0))
    product = jnp.where(equal, 0.0, jnp.abs(mu * c))
    distance = jnp.where(equal | (mu > 0), jnp.abs(c), jnp.maximum(c, 0.0))
    signed = jnp.where(equal, 1.0, jnp.where(mu >= 0, 1.0, 0.0))

    def says(condition: Array) -> Array:
        return jnp.where(condition, 1.0, 0.0)

    return SummedPart(
        shared=replace(
            part,
            mu=none,
            local=none,
            local_caps=none,
            hessian=jax.tree.map(pack, part.hessian),
            pull=jax.tree.map(pack, part.pull),
        ),
        kept=says(violation <= eps2),
        complementary=says(product <= eps2),
        near=says(distance <= eps2) * signed,
        signed=signed,
        slack=jnp.sum(jnp.abs(mu * c)),
        price=jnp.stack([jnp.sum(mu * c), jnp.sum(violation**2)]),
        weight=jnp.stack([jnp.sum(jnp.abs(mu)), jnp.sum(violation)]),
    )


def unseen_of(terms: Terms, total: SummedPart) -> UnseenRows:
    """Return what the sum over all sites says of their own rows."""
    signs_fit = bool(np.all(np.rint(total.signed) == terms.clients))
    return UnseenRows(
        slack=float(total.slack) if signs_fit else float("inf"),
        price=(float(total.price[0]), float(total.price[1])),
        weight=(float(total.weight[0]), float(total.weight[1])),
        broken=bool(np.any(np.rint(total.kept) < terms.clients)),
        convex=rows_convex(terms),
    )


def as_one_part(total: SummedPart, n: int) -> SitePart:
    """Return the sum over n sites as a single row of parts: means where parts are averaged, and sums elsewhere."""

    def mean(sum_of: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf) / n, sum_of)

    s, dim = total.shared, jnp.shape(total.shared.gradient)[0]

    def square(triangle: Array) -> Array:
        return unpack(jnp.asarray(triangle), dim)

    joint = replace(
        s, f=mean(s.f), coupled=mean(s.coupled), coupled_caps=mean(s.coupled_caps),
        coupled_slopes=mean(s.coupled_slopes), strong=mean(s.strong), hessian=jax.tree.map(square, s.hessian),
        pull=jax.tree.map(square, s.pull),
    )  # fmt: skip
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], joint)


def join_sums(
    terms: Terms,
    w: Array,
    total: SummedPart,
    one: Data,
    own: Data | None,
    multipliers: Multipliers,
    eps1: float,
    eps2: float,
) -> tuple[float, Certificate]:
    """Return f(w) + h(w) and the certificate from the sum over all sites."""
    n = terms.clients
    shared_terms = replace(terms, constraints=tuple(c for c in terms.constraints if c.scope != "local"))
    objective, certificate = join_parts(
        shared_terms, ["all sites"], w, as_one_part(total, n), one, own, multipliers, eps1, eps2,
        unseen_of(terms, total),
    )  # fmt: skip
    rows = own_rows(terms, one)
    if not rows:
        return objective, certificate
    counts = tuple(
        RowCount(label, kind, int(np.rint(kept)), n) for (label, kind), kept in zip(rows, total.kept, strict=True)
    )

    def most(value: float, yes: Array) -> float:
        return max(value, eps2 if bool(np.all(np.rint(yes) == n)) else float("inf"))

    return objective, replace(
        certificate,
        feasibility=most(certificate.feasibility, total.kept),
        complementarity=most(certificate.complementarity, total.complementary),
        distance=most(certificate.distance, total.near),
        counts=counts,
    )
