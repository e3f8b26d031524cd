"""The limited memory of L-BFGS with a given diagonal to start from: as an inverse (two loops) and as a matrix."""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.pytrees import select, state

DEPTH = 30


@state
class Memory:
    """The last pairs (step, change of gradient), newest last; empty slots are zero and leave no trace."""

    steps: Array  # (depth, dim)
    changes: Array

    @staticmethod
    def empty(dim: int) -> "Memory":
        return Memory(jnp.zeros((DEPTH, dim)), jnp.zeros((DEPTH, dim)))

    def add(self, step: Array, change: Array) -> "Memory":
        """Take in a pair, unless its curvature is not positive."""
        curved = jnp.dot(step, change) > 1e-10 * jnp.linalg.norm(step) * jnp.linalg.norm(change)
        longer = Memory(
            jnp.concatenate([self.steps[1:], step[None]]), jnp.concatenate([self.changes[1:], change[None]])
        )
        return select(curved, longer, self)

    def _inverse_products(self) -> Array:
        products = jnp.sum(self.steps * self.changes, axis=1)
        return jnp.where(products > 0, 1.0 / jnp.where(products > 0, products, 1.0), 0.0)

    def direction(self, gradient: Array, diagonal: Array) -> Array:
        """−H·g by the two-loop recursion, with H₀ = 1/diagonal."""
        weights = self._inverse_products()

        def down(q, pair):
            s, y, r = pair
            a = r * jnp.dot(s, q)
            return q - a * y, a

        q, alphas = jax.lax.scan(down, gradient, (self.steps, self.changes, weights), reverse=True)

        def up(z, pair):
            s, y, r, a = pair
            return z + s * (a - r * jnp.dot(y, z)), None

        z, _ = jax.lax.scan(up, q / self._scaled(diagonal), (self.steps, self.changes, weights, alphas))
        return -z

    def _scaled(self, diagonal: Array) -> Array:
        """The diagonal, scaled to the curvature of the newest pair."""
        s, y = self.steps[-1], self.changes[-1]
        product = jnp.dot(s, y)
        return diagonal * jnp.where(product > 0, jnp.sum(y**2 / diagonal) / jnp.where(product > 0, product, 1.0), 1.0)

    def matrix(self, diagonal: Array) -> Array:
        """The approximate Hessian itself, by the BFGS updates in order."""
        weights = self._inverse_products()

        def update(B, pair):
            s, y, r = pair
            Bs = B @ s
            sBs = jnp.dot(s, Bs)
            used = r > 0
            new = B - jnp.outer(Bs, Bs) / jnp.where(used, sBs, 1.0) + r * jnp.outer(y, y)
            return jnp.where(used, new, B), None

        return jax.lax.scan(update, jnp.diag(self._scaled(diagonal)), (self.steps, self.changes, weights))[0]
