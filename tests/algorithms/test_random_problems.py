"""InteriorPoint on 400 random problems of ten kinds: every end is true, by measurements that share no code with foedus.

A problem is convex but for its gaps. CVXPY says what the optimum is, or that there is no feasible point; NumPy measures
the optimality conditions where a problem is not convex. `pytest -s` with this file prints the figures.
"""

from collections.abc import Callable

import numpy as np
import pytest
from random_problems import KINDS, Case, gaps, infeasible

import foedus as fd


def check_gaps(case: Case, run: fd.Run) -> None:
    """The optimality conditions of a problem with gaps, in NumPy: more than a first-order point is not promised."""
    w, total = run.w, case.ridge * run.w
    mu = np.asarray(run.multipliers["local"])
    for (x, y, group), prices in zip(case.sites.values(), mu, strict=True):
        z = x @ w
        values, slopes = np.logaddexp(0.0, z) - y * z, (1.0 / (1.0 + np.exp(-z)) - y)[:, None] * x
        total = total + np.mean(slopes, axis=0) / len(case.sites)
        gap = np.mean(values[group == 0]) - np.mean(values[group == 1])
        tilt = np.mean(slopes[group == 0], axis=0) - np.mean(slopes[group == 1], axis=0)
        total = total + (prices[0] - prices[1]) * tilt
        assert abs(gap) <= 0.1 + 1e-6
        assert np.all(prices >= 0)
        assert abs(prices[0] * (gap - 0.1)) <= 1e-6
        assert abs(prices[1] * (-gap - 0.1)) <= 1e-6
    assert np.max(np.abs(total)) <= 2e-6


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(40), marks=pytest.mark.slow)], ids=["one", "forty"])
def test_every_end_of_a_random_problem_is_true(kind, seeds):
    rounds, faults = [], []
    for seed in seeds:
        case = kind(np.random.default_rng([KINDS.index(kind), seed]))
        run = fd.solve(case.problem(), fd.InteriorPoint())
        rounds.append(run.rounds)
        try:
            check(kind, case, run)
        except AssertionError as error:
            faults.append((seed, run.rounds, run.reason, str(error)[:200]))
    print(f"\n{kind.__name__}: {len(rounds)} problems, median rounds {np.median(rounds):g}, most {np.max(rounds)}")
    assert not faults, faults
    assert np.median(rounds) <= (60 if kind is infeasible else 20), rounds


def check(kind: Callable[[np.random.Generator], Case], case: Case, run: fd.Run) -> None:
    if not case.meets:
        assert not run.converged
        assert "no feasible point was found" in run.reason
        assert run.certificate.contradiction is not None
        return
    assert "no feasible point was found" not in run.reason
    assert run.converged, run.reason
    if kind is gaps:
        return check_gaps(case, run)
    best = case.optimum()
    if not np.isfinite(best):  # drawn too tight: then it must have been told, and it was not
        raise AssertionError("CVXPY says that no point meets the terms")
    assert run.certificate.feasibility <= 1e-6
    assert run.objective == pytest.approx(best, rel=1e-5, abs=2e-6), (run.objective, best)
    return None
