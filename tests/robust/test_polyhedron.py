"""The client's step over a polyhedron: against CVXPY, against the closed form where there is one, and by its terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robust_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_cases import HIGH, LINEAR, LOSSES, LOW, OPEN, check_step, clients, support

from foedus.numerics.interior import GAP, RESIDUAL
from foedus.robust import step as robust_step
from foedus.robust.closed import Ball, Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.polyhedron import _whiten, project

DIM, ROWS = 4, 24


def radius(rho: float, kappa: float) -> Radius:
    return Radius(jnp.asarray(rho), jnp.asarray(kappa), jnp.full(DIM, LOW), jnp.full(DIM, HIGH))


def arrays(name: str, seed: int):
    X, y = clients(name, seed, sites=1, dim=DIM, sizes=(ROWS, ROWS + 1))[0]
    return jnp.asarray(X), jnp.asarray(y), jnp.full(ROWS, 1.0 / ROWS)


SETTINGS = [(0.05, 0.5, 0.1, 1.0), (0.3, 0.1, 0.2, 3.0), (0.01, np.inf, 0.1, 1.0)]  # ρ, κ, a and the size of b
EACH = [("hinge", "l2", "polyhedron", 2), *(pytest.param(*case, 3, marks=pytest.mark.slow) for case in OPEN)]


@pytest.mark.parametrize(("name", "metric", "kind", "most"), EACH)
def test_the_step_is_cvxpys(name, metric, kind, most):
    loss, eps = LOSSES[name]
    C, d = support(kind, DIM)[1]
    body = jnp.asarray(C), jnp.asarray(d)
    for seed, (rho, kappa, a, scale) in enumerate(SETTINGS[:most]):
        form = EpigraphForm(Ball(loss, metric, "polyhedron"), flips=bool(np.isfinite(kappa)))
        X, y, omega = arrays(name, seed)
        b = scale * np.random.default_rng(seed).normal(size=DIM)
        found = project(form, X, y, omega, radius(rho, kappa), *body, jnp.asarray(a), jnp.asarray(b))
        best = oracle.client_step(name, eps, np.asarray(X), np.asarray(y), rho, kappa, metric, (C, d), a, b)
        value = oracle.worst_case(
            name, eps, np.asarray(found.w), np.asarray(X), np.asarray(y), rho, kappa, metric, (C, d)
        )
        check_step(found, value, best, a, b)
        size = 1.0 + abs(a) + np.max(np.abs(b))
        assert float(found.gap) <= (50 if metric == "l2" else 1) * GAP * size  # cones lose a digit or two
        assert float(found.residual) <= RESIDUAL * size
        # a point above the epigraph stays
        found = project(form, X, y, omega, radius(rho, kappa), *body, jnp.asarray(value + 99.0), jnp.asarray(b))
        np.testing.assert_allclose(found.w, b, atol=1e-8)
        assert float(found.v) == pytest.approx(value + 99.0, abs=1e-8)


@pytest.mark.parametrize("name", [LINEAR[0], *(pytest.param(name, marks=pytest.mark.slow) for name in LINEAR[1:])])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    rho=st.floats(1e-4, 1.0),
    kappa=st.floats(0.02, 5.0),
    a=st.floats(-1.0, 2.0),
    scale=st.floats(0.01, 5.0),
)
def test_a_box_in_the_l1_metric_is_that_of_the_closed_form(name, seed, rho, kappa, a, scale):
    """Two methods that share neither their program nor their Newton system."""
    loss, (C, d) = LOSSES[name][0], support("box", DIM)[1]
    X, y, omega = arrays(name, seed)
    b = jnp.asarray(scale * np.random.default_rng(seed).normal(size=DIM))
    box = EpigraphForm(Ball(loss, "l1", "box"))
    known = robust_step.project(box, X, y, omega, radius(rho, kappa), jnp.asarray(a), b)
    form, body = EpigraphForm(Ball(loss, "l1", "polyhedron")), (jnp.asarray(C), jnp.asarray(d))
    found = project(form, X, y, omega, radius(rho, kappa), *body, jnp.asarray(a), b)
    size = 1.0 + abs(a) + float(jnp.max(jnp.abs(b)))
    # both stop at a gap of about 1e-11 of the squared distance, so that (ŵ, v) is known to its root
    near = [float(jnp.sum((p.w - b) ** 2) + (p.v - a) ** 2) for p in (found, known)]
    assert near[0] == pytest.approx(near[1], abs=1e-10 * size**2)
    np.testing.assert_allclose(found.w, known.w, atol=2e-6 * size)
    assert float(found.v) == pytest.approx(float(known.v), abs=2e-6 * size)


@pytest.mark.slow
def test_rows_of_weight_zero_change_nothing_and_clients_go_side_by_side():
    """Three clients of different size, filled up and mapped at once, get what each gets alone."""
    form, (C, d) = EpigraphForm(Ball(LOSSES["hinge"][0], "l2", "polyhedron")), support("polyhedron", DIM)[1]
    body, rng, alone, stacked = (jnp.asarray(C), jnp.asarray(d)), np.random.default_rng(0), [], []
    for seed, rows in enumerate((24, 17, 9)):
        X, y, _ = arrays("hinge", seed)
        b, a = jnp.asarray(rng.normal(size=DIM)), jnp.asarray(0.1)
        alone.append(project(form, X[:rows], y[:rows], jnp.full(rows, 1.0 / rows), radius(0.05, 0.5), *body, a, b))
        omega = jnp.where(jnp.arange(24) < rows, 1.0 / rows, 0.0)
        stacked.append((X, y, omega, radius(0.05, 0.5), *body, a, b))
    together = jax.vmap(lambda *given: project(form, *given))(*jax.tree.map(lambda *v: jnp.stack(v), *stacked))
    for i, one in enumerate(alone):
        np.testing.assert_allclose(together.w[i], one.w, atol=1e-8)
        np.testing.assert_allclose(together.v[i], one.v, atol=1e-8)


@pytest.mark.parametrize("size", [5, 17, 26])
def test_whitening_is_the_inverse_of_the_factor(size):
    """As it is, in blocks, and as a loop over a large matrix."""
    root = np.random.default_rng(0).normal(size=(size, 2 * size, 2, 3))
    N = np.einsum("iakn,jakn->ijkn", root, root)
    T = np.asarray(_whiten(jnp.asarray(N), jnp.zeros((size, 2, 3))))
    assert np.all(T[np.triu_indices(size, 1)] == 0)
    whole = np.einsum("iakn,abkn,jbkn->ijkn", T, N, T)
    np.testing.assert_allclose(whole, np.broadcast_to(np.eye(size)[:, :, None, None], whole.shape), atol=1e-10)


@pytest.mark.parametrize("size", [2, 12])
def test_a_pivot_that_cancels_leaves_a_row_of_the_right_direction(size):
    """The last column is the sum of the others, to the last bit, as that of a piece is near the optimum."""
    N = np.eye(size)
    N[-1] = N[:, -1] = 1.0
    N[-1, -1] = size - 1.0
    least = np.full((size, 1, 1), 2.0**-54)
    T = np.asarray(_whiten(jnp.asarray(N[:, :, None, None]), jnp.asarray(least)))[:, :, 0, 0]
    assert np.all(np.isfinite(T))
    np.testing.assert_allclose(T[-1] / T[-1, -1], [-1.0] * (size - 1) + [1.0])
    np.testing.assert_allclose(T[:-1, :-1] @ N[:-1, :-1] @ T[:-1, :-1].T, np.eye(size - 1), atol=1e-14)
