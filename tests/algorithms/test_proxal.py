"""ProxAL ends at CVXPY's optimum with CVXPY's duals and a certificate that NumPy confirms, whoever was missing."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import (
    ADMM,
    CAPPED,
    DIM,
    NAMES,
    NEWTON,
    TIGHT,
    Coupled,
    NeymanPearson,
    Quadratic,
    breast_cancer,
    capped_run,
    quadratic_run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from proxal_runs import confirmed

import foedus as fd

START = np.zeros(DIM)
PAIRS = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]], bool)  # who answers; plans of pairs share a program


# --- Neyman-Pearson ---


@pytest.mark.parametrize("inner", CAPPED)
def test_a_neyman_pearson_model_is_certified_and_near_cvxpys_optimum(inner):
    run, case = capped_run(inner), breast_cancer()
    best = case.answer()
    confirmed(run, case.residuals(run.w, run.multipliers))
    assert run.certificate.holds(1e-3, 1e-3)
    f, losses = case.values(run.w)
    assert run.objective == pytest.approx(f, rel=1e-12)
    assert abs(f - best.objective) <= 2e-3 + 5e-3 * best.objective
    assert np.max(losses) <= case.cap + 1e-3
    np.testing.assert_allclose(run.multipliers["local"], best.multipliers["local"], atol=5e-3)
    assert np.all(run.multipliers["local"] >= 0)
    assert np.max(run.multipliers["local"]) > 1.0, "the cap costs something"


def test_newton_needs_the_fewest_rounds_and_gradients_the_fewest_bytes():
    newton, lbfgs, admm = (capped_run(inner) for inner in ("newton", "lbfgs", "admm"))
    assert newton.rounds < lbfgs.rounds < admm.rounds
    assert newton.rounds <= admm.rounds / 10
    for run in (newton, lbfgs):
        assert run.traffic.up + run.traffic.down < (admm.traffic.up + admm.traffic.down) / 2


def test_the_history_tells_outer_from_inner_rounds():
    run = capped_run("newton")
    outer = run.history["outer"]
    assert run.rounds == len(outer) == len(run.history["phase"])
    assert np.all(np.diff(outer) >= 0)
    assert f"{outer[-1]} outer steps" in run.reason
    assert np.sum(run.history["phase"] == 0) == outer[-1] + 1, "with everybody present, an outer step is one round"
    assert run.history["objective"][-1] == pytest.approx(run.objective, rel=1e-9)
    assert run.history["feasibility"][-1] == pytest.approx(run.certificate.feasibility, abs=1e-9)


def test_auto_takes_newton_for_few_variables_and_gradients_for_many():
    few = breast_cancer().problem().terms
    many = replace(few, shape=replace(few.shape, shapes=((501,),)))
    assert fd.ProxAL().inner_for(few) == "newton"
    assert fd.ProxAL().inner_for(many) == "lbfgs"
    assert fd.ProxAL().inner_for(replace(few, rows=(1, 0, 165))) == "lbfgs", "decoupling variables count"
    assert fd.ProxAL(inner="admm").inner_for(many) == "admm"


# --- quadratic programs: equalities and inequalities, local and global ---


@pytest.mark.parametrize("algorithm", [NEWTON, ADMM], ids=lambda a: a.inner)
def test_a_quadratic_program_ends_at_cvxpys_optimum_with_its_duals(algorithm):
    case = Quadratic.random(1)
    run, best = quadratic_run(1, algorithm), case.answer()
    confirmed(run, case.residuals(run.w, run.multipliers))
    assert run.objective == pytest.approx(best.objective, rel=1e-5)
    np.testing.assert_allclose(run.w, best.w, atol=1e-5)
    for scope in ("local", "global"):
        np.testing.assert_allclose(run.multipliers[scope], best.multipliers[scope], atol=1e-4)
    equal, most = run.multipliers["local"][:, 0], run.multipliers["local"][:, 1:]
    assert np.min(equal) < -0.1, "an equality's multiplier has either sign"
    assert np.all(most >= 0)
    assert np.max(most) > 0.1
    assert np.all(run.multipliers["global"] >= 0)
    assert run.multipliers["coupled"].shape == (0,)


def test_a_multiplier_is_the_price_of_its_cap():
    """Moving the right-hand sides by δ changes the optimum by −μ·δ."""
    case, base = Quadratic.random(1), quadratic_run(1)
    mu = base.multipliers["local"]
    steps = 1e-3 * np.sign(mu)
    moved = replace(case, equal=(case.equal[0], case.equal[1] + steps[:, :1]))
    moved = replace(moved, most=(case.most[0], case.most[1] + steps[:, 1:]))
    run = fd.solve(moved.problem(), NEWTON, w0=START)
    assert run.objective - base.objective == pytest.approx(-np.sum(mu * steps), rel=0.02)


@settings(max_examples=15)
@given(st.integers(0, 2**31 - 1), st.sampled_from([0.3, 1.0, 10.0, 30.0]))
def test_the_certificate_holds_on_random_convex_programs(seed, scale):
    """Whatever the instance and the size of f beside β."""
    made = Quadratic.random(seed)
    case = replace(made, A=scale * made.A, b=scale * made.b)
    run = fd.solve(case.problem(), NEWTON, w0=START)
    assert "no feasible point was found" not in run.reason, "some point meets the terms"
    if run.converged:
        confirmed(run, case.residuals(run.w, run.multipliers))
    else:
        assert "outer steps" in run.reason
        assert not run.certificate.holds()
    if scale <= 1.0:
        assert run.converged, run.reason


def test_terms_that_are_met_slowly_are_not_called_infeasible():
    """With f large beside β the multipliers climb for many outer steps, during which the violation hardly falls.

    A β that grows needs few.
    """
    fixed, longest = replace(NEWTON, beta=10.0), 0
    for seed in range(20):
        made = Quadratic.random(seed)
        case = replace(made, A=30.0 * made.A, b=30.0 * made.b)
        run = fd.solve(case.problem(), fixed, w0=START)
        assert "no feasible point was found" not in run.reason, seed
        longest = max(longest, run.history["outer"][-1])
        run = fd.solve(case.problem(), NEWTON, w0=START)
        assert run.converged, seed
        assert run.history["outer"][-1] <= 20
    assert longest == fixed.max_outer


def test_a_start_that_is_far_off_leads_to_the_same_point():
    run = fd.solve(Quadratic.random(1).problem(), NEWTON, w0=np.full(DIM, 50.0))
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, quadratic_run(1).w, atol=1e-5)


# --- coupled constraints ---


@pytest.mark.slow
def test_a_coupled_constraint_is_the_pooled_one():
    case = Coupled.random(1)
    best = case.answer()
    run = fd.solve(case.problem(), NEWTON, w0=START)
    confirmed(run, case.residuals(run.w, run.multipliers))
    shares = np.einsum("irj,j->ir", case.mean[0], run.w) - case.mean[1]
    assert np.max(shares) > 0.5, "no site meets the rows alone"
    np.testing.assert_allclose(run.w, best.w, atol=1e-5)
    assert run.objective == pytest.approx(best.objective, rel=1e-5)
    assert np.min(best.multipliers["coupled"]) > 0.1
    for scope in ("local", "global", "coupled"):
        np.testing.assert_allclose(run.multipliers[scope], best.multipliers[scope], atol=1e-4)
        assert np.all(run.multipliers[scope] >= 0)

    central = fd.solve(case.problem(), fd.CentralProxAL(**TIGHT), w0=START)
    confirmed(central, case.residuals(central.w, central.multipliers))
    np.testing.assert_allclose(central.w, run.w, atol=1e-5)
    for scope in ("local", "global", "coupled"):
        np.testing.assert_allclose(central.multipliers[scope], run.multipliers[scope], atol=1e-4)
    assert central.traffic.down == 0
    assert central.traffic.up == sum(leaf.nbytes for leaf in case.problem().over(START).data.values())


def test_a_run_that_stops_is_certified_whichever_coupled_rows_are_slack():
    """The decoupling variables' residuals count as much as the rows' gradients make of them."""
    slack = 0
    for seed in range(8):
        made = Coupled.random(seed)
        case = replace(made, mean=(4.0 * made.mean[0], 4.0 * made.mean[1]))
        run = fd.solve(case.problem(), NEWTON, w0=START)
        confirmed(run, case.residuals(run.w, run.multipliers))
        slack += np.sum(run.multipliers["coupled"] == 0)
    assert 0 < slack < 16


@pytest.mark.parametrize("algorithm", [NEWTON, pytest.param(ADMM, marks=pytest.mark.slow)], ids=lambda a: a.inner)
def test_a_regulariser_goes_with_constraints_and_leaves_the_decoupling_variables_alone(algorithm):
    case, lam = Coupled.random(5), 0.6
    run = fd.solve(case.problem(regularizer=fd.regularizers.L1(lam)), algorithm, w0=START)
    best = case.answer(lam)
    confirmed(run, case.residuals(run.w, run.multipliers, lam))
    assert run.objective == pytest.approx(best.objective, rel=1e-5)
    np.testing.assert_allclose(run.w, best.w, atol=1e-5)
    assert np.sum(run.w == 0) >= 2
    assert np.min(best.multipliers["coupled"]) > 0.1
    for scope in ("local", "global", "coupled"):
        np.testing.assert_allclose(run.multipliers[scope], best.multipliers[scope], atol=1e-4)


# --- the subproblems' accuracy ---


def test_the_accuracy_of_subproblems_falls_with_the_square_of_the_outer_step():
    """τ_k = s̄/(k+1)² with k from 0. Where the start is the answer, a run ends with the first τ_k ≤ ε1: 1/16 ≤ 0.1."""
    np.testing.assert_allclose(fd.ProxAL(s_bar=0.5).tau(np.arange(4)), [0.5, 0.5 / 4, 0.5 / 9, 0.5 / 16])
    problem = fd.Problem([(np.ones((2, 1)), np.zeros(2))], loss=fd.losses.least_squares)
    run = fd.solve(problem, fd.ProxAL(inner="newton", s_bar=1.0, eps1=0.1))
    assert run.converged, run.reason
    assert run.history["outer"][-1] == 4


# --- constraints that are not convex ---


def hole(w, data):
    """Stay out of a ball around a client's own point."""
    return data["radius"] - jnp.sum((w - data["b"]) ** 2)


def test_a_constraint_that_is_not_convex_is_met_and_stationary():
    """At the start the Hessian has negative entries on its diagonal, from which L-BFGS makes its first metric."""
    made = Quadratic.random(1)
    clients = [{"A": A, "b": b, "radius": 0.3 * np.ones(1)} for A, b in zip(made.A, 0.1 * made.b, strict=True)]
    problem = fd.Problem(
        clients,
        objective=lambda w, data: 0.5 * jnp.dot(w, data["A"] @ w) + 0.1 * jnp.dot(data["b"], w),
        constraints=[fd.constraints.Custom(hole, name="hole")],
    )
    run = fd.solve(problem, fd.ProxAL(inner="lbfgs"), w0=np.full(DIM, 0.01), max_rounds=2000)
    assert run.converged, run.reason
    assert run.certificate.holds(1e-3, 1e-3)
    away = [np.sum((run.w - client["b"]) ** 2) for client in clients]
    assert np.min(away) >= 0.3 - 1e-3
    gradient = np.mean(made.A, axis=0) @ run.w + 0.1 * np.mean([client["b"] for client in clients], axis=0)
    pull = sum(-2.0 * mu * (run.w - c["b"]) for mu, c in zip(run.multipliers["local"][:, 0], clients, strict=True))
    assert np.max(np.abs(gradient + pull)) <= 1e-3
    assert np.max(run.multipliers["local"]) > 0


# --- participation ---


@pytest.mark.parametrize(
    ("algorithm", "participation"),
    [
        (NEWTON, 0.5),
        pytest.param(NEWTON, fd.Fraction(1.0, dropout=0.3), marks=pytest.mark.slow),
        pytest.param(ADMM, fd.Fraction(0.6, dropout=0.2), marks=pytest.mark.slow),
    ],
    ids=["newton half", "newton dropout", "admm both"],
)
def test_missing_replies_delay_the_certificate_but_do_not_weaken_it(algorithm, participation):
    case = Quadratic.random(1)
    run = fd.solve(case.problem(), algorithm, w0=START, participation=participation, seed=5)
    confirmed(run, case.residuals(run.w, run.multipliers))
    np.testing.assert_allclose(run.w, case.answer().w, atol=1e-5)
    assert np.min(run.history["answered"]) < 3, "somebody was missing"
    assert run.rounds > quadratic_run(1, algorithm).rounds


@pytest.mark.slow
def test_a_client_that_is_asked_twice_does_not_hide_how_far_its_multiplier_moved():
    """One client's equality row converges slowly; it is asked again while another one is awaited."""
    nothing, target = np.zeros((3, 2, DIM)), 5e-5 * np.eye(DIM)[0]
    rows = np.zeros((3, 1, DIM))
    rows[0, 0, 0] = 1.0
    case = Quadratic(
        A=np.stack([100.0 * np.eye(DIM)] * 3),
        b=-np.stack([100.0 * target] * 3),
        equal=(rows, np.zeros((3, 1))),
        most=(nothing, np.ones((3, 2))),
        own=(np.zeros((2, DIM)), np.ones(2)),
    )
    run = fd.solve(case.problem(), NEWTON, w0=target, participation=np.tile(PAIRS[[0, 1]], (100, 1)))
    confirmed(run, case.residuals(run.w, run.multipliers))


@pytest.mark.parametrize("from_round", [0, 7])
def test_a_client_that_never_answers_again_is_named(from_round):
    plan = np.tile(PAIRS[[0, 2]], (100, 1))
    plan[from_round:, 1] = False
    plan[from_round::2, 2] = True
    run = fd.solve(Quadratic.random(1).problem(), NEWTON, w0=START, participation=plan, max_rounds=60)
    assert (run.converged, run.rounds) == (False, 60)
    assert f"{NAMES[1]!r}" in run.reason
    assert "limit of rounds" in run.reason
    assert np.all(np.isfinite(run.w))


# --- the reference runs of the released experiments ---


@pytest.mark.slow
def test_the_papers_settings_need_thousands_of_rounds_and_newton_a_thirtieth():
    """Breast cancer over 20 sites, all columns; an independent program needed 3,484 rounds of inexact ADMM."""
    case = breast_cancer(20, tuple(range(30)), seed=0)
    paper = fd.solve(case.problem(), fd.ProxAL(beta=300.0, inner="admm", rho=0.01))
    default = fd.solve(case.problem(), fd.ProxAL())
    for run in (paper, default):
        confirmed(run, case.residuals(run.w, run.multipliers))
    assert 3000 <= paper.rounds <= 4000
    assert default.rounds <= paper.rounds / 30
    assert default.traffic.up + default.traffic.down <= (paper.traffic.up + paper.traffic.down) / 2


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 5, 10])
def test_the_certificate_holds_over_any_number_of_sites(sites):
    case: NeymanPearson = breast_cancer(sites)
    run = fd.solve(case.problem(), fd.ProxAL())
    confirmed(run, case.residuals(run.w, run.multipliers))
    best = case.answer()
    assert abs(run.objective - best.objective) <= 2e-3 + 5e-3 * best.objective
