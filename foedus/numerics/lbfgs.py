"""L-BFGS for smooth functions without a structured Hessian, run until its residual is verified."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from foedus.numerics.newton import Solution


def minimise(function: Callable[[Array], Array], start: Array, tol: Array, *, steps: int = 200) -> Solution:
    """Minimise a smooth function from `start` until ‖∇‖_∞ ≤ tol or `steps` iterations are spent."""
    method = optax.lbfgs(memory_size=20)
    both = optax.value_and_grad_from_state(function)

    def going(loop):
        _, _, residual, k = loop
        return (residual > tol) & (k < steps)

    def body(loop):
        w, memory, _, k = loop
        value, gradient = both(w, state=memory)
        update, memory = method.update(gradient, memory, w, value=value, grad=gradient, value_fn=function)
        w = optax.apply_updates(w, update)
        return w, memory, jnp.max(jnp.abs(optax.tree_utils.tree_get(memory, "grad"))), k + 1

    first = (start, method.init(start), jnp.max(jnp.abs(jax.grad(function)(start))), jnp.zeros((), int))
    w, _, residual, k = jax.lax.while_loop(going, body, first)
    return Solution(jnp.asarray(w), residual, k)
