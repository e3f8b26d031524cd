"""solve: the one verb. A problem and an algorithm in, a Run out."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from foedus.algorithms.auto import Auto
from foedus.base.engine import float64, relieve
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree
from foedus.certificate.measure import figures_at
from foedus.federation.flare.driver import Flare
from foedus.privacy.budget import Budget
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.protocol.participation import as_participation
from foedus.runtime.progress import progress_bar
from foedus.runtime.run import Run
from foedus.runtime.simulate import Simulator
from foedus.runtime.spine import HistorySoFar, Job, Recorder, finish, prepare
from foedus.runtime.spread import Spread

if TYPE_CHECKING:
    from foedus.federation.delayed import Delayed


@float64()
def solve(
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    w0: PyTree = None,
    seed: int = 0,
    max_rounds: int | None = None,
    participation: Any = 1.0,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    privacy: Any = None,
    budget: Budget | float | None = None,
    callback: Callable[..., bool | None] | None = None,
    measure: bool = False,
    runtime: Flare | Spread | None = None,
    secure: bool = False,
) -> Run:
    """Solve a federated problem.

    Args:
        problem: the clients' data and the terms.
        algorithm: one of the algorithms, with its settings; left out, the one that fits the problem is chosen, and
            `run.reason` names it and says why.
        w0: where to start; zeros when left out. A pytree where the problem has its own objective.
        seed: keys every random draw, together with the round and the client's name.
        max_rounds: the most communication rounds to play, of all kinds.
        participation: a fraction of the clients; or `Coverage`, `Fraction` (both with `dropout`), or a plan given as a
            boolean array (rounds, clients).
        progress: show a progress bar.
        checkpoint: a file to keep the run in while it goes; if the file is there, the run goes on from it.
        privacy: `fd.Local(epsilon=, delta=)`, a total for each client over the whole run; `fd.Central(...)`, such a
            total with the noise in shares, which needs `secure`; or the noise of one release,
            `fd.Laplace(...)` or `fd.Gaussian(...)`, which FedEPM, SFedAvg and SFedProx take as their `noise` too.
            `run.ledger` says what it adds up to.
        budget: the most privacy one client may spend, a total ε or a `fd.Budget`; it takes no further part then.
        callback: `callback(round, record)` is called between chunks of rounds with the number of rounds and the last
            round's record; `callback(round, record, model)` after every round, with the model in the shape of `w0`. A
            true result ends the run.
        measure: measure the model of every round, whatever the algorithm itself reports: the history then has
            `measured_objective`, `measured_gradient` (the largest entry of ∇f, or its distance from −∂h) and, under
            constraints, `measured_violation`. The measurements are no part of the traffic.
        runtime: where the rounds are played: in this process when left out, over real sites with `fd.Flare(...)`,
            over several processes that each bring their clients with `fd.Spread()`.
        secure: let the server see sums over clients alone (masked sums): for `InteriorPoint`, `FedAvg`, `FedProx`,
            `LocalSGD`, `Scaffold` and their private forms. In this process it adds up the same integers as over real
            sites, without the masks, which cancel.

    Returns:
        The run: the model `w`, the objective and the certificate measured at it, the history and the traffic.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedGiA())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """
    if not isinstance(problem, Problem):
        raise FoedusError(f"solve needs a Problem first. Got {type(problem).__name__} instead.")
    algorithm = Auto() if algorithm is None else algorithm
    if not isinstance(algorithm, Algorithm):
        hint = f"; write {algorithm.__name__}()" if isinstance(algorithm, type) else ""
        raise FoedusError(f"solve needs an algorithm second. Got {algorithm!r} instead{hint}.")
    if runtime is not None and not isinstance(runtime, Flare | Spread):
        raise FoedusError(
            f"The 'runtime' argument of solve must be fd.Flare(...) or fd.Spread(). Got {runtime!r} instead."
        )
    if isinstance(runtime, Spread) and getattr(participation, "delays", ()):
        raise FoedusError("the 'delays' of participation are for simulations in one process; leave Spread out.")
    if secure and isinstance(runtime, Spread):
        raise FoedusError("secure=True hides single replies from a server, and Spread has none; leave one of them out.")
    if w0 is None:
        if problem.terms.dim == 0:
            raise FoedusError(
                "this problem has its own objective and no X: give solve a w0 in the shape of the parameters."
            )
        w0 = np.zeros(problem.terms.dim)
    relieve()
    job = prepare(
        problem, algorithm, w0=w0, seed=seed, max_rounds=max_rounds, participation=as_participation(participation),
        privacy=privacy, budget=budget, secure=secure or (isinstance(runtime, Flare) and runtime.secure),
    )  # fmt: skip
    wants_model = callback is not None and _takes_model(callback)
    every_round = measure or wants_model
    if every_round and (runtime is not None or getattr(job.participation, "delays", ())):
        what = "measure=True" if measure else "a callback that takes the model"
        raise FoedusError(f"{what} looks at every round of a run in this process; leave runtime and delays out.")
    bar = progress_bar(job.max_rounds, name_of(algorithm)) if progress else None
    measurements: dict[int, dict[str, float]] = {}

    def watch(so_far: HistorySoFar) -> bool | None:
        record = so_far.last()
        w = so_far.w if isinstance(so_far, Recorder) else np.zeros(0)
        if measure:
            measurements[so_far.rounds] = figures_at(job.problem, w)
            record |= measurements[so_far.rounds]
        if bar is not None:
            bar.update(so_far.rounds, record)
        if callback is None:
            return None
        if not wants_model:
            return callback(so_far.rounds, record)
        model = job.problem.terms.shape.unravel(jnp.asarray(w))
        return callback(so_far.rounds, record, jax.tree.map(np.asarray, model))

    try:
        outcome = (runtime or _simulator(job, every_round)).play(
            job,
            watch=watch if bar or callback or measure else None,
            checkpoint=None if checkpoint is None else job.checkpoint(checkpoint),
        )
    finally:
        if bar is not None:
            bar.close()
    if measure:
        outcome.history |= _columns(measurements, len(outcome.history.get("phase", ())))
    return finish(job, outcome, checkpoint)


def _takes_model(callback: Callable[..., object]) -> bool:
    """Whether a callback takes three things: the round, its record, and the model."""
    try:
        inspect.signature(callback).bind(0, {}, None)
    except (TypeError, ValueError):
        return False
    return True


def _columns(measurements: dict[int, dict[str, float]], rounds: int) -> dict[str, np.ndarray]:
    """The measurements as columns of the history; NaN for rounds that were played before a run was resumed."""
    names = next(iter(measurements.values()), {})
    return {name: np.array([measurements.get(k + 1, {}).get(name, np.nan) for k in range(rounds)]) for name in names}


def _simulator(job: Job, every_round: bool) -> "Simulator | Delayed":
    """The runtime in this process: one that plays a clock where clients have delays."""
    if not getattr(job.participation, "delays", ()):
        return Simulator(every_round=every_round)
    from foedus.federation.delayed import Delayed

    return Delayed()
