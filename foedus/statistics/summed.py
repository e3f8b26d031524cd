"""An evaluation from sums alone: the sites' tallies are added up as integers, and nobody sees one site's tally.

Masked sums add up whole numbers of a small unit, of a limited size. Counts are such numbers. The other sums of a tally,
sixth powers of losses among them, can be of any size, so each is cut into limbs: the number is Σ limb·2^(39·k), where
every limb but the lowest is a whole number below 2^39 in size. Limbs are exact in floating point, and so are their
sums over at most 2^13 sites; what is lost of a number is below the unit of the lowest limb, 2^-60.

What no sum over rows holds are figures of single sites. A mean over sites, which a term with scope "coupled" caps, is
told by sums over sites: of their means, and of the squared distances to the ends of their intervals.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from foedus.base.errors import FoedusError
from foedus.problem.constraints import LossCap, LossGap
from foedus.problem.terms import Data, Terms
from foedus.statistics.figures import ALL_ROWS, TermFigure, cap_at, rows_of
from foedus.statistics.intervals import NOTHING, Figure
from foedus.statistics.tally import Tally, is_count, shapes, subsets
from foedus.sums.fixed_point import FixedPoint
from foedus.sums.site import check_enough

LIMB = 39  # bits of a limb: sums over 2^13 sites stay below 2^52, the range of the fixed point
LIMBS = 27  # as many as every finite number needs
BITS, WORDS = 60, 2  # of the fixed point, as the certificate's
MEAN = 6  # numbers about one site's value of a row: known, value, rows, unbounded, and squared distances to both ends


def layout(terms: Terms) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array that a site adds to the sum; it follows from what all parties know."""
    sizes = {name: shape if is_count(name) else (LIMBS, *shape) for name, shape in shapes(terms).items()}
    return sizes | {name: (LIMBS, rows, MEAN) for name, _, rows in _coupled(terms)}


def parts(terms: Terms, own: Tally) -> dict[str, np.ndarray]:
    """Return what a site adds to the sum, in the order of `layout`."""
    pieces = {name: own[name] if is_count(name) else limbs(own[name]) for name in shapes(terms)}
    for name, k, _ in _coupled(terms):
        pieces[name] = limbs(np.array([_mean(figure) for figure in rows_of(_term(terms, k), k, own)]))
    return pieces


def add_up(terms: Terms, tallies: Mapping[str, Tally]) -> dict[str, np.ndarray]:
    """Return the sum of the sites' parts, in the integers of masked sums."""
    check_enough(len(tallies), "sites")
    point = FixedPoint(terms=len(tallies), bits=BITS, words=WORDS)
    sites = [parts(terms, own) for own in tallies.values()]
    if not all(np.all(np.isfinite(value)) for own in sites for value in own.values()):
        raise FoedusError("a site's evaluation holds NaN or inf; masked sums (secure) add up finite numbers.")
    return {name: point.decode(sum(point.encode(own[name])[0] for own in sites)) for name in layout(terms)}


def tally_of(terms: Terms, total: Mapping[str, np.ndarray]) -> Tally:
    """Return the tally over all sites that a sum of their parts holds; raise where it can be none."""
    together = Tally({name: total[name] if is_count(name) else joined(total[name]) for name in shapes(terms)})
    if not all(np.all(np.isfinite(value)) for value in together.sums.values()):
        raise FoedusError("the sum of the sites' evaluations holds NaN or inf.")
    if any(np.any(value < 0) for name, value in together.sums.items() if is_count(name)):
        raise FoedusError("the sum of the sites' evaluations holds a negative count.")
    return together


def limbs(values: np.ndarray) -> np.ndarray:
    """Return the limbs of numbers, the largest first. (LIMBS, ...); of a number that is not finite, NaN."""
    rest = np.where(np.isfinite(values), values, 0.0).astype(float)
    pieces = []
    for place in range(LIMBS - 1, 0, -1):
        one = np.trunc(rest * 2.0 ** (-LIMB * place))
        rest = rest - one * 2.0 ** (LIMB * place)  # exact: a multiple of the last bit of the number
        pieces.append(one)
    return np.where(np.isfinite(values), np.stack([*pieces, rest]), np.nan)


def joined(pieces: np.ndarray) -> np.ndarray:
    """Return the numbers whose limbs, or sums of limbs, are given; the smallest are added first."""
    total = np.zeros(pieces.shape[1:])
    for place, one in enumerate(pieces[::-1]):
        total = total + one * 2.0 ** (LIMB * place)
    return total


def _coupled(terms: Terms) -> list[tuple[str, int, int]]:
    """The terms on a mean over sites: the name of their array, the number of the term, and its rows."""
    numbers = dict.fromkeys(k for k, _, term, _ in subsets(terms) if term.scope == "coupled")
    return [(f"term {k}.means", k, len(_term(terms, k).labels(terms, Data({})))) for k in numbers]


def _term(terms: Terms, k: int) -> LossCap | LossGap:
    term = terms.constraints[k]
    assert isinstance(term, LossCap | LossGap)
    return term


def _mean(figure: Figure) -> list[float]:
    if not figure.known:
        return [0.0] * MEAN
    ends = [(figure.value - figure.low) ** 2, (figure.high - figure.value) ** 2] if figure.bounded else [0.0, 0.0]
    return [1.0, figure.value, float(figure.rows), float(not figure.bounded), *ends]


def _average(sums: np.ndarray) -> Figure:
    """The mean over sites, as `intervals.average` finds it from their figures."""
    n, value, rows, unbounded, below, above = map(float, sums)
    if n < 1:
        return NOTHING
    if unbounded:
        return Figure(value / n, math.nan, math.nan, round(rows))
    return Figure(value / n, (value - math.sqrt(below)) / n, (value + math.sqrt(above)) / n, round(rows))


def terms_of_sum(terms: Terms, names: Sequence[str], total: Mapping[str, np.ndarray]) -> tuple[TermFigure, ...]:
    """Return the losses that terms cap: over all rows where all sites have the same cap, or on the mean over sites."""
    together = tally_of(terms, total)
    means = {k: joined(total[name]) for name, k, _ in _coupled(terms)}
    results: list[TermFigure] = []
    for k in dict.fromkeys(number for number, *_ in subsets(terms)):
        term = _term(terms, k)
        caps = {cap_at(term, name) for name in names}
        cap = next(iter(caps))
        if len(caps) != 1 or cap is None:
            continue
        for row, label in enumerate(term.labels(terms, Data({}))):
            if term.scope == "coupled":
                results.append(TermFigure("all sites", label, cap, _average(means[k][row]), term.kind))
            else:
                results.append(TermFigure(ALL_ROWS, label, cap, rows_of(term, k, together)[row], term.kind))
    return tuple(results)
