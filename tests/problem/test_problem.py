"""Problems: the forms data may come in, filling that changes nothing, and a sentence for every wrong input."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import DIM, NAMES, RIDGE, SIZES, classification, clients_of, problem, properties, regression
from hypothesis import given
from hypothesis import strategies as st

import foedus as fd

LEAST = fd.losses.least_squares
vectors = st.lists(st.floats(-3, 3), min_size=DIM, max_size=DIM).map(np.array)
all_values = jax.jit(
    lambda terms, w, data: jax.vmap(lambda d: terms.value_and_gradient(w, d))(data), static_argnames="terms"
)


def values(made: fd.Problem, w) -> tuple[np.ndarray, np.ndarray]:
    f, g = all_values(made.terms, jnp.asarray(w), made.data)
    return np.asarray(f), np.asarray(g)


@pytest.mark.parametrize(
    ("name", "loss", "mu"),
    [("least squares", "least_squares", 0.0), ("logistic", "logistic", 0.0), ("ridge", "least_squares", RIDGE)],
)
@properties
@given(w=vectors)
def test_ragged_clients_have_their_own_values_and_gradients(name, loss, mu, w):
    f, g = values(problem(name), w)
    parts = clients_of(name).values()
    np.testing.assert_allclose(f, [oracles.mean_loss(w, X, y, loss, mu) for X, y in parts], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(g, [oracles.mean_gradient(w, X, y, loss, mu) for X, y in parts], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["least squares", "logistic", "ridge"])
def test_the_closed_forms_are_jaxs_derivatives(name):
    terms, data = problem(name).terms, problem(name).client(1)

    @jax.jit
    def both(w, v, data):
        hessian = jax.hessian(terms.value)(w, data)
        ours = terms.gradient(w, data), terms.hessian(w, data), terms.hessian_product(w, v, data)
        return ours, (jax.grad(terms.value)(w, data), hessian, hessian @ v)

    for ours, jaxs in zip(*both(jnp.array([0.3, -0.2, 0.5, 1.0]), jnp.array([1.0, 0.5, -2.0, 0.1]), data), strict=True):
        np.testing.assert_allclose(ours, jaxs, atol=1e-12)


def test_every_form_of_the_same_data_is_the_same_problem():
    named = regression()
    rows = max(SIZES)
    filled = {
        "x": np.stack([np.vstack([X, np.full((rows - len(X), DIM), 1e3)]) for X, _ in named.values()]),
        "y": np.stack([np.concatenate([y, np.full(rows - len(y), -1e3)]) for _, y in named.values()]),
    }
    forms = [
        named,
        list(named.values()),
        [(X.tolist(), y.tolist()) for X, y in named.values()],
        [[X, y] for X, y in named.values()],
        {name: {"x": X, "y": y} for name, (X, y) in named.items()},
        [(jnp.asarray(X), jnp.asarray(y)) for X, y in named.values()],
        [(X, y, np.zeros(len(y), int)) for X, y in named.values()],
        fd.data.Stacked(filled, counts=SIZES),
        fd.data.Stacked(filled, counts=SIZES, names=NAMES),
    ]
    w = np.array([0.3, -0.2, 0.5, 1.0])
    expected = values(fd.Problem(named, loss=LEAST), w)
    for form in forms:
        made = fd.Problem(form, loss=LEAST)
        np.testing.assert_allclose(values(made, w)[0], expected[0], rtol=1e-13)
        np.testing.assert_allclose(values(made, w)[1], expected[1], rtol=1e-12)
        assert made.counts.tolist() == list(SIZES)
    assert fd.Problem(named, loss=LEAST).names == list(NAMES)
    assert fd.Problem(forms[1], loss=LEAST).names == ["0", "1", "2", "3", "4"]


def test_integer_and_boolean_arrays_count_as_numbers():
    X, y = np.array([[1, 0], [0, 1], [1, 1]]), np.array([True, False, True])
    as_given, as_floats = (fd.Problem([part], loss=fd.losses.logistic) for part in ((X, y), (X * 1.0, y * 1.0)))
    w = np.array([0.5, -1.0])
    np.testing.assert_array_equal(values(as_given, w)[0], values(as_floats, w)[0])


def test_client_gives_back_the_rows_that_came_in():
    made = problem()
    for i, (X, y) in enumerate(regression().values()):
        np.testing.assert_array_equal(made.client(i)["x"], X)
        np.testing.assert_array_equal(made.client(i).y, y)
    with pytest.raises(AttributeError, match="no array 'z', only"):
        _ = made.client(0).z


@pytest.mark.parametrize(
    "where", [fd.label(1), fd.group(1), lambda data: data.x[:, 0] > 0], ids=["label", "group", "function"]
)
def test_where_averages_over_the_chosen_examples(where):
    rng = np.random.default_rng(3)
    clients, w = {}, np.array([0.5, -1.0])
    for name, rows in (("a", 6), ("b", 9)):
        X, y = rng.normal(size=(rows, 2)), np.arange(rows) % 2.0
        clients[name] = (X, y, np.arange(rows) % 3)
    made = fd.Problem(clients, loss=LEAST, where=where)
    for (X, y, group), found in zip(clients.values(), values(made, w)[0], strict=True):
        chosen = y == 1 if where == fd.label(1) else group == 1 if where == fd.group(1) else X[:, 0] > 0
        assert found == pytest.approx(oracles.mean_loss(w, X[chosen], y[chosen], "least_squares"), rel=1e-12)


def test_an_own_objective_is_the_loss_it_writes_out():
    def objective(w, data):
        return data.mean(0.5 * (data.x @ w - data.y) ** 2)

    own = fd.Problem(regression(), objective=objective)
    w = np.array([0.3, -0.2, 0.5, 1.0])
    np.testing.assert_allclose(values(own, w)[0], values(problem(), w)[0], rtol=1e-12)
    np.testing.assert_allclose(values(own, w)[1], values(problem(), w)[1], rtol=1e-11)


def test_a_client_may_hold_any_arrays():
    clients = [{"q": np.diag([1.0, 2.0]), "b": np.ones(2)}, {"q": np.diag([3.0, 4.0]), "b": np.zeros(2)}]
    made = fd.Problem(clients, objective=lambda w, data: 0.5 * w @ data.q @ w - data.b @ w)
    run = fd.solve(made, fd.FedAvg(k0=1, tol=1e-20), w0=np.zeros(2))
    np.testing.assert_allclose(run.w, [0.25, 1.0 / 6.0], atol=1e-9)


# --- wrong input: one sentence that names the client, the field and the value ---

ONE = (np.ones((3, 2)), np.array([0.0, 1.0, 1.0]))


def with_nan(column: bool) -> tuple:
    X, y = np.ones((3, 2)), np.zeros(3)
    (X[1] if column else y)[1] = np.nan
    return X, y


WRONG = {
    "nan in X": ({"a": ONE, "b": with_nan(True)}, r"client 'b': X has nan at row 1, column 1; expected finite numbers"),
    "nan in y": ({"a": ONE, "b": with_nan(False)}, r"client 'b': y has nan at row 1; expected"),
    "infinite": ([ONE, (np.full((3, 2), np.inf), np.ones(3))], r"client '1': X has inf at row 0, column 0"),
    "nan in a short client": ([ONE, (np.full((1, 2), np.nan), np.ones(1))], r"client '1': X has nan at row 0"),
    "widths": ({"a": ONE, "b": (np.ones((3, 3)), np.ones(3))}, r"client 'b': X has 3 columns, but client 'a' has 2"),
    "empty": ({"a": ONE, "b": (np.ones((0, 2)), np.ones(0))}, r"client 'b': it has no examples; drop the client"),
    "short y": (
        {"a": ONE, "b": (np.ones((3, 2)), np.ones(2))},
        r"client 'b': y must have one entry per row of X \(3\)",
    ),
    "two-column y": (
        {"b": (np.ones((3, 2)), np.ones((3, 1)))},
        r"client 'b': y must have one entry per row of X \(3\)",
    ),
    "short group": ({"b": (*ONE, np.ones(4))}, r"client 'b': group must have one entry per row of X \(3\)"),
    "strings": ({"a": ONE, "b": ([["u", "v"]], [1.0])}, r"client 'b': X must hold numbers"),
    "ragged rows": ({"b": ([[1.0, 2.0], [3.0]], [1.0, 0.0])}, r"client 'b': X must hold numbers"),
    "complex": ({"b": (np.ones((3, 2)) * 1j, np.ones(3))}, r"client 'b': X must hold numbers"),
    "vector X": (
        {"b": (np.ones(3), np.ones(3))},
        r"client 'b': X must have 2 axes \(rows, columns\)\. Got shape \(3,\)",
    ),
    "scalar X": ({"b": (3.0, 1.0)}, r"client 'b': X must have 2 axes \(rows, columns\)\. Got shape \(\)"),
    "no columns": ({"b": (np.ones((3, 0)), np.ones(3))}, r"client 'b': X .*column"),
    "four parts": ({"b": (1, 2, 3, 4)}, r"client 'b': expected \(X, y\), \(X, y, group\) or a dict of arrays"),
    "a string": ({"a": ONE, "b": "data.csv"}, r"client 'b': expected \(X, y\).*Got str"),
    "no clients": ([], "at least one client"),
    "nothing": (None, r"clients must be .*Got NoneType"),
    "a number": (5, r"clients must be .*Got int"),
    "weight": ({"b": {"x": ONE[0], "y": ONE[1], "weight": ONE[1]}}, r"client 'b': the array name 'weight' is taken"),
    "other arrays": (
        {"a": {"x": ONE[0], "y": ONE[1]}, "b": {"x": ONE[0], "t": ONE[1]}},
        r"client 'b': it has arrays \['t', 'x'\], but client 'a' has \['x', 'y'\]",
    ),
    "no y": ([{"x": ONE[0]}], r"loss= needs clients with X and y; array 'y' is missing"),
    "stacked lengths": (lambda: fd.data.Stacked({"x": np.ones((2, 3, 2)), "y": np.ones((1, 3))}), "common number"),
    "stacked short y": (lambda: fd.data.Stacked({"x": np.ones((2, 3, 2)), "y": np.ones((2, 2))}), r"y .*rows"),
    "stacked flat X": (lambda: fd.data.Stacked({"x": np.ones((2, 3)), "y": np.ones((2, 3))}), r"X .*axes"),
    "stacked empty": (
        lambda: fd.data.Stacked({"x": np.ones((2, 3, 2)), "y": np.ones((2, 3))}, counts=[3, 0]),
        r"client '1': it has no examples",
    ),
    "stacked too many": (
        lambda: fd.data.Stacked({"x": np.ones((2, 3, 2)), "y": np.ones((2, 3))}, counts=[3, 4]),
        r"client '1': its count is 4, but it has only 3 rows",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_gets_a_sentence(case):
    clients, words = WRONG[case]
    with pytest.raises(fd.FoedusError, match=words) as caught:
        fd.Problem(clients() if callable(clients) else clients, loss=LEAST)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([[0.0, 1.0], [1.0, 2.0]], r"client 'b': y has the label 2 at row 1; Logistic expects 0/1 or -1/\+1"),
        ([[0.0, 1.0], [-1.0, 1.0]], r"client 'b': y has the label -1 at row 0"),
        ([[1.0, 1.0], [0.5, 1.0]], r"client 'b': y has the label 0\.5 at row 0"),
    ],
)
def test_wrong_labels_get_a_sentence(labels, words):
    clients = {name: (np.ones((2, 2)), np.array(y)) for name, y in zip("ab", labels, strict=True)}
    with pytest.raises(fd.FoedusError, match=words):
        fd.Problem(clients, loss=fd.losses.logistic)


def by_mean(w, data):
    return jnp.mean(0.5 * (data.x @ w - data.y) ** 2)


def by_mean_flat_at_zero(w, data):
    return jnp.mean(jnp.logaddexp(0.0, -data.y * (data.x @ w)))


TERMS = {
    "neither": ({}, "either loss= or objective=, and not both"),
    "both": ({"loss": LEAST, "objective": by_mean}, "either loss= or objective=, and not both"),
    "no such group": ({"loss": LEAST, "where": fd.group(1)}, r"no array 'group'"),
    "nobody": (
        {"loss": LEAST, "where": fd.label(7)},
        r"client 'a': no example has label 7, so its objective is undefined",
    ),
    "nobody by function": ({"loss": LEAST, "where": lambda d: d.y > 1e9}, r"client 'a': no example has .*undefined"),
    "where": ({"loss": LEAST, "where": 3}, r"where .*Got 3"),
    "penalty": ({"loss": LEAST, "penalty": 0.1}, r"penalty .*Got 0\.1"),
    "regulariser": ({"loss": LEAST, "regularizer": "l1"}, r"regularizer .*Got 'l1'"),
    "server": (
        {"loss": LEAST, "server": (np.ones((3, 7)), np.ones(3))},
        r"server: X has 7 columns, but the clients have 4",
    ),
    "server nan": ({"loss": LEAST, "server": (np.full((1, 4), np.nan), np.ones(1))}, r"client 'server': X has nan"),
}


@pytest.mark.parametrize("case", TERMS)
def test_wrong_terms_get_a_sentence(case):
    arguments, words = TERMS[case]
    with pytest.raises(fd.FoedusError, match=words):
        fd.Problem(regression(), **arguments)


def test_a_mask_that_selects_nothing_names_the_client():
    clients = {"a": ONE, "b": (np.ones((2, 2)), np.zeros(2))}
    with pytest.raises(fd.FoedusError, match="client 'b': no example has label 1, so its objective is undefined"):
        fd.Problem(clients, loss=fd.losses.logistic, where=fd.label(1))


@pytest.mark.parametrize("objective", [by_mean, by_mean_flat_at_zero])
def test_an_objective_that_sees_the_filling_is_refused(objective):
    made = fd.Problem(regression(), objective=objective)
    with pytest.raises(fd.FoedusError, match=r"client 'd': the objective changes .* take means .* with data\.mean"):
        fd.solve(made, fd.FedAvg(lr=0.1), max_rounds=1)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (lambda w, data: data.x @ w, r"client 'd': objective must return a scalar\. Got shape \(16,\)"),
        (lambda w, data: jnp.log(jnp.sum(w)), r"client 'd': the objective at w0 is -inf; expected a finite number"),
    ],
)
def test_an_objective_that_gives_no_number_is_refused(objective, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.solve(fd.Problem(regression(), objective=objective), fd.FedAvg(lr=0.1), max_rounds=1)


@pytest.mark.parametrize(
    ("w0", "words"),
    [
        (np.zeros(DIM + 1), r"w0 must be a vector of 4 numbers\. Got shapes \[\(5,\)\]"),
        (np.zeros((DIM, 1)), r"w0 must be a vector of 4 numbers\. Got shapes \[\(4, 1\)\]"),
        ({"w": np.zeros(DIM)}, r"w0 must be a vector of 4 numbers"),
        (np.array([0.0, np.nan, 0.0, 0.0]), "w0 has an entry that is not finite"),
    ],
)
def test_a_wrong_start_gets_a_sentence(w0, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.solve(problem(), fd.FedAvg(), w0=w0)


def test_an_own_objective_without_x_asks_for_a_start():
    made = fd.Problem([{"b": np.ones(2)}], objective=lambda w, data: jnp.sum((w - data.b) ** 2))
    with pytest.raises(fd.FoedusError, match="give solve a w0"):
        fd.solve(made, fd.FedAvg())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"problem": "data"}, "solve needs a Problem first. Got str instead"),
        ({"algorithm": "FedAvg"}, "solve needs an algorithm second. Got 'FedAvg' instead"),
        ({"algorithm": fd.FedAvg}, r"write FedAvg\(\)"),
        ({"max_rounds": 0}, "'max_rounds' argument of solve must be a whole number >= 1. Got 0"),
        ({"max_rounds": 2.5}, "Got 2.5"),
        ({"max_rounds": True}, "Got True"),
        ({"seed": "one"}, r"'seed' .*Got 'one'"),
        ({"seed": 1.5}, r"'seed' .*Got 1\.5"),
        (
            {"problem": lambda: fd.Problem(classification(), loss=fd.losses.hinge)},
            "the loss Hinge has kinks, and no second derivative to set the step from; give lr",
        ),
        ({"problem": lambda: fd.Problem(regression(), loss=LEAST, regularizer=fd.regularizers.L1(1.0))}, "ElasticNet"),
        ({"problem": lambda: fd.Problem([ONE], objective=by_mean), "algorithm": fd.FedGiA(H="gram")}, "H='diagonal'"),
    ],
)
def test_wrong_arguments_of_solve_get_a_sentence(arguments, words):
    arguments = {"problem": problem, "algorithm": fd.FedAvg()} | arguments
    first, second = arguments.pop("problem"), arguments.pop("algorithm")
    with pytest.raises(fd.FoedusError, match=words):
        fd.solve(first() if callable(first) else first, second, **arguments)


def test_moments_give_the_same_values_and_gradients():
    """Also where some rows only fill and others do not count, and only where they save work."""
    rng = np.random.default_rng(0)
    data = fd.Data({"x": rng.normal(size=(9, 4)), "y": rng.normal(size=9), "weight": np.repeat([1.0, 0.0], [7, 2])})
    data = fd.Data({**data, "group": np.tile([0.0, 1.0, 1.0], 3)})
    terms = fd.Problem([(data["x"], data["y"], data["group"])], loss=fd.losses.least_squares, where=fd.group(1)).terms
    w = rng.normal(size=4)
    short = terms.with_moments(data)
    assert short.moments is not None
    assert fd.Data({**short}).moments is None, "data made from other rows must not keep the moments of these"
    for found, expected in zip(terms.value_and_gradient(w, short), terms.value_and_gradient(w, data), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert terms.has_moments((9, 4))
    assert not replace(terms, shape=replace(terms.shape, shapes=((18,),))).has_moments((9, 18))
    assert not replace(terms, loss=fd.losses.huber(1.0)).has_moments((9, 4))


@pytest.mark.slow
def test_an_own_objective_may_have_pictures_for_rows():
    """Arrays of any number of axes, ragged ones filled up as well."""
    rng = np.random.default_rng(0)
    sites = {name: (rng.normal(size=(rows, 3, 4)), rng.normal(size=(rows, 2))) for name, rows in (("a", 5), ("b", 3))}

    def objective(w, data):
        return data.mean(jnp.sum((jnp.einsum("rij,ijk->rk", data.x, w) - data.y) ** 2, axis=1))

    run = fd.solve(fd.Problem(sites, objective=objective), fd.FedGiA(), w0=np.zeros((3, 4, 2)), max_rounds=3)
    expected = np.mean(
        [np.mean(np.sum((np.einsum("rij,ijk->rk", x, run.w) - y) ** 2, axis=1)) for x, y in sites.values()]
    )
    assert run.objective == pytest.approx(expected, rel=1e-12)
    with pytest.raises(fd.FoedusError, match=r"client 'a': X must have 2 axes \(rows, columns\)"):
        fd.Problem(sites, loss=LEAST)
