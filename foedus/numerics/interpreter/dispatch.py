"""Which way a function is played: compiled where its arguments are large, by NumPy where they are small.

`FOEDUS_PLAYER` is the one switch: `xla` compiles everything, `numpy` compiles nothing that NumPy can play, and `auto`,
which holds where it is not set, chooses by size; where JAX has a GPU it compiles everything.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from inspect import signature
from typing import TypeVar, cast

import jax
import numpy as np
from jax.core import Tracer

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.program import Program
from foedus.numerics.interpreter.shapes import CannotInterpret

LARGE = 2**20  # numbers in the arguments: above this, passes over the data take longer than to compile
MODERATE = 2**28  # up to this, a few tens of passes that are mostly matrix products do not
MOST_PROGRAMS = 256  # that are kept in a process
PLAYERS = ("auto", "xla", "numpy")
F = TypeVar("F", bound=Callable[..., PyTree])

_programs: OrderedDict[Hashable, Program | CannotInterpret] = OrderedDict()


def player() -> str:
    """Who plays functions of arrays: `xla`, `numpy`, or `auto`, which is by their size."""
    name = os.environ.get("FOEDUS_PLAYER") or "auto"
    if name not in PLAYERS:
        raise FoedusError(f"FOEDUS_PLAYER must be one of {', '.join(PLAYERS)}. Got {name!r} instead.")
    return "xla" if name == "auto" and jax.default_backend() != "cpu" else name


def is_small(*arguments: PyTree, most: int = LARGE) -> bool:
    """Whether a function of these arrays is played by NumPy; so says their size alone, or `FOEDUS_PLAYER`."""
    name, leaves = player(), jax.tree.leaves(arguments)
    if name == "xla" or any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in leaves):
        return False
    return name == "numpy" or sum(int(np.size(leaf)) for leaf in leaves) <= most


def is_moderate(*arguments: PyTree) -> bool:
    """Whether few passes over these arrays, one client after the other, are played by NumPy."""
    return is_small(*arguments, most=MODERATE)


def program_for(name: Hashable, function: Callable[..., PyTree], *arguments: PyTree) -> Program:
    """The function traced for arguments of these shapes, kept under its name; raises `CannotInterpret`."""
    leaves, structure = jax.tree.flatten(arguments)
    key = (name, structure, tuple((np.shape(leaf), str(jax.dtypes.result_type(leaf))) for leaf in leaves))
    if key not in _programs:
        try:
            _programs[key] = Program.of(function, *arguments)
        except CannotInterpret as error:
            _programs[key] = error
        while len(_programs) > MOST_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    program = _programs[key]
    if isinstance(program, CannotInterpret):
        raise program
    return program


def play(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Play a function once, by NumPy if that can be done; nothing is kept."""
    if player() == "xla":
        return function(*arguments)
    try:
        return Program.of(function, *arguments)(*arguments)
    except CannotInterpret:
        return function(*arguments)


def jit_if_large(*static: str) -> Callable[[F], F]:
    """Decorate a function that is to be compiled for large arguments, and played by NumPy for small ones.

    Args:
        static: the names of the arguments that are no arrays; these must be hashable.

    Returns:
        The decorator.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> double = jit_if_large()(lambda x: 2.0 * jnp.sum(x))
        >>> float(double(np.ones(3)))
        6.0
    """

    def decorate(function: F) -> F:
        by_xla, parameters = jax.jit(function, static_argnames=static), signature(function)

        @wraps(function)
        def call(*args: PyTree, **kwargs: PyTree) -> PyTree:
            arguments = parameters.bind(*args, **kwargs).arguments
            constants = {k: v for k, v in arguments.items() if k in static}
            arrays = {k: v for k, v in arguments.items() if k not in static}
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arrays)) or not is_small(arrays):
                return by_xla(*args, **kwargs)
            try:
                program = program_for(
                    (function, *constants.items()), lambda arrays: function(**constants, **arrays), arrays
                )
            except CannotInterpret:
                return by_xla(*args, **kwargs)
            return program(arrays)

        return cast(F, call)

    return decorate


def jit_if_many(*static: str) -> Callable[[F], Callable[[bool], Callable[..., PyTree]]]:
    """Decorate a function of which there are two: compiled, and, for those who call it a few times, `jit_if_large`.

    Args:
        static: the names of the arguments that are no arrays; these must be hashable.

    Returns:
        The decorator; what it makes takes whether there will be few calls, and returns the function.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> double = jit_if_many()(lambda x: 2.0 * jnp.sum(x))
        >>> float(double(True)(np.ones(3))), float(double(False)(np.ones(3)))
        (6.0, 6.0)
    """

    def decorate(function: F) -> Callable[[bool], Callable[..., PyTree]]:
        by_xla, by_size = jax.jit(function, static_argnames=static), jit_if_large(*static)(function)
        return lambda few: by_size if few or player() == "numpy" else by_xla

    return decorate
