"""How often a round reads the data, and what is therefore worth computing once or taking in blocks.

An algorithm does not state how often its `local` reads X: the count comes from the traced program. Where a round of a
quadratic loss reads X several times, XᵀX and Xᵀy are computed once. Where the data of all clients do not fit into a
core's cache, clients are worked on a few at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

from foedus.base.pytrees import nbytes
from foedus.numerics.interpreter.marks import MARK
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Fit
from foedus.runtime.traffic import exchange_shapes

BLOCK_BYTES = 2**17  # of one block of clients' data: it stays in a core's cache while they make their local steps
SMALL = 4  # blocks: data of no more than these are worked on all at once
OFTEN = 3  # gradients a round from which on moments, or blocks that stay in the cache, are worth their price
UNKNOWN_TRIPS = 8  # the turns that are assumed of a loop whose length is known only when it runs
READS_PER_GRADIENT = 2  # of X: once for the predictions, once for the gradient
LAYOUT = ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose")
"""Operations that do not compute: their result is the same array in another form, so they are no reading of it."""


def condense_data(fit: Fit, data: Data) -> Data:
    """Return the stacked data with what every round would compute alike: moments, and the algorithm's own arrays."""
    algorithm, terms = fit.algorithm, fit.problem.terms
    if terms.has_moments(data["x"].shape[1:] if "x" in data else ()):
        one = jax.eval_shape(lambda d: terms.with_moments(jax.tree.map(lambda a: a[0], d)), data)
        assert one.moments is not None
        gram = one.moments.gram
        if max(reads_of_kinds(fit, one, lambda leaf: leaf is gram, in_blocks=False)) >= OFTEN:
            data = _with_moments(terms, data)
    return jax.vmap(fit.condense)(data) if algorithm is not None else data


@partial(jax.jit, static_argnames=("terms",))
def _with_moments(terms: Terms, data: Data) -> Data:
    return jax.vmap(terms.with_moments)(data)


def reads_of_kinds(
    fit: Fit, data: Data, watch: Callable[[jax.ShapeDtypeStruct], bool], *, in_blocks: bool
) -> list[int]:
    """How often a round of each kind reads the arrays that are to be watched, of one client's data given as shapes."""
    algorithm, terms = fit.algorithm, fit.problem.terms
    w0, key = jax.ShapeDtypeStruct((terms.dim,), float), jax.eval_shape(lambda: jax.random.key(0))
    server = jax.eval_shape(lambda w, own: algorithm.init(terms, w, own), w0, fit.problem.server)
    client = jax.eval_shape(lambda d, w: algorithm.join(terms, d, w), data, w0)
    inside = {id(leaf) for leaf in jax.tree.leaves(data) if watch(leaf)}
    reads = []
    for kind in algorithm.kinds:
        message, after, reply = exchange_shapes(kind, terms, server, client, data)
        if in_blocks and any(leaf.size == 0 for leaf in jax.tree.leaves((after, reply, data))):
            reads.append(0)  # JAX cannot cut arrays without entries into blocks
            continue
        args = (client, message, data, key)
        program = jax.make_jaxpr(lambda c, m, d, k, kind=kind: kind.local(terms, c, m, d, k))(*args)
        reads.append(reads_in(program.jaxpr, [id(leaf) in inside for leaf in jax.tree.leaves(args)]))
    return reads


@jax.tree_util.register_static
@dataclass(frozen=True)
class Blocks:
    """How many clients a round works on at a time, by kind of round and bin; without an entry, on all at once."""

    sizes: tuple[tuple[int | None, ...], ...] = ()


def block_sizes(fit: Fit, bins: list[Data], clients: int | None = None) -> Blocks:
    """The blocks in which the clients' work is done, for data stacked in bins; `clients` take part where not all do.

    Blocks pay where a round reads data several times that no cache holds.
    """
    kinds = len(fit.algorithm.kinds)
    columns: list[list[int | None]] = []
    for data in bins:
        count = data["weight"].shape[0]
        n = count if clients is None else clients
        total = nbytes(data if data.moments is None else data.moments) * n // count
        if total <= SMALL * BLOCK_BYTES or jax.process_count() > 1:
            columns.append([None] * kinds)
            continue
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), data)
        largest = max(leaf.size for leaf in jax.tree.leaves(one))
        gram = None if one.moments is None else one.moments.gram
        reads = reads_of_kinds(
            fit, one, lambda leaf, top=largest, g=gram: leaf is g or leaf.size == top, in_blocks=True
        )
        often = OFTEN * (READS_PER_GRADIENT if gram is None else 1)
        size = _near_size(n, max(1, n * BLOCK_BYTES // total))
        columns.append([size if many >= often and size < n else None for many in reads])
    return Blocks(tuple(zip(*columns, strict=True)) if any(any(column) for column in columns) else ())


def _near_size(n: int, fits: int) -> int:
    """A size near the one that fits which divides n: a remainder would be compiled as a second program."""
    return max((b for b in range(max(1, fits // 4), min(n, 2 * fits) + 1) if n % b == 0), default=fits)


def reads_in(jaxpr: Jaxpr, marks: Sequence[bool]) -> int:
    """Return how often the program reads its marked inputs; what a loop reads counts once for each turn."""
    # the marked inputs, and results that are the same array in another form
    aliases: set[Var] = {var for var, mark in zip(jaxpr.invars, marks, strict=True) if mark}
    reads = 0
    for equation in jaxpr.eqns:
        used = [isinstance(var, Var) and var in aliases for var in equation.invars]
        if not any(used):
            continue
        name, inner = equation.primitive.name, _programs(equation.params)
        if name == "scan":
            reads += equation.params["length"] * reads_in(inner[0], used)
        elif name == "while":
            # the inputs of a while loop: constants of its test, constants of its body, then what it carries
            test, body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
            rest = used[test + body :]
            reads += UNKNOWN_TRIPS * reads_in(equation.params["body_jaxpr"].jaxpr, used[test : test + body] + rest)
        elif name == "cond":
            # the first input says which branch is taken; only one is
            reads += max(reads_in(branch.jaxpr, used[1:]) for branch in equation.params["branches"])
        elif name in LAYOUT:
            aliases |= set(equation.outvars)
        elif name == MARK:
            aliases |= {out for out, is_alias in zip(equation.outvars, used, strict=True) if is_alias}
        elif len(inner) == 1 and len(inner[0].invars) == len(used):
            reads += reads_in(inner[0], used)
        else:
            reads += 1
    return reads


def _programs(params: dict[str, object]) -> list[Jaxpr]:
    """Return the programs inside an operation, such as the body of a loop."""
    programs = []
    for value in params.values():
        if isinstance(value, ClosedJaxpr):
            programs.append(value.jaxpr)
        elif isinstance(value, Jaxpr):
            programs.append(value)
    return programs
