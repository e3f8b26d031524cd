"""Intervals at 95 % cover at least 95 % of 1,000 simulated draws, for rates, areas under curves and mean losses."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score

from foedus.statistics import intervals
from foedus.statistics.figures import figures_of
from foedus.statistics.intervals import Figure

DRAWS = 1000


def covered(figures: list[Figure], truth: float) -> float:
    assert all(f.bounded and f.low <= f.value <= f.high for f in figures)
    return float(np.mean([f.low <= truth <= f.high for f in figures]))


@pytest.mark.parametrize("rows", [12, 80, 1000])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_the_interval_of_a_rate_covers_and_is_that_of_clopper_and_pearson(rows: int, share: float):
    draw = np.random.default_rng(rows)
    counts = draw.binomial(rows, share, DRAWS)
    by_count = {int(k): intervals.rate(int(k), rows) for k in np.unique(counts)}
    assert covered([by_count[int(k)] for k in counts], share) >= 0.95
    k = int(counts[0])
    exact = binomtest(k, rows).proportion_ci(0.95, method="exact")
    assert by_count[k].low == pytest.approx(exact.low, abs=1e-12)
    assert by_count[k].high == pytest.approx(exact.high, abs=1e-12)


def test_the_rate_over_sites_with_different_rates_is_covered():
    draw = np.random.default_rng(3)
    rows, shares = np.array([40, 90, 200]), np.array([0.02, 0.5, 0.2])
    truth = float(rows @ shares / rows.sum())
    counts = draw.binomial(rows, shares, (DRAWS, 3)).sum(axis=1)
    assert covered([intervals.rate(int(k), int(rows.sum())) for k in counts], truth) >= 0.95


@pytest.mark.parametrize(("positives", "negatives"), [(15, 60), (60, 60), (40, 400)])
@pytest.mark.parametrize(("area", "spread"), [(0.6, 1.0), (0.9, 3.0), (0.99, 1.0)])
def test_the_interval_of_an_area_covers(positives: int, negatives: int, area: float, spread: float):
    """Normal scores of both classes, of which the positives' have another spread."""
    draw = np.random.default_rng(int(100 * area) + positives)
    shift = norm.ppf(area) * np.hypot(1.0, spread)
    up, down = draw.normal(shift, spread, (DRAWS, positives)), draw.normal(0, 1, (DRAWS, negatives))
    wins = [np.searchsorted(np.sort(b), a).sum() / (positives * negatives) for a, b in zip(up, down, strict=True)]
    assert covered([intervals.area(v, v, v, positives, negatives) for v in wins], area) >= 0.95
    y = np.r_[np.ones(positives), np.zeros(negatives)]
    assert wins[0] == pytest.approx(roc_auc_score(y, np.r_[up[0], down[0]]), abs=1e-12)


@pytest.mark.parametrize(("centre", "spread"), [(0.0, 1.0), (1.0, 1.5), (3.0, 2.0), (5.0, 2.0)])
@pytest.mark.parametrize("rows", [intervals.FEWEST, 300])
def test_the_interval_of_a_mean_loss_covers(centre: float, spread: float, rows: int):
    """Logistic losses of normal scores: at centre 5 few rows have a loss at all, which is as skewed as it gets."""
    grid = np.linspace(centre - 9 * spread, centre + 9 * spread, 200_001)
    truth = float(np.trapezoid(np.logaddexp(0, -grid) * norm.pdf(grid, centre, spread), grid))
    losses = np.logaddexp(0, -np.random.default_rng(rows).normal(centre, spread, (DRAWS, rows)))
    assert covered([intervals.mean(intervals.moments(row), low=0.0) for row in losses], truth) >= 0.95


def test_the_interval_of_a_quantity_of_either_sign_covers():
    """Probability minus outcome, of a model that is calibrated."""
    draw = np.random.default_rng(1)
    p = draw.beta(0.4, 4.0, (DRAWS, 120))
    gaps = p - (draw.random(p.shape) < p)
    assert covered([intervals.mean(intervals.moments(row), low=-1, high=1) for row in gaps], 0.0) >= 0.95


def test_the_intervals_of_a_regression_cover():
    """R² = 0.8 and RMSE = 1 of a model that is the truth, with errors that have heavy tails."""
    draw = np.random.default_rng(2)
    figures = []
    for _ in range(DRAWS):
        x, error = draw.normal(0, 2, 150), draw.standard_t(6, 150) / np.sqrt(1.5)
        y = x + error
        powers = np.array([np.sum(y**j) for j in range(5)])
        sums = {"loss": intervals.moments(error**2 / 2), "absolute": intervals.moments(np.abs(error))}
        sums |= {"square": intervals.moments(error**2), "target": powers}
        sums |= {"cross": np.array([np.sum(error**2 * y), np.sum(error**2 * y**2)])}
        figures.append(figures_of(sums))
    assert covered([f["r2"] for f in figures], 0.8) >= 0.95
    assert covered([f["rmse"] for f in figures], 1.0) >= 0.95


def test_differences_and_averages_of_means_cover():
    draw = np.random.default_rng(4)
    a, b = draw.exponential(1.0, (DRAWS, 90)), draw.exponential(0.5, (DRAWS, 70))
    pairs = [[intervals.mean(intervals.moments(v), low=0.0) for v in rows] for rows in zip(a, b, strict=True)]
    assert covered([intervals.difference(*pair) for pair in pairs], 0.5) >= 0.95
    assert covered([intervals.average(pair) for pair in pairs], 0.75) >= 0.95


def test_few_rows_have_a_figure_and_no_interval():
    few = intervals.mean(intervals.moments(np.ones(intervals.FEWEST - 1)))
    assert few.known
    assert not few.bounded
    assert few.value == 1.0
    assert not intervals.mean(intervals.moments(np.zeros(0))).known
    assert not intervals.rate(0, 0).known
    assert Figure.from_json(few.to_json()).rows == few.rows
