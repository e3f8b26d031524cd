"""The duality gap of robust runs: it holds CVXPY's optimum, and a run at garbage is not called converged."""

import json
import os

import cvxpy as cp
import numpy as np
import pytest
import robust_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_cases import LOSSES, METRICS, NORMS, clients, support
from robust_data import adult_columns, dealt, scaled_columns, shares
from sklearn.datasets import load_breast_cancer

import foedus as fd
from foedus.data import loaders
from foedus.robust import bound as robust_bound
from foedus.robust import proposal as robust_proposal
from foedus.robust.proposal import Proposal
from foedus.runtime import spine
from foedus.runtime.simulate import Simulator
from foedus_lab import datasets


def standardised(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / X.std(axis=0)


def best_of(sites, algorithm) -> float:
    """CVXPY's optimum of the model that the algorithm stands for, with the logistic loss and labels that stay."""
    if algorithm.theta == 0:  # with one radius and labels that stay, every site has the same λ = ‖w‖: WAFL's model
        X, y = (np.concatenate(part) for part in zip(*sites, strict=True))
        return oracle.program("logistic", 0.0, [(X, y)], algorithm.radius, np.inf, "l1", None, 0.0, 1, np.ones(1))
    rho = algorithm.radius if algorithm.robust else 0.0
    theirs = (rho, np.inf, "l1", None, algorithm.theta, algorithm.p, shares(sites))
    return oracle.program("logistic", 0.0, sites, *theirs)


# --- the bound ---


any_instance = given(
    st.sampled_from(sorted(LOSSES)), st.sampled_from(METRICS), st.sampled_from(NORMS), st.sampled_from([0.5, np.inf]),
    st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from([0.0, 0.3, 2.0]), st.integers(0, 1000),
)  # fmt: skip


@settings(max_examples=6, deadline=None, derandomize=True)
@any_instance
def test_no_optimum_is_below_the_bound_whatever_the_model(name, metric, p, kappa, rho, theta, seed):
    bounded(name, metric, p, kappa, rho, theta, seed)


@pytest.mark.slow
@settings(max_examples=16, deadline=None, derandomize=True)
@any_instance
def test_no_optimum_is_below_the_bound_of_many_models(name, metric, p, kappa, rho, theta, seed):
    bounded(name, metric, p, kappa, rho, theta, seed)


def bounded(name, metric, p, kappa, rho, theta, seed) -> None:
    """From a random model the bound is at most CVXPY's optimum, and within a thousandth of it."""
    sites = clients(name, seed, 3, 3, (24, 25))
    loss, eps = LOSSES[name]
    algorithm = fd.DRFL(radius=rho, kappa=kappa, metric=metric, theta=theta, p=p)
    w = 2.0 * np.random.default_rng(seed).normal(size=3)
    found = algorithm.stress(fd.Problem(sites, loss=loss), w)
    # κ = ∞ in regression: the label's dual norm is 0
    best = oracle.program(name, eps, sites, rho, kappa, metric, None, theta, p, shares(sites))
    lower = found.value - found.gap
    assert lower <= best + 1e-5 * best  # CVXPY's own error with exponential cones is up to 2e-6
    assert lower >= best - 1e-3 * best - 1e-5


@pytest.mark.parametrize(
    ("regularizer", "goal"),
    [
        (fd.regularizers.L1(0.05), lambda w: (0.05 * cp.norm1(w), [])),
        pytest.param(
            fd.regularizers.ElasticNet(0.02, 0.1),
            lambda w: (0.02 * cp.norm1(w) + 0.05 * cp.sum_squares(w), []),
            marks=pytest.mark.slow,
        ),
        pytest.param(fd.regularizers.Box(-0.2, 0.3), lambda w: (0.0, [w >= -0.2, w <= 0.3]), marks=pytest.mark.slow),
        pytest.param(fd.regularizers.Simplex(), lambda w: (0.0, [w >= 0, cp.sum(w) == 1]), marks=pytest.mark.slow),
        pytest.param(fd.regularizers.L2Ball(0.4), lambda w: (0.0, [cp.norm(w) <= 0.4]), marks=pytest.mark.slow),
    ],
)
def test_a_regulariser_is_part_of_what_is_bounded(regularizer, goal):
    sites = clients("logistic", 1)
    w, top = cp.Variable(4), cp.Variable()
    more, held = goal(w)
    means = [cp.sum(cp.logistic(-cp.multiply(y, X @ w))) / len(y) for X, y in sites]
    best = oracle.solved(cp.Problem(cp.Minimize(top + more), [*held, *(mean <= top for mean in means)]))
    problem = fd.Problem(sites, loss=fd.losses.logistic, regularizer=regularizer)
    run = fd.solve(problem, fd.AFL())
    assert run.converged, run.reason
    objective = run.worst_case.value + float(regularizer.value(run.w))
    assert objective - run.worst_case.gap <= best + 1e-5
    assert best <= objective + 1e-5
    assert run.worst_case.gap <= 1e-3 * objective


def test_a_fixed_last_column_is_bounded_without_a_bound_on_its_coefficient():
    sites = [(np.column_stack([X, np.ones(len(y))]), y) for X, y in clients("logistic", 1)]
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic), fd.DRFL(radius=0.05, intercept=True))
    w, lam = cp.Variable(5), cp.Variable(nonneg=True)
    X, y = (np.concatenate(part) for part in zip(*sites, strict=True))
    goal = 0.05 * lam + cp.sum(cp.logistic(-cp.multiply(y, X @ w))) / len(y)
    best = oracle.solved(cp.Problem(cp.Minimize(goal), [cp.norm(w[:4], "inf") <= lam]))
    assert run.converged, run.reason
    assert run.worst_case.value - run.worst_case.gap <= best + 1e-6 <= run.worst_case.value + 2e-6


# --- what is called converged ---


@pytest.mark.parametrize(
    "algorithm",
    [
        fd.DRFL(method="splitting", tol=1e3),
        pytest.param(fd.AFL(method="splitting", tol=1e3), marks=pytest.mark.slow),
        pytest.param(fd.WAFL(method="splitting", tol=1e3), marks=pytest.mark.slow),
    ],
)
def test_small_residuals_alone_do_not_make_a_run_converged(algorithm):
    """With a tolerance this loose the rounds end at once, far from the optimum."""
    sites = clients("logistic", 1)
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic), algorithm)
    assert run.rounds < 10
    assert not run.converged
    assert "above the best possible" in run.reason
    assert run.worst_case.value - run.worst_case.gap <= best_of(sites, algorithm) + 1e-6


@pytest.mark.parametrize(
    "algorithm", [fd.AFL(method="splitting"), pytest.param(fd.DRFL(method="splitting"), marks=pytest.mark.slow),
                  pytest.param(fd.WAFL(method="splitting"), marks=pytest.mark.slow)],
)  # fmt: skip
def test_columns_of_very_different_size_are_not_called_converged_at_garbage(algorithm):
    rough, even = scaled_columns(6), scaled_columns(0)
    run = fd.solve(fd.Problem(rough, loss=fd.losses.logistic), algorithm)
    assert not run.converged
    if isinstance(algorithm, fd.AFL):
        assert run.worst_case.value > 10.0  # garbage: the model w = 0 has 0.69
        assert "standardise the columns of X" in run.reason
    run = fd.solve(fd.Problem(even, loss=fd.losses.logistic), algorithm)
    assert run.converged, run.reason
    best = best_of(even, algorithm)
    assert run.worst_case.value - run.worst_case.gap - 1e-6 <= best <= run.worst_case.value + 1e-6


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(loaders.VARIABLE), reason="FOEDUS_DATA is not set")
@pytest.mark.parametrize("algorithm", [made(method="splitting") for made in (fd.DRFL, fd.AFL, fd.WAFL)])
@pytest.mark.parametrize("data", ["adult", "heart"])
def test_raw_columns_of_real_data_are_never_called_converged_at_garbage(data, algorithm):
    X, y = adult_columns() if data == "adult" else datasets.heart()
    X, y = X[:2000], y[:2000]
    raw = fd.solve(fd.Problem(dealt(X, y, 5), loss=fd.losses.logistic), algorithm)
    assert not raw.converged or raw.worst_case.value <= np.log(2.0)  # the worst case of w = 0
    if data == "adult" and isinstance(algorithm, fd.DRFL):
        assert raw.history["primal"][-1] <= 1e-7  # the rounds are content,
        assert raw.worst_case.value > 1e6  # and wrong
    sites = dealt(standardised(X), y, 5)
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic), algorithm)
    assert run.converged, run.reason
    best = best_of(sites, algorithm)
    assert run.worst_case.value - run.worst_case.gap - 1e-5 <= best <= run.worst_case.value + 1e-5


@pytest.mark.skipif(not os.environ.get(loaders.VARIABLE), reason="FOEDUS_DATA is not set")
@pytest.mark.parametrize("size", [1e3, 1e-9, 1e12])
def test_a_model_far_off_is_not_taken_for_the_optimum_of_raw_columns(size):
    """What the rounds end at is put in by hand: the judgement must not depend on how they got there."""
    for X, y in (adult_columns(), datasets.heart()):
        sites = dealt(X[:500], y[:500], 3)
        w = size * np.random.default_rng(0).normal(size=X.shape[1])
        found = fd.AFL().stress(fd.Problem(sites, loss=fd.losses.logistic), w)
        held, reason = found.judge("residuals of 0")
        assert not held
        assert "above the best possible" in reason


# --- adversaries that somebody proposes ---


def proposed(rng, rows: int, pieces: int, width: int, way: bool, size: float) -> Proposal:
    """An adversary drawn at random: of no use, and far out of its bounds."""
    mass = rng.random((pieces, rows)) * rng.choice([1e-6, 1.0, 3.0])
    moved = size * rng.normal(size=(width, pieces, rows)) if way else None
    slope = rng.normal(size=rows)
    return Proposal(float(rng.random()), mass, slope, size * rng.normal(size=(1, width)), moved)


@pytest.mark.parametrize(
    ("name", "metric", "kind", "kappa"),
    [
        ("hinge", "l1", "box", 0.5),
        ("hinge", "l2", "polyhedron", 0.5),
        ("pinball", "linf", "polyhedron", 0.8),
        ("epsilon_insensitive", "l2", None, 0.8),
        ("huber", "linf", None, np.inf),
        ("logistic", "l1", None, 0.5),
    ],
)
def test_no_proposed_adversary_leads_to_a_bound_above_the_optimum(name, metric, kind, kappa):
    """A lower bound is proved by weak duality, whoever proposes the adversary, and for whichever model."""
    (loss, eps), sites, (ours, theirs) = LOSSES[name], clients(name, 2, 2, 3, (12, 13)), support(kind, 3)
    best = oracle.program(name, eps, sites, 0.05, kappa, metric, theirs, 0.3, 2, shares(sites))
    problem, rng = fd.Problem(sites, loss=loss), np.random.default_rng(0)
    algorithm = fd.DRFL(radius=0.05, kappa=kappa, metric=metric, support=ours, theta=0.3, p=2)
    pieces = {"huber": 0, "logistic": 1}.get(name, 2)
    for size in (1e-3, 0.1, 10.0, 1e6):
        w = rng.normal(size=3)
        drawn = [proposed(rng, 12, pieces, 3, kind == "polyhedron", size) for _ in sites]
        found = algorithm.stress(problem, w, drawn)
        assert found.gap is not None
        assert found.value - found.gap <= best * (1.0 + 1e-6)


@pytest.mark.parametrize("kind", ["box", "polyhedron"])
def test_a_model_that_is_not_the_best_has_a_gap_over_a_bounded_support(kind):
    """The adversary of the optimum shows by how much another model is worse."""
    sites = clients("hinge", 1, 3, 3, (17, 25))
    ours, theirs = support(kind, 3)
    problem = fd.Problem(sites, loss=fd.losses.hinge)
    algorithm = fd.DRFL(radius=0.05, kappa=0.5, support=ours, theta=0.3, p=2)
    job = spine.prepare(problem, algorithm, w0=np.zeros(3), seed=0, max_rounds=None, participation=fd.Fraction(1.0))
    drawn = Simulator().play(job, watch=None, checkpoint=None).proposals
    best = oracle.program("hinge", 0.0, sites, 0.05, 0.5, "l1", theirs, 0.3, 2, shares(sites))
    found = algorithm.stress(problem, np.array([0.5, -1.0, 0.3]), drawn)
    assert found.gap == pytest.approx(found.value - best, rel=1e-3)
    assert not found.judge("residuals of 0")[0]


# --- raw columns ---


def units_of(sites) -> np.ndarray:
    """What makes columns of one size, for the oracle's solver."""
    return 1.0 / np.sqrt(np.mean(np.concatenate([X for X, _ in sites]) ** 2, axis=0))


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(loaders.VARIABLE), reason="FOEDUS_DATA is not set")
@pytest.mark.parametrize("radius_kappa", [(0.05, 1.0), (0.05, np.inf), (0.2, 1.0)])
@pytest.mark.parametrize("data", ["cancer", "adult", "heart", "scaled"])
@pytest.mark.parametrize("robust", ["DRFL", "WAFL"])
def test_raw_columns_simply_work(robust, data, radius_kappa):
    """Table B's numbers with the hinge, on columns in their own units; the logistic loss is in the next test."""
    (radius, kappa), rows = radius_kappa, slice(0, 2000)
    cancer = load_breast_cancer(return_X_y=True)
    given = {"adult": adult_columns, "heart": datasets.heart, "cancer": lambda: (cancer[0], 1.0 - cancer[1])}
    sites = scaled_columns(6) if data == "scaled" else dealt(*(part[rows] for part in given[data]()), 5)
    theirs = ([tuple(np.concatenate(part) for part in zip(*sites, strict=True))], radius, kappa, "l2", None)
    theirs = (*theirs, 0.0, 1, np.ones(1)) if robust == "WAFL" else (sites, *theirs[1:], 0.3, 2, shares(sites))
    shared = {"radius": radius, "kappa": kappa, "metric": "l2"}
    algorithm = fd.WAFL(**shared) if robust == "WAFL" else fd.DRFL(**shared, theta=0.3, p=2)
    run = fd.solve(fd.Problem(sites, loss=fd.losses.hinge), algorithm)
    assert run.converged, run.reason
    assert abs(run.worst_case.value / oracle.program("hinge", 0.0, *theirs, units_of(sites)) - 1.0) <= 1e-5
    assert run.worst_case.gap <= 1e-3 * run.worst_case.value


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(loaders.VARIABLE), reason="FOEDUS_DATA is not set")
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("data", ["adult", "heart", "scaled"])
@pytest.mark.parametrize("algorithm", [fd.DRFL(), fd.AFL(), fd.WAFL(radius=0.05, kappa=1.0, metric="l2")])
def test_raw_columns_simply_work_with_either_loss(algorithm, data, loss):
    given = {"adult": adult_columns, "heart": datasets.heart}
    sites = scaled_columns(6) if data == "scaled" else dealt(*(part[:2000] for part in given[data]()), 5)
    run = fd.solve(fd.Problem(sites, loss=LOSSES[loss][0]), algorithm)
    assert run.converged, run.reason
    assert run.worst_case.gap <= 1e-3 * run.worst_case.value
    wafl = isinstance(algorithm, fd.WAFL)
    held = [tuple(np.concatenate(part) for part in zip(*sites, strict=True))] if wafl else sites
    theirs = (algorithm.radius, algorithm.kappa, algorithm.metric, None, algorithm.theta, algorithm.p)
    best = oracle.program(loss, 0.0, held, *theirs, np.ones(1) if wafl else shares(sites), units_of(sites))
    assert abs(run.worst_case.value / best - 1.0) <= 1e-5


# --- what is not measured, and what is kept ---


def test_with_too_many_rows_the_gap_is_said_to_be_not_measured(monkeypatch):
    monkeypatch.setattr(robust_bound, "MOST_ROWS", 10)
    problem = fd.Problem(clients("logistic", 1), loss=fd.losses.logistic)
    assert fd.solve(problem, fd.AFL()).worst_case.gap is not None  # its multipliers take no search
    monkeypatch.setattr(robust_proposal, "MOST_NUMBERS", 10)
    run = fd.solve(problem, fd.AFL())
    assert run.converged
    assert run.worst_case.gap is None
    assert run.reason.endswith("the duality gap was not measured")
    assert "duality gap not measured" in str(run)
    # what is plainly worse than no model at all is refused without a gap
    held, reason = fd.AFL().stress(problem, np.full(4, 50.0)).judge("residuals of 0")
    assert not held
    assert "w = 0 is at most 0.6931" in reason


def test_a_bounded_support_has_no_gap_and_is_held_against_the_model_zero():
    problem = fd.Problem(clients("hinge", 1), loss=fd.losses.hinge)
    algorithm = fd.DRFL(support=(-1.0, 1.0), kappa=0.5)
    found = algorithm.stress(problem, np.full(4, 50.0))
    assert found.gap is None
    assert found.at_zero == pytest.approx(1.0)
    assert not found.judge("residuals of 0")[0]


def test_the_gap_is_printed_saved_and_read_back_and_old_files_have_none(tmp_path):
    run = fd.solve(fd.Problem(clients("logistic", 1), loss=fd.losses.logistic), fd.AFL())
    told = float(str(run).split("at most ")[1].split(" above the best possible worst case")[0])
    assert run.worst_case.gap <= told <= 1.2 * run.worst_case.gap
    folder = run.save(tmp_path / "run")
    assert fd.load(folder).worst_case.gap == run.worst_case.gap
    kept = json.loads((folder / "run.json").read_text())
    for name in ("gap", "at_zero"):  # version 0.1 wrote neither
        del kept["worst_case"][name]
    (folder / "run.json").write_text(json.dumps(kept))
    old = fd.load(folder)
    assert old.worst_case.gap is None
    assert "duality gap not measured" in str(old)
