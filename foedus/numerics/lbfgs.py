"""L-BFGS for smooth functions whose Hessian is too large to form."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree
from foedus.numerics.newton import Solution

PAIRS = 20  # of steps and gradient changes that approximate the Hessian


def minimise(function: Callable[[Array], Array], start: Array, tol: Array, *, steps: int = 200) -> Solution:
    """Minimise a smooth function from `start` until ‖∇‖_∞ ≤ tol, or for `steps` iterations."""
    import optax  # which takes a tenth of a second, and few runs use

    method = optax.lbfgs(memory_size=PAIRS)
    both = optax.value_and_grad_from_state(function)

    def going(loop: tuple[PyTree, ...]) -> Array:
        _, _, residual, k = loop
        return (residual > tol) & (k < steps)

    def body(loop: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        w, memory, _, k = loop
        value, gradient = both(w, state=memory)
        update, memory = method.update(gradient, memory, w, value=value, grad=gradient, value_fn=function)
        w = optax.apply_updates(w, update)
        return w, memory, jnp.max(jnp.abs(optax.tree_utils.tree_get(memory, "grad"))), k + 1

    first = (start, method.init(start), jnp.max(jnp.abs(jax.grad(function)(start))), jnp.zeros((), int))
    w, _, residual, k = jax.lax.while_loop(going, body, first)
    return Solution(jnp.asarray(w), residual, k)
