"""What ProxAL says about itself: why a run ended, and why it has no private form."""

from foedus.algorithms.proxal_state import ProxalServer

RELEASES = {
    "newton": "the value, gradient and Hessian of its augmented Lagrangian (Newton steps)",
    "lbfgs": "the value and gradient of its augmented Lagrangian (L-BFGS steps)",
    "admm": "the solution of its augmented subproblem (ADMM steps)",
}


def why_not_private(inner: str) -> str:
    """Why ProxAL with this inner method has no private form, to go at the end of a sentence."""
    return (
        f"each round it sends {RELEASES[inner]} and how far its multipliers moved, and both are functions of "
        "multipliers that carry the data from round to round without a bound"
    )


def reason_of(
    server: ProxalServer, converged: bool, names: list[str], solver_ratio: float, eps2: float, max_outer: int
) -> str:
    """A sentence on why the run ended; `solver_ratio` is how far a subproblem solver missed its tolerance."""
    track = server.track
    note = f"; a subproblem solver ended at {solver_ratio:.1g} times its tolerance" if solver_ratio > 1 else ""
    if converged:
        return f"the stopping test of Algorithm 1 holds after {int(track.k)} outer steps{note}"
    least = float(track.least)
    whose = "the server" if int(track.least_at) == len(names) else f"client {names[int(track.least_at)]!r}"
    note_on_least = f"the smallest violation found is {least:.3g}, at {whose}" if least < float("inf") else ""
    answers = server.has_answered if bool(server.outer) else server.inner.fresh
    silent = [name for name, answer in zip(names, answers, strict=True) if not bool(answer)]
    if bool(track.gave_up) and int(track.k) < max_outer:
        return f"no point was found that meets the terms: {note_on_least}, and no small step lessens it"
    if bool(track.gave_up):
        if least > eps2:
            return f"the terms were not met in {max_outer} outer steps; {note_on_least}"
        return f"stopped after {max_outer} outer steps: the terms are met, the model is not yet optimal"
    if bool(server.outer) and silent and least == float("inf"):
        return f"stopped at the limit of rounds, still waiting to hear from client {silent[0]!r}"
    must_wait = bool(server.outer) or bool(server.inner.hold)
    waiting = f"still waiting for client {silent[0]!r}; " if must_wait and silent else ""
    end = note_on_least or "no outer step was finished"
    return f"stopped at the limit of rounds in outer step {int(track.k)}; {waiting}{end}"
