"""FedEPM (Zhou and Li, *Exact Penalty Method for Federated Learning*): Table I, Figures 2-5, and one more."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.epm import EpmMethod
from foedus.base.pytrees import PyTree
from foedus.problem.problem import Problem
from foedus.problem.terms import Data
from foedus.runtime.run import versions
from foedus.runtime.spine import message_for
from foedus_lab.papers import fedepm_figures as figures
from foedus_lab.papers import fedepm_private as private
from foedus_lab.papers.drawing import keep_rows
from foedus_lab.papers.experiment import Options, PaperExperiment, progress
from foedus_lab.papers.fedepm_examples import STEPS, algorithms, instance
from foedus_lab.papers.table import PaperTable

# Table I: local seconds a round of SFedAvg, SFedProx and FedEPM for k0 = 4, 8, 12, 16, 20
PRINTED: dict[int, tuple[tuple[float, float, float], ...]] = {
    50: ((0.0037, 0.0082, 0.0011), (0.0067, 0.0155, 0.0015), (0.0096, 0.0226, 0.0018), (0.0125, 0.0293, 0.0021),
         (0.0148, 0.0360, 0.0023)),
    128: ((0.0058, 0.0109, 0.0019), (0.0097, 0.0198, 0.0024), (0.0132, 0.0279, 0.0030), (0.0172, 0.0359, 0.0036),
          (0.0213, 0.0457, 0.0041)),
}  # fmt: skip
NOTES = (
    "LCT: what all clients in S compute between two communications, one after another, without f and the stopping test",
    "ratios are to FedEPM in the same run, the best of several repetitions taken in turn; printed: MATLAB on a laptop",
    "FedEPM takes one gradient a round, SFedAvg k0 and SFedProx 3·k0 of them",
)


@dataclass(frozen=True)
class LocalTime:
    """A row of Table I; the fields are the columns of the CSV file."""

    m: int
    k0: int
    algorithm: str
    seconds: float
    ratio: float
    printed_seconds: float
    printed_ratio: float


def local_round(problem: Problem, plain: EpmMethod, clients: int) -> Callable[[], Array]:
    """Return a compiled function that takes the local steps of one round at this many clients."""
    terms = problem.terms
    algorithm = plain.fit(problem).algorithm
    server = algorithm.init(terms, jnp.zeros(terms.dim), None)
    message = message_for(algorithm.broadcast(terms, server, jnp.zeros(terms.clients)), 0)
    data = jax.tree.map(lambda a: a[:clients], problem.data)
    states = jax.vmap(lambda d: algorithm.join(terms, d, jnp.zeros(terms.dim)))(data)
    keys = jax.random.split(jax.random.key(0), clients)
    kind = algorithm.kinds[0]  # these algorithms have one kind of round

    @jax.jit
    def play(states: PyTree, data: Data, keys: Array) -> Array:
        return jax.lax.map(lambda at: kind.local(terms, at[0], message, at[1], at[2])[1].z, (states, data, keys))

    return lambda: play(states, data, keys).block_until_ready()


def measure(m: int, k0: int, seed: int, repeats: int) -> list[LocalTime]:
    """Measure the local compute of the three algorithms at one m and k0."""
    problem = instance(m, seed, 0)
    calls = {name: local_round(problem, a, m // 2) for name, a in algorithms(k0, None).items()}
    for call in calls.values():
        call()
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            tick = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - tick)
    paper_seconds = dict(zip(calls, PRINTED[m][STEPS.index(k0)], strict=True))
    return [
        LocalTime(
            m,
            k0,
            name,
            times[name],
            times[name] / times["FedEPM"],
            paper_seconds[name],
            paper_seconds[name] / paper_seconds["FedEPM"],
        )
        for name in calls
    ]


def table_one(options: Options) -> None:
    """Make Table I: local compute time of the three algorithms, as ratios to FedEPM's."""
    steps = (4, 12) if options.quick else STEPS
    sizes = (50,) if options.quick else (50, 128)
    measurements: list[LocalTime] = []
    with progress(len(sizes) * len(steps)) as step:
        for m in sizes:
            for k0 in steps:
                step(f"m = {m}, k0 = {k0}")
                measurements += measure(m, k0, options.seed, 3 if options.quick else 9)
    rows = []
    for line in measurements:
        first = f"m = {line.m}" if line.algorithm == "SFedAvg" and line.k0 == steps[0] else ""
        ours, paper_seconds = f"{1e3 * line.seconds:.3g}", f"{1e3 * line.printed_seconds:.3g}"
        ratios = f"{line.ratio:.2f}", f"{line.printed_ratio:.2f}"
        rows.append((first, f"{line.k0}", line.algorithm, ours, ratios[0], paper_seconds, ratios[1]))
    columns = ("", "k0", "algorithm", "LCT ms", "ratio", "printed ms", "printed ratio")
    table = PaperTable("Table I: local compute time between two communications", columns, tuple(rows), NOTES)
    options.echo(table)
    about = ", ".join(f"{name} {number}" for name, number in versions().items())
    options.keep("fedepm-table1.md", f"# Table I of the FedEPM paper\n\n{about}\n\n{table.markdown()}".encode())
    keep_rows(options, "fedepm-table1", [vars(line) for line in measurements])


EXPERIMENTS = (
    PaperExperiment("fedepm-table1", "FedEPM, Table I: local compute time of three algorithms", table_one),
    *figures.EXPERIMENTS,
    *private.EXPERIMENTS,
)
