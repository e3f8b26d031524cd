"""solve: the one verb. A problem and an algorithm in, a Run out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from foedus.algorithm import Algorithm
from foedus.certificate import measure
from foedus.engine import relieve
from foedus.errors import FoedusError
from foedus.privacy.attach import attach, prepare
from foedus.privacy.ledger import ledger_of
from foedus.privacy.noise import Sound
from foedus.privacy.total import default_rounds
from foedus.problem import Problem
from foedus.run import Run, Traffic, describe, versions
from foedus.runtime.checkpoint import Checkpoint, fingerprint
from foedus.runtime.flare.driver import Flare
from foedus.runtime.participation import as_participation, described
from foedus.runtime.progress import ProgressBar
from foedus.runtime.simulate import Recorder, simulate
from foedus.runtime.spread import Spread


def solve(
    problem: Problem,
    algorithm: Algorithm,
    *,
    w0: Any = None,
    seed: int = 0,
    max_rounds: int | None = None,
    participation: Any = 1.0,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    privacy: Any = None,
    budget: Any = None,
    callback: Callable[[int, dict[str, float]], bool | None] | None = None,
    runtime: Flare | Spread | None = None,
) -> Run:
    """Solve a federated problem.

    Args:
        problem: the clients' data and the terms.
        algorithm: one of the algorithms, with its settings.
        w0: where to start; zeros when left out. A pytree where the problem has its own objective.
        seed: keys every random draw, together with the round and the client's name.
        max_rounds: the most communication rounds to play, of all kinds.
        participation: a fraction of the clients; or `Coverage`, `Fraction` (both with `dropout`), or a plan given as a
            boolean array (rounds, clients).
        progress: show a progress bar.
        checkpoint: a file to keep the run in while it goes; if the file is there, the run goes on from it.
        privacy: `fd.Local(epsilon=, delta=)`, a total for each client over the whole run; or the noise of one release,
            `fd.Laplace(...)` or `fd.Gaussian(...)`, which FedEPM, SFedAvg and SFedProx take as their `noise` too.
            `run.ledger` says what it adds up to.
        budget: the most privacy one client may spend, a total ε or a `fd.Budget`; it takes no further part then.
        callback: called between chunks of rounds with the number of rounds and the last round's record; a true
            result ends the run.
        runtime: where the rounds are played: in this process when left out, over real sites with `fd.Flare(...)`,
            over several processes that each bring their clients with `fd.Spread()`.
    """
    if not isinstance(problem, Problem):
        raise FoedusError(f"solve needs a Problem first. Got {type(problem).__name__} instead.")
    if not isinstance(algorithm, Algorithm):
        hint = f"; write {algorithm.__name__}()" if isinstance(algorithm, type) else ""
        raise FoedusError(f"solve needs an algorithm second. Got {algorithm!r} instead{hint}.")
    limit = default_rounds(algorithm, privacy) if max_rounds is None else max_rounds
    for name, value, least in (("max_rounds", limit, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**63:
            raise FoedusError(
                f"The {name!r} argument of solve must be a whole number >= {least}. Got {value!r} instead."
            )
    if runtime is not None and not isinstance(runtime, Flare | Spread):
        raise FoedusError(
            f"The 'runtime' argument of solve must be fd.Flare(...) or fd.Spread(). Got {runtime!r} instead."
        )
    if w0 is None:
        if problem.terms.dim == 0:
            raise FoedusError(
                "this problem has its own objective and no X: give solve a w0 in the shape of the parameters."
            )
        w0 = np.zeros(problem.terms.dim)
    relieve()
    problem = problem.over(w0)
    terms = problem.terms
    if privacy is not None or budget is not None:
        algorithm = attach(algorithm, privacy, budget, problem, int(limit))
    algorithm.check(terms)
    algorithm = algorithm.resolve(terms)
    noise = getattr(algorithm, "noise", None)
    who = as_participation(participation)
    who.check(terms.clients)
    start = terms.shape.ravel(w0)
    if noise is not None:
        prepare(problem, algorithm, start)
    settings = {
        "algorithm": describe(algorithm) | {"name": algorithm.name},
        "problem": describe(terms) | {"name": "Problem", "shape": [list(s) for s in terms.shape.shapes]},
        "participation": described(who, problem.stacked.names is not None),
        "seed": int(seed),
        "max_rounds": int(limit),
        "versions": versions(),
    }
    restated = algorithm.restate(problem)
    kept = None
    if checkpoint is not None:
        told = {k: v for k, v in settings.items() if k not in ("max_rounds", "versions")}
        kept = Checkpoint(
            checkpoint, fingerprint(repr(told), problem.data, problem.server, start, who, problem.stacked.uids())
        )

    bar = ProgressBar(int(limit), algorithm.name) if progress else None

    def watch(recorder: Recorder) -> bool | None:
        if bar is not None:
            bar.update(recorder.rounds, recorder.last())
        return callback(recorder.rounds, recorder.last()) if callback is not None else None

    try:
        play = simulate if runtime is None else runtime.play
        outcome = play(
            restated,
            algorithm,
            start,
            seed=seed,
            max_rounds=int(limit),
            participation=who,
            watch=watch if bar or callback else None,
            checkpoint=kept,
        )
    finally:
        if bar is not None:
            bar.close()
    if outcome.measured is not None:
        found = outcome.measured
        objective, certificate, multipliers, reason = (
            found.objective, found.certificate, found.multipliers, found.reason
        )  # fmt: skip
    else:
        held = algorithm.multipliers(restated.terms, outcome.server, outcome.clients)
        multipliers = {k: np.asarray(v) for k, v in algorithm.regain(problem, held).items()}
        objective, certificate = measure(
            problem, outcome.w, multipliers, getattr(algorithm, "eps1", 1e-3), getattr(algorithm, "eps2", 1e-3)
        )
        reason = algorithm.reason(outcome.server, outcome.converged, restated.names)
    if not outcome.finite:
        reason = "the iterates became infinite; w is the last finite model, so try a smaller step"
    elif outcome.interrupted:
        reason = "interrupted" + (f"; run again with checkpoint={str(checkpoint)!r} to go on" if checkpoint else "")
    converged, worst_case = outcome.converged, algorithm.stress(problem, np.asarray(outcome.w))
    if worst_case is not None and isinstance(runtime, Spread):
        worst_case = replace(worst_case, gap=None, at_zero=None)  # of this process's clients alone, which says nothing
    if converged and worst_case is not None:
        converged, reason = worst_case.judge(reason)
    history = outcome.history
    if isinstance(runtime, Flare) and isinstance(noise, Sound):
        noise = replace(noise, sampler="opendp")  # real sites draw no other noise, whatever was asked for
    ledger = ledger_of(noise, history, problem.names, problem.counts, "each client's noisy parameters, in each round")
    if algorithm.pools and "phase" in history:
        nothing = np.zeros_like(history["bytes_up"])
        shipped = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.data))
        history |= {"bytes_down": nothing, "bytes_up": np.append(shipped, nothing[1:])}
    return Run(
        w=jax.tree.map(np.asarray, terms.shape.unravel(outcome.w)),
        objective=objective,
        rounds=len(history.get("phase", ())),
        converged=converged,
        reason=reason,
        certificate=certificate,
        history=history,
        traffic=Traffic(int(np.sum(history.get("bytes_up", 0))), int(np.sum(history.get("bytes_down", 0)))),
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        settings=settings,
        multipliers=multipliers,
        names=problem.names,
        interrupted=outcome.interrupted,
        ledger=ledger,
        refused=outcome.refused,
        worst_case=worst_case,
    )
