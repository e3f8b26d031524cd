"""A traced function as a list of operations in NumPy.

Calls inside a trace are written out in place, what does not reach a result is left out, and what depends on no argument
is computed once. An array is dropped after its last use. The last results of a function that `keep_results` marks are
kept for a call with the same arguments.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from foedus.base.pytrees import PyTree
from foedus.numerics.interpreter.marks import way_of, with_mark
from foedus.numerics.interpreter.operations import MAKERS
from foedus.numerics.interpreter.shapes import CannotInterpret, Operation
from foedus.numerics.interpreter.sparse import SparseTables

INNER = {  # operations that call one program, and the name of the parameter that has it
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
MOST_KEPT = 2**22  # numbers in results that are kept
SIDE_BY_SIDE = range(2**15, 2**20)  # numbers in a turn of a loop: fewer do not pay, more would take much memory


def keep_results(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Mark a function whose last results NumPy's player keeps, as they are asked for again a round later.

    What it returns is not changed by this, and XLA does not notice it.

    Example:
        >>> import jax.numpy as jnp
        >>> double = keep_results(lambda x: 2.0 * x)
        >>> float(Program.of(double, jnp.ones(()))(jnp.ones(())))
        2.0
    """
    return with_mark(function, _with_memory)


@dataclass(frozen=True)
class Step:
    """One operation: its function, the places of its arguments and of its results, and places to clear after it."""

    call: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    several: bool
    last_uses: tuple[int, ...] = ()


@dataclass
class Block:
    """A program ready to be played: `places` holds the constants and room for everything else."""

    places: list[Any]
    arguments: tuple[int, ...]
    steps: list[Step]
    results: tuple[int, ...]

    def __call__(self, *arguments: np.ndarray) -> list[np.ndarray]:
        places = self.places.copy()
        for place, value in zip(self.arguments, arguments, strict=True):
            places[place] = value
        for step in self.steps:
            values = step.call(*[places[i] for i in step.inputs])
            if step.several:
                for place, value in zip(step.outputs, values, strict=True):
                    places[place] = value
            else:
                places[step.outputs[0]] = values
            for place in step.last_uses:
                places[place] = None
        return [places[i] for i in self.results]


@dataclass
class _Writer:
    """Writes the steps of a block."""

    places: list[Any] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def place(self, value: Any = None, *, constant: bool = False) -> int:
        self.places.append(value)
        if constant:
            self.constants.add(len(self.places) - 1)
        return len(self.places) - 1

    def write(self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[int]) -> list[int]:
        """Write a program whose arguments lie in these places; return the places of its results."""
        at: dict[Var, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            at[var] = self.place(as_numpy(value), constant=True)

        def find(atom: Var | Literal) -> int:
            if isinstance(atom, Literal):
                return self.place(np.asarray(atom.val, dtype=atom.aval.dtype), constant=True)  # pyright: ignore[reportAttributeAccessIssue]
            return at[atom]

        for equation in jaxpr.eqns:
            inputs = [find(atom) for atom in equation.invars]
            outputs = self.call(equation, inputs)
            at.update(zip(equation.outvars, outputs, strict=True))
        return [find(atom) for atom in jaxpr.outvars]

    def call(self, equation: JaxprEqn, inputs: list[int]) -> list[int]:
        name, params = equation.primitive.name, equation.params
        if name in INNER and way_of(params[INNER[name]]) is None:
            return self.write(*_open(params[INNER[name]]), inputs)
        if name == "cond" and inputs[0] in self.constants:  # the branch is known, as for a platform
            place = int(np.clip(self.places[inputs[0]], 0, len(params["branches"]) - 1))
            return self.write(*_open(params["branches"][place]), inputs[1:])
        if name == "select_n" and inputs[0] in self.constants:  # so is the choice, where it is the same everywhere
            choice = np.unique(self.places[inputs[0]])
            if len(choice) == 1:
                return [inputs[1 + int(choice[0])]]
        several = equation.primitive.multiple_results
        operation = _operation(equation, {k: self.places[i] for k, i in enumerate(inputs) if i in self.constants})
        if name != "while" and all(i in self.constants for i in inputs):
            with np.errstate(all="ignore"):
                values = operation(*[self.places[i] for i in inputs])
            return [self.place(value, constant=True) for value in (values if several else (values,))]
        outputs = [self.place() for _ in equation.outvars]
        self.steps.append(Step(operation, tuple(inputs), tuple(outputs), several))
        return outputs

    def block(self, arguments: Sequence[int], results: Sequence[int]) -> Block:
        """The steps that reach the results, each with the places that nobody reads after it."""
        needs, steps = set(results), []
        for step in reversed(self.steps):
            if not needs.intersection(step.outputs):
                continue
            last = {i for i in (*step.inputs, *step.outputs) if i not in needs and i not in self.constants}
            needs.update(step.inputs)
            steps.append(Step(step.call, step.inputs, step.outputs, step.several, tuple(last)))
        return Block(self.places, tuple(arguments), steps[::-1], tuple(results))


def _open(program: Any) -> tuple[Jaxpr, Sequence[Any]]:
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())


def block_of(program: ClosedJaxpr, constants: Mapping[int, np.ndarray] | None = None) -> Block:
    """The block of a traced program; raises `CannotInterpret` where it has an operation that is not known here.

    Args:
        program: the traced program.
        constants: arguments that are the same in every call, by place; what depends on these alone is computed once.
    """
    writer, constants = _Writer(), constants or {}
    arguments = [writer.place(constants.get(k), constant=k in constants) for k in range(len(program.jaxpr.invars))]
    return writer.block(arguments, writer.write(program.jaxpr, program.consts, arguments))


def _operation(equation: JaxprEqn, constants: Mapping[int, np.ndarray]) -> Operation:
    name = equation.primitive.name
    if name in INNER and (way := way_of(equation.params[INNER[name]])) is not None:
        return way(block_of(equation.params[INNER[name]], constants))
    if name in LOOPS:
        return LOOPS[name](equation.params, constants)
    if name not in MAKERS:
        raise CannotInterpret(name)
    shapes = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    if not name.startswith("random_") and any(is_key(shape) for shape in shapes):
        raise CannotInterpret(f"{name} of random keys")  # whose two words are an axis more than JAX says
    return MAKERS[name](equation.params, *shapes)


def _with_memory(block: Operation) -> Operation:
    """The block as an operation that keeps the arguments and results of its last two calls, if these are not large.

    Two, because a step that is rejected leads back to the place before.
    """
    calls: list[tuple[list[bytes], list[np.ndarray]]] = []

    def call(*values: np.ndarray) -> list[np.ndarray]:
        nonlocal calls
        # in one layout, as sums in another one round otherwise: results depend on nothing but the numbers
        arguments = [np.ascontiguousarray(value).reshape(np.shape(value)) for value in values]
        key = [argument.tobytes() for argument in arguments]
        for earlier, results in calls:
            if earlier == key:
                return results
        results = block(*arguments)
        if sum(np.size(result) for result in results) <= MOST_KEPT:
            calls = [*calls[-1:], (key, results)]  # another list, as another thread may be reading this one
        return results

    return call


# --- loops and branches ---


def _while(params: dict, constants: Mapping[int, np.ndarray]) -> Operation:
    of_test, of_both = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    test = block_of(params["cond_jaxpr"], {k: value for k, value in constants.items() if k < of_test})
    body = block_of(params["body_jaxpr"], {k - of_test: v for k, v in constants.items() if of_test <= k < of_both})

    def loop(*values: np.ndarray) -> list[np.ndarray]:
        carry = list(values[of_both:])
        while np.any(going := test(*values[:of_test], *carry)[0]):
            following = body(*values[of_test:of_both], *carry)
            if np.ndim(going):  # several loops side by side: those that have ended keep what they have
                following = [_where(going, new, old) for new, old in zip(following, carry, strict=True)]
            carry = following
        return carry

    return loop


def _where(going: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(going.reshape(going.shape + (1,) * (np.ndim(new) - going.ndim)), new, old)


def _scan(params: dict, constants: Mapping[int, np.ndarray]) -> Operation:
    fixed, carries, length = params["num_consts"], params["num_carry"], params["length"]
    body = block_of(params["jaxpr"], {k: value for k, value in constants.items() if k < fixed})
    shapes = params["jaxpr"].out_avals[carries:]
    turns = range(length - 1, -1, -1) if params["reverse"] else range(length)

    # where nothing is handed on, turns are independent of each other; threads pay where a turn is mostly arithmetic,
    # which it is not by entries
    numbers = sum(math.prod(aval.shape) for aval in (*shapes, *params["jaxpr"].in_avals[fixed:]))
    side_by_side = not carries and length > 1 and numbers in SIDE_BY_SIDE

    def loop(*values: np.ndarray) -> list[np.ndarray]:
        constants, carry, rows = values[:fixed], list(values[fixed : fixed + carries]), values[fixed + carries :]
        stacks = [np.empty((length, *aval.shape), aval.dtype) for aval in shapes]

        def play(turn: int, carry: list[np.ndarray]) -> list[np.ndarray]:
            results = body(*constants, *carry, *[row[turn] for row in rows])
            for array, value in zip(stacks, results[carries:], strict=True):
                array[turn] = value
            return results[:carries]

        def play_share(first: int) -> None:
            with np.errstate(all="ignore"):  # which is each thread's own
                for turn in turns[first::workers]:
                    play(turn, [])

        threads_pay = side_by_side and not any(isinstance(row, SparseTables) for row in rows)
        if threads_pay and (workers := min(os.cpu_count() or 1, length)) > 1:
            with ThreadPoolExecutor(workers) as threads:
                list(threads.map(play_share, range(workers)))
            return stacks
        for turn in turns:
            carry = play(turn, carry)
        return [*carry, *stacks]

    return loop


def _cond(params: dict, constants: Mapping[int, np.ndarray]) -> Operation:
    branches = [block_of(branch, {k - 1: v for k, v in constants.items() if k}) for branch in params["branches"]]

    def choose(index: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
        return branches[min(max(int(index), 0), len(branches) - 1)](*values)

    return choose


LOOPS: dict[str, Callable[[dict, Mapping[int, np.ndarray]], Operation]] = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
}


# --- functions of trees ---


def is_key(value: Any) -> bool:
    """Whether this is a key of random draws, or its shape."""
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def as_numpy(value: Any) -> np.ndarray:
    """An array for NumPy; a key of random draws as its two words."""
    if isinstance(value, SparseTables):
        return value
    return np.asarray(jax.random.key_data(value) if isinstance(value, jax.Array) and is_key(value) else value)


@dataclass(frozen=True)
class Program:
    """A function of trees of arrays, traced for arguments of certain shapes and played by NumPy."""

    block: Block
    shapes: PyTree  # of the results

    @staticmethod
    def of(function: Callable[..., PyTree], *arguments: PyTree) -> "Program":
        """Trace a function; only the shapes and types of the arguments matter."""
        trace, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        return Program(block_of(trace), shapes)

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Play the program."""
        flat, structure = jax.tree.flatten(self.shapes)
        with np.errstate(all="ignore"):
            results = self.block(*[as_numpy(leaf) for leaf in jax.tree.leaves(arguments)])
        arrays = [_checked(value, shape) for value, shape in zip(results, flat, strict=True)]
        return jax.tree.unflatten(structure, arrays)


def _checked(value: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
    if is_key(shape):
        return jax.random.wrap_key_data(value)  # pyright: ignore[reportReturnType]
    # sums of an array in another layout round otherwise, and a state that comes from a checkpoint has this one
    array = np.asarray(value, order="C")
    assert array.shape == shape.shape and array.dtype == shape.dtype, (array.shape, array.dtype, shape)
    return array
