"""The second-order cone of interior-point methods, as in CVXOPT's notes: NT scaling W with W z = W⁻¹ s."""

import jax.numpy as jnp
from jax import Array


def jdot(a: Array, b: Array) -> Array:
    """a_0 b_0 − Σ_k a_k b_k."""
    return a[0] * b[0] - jnp.dot(a[1:], b[1:])


def circle(a: Array, b: Array) -> Array:
    """The cone's product a ∘ b."""
    return jnp.concatenate([jnp.dot(a, b)[None], a[0] * b[1:] + b[0] * a[1:]])


def uncircle(a: Array, r: Array) -> Array:
    """x with a ∘ x = r."""
    first = jdot(a, r) / jdot(a, a)
    return jnp.concatenate([first[None], (r[1:] - first * a[1:]) / a[0]])


def scaling(s: Array, z: Array) -> tuple[Array, Array]:
    """W and W⁻¹."""
    size_s, size_z = jnp.sqrt(jdot(s, s)), jnp.sqrt(jdot(z, z))
    s, z = s / size_s, z / size_z
    sign = -jnp.ones_like(s).at[0].set(-1.0)
    gamma = jnp.sqrt(0.5 * (1.0 + jnp.dot(s, z)))
    w = (s + sign * z) / (2.0 * gamma)
    v = w.at[0].add(1.0) / jnp.sqrt(2.0 * (w[0] + 1.0))
    J, scale = jnp.diag(sign), jnp.sqrt(size_s / size_z)
    return scale * (2.0 * jnp.outer(v, v) - J), (2.0 * jnp.outer(sign * v, sign * v) - J) / scale


def cone_step(s: Array, ds: Array) -> Array:
    """The inverse of the longest step that stays in the cone; 0 where there is none."""
    size = jnp.sqrt(jdot(s, s))
    unit = s / size
    along = jdot(unit, ds)
    rest = ds[1:] - (along + ds[0]) / (unit[0] + 1.0) * unit[1:]
    return (jnp.sqrt(jnp.sum(rest**2)) - along) / size
