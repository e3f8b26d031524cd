"""What several tests share."""

import jax.numpy as jnp


def bowl(w, data):
    return jnp.sum((w["a"] - data["b"][:2]) ** 2) + jnp.sum(jnp.cos(w["c"]) + 0.5 * w["c"] ** 2)


def ring(w, data):
    """Stay out of a ball around zero: not convex."""
    return 1.0 - jnp.sum(w["a"] ** 2) - jnp.sum(w["c"] ** 2)
