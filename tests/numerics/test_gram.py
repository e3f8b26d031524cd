"""The three forms of (H_i/m + σI)⁻¹ give the same vectors as a dense solve."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foedus as fd
from foedus.algorithms import gram

M = 3  # clients


def made(rows: int, dim: int, name: str) -> fd.Problem:
    rng = np.random.default_rng(rows + dim)
    clients = [(rng.normal(size=(rows - i, dim)), (rng.random(rows - i) < 0.5).astype(float)) for i in range(M)]
    penalty = fd.penalties.Ridge(2.0) if name == "ridge" else None
    loss = fd.losses.logistic if name == "logistic" else fd.losses.least_squares
    return fd.Problem(clients, loss=loss, penalty=penalty)


def dense(problem: fd.Problem, i: int, sigma: float) -> np.ndarray:
    """H_i/m + σI as SPEC 3 writes it, from the rows the client really has."""
    X = np.asarray(problem.client(i)["x"])
    scale = 0.25 if problem.terms.loss == fd.losses.logistic else 1.0
    shift = 2.0 / len(X) if problem.terms.penalty is not None else 0.0
    H = scale * X.T @ X / len(X) + shift * np.eye(X.shape[1])
    return H / M + sigma * np.eye(X.shape[1])


def solver(problem: fd.Problem):
    """(i, σ, v) ↦ (H_i/m + σI)⁻¹v as the algorithm finds it, compiled once for the problem's shape."""

    @jax.jit
    def solve(data, sigma, v):
        inverse = gram.inverse_of(problem.terms, data, M, sigma)
        return inverse.steps(problem.terms, data, M, sigma, v, k0=1)[1]

    return lambda i, sigma, v: np.asarray(solve(fd.Data({k: array[i] for k, array in problem.data.items()}), sigma, v))


# every form once, and every problem
QUICK = {((9, 4, 400, "primal"), "logistic"), ((5, 12, 400, "woodbury"), "ridge"), ((5, 12, 3, "cg"), "least squares")}


@pytest.mark.parametrize(
    ("rows", "dim", "large", "form", "name"),
    [
        pytest.param(*form, name, marks=[] if (form, name) in QUICK else [pytest.mark.slow])
        for form in [(9, 4, 400, "primal"), (6, 6, 400, "primal"), (5, 12, 400, "woodbury"), (9, 4, 3, "cg"),
                     (5, 12, 3, "cg")]
        for name in ("least squares", "logistic", "ridge")
    ],
)  # fmt: skip
def test_every_form_is_the_dense_solve(monkeypatch, name, rows, dim, large, form):
    monkeypatch.setattr(gram, "LARGE", large)
    problem = made(rows, dim, name)
    data = fd.Data({k: array[0] for k, array in problem.data.items()})
    assert gram.form_of(problem.terms, data) == form
    v, solve = np.random.default_rng(0).normal(size=dim), solver(problem)
    for i in range(M):  # clients 1 and 2 have filling rows
        for sigma in (0.01, 1.0):
            expected = np.linalg.solve(dense(problem, i, sigma), v)
            np.testing.assert_allclose(solve(i, sigma, v), expected, rtol=1e-9, atol=1e-10)
    inverse, q = gram.inverse_of(problem.terms, data, M, jnp.asarray(0.1)), v
    for k0 in (1, 2, 3, 4):
        before, last = inverse.steps(problem.terms, data, M, jnp.asarray(0.1), v, k0)
        np.testing.assert_allclose(before, q, rtol=1e-9, atol=1e-10)
        solved = np.linalg.solve(dense(problem, 0, 0.1), q)
        np.testing.assert_allclose(last, solved, rtol=1e-9, atol=1e-10)
        q = q - 0.1 * solved


def test_woodbury_is_cholesky():
    """The same five rows, alone (Woodbury) and with filling rows that make Cholesky on the columns the cheaper form."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(M, 5, 6)), rng.normal(size=(M, 5))
    few = fd.Problem(fd.data.Stacked({"x": X, "y": y}), loss=fd.losses.least_squares)
    many = {"x": np.concatenate([X, X], axis=1), "y": np.concatenate([y, y], axis=1)}
    filled = fd.Problem(fd.data.Stacked(many, counts=[5] * M), loss=fd.losses.least_squares)
    assert gram.form_of(few.terms, few.client(0)) == "woodbury"
    assert gram.form_of(filled.terms, fd.Data({k: a[0] for k, a in filled.data.items()})) == "primal"
    woodbury, cholesky = solver(few), solver(filled)
    for sigma in (1e-3, 0.1, 5.0):
        for v in rng.normal(size=(10, 6)):
            np.testing.assert_allclose(woodbury(0, sigma, v), cholesky(0, sigma, v), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("rows", "dim", "large"), [(9, 4, 400), (5, 12, 400), (9, 4, 3)])
def test_a_blank_inverse_has_the_shape_of_a_real_one(monkeypatch, rows, dim, large):
    monkeypatch.setattr(gram, "LARGE", large)
    problem = made(rows, dim, "ridge")
    data = fd.Data({k: array[1] for k, array in problem.data.items()})
    blank = gram.Inverse.blank(problem.terms, data)
    real = gram.inverse_of(problem.terms, data, M, jnp.asarray(0.1))
    assert np.shape(blank.matrix) == np.shape(real.matrix)


CROWD = """
import jax, numpy as np
import foedus as fd
from foedus.algorithms import gram

rng = np.random.default_rng(0)
stacked = fd.data.Stacked({"x": rng.normal(size=(128, 120, 100)), "y": rng.normal(size=(128, 120))})
problem = fd.Problem(stacked, loss=fd.losses.least_squares)

@jax.jit
def two(data):
    once = lambda sigma: jax.vmap(lambda d: gram.inverse_of(problem.terms, d, 128, sigma).matrix)(data)
    return once(0.1), once(0.2)

for _ in range(2):
    jax.block_until_ready(two(problem.data))
"""


@pytest.mark.slow
def test_many_factorisations_do_not_wait_for_each_other():
    """Two batched LAPACK calls in one program stop a machine with two cores for ever; this one must come to an end."""
    folder = os.path.dirname(os.path.dirname(fd.__file__))
    threads = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", CROWD], cwd=folder, env=threads, timeout=120, check=True)
