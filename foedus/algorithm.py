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

from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.errors import FoedusError
from foedus.pytrees import state
from foedus.terms import Data, Terms

T = TypeVar("T")


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
