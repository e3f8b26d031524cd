"""Huber's loss in the interior-point method: f(u) = min over p, n ≥ 0 of ½r² + ε(p + n), r = u − p + n.

Beyond ε Huber's loss has no curvature, and a Newton step from there would know no measure. With slacks p and n and
their multipliers z_p = m(ε − r), z_n = m(ε + r) a sample has the curvature of three springs in series, r, p and n:
k = 1/(1/m + p/z_p + n/z_n). A sample's own variables are r, kept within ±ε, and p; n follows from u.
"""

import jax.numpy as jnp
from jax import Array

from foedus.pytrees import state
from foedus.robust.interior_rows import LEAST


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


def start(u: Array, eps: float, product: Array) -> Array:
    """(r, p) with slacks in proportion to a first complementarity product. (2, rows)"""
    r = 0.5 * jnp.clip(u, -eps, eps)
    apart = u - r  # p − n
    return jnp.stack([r, jnp.maximum(apart, 0.0) + product / eps])


def springs(own: Array, u: Array, eps: float, m: Array) -> Springs:
    """What (r, p) come to at u; n = p − u + r."""
    (r, p), n = own, own[1] - u + own[0]
    z_p, z_n = m * (eps - r), m * (eps + r)
    tp, tn = z_p / p, z_n / n
    D = tp * tn + m * (tp + tn)

    def pushed(b_p: Array, b_n: Array) -> tuple[Array, Array]:
        """The changes of m·r and of the value where p and n are pushed by b."""
        dr = -(tn * b_p - tp * b_n) / D
        return m * dr, r * dr + eps * ((tn + 2.0 * m) * b_p + (tp + 2.0 * m) * b_n) / D

    slope_m, v_m = pushed(-(eps - r), -(eps + r))
    slope_mu, v_mu = pushed(1.0 / p, 1.0 / n)
    slope_m = slope_m + r
    slopes = jnp.stack([m * slope_m, slope_m, slope_mu, m * r])
    return Springs(
        0.5 * r**2 + eps * (p + n), slopes, m * tp * tn / D, m * v_m, v_m, v_mu, p * z_p + n * z_n
    )  # fmt: skip


def step(
    own: Array, u: Array, new: Array, du: Array, eps: float, m: Array, dm: Array, mu: Array, t: Array
) -> tuple[Array, Array]:
    """(r, p) after the share t of the step in which u moves by du, to `new`; and the inverse of the longest step."""
    (r, p), n = own, own[1] - u + own[0]
    tp, tn = m * (eps - r) / p, m * (eps + r) / n
    D = tp * tn + m * (tp + tn)
    b_p, b_n = mu / p - (m + dm) * (eps - r) + m * du, mu / n - (m + dm) * (eps + r) - m * du
    dp, dn = ((tn + m) * b_p + m * b_n) / D, ((tp + m) * b_n + m * b_p) / D
    dr = du - dp + dn
    inverse = jnp.max(jnp.stack([dr / (eps - r), -dr / (eps + r), -dp / p, -dn / n]), axis=0)
    r_new = jnp.clip(r + t * dr, -eps + LEAST * (eps + r), eps - LEAST * (eps - r))
    p_new = jnp.maximum(jnp.maximum(p + t * dp, LEAST * p), new - r_new + LEAST * n)
    return jnp.stack([r_new, p_new]), inverse
