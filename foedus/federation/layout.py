"""The types and shapes of messages between server and sites, which each side works out from the terms for itself."""

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import PyTree
from foedus.certificate.measure import SitePart, site_part
from foedus.federation import packing
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.runtime import spine
from foedus.sums.masking import Masking
from foedus.sums.questions import Form

ROWS = 4099  # stands for a site's number of rows, which it does not tell: no reply's shape depends on it
PER_ROW = ("x", "y", "group", "weight", "cluster")  # the arrays with one row for each example

KEPT = 32  # terms and shapes of which a party keeps what follows from them

Shapes = dict[str, list[int | None]]
P = ParamSpec("P")
T = TypeVar("T")


def _once(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function of algorithms, terms and shapes that traces once for the same ones: a site asks many times."""

    @lru_cache(maxsize=KEPT)
    def kept(leaves: tuple[object, ...], tree: object, number: object) -> T:
        return work(*jax.tree.unflatten(tree, leaves))  # pyright: ignore[reportCallIssue]

    @wraps(work)
    def one(*arguments: P.args, **named: P.kwargs) -> T:
        leaves, tree = jax.tree.flatten(arguments)
        shapes = (packing.structure(leaf) if isinstance(leaf, np.ndarray | Array) else leaf for leaf in leaves)
        return kept(tuple(shapes), tree, jnp.result_type(float))

    return one


def schema(arrays: Mapping[str, np.ndarray | Array]) -> Shapes:
    """Return the names and shapes of a party's arrays; where there is an X, the number of rows is left out."""
    per_row = PER_ROW if "x" in arrays else ()
    return {
        name: [None if name in per_row and axis == 0 else int(n) for axis, n in enumerate(jnp.shape(value))]
        for name, value in arrays.items()
    }


def of_shapes(shapes: Shapes) -> dict[str, jax.ShapeDtypeStruct]:
    """Return arrays of these shapes, without values."""
    return {
        str(name): jax.ShapeDtypeStruct(tuple(ROWS if n is None else int(n) for n in shape), float)
        for name, shape in shapes.items()
    }


def party(shapes: Shapes) -> Data:
    """Return a party's data by their shapes, with the weights that every party has."""
    arrays = of_shapes(shapes)
    first = next((k for k in ("x", "y") if k in arrays), next(iter(arrays)))
    rows = arrays[first].shape[0] if arrays[first].shape else 1
    return Data(arrays | {"weight": jax.ShapeDtypeStruct((rows,), float)})


def vector(size: int) -> jax.ShapeDtypeStruct:
    """Return the shape of a vector of so many numbers."""
    return jax.ShapeDtypeStruct((size,), float)


@_once
def messages(algorithm: Algorithm, terms: Terms, own: Data | None) -> list[PyTree]:
    """Return, for each kind of round, the shapes of what one client receives."""
    server = jax.eval_shape(lambda w, o: algorithm.init(terms, w, o), vector(terms.dim), own)
    draws = vector(terms.clients)
    return [
        jax.eval_shape(lambda s, d, kind=kind: spine.message_for(kind.broadcast(terms, s, d), 0), server, draws)
        for kind in algorithm.kinds
    ]


@_once
def common(algorithm: Algorithm, terms: Terms, own: Data | None) -> tuple[bool, ...]:
    """Return, for each kind of round, whether all clients receive the same message."""
    server = jax.eval_shape(lambda w, o: algorithm.init(terms, w, o), vector(terms.dim), own)
    draws, answers = vector(terms.clients), []
    for kind in algorithm.kinds:
        message = jax.eval_shape(lambda s, d, kind=kind: kind.broadcast(terms, s, d), server, draws)
        answers.append(not any(map(spine.is_each, jax.tree.leaves(message, is_leaf=spine.is_each))))
    return tuple(answers)


@_once
def replies(algorithm: Algorithm, terms: Terms, message_shapes: list[PyTree], data: Data) -> list[PyTree]:
    """Return, for each kind of round, the shapes of what one client sends back."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    client = jax.eval_shape(lambda d, w: algorithm.join(terms, d, w), data, vector(terms.dim))
    return [
        jax.eval_shape(lambda c, m, d, k, kind=kind: kind.local(terms, c, m, d, k)[1], client, one, data, key)
        for kind, one in zip(algorithm.kinds, message_shapes, strict=True)
    ]


def forms(replies: list[PyTree], masking: Masking | None) -> list[Form]:
    """Return, for each kind of round, what a reply is made of; under masks all its numbers count as real."""
    if masking is None:
        return [Form(reply) for reply in replies]
    reals = [jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, float), reply) for reply in replies]
    return [Form(reply, masking.point.words) for reply in reals]


@_once
def parts(terms: Terms, data: Data) -> SitePart:
    """Return the shapes of what one client sends for the certificate."""
    local, _, coupled = terms.rows
    return jax.eval_shape(
        lambda w, mu, nu, d: site_part(terms, w, mu, nu, d), vector(terms.dim), vector(local), vector(coupled), data
    )


def beyond_rows(shapes: Shapes) -> Shapes:
    """Return the shapes without the number of rows, in which sites may differ."""
    return {name: list(shape[1:]) if shape else [] for name, shape in sorted(shapes.items())}


def in_words(shapes: Shapes) -> str:
    """Return the shapes of a site's arrays in words, for a message."""
    return ", ".join(f"{name} (rows{''.join(f' × {n}' for n in rest)})" for name, rest in shapes.items())
