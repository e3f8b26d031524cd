"""InteriorPoint with curvature that the server learns: the same optima from vectors alone, for thousands of columns."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import DIM, Coupled, Quadratic, breast_cancer
from halls import Hall, agree
from proxal_runs import confirmed
from scipy.sparse import csr_array

import foedus as fd
from foedus.algorithms.interior.constants import METHOD
from foedus.algorithms.interior.learnt import (
    LearntShare,
    is_partial,
    learnt,
    learnt_share,
    products_of,
    rounds_of,
    solve_learnt,
)
from foedus.algorithms.interior.parties import Rows, stiffness
from foedus.numerics.limited_memory import LimitedMemory
from foedus.problem.epigraph import Blocks

POINT, LEARNT = fd.InteriorPoint(), fd.InteriorPoint(curvature="learnt")
KEY = jax.random.key(0)


def wide(columns: int, *, sites: int = 5, rows: int = 200, density: float = 1.0, **stated) -> fd.Problem:
    """More columns than rows, a ridge that makes the minimum unique, and labels that a plane explains in part.

    With a `density` below 1 the sites' tables are sparse ones of SciPy.
    """
    rng = np.random.default_rng(0)
    plane = 3.0 * rng.normal(size=columns) / np.sqrt(columns)
    clients = {}
    for i in range(sites):
        X = rng.normal(size=(rows, columns))
        if density < 1:
            X *= rng.uniform(size=X.shape) < density
        X[:, -1] = 1.0
        y = (X @ plane + density * rng.normal(size=rows) > 0).astype(float)
        clients[f"s{i}"] = (X if density == 1 else csr_array(X), y)
    ridge = fd.penalties.Ridge(1e-2, per_example=False)
    return fd.Problem(clients, loss=fd.losses.logistic, penalty=ridge, **stated)


def capped(columns: int, **size) -> fd.Problem:
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.3)
    return wide(columns, where=fd.label(0), constraints=[cap], **size)


# --- the pieces, against dense matrices ---


def system(clients: int, rows: int, columns: int = 12) -> tuple[fd.Problem, list[np.ndarray], list[Rows]]:
    """A problem with linear rows at every site, each site's Jacobian, and slacks and multipliers of all sizes."""
    rng = np.random.default_rng(rows)
    J = [rng.normal(size=(rows, columns)) for _ in range(clients)]
    problem = fd.Problem(
        [(np.ones((1, columns)), np.ones(1))] * clients,
        loss=fd.losses.least_squares,
        constraints=[fd.constraints.Linear(np.stack(J), np.ones((clients, rows)))],
    )
    z = [10.0 ** rng.uniform(-4, 2, size=rows) for _ in range(clients)]
    return problem, J, [Rows(jnp.asarray(1e-4 / a), jnp.asarray(a), jnp.full(rows, METHOD.delta)) for a in z]


def summed(problem: fd.Problem, J: list[np.ndarray], rows: list[Rows], scale: np.ndarray) -> LearntShare:
    terms = problem.terms
    equal, nothing = np.zeros(terms.rows[0], bool), jnp.zeros(terms.dim)
    shares = [
        learnt_share(terms, nothing, nothing, D, jnp.asarray(a), jnp.asarray(scale), part).placed(terms, part)
        for a, D in zip(J, (stiffness(own, equal) for own in rows), strict=True)
        for part in jnp.arange(rounds_of(terms))
    ]
    return jax.tree.map(lambda *parts: sum(parts), *shares)


def matrices(problem: fd.Problem, J: list[np.ndarray], rows: list[Rows], scale: np.ndarray) -> tuple[np.ndarray, ...]:
    """Σ Jᵀ D J as the server has it from sums, and itself."""
    terms = problem.terms
    J = [a / scale for a in J]
    D = [np.asarray(stiffness(own, np.zeros(2, bool))) for own in rows]
    exact = sum(a.T @ (d[:, None] * a) for a, d in zip(J, D, strict=True))
    none = Blocks(jnp.zeros(12), jnp.zeros(0), jnp.zeros(0), jnp.zeros((0, 12)))
    K = learnt(terms, summed(problem, J, rows, scale), jnp.asarray(scale), none, jnp.zeros((0, 12)), jnp.ones(12))
    return scale * np.asarray(K.blocks.dense()) * scale[:, None], scale * exact * scale[:, None]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("a_round", [128, 4])
def test_a_few_products_determine_the_matrix_of_all_sites_rows(monkeypatch, scaled, a_round):
    """In one round, and in three rounds of four products."""
    monkeypatch.setitem(vars(METHOD), "products", a_round)
    problem, J, rows = system(3, 2)
    assert products_of(problem.terms) == min(10, a_round)
    assert rounds_of(problem.terms) == (3 if a_round == 4 else 1)
    found, exact = matrices(problem, J, rows, 10.0 ** np.linspace(-3, 3, 12) if scaled else np.ones(12))
    np.testing.assert_allclose(found, exact, atol=1e-7)


def test_more_rows_than_columns_are_determined_by_as_many_products_as_columns():
    problem, J, rows = system(30, 2)
    assert products_of(problem.terms) == 12
    assert not is_partial(problem.terms)
    found, exact = matrices(problem, J, rows, np.ones(12))
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6 * np.max(exact))


def test_of_more_rows_than_products_the_stiffest_count_and_the_others_with_their_diagonal(monkeypatch):
    monkeypatch.setitem(vars(METHOD), "products", 8)
    monkeypatch.setitem(vars(METHOD), "most_rounds", 1)
    problem, J, rows = system(30, 2)
    assert is_partial(problem.terms)
    found, exact = matrices(problem, J, rows, np.ones(12))
    assert np.linalg.norm(found - exact, 2) < np.linalg.norm(exact, 2)
    np.testing.assert_allclose(np.diag(found), np.diag(exact), rtol=1e-6)


@pytest.mark.slow
def test_the_learnt_system_is_solved_as_the_dense_one():
    """With an ℓ1 norm, whose variables t are beside w, with rows, and with pairs of L-BFGS."""
    rng, dim = np.random.default_rng(1), 8
    form = fd.regularizers.L1(0.1).epigraph(dim)
    root = rng.normal(size=(dim, dim))
    H = root @ root.T + np.eye(dim)
    memory = LimitedMemory.empty(dim, 5)
    for step in rng.normal(size=(4, dim)):
        memory = memory.add(jnp.asarray(step), jnp.asarray(H @ step))
    D = jnp.asarray(10.0 ** rng.uniform(-3, 6, size=2 * dim))
    blocks = form.blocks(jnp.ones(2 * dim), D, D)
    own = jnp.asarray(np.pad(100.0 * rng.normal(size=(2, dim)), ((0, 0), (0, dim))))
    terms = fd.Problem([(np.ones((1, dim)), np.ones(1))], loss=fd.losses.least_squares).terms
    K = learnt(terms, LearntShare.zero(terms), jnp.ones(dim), blocks, own, jnp.asarray(np.diag(H)))
    B = jax.vmap(memory.factors(jnp.asarray(np.diag(H))).times)(jnp.eye(dim))
    dense = np.pad(B, (0, dim)) + blocks.dense() + own.T @ own
    r = rng.normal(size=2 * dim)
    found = solve_learnt(K, memory, jnp.asarray(r), jnp.zeros(()))
    np.testing.assert_allclose(found, np.linalg.solve(dense, r), rtol=1e-8, atol=1e-10)


def test_a_reply_has_vectors_and_no_matrix_and_does_not_grow_with_rows():
    """60 rows at each of 5 sites, or 600: as many products of a message, and nothing of the size of a row of data."""
    sent = []
    for rows in (60, 600):
        C = np.zeros((rows, 501))
        problem = fd.Problem(
            [(np.ones((1, 501)), np.ones(1))] * 5,
            loss=fd.losses.least_squares,
            constraints=[fd.constraints.Linear(C, np.ones(rows))],
        )
        terms, data = problem.terms, problem.client(0)
        server = jax.eval_shape(lambda t=terms: POINT.init(t, jnp.zeros(501), None))
        ask = jax.eval_shape(lambda s, t=terms: POINT.broadcast(t, s, jnp.zeros(5)), server)
        client = jax.eval_shape(lambda d, t=terms: POINT.join(t, d, jnp.zeros(501)), data)
        reply = jax.eval_shape(lambda c, a, d, t=terms: POINT.local(t, c, a, d, KEY)[1], client, ask, data)
        sent.append([leaf.shape for leaf in jax.tree.leaves(reply)])
    assert sent[0] == sent[1]
    assert max(int(np.prod(shape)) for shape in sent[0]) == 128 * 501


# --- whole runs ---


def test_learnt_curvature_leads_to_cvxpys_optimum():
    case = breast_cancer()
    run, best = fd.solve(case.problem(), LEARNT), case.answer()
    confirmed(run, case.residuals(run.w, run.multipliers))
    assert run.certificate.holds(1e-6, 1e-6)
    assert run.objective == pytest.approx(best.objective, abs=1e-5)
    assert run.rounds <= 60


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.6])
def test_rows_of_every_scope_and_an_l1_norm_lead_to_cvxpys_optimum(lam):
    case = Coupled.random(5)
    problem = case.problem(regularizer=fd.regularizers.L1(lam)) if lam else case.problem()
    run, best = fd.solve(problem, LEARNT, w0=np.zeros(DIM)), case.answer(lam)
    confirmed(run, case.residuals(run.w, run.multipliers, lam))
    np.testing.assert_allclose(run.w, best.w, atol=1e-4)


@pytest.mark.slow
def test_silent_sites_are_waited_for():
    case = Quadratic.random(1)
    run = fd.solve(case.problem(), LEARNT, w0=np.zeros(DIM), participation=0.5, seed=5)
    confirmed(run, case.residuals(run.w, run.multipliers))
    np.testing.assert_allclose(run.w, case.answer().w, atol=1e-5)


@pytest.mark.slow
def test_sessions_of_server_and_sites_play_the_same_rounds(tmp_path):
    case = breast_cancer()
    run = fd.solve(case.problem(), LEARNT)
    agree(run, Hall(tmp_path, case.problem(), LEARNT).play(), 1e-6)


def test_a_sparse_table_is_the_dense_one():
    dense, thin = np.eye(4)[:, :3], csr_array(np.eye(4)[:, :3])
    y = np.array([0.0, 1.0, 1.0, 0.0])
    first = fd.Problem([(dense, y)], loss=fd.losses.logistic)
    second = fd.Problem([(thin, y)], loss=fd.losses.logistic)
    np.testing.assert_array_equal(first.data["x"], second.data["x"])


@pytest.mark.slow
def test_more_rows_than_one_message_tells_of_are_told_in_several_rounds(monkeypatch):
    """Sixty caps of which a message tells ten: seven rounds a point, and the same points."""
    problem = capped(520, sites=60, rows=20)
    few = fd.InteriorPoint(eps1=1e-3, eps2=1e-3)
    run = fd.solve(problem, few)
    monkeypatch.setitem(vars(METHOD), "products", 10)
    jax.clear_caches()
    parted = fd.solve(problem, few)
    assert parted.converged, parted.reason
    assert parted.rounds == 7 * run.rounds
    np.testing.assert_allclose(parted.w, run.w, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "most"),
    [
        (capped, 25),
        (lambda columns: capped(columns, sites=20), 25),
        (lambda columns: capped(columns, sites=60, rows=60), 25),
        (lambda columns: capped(columns, density=0.05), 25),
        (lambda columns: wide(columns, regularizer=fd.regularizers.L1(1e-2)), 40),
        (lambda columns: wide(columns, regularizer=fd.regularizers.Box(-0.02, 0.02)), 40),
    ],
    ids=["caps", "caps at 20 sites", "caps at 60 sites", "sparse tables", "l1", "box"],
)
def test_two_thousand_columns_take_few_rounds(stated, most):
    run = fd.solve(stated(2000), fd.InteriorPoint(eps1=1e-3, eps2=1e-3))
    assert run.converged, run.reason
    assert run.certificate.holds(1e-3, 1e-3), str(run.certificate)
    assert run.rounds <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "density"),
    [
        ("InteriorPoint(eps1=1e-3, eps2=1e-3)", 1.0),
        ("InteriorPoint(eps1=1e-3, eps2=1e-3)", 0.02),
        ("ProxAL(inner='lbfgs')", 1.0),
    ],
)
def test_ten_thousand_columns_take_less_than_a_gigabyte(algorithm, density):
    """In a process of its own, whose largest size is what VmHWM says; `ru_maxrss` would be that of its parent, too."""
    code = (
        "import re, foedus as fd; from test_interior_point_learnt import capped\n"
        f"run = fd.solve(capped(10_000, density={density}), fd.{algorithm}, max_rounds=60)\n"
        f"assert run.converged or {algorithm.startswith('ProxAL')}, run.reason\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    places = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) * 1024 < 1e9


@pytest.mark.slow
def test_proxal_without_hessians_waits_for_silent_sites():
    """A silent site's linear model has no lower bound: with half of the sites the objective once fell to -1e73."""
    problem = capped(600)
    run = fd.solve(problem, fd.ProxAL(inner="lbfgs"), participation=0.5, seed=1, max_rounds=4000)
    best = fd.solve(problem, fd.InteriorPoint(eps1=1e-5, eps2=1e-5))
    assert run.converged, run.reason
    assert run.certificate.holds(1e-3, 1e-3)
    assert run.objective == pytest.approx(best.objective, abs=0.01)
