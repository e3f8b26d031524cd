"""Columns in mixed units, caps that hardly any model meets, groups and simplexes: certified within 100 rounds."""

import cvxpy as cp
import numpy as np
import pytest
from hard_scales_setup import weak
from random_problems import DIM, KINDS, Case, cap, capped, drawn, infeasible, loss, solved

import foedus as fd

GROUPS = (0, 0, 1, 1, 2)


def mixed(seed: int) -> Case:
    """Columns between 1e-6 and 1e6."""
    rng = np.random.default_rng([77, seed])
    sites, most = drawn(rng, 10.0 ** rng.uniform(-6, 6, size=DIM)), rng.uniform(0.3, 0.6)
    return Case(sites, [cap(1, most)], capped(sites, 1, most), where=0, ridge=1e-9)


def residuals(case: Case, run: fd.Run) -> tuple[float, float, float]:
    """Stationarity, feasibility and complementarity in NumPy; on convex terms they say that the point is an optimum."""
    w, total, broken, priced = run.w, case.ridge * run.w, 0.0, 0.0
    for (x, y), prices in zip(case.sites.values(), np.asarray(run.multipliers["local"]), strict=True):
        z = x @ w
        values, slopes = np.logaddexp(0.0, z) - y * z, (1.0 / (1.0 + np.exp(-z)) - y)[:, None] * x
        total = total + np.mean(slopes, axis=0) / len(case.sites)
        for k, (price, term) in enumerate(zip(prices, case.terms, strict=True)):
            c = np.mean(values[y == k]) - term.at_most
            total = total + price * np.mean(slopes[y == k], axis=0)
            broken, priced = max(broken, c), max(priced, abs(price * c))
            assert price >= 0.0
    return float(np.max(np.abs(total))), float(broken), float(priced)


def quick(seeds: int, first: int) -> list:
    return [seed if seed < first else pytest.param(seed, marks=pytest.mark.slow) for seed in range(seeds)]


@pytest.mark.parametrize("seed", quick(16, 3))
def test_columns_in_mixed_units_are_certified_within_a_hundred_rounds(seed):
    case = mixed(seed)
    run = fd.solve(case.problem(), fd.InteriorPoint())
    assert run.certificate.holds(1e-6, 1e-6), run.reason
    assert run.rounds <= 20
    assert run.objective == pytest.approx(case.optimum(), rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("seed", quick(8, 1))
def test_a_weak_slater_point_is_enough_for_a_certificate_within_a_hundred_rounds(seed):
    case = weak(seed)
    run = fd.solve(case.problem(), fd.InteriorPoint())
    assert run.certificate.holds(1e-6, 1e-6), run.reason
    assert run.rounds <= 60
    assert np.max(run.multipliers["local"]) > 10.0
    assert max(residuals(case, run)) <= 2e-6, "CVXPY itself meets such caps to 1e-8 at best"


def test_multipliers_of_caps_that_no_model_meets_do_not_outgrow_the_evidence():
    """With a smaller δ far from the caps, this run ended with multipliers of 1e11 and without a proof."""
    case = infeasible(np.random.default_rng([KINDS.index(infeasible), 22]))
    run = fd.solve(case.problem(), fd.InteriorPoint())
    assert run.certificate.contradiction is not None
    assert run.certificate.contradiction.convex
    assert run.rounds <= 60


def rows_and_groups(seed: int, h: object, constrained: bool) -> tuple[fd.Problem, float]:
    """A problem with a regulariser that is not made of single coordinates, and CVXPY's optimum."""
    rng = np.random.default_rng([90, seed])
    sites, most = drawn(rng), rng.uniform(0.5, 0.65)
    ridge = fd.penalties.Ridge(1e-2, per_example=False)
    rows = [cap(1, most)] if constrained else []
    problem = fd.Problem(sites, loss=fd.losses.logistic, constraints=rows, regularizer=h, penalty=ridge)
    w = cp.Variable(DIM)
    goal = sum(loss(site, None, w) for site in sites.values()) / len(sites) + 0.5e-2 * cp.sum_squares(w)
    held = capped(sites, 1, most)(w) if constrained else []
    if isinstance(h, fd.regularizers.Simplex):
        held = [*held, w >= 0, cp.sum(w) == h.total]
    else:
        goal = goal + 0.05 * sum(cp.norm(w[np.array(GROUPS) == k]) for k in range(3))
    return problem, solved(cp.Problem(cp.Minimize(goal), held))


@pytest.mark.parametrize("seed", quick(4, 1))
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "capped"])
@pytest.mark.slow
def test_groups_are_certified_within_a_hundred_rounds_by_the_automatic_choice(seed, constrained):
    problem, best = rows_and_groups(seed, fd.regularizers.Group(0.05, GROUPS), constrained)
    run = fd.solve(problem)
    assert run.rounds <= 100
    assert run.certificate.holds(1e-6, 1e-6), run.reason
    assert run.objective == pytest.approx(best, abs=2e-6)


@pytest.mark.parametrize("seed", quick(4, 1))
def test_proxal_starts_inside_a_simplex_and_ends_within_a_hundred_rounds(seed):
    """From zero, which is outside, it took no step and ended after 50,000 rounds."""
    problem, best = rows_and_groups(seed, fd.regularizers.Simplex(1.0), constrained=True)
    run = fd.solve(problem, fd.ProxAL(eps1=1e-6, eps2=1e-6))
    assert run.rounds <= 100
    assert run.certificate.holds(1e-6, 1e-6), run.reason
    assert run.objective == pytest.approx(best, abs=2e-6)
