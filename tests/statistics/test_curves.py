"""Curves, predictive values, calibration slope and rates by group: those of other code on pooled rows, from sums."""

import json

import numpy as np
import pytest
from evaluated_rows import SITES, W, problem, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

import foedus as fd
from foedus.statistics import figures
from foedus.statistics.curves import calibration_slope, curves_of
from foedus.statistics.evaluate import Evaluation
from foedus.statistics.tally import Rule, tally

POOLED = [np.concatenate([part[i] for part in SITES.values()]) for i in range(3)]


def test_rates_at_the_threshold_are_those_of_scikit_learn():
    result, (X, y, _) = fd.evaluate(problem(), W, SITES), POOLED
    answers = X @ W > 0
    assert result["sensitivity"].value == pytest.approx(metrics.recall_score(y, answers), abs=1e-12)
    assert result["specificity"].value == pytest.approx(metrics.recall_score(1 - y, ~answers), abs=1e-12)
    assert result["ppv"].value == pytest.approx(metrics.precision_score(y, answers), abs=1e-12)
    assert result["npv"].value == pytest.approx(metrics.precision_score(1 - y, ~answers), abs=1e-12)
    assert result["sensitivity"].low == pytest.approx(1 - result["miss_rate"].high, abs=1e-9)


def test_the_roc_curve_has_the_area_and_the_corners_of_scikit_learn():
    result, (X, y, _) = fd.evaluate(problem(), W, SITES), POOLED
    across, upward = np.array(result.curves.roc).T
    assert (across[0], upward[0], across[-1], upward[-1]) == (0, 0, 1, 1)
    assert np.all(np.diff(across) >= 0)
    assert np.all(np.diff(upward) >= 0)
    assert metrics.auc(across, upward) == pytest.approx(metrics.roc_auc_score(y, X @ W), abs=5e-3)
    theirs_across, theirs_upward, _ = metrics.roc_curve(y, X @ W, drop_intermediate=False)
    nearest = np.abs(theirs_across[:, None] - across) + np.abs(theirs_upward[:, None] - upward)
    assert np.max(nearest.min(axis=0)) < 5e-3  # every corner is one of theirs, up to scores that share a cell


def test_net_benefit_is_counted_from_the_rows():
    result, (X, y, _) = fd.evaluate(problem(), W, SITES), POOLED
    p = 1 / (1 + np.exp(-(X @ W)))
    assert len(result.curves.benefit) > 50
    for threshold, model, everybody in result.curves.benefit:
        called, cost = p >= threshold, threshold / (1 - threshold)
        assert model == pytest.approx(np.mean(called & (y == 1)) - np.mean(called & (y == 0)) * cost, abs=1e-9)
        assert everybody == pytest.approx(np.mean(y) - np.mean(1 - y) * cost, abs=1e-9)


def test_the_calibration_slope_is_that_of_statsmodels_with_sandwich_errors():
    statsmodels = pytest.importorskip("statsmodels.api")
    X, y, _ = POOLED
    for scale in (0.5, 1.0, 2.0):
        fit = statsmodels.Logit(y, np.column_stack([np.ones(len(y)), scale * (X @ W)])).fit(disp=0, cov_type="HC1")
        slope = fd.evaluate(problem(), scale * W, SITES)["slope"]
        assert slope.value == pytest.approx(fit.params[1], rel=2e-3)
        assert slope.high - slope.value == pytest.approx(1.959964 * fit.bse[1], rel=1e-2)


def test_the_interval_of_the_slope_covers_it():
    draw, terms = np.random.default_rng(3), problem().terms
    inside = 0
    for _ in range(400):
        z = draw.normal(size=300) * 1.5
        y = (draw.random(300) < 1 / (1 + np.exp(-(0.2 + 0.7 * z)))).astype(float)
        X = np.column_stack([z, np.zeros((300, 2))])
        slope = calibration_slope(tally(terms, np.array([1.0, 0.0, 0.0]), (X, y), Rule()))
        inside += slope.low <= 0.7 <= slope.high
    assert inside >= 370  # 92.5 %: a Wald interval with 300 rows; 380 are expected


def test_no_slope_where_the_classes_are_apart_or_cells_are_wide():
    terms = problem().terms
    z = np.concatenate([np.linspace(-3, -1, 60), np.linspace(1, 3, 60)])
    X, w = np.column_stack([z, np.zeros((120, 2))]), np.array([1.0, 0.0, 0.0])
    assert not calibration_slope(tally(terms, w, (X, (z > 0).astype(float)), Rule())).known
    y = (np.arange(120) % 3 == 0).astype(float)
    assert calibration_slope(tally(terms, w, (X, y), Rule())).known
    assert not calibration_slope(tally(terms, w, (X, y), Rule(), least=20)).known
    one_class = tally(terms, w, (X, np.ones(120)), Rule())
    assert not calibration_slope(one_class).known
    assert curves_of(one_class).roc == ()


def test_each_group_has_the_rates_of_its_rows():
    result, (X, y, group) = fd.evaluate(problem(), W, SITES, groups=("F", "M")), POOLED
    for code, name in enumerate(("F", "M")):
        mine = group == code
        assert result.groups[name]["sensitivity"].value == pytest.approx(
            metrics.recall_score(y[mine], X[mine] @ W > 0), abs=1e-12
        )
        assert result.groups[name]["accuracy"].rows == mine.sum()
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert "sensitivity" in str(result)
    with pytest.raises(fd.FoedusError, match=r"site 'a': expected \(X, y, group\), groups numbered from 0 to 0"):
        fd.evaluate(problem(), W, SITES, groups=("F",))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 25), st.integers(60, 200), st.integers(1, 4), st.integers(0, 10**6))
def test_no_group_is_told_about_where_one_has_too_few_rows(least: int, n: int, groups: int, seed: int):
    """Every class of every group, and of the rows in no group, has enough rows, or nothing is said of any group."""
    X, y, _ = rows(n, seed)
    group = np.random.default_rng(seed).integers(-1, groups, n).astype(float)
    sums = tally(problem().terms, W, (X, y, group), Rule(), least, groups)
    sizes = [np.sum((group == g) & (y == side)) for g in range(-1, groups) for side in (0, 1)]
    told = sums["groups"].any()
    if told:
        assert all(size == 0 or size >= least for size in sizes)
        # what the total has beyond the groups is about enough rows too
        rest = sums["outcomes"] - sums["groups"].sum(axis=0)
        assert all(part == 0 or part >= least for part in (rest[:2].sum(), rest[2:].sum()))
    elif all(size == 0 or size >= least for size in sizes) and sums["outcomes"].any():
        pytest.fail("enough rows, and nothing was told")


def test_under_masks_the_groups_are_seen_over_all_sites_alone():
    four = {name: rows(150, seed) for seed, name in enumerate("abcd")}
    masked = fd.evaluate(problem(), W, four, secure=True, groups=("F", "M"))
    plain = fd.evaluate(problem(), W, four, groups=("F", "M"))
    assert masked.sites == {}
    assert masked.groups == plain.groups
    assert masked.curves == plain.curves
    assert figures.groups_of({}, ()) == {}
