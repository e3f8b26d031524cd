"""What ProxAL says about itself: why a run ended, and why it has no private form."""

from typing import Protocol

from foedus.algorithms.proxal_state import OuterProgress, ProxalServer

RELEASES = {
    "newton": "the value, gradient and Hessian of its augmented Lagrangian (Newton steps)",
    "lbfgs": "the value and gradient of its augmented Lagrangian (L-BFGS steps)",
    "admm": "the solution of its augmented subproblem (ADMM steps)",
}


class Tolerances(Protocol):
    """The settings of a run that its end is held against."""

    @property
    def eps1(self) -> float: ...

    @property
    def eps2(self) -> float: ...

    @property
    def max_outer(self) -> int: ...


def why_not_private(inner: str) -> str:
    """Why ProxAL with this inner method has no private form, to go at the end of a sentence."""
    return (
        f"each round it sends {RELEASES[inner]} and how far its multipliers moved, and both are functions of "
        "multipliers that carry the data from round to round without a bound"
    )


def residuals_left(track: OuterProgress, beta: float, eps1: float, eps2: float) -> str:
    """Which of the figures of the stopping test are still above their tolerance."""
    figures = (
        ("the stationarity", float(track.dw) / beta + float(track.left), eps1),
        ("the step of the multipliers", float(track.dmu) / beta, eps2),
        ("|μ·c|", float(track.product), eps2),
    )
    return ", ".join(f"{name} is {value:.2g} > {limit:g}" for name, value, limit in figures if not value <= limit)


def reason_of(
    server: ProxalServer, converged: bool, names: list[str], solver_ratio: float, settings: Tolerances
) -> str:
    """A sentence on why the run ended; `solver_ratio` is how far a subproblem solver missed its tolerance."""
    track, eps2, max_outer = server.track, settings.eps2, settings.max_outer
    note = f"; a subproblem solver ended at {solver_ratio:.1g} times its tolerance" if solver_ratio > 1 else ""
    if converged:
        return f"the stopping test of Algorithm 1 holds after {int(track.k)} outer steps{note}"
    least = float(track.least)
    whose = "the server" if int(track.least_at) == len(names) else f"client {names[int(track.least_at)]!r}"
    note_on_least = f"the smallest violation found is {least:.3g}, at {whose}" if least < float("inf") else ""
    answers = server.has_answered if bool(server.outer) else server.inner.fresh
    silent = [name for name, answer in zip(names, answers, strict=True) if not bool(answer)]
    if bool(track.deep):
        now = float(track.violations[0])
        if now > eps2 * (1.0 + float(abs(server.w).max())):
            away = f"the objective falls without end away from them, where the violation is {now:.3g}"
            return f"no point was found that meets the terms from this start: {note_on_least}; {away}"
        return "the objective is unbounded: it falls without end"
    if bool(track.gave_up):
        left = residuals_left(track, float(server.last_beta), settings.eps1, eps2)
        at_limit = int(track.k) >= max_outer
        if bool(track.stalls) and not at_limit:
            stalled = f"stalled after {int(track.k)} outer steps, for rounding allows no smaller residuals"
            if least > eps2:
                return f"no point was found that meets the terms: {note_on_least}; it {stalled}"
            return f"{stalled}: the terms are met; {left}"
        if not at_limit:
            return f"no point was found that meets the terms: {note_on_least}, and no small step lessens it"
        if least > eps2:
            return f"the terms were not met in {max_outer} outer steps; {note_on_least}; {left}"
        return f"stopped after {max_outer} outer steps: the terms are met, the model is not yet optimal; {left}"
    if bool(server.outer) and silent and least == float("inf"):
        return f"stopped at the limit of rounds, still waiting to hear from client {silent[0]!r}"
    must_wait = bool(server.outer) or bool(server.inner.hold)
    waiting = f"still waiting for client {silent[0]!r}; " if must_wait and silent else ""
    end = note_on_least or "no outer step was finished"
    return f"stopped at the limit of rounds in outer step {int(track.k)}; {waiting}{end}"
