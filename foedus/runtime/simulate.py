"""The simulator: all clients in one compiled program; Python looks at the run between chunks of rounds.

Clients are stacked on a leading axis (in a few bins, where their sizes differ much) and `local` is `vmap`ped over those
that take part; the kind of round is switched outside the `vmap`. A chunk is a `while_loop` that ends at its limit or
when the algorithm has ended.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import PyTree, device_array, state, strong
from foedus.certificate.measure import SitePart, needs_products, site_parts, widened
from foedus.certificate.summed import SummedPart, as_one_part, summed_part, unseen_of
from foedus.certificate.wide_gap import Ask, ask_here
from foedus.numerics.interpreter.dispatch import is_moderate, is_small, play, player, program_for
from foedus.numerics.interpreter.random_bits import random_key
from foedus.numerics.interpreter.shapes import CannotInterpret
from foedus.numerics.interpreter.sparse import mark_sparse
from foedus.numerics.interpreter.threads import threads_for
from foedus.privacy.noise import Sound
from foedus.privacy.releasing import Releasing
from foedus.problem.pooled import Pooled
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, Fit, Present
from foedus.protocol.constrained import tolerances
from foedus.protocol.participation import (
    LOCAL,
    LOSE,
    SERVER,
    Participation,
    Schedule,
    client_key,
    client_uniforms,
    round_key,
)
from foedus.protocol.summing import SumPresent
from foedus.robust.proposal import Proposal
from foedus.robust.stress import Robust
from foedus.runtime import spine, traffic
from foedus.runtime.bins import Bin, by_client, join_bins, split_into_bins
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.mistakes import explain_mistakes
from foedus.runtime.spine import Carry, Job, Outcome, Recorder, Watch
from foedus.runtime.workload import Blocks, block_sizes, condense_data
from foedus.sums.masking import Masking, check_range, fields_of


class Interruption:
    """Holds back Ctrl-C until a chunk is finished; a second one goes through at once."""

    def __init__(self) -> None:
        self.pending = False
        self.main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interruption":
        if self.main:
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True

    def __exit__(self, *error: object) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.previous)


def proposals_of(job: Job, carry: Carry, clients: PyTree, data: PyTree) -> Sequence[Proposal] | None:
    """Return what a robust algorithm's states say of the worst case at each client."""
    algorithm, terms = job.fit.algorithm, job.fit.problem.terms
    if not isinstance(algorithm, Robust):
        return None
    server, states = jax.tree.map(np.asarray, (carry.server, clients))
    return algorithm.propose(terms, server, by_client(states, data, terms.clients))


def conclusion(job: Job, carry: Carry, clients: PyTree) -> spine.Conclusion:
    """Return the conclusion for the problem as the user stated it, which a pooled run restates."""
    algorithm, run_on, problem = job.fit.algorithm, job.fit.problem, job.problem
    multipliers = spine.server_multipliers(algorithm, run_on.terms, carry)
    mu = device_array(np.zeros((problem.terms.clients, problem.terms.rows[0])))
    if multipliers:
        mu = play(jax.vmap(lambda client: spine.client_multipliers(algorithm, run_on.terms, client)), clients)
        if isinstance(run_on, Pooled):
            by_site = run_on.by_site({"local": mu} | {k: device_array(v) for k, v in multipliers.items()})
            mu = by_site.pop("local")
            multipliers = {k: np.asarray(v) for k, v in by_site.items()}
    nu = device_array(multipliers.get("coupled", np.zeros(problem.terms.rows[2])))
    one = problem.first_client
    each = site_parts(problem.terms, carry.w, mu, nu, problem.data)
    parts = each if job.masking is None else summed_parts(job, each)
    end = spine.conclude(
        algorithm, problem.terms, problem.names, carry, parts, one, problem.server, multipliers,
        reason_names=run_on.names,
    )  # fmt: skip
    if not end.finite or not needs_products(problem.terms):
        return end
    terms, w, slack = problem.terms, device_array(carry.w), 0.0
    if job.masking is None:
        ask = ask_here(terms, w, mu, nu, problem.data, problem.by_size)
    else:
        assert isinstance(parts, SummedPart)
        ask, slack = _masked_ask(job, mu, nu, w), unseen_of(terms, parts).slack
        each = as_one_part(parts, terms.clients)
    certificate = widened(end.certificate, terms, problem.server, w, each, multipliers, ask, slack)
    return replace(end, certificate=certificate)


def _masked_ask(job: Job, mu: Array, nu: Array, w: Array) -> Ask:
    """Return the question of a server that sees sums alone: the answers are the same integers as over real sites."""
    assert job.masking is not None
    measuring, terms = job.masking.measuring, job.problem.terms
    add_up = partial(_add_up, measuring, terms.clients)
    ask = ask_here(terms, w, mu, nu, job.problem.data, add_up=add_up)

    def ask_for_sum(kind: str, V: np.ndarray) -> np.ndarray:
        total, worst = ask(kind, V)
        check_range(measuring.point, worst, job.problem.names, fields_of(total), "part of the gap")
        return total

    return ask_for_sum


def _add_up(measuring: Masking, n: int, each: Array) -> tuple[Array, Array]:
    return measuring.add_up(each, jnp.ones(n, bool))


def summed_parts(job: Job, parts: SitePart) -> SummedPart:
    """Return what a server that sees sums alone learns of the measurement: the same integers as over real sites."""
    masking, (_, eps2) = job.masking, tolerances(job.fit.algorithm)
    assert masking is not None
    terms = job.problem.terms
    one = Data({k: v[0] for k, v in job.problem.data.items()})
    rows = jax.vmap(lambda part: summed_part(terms, part, eps2, one))(parts)
    total, worst = masking.measuring.add_up(rows, jnp.ones(terms.clients, bool))
    names, what = job.problem.names, "part of the certificate"
    check_range(masking.measuring.point, np.asarray(worst), names, fields_of(rows), what)
    return total


CAPACITY = 1024  # the rounds whose records one chunk can hold; their buffers have this length
CHUNK_SECONDS = 0.25  # about how long a chunk takes: Ctrl-C, callbacks and checkpoints wait for its end
FIRST_CHUNK = 4  # rounds of the first chunk, from which the time of a round is measured


@state
class Simulation:
    """The state of a simulated run between two rounds; a run that goes on from it has the same bits."""

    carry: Carry
    clients: PyTree


@state
class RunInputs:
    """What a run's rounds read and never change."""

    data: PyTree  # Data, stacked; or bins of clients, and then `Simulation.clients` has their states bin by bin
    uids: Array
    key: Array
    participation: Participation
    blocks: Blocks = Blocks()
    masking: Masking | None = None


def play_round(
    algorithm: Algorithm, terms: Terms, phase: int, at: Simulation, inputs: RunInputs
) -> tuple[Simulation, dict[str, Array]]:
    """Play one round of one kind; return the states, and how many clients were asked and how many answered."""
    kind = algorithm.kinds[phase]
    n, who, round, clients = terms.clients, inputs.participation, at.carry.round, at.clients
    draws = client_uniforms(round_key(inputs.key, SERVER, round), inputs.uids)
    message = kind.broadcast(terms, at.carry.server, draws)
    everyone = who.size(n) == n and not isinstance(who, Schedule)
    if everyone:
        index, here = jnp.arange(n), jnp.ones(n, dtype=bool)
        of, participants = None, (clients, inputs.data, inputs.uids)
    else:
        index = who.choose(inputs.key, round, inputs.uids)
        here = index < n
        of = jnp.minimum(index, n - 1)
        participants = jax.tree.map(lambda a: a[of], (clients, inputs.data, inputs.uids))
    asked_count, is_asked = jnp.sum(here), here
    if who.dropout > 0:
        losses = client_uniforms(round_key(inputs.key, LOSE, round), participants[2])
        here = here & (losses >= who.dropout)

    local_key = round_key(inputs.key, LOCAL, round)

    def answers(states: PyTree, data: Data, uids: Array, of: Array | None, bin: int) -> tuple[PyTree, PyTree]:
        leaves, axes, structure = message_leaves(message, of)

        def one(client: PyTree, data: Data, uid: Array, *leaves: Array) -> tuple[PyTree, PyTree]:
            content = message_from(list(leaves), structure)
            after, reply = kind.local(terms, client, content, data, client_key(local_key, uid))
            return spine.keep_types(after, client), reply

        block = inputs.blocks.sizes[phase][bin] if inputs.blocks.sizes else None
        return over_clients(one, (states, data, uids, *leaves), (0, 0, 0, *axes), block)

    if isinstance(inputs.data, tuple):
        binned = enumerate(zip(clients, inputs.data, strict=True))
        pairs = [answers(c, b.data, b.uids, b.index, place) for place, (c, b) in binned]
        after, replies = tuple(state for state, _ in pairs), join_bins([reply for _, reply in pairs], inputs.data)
    else:
        states, data, uids = participants
        after, replies = answers(states, data, uids, of, 0)
    sure, masking, record = everyone and who.dropout == 0, inputs.masking, {}
    if masking is not None and not sure:  # where too few are left, nobody lets the sum be seen
        here = here & masking.enough(jnp.sum(here), asked_count)
    if not sure:
        # Without noise a client whose reply is lost goes on as if the round had not reached it. With sound noise its
        # reply has left it and counts as a release, so its state must go on from there.
        released = isinstance(algorithm, Releasing) and isinstance(algorithm.noise, Sound)
        advances = is_asked if released else here
        after = Present(index, advances).remember(clients, after) if jax.tree.leaves(clients) else clients
    present = Present(index, here)
    if masking is not None:
        replies, worst = masking.add_up(replies, here)
        record["clipped"] = worst.at[1].set(index[worst[1].astype(int)])
        present = SumPresent.of(jnp.sum(here))
    carry = spine.advance(algorithm, terms, kind, at.carry, replies, present, sure)
    return Simulation(carry, after), {"asked": asked_count, "answered": jnp.sum(here)} | record


def play_next(
    algorithm: Algorithm, terms: Terms, at: Simulation, inputs: RunInputs
) -> tuple[Simulation, dict[str, Array]]:
    """Play the next round, of the kind that the server's state asks for; return the state and the round's record."""
    phase = jnp.asarray(algorithm.phase(at.carry.server)).astype(int)
    plays = [partial(play_round, algorithm, terms, kind) for kind in range(len(algorithm.kinds))]
    if len(plays) == 1:
        at, counts = plays[0](at, inputs)
    else:
        at, counts = jax.lax.switch(phase, plays, at, inputs)
    row = {"phase": phase} | counts | dict(algorithm.report(at.carry.server))
    if isinstance(algorithm, Releasing) and algorithm.noise is not None:
        clients = join_bins(list(at.clients), inputs.data) if isinstance(inputs.data, tuple) else at.clients
        row |= algorithm.release_record(clients)
    return at, {name: jnp.asarray(value) for name, value in row.items()}


@partial(jax.jit, static_argnames=("algorithm", "terms"), donate_argnames=("at",))
def chunk(
    algorithm: Algorithm, terms: Terms, at: Simulation, inputs: RunInputs, limit: Array
) -> tuple[Simulation, dict[str, Array], Array]:
    """Play rounds until `limit` of them are over or the run has ended; return the state, the records, their number."""
    return repeat(partial(play_next, algorithm, terms, inputs=inputs), at, limit, CAPACITY)


def repeat(
    step: Callable[[Simulation], tuple[Simulation, dict[str, Array]]], at: Simulation, limit: Array, capacity: int
) -> tuple[Simulation, dict[str, Array], Array]:
    """Repeat `step`, which plays a round, up to `limit` times or until the run has ended.

    It returns the state, the record of each round in arrays of `capacity` rows, and the number of rounds played.
    """
    shapes = jax.eval_shape(step, at)[1]
    records = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)

    def going(loop: tuple[Simulation, PyTree, Array]) -> Array:
        at, _, t = loop
        return (t < limit) & ~at.carry.done

    def body(loop: tuple[Simulation, PyTree, Array]) -> tuple[Simulation, PyTree, Array]:
        at, records, t = loop
        at, row = step(at)
        return at, jax.tree.map(lambda buffer, value: buffer.at[t].set(value), records, row), t + 1

    return jax.lax.while_loop(going, body, (at, records, jnp.zeros((), int)))


def start_plain(algorithm: Algorithm, terms: Terms, w0: Array, data: PyTree, own: Data | None) -> Simulation:
    """Return the state before the first round."""
    join = jax.vmap(lambda d: algorithm.join(terms, d, w0))
    clients = tuple(join(b.data) for b in data) if isinstance(data, tuple) else join(data)
    return strong(Simulation(spine.first(algorithm, terms, w0, own), clients))


start = jax.jit(start_plain, static_argnames=("algorithm", "terms"))


class Rounds:
    """The rounds of a run, compiled; `RoundsByNumPy` plays them without."""

    def __init__(self, job: Job):
        self.job, self.algorithm, self.terms = job, job.fit.algorithm, job.fit.problem.terms
        self.inputs = inputs_of(job.fit, job.participation, job.seed, job.masking)

    @staticmethod
    def of(job: Job) -> "Rounds":
        """The rounds of a job: played by NumPy where there will be few and the data are small, compiled otherwise."""
        problem = job.fit.problem
        few_products = problem.terms.linear and is_moderate(problem.data, problem.server)
        if (job.fit.few_rounds or player() == "numpy") and (few_products or is_small(problem.data, problem.server)):
            try:
                return RoundsByNumPy(job)
            except CannotInterpret:
                pass
        return Rounds(job)

    def start(self) -> Simulation:
        """Return the state before the first round."""
        return start(self.algorithm, self.terms, self.job.w0, self.inputs.data, self.job.fit.problem.server)

    def ready(self, at: Simulation) -> Simulation:
        """Compile the program, and play no round."""
        return self.play(at, 0)[0]

    def play(self, at: Simulation, limit: int) -> tuple[Simulation, dict[str, np.ndarray], int]:
        """Play at most so many rounds; return the state, the rounds' records, and how many there were."""
        at, records, used = chunk(self.algorithm, self.terms, at, self.inputs, np.int64(limit))
        return at, {name: np.asarray(values)[: int(used)] for name, values in records.items()}, int(used)


class RoundsByNumPy(Rounds):
    """The rounds of a run, each an operation after the other: nothing is compiled."""

    def __init__(self, job: Job):
        super().__init__(job)
        self.reading = self.inputs
        if not is_small(self.inputs.data):  # whose intermediate results for all clients at once would not fit
            bins = len(self.inputs.data) if isinstance(self.inputs.data, tuple) else 1
            self.inputs = replace(self.inputs, blocks=Blocks(((1,) * bins,) * len(self.algorithm.kinds)))
            self.reading = replace(self.inputs, data=mark_sparse(self.inputs.data))
        self.own = job.fit.problem.server
        of_start = partial(start_plain, self.algorithm, self.terms)
        self.first = program_for(("start", self.algorithm, self.terms), of_start, job.w0, self.inputs.data, self.own)
        at = self.start()
        of_round = partial(play_next, self.algorithm, self.terms)
        self.round = program_for(("round", self.algorithm, self.terms), of_round, at, self.inputs)

    def start(self) -> Simulation:
        return self.first(self.job.w0, self.inputs.data, self.own)

    def ready(self, at: Simulation) -> Simulation:
        return at

    def play(self, at: Simulation, limit: int) -> tuple[Simulation, dict[str, np.ndarray], int]:
        rows: list[dict[str, np.ndarray]] = []
        with threads_for(self.terms.dim):
            while len(rows) < limit and not at.carry.done:
                at, row = self.round(at, self.reading)
                rows.append(row)
        return at, {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else ())}, len(rows)


def message_leaves(message: PyTree, index: Array | None) -> tuple[list[Array], list[int | None], PyTree]:
    """Take a message apart for `vmap`: its leaves, the client axis of each leaf (0 or None), and its structure.

    `Each` fields keep a leading axis over the clients `index` (None: all, in order); the others are shared. `vmap`
    takes one axis for each input, and a message mixes fields with and without one, so it travels as leaves.
    """
    nodes, tree = jax.tree.flatten(message, is_leaf=spine.is_each)
    parts, leaves, axes = [], [], []
    for node in nodes:
        flat, part = jax.tree.flatten(node.values if spine.is_each(node) else node)
        parts.append((part, len(flat)))
        for leaf in flat:
            leaves.append(leaf if index is None or not spine.is_each(node) else leaf[index])
            axes.append(0 if spine.is_each(node) else None)
    return leaves, axes, (tree, tuple(parts))


def message_from(leaves: list[Array], structure: PyTree) -> PyTree:
    """Put a message together as one client reads it: the inverse of `message_leaves`, inside `vmap`."""
    tree, parts = structure
    nodes, start = [], 0
    for part, size in parts:
        nodes.append(jax.tree.unflatten(part, leaves[start : start + size]))
        start += size
    return jax.tree.unflatten(tree, nodes)


def over_clients(
    one: Callable[..., PyTree], args: tuple[PyTree, ...], axes: tuple[int | None, ...], block: int | None
) -> PyTree:
    """`vmap` over the client axis of `args`: all clients at once, or block by block."""
    if block is None:
        return jax.vmap(one, in_axes=axes)(*args)
    split = [i for i, axis in enumerate(axes) if axis == 0]

    def call(parts: list[PyTree]) -> PyTree:
        whole = list(args)
        for i, part in zip(split, parts, strict=True):
            whole[i] = part
        return one(*whole)

    return jax.lax.map(call, [args[i] for i in split], batch_size=None if block == 1 else block)


def inputs_of(fit: Fit, participation: Participation, seed: int, masking: Masking | None = None) -> RunInputs:
    """Return what the rounds of a run read: the data, in bins where that pays, and the keys of its draws."""
    problem, terms = fit.problem, fit.problem.terms
    uids = problem.stacked.uids()
    bins = split_into_bins(fit.algorithm, terms, problem.data, problem.by_size, uids, participation)
    if bins is None:
        data: Data | tuple[Bin, ...] = condense_data(fit, problem.data)
        blocks = block_sizes(fit, [data], min(participation.size(terms.clients), terms.clients))
    else:
        data = tuple(replace(b, data=condense_data(fit, b.data)) for b in bins)
        blocks = block_sizes(fit, [b.data for b in data])
    return RunInputs(data, device_array(uids), random_key(seed), participation, blocks, masking)


def check_numbers(
    masking: Masking, rounds: Rounds, at: Simulation, records: dict[str, np.ndarray], names: list[str]
) -> None:
    """Raise where a number of a reply was beyond the range of masked sums, in the first round that has one."""
    clipped = records.pop("clipped", np.zeros((0, 3)))
    for round in np.flatnonzero(clipped[:, 0])[:1]:
        data, states = rounds.inputs.data, at.clients
        states, data = (states[0], data[0].data) if isinstance(data, tuple) else (states, data)
        kind = rounds.algorithm.kinds[int(records["phase"][round])]
        reply = traffic.reply_shapes(kind, rounds.terms, at.carry.server, states, data)
        check_range(masking.point, clipped[round], names, fields_of(reply), "reply")


@dataclass(frozen=True)
class PlayedRounds:
    """What `play_rounds` returns: the states after the last round, the history, and how long it took."""

    at: Simulation
    recorder: Recorder
    interrupted: bool
    seconds: float
    compile_seconds: float
    data: PyTree  # as the rounds read them, in bins where that pays


def play_rounds(
    job: Job, watch: Watch | None = None, checkpoint: Checkpoint | None = None, *, every_round: bool = False
) -> PlayedRounds:
    """Play rounds until the run is over, its limit is reached, or somebody ends it.

    `watch` is called between chunks of rounds, or after every round, with the model then in `Recorder.w`.
    """
    began = time.perf_counter()
    problem, algorithm = job.fit.problem, job.fit.algorithm
    terms = problem.terms
    with explain_mistakes(algorithm, problem):
        rounds = Rounds.of(job)
        at, given = rounds.start(), rounds.inputs.data
        states, data = (at.clients[0], given[0].data) if isinstance(given, tuple) else (at.clients, given)
        recorder = Recorder(traffic.traffic_of(algorithm, terms, at.carry.server, states, data, job.masking))
        if checkpoint is not None and (checkpoint_content := checkpoint.load(at)) is not None:
            at, recorder.columns = checkpoint_content
        at = rounds.ready(at)
    compiled_at = time.perf_counter()
    size, interrupted = FIRST_CHUNK, False
    with Interruption() as interrupt:
        while not interrupt.pending and recorder.rounds < job.max_rounds and not bool(at.carry.done):
            tick = time.perf_counter()
            limit = 1 if every_round else min(size, CAPACITY, job.max_rounds - recorder.rounds)
            at, records, count = rounds.play(at, limit)
            if job.masking is not None:
                check_numbers(job.masking, rounds, at, records, problem.names)
            recorder.add(records)
            if every_round:
                recorder.w = np.asarray(at.carry.w)
            round_seconds = (time.perf_counter() - tick) / max(count, 1)
            size = int(np.clip(CHUNK_SECONDS / max(round_seconds, 1e-9), 1, CAPACITY))
            interrupted = bool(watch is not None and watch(recorder))
            if checkpoint is not None:
                checkpoint.keep(at, recorder.columns)
            if interrupted:
                break
        interrupted = interrupted or interrupt.pending
    if checkpoint is not None:
        checkpoint.keep(at, recorder.columns, final=True)
    stopped_early = interrupted and not bool(at.carry.done)
    seconds = time.perf_counter() - began
    return PlayedRounds(at, recorder, stopped_early, seconds, compiled_at - began, rounds.inputs.data)


class Simulator:
    """The runtime that plays a run in this process."""

    def __init__(self, *, every_round: bool = False):
        self.every_round = every_round  # whether `watch` is called after every round

    def play(self, job: Job, *, watch: Watch | None, checkpoint: Checkpoint | None) -> Outcome:
        """Run the algorithm over all clients."""
        rounds = play_rounds(job, watch, checkpoint, every_round=self.every_round)
        return Outcome(
            conclusion=conclusion(job, rounds.at.carry, rounds.at.clients),
            history=rounds.recorder.columns,
            interrupted=rounds.interrupted,
            seconds=rounds.seconds,
            compile_seconds=rounds.compile_seconds,
            proposals=proposals_of(job, rounds.at.carry, rounds.at.clients, rounds.data),
        )
