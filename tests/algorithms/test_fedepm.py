"""FedEPM, SFedAvg and SFedProx against their pseudo-code in NumPy; selection, silence, and the stopping rules."""

from itertools import pairwise

import numpy as np
import oracles
import pytest
from cases import DIM, NAMES, classification, problem
from played import rounds_played

import foedus as fd

M = len(NAMES)
PLAIN = {"rho": 1.0, "stop": "gradient", "tol": 0.0}


def soft(t, a):
    return np.sign(t) * np.maximum(np.abs(t) - a, 0)


def elastic_mean(z, lam, eta):
    """ENS by trying every kink and every stationary point."""
    best = []
    for column in z.T:
        m = len(column)
        points = [*column, *(np.mean(column) + lam / eta * (2 * s / m - 1) for s in range(m + 1))]
        best.append(min(points, key=lambda w: np.sum(lam * abs(column - w) + eta / 2 * (column - w) ** 2)))
    return np.array(best)


@pytest.mark.parametrize(("restart", "per_example"), [(False, True), (True, False)])
def test_fedepm_is_its_pseudocode(restart, per_example):
    """EPM Algorithm 2 without noise and with everybody in S."""
    k0, eta, lam, mu0, alpha, c = 3, 0.3, 0.05, 2.0 if not per_example else 20.0, 1.01, 0.1
    w, own, z = np.zeros(DIM), np.zeros((M, DIM)), np.zeros((M, DIM))
    for t in range(4):
        w = elastic_mean(z, lam, eta) if t else w
        for i, (X, y) in enumerate(classification().values()):
            g = oracles.mean_gradient(w, X, y, "logistic")
            u = w if restart else own[i]
            for j in range(k0):
                mu = mu0 * (1 + c * np.sum((u - w) ** 2)) * alpha ** (t * k0 + j + 1)
                mu = mu / len(y) if per_example else mu
                u = w + soft(mu * (u - w) - g, lam) / (eta + mu)
            own[i] = z[i] = u
    settings = {"k0": k0, "eta": eta, "lam": lam, "mu0": mu0, "alpha": alpha, "c": c}
    algorithm = fd.FedEPM(**settings, restart=restart, per_example=per_example, **PLAIN)
    run = fd.solve(problem("logistic"), algorithm, max_rounds=4)
    np.testing.assert_allclose(run.w, elastic_mean(z, lam, eta), atol=1e-10)


@pytest.mark.parametrize("steps", [1, 2], ids=["SFedAvg", "SFedProx"])
def test_sfedavg_and_sfedprox_are_their_pseudocode(steps):
    """EPM Algorithms 3-4 with the step (38)."""
    k0, mu, w = 3, 0.2 if steps > 1 else 0.0, np.zeros(DIM)
    for t in range(3):
        sent = []
        for X, y in classification().values():
            u = w
            for j in range(k0):
                gamma = 2 * len(y) / np.sqrt(2 * k0 + np.ceil((t * k0 + j) / k0)) / 50
                for _ in range(steps):
                    u = u - gamma * (oracles.mean_gradient(u, X, y, "logistic") + mu * (u - w))
            sent.append(u)
        w = np.mean(sent, axis=0)
    made = fd.SFedAvg(k0=k0, **PLAIN) if steps == 1 else fd.SFedProx(k0=k0, steps=2, mu=mu, **PLAIN)
    rates = [float(made.rate(np.asarray(k), np.asarray(7.0))) for k in range(5)]
    np.testing.assert_allclose(rates, [14 / np.sqrt(6 + np.ceil(k / 3)) for k in range(5)])
    scaled = Scaled(k0=k0, **PLAIN) if steps == 1 else ScaledProx(k0=k0, steps=2, mu=mu, **PLAIN)
    run = fd.solve(problem("logistic"), scaled, max_rounds=3)
    np.testing.assert_allclose(run.w, w, atol=1e-12)


class Scaled(fd.SFedAvg):
    """A fiftieth of (38), which is meant for features a two-hundredth of these in size."""

    def rate(self, k, count):
        return super().rate(k, count) / 50


class ScaledProx(fd.SFedProx):
    def rate(self, k, count):
        return super().rate(k, count) / 50


def rounds_of(algorithm, rounds, seed=0):
    """The server's z after each round, (rounds + 1, m, dim)."""
    outs = [rounds_played(problem("logistic"), algorithm, max_rounds=r, seed=seed) for r in range(1, rounds + 1)]
    return [np.zeros((M, DIM)), *(np.asarray(out.at.carry.server.z) for out in outs)]


def changed(tables):
    return np.array([np.any(after != before, axis=1) for before, after in pairwise(tables)])


def test_a_share_of_the_clients_takes_steps_and_the_server_reuses_the_rest():
    moved = changed(rounds_of(fd.FedEPM(rho=0.5, eta=0.1, mu0=20.0, stop="gradient", tol=0.0), 6))
    assert np.all(moved.sum(axis=1) == 3)  # ⌈0.5·5⌉
    assert len({tuple(row) for row in moved}) > 1


def test_with_coverage_everybody_takes_steps_in_each_block():
    moved = changed(rounds_of(fd.FedEPM(rho=0.4, every=3, eta=0.1, mu0=20.0, stop="gradient", tol=0.0), 9))
    assert np.all(moved.sum(axis=1) == 2)
    for block in range(3):
        assert np.all(np.any(moved[3 * block : 3 * block + 3], axis=0))


def test_coverage_that_cannot_be_is_refused():
    with pytest.raises(fd.FoedusError, match=r"FedEPM\(every=2\) takes 2 of 5 clients a round"):
        fd.solve(problem(), fd.FedEPM(rho=0.4, every=2))


def test_silent_clients_keep_their_last_upload():
    plan = np.ones((4, M), bool)
    plan[1:, 2] = False
    algorithm = fd.FedEPM(rho=1.0, eta=0.1, mu0=20.0, stop="gradient", tol=0.0)
    run = fd.solve(problem("logistic"), algorithm, participation=plan, max_rounds=4)
    assert not run.converged
    assert np.all(np.isfinite(run.w))
    np.testing.assert_array_equal(run.history["answered"], [M, M - 1, M - 1, M - 1])


@pytest.mark.parametrize("rule", [pytest.param("printed", marks=pytest.mark.slow), "released"])
def test_a_rule_ends_the_run_where_numpy_says(rule):
    """The rules of EPM section VII.B and of the released code, replayed on the history of f and the gradient."""
    settings = {"k0": 2, "rho": 0.6, "eta": 0.02, "mu0": 60.0, "noise": fd.PaperLaplace(20.0)}
    long = fd.solve(problem("logistic"), fd.FedEPM(**settings, stop="gradient", tol=0.0), max_rounds=300)
    f, error = M * long.history["objective"], long.history["gradient"]

    def ends(s):
        if error[s] < 1e-6 if rule == "printed" else error[s] / M**2 < 1e-9 * DIM:
            return True
        if s < 3:
            return False
        last = f[s - 3 : s + 1]
        if np.var(last, ddof=1) <= (1e-9 if rule == "released" else 1e-8) * DIM / (1 + abs(last[-1])):
            return True
        rising = f[s] > max(f[s - 3 : s]) and error[s] > max(error[s - 3 : s])
        return rising and rule != "printed"

    expected = next(s for s in range(len(f)) if ends(s))
    run = fd.solve(problem("logistic"), fd.FedEPM(**settings, stop=rule), max_rounds=300)
    assert run.rounds == expected + 1
    assert run.history["objective"][-1] == pytest.approx(run.objective, rel=1e-12), "the tested model is returned"
    rose = "rose above" in run.reason
    assert run.converged != rose, "a run that only rises has not converged, and says so"


def test_the_stationary_points_are_optima_whatever_the_weights():
    """Σ g_i(w) = 0 follows from (19) and a fixed point of (20) where no w_i agrees with w in a coordinate."""
    w, _ = oracles.pooled_minimum(classification(), "logistic", 0.0)
    algorithm = fd.FedEPM(k0=2, mu0=4.0, alpha=1.0, eta=0.05, lam=0.0, per_example=False, **(PLAIN | {"tol": 1e-18}))
    run = fd.solve(problem("logistic"), algorithm, max_rounds=4000)
    assert run.converged
    assert np.max(np.abs(run.w - w)) < 1e-7


def test_a_weight_that_makes_the_penalty_exact_stops_the_algorithm_where_it_starts():
    """With λ above every gradient, as Theorem III.1 has it, soft thresholding leaves w_i at w."""
    algorithm = fd.FedEPM(k0=2, mu0=4.0, eta=0.05, lam=10.0, per_example=False, **PLAIN)
    run = fd.solve(problem("logistic"), algorithm, w0=np.full(DIM, 0.3), max_rounds=5)
    np.testing.assert_array_equal(run.w, np.full(DIM, 0.3))
    assert run.certificate.stationarity > 0.01


def test_the_papers_constants_are_the_defaults():
    resolved = fd.FedEPM().fit(problem()).algorithm
    assert resolved.eta == pytest.approx((0.02 * M + 1) * 0.6 * 1e-5)
    assert resolved.lam == pytest.approx(resolved.eta / 2)
    assert (resolved.mu0, resolved.c, resolved.alpha, resolved.rho) == (0.05, 1e-8, 1.001, 0.5)
    assert (fd.SFedProx().mu, fd.SFedProx().steps) == (1e-5, 3)
