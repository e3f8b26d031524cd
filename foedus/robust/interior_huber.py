"""Huber's loss and the smooth hinge in the interior-point method: quadratic between two slopes, and linear beyond.

    f(v) = min over p, n ≥ 0 of ½r² + high·p − low·n,  r = v − p + n

is Huber's loss of v = u with slopes ±ε, and the smooth hinge of v = 1 − u with slopes 0 and 1. Beyond its two slopes
the loss has no curvature, and a Newton step from there would know no measure. With slacks p and n and their multipliers
z_p = m(high − r), z_n = m(r − low) a sample has the curvature of three springs in series, r, p and n:
k = 1/(1/m + p/z_p + n/z_n). A sample's own variables are r, kept between the slopes, and p; n follows from v.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import state


@dataclass(frozen=True)
class Elastic:
    """Which loss it is: the two slopes, and v = offset + sign·u."""

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


def start(v: Array, loss: Elastic, product: Array) -> Array:
    """(r, p) with slacks in proportion to a first complementarity product. (2, rows)"""
    r = 0.5 * (jnp.clip(v, loss.low, loss.high) + 0.5 * (loss.low + loss.high))
    apart = v - r  # p − n
    return jnp.stack([r, jnp.maximum(apart, 0.0) + 2.0 * product / (loss.high - loss.low)])


def springs(own: Array, v: Array, loss: Elastic, m: Array) -> Springs:
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


def step(
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
