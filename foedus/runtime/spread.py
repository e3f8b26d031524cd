"""Spread: one simulation over several processes, for more clients than one machine's memory holds.

Every process runs the same script with its own clients, after `jax.distributed.initialize`. The client axis is laid
over the processes' devices and the simulator's own compiled rounds run on it: XLA splits the work along that axis, and
what `aggregate` sums crosses the network. All processes get the same run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from foedus.algorithm import Algorithm
from foedus.certificate import SitePart, join_parts, site_part
from foedus.errors import FoedusError
from foedus.problem import Problem
from foedus.runtime import simulate, wire
from foedus.runtime.checkpoint import Checkpoint
from foedus.runtime.participation import Participation, Schedule
from foedus.terms import Data, Terms

ROUNDS = 256  # in one chunk: every process must ask for as many


@dataclass(frozen=True)
class Spread:
    """The runtime `fd.solve(..., runtime=fd.Spread())`, called by every process with its own clients."""

    def play(
        self,
        problem: Problem,
        algorithm: Algorithm,
        w0: Array,
        *,
        seed: int,
        max_rounds: int,
        participation: Participation,
        watch: Callable[[simulate.Recorder], bool | None] | None,
        checkpoint: Checkpoint | None,
    ) -> simulate.Outcome:
        """Run the algorithm over the clients of all processes."""
        began = time.perf_counter()
        if (
            algorithm.pools
            or checkpoint is not None
            or participation.dropout > 0
            or isinstance(participation, Schedule)
        ):
            raise FoedusError(
                "Spread plays whole rounds without checkpoints: no pooling, plan, dropout or checkpoint=."
            )
        if participation.size(problem.terms.clients) != problem.terms.clients:
            raise FoedusError(
                "Spread asks every client in every round; choosing some would move data between machines."
            )
        layout = Layout.of(problem.terms.clients)
        terms = replace(problem.terms, clients=layout.clients)
        passes = max(getattr(kind, "passes", 1) for kind in algorithm.kinds)
        held = simulate.condensed(terms, problem.data, passes)
        data = jax.tree.map(layout.spread, jax.vmap(lambda d: algorithm.condense(terms, d))(held))
        own = None if problem.server is None else jax.tree.map(layout.share, problem.server)
        key = jax.random.wrap_key_data(layout.share(jax.random.key_data(jax.random.key(seed))))
        uids = gathered(problem.stacked.uids())
        if problem.stacked.names is None:  # a client without a name is known by its place among all
            uids[:, 1] = np.arange(layout.clients)
        fixed = simulate.Fixed(data, layout.share(uids), key, participation)
        start = simulate.start(algorithm, terms, layout.share(w0), data, own)
        carry = replace(start, clients=jax.tree.map(layout.settle, start.clients))
        recorder = simulate.Recorder(wire.traffic_of(algorithm, terms, carry.server, carry.clients, data))
        carry, _, _ = simulate.chunk(algorithm, terms, carry, fixed, np.int64(0))
        compiled = time.perf_counter()
        while recorder.rounds < max_rounds and not bool(carry.done):
            limit = min(ROUNDS, max_rounds - recorder.rounds)
            carry, records, used = simulate.chunk(algorithm, terms, carry, fixed, np.int64(limit))
            recorder.add({name: np.asarray(values)[: int(used)] for name, values in records.items()})
            if watch is not None:
                watch(recorder)
        converged = bool(carry.finite) and bool(algorithm.converged(carry.server))
        return simulate.Outcome(
            w=jnp.asarray(np.asarray(carry.w)),
            server=carry.server,
            clients=carry.clients,
            history=recorder.columns,
            converged=converged,
            finite=bool(carry.finite),
            interrupted=False,
            seconds=time.perf_counter() - began,
            compile_seconds=compiled - began,
            measured=measured(problem, algorithm, terms, carry, converged),
        )


@dataclass(frozen=True)
class Layout:
    """The client axis over all processes' devices."""

    clients: int
    rows: NamedSharding
    whole: NamedSharding

    @staticmethod
    def of(mine: int) -> "Layout":
        counts = gathered(np.array([mine]))
        if len(set(counts.tolist())) > 1 or mine % jax.local_device_count():
            raise FoedusError(f"Spread needs as many clients at every process. Got {counts.tolist()} instead.")
        mesh = Mesh(np.array(jax.devices()), ("clients",))
        return Layout(
            int(counts.sum()), NamedSharding(mesh, PartitionSpec("clients")), NamedSharding(mesh, PartitionSpec())
        )

    def spread(self, local: Array) -> Array:
        """This process's clients as its part of all."""
        return jax.make_array_from_process_local_data(self.rows, np.asarray(local), (self.clients, *local.shape[1:]))

    def share(self, value: Any) -> Array:
        """A value that all processes have."""
        return jax.make_array_from_process_local_data(self.whole, np.asarray(value), np.shape(value))

    def settle(self, states: Array) -> Array:
        """Clients' states where their data are."""
        return jax.jit(lambda a: a, out_shardings=self.rows)(states)


def gathered(local: np.ndarray) -> np.ndarray:
    """The rows of all processes, one after the other."""
    from jax.experimental import multihost_utils

    parts = np.array(multihost_utils.process_allgather(np.asarray(local)))
    return (
        parts.reshape(jax.process_count() * len(local), *local.shape[1:])
        if jax.process_count() > 1
        else np.array(local)
    )


def measured(
    problem: Problem, algorithm: Algorithm, terms: Terms, carry: simulate.Carry, converged: bool
) -> simulate.Measured:
    """The certificate over all clients: every process measures its own, and all parts are gathered."""
    held: dict[str, np.ndarray] = {}
    local = np.zeros((problem.terms.clients, terms.rows[0]))
    if "constraints" in algorithm.handles:
        held = {k: np.asarray(v) for k, v in algorithm.server_multipliers(terms, carry.server).items()}
        mine = jax.tree.map(_mine, carry.clients)
        local = np.asarray(jax.vmap(lambda c: algorithm.client_multipliers(terms, c))(mine))
    nu = jnp.asarray(held.get("coupled", np.zeros(terms.rows[2])))
    w = jnp.asarray(np.asarray(carry.w))
    parts: SitePart = jax.vmap(lambda mu, d: site_part(terms, w, mu, nu, d))(jnp.asarray(local), problem.data)
    whole = jax.tree.map(lambda a: jnp.asarray(gathered(np.asarray(a))), parts)
    names = [f"{i}" for i in range(terms.clients)] if problem.stacked.names is None else _names(problem.names)
    one = Data({k: v[0] for k, v in problem.data.items()})
    eps1, eps2 = getattr(algorithm, "eps1", 1e-3), getattr(algorithm, "eps2", 1e-3)
    objective, certificate = join_parts(terms, names, w, whole, one, problem.server, held, eps1, eps2)
    if "constraints" in algorithm.handles:
        held = {"local": np.asarray(whole.mu)} | held
    server = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), carry.server)
    return simulate.Measured(objective, certificate, held, algorithm.reason(server, converged, names))


def _mine(states: Array) -> Array:
    """This process's rows of an array that is spread over all."""
    parts = sorted(states.addressable_shards, key=lambda s: s.index[0].start or 0)
    return jnp.concatenate([jnp.asarray(np.asarray(s.data)) for s in parts])


def _names(mine: list[str]) -> list[str]:
    text = np.zeros((1, 65536), np.uint8)
    content = "\n".join(mine).encode()[:65536]
    text[0, : len(content)] = np.frombuffer(content, np.uint8)
    return [name for row in gathered(text) for name in bytes(row[row > 0]).decode().split("\n")]
