"""Growth laws on the study's page: power laws fitted to what was measured, memory, the cache, and large federations.

A power law y = a·x^b is fitted to logarithms; its exponent b and a 95 % interval are shown with the values that were
measured, and claimed for no others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foedus.base.files import Json
from foedus_lab.study.growth import DENSE, GOAL, LAWS, LEARNT, REAL, Law
from foedus_lab.study.networks import BITS, NETWORKS
from foedus_lab.study.pictures import growth_picture
from foedus_lab.study.profiles import by, number
from foedus_lab.study.rows import ACCURACIES, tag

GOAL_COLUMN = f"rounds_{tag(GOAL)}"
SITES = 10_000  # of the federation that is computed from measured parts
OUTSIDE = 1.25  # a problem lies outside the cache where a number costs so many times the least that any size has
INTRODUCTION = f"""\
One generated logistic problem (10 sites, 50 rows of 20 columns each, unless the line says otherwise) is enlarged in
one direction at a time by `foedus study --growth`. Exponents b of a·x^b have 95 % intervals, are fitted to the values
of the third column and claimed for no others. Seconds are processor seconds of the simulator for all sites, without
compiling; over real sites they are the clock's. Rounds are to a gap of {GOAL:g}; a dash: not within the rounds played.
"""
ACCURACY = """\
Rounds to each gap, by the shift between the sites; the last column is the slope of rounds against digits of accuracy,
by least squares.
"""
MEMORY = """\
10 rows of 10 columns a client. *Peak* is what the process took beyond what it had before. With few clients it is mostly
compiled programs; with many, a second copy of the rows, the pooled reference, and judging many models at a time.
"""
DENSE_WORDS = f"""\
To a gap of {GOAL:g}: bytes that one site sends and receives, and modelled seconds over each network (round trips, and
bytes over a site's link; without computing).
"""
LARGE = """\
Measured parts: rounds and bytes at {value:,.0f} simulated sites; and {share:.2g} ms for each site in a round of
NVIDIA FLARE over {most:.0f} real sites, whose processes share this machine with the server. Put together, for 10 rows
of 10 columns a site, and one server that handles one message after the other:
"""
TREE = """\
The server handles messages for most of that time; computing and bytes take little. Beyond some hundred sites a tree
of servers, each adding up its own sites' replies, would have to come first; foedus does not have one.
"""


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
    absent = [row for row in rows if row["why"]]
    rows = [row for row in rows if not row["why"]]
    if not rows:
        return [], {}
    lines = ["## Growth laws\n", INTRODUCTION]
    lines += [
        "| x | algorithm | values | rounds at each | exponent of rounds | s a round at each | exponent of s a round |",
        "|---|---|---|---|---:|---|---:|",
    ]
    pictures: dict[str, bytes] = {}
    for law in LAWS:
        series = _series(rows, law)
        lines += _law(law, series)
        if series and law.name != "heterogeneity":
            curves = {name: [(r["value"], r["seconds_a_round"]) for r in own] for name, own in series.items()}
            pictures[f"growth-{law.name.replace(' ', '-')}"] = growth_picture(
                f"Seconds a round against {law.title}", law.name, "seconds a round", curves
            )
    lines += ["", *(f"![Seconds a round: {name}](study/{name}.svg)\n" for name in pictures)]
    lines += [f"Left out: {r['law']} = {r['value']:g}, {r['algorithm']}: {r['why']}\n" for r in absent]
    sections = (_accuracy, _memory, _cache, _dense, _large_federation)
    return [*lines, *(line for section in sections for line in section(rows))], pictures


def _series(rows: Sequence[Json], law: Law) -> dict[str, list[Json]]:
    """The rows of a law by algorithm, by growing value."""
    groups = by([r for r in rows if r["law"] == law.name], "algorithm")
    return {name: sorted(own, key=lambda r: r["value"]) for (name,), own in groups.items()}


def _law(law: Law, series: dict[str, list[Json]]) -> list[str]:
    lines = []
    for name, own in series.items():
        times = [(r["value"], r["seconds_a_round"]) for r in own]
        rounds = [(r["value"], float(r[GOAL_COLUMN])) for r in own if r[GOAL_COLUMN] is not None]
        texts = ["/".join(number(r["value"]) for r in own)]
        texts += ["/".join(_rounds(r) for r in own) if rounds else "", _exponent(rounds)]
        texts += ["/".join(number(s, 2) for _, s in times), _exponent(times)]
        lines.append(f"| {law.title} | {name} | {' | '.join(texts)} |")
    return lines


def _rounds(row: Json) -> str:
    """Rounds to the goal, or a dash with the rounds after which the run ended."""
    return f"– ({row['rounds_played']})" if row[GOAL_COLUMN] is None else str(row[GOAL_COLUMN])


def _exponent(points: Sequence[tuple[float, float]]) -> str:
    fit = fit_power(points)
    return "" if fit is None else fit.text()


def _accuracy(rows: Sequence[Json]) -> list[str]:
    """Rounds against accuracy, and what one further digit costs."""
    mine = [r for r in rows if r["law"] == "heterogeneity"]
    if not mine:
        return []
    lines = ["### Accuracy and heterogeneity\n"]
    lines += [
        ACCURACY,
        "| shift | algorithm | " + " | ".join(map(tag, ACCURACIES)) + " | rounds a digit |",
        "|---:|---|" + "---:|" * (len(ACCURACIES) + 1),
    ]
    for row in mine:
        hits = [row[f"rounds_{tag(a)}"] for a in ACCURACIES]
        digits = [-math.log10(a) for a, hit in zip(ACCURACIES, hits, strict=True) if hit is not None]
        counts = [hit for hit in hits if hit is not None]
        slope = number(float(np.polyfit(digits, counts, 1)[0]), 2) if len(digits) > 1 else "–"
        texts = ["–" if hit is None else str(hit) for hit in hits]
        lines.append(f"| {row['value']:g} | {row['algorithm']} | {' | '.join(texts)} | {slope} |")
    return [*lines, ""]


def _memory(rows: Sequence[Json]) -> list[str]:
    """Bytes for each simulated client, and what the process took at its peak."""
    mine = [r for r in rows if r["law"] == "sites" and r.get("peak_bytes")]
    if not mine:
        return []
    lines = ["### Memory for each client\n"]
    lines += [MEMORY, "| clients | algorithm | data | state kept between rounds | peak | peak a client |"]
    lines += ["|---:|---|---:|---:|---:|---:|"]
    for r in sorted(mine, key=lambda r: (r["algorithm"], r["value"])):
        lines.append(
            f"| {r['value']:,.0f} | {r['algorithm']} | {r['data_bytes_a_site']:,} B | {r['state_bytes_a_site']:,} B | "
            f"{size_text(r['peak_bytes'])} | {size_text(r['peak_bytes'] / r['value'])} |"
        )
    return [*lines, ""]


def _cache(rows: Sequence[Json]) -> list[str]:
    """Where the data of all clients no longer fit into the processor's cache, from the time that a number costs."""
    law = next(law for law in LAWS if law.name == "rows")
    mine = sorted((r for r in rows if (r["law"], r["algorithm"]) == ("rows", "FedGiA")), key=lambda r: r["value"])
    if len(mine) < 3:
        return []
    sizes = [law.size(r["value"]).numbers for r in mine]
    costs = [1e9 * r["seconds_a_round"] / count for r, count in zip(mine, sizes, strict=True)]
    lines = ["### Where the simulator leaves the cache\n"]
    lines += [f"FedGiA reads every number of the data twice a round. {_caches()}\n"]
    lines += ["| rows in all | data | ns a number and round |", "|---:|---:|---:|"]
    lines += [
        f"| {r['value']:,.0f} | {size_text(8 * count)} | {cost:.2f} |"
        for r, count, cost in zip(mine, sizes, costs, strict=True)
    ]
    least = int(np.argmin(costs))
    beyond = [k for k in range(least + 1, len(costs)) if costs[k] > OUTSIDE * costs[least]]
    if beyond:
        first = beyond[0]
        words = (
            f"A number is cheapest at {size_text(8 * sizes[least])} of data; from {size_text(8 * sizes[first])} on it "
            f"costs {costs[first] / costs[least]:.1f} times that, so the simulator leaves the cache between "
            f"{size_text(8 * sizes[first - 1])} and {size_text(8 * sizes[first])}."
        )
    else:
        words = (
            f"No size that was measured costs {OUTSIDE:g} times the least, so reading from memory keeps up with the "
            "arithmetic: leaving the cache cannot be seen in the time of a round."
        )
    return [*lines, "", words + "\n"]


def _caches() -> str:
    """The caches of this machine in words, where the system tells them."""
    caches = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            caches[level] = size.replace("K", " KiB").replace("M", " MiB")
    return "This machine's caches: " + ", ".join(f"level {k} {v}" for k, v in caches.items()) + "." if caches else ""


def _dense(rows: Sequence[Json]) -> list[str]:
    """Where sending Hessians stops paying, from the columns' law."""
    series = _series(rows, next(law for law in LAWS if law.name == "columns"))
    if DENSE not in series:
        return []
    lines = ["### Where a dense message stops paying\n"]
    names = [name for name in (DENSE, LEARNT, "FedGiA") if name in series]
    lines += [
        DENSE_WORDS,
        "| columns | algorithm | rounds | bytes of a site | " + " | ".join(n.name for n in NETWORKS) + " |",
    ]
    lines += ["|---:|---|---:|---:|" + "---:|" * len(NETWORKS)]
    costs: dict[float, dict[str, list[float]]] = {}
    for name in names:
        for r in series[name]:
            if (rounds := r[GOAL_COLUMN]) is not None:
                size = r["bytes_up_a_round"] + r["bytes_down_a_round"]
                times = [rounds * (n.round_trip + BITS * size / n.bits) for n in NETWORKS]
                costs.setdefault(r["value"], {})[name] = [rounds, rounds * size, *times]
    for value, by_mode in sorted(costs.items()):
        for name, (rounds, size, *times) in by_mode.items():
            texts = " | ".join(f"{number(s, 2)} s" for s in times)
            lines.append(f"| {value:,.0f} | {name} | {rounds} | {size_text(size)} | {texts} |")
    return [*lines, "", _crossing(costs) + "\n"]


def _crossing(costs: dict[float, dict[str, list[float]]]) -> str:
    """From how many columns on Hessians cost more than the best of the others, in bytes and over each network."""
    whats = ("bytes", *(f"time over {n.name.replace('-', ' ')}" for n in NETWORKS))
    texts = []
    for place, what in enumerate(whats, start=1):
        pairs = {v: c for v, c in sorted(costs.items()) if DENSE in c and len(c) > 1}
        dear = [v for v, c in pairs.items() if c[DENSE][place] > min(x[place] for k, x in c.items() if k != DENSE)]
        where = f"from {min(dear):,.0f} columns on" if dear else f"nowhere up to {max(pairs):,.0f} columns"
        texts.append(f"{what}: {where}")
    return "Hessians cost more than the better of the other two in " + "; in ".join(texts) + "."


def _large_federation(rows: Sequence[Json]) -> list[str]:
    """What a federation of SITES would need, from measured parts."""
    real = sorted((r["value"], r["seconds_a_round"]) for r in rows if r["law"] == REAL)
    simulated = [r for r in rows if r["law"] == "sites" and r[GOAL_COLUMN] is not None]
    if not real or not simulated:
        return []
    most, seconds = real[-1]
    share = seconds / most
    nearest = min((r["value"] for r in simulated), key=lambda value: abs(math.log(value / SITES)))
    lines = [f"### {SITES:,} sites, computed and not measured\n"]
    lines += [LARGE.format(value=nearest, share=1e3 * share, most=most)]
    lines += ["| algorithm | rounds to 1e-6 | into the server a round | the server's messages, a round | in all |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for r in (r for r in simulated if r["value"] == nearest):
        rounds, inward, messages = r[GOAL_COLUMN], r["bytes_up_a_round"] * SITES, share * SITES
        lines.append(
            f"| {r['algorithm']} | {rounds} | {size_text(inward)} | {number(messages, 2)} s | "
            f"{number(rounds * messages / 60, 2)} min |"
        )
    return [*lines, "", TREE]


def size_text(count: float) -> str:
    """Return a number of bytes in words: 1.6 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{number(count / factor, 2)} {unit}"
    return f"{count:.0f} B"
