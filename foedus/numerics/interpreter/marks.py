"""Marks inside a trace: which calls NumPy's player computes in a way of their own.

The mark is an operation of JAX's that returns its arguments as they are. It is gone from the derivatives of a function
and from the function of a batch, which are other functions: what has the mark is the function itself.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import ad, batching, mlir

from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.shapes import Operation

Way = Callable[[Operation], Operation]  # takes the operations of the function as one, and returns what is played

MARK = "foedus_mark"
_mark = Primitive(MARK)
_mark.multiple_results = True
_mark.def_impl(lambda *values, way: values)
_mark.def_abstract_eval(lambda *shapes, way: shapes)
mlir.register_lowering(_mark, lambda context, *values, way: values)
ad.primitive_jvps[_mark] = lambda values, tangents, *, way: (
    values,
    [ad.instantiate_zeros(tangent) for tangent in tangents],
)
batching.primitive_batchers[_mark] = lambda values, axes, *, way: (values, axes)


def with_mark(function: Callable[..., PyTree], way: Way) -> Callable[..., PyTree]:
    """The function of arrays, compiled by XLA as it is, with a mark that says how NumPy's player computes it."""

    def marked_call(*arguments: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(arguments)
        return function(*jax.tree.unflatten(structure, _mark.bind(*leaves, way=way)))

    return jax.jit(marked_call)


def way_of(program: Any) -> Way | None:
    """How a program inside a trace is to be played, if it is that of a function with a mark."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    if not jaxpr.eqns or jaxpr.eqns[0].primitive is not _mark or jaxpr.eqns[0].invars != jaxpr.invars:
        return None
    return jaxpr.eqns[0].params["way"]
