"""The simulator: all clients in one compiled process, rounds run in chunks between which Python can look.

Clients are stacked on a leading axis (on a few, where their sizes differ much) and `local` is `vmap`ped over those that
take part; the kind of round is switched outside the `vmap`. A chunk is a `while_loop` that ends at its limit or when
the algorithm has converged.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Algorithm, Kind, Present
from foedus.certificate import Certificate
from foedus.problem import Problem
from foedus.pytrees import state, strong
from foedus.runtime import wire
from foedus.runtime.bins import divided, joined
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.participation import (
    LOCAL,
    LOSE,
    SERVER,
    Participation,
    Schedule,
    client_key,
    client_uniforms,
    round_key,
)
from foedus.terms import GRAM, Data, Terms

CAPACITY = 1024  # the rounds whose records one chunk can hold
CHUNK_SECONDS = 0.25  # how long Python waits for a chunk, about
BLOCK_BYTES = 2**17  # the data of one block of clients stays in a core's cache while they make their local steps


@state
class Carry:
    """What a run is between two rounds: enough to go on from, to the bit."""

    server: Any
    clients: Any
    round: Array
    w: Array  # the model of the last round in which it was finite
    done: Array
    finite: Array


@state
class Fixed:
    """What does not change during a run."""

    data: Any  # Data, stacked; or bins of clients, and then `Carry.clients` has their states bin by bin
    uids: Array
    key: Array
    participation: Participation


def play(algorithm: Algorithm, terms: Terms, kind: Kind, server: Any, clients: Any, round: Array, fixed: Fixed):
    """One round of one kind. Returns the states, how many clients were asked and how many answered."""
    n, who = terms.clients, fixed.participation
    message = kind.broadcast(terms, server, client_uniforms(round_key(fixed.key, SERVER, round), fixed.uids))
    everyone = who.size(n) == n and not isinstance(who, Schedule)
    if everyone:
        index, here = jnp.arange(n), jnp.ones(n, dtype=bool)
        of, chosen = None, (clients, fixed.data, fixed.uids)
    else:
        index = who.choose(fixed.key, round, fixed.uids)
        here = index < n
        of = jnp.minimum(index, n - 1)
        chosen = jax.tree.map(lambda a: a[of], (clients, fixed.data, fixed.uids))
    asked, sent = jnp.sum(here), here
    if who.dropout > 0:
        draws = client_uniforms(round_key(fixed.key, LOSE, round), chosen[2])
        here = here & (draws >= who.dropout)

    local_key = round_key(fixed.key, LOCAL, round)

    def answers(states: Any, data: Data, uids: Array, of: Array | None) -> tuple[Any, Any]:
        leaves, axes, structure = wire.leaves_for(message, of)

        def one(client, data, uid, *leaves):
            return kind.local(terms, client, wire.assemble(list(leaves), structure), data, client_key(local_key, uid))

        return over_clients(one, (states, data, uids, *leaves), (0, 0, 0, *axes), block_of(kind, data))

    if isinstance(fixed.data, tuple):
        pairs = [answers(c, b.data, b.uids, b.index) for c, b in zip(clients, fixed.data, strict=True)]
        mine, replies = tuple(state for state, _ in pairs), joined([reply for _, reply in pairs], fixed.data)
    else:
        states, data, uids = chosen
        mine, replies = answers(states, data, uids, of)
    if everyone and who.dropout == 0:
        clients = mine
    else:
        acted = sent if algorithm.keeps_lost else here
        clients = Present(index, acted).remember(clients, mine) if jax.tree.leaves(clients) else clients
    following = kind.aggregate(terms, server, replies, Present(index, here))
    if who.dropout > 0 or not everyone:  # a round that nobody answered changes nothing
        following = jax.tree.map(lambda new, old: jnp.where(jnp.any(here), new, old), following, server)
    return following, clients, asked, jnp.sum(here)


def block_of(kind: Kind, data: Data) -> int:
    """How many clients to work on at a time: all, unless `local` passes over data that no cache holds several times.

    A block size that divides the number of clients leaves no remainder to compile for.
    """
    n = data["weight"].shape[0]
    used = data.get(GRAM, data)
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(used))
    if getattr(kind, "passes", 1) < 3 or total <= 4 * BLOCK_BYTES or jax.process_count() > 1:
        return n
    fits = max(1, n * BLOCK_BYTES // total)
    return max((b for b in range(max(1, fits // 4), min(n, 2 * fits) + 1) if n % b == 0), default=fits)


def over_clients(one: Callable[..., Any], args: tuple[Any, ...], axes: tuple[int | None, ...], block: int) -> Any:
    """`vmap` over the client axis of `args`, block by block."""
    n = jax.tree.leaves(args[1])[0].shape[0]
    if block >= n:
        return jax.vmap(one, in_axes=axes)(*args)
    split = [i for i, axis in enumerate(axes) if axis == 0]

    def call(parts: list[Any]) -> Any:
        whole = list(args)
        for i, part in zip(split, parts, strict=True):
            whole[i] = part
        return one(*whole)

    return jax.lax.map(call, [args[i] for i in split], batch_size=block)


@partial(jax.jit, static_argnames=("algorithm", "terms"), donate_argnames=("carry",))
def chunk(algorithm: Algorithm, terms: Terms, carry: Carry, fixed: Fixed, limit: Array):
    """Run rounds until `limit` of them are done or the run is over. Returns the carry, the records and their number."""
    kinds = algorithm.kinds

    def step(server, clients, round):
        phase = jnp.asarray(algorithm.phase(server))
        plays = [partial(play, algorithm, terms, kind) for kind in kinds]
        if len(plays) == 1:
            server, clients, asked, answered = plays[0](server, clients, round, fixed)
        else:
            server, clients, asked, answered = jax.lax.switch(phase, plays, server, clients, round, fixed)
        row = {"phase": phase, "asked": asked, "answered": answered} | algorithm.report(server)
        watched = type(algorithm).observe is not Algorithm.observe and isinstance(fixed.data, tuple)
        return server, clients, row | algorithm.observe(joined(list(clients), fixed.data) if watched else clients)

    shapes = jax.eval_shape(step, carry.server, carry.clients, carry.round)[2]
    records = jax.tree.map(lambda s: jnp.zeros((CAPACITY, *s.shape), s.dtype), shapes)

    def going(loop):
        carry, _, t = loop
        return (t < limit) & ~carry.done

    def body(loop):
        carry, records, t = loop
        server, clients, row = step(carry.server, carry.clients, carry.round)
        w = algorithm.parameters(terms, server)
        finite = jnp.all(jnp.isfinite(w))
        records = jax.tree.map(lambda buffer, value: buffer.at[t].set(value), records, row)
        done = jnp.asarray(algorithm.converged(server)) | jnp.asarray(algorithm.stuck(server)) | ~finite
        return Carry(server, clients, carry.round + 1, jnp.where(finite, w, carry.w), done, finite), records, t + 1

    carry, records, used = jax.lax.while_loop(going, body, (carry, records, jnp.zeros((), int)))
    return strong(carry), records, used


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def start(algorithm: Algorithm, terms: Terms, w0: Array, data: Any, own: Data | None) -> Carry:
    """The state before the first round."""
    server = algorithm.init(terms, w0, own)
    join = jax.vmap(lambda d: algorithm.join(terms, d, w0))
    clients = tuple(join(b.data) for b in data) if isinstance(data, tuple) else join(data)
    carry = Carry(server, clients, jnp.zeros((), int), w0, jnp.zeros((), bool), jnp.ones((), bool))
    return strong(carry)


@partial(jax.jit, static_argnames=("terms", "passes"))
def condensed(terms: Terms, data: Data, passes: int) -> Data:
    return jax.vmap(lambda d: terms.condensed(d, passes))(data)


def fixed_for(problem: Problem, algorithm: Algorithm, participation: Participation, seed: int) -> Fixed:
    """What a run of this problem keeps throughout."""
    passes = max(getattr(kind, "passes", 1) for kind in algorithm.kinds)
    terms, uids = problem.terms, problem.stacked.uids()
    asked = problem.stacked.rectangles
    bins = divided(algorithm, terms, problem.data, problem.counts, uids, participation, asked)

    def short(data: Data) -> Data:
        return jax.vmap(lambda d: algorithm.condense(terms, d))(condensed(terms, data, passes))

    data = short(problem.data) if bins is None else tuple(replace(b, data=short(b.data)) for b in bins)
    return Fixed(data, jnp.asarray(uids), jax.random.key(seed), participation)


@dataclass
class Measured:
    """What a runtime has measured where the data are; `solve` measures it itself where it has the data."""

    objective: float
    certificate: Certificate
    multipliers: dict[str, np.ndarray]
    reason: str


@dataclass
class Outcome:
    """What a runtime hands back to `solve`."""

    w: Array
    server: Any
    clients: Any
    history: dict[str, np.ndarray]
    converged: bool
    finite: bool
    interrupted: bool
    seconds: float
    compile_seconds: float
    measured: Measured | None = None
    refused: tuple[str, ...] = ()  # replies that were not accepted: whose, and why


class _Interrupt:
    """Holds back Ctrl-C until a chunk is finished; a second one goes through at once."""

    def __init__(self) -> None:
        self.asked = False
        self.main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "_Interrupt":
        if self.main:
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *error: object) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.previous)


class Recorder:
    """The history so far: named columns, one row a round; bytes are counted from the messages' arrays."""

    def __init__(self, traffic: tuple[tuple[int, int], ...], columns: dict[str, np.ndarray] | None = None):
        self.down = np.array([down for down, _ in traffic], dtype=np.int64)
        self.up = np.array([up for _, up in traffic], dtype=np.int64)
        self.columns = columns or {}

    def add(self, records: dict[str, np.ndarray]) -> None:
        phase = records["phase"]
        rows = records | {
            "bytes_down": self.down[phase] * records["asked"],
            "bytes_up": self.up[phase] * records["answered"],
        }
        for name, values in rows.items():
            self.columns[name] = np.concatenate([self.columns[name], values]) if name in self.columns else values

    @property
    def rounds(self) -> int:
        return len(self.columns.get("phase", ()))

    def last(self) -> dict[str, float]:
        """The last round's record, and the bytes of all rounds so far."""
        row = {name: values[-1].item() for name, values in self.columns.items() if values.ndim == 1 and len(values)}
        for way in ("up", "down"):
            row[f"total_{way}"] = int(np.sum(self.columns.get(f"bytes_{way}", 0)))
        return row


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    w0: Array,
    *,
    seed: int,
    max_rounds: int,
    participation: Participation,
    watch: Callable[[Recorder], bool | None] | None,
    checkpoint: Checkpoint | None,
) -> Outcome:
    """Run the algorithm over all clients in this process."""
    began = time.perf_counter()
    terms = problem.terms
    fixed = fixed_for(problem, algorithm, participation, seed)
    carry = start(algorithm, terms, w0, fixed.data, problem.server)
    states, data = (
        (carry.clients[0], fixed.data[0].data) if isinstance(fixed.data, tuple) else (carry.clients, fixed.data)
    )
    recorder = Recorder(wire.traffic_of(algorithm, terms, carry.server, states, data))
    if checkpoint is not None and (kept := checkpoint.load(carry)) is not None:
        carry, recorder.columns = kept
    size, interrupted = 4, False
    with _Interrupt() as interrupt:
        carry, _, _ = chunk(algorithm, terms, carry, fixed, np.int64(0))  # compiles, plays no round
        compiled = time.perf_counter()
        while not interrupt.asked and recorder.rounds < max_rounds and not bool(carry.done):
            tick = time.perf_counter()
            limit = min(size, CAPACITY, max_rounds - recorder.rounds)
            carry, records, used = chunk(algorithm, terms, carry, fixed, np.int64(limit))
            count = int(used)
            recorder.add({name: np.asarray(values)[:count] for name, values in records.items()})
            spent = (time.perf_counter() - tick) / max(count, 1)
            size = int(np.clip(CHUNK_SECONDS / max(spent, 1e-9), 1, CAPACITY))
            interrupted = bool(watch is not None and watch(recorder))
            if checkpoint is not None:
                checkpoint.keep(carry, recorder.columns)
            if interrupted:
                break
        interrupted = interrupted or interrupt.asked
    if checkpoint is not None:
        checkpoint.keep(carry, recorder.columns, final=True)
    return Outcome(
        w=carry.w,
        server=carry.server,
        clients=carry.clients,
        history=recorder.columns,
        converged=bool(carry.finite) and bool(algorithm.converged(carry.server)),
        finite=bool(carry.finite),
        interrupted=interrupted and not bool(carry.done),
        seconds=time.perf_counter() - began,
        compile_seconds=compiled - began,
    )
