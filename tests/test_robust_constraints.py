"""A robust objective under a robust cap: ProxAL over worst-case losses, against CVXPY."""

import cvxpy as cp
import numpy as np
import pytest
import robust_oracles as oracle

import foedus as fd

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


def test_a_loss_with_kinks_is_refused():
    with pytest.raises(fd.FoedusError, match="takes a smooth loss"):
        fd.robust.worst_case_mean(fd.losses.hinge, 0.1)
