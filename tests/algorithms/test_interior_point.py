"""InteriorPoint ends at the optima and duals of CVXPY, in few rounds, with a certificate that NumPy confirms."""

import os
from functools import cache

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import DIM, NAMES, Coupled, NeymanPearson, Quadratic, breast_cancer, solve
from infeasible_problems import contradictory, separable, unmeetable
from interior_point_setup import bowl, ring
from proxal_runs import confirmed

import foedus as fd
from foedus_lab.benchmarks.constrained import neyman_pearson
from foedus_lab.study.growth import Size, instance_of

POINT = fd.InteriorPoint()
START = np.zeros(DIM)
with_data = pytest.mark.skipif("FOEDUS_DATA" not in os.environ, reason="FOEDUS_DATA is not set")


@cache
def quadratic_run() -> fd.Run:
    return fd.solve(Quadratic.random(1).problem(), POINT, w0=START)


# --- the optimum, its multipliers, the certificate ---


def test_a_neyman_pearson_model_is_certified_and_is_cvxpys_optimum():
    case = breast_cancer()
    run, best = fd.solve(case.problem(), POINT), case.answer()
    confirmed(run, case.residuals(run.w, run.multipliers))
    assert run.certificate.holds(1e-6, 1e-6)
    assert run.objective == pytest.approx(best.objective, abs=1e-6)
    np.testing.assert_allclose(run.multipliers["local"], best.multipliers["local"], atol=1e-4)
    assert np.max(run.multipliers["local"]) > 1.0, "the cap costs something"
    assert run.rounds <= 12
    assert run.history["objective"][-1] == pytest.approx(run.objective, rel=1e-12)


def test_a_quadratic_program_with_equations_ends_at_cvxpys_optimum_with_its_duals():
    case, run = Quadratic.random(1), quadratic_run()
    best = case.answer()
    confirmed(run, case.residuals(run.w, run.multipliers))
    np.testing.assert_allclose(run.w, best.w, atol=1e-6)
    for scope in ("local", "global"):
        np.testing.assert_allclose(run.multipliers[scope], best.multipliers[scope], atol=1e-5)
    assert np.min(run.multipliers["local"][:, 0]) < -0.1, "an equation's multiplier has either sign"
    assert run.rounds <= 10


def test_a_coupled_row_is_the_pooled_one():
    case = Coupled.random(1)
    run, best = fd.solve(case.problem(), POINT, w0=START), case.answer()
    confirmed(run, case.residuals(run.w, run.multipliers))
    np.testing.assert_allclose(run.w, best.w, atol=1e-6)
    for scope in ("local", "global", "coupled"):
        np.testing.assert_allclose(run.multipliers[scope], best.multipliers[scope], atol=1e-5)
    assert np.min(best.multipliers["coupled"]) > 0.1


def test_a_start_that_is_far_off_leads_to_the_same_point():
    run = fd.solve(Quadratic.random(1).problem(), POINT, w0=np.full(DIM, 50.0))
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, quadratic_run().w, atol=1e-6)


def test_with_an_infinite_eps1_the_gap_is_asked_for():
    case = breast_cancer()
    run = fd.solve(case.problem(), fd.InteriorPoint(eps1=float("inf"), gap=1e-4))
    assert run.converged, run.reason
    assert "gap" in run.reason
    assert run.objective <= case.answer().objective + 1e-4
    assert run.certificate.feasibility <= 1e-6
    assert run.history["gap"][-1] <= 1e-4


def test_one_coupled_cap_over_a_thousand_sites_is_cheap():
    """The slack and the multiplier are the server's: a reply does not grow with the number of sites."""
    rng = np.random.default_rng(0)
    sites = []
    for _ in range(1000):
        X = np.column_stack([rng.normal(size=(12, 8)), np.ones(12)])
        y = (X @ np.linspace(-1, 1, 9) + rng.normal(size=12) > 0).astype(float)
        y[:2] = 0.0, 1.0
        sites.append((X, y))
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.3, scope="coupled")
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap]), POINT)
    assert run.converged, run.reason
    assert run.certificate.holds(1e-6, 1e-6)
    assert run.multipliers["coupled"][0] > 0.1, "the cap binds"
    assert run.rounds <= 10
    assert np.max(run.history["bytes_up"]) < 1000 * 1000
    assert np.max(run.history["bytes_down"]) < 1000 * 1000


# --- regularisers ---

H = fd.regularizers
SIMPLE = {
    "l1": (H.L1(0.3), lambda w: (0.3 * cp.norm1(w), [])),
    "elastic net": (H.ElasticNet(0.2, 0.5), lambda w: (0.2 * cp.norm1(w) + 0.25 * cp.sum_squares(w), [])),
    "box": (H.Box(-0.3, 0.4), lambda w: (0.0, [w >= -0.3, w <= 0.4])),
    "non-negative": (H.NonNegative(), lambda w: (0.0, [w >= 0])),
    "simplex": (H.Simplex(1.5), lambda w: (0.0, [w >= 0, cp.sum(w) == 1.5])),
    "l2 ball": (H.L2Ball(0.7), lambda w: (0.0, [cp.norm(w) <= 0.7])),
    "l1 ball": (H.L1Ball(0.8), lambda w: (0.0, [cp.norm1(w) <= 0.8])),
}


@pytest.mark.parametrize("name", [n if n == "box" else pytest.param(n, marks=pytest.mark.slow) for n in SIMPLE])
def test_a_regulariser_is_met_exactly_and_the_optimum_is_cvxpys(name):
    h, stated = SIMPLE[name]
    case = Coupled.random(5)
    problem = fd.Problem(
        {name: {"A": A, "b": b} for name, A, b in zip(NAMES, case.A, case.b, strict=True)},
        objective=case.problem().terms.objective,
        regularizer=h,
    )
    run = fd.solve(problem, POINT, w0=START)
    assert run.converged, run.reason
    assert run.certificate.holds(1e-6, 1e-6), str(run.certificate)
    w = cp.Variable(DIM)
    more, rows = stated(w)
    f = 0.5 * cp.quad_form(w, np.mean(case.A, axis=0), assume_PSD=True) + np.mean(case.b, axis=0) @ w
    best = solve(cp.Problem(cp.Minimize(f + more), rows))
    assert run.objective == pytest.approx(best, abs=1e-6)
    np.testing.assert_allclose(run.w, w.value, atol=1e-4)
    assert np.isfinite(float(h.value(run.w))), "w is in the domain"
    assert run.rounds <= 25


def test_a_regulariser_goes_with_rows_of_every_scope():
    case, lam = Coupled.random(5), 0.6
    run = fd.solve(case.problem(regularizer=H.L1(lam)), POINT, w0=START)
    best = case.answer(lam)
    confirmed(run, case.residuals(run.w, run.multipliers, lam))
    np.testing.assert_allclose(run.w, best.w, atol=1e-5)
    assert np.sum(run.w == 0) >= 2
    for scope in ("local", "global", "coupled"):
        np.testing.assert_allclose(run.multipliers[scope], best.multipliers[scope], atol=1e-4)


@pytest.mark.parametrize("h", [H.Box(0.2, 0.2), H.L2Ball(0.0), H.Simplex(0.0)], ids=["box", "ball", "simplex"])
@pytest.mark.slow
def test_a_domain_of_one_point_is_that_point(h):
    run = fd.solve(fd.Problem([(np.eye(3), np.ones(3))], loss=fd.losses.least_squares, regularizer=h), POINT)
    assert run.converged, run.reason
    np.testing.assert_array_equal(run.w, np.full(3, 0.2 if isinstance(h, H.Box) else 0.0))


def test_what_it_does_not_handle_is_refused_in_a_sentence():
    data = [(np.eye(3), np.ones(3))]
    grouped = fd.Problem(data, loss=fd.losses.least_squares, regularizer=H.Group(0.1, (0, 0, 1)))
    with pytest.raises(fd.FoedusError, match=r"InteriorPoint does not handle the regulariser Group; leave the choice"):
        fd.solve(grouped, POINT)
    wide = fd.Problem([(np.ones((2, 200_001)), np.ones(2))], loss=fd.losses.least_squares)
    with pytest.raises(fd.FoedusError, match=r"too many for 200001 of them \(at most 200000\); leave the choice"):
        fd.solve(wide, POINT)


# --- own objectives, problems that are not convex ---


def test_an_own_objective_over_a_tree_with_a_row_that_is_not_convex():
    """At the start the objective's Hessian is not positive definite, and neither is the row's."""
    clients = [{"b": np.array([0.1, 0.05 * i, 0.0])} for i in range(3)]
    problem = fd.Problem(clients, objective=bowl, constraints=[fd.constraints.Custom(ring, name="ring")])
    run = fd.solve(problem, POINT, w0={"a": np.array([0.3, 0.1]), "c": np.array([[0.4]])})
    assert run.converged, run.reason
    assert run.certificate.holds(1e-6, 1e-6)
    a, c = run.w["a"], run.w["c"][0, 0]
    assert a @ a + c**2 >= 1.0 - 1e-6
    gradient = np.append(2.0 * (a - [0.1, 0.05]), c - np.sin(c))
    pull = -2.0 * np.sum(run.multipliers["local"]) * np.append(a, c)
    np.testing.assert_allclose(gradient + pull, 0.0, atol=1e-5)
    assert np.sum(run.multipliers["local"]) > 0.05, "the row binds"


# --- who is missing ---


@pytest.mark.parametrize(
    "participation",
    [0.5, pytest.param(fd.Fraction(1.0, dropout=0.3), marks=pytest.mark.slow)],
    ids=["half", "dropout"],
)
def test_missing_replies_delay_the_certificate_but_do_not_weaken_it(participation):
    case = Quadratic.random(1)
    run = fd.solve(case.problem(), POINT, w0=START, participation=participation, seed=5)
    confirmed(run, case.residuals(run.w, run.multipliers))
    np.testing.assert_allclose(run.w, quadratic_run().w, atol=1e-6)
    assert np.min(run.history["answered"]) < 3, "somebody was missing"
    assert run.rounds <= 60


def test_a_site_that_never_answers_keeps_the_run_from_ending():
    plan = np.array([[1, 1, 0]], bool)
    run = fd.solve(Quadratic.random(1).problem(), POINT, w0=START, participation=plan, max_rounds=20)
    assert (run.converged, run.rounds) == (False, 20)
    assert "still waiting for 1 of 3 clients" in run.reason


def test_a_run_goes_on_from_its_checkpoint_to_the_same_answer(tmp_path):
    whole = quadratic_run()
    file = tmp_path / "run.npz"
    first = fd.solve(Quadratic.random(1).problem(), POINT, w0=START, max_rounds=3, checkpoint=file)
    assert not first.converged
    second = fd.solve(Quadratic.random(1).problem(), POINT, w0=START, checkpoint=file)
    assert second.rounds == whole.rounds
    np.testing.assert_array_equal(second.w, whole.w)


# --- endings without success ---


@pytest.mark.parametrize("case", [contradictory, unmeetable], ids=lambda case: case.__name__)
def test_terms_that_cannot_be_met_end_with_a_sentence(case):
    made = case()
    run = fd.solve(made.problem(), POINT, w0=START if isinstance(made, Quadratic) else None)
    assert not run.converged
    assert "no feasible point was found" in run.reason
    assert not run.certificate.holds()
    assert np.all(np.isfinite(run.w))
    assert run.rounds <= 30


def test_an_objective_without_a_lower_bound_ends_with_a_sentence():
    problem = fd.Problem([{"b": np.ones(2)}], objective=lambda w, data: jnp.dot(data["b"], w))
    run = fd.solve(problem, POINT, w0=np.zeros(2))
    assert not run.converged
    assert "the objective is unbounded" in run.reason
    assert run.rounds <= 30


def test_separable_data_are_said_to_have_no_minimiser():
    case: NeymanPearson = separable()
    run = fd.solve(case.problem(), POINT)
    found = case.residuals(run.w, run.multipliers)
    assert max(found.stationarity, found.feasibility, found.complementarity) <= 1e-6
    assert "there may be no minimiser" in run.reason
    assert run.objective < 1e-4
    assert run.rounds <= 30


def test_functions_that_are_not_finite_on_the_way_cost_a_shorter_step():
    """Newton's full step from the start leaves the domain of the logarithm."""

    def barrier(w, data):
        return jnp.sum(w - 0.01 * jnp.log(w)) + 0.0 * jnp.sum(data["b"])

    run = fd.solve(fd.Problem([{"b": np.ones(1)}] * 2, objective=barrier), POINT, w0=np.full(2, 5.0))
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, 0.01, atol=1e-6)
    assert np.min(run.history["step"]) < 1.0


# --- rounds ---


@with_data
@pytest.mark.parametrize(
    ("clients", "eps", "most"),
    [
        (5, 1e-3, 15),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in [(5, 1e-8, 35), (20, 1e-3, 20), (20, 1e-8, 35)]),
    ],
)
def test_breast_cancer_takes_few_rounds(clients, eps, most):
    from foedus_lab.papers.proxal_examples import BREAST

    run = fd.solve(BREAST.problem(clients, 0), fd.InteriorPoint(eps1=eps, eps2=eps))
    assert run.certificate.holds(eps, eps), str(run.certificate)
    assert run.converged
    assert run.rounds <= most


@with_data
def test_quadratic_programs_under_equations_take_three_rounds():
    from foedus_lab.papers.proxal_examples import Quadratic as Printed
    from foedus_lab.papers.proxal_examples import starts

    made = Printed.as_printed(100, 5)
    run = fd.solve(made.problem(), fd.InteriorPoint(eps1=1e-8, eps2=1e-8), w0=starts(0, 1, 100)[0])
    assert run.certificate.holds(1e-8, 1e-8), str(run.certificate)
    assert run.objective == pytest.approx(made.optimum(), rel=1e-7)
    assert run.rounds <= 4


@pytest.mark.parametrize(
    "rows", [30, pytest.param(1000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.slow)]
)
def test_many_rows_at_a_site_take_tens_of_rounds(rows):
    """The same half-spaces at ten sites: 104 rounds with 1,000 rows, when each pushed like one of a few."""
    instance = instance_of(Size(constraints=rows))
    run = fd.solve(instance.problem, fd.InteriorPoint())
    assert run.converged, run.reason
    assert run.rounds <= 40
    assert run.objective == pytest.approx(instance.best.value, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 5, 10, 20])
def test_separable_breast_cancer_takes_tens_of_rounds(clients):
    run = fd.solve(neyman_pearson(clients), fd.InteriorPoint(eps1=1e-8, eps2=1e-8))
    assert run.certificate.holds(1e-8, 1e-8), str(run.certificate)
    assert run.rounds <= 40


@with_data
@pytest.mark.slow
def test_fairness_on_adult_takes_few_rounds():
    from foedus_lab.papers.proxal_examples import fairness

    run = fd.solve(fairness(20, 0), fd.InteriorPoint(eps1=1e-3, eps2=1e-3))
    assert run.certificate.holds(1e-3, 1e-3), str(run.certificate)
    assert run.rounds <= 40


# --- what travels ---


def test_nothing_that_a_site_sends_depends_on_how_many_rows_it_holds():
    sent = []
    for rows in (1, 7):
        C = np.random.default_rng(0).normal(size=(rows, DIM))
        case = Quadratic.random(1)
        problem = fd.Problem(
            [{"A": A, "b": b} for A, b in zip(case.A, case.b, strict=True)],
            objective=case.problem().terms.objective,
            constraints=[fd.constraints.Linear(C, np.ones(rows))],
        ).over(START)
        terms = problem.terms
        client = POINT.join(terms, problem.client(0), START)
        ask = POINT.broadcast(terms, POINT.init(terms, jnp.zeros(DIM), None), jnp.zeros(3))
        reply = jax.eval_shape(
            lambda c, a, d, t=terms: POINT.local(t, c, a, d, None)[1], client, ask, problem.client(0)
        )
        sent.append([leaf.shape for leaf in jax.tree.leaves(reply)])
    assert sent[0] == sent[1]


def test_a_last_round_that_is_expected_to_pass_sends_gradients_alone():
    """It is of the second kind; where the expectation fails, the same point is asked about again."""
    sites = breast_cancer().sites
    problem = fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(1e-2, per_example=False))
    ends = []
    for eps1 in (1e-5, 1e-6, 1e-8, 1e-10):
        run = fd.solve(problem, fd.InteriorPoint(eps1=eps1))
        assert run.converged
        assert run.certificate.stationarity <= eps1
        ends.append(int(run.history["phase"][-1]))
        if ends[-1] == 1:
            assert run.history["bytes_up"][-1] == len(sites) * 8 * (problem.terms.dim + 1)
    assert 1 in ends
