"""InexactADMM alone ends where scikit-learn and SciPy do, with h and without, by Newton and by L-BFGS."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import NAMES

import foedus as fd
from foedus.algorithms import admm
from foedus.runtime.simulate import chunk, inputs_of, start

DIM, ROWS, LAM = 8, 20, 0.1
TRUE = np.array([2.0, -1.0, 1.5, 0.0, 0.0, 0.0, 0.0, 0.0])


@cache
def sites(kind: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Three clients with as many examples each, so that the mean of their means is the pooled one."""
    rng = np.random.default_rng(7)
    made = {}
    for name in NAMES:
        X = rng.normal(size=(ROWS, DIM)) * np.linspace(0.5, 2.0, DIM)
        z = X @ TRUE + rng.normal(size=ROWS)
        made[name] = (X, z if kind == "regression" else (z > 0).astype(float))
    return made


def pooled(kind: str) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate(part) for part in zip(*sites(kind).values(), strict=True))


@cache
def lasso() -> fd.Problem:
    return fd.Problem(sites("regression"), loss=fd.losses.least_squares, regularizer=fd.regularizers.L1(LAM))


FIXED = fd.InexactADMM(rho=0.2, tol=1e-8)


def stationary(run: fd.Run, gradient: np.ndarray, lam: float) -> float:
    """dist_∞(0, gradient + lam·∂‖w‖₁)."""
    at_zero = np.maximum(np.abs(gradient) - lam, 0.0)
    return float(np.max(np.where(run.w != 0, np.abs(gradient + lam * np.sign(run.w)), at_zero)))


@cache
def lasso_run() -> fd.Run:
    return fd.solve(lasso(), FIXED)


def test_l1_least_squares_is_scikit_learns_lasso():
    from sklearn.linear_model import Lasso

    run, (X, y) = lasso_run(), pooled("regression")
    expected = Lasso(alpha=LAM, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X, y).coef_
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, expected, atol=1e-6)
    np.testing.assert_array_equal(run.w == 0, expected == 0)
    left = stationary(run, X.T @ (X @ run.w - y) / len(X), LAM)
    assert left <= 1e-8, "τ bounds the residual at the returned point"
    assert run.certificate.stationarity == pytest.approx(left, abs=1e-12)
    assert run.objective == pytest.approx(0.5 * np.mean((X @ run.w - y) ** 2) + LAM * np.sum(np.abs(run.w)), rel=1e-12)
    assert np.all(run.history["rho"] == 0.2)
    assert np.all(run.history["residual"][:-1] > 1e-8)


def test_l1_logistic_regression_is_scikit_learns():
    from sklearn.linear_model import LogisticRegression

    lam = 0.03
    problem = fd.Problem(sites("classes"), loss=fd.losses.logistic, regularizer=fd.regularizers.L1(lam))
    run = fd.solve(problem, fd.InexactADMM(rho="auto", tol=1e-8))
    X, y = pooled("classes")
    theirs = LogisticRegression(
        l1_ratio=1.0, C=1.0 / (lam * len(y)), fit_intercept=False, solver="liblinear", tol=1e-10, max_iter=10_000
    )
    expected = theirs.fit(X, y).coef_[0]
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, expected, atol=1e-5)
    np.testing.assert_array_equal(run.w == 0, expected == 0)
    slope = X.T @ (1.0 / (1.0 + np.exp(-X @ run.w)) - y) / len(X)
    assert stationary(run, slope, lam) <= 1e-8


@pytest.mark.slow
def test_rounds_in_which_clients_are_missing_end_at_the_same_point():
    """Any two of three clients a round; then one of them never, which the run says."""
    plan = np.tile(~np.eye(3, dtype=bool), (14, 1))
    run = fd.solve(lasso(), FIXED, participation=plan)
    assert run.converged, run.reason
    assert run.rounds > lasso_run().rounds
    np.testing.assert_allclose(run.w, lasso_run().w, atol=1e-7)
    assert run.certificate.stationarity <= 1e-8

    plan[:, 1] = False
    plan[:, [0, 2]] = True
    stopped = fd.solve(lasso(), FIXED, participation=plan, max_rounds=30)
    assert (stopped.converged, stopped.rounds) == (False, 30)
    assert "'birch'" in stopped.reason
    assert "inf" not in stopped.reason
    assert np.all(np.isfinite(stopped.w))


def softly(w, data):
    """A smooth objective of the user's own, not of the form xᵀw."""
    return data.mean(jnp.logaddexp(0.0, -(2.0 * data["y"] - 1.0) * (data["x"] @ w))) + 0.05 * jnp.sum(w**4)


@pytest.mark.slow
def test_an_own_objective_is_solved_by_lbfgs_where_it_is_too_large_for_hessians(monkeypatch):
    from scipy.optimize import minimize

    X, y = pooled("classes")

    def f(w):
        return np.mean(np.logaddexp(0.0, -(2.0 * y - 1.0) * (X @ w))) + 0.05 * np.sum(w**4)

    expected = minimize(f, np.zeros(DIM), method="BFGS", options={"gtol": 1e-7})
    problem = fd.Problem([{"x": X, "y": y} for X, y in sites("classes").values()], objective=softly)
    monkeypatch.setattr(admm, "newtonian", lambda terms: False)
    run = fd.solve(problem, fd.InexactADMM(rho=0.3, tol=1e-7))
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, expected.x, atol=1e-5)
    assert run.certificate.stationarity <= 1e-7


def test_which_clients_are_solved_by_newton():
    shape = fd.Problem(sites("classes"), loss=fd.losses.logistic).terms
    own = fd.Problem([{"x": np.zeros((2, 3))}], objective=lambda w, data: jnp.sum(w**2))
    assert admm.newtonian(shape)
    assert admm.newtonian(own.over(np.zeros(600)).terms)
    assert not admm.newtonian(own.over(np.zeros(601)).terms)


@pytest.mark.parametrize("algorithm", [FIXED, *(fd.ProxAL(inner=i) for i in ("newton", "lbfgs", "admm"))], ids=str)
def test_states_come_out_of_a_round_with_the_types_they_went_in_with(algorithm):
    """JAX tells a written 1.0 from a computed one, and would compile the second chunk of rounds again."""
    problem = lasso().over(np.zeros(DIM))
    algorithm = algorithm.fit(problem).algorithm
    inputs = inputs_of(algorithm.fit(problem), fd.Fraction(1.0), 0)
    before = jax.eval_shape(lambda w: start(algorithm, problem.terms, w, problem.data, None), jnp.zeros(DIM))
    after, *_ = jax.eval_shape(lambda c: chunk(algorithm, problem.terms, c, inputs, jnp.zeros((), int)), before)
    kinds = [
        {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype, leaf.weak_type) for path, leaf in leaves}
        for leaves in (jax.tree_util.tree_leaves_with_path(before), jax.tree_util.tree_leaves_with_path(after))
    ]
    assert kinds[0] == kinds[1]
