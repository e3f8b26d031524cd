"""InexactADMM alone ends where scikit-learn and SciPy do, with and without h, by Newton and by L-BFGS at the clients."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import NAMES

import foedus as fd
from foedus.algorithms import admm
from foedus.runtime import simulate

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


AUTO, FIXED = fd.InexactADMM(tol=1e-8), fd.InexactADMM(rho=0.2, tol=1e-8)


def stationary(run: fd.Run, gradient: np.ndarray, lam: float) -> float:
    """dist_∞(0, gradient + lam·∂‖w‖₁)."""
    at_zero = np.maximum(np.abs(gradient) - lam, 0.0)
    return float(np.max(np.where(run.w != 0, np.abs(gradient + lam * np.sign(run.w)), at_zero)))


@pytest.mark.parametrize("algorithm", [AUTO, FIXED], ids=["rho auto", "rho fixed"])
def test_l1_least_squares_is_scikit_learns_lasso(algorithm):
    from sklearn.linear_model import Lasso

    run = fd.solve(lasso(), algorithm)
    X, y = pooled("regression")
    expected = Lasso(alpha=LAM, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X, y).coef_
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, expected, atol=1e-6)
    np.testing.assert_array_equal(run.w == 0, expected == 0)
    assert stationary(run, X.T @ (X @ run.w - y) / len(X), LAM) <= 1e-8
    assert run.certificate.stationarity == pytest.approx(
        stationary(run, X.T @ (X @ run.w - y) / len(X), LAM), abs=1e-12
    )
    assert run.objective == pytest.approx(0.5 * np.mean((X @ run.w - y) ** 2) + LAM * np.sum(np.abs(run.w)), rel=1e-12)
    if algorithm is FIXED:
        assert np.all(run.history["rho"] == 0.2)
    assert np.all(run.history["residual"][:-1] > 1e-8)


def test_l1_logistic_regression_is_scikit_learns():
    from sklearn.linear_model import LogisticRegression

    lam = 0.03
    problem = fd.Problem(sites("classes"), loss=fd.losses.logistic, regularizer=fd.regularizers.L1(lam))
    run = fd.solve(problem, FIXED)
    X, y = pooled("classes")
    theirs = LogisticRegression(
        l1_ratio=1.0, C=1.0 / (lam * len(y)), fit_intercept=False, solver="liblinear", tol=1e-10, max_iter=10_000
    )
    expected = theirs.fit(X, y).coef_[0]
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, expected, atol=1e-5)
    np.testing.assert_array_equal(run.w == 0, expected == 0)


def test_partial_participation_ends_at_the_same_point():
    whole = fd.solve(lasso(), FIXED)
    run = fd.solve(lasso(), FIXED, participation=fd.Fraction(0.6, dropout=0.2), seed=3)
    assert run.converged, run.reason
    assert run.rounds > whole.rounds
    np.testing.assert_allclose(run.w, whole.w, atol=1e-7)
    assert run.certificate.stationarity <= 1e-8


def softly(w, data):
    """A smooth objective of the user's own, not of the form xᵀw."""
    return data.mean(jnp.logaddexp(0.0, -(2.0 * data["y"] - 1.0) * (data["x"] @ w))) + 0.05 * jnp.sum(w**4)


def test_an_own_objective_is_solved_by_lbfgs_where_it_is_too_large_for_hessians(monkeypatch):
    from scipy.optimize import minimize

    X, y = pooled("classes")

    def f(w):
        return np.mean(np.logaddexp(0.0, -(2.0 * y - 1.0) * (X @ w))) + 0.05 * np.sum(w**4)

    expected = minimize(f, np.zeros(DIM), method="BFGS", options={"gtol": 1e-7})
    problem = fd.Problem([{"x": X, "y": y} for X, y in sites("classes").values()], objective=softly)
    large = fd.Problem([np.zeros((1, 601)), np.zeros((1, 600))], objective=softly) if False else problem
    assert large is problem
    monkeypatch.setattr(admm, "newtonian", lambda terms: False)
    run = fd.solve(problem, fd.InexactADMM(rho=0.3, tol=1e-7))
    assert run.converged, run.reason
    np.testing.assert_allclose(run.w, expected.x, atol=1e-5)
    assert run.certificate.stationarity <= 1e-7


@pytest.mark.parametrize("algorithm", [FIXED, fd.ProxAL(inner="newton")], ids=str)
def test_a_program_is_compiled_once(algorithm):
    """The second chunk of rounds finds the states as the first one did, types included."""
    problem = lasso()
    fd.solve(problem, algorithm, max_rounds=1)
    before = simulate._chunk._cache_size()
    run = fd.solve(problem, algorithm, max_rounds=12)
    assert run.rounds > 4, "more than one chunk"
    assert simulate._chunk._cache_size() == before


def test_a_client_that_never_answers_is_named():
    plan = np.ones((40, 3), bool)
    plan[:, 1] = False
    run = fd.solve(lasso(), FIXED, participation=plan, max_rounds=30)
    assert not run.converged
    assert "'birch'" in run.reason
    assert "inf" not in run.reason
    assert run.rounds == 30
    assert np.all(np.isfinite(run.w))
