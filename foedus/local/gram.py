"""(H_i/m + σI)⁻¹ for the Gram matrix H_i = c·XᵀSX + s·I of a linear model, in the form that is cheapest for its shape.

Fewer columns than rows: the dim × dim inverse. Fewer rows: Woodbury's identity with a rows × rows inverse. Both large:
conjugate gradients. The matrices are well conditioned (σ is a fixed share of H_i/m), so an explicit inverse is accurate
and its product is the fastest form of the k0 solves that follow.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import state
from foedus.local.cholesky import cholesky, cholesky_solve
from foedus.terms import Data, Terms

LARGE = 400  # beyond this many rows and columns, no matrix is formed


def form_of(terms: Terms, data: Data) -> str:
    """Which form is cheapest: 'primal', 'woodbury' or 'cg'."""
    rows = data["x"].shape[0]
    if min(rows, terms.dim) > LARGE:
        return "cg"
    return "primal" if terms.dim <= rows else "woodbury"


def _root(terms: Terms, data: Data, m: int) -> tuple[Array, Array]:
    """R and s with H_i/m = RᵀR + s·I."""
    assert terms.loss is not None and terms.loss.curvature is not None
    shift = jnp.zeros(()) if terms.penalty is None else terms.penalty.curvature(data.count) / m
    return jnp.sqrt(terms.share(data) * (terms.loss.curvature / m))[:, None] * data["x"], shift


@state
class Inverse:
    """The kept matrix; an empty tuple where there is none."""

    matrix: Any

    @staticmethod
    def blank(terms: Terms, data: Data) -> "Inverse":
        rows, form = data["x"].shape[0], form_of(terms, data)
        size = {"primal": terms.dim, "woodbury": rows, "cg": 0}[form]
        return Inverse(jnp.zeros((size, size)) if size else ())

    def solver(self, terms: Terms, data: Data, m: int, sigma: Array) -> Callable[[Array], Array]:
        """v ↦ (H_i/m + σI)⁻¹v."""
        form = form_of(terms, data)
        if form == "primal":
            return lambda v: self.matrix @ v
        root, shift = _root(terms, data, m)
        total = sigma + shift
        if form == "woodbury":
            return lambda v: (v - root.T @ (self.matrix @ (root @ v))) / total
        return lambda v: jax.scipy.sparse.linalg.cg(
            lambda u: root.T @ (root @ u) + total * u, v, tol=1e-12, maxiter=200
        )[0]


def inverse_of(terms: Terms, data: Data, m: int, sigma: Array) -> Inverse:
    """Factorise once; the result serves every later round with the same σ."""
    form = form_of(terms, data)
    if form == "cg":
        return Inverse(())
    root, shift = _root(terms, data, m)
    total = sigma + shift
    if form == "primal":
        matrix = root.T @ root + total * jnp.eye(terms.dim)
    else:
        matrix = root @ root.T + total * jnp.eye(root.shape[0])
    return Inverse(cholesky_solve(cholesky(matrix), jnp.eye(matrix.shape[0])))
