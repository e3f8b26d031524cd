"""The figures that follow from a tally: shares, areas, means, and the losses behind caps, each with its interval."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from foedus.problem.constraints import LossCap, LossGap
from foedus.problem.terms import Data, Terms
from foedus.statistics import intervals
from foedus.statistics.curves import calibration_slope
from foedus.statistics.intervals import FEWEST, LEVEL, NOTHING, Figure
from foedus.statistics.tally import Tally, subsets

T = TypeVar("T")

# the figures in the order of pages and tables: a title, and what the figure is
TITLES: dict[str, tuple[str, str]] = {
    "sensitivity": ("Sensitivity", "share of the positives that are called positive"),
    "specificity": ("Specificity", "share of the negatives that are called negative"),
    "ppv": ("PPV", "positive predictive value: share of those called positive that are"),
    "npv": ("NPV", "negative predictive value: share of those called negative that are"),
    "accuracy": ("Accuracy", "share of the rows with the right answer"),
    "miss_rate": ("Miss rate", "share of the positives that are called negative; 1 − sensitivity"),
    "false_alarms": ("False-alarm rate", "share of the negatives that are called positive; 1 − specificity"),
    "auc": ("AUC", "area under the ROC curve: chance that a positive scores higher than a negative"),
    "brier": ("Brier score", "mean squared distance of the probability from what happened; 0 is best"),
    "calibration": ("Mean calibration", "mean predicted probability minus the share of positives; 0 is best"),
    "slope": (
        "Calibration slope",
        "slope of the outcomes' log-odds against the predicted ones; 1 is best, below 1 predictions are too extreme",
    ),
    "loss": ("Loss", "mean loss of a row"),
    "r2": ("R²", "share of the variance that the model explains; 1 is best"),
    "rmse": ("RMSE", "root of the mean squared error, in units of the label"),
    "mae": ("MAE", "mean absolute error, in units of the label"),
}
ALL_ROWS = "all rows"  # in the place of a site: the rows of all sites together
AT_THE_THRESHOLD = ("sensitivity", "specificity", "ppv", "npv", "accuracy")
SHARES = (*AT_THE_THRESHOLD, "miss_rate", "false_alarms")  # shown in per cent
COMPLEMENTS = ("miss_rate", "false_alarms")  # said by sensitivity and specificity, and left out of tables


@dataclass(frozen=True)
class Tenth:
    """The rows whose predicted probability is in one tenth of [0, 1]: the mean of it, and the share of positives."""

    predicted: float
    observed: Figure


def figures_of(sums: Tally) -> dict[str, Figure]:
    """Return the figures of a tally by name."""
    figures = {"loss": intervals.mean(sums["loss"], low=0.0)}
    if "outcomes" in sums:
        figures |= rates_of(sums["outcomes"]) | {"auc": area(sums)}
        if "brier" in sums:
            figures["brier"] = intervals.mean(sums["brier"], low=0.0, high=1.0)
            figures["calibration"] = intervals.mean(sums["calibration"], low=-1.0, high=1.0)
            figures["slope"] = calibration_slope(sums)
    else:
        figures |= _errors(sums)
    return {name: figures[name] for name in TITLES if name in figures}


def rates_of(outcomes: np.ndarray) -> dict[str, Figure]:
    """Return the rates that follow from true positives, false negatives, false positives and true negatives."""
    hits, misses, alarms, rejections = map(float, outcomes)
    return {
        "sensitivity": intervals.rate(hits, hits + misses),
        "specificity": intervals.rate(rejections, alarms + rejections),
        "ppv": intervals.rate(hits, hits + alarms),
        "npv": intervals.rate(rejections, misses + rejections),
        "accuracy": intervals.rate(hits + rejections, hits + misses + alarms + rejections),
        "miss_rate": intervals.rate(misses, hits + misses),
        "false_alarms": intervals.rate(alarms, alarms + rejections),
    }


def groups_of(sums: Tally, names: Sequence[str]) -> dict[str, dict[str, Figure]]:
    """Return by group the rates of a tally; none of a group without rows."""
    if "groups" not in sums:
        return {}
    return {name: rates_of(own) for name, own in zip(names, sums["groups"], strict=True) if own.sum() > 0}


def bracket(sums: Tally) -> tuple[float, float]:
    """Return the least and the largest area under the curve that the histograms allow."""
    m, n = (float(sums[f"{side}.first"].sum()) for side in ("positives", "negatives"))
    if m == 0 or n == 0:
        return math.nan, math.nan
    below = np.cumsum(sums["negatives.last"]) - sums["negatives.last"]  # negatives that end before a cell begins
    upto = np.cumsum(sums["negatives.first"])  # negatives that begin before a cell ends
    least, most = sums["positives.first"] @ below / (m * n), sums["positives.last"] @ upto / (m * n)
    return float(least), float(most)


def area(sums: Tally) -> Figure:
    """Return the area under the curve: the middle of what the histograms allow, which counts shared cells as ties."""
    least, most = bracket(sums)
    if math.isnan(least):
        return NOTHING
    m, n = (float(sums[f"{side}.first"].sum()) for side in ("positives", "negatives"))
    return intervals.area(0.5 * (least + most), least, most, m, n)


def _errors(sums: Tally) -> dict[str, Figure]:
    """R², RMSE and MAE; the intervals of the first two follow from one for a logarithm, whose errors are more even."""
    n, square = float(sums["square"][0]), intervals.mean(sums["square"], low=0.0)
    figures = {"r2": NOTHING, "rmse": NOTHING, "mae": intervals.mean(sums["absolute"], low=0.0)}
    if n < 1:
        return figures
    figures["rmse"] = Figure(math.sqrt(square.value), math.sqrt(square.low), math.sqrt(square.high), square.rows)
    if n < 2:
        return figures
    # moments of the target about its mean, from those about a number near it
    raw = sums["target"] / n
    mean = raw[1]
    variance = raw[2] - mean**2
    if not variance > 0:
        return figures
    rest = square.value / variance
    figures["r2"] = Figure(1.0 - rest, math.nan, math.nan, round(n))
    if n >= FEWEST and rest > 0:
        fourth = raw[4] - 4 * mean * raw[3] + 6 * mean**2 * raw[2] - 3 * mean**4
        cross = (sums["cross"][1] - 2 * mean * sums["cross"][0]) / n + mean**2 * square.value
        # the variance of log(e² mean / variance of y), by its influence function e²/A − (y − ȳ)²/B
        spread = sums["square"][2] / n / square.value**2 - 2 * cross / (square.value * variance) + fourth / variance**2
        from scipy.special import stdtrit  # SciPy takes long to import

        q = float(stdtrit(n - 1, 0.5 + LEVEL / 2.0))
        # as for a mean: what n rows need not have shown counts too
        reach = q * math.sqrt(max(spread, 0.0) / n) + 2 * intervals.UNSEEN / n * max(
            float(sums["square"][4]) ** (1 / 6) / square.value, math.sqrt(n * fourth) / variance
        )
        low, high = 1.0 - rest * math.exp(reach), 1.0 - rest * math.exp(-reach)
        figures["r2"] = Figure(1.0 - rest, low, high, round(n))
    return figures


def tenths_of(sums: Tally) -> tuple[Tenth, ...]:
    """Return what happened to the rows of each tenth of the predicted probabilities that has any."""
    if "tenths" not in sums:
        return ()
    return tuple(Tenth(float(p / n), intervals.rate(y, n)) for n, p, y in sums["tenths"].tolist() if n > 0)


@dataclass(frozen=True)
class TermFigure:
    """What a term caps, measured on new rows at a site, or over all sites."""

    site: str
    constraint: str
    cap: float
    figure: Figure
    kind: str = "<="

    @property
    def standing(self) -> str:
        """Return "holds" or "broken" where the interval says so, "open" where it does not, "unknown" without rows."""
        if not self.figure.known:
            return "unknown"
        if not self.figure.bounded:
            return "open"
        if self.figure.low > self.cap or (self.kind == "==" and self.figure.high < self.cap):
            return "broken"
        return "holds" if self.figure.high <= self.cap and self.kind == "<=" else "open"


RowsOf: TypeAlias = Callable[[LossCap | LossGap, int, T], list[Figure]]
"""Returns the value of each row of a term, which has this number, from the tally of one site or of several."""


def term_figures(
    terms: Terms, names: Sequence[str], each: Mapping[str, T], total: T, rows: RowsOf[T], mean: RowsOf[T]
) -> tuple[TermFigure, ...]:
    """Return every loss that a term caps: at each site that is seen, over all rows, or on the mean over sites.

    Args:
        terms: of the problem.
        names: all sites.
        each: the tallies of single sites, where they are seen.
        total: that of all of them together.
        rows: the value of each row of a term, over the rows of a tally.
        mean: the same for a term on the mean over sites, from the total.
    """
    results: list[TermFigure] = []
    for k in dict.fromkeys(number for number, *_ in subsets(terms)):
        term = terms.constraints[k]
        assert isinstance(term, LossCap | LossGap)
        labels = term.labels(terms, Data({}))
        if term.scope == "coupled":
            cap = cap_at(term, "")
            assert cap is not None
            values = mean(term, k, total)
            results += [TermFigure("all sites", label, cap, values[j], term.kind) for j, label in enumerate(labels)]
            continue
        own = {name: rows(term, k, tally) for name, tally in each.items()}
        caps = [cap_at(term, name) for name in names]
        alike = caps[0] if len(names) > 1 and len({*caps}) == 1 else None
        together = None if alike is None else rows(term, k, total)
        for j, label in enumerate(labels):
            for name in own:
                if (cap := cap_at(term, name)) is not None:
                    results.append(TermFigure(name, label, cap, own[name][j], term.kind))
            if alike is not None and together is not None:
                results.append(TermFigure(ALL_ROWS, label, alike, together[j], term.kind))
    return tuple(results)


def gap_or_cap(term: LossCap | LossGap, parts: list[Figure]) -> list[Figure]:
    """Return the value of each row of a term from the mean losses of its groups."""
    if isinstance(term, LossCap):
        return parts
    first, second = parts
    if not (first.known and second.known):
        return [NOTHING, NOTHING]
    return [intervals.difference(first, second), intervals.difference(second, first)]


def terms_of(terms: Terms, names: Sequence[str], each: Mapping[str, Tally], total: Tally) -> tuple[TermFigure, ...]:
    """Return every loss that a term caps, from the sites' tallies and their sum."""

    def mean(term: LossCap | LossGap, k: int, sums: Tally) -> list[Figure]:
        return [_mean_of(row) for row in sums[MEANS.format(k)]]

    return term_figures(terms, names, each, total, rows_of, mean)


MEAN = 6  # numbers about one site's value of a row: known, value, rows, unbounded, and squared distances to both ends
MEANS = "term {}.means"


def means_of(terms: Terms, own: Tally) -> dict[str, np.ndarray]:
    """Return what one site adds to the means over sites that terms cap: no sum over rows holds these."""
    return {name: np.array([_part(f) for f in rows_of(term, k, own)]) for name, k, term in coupled_terms(terms)}


def coupled_terms(terms: Terms) -> list[tuple[str, int, LossCap | LossGap]]:
    """Return the terms on a mean over sites: the name of their array, the number of the term, and the term."""
    together = {k: term for k, _, term, _ in subsets(terms) if term.scope == "coupled"}
    return [(MEANS.format(k), k, term) for k, term in together.items()]


def _part(figure: Figure) -> list[float]:
    if not figure.known:
        return [0.0] * MEAN
    ends = [(figure.value - figure.low) ** 2, (figure.high - figure.value) ** 2] if figure.bounded else [0.0, 0.0]
    return [1.0, figure.value, float(figure.rows), float(not figure.bounded), *ends]


def _mean_of(sums: np.ndarray) -> Figure:
    """The mean of independent figures, each with the same weight, with its interval."""
    n, value, rows, unbounded, below, above = map(float, sums)
    if n < 1:
        return NOTHING
    if unbounded:
        return Figure(value / n, math.nan, math.nan, round(rows))
    return Figure(value / n, (value - math.sqrt(below)) / n, (value + math.sqrt(above)) / n, round(rows))


def area_error(sums: Tally) -> float:
    """Return half of what pairs that share a cell leave open in the area under the curve."""
    least, most = bracket(sums) if "outcomes" in sums else (math.nan, math.nan)
    return 0.0 if math.isnan(least) else 0.5 * (most - least)


def rows_of(term: LossCap | LossGap, k: int, sums: Tally) -> list[Figure]:
    """Return the value of each row of a term."""
    return gap_or_cap(term, [intervals.mean(sums[f"term {k}.{side}"], low=0.0) for side in range(len(term.masks()))])


def cap_at(term: LossCap | LossGap, name: str) -> float | None:
    """Return the cap at a site; None where the term names caps for sites of which this is none."""
    limit = term.limit
    one = limit.get(name) if isinstance(limit, Mapping) else limit
    return float(one) if isinstance(one, int | float) else None
