"""Spread: one simulation over several processes, for more clients than the memory of one machine holds.

Every process runs the same script with its own clients, after `jax.distributed.initialize`. The client axis is laid
over the processes' devices and the simulator's own compiled rounds run on it: XLA splits the work along that axis, and
what `aggregate` sums crosses the network. All processes get the same run.
"""

import time
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.certificate.measure import needs_products, site_parts, widened
from foedus.certificate.wide_gap import ask_here
from foedus.problem.pooled import Pooled
from foedus.problem.terms import Data, Terms
from foedus.protocol.participation import Schedule
from foedus.runtime import simulate, spine, traffic
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.spine import Job, Outcome, Recorder, Watch
from foedus.runtime.workload import condense_data

ROUNDS = 256  # in one chunk: a fixed number, for all processes must run the same program for the same number of rounds
NAMES_BYTES = 2**16  # room for the names of one process's clients, which are exchanged as bytes of one length


@dataclass(frozen=True)
class Spread:
    """The runtime over several processes: every process calls `fd.solve` with its own clients and gets the same run.

    Before that, every process calls `jax.distributed.initialize(...)`. Every process must have as many clients as the
    others; with one process the run is an ordinary simulation.

    Example:
        >>> import foedus as fd, numpy as np
        >>> problem = fd.Problem([(np.eye(2), np.array([1.0, 2.0]))] * 2, loss=fd.losses.least_squares)
        >>> fd.solve(problem, fd.FedGiA(), runtime=fd.Spread()).w.round(3).tolist()
        [1.0, 2.0]
    """

    def play(self, job: Job, *, watch: Watch | None, checkpoint: Checkpoint | None) -> Outcome:
        """Run the algorithm over the clients of all processes."""
        began = time.perf_counter()
        problem, algorithm, who = job.fit.problem, job.fit.algorithm, job.participation
        if isinstance(problem, Pooled) or checkpoint is not None or who.dropout > 0 or isinstance(who, Schedule):
            raise FoedusError(
                "Spread plays whole rounds without checkpoints: no pooling, plan, dropout or checkpoint=."
            )
        if who.size(problem.terms.clients) != problem.terms.clients:
            raise FoedusError(
                "Spread asks every client in every round; choosing some would move data between machines."
            )
        layout = ClientSharding.of(problem.terms.clients)
        terms = replace(problem.terms, clients=layout.clients)
        data = jax.tree.map(layout.spread, condense_data(job.fit, problem.data))
        own = None if problem.server is None else jax.tree.map(layout.share, problem.server)
        key = jax.random.wrap_key_data(layout.share(jax.random.key_data(jax.random.key(job.seed))))
        uids = gather(problem.stacked.uids())
        if problem.stacked.names is None:  # draws depend on a client's place, which must be that among all processes
            uids[:, 1] = np.arange(layout.clients)
        inputs = simulate.RunInputs(data, layout.share(uids), key, who)
        start = simulate.start(algorithm, terms, layout.share(job.w0), data, own)
        at = replace(start, clients=jax.tree.map(layout.settle, start.clients))
        recorder = Recorder(traffic.traffic_of(algorithm, terms, at.carry.server, at.clients, data))
        at, _, _ = simulate.chunk(algorithm, terms, at, inputs, np.int64(0))
        compiled_at = time.perf_counter()
        while recorder.rounds < job.max_rounds and not bool(at.carry.done):
            limit = min(ROUNDS, job.max_rounds - recorder.rounds)
            at, records, used = simulate.chunk(algorithm, terms, at, inputs, np.int64(limit))
            recorder.add({name: np.asarray(values)[: int(used)] for name, values in records.items()})
            if watch is not None:
                watch(recorder)
        return Outcome(
            conclusion=conclusion(job, terms, at),
            history=recorder.columns,
            interrupted=False,
            seconds=time.perf_counter() - began,
            compile_seconds=compiled_at - began,
            everyone=jax.process_count() == 1,
        )


@dataclass(frozen=True)
class ClientSharding:
    """How arrays with a client axis are laid over the devices of all processes."""

    clients: int
    rows: NamedSharding
    whole: NamedSharding

    @staticmethod
    def of(mine: int) -> "ClientSharding":
        """Return the layout where this process has `mine` clients; raise where the processes have different numbers."""
        counts = gather(np.array([mine]))
        if len(set(counts.tolist())) > 1 or mine % jax.local_device_count():
            raise FoedusError(f"Spread needs as many clients at every process. Got {counts.tolist()} instead.")
        mesh = Mesh(np.array(jax.devices()), ("clients",))
        return ClientSharding(
            int(counts.sum()), NamedSharding(mesh, PartitionSpec("clients")), NamedSharding(mesh, PartitionSpec())
        )

    def spread(self, local: Array) -> Array:
        """Return the array over all clients, of which this process brings its own rows."""
        return jax.make_array_from_process_local_data(self.rows, np.asarray(local), (self.clients, *local.shape[1:]))

    def share(self, value: ArrayLike) -> Array:
        """Return a value that is the same at all processes as an array over all of them."""
        return jax.make_array_from_process_local_data(self.whole, np.asarray(value), np.shape(value))

    def settle(self, states: Array) -> Array:
        """Move clients' states to the devices that hold their data."""
        return jax.jit(lambda a: a, out_shardings=self.rows)(states)


def gather(local: np.ndarray) -> np.ndarray:
    """Return the rows of all processes, one process after the other."""
    from jax.experimental import multihost_utils

    parts = np.array(multihost_utils.process_allgather(np.asarray(local)))
    return (
        parts.reshape(jax.process_count() * len(local), *local.shape[1:])
        if jax.process_count() > 1
        else np.array(local)
    )


def conclusion(job: Job, terms: Terms, at: simulate.Simulation) -> spine.Conclusion:
    """Return the conclusion over all clients: every process measures its own, and all parts are gathered."""
    problem, algorithm = job.problem, job.fit.algorithm
    multipliers = spine.server_multipliers(algorithm, terms, at.carry)
    mu = jnp.zeros((problem.terms.clients, terms.rows[0]))
    if multipliers:
        mine = jax.tree.map(_mine, at.clients)
        mu = jax.vmap(lambda client: spine.client_multipliers(algorithm, terms, client))(mine)
    nu = jnp.asarray(multipliers.get("coupled", np.zeros(terms.rows[2])))
    w = jnp.asarray(np.asarray(at.carry.w))
    parts = site_parts(terms, w, mu, nu, problem.data)
    whole = jax.tree.map(lambda a: jnp.asarray(gather(np.asarray(a))), parts)
    names = [f"{i}" for i in range(terms.clients)] if problem.stacked.names is None else _names(problem.names)
    one = Data({k: v[0] for k, v in problem.data.items()})
    end = spine.conclude(algorithm, terms, names, at.carry, whole, one, problem.server, multipliers)
    if not end.finite or not needs_products(terms):
        return end
    mine = ask_here(terms, w, mu, nu, problem.data)

    def ask(kind: str, V: np.ndarray) -> np.ndarray:
        return np.sum(gather(mine(kind, V)[None]), axis=0)

    certificate = widened(end.certificate, terms, problem.server, w, whole, multipliers, ask)
    return replace(end, certificate=certificate)


def _mine(states: Array) -> Array:
    """Return this process's rows of an array that lies over all processes."""
    parts = sorted(states.addressable_shards, key=lambda s: s.index[0].start or 0)
    return jnp.concatenate([jnp.asarray(np.asarray(s.data)) for s in parts])


def _names(mine: list[str]) -> list[str]:
    """Return the names of all processes' clients; only arrays of one shape can be gathered, so they go as bytes."""
    text = np.zeros((1, NAMES_BYTES), np.uint8)
    content = "\n".join(mine).encode()[:NAMES_BYTES]
    text[0, : len(content)] = np.frombuffer(content, np.uint8)
    return [name for row in gather(text) for name in bytes(row[row > 0]).decode().split("\n")]
