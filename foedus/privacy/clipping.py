"""The mean of clipped per-example gradients of one client.

For a loss of xᵀw the gradient of one example is s·x with s a number, so its norm is |s|·‖x‖ and clipping is a factor on
s: no per-example gradient is formed. For a user's own objective they are formed by `vmap`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, state
from foedus.privacy.noise import Sound
from foedus.privacy.ranges import check_ranges
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms

TINY, HUGE = 1e-300, 1e300  # stand for 0 in a divisor, and for infinity in a factor
BOUND = "x.bound"  # the array that `condense` adds


@state
class RowBounds:
    """Per row of X: the largest |s| that clipping allows, and the factor by which the row itself is shortened."""

    bound: PyTree  # an array, (rows,); () for a user's own objective, whose gradients are formed one by one
    shrink: PyTree  # an array, (rows,), or 1.0; () likewise


def condense(terms: Terms, data: Data, noise: Sound) -> Data:
    """Return the data with rows of X shortened to the allowed length and with the bounds on |s|, for all rounds."""
    if terms.loss is None:
        return data
    rows = rows_of(terms, data, noise)
    x = data["x"] if noise.rows is None else data["x"] * rows.shrink[:, None]
    return Data({**data, "x": x, BOUND: rows.bound})


def rows_of(terms: Terms, data: Data, noise: Sound) -> RowBounds:
    """Return the bounds C/‖x‖ of the rows of X; for a user's own objective there are none."""
    if terms.loss is None:
        return RowBounds((), ())
    if BOUND in data:
        return RowBounds(data[BOUND], 1.0)
    size, shape = _scale_rows(data["x"])
    length = jnp.linalg.norm(shape, ord=noise.order, axis=1)
    if noise.rows is None:
        return RowBounds(noise.clip / size / _positive(length), 1.0)
    euclidean = length if noise.order == 2 else jnp.linalg.norm(shape, axis=1)
    shrink = jnp.minimum(1.0, noise.rows / size / _positive(euclidean))
    return RowBounds(noise.clip / (size * shrink) / _positive(length), shrink)


def clipped_gradient(terms: Terms, w: Array, data: Data, noise: Sound, rows: RowBounds | None = None) -> Array:
    """Return (1/d_i) Σ_j clip(∇ℓ_j(w)), plus the gradient of the penalty, which depends on no example."""
    share = data["weight"] / noise.divisor(data.count)
    if terms.loss is not None:
        rows = rows_of(terms, data, noise) if rows is None else rows
        x = data["x"]
        s = terms.loss.slope(x @ w * rows.shrink, data["y"])
        # NaN must not pass the clip: an example without a slope adds nothing; an infinite slope becomes the bound
        bound = jnp.minimum(rows.bound, HUGE)  # an infinite slope of a row of zeros would be NaN
        s = jnp.clip(jnp.where(jnp.isnan(s), 0.0, s), -bound, bound)
        g = (share * s * rows.shrink) @ x
    else:
        g = share @ _clip(_per_example(terms, w, data), noise)
    return g if terms.penalty is None else g + terms.penalty.gradient(w, data.count)


def _positive(a: Array) -> Array:
    return jnp.maximum(a, TINY)


def _scale_rows(rows: Array) -> tuple[Array, Array]:
    """Return the largest entry of each row, and the rows divided by it, whose norms cannot overflow."""
    size = _positive(jnp.max(jnp.abs(rows), axis=1))
    return size, rows / size[:, None]


def _clip(gradients: Array, noise: Sound) -> Array:
    finite = jnp.all(jnp.isfinite(gradients), axis=1, keepdims=True)
    gradients = jnp.where(finite, gradients, 0.0)  # an example without a gradient adds nothing, and the bound holds
    size, shape = _scale_rows(gradients)
    length = jnp.linalg.norm(shape, ord=noise.order, axis=1)
    return gradients * jnp.minimum(1.0, noise.clip / size / _positive(length))[:, None]


def _per_example(terms: Terms, w: Array, data: Data) -> Array:
    """Return the gradient of the user's objective on each row alone, (rows, dim)."""
    objective = terms.objective
    assert objective is not None

    def alone(row: dict[str, Array]) -> Array:
        one = Data({k: v[None] for k, v in row.items() if k != "weight"} | {"weight": jnp.ones(1)})
        return jax.grad(lambda u: objective(terms.shape.unravel(u), one))(w)

    return jax.vmap(alone)(dict(data))


def check(algorithm: object, terms: Terms, noise: Sound, name: str) -> None:
    """Raise where clipping each example would not bound the sensitivity as its proof assumes."""
    check_ranges(name, algorithm, noise, terms)
    if terms.penalty is not None and type(terms.penalty).__module__ != "foedus.problem.penalties":
        raise FoedusError(
            f"{name} with {type(noise).__name__} noise takes a penalty of fd.penalties: how a step with "
            f"{type(terms.penalty).__name__} is rounded has no proved bound."
        )
    if terms.where is not None:
        raise FoedusError(
            f"{name} with {type(noise).__name__} noise takes no where=: how many examples it selects is private too; "
            "give the clients those examples alone."
        )
    if terms.loss is None and noise.rows is not None:
        raise FoedusError(f"{type(noise).__name__}(rows=...) bounds the rows of X of a loss of xᵀw; leave it out here.")


def check_arrays(problem: Problem) -> None:
    """Raise where a user's objective gets an array without a row for each example."""
    if problem.terms.objective is None:
        return
    for key, array in problem.data.items():
        if array.ndim < 2 or array.shape[1] != problem.stacked.rows:
            raise FoedusError(
                f"the array {key!r} has no row for each example, so nobody can say what one example adds to the "
                "objective; privacy needs arrays with one row per example."
            )


def check_examples(problem: Problem, w0: Array) -> None:
    """Raise where a user's objective is not the mean of its values on single examples, whose gradients are clipped."""
    check_arrays(problem)
    terms = problem.terms
    if terms.objective is None:
        return
    data, objective = problem.client(0), terms.objective
    rest = {k: v for k, v in data.items() if k != "weight"}
    for w in (w0, w0 + 0.1 * jnp.cos(1.0 + jnp.arange(w0.size))):
        params = terms.shape.unravel(w)

        def alone(row: dict[str, Array], params: PyTree = params) -> Array:
            return objective(params, Data({k: v[None] for k, v in row.items()} | {"weight": jnp.ones(1)}))

        mean, whole = float(jnp.mean(jax.vmap(alone)(rest))), float(objective(params, data))
        if not np.isclose(mean, whole, rtol=1e-8, atol=1e-12):
            # the two values stay out of the sentence: they are private
            raise FoedusError(
                f"client {problem.names[0]!r}: the objective is not the mean of its values on single examples, so "
                "clipping examples would not bound what one of them adds; use data.mean(values), and penalty= for what "
                "no example takes part in."
            )
