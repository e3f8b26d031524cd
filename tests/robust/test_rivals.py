"""AFL, DRFA and WAFL: special cases of DRFL, their models by CVXPY, and the published stochastic algorithms."""

import cvxpy as cp
import numpy as np
import pytest
import robust_oracles as oracle
from robust_cases import LOSSES, clients

import foedus as fd

SITES = clients("logistic", 1)
LOSS = LOSSES["logistic"][0]


def problem() -> fd.Problem:
    return fd.Problem(SITES, loss=LOSS)


def losses_at(w: np.ndarray) -> np.ndarray:
    return np.array([oracle.plain("logistic", 0.0, w, X, y) for X, y in SITES])


def least(goal, held=()) -> float:
    return oracle.solved(cp.Problem(cp.Minimize(goal), list(held)))


def mean_losses(w) -> list:
    return [cp.sum(cp.logistic(-cp.multiply(y, X @ w))) / len(y) for X, y in SITES]


def test_afl_with_any_weights_is_the_least_largest_loss_and_a_ball_of_no_radius():
    w, top = cp.Variable(4), cp.Variable()
    best = least(top, [f <= top for f in mean_losses(w)])
    run = fd.solve(problem(), fd.AFL())
    assert run.converged, run.reason
    assert np.max(losses_at(run.w)) == pytest.approx(best, rel=1e-5)
    same = fd.solve(problem(), fd.DRFL(radius=0.0, theta=2.0))
    np.testing.assert_allclose(same.w, run.w, atol=1e-12)


@pytest.mark.slow
def test_without_radius_and_theta_it_is_the_standard_model():
    w = cp.Variable(4)
    best = least(sum(mean_losses(w)) / len(SITES))
    run = fd.solve(problem(), fd.AFL(theta=0.0, q_hat="uniform"))
    assert np.mean(losses_at(run.w)) == pytest.approx(best, rel=1e-5)
    ordinary = fd.solve(problem(), fd.FedAvg(k0=1, tol=1e-14), max_rounds=5000)
    assert np.mean(losses_at(run.w)) == pytest.approx(ordinary.objective, rel=1e-6)


def test_wafl_is_one_ball_around_the_mixture():
    X, y = (np.concatenate(part) for part in zip(*SITES, strict=True))
    w, lam = cp.Variable(4), cp.Variable(nonneg=True)
    alpha, held = oracle.omega("logistic", 0.0, w, lam, X, y, 0.5, "l1")
    best = least(0.05 * lam + cp.sum(alpha) / len(y), held)  # the sites are of one size
    run = fd.solve(problem(), fd.WAFL(radius=0.05, kappa=0.5))
    assert run.converged, run.reason
    found = oracle.worst_case("logistic", 0.0, run.w, X, y, 0.05, 0.5, "l1")
    assert found == pytest.approx(best, rel=1e-5)
    assert run.worst_case.value == pytest.approx(found, rel=1e-7)


def test_drfa_comes_near_its_model():
    best = np.max(losses_at(fd.solve(problem(), fd.AFL()).w))
    run = fd.solve(problem(), fd.DRFA(lr=0.1, lr_weights=0.01, average=False), max_rounds=4000)
    assert best - 1e-9 <= np.max(losses_at(run.w)) <= 1.03 * best
    plain = fd.solve(problem(), fd.AFL(theta=0.0))
    assert np.max(losses_at(run.w)) < np.max(losses_at(plain.w))


def test_drfa_alternates_its_two_rounds_and_keeps_weights_on_the_simplex():
    run = fd.solve(problem(), fd.DRFA(k0=1, lr=0.1, lr_weights=0.5, drawn=2), max_rounds=21)
    assert np.all(run.history["largest_weight"] >= 0.25 - 1e-12)
    assert np.all(run.history["largest_weight"] <= 1.0 + 1e-12)
    assert run.history["phase"].tolist() == [0, 1] * 10 + [0]


def test_adversarial_gradients_lower_the_loss_under_attack():
    run = fd.solve(problem(), fd.WAFLGradient(lr=0.2, lam=4.0, ascent=20), max_rounds=400)
    course = run.history["adversarial_objective"]
    assert course[-1] < 0.9 * course[0]
    # at the end, the mean gradient at the adversarial points vanishes
    total = np.zeros(4)
    for X, y in SITES:
        at = X.copy()
        for _ in range(20):
            slope = -y / (1.0 + np.exp(y * (at @ run.w)))
            at = at + 0.1 * (slope[:, None] * run.w - 8.0 * (at - X))
        total += (-y / (1.0 + np.exp(y * (at @ run.w)))) @ at / len(y)
    assert np.max(np.abs(total)) / len(SITES) < 2e-3
