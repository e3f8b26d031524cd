"""InteriorPoint on random problems of many kinds: certified, and as good as CVXPY's answer where the problem is convex.

Problems of one kind have one shape, so that each kind is compiled once.
"""

from collections.abc import Callable
from dataclasses import replace

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import DIM, Coupled, Quadratic, quadratic, solve

import foedus as fd

START = np.zeros(DIM)
Made = tuple[fd.Problem, np.ndarray, Callable[[], float] | None]  # the problem, a start, the optimum if it is known


def program(seed: int, rng: np.random.Generator) -> Made:
    """A quadratic program under equations and inequalities, whose objective has any size beside its rows."""
    case, size = Quadratic.random(seed), 10.0 ** rng.uniform(-2, 2)
    case = replace(case, A=size * case.A, b=size * case.b)
    return case.problem(), rng.normal(size=DIM), lambda: case.answer().objective


def coupled(seed: int, rng: np.random.Generator) -> Made:
    """Rows of every scope."""
    case = Coupled.random(seed)
    return case.problem(), rng.normal(size=DIM), lambda: case.answer().objective


def sparse(seed: int, rng: np.random.Generator) -> Made:
    """Rows of every scope, and an ℓ1 norm."""
    case = Coupled.random(seed)
    made = case.problem(regularizer=fd.regularizers.L1(0.4))
    return made, START, lambda: case.answer(0.4).objective


def classes(seed: int, rng: np.random.Generator, units: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Labels that no plane separates."""
    sites = {}
    for name in ("ash", "birch", "cedar"):
        X = np.column_stack([rng.normal(size=(60, DIM - 1)), np.ones(60)])
        y = (X @ rng.normal(size=DIM) + 2.0 * rng.normal(size=60) > 0).astype(float)
        y[:2] = 0.0, 1.0
        sites[name] = (X * units, y)
    return sites


def capped(seed: int, rng: np.random.Generator) -> Made:
    """Neyman-Pearson with a ridge, and columns in units of very different size."""
    units = 10.0 ** rng.uniform(-3, 3, size=DIM)
    cap = fd.constraints.LossCap(fd.label(1), at_most=float(rng.uniform(0.3, 0.6)))
    made = fd.Problem(
        classes(seed, rng, units),
        loss=fd.losses.logistic,
        where=fd.label(0),
        penalty=fd.penalties.Ridge(1e-6),
        constraints=[cap],
    )
    return made, START, None


def equal_means(seed: int, rng: np.random.Generator) -> Made:
    """Equations on the mean over sites."""
    case = Quadratic.random(seed)
    C, d = rng.normal(size=(3, 2, DIM)), rng.normal(size=(3, 2))
    made = fd.Problem(
        [{"A": A, "b": b} for A, b in zip(case.A, case.b, strict=True)],
        objective=quadratic,
        constraints=[fd.constraints.Linear(C, d, "==", scope="coupled")],
    )

    def best() -> float:
        w = cp.Variable(DIM)
        f = 0.5 * cp.quad_form(w, np.mean(case.A, axis=0), assume_PSD=True) + np.mean(case.b, axis=0) @ w
        return solve(cp.Problem(cp.Minimize(f), [np.mean(C, axis=0) @ w == np.mean(d, axis=0)]))

    return made, START, best


def indefinite(seed: int, rng: np.random.Generator) -> Made:
    """An objective with directions of negative curvature, in a ball: a trust-region problem."""
    A = rng.normal(size=(3, DIM, DIM))
    made = fd.Problem(
        [{"A": a + a.T, "b": rng.normal(size=DIM)} for a in A],
        objective=quadratic,
        constraints=[fd.constraints.NormBall(1.5, scope="global")],
    )
    return made, 0.1 * rng.normal(size=DIM), None


def gaps(seed: int, rng: np.random.Generator) -> Made:
    """Losses of two groups that may differ little: two rows at each site, neither convex."""
    sites = {
        name: (X, y, (rng.random(60) < 0.5).astype(float)) for name, (X, y) in classes(seed, rng, np.ones(DIM)).items()
    }
    made = fd.Problem(
        sites,
        loss=fd.losses.logistic,
        penalty=fd.penalties.Ridge(1e-2, per_example=False),
        constraints=[fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.1)],
    )
    return made, START, None


def smooth(seed: int, rng: np.random.Generator) -> Made:
    """No rows, and a penalty that is not convex."""
    made = fd.Problem(
        classes(seed, rng, np.ones(DIM)), loss=fd.losses.logistic, penalty=fd.penalties.Saturating(1e-1, False)
    )
    return made, 3.0 * rng.normal(size=DIM), None


KINDS = (program, coupled, sparse, capped, equal_means, indefinite, gaps, smooth)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seeds", [range(7), pytest.param(range(7, 57), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.slow
def test_random_problems_end_certified_in_few_rounds(kind, seeds):
    rounds = []
    for seed in seeds:
        problem, w0, optimum = kind(seed, np.random.default_rng(seed))
        run = fd.solve(problem, fd.InteriorPoint(), w0=w0)
        assert run.converged, (seed, run.reason)
        assert run.certificate.holds(1e-6, 1e-6), (seed, str(run.certificate))
        assert all(np.all(mu >= 0) for mu in inequality_multipliers(run)), seed
        if optimum is not None:
            best = optimum()
            assert run.objective == pytest.approx(best, rel=1e-5, abs=1e-5), seed
        rounds.append(run.rounds)
    assert np.median(rounds) <= 25, rounds
    assert np.max(rounds) <= 100, rounds


def inequality_multipliers(run: fd.Run) -> list[np.ndarray]:
    return [np.array([row.multiplier for row in run.certificate.rows if row.kind == "<="])]


def test_a_model_in_other_units_is_the_same_model():
    """Columns times 1e-3: the same rounds, the same predictions."""
    rng = np.random.default_rng(1)
    sites = classes(1, rng, np.ones(DIM))
    runs = []
    for unit in (1.0, 1e-3):
        scaled = {name: (X * unit, y) for name, (X, y) in sites.items()}
        runs.append(fd.solve(fd.Problem(scaled, loss=fd.losses.logistic), fd.InteriorPoint(eps1=1e-9)))
    a, b = runs
    np.testing.assert_allclose(b.w * 1e-3, a.w, rtol=1e-5)
    assert abs(a.rounds - b.rounds) <= 1
    assert jnp.isfinite(a.objective)


def test_stiff_equations_do_not_make_a_program_infeasible():
    """Their stiffness once passed for the columns' own scale: evidence then seemed far-reaching after two points."""
    problem, w0, _ = program(25, np.random.default_rng(25))
    assert fd.solve(problem, fd.InteriorPoint(), w0=w0).converged
