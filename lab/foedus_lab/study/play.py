"""Plays a run and keeps the model of every round, from which one run shows how many rounds each accuracy takes.

The rounds are the simulator's own. What differs is the record: the model after each round instead of the algorithm's
report. Objectives are computed from the models afterwards, by code that no algorithm uses; that time is not counted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax import Array

from foedus.base.pytrees import PyTree, nbytes
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.runtime.bins import Bin
from foedus.runtime.simulate import RunInputs, Simulation, inputs_of, play_next, repeat, start
from foedus.runtime.spine import Job
from foedus.runtime.traffic import traffic_of
from foedus.runtime.workload import READS_PER_GRADIENT, reads_of_kinds

CAPACITY = 256  # rounds in one call of the compiled program; between calls the run is judged
FIRST = 16  # rounds of the first call, for most runs of the interior-point method need no more


@dataclass(frozen=True)
class Trace:
    """The models and the cost of a run's rounds; entry k of an array belongs to round k + 1."""

    models: np.ndarray  # (rounds, dim)
    kinds: np.ndarray  # which kind of round it was
    answers: np.ndarray  # sites that answered
    requests: np.ndarray  # sites that were asked
    seconds: np.ndarray  # processor seconds of this process up to and including the round, without compiling
    down: tuple[int, ...]  # bytes that one site receives, by kind of round
    up: tuple[int, ...]  # bytes that one site sends
    gradients: tuple[float, ...]  # passes over one site's data, in gradients, by kind of round
    clients: int
    state_bytes: int  # that a site keeps between rounds
    compile_seconds: float

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return len(self.models)


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def advance(
    algorithm: Algorithm, terms: Terms, at: Simulation, inputs: RunInputs, limit: Array
) -> tuple[Simulation, dict[str, Array], Array]:
    """Play up to `limit` rounds, at most CAPACITY, and return the state, the record of each round, and their number."""

    def step(at: Simulation) -> tuple[Simulation, dict[str, Array]]:
        at, row = play_next(algorithm, terms, at, inputs)
        return at, {"w": at.carry.w, "kind": row["phase"], "requests": row["asked"], "answers": row["answered"]}

    return repeat(step, at, limit, CAPACITY)


def trace(job: Job, enough: Callable[[np.ndarray], bool], most_gradients: float) -> Trace:
    """Play a job and return its trace.

    Args:
        job: a run that `foedus.runtime.spine.prepare` made ready.
        enough: told the models of some further rounds, says whether the run may end.
        most_gradients: the run ends when a site has passed over its data that often, counted in gradients.
    """
    algorithm, terms = job.fit.algorithm, job.fit.problem.terms
    tick = time.process_time()
    inputs = inputs_of(job.fit, job.participation, job.seed)
    at = start(algorithm, terms, job.w0, inputs.data, job.fit.problem.server)
    states, data = _first_bin(at, inputs.data)
    state_bytes = nbytes(states) // len(jax.tree.leaves(data)[0])
    costs = traffic_of(algorithm, terms, at.carry.server, states, data)
    gradients = _gradients(job)
    jax.block_until_ready(advance(algorithm, terms, at, inputs, np.int64(0)))
    compile_seconds = time.process_time() - tick

    parts: list[dict[str, np.ndarray]] = []
    times: list[np.ndarray] = []
    rounds, seconds, work, size = 0, 0.0, 0.0, FIRST
    while rounds < job.max_rounds and not bool(at.carry.done) and work < most_gradients:
        tick = time.process_time()
        at, records, used = advance(algorithm, terms, at, inputs, np.int64(min(size, job.max_rounds - rounds)))
        count = int(used)
        spent_now = time.process_time() - tick
        part = {name: np.asarray(values)[:count] for name, values in records.items()}
        parts.append(part)
        times.append(seconds + spent_now * np.arange(1, count + 1) / max(count, 1))
        seconds, rounds, size = seconds + spent_now, rounds + count, CAPACITY
        work += float(np.sum(np.asarray(gradients)[part["kind"]]))
        if enough(part["w"]):
            break
    record = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Trace(
        models=record["w"],
        kinds=record["kind"],
        answers=record["answers"],
        requests=record["requests"],
        seconds=np.concatenate(times),
        down=tuple(down for down, _ in costs),
        up=tuple(up for _, up in costs),
        gradients=gradients,
        clients=terms.clients,
        state_bytes=state_bytes,
        compile_seconds=compile_seconds,
    )


def _first_bin(at: Simulation, data: Data | tuple[Bin, ...]) -> tuple[PyTree, Data]:
    """The states and data of the first bin of clients, or of all of them where there are no bins."""
    return (at.clients[0], data[0].data) if isinstance(data, tuple) else (at.clients, data)


def _gradients(job: Job) -> tuple[float, ...]:
    """How often a site passes over its data in a round of each kind, in gradients, read off the traced program."""
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), job.fit.problem.data)
    largest = max(leaf.size for leaf in jax.tree.leaves(one))
    reads = reads_of_kinds(job.fit, one, lambda leaf: leaf.size == largest, in_blocks=False)
    return tuple(count / READS_PER_GRADIENT for count in reads)
