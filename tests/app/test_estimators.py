"""The estimators: their terms hold at every site when recomputed with NumPy, and they keep scikit-learn's manners."""

import doctest
import importlib
import pickle
import subprocess
import sys
from functools import cache
from math import log
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import foedus as fd
from foedus.app.estimators.rows import read_sites
from foedus.problem.stacked import pad_rows, stack
from foedus.statistics import umbrella

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"north": 150, "south": 120, "west": 90}
MAX_LOSS, MAX_GAP = 0.4 * log(2), 0.05
# Terms and shapes are shared by as many tests as possible, and with them the compiled programs.


@cache
def sites(grouped: bool = False) -> dict[str, tuple[np.ndarray, ...]]:
    """Three sites whose classes overlap, differently at each, and whose second group is harder to tell apart."""
    made = {}
    for seed, (name, rows) in enumerate(SIZES.items()):
        draw = np.random.default_rng(seed)
        group = (draw.random(rows) < 0.4).astype(int)
        X = draw.normal(size=(rows, 3))
        z = X @ np.array([1.5, -1.0, 0.5 * seed]) * np.where(group == 1, 0.4, 1.6) + 0.4 * seed
        y = (draw.random(rows) < 1 / (1 + np.exp(-z))).astype(int)
        made[name] = (X, y, group) if grouped else (X, y)
    return made


def table(grouped: bool = False) -> tuple[np.ndarray, ...]:
    """The sites' rows in one table, mixed, with the name of each row's site in the last array."""
    parts = [(*arrays, np.full(SIZES[name], name)) for name, arrays in sites(grouped).items()]
    order = np.concatenate([np.arange(n) for n in SIZES.values()]).argsort(kind="stable")
    return tuple(np.concatenate(columns)[order] for columns in zip(*parts, strict=True))


@cache
def capped() -> fd.NeymanPearsonClassifier:
    return fd.NeymanPearsonClassifier(MAX_LOSS).fit(sites())


@cache
def fair() -> fd.FairClassifier:
    return fd.FairClassifier(MAX_GAP).fit(sites(grouped=True))


BOUND = {"max_miss_rate": 0.2, "confidence": 0.9, "holdout": 0.25}


@cache
def bounded() -> tuple[fd.NeymanPearsonClassifier, dict[str, np.ndarray]]:
    """A fit with a bounded miss rate, and the scores of the positives that its sites held out."""
    seen: dict[str, np.ndarray] = {}
    plain = umbrella.calibrate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(umbrella, "calibrate", lambda scores, *terms: seen.update(scores) or plain(scores, *terms))
        model = fd.NeymanPearsonClassifier(MAX_LOSS, **BOUND).fit(sites())
    return model, seen


def losses(model, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The logistic loss of each row, labels 0/1."""
    z = X @ model.coef_[0] + model.intercept_[0]
    return np.logaddexp(0.0, np.where(y == 1, -z, z))


# what is promised


def test_every_site_keeps_the_cap():
    model = capped()
    assert model.certificate_.holds(1e-3, 1e-3)
    for X, y in sites().values():
        assert losses(model, X, y)[y == 1].mean() <= MAX_LOSS + 1e-3
    reported = {row.site: row.value for row in model.certificate_.rows}
    assert reported == pytest.approx({name: losses(model, X, y)[y == 1].mean() for name, (X, y) in sites().items()})


def test_the_loss_on_the_other_class_is_the_least_that_scipy_finds():
    def objective(w: np.ndarray) -> float:
        return float(np.mean([np.logaddexp(0.0, (X @ w[:3] + w[3])[y == 0]).mean() for X, y in sites().values()]))

    def slack(w: np.ndarray) -> np.ndarray:
        return np.array([MAX_LOSS - np.logaddexp(0.0, -(X @ w[:3] + w[3])[y == 1]).mean() for X, y in sites().values()])

    found = minimize(
        objective, np.array([0.0, 0, 0, 5]), method="SLSQP", constraints={"type": "ineq", "fun": slack}, tol=1e-10
    )
    assert found.success
    assert capped().run_.objective == pytest.approx(found.fun, rel=5e-3, abs=2e-3)


def test_multipliers_are_by_site_and_vanish_where_the_cap_has_slack():
    model = capped()
    assert list(model.multipliers_) == model.sites_ == list(SIZES)
    assert max(model.multipliers_.values()) > 0
    for row in model.certificate_.rows:
        assert model.multipliers_[row.site] == row.multiplier >= 0
        assert row.multiplier * row.slack == pytest.approx(0, abs=1e-3)


def test_every_site_keeps_the_gap():
    model = fair()
    assert model.certificate_.holds(1e-3, 1e-3)
    gaps = []
    for X, y, group in sites(grouped=True).values():
        loss = losses(model, X, y)
        gaps.append(abs(loss[group == 0].mean() - loss[group == 1].mean()))
    assert max(gaps) <= MAX_GAP + 1e-3
    assert max(gaps) == pytest.approx(MAX_GAP, abs=2e-3), "without the constraint the gap is larger, so it binds"
    assert {name: mu.shape for name, mu in model.multipliers_.items()} == dict.fromkeys(SIZES, (2,))


def test_the_server_keeps_the_cap_too_and_the_ridge_leaves_the_intercept_out():
    X, y = sites()["west"]
    hard, ridge = (X, 1 - y), 0.1
    model = fd.NeymanPearsonClassifier(MAX_LOSS, ridge=ridge).fit(sites(), server=hard)
    assert model.certificate_.holds(1e-3, 1e-3)
    assert losses(model, *hard)[hard[1] == 1].mean() <= MAX_LOSS + 1e-3
    assert losses(capped(), *hard)[hard[1] == 1].mean() > 2 * MAX_LOSS
    assert model.multipliers_["server"] > 0

    # the gradient of the Lagrangian, with nothing for the intercept in that of the penalty
    gradient = np.append(ridge * model.coef_[0], 0.0)
    for name, (X, y) in (sites() | {"server": hard}).items():
        ones = np.column_stack([X, np.ones(len(X))])
        slope = 1 / (1 + np.exp(-X @ model.coef_[0] - model.intercept_[0])) - y
        for label, weight in ((0, 0.0 if name == "server" else 1 / len(SIZES)), (1, model.multipliers_[name])):
            gradient += weight * (slope[y == label] @ ones[y == label]) / np.sum(y == label)
    assert np.max(np.abs(gradient)) <= 1e-3


@pytest.mark.slow
def test_three_groups_are_close_in_pairs():
    members = {}
    for name, (X, y, group) in sites(grouped=True).items():
        members[name] = (X, y, np.where(X[:, 2] > 0.5, "c", np.where(group == 1, "b", "a")))
    model = fd.FairClassifier(MAX_GAP).fit(members)
    assert model.certificate_.holds(1e-3, 1e-3)
    for X, y, group in members.values():
        means = [losses(model, X, y)[group == g].mean() for g in "abc"]
        assert np.ptp(means) <= MAX_GAP + 1e-3
    assert "loss on group a − group c" in {row.constraint for row in model.certificate_.rows}


def test_terms_that_cannot_be_met_are_warned_of_by_name():
    # without an intercept, positives at x and at −x cannot both have a small loss
    clash = {}
    for sign, (name, rows) in zip((1, 1, -1), SIZES.items(), strict=True):
        clash[name] = (sign * np.abs(np.random.default_rng(0).normal(size=(rows, 4))), np.arange(rows) % 2)
    with pytest.warns(
        ConvergenceWarning, match=r"no feasible point was found: .* at '(north|south|west)'.*NOT certified"
    ) as caught:
        model = fd.NeymanPearsonClassifier(MAX_LOSS, fit_intercept=False).fit(clash)
    assert caught[0].filename == __file__
    assert not model.certificate_.holds()
    assert np.all(np.isfinite(model.coef_))


def test_a_limit_of_rounds_is_warned_of():
    with pytest.warns(ConvergenceWarning, match="stopped at the limit of rounds"):
        model = fd.NeymanPearsonClassifier(MAX_LOSS, max_rounds=3).fit(sites())
    assert model.n_rounds_ == 3


# the bounded miss rate


def test_the_threshold_rests_on_positives_that_took_no_part_in_training():
    model, held = bounded()
    assert model.certificate_.holds(1e-3, 1e-3)
    for row, (X, y) in zip(model.certificate_.rows, sites().values(), strict=True):
        scores = X[y == 1] @ model.coef_[0] + model.intercept_[0]
        out = np.isin(scores, held[row.site])
        assert np.sum(out) == np.ceil(BOUND["holdout"] * np.sum(y == 1)) == len(held[row.site])
        assert row.value == pytest.approx(np.logaddexp(0.0, -scores[~out]).mean())


def test_the_threshold_is_that_of_the_rule_and_decides_predictions():
    model, held = bounded()
    found = model.calibration_
    assert found == umbrella.calibrate(held, 0.2, 0.9)
    assert found.rounds == 17
    assert found.traffic.up == 17 * 3 * 8
    X = np.concatenate([X for X, _ in sites().values()])
    assert 0 < model.threshold_ < 0.5
    assert np.array_equal(model.predict(X) == 1, model.predict_proba(X)[:, 1] >= model.threshold_)
    assert np.array_equal(model.predict(X) == 1, model.decision_function(X) >= 0)
    assert len(set(model.predict(X))) == 2


def test_either_class_can_be_the_one_whose_loss_is_capped():
    names = {"a": "sick", "b": "well"}  # the capped class comes first in the order of classes_
    turned = {site: (X, np.where(y == 1, names["a"], names["b"])) for site, (X, y) in sites().items()}
    model = fd.NeymanPearsonClassifier(MAX_LOSS, pos_label="sick", **BOUND).fit(turned)
    plain = bounded()[0]
    assert model.classes_.tolist() == ["sick", "well"]
    assert np.array_equal(model.coef_, -plain.coef_)
    assert model.threshold_ == plain.threshold_
    X = np.concatenate([X for X, _ in sites().values()])
    assert np.array_equal(model.predict(X) == "sick", plain.predict(X) == 1)
    assert np.allclose(model.predict_proba(X), plain.predict_proba(X)[:, ::-1])
    assert np.array_equal(model.decision_function(X), -plain.decision_function(X))
    assert model.certificate_.rows[0].constraint == "loss on label sick"


def test_without_a_cap_of_its_own_training_aims_at_the_miss_rate():
    model = fd.NeymanPearsonClassifier(None, **BOUND | {"max_miss_rate": 0.4}).fit(sites())
    assert model.max_loss_ == pytest.approx(0.4 * log(2))  # a miss costs at least log 2
    assert model.certificate_.holds(1e-3, 1e-3)


def test_what_is_held_out_depends_on_the_seed_and_on_nothing_of_other_sites():
    model = fd.NeymanPearsonClassifier(max_miss_rate=0.2, seed=3)
    members = read_sites(model, sites(), None)
    alone, together = model._split(members[:1])[1], model._split(members)[1]
    assert np.array_equal(alone["north"], together["north"])
    other = fd.NeymanPearsonClassifier(max_miss_rate=0.2, seed=4)._split(members)[1]
    assert not np.array_equal(other["north"], together["north"])


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fair", "neyman_pearson", "robust"])
def test_the_examples_in_the_docstrings_print_what_they_say(module):
    results = doctest.testmod(importlib.import_module(f"foedus.app.estimators.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


# scikit-learn's manners


def same(first, second) -> bool:
    return np.array_equal(first.coef_, second.coef_) and np.array_equal(first.intercept_, second.intercept_)


def test_all_ways_to_give_the_sites_are_the_same():
    X, y, names = table()
    assert same(capped(), clone(capped()).fit(X, y, sites=names))
    assert same(capped(), clone(capped()).fit(list(sites().values())))
    assert same(capped(), clone(capped()).fit({name: {"x": X, "y": y} for name, (X, y) in sites().items()}))
    X, y, group, names = table(grouped=True)
    model = clone(fair()).fit(X, y, group=group, sites=names)
    assert same(fair(), model)
    assert model.certificate_ == fair().certificate_


def test_labels_and_groups_may_be_strings():
    members = {
        name: (X, np.where(y == 1, "yes", "no"), np.where(g == 1, "m", "f")) for name, (X, y, g) in sites(True).items()
    }
    model = clone(fair()).fit(members)
    assert same(fair(), model)
    assert (model.classes_.tolist(), model.groups_.tolist()) == (["no", "yes"], ["f", "m"])
    X, y, _ = members["north"]
    assert model.score(X, y) == fair().score(X, sites()["north"][1])


def test_a_pipeline_passes_the_sites_on():
    X, y, names = table()
    pipe = make_pipeline(StandardScaler(), fd.NeymanPearsonClassifier(MAX_LOSS))
    pipe.fit(X, y, neymanpearsonclassifier__sites=names)
    model = pipe[-1]
    assert model.sites_ == list(SIZES)
    assert model.certificate_.holds(1e-3, 1e-3)
    scaled = pipe[0].transform(X)
    for name in SIZES:
        here = (names == name) & (y == 1)
        assert losses(model, scaled[here], y[here]).mean() <= MAX_LOSS + 1e-3
    assert pipe.score(X, y) == np.mean(pipe.predict(X) == y)


def test_clone_and_pickle():
    for model in (capped(), fair(), bounded()[0]):
        X = next(iter(sites().values()))[0]
        copy = pickle.loads(pickle.dumps(model))
        assert np.array_equal(copy.predict(X), model.predict(X))
        assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
        assert copy.certificate_ == model.certificate_
        fresh = clone(model)
        assert fresh.get_params() == model.get_params()
        with pytest.raises(NotFittedError):
            fresh.predict(X)


def test_filling_keeps_the_rows_and_leaves_few_shapes():
    shapes = set()
    for rows in range(1, 600):
        filled = pad_rows(stack([(np.ones((rows, 2)), np.ones(rows))]))
        assert filled.counts.tolist() == [rows]
        assert rows <= filled.rows <= max(256, 1.25 * rows)
        shapes.add(filled.rows)
    assert len(shapes) <= 7


def test_folds_of_a_cross_validation():
    X, y, _ = table()
    scores = cross_val_score(fd.NeymanPearsonClassifier(), X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.5


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(fd.NeymanPearsonClassifier(), id="NeymanPearsonClassifier"),
        # the same checks of the same shared code; what differs is compiled anew for each shape
        pytest.param(fd.FairClassifier(), id="FairClassifier", marks=pytest.mark.slow),
        pytest.param(fd.RobustClassifier(), id="RobustClassifier-hinge", marks=pytest.mark.slow),
        pytest.param(fd.RobustClassifier("logistic"), id="RobustClassifier-logistic", marks=pytest.mark.slow),
        pytest.param(fd.RobustRegressor(), id="RobustRegressor", marks=pytest.mark.slow),
        pytest.param(fd.LogisticRegression(ridge=0.05), id="LogisticRegression", marks=pytest.mark.slow),
        pytest.param(fd.LinearRegression(ridge=0.01), id="LinearRegression", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:FairClassifier. no group was given:UserWarning")
def test_scikit_learn_finds_nothing_amiss(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 50
    # these need the optional pandas, or an environment variable, and are no failure without it
    skipped = {result["check_name"] for result in results if result["status"] != "passed"}
    assert skipped <= {
        "check_array_api_input",
        "check_classifier_data_not_an_array",
        "check_sample_weights_pandas_series",
    }


# mistakes

X0, Y0 = np.zeros((4, 3)) + np.arange(4)[:, None], np.array([0, 1, 0, 1])
GOOD = (X0, Y0)
NP, FAIR = fd.NeymanPearsonClassifier, fd.FairClassifier

MISTAKES = {
    "no sites": (lambda: NP().fit({}), r"at least one site"),
    "a site without y": (lambda: NP().fit({"a": (X0,)}), r"site 'a': expected \(X, y\) .* Got a tuple of 1 entries"),
    "a site that is no pair": (lambda: NP().fit({"a": X0}), r"site 'a': expected \(X, y\) .* Got ndarray"),
    "a dict without y": (lambda: NP().fit([GOOD, {"x": X0}]), r"site '1': expected .* Got a dict of \['x'\]"),
    "two sites of one name": (lambda: NP().fit({1: GOOD, "1": GOOD}), r"two sites are called '1'"),
    "sites and sites=": (lambda: NP().fit([GOOD], sites=["a"]), r"takes neither sites= nor group="),
    "a site with other columns": (lambda: NP().fit({"a": GOOD, "b": (X0[:, :2], Y0)}), r"site 'b': X has 2 features"),
    "a site with NaN": (lambda: NP().fit({"a": GOOD, "b": (X0 * np.nan, Y0)}), r"site 'b': Input X contains NaN"),
    "a site with a short y": (lambda: NP().fit({"a": (X0, Y0[:3])}), r"site 'a': .*inconsistent numbers of samples"),
    "a site without positives": (
        lambda: NP().fit({"a": GOOD, "b": (X0, 0 * Y0)}),
        r"site 'b': no example has class 1, so its loss cap is undefined; merge the site",
    ),
    "a site without negatives": (
        lambda: NP().fit({"a": GOOD, "b": (X0, np.ones(4, int))}),
        r"site 'b': no example has class 0, so its objective is undefined",
    ),
    "a server without positives": (lambda: NP().fit([GOOD], server=(X0, 0 * Y0)), r"site 'server': no example has"),
    "a site called server": (lambda: NP().fit({"server": GOOD}, server=GOOD), r"a site is called 'server'"),
    "labels of two kinds": (lambda: NP().fit([GOOD, (X0, list("abab"))]), r"site '1': its labels are words, but those"),
    "one class": (lambda: NP().fit(X0, 0 * Y0), r"needs examples of two classes. Got only one class"),
    "three classes": (lambda: NP().fit(X0, [0, 1, 2, 0]), r"Only binary classification is supported"),
    "no y": (lambda: NP().fit(X0), r"requires y to be passed"),
    "short sites": (lambda: NP().fit(X0, Y0, sites=["a", "b"]), r"sites must have one entry .* 4 rows of X. Got 2"),
    "a missing site": (lambda: NP().fit(X0, Y0, sites=["a", "a", None, "b"]), r"sites has None at row 2"),
    "an unknown pos_label": (lambda: NP(pos_label="x").fit(X0, Y0), r"'pos_label' .* must be one of \[0, 1\]. Got 'x'"),
    "a cap of 0": (lambda: NP(0).fit(X0, Y0), r"The 'max_loss' parameter .* must be a number > 0. Got 0 instead"),
    "no cap at all": (lambda: NP(None).fit(X0, Y0), r"The 'max_loss' parameter .* must be a number > 0. Got None"),
    "a miss rate of 1": (lambda: NP(max_miss_rate=1.0).fit(X0, Y0), r"'max_miss_rate' .* > 0 and < 1 or None"),
    "a confidence of 1": (lambda: NP(confidence=1).fit(X0, Y0), r"'confidence' .* > 0 and < 1. Got 1"),
    "a holdout in words": (lambda: NP(holdout="half").fit(X0, Y0), r"'holdout' .* Got 'half'"),
    "a ridge of -1": (lambda: NP(ridge=-1).fit(X0, Y0), r"'ridge' .* >= 0"),
    "half a round": (lambda: NP(max_rounds=0.5).fit(X0, Y0), r"'max_rounds' .* a whole number >= 1"),
    "a negative seed": (lambda: FAIR(seed=-1).fit(X0, Y0), r"'seed' .* a whole number >= 0"),
    "beta of 0": (lambda: NP(beta=0).fit(X0, Y0), r"'beta' setting of ProxAL must be a number > 0"),
    "a gap of -1": (lambda: FAIR(-1.0).fit(X0, Y0), r"The 'max_gap' parameter of FairClassifier must be a number >= 0"),
    "weights of 0": (lambda: NP().fit(X0, Y0, sample_weight=[0, 0, 0, 0]), r"every sample_weight is zero"),
    "a negative weight": (lambda: NP().fit(X0, Y0, sample_weight=[1, -1, 1, 1]), r"sample_weight has -1 at row 1"),
    "a site of weight 0": (
        lambda: NP().fit(X0, Y0, sites=list("aabb"), sample_weight=[1, 1, 0, 0]),
        r"site 'b': every sample_weight is zero",
    ),
    "weights and sites": (lambda: NP().fit([GOOD], sample_weight=[1]), r"a dict has the key 'sample_weight'"),
    "an unknown class weight": (lambda: FAIR(class_weight="even").fit(X0, Y0), r"'class_weight' .* Got 'even'"),
    "a weight of no class": (lambda: FAIR(class_weight={7: 1.0}).fit(X0, Y0), r"names the class 7; expected \[0, 1\]"),
    "a site without a group": (lambda: FAIR().fit({"a": GOOD}), r"site 'a': expected \(X, y, group\)"),
    "one group": (lambda: FAIR().fit(X0, Y0, group=[1, 1, 1, 1]), r"at least two groups. Got only"),
    "a site that lacks a group": (
        lambda: FAIR().fit({"a": (X0, Y0, list("ffmm")), "b": (X0, Y0, list("ffff"))}),
        r"site 'b': no example is of group 'm', so its loss gap is undefined",
    ),
    "groups of two kinds": (
        lambda: FAIR().fit([(X0, Y0, Y0), (X0, Y0, np.array(list("abab"), object))]),
        r"site '1': its groups are words, but those of '0' are numbers",
    ),
    "a short group": (lambda: FAIR().fit({"a": (X0, Y0, [0, 1])}), r"site 'a': group must have one entry for each"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(mistake):
    call, sentence = MISTAKES[mistake]
    with pytest.raises(ValueError, match=sentence) as caught:
        call()
    if mistake != "no y":  # scikit-learn's own sentence
        assert isinstance(caught.value, fd.FoedusError)
        assert "\n" not in str(caught.value)


def test_too_few_positives_are_refused_before_training():
    members = {"a": sites()["north"], "b": tuple(part[:40] for part in sites()["south"])}
    with pytest.raises(
        fd.FoedusError, match=r"site 'b': it has \d+ held-out positives, .* at least 29 at each site; with"
    ):
        fd.NeymanPearsonClassifier(max_miss_rate=0.1).fit(members)


# the package and its examples


def test_foedus_is_imported_without_scikit_learn():
    code = "import foedus as fd, sys; assert 'sklearn' not in sys.modules; print(fd.NeymanPearsonClassifier(0.1))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "NeymanPearsonClassifier(max_loss=0.1)"


def test_unknown_names_are_no_attributes():
    with pytest.raises(AttributeError, match="module 'foedus' has no attribute 'NeymanClassifier'"):
        _ = fd.NeymanClassifier
