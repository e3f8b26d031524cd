"""The total privacy loss of several releases of one client: basic, advanced, RDP and PLD composition, and their least.

The dp-accounting library computes the last two. A release is described by its `ratio`, sensitivity over scale: for
Laplace noise that is its ε, for Gaussian noise 1/σ at unit sensitivity. For another neighbouring relation the ratio is
proportional.

Laplace noise on a vector: a change of the value moves the coordinates by shares t_j of the ratio, Σ t_j ≤ ratio. The
Rényi divergence of one coordinate is convex in t_j and 0 at 0 (its formula is a log-sum-exp), so the sum over
coordinates is largest where one coordinate takes all: the one-dimensional event bounds the vector. PLD accounting of a
vector is not known to be bounded that way, so there a release counts as the worst ε-DP mechanism there is, randomised
response (Kairouz, Oh and Viswanath 2015). A Gaussian vector is one-dimensional along the change, exactly, and several
Gaussian releases with ratios r_j are together exactly one with ratio √(Σ r_j²), for their losses are normal and add up.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from foedus.base.errors import FoedusError

METHODS = ("basic", "advanced", "rdp", "pld")
KINDS = ("laplace", "gaussian")
GRID = 1e-4  # the step to which PLD rounds losses; of a total above 1, this share of the total
LARGEST = 100.0  # a total above this protects nobody, so the time for a tighter figure by PLD is not spent
HIDDEN = 1e100  # a ratio of sensitivity to noise from which on nothing is hidden; larger ones would overflow
DIGITS = 12  # of a ratio: releases whose ratios agree in so many digits are counted together
UP = 1.0 + 1e-11  # lifts a ratio before it is cut to DIGITS, so that cutting never makes it smaller
HALVINGS = 100  # of a bisection: more than a float has bits


def tally_ratios(ratios: Iterable[tuple[float, int]]) -> Counter[float]:
    """Count how often each ratio occurs; ratios that differ only in their last digits count as one slightly larger."""
    tally: Counter[float] = Counter()
    for ratio, count in ratios:
        tally[float(f"{ratio * UP:.{DIGITS}g}")] += int(count)
    return tally


def total(kind: str, releases: Mapping[float, int], delta: float, method: str) -> float:
    """Return the total ε at this δ of `releases` (how often each ratio occurs) by one method.

    With Laplace noise, basic composition holds at δ = 0 too; the other methods need δ > 0, as Gaussian noise does.
    """
    counts = tuple(sorted((ratio, count) for ratio, count in releases.items() if count > 0 and ratio > 0))
    if not counts:
        return 0.0
    if kind == "laplace" and method == "basic":
        return sum(ratio * count for ratio, count in counts)
    if not delta > 0:
        return math.inf
    if method == "basic":
        return _basic_gaussian(counts, delta)
    if method == "advanced":
        return _advanced_composition(kind, counts, delta)
    return _by_accountant(kind, counts, delta, method)


def tightest(releases: Mapping[tuple[str, float], int], delta: float, *, adaptive: bool = False) -> float:
    """Return the smallest total ε that is proved at this δ for a mixture of releases.

    `releases` says how often each (kind, ratio) occurs, kind being "laplace" or "gaussian". Each bound holds by itself,
    so their minimum holds. Without dp-accounting the bounds that need it are left out, and the result is larger.

    With `adaptive`, how much noise a later release has may have been chosen in the light of earlier ones, as it is from
    run to run. Sums of ε, the exact Gaussian curve (Smith and Thakurta 2022) and Rényi divergences (Feldman and Zrnic
    2021; Lécuyer 2021) bound such a sequence too; advanced and PLD composition are proved for noise fixed in advance.
    """
    counts = tuple(sorted((kind, float(ratio), int(count)) for (kind, ratio), count in releases.items() if count > 0))
    for kind, ratio, _ in counts:
        if kind not in KINDS:
            raise FoedusError(f"a release is of kind 'laplace' or 'gaussian'. Got {kind!r} instead.")
        if not 0 <= ratio < HIDDEN:  # also where it is NaN: a release without noise, or one of which nothing is known
            return math.inf
    laplace = tuple((ratio, count) for kind, ratio, count in counts if kind == "laplace" and ratio > 0)
    gaussian = math.sqrt(sum(count * ratio**2 for kind, ratio, count in counts if kind == "gaussian"))
    return _tightest(laplace, gaussian, float(delta), adaptive)


@lru_cache(maxsize=4096)
def _tightest(laplace: tuple[tuple[float, int], ...], gaussian: float, delta: float, adaptive: bool) -> float:
    pure = sum(ratio * count for ratio, count in laplace)  # basic composition, which holds at δ = 0
    if gaussian == 0 and (pure == 0 or not delta > 0):
        return pure
    if not delta > 0:
        return math.inf
    # Bound 1: all Gaussian releases together are exactly one; the Laplace releases add their ε and no δ.
    best = pure + (gaussian_epsilon(1.0 / gaussian, delta) if gaussian > 0 else 0.0)
    if not laplace or max(ratio for ratio, _ in laplace) > LARGEST:  # beyond it, the other bounds overflow
        return best
    # Bound 2: advanced composition, for Laplace releases alone and noise that is fixed in advance.
    if gaussian == 0 and not adaptive:
        best = min(best, _advanced_composition("laplace", laplace, delta))
    if not have_library():
        return best
    # Bound 3: Rényi divergences, which hold for noise chosen adaptively too.
    best = min(best, _mixed_rdp(laplace, gaussian, delta))
    if adaptive or best > LARGEST:
        return best
    # Bound 4: the distribution of the privacy loss, usually the tightest and the slowest.
    return min(best, _mixed_pld(laplace, gaussian, delta, GRID * max(1.0, best)))


def _mixed_rdp(laplace: tuple[tuple[float, int], ...], gaussian: float, delta: float) -> float:
    """Return the total ε by Rényi divergences; `gaussian` is the ratio of all Gaussian releases as one."""
    dp = library()
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for ratio, count in laplace:
        accountant.compose(dp.LaplaceDpEvent(1.0 / ratio), count)
    if gaussian > 0:
        accountant.compose(dp.GaussianDpEvent(1.0 / gaussian))
    return float(accountant.get_epsilon(delta))


def _mixed_pld(laplace: tuple[tuple[float, int], ...], gaussian: float, delta: float, step: float) -> float:
    """Return the total ε by PLD, with losses rounded up to multiples of `step`, so that it is never too small."""
    from dp_accounting.pld import common, privacy_loss_distribution

    # The losses of randomised response are ±ratio. Where the step divides the ratio, nothing is rounded and the result
    # is exact; dividing the ratio by a power of two gives such a step without an error of its own.
    least = laplace[0][0]
    if gaussian == 0 and len(laplace) == 1:
        step = least
    elif least > step:
        step = least / 2.0 ** math.ceil(math.log2(least / step))
    whole = None
    for ratio, count in laplace:
        worst = common.DifferentialPrivacyParameters(ratio, 0.0)
        part = privacy_loss_distribution.from_privacy_parameters(worst, value_discretization_interval=step)
        part = part.self_compose(count)
        whole = part if whole is None else whole.compose(part)
    assert whole is not None
    if gaussian > 0:
        whole = whole.compose(
            privacy_loss_distribution.from_gaussian_mechanism(1.0 / gaussian, value_discretization_interval=step)
        )
    return float(whole.get_epsilon_for_delta(delta))


def _basic_gaussian(counts: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return the sum of the releases' ε, each at an equal share of δ."""
    share = delta / sum(count for _, count in counts)
    return sum(count * gaussian_epsilon(1.0 / ratio, share) for ratio, count in counts)


def _advanced_composition(kind: str, counts: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return the total ε by Dwork, Rothblum and Vadhan 2010: half of δ for the theorem, half for Gaussian releases.

    Laplace releases have no δ of their own, so that the theorem gets all of it.
    """
    slack, share = delta, 0.0
    if kind == "gaussian":
        slack, share = delta / 2, delta / 2 / sum(count for _, count in counts)
    parts = [(ratio if kind == "laplace" else gaussian_epsilon(1.0 / ratio, share), count) for ratio, count in counts]
    squares = sum(count * e**2 for e, count in parts)
    return math.sqrt(2.0 * math.log(1.0 / slack) * squares) + sum(count * e * math.expm1(e) for e, count in parts)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return the ε of one Gaussian release with noise σ at unit sensitivity: the exact curve of Balle and Wang 2018."""
    from scipy.special import log_ndtr

    def excess(epsilon: float) -> float:
        # Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ) − δ, from logarithms, so that no term overflows and no digits cancel
        first = float(log_ndtr(0.5 / sigma - epsilon * sigma))
        second = epsilon + float(log_ndtr(-0.5 / sigma - epsilon * sigma))
        return math.exp(first) * -math.expm1(second - first) - delta if second < first else -delta

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@lru_cache(maxsize=512)
def _by_accountant(kind: str, counts: tuple[tuple[float, int], ...], delta: float, method: str) -> float:
    dp = library()
    if method == "pld" and kind == "laplace":
        from dp_accounting.pld import common, privacy_loss_distribution

        whole = None
        for ratio, count in counts:
            worst = common.DifferentialPrivacyParameters(ratio, 0.0)
            part = privacy_loss_distribution.from_privacy_parameters(worst).self_compose(count)
            whole = part if whole is None else whole.compose(part)
        assert whole is not None
        return float(whole.get_epsilon_for_delta(delta))
    # The library asks for a neighbouring relation. The events are pairs of distributions whose distance, our ratio,
    # already accounts for the relation, so the one that takes an event as it is fits both.
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if method == "pld":
        from dp_accounting.pld import PLDAccountant

        accountant: Any = PLDAccountant(relation)
    else:
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(neighboring_relation=relation)
    event = dp.LaplaceDpEvent if kind == "laplace" else dp.GaussianDpEvent
    for ratio, count in counts:
        accountant.compose(event(1.0 / ratio), count)
    return float(accountant.get_epsilon(delta))


def library() -> Any:
    """Import dp-accounting; raise a sentence on how to install it where it is missing."""
    try:
        import dp_accounting
    except ImportError:
        raise FoedusError(
            "RDP and PLD composition need dp-accounting; install it with: pip install 'foedus[privacy]'."
        ) from None
    return dp_accounting


def have_library() -> bool:
    """Return whether dp-accounting is installed."""
    from importlib.util import find_spec

    return find_spec("dp_accounting") is not None
