"""The umbrella rule bounds the miss rate at every site with its confidence, and uses counts alone."""

import numpy as np
import pytest
from scipy.stats import beta, binom

import foedus as fd
from foedus.runtime.run import Traffic
from foedus.statistics import umbrella

REPLICATIONS = 2000


def share_above(rates: np.ndarray, limit: float) -> tuple[float, float]:
    """An exact 99.9 % confidence interval for the probability that a rate exceeds its limit."""
    hits, total = int(np.sum(rates > limit)), len(rates)
    low = beta.ppf(0.0005, hits, total - hits + 1) if hits else 0.0
    high = beta.ppf(0.9995, hits + 1, total - hits) if hits < total else 1.0
    return float(low), float(high)


@pytest.mark.parametrize("max_miss_rate", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 20, 59, 200, 1000])
def test_the_rank_is_the_largest_whose_binomial_tail_is_small_enough(n, max_miss_rate, confidence):
    k = umbrella.rank(n, max_miss_rate, confidence)
    assert 0 <= k <= n
    if k > 0:
        assert binom.cdf(k - 1, n, max_miss_rate) <= 1 - confidence
    if k < n:
        assert binom.cdf(k, n, max_miss_rate) > 1 - confidence


@pytest.mark.parametrize("max_miss_rate", [0.001, 0.05, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.95, 0.9999])
def test_the_number_needed_is_the_least_that_has_a_rank(max_miss_rate, confidence):
    n = umbrella.least_count(max_miss_rate, confidence)
    assert (1 - max_miss_rate) ** n <= (1 - confidence) * (1 + 1e-12)
    assert n == 1 or (1 - max_miss_rate) ** (n - 1) > (1 - confidence) * (1 - 1e-12)


def test_fifty_nine_positives_are_needed_for_five_per_cent_with_confidence_95():
    assert umbrella.least_count(0.05, 0.95) == 59  # 0.95^59 = 0.0485, 0.95^58 = 0.0510


def test_the_threshold_is_the_smallest_order_statistic_rounded_down_to_the_grid():
    draw = np.random.default_rng(0)
    for _ in range(50):
        scores = {name: 3 * draw.normal(size=draw.integers(60, 300)) for name in "abc"}
        found = umbrella.calibrate(scores, 0.05, 0.95)
        order = min(np.sort(mine)[umbrella.rank(len(mine), 0.05, 0.95) - 1] for mine in scores.values())
        assert order - umbrella.STEP < found.cut <= order
        assert found.missed == tuple(int(np.sum(mine < found.cut)) for mine in scores.values())
        assert all(m < k for m, k in zip(found.missed, found.ranks, strict=True))


@pytest.mark.parametrize(("n", "max_miss_rate", "confidence"), [(100, 0.1, 0.9), (59, 0.05, 0.95), (300, 0.05, 0.95)])
def test_coverage_at_one_site_is_the_binomial_tail(n, max_miss_rate, confidence):
    draw = np.random.default_rng(n)
    rates = []
    for scores in draw.logistic(size=(REPLICATIONS, n)):
        cut = umbrella.calibrate({"a": scores}, max_miss_rate, confidence).cut
        rates.append(1 / (1 + np.exp(-cut)))  # P(score < cut) for the standard logistic law
    low, high = share_above(np.array(rates), max_miss_rate)
    exact = binom.cdf(umbrella.rank(n, max_miss_rate, confidence) - 1, n, max_miss_rate)
    assert low <= exact <= high
    assert low <= 1 - confidence


@pytest.mark.parametrize("shifts", [(0.0, 0.0, 0.0, 0.0), (0.0, 4.0, 4.0, 4.0), (0.0, 0.1, 0.3, 1.0)])
def test_the_bound_holds_at_all_sites_at_once(shifts):
    """One threshold for all sites: no union bound is needed, and it is tight where one site is the worst by far."""
    sizes, max_miss_rate, confidence = (60, 80, 100, 150), 0.1, 0.9
    draw = np.random.default_rng(7)
    worst = []
    for _ in range(REPLICATIONS):
        sites = zip(sizes, shifts, strict=True)
        scores = {str(i): shift + draw.logistic(size=n) for i, (n, shift) in enumerate(sites)}
        cut = umbrella.calibrate(scores, max_miss_rate, confidence).cut
        worst.append(max(1 / (1 + np.exp(shift - cut)) for shift in shifts))
    low, high = share_above(np.array(worst), max_miss_rate)
    assert low <= 1 - confidence
    if shifts == (0.0, 4.0, 4.0, 4.0):
        assert high >= binom.cdf(umbrella.rank(60, max_miss_rate, confidence) - 1, 60, max_miss_rate)


def test_ties_leave_the_bound_in_force():
    values, chances = np.array([-2.0, -1.0, 0.0, 1.0]), np.array([0.04, 0.05, 0.11, 0.8])
    draw = np.random.default_rng(3)
    rates = []
    for _ in range(REPLICATIONS):
        cut = umbrella.calibrate({"a": draw.choice(values, size=90, p=chances)}, 0.1, 0.9).cut
        rates.append(chances[values < cut].sum())
    assert share_above(np.array(rates), 0.1)[0] <= 0.1
    assert len(set(rates)) > 1


def test_only_counts_are_asked_for_and_their_bytes_are_counted():
    draw = np.random.default_rng(5)
    scores = [draw.normal(size=100), draw.normal(size=120)]
    asked = []

    def ask(cut: float) -> list[int]:
        asked.append(cut)
        return [umbrella.below(mine, cut) for mine in scores]

    found = umbrella.search({"a": 100, "b": 120}, ask, 0.05, 0.95)
    assert found.rounds == 1 + len(asked) <= 18
    assert found.traffic == Traffic(up=8 * 2 * found.rounds, down=8 * 2 * len(asked))
    grid = (np.array(asked) + umbrella.LIMIT) / umbrella.STEP
    assert np.array_equal(grid, np.round(grid)), "the proposals are on a grid that no data has a say in"
    assert found == umbrella.calibrate({"a": scores[0], "b": scores[1]}, 0.05, 0.95)


def test_scores_beyond_the_grid():
    low = umbrella.calibrate({"a": np.full(100, -50.0)}, 0.05, 0.95)
    assert (low.cut, low.threshold, low.missed) == (-np.inf, 0.0, (0,))
    assert umbrella.calibrate({"a": np.full(100, 50.0)}, 0.05, 0.95).cut == umbrella.LIMIT


def test_too_few_positives_are_refused_with_the_number_needed():
    scores = {"st-mary": np.zeros(60), "city": np.zeros(58)}
    with pytest.raises(fd.FoedusError, match=r"^site 'city': it has 58 held-out positives, .* at least 59 .*\.$"):
        umbrella.calibrate(scores, 0.05, 0.95)
