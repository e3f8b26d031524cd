"""Standard errors of coefficients: the inverse information where that is what they are, else what truly varies."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize

import foedus as fd
from foedus.app.experiment.figures import units_of
from foedus.data.preprocess import Category, Number, Preprocessing
from foedus.statistics.coefficients import CoefficientTable, coefficients

TRUTH = np.array([0.8, -0.5, 0.3])


def rows(n: int, seed: int, loss: str = "logistic") -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = np.column_stack([draw.normal(size=(n, 2)), np.ones(n)])
    if loss == "logistic":
        return X, (draw.random(n) < 1 / (1 + np.exp(-X @ TRUTH))).astype(float)
    return X, X @ TRUTH + draw.normal(size=n) * 1.5


def newton(X: np.ndarray, y: np.ndarray, weight: np.ndarray, ridge: float = 0.0) -> np.ndarray:
    """The weighted logistic fit with a ridge, by Newton's method."""
    w = np.zeros(X.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ w))
        gradient = X.T @ (weight * (p - y)) + ridge * w
        w = w - np.linalg.solve((X * (weight * p * (1 - p))[:, None]).T @ X + ridge * np.eye(len(w)), gradient)
    return w


def pooled(sites: dict[str, tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    X, y = (np.concatenate([part[i] for part in sites.values()]) for i in (0, 1))
    return X, y


def test_sites_of_one_size_have_the_errors_of_the_pooled_maximum_likelihood_fit():
    sites = {name: rows(150, i) for i, name in enumerate("abc")}
    X, y = pooled(sites)
    w = newton(X, y, np.ones(len(y)))
    p = 1 / (1 + np.exp(-X @ w))
    exact = np.sqrt(np.diag(np.linalg.inv((X * (p * (1 - p))[:, None]).T @ X)))
    table = coefficients(fd.Problem(sites, loss=fd.losses.logistic), w, {}, names=["age", "dose", "(intercept)"])
    np.testing.assert_allclose([row.error for row in table.rows], exact, rtol=1e-10)
    age = table["age"]
    assert age.z == pytest.approx(age.value / age.error)
    assert (age.low, age.high) == pytest.approx((w[0] - 1.959964 * exact[0], w[0] + 1.959964 * exact[0]), rel=1e-6)
    assert table.ratio == "odds ratio"
    assert f"{np.exp(w[0]):.4g}" in str(table)
    assert CoefficientTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_counts_have_the_errors_of_the_maximum_likelihood_fit():
    draw = np.random.default_rng(4)
    X = rows(200, 0)[0]
    y = draw.poisson(np.exp(X @ TRUTH))
    sites = {"a": (X[:100], y[:100]), "b": (X[100:], y[100:])}
    w = minimize(lambda u: np.sum(np.exp(X @ u) - y * (X @ u)), TRUTH, tol=1e-12).x
    exact = np.sqrt(np.diag(np.linalg.inv((X * np.exp(X @ w)[:, None]).T @ X)))
    table = coefficients(fd.Problem(sites, loss=fd.losses.poisson), w, {})
    np.testing.assert_allclose([row.error for row in table.rows], exact, rtol=1e-10)
    assert table.ratio == "rate ratio"


def test_least_squares_has_the_errors_of_ordinary_least_squares():
    sites = {name: rows(80, i, "squares") for i, name in enumerate("ab")}
    X, y = pooled(sites)
    w, residual, *_ = np.linalg.lstsq(X, y, rcond=None)
    exact = np.sqrt(np.diag(np.linalg.inv(X.T @ X)) * float(residual[0]) / (len(y) - 3))
    table = coefficients(fd.Problem(sites, loss=fd.losses.least_squares), w, {})
    np.testing.assert_allclose([row.error for row in table.rows], exact, rtol=1e-10)
    assert not table.ratio


def test_errors_are_how_much_the_estimate_varies_with_sites_of_different_sizes_and_a_ridge():
    """Rows of a small site weigh more, and a ridge draws to 0: the spread over 400 draws is what the table says."""
    sizes, ridge = {"small": 60, "large": 400}, 0.05
    weight = np.concatenate([np.full(n, 1 / (2 * n)) for n in sizes.values()])
    answers, errors = [], []
    for seed in range(400):
        sites = {name: rows(n, 1000 * seed + i) for i, (name, n) in enumerate(sizes.items())}
        X, y = pooled(sites)
        answers.append(newton(X, y, weight, ridge))
        if seed < 20:
            penalty = fd.penalties.Ridge(ridge, per_example=False)
            stated = fd.Problem(sites, loss=fd.losses.logistic, penalty=penalty)
            errors.append([row.error for row in coefficients(stated, answers[-1], {}).rows])
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(answers, axis=0), rtol=0.12)


def test_on_the_face_of_an_equality_the_errors_are_those_of_the_reduced_model():
    """w0 = w1 makes one column of two."""
    sites = {name: rows(150, i) for i, name in enumerate("ab")}
    X, y = pooled(sites)
    reduced = np.column_stack([X[:, 0] + X[:, 1], X[:, 2]])
    u = newton(reduced, y, np.ones(len(y)))
    p = 1 / (1 + np.exp(-reduced @ u))
    exact = np.sqrt(np.diag(np.linalg.inv((reduced * (p * (1 - p))[:, None]).T @ reduced)))
    equal = fd.constraints.Linear([[1.0, -1.0, 0.0]], [0.0], "==")
    stated = fd.Problem(sites, loss=fd.losses.logistic, constraints=[equal])
    table = coefficients(stated, np.array([u[0], u[0], u[1]]), {"local": np.array([[0.1], [0.1]])})
    np.testing.assert_allclose([row.error for row in table.rows], exact[[0, 0, 1]], rtol=1e-9)
    assert table.binding == 2
    assert "with the binding constraints taken as given" in str(table)


def test_a_cap_that_binds_weighs_its_rows_and_leaves_no_room_across_it():
    """By hand: the rows under the cap count with the multiplier, and no error points along the cap's gradient."""
    X, y = rows(300, 3)
    cap = fd.constraints.LossCap(fd.label(1), 0.4)
    stated = fd.Problem({"a": (X, y)}, loss=fd.losses.logistic, constraints=[cap])
    w, mu = np.array([0.9, -0.4, 0.8]), 0.7
    table = coefficients(stated, w, {"local": np.array([[mu]])})
    p = 1 / (1 + np.exp(-X @ w))
    b = 1 / len(y) + mu * (y == 1) / np.sum(y == 1)
    K, M = ((X * (weight * p * (1 - p))[:, None]).T @ X for weight in (b, b**2))
    slope = X.T @ ((y == 1) * (p - 1)) / np.sum(y == 1)
    Z = np.linalg.svd(slope[None])[2][1:].T
    inverse = Z @ np.linalg.inv(Z.T @ K @ Z) @ Z.T
    np.testing.assert_allclose([r.error for r in table.rows], np.sqrt(np.diag(inverse @ M @ inverse)), rtol=1e-8)


def test_a_number_that_a_regulariser_holds_at_0_has_no_error():
    sites = {"a": rows(200, 4)}
    lasso = fd.regularizers.ElasticNet(0.1, 0.0)
    stated = fd.Problem(sites, loss=fd.losses.logistic, regularizer=lasso)
    table = coefficients(stated, np.array([0.5, 0.0, 0.2]), {})
    assert np.isnan(table.rows[1].error)
    assert "held" in str(table)
    assert table.rows[0].error > 0


def test_words_that_add_up_to_the_intercept_have_errors_where_a_ridge_decides():
    """Every level of a category has a column, so that the columns add up to the intercept's."""
    draw = np.random.default_rng(5)
    level = draw.integers(0, 3, 300)
    X = np.column_stack([np.eye(3)[level], np.ones(300)])
    y = (draw.random(300) < np.array([0.2, 0.5, 0.7])[level]).astype(float)
    penalty = fd.penalties.Ridge(0.01, per_example=False)
    stated = fd.Problem({"a": (X, y)}, loss=fd.losses.logistic, penalty=penalty)
    table = coefficients(stated, newton(X, y, np.full(300, 1 / 300), 0.01), {})
    assert all(0 < row.error < 1 for row in table.rows)


def test_units_of_the_data_leave_every_prediction_as_it_is():
    columns = (Number("age", 60.0, 12.0), Category("ward", ("A", "B")), Number("dose", -1.0, 0.5))
    rules = Preprocessing(columns=columns, label="y")
    w = np.array([0.4, 0.1, -0.2, 1.5, -0.3])
    raw = units_of(rules) @ w
    age, dose = 71.0, 2.0
    prepared = np.array([(age - 60) / 12, 0.0, 1.0, (dose + 1) / 0.5, 1.0])
    assert np.array([age, 0.0, 1.0, dose, 1.0]) @ raw == pytest.approx(prepared @ w, abs=1e-12)


def test_where_errors_are_not_known_a_sentence_says_so():
    sites = {"a": rows(40, 1)}
    with pytest.raises(fd.FoedusError, match="losses that are likelihoods"):
        coefficients(fd.Problem(sites, loss=fd.losses.hinge), TRUTH, {})
    stated = fd.Problem(sites, loss=fd.losses.logistic)
    with pytest.raises(fd.FoedusError, match="keep to themselves"):
        coefficients(stated, TRUTH, {"local": np.full((1, 1), np.nan)})
    other = fd.Problem(sites, loss=fd.losses.logistic, regularizer=fd.regularizers.Box(-1.0, 1.0))
    with pytest.raises(fd.FoedusError, match="regulariser Box"):
        coefficients(other, TRUTH, {})
