"""How cost grows with sites, columns, rows, constraints, heterogeneity and accuracy: measured, and fitted by powers.

One generated logistic problem is enlarged in one direction at a time. A power law y = a·x^b is fitted to logarithms;
its exponent b and a 95 % interval are what the page shows, with the range that was measured: no further.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foedus import constraints, losses, penalties
from foedus.errors import FoedusError
from foedus.files import Json
from foedus.problem import Problem
from foedus.pytrees import nbytes
from foedus.runtime.participation import Fraction
from foedus.runtime.spine import prepare
from foedus.study import reference
from foedus.study.grid import first_hit
from foedus.study.instances import RIDGE, Instance, logistic_instance
from foedus.study.methods import make
from foedus.study.pictures import growth_picture
from foedus.study.play import Trace, trace
from foedus.study.profiles import by, number
from foedus.study.rows import ACCURACIES, Results, tag
from foedus.study.tables import Dials, Sample, draw_sites

FIELDS = ("law", "value", "algorithm")  # the key of a row
GOAL = 1e-6  # the gap at which rounds are compared
SEED = 0
LIMIT = 2000  # rounds of a run
SITES = 10_000  # of the federation that is computed from measured parts
FLARE_SECONDS = 0.0014
"""The seconds of a round of NVIDIA FLARE on loopback for each site: 41 ms with thirty sites."""


@dataclass(frozen=True)
class Size:
    """A generated problem's size: sites, rows a site, columns, shift between sites, linear rows at each site."""

    sites: int = 10
    rows: int = 50
    columns: int = 20
    shift: float = 1.0
    constraints: int = 0


@dataclass(frozen=True)
class Law:
    """A direction in which the problem grows, with the values of the quick and of the full study."""

    name: str
    title: str
    size: Callable[[float], Size]
    quick: tuple[float, ...]
    full: tuple[float, ...]
    algorithms: tuple[str, ...]


LAWS = (
    Law("sites", "sites, 10 rows of 10 columns each", lambda v: Size(sites=int(v), rows=10, columns=10),
        (3, 30, 300, 3000), (1, 10, 100, 1e3, 1e4, 1e5, 1e6), ("FedGiA", "InteriorPoint")),
    Law("columns", "columns", lambda v: Size(columns=int(v)),
        (10, 30, 100, 300), (10, 30, 100, 300, 1e3, 3e3, 1e4), ("FedGiA", "InteriorPoint")),
    Law("rows", "rows in all, at 10 sites", lambda v: Size(rows=int(v) // 10),
        (1e3, 1e4, 1e5), (1e3, 1e4, 1e5, 1e6, 1e7), ("FedGiA", "InteriorPoint")),
    Law("constraints", "linear rows at each of 10 sites", lambda v: Size(constraints=int(v)),
        (1, 10, 100), (1, 10, 100, 1e3, 1e4), ("InteriorPoint", "ProxAL")),
    Law("heterogeneity", "shift between the sites", lambda v: Size(shift=v),
        (0.25, 1.0, 4.0), (0.0625, 0.25, 1.0, 4.0, 16.0), ("FedGiA", "Scaffold", "FedDyn", "InteriorPoint")),
)  # fmt: skip


def instance_of(size: Size) -> Instance:
    """Return the generated problem of a size, with its pooled reference."""
    dials = replace(Dials(lambda seed: (np.zeros(0), np.zeros(0), None), quick=(0, 0), full=(0, 0), deals=False),
                    columns=size.columns - 1, shift=size.shift)  # fmt: skip
    X, y, _ = draw_sites(dials, SEED, size.sites, size.rows)
    sample = Sample(X, (y > 0).astype(float), size.sites, size.rows)
    free = logistic_instance(sample)
    if size.constraints == 0:
        return free
    # half-spaces that cut the free optimum off a little, through points beyond which there is room
    draw = np.random.default_rng(SEED)
    C = draw.standard_normal((size.constraints, size.columns)) / math.sqrt(size.columns)
    C *= np.sign(C @ free.best.w)[:, None]
    d = 0.9 * np.max(C @ free.best.w) * np.ones(size.constraints)
    problem = Problem(
        sample.clients(),
        loss=losses.logistic,
        penalty=penalties.Ridge(RIDGE, False),
        constraints=[constraints.Linear(C, d)],
    )

    def judge(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return free.judge(models)[0], np.max(models @ C.T - d, axis=1)

    assert free.curve is not None
    best = reference.minimum_under(free.curve, LinearRowCurves(C, d), size.columns)
    return Instance(problem, judge, best, free.curve)


@dataclass(frozen=True)
class LinearRowCurves:
    """Rows Cw − d."""

    C: np.ndarray
    d: np.ndarray

    def value(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.C @ w - self.d, self.C

    def hessian(self, w: np.ndarray, mu: np.ndarray) -> np.ndarray:
        return np.zeros((len(w), len(w)))


def measure(results: Results, quick: bool, begin: Callable[[str], None], echo: Callable[[str], None]) -> None:
    """Measure the points of all laws that have no row yet; a point that cannot be measured gets a row that says why."""
    for law, value, name in points(quick):
        begin(f"{law.name} {value:g}, {name}")
        if (law.name, value, name) in results:
            continue
        row: Json = {"law": law.name, "value": value, "algorithm": name}
        try:
            row |= _figures(law.size(value), name)
        except FoedusError as error:
            echo(f"{law.name} {value:g}, {name} left out: {error}")
            row |= {"why": str(error)}
        results.add(row)


def points(quick: bool) -> Iterator[tuple[Law, float, str]]:
    """Yield every law with each of its values and algorithms."""
    for law in LAWS:
        for value in law.quick if quick else law.full:
            yield from ((law, float(value), name) for name in law.algorithms)


def _figures(size: Size, name: str) -> Json:
    instance = instance_of(size)

    def play() -> Trace:
        job = prepare(
            instance.problem, make("logistic", name, {}), w0=np.zeros(size.columns), seed=SEED, max_rounds=LIMIT,
            participation=Fraction(),
        )  # fmt: skip
        return trace(job, lambda models: bool(np.any(instance.gap(models) <= ACCURACIES[-1])), math.inf)

    play()  # the first run warms the caches up
    result = play()
    gap = instance.gap(result.models)
    kind = int(result.kinds[-1])
    return {
        "why": "",
        **{f"rounds_{tag(a)}": first_hit(gap, a) for a in ACCURACIES},
        "seconds_a_round": float(result.seconds[-1]) / result.rounds,
        "bytes_up_a_round": result.up[kind],
        "bytes_down_a_round": result.down[kind],
        "data_bytes_a_site": nbytes(instance.problem.data) // size.sites,
        "state_bytes_a_site": result.state_bytes,
    }


@dataclass(frozen=True)
class Power:
    """The fit of y = a·x^b: the exponent and half the width of its 95 % interval, which two points do not have."""

    exponent: float
    margin: float

    def text(self) -> str:
        """Return the exponent with its interval."""
        return f"{self.exponent:.2f}" + ("" if math.isnan(self.margin) else f" ± {self.margin:.2f}")


def fit_power(points: Sequence[tuple[float, float]]) -> Power | None:
    """Return the power law through points with positive coordinates; None where there are fewer than two."""
    if len({x for x, _ in points}) < 2:
        return None
    from scipy.stats import t

    x, y = (np.log(np.array(v)) for v in zip(*points, strict=True))
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    freedom = len(x) - 2
    if freedom == 0:
        return Power(slope, math.nan)
    rest = y - y.mean() - slope * x
    return Power(slope, float(t.ppf(0.975, freedom) * math.sqrt(rest @ rest / freedom / (x @ x))))


def growth_section(rows: Sequence[Json]) -> tuple[list[str], dict[str, bytes]]:
    """Return the lines of the page on growth, and its pictures by name."""
    rows = [row for row in rows if not row["why"]]
    if not rows:
        return [], {}
    lines = ["## Growth laws\n"]
    lines += ["One generated logistic problem (10 sites, 50 rows of 20 columns each, unless the line says "
              "otherwise) is "
              "enlarged in one direction at a time: `foedus study --quick --growth`. Exponents b of a·x^b with "
              "their 95 % "
              "intervals, fitted to the values of the third column and claimed for no others; seconds are "
              "processor seconds "
              f"of the simulator for all sites. Rounds are to a gap of {GOAL:g}.\n"]  # fmt: skip
    lines += [
        "| x | algorithm | values | rounds at each | exponent of rounds | s a round at each | exponent of s a round |"
    ]
    lines += ["|---|---|---|---|---:|---|---:|"]
    pictures: dict[str, bytes] = {}
    goal = f"rounds_{tag(GOAL)}"
    for law in LAWS:
        series: dict[str, list[tuple[float, float]]] = {}
        for (name,), own in by([r for r in rows if r["law"] == law.name], "algorithm").items():
            own = sorted(own, key=lambda r: r["value"])
            times = [(r["value"], r["seconds_a_round"]) for r in own]
            rounds = [(r["value"], float(r[goal])) for r in own if r[goal] is not None]
            series[name] = times
            texts = ["/".join(number(r["value"]) for r in own)]
            texts += ["/".join("–" if r[goal] is None else str(r[goal]) for r in own), _exponent(rounds)]
            texts += ["/".join(number(s, 2) for _, s in times), _exponent(times)]
            lines.append(f"| {law.title} | {name} | {' | '.join(texts)} |")
        if series and law.name != "heterogeneity":
            pictures[f"growth-{law.name}"] = growth_picture(
                f"Seconds a round against {law.title}", law.name, "processor seconds a round", series
            )
    lines += [
        "",
        *(f"![Seconds a round against {name.removeprefix('growth-')}](study/{name}.svg)\n" for name in pictures),
    ]
    return [*lines, *_accuracy(rows), *_large_federation(rows)], pictures


def _exponent(points: Sequence[tuple[float, float]]) -> str:
    fit = fit_power(points)
    return "" if fit is None else fit.text()


def _accuracy(rows: Sequence[Json]) -> list[str]:
    """Rounds against accuracy: additional rounds for each further digit."""
    lines = ["**Accuracy.** Rounds to each gap, by the shift between the sites:\n"]
    lines += [
        "| shift | algorithm | " + " | ".join(map(tag, ACCURACIES)) + " |",
        "|---:|---|" + "---:|" * len(ACCURACIES),
    ]
    for row in (r for r in rows if r["law"] == "heterogeneity"):
        hits = [row[f"rounds_{tag(a)}"] for a in ACCURACIES]
        texts = ["–" if hit is None else str(hit) for hit in hits]
        lines.append(f"| {row['value']:g} | {row['algorithm']} | {' | '.join(texts)} |")
    return [*lines, ""]


def _large_federation(rows: Sequence[Json]) -> list[str]:
    """What a federation of SITES would need, from measured parts."""
    lines = [f"### {SITES:,} sites, computed and not measured\n"]
    lines += ["Parts that were measured: rounds and bytes at the largest number of sites above; the computing "
              "of a site; and "
              f"{1e3 * FLARE_SECONDS:g} ms for one site's message in a round of NVIDIA FLARE on "
              "loopback (30 real sites on two busy cores, [benchmarks](benchmarks.md)). Put together, for 10 rows "
              "of 10 columns a site and one server:\n"]  # fmt: skip
    lines += ["| algorithm | rounds to 1e-6 | into the server a round | the server's messages, a round | in all |",
              "|---|---:|---:|---:|---:|"]  # fmt: skip
    for (name,), own in by([r for r in rows if r["law"] == "sites"], "algorithm").items():
        largest = max(own, key=lambda r: r["value"])
        rounds = largest[f"rounds_{tag(GOAL)}"]
        if rounds is None:
            continue
        inward, messages = largest["bytes_up_a_round"] * SITES, FLARE_SECONDS * SITES
        lines.append(
            f"| {name} | {rounds} | {number(inward / 1e6)} MB | {number(messages)} s | "
            f"{number(rounds * messages / 60, 2)} min |"
        )
    lines += ["", "The server's handling of messages is what takes the time, not the sites' computing or the "
                  "bytes: beyond "
              "some hundred sites a tree of servers, each adding up its own sites' replies, would have to come "
              "first. "
              "foedus does not have one.\n"]  # fmt: skip
    return lines
