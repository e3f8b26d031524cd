"""`run.predict`: a run answers for new rows, with the words of the data and the threshold that a term chose."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import foedus as fd
from foedus.statistics.rates import Decision

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 3))
SCORE = X @ [1.0, -2.0, 0.5]


def solve(y: np.ndarray, loss=fd.losses.logistic, **more) -> fd.Run:
    sites = {"north": (X[:30], y[:30]), "south": (X[30:], y[30:])}
    return fd.solve(fd.Problem(sites, loss=loss, penalty=fd.penalties.Ridge(0.1), **more), fd.InteriorPoint())


@pytest.fixture(scope="module")
def run() -> fd.Run:
    return solve((SCORE + RNG.normal(size=60) > 0).astype(float))


def test_a_class_is_the_sign_of_the_score(run):
    expected = np.where(X @ np.asarray(run.w) > 0, 1.0, 0.0)
    assert np.array_equal(run.predict(X), expected)
    assert np.array_equal(run.predict(csr_array(X)), expected)
    np.testing.assert_allclose(run.predict_proba(X)[:, 1], 1 / (1 + np.exp(-X @ np.asarray(run.w))), rtol=1e-12)


def test_labels_of_minus_one_are_answered_as_such():
    run = solve(np.where(SCORE > 0, 1.0, -1.0), fd.losses.smooth_hinge)
    assert set(run.predict(X)) == {-1.0, 1.0}
    with pytest.raises(fd.FoedusError, match=r"only the logistic loss has probabilities; .* SmoothHinge"):
        run.predict_proba(X)


def test_a_regression_answers_the_number():
    run = solve(SCORE, fd.losses.least_squares)
    np.testing.assert_allclose(run.predict(X), X @ np.asarray(run.w), rtol=1e-12)


def test_a_saved_run_predicts_the_same_with_its_threshold(run, tmp_path):
    scores = X @ np.asarray(run.w)
    cut = float(np.sort(scores)[40])
    run.decision = Decision(cut, (), 0, 0, 0)
    try:
        again = fd.load(run.save(tmp_path))
        assert np.array_equal(again.predict(X), (scores >= cut).astype(float))
        assert again.predict(X).sum() == 20
        np.testing.assert_allclose(again.predict_proba(X), run.predict_proba(X))  # these are not moved by it
    finally:
        run.decision = None


def test_raw_rows_are_answered_in_the_words_of_the_data(tmp_path):
    def rows(n: int) -> dict:
        age, ward = RNG.normal(50, 10, n), RNG.choice(["a", "b"], n)
        return {"age": age, "ward": ward, "ill": np.where(age + 10 * RNG.normal(size=n) > 50, "yes", "no")}

    ready = fd.data.prepare({"north": rows(40), "south": rows(30)}, label="ill", positive="yes")
    run = fd.solve(fd.Problem(ready, loss=fd.losses.logistic), fd.InteriorPoint())
    new = {"age": [20.0, 80.0], "ward": ["a", "z"]}
    for one in (run, fd.load(run.save(tmp_path))):
        assert one.predict(new).tolist() == ["no", "yes"]
        assert one.predict(ready.transform(new)).tolist() == ["no", "yes"]
        with pytest.raises(fd.FoedusError, match="there is no column 'ward', which the model needs"):
            one.predict({"age": [20.0]})


def test_an_own_objective_has_no_predictions():
    problem = fd.Problem([{"x": X}], objective=lambda w, data: data.mean((data.x @ w["a"] - 1.0) ** 2))
    run = fd.solve(problem, fd.FedAvg(lr=0.1), w0={"a": np.zeros(3)}, max_rounds=2)
    with pytest.raises(fd.FoedusError, match="only a linear model, trained with loss=, predicts rows"):
        run.predict(X)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (X[:, :2], r"the model has 3 numbers, one a column. Got rows of shape \(60, 2\)"),
        (X[0], r"Got rows of shape \(3,\)"),
        ([["a", "b", "c"]], "expected a table of numbers"),
        (np.array([[0.0, 0.0, 0.0], [np.nan, 0.0, 0.0]]), "row 1: a value is missing or infinite"),
        ({"age": [1.0]}, "this run does not know how raw columns become numbers"),
    ],
)
def test_wrong_rows_get_one_sentence(run, rows, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        run.predict(rows)
