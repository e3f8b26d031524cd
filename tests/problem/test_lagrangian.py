"""One party's P: its value is the formula's, its derivatives are its value's, and filling rows change nothing."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from constrained_cases import NAMES

import foedus as fd
from foedus.algorithms.lagrangian import Party, equalities, evaluate, piece, violation

DIM, SIZES, BETA, PROX = 4, (8, 5, 7), 3.0, 0.2
EQUAL = np.random.default_rng(4).normal(size=(3, 2, DIM)), np.random.default_rng(5).normal(size=(3, 2))
SERVER = np.random.default_rng(6).normal(size=(1, DIM)), np.array([0.2])


def people(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, labels and groups, with both labels and both groups present."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, DIM)), np.arange(rows) % 2.0, (np.arange(rows) // 2) % 2.0


def bumps(w, data):
    return jnp.stack([data.mean(jnp.sin(data["x"] @ w)), jnp.sum(w**3) - w[0]])


def one_bump(w, data):
    return jnp.sum(jnp.cos(w)) - 3.9


@cache
def linear_problem() -> fd.Problem:
    """A linear model under every kind of constraint in every scope."""
    own = fd.constraints
    return fd.Problem(
        {name: people(i, rows) for i, (name, rows) in enumerate(zip(NAMES, SIZES, strict=True))},
        loss=fd.losses.logistic,
        where=fd.label(0),
        penalty=fd.penalties.Saturating(2.0),
        constraints=[
            own.LossCap(fd.label(0), at_most=0.6, scope="coupled"),
            own.LossCap(fd.label(1), at_most=0.3),
            own.Linear(*SERVER, scope="global"),
            own.LossGap(fd.group(0), fd.group(1), at_most=0.1),
            own.Linear(*EQUAL, "=="),
            own.NormBall(1.0),
            own.LossCap(fd.label(1), at_most=0.5, scope="global", loss=fd.losses.least_squares),
            own.Custom(bumps),
            own.NormBall(0.7, scope="global"),
            own.Custom(one_bump, scope="global", kind="=="),
            own.Linear(np.eye(DIM)[:1], 0.1, scope="coupled"),
        ],
        server=people(9, 6),
    )


def numpy_rows(i: int, w: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Client i's rows: local ones first, then what is left of the coupled ones when n·s_i is taken off."""
    X, y, group = people(i, SIZES[i])
    loss = np.logaddexp(0.0, -np.where(y > 0, 1.0, -1.0) * (X @ w))
    gap = np.mean(loss[group == 0]) - np.mean(loss[group == 1])
    local = [np.mean(loss[y == 1]) - 0.3, gap - 0.1, -gap - 0.1, *(EQUAL[0][i] @ w - EQUAL[1][i]), w @ w - 1.0]
    local += [np.mean(np.sin(X @ w)), np.sum(w**3) - w[0]]
    coupled = np.array([np.mean(loss[y == 0]) - 0.6, w[0] - 0.1])
    return np.concatenate([local, coupled - 3.0 * s[2 * i : 2 * i + 2]])


def numpy_server_rows(w: np.ndarray, s: np.ndarray) -> np.ndarray:
    X, y, _ = people(9, 6)
    cap = 0.5 * np.mean((X @ w - y)[y == 1] ** 2) - 0.5
    own = [*(SERVER[0] @ w - SERVER[1]), cap, w @ w - 0.49, np.sum(np.cos(w)) - 3.9]
    return np.concatenate([own, s[0::2].sum()[None], s[1::2].sum()[None]])


CLIENT_EQUAL = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 0], bool)
SERVER_EQUAL = np.array([0, 0, 0, 1, 0, 0], bool)


def numpy_P(f: float, c: np.ndarray, equal: np.ndarray, mu: np.ndarray, away: np.ndarray) -> float:
    v = np.where(equal, mu + BETA * c, np.maximum(mu + BETA * c, 0.0))
    return f + (v @ v - mu @ mu) / (2.0 * BETA) + 0.5 * PROX * away @ away


def numpy_f(i: int, w: np.ndarray) -> float:
    X, y, _ = people(i, SIZES[i])
    return (np.mean(np.logaddexp(0.0, X[y == 0] @ w)) + 2.0 / (2.0 * SIZES[i]) * np.sum(w**2 / (1.0 + w**2))) / 3.0


@cache
def measured(party: Party):
    """P with its derivatives by hand and by JAX, compiled once."""

    @jax.jit
    def run(point, data, mu, centre, index):
        P = partial(piece, party, data=data, mu=mu, centre=centre, beta=BETA, prox=PROX, index=index)
        value = lambda u: P(u, order=1).value  # noqa: E731
        return P(point), jax.grad(value)(point), jax.hessian(value)(point)

    return run


def somewhere(seed: int, size: int, equal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A point, a centre, and multipliers of which some are zero and those of equalities of either sign."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=len(equal))
    return 0.7 * rng.normal(size=size), rng.normal(size=size), np.where(equal, mu, np.maximum(mu, 0.0))


def check(found, f: float, c: np.ndarray, equal: np.ndarray, mu, point, centre, P_of) -> None:
    """A piece against NumPy's P, its numerical gradient, and JAX's derivatives of its value."""
    at, gradient, hessian = found
    v = np.where(equal, mu + BETA * c, np.maximum(mu + BETA * c, 0.0))
    assert 0 < np.sum(v[~equal] > 0) < np.sum(~equal), "the point has active and inactive rows"
    assert np.min(np.abs((mu + BETA * c)[~equal])) > 1e-4, "the point is away from kinks"
    np.testing.assert_allclose(at.f, f, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(at.c, c, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(at.v, v, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(at.value, numpy_P(f, c, equal, mu, point - centre), rtol=1e-12)
    np.testing.assert_allclose(at.gradient, oracles.numeric_gradient(P_of, point), atol=2e-7)
    np.testing.assert_allclose(at.gradient, gradient, atol=1e-12)
    np.testing.assert_allclose(at.hessian, hessian, atol=1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_a_clients_piece_is_the_formula_with_its_derivatives(seed):
    problem, i = linear_problem(), seed % 3
    party = Party(problem.terms)
    data = fd.Data({k: v[i] for k, v in problem.data.items()})
    point, centre, mu = somewhere(seed, DIM + 6, CLIENT_EQUAL)

    def P_of(u):
        return numpy_P(numpy_f(i, u[:DIM]), numpy_rows(i, u[:DIM], u[DIM:]), CLIENT_EQUAL, mu, u - centre)

    found = measured(party)(point, data, mu, centre, i)
    rows = numpy_rows(i, point[:DIM], point[DIM:])
    check(found, numpy_f(i, point[:DIM]), rows, CLIENT_EQUAL, mu, point, centre, P_of)
    worst = np.max(np.where(CLIENT_EQUAL, np.abs(rows), rows))
    assert violation(party, data, jnp.asarray(rows)) == pytest.approx(worst)


@pytest.mark.parametrize("seed", range(2))
def test_the_servers_piece_has_no_objective_but_the_sum_of_the_decoupling_variables(seed):
    problem = linear_problem()
    party = Party(problem.terms, server=True)
    point, centre, mu = somewhere(10 + seed, DIM + 6, SERVER_EQUAL)

    def P_of(u):
        return numpy_P(0.0, numpy_server_rows(u[:DIM], u[DIM:]), SERVER_EQUAL, mu, u - centre)

    found = measured(party)(point, problem.server, mu, centre, None)
    rows = numpy_server_rows(point[:DIM], point[DIM:])
    check(found, 0.0, rows, SERVER_EQUAL, mu, point, centre, P_of)


def weighted(params, data):
    """An objective of the user's own, over parameters that are not one vector."""
    return data.mean(jnp.cosh(data["x"] @ params["a"] - params["b"][0])) + jnp.sum(params["b"] ** 4)


def bent(params, data):
    return data.mean(jnp.tanh(data["x"] @ params["a"])) * params["b"][1] - 0.01


def test_a_piece_of_an_own_objective_over_a_tree_of_parameters():
    clients = [{"x": people(i, rows)[0][:, :2]} for i, rows in enumerate(SIZES)]
    linear = fd.constraints.Linear(np.ones((2, 4)), [0.3, -0.2])
    made = fd.Problem(clients, objective=weighted, constraints=[fd.constraints.Custom(bent), linear])
    problem = made.over({"a": np.zeros(2), "b": np.zeros(2)})
    data = fd.Data({k: v[1] for k, v in problem.data.items()})
    x, equal = clients[1]["x"], np.zeros(3, bool)
    point, centre, mu = somewhere(20, 4, equal)

    def f_of(u):
        return (np.mean(np.cosh(x @ u[:2] - u[2])) + np.sum(u[2:] ** 4)) / 3.0

    def rows_of(u):
        return np.array([np.mean(np.tanh(x @ u[:2])) * u[3] - 0.01, np.sum(u) - 0.3, np.sum(u) + 0.2])

    def P_of(u):
        return numpy_P(f_of(u), rows_of(u), equal, mu, u - centre)

    found = measured(Party(problem.terms))(point, data, mu, centre, None)
    check(found, f_of(point), rows_of(point), equal, mu, point, centre, P_of)


def test_what_stands_in_filling_rows_does_not_matter():
    """The comparisons with NumPy above are with data that has no such rows."""
    problem, i = linear_problem(), 1
    party, filling = Party(problem.terms), np.arange(max(SIZES)) >= SIZES[i]
    data = fd.Data({k: v[i] for k, v in problem.data.items()})
    assert np.sum(filling) == max(SIZES) - SIZES[i] > 0
    wild = fd.Data({**data, "x": jnp.where(filling[:, None], 1e6, data["x"])})
    point, centre, mu = somewhere(3, DIM + 6, CLIENT_EQUAL)
    expected, found = (measured(party)(point, held, mu, centre, i)[0] for held in (data, wild))
    for name in ("value", "gradient", "hessian", "f", "c", "v"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-13)


def test_rows_are_counted_and_marked_in_the_order_of_their_scopes():
    problem = linear_problem()
    client, server = Party(problem.terms), Party(problem.terms, server=True)
    assert problem.terms.rows == (8, 4, 2)
    assert (client.rows, server.rows) == (10, 6)
    assert [c.scope for c in client.constraints] == ["local"] * 5 + ["coupled"] * 2
    assert [c.scope for c in server.constraints] == ["global"] * 4
    one = fd.Data({k: v[0] for k, v in problem.data.items()})
    np.testing.assert_array_equal(equalities(client, one), CLIENT_EQUAL)
    np.testing.assert_array_equal(equalities(server, problem.server), SERVER_EQUAL)


def test_order_one_leaves_the_hessian_out():
    problem = linear_problem()
    data = fd.Data({k: v[0] for k, v in problem.data.items()})
    point, centre, mu = somewhere(0, DIM + 6, CLIENT_EQUAL)
    shape = jax.eval_shape(
        lambda u: piece(Party(problem.terms), u, data, mu, centre, beta=BETA, prox=PROX, index=0, order=1), point
    )
    assert shape.hessian == ()


@pytest.mark.parametrize("server", [False, True])
def test_a_packed_matrix_and_its_product_are_those_of_the_matrix(server):
    problem, rng = linear_problem(), np.random.default_rng(5)
    data = problem.server if server else fd.Data({k: v[0] for k, v in problem.data.items()})
    party, w = Party(problem.terms, server), rng.normal(size=DIM)
    v = rng.normal(size=party.rows)

    @jax.jit
    def both(w, v):
        second = evaluate(party, w, data)[1]
        return second.matrix(v), second.along(v, w)

    matrix, (triangle, product) = both(w, v)
    np.testing.assert_allclose(triangle, np.asarray(matrix)[np.triu_indices(DIM)], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(product, matrix @ w, rtol=1e-12, atol=1e-14)


def test_a_party_without_rows_has_its_objective_alone():
    X, y, _ = people(0, 8)
    terms = fd.Problem([(X, y)], loss=fd.losses.least_squares).terms
    w = np.full(DIM, 0.3)
    shares, second = evaluate(Party(terms), jnp.asarray(w), fd.Data({"x": X, "y": y, "weight": np.ones(8)}))
    assert (shares.c.shape, shares.J.shape) == ((0,), (0, DIM))
    np.testing.assert_allclose(shares.g, X.T @ (X @ w - y) / 8, atol=1e-14)
    np.testing.assert_allclose(second.matrix(jnp.zeros(0)), X.T @ X / 8, atol=1e-14)
    np.testing.assert_allclose(second.diagonal(jnp.zeros(0)), np.diag(X.T @ X) / 8, atol=1e-14)
    np.testing.assert_allclose(second.along(jnp.zeros(0), w)[1], X.T @ (X @ w) / 8, atol=1e-14)
    nothing, _ = evaluate(Party(terms, server=True), jnp.asarray(w), None)
    assert (float(nothing.f), nothing.c.shape) == (0.0, (0,))
    assert float(violation(Party(terms, server=True), None, nothing.c)) == -np.inf
