"""Awkward problems end in bounded rounds with a sentence that is true: no interior, no minimiser, no lower bound."""

import jax.numpy as jnp
import numpy as np
import pytest
from separable_rows import logistic, sites, slope

import foedus as fd
from foedus.problem.constraints import Linear, LossCap, NormBall

INTERIOR, PROXAL = fd.InteriorPoint(), fd.ProxAL()
BOTH = pytest.mark.parametrize(
    "algorithm", [pytest.param(INTERIOR, id="interior"), pytest.param(PROXAL, id="proxal", marks=pytest.mark.slow)]
)
FIRST = np.eye(4)[:1]  # the row w₀


def best_with_first(value: float) -> float:
    """The least objective with w₀ = value, by scipy."""
    from scipy.optimize import minimize

    def f(rest: np.ndarray) -> float:
        w = np.concatenate([[value], rest])
        return float(np.mean([np.mean(np.logaddexp(0.0, (1 - 2 * y) * (x @ w))) for x, y in sites().values()]))

    return float(minimize(f, np.zeros(3), tol=1e-12).fun)


@BOTH
def test_terms_without_an_interior_are_solved(algorithm):
    """w₀ ≤ 0.3 and w₀ ≥ 0.3."""
    rows = Linear(FIRST, [0.3], scope="global"), Linear(-FIRST, [-0.3], scope="global")
    run = fd.solve(logistic(*rows), algorithm)
    assert run.converged
    assert run.w[0] == pytest.approx(0.3, abs=1e-3)
    assert run.objective == pytest.approx(best_with_first(0.3), abs=1e-4)
    assert run.rounds <= 30


@BOTH
def test_equations_stated_twice_are_solved(algorithm):
    rows = Linear(FIRST, [0.3], "==", scope="global"), Linear(2.0 * FIRST, [0.6], "==", scope="global")
    run = fd.solve(logistic(*rows), algorithm)
    assert run.converged
    assert run.objective == pytest.approx(best_with_first(0.3), abs=1e-4)
    assert run.rounds <= 30


@BOTH
def test_a_ball_that_touches_a_plane_leaves_one_point_without_multipliers_and_ends(algorithm):
    """‖w‖ ≤ 1 and w₀ ≥ 1: only (1, 0, 0, 0), where no multipliers satisfy the optimality conditions."""
    run = fd.solve(logistic(NormBall(1.0, scope="global"), Linear(-FIRST, [-1.0], scope="global")), algorithm)
    np.testing.assert_allclose(run.w, np.eye(4)[0], atol=0.05)
    assert run.rounds <= 200
    assert run.certificate.feasibility <= 1e-3
    assert run.converged or "no smaller residuals" in run.reason
    assert "no feasible point was found" not in run.reason


@BOTH
def test_data_that_a_plane_separates_end_with_an_objective_near_zero(algorithm):
    split = {name: (x, (x[:, 0] > 0).astype(float)) for name, (x, _) in sites().items()}
    run = fd.solve(fd.Problem(split, loss=fd.losses.logistic), algorithm)
    assert run.rounds <= 60
    assert run.objective < 0.05
    assert run.certificate.gap > 0.1 * run.objective, "the gap says that there is more to be had"
    if algorithm is INTERIOR:
        assert "there may be no minimiser" in run.reason


def valley(w, data):
    return w[0] ** 2 - w[1] ** 2 + data["b"][0] * w[1]


@BOTH
@pytest.mark.parametrize("objective", [slope, valley])
@pytest.mark.parametrize("rows", [(), (Linear([[1.0, 0.0]], [1.0], scope="global"),)], ids=["free", "under a row"])
def test_an_objective_without_a_lower_bound_is_called_unbounded(algorithm, objective, rows):
    problem = fd.Problem([{"b": np.ones(2)}], objective=objective, constraints=list(rows))
    run = fd.solve(problem, algorithm, w0=np.zeros(2))
    assert not run.converged
    assert "the objective is unbounded" in run.reason
    assert run.rounds <= 100


def test_a_gentle_slope_without_a_lower_bound_is_called_unbounded_too():
    """One of 1e-5, along which steps of one length would take more rounds than anybody waits for."""
    problem = fd.Problem([{"b": np.full(2, 1e-5)}], objective=slope)
    run = fd.solve(problem, INTERIOR, w0=np.zeros(2))
    assert "the objective is unbounded" in run.reason
    assert run.rounds <= 40


@pytest.mark.parametrize("algorithm", [INTERIOR, PROXAL, None])
def test_a_loss_with_kinks_under_a_cap_is_refused(algorithm):
    signs = {name: (x, 2.0 * y - 1.0) for name, (x, y) in sites().items()}
    problem = fd.Problem(signs, loss=fd.losses.hinge, constraints=[LossCap(fd.label(1), at_most=0.5)])
    with pytest.raises(fd.FoedusError, match=r"kinks; use a smooth loss \(smooth_hinge, huber, logistic\)"):
        fd.solve(problem, algorithm)


def double_well(w, data):
    return w[0] ** 2 - w[1] ** 2 + w[1] ** 4 + 0.0 * data["b"][0]


def hilltop(w, data):
    return -jnp.sum(w**2) + jnp.sum(w**4) + 0.0 * data["b"][0]


@BOTH
@pytest.mark.parametrize(("objective", "kind"), [(double_well, "saddle point"), (hilltop, "maximum")])
def test_a_stationary_point_that_is_no_minimum_is_called_so(algorithm, objective, kind):
    run = fd.solve(fd.Problem([{"b": np.ones(2)}], objective=objective), algorithm, w0=np.zeros(2))
    assert run.certificate.kind == kind
    assert any(line.startswith(f"the point is a {kind}, not a minimum") for line in str(run).splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("eps", [1e-9, 1e-16])
def test_proxal_reaches_tight_tolerances_or_says_which_residual_is_left(eps):
    problem = logistic(LossCap(fd.label(1), at_most=0.5), where=fd.label(0))
    run = fd.solve(problem, fd.ProxAL(eps1=eps, eps2=eps))
    assert run.rounds <= 400
    if run.converged:
        assert run.certificate.holds(eps, eps)
    else:
        assert "the stationarity is" in run.reason
        assert f"> {eps:g}" in run.reason
        assert run.certificate.stationarity < 1e-8
    assert run.converged == (eps == 1e-9)


def test_units_in_which_rounding_exceeds_the_tolerance_end_with_a_small_gap():
    large = {name: (1e8 * x, y) for name, (x, y) in sites().items()}
    run = fd.solve(fd.Problem(large, loss=fd.losses.logistic), fd.InteriorPoint(eps1=1e-9))
    plain = fd.solve(fd.Problem(sites(), loss=fd.losses.logistic), fd.InteriorPoint(eps1=1e-9))
    assert run.rounds <= 60
    assert run.converged or "rounding allows no smaller residuals" in run.reason
    assert run.objective == pytest.approx(plain.objective, abs=1e-10)
