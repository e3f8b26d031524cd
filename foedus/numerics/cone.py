"""The second-order cone of interior-point methods, as in CVXOPT's notes: NT scaling W with W z = W⁻¹ s.

A vector lies along the first axis; further axes are a batch.
"""

import jax.numpy as jnp
from jax import Array


def jdot(a: Array, b: Array) -> Array:
    """a_0 b_0 − Σ_k a_k b_k."""
    return a[0] * b[0] - jnp.sum(a[1:] * b[1:], axis=0)


def circle(a: Array, b: Array) -> Array:
    """The cone's product a ∘ b."""
    return jnp.concatenate([jnp.sum(a * b, axis=0)[None], a[0] * b[1:] + b[0] * a[1:]])


def uncircle(a: Array, r: Array) -> Array:
    """x with a ∘ x = r."""
    first = jdot(a, r) / jdot(a, a)
    return jnp.concatenate([first[None], (r[1:] - first * a[1:]) / a[0]])


def scaling_point(s: Array, z: Array) -> tuple[Array, Array]:
    """w in the cone with jdot(w, w) = 1, and a scale: W² = scale²·(2wwᵀ − J), J = diag(1, −1, …, −1)."""
    size_s, size_z = jnp.sqrt(jdot(s, s)), jnp.sqrt(jdot(z, z))
    s, z = s / size_s, z / size_z
    gamma = jnp.sqrt(0.5 * (1.0 + jnp.sum(s * z, axis=0)))
    return (s + flip(z)) / (2.0 * gamma), jnp.sqrt(size_s / size_z)


def flip(x: Array) -> Array:
    """Jx."""
    return jnp.concatenate([x[:1], -x[1:]])


def scale_by(w: Array, x: Array) -> Array:
    """Wx, but for the scale; with flip(w), W⁻¹x."""
    along = jnp.sum(w[1:] * x[1:], axis=0)
    first = w[0] * x[0] + along
    return jnp.concatenate([first[None], x[1:] + (x[0] + along / (1.0 + w[0])) * w[1:]])


def scaling(s: Array, z: Array) -> tuple[Array, Array]:
    """W and W⁻¹ as matrices, of one vector each."""
    w, scale = scaling_point(s, z)
    eye = jnp.eye(s.shape[0])
    return scale * scale_by(w[:, None], eye), scale_by(flip(w)[:, None], eye) / scale


def cone_step(s: Array, ds: Array) -> Array:
    """The inverse of the longest step that stays in the cone; 0 where there is none."""
    size = jnp.sqrt(jdot(s, s))
    unit = s / size
    along = jdot(unit, ds)
    rest = ds[1:] - (along + ds[0]) / (unit[0] + 1.0) * unit[1:]
    return (jnp.sqrt(jnp.sum(rest**2, axis=0)) - along) / size
