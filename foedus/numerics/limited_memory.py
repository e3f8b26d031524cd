"""L-BFGS's approximation of a Hessian, started from a diagonal: its inverse times a vector, and itself times one."""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import select, state

DEPTH = 30  # pairs that are remembered
LEAST_CURVATURE = 1e-10  # of sᵀy relative to ‖s‖‖y‖: below it rounding may have set the sign, and H would blow up


@state
class LimitedMemory:
    """The last pairs (step, change of gradient), newest last; empty slots are zero and change nothing."""

    steps: Array  # (depth, dim)
    changes: Array  # likewise

    @staticmethod
    def empty(dim: int, depth: int = DEPTH) -> "LimitedMemory":
        """The memory before the first pair."""
        return LimitedMemory(jnp.zeros((depth, dim)), jnp.zeros((depth, dim)))

    def add(self, step: Array, change: Array) -> "LimitedMemory":
        """The memory with one more pair, if its curvature sᵀy is clearly positive, which keeps BFGS definite."""
        has_curvature = jnp.dot(step, change) > LEAST_CURVATURE * jnp.linalg.norm(step) * jnp.linalg.norm(change)
        longer = LimitedMemory(
            jnp.concatenate([self.steps[1:], step[None]]), jnp.concatenate([self.changes[1:], change[None]])
        )
        return select(has_curvature, longer, self)

    def _inverse_products(self) -> Array:
        """The number 1/sᵀy of each pair, and 0 for an empty slot."""
        products = jnp.sum(self.steps * self.changes, axis=1)
        return jnp.where(products > 0, 1.0 / jnp.where(products > 0, products, 1.0), 0.0)

    def direction(self, gradient: Array, diagonal: Array) -> Array:
        """The direction −H·g by the two-loop recursion, where H₀ = 1/diagonal."""
        weights = self._inverse_products()

        def down(q: Array, pair: tuple[Array, ...]) -> tuple[Array, Array]:
            s, y, r = pair
            a = r * jnp.dot(s, q)
            return q - a * y, a

        q, alphas = jax.lax.scan(down, gradient, (self.steps, self.changes, weights), reverse=True)

        def up(z: Array, pair: tuple[Array, ...]) -> tuple[Array, None]:
            s, y, r, a = pair
            return z + s * (a - r * jnp.dot(y, z)), None

        z, _ = jax.lax.scan(up, q / self._initial_diagonal(diagonal), (self.steps, self.changes, weights, alphas))
        return -z

    def _initial_diagonal(self, diagonal: Array) -> Array:
        """The diagonal, scaled so that yᵀH₀y = sᵀy for the newest pair: the usual start of L-BFGS, in this metric."""
        s, y = self.steps[-1], self.changes[-1]
        product = jnp.dot(s, y)
        return diagonal * jnp.where(product > 0, jnp.sum(y**2 / diagonal) / jnp.where(product > 0, product, 1.0), 1.0)

    def factors(self, diagonal: Array) -> "Factors":
        """The approximate Hessian itself, by the BFGS updates in order, as a diagonal and vectors."""
        weights = self._inverse_products()
        start = self._initial_diagonal(diagonal)
        plus = jnp.sqrt(weights)[:, None] * self.changes

        def update(minus: Array, pair: tuple[Array, ...]) -> tuple[Array, None]:
            j, s, r = pair
            earlier = (jnp.arange(plus.shape[0]) < j)[:, None]
            Bs = Factors(start, jnp.where(earlier, plus, 0.0), minus).times(s)
            sBs = jnp.dot(s, Bs)
            is_pair = (r > 0) & (sBs > 0)  # an empty slot would divide by sᵀBs = 0
            return minus.at[j].set(jnp.where(is_pair, Bs / jnp.sqrt(jnp.where(is_pair, sBs, 1.0)), 0.0)), None

        places = jnp.arange(plus.shape[0])
        minus, _ = jax.lax.scan(update, jnp.zeros_like(plus), (places, self.steps, weights))
        return Factors(start, plus, minus)


@state
class Factors:
    """A symmetric matrix diag(d) + PᵀP − MᵀM, of which only d and the rows of P and M are kept."""

    diagonal: Array  # d
    plus: Array  # P, (vectors, dim)
    minus: Array  # M, likewise

    def times(self, v: Array) -> Array:
        """The matrix times a vector."""
        return self.diagonal * v + (self.plus @ v) @ self.plus - (self.minus @ v) @ self.minus
