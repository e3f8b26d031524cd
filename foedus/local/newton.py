"""Newton's method for a smooth function plus h, safeguarded by a line search, run until its residual is verified."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import state
from foedus.regularizers import Regularizer, Zero

Evaluate = Callable[[Array], tuple[Array, Array, Array]]  # point -> value, gradient, Hessian

SUFFICIENT = 1e-4  # Armijo's share of the predicted decrease


@state
class Solution:
    """A point, its sup-norm residual dist_∞(0, ∇F + ∂h), and the evaluations spent."""

    w: Array
    residual: Array
    steps: Array


def shifted(hessian: Array) -> tuple[Array, Array]:
    """H + δI and its Cholesky factor, with the smallest δ of a rising ladder that makes it positive definite.

    A convex problem takes δ = 0 and pays one factorisation.
    """
    size = jnp.maximum(jnp.max(jnp.abs(hessian)), 1e-300)

    def factor(shift: Array) -> Array:
        return jnp.linalg.cholesky(hessian + shift * jnp.eye(hessian.shape[0]))

    def going(loop):
        return ~jnp.isfinite(loop[1][-1, -1]) & (loop[0] < 1e6 * size)

    def body(loop):
        shift = jnp.maximum(1e-8 * size, 8.0 * loop[0])
        return shift, factor(shift)

    shift, lower = jax.lax.while_loop(going, body, (jnp.zeros(()), factor(jnp.zeros(()))))
    return hessian + shift * jnp.eye(hessian.shape[0]), lower


def proximal_direction(
    w: Array, gradient: Array, hessian: Array, h: Regularizer, tol: Array, steps: int = 2000
) -> Array:
    """argmin_q ⟨g, q⟩ + ½qᵀHq + h(w + q) for positive definite H, by accelerated proximal gradient with restarts.

    The diagonal of H scales nothing here: h's prox is known for multiples of the identity only.
    """
    top = jnp.maximum(jnp.linalg.norm(hessian, 2), 1e-300)

    def model_gradient(u: Array) -> Array:
        return gradient + hessian @ (u - w)

    def going(loop):
        _, _, _, residual, k = loop
        return (residual > tol) & (k < steps)

    def body(loop):
        u, y, momentum, _, k = loop
        new = h.prox(y - model_gradient(y) / top, 1.0 / top)
        following = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * momentum**2))
        uphill = jnp.dot(y - new, new - u) > 0
        following = jnp.where(uphill, 1.0, following)
        push = jnp.where(uphill, 0.0, (momentum - 1.0) / following)
        return new, new + push * (new - u), following, h.distance(new, model_gradient(new)), k + 1

    start = h.prox(w - gradient / top, 1.0 / top)
    first = (start, start, jnp.ones(()), h.distance(start, model_gradient(start)), jnp.zeros((), int))
    u, *_ = jax.lax.while_loop(going, body, first)
    return u - w


def direction(w: Array, gradient: Array, hessian: Array, h: Regularizer, tol: Array) -> tuple[Array, Array]:
    """The (proximal) Newton direction and the decrease it predicts to first order, a number ≤ 0."""
    definite, lower = shifted(hessian)
    if isinstance(h, Zero):
        q = -jax.scipy.linalg.cho_solve((lower, True), gradient)
        return q, jnp.dot(gradient, q)
    q = proximal_direction(w, gradient, definite, h, 0.1 * tol)
    return q, jnp.dot(gradient, q) + h.value(w + q) - h.value(w)


def minimise(
    evaluate: Evaluate, start: Array, tol: Array, *, h: Regularizer | None = None, steps: int = 60
) -> Solution:
    """Minimise F + h from `start` until dist_∞(0, ∇F + ∂h) ≤ tol or `steps` evaluations are spent."""
    h = h or Zero()
    start = start if isinstance(h, Zero) else h.prox(start, 1e-8)

    def fresh(w, value, gradient, hessian):
        q, slope = direction(w, gradient, hessian, h, tol)
        return w, value + h.value(w), q, slope, h.distance(w, gradient)

    def going(loop):
        _, _, _, _, residual, size, k = loop
        return (residual > tol) & (k < steps) & (size > 1e-12)

    def body(loop):
        w, total, q, slope, residual, size, k = loop
        trial = w + size * q
        value, gradient, hessian = evaluate(trial)
        new_residual = h.distance(trial, gradient)
        enough = value + h.value(trial) <= total + SUFFICIENT * size * slope + 1e-14 * jnp.abs(total)
        # rounding hides the last decreases of the value; the residual still sees them
        accept = enough | ((jnp.abs(slope) <= 1e-10 * (1.0 + jnp.abs(total))) & (new_residual < 0.9 * residual))
        accept = accept & jnp.isfinite(value)
        kept = w, total, q, slope, residual
        moved = fresh(trial, value, gradient, hessian)
        new = jax.tree.map(lambda a, b: jnp.where(accept, a, b), moved, kept)
        return *new, jnp.where(accept, 1.0, 0.5 * size), k + 1

    first = fresh(start, *evaluate(start))
    w, _, _, _, residual, _, k = jax.lax.while_loop(going, body, (*first, jnp.ones(()), jnp.zeros((), int)))
    return Solution(w, residual, k)
