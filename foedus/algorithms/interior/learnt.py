"""Curvature that the server learns from sums, for more variables than a matrix can be sent for.

A site then sends, in place of its matrix K_i = ∇²(f_i/n + zᵀc) + Jᵀ D J,
    the diagonal of the smooth part ∇²(f_i/n + zᵀc), and the change of its gradient ∇f_i/n + Jᵀz since the last point,
    k products of Jᵀ D J with directions Ω that everybody can draw.
The server adds these up. From the steps and the changes of the gradient it keeps L-BFGS's approximation of the smooth
part, started from the diagonal. The products determine Σ Jᵀ D J exactly if all sites have at most k rows together: with
Y = ΩA it is Yᵀ(YΩᵀ)⁻¹Y (Nyström). Where there are more rows, a point is asked about in several rounds, each with
other directions; of more rows than `most_rounds` such rounds can tell, the stiffest ones count, and the others with
their diagonal. So rows that bind act with their exact weight, and no row is sent: a sum over all sites and rows is.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.interior.constants import METHOD
from foedus.base.pytrees import PyTree, state
from foedus.numerics.lapack import eigh, lu_solve
from foedus.numerics.limited_memory import Factors, LimitedMemory
from foedus.problem.epigraph import Blocks
from foedus.problem.terms import Terms

SPARE = 4  # products beyond the number of rows, which keep the core YΩᵀ well conditioned


@state
class LearntShare:
    """A site's share in what the server learns from, or the sum of such shares."""

    diagonal: Array  # of the smooth part's matrix
    change: Array  # of the smooth part's gradient since the last point, with the multipliers of the new one
    products: Array  # Ω Jᵀ D J, (k, dim), of one round; at the server of all rounds; (0, dim) without local rows
    rows: PyTree  # the diagonal of Jᵀ D J, where there are more rows than products; else ()

    @staticmethod
    def zero(terms: Terms) -> "LearntShare":
        vector = jnp.zeros(terms.dim)
        products = jnp.zeros((rounds_of(terms) * products_of(terms), terms.dim))
        return LearntShare(vector, vector, products, vector if is_partial(terms) else ())

    def placed(self, terms: Terms, part: Array) -> "LearntShare":
        """The share of one round of a point, as the share in what the server collects over all of its rounds."""
        k, dim = products_of(terms), terms.dim
        whole = jnp.zeros((rounds_of(terms), k, dim)).at[part].set(self.products)
        return replace(self, products=whole.reshape(-1, dim))


@state
class Learnt:
    """The shared matrix as the server knows it, but for the pairs of L-BFGS."""

    diagonal: Array  # of the smooth part
    blocks: Blocks  # exact: the rows of h and their curvature, and as rows R all others

    @property
    def scale(self) -> Array:
        """The units of the columns in which each has curvature 1."""
        return 1.0 / jnp.sqrt(self.diagonal)


def _count_of_products(terms: Terms) -> int:
    rows = terms.clients * terms.rows[0]
    return min(rows + SPARE, terms.dim) if rows else 0


def products_of(terms: Terms) -> int:
    """The number k of products that a site sends: known to all, and independent of anybody's data."""
    return min(
        _count_of_products(terms),
        METHOD.products,
        max(SPARE, 25_000_000 // (terms.clients * terms.dim)),
    )


def rounds_of(terms: Terms) -> int:
    """In how many rounds a point is asked about."""
    return min(-(-_count_of_products(terms) // products_of(terms)), METHOD.most_rounds) if terms.rows[0] else 1


def is_partial(terms: Terms) -> bool:
    """Whether the products may miss some of the rows."""
    return _count_of_products(terms) > rounds_of(terms) * products_of(terms)


def directions(terms: Terms) -> Array:
    """Ω: the same for all parties and at all points. (rounds, k, dim)"""
    return jax.random.normal(jax.random.key(0), (rounds_of(terms), products_of(terms), terms.dim))


def learnt_share(
    terms: Terms, diagonal: Array, change: Array, D: Array, J: Array, scale: Array, part: Array
) -> LearntShare:
    """A site's share, with its rows' weights D and Jacobian; `scale` are the units for Ω.

    `part` is the round of those for which a point is asked about.
    """
    products = ((directions(terms)[part] * scale) @ J.T * D) @ J if terms.rows[0] else jnp.zeros((0, terms.dim))
    return LearntShare(diagonal, change, products, D @ J**2 if is_partial(terms) else ())


def learnt(terms: Terms, at: LearntShare, scale: Array, blocks: Blocks, own: Array, own_diagonal: Array) -> Learnt:
    """The shared matrix from the sites' sums, the `blocks` of h and the server's own rows √D·J."""
    diagonal = jnp.abs(at.diagonal + own_diagonal)  # a positive start, convex or not
    mean = jnp.mean(diagonal)
    # a smaller curvature would make a coordinate's first step too long
    diagonal = jnp.maximum(diagonal, jnp.where(mean > 0, 1e-6 * mean, 1.0))
    parts, ww = [blocks.rows, own], blocks.ww
    extra = blocks.tt.shape[0]
    if terms.rows[0]:
        Y = at.products * scale
        core = Y @ directions(terms).reshape(-1, terms.dim).T
        values, vectors = eigh(0.5 * (core + core.T))
        acts = values > 1e-13 * jnp.max(values)  # in the other directions there is rounding alone
        roots = jnp.where(acts, 1.0 / jnp.sqrt(jnp.where(acts, values, 1.0)), 0.0)
        factor = (roots[:, None] * (vectors.T @ Y)) / scale
        if is_partial(terms):
            ww = ww + jnp.maximum(at.rows - jnp.sum(factor**2, axis=0), 0.0)
        parts.append(jnp.pad(factor, ((0, 0), (0, extra))))
    return Learnt(diagonal, Blocks(ww, blocks.wt, blocks.tt, jnp.concatenate(parts)))


def solve_learnt(K: Learnt, memory: LimitedMemory, r: Array, shift: Array) -> Array:
    """The solution of (B + rows + shift·diagonal) x = r, where B is L-BFGS's approximation of the smooth part."""
    smooth: Factors = memory.factors(K.diagonal)
    blocks, extra = K.blocks, K.blocks.tt.shape[0]
    dim = r.shape[0] - extra
    ww = (1.0 + shift) * (smooth.diagonal + blocks.ww)
    tt = (1.0 + shift) * blocks.tt
    wide = ((0, 0), (0, extra))
    V = jnp.concatenate([jnp.pad(smooth.plus, wide), blocks.rows, jnp.pad(smooth.minus, wide)])
    minus = smooth.minus.shape[0]
    signs = jnp.ones(V.shape[0]).at[V.shape[0] - minus :].set(-1.0)

    def unblock(v: Array) -> Array:
        if not extra:
            return v / ww
        a, b = v[..., :dim], v[..., dim:]
        det = ww * tt - blocks.wt**2
        return jnp.concatenate([(tt * a - blocks.wt * b) / det, (ww * b - blocks.wt * a) / det], axis=-1)

    def times(v: Array) -> Array:
        a, b = v[:dim], v[dim:]
        block = jnp.concatenate([ww * a + blocks.wt * b, blocks.wt * a + tt * b]) if extra else ww * v
        return block + (signs * (V @ v)) @ V

    U = unblock(V)
    core = jnp.diag(signs) + V @ U.T

    def solved(v: Array) -> Array:
        u = unblock(v)
        return u - lu_solve(core, V @ u) @ U

    x = solved(r)
    for _ in range(2):  # weights D that differ by many orders cost digits
        x = x + solved(r - times(x))
    return x
