"""Weights of the sites: by rows the answer is the fit on the pooled rows, whatever the algorithm."""

from dataclasses import replace

import cases
import numpy as np
import pytest
from scipy.optimize import minimize

import foedus as fd
from foedus.problem.pooled import pool
from foedus.problem.weights import SiteWeights
from foedus.protocol.algorithm import name_of

GIVEN = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 4.0, "e": 2.5}


def row_weights(weights: object) -> np.ndarray:
    """The weight of each pooled row, by hand."""
    sizes = np.array(cases.SIZES)
    if weights == "rows":
        return np.full(sizes.sum(), 1 / sizes.sum())
    omega = np.array([GIVEN[name] for name in cases.NAMES]) / sum(GIVEN.values())
    return np.repeat(omega / sizes, sizes)


def pooled() -> tuple[np.ndarray, np.ndarray]:
    X, y = (np.concatenate([part[i] for part in cases.regression().values()]) for i in (0, 1))
    return X, y


def weighted_least_squares(weights: object, ridge: float = 0.0) -> np.ndarray:
    X, y = pooled()
    omega = row_weights(weights)
    return np.linalg.solve((X * omega[:, None]).T @ X + ridge * np.eye(X.shape[1]), X.T @ (omega * y))


QUICK = ("InteriorPoint", "FedGiA", "Scaffold")


@cases.over([replace(case, slow=name_of(case.algorithm) not in QUICK) for case in cases.ALL if not case.slow])
def test_every_algorithm_finds_the_pooled_fit_when_sites_weigh_by_rows(case):
    problem = fd.Problem(cases.regression(), loss=fd.losses.least_squares, weights="rows")
    run = fd.solve(problem, case.algorithm, max_rounds=case.rounds)
    np.testing.assert_allclose(run.w, weighted_least_squares("rows"), atol=max(case.error, 2e-6))
    X, y = pooled()
    assert run.objective == pytest.approx(0.5 * np.mean((X @ run.w - y) ** 2), rel=1e-9)


def test_given_weights_are_those_of_a_weighted_fit():
    problem = fd.Problem(cases.regression(), loss=fd.losses.least_squares, weights=GIVEN)
    run = fd.solve(problem, fd.InteriorPoint(eps1=1e-10, eps2=1e-10))
    np.testing.assert_allclose(run.w, weighted_least_squares("given"), atol=1e-9)
    assert "by the weights that the problem gives" in str(run)


def test_by_rows_and_by_site_agree_where_sites_have_as_many_rows():
    draw = np.random.default_rng(0)
    sites = [(draw.normal(size=(8, 2)), draw.normal(size=8)) for _ in range(3)]
    answers = [
        fd.solve(fd.Problem(sites, loss=fd.losses.least_squares, weights=weights), fd.InteriorPoint())
        for weights in ("rows", "sites")
    ]
    np.testing.assert_allclose(answers[0].w, answers[1].w, rtol=1e-12)
    assert answers[0].certificate.gap == pytest.approx(answers[1].certificate.gap, abs=1e-12)


@pytest.mark.parametrize("penalty", [fd.penalties.Ridge(3.0), fd.penalties.Ridge(0.2, per_example=False)])
def test_a_penalty_weighs_with_its_site(penalty):
    """Σ ω_i μ/(2 d_i) with ω_i = d_i/N is n·μ/(2N); without division by d_i the weights add up to one μ/2."""
    ridge = len(cases.SIZES) * 3.0 / sum(cases.SIZES) if penalty.per_example else 0.2
    problem = fd.Problem(cases.regression(), loss=fd.losses.least_squares, penalty=penalty, weights="rows")
    for algorithm in (fd.InteriorPoint(eps1=1e-10, eps2=1e-10), fd.FedGiA(H="gram", tol=1e-22)):
        run = fd.solve(problem, algorithm, max_rounds=3000)
        np.testing.assert_allclose(run.w, weighted_least_squares("rows", ridge), atol=1e-7)
    assert run.certificate.gap < 1e-9


def test_the_derivatives_of_a_weighted_site_are_those_of_its_value():
    import jax

    for penalty in (None, fd.penalties.Saturating(2.0)):
        for loss in (fd.losses.logistic, fd.losses.poisson):
            problem = fd.Problem(cases.classification(), loss=loss, penalty=penalty, weights=GIVEN)
            data, w = jax.tree.map(lambda v: v[3], problem.data), np.array([0.3, -0.2, 0.1, 0.5])
            value = lambda u, data=data, problem=problem: problem.terms.value(u, data)  # noqa: E731
            np.testing.assert_allclose(problem.terms.gradient(w, data), jax.grad(value)(w), atol=1e-12)
            np.testing.assert_allclose(problem.terms.hessian(w, data), jax.hessian(value)(w), atol=1e-12)
            even = fd.Problem(cases.classification(), loss=loss, penalty=penalty)
            plain = even.terms.value(w, jax.tree.map(lambda v: v[3], even.data))
            assert float(value(w)) == pytest.approx(float(plain) * 5 * 4.0 / 10.0, rel=1e-12)


def test_an_objective_of_ones_own_weighs_too():
    def squares(w, data):
        return 0.5 * data.mean((data.x @ w - data.y) ** 2)

    run = fd.solve(fd.Problem(cases.regression(), objective=squares, weights="rows"), fd.InteriorPoint())
    np.testing.assert_allclose(run.w, weighted_least_squares("rows"), atol=1e-7)


def test_where_only_some_rows_count_these_are_the_rows_that_weigh():
    sites, X_y = cases.classification(), []
    for X, y in sites.values():
        X_y.append((X[y == 0], y[y == 0]))
    X, y = (np.concatenate([part[i] for part in X_y]) for i in (0, 1))
    cap = fd.constraints.NormBall(1.0)
    problem = fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap], weights="rows")
    w = np.array([0.2, 0.1, -0.3, 0.4])
    assert problem.terms.weights.total == len(y)
    assert float(pool(problem).terms.value(w, _one(pool(problem)))) == pytest.approx(
        float(np.mean(np.logaddexp(0, X @ w))), rel=1e-12
    )


def _one(problem):
    import jax

    return jax.tree.map(lambda v: v[0], problem.data)


EXACT = fd.ProxAL(beta=30.0, s_bar=1e-6, eps1=1e-7, eps2=1e-7)


@pytest.mark.parametrize("algorithm", [fd.InteriorPoint(), EXACT], ids=["InteriorPoint", "ProxAL"])
def test_caps_are_means_over_a_site_whatever_it_weighs(algorithm):
    """The oracle minimises the pooled mean under a cap at each site, by SciPy."""
    X, y = pooled()
    sites, limit = cases.regression(), 0.34
    cap = fd.constraints.LossCap(lambda data: data["y"] == data["y"], limit)
    problem = fd.Problem(sites, loss=fd.losses.least_squares, constraints=[cap], weights="rows")
    run = fd.solve(problem, algorithm)
    rows = [
        {"type": "ineq", "fun": lambda w, X=X, y=y: limit - 0.5 * np.mean((X @ w - y) ** 2)} for X, y in sites.values()
    ]
    oracle = minimize(
        lambda w: 0.5 * np.mean((X @ w - y) ** 2), run.w, constraints=rows, method="SLSQP", options={"ftol": 1e-14}
    )
    assert any(row["fun"](oracle.x) < 1e-6 for row in rows), "the test needs a cap that binds"
    assert run.objective == pytest.approx(oracle.fun, abs=1e-5)
    assert all(row["fun"](np.asarray(run.w)) > -1e-5 for row in rows)


def test_masked_sums_give_the_same_answer():
    problem = fd.Problem(cases.classification(), loss=fd.losses.logistic, weights="rows")
    plain, masked = (fd.solve(problem, fd.InteriorPoint(), secure=secure) for secure in (False, True))
    np.testing.assert_allclose(masked.w, plain.w, atol=1e-9)
    assert masked.objective == pytest.approx(plain.objective, abs=1e-9)


def test_run_and_settings_say_which_weights_they_are():
    problem = fd.Problem(cases.regression(), loss=fd.losses.least_squares, weights="rows")
    run = fd.solve(problem, fd.InteriorPoint())
    assert "averaged over all 54 rows" in str(run)
    assert "averaged over" not in str(fd.solve(cases.problem(), fd.InteriorPoint()))


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ("row", "'row' instead. Did you mean 'rows'"),
        ({"a": 1.0}, "weights give nothing for client 'b'"),
        (GIVEN | {"z": 1.0}, "weights are given for 'z'"),
        (GIVEN | {"c": 0.0}, "client 'c': its weight must be a number > 0. Got 0.0"),
        (GIVEN | {"c": float("nan")}, "client 'c': its weight must be a number > 0"),
        (SiteWeights("rows", 12.0), "one client has more rows than the 12"),
        (3, "weights must be 'sites', 'rows'"),
    ],
)
def test_wrong_weights_get_a_sentence(weights, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        fd.Problem(cases.regression(), loss=fd.losses.least_squares, weights=weights)


@pytest.mark.parametrize("algorithm", [fd.DRFL(radius=0.1), fd.DRFA(), fd.AFL(), fd.WAFL(radius=0.1)], ids=str)
def test_algorithms_with_weights_of_their_own_refuse_others(algorithm):
    problem = fd.Problem(cases.classification(), loss=fd.losses.logistic, weights="rows")
    with pytest.raises(fd.FoedusError, match="leave weights= of the problem out"):
        fd.solve(problem, algorithm)


@pytest.mark.parametrize(
    "algorithm", [fd.FedAvg(lr=0.1), fd.FedProx(), fd.FedGiA(), fd.FedEPM(), fd.SFedAvg(), fd.PrivateNewton()], ids=str
)
def test_noise_is_refused_where_a_row_may_weigh_more_than_it_is_made_for(algorithm):
    """The noise covers a row of an f_i that weighs 1/n; with another factor it would cover less than is stated."""
    problem = fd.Problem(cases.classification(), loss=fd.losses.logistic, weights="rows")
    with pytest.raises(fd.FoedusError, match="leave weights= out, or the noise"):
        fd.solve(problem, algorithm, privacy=fd.Gaussian(epsilon=1.0, delta=1e-5, clip=1.0, rows=2.0), max_rounds=3)
