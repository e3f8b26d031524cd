"""Products by entries: the numbers of dense NumPy, in a share of the table's memory, and for sparse tables alone."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import foedus as fd
from foedus.numerics.interpreter import sparse
from foedus.numerics.interpreter.program import Program
from foedus.numerics.interpreter.sparse import SparseTables, entries_of, mark_sparse
from foedus.numerics.second_derivatives import convex_curve_along, curve_along
from foedus.runtime import simulate

TABLES, ROWS, COLUMNS = 3, 12, 7
SHAPES = (np.zeros((TABLES, ROWS, COLUMNS)), np.zeros((TABLES, ROWS)), np.zeros((TABLES, COLUMNS)), np.zeros(COLUMNS))


@pytest.fixture
def any_table(monkeypatch):
    """Tables of any size, and with any number of entries, are taken by their entries."""
    monkeypatch.setattr(sparse, "LEAST", 1)
    monkeypatch.setattr(sparse, "SHARE", 1e9)


def of_one(x, d, diagonal, w):
    both = curve_along(x, d, w, diagonal), convex_curve_along(x, jnp.abs(d), w)
    return both, x @ w, d @ x, d[None] @ x, x.T @ d, x @ jnp.stack([w, 2.0 * w], 1), jnp.einsum("rk,rk->r", x, x)


OF_ALL = Program.of(lambda x, d, diagonal, w: lax.map(lambda one: of_one(*one, w), (x, d, diagonal)), *SHAPES)


def by_hand(x, d, diagonal, w):
    upper = np.triu_indices(COLUMNS)
    K, convex = (x.T * d) @ x + np.diag(diagonal), (x.T * np.abs(d)) @ x
    both = (K[upper], K @ w), (convex[upper], convex @ w)
    return both, x @ w, d @ x, (d @ x)[None], x.T @ d, x @ np.stack([w, 2.0 * w], 1), np.sum(x * x, 1)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), density=st.floats(0.0, 1.0), ones=st.booleans(), empty=st.booleans())
def test_products_by_entries_are_those_of_dense_numpy(seed, density, ones, empty):
    draw = np.random.default_rng(seed)
    x = (draw.random((TABLES, ROWS, COLUMNS)) < density) * (1.0 if ones else draw.normal(size=(TABLES, ROWS, COLUMNS)))
    if empty:
        x[1], x[:, 3], x[:, :, 2] = 0.0, 0.0, 0.0
    d = draw.normal(size=(TABLES, ROWS)) * (draw.random((TABLES, ROWS)) < 0.8)
    diagonal, w = draw.random((TABLES, COLUMNS)), draw.normal(size=COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "LEAST", 1)
        patch.setattr(sparse, "SHARE", 1e9)
        tables = mark_sparse(x)
    assert isinstance(tables, SparseTables)
    for _ in range(2):  # with the pairs made, and with those that are there
        results = OF_ALL(tables, d, diagonal, w)
        for i in range(TABLES):
            expected = by_hand(x[i], d[i], diagonal[i], w)
            jax.tree.map(
                lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-12, atol=1e-12), results, expected
            )


@pytest.fixture
def calls(monkeypatch):
    """The names of the products that were computed by entries."""
    names: list[str] = []
    for name in ("times", "triangle"):
        own = getattr(sparse.Entries, name)
        monkeypatch.setattr(sparse.Entries, name, lambda *a, n=name, f=own, **k: [names.append(n), f(*a, **k)][1])
    return names


def test_gram_matrices_and_products_with_vectors_are_computed_by_entries(any_table, calls):
    """What the numbers alone do not show. The product with x.T is dense: a transposed table is an array like others."""
    OF_ALL(mark_sparse(np.ones((TABLES, ROWS, COLUMNS))), *SHAPES[1:])
    assert (calls.count("triangle"), calls.count("times")) == (2 * TABLES, (2 * 2 + 3) * TABLES)


def test_derivatives_and_batches_of_a_function_with_a_shortcut_are_their_own(any_table):
    draw = np.random.default_rng(1)
    x, d = np.eye(ROWS, COLUMNS)[None] + np.zeros((TABLES, 1, 1)), draw.random((TABLES, ROWS))
    diagonal, w = draw.random(COLUMNS), draw.normal(size=COLUMNS)

    def of_one(x, d):
        slope = jax.jvp(lambda d: convex_curve_along(x, d, w, diagonal), (d,), (d,))
        turned = jax.grad(lambda d: jnp.sum(convex_curve_along(x, d, w, diagonal)[1] ** 2))(d)
        several = jax.vmap(lambda d: curve_along(x, d, w, diagonal))(jnp.stack([d, 2.0 * d]))
        return slope, turned, several

    def of_all(x, d):
        return lax.map(lambda one: of_one(*one), (x, d))

    tables = mark_sparse(x)
    assert isinstance(tables, SparseTables)
    played, compiled = Program.of(of_all, x, d)(tables, d), jax.jit(of_all)(x, d)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), played, compiled)


def test_another_function_of_the_same_name_is_not_mistaken_for_it(any_table):
    @jax.jit
    def curve_along(x, d, w, diagonal):
        return jnp.zeros(COLUMNS * (COLUMNS + 1) // 2) + d[0], diagonal - w

    rest = np.ones(ROWS), np.full(COLUMNS, 3.0), np.ones(COLUMNS)
    program = Program.of(lambda x, *rest: lax.map(lambda one: curve_along(one, *rest), x), SHAPES[0], *rest)
    triangle, product = program(mark_sparse(np.ones((TABLES, ROWS, COLUMNS))), *rest)
    np.testing.assert_array_equal(triangle, 1.0)
    np.testing.assert_array_equal(product, -2.0)


# --- what is taken for sparse ---


def rows_of(entries: int, tables: int = 4, value: float = 1.0) -> np.ndarray:
    """Tables of 300 rows and 100 columns, with so many entries in each row."""
    draw = np.random.default_rng(0)
    places = np.argsort(draw.random((tables, 300, 100)), axis=2) < entries
    return np.where(places, value, 0.0)


def kept_bytes(tables: SparseTables) -> int:
    """The bytes of all arrays that the tables keep beside their numbers, each counted once."""
    arrays = {}
    for part in tables.parts:
        table, transpose = part._matrices
        own = [
            part.column,
            part.starts,
            part.values,
            *(m for p in (table, transpose, part._pairs) for m in vars(p).values()),
        ]
        for array in own:
            if isinstance(array, np.ndarray):
                base = array if array.base is None else array.base
                arrays[id(base)] = base
    return sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize(("entries", "value", "expected"), [
    (0, 1.0, True), (3, 1.0, True), (13, 1.0, True), (14, 1.0, False), (3, 0.5, True), (7, 0.5, True), (8, 0.5, False),
    (100, 1.0, False),
])  # fmt: skip
def test_what_is_kept_takes_at_most_its_share_of_the_tables(entries, value, expected):
    x = rows_of(entries, value=value, tables=40)
    tables = mark_sparse({"x": x, "y": x[:, :, 0]})["x"]
    assert isinstance(tables, SparseTables) == expected
    if not expected:
        assert tables is x
        return
    for i in range(len(x)):
        entries_of(tables[i]).triangle(np.ones(300))
    assert kept_bytes(tables) <= 0.6 * x.nbytes


def test_the_ones_of_a_single_table_count_too():
    assert isinstance(mark_sparse(rows_of(10, tables=40)), SparseTables)
    assert not isinstance(mark_sparse(rows_of(10, tables=1)), SparseTables)


def test_dense_rows_between_those_that_are_looked_at_first_do_not_fill_the_memory(monkeypatch):
    x = np.ones((20, 300, 100))
    monkeypatch.setattr(sparse, "SAMPLE", 6000)
    monkeypatch.setattr(sparse, "BAND", 2**15)
    flat = x.reshape(-1, 100)
    flat[:: x.size // 6000] = 0.0
    tracemalloc.start()
    try:
        assert mark_sparse(x) is x
        assert tracemalloc.get_traced_memory()[1] < 0.2 * x.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("x", [
    np.zeros((0, 300, 100)), np.zeros((3, 0, 100)), np.zeros((300, 100)), np.zeros((2, 300, 100), np.float32),
    np.zeros((2, 10, 100)), np.zeros((2, 300, 200))[:, :, ::2],
], ids=["no table", "no row", "one table", "other numbers", "small", "with gaps"])  # fmt: skip
def test_what_is_no_stack_of_large_tables_stays_what_it_is(x):
    assert mark_sparse(x) is x


def test_parts_and_results_of_a_sparse_table_are_plain_arrays(any_table):
    tables = mark_sparse(np.eye(ROWS)[None].repeat(2, 0))
    for value in (tables[0][1:], tables[0] * 2.0, tables[0].T, tables[:1][0], tables[0].copy(), tables + 1.0):
        assert entries_of(value) is None


# --- runs ---


def one_hot_problem(caps: bool) -> fd.Problem:
    draw = np.random.default_rng(3)
    sites = []
    for _ in range(3):
        x = np.zeros((60, 24))
        for first in (0, 8, 16):
            x[np.arange(60), first + draw.integers(0, 8, 60)] = 1.0
        sites.append((x, (x @ np.sin(np.arange(24.0)) + draw.normal(size=60) > 0).astype(float)))
    cap = [fd.constraints.LossCap(fd.label(1), 0.55)] if caps else []
    return fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1), constraints=cap)


@pytest.fixture
def site_by_site(monkeypatch):
    """Rounds are played one site after the other, as on data that are not small."""
    monkeypatch.setattr(simulate, "is_small", lambda *data: False)
    monkeypatch.setattr(sparse, "LEAST", 1)


@pytest.mark.parametrize("caps", [False, True])
def test_a_run_on_sparse_rows_is_the_run_on_dense_ones(site_by_site, calls, caps, monkeypatch):
    problem = one_hot_problem(caps)
    run = fd.solve(problem, fd.InteriorPoint(eps1=1e-10))
    assert run.converged
    assert calls.count("triangle") >= 3 * (run.rounds - 1)
    x, y = (np.concatenate([np.asarray(problem.data[name])[i] for i in range(3)]) for name in ("x", "y"))
    if not caps:  # then the gradient of the pooled objective vanishes
        gradient = (1.0 / (1.0 + np.exp(-x @ run.w)) - y) @ x / 180 + run.w * 0.1 / 60
        assert np.max(np.abs(gradient)) < 1e-9
    monkeypatch.setattr(simulate, "mark_sparse", lambda tree: tree)
    dense = fd.solve(problem, fd.InteriorPoint(eps1=1e-10))
    assert dense.rounds == run.rounds
    np.testing.assert_allclose(run.w, dense.w, rtol=1e-8, atol=1e-10)


def test_a_run_on_sparse_rows_has_the_same_bits_each_time(site_by_site, calls, monkeypatch, tmp_path):
    problem = one_hot_problem(caps=False)
    first = fd.solve(problem, fd.InteriorPoint())
    assert calls
    monkeypatch.setattr(simulate, "FIRST_CHUNK", 1)
    fd.solve(problem, fd.InteriorPoint(), max_rounds=3, checkpoint=tmp_path / "half")
    resumed = fd.solve(problem, fd.InteriorPoint(), checkpoint=tmp_path / "half")
    for again in (fd.solve(problem, fd.InteriorPoint()), resumed):
        np.testing.assert_array_equal(first.w, again.w)
        np.testing.assert_array_equal(first.history["objective"], again.history["objective"])
