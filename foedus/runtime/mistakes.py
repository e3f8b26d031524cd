"""Mistakes in an algorithm that a user wrote, explained in one sentence where JAX would speak of tracers."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.problem.problem import Problem
from foedus.problem.terms import Data
from foedus.protocol.algorithm import Algorithm, Present, name_of
from foedus.runtime import spine


@contextmanager
def explain_mistakes(algorithm: Algorithm, problem: Problem) -> Iterator[None]:
    """Turn an error of the first compilation into a sentence, where the algorithm's functions show what is wrong."""
    try:
        yield
    except FoedusError:
        raise
    except Exception as error:
        sentence = mistake(algorithm, problem)
        if sentence is None:
            raise
        raise FoedusError(sentence) from error


def mistake(algorithm: Algorithm, problem: Problem) -> str | None:
    """Return a sentence on what is wrong with the algorithm's functions, from the shapes they return; or None."""
    name, terms = name_of(algorithm), problem.terms
    one = jax.eval_shape(lambda d: jax.tree.map(lambda a: a[0], d), problem.data)
    try:
        hash(algorithm)
    except TypeError:
        return f"{name} cannot be hashed, so its program cannot be kept: write @settings above class {name}."
    try:
        server = _shape(f"init of {name}", lambda: algorithm.init(terms, jnp.zeros(terms.dim), problem.server))
        client = _shape(f"join of {name}", lambda: algorithm.join(terms, _zeros(one), jnp.zeros(terms.dim)))
        try:
            model = jax.eval_shape(lambda s: algorithm.parameters(terms, s), server)
        except AttributeError:
            return (
                f"the server's state of {name} has no field 'w'; call the model w, or define parameters(terms, server)."
            )
        if getattr(model, "shape", None) != (terms.dim,):
            return f"parameters of {name} must return a vector of {terms.dim} numbers. Got {_words(model)} instead."
        for kind in algorithm.kinds:
            if (wrong := _round(algorithm, kind, problem, server, client, one)) is not None:
                return wrong
    except _Untraceable as error:
        return str(error)
    return None


class _Untraceable(Exception):
    """A function returns something else than a tree of arrays; the message is the sentence for the user."""


def _shape(what: str, function) -> PyTree:
    """Return the shapes of what a function returns, without computing it."""
    results: list[PyTree] = []

    def run() -> tuple[()]:
        results.append(function())
        return ()

    # eval_shape itself accepts only trees of arrays, so the result leaves by the list and is looked at afterwards
    jax.eval_shape(run)
    return _shapes_of(what, results[0])


def _shapes_of(what: str, value: PyTree) -> PyTree:
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float):
            continue
        place = jax.tree_util.keystr(path)
        where = f"field {place.lstrip('.')!r} of what {what} returns" if place else f"what {what} returns"
        if dataclasses.is_dataclass(leaf) or (hasattr(leaf, "__dict__") and not isinstance(leaf, type)):
            kind = type(leaf).__name__
            raise _Untraceable(f"{where} is a {kind}, which JAX does not know: write @state above class {kind}.")
        raise _Untraceable(f"{where} must be a number or an array. Got {leaf!r} instead.")
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), value)


def _zeros(shapes: Data) -> Data:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _round(algorithm: Algorithm, kind, problem: Problem, server: PyTree, client: PyTree, data: Data) -> str | None:
    """Return what is wrong with one kind of round, or None."""
    terms, name = problem.terms, name_of(algorithm)
    which = name if kind is algorithm else f"{type(kind).__name__} of {name}"
    draws, key = jnp.zeros(terms.clients), jax.random.key(0)
    message = _shape(
        f"broadcast of {which}", lambda: spine.message_for(kind.broadcast(terms, _zeros(server), draws), 0)
    )
    pair: list[PyTree] = []

    def local() -> tuple[()]:
        pair.append(kind.local(terms, _zeros(client), _zeros(message), _zeros(data), key))
        return ()

    jax.eval_shape(local)
    if not (isinstance(pair[0], tuple) and len(pair[0]) == 2):
        return f"local of {which} must return (client state, reply). Got {_words(pair[0])} instead."
    after, reply = (_shapes_of(f"local of {which}", part) for part in pair[0])
    if (wrong := _differs(f"the client's state of {which}", client, after, "join", "local")) is not None:
        return wrong
    replies = jax.tree.map(lambda s: jnp.zeros((terms.clients, *s.shape), s.dtype), reply)
    present = Present(jnp.arange(terms.clients), jnp.ones(terms.clients, bool))
    following = _shape(f"aggregate of {which}", lambda: kind.aggregate(terms, _zeros(server), replies, present))
    return _differs(f"the server's state of {which}", server, following, "init", "aggregate")


def _differs(what: str, before: PyTree, after: PyTree, first: str, second: str) -> str | None:
    """Return how two states that must have the same form differ, or None."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        return f"{what} has another form after {second} ({_words(after)}) than after {first} ({_words(before)})."
    paths = jax.tree_util.tree_flatten_with_path(before)[0]
    for (path, old), new in zip(paths, jax.tree.leaves(after), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            field = jax.tree_util.keystr(path).lstrip(".") or "it"
            return f"{what}: {field} is {_words(old)} after {first} and {_words(new)} after {second}; make both alike."
    return None


def _words(value: PyTree) -> str:
    if isinstance(value, jax.ShapeDtypeStruct) or hasattr(value, "dtype"):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return type(value).__name__
