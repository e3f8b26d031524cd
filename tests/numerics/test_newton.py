"""The local solvers end where SciPy and CVXPY do, and the residual they state is the one they have."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from constrained_cases import solve
from scipy.optimize import minimize

from foedus import regularizers
from foedus.numerics import lbfgs, newton
from foedus.numerics.limited_memory import DEPTH, LimitedMemory

DIM = 6


def quadratic(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """H positive definite and g of a function ½wᵀHw + gᵀw."""
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(DIM, DIM))
    return M @ M.T / DIM + 0.2 * np.eye(DIM), 2.0 * rng.normal(size=DIM)


def parabola(H, g):
    def evaluate(w, order):
        return 0.5 * w @ H @ w + g @ w, H @ w + g, H if order == 2 else ()

    return evaluate


H_CASES = {
    "L1": (regularizers.L1(0.4), "ElasticNet", {"lam1": 0.4, "lam2": 0.0}),
    "Box": (regularizers.Box(-0.7, 0.3), "Box", {"low": -0.7, "high": 0.3}),
    "Simplex": (regularizers.Simplex(1.0), "Simplex", {"total": 1.0}),
}


def constrained_minimum(name: str, H: np.ndarray, g: np.ndarray, parameters: dict) -> np.ndarray:
    """argmin ½wᵀHw + gᵀw + h(w), by CVXPY."""
    import cvxpy as cp

    w = cp.Variable(DIM)
    h, held = 0.0, []
    match name:
        case "ElasticNet":
            h = parameters["lam1"] * cp.norm1(w)
        case "Box":
            held = [w >= parameters["low"], w <= parameters["high"]]
        case "Simplex":
            held = [w >= 0, cp.sum(w) == parameters["total"]]
    solve(cp.Problem(cp.Minimize(0.5 * cp.quad_form(w, H, assume_PSD=True) + g @ w + h), held))
    return np.asarray(w.value)


@pytest.mark.parametrize("case", H_CASES)
def test_newton_with_h_reaches_the_residual_it_states(case):
    h, name, parameters = H_CASES[case]
    tol = 1e-9
    solver = jax.jit(lambda H, g, start: newton.minimise(parabola(H, g), start, tol, h=h))
    rng = np.random.default_rng(1)
    for seed in range(30):
        H, g = quadratic(seed)
        found = solver(H, g, 3.0 * rng.normal(size=DIM))
        w = np.asarray(found.w)
        assert float(found.residual) <= tol
        assert np.isfinite(float(h.value(found.w))), "the point is in the domain of h"
        assert float(h.distance(found.w, H @ w + g)) == pytest.approx(float(found.residual), abs=1e-13)
        if seed < 4:
            assert oracles.subdifferential_distance(name, w, H @ w + g, **parameters) < 1e-7
            np.testing.assert_allclose(w, constrained_minimum(name, H, g, parameters), atol=1e-6)


X = np.random.default_rng(3).normal(size=(40, DIM)) * np.array([1.0, 5.0, 0.2, 1.0, 2.0, 1.0])
Y = (np.random.default_rng(4).random(40) < 0.5) * 2.0 - 1.0


def logistic(w, lib):
    z = -Y * (X @ w)
    return lib.mean(lib.logaddexp(0.0, z)) + 0.005 * w @ w


def logistic_with_derivatives(w, order):
    value = lambda u: logistic(u, jnp)  # noqa: E731
    return value(w), jax.grad(value)(w), jax.hessian(value)(w) if order == 2 else ()


def test_newton_and_lbfgs_end_where_scipy_does_from_near_and_far():
    expected = minimize(logistic, np.zeros(DIM), args=(np,), method="BFGS", options={"gtol": 1e-7})
    solvers = (
        (1e-11, 40, jax.jit(lambda s: newton.minimise(logistic_with_derivatives, s, 1e-11))),
        (1e-9, 100, jax.jit(lambda s: lbfgs.minimise(lambda w: logistic(w, jnp), s, 1e-9))),
    )
    slope = jax.jit(jax.grad(lambda w: logistic(w, jnp)))
    for tol, most, solver in solvers:
        for start in (np.zeros(DIM), np.full(DIM, 30.0)):
            found = solver(start)
            gradient = float(jnp.max(jnp.abs(slope(found.w))))
            assert gradient <= 1.01 * tol
            assert float(found.residual) == pytest.approx(gradient, rel=1e-2, abs=1e-14)
            assert int(found.steps) <= most
            np.testing.assert_allclose(found.w, expected.x, atol=1e-5)


def test_a_known_factor_serves_again_and_a_useless_one_does_no_harm():
    H, g = quadratic(0)
    solver = jax.jit(lambda H, g, s, lower: newton.minimise_again(parabola(H, g), s, 1e-10, lower))
    first = solver(H, g, np.ones(DIM), np.zeros((DIM, DIM)))
    np.testing.assert_allclose(first.lower @ first.lower.T, H, atol=1e-12)
    again = solver(H + 0.01 * np.eye(DIM), 1.1 * g, first.w, first.lower)
    assert int(again.steps) == 0, "no new factorisation where the old factor is nearly right"
    wrong = solver(H, g, np.ones(DIM), 1e-3 * np.eye(DIM))
    for found, A, b in ((first, H, g), (again, H + 0.01 * np.eye(DIM), 1.1 * g), (wrong, H, g)):
        assert float(found.residual) <= 1e-10
        np.testing.assert_allclose(found.w, -np.linalg.solve(A, b), atol=1e-9)


def test_newton_leaves_a_saddle_for_a_minimum():
    """Σ w⁴/4 − w²/2 has an indefinite Hessian around its saddles; its minima are at ±1."""

    def evaluate(w, order):
        return jnp.sum(w**4 / 4 - w**2 / 2), w**3 - w, jnp.diag(3 * w**2 - 1) if order == 2 else ()

    start = np.array([1e-3, -1e-3, 0.9, -2.0, 0.3, 1e-6])
    found = jax.jit(lambda s: newton.minimise(evaluate, s, 1e-10))(start)
    assert float(found.residual) <= 1e-10
    np.testing.assert_allclose(np.abs(found.w), 1.0, atol=1e-9)


def test_a_solver_that_cannot_reach_its_tolerance_says_so():
    def evaluate(w, order):
        return jnp.sum(jnp.abs(w - 0.3)), jnp.sign(w - 0.3), jnp.zeros((DIM, DIM)) if order == 2 else ()

    found = jax.jit(lambda s: newton.minimise(evaluate, s, 1e-6))(np.ones(DIM))
    assert float(found.residual) == 1.0
    assert np.all(np.isfinite(found.w))
    stopped = jax.jit(lambda s: newton.minimise(logistic_with_derivatives, s, 1e-12, steps=1))(np.full(DIM, 5.0))
    gradient = jax.grad(lambda w: logistic(w, jnp))(stopped.w)
    assert float(stopped.residual) == pytest.approx(float(jnp.max(jnp.abs(gradient))))
    assert float(stopped.residual) > 1e-12


@pytest.mark.parametrize(
    "hessian",
    [np.zeros((3, 3)), np.diag([1.0, -2.0, 0.0]), -np.eye(3), np.diag([1e-12, 1.0, 1e6]), np.ones((3, 3))],
    ids=["zero", "indefinite", "negative", "badly scaled", "singular"],
)
def test_any_symmetric_matrix_is_shifted_to_a_definite_one(hessian):
    definite, lower = newton.make_definite(jnp.asarray(hessian))
    assert np.all(np.isfinite(lower))
    np.testing.assert_allclose(lower @ lower.T, definite, atol=1e-9 * max(1.0, np.max(np.abs(hessian))))
    shift = definite - hessian
    np.testing.assert_allclose(shift, shift[0, 0] * np.eye(3), atol=1e-9 * max(1.0, np.max(np.abs(hessian))))
    needed = max(0.0, -np.min(np.linalg.eigvalsh(hessian)))
    assert float(shift[0, 0]) <= 16.0 * needed + 1e-6 * max(1.0, np.max(np.abs(hessian)))


def test_a_definite_matrix_is_not_shifted():
    H, _ = quadratic(5)
    definite, lower = newton.make_definite(jnp.asarray(H))
    np.testing.assert_array_equal(definite, H)
    np.testing.assert_allclose(lower, np.linalg.cholesky(H), atol=1e-12)


# --- the limited memory ---


def filled(pairs: int) -> tuple[LimitedMemory, np.ndarray, np.ndarray, np.ndarray]:
    """A memory after some pairs of a convex quadratic, and the pairs."""
    H, _ = quadratic(2)
    steps = np.random.default_rng(8).normal(size=(pairs, DIM))
    memory = LimitedMemory.empty(DIM)
    for step in steps:
        memory = memory.add(jnp.asarray(step), jnp.asarray(H @ step))
    return memory, steps, steps @ H, H


def dense_bfgs(diagonal: np.ndarray, steps: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """The inverse Hessian of BFGS, update by update, from the diagonal scaled to the newest pair."""
    inverse, eye = np.diag(1.0 / diagonal), np.eye(DIM)
    if len(steps):
        s, y = steps[-1], changes[-1]
        inverse = inverse * (s @ y) / (y @ inverse @ y)
    for s, y in zip(steps, changes, strict=True):
        rho = 1.0 / (s @ y)
        inverse = (eye - rho * np.outer(s, y)) @ inverse @ (eye - rho * np.outer(y, s)) + rho * np.outer(s, s)
    return inverse


@pytest.mark.parametrize("pairs", [0, 1, 4, DEPTH + 3])
def test_the_two_loops_the_matrix_and_the_dense_update_agree(pairs):
    memory, steps, changes, _ = filled(pairs)
    diagonal, g = np.linspace(0.5, 3.0, DIM), np.random.default_rng(9).normal(size=DIM)
    inverse = dense_bfgs(diagonal, steps[-DEPTH:], changes[-DEPTH:])
    np.testing.assert_allclose(memory.direction(jnp.asarray(g), diagonal), -inverse @ g, rtol=1e-7, atol=1e-9)
    matrix = jax.vmap(memory.factors(diagonal).times)(np.eye(DIM))
    np.testing.assert_allclose(matrix @ inverse, np.eye(DIM), atol=1e-7)
    if pairs:
        np.testing.assert_allclose(matrix @ steps[-1], changes[-1], atol=1e-9)


def test_a_pair_without_positive_curvature_is_not_taken_in():
    memory, *_ = filled(2)
    for step, change in ((np.ones(DIM), -np.ones(DIM)), (np.zeros(DIM), np.ones(DIM)), (np.ones(DIM), np.zeros(DIM))):
        after = memory.add(jnp.asarray(step), jnp.asarray(change))
        np.testing.assert_array_equal(after.steps, memory.steps)
        np.testing.assert_array_equal(after.changes, memory.changes)
