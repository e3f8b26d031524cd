"""Worst-case losses against CVXPY on the paper's Ω_s, the box's supremum against brute force, and who attains them."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robust_oracles as oracle
from robust_cases import CLOSED, HIGH, LINEAR, LOSSES, LOW, METRICS, clients, polyhedron, support

import foedus as fd
from foedus.robust.closed import Ball, Radius, sample_losses

DIM = 4


def parameters(seed: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=DIM)


@pytest.mark.parametrize(("name", "metric", "kind"), CLOSED)
def test_the_worst_case_is_cvxpys_on_the_papers_set(name, metric, kind):
    loss, eps = LOSSES[name]
    ours, theirs = support(kind, DIM)
    for seed, (rho, kappa, scale) in enumerate([(0.05, 0.5, 1.0), (0.4, 0.1, 3.0), (0.02, np.inf, 1.0)]):
        X, y = clients(name, seed, sites=1)[0]
        w = parameters(seed, scale)
        found = fd.robust.worst_case_loss(w, (X, y), rho, loss=loss, kappa=kappa, metric=metric, support=ours)
        assert found == pytest.approx(oracle.worst_case(name, eps, w, X, y, rho, kappa, metric, theirs), rel=1e-7)
        assert found >= oracle.plain(name, eps, w, X, y) - 1e-12


def bodies(name: str, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """A box without its corners, an unbounded one, a box with samples on its sides, and one that bounds labels too.

    The first three have as many rows, some of them 0 ≤ 1, and so share a compiled program.
    """
    above = np.vstack([-np.eye(DIM), np.zeros((DIM + 1, DIM))]), np.append(np.full(DIM, 1.05), np.ones(DIM + 1))
    sides, ends = oracle.box(np.full(DIM, -1.0), np.full(DIM, 1.0))
    made = [polyhedron(DIM), above, (np.vstack([sides, np.zeros((1, DIM))]), np.append(ends, 1.0))]
    if name != "hinge":
        C, d = polyhedron(DIM)
        C = np.column_stack([C, 0.3 * np.ones(len(C))])
        labels = np.zeros((2, DIM + 1))
        labels[:, -1] = 1.0, -1.0
        top = np.max(np.abs(y)) + 0.1
        made.append((np.vstack([C, labels]), np.append(d + 0.3 * top, [top, top])))
    return made


SETTINGS = [(0.05, 0.5, 1.0), (0.4, 0.1, 3.0), (0.02, np.inf, 1.0)]
BODIES = [("epsilon_insensitive", "l1", 3, 2)]
ALL = [pytest.param(name, metric, 4, 3, marks=pytest.mark.slow) for name, metric in product(LINEAR, METRICS)]


@pytest.mark.parametrize(("name", "metric", "most", "settings"), BODIES + ALL)
def test_a_polyhedron_agrees_with_the_paper_and_its_distribution_attains_it(name, metric, most, settings):
    loss, eps = LOSSES[name]
    X, y = clients(name, 5, sites=1)[0]
    for k, (C, d) in enumerate(bodies(name, y)[:most]):
        for seed, (rho, kappa, scale) in enumerate(SETTINGS[:settings]):
            w = parameters(seed, scale)
            case = fd.robust.worst_case(w, (X, y), rho, loss=loss, kappa=kappa, metric=metric, support=(C, d))
            best = oracle.worst_case(name, eps, w, X, y, rho, kappa, metric, (C, d))
            assert case.value == pytest.approx(best, rel=1e-7), (k, seed)
            moved = case.distribution
            assert moved is not None
            assert moved.loss == pytest.approx(case.value, rel=2e-6), (k, seed)
            assert moved.attained or k == 1
            assert cost_of(moved, name, metric, kappa, X, y) <= rho * (1 + 1e-9)
            np.testing.assert_allclose(np.bincount(moved.source, moved.mass), np.full(len(y), 1 / len(y)), atol=1e-12)
            points = np.column_stack([moved.x, moved.y])[:, : C.shape[1]]
            assert np.max(points @ C.T - d) <= 2e-9


def cost_of(moved, name: str, metric: str, kappa: float, X: np.ndarray, y: np.ndarray) -> float:
    """The transport cost, measured here."""
    order = {"l1": 1, "l2": 2, "linf": np.inf}[metric]
    way = np.linalg.norm(moved.x - X[moved.source], ord=order, axis=1)
    other = moved.y - y[moved.source]
    label = (np.where(other != 0, kappa, 0.0) if name == "hinge" else kappa * np.abs(other)) if np.any(other) else 0.0
    return float(moved.mass @ (way + label))


@pytest.mark.parametrize("name", LINEAR)
def test_the_supremum_over_a_box_is_that_over_its_corners(name):
    """With the ℓ1 metric every coordinate stays or goes to an end: all 3^DIM points, and both labels, are tried."""
    loss, _ = LOSSES[name]
    X, y = clients(name, 7, sites=1)[0]
    w, lam, kappa = parameters(7), 0.6, 2.0
    radius = Radius(jnp.zeros(()), jnp.asarray(kappa), jnp.full(DIM, LOW), jnp.full(DIM, HIGH))
    found = sample_losses(
        Ball(loss, "l1", "box"), jnp.asarray(lam), jnp.asarray(w), jnp.asarray(X), jnp.asarray(y), radius
    )
    for i in range(6):
        values = []
        for corner in product(*((x, LOW, HIGH) for x in X[i])):
            way = lam * np.sum(np.abs(np.array(corner) - X[i]))
            values.append(float(loss.value(jnp.asarray(np.array(corner) @ w), jnp.asarray(y[i]))) - way)
            if name == "hinge":
                values.append(
                    float(loss.value(jnp.asarray(np.array(corner) @ w), jnp.asarray(-y[i]))) - way - kappa * lam
                )
        assert float(found[i]) == pytest.approx(max(values), rel=1e-12)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize(("metric", "box"), [("l1", False), ("l2", False), ("linf", False), ("l1", True)])
def test_the_worst_distribution_attains_the_worst_case_within_the_radius(name, metric, box):
    loss, _ = LOSSES[name]
    for seed, (rho, kappa, scale) in enumerate(product((0.001, 2.0), (0.05, 3.0, np.inf), (0.2, 8.0))):
        X, y = clients(name, seed, sites=1)[0]
        w = parameters(seed, scale)
        case = fd.robust.worst_case(
            w, (X, y), rho, loss=loss, kappa=kappa, metric=metric, support=(LOW, HIGH) if box else None
        )
        moved = case.distribution
        assert moved is not None
        assert moved.loss == pytest.approx(case.value, rel=2e-6)
        assert cost_of(moved, name, metric, kappa, X, y) <= rho * (1 + 1e-6) + 1e-12
        np.testing.assert_allclose(np.bincount(moved.source, moved.mass), np.full(len(y), 1 / len(y)), atol=1e-12)
        assert not box or (np.min(moved.x) >= LOW and np.max(moved.x) <= HIGH)


def test_no_radius_is_the_mean_loss_and_labels_of_0_and_1_do():
    X, y = clients("hinge", 1, sites=1)[0]
    w = parameters(1)
    for labels in (y, (y + 1) / 2):
        assert fd.robust.worst_case_loss(w, (X, labels), 0.0, loss=fd.losses.hinge) == pytest.approx(
            oracle.plain("hinge", 0.0, w, X, y), rel=1e-12
        )
        assert fd.robust.worst_case_loss(w, (X, labels), 0.1, loss=fd.losses.hinge, kappa=0.5) == pytest.approx(
            oracle.worst_case("hinge", 0.0, w, X, y, 0.1, 0.5, "l1"), rel=1e-7
        )


def test_a_constant_column_does_not_move():
    X, y = clients("hinge", 2, sites=1)[0]
    w = parameters(2)
    with_one, longer = np.column_stack([X, np.ones(len(y))]), np.append(w, 0.7)
    found = fd.robust.worst_case_loss(longer, (with_one, y), 0.1, loss=fd.losses.hinge, intercept=True)
    shifted = np.mean(np.maximum(0.0, 1.0 - y * (X @ w + 0.7)))
    assert found == pytest.approx(shifted + 0.1 * np.max(np.abs(w)), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": fd.losses.least_squares}, "a worst-case loss is known for .* Got LeastSquares instead"),
        ({"loss": fd.losses.logistic, "support": (-1.0, 1.0)}, "a bounded support is known for hinge"),
        ({"metric": "l3"}, "must be 'l1', 'l2' or 'linf'. Got 'l3'"),
        ({"radius": -1.0}, "radius must be >= 0"),
        ({"support": (1.0, -1.0)}, r"support must be None, \(low, high\)"),
        ({"support": (-np.ones(3), np.ones(3))}, "one end for each of 4 columns. Got 3"),
        ({"support": (np.eye(3), np.ones(3))}, "a C of 4 columns. Got 3"),
        ({"support": (-0.01, 0.01)}, "row [0-9]+ lies outside the support by"),
        ({"w": np.zeros(3)}, "one entry for each of 4 columns"),
    ],
)
def test_a_wrong_input_gets_a_sentence(changes, words):
    X, y = clients("hinge", 1, sites=1)[0]
    given = {"w": parameters(1), "radius": 0.1, "loss": fd.losses.hinge} | changes
    with pytest.raises(fd.FoedusError, match=words):
        fd.robust.worst_case_loss(data=(X, y), **given)


def test_data_of_another_size_compile_nothing_anew():
    """A stress test of many sites, or folds, would otherwise compile for each of their sizes."""
    X, y = clients("hinge", 1, sites=1, sizes=(60, 61))[0]
    w, programs = parameters(1), []
    fd.robust.worst_case(w, (X, y), 0.1, loss=fd.losses.hinge)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: programs.append(event) if "backend_compile" in event else None
    )
    try:
        for rows in (59, 41, 33):
            found = fd.robust.worst_case(w, (X[:rows], y[:rows]), 0.1, loss=fd.losses.hinge)
            assert found.nominal == pytest.approx(oracle.plain("hinge", 0.0, w, X[:rows], y[:rows]), rel=1e-12)
        assert not programs
    finally:
        jax.monitoring.clear_event_listeners()
