"""A robust objective under a robust cap: ProxAL over worst-case losses, against CVXPY."""

import cvxpy as cp
import numpy as np
import pytest
import robust_oracles as oracle
from halls import Hall, agree
from robust_cases import LOSSES, clients

import foedus as fd
from foedus.robust.closed import Ball

CAP, RHO = 0.5, 0.02


def sites():
    rng = np.random.default_rng(4)
    centre = np.array([1.5, -1.0, 0.8, 0.3])
    made = {}
    for name in "abc":
        X = np.column_stack([rng.normal(size=(50, 3)), np.ones(50)])
        made[name] = (X, (X @ centre + rng.normal(size=50) > 0).astype(float))
    return made


def test_a_robust_objective_under_a_robust_neyman_pearson_cap():
    """The least worst-case loss on label 0, while the worst-case loss on label 1 is at most CAP at every site."""
    loss = fd.losses.logistic
    problem = fd.Problem(
        sites(),
        objective=fd.robust.worst_case_mean(loss, RHO, where=fd.label(0), intercept=True),
        constraints=[fd.robust.worst_case_cap(fd.label(1), CAP, RHO, intercept=True)],
    )
    run = fd.solve(problem, fd.ProxAL(beta=100.0, eps1=1e-6, eps2=1e-6, s_bar=1e-6), w0=np.full(4, 0.1))
    assert run.certificate.holds(1e-4, 1e-4), str(run)

    w = cp.Variable(4)

    def worst(X, sign):
        return cp.sum(cp.logistic(sign * (X @ w))) / len(X) + RHO * cp.norm2(w[:3])

    parts = sites().values()
    goal = sum(worst(X[y == 0], 1.0) for X, y in parts) / 3
    best = oracle.solved(cp.Problem(cp.Minimize(goal), [worst(X[y == 1], -1.0) <= CAP for X, y in parts]))
    assert run.objective == pytest.approx(best, rel=1e-4)
    # what the cap promises, measured by the stress test of any model
    worst_cases = []
    for X, y in parts:
        held = X[y == 1], y[y == 1]
        worst_cases.append(fd.robust.worst_case_loss(run.w, held, RHO, loss=loss, metric="l2", intercept=True))
    assert max(worst_cases) <= CAP + 1e-5
    assert max(worst_cases) == pytest.approx(CAP, abs=1e-3), "the cap binds somewhere"


def pieces(name: str, eps: float, z, y):
    """The losses of examples in CVXPY; labels are −1/+1 in classification."""
    u, r = cp.multiply(y, z), z - y
    short = cp.pos(1 - u)
    return {
        "hinge": lambda: short,
        "smooth_hinge": lambda: cp.huber(short, 1.0) / 2,
        "logistic": lambda: cp.logistic(-u),
        "huber": lambda: cp.huber(r, eps) / 2,
        "epsilon_insensitive": lambda: cp.pos(cp.abs(r) - eps),
        "pinball": lambda: cp.maximum((1 - eps) * r, -eps * r),
    }[name]()


@pytest.mark.parametrize(
    "name", [name if name in ("hinge", "pinball") else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES]
)
def test_every_loss_is_robust_and_constrained_at_once(name):
    """The least robust mean of all sites, while the first site's worst case is capped below what that gives it."""
    (loss, eps), parts, smoothing = LOSSES[name], clients(name, 3, 3, 3, (30, 31)), 1e-2
    L = Ball(loss).lipschitz
    w = cp.Variable(3)
    worst = [cp.sum(pieces(name, eps, X @ w, y)) / len(y) + RHO * L * cp.norm2(w) for X, y in parts]
    oracle.solved(cp.Problem(cp.Minimize(sum(worst) / 3)))
    free = [float(value.value) for value in worst]
    cap = 0.5 * (max(free) + sorted(free)[1])  # below the largest, and kept by the others
    best = oracle.solved(cp.Problem(cp.Minimize(sum(worst) / 3), [value <= cap for value in worst]))
    problem = fd.Problem(
        dict(zip("abc", parts, strict=True)),
        objective=fd.robust.worst_case_mean(loss, RHO, smoothing=smoothing),
        constraints=[fd.robust.worst_case_cap(None, cap, RHO, loss=loss, smoothing=smoothing)],
    )
    run = fd.solve(problem, fd.InteriorPoint(), w0=np.full(3, 0.1))
    assert run.converged, run.reason
    assert run.rounds <= 60
    # the cap itself is kept, whatever was rounded off, and the objective is CVXPY's up to that
    held = [fd.robust.worst_case_loss(run.w, part, RHO, loss=loss, metric="l2") for part in parts]
    assert max(held) <= cap + 1e-6
    exact = sum(float(value.value) for value in assign(w, run.w, worst)) / 3
    kinked = name in ("hinge", "pinball", "epsilon_insensitive")
    assert -1e-6 * best <= exact - best <= (np.log(3.0) * smoothing if kinked else 2e-6) + 1e-6 * best


def assign(variable, value, expressions):
    """The expressions, after the variable has been given a value."""
    variable.value = np.asarray(value)
    return expressions


def test_a_loss_without_a_worst_case_is_refused():
    with pytest.raises(fd.FoedusError, match="takes one of the losses"):
        fd.robust.worst_case_mean(fd.losses.least_squares, 0.1)
    with pytest.raises(fd.FoedusError, match="'smoothing' of worst_case_mean must be a number > 0"):
        fd.robust.worst_case_cap(None, 0.5, 0.1, loss=fd.losses.hinge, smoothing=0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [fd.losses.logistic, fd.losses.hinge])
def test_a_robust_cap_over_sessions_is_the_simulators(tmp_path, loss):
    """A cap on label 1, between a server and sites that talk in messages."""
    cap = fd.robust.worst_case_cap(fd.label(1), 0.6, RHO, loss=loss, intercept=True)
    goal = fd.robust.worst_case_mean(loss, RHO, where=fd.label(0), intercept=True)
    problem, w0 = fd.Problem(sites(), objective=goal, constraints=[cap]), np.full(4, 0.1)
    run = fd.solve(problem, fd.InteriorPoint(), w0=w0)
    result = Hall(tmp_path, problem, fd.InteriorPoint(), w0=w0).play()
    assert run.converged, run.reason
    if loss.name == "logistic":
        agree(run, result)
    else:  # the rounded kinks bend so much that rounding shows on the way, and not at the end
        np.testing.assert_allclose(result.conclusion.w, run.w, atol=1e-6)
        assert result.conclusion.converged
