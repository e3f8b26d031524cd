"""FairClassifier with gaps of rates: surrogates, thresholds against brute force, and fairlearn's figure on Adult."""

import os
import pickle
from itertools import product

import numpy as np
import pytest

import foedus as fd
from foedus.app.estimators.fair import EDGES, ScoreCounts, common_cut, group_cuts
from foedus.app.estimators.rows import Site

RNG = np.random.default_rng(11)
N = 400
GROUP = np.where(RNG.random(N) < 0.4, "F", "M")
X = np.column_stack([RNG.normal(size=(N, 2)) + 0.5 * (GROUP == "M")[:, None], GROUP == "M"])
Y = np.where(X @ [1.2, -0.4, 0.9] + np.where(GROUP == "M", 0.6, 1.3) * RNG.logistic(size=N) > 0.6, "good", "bad")
SITES = np.repeat(["north", "south"], N // 2)


def gap(of: str, answers: np.ndarray, rows=slice(None)) -> float:
    """The gap of a rate, counted from the answers."""
    answers, y, group = answers[rows], Y[rows], GROUP[rows]
    values = {"error": answers != y, "selection": answers == "good", "miss": answers != "good"}[of]
    rates = [values[(group == g) & ((y == "good") | (of != "miss"))].mean() for g in ("F", "M")]
    return abs(rates[0] - rates[1])


@pytest.fixture(scope="module")
def plain() -> fd.FairClassifier:
    with pytest.warns(UserWarning, match="no group was given"):
        return fd.FairClassifier(ridge=0.01).fit(X, Y, sites=SITES)


@pytest.mark.parametrize("of", ["error", "selection", "miss"])
@pytest.mark.slow
def test_the_smooth_rate_keeps_its_gap_at_every_site(plain, of):
    model = fd.FairClassifier(0.02, of=of, ridge=0.01).fit(X, Y, group=GROUP, sites=SITES)
    assert model.certificate_.holds()
    z = model.decision_function(X)
    sign = np.where(Y == "good", 1.0, -1.0)
    smooth = {"error": -sign * z, "selection": z, "miss": -z}[of]
    smooth = 1 / (1 + np.exp(-3.0 * smooth))
    for name in ("north", "south"):
        rows = (name == SITES) & ((Y == "good") | (of != "miss"))
        assert abs(smooth[rows & (GROUP == "F")].mean() - smooth[rows & (GROUP == "M")].mean()) <= 0.02 + 1e-3
        assert model.rate_gaps_[name] == pytest.approx(gap(of, model.predict(X), name == SITES))
    assert gap(of, model.predict(X)) < max(0.6 * gap(of, plain.predict(X)), 0.06)
    label = {"error": "error rate", "selection": "selection rate", "miss": "miss rate on positives of"}[of]
    assert model.certificate_.rows[0].constraint.startswith(label)


def site(scores: np.ndarray, y: np.ndarray, group: np.ndarray) -> tuple[Site, np.ndarray]:
    return Site("a", np.zeros((len(y), 1)), y.astype(float), group.astype(float)), scores


@pytest.mark.parametrize("of", ["error", "selection", "miss"])
@pytest.mark.parametrize("most", [0.05, 0.2])
def test_thresholds_have_the_fewest_errors_that_any_have(of, most):
    """Against brute force over all pairs of thresholds, on scores that share no cell."""
    draw = np.random.default_rng(3)
    scores = draw.permutation(np.arange(24) - 12.0) / 4 + 1 / 128
    y, group = draw.random(24) < 0.5, np.arange(24) % 2
    one, z = site(scores, y, group)
    counts = ScoreCounts.of(one, z, 2)
    cuts = np.unique(np.append(np.floor(scores * 64) / 64, [scores.min() - 1, scores.max() + 1]))

    def outcome(low: float, high: float) -> tuple[float, int]:
        answers = scores >= np.where(group == 0, low, high)
        values = {"error": answers != y, "selection": answers, "miss": ~answers}[of]
        rates = [values[(group == g) & (y | (of != "miss"))].mean() for g in (0, 1)]
        return abs(rates[0] - rates[1]), int((answers != y).sum())

    every = [outcome(low, high) for low, high in product(cuts, cuts)]
    best = min(errors for distance, errors in every if distance <= most + 1e-12)
    distance, errors = outcome(*group_cuts(counts, of, most))
    assert distance <= most + 1e-12
    assert errors == best
    same = [outcome(cut, cut) for cut in cuts]
    allowed = [errors for distance, errors in same if distance <= most + 1e-12]
    distance, errors = outcome(*[common_cut(counts, of, most)] * 2)
    assert errors == min(allowed) if allowed else distance == min(d for d, _ in same)
    assert EDGES[-1] == np.inf


def test_counts_of_sites_add_up():
    draw = np.random.default_rng(5)
    scores, y, group = draw.normal(size=30), draw.random(30) < 0.5, np.arange(30) % 3
    parts = [site(scores[rows], y[rows], group[rows]) for rows in (slice(0, 12), slice(12, 30))]
    whole = ScoreCounts.of(*site(scores, y, group), 3)
    together = ScoreCounts.of(*parts[0], 3) + ScoreCounts.of(*parts[1], 3)
    assert np.array_equal(whole.weight, together.weight)
    assert whole.weight.sum() == 30


def test_thresholds_are_used_kept_and_exported():
    settings = {"of": "selection", "ridge": 0.01}
    overall = fd.FairClassifier(0.05, threshold="overall", **settings).fit(X, Y, group=GROUP, sites=SITES)
    answers = overall.predict(X)
    assert gap("selection", answers) <= 0.05
    assert np.array_equal(overall.to_sklearn().predict(X), answers)
    assert np.array_equal(pickle.loads(pickle.dumps(overall)).predict(X), answers)
    own = fd.FairClassifier(0.05, threshold="group", **settings).fit(X, Y, group=GROUP, sites=SITES)
    answers = own.predict(X, group=GROUP)
    assert gap("selection", answers) <= 0.05
    assert set(own.cuts_) == {"F", "M"}
    with pytest.raises(fd.FoedusError, match="give predict the group of each row"):
        own.predict(X)
    with pytest.raises(fd.FoedusError, match="no row of the group 'X' was in training"):
        own.predict(X, group=["X"] * N)
    with pytest.raises(fd.FoedusError, match="has no form in scikit-learn"):
        own.to_sklearn()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"of": "accuracy"}, "The 'of' parameter of FairClassifier must be one of 'loss', 'error'"),
        ({"of": "error", "threshold": 0.5}, "The 'threshold' parameter .* must be one of None, 'overall', 'group'"),
        ({"threshold": "group"}, "keeps the gap of a rate; say which with of="),
    ],
)
def test_wrong_choices_get_one_sentence(settings, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        fd.FairClassifier(**settings).fit(X, Y, group=GROUP)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FOEDUS_DATA"), reason="Adult is read from the folder FOEDUS_DATA")
def test_adult_has_a_smaller_error_gap_than_fairlearn_at_a_higher_accuracy():
    """fairlearn's reductions reach an error gap of 0.021 at accuracy 0.805."""
    from foedus_lab.benchmarks.fairness import adult_groups

    train, test = adult_groups()
    model = fd.FairClassifier(0.015, of="error", ridge=1e-4, eps1=1e-4, eps2=1e-4).fit(*train[:2], group=train[2])
    wrong = model.predict(test[0]) != test[1]
    rates = [wrong[test[2] == g].mean() for g in np.unique(test[2])]
    assert 1 - wrong.mean() > 0.81
    assert abs(rates[0] - rates[1]) < 0.021
