"""Who takes part in a round. Every random draw depends on (seed, round, client) alone, so any party can repeat it."""

import dataclasses
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.protocol.buffered import LATE

# One stream of random numbers for each use, so that no two uses of one seed share a number: the clients' local work,
# the choice of clients, the loss of replies, the server's draws.
LOCAL, SELECT, LOSE, SERVER = range(4)
BLOCK = 256  # rounds whose draws `attendance` repeats at a time
LONGEST_PLAN = 100_000  # entries of a plan that are written into a run's settings; a longer one is left out


def round_key(seed_key: Array, stream: int, round: Array) -> Array:
    """Return the key of a stream for one round."""
    return jax.random.fold_in(jax.random.fold_in(seed_key, stream), round)


def client_key(key: Array, uid: Array) -> Array:
    """Return a client's own key, which depends on its name and on no other client."""
    return jax.random.fold_in(jax.random.fold_in(key, uid[0]), uid[1])


def client_uniforms(key: Array, uids: Array) -> Array:
    """Draw one uniform number per client, each from the client's own key. (n,)"""
    return jax.vmap(lambda uid: jax.random.uniform(client_key(key, uid)))(uids)


def _check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise FoedusError(f"The 'dropout' of replies must be in [0, 1). Got {dropout!r} instead.")


@jax.tree_util.register_static
@dataclass(frozen=True)
class Fraction:
    """A random fraction of the clients in each round: ⌈fraction·n⌉ of n, drawn without replacement.

    Args:
        fraction: the fraction of the clients, in (0, 1].
        dropout: the probability with which a reply is lost, in [0, 1).
        delays: seconds that each client takes for an answer, by a clock that the simulation plays; its time after each
            round is in `run.history["clock"]`. Rounds then wait as over real sites with `fd.Flare`.
        quorum: with delays, the share of the clients whose answers a round waits for; all of them when left out.
        late: with a quorum, what becomes of an answer that comes after its round, as in `fd.Flare`.

    Example:
        >>> import foedus as fd
        >>> fd.Fraction(0.3).size(10)
        3
    """

    fraction: float = 1.0
    dropout: float = 0.0
    delays: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)
    quorum: float | None = dataclasses.field(default=None, kw_only=True)
    late: str = dataclasses.field(default="drop", kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise FoedusError(f"The 'participation' fraction must be in (0, 1]. Got {self.fraction!r} instead.")
        _check_dropout(self.dropout)
        object.__setattr__(self, "delays", tuple(float(seconds) for seconds in self.delays))
        if any(not 0 < seconds < math.inf for seconds in self.delays):
            raise FoedusError(f"The 'delays' of participation must be seconds > 0. Got {self.delays!r} instead.")
        if self.quorum is not None and not 0 < self.quorum <= 1:
            raise FoedusError(f"The 'quorum' of participation must be in (0, 1]. Got {self.quorum!r} instead.")
        if self.late not in LATE:
            words = "'drop', 'next' or 'weighted'"
            raise FoedusError(f"The 'late' of participation must be {words}. Got {self.late!r} instead.")
        if not self.delays and (self.quorum is not None or self.late != "drop"):
            raise FoedusError("The 'quorum' and 'late' of participation are for clients with 'delays'; give those too.")

    def check(self, n: int) -> None:
        if self.delays and len(self.delays) != n:
            raise FoedusError(f"The 'delays' are for {len(self.delays)} clients, but the problem has {n}.")

    def size(self, n: int) -> int:
        """Return how many clients a round asks at the most."""
        return min(n, math.ceil(self.fraction * n - 1e-9))

    def choose(self, seed_key: Array, round: Array, uids: Array) -> Array:
        """Return the clients asked in this round; the index n stands for nobody. (size,)"""
        scores = client_uniforms(round_key(seed_key, SELECT, round), uids)
        return jnp.sort(jax.lax.top_k(scores, self.size(uids.shape[0]))[1])


@jax.tree_util.register_static
@dataclass(frozen=True)
class Coverage(Fraction):
    """A random fraction, with every client asked at least once in each `every` rounds (EPM Setup VI.1).

    A random order of the clients is drawn for each block of `every` rounds. Each round asks the next ones in that
    order; once all have been asked, the rest of the block draws at random.

    Args:
        fraction: the fraction of the clients, in (0, 1].
        dropout: the probability with which a reply is lost, in [0, 1).
        every: the number of rounds in a block.

    Example:
        >>> import foedus as fd
        >>> fd.Coverage(0.5, every=2).size(10)
        5
    """

    every: int = 2

    def check(self, n: int) -> None:
        super().check(n)
        if not isinstance(self.every, int | np.integer) or self.every < 1:
            raise FoedusError(f"The 'every' of Coverage must be a whole number >= 1. Got {self.every!r} instead.")
        if self.size(n) * self.every < n:
            raise FoedusError(
                f"Coverage asks {self.size(n)} of {n} clients a round, which cannot reach all of them in "
                f"{self.every} rounds; raise the fraction or 'every'."
            )

    def choose(self, seed_key: Array, round: Array, uids: Array) -> Array:
        n, k = uids.shape[0], self.size(uids.shape[0])
        block, place = round // self.every, round % self.every
        order = jnp.argsort(client_uniforms(round_key(seed_key, SELECT, block), uids))
        # where fewer than k clients are left in the order, the slice starts earlier and so has k different ones
        start = jnp.minimum(place * k, n - k)
        extra = jnp.argsort(client_uniforms(round_key(seed_key, SELECT, -1 - round), uids))[:k]
        hand = jax.lax.dynamic_slice(order, (start,), (k,))
        return jnp.sort(jnp.where(place * k >= n, extra, hand))


@jax.tree_util.register_pytree_node_class
class Schedule:
    """The user's own plan of who is asked in which round.

    Args:
        plan: booleans, (rounds, clients): row r marks the clients of round r; after the last row the first comes again.
        dropout: the probability with which a reply is lost, in [0, 1).

    Example:
        >>> import foedus as fd
        >>> fd.Schedule([[True, False], [True, True]])
        Schedule(2 rounds, 2 clients, dropout=0)
    """

    def __init__(self, plan: ArrayLike, dropout: float = 0.0):
        plan = np.asarray(plan, dtype=bool)
        if plan.ndim != 2 or plan.shape[0] == 0:
            raise FoedusError(f"A Schedule needs an array (rounds, clients). Got shape {plan.shape} instead.")
        _check_dropout(dropout)
        n = plan.shape[1]
        width = max(1, int(plan.sum(axis=1).max()))
        self.dropout = dropout
        table = np.full((plan.shape[0], width), n)
        for r, row in enumerate(plan):
            clients = np.flatnonzero(row)
            table[r, : len(clients)] = clients
        self.clients, self.table = n, jnp.asarray(table)

    def check(self, n: int) -> None:
        if n != self.clients:
            raise FoedusError(f"The Schedule is for {self.clients} clients, but the problem has {n}.")

    def size(self, n: int) -> int:
        return self.table.shape[1]

    def choose(self, seed_key: Array, round: Array, uids: Array) -> Array:
        return self.table[round % self.table.shape[0]]

    def only(self, clients: list[int]) -> "Schedule":
        """Return the plan for some of the clients, who are numbered anew."""
        table = np.asarray(self.table)
        return Schedule(np.stack([np.isin(clients, row) for row in table]), self.dropout)

    def __repr__(self) -> str:
        return f"Schedule({self.table.shape[0]} rounds, {self.clients} clients, dropout={self.dropout:g})"

    def tree_flatten(self):
        return (self.table,), (self.clients, self.dropout)

    @classmethod
    def tree_unflatten(cls, aux, children):
        schedule = object.__new__(cls)
        schedule.clients, schedule.dropout = aux
        (schedule.table,) = children
        return schedule


Participation = Fraction | Schedule


def as_participation(value: object) -> Participation:
    """Return the participation that a number, a plan, or one of the classes here stands for."""
    if isinstance(value, Fraction | Schedule):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Fraction(float(value))
    if isinstance(value, np.ndarray | list | tuple):
        return Schedule(value)
    raise FoedusError(
        "The 'participation' argument of solve must be a number in (0, 1], a Fraction, a Coverage, or a boolean array "
        f"(rounds, clients). Got {value!r} instead."
    )


def describe_participation(who: Participation, by_name: bool) -> Json:
    """Return the settings of `who` as JSON can hold them, and whether draws depend on clients' names or places."""
    key_source = {"keyed_by": "names" if by_name else "places"}
    if isinstance(who, Schedule):
        table = np.asarray(who.table)
        rows = [row[row < who.clients].tolist() for row in table] if table.size <= LONGEST_PLAN else None
        return {"name": "Schedule", "clients": who.clients, "plan": rows, "dropout": who.dropout} | key_source
    fields = {f.name: getattr(who, f.name) for f in dataclasses.fields(who) if getattr(who, f.name) not in ((), None)}
    if not who.delays:
        del fields["late"]
    return {"name": type(who).__name__} | fields | key_source


def participation_from(record: Json) -> Participation | None:
    """Return what `describe_participation` described; None where the plan was too long to be written down."""
    settings = {k: v for k, v in record.items() if k not in ("name", "keyed_by")}
    if record.get("name") in ("Fraction", "Coverage"):
        return (Fraction if record["name"] == "Fraction" else Coverage)(**settings)
    if record.get("name") != "Schedule" or settings.get("plan") is None:
        return None
    plan = np.zeros((len(settings["plan"]), settings["clients"]), dtype=bool)
    for row, clients in zip(plan, settings["plan"], strict=True):
        row[clients] = True
    return Schedule(plan, settings["dropout"])


@jax.jit
def _attendance(who: Participation, key: Array, uids: Array, rounds: Array) -> tuple[Array, Array]:
    def one(round: Array) -> tuple[Array, Array]:
        is_asked = jnp.zeros(len(uids), bool).at[who.choose(key, round, uids)].set(True, mode="drop")
        return is_asked, is_asked & (client_uniforms(round_key(key, LOSE, round), uids) >= who.dropout)

    return jax.lax.map(one, rounds, batch_size=BLOCK)


@float64()
def attendance(who: Participation, seed: int, uids: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return who was asked and who answered in each round of a simulated run, by repeating its draws.

    Both are booleans, (rounds, clients).
    """
    # rounded up to whole blocks, so that runs of different lengths share a compiled program
    round_numbers = jnp.arange(BLOCK * max(1, math.ceil(rounds / BLOCK)))
    is_asked, has_answered = _attendance(who, jax.random.key(seed), jnp.asarray(uids), round_numbers)
    return np.asarray(is_asked)[:rounds], np.asarray(has_answered)[:rounds]
