"""The second-order cone {x: x_0 ≥ ‖(x_1, …)‖₂} of interior-point methods, as in CVXOPT's notes.

Its Nesterov-Todd scaling is the W with W z = W⁻¹ s. A vector lies along the first axis; further axes are a batch.
"""

import jax.numpy as jnp
from jax import Array


def jdot(a: Array, b: Array) -> Array:
    """The product a_0 b_0 − Σ_k a_k b_k, which is positive for a = b inside the cone."""
    return a[0] * b[0] - jnp.sum(a[1:] * b[1:], axis=0)


def circle(a: Array, b: Array) -> Array:
    """The cone's product a ∘ b."""
    return jnp.concatenate([jnp.sum(a * b, axis=0)[None], a[0] * b[1:] + b[0] * a[1:]])


def uncircle(a: Array, r: Array) -> Array:
    """The x with a ∘ x = r."""
    first = jdot(a, r) / jdot(a, a)
    return jnp.concatenate([first[None], (r[1:] - first * a[1:]) / a[0]])


def scaling_point(s: Array, z: Array) -> tuple[Array, Array]:
    """The w in the cone with jdot(w, w) = 1 and the scale that make W² = scale²·(2wwᵀ − J), J = diag(1, −1, …, −1)."""
    size_s, size_z = jnp.sqrt(jdot(s, s)), jnp.sqrt(jdot(z, z))
    s, z = s / size_s, z / size_z
    gamma = jnp.sqrt(0.5 * (1.0 + jnp.sum(s * z, axis=0)))
    return (s + flip(z)) / (2.0 * gamma), jnp.sqrt(size_s / size_z)


def flip(x: Array) -> Array:
    """The vector Jx, with the sign of all entries but the first turned."""
    return jnp.concatenate([x[:1], -x[1:]])


def scale_by(w: Array, x: Array) -> Array:
    """The product Wx up to the scale; with flip(w) in the place of w it is W⁻¹x."""
    along = jnp.sum(w[1:] * x[1:], axis=0)
    first = w[0] * x[0] + along
    return jnp.concatenate([first[None], x[1:] + (x[0] + along / (1.0 + w[0])) * w[1:]])


def scaling(s: Array, z: Array) -> tuple[Array, Array]:
    """The matrices W and W⁻¹ for one s and one z."""
    w, scale = scaling_point(s, z)
    eye = jnp.eye(s.shape[0])
    return scale * scale_by(w[:, None], eye), scale_by(flip(w)[:, None], eye) / scale


def cone_step(s: Array, ds: Array) -> Array:
    """The inverse of the longest step along ds that stays in the cone; at most 0 where every step does."""
    size = jnp.sqrt(jdot(s, s))
    unit = s / size
    along = jdot(unit, ds)
    rest = ds[1:] - (along + ds[0]) / (unit[0] + 1.0) * unit[1:]
    return (jnp.sqrt(jnp.sum(rest**2, axis=0)) - along) / size
