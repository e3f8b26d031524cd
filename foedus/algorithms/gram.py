"""The inverse (H_i/m + σI)⁻¹ for the Gram matrix H_i = c·XᵀSX + s·I of a linear model, in the cheapest form.

Fewer columns than rows: the dim × dim inverse. Fewer rows: Woodbury's identity with a rows × rows inverse. Both large:
conjugate gradients. The matrices are well conditioned (σ is a fixed share of H_i/m), so an explicit inverse is accurate
and its product is the fastest form of the k0 solves that follow.
"""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree, state
from foedus.numerics.lapack import cholesky, cholesky_solve
from foedus.problem.terms import Data, Terms

LARGE = 400  # beyond this many rows and columns, no matrix is formed
CG_TOL, CG_STEPS = 1e-12, 200  # conjugate gradients go to rounding: an inexact M would change the method


def form_of(terms: Terms, data: Data) -> str:
    """Which form is cheapest: 'primal', 'woodbury' or 'cg'."""
    rows = data["x"].shape[0]
    if min(rows, terms.dim) > LARGE:
        return "cg"
    return "primal" if terms.dim <= rows else "woodbury"


def _scale(terms: Terms, data: Data, m: int) -> tuple[Array, Array]:
    """The scales a of the rows and the shift s with H_i/m = RᵀR + s·I and R = diag(a)·X."""
    assert terms.loss is not None and terms.loss.curvature is not None
    penalty = terms.penalty_of(data)
    shift = jnp.zeros(()) if penalty is None else penalty.curvature / m
    return jnp.sqrt(terms.share(data) * (terms.loss.curvature / m)), shift


@state
class Inverse:
    """The explicit inverse that a client keeps between rounds; () for the form 'cg', which forms none."""

    matrix: PyTree

    @staticmethod
    def blank(terms: Terms, data: Data) -> "Inverse":
        """The inverse before σ is known: zeros of the shape that the data ask for."""
        rows, form = data["x"].shape[0], form_of(terms, data)
        size = {"primal": terms.dim, "woodbury": rows, "cg": 0}[form]
        return Inverse(jnp.zeros((size, size)) if size else ())

    def steps(self, terms: Terms, data: Data, m: int, sigma: Array, p: Array, k0: int) -> tuple[Array, Array]:
        """The vectors q = (I − σM)^{k0−1}·p and M·q, where M = (H_i/m + σI)⁻¹."""
        form = form_of(terms, data)
        if form == "primal":
            q = jax.lax.fori_loop(1, k0, lambda _, q: q - sigma * (self.matrix @ q), p)
            return q, self.matrix @ q
        scale, shift = _scale(terms, data, m)
        x, total = data["x"], sigma + shift  # R itself is not formed: it would be another copy of the data
        if form == "cg":

            def M(v: Array) -> Array:
                def times(u: Array) -> Array:
                    return (scale**2 * (x @ u)) @ x + total * u

                return jax.scipy.sparse.linalg.cg(times, v, tol=CG_TOL, maxiter=CG_STEPS)[0]

            q = jax.lax.fori_loop(1, k0, lambda _, q: q - sigma * M(q), p)
            return q, M(q)
        # With K = (RRᵀ + total·I)⁻¹, a vector αp + Rᵀc has M(αp + Rᵀc) = (α/total)p + RᵀK(c − (α/total)Rp): the steps
        # stay among vectors of this form, and only the first and the last of them go over the data.
        K, Rp = self.matrix, scale * (x @ p) / total  # Rp is over `total` already

        def step(_: int, at: tuple[Array, Array]) -> tuple[Array, Array]:
            alpha, c = at
            return alpha * (1.0 - sigma / total), c - sigma * (K @ (c - alpha * Rp))

        alpha, c = jax.lax.fori_loop(1, k0, step, (jnp.ones_like(total), jnp.zeros_like(Rp)))
        back = (jnp.stack([c, K @ (c - alpha * Rp)]) * scale) @ x
        return alpha * p + back[0], alpha / total * p + back[1]


def inverse_of(terms: Terms, data: Data, m: int, sigma: Array) -> Inverse:
    """The inverse for a new σ, which serves every later round with the same σ."""
    form = form_of(terms, data)
    if form == "cg":
        return Inverse(())
    scale, shift = _scale(terms, data, m)
    root = scale[:, None] * data["x"]
    return Inverse(_inverse(root.T if form == "primal" else root, sigma + shift))


@jax.custom_batching.sequential_vmap
def _inverse(root: Array, total: Array) -> Array:
    """The inverse (RRᵀ + total·I)⁻¹, one client after the other: products of matrices are slower in a batch."""
    matrix = root @ root.T + total * jnp.eye(root.shape[0])
    return cholesky_solve(cholesky(matrix), jnp.eye(root.shape[0]))
