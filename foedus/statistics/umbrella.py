"""The umbrella rule: a threshold that bounds the miss rate at every site with a stated confidence, from counts alone.

A positive is missed when its score lies below the threshold. Tong, Feng and Li (2018), "Neyman-Pearson classification
algorithms and NP receiver operating characteristics", Science Advances 4(2), Proposition 1: for n positives that were
not used in training, the miss rate R(t) = P(score < t) at t = S_(k), their k-th smallest score, obeys

    P(R(S_(k)) > α) ≤ P(Bin(n, α) ≤ k − 1),

with equality for a continuous law of the scores. The rank k is the largest for which this is at most 1 − confidence =
δ; there is none unless n ≥ log δ / log(1 − α).

Over sites. Site i, with n_i positives and rank k_i, admits the thresholds t with at most k_i − 1 of its positives
below, which is to say t ≤ S_(k_i) there. The rule chooses the largest threshold on a fixed grid that every site admits.

What holds. With probability at least `confidence` over the held-out positives, given the trained model, the miss rate
is at most α AT EVERY SITE AT ONCE, and so in every mixture of the sites too. No union bound is needed, since all
sites share one threshold t*. The t with max_i R_i(t) ≤ α are a half-line t ≤ q, as each R_i increases and is
left-continuous; sites being finitely many, one of them, j, has R_j(t) > α for all t > q. Which one depends on the
sites' laws alone, not on the sample. If t* is too large for any site, then t* > q, hence R_j(S_(k_j)) ≥ R_j(t*) > α:
of probability at most δ.

What it rests on. At each site the held-out positives are independent draws of the positives that the site will meet,
and took no part in training. Sites may differ, and depend on each other, in any way. Nothing is said of positives
from elsewhere, nor of negatives. Ties and the grid only lower the threshold: the bound then holds with something to
spare.

What is sent. Each site first reports its n_i. The server then proposes thresholds, by bisection on the grid, and each
site answers how many of its positives lie below. No score leaves a site. The counts are exact, so they are not
differentially private: whoever knows all other positives of a site may learn from the counts where the last one's score
lies.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, log1p

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.pytrees import Traffic
from foedus.base.quantities import count, size

# The grid of thresholds does not depend on the data: log-odds in [−32, 32], beyond which a probability is 0 or 1 to 13
# digits, in steps that are exact in floating point.
LIMIT = 32.0
STEP = 2.0**-10
MOST_PROPOSALS = 17  # that a bisection of the grid and -inf takes at the most


@dataclass(frozen=True)
class Calibration:
    """The threshold of the umbrella rule, the counts at each site that it rests on, and the rounds and bytes it took.

    `print` it for one line per site.
    """

    cut: float  # the threshold in log-odds: a score below it is called negative; −inf calls everything positive
    max_miss_rate: float
    confidence: float
    sites: tuple[str, ...]
    held_out: tuple[int, ...]  # n_i
    ranks: tuple[int, ...]  # k_i
    missed: tuple[int, ...]  # held-out positives below the threshold, at most k_i − 1
    rounds: int
    traffic: Traffic

    @property
    def threshold(self) -> float:
        """The threshold as a probability of the positive class."""
        from scipy.special import expit  # here and below where it is used: SciPy takes long to import

        return float(expit(self.cut))

    def __str__(self) -> str:
        lines = [
            f"miss rate at most {self.max_miss_rate:g} at every site with confidence {self.confidence:g}: "
            f"threshold {self.threshold:.4g}, found in {count(self.rounds, 'round')}, {size(self.traffic.up)} up and "
            f"{size(self.traffic.down)} down"
        ]
        for site, n, k, below in zip(self.sites, self.held_out, self.ranks, self.missed, strict=True):
            lines.append(f"  {site}: misses {below} of {n} held-out positives; up to {k - 1} are allowed")
        return "\n".join(lines)


def least_count(max_miss_rate: float, confidence: float) -> int:
    """Return the least number of held-out positives with which a site can bound its miss rate at all."""
    n = max(1, ceil(log(1.0 - confidence) / log1p(-max_miss_rate)))
    # the quotient of two rounded logarithms may be off by one
    while rank(n, max_miss_rate, confidence) == 0:
        n += 1
    while n > 1 and rank(n - 1, max_miss_rate, confidence) > 0:
        n -= 1
    return n


def rank(n: int, max_miss_rate: float, confidence: float) -> int:
    """Return the largest k with P(Bin(n, max_miss_rate) ≤ k − 1) ≤ 1 − confidence, or 0 if there is none."""
    from scipy.special import bdtr

    return bisect_right(range(n), 1.0 - confidence, key=lambda j: float(bdtr(j, n, max_miss_rate)))


def below(scores: np.ndarray, cut: float) -> int:
    """Return how many of a site's scores lie below a threshold; a site uses its scores for nothing else."""
    return int(np.count_nonzero(scores < cut))


def check_counts(held_out: Mapping[str, int], max_miss_rate: float, confidence: float, remedy: str) -> None:
    """Raise an error that names the first site with too few held-out positives, and the number it needs."""
    least = least_count(max_miss_rate, confidence)
    for site, n in held_out.items():
        if n < least:
            raise FoedusError(
                f"site {site!r}: it has {n} held-out positives, and a miss rate of at most {max_miss_rate:g} with "
                f"confidence {confidence:g} needs at least {least} at each site; {remedy}."
            )


def search(
    held_out: Mapping[str, int],
    ask: Callable[[float], Sequence[int]],
    max_miss_rate: float,
    confidence: float,
) -> Calibration:
    """Find the largest threshold on the grid that every site admits; this is the server's part of the rule.

    Args:
        held_out: the number of held-out positives by site, which the sites report in the first round.
        ask: plays a round in which each site, in that order, answers how many of its held-out positives have a score
            below the given threshold.
        max_miss_rate: α, the bound on the miss rate.
        confidence: 1 − δ, the probability with which the bound holds at all sites.
    """
    check_counts(held_out, max_miss_rate, confidence, "hold out more there, or merge the site with another")
    ranks = np.array([rank(n, max_miss_rate, confidence) for n in held_out.values()])
    # a count and a threshold have the same size
    itemsize = np.dtype(np.int64).itemsize
    rounds, up, down = 1, itemsize * len(ranks), 0

    misses = np.zeros(len(ranks), dtype=np.int64)

    def admits(cut: float) -> bool:
        nonlocal misses
        counts = np.asarray(ask(cut), dtype=np.int64)
        good = bool(np.all(counts < ranks))
        misses = counts if good else misses
        return good

    cut, tries = largest_cut(admits)
    rounds, up, down = rounds + tries, up + itemsize * len(ranks) * tries, down + itemsize * len(ranks) * tries
    return Calibration(
        cut=cut,
        max_miss_rate=max_miss_rate,
        confidence=confidence,
        sites=tuple(held_out),
        held_out=tuple(int(n) for n in held_out.values()),
        ranks=tuple(int(k) for k in ranks),
        missed=tuple(int(m) for m in misses),
        rounds=rounds,
        traffic=Traffic(up=up, down=down),
    )


def largest_cut(admits: Callable[[float], bool]) -> tuple[float, int]:
    """Return the largest cut of the grid that is admitted, by bisection, and how many were tried.

    Every cut below one that is admitted must be admitted too.
    """
    # cut number `low`, at first −inf, is admitted; cut number `high`, at first one past the end of the grid, is not
    low, high, tries = 0, int(2 * LIMIT / STEP) + 2, 0
    while high - low > 1:
        middle, tries = (low + high) // 2, tries + 1
        if admits(_cut(middle)):
            low = middle
        else:
            high = middle
    return _cut(low), tries


def _cut(number: int) -> float:
    """Return a cut by its number: 0 is −inf, and the next ones go from −LIMIT to LIMIT in steps."""
    return -LIMIT + STEP * (number - 1) if number > 0 else -np.inf


def on_grid(cut: float) -> bool:
    """Return whether a bisection may propose this cut."""
    return abs(cut) <= LIMIT and (cut / STEP).is_integer()


def calibrate(scores: Mapping[str, np.ndarray], max_miss_rate: float, confidence: float) -> Calibration:
    """Run `search` in this process, on each site's log-odds of its held-out positives."""
    held_out = {site: len(mine) for site, mine in scores.items()}
    return search(held_out, lambda cut: [below(mine, cut) for mine in scores.values()], max_miss_rate, confidence)
