"""The protocol: a federated algorithm is a handful of pure functions over explicit state, and nothing else.

    init(terms, w0, own)                        -> server state    `own` is data the server itself holds, or None
    broadcast(terms, server, draws)             -> message to this round's clients; `draws`: a uniform number for each
    local(terms, client, message, data, key)    -> client state, reply       the only function that touches data
    aggregate(terms, server, replies, present)  -> server state

These four an algorithm must have. The others have defaults in `Algorithm`. States, messages and replies are `@state`
dataclasses (`base/pytrees.py`), settings a `@settings` dataclass (`base/settings.py`). A message field that differs
from client to client is an `Each`; all other fields are the same for everyone.

What only some algorithms answer is declared in small classes of its own: multipliers and tolerances in
`foedus.protocol.constrained`, noise in `foedus.privacy.releasing`, worst cases in `foedus.robust.stress`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base import pytrees
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, T
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms

RUNNING, CONVERGED, STUCK = 0, 1, 2
"""What `ended` answers: the run goes on, has reached its goal, or cannot come nearer to it."""


@pytrees.state
class Each:
    """Marks a message field with a leading client axis: client i receives row i of `values`."""

    values: PyTree


@pytrees.state
class Present:
    """Who answered a round: row j of the replies is client `index[j]`'s, and counts only where `here[j]`."""

    index: Array
    here: Array

    @property
    def count(self) -> Array:
        """How many clients answered."""
        return jnp.sum(self.here)

    def mean(self, replies: T) -> T:
        """The mean over the clients that answered."""
        share = self.here / jnp.maximum(self.count, 1)
        # a weighted sum, not a product with a mask: what an absent client's row holds must not matter
        return jax.tree.map(lambda r: jnp.tensordot(share, self._without_absent(r), axes=(0, 0)), replies)

    def max(self, replies: Array) -> Array:
        """The largest number among the clients that answered."""
        return jnp.max(jnp.where(self.here, replies, -jnp.inf))

    def remember(self, table: T, replies: T) -> T:
        """Write the answers into a table with a row per client; a silent client's row stays."""
        n = jax.tree.leaves(table)[0].shape[0]
        index = jnp.where(self.here, self.index, n)
        return jax.tree.map(lambda old, new: old.at[index].set(new, mode="drop"), table, replies)

    def _without_absent(self, rows: Array) -> Array:
        return jnp.where(self.here.reshape((-1,) + (1,) * (rows.ndim - 1)), rows, 0)


class Kind(Protocol):
    """One kind of round. Most algorithms have one kind, which is themselves."""

    def broadcast(self, terms: Terms, server: PyTree, draws: Array, /) -> PyTree: ...

    def local(
        self, terms: Terms, client: PyTree, message: PyTree, data: Data, key: Array, /
    ) -> tuple[PyTree, PyTree]: ...

    def aggregate(self, terms: Terms, server: PyTree, replies: PyTree, present: Present, /) -> PyTree: ...


@dataclass(frozen=True)
class Fit:
    """An algorithm made ready for one problem."""

    algorithm: "Algorithm"  # with every choice that depends on the problem made
    problem: Problem  # in the form that the algorithm is run on
    max_rounds: int = 1000  # rounds to play where nobody says how many
    condense: Callable[[Data], Data] = lambda data: data  # a client's data with what is the same in all rounds
    note: str = ""  # why this algorithm is run, where it was chosen
    few_rounds: bool = False  # whether some tens of rounds will do: small data are then not worth compiling


class Algorithm:
    """A federated algorithm: the four functions above, and eight answers that have defaults."""

    def __init__(self, **settings: object):
        if settings:
            name = type(self).__name__
            raise FoedusError(f"{name} takes no settings ({', '.join(settings)}): write @settings above class {name}.")

    def init(self, terms: Terms, w0: Array, own: Data | None) -> PyTree:
        """The server's state before the first round."""
        raise lacking(self, "init")

    def broadcast(self, terms: Terms, server: PyTree, draws: Array, /) -> PyTree:
        """The message to the clients of this round."""
        raise lacking(self, "broadcast")

    def local(self, terms: Terms, client: PyTree, message: PyTree, data: Data, key: Array, /) -> tuple[PyTree, PyTree]:
        """A client's next state and its reply; `key` is for random draws."""
        raise lacking(self, "local")

    def aggregate(self, terms: Terms, server: PyTree, replies: PyTree, present: Present, /) -> PyTree:
        """The server's next state, from the replies on a leading axis and who sent them."""
        raise lacking(self, "aggregate")

    def fit(self, problem: Problem) -> Fit:
        """The algorithm made ready for a problem; where it does not fit, it raises FoedusError with one sentence."""
        refuse(self, problem.terms)
        return Fit(self, problem)

    def join(self, terms: Terms, data: Data, w0: Array) -> PyTree:
        """A client's state before its first round."""
        return ()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of round; `phase` says which one comes next."""
        return (self,)

    def phase(self, server: PyTree) -> Array | int:
        """The index in `kinds` of the next round."""
        return 0

    def parameters(self, terms: Terms, server: PyTree) -> Array:
        """The model to return, a vector of `terms.dim` numbers."""
        return server.w

    def ended(self, server: PyTree) -> Array | int:
        """RUNNING, CONVERGED (True will do) or STUCK: whether the run ends here, and how."""
        return RUNNING

    def report(self, server: PyTree) -> Mapping[str, Array]:
        """Named numbers for the history of this round."""
        return {}

    def reason(self, server: PyTree, converged: bool, names: list[str]) -> str:
        """A sentence on why the run ended, from the final server state; `names` are the clients'."""
        return "converged" if converged else "stopped at the limit of rounds"


class OtherForm(Algorithm):
    """An algorithm that another one has been turned into, and that goes by its name."""

    plain: Algorithm


def name_of(algorithm: Algorithm) -> str:
    """What users call the algorithm: its class, or that of the one it is another form of."""
    return type(algorithm.plain if isinstance(algorithm, OtherForm) else algorithm).__name__


def refuse(algorithm: Algorithm, terms: Terms, *, constraints: bool = True, regularizer: bool = True) -> None:
    """Raise where the problem has constraints, or a regulariser, that the algorithm would pass over."""
    if constraints and terms.constraints:
        raise FoedusError(
            f"{name_of(algorithm)} does not handle constraints; use InteriorPoint, or leave the choice to auto."
        )
    if regularizer and not terms.regularizer.vanishes:
        h = terms.regularizer.name
        raise FoedusError(
            f"{name_of(algorithm)} does not handle the regulariser {h}; leave the choice to auto, or use InexactADMM."
        )


def lacking(algorithm: Algorithm, function: str) -> FoedusError:
    """The sentence for an algorithm without one of the four functions."""
    return FoedusError(
        f"{name_of(algorithm)} has no {function!r}; foedus.protocol.algorithm lists the functions it needs."
    )
