"""The client's step against CVXPY, on all losses, metrics and supports; its weights, and what filling rows do to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robust_oracles as oracle
from robust_cases import CLOSED, HIGH, LOSSES, LOW, check_step, clients, support

from foedus.numerics.interior import GAP, RESIDUAL
from foedus.robust.closed import Ball, Radius, worst_case
from foedus.robust.form import EpigraphForm
from foedus.robust.step import project

DIM = 4


def radius(rho: float, kappa: float) -> Radius:
    return Radius(jnp.asarray(rho), jnp.asarray(kappa), jnp.full(DIM, LOW), jnp.full(DIM, HIGH))


def arrays(name: str, seed: int, rows: int = 24):
    X, y = clients(name, seed, sites=1, sizes=(rows, rows + 1))[0]
    return jnp.asarray(X), jnp.asarray(y), jnp.full(rows, 1.0 / rows)


FAST = [("hinge", "l1", "box"), ("logistic", "linf", None), ("huber", "l1", None), ("epsilon_insensitive", "l2", None)]
EACH = [case if case in FAST else pytest.param(*case, marks=pytest.mark.slow) for case in CLOSED]


@pytest.mark.parametrize(("name", "metric", "kind"), EACH)
def test_the_step_is_cvxpys(name, metric, kind):
    loss, eps = LOSSES[name]
    theirs = support(kind, DIM)[1]
    form = EpigraphForm(Ball(loss, metric, kind or "everything"))
    for seed, (rho, kappa, a, scale) in enumerate([(0.05, 0.5, 0.1, 1.0), (0.01, 0.1, 0.2, 3.0)]):
        X, y, omega = arrays(name, seed)
        b = scale * np.random.default_rng(seed).normal(size=DIM)
        found = project(form, X, y, omega, radius(rho, kappa), jnp.asarray(a), jnp.asarray(b))
        best = oracle.client_step(name, eps, np.asarray(X), np.asarray(y), rho, kappa, metric, theirs, a, b)
        value = float(worst_case(form.ball, found.w, X, y, omega, radius(rho, kappa))[0])
        check_step(found, value, best, a, b)
        size = 1.0 + abs(a) + np.max(np.abs(b))
        assert float(found.gap) <= GAP * size
        assert float(found.residual) <= RESIDUAL * size


def test_a_point_above_the_epigraph_stays():
    X, y, omega = arrays("hinge", 1)
    b = jnp.asarray([0.1, -0.2, 0.3, 0.0])
    found = project(EpigraphForm(Ball(LOSSES["hinge"][0])), X, y, omega, radius(0.05, 0.5), jnp.asarray(9.0), b)
    np.testing.assert_allclose(found.w, b, atol=1e-8)
    assert float(found.v) == pytest.approx(9.0, abs=1e-8)


def test_rows_of_weight_zero_change_nothing_and_clients_go_side_by_side():
    """Three clients of different size, filled up and mapped at once, get what each gets alone."""
    form = EpigraphForm(Ball(LOSSES["hinge"][0], "l1", "box"))
    rng, alone, stacked = np.random.default_rng(0), [], []
    for seed, rows in enumerate((24, 17, 9)):
        X, y, _ = arrays("hinge", seed)
        b, a = jnp.asarray(rng.normal(size=DIM)), jnp.asarray(0.1)
        alone.append(project(form, X[:rows], y[:rows], jnp.full(rows, 1.0 / rows), radius(0.05, 0.5), a, b))
        omega = jnp.where(jnp.arange(24) < rows, 1.0 / rows, 0.0)
        stacked.append((X, y, omega, radius(0.05, 0.5), a, b))
    together = jax.vmap(lambda *given: project(form, *given))(*jax.tree.map(lambda *v: jnp.stack(v), *stacked))
    for i, one in enumerate(alone):
        np.testing.assert_allclose(together.w[i], one.w, atol=1e-8)
        np.testing.assert_allclose(together.v[i], one.v, atol=1e-8)


@pytest.mark.slow
def test_weights_count_like_copies():
    form = EpigraphForm(Ball(LOSSES["logistic"][0], "l2"))
    X, y, _ = arrays("logistic", 3, rows=8)
    times = np.array([1, 2, 3, 1, 1, 2, 1, 1])
    b = jnp.asarray(np.random.default_rng(3).normal(size=DIM))
    given = radius(0.1, 1.0), jnp.asarray(0.2), b
    one = project(form, X, y, jnp.asarray(times / times.sum()), *given)
    many = np.repeat(np.arange(8), times)
    two = project(form, X[many], y[many], jnp.full(len(many), 1.0 / len(many)), *given)
    np.testing.assert_allclose(one.w, two.w, atol=1e-7)


def test_without_a_ball_it_is_the_mean_loss():
    for name in ("hinge", "huber"):
        X, y, omega = arrays(name, 4)
        b = np.random.default_rng(4).normal(size=DIM)
        form = EpigraphForm(Ball(LOSSES[name][0]), robust=False)
        found = project(form, X, y, omega, radius(0.0, np.inf), jnp.asarray(0.1), jnp.asarray(b))
        plain = oracle.plain(name, LOSSES[name][1], np.asarray(found.w), np.asarray(X), np.asarray(y))
        assert float(found.v) == pytest.approx(plain, abs=1e-7)
