"""Newton's method with a line search for a smooth function F plus a regulariser h; the residual reached is returned."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree, select, state
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.numerics.spectrum import largest_eigenvalue


class Prox(Protocol):
    """A convex h with an exact prox, in what a composite Newton step asks of it."""

    vanishes: ClassVar[bool]  # whether h is 0

    def value(self, w: Array) -> Array: ...

    def prox(self, v: Array, step: Array | float) -> Array: ...

    def distance(self, w: Array, g: Array) -> Array: ...


class Nothing:
    """h = 0."""

    vanishes: ClassVar[bool] = True

    def value(self, w: Array) -> Array:
        return jnp.zeros(())

    def prox(self, v: Array, step: Array | float) -> Array:
        return v

    def distance(self, w: Array, g: Array) -> Array:
        return jnp.max(jnp.abs(g), initial=0.0)


Evaluate = Callable[[Array, int], tuple[Array, Array, PyTree]]
"""A function of (point, order) that returns the value, the gradient, and the Hessian if order is 2, else ()."""

SUFFICIENT = 1e-4  # Armijo's share of the predicted decrease
FIRST_SHIFT, SHIFT_FACTOR, LAST_SHIFT = 1e-8, 8.0, 1e6  # the ladder of δ, relative to the largest entry of H
SMALLEST_STEP = 1e-12  # a line search that has halved so often is at the limit of rounding
VALUE_ROUNDING = 1e-14  # relative rounding of a value of F + h
FLAT = 1e-10  # predicted decreases below this, relative to the value, drown in its rounding
INNER_SHARE = 0.1  # the share of the tolerance to which a proximal direction is solved
REUSES = 8  # steps with an old factor before Newton's method takes over


@state
class Solution:
    """A point, its sup-norm residual dist_∞(0, ∇F + ∂h), the steps taken, and the last Cholesky factor."""

    w: Array
    residual: Array
    steps: Array
    lower: PyTree = ()  # a matrix, or () where none was needed


def make_definite(hessian: Array) -> tuple[Array, Array]:
    """The matrix H + δI and its Cholesky factor, with the smallest δ of a rising ladder that makes it definite.

    A convex problem takes δ = 0 and pays one factorisation.
    """
    size = jnp.max(jnp.abs(hessian))
    size = jnp.where(size > 0, size, 1.0)  # a denormal shift would be flushed to zero and never grow

    def factor(shift: Array) -> Array:
        return cholesky(hessian + shift * jnp.eye(hessian.shape[0]))

    def going(loop: tuple[Array, Array]) -> Array:
        # a factorisation that fails leaves NaN from the failing column on, so the last entry tells
        return ~jnp.isfinite(loop[1][-1, -1]) & (loop[0] < LAST_SHIFT * size)

    def body(loop: tuple[Array, Array]) -> tuple[Array, Array]:
        shift = jnp.maximum(FIRST_SHIFT * size, SHIFT_FACTOR * loop[0])
        return shift, factor(shift)

    shift, lower = jax.lax.while_loop(going, body, (jnp.zeros(()), factor(jnp.zeros(()))))
    return hessian + shift * jnp.eye(hessian.shape[0]), lower


def proximal_direction(
    w: Array, gradient: Array, times: Callable[[Array], Array], h: Prox, tol: Array, steps: int = 2000
) -> Array:
    """The q that minimises ⟨g, q⟩ + ½qᵀHq + h(w + q) for positive definite H, given as `times`: v ↦ Hv.

    It is found by accelerated proximal gradient steps of length 1/λ_max(H), restarted when the momentum points uphill
    (O'Donoghue and Candès 2015). H's diagonal cannot scale the steps: h's prox is known for multiples of I only.
    """
    top = jnp.maximum(largest_eigenvalue(times, w.shape[0]), 1e-300)

    def model_gradient(u: Array) -> Array:
        return gradient + times(u - w)

    def going(loop: tuple[Array, ...]) -> Array:
        _, _, _, residual, k = loop
        return (residual > tol) & (k < steps)

    def body(loop: tuple[Array, ...]) -> tuple[Array, ...]:
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


def direction(w: Array, gradient: Array, hessian: Array, h: Prox, tol: Array) -> tuple[Array, Array, Array]:
    """The (proximal) Newton direction, the change it predicts to first order (a number ≤ 0), and the factor of H."""
    definite, lower = make_definite(hessian)
    if h.vanishes:
        q = -cholesky_solve(lower, gradient)
        return q, jnp.dot(gradient, q), lower
    q = proximal_direction(w, gradient, lambda v: definite @ v, h, INNER_SHARE * tol)
    return q, jnp.dot(gradient, q) + h.value(w + q) - h.value(w), lower


def minimise(evaluate: Evaluate, start: Array, tol: Array, *, h: Prox | None = None, steps: int = 60) -> Solution:
    """Minimise F + h from `start` until dist_∞(0, ∇F + ∂h) ≤ tol, or for `steps` steps."""
    h = h or Nothing()
    # the prox with a tiny step brings `start` into the domain of h, where h is finite
    start = start if h.vanishes else h.prox(start, 1e-8)
    value, gradient, _ = evaluate(start, 1)
    blank = jnp.zeros((start.shape[0], start.shape[0]))
    return _newton(evaluate, h, start, value, gradient, tol, steps, blank)


def _newton(
    evaluate: Evaluate, h: Prox, w: Array, value: Array, gradient: Array, tol: Array, steps: int, lower: Array
) -> Solution:
    """Steps and halvings of the line search in one loop: a pass either accepts the trial point or halves the step."""

    def going(loop: tuple[Array, ...]) -> Array:
        _, _, _, residual, size, k, _ = loop
        return (residual > tol) & (k < steps) & (size > SMALLEST_STEP)

    def body(loop: tuple[Array, ...]) -> tuple[Array, ...]:
        w, value, gradient, residual, size, k, _ = loop
        q, slope, lower = direction(w, gradient, evaluate(w, 2)[2], h, tol)
        total = value + h.value(w)
        trial = w + size * q
        new_value, new_gradient, _ = evaluate(trial, 1)
        new_residual = h.distance(trial, new_gradient)
        enough = new_value + h.value(trial) <= total + SUFFICIENT * size * slope + VALUE_ROUNDING * jnp.abs(total)
        # the last decreases of the value are lost in its rounding, but the residual still shows them
        accept = enough | ((jnp.abs(slope) <= FLAT * (1.0 + jnp.abs(total))) & (new_residual < 0.9 * residual))
        accept = accept & jnp.isfinite(new_value)
        there, here = (trial, new_value, new_gradient, new_residual), (w, value, gradient, residual)
        return *select(accept, there, here), jnp.where(accept, 1.0, 0.5 * size), k + 1, lower

    first = (w, value, gradient, h.distance(w, gradient), jnp.ones(()), jnp.zeros((), int), lower)
    w, _, _, residual, _, k, lower = jax.lax.while_loop(going, body, first)
    return Solution(w, residual, k, lower)


def minimise_again(evaluate: Evaluate, start: Array, tol: Array, lower: Array, steps: int = 60) -> Solution:
    """Minimise a smooth F that differs little from the last one, whose Cholesky factor `lower` is at hand.

    A step with the old factor costs a gradient and two triangular solves. Such steps are taken while each at least
    halves the residual; Newton's method does the rest. A `lower` of zeros means that there is no factor yet.
    """
    value, gradient, _ = evaluate(start, 1)

    def going(loop: tuple[Array, ...]) -> Array:
        _, _, gradient, useful, k = loop
        return useful & (jnp.max(jnp.abs(gradient)) > tol) & (k < REUSES)

    def body(loop: tuple[Array, ...]) -> tuple[Array, ...]:
        w, value, gradient, _, k = loop
        trial = w - cholesky_solve(lower, gradient)
        there = (trial, *evaluate(trial, 1)[:2])
        useful = jnp.max(jnp.abs(there[2])) <= 0.5 * jnp.max(jnp.abs(gradient))  # false for NaN
        return *select(useful, there, (w, value, gradient)), useful, k + 1

    has_factor = lower[0, 0] > 0
    w, value, gradient, _, _ = jax.lax.while_loop(going, body, (start, value, gradient, has_factor, jnp.zeros((), int)))
    return _newton(evaluate, Nothing(), w, value, gradient, tol, steps, lower)
