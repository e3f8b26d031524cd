"""The tightest total of a mixture of releases, against privacy losses that are integrated and enumerated here."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

import foedus as fd
from foedus.privacy import composition
from foedus.privacy.composition import tightest, total

DELTA = 1e-5


def normal_part(epsilon: float, ratio: float) -> float:
    """E[(1 − e^(ε − L))⁺] for the loss L of Gaussian noise: normal with mean ratio²/2 and deviation ratio."""
    mean = ratio**2 / 2
    if ratio == 0:
        return max(0.0, -math.expm1(epsilon))
    top = mean + 40 * ratio
    if epsilon >= top:
        return 0.0

    def integrand(loss):
        return -math.expm1(epsilon - loss) * norm.pdf(loss, mean, ratio)

    return quad(integrand, max(epsilon, mean - 40 * ratio), top, epsabs=1e-13, epsrel=1e-10, limit=400)[0]


def enumerated(laplace: list[float], gaussian: list[float], delta: float) -> float:
    """The ε at δ of randomised responses and Gaussian releases: outcomes of the former, an integral of the rest."""
    ratio = math.sqrt(sum(r**2 for r in gaussian))
    outcomes: dict[float, float] = {}
    for signs in itertools.product((1, -1), repeat=len(laplace)):
        loss = round(sum(s * e for s, e in zip(signs, laplace, strict=True)), 12)
        chance = math.prod(1 / (1 + math.exp(-s * e)) for s, e in zip(signs, laplace, strict=True))
        outcomes[loss] = outcomes.get(loss, 0.0) + chance

    def excess(epsilon):
        return sum(chance * normal_part(epsilon - loss, ratio) for loss, chance in outcomes.items()) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, sum(laplace) + 10 * ratio + ratio**2 + 1, xtol=1e-10)


@pytest.mark.parametrize(
    "ratios", [[0.2], [0.1] * 9, [0.05, 0.3, 0.3, 1.1]], ids=["one", "nine equal ones", "four of three kinds"]
)
def test_gaussian_releases_have_the_total_of_their_integrated_loss(ratios):
    counted = {("gaussian", r): ratios.count(r) for r in ratios}
    assert tightest(counted, DELTA) == pytest.approx(enumerated([], ratios, DELTA), rel=1e-5)


@pytest.mark.parametrize(
    ("laplace", "gaussian"),
    [([0.3], []), ([0.1] * 10, []), ([0.7] * 6, []), ([0.1, 0.1, 0.25, 0.25, 0.25], []), ([0.05] * 4, [0.2] * 5),
     ([0.5, 0.2], [0.4])],
    ids=["one", "ten of 0.1", "six of 0.7", "two kinds", "little Laplace noise beside Gaussian", "as much of both"],
)  # fmt: skip
@pytest.mark.parametrize("delta", [1e-5, 1e-2])  # at 1e-2 outcomes with a large loss may be left out
def test_pld_of_a_mixture_is_the_enumerated_total_rounded_up(laplace, gaussian, delta):
    counted = tuple(sorted((r, laplace.count(r)) for r in set(laplace)))
    ratio = math.sqrt(sum(r**2 for r in gaussian))
    exact = enumerated(laplace, gaussian, delta)
    found = composition._mixed_pld(counted, ratio, delta, 1e-4)
    assert exact * (1 - 1e-9) <= found <= exact * 1.001 + (2e-4 if len(counted) > 1 or gaussian else 0)
    mixture = {("laplace", r): n for r, n in counted} | {("gaussian", r): gaussian.count(r) for r in gaussian}
    assert tightest(mixture, delta) <= found * (1 + 1e-3)


def one_dimensional_laplace(ratio: float, count: int, delta: float) -> float:
    """The ε at δ of Laplace noise on a single number, released `count` times: losses convolved on a fine grid.

    Each loss is rounded DOWN, so that the result is at most the true total.
    """
    step = ratio / 400
    # under the first data set the loss is ratio − 2t for 0 < t < ratio with density e^−t/2, else ±ratio
    edges = np.arange(-400, 400) * step
    t = (ratio - edges) / 2
    weights = 0.5 * (np.exp(-(t - step / 2)) - np.exp(-t))
    weights[0] += 0.5 * math.exp(-ratio)
    weights = np.append(weights, 0.5)
    whole = np.ones(1)
    for _ in range(count):
        whole = np.convolve(whole, weights)
    losses = (np.arange(len(whole)) - 400 * count) * step

    def excess(epsilon):
        above = losses > epsilon
        return np.sum(whole[above] * -np.expm1(epsilon - losses[above])) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, ratio * count)


@pytest.mark.parametrize(("ratio", "count"), [(0.3, 1), (0.2, 12), (0.05, 60), (1.0, 3)])
def test_no_total_is_below_what_laplace_noise_on_one_number_really_has(ratio, count):
    for delta in (1e-5, 1e-2):
        below = one_dimensional_laplace(ratio, count, delta)
        assert 0 < below <= tightest({("laplace", ratio): count}, delta)


def test_the_total_grows_with_releases_and_ratios_and_shrinks_with_delta():
    few = {("laplace", 0.1): 4, ("gaussian", 0.2): 3}
    base = tightest(few, DELTA)
    for larger in (
        {**few, ("laplace", 0.1): 5},
        {**few, ("gaussian", 0.2): 4},
        {**few, ("laplace", 0.01): 1},
        {("laplace", 0.12): 4, ("gaussian", 0.2): 3},
        {("laplace", 0.1): 4, ("gaussian", 0.25): 3},
    ):
        assert tightest(larger, DELTA) > base
    assert tightest(few, 1e-8) > base > tightest(few, 1e-3)


@pytest.mark.parametrize(
    "delta", [pytest.param(1e-9, marks=pytest.mark.slow), 1e-5, pytest.param(1e-2, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_the_tightest_total_is_never_above_any_single_method(delta):
    for kind, ratio, count in (("laplace", 0.1, 1), ("laplace", 0.01, 500), ("laplace", 2.0, 30),
                               ("gaussian", 0.1, 1), ("gaussian", 0.3, 80), ("gaussian", 3.0, 10)):  # fmt: skip
        for method in composition.METHODS:
            assert tightest({(kind, ratio): count}, delta) <= total(kind, {ratio: count}, delta, method) * (1 + 1e-6)


def test_at_delta_0_laplace_ratios_add_up_and_gaussian_noise_promises_nothing():
    assert tightest({("laplace", 0.1): 7, ("laplace", 0.5): 2}, 0.0) == pytest.approx(1.7)
    assert tightest({("gaussian", 0.1): 1}, 0.0) == math.inf
    assert tightest({("laplace", 0.1): 1, ("gaussian", 0.1): 1}, 0.0) == math.inf
    assert tightest({}, 0.0) == 0.0
    assert tightest({("gaussian", 0.1): 0, ("laplace", 0.2): 1}, 0.0) == pytest.approx(0.2)
    assert tightest({("laplace", 0.0): 5}, DELTA) == 0.0


@pytest.mark.parametrize("ratio", [math.inf, math.nan, -0.1])
def test_a_release_whose_ratio_says_nothing_costs_everything(ratio):
    assert tightest({("laplace", ratio): 1}, DELTA) == math.inf


def test_huge_and_tiny_ratios_have_a_finite_total():
    assert 5.0 < tightest({("laplace", 1e-9): 10, ("laplace", 1.0): 10}, DELTA) <= 10.0 + 1e-7
    assert tightest({("laplace", 1e-9): 10, ("gaussian", 1e6): 10}, DELTA) > 1e12


def test_without_the_library_the_total_is_larger_and_still_holds(monkeypatch):
    composition._tightest.cache_clear()
    few = {("laplace", 0.05): 40, ("gaussian", 0.1): 3}
    exact = tightest(few, DELTA)
    monkeypatch.setattr(composition, "have_library", lambda: False)
    composition._tightest.cache_clear()
    assert exact <= tightest(few, DELTA) < math.inf
    # all Gaussian releases are one, which needs no library
    assert tightest({("gaussian", 0.1): 9}, DELTA) == pytest.approx(enumerated([], [0.3], DELTA), rel=1e-5)
    composition._tightest.cache_clear()


def test_an_unknown_kind_of_release_gets_a_sentence():
    with pytest.raises(fd.FoedusError, match="Got 'cauchy' instead"):
        tightest({("cauchy", 1.0): 1}, DELTA)
