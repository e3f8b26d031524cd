"""Terms that cannot be met, and problems badly posed, end with a sentence in bounded rounds and without NaN."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import ADMM, CAPPED, DIM, NAMES, NEWTON, NeymanPearson, Quadratic, breast_cancer
from infeasible_problems import contradictory, separable, unmeetable

import foedus as fd
from foedus.algorithms.proxal import OVER, SEARCH, UNDER_WAY, OuterProgress, is_hopeless, step_of_search

START = np.zeros(DIM)


def told(run: fd.Run, violation: float, sites: tuple[str, ...]) -> None:
    """The run has ended, without success, with a sentence on the smallest violation and where it is."""
    assert not run.converged
    assert not run.certificate.holds()
    assert "no feasible point was found" in run.reason
    said = float(run.reason.split("smallest violation found is ")[1].split(",")[0])
    assert said == pytest.approx(violation, rel=0.03)
    assert any(f"client {site!r}" in run.reason for site in sites)
    assert np.all(np.isfinite(run.w))
    assert all(np.all(np.isfinite(mu)) for mu in run.multipliers.values())
    assert run.certificate.feasibility == pytest.approx(violation, rel=0.03)
    assert "NOT certified" in str(run)
    assert "broken" in str(run)


@pytest.mark.parametrize(("algorithm", "most"), [(NEWTON, 400), (ADMM, 5000)], ids=["newton", "admm"])
def test_two_equalities_that_contradict_each_other(algorithm, most):
    run = fd.solve(contradictory().problem(), algorithm, w0=START)
    told(run, 0.5, NAMES[:2])  # the least squares of both is in the middle
    assert run.w[0] + run.w[1] == pytest.approx(1.5, abs=0.02)
    assert run.rounds <= most


@pytest.mark.parametrize(("inner", "most"), [("newton", 200), pytest.param("admm", 5000, marks=pytest.mark.slow)])
def test_a_cap_that_no_model_can_meet(inner, most):
    run = fd.solve(unmeetable().problem(), CAPPED[inner])
    told(run, np.log(2.0) - 0.2, NAMES[2:])
    assert run.rounds <= most
    others = [row for row in run.certificate.rows if row.site != NAMES[2]]
    assert all(row.verdict(1e-3) != "broken" for row in others), "the other sites' caps can be met, and are"


@pytest.mark.parametrize("inner", ["newton", pytest.param("admm", marks=pytest.mark.slow)])
def test_separable_data_without_a_minimiser(inner):
    case = separable()
    run = fd.solve(case.problem(), CAPPED[inner])
    assert np.all(np.isfinite(run.w))
    assert run.converged, run.reason
    assert run.certificate.holds(1e-3, 1e-3)
    found = case.residuals(run.w, run.multipliers)
    assert max(found.stationarity, found.feasibility, found.complementarity) <= 1e-3
    assert run.objective < 0.01
    assert run.rounds <= 2000


@pytest.mark.slow
def test_the_pooled_method_ends_with_a_sentence_too():
    run = fd.solve(contradictory().problem(), fd.CentralProxAL(), w0=START)
    assert not run.converged
    assert "no feasible point was found" in run.reason
    assert run.rounds <= 400
    assert np.all(np.isfinite(run.w))
    stopped = fd.solve(contradictory().problem(), fd.CentralProxAL(), w0=START, max_rounds=2)
    assert "limit of rounds" in stopped.reason


@pytest.mark.parametrize(("away", "hopeless"), [(500.0, False), (2000.0, True)])
def test_terms_are_hopeless_where_no_point_within_a_thousand_units_can_meet_them(away, hopeless):
    """θ is half the sum of squared violations; where its slope is s, no point closer than 2θ/s meets convex terms."""
    problem = Quadratic.random(1).problem().over(START)
    server = NEWTON.init(problem.terms, np.full(DIM, 2.0 / DIM), problem.server)
    slope = np.zeros((3, DIM))
    slope[:, 0] = 1e-3 / 3
    theta, bend = 0.5e-3 * away / 3, np.zeros((3, DIM))
    bend[:, 0] = 1e-3 * away / 3  # the unit of the first column is 1
    excess = replace(server.accounts.excess, theta=np.full(3, theta), gradient=slope, bend=bend)
    # the rows of the server are met: they add nothing to θ
    own = {name: np.zeros_like(rows) for name, rows in server.own.items()}
    server = replace(server, own=fd.Data(own), accounts=replace(server.accounts, excess=excess))
    assert bool(is_hopeless(problem.terms, server)) == hopeless


def test_evidence_is_searched_for_once_and_the_run_goes_on_with_the_beta_that_it_had():
    track, beta = OuterProgress.blank(), jnp.asarray(90.0)
    track, beta = step_of_search(track, beta, jnp.asarray(False))
    assert float(beta) == 90.0
    track, beta = step_of_search(track, beta, jnp.asarray(True))
    assert (float(beta), int(track.search)) == (SEARCH, UNDER_WAY)
    for _ in range(3):
        track, beta = step_of_search(track, beta, jnp.asarray(True))
        assert (float(beta), int(track.search)) == (90.0, OVER)


@pytest.mark.slow
def test_a_search_in_the_middle_of_a_run_spoils_nothing(monkeypatch):
    """It is made to begin after two outer steps, on terms that can be met: multipliers and optimum stay."""
    monkeypatch.setattr("foedus.algorithms.proxal.NO_PROGRESS", 0.0)
    case = breast_cancer()
    usual = fd.solve(case.problem(), CAPPED["newton"])
    run = fd.solve(case.problem(), fd.ProxAL(eps1=0.99e-3))  # a program of its own, in which the change is seen
    assert np.max(run.history["residual"]) > 1e3 * np.max(usual.history["residual"]), "no search was made"
    assert run.converged, run.reason
    assert run.objective == pytest.approx(usual.objective, rel=1e-3)
    found = case.residuals(run.w, run.multipliers)
    assert max(found.stationarity, found.feasibility, found.complementarity) <= 1e-3


def test_a_limit_of_outer_steps_is_said():
    run = fd.solve(Quadratic.random(1).problem(), replace(NEWTON, max_outer=2), w0=START)
    assert not run.converged
    assert "2 outer steps" in run.reason
    assert "smallest violation found is" in run.reason


def test_a_site_without_the_capped_label_is_named():
    sites = dict(breast_cancer().sites)
    X, y = sites[NAMES[1]]
    sites[NAMES[1]] = (X, np.zeros_like(y))
    with pytest.raises(fd.FoedusError, match=r"client 'birch': no example has label 1, so its loss cap is undefined"):
        NeymanPearson(sites).problem()
