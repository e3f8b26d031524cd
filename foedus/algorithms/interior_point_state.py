"""The server's state in the interior-point method, and what it says of a run's end."""

from jax import Array

from foedus.algorithms.interior_point_rows import Rows
from foedus.algorithms.interior_point_server import System
from foedus.algorithms.interior_point_site import QuadraticModel
from foedus.base.pytrees import PyTree, state
from foedus.problem.terms import Data

INFEASIBLE, UNBOUNDED, NO_STEP, NOT_FINITE, STALLED, NO_PROGRESS = 1, 2, 3, 4, 5, 6  # why a run cannot go on
STEEP = 1e4  # multipliers that are larger than 1 + ‖∇f‖_∞ by this factor are named where no certificate was found
LONG = 0.02  # a relative step from a certified point that is this long points to a minimum at infinity


@state
class InteriorServer:
    base: System  # at the last point that was accepted
    past: Array  # the parts of the merit at the last points that were accepted, newest first
    x: Array  # the point that is asked about
    towards: Array  # the end of the whole step
    own: Rows  # the server's slacks and multipliers, moved to x
    alpha: Array
    mu: Array
    shift: Array  # of the matrix, beyond what makes it positive definite
    stretch: Array  # how many times longer than Newton's a step is, while the objective falls along straight lines
    id: Array
    rejected: Array
    whole: Array
    snapped: Array  # whether x lies on the rows of h that bind, to be tested and nothing else
    tried: Array  # μ when this was last done
    fresh: QuadraticModel  # the sum of the whole models about x
    heard: Array  # from how many sites there is one
    broken: Array  # how many of these are not finite
    lasts: Array  # rounds for which x has been asked about
    part: Array  # which of the rounds comes next in which x is asked about; 0 where one is enough
    running: QuadraticModel  # the sum of all sites' last models
    streak: Array  # rounds in a row that everybody answered
    data: Data | None
    memory: PyTree  # the pairs of L-BFGS where curvature is learnt; else ()
    gap: Array  # ½rᵀK⁻¹r + Σ s·z at the base
    step: Array  # ‖dw‖_∞/(1 + ‖w‖_∞) of the step from there
    top: Array  # f at the start
    least: Array  # the smallest stationarity, gap, Σ|c + s| and f so far
    idle: Array  # rounds since the stationarity became smaller, since any of these did, and since the merit did too
    units: Array  # of the variables, such that each had curvature 1 at the start
    patient: Array  # whether every point waits for everybody, because rows stay broken with sites' last models
    confirming: Array  # whether the next round asks for gradients alone
    done: Array
    ending: Array  # 0, or why it cannot go on


def reason_of(server: InteriorServer, converged: bool, sites: int, eps1: float, eps2: float, gap: float) -> str:
    """A sentence on why the run ended."""
    base, ending = server.base, int(server.ending)
    violation = f"the largest violations of all parties add up to {float(base.number('violation')):.3g}"
    if converged:
        what = f"the gap is at most {gap:g}" if eps1 == float("inf") else f"the certificate ({eps1:g}, {eps2:g}) holds"
        # a long step alone may follow a direction in which nothing changes, as with columns that repeat each other
        falls = float(server.step) >= LONG and float(server.gap) >= 0.01 * abs(float(base.f))
        if not falls:
            return f"{what} after {int(server.id)} point{'' if int(server.id) == 1 else 's'}"
        return f"{what}, but the objective still falls along a long step: there may be no minimiser"
    if ending == INFEASIBLE:
        return f"no point was found that meets the terms: {violation}"
    if ending == UNBOUNDED:
        return f"the objective is unbounded: it has fallen to {float(base.f):.3g}, and still falls"
    if ending == NOT_FINITE:
        return "the functions or their derivatives are not finite at the start; start elsewhere"
    if ending in (NO_STEP, NO_PROGRESS):
        why = "no step was found that lessens the residuals" if ending == NO_STEP else "no residual becomes smaller"
        if float(base.number("violation")) > eps2:
            return f"no point was found that meets the terms from this start: {violation}, and {why}"
        return f"{why}; stationarity is {float(base.stationarity):.2g}, and {violation}{steep(base)}"
    if ending == STALLED:
        return (
            f"rounding allows no smaller residuals: stationarity is {float(base.stationarity):.2g} in the units of the "
            f"columns, {violation}, and another step would lower the objective by about {float(server.gap):.1g}"
            f"{steep(base)}"
        )
    waiting = f", still waiting for {sites - int(server.heard)} of {sites} clients" if server.lasts else ""
    left = f"stationarity is {float(base.stationarity):.2g}, and {violation}{steep(base)}"
    return f"stopped at the limit of rounds{waiting}: {left}"


def steep(base: System) -> str:
    """What very large multipliers mean, to go at the end of a sentence."""
    size = float(base.number("weight")) ** 0.5
    if size < STEEP * (1.0 + float(base.force)):
        return ""
    return f"; multipliers have grown to {size:.1g}, so there may be none that a certificate could hold with"
