"""Functions played by NumPy give what the same functions give when JAX compiles them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import foedus as fd
from foedus.numerics.interpreter import dispatch, random_bits
from foedus.numerics.interpreter import program as program_module
from foedus.numerics.interpreter.dispatch import jit_if_large, program_for
from foedus.numerics.interpreter.program import Program, keep_results
from foedus.numerics.interpreter.shapes import CannotInterpret
from foedus.protocol.algorithm import Algorithm
from foedus.robust.weights import nearest_weights, weights_projection
from foedus.runtime import simulate

RNG = np.random.default_rng(0)
A, B, SQUARE = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=(40, 40))
POSITIVE = SQUARE @ SQUARE.T + np.eye(40)
V, W = np.array([1.5, -2.5, 0.0, np.inf, np.nan, -0.4]), np.array([2.0, 3.0, -1.0, 0.5, 1.0, 0.0])
WHOLE, DIVISOR = np.array([-7, -7, 7, 7, 0]), np.array([2, -2, 2, -2, 3])


def halve(x):
    return lax.while_loop(lambda v: jnp.sum(v) > 1.0, lambda v: 0.5 * v, x)


def elements(v, w):
    first = jnp.maximum(v, w), jnp.minimum(v, w), jnp.sign(v), v / w, jnp.exp(v), jnp.isfinite(v), lax.round(v)
    return first, jnp.round(v), v**2, v**-3, jnp.log1p(jnp.abs(v)), lax.logistic(v)


def whole_numbers(a, b):
    return lax.div(a, b), lax.rem(a, b), a // b, a % b, a.astype(jnp.int32).sum(), (a > 0).astype(float)


def logic(v, w):
    chosen = lax.select_n((w > 0).astype(jnp.int32), w, 2.0 * w)
    return (v > w) & (w > 0), (v > w) | ~(w > 0), jnp.where(v > w, v, w), jnp.any(v > w), jnp.all(w > v), chosen


def sums(a):
    nothing = jnp.max(a[:, :0], axis=1, initial=-1.0)
    first = jnp.sum(a, 0), jnp.prod(a), jnp.max(a, 1), jnp.min(a), jnp.argmax(a, 1), jnp.cumsum(a, 0), nothing
    return first, jnp.mean(a), lax.cummax(a, reverse=True)


def products(a, b):
    by_row = jax.vmap(lambda r: r @ b)(a)
    return a @ b, jnp.einsum("ij,jk->ki", a, b), jnp.vdot(a, a), by_row, jnp.einsum("ij,ik->ijk", a, a)


def shapes(a):
    first = a.T, a.reshape(-1), a[::-1], a[1:3, ::2], jnp.pad(a, ((1, 0), (0, 2))), jnp.concatenate([a, a])
    return first, jnp.stack([a, a], 1), lax.pad(a, 0.0, ((-1, 0, 0), (0, 1, 1))), jnp.split(a, 2), jnp.tile(a, 2)


def indexing(a, i):
    first = a[i], a[:, i], a[i, i - 1], a.at[i].set(1.0), a.at[i].add(2.0), a.at[0, 1].max(9.0), jnp.diag(a[:3])
    outside = (
        a.at[i + 3].set(0.0, mode="drop"),
        jnp.take(a, i + 2, axis=0, mode="fill"),
        jnp.take(a, i + 2, 0, mode="clip"),
    )
    windows = lax.dynamic_slice(a, (i[0], 1), (2, 2)), lax.dynamic_update_slice(a, a[:1], (i[1], 0))
    return first, outside, windows, a[jnp.triu_indices(3)]


def batched_indexing(a, i):
    return jax.vmap(lambda r, j: (r[j], r.at[j].set(0.0), r.at[j].add(1.0)))(a, i)


def order(v):
    return jnp.sort(v), jnp.argsort(-v), lax.top_k(v, 2), lax.sort((v > 0, v), num_keys=2)


def triangular(m, b):
    forms = [(left, lower, turned) for left in (True, False) for lower in (True, False) for turned in (True, False)]
    solve = lax.linalg.triangular_solve
    return [solve(m, b if left else b.T, left_side=left, lower=low, transpose_a=turned) for left, low, turned in forms]


def loops(v):
    scanned = lax.scan(lambda c, x: (c + x, c * x), 1.0, v), lax.fori_loop(0, 3, lambda i, c: c + i * v, v)
    chosen = lax.cond(v[0] > 1.0, lambda x: x + 1.0, lambda x: x - 1.0, v)
    last = lax.switch(jnp.array(7), [lambda x: x, lambda x: 2.0 * x], v)
    return halve(v), jax.vmap(halve)(jnp.stack([v, 3.0 * v])), scanned, lax.map(lambda x: x**2, v), chosen, last


def draws(seed):
    key = jax.random.fold_in(jax.random.key(seed), 3)
    return jax.random.normal(key, (3,)), jax.random.uniform(key, (2, 2)), jax.random.bits(key, (3,))


FUNCTIONS = {
    "elements": (elements, (V, W)),
    "whole numbers": (whole_numbers, (WHOLE, DIVISOR)),
    "to whole numbers": (lambda v: v.astype(int), (np.array([1.9, -1.9, 0.5, np.nan]),)),
    "logic": (logic, (V, W)),
    "sums": (sums, (A,)),
    "products": (products, (A, B)),
    "shapes": (shapes, (A,)),
    "indexing": (indexing, (A, np.array([0, 2, 2]))),
    "batched indexing": (batched_indexing, (A, np.array([0, 2, 1, 1]))),
    "order": (order, (np.array([3.0, -1.0, 3.0, 2.0]),)),
    "Cholesky": (lambda m: (jnp.linalg.cholesky(m), jnp.linalg.cholesky(-m)), (POSITIVE,)),
    "triangular": (triangular, (POSITIVE, RNG.normal(size=(40, 3)))),
    "eigenvalues": (lambda m: jnp.linalg.eigh(m)[0], (POSITIVE,)),
    "loops": (loops, (np.array([2.0, 3.0]),)),
    "derivatives": (jax.grad(lambda v: jnp.sum(jnp.logaddexp(0.0, v) + jax.nn.softplus(v) ** 2)), (W,)),
    "softmax": (jax.grad(lambda a: jnp.sum(jax.nn.softmax(a) ** 2) + jax.nn.logsumexp(a)), (A,)),
    "stopped gradients": (jax.value_and_grad(lambda a: jnp.sum(a * lax.stop_gradient(a))), (A,)),
    "special": (lambda v: (jax.scipy.special.erf(v), jax.scipy.special.gammaln(jnp.abs(v) + 1.0)), (W,)),
    "draws": (draws, (np.int64(2**40 + 7),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_computes_what_jax_computes(name):
    function, arguments = FUNCTIONS[name]
    played, compiled = Program.of(function, *arguments)(*arguments), jax.jit(function)(*arguments)
    for mine, theirs in zip(jax.tree.leaves(played), jax.tree.leaves(compiled), strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, np.asarray(theirs), rtol=1e-11, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_keys_are_those_of_jax(seed):
    np.testing.assert_array_equal(
        jax.random.key_data(random_bits.random_key(seed)), jax.random.key_data(jax.random.key(seed))
    )


def test_what_is_remembered_is_not_computed_again_and_belongs_to_its_arguments(monkeypatch):
    counts, played = [], program_module.block_of

    def counted(program, constants=None):
        block = played(program, constants)
        if len(program.jaxpr.invars) != 2:  # not the function whose results are kept
            return block
        return lambda *arguments: counts.append(1) or block(*arguments)

    monkeypatch.setattr(program_module, "block_of", counted)
    inner = keep_results(lambda a, b: (a @ b, jnp.sum(a) / b[0, 0]))
    program = Program.of(lambda a, b, c: [inner(m, n) for m, n in ((a, b), (a + c, b), (a, b))], A, B, np.zeros(()))

    def check(a, b, c):
        for (product, ratio), left in zip(program(a, b, c), (a, a + c, a), strict=True):
            np.testing.assert_array_equal(product, left @ b)
            with np.errstate(divide="ignore"):
                np.testing.assert_array_equal(ratio, np.sum(left) / b[0, 0])

    # each of the three calls is a block of its own, with a memory of its own
    for a, c, more in ((A, 1.0, 3), (A, 1.0, 0), (A, 2.0, 1), (A, 1.0, 0), (A, 3.0, 1), (A, 2.0, 0), (2 * A, 2.0, 3)):
        before = len(counts)
        check(a, B, np.asarray(c))
        assert len(counts) - before == more
    # a zero of the other sign is another argument
    zero = B.copy()
    zero[0, 0] = 0.0
    check(A, zero, np.asarray(1.0))
    zero[0, 0] = -0.0
    check(A, zero, np.asarray(1.0))


@pytest.mark.filterwarnings("error")
def test_turns_side_by_side_give_the_same_bits(monkeypatch):
    """Sites one after the other, and on several threads; some divide by zero, which no thread warns of."""
    many, w = RNG.normal(size=(7, 40, 40)), np.zeros(40)
    program = Program.of(lambda m, v: lax.map(lambda one: (one @ one.T, jnp.sum(one) / v[0], jnp.log(v)), m), many, w)
    alone = program(many, w)
    monkeypatch.setattr(program_module, "SIDE_BY_SIDE", range(1, 10**6))
    monkeypatch.setattr(program_module.os, "cpu_count", lambda: 3)
    program = Program.of(lambda m, v: lax.map(lambda one: (one @ one.T, jnp.sum(one) / v[0], jnp.log(v)), m), many, w)
    for a, b in zip(alone, program(many, w), strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_results_are_not_kept(monkeypatch):
    monkeypatch.setattr(program_module, "MOST_KEPT", 3)
    program = Program.of(keep_results(lambda a: a[:, ::2].T), A)
    for k in range(3):
        np.testing.assert_array_equal(program(k * A), k * A[:, ::2].T)


def test_an_unknown_operation_is_compiled():
    def solves(m):
        return jnp.linalg.qr(m)[1]

    with pytest.raises(CannotInterpret):
        program_for("qr", solves, POSITIVE)
    np.testing.assert_allclose(np.abs(jit_if_large()(solves)(POSITIVE)), np.abs(np.linalg.qr(POSITIVE)[1]), rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.01, 0.3, 2.0]), st.sampled_from([1, "inf"]))
def test_weights_by_sorting_are_those_by_bisection(seed, theta, p):
    rng = np.random.default_rng(seed)
    q_hat = rng.dirichlet(np.ones(4))
    u = q_hat + rng.normal(size=4) * 10.0 ** rng.uniform(-3, 3)
    expected = BISECTION[p](u, q_hat, theta)
    np.testing.assert_allclose(nearest_weights(u, q_hat, theta, p), expected, atol=1e-9)


BISECTION = {p: jax.jit(lambda u, q, t, p=p: weights_projection(u, q, t, p)) for p in (1, "inf")}


# --- whole runs ---


def problem_of(rows: int, sites: int = 3, **terms) -> fd.Problem:
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(sites, rows, 4))
    y = (X[:, :, 0] + rng.normal(size=(sites, rows)) > 0).astype(float)
    return fd.Problem([(a, b) for a, b in zip(X, y, strict=True)], loss=fd.losses.logistic, **terms)


CAP = fd.constraints.LossCap(fd.label(1), at_most=0.6)
RUNS = {
    "InteriorPoint": (lambda rows, **k: problem_of(rows, constraints=[CAP], **k), fd.InteriorPoint()),
    "DRFL": (problem_of, fd.DRFL(radius=0.05, kappa=1.0, theta=0.3)),
}


def by(player: str, problem: fd.Problem, algorithm: Algorithm, monkeypatch, participation=1.0, **k) -> fd.Run:
    monkeypatch.setenv("FOEDUS_PLAYER", player)
    return fd.solve(problem, algorithm, participation=participation, **k)


@pytest.mark.parametrize("name", ["InteriorPoint", pytest.param("DRFL", marks=pytest.mark.slow)])
@pytest.mark.parametrize("participation", [1.0, pytest.param(fd.Fraction(0.7, dropout=0.1), marks=pytest.mark.slow)])
def test_a_run_by_numpy_is_the_compiled_run_but_for_rounding(name, participation, monkeypatch):
    make, algorithm = RUNS[name]
    problem = make(20)
    played, compiled = (by(player, problem, algorithm, monkeypatch, participation) for player in ("numpy", "xla"))
    assert played.converged
    assert (played.rounds, played.traffic) == (compiled.rounds, compiled.traffic)
    np.testing.assert_allclose(played.w, compiled.w, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(played.objective, compiled.objective, rtol=1e-10)
    assert list(played.history) == list(compiled.history)


@pytest.mark.parametrize(
    "algorithm",
    [fd.FedGiA(), fd.FedAvg()]
    + [pytest.param(a, marks=pytest.mark.slow) for a in (fd.FedPD(), fd.Scaffold(), fd.LocalSGD(), fd.FedDyn())],
    ids=lambda a: type(a).__name__,
)
def test_rounds_of_any_algorithm_by_either_player_are_the_same_but_for_rounding(algorithm, monkeypatch):
    problem, who = problem_of(20), fd.Fraction(0.7, dropout=0.1)
    played, compiled = (by(one, problem, algorithm, monkeypatch, who, max_rounds=12) for one in ("numpy", "xla"))
    assert (played.rounds, played.traffic) == (compiled.rounds, compiled.traffic)
    for name, values in played.history.items():
        np.testing.assert_allclose(values, compiled.history[name], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(played.w, compiled.w, rtol=1e-8, atol=1e-10)


def test_a_softmax_objective_is_played_too(monkeypatch):
    def objective(w, data):
        z = data["x"] @ w
        return data.mean(jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, data["y"].astype(int)[:, None], 1)[:, 0])

    sites = [(RNG.normal(size=(20, 3)), RNG.integers(0, 4, size=20).astype(float)) for _ in range(3)]
    problem, w0 = fd.Problem(sites, objective=objective, penalty=fd.penalties.Ridge(0.1)), np.zeros((3, 4))
    monkeypatch.setattr(simulate.Rounds, "play", None)  # that of compiled rounds
    run = fd.solve(problem, fd.InteriorPoint(), w0=w0)
    assert run.converged
    assert run.certificate.holds(1e-6, 1e-6)


def test_the_player_is_chosen_by_one_switch(monkeypatch):
    small, large = np.zeros(3), np.zeros(dispatch.LARGE + 1)
    assert (dispatch.is_small(small), dispatch.is_small(large)) == (True, False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not dispatch.is_small(small)
    monkeypatch.setenv("FOEDUS_PLAYER", "numpy")
    assert dispatch.is_small(large)
    monkeypatch.setenv("FOEDUS_PLAYER", "xla")
    assert not dispatch.is_small(small)
    monkeypatch.setenv("FOEDUS_PLAYER", "cuda")
    with pytest.raises(fd.FoedusError, match="must be one of auto, xla, numpy"):
        dispatch.is_small(small)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_a_small_problem_compiles_nothing_whatever_its_rows_and_sites(name):
    make, algorithm = RUNS[name]
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    try:
        for rows, sites in ((21, 3), (33, 3), (33, 4)):
            run = fd.solve(make(rows, sites=sites), algorithm)
            assert run.converged
            assert "over" in str(run)
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compiled


def test_the_same_seed_gives_the_same_bits(monkeypatch):
    make, algorithm = RUNS["InteriorPoint"]
    first = fd.solve(make(20), algorithm, seed=1)
    dispatch._programs.clear()
    monkeypatch.setattr(simulate, "FIRST_CHUNK", 1)
    again = fd.solve(make(20), algorithm, seed=1)
    for name, values in first.history.items():
        np.testing.assert_array_equal(values, again.history[name])
    np.testing.assert_array_equal(first.w, again.w)
