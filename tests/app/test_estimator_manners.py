"""Weights, sparse tables, several classes, metadata routing and the plain form of the estimators, against oracles."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.multiclass import OneVsRestClassifier

import foedus as fd

RNG = np.random.default_rng(5)
X = RNG.normal(size=(240, 3))
SITE = np.repeat(["north", "south"], 120)
GROUP = np.arange(240) % 2
Y = (X @ [1.0, -0.5, 0.3] + np.where(GROUP == 1, 1.4, 0.6) * RNG.normal(size=240) > 0.4).astype(int)
THREE = np.digitize(X @ [1.0, -0.5, 0.3] + 0.7 * RNG.normal(size=240), [-0.6, 0.6])
WITH_ONE = np.column_stack([X, np.ones(240)])
WEIGHTS = RNG.integers(1, 4, size=240)


def fair(**settings) -> fd.FairClassifier:
    return fd.FairClassifier(0.02, eps1=1e-6, eps2=1e-6, **settings)


def losses(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, np.where(y == 1, -z, z))


@pytest.mark.slow
def test_a_weight_counts_like_copies_of_a_row():
    weighted = fair().fit(X, Y, group=GROUP, sites=SITE, sample_weight=WEIGHTS)
    copies = np.repeat(np.arange(240), WEIGHTS)
    repeated = fair().fit(X[copies], Y[copies], group=GROUP[copies], sites=SITE[copies])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-5)
    plain = fair().fit(X, Y, group=GROUP, sites=SITE)
    assert np.max(np.abs(plain.coef_ - weighted.coef_)) > 1e-3
    z = weighted.decision_function(X)
    for name in ("north", "south"):  # the gap of the WEIGHTED means is what is bounded
        members = [np.flatnonzero((name == SITE) & (g == GROUP)) for g in (0, 1)]
        means = [np.average(losses(z, Y)[rows], weights=WEIGHTS[rows]) for rows in members]
        assert abs(means[0] - means[1]) <= 0.02 + 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FairClassifier. no group was given")
def test_class_weights_are_those_of_scikit_learn():
    for weight in ("balanced", {0: 1.0, 1: 3.0}):
        ours = fair(class_weight=weight, ridge=0.05).fit(X, Y)
        # scikit-learn minimises C·Σ s·loss + ½‖w‖², and we Σ s·loss / Σ s + (ridge/2)‖w‖²
        total = {"balanced": 240.0}.get(str(weight), float(np.where(Y == 1, 3.0, 1.0).sum()))
        theirs = LogisticRegression(C=1 / (0.05 * total), class_weight=weight, tol=1e-10, max_iter=1000).fit(X, Y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-3, atol=1e-5)


def test_without_a_group_nothing_is_bounded_and_a_warning_says_so():
    with pytest.warns(UserWarning, match=r"no group was given, .* give the group of each row: fit\(X, y, group="):
        model = fair(ridge=0.05).fit(X, Y)
    assert len(model.certificate_.rows) == 0
    assert model.certificate_.holds()


@pytest.mark.slow
def test_several_classes_are_fitted_one_against_the_rest():
    model = fair().fit(X, THREE, group=GROUP, sites=SITE)
    assert model.coef_.shape == (3, 3)
    scores = model.decision_function(X)
    for c in range(3):
        alone = fair().fit(X, (c == THREE).astype(int), group=GROUP, sites=SITE)
        np.testing.assert_allclose(alone.decision_function(X), scores[:, c], rtol=1e-6, atol=1e-6)
        assert model.certificate_[c].holds()
        loss = losses(scores[:, c], c == THREE)
        for name in ("north", "south"):
            here = name == SITE
            assert abs(loss[here & (GROUP == 0)].mean() - loss[here & (GROUP == 1)].mean()) <= 0.02 + 1e-6
    chances = model.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.log(chances), model.predict_log_proba(X))
    assert np.array_equal(model.predict(X), scores.argmax(axis=1))
    oracle = np.array([best_under_gaps(c == THREE) for c in range(3)])
    for c, w in enumerate(oracle):
        own = np.append(model.coef_[c], model.intercept_[c])
        assert mean_loss(own, c == THREE) <= mean_loss(w, c == THREE) + 1e-6
    assert np.mean(model.predict(X) == (WITH_ONE @ oracle.T).argmax(axis=1)) > 0.99


def mean_loss(w: np.ndarray, y: np.ndarray) -> float:
    """The mean over the sites of their mean losses."""
    return float(np.mean([losses(WITH_ONE @ w, y)[name == SITE].mean() for name in ("north", "south")]))


def best_under_gaps(y: np.ndarray) -> np.ndarray:
    """The best model whose groups' losses differ by at most 0.02 at each site, by SciPy's SLSQP from three starts."""

    def room(w: np.ndarray) -> np.ndarray:
        loss = losses(WITH_ONE @ w, y)
        parts = [[loss[(name == SITE) & (g == GROUP)].mean() for g in (0, 1)] for name in ("north", "south")]
        gaps = np.array([first - second for first, second in parts])
        return np.concatenate([0.02 - gaps, 0.02 + gaps])

    answers = []
    for start in (np.zeros(4), np.ones(4), np.array([1.0, -1.0, 1.0, -1.0])):
        found = minimize(
            mean_loss, start, (y,), constraints={"type": "ineq", "fun": room}, options={"ftol": 1e-13, "maxiter": 500}
        )
        answers += [found] if np.min(room(found.x)) > -1e-7 else []
    return min(answers, key=lambda found: found.fun).x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FairClassifier. no group was given")
def test_several_classes_without_groups_are_scikit_learns_one_against_the_rest():
    ours = fair(ridge=0.05).fit(X, THREE)
    theirs = OneVsRestClassifier(LogisticRegression(C=1 / (0.05 * 240), tol=1e-10, max_iter=1000)).fit(X, THREE)
    np.testing.assert_allclose(ours.coef_, np.vstack([one.coef_ for one in theirs.estimators_]), rtol=1e-4, atol=1e-6)
    assert np.array_equal(ours.predict(X), theirs.predict(X))


@pytest.fixture(scope="module")
def models() -> dict[str, object]:
    """One fit of each kind that predicts in its own way."""
    names = np.array(["ill", "well"])[Y]
    bound = {"max_miss_rate": 0.3, "confidence": 0.8, "holdout": 0.4}
    return {
        "fair": fd.FairClassifier(0.05).fit(X, Y, group=GROUP, sites=SITE),
        "three": fair().fit(X, THREE, group=GROUP, sites=SITE),
        "threshold": fd.NeymanPearsonClassifier(0.5, pos_label="ill", **bound).fit(X, names, sites=SITE),
        "hinge": fd.RobustClassifier().fit(X, Y, sites=SITE),
        "three hinges": fd.RobustClassifier(class_weight="balanced").fit(X, THREE, sites=SITE),
        "regressor": fd.RobustRegressor().fit(X, X @ [1.0, 2.0, 3.0] + RNG.normal(size=240), sites=SITE),
    }


PROGRAM = """
import pickle, sys
sys.modules["jax"] = sys.modules["foedus"] = None  # importing either would now fail
answers = {name: (model.predict(X), getattr(model, "predict_proba", lambda X: None)(X))
           for X in [pickle.load(sys.stdin.buffer)] for name, model in pickle.load(sys.stdin.buffer).items()}
sys.stdout.buffer.write(pickle.dumps(answers))
"""


@pytest.mark.slow
def test_the_plain_form_predicts_the_same_without_jax_and_without_foedus(models):
    plain = {name: model.to_sklearn() for name, model in models.items()}
    sent = pickle.dumps(X) + pickle.dumps(plain)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=sent, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    for name, (classes, chances) in pickle.loads(done.stdout).items():
        model = models[name]
        if name == "regressor":
            np.testing.assert_allclose(classes, model.predict(X), rtol=1e-12)
            continue
        assert np.array_equal(classes, model.predict(X)), name
        assert (chances is None) == ("hinge" in name)
        if chances is not None:
            np.testing.assert_allclose(chances, model.predict_proba(X), rtol=1e-10, atol=1e-14)


@pytest.mark.slow
def test_fits_pickle_and_a_sparse_table_gives_the_same(models):
    for name, model in models.items():
        copy = pickle.loads(pickle.dumps(model))
        assert np.array_equal(copy.predict(X), model.predict(X)), name
        if name != "regressor":
            assert np.array_equal(model.predict(csr_array(X)), model.predict(X)), name
        else:
            np.testing.assert_allclose(model.predict(csr_array(X)), model.predict(X), rtol=1e-12)
    again = fd.FairClassifier(0.05).fit(csr_array(X), Y, group=GROUP, sites=SITE)
    assert np.array_equal(again.coef_, models["fair"].coef_)


@pytest.mark.slow
def test_routing_passes_each_fold_its_groups_and_sites():
    seen = []

    class Spy(fd.FairClassifier):
        def fit(self, X, y=None, *, group=None, sites=None, sample_weight=None, server=None):
            seen.append((group, sites, sample_weight))
            return super().fit(X, y, group=group, sites=sites, sample_weight=sample_weight)

    with config_context(enable_metadata_routing=True):
        scores = cross_validate(Spy(0.05), X, Y, cv=2, params={"group": GROUP, "sites": SITE})
    assert np.all(scores["test_score"] > 0.6)
    assert [(len(group), set(sites), weight) for group, sites, weight in seen] == [(120, {"north", "south"}, None)] * 2


@pytest.mark.slow
def test_a_weighted_robust_fit_is_the_least_worst_case_that_scipy_finds():
    """With an ℓ1 metric and fixed labels the worst case of the logistic loss is its mean plus ρ·‖w‖_∞."""
    weights = WEIGHTS.astype(float)
    model = fd.RobustClassifier("logistic", radius=0.05).fit(X, Y, sample_weight=weights)

    def worst(w: np.ndarray) -> float:
        return float(np.average(losses(X @ w[:3] + w[3], Y), weights=weights) + 0.05 * np.max(np.abs(w[:3])))

    best = min(
        minimize(worst, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 10_000}).fun
        for start in ([1.0, -0.5, 0.3, 0.0], np.append(model.coef_[0], model.intercept_))
    )
    assert worst(np.append(model.coef_[0], model.intercept_)) == pytest.approx(best, abs=1e-6)
    assert model.worst_case_.value == pytest.approx(best, abs=1e-6)
