"""Terms that cannot be met are told in any units, with the rows of each site that contradict each other.

The oracle is CVXPY on the pooled terms: it says whether they can be met; NumPy and SciPy check the evidence.
"""

import cvxpy as cp
import numpy as np
import pytest
from contradictions import COLUMNS, LABELS, UNITS, problem, sites
from scipy.optimize import minimize

import foedus as fd
from foedus.certificate.measure import Certificate

ALGORITHMS = {"interior": fd.InteriorPoint(), "proxal": fd.ProxAL()}
QUICK = (("interior", "1e-4"), ("interior", "mixed"), ("proxal", "1e-4"))
CASES = [
    pytest.param(name, units, marks=() if (name, units) in QUICK else pytest.mark.slow, id=f"{name}-{units}")
    for name in ALGORITHMS
    for units in UNITS
]


def least_cap(seed: int) -> float:
    """The least cap that can be met, by CVXPY."""
    w, t = cp.Variable(COLUMNS), cp.Variable()
    rows = [
        cp.sum(cp.logistic(cp.multiply(1 - 2 * k, x[y == k] @ w))) / np.sum(y == k) <= t
        for x, y in sites(seed).values()
        for k in LABELS
    ]
    return float(cp.Problem(cp.Minimize(t), rows).solve(solver=cp.CLARABEL))


def slope(x: np.ndarray, y: np.ndarray, k: int, w: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss of a label and its gradient."""
    z = x[y == k] @ w
    return float(np.mean(np.logaddexp(0.0, (1 - 2 * k) * z))), (1 / (1 + np.exp(-z)) - k) @ x[y == k] / np.sum(y == k)


@pytest.mark.parametrize(("algorithm", "units"), CASES)
@pytest.mark.parametrize("share", [0.6, 0.95])
def test_caps_that_no_model_meets_are_told_in_any_units_with_evidence_that_holds(algorithm, units, share):
    least, unit = least_cap(0), UNITS[units]
    run = fd.solve(problem(0, share * least, unit), ALGORITHMS[algorithm], max_rounds=500)
    assert not run.converged
    assert "no feasible point was found" in run.reason
    evidence = run.certificate.contradiction
    assert "the constraints contradict each other, so there is no best possible objective" in str(run)
    assert evidence.convex
    assert evidence.reach >= (1e3 if algorithm == "proxal" else 1e2)
    assert run.rounds <= 100
    assert sum(abs(row.weight) for row in evidence.rows) == pytest.approx(1.0)
    # the weighed sum is positive, and its minimum over all models, which SciPy finds, is too
    assert all(row.weight > 0 for row in evidence.rows)

    def weighed(w: np.ndarray) -> tuple[float, np.ndarray]:
        at, pull = 0.0, np.zeros(COLUMNS)
        for row in evidence.rows:
            value, gradient = slope(*sites(0)[row.site], int(row.constraint[-1]), w)
            at, pull = at + row.weight * (value - share * least), pull + row.weight * gradient
        return at, pull

    at, pull = weighed(run.w * unit)
    lowest = minimize(weighed, np.zeros(COLUMNS), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert np.max(np.abs(lowest.jac)) < 1e-6, "the oracle has not found the minimum of a convex function"
    assert at == pytest.approx(evidence.excess, rel=1e-6)
    assert np.max(np.abs(pull)) < 0.02 * at
    assert lowest.fun > 0.9 * at
    for row in evidence.rows[:2]:
        assert f"{row.constraint} at {row.site!r} ({row.weight:.3g})" in run.reason


@pytest.mark.parametrize(("algorithm", "units"), CASES)
@pytest.mark.parametrize("share", [1.003, 1.1])
def test_caps_that_a_model_meets_are_never_called_contradictory(algorithm, units, share):
    run = fd.solve(problem(0, share * least_cap(0), UNITS[units]), ALGORITHMS[algorithm], max_rounds=500)
    assert "no feasible point was found" not in run.reason
    assert run.certificate.contradiction is None
    assert run.certificate.feasibility <= 1e-3
    if algorithm == "interior":  # with large units rounding alone exceeds eps1, so the gap says how good the model is
        assert run.rounds <= 100
        assert run.converged or run.certificate.gap < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
def test_the_verdict_is_the_same_over_random_units(seed):
    least = least_cap(seed)
    for share, met in ((0.5, False), (0.95, False), (1.01, True), (1.3, True)):
        for draw in range(3):
            units = 10.0 ** np.random.default_rng([seed, draw]).uniform(-6, 6, size=COLUMNS)
            run = fd.solve(problem(seed, share * least, units), fd.InteriorPoint(), max_rounds=500)
            assert met or not run.converged
            assert ("no feasible point was found" in run.reason) == (not met)


def test_with_half_of_the_sites_silent_the_same_is_told_in_bounded_rounds():
    """It takes 57 rounds, and 33 where all sites answer; at the last point every site has spoken."""
    run = fd.solve(
        problem(0, 0.95 * least_cap(0), UNITS["mixed"]),
        fd.InteriorPoint(),
        participation=fd.Fraction(0.5),
        max_rounds=500,
    )
    assert not run.converged
    assert run.rounds <= 100
    assert "no feasible point was found" in run.reason
    evidence = run.certificate.contradiction
    assert evidence.convex
    assert evidence.reach > 10
    assert all(row.weight > 0 for row in evidence.rows)


def test_evidence_is_kept_with_the_certificate():
    run = fd.solve(problem(0, 0.1, UNITS["one"]), fd.InteriorPoint())
    assert Certificate.from_json(run.certificate.to_json()) == run.certificate


@pytest.mark.slow
def test_with_masked_sums_the_evidence_is_there_and_names_no_site():
    rows = sites(0) | {"elm": sites(1)["ash"]}
    caps = [fd.constraints.LossCap(fd.label(k), at_most=0.3) for k in LABELS]
    run = fd.solve(fd.Problem(rows, loss=fd.losses.logistic, constraints=caps), secure=True)
    assert not run.converged
    evidence = run.certificate.contradiction
    assert evidence is not None
    assert evidence.rows == ()
    assert evidence.unseen == pytest.approx(1.0)
    assert evidence.excess > 0.1
    assert "masked sums do not say whose" in run.reason
    assert not any(name in run.reason for name in rows)


@pytest.mark.parametrize("regularizer", [fd.regularizers.Box(-0.1, 0.1), fd.regularizers.L2Ball(0.1)])
@pytest.mark.parametrize("algorithm", ["interior", pytest.param("proxal", marks=pytest.mark.slow)])
def test_a_cap_that_no_model_of_a_bounded_domain_meets_is_proved_to_be_so(algorithm, regularizer):
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.45)
    terms = {"loss": fd.losses.logistic, "regularizer": regularizer, "constraints": [cap]}
    run = fd.solve(fd.Problem(sites(0), **terms), ALGORITHMS[algorithm])
    assert not run.converged
    assert "no feasible point was found" in run.reason
    assert run.certificate.contradiction.reach == np.inf


def test_a_term_that_is_not_convex_is_not_said_to_be_proved_unmeetable():
    """The same rows belong to two groups with different labels: their losses differ wherever both are not log 2."""
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(40, 1))) + 0.5
    box = fd.regularizers.Box(1.0, 2.0)
    data = {"ash": (np.vstack([x, x]), np.repeat([0.0, 1.0], 40), np.repeat([0.0, 1.0], 40))}
    gap = fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.01)
    run = fd.solve(fd.Problem(data, loss=fd.losses.logistic, regularizer=box, constraints=[gap]), fd.InteriorPoint())
    assert not run.converged
    evidence = run.certificate.contradiction
    assert evidence is None or not evidence.convex
    assert "no model" not in run.reason
