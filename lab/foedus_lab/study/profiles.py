"""What the rows of a study say together: performance profiles, medians with intervals, and winners.

A performance profile (Dolan and Moré 2002) shows for each algorithm the share of instances that it solves at no more
than τ times the cost of the cheapest algorithm for that instance. An instance is a problem on one draw of its data.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from foedus.base.files import Json
from foedus_lab.study.rows import ACCURACIES, MEASURED, tag

CONFIDENCE = 0.95  # of an interval around a median, where there are seeds enough for it


def with_figures(rows: Iterable[Json], **fields: object) -> list[Json]:
    """Return the rows with figures whose fields have these values."""
    return [r for r in rows if r["status"] == MEASURED and all(r[k] == v for k, v in fields.items())]


@dataclass(frozen=True)
class Profile:
    """The ratios of one algorithm's cost to the least, over all instances; infinite where it did not arrive."""

    algorithm: str
    ratios: np.ndarray

    def share(self, tau: float) -> float:
        """Return the share of instances solved at no more than τ times the least cost."""
        return float(np.mean(self.ratios <= tau))

    @property
    def area(self) -> float:
        """The mean share over log τ from 1 to 100, by which profiles are order."""
        taus = np.geomspace(1.0, 100.0, 201)
        return float(np.mean([self.share(tau) for tau in taus]))


def profiles(rows: Sequence[Json], measure: str) -> list[Profile]:
    """Return the profiles of all algorithms for a measure such as "rounds_1e-4", the best first.

    Instances that nobody solved are left out: no ratio is known there. An algorithm that an instance's problem refuses,
    or that was not measured there, has not solved it.
    """
    by_instance: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.get(measure) is not None:
            by_instance[row["problem"], row["data"], row["seed"]][row["algorithm"]] = row[measure]
    names = sorted({row["algorithm"] for row in rows})
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for costs in by_instance.values():
        least = min(costs.values())
        for name in names:
            ratios[name].append(costs[name] / least if name in costs else math.inf)
    curves = [Profile(name, np.array(values)) for name, values in ratios.items() if values]
    return sorted(curves, key=lambda p: (-p.area, p.algorithm))


@dataclass(frozen=True)
class Summary:
    """The median of a figure over seeds, with an interval; `arrivals` of `count` seeds have the figure."""

    median: float
    low: float
    high: float
    arrivals: int
    count: int

    def text(self, digits: int = 3) -> str:
        """Return the median and the interval for a table; a dash where fewer than half of the seeds arrived."""
        if not math.isfinite(self.median):
            return "–" if self.arrivals == 0 else f"– ({self.arrivals}/{self.count})"
        if self.low == self.high:
            return number(self.median, digits)
        return f"{number(self.median, digits)} [{number(self.low, digits)}, {number(self.high, digits)}]"


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits and no exponent up to a million."""
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits - 1}g}"


def summary(values: Sequence[float | None]) -> Summary:
    """Return the median over seeds and its interval; a seed without the figure counts as infinite.

    The interval lies between two order statistics, whose ranks follow from the binomial distribution: it holds for
    every distribution. With fewer than six seeds no such interval reaches 95 %, and it is the range of all seeds.
    """
    order = np.sort([math.inf if v is None else float(v) for v in values])
    n = len(order)
    rank = 0
    while rank + 1 < n / 2 and confidence(n, rank + 1) >= CONFIDENCE:
        rank += 1
    middle = (order[(n - 1) // 2] + order[n // 2]) / 2
    return Summary(float(middle), float(order[rank]), float(order[n - 1 - rank]), int(np.isfinite(order).sum()), n)


def confidence(count: int, rank: int) -> float:
    """Return how surely the median lies between the order statistics `rank` and count − 1 − rank, counted from 0."""
    tail = sum(math.comb(count, k) for k in range(rank + 1)) / 2**count
    return 1.0 - 2.0 * tail


@dataclass(frozen=True)
class Winner:
    """The cheapest algorithm for a problem over a network, at the strictest accuracy that anybody reached."""

    algorithm: str
    accuracy: float
    cost: Summary
    runner_up: str
    factor: float  # the runner-up's cost over the winner's


def winner(rows: Sequence[Json], column: str) -> Winner | None:
    """Return the algorithm with the least mean log cost over all instances, of those that solved the most of them.

    Args:
        rows: the measured rows of one problem.
        column: the start of the columns' names, as "hospitals".
    """
    for accuracy in reversed(ACCURACIES):
        costs: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            value = row.get(f"{column}_{tag(accuracy)}")
            if value is not None:
                costs[row["algorithm"]].append(value)
        if not costs:
            continue
        order = sorted(costs, key=lambda name: (-len(costs[name]), float(np.mean(np.log(costs[name])))))
        first = order[0]
        second = next((name for name in order[1:] if len(costs[name]) == len(costs[first])), "")
        factor = math.exp(float(np.mean(np.log(costs[second])) - np.mean(np.log(costs[first])))) if second else math.inf
        return Winner(first, accuracy, summary(costs[first]), second, factor)
    return None


def by(rows: Iterable[Json], *fields: str) -> Mapping[tuple[str, ...], list[Json]]:
    """Return the rows in groups with equal fields, in the order in which the groups first occur."""
    groups: dict[tuple[str, ...], list[Json]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[f]) for f in fields), []).append(row)
    return groups
