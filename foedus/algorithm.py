"""The protocol: a federated algorithm is a handful of pure functions over explicit state, and nothing else.

    init(terms, w0, own)                        -> server state    `own` is data the server itself holds, or None
    join(terms, data, w0)                       -> client state
    phase(server)                               -> index into `kinds` of the round that comes next
    broadcast(terms, server, draws)             -> message to this round's clients; `draws`: a uniform number for each
    local(terms, client, message, data, key)    -> client state, reply       the only function that touches data
    aggregate(terms, server, replies, present)  -> server state
    converged(server), stuck(server)            -> stop, with or without success?
    parameters(terms, server)                   -> the model to return
    report(server)                              -> named scalars for the history of this round

`broadcast`, `local` and `aggregate` belong to a kind of round. Most algorithms have one kind, themselves; others list
several in `kinds`. States, messages and replies are `@state` dataclasses. A message field that differs from client to
client is an `Each`; all other fields are the same for everyone.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.errors import FoedusError
from foedus.terms import Data, Terms

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def state(cls: type[T]) -> type[T]:
    """A frozen dataclass registered as a pytree: a state, a message or a reply."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass whose fields are checked against the ranges given with `setting`."""
    inner = cls.__dict__.get("__post_init__")

    def check(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            _check_setting(type(self).__name__, f, value)
            ranged = f.metadata and (f.metadata["integer"] or any(v is not None for v in f.metadata["limits"].values()))
            if ranged and _is_number(value):  # a number among choices stays the one it is
                object.__setattr__(self, f.name, int(value) if f.metadata["integer"] else float(value))
        if inner is not None:
            inner(self)

    cls.__post_init__ = check  # pyright: ignore[reportAttributeAccessIssue]
    return dataclass(frozen=True, kw_only=True)(cls)


def setting(
    default: Any,
    doc: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: tuple[Any, ...] = (),
    integer: bool = False,
    also: tuple[str, Callable[[Any], bool]] | None = None,
    travels: bool = False,
) -> Any:
    """One setting: its default, what it is (with the equation it enters), and its range or choices.

    `also` names a further form that a value may have, and says whether one has it. A setting that `travels` reaches the
    compiled functions as data beside the clients' own, not as a constant; two algorithms that differ only in such
    settings compare equal and share one compiled program.
    """
    limits = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    meta = {"doc": doc, "choices": choices, "integer": integer, "limits": limits, "also": also}
    return field(default=default, metadata=meta, compare=not travels)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_setting(owner: str, f: dataclasses.Field[Any], value: Any) -> None:
    meta = f.metadata
    choices = meta.get("choices", ())
    if not meta or any(type(value) is type(c) and value == c for c in choices) or (value is None and f.default is None):
        return
    if meta.get("also") is not None and meta["also"][1](value):
        return
    limits = {k: v for k, v in meta["limits"].items() if v is not None}
    number = _is_number(value)
    if not limits and not meta["choices"] and not meta["integer"] and meta.get("also") is None:
        return
    if number and (limits or meta["integer"]):
        assert isinstance(value, int | float | np.integer | np.floating)
        whole = not meta["integer"] or float(value).is_integer()
        tests = {"gt": value > limits.get("gt", -math.inf), "ge": value >= limits.get("ge", -math.inf)}
        tests |= {"lt": value < limits.get("lt", math.inf), "le": value <= limits.get("le", math.inf)}
        if whole and not math.isnan(value) and all(tests[k] for k in limits):
            return
    words = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    expected = [f"{words[k]} {v:g}" for k, v in limits.items()]
    kind = "a whole number " if meta["integer"] else "a number " if limits else ""
    options = [kind + " and ".join(expected)] if kind else []
    options += [repr(c) for c in choices] + (["None"] if f.default is None and None not in choices else [])
    options += [meta["also"][0]] if meta.get("also") is not None else []
    raise FoedusError(f"The {f.name!r} setting of {owner} must be {' or '.join(options)}. Got {value!r} instead.")


def select(condition: Array, yes: T, no: T) -> T:
    """A choice between two states of the same shape."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


@state
class Each:
    """Marks a message field with a leading client axis: client i receives row i of `values`."""

    values: Any


@state
class Present:
    """Who answered a round: row j of the replies is client `index[j]`'s, and counts only where `here[j]`."""

    index: Array
    here: Array

    @property
    def count(self) -> Array:
        return jnp.sum(self.here)

    def mean(self, replies: Any) -> Any:
        """The mean over the clients that answered."""
        share = self.here / jnp.maximum(self.count, 1)
        # a weighted sum, not a product with a mask: what an absent client's row holds must not matter
        return jax.tree.map(lambda r: jnp.tensordot(share, self._clean(r), axes=(0, 0)), replies)

    def max(self, replies: Array) -> Array:
        return jnp.max(jnp.where(self.here, replies, -jnp.inf))

    def remember(self, table: Any, replies: Any) -> Any:
        """Write the answers into a table with a row per client; a silent client's row stays."""
        n = jax.tree.leaves(table)[0].shape[0]
        index = jnp.where(self.here, self.index, n)
        return jax.tree.map(lambda old, new: old.at[index].set(new, mode="drop"), table, replies)

    def _clean(self, rows: Array) -> Array:
        return jnp.where(self.here.reshape((-1,) + (1,) * (rows.ndim - 1)), rows, 0)


class Kind(Protocol):
    """One kind of round."""

    def broadcast(self, terms: Terms, server: Any, draws: Array, /) -> Any: ...

    def local(self, terms: Terms, client: Any, message: Any, data: Data, key: Array, /) -> tuple[Any, Any]: ...

    def aggregate(self, terms: Terms, server: Any, replies: Any, present: Present, /) -> Any: ...


class Algorithm:
    """What every algorithm answers beside its functions; the defaults fit an algorithm with one kind of round."""

    handles: ClassVar[frozenset[str]] = frozenset()  # of "constraints", "regularizer"
    default_rounds: ClassVar[int] = 1000
    sums: ClassVar[bool] = False  # whether `aggregate` needs no more of the replies than their mean and their number
    pools: ClassVar[bool] = False  # whether it works on all data in one place, for comparison
    keeps_lost: ClassVar[bool] = False  # whether a client whose reply is lost keeps its new state: it has been released

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (self,)  # pyright: ignore[reportReturnType]

    def check(self, terms: Terms) -> None:
        """Raise, in one sentence, where the algorithm does not fit the problem."""
        if terms.constraints and "constraints" not in self.handles:
            raise FoedusError(f"{self.name} does not handle constraints; use ProxAL.")
        if type(terms.regularizer).__name__ != "Zero" and "regularizer" not in self.handles:
            held = type(terms.regularizer).__name__
            raise FoedusError(f"{self.name} does not handle the regulariser {held}; use InexactADMM or ProxAL.")

    def init(self, terms: Terms, w0: Array, own: Data | None) -> Any:
        raise NotImplementedError

    def join(self, terms: Terms, data: Data, w0: Array) -> Any:
        return ()

    def condense(self, terms: Terms, data: Data) -> Data:
        """One client's data with what is the same in all rounds; only speed may depend on it."""
        return data

    def phase(self, server: Any) -> Array | int:
        return 0

    def converged(self, server: Any) -> Array | bool:
        return False

    def stuck(self, server: Any) -> Array | bool:
        """Whether going on is pointless: the run ends without having converged."""
        return False

    def resolve(self, terms: Terms) -> "Algorithm":
        """This algorithm with every choice that depends on the problem made."""
        return self

    def restate(self, problem: Any) -> Any:
        """The problem in the form that the algorithm is run on."""
        return problem

    def regain(self, problem: Any, multipliers: dict[str, Any]) -> dict[str, Any]:
        """The multipliers of the problem as it was stated, from those of its restatement."""
        return multipliers

    def multipliers(self, terms: Terms, server: Any, clients: Any) -> dict[str, Array]:
        """The multipliers of the constraints by scope, from the final states; clients' on a leading axis."""
        if "constraints" not in self.handles:
            return {}
        local = jax.vmap(lambda client: self.client_multipliers(terms, client))(clients)
        return {"local": local} | self.server_multipliers(terms, server)

    def client_multipliers(self, terms: Terms, client: Any) -> Array:
        """The multipliers of one client's local rows, from its final state."""
        return jnp.zeros(terms.rows[0])

    def server_multipliers(self, terms: Terms, server: Any) -> dict[str, Array]:
        """The multipliers of the global and the coupled rows, from the server's final state."""
        return {}

    def observe(self, clients: Any) -> dict[str, Array]:
        """What the simulator notes of the clients' states after a round; none of it is sent."""
        return {}

    def stress(self, problem: Any, w: Any) -> Any:
        """The worst case of the model w that the algorithm guards against, or None."""
        return None

    def parameters(self, terms: Terms, server: Any) -> Array:
        return server.w

    def report(self, server: Any) -> dict[str, Array]:
        return {}

    def reason(self, server: Any, converged: bool, names: list[str]) -> str:
        """A sentence on why the run ended, from the final server state; `names` are the clients'."""
        return "converged" if converged else "stopped at the limit of rounds"
