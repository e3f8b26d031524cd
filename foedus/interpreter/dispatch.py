"""Which way a function is played: compiled where its arguments are large, by NumPy where they are small."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from foedus.interpreter.operations import CannotInterpret
from foedus.interpreter.program import Program
from foedus.pytrees import PyTree

LARGE = 2**20  # numbers in the arguments: above this, passes over the data take longer than to compile
MOST_PROGRAMS = 256  # that are kept in a process
P, R = ParamSpec("P"), TypeVar("R")

_programs: OrderedDict[Hashable, Program | CannotInterpret] = OrderedDict()


def is_small(*arguments: PyTree) -> bool:
    """Whether a function of these arrays is played by NumPy; so says their size alone."""
    leaves = jax.tree.leaves(arguments)
    here = all(not isinstance(leaf, jax.Array) or leaf.is_fully_addressable for leaf in leaves)
    return here and sum(int(np.size(leaf)) for leaf in leaves) <= LARGE


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
    try:
        return Program.of(function, *arguments)(*arguments)
    except CannotInterpret:
        return function(*arguments)


def jit_if_large(function: Callable[P, R], *, static_argnames: Sequence[str] = ()) -> Callable[P, R]:
    """Compile a function for large arguments, and let NumPy play it for small ones.

    Args:
        function: a function that `jax.jit` takes.
        static_argnames: the arguments that are no arrays; they must be hashable.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> double = jit_if_large(lambda x: 2.0 * jnp.sum(x))
        >>> float(double(np.ones(3)))
        6.0
    """
    compiled = jax.jit(function, static_argnames=tuple(static_argnames))
    parameters = signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        fixed = {k: v for k, v in bound.arguments.items() if k in static_argnames}
        arrays = {k: v for k, v in bound.arguments.items() if k not in static_argnames}
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))
        if traced or not is_small(arrays):
            return compiled(*args, **kwargs)
        try:
            return program_for((function, tuple(fixed.items())), partial(_with_fixed, function, fixed), arrays)(arrays)
        except CannotInterpret:
            return compiled(*args, **kwargs)

    return call


def _with_fixed(function: Callable[..., PyTree], fixed: dict[str, Any], arrays: dict[str, Any]) -> PyTree:
    return function(**fixed, **arrays)
