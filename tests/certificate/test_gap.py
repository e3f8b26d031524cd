"""The gap of a certificate: near the truth, the same in any units, and honest about points that are no minimum."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import breast_cancer
from hypothesis import given
from hypothesis import strategies as st

import foedus as fd
from foedus.certificate.measure import Certificate, measure


def drawn(seed: int = 0, columns: int = 4) -> list:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=columns)
    sites = []
    for rows in (30, 20, 25):
        x = rng.normal(size=(rows, columns))
        sites.append((x, (3.0 * x @ w + rng.normal(size=rows) > 0).astype(float)))
    return sites


def capped(scale=1.0, **more) -> fd.Problem:
    sites = [(x * scale, y) for x, y in drawn()]
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.42)
    return fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap], **more)


@pytest.fixture(scope="module")
def best() -> fd.Run:
    return fd.solve(capped(), fd.InteriorPoint(eps1=1e-9, eps2=1e-9))


def test_at_the_optimum_nothing_is_left(best):
    assert best.certificate.gap < 1e-10
    assert best.certificate.kind == "minimum"


def test_near_the_optimum_the_estimate_is_what_is_left(best):
    """Along the binding face; moves off it break or loosen caps, which is not the gap's to say."""
    problem = capped()
    rng = np.random.default_rng(1)
    rows = []
    for x, y in drawn():
        sick = x[y == 1]
        rows.append(-(1.0 / (1.0 + np.exp(sick @ best.w))) @ sick / len(sick))
    binding = np.array(rows)[np.asarray(best.multipliers["local"])[:, 0] > 0]
    assert len(binding)
    for _ in range(5):
        step = rng.normal(size=4)
        step -= np.linalg.pinv(binding) @ (binding @ step)
        objective, found = measure(problem, best.w + 1e-3 * step, best.multipliers)
        # a move along the face still changes the rows to second order, at their price
        prices = np.array([row.multiplier * (row.value - row.cap) for row in found.rows])
        left = objective + np.sum(prices) - best.objective
        assert found.gap == pytest.approx(left + np.sum(np.abs(prices)), rel=0.1, abs=1e-9)


@given(seed=st.integers(0, 10**6))
def test_the_gap_does_not_change_with_the_units_of_columns(seed, best):
    scale = 10.0 ** np.random.default_rng(seed).uniform(-6, 6, size=4)
    w = best.w + np.array([0.1, -0.05, 0.02, 0.0])
    _, plain = measure(capped(), w, best.multipliers)
    _, other = measure(capped(scale), w / scale, best.multipliers)
    assert other.gap == pytest.approx(plain.gap, rel=1e-6)


def test_with_a_ridge_the_bound_holds_and_is_told():
    problem = fd.Problem(drawn(), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(1.0))
    least = fd.solve(problem, fd.InteriorPoint(eps1=1e-10)).objective
    for w in np.random.default_rng(0).normal(size=(20, 4)):
        objective, found = measure(problem, w)
        assert objective - least <= found.gap_bound
    run = fd.solve(problem, fd.FedGiA(tol=1e-6))
    told = str(run).splitlines()[2]
    assert "at most" in told
    assert told.endswith("(proved)")


def test_a_column_that_repeats_another_leaves_the_gap_as_it_is():
    sites = drawn()
    twice = [(np.column_stack([x, x[:, 0]]), y) for x, y in sites]
    w = np.array([0.3, -0.2, 0.1, 0.4])
    _, plain = measure(fd.Problem(sites, loss=fd.losses.logistic), w)
    _, other = measure(fd.Problem(twice, loss=fd.losses.logistic), np.append(w, 0.0))
    assert other.gap == pytest.approx(plain.gap, rel=1e-6)


def saddle(w, data):
    return 0.5 * (w[0] ** 2 - w[1] ** 2) + 0.0 * data.mean(data["x"][:, 0])


def hill(w, data):
    return -0.5 * (w[0] ** 2 + w[1] ** 2) + 0.0 * data.mean(data["x"][:, 0])


@pytest.mark.parametrize(("objective", "kind"), [(saddle, "saddle point"), (hill, "maximum")])
def test_a_point_that_is_no_minimum_is_called_what_it_is(objective, kind):
    problem = fd.Problem(drawn(), objective=objective).over(np.zeros(2))
    _, found = measure(problem, np.zeros(2))
    assert found.stationarity == 0
    assert found.kind == kind
    assert found.gap is None
    assert found.optimality(0.0).startswith(f"the point is a {kind}, not a minimum")


def slope(w, data):
    return w[0] + 0.5 * w[1] ** 2 + 0.0 * data.mean(data["x"][:, 0])


def test_an_objective_that_falls_without_end_has_no_finite_gap():
    problem = fd.Problem(drawn(), objective=slope).over(np.zeros(2))
    _, found = measure(problem, np.array([0.0, 0.3]))
    assert found.gap == np.inf


@pytest.mark.parametrize(
    "regularizer", [fd.regularizers.L1(0.05), fd.regularizers.ElasticNet(0.03, 0.1), fd.regularizers.Box(-0.2, 0.2)]
)
def test_a_regulariser_holds_its_coordinates(regularizer):
    problem = fd.Problem(drawn(), loss=fd.losses.logistic, regularizer=regularizer)
    run = fd.solve(problem, fd.InteriorPoint(eps1=1e-9, eps2=1e-9))
    assert run.certificate.gap < 1e-9
    free = np.abs(run.w) > 0 if not isinstance(regularizer, fd.regularizers.Box) else np.abs(run.w) < 0.2
    objective, found = measure(problem, run.w + 1e-3 * free)
    assert found.gap == pytest.approx(objective - run.objective, rel=0.1)


def test_separable_data_have_a_gap_that_is_not_small_at_a_loose_certificate():
    """A certificate of 1e-3 says little there; the gap says so."""
    case = breast_cancer()
    loose = fd.solve(case.problem(), fd.ProxAL())
    tight = fd.solve(case.problem(), fd.InteriorPoint(eps1=1e-7, eps2=1e-7))
    left = loose.objective - tight.objective
    assert left / 5 < loose.certificate.gap < 5 * left


@pytest.mark.parametrize("units", [1e-6, 1e6, "mixed"])
def test_the_gap_of_a_run_does_not_change_with_units(units, best):
    """Uniform scales and one mixed between columns, at a point that a loose run returns."""
    scale = 10.0 ** np.linspace(-6, 6, 4) if units == "mixed" else np.full(4, units)
    w = fd.solve(capped(), fd.ProxAL()).w
    _, plain = measure(capped(), w, best.multipliers)
    _, other = measure(capped(scale), w / scale, best.multipliers)
    assert other.gap == pytest.approx(plain.gap, rel=1e-6)


def wide(scale=1.0, columns: int = 510, **stated) -> fd.Problem:
    rng = np.random.default_rng(0)
    sites = [(scale * rng.normal(size=(12, columns)), (rng.random(12) < 0.5).astype(float)) for _ in range(2)]
    return fd.Problem(sites, **({"loss": fd.losses.logistic} | stated))


RIDGE = fd.penalties.Ridge(0.5, per_example=False)
CAP = fd.constraints.LossCap(fd.label(1), at_most=0.3)


def test_beyond_the_columns_for_a_matrix_a_ridge_still_proves_a_bound():
    problem = wide(penalty=RIDGE)
    run = fd.solve(problem, fd.InteriorPoint(eps1=1e-4))
    assert 0 <= run.certificate.gap <= run.certificate.gap_bound < 1e-5
    objective, rough = measure(problem, np.zeros(510))
    assert objective - run.objective <= rough.gap_bound


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"penalty": RIDGE, "constraints": [CAP]},
        {"penalty": RIDGE, "constraints": [replace(CAP, scope="coupled")]},
        {"penalty": RIDGE, "constraints": [fd.constraints.Linear(np.ones((1, 510)), [0.1], scope="global")]},
        {"regularizer": fd.regularizers.ElasticNet(0.01, 0.1), "constraints": [CAP]},
        {"regularizer": fd.regularizers.Box(-0.01, 0.01)},
    ],
    ids=["nothing", "caps", "coupled", "global", "elastic net", "box"],
)
def test_from_products_the_gap_is_that_from_matrices(monkeypatch, stated):
    """At a point that no method returned, with multipliers that are not the best ones."""
    problem, rng = wide(**stated), np.random.default_rng(3)
    w = np.where(rng.random(510) < 0.3, 0.0, 0.01 * rng.normal(size=510)).clip(-0.01, 0.01)
    local, own, coupled = problem.terms.rows
    given = {"local": np.full((2, local), 0.7), "global": np.full(own, 0.2), "coupled": np.full(coupled, 0.4)}
    _, by_products = measure(problem, w, given)
    monkeypatch.setattr("foedus.certificate.measure.GAP_COLUMNS", 510)
    monkeypatch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
    _, by_matrix = measure(problem, w, given)
    assert by_matrix.gap > 1e-4
    assert by_products.gap == pytest.approx(by_matrix.gap, rel=0.02)
    assert by_products.kind == by_matrix.kind == "minimum"


@pytest.mark.parametrize("units", [1e-6, 1e6, "mixed"])
def test_from_products_the_gap_does_not_change_with_units(units):
    scale = 10.0 ** np.linspace(-6, 6, 510) if units == "mixed" else np.full(510, units)
    w = 0.01 * np.random.default_rng(3).normal(size=510)
    given = {"local": np.full((2, 1), 0.7)}
    _, plain = measure(wide(constraints=[CAP]), w, given)
    _, other = measure(wide(scale, constraints=[CAP]), w / scale, given)
    assert other.gap == pytest.approx(plain.gap, rel=1e-6)


def valley(w, data):
    """With a saddle at 0 in one of many directions."""
    return 0.5 * jnp.sum(w**2) - w[3] ** 2 + data.mean((data["x"] @ w) ** 4)


@pytest.mark.parametrize(("sign", "kind"), [(1.0, "saddle point"), (-1.0, "minimum")])
def test_from_products_a_saddle_is_called_one(sign, kind):
    """Also where the residual is 0, and sees no direction at all."""
    problem = wide(objective=valley, loss=None) if sign > 0 else wide(objective=bowl, loss=None)
    _, found = measure(problem.over(np.zeros(510)), np.zeros(510))
    assert found.stationarity == 0
    assert found.kind == kind


def bowl(w, data):
    return 0.5 * jnp.sum(w**2) + data.mean((data["x"] @ w) ** 4)


BOUNDED = {
    "simplex": (fd.regularizers.Simplex(1.5), lambda w: [w >= 0, cp.sum(w) == 1.5]),
    "l1 ball": (fd.regularizers.L1Ball(0.4), lambda w: [cp.norm1(w) <= 0.4]),
    "l2 ball": (fd.regularizers.L2Ball(0.3), lambda w: [cp.norm2(w) <= 0.3]),
    "wide ball": (fd.regularizers.L2Ball(50.0), lambda w: []),
}
GROUPS = (0, 0, 0, 1, 1, -1)


@pytest.mark.parametrize("columns", [3, 500], ids=["products", "matrices"])
@pytest.mark.parametrize("name", BOUNDED)
def test_on_the_boundary_of_a_domain_the_gap_is_what_cvxpy_still_gains(monkeypatch, name, columns):
    """At points that no method returned, near the optimum and on its face; with a ridge the bound holds too."""
    monkeypatch.setattr("foedus.certificate.measure.GAP_COLUMNS", columns)
    monkeypatch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
    rng, (h, stated) = np.random.default_rng(1), BOUNDED[name]
    X, y = rng.normal(size=(60, 6)), rng.normal(size=60)
    w = cp.Variable(6)
    goal = cp.sum_squares(X @ w - y) / 120 + 0.05 * cp.sum_squares(w)
    best = cp.Problem(cp.Minimize(goal), stated(w)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    there = np.where(np.abs(w.value) < 1e-6, 0.0, w.value)
    away = there * (1.0 + 0.02 * rng.normal(size=6))  # zeros stay zero
    if name != "wide ball":
        size = {"simplex": np.sum, "l1 ball": lambda v: np.sum(np.abs(v)), "l2 ball": np.linalg.norm}[name]
        away = away * (h.total if name == "simplex" else h.radius) / size(away)
    ridge = fd.penalties.Ridge(0.1, per_example=False)
    problem = fd.Problem(
        [(X[:30], y[:30]), (X[30:], y[30:])], loss=fd.losses.least_squares, penalty=ridge, regularizer=h
    )
    objective, found = measure(problem, away)
    assert objective - best > 1e-6
    assert found.gap == pytest.approx(objective - best, rel=0.1)
    assert objective - best <= found.gap_bound * (1.0 + 1e-6)


@pytest.mark.parametrize("columns", [3, 500], ids=["products", "matrices"])
def test_under_a_group_lasso_the_gap_is_what_cvxpy_still_gains(monkeypatch, columns):
    """One group is 0 at the optimum and one is not, so that its norm bends the objective."""
    monkeypatch.setattr("foedus.certificate.measure.GAP_COLUMNS", columns)
    monkeypatch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 6)), rng.normal(size=60)
    y += 2.0 * X[:, 3]
    w = cp.Variable(6)
    goal = cp.sum_squares(X @ w - y) / 120 + 0.05 * cp.sum_squares(w) + 0.5 * (cp.norm2(w[:3]) + cp.norm2(w[3:5]))
    best = cp.Problem(cp.Minimize(goal)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    there = np.where(np.abs(w.value) < 1e-5, 0.0, w.value)
    assert not there[:3].any()
    assert there[3:].all()
    problem = fd.Problem(
        [(X[:30], y[:30]), (X[30:], y[30:])],
        loss=fd.losses.least_squares,
        penalty=fd.penalties.Ridge(0.1, per_example=False),
        regularizer=fd.regularizers.Group(0.5, GROUPS),
    )
    objective, found = measure(problem, there * (1.0 + 0.02 * rng.normal(size=6)))
    assert objective - best > 1e-6
    assert found.gap == pytest.approx(objective - best, rel=0.05)
    assert objective - best <= found.gap_bound * (1.0 + 1e-6)


@dataclass(frozen=True)
class Half(fd.regularizers.Regularizer):
    """A regulariser of a user's own, with what every one must have: Σ|w_j|/2."""

    def value(self, w):
        return fd.regularizers.L1(0.5).value(w)

    def prox(self, v, step):
        return fd.regularizers.L1(0.5).prox(v, step)

    def distance(self, w, g):
        return fd.regularizers.L1(0.5).distance(w, g)


def test_a_regulariser_without_a_face_has_no_estimate_and_says_so():
    h = Half()
    sites = [(np.eye(4), np.ones(4))] * 2
    _, found = measure(fd.Problem(sites, loss=fd.losses.least_squares, regularizer=h), np.full(4, 0.1))
    assert found.gap is None
    told = found.optimality(1.0)
    assert told is not None
    assert "was not measured: Half ties coordinates together" in told


@pytest.mark.parametrize("columns", [3, 500], ids=["products", "matrices"])
def test_rows_that_leave_no_direction_leave_a_minimum(monkeypatch, columns):
    """Rounding once made a maximum of it."""
    monkeypatch.setattr("foedus.certificate.measure.GAP_COLUMNS", columns)
    monkeypatch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
    rng = np.random.default_rng(0)
    rows = fd.constraints.Linear(rng.normal(size=(6, 4)), np.ones(6))
    sites = [(rng.normal(size=(9, 4)), (rng.random(9) < 0.5).astype(float)) for _ in range(2)]
    problem = fd.Problem(sites, objective=lambda w, data: data.mean(jnp.sin(data["x"] @ w)), constraints=[rows])
    _, found = measure(problem.over(np.zeros(4)), np.full(4, 0.1), {"local": np.full((2, 6), 0.3)})
    assert found.kind == "minimum"
    slack = sum(0.3 * abs(row.value - row.cap) for row in found.rows)
    assert found.gap == pytest.approx(slack, rel=1e-9)


def test_an_estimate_that_does_not_settle_is_not_told(monkeypatch):
    monkeypatch.setattr("foedus.certificate.wide_gap.MOST", 3)
    _, found = measure(wide(), 0.01 * np.ones(510))
    assert found.gap is None
    told = found.optimality(0.7)
    assert told is not None
    assert "was not measured: its estimate did not settle within 3 products with the Hessian" in told


def test_an_estimate_beyond_the_objective_itself_names_no_best_objective():
    """A quadratic model far from the minimum once promised a logistic loss of −10.4."""
    certificate = replace(Certificate.unmeasured((), 2, 1e-6, 1e-6), gap=11.0)
    told = certificate.optimality(0.6)
    assert told is not None
    assert "is not known: a rough estimate, 11, is larger than the objective itself" in told
    assert "-10.4" not in told
    assert replace(certificate, floor=0.0).optimality(0.6) == (
        "the objective is at most 0.6 above the optimum, as it is never below 0"
    )
