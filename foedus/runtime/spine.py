"""The spine of a run: what every runtime does in the same way.

    prepare   once: checks the arguments, makes the algorithm ready for the problem
    first     the state before the first round
    advance   the server's part of one round: replies in, the next state out
    conclude  objective, certificate, multipliers and the reason, from the sites' parts
    finish    the Run
The simulator adds `vmap` over clients, `Spread` a client axis over several processes, and the FLARE server messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree, device_array, nbytes, state
from foedus.certificate.measure import Certificate, SitePart, join_parts
from foedus.certificate.summed import SummedPart, join_sums
from foedus.numerics.interpreter.dispatch import play
from foedus.privacy.budget import Budget
from foedus.privacy.ledger import Ledger, ledger_of
from foedus.privacy.noise import Noise
from foedus.privacy.releasing import check_data, check_weights, make_private, noise_of, rounds_of, sound_noise
from foedus.privacy.total import Local
from foedus.problem.constraints import check_caps
from foedus.problem.pooled import Pooled
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import CONVERGED, RUNNING, Algorithm, Each, Fit, Kind, Present, name_of
from foedus.protocol.constrained import Constrained, tolerances
from foedus.protocol.participation import Participation, describe_participation
from foedus.robust.proposal import Proposal
from foedus.robust.stress import Robust, Stress
from foedus.runtime.checkpoint import Checkpoint, fingerprint
from foedus.runtime.run import Run, Traffic, describe, versions
from foedus.sums.masking import Masking, by_sums, check_shares, is_verified, masking_of

DIVERGED = "the run diverged"
INFINITE = f"{DIVERGED}: the iterates became infinite; w is the last finite model, so try a smaller step"


# --- before the rounds ---


@dataclass(frozen=True)
class Job:
    """A run that is about to start: the arguments of `solve`, checked, and the algorithm made ready for the problem."""

    problem: Problem  # as the user stated it; `fit.problem` is the form that the algorithm runs on
    fit: Fit
    w0: Array
    seed: int
    max_rounds: int
    participation: Participation
    masking: Masking | None = None  # where the server sees sums alone

    @property
    def settings(self) -> Json:
        """The settings of the run, for its record."""
        plain = settings_of(
            self.fit.algorithm, self.problem.terms, self.participation, self.problem.stacked.names is not None,
            self.seed, self.max_rounds,
        )  # fmt: skip
        return plain if self.masking is None else plain | {"secure": asdict(self.masking)}

    def checkpoint(self, path: str | Path) -> Checkpoint:
        """Return the checkpoint in this file; another run, with other settings, data or start, cannot load it."""
        # more rounds, or another version, may go on from the same file
        statement = {k: v for k, v in self.settings.items() if k not in ("max_rounds", "versions")}
        problem, uids = self.problem, self.problem.stacked.uids()
        mark = fingerprint(repr(statement), problem.data, problem.server, self.w0, self.participation, uids)
        return Checkpoint(path, mark)


def settings_of(
    algorithm: Algorithm, terms: Terms, participation: Participation, by_name: bool, seed: int, max_rounds: int
) -> Json:
    """Return the settings of a run in words and numbers that JSON can hold."""
    return {
        "algorithm": describe(algorithm) | {"name": name_of(algorithm)},
        "problem": describe(terms) | {"name": "Problem", "shape": [list(s) for s in terms.shape.shapes]},
        "participation": describe_participation(participation, by_name),
        "seed": seed,
        "max_rounds": max_rounds,
        "versions": versions(),
    }


def prepare(
    problem: Problem,
    algorithm: Algorithm,
    *,
    w0: PyTree,
    seed: int,
    max_rounds: int | None,
    participation: Participation,
    privacy: Local | Noise | None = None,
    budget: Budget | float | None = None,
    secure: bool = False,
) -> Job:
    """Check the arguments of `solve` and make the algorithm ready; raise FoedusError where something does not fit."""
    problem = problem.over(w0)
    check_caps(problem.terms)
    limit = max_rounds
    if limit is None:
        limit = rounds_of(privacy, algorithm, problem)
    for name, value, least in (("max_rounds", limit, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
            raise FoedusError(
                f"The {name!r} argument of solve must be a whole number >= {least}. Got {value!r} instead."
            )
    if privacy is not None or budget is not None:
        algorithm = make_private(algorithm, privacy, budget, problem, int(limit))
    fit = (by_sums(algorithm) if secure else algorithm).fit(problem)
    check_weights(fit.algorithm, problem.terms)
    check_shares(fit.algorithm, problem, participation, secure)
    masking = None
    if secure:
        verified = is_verified(fit.algorithm, participation, problem.terms.clients, problem.server is not None)
        masking = replace(masking_of(fit.algorithm, problem.terms), verified=verified)
    participation.check(problem.terms.clients)
    start = problem.terms.shape.ravel(w0)
    check_data(problem, fit.algorithm, start)
    return Job(problem, fit, start, int(seed), int(limit), participation, masking)


# --- the rounds ---


@state
class Carry:
    """The server's part of a run's state between two rounds."""

    server: PyTree
    w: Array  # the model of the last round in which it was finite
    round: Array
    ended: Array  # RUNNING, CONVERGED or STUCK
    finite: Array

    @property
    def done(self) -> Array:
        """Whether no further round is played."""
        return (self.ended != RUNNING) | ~self.finite


def first(algorithm: Algorithm, terms: Terms, w0: Array, own: Data | None) -> Carry:
    """Return the server's state before the first round."""
    start = jnp.asarray(w0, dtype=float)
    return Carry(algorithm.init(terms, start, own), start, jnp.zeros((), int), jnp.zeros((), int), jnp.ones((), bool))


def advance(
    algorithm: Algorithm, terms: Terms, kind: Kind, carry: Carry, replies: PyTree, present: Present, sure: bool
) -> Carry:
    """Return the server's state after a round.

    `sure` says that somebody answered for certain, which saves the choice between the old and the new state.
    """
    server = keep_types(kind.aggregate(terms, carry.server, replies, present), carry.server)
    if not sure:  # a round that nobody answered changes nothing
        server = jax.tree.map(lambda new, old: jnp.where(jnp.any(present.here), new, old), server, carry.server)
    return carry_of(algorithm, terms, carry, server)


def keep_types(after: PyTree, before: PyTree) -> PyTree:
    """The state after a round with the types that it had before: a number written in Python becomes an array.

    JAX tells a written 1.0 from a computed one, and would compile the next rounds anew. Types that differ in kind are
    left as they are: that is a mistake, which the compiled loop finds.
    """

    def alike(new: Array, old: Array) -> Array:
        same = jnp.result_type(new) == old.dtype
        return jax.lax.convert_element_type(new, old.dtype) if same else jnp.asarray(new)

    return jax.tree.map(alike, after, before)


def carry_of(algorithm: Algorithm, terms: Terms, before: Carry, server: PyTree) -> Carry:
    """Return the carry with a new server state; its model stays the last finite one."""
    w = algorithm.parameters(terms, server)
    finite = jnp.all(jnp.isfinite(w))
    ended = jnp.asarray(algorithm.ended(server)).astype(int)
    return Carry(server, jnp.where(finite, w, before.w), before.round + 1, ended, finite)


def is_each(node: PyTree) -> bool:
    """Whether a part of a message differs from client to client."""
    return isinstance(node, Each)


def message_for(message: PyTree, client: int) -> PyTree:
    """Return the message that one client receives: its own row of every `Each`, and all other fields."""
    return jax.tree.map(
        lambda node: jax.tree.map(lambda v: v[client], node.values) if is_each(node) else node,
        message,
        is_leaf=is_each,
    )


class Recorder:
    """The history so far: named columns, one row a round.

    `traffic` has for each kind of round the bytes that one client receives and sends.
    """

    def __init__(self, traffic: Sequence[tuple[int, int]], columns: dict[str, np.ndarray] | None = None):
        self.down = np.array([down for down, _ in traffic], dtype=np.int64)
        self.up = np.array([up for _, up in traffic], dtype=np.int64)
        self.columns = columns or {}
        self.w = np.zeros(0)  # the model after the last round, as a vector, where somebody looks at every round

    def add(self, records: dict[str, np.ndarray]) -> None:
        """Append the records of some rounds."""
        phase = records["phase"]
        rows = records | {
            "bytes_down": self.down[phase] * records["asked"],
            "bytes_up": self.up[phase] * records["answered"],
        }
        for name, values in rows.items():
            self.columns[name] = np.concatenate([self.columns[name], values]) if name in self.columns else values

    @property
    def rounds(self) -> int:
        """The rounds played."""
        return len(self.columns.get("phase", ()))

    def last(self) -> dict[str, float]:
        """Return the last round's record, and the bytes of all rounds so far."""
        row = {name: values[-1].item() for name, values in self.columns.items() if values.ndim == 1 and len(values)}
        return row | {f"total_{way}": float(np.sum(self.columns.get(f"bytes_{way}", 0))) for way in ("up", "down")}


class HistorySoFar(Protocol):
    """How far a run has come: the number of rounds, and the last round's record."""

    @property
    def rounds(self) -> int: ...

    def last(self) -> dict[str, float]: ...


Watch: TypeAlias = Callable[[HistorySoFar], bool | None]
"""Called between rounds with the history so far; a true result ends the run."""

# --- after the rounds ---


@dataclass
class Conclusion:
    """What is known of a run's last model; objective and certificate are measured where the data are."""

    w: np.ndarray
    objective: float
    certificate: Certificate
    multipliers: dict[str, np.ndarray]
    converged: bool
    finite: bool
    reason: str


@dataclass
class Outcome:
    """What a runtime returns to `solve`."""

    conclusion: Conclusion
    history: dict[str, np.ndarray]
    interrupted: bool
    seconds: float
    compile_seconds: float
    refused: tuple[str, ...] = ()  # replies that were not accepted: whose, and why
    left_out: dict[str, str] = field(default_factory=dict)  # clients that it went on without, and why
    opendp: bool = False  # whether the noise came from the operating system, whatever the settings say
    everyone: bool = True  # whether this process has all the clients' data
    proposals: Sequence[Proposal] | None = None  # what a robust algorithm's states say of the worst case
    plan: Json | None = None  # what real sites have agreed to


def server_multipliers(algorithm: Algorithm, terms: Terms, carry: Carry) -> dict[str, np.ndarray]:
    """Return the multipliers of the server's rows, by scope; an algorithm without constraints has none."""
    if not isinstance(algorithm, Constrained):
        return {}
    return play(lambda server: algorithm.server_multipliers(terms, server), carry.server)


def client_multipliers(algorithm: Algorithm, terms: Terms, client: PyTree) -> Array:
    """Return the multipliers of one client's local rows."""
    if not isinstance(algorithm, Constrained):
        return jnp.zeros(terms.rows[0])
    return algorithm.client_multipliers(terms, client)


def conclude(
    algorithm: Algorithm,
    terms: Terms,
    names: Sequence[str],
    carry: Carry,
    parts: SitePart | SummedPart | Sequence[str],
    one: Data,
    own: Data | None,
    multipliers: dict[str, np.ndarray],
    *,
    reason_names: Sequence[str] | None = None,
) -> Conclusion:
    """Return the conclusion of a run from what its sites measured.

    Args:
        algorithm: the algorithm that ran.
        terms: the terms of the problem as the user stated it.
        names: its clients.
        carry: the server's state after the last round.
        parts: what the sites measured, or its sum; or the names of those that do not measure: nothing is certified.
        one: one client's data, of which only the shapes are used.
        own: the server's own data.
        multipliers: those of the server's rows, by scope.
        reason_names: the clients of the problem that the algorithm ran on, where these are others.
    """
    (eps1, eps2), w = tolerances(algorithm), device_array(carry.w)
    local = np.full((terms.clients, terms.rows[0]), np.nan)  # each site keeps its own
    if isinstance(parts, SitePart):
        objective, certificate = join_parts(terms, list(names), w, parts, one, own, multipliers, eps1, eps2)
        local = np.asarray(parts.mu)
    elif isinstance(parts, SummedPart):
        objective, certificate = join_sums(terms, w, parts, one, own, multipliers, eps1, eps2)
    else:
        objective, certificate = float("nan"), Certificate.unmeasured(parts, terms.clients, eps1, eps2)
    if isinstance(algorithm, Constrained):
        multipliers = {"local": local} | multipliers
    finite, last = bool(carry.finite), jax.tree.map(np.asarray, carry.server)
    converged = finite and int(carry.ended) == CONVERGED
    if isinstance(algorithm, Constrained):
        certificate = replace(certificate, private=algorithm.private_certificate(terms, last, list(names)))
    why = algorithm.reason(last, converged, list(reason_names or names)) if finite else INFINITE
    return Conclusion(np.asarray(w), objective, certificate, multipliers, converged, finite, certificate.explain(why))


def finish(job: Job, outcome: Outcome, checkpoint: str | Path | None = None) -> Run:
    """Return the run of a job from its outcome, with its ledger and its worst case."""
    problem, algorithm, end, history = job.problem, job.fit.algorithm, outcome.conclusion, outcome.history
    reason, converged = end.reason, end.converged
    if end.finite and not converged and (rise := _rise(job, end, history)) is not None:
        reason = f"{DIVERGED}: {rise}; try a smaller step ({reason})"
    if end.finite and outcome.interrupted:
        reason = "interrupted" + (f"; run again with checkpoint={str(checkpoint)!r} to go on" if checkpoint else "")
    if job.fit.note:
        reason = f"{reason}; {job.fit.note}"
    worst_case = algorithm.stress(problem, end.w, outcome.proposals) if isinstance(algorithm, Robust) else None
    if worst_case is not None and not outcome.everyone:
        # these two were computed from this process's clients alone, which says nothing about all of them
        worst_case = replace(worst_case, gap=None, at_zero=None)
    if converged and worst_case is not None:
        converged, reason = worst_case.judge(reason)
    if isinstance(job.fit.problem, Pooled) and "phase" in history:
        # a pooled run sends all data once, before its first round, and no messages
        nothing = np.zeros_like(history["bytes_up"])
        history = history | {"bytes_down": nothing, "bytes_up": np.append(nbytes(problem.data), nothing[1:])}
    noise = noise_of(algorithm)
    # real sites draw from the operating system, whatever the sampler of the settings; the ledger says so
    if outcome.opendp and (sound := sound_noise(algorithm)) is not None:
        noise = replace(sound, sampler="opendp")
    ledger = ledger_of(noise, history, problem.names, problem.counts)
    w = jax.tree.map(np.asarray, problem.terms.shape.unravel(device_array(end.w)))
    end, outcome = replace(end, converged=converged, reason=reason), replace(outcome, history=history)
    run = run_of(end, outcome, w, job.settings, problem.names, ledger, worst_case)
    return replace(run, classes=problem.classes, rules=problem.rules)


def _rise(job: Job, end: Conclusion, history: dict[str, np.ndarray]) -> str | None:
    """How far the objective rose from the first round to the last model, in words; None where it more or less fell.

    Under constraints and with noise it may rise for better reasons than a step that is too long.
    """
    objectives = history.get("objective", np.zeros(0))
    start = float(objectives[np.isfinite(objectives)][0]) if np.any(np.isfinite(objectives)) else np.nan
    if job.problem.terms.constraints or noise_of(job.fit.algorithm) is not None:
        return None
    if not end.objective - start > max(abs(start), 1e-6):
        return None
    return f"the objective is {end.objective:.4g}, and was {start:.4g} in the first round"


def run_of(
    end: Conclusion,
    outcome: Outcome,
    w: PyTree,
    settings: Json,
    names: list[str],
    ledger: Ledger | None,
    worst_case: Stress | None = None,
) -> Run:
    """Return the run with this conclusion, history and settings."""
    history = outcome.history
    up, down = (int(np.sum(history.get(f"bytes_{way}", 0))) for way in ("up", "down"))
    return Run(
        w=w,
        objective=end.objective,
        rounds=len(history.get("phase", ())),
        converged=end.converged,
        reason=end.reason,
        certificate=end.certificate,
        history=history,
        traffic=Traffic(up, down),
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        settings=settings,
        multipliers=end.multipliers,
        names=[name for name in names if name not in outcome.left_out],
        interrupted=outcome.interrupted,
        ledger=ledger,
        refused=outcome.refused,
        left_out=outcome.left_out,
        worst_case=worst_case,
        plan=outcome.plan,
    )


def ledger_without_counts(noise: Noise | None, history: dict[str, np.ndarray], names: Sequence[str]) -> Ledger | None:
    """Return the ledger of a run whose sites do not tell how many rows they have, which -1 stands for."""
    return ledger_of(noise, history, list(names), np.full(len(names), -1))
