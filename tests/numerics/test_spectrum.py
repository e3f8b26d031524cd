"""The Lipschitz estimate lies on or just above the largest eigenvalue."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import RIDGE, classification, clients_of, problem

import foedus as fd
from foedus.numerics.spectrum import largest_eigenvalue

ROUNDING = 1e-12


@partial(jax.jit, static_argnames="dim")
def estimates(matrices, dim):
    return jax.vmap(lambda M: largest_eigenvalue(lambda v: M @ v, dim))(matrices)


def draws(rows: int, dim: int, tails: bool) -> np.ndarray:
    """Gram matrices of data with light or heavy tails."""
    rng = np.random.default_rng(rows * 1000 + dim)
    X = rng.normal(size=(20, rows, dim))
    X = X * rng.standard_t(2, size=(20, rows, 1)) if tails else X
    return np.einsum("tri,trj->tij", X, X) / rows


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize(("rows", "dim"), [(5, 1), (1, 6), (3, 12), (12, 12), (150, 60), (70, 200)])
def test_estimate_is_above_the_largest_eigenvalue_and_close(rows, dim, tails):
    matrices = draws(rows, dim, tails)
    ratio = np.asarray(estimates(matrices, dim)) / np.linalg.eigvalsh(matrices)[:, -1]
    assert np.all(ratio >= 1 - ROUNDING)
    assert np.all(ratio <= 1.05)


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((4, 4)),
        np.eye(30),
        -2.0 * np.eye(3),
        np.diag([5.0] * 3 + [1.0] * 20),
        np.diag([-3.0, 1.0, 2.0]),
        np.diag([1e-8, 1.0, 1e8]),
        np.ones((7, 7)),
        np.diag(np.linspace(0.0, 1.0, 100) ** 8),
    ],
    ids=["zero", "identity", "negative", "repeated", "indefinite", "scales", "rank one", "decaying"],
)
def test_estimate_of_a_matrix_with_structure(matrix):
    top = np.max(np.abs(np.linalg.eigvalsh(matrix)))
    found = float(estimates(matrix[None], len(matrix))[0])
    assert top * (1 - ROUNDING) <= found <= top * 1.05


@pytest.mark.parametrize(
    ("name", "loss", "mu", "curvature"),
    [
        ("least squares", "least_squares", 0.0, 1.0),
        ("logistic", "logistic", 0.0, 0.25),
        ("ridge", "least_squares", RIDGE, 1.0),
    ],
)
def test_lipschitz_is_a_tight_bound_at_every_client(name, loss, mu, curvature):
    made = problem(name)
    found = jax.jit(jax.vmap(lambda d: made.terms.lipschitz(jnp.zeros(made.terms.dim), d)))(made.data)
    for r, (X, y) in zip(np.asarray(found), clients_of(name).values(), strict=True):
        bound = curvature * np.linalg.eigvalsh(X.T @ X / len(X))[-1] + mu / len(X)
        assert bound * (1 - ROUNDING) <= r <= 1.05 * bound
        for w in np.random.default_rng(0).normal(size=(5, X.shape[1])):
            assert np.linalg.eigvalsh(oracles.mean_hessian(w, X, y, loss, mu))[-1] <= r * (1 + ROUNDING)


def test_lipschitz_of_an_own_objective_is_its_curvature_there():
    def objective(w, data):
        return data.mean(jnp.logaddexp(0.0, -(2 * data.y - 1) * (data.x @ w)))

    made = fd.Problem(classification(), objective=objective)
    w = jnp.array([0.5, -1.0, 0.2, 0.0])
    found = jax.jit(jax.vmap(lambda d: made.terms.lipschitz(w, d)))(made.data)
    for r, (X, y) in zip(np.asarray(found), classification().values(), strict=True):
        top = np.linalg.eigvalsh(oracles.mean_hessian(np.asarray(w), X, y, "logistic"))[-1]
        assert top * (1 - 1e-9) <= r <= 1.05 * top
