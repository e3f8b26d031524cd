"""What an experiment would do, told without training: sites, rows, classes, dimension, messages, rounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from foedus.data.doubts import side_by_side
from foedus.data.preprocess import Category, Number
from foedus.data.tables import listing, missing_in
from foedus.experiment import build
from foedus.experiment.build import Built
from foedus.experiment.screen import size
from foedus.runtime import wire
from foedus.runtime.simulate import start

# Rounds until the stopping test on the reference problems of tests/test_outlook.py, which measures them again: the
# breast-cancer set at 5 and 20 sites with a small ridge, and a cap on one class for the methods that take constraints.
TYPICAL: dict[str, tuple[int, int]] = {
    "CentralProxAL": (36, 52),
    "FedGiA": (4700, 7400),
    "FedPD": (5900, 9400),
    "InexactADMM": (140, 220),
    "ProxAL": (36, 52),
    "Scaffold": (5700, 9100),
}
UNENDING = ("FedAvg", "FedProx", "LocalSGD")  # they come near the optimum and did not pass the test in 20,000 rounds


@dataclass(frozen=True)
class Messages:
    """The bytes that one site receives and sends in a round of each kind."""

    kinds: tuple[tuple[int, int], ...]

    def most(self, rounds: int, asked: int) -> int:
        """The most that the rounds can add up to."""
        return rounds * asked * max(down + up for down, up in self.kinds)


def messages(built: Built) -> Messages:
    """From the shapes of the messages alone; nothing is computed."""
    restated = built.algorithm.restate(built.problem)
    terms = restated.terms
    w0 = jax.ShapeDtypeStruct((terms.dim,), float)
    if built.algorithm.pools:
        return Messages(((0, sum(int(leaf.nbytes) for leaf in jax.tree.leaves(built.problem.data))),))
    carry = jax.eval_shape(
        lambda w, data, own: start(built.algorithm, terms, w, data, own), w0, restated.data, restated.server
    )
    return Messages(wire.traffic_of(built.algorithm, terms, carry.server, carry.clients, restated.data))


def sites_table(built: Built) -> Table:
    """Each site's rows, by class and by group; the ends of a long list."""
    cohort = built.cohort
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("site")
    made.add_column("rows", justify="right")
    for label in cohort.labels:
        made.add_column(f"{cohort.roles.label} {label}", justify="right")
    for group in cohort.groups:
        made.add_column(f"{cohort.roles.group} {group}", justify="right")
    if not cohort.labels:
        made.add_column(f"{cohort.roles.label}, mean", justify="right")
    names = list(cohort.everyone)
    for name in names if len(names) <= 30 else [*names[:15], "", *names[-10:]]:
        if not name:
            made.add_row(f"… {len(names) - 25} more")
            continue
        table = cohort.everyone[name]
        y, group = cohort.y(table), cohort.group(table)
        cells = [f"{int(np.sum(y == code)):,}" for code in range(len(cohort.labels))] or [f"{float(np.mean(y)):.4g}"]
        if group is not None:
            cells += [f"{int(np.sum(group == code)):,}" for code in range(len(cohort.groups))]
        made.add_row(name, f"{table.rows:,}", *cells)
    return made


def columns_table(built: Built) -> Table:
    """The columns of the sites side by side: median and range, or the commonest word, and what is missing."""
    head, rows = side_by_side(built.cohort)
    made = Table(box=None, pad_edge=False, header_style="dim")
    for place, title in enumerate(head):
        made.add_column(Text(title), overflow="fold", no_wrap=place == 0)
    for row in rows if len(rows) <= 40 else [*rows[:39], [f"… {len(rows) - 39} more", *[""] * (len(head) - 1)]]:
        made.add_row(*map(Text, row))
    return made


def features_lines(built: Built) -> list[str]:
    cohort, rules = built.cohort, built.rules
    numbers = [c.name for c in rules.columns if isinstance(c, Number)]
    lines = []
    if numbers:
        scaled = {"standard": "standardised", "minmax": "scaled to [0, 1]", "none": "used as they are"}[rules.scale]
        lines.append(f"numbers, {scaled}: {listing(numbers)}")
    words = [f"{c.name} ({len(c.levels)})" for c in rules.columns if isinstance(c, Category)]
    if words:
        lines.append(f"categories, a 0/1 column for each word: {listing(words)}")
    missing = {
        name: count
        for name in cohort.features
        if (count := sum(int(missing_in(t.columns[name]).sum()) for t in cohort.tables.values()))
    }
    if missing:
        told = listing(f"{name} ({count:,})" for name, count in missing.items())
        lines.append(f"missing values, filled with the mean or as a category of their own: {told}")
    if cohort.dropped:
        told = listing(f"{count:,} at {site}" for site, count in cohort.dropped.items())
        lines.append(f"rows left out because a value is missing: {told}")
    constant = [c.name for c in rules.columns if isinstance(c, Number) and c.scale == 1.0 and rules.scale == "standard"]
    if constant:
        lines.append(f"the same at every row, so of no use: {listing(constant)}")
    lines.append(f"the model has {len(rules.names)} numbers" + (", with the intercept" if rules.intercept else ""))
    return lines


def terms_lines(built: Built) -> list[str]:
    """The objective and the constraints in words."""
    problem = built.problem
    loss = problem.terms.loss
    where = built.settings["problem"]["where"]
    name = "loss" if loss is None else f"{built.settings['problem']['loss']['name'].replace('_', ' ')} loss"
    lines = [f"make small: the mean {name}{f' on {where}' if where else ''}, averaged over the sites"]
    held = {"local": "at every site", "global": "on the server's own data", "coupled": "on average over the sites"}
    for asked, constraint in zip(built.settings["constraints"], problem.terms.constraints, strict=True):
        told = {
            "LossCap": lambda a=asked: f"the mean loss on {a.get('where')} is at most {limit(a['at_most'])}",
            "LossGap": lambda a=asked: (
                f"the mean losses on {a.get('first')} and {a.get('second')} differ by at most {limit(a['at_most'])}"
            ),
            "Linear": lambda a=asked: (
                " + ".join(f"{v:g}·{k}" for k, v in a["coefficients"].items())
                + f" {'is' if a.get('kind') == '==' else 'is at most'} {a['at_most']} in the model (of scaled columns)"
            ),
            "NormBall": lambda a=asked: f"the model's length is at most {limit(a['radius'])}",
        }.get(asked["type"], lambda a=asked: ", ".join(f"{k} {v}" for k, v in a.items()))()
        lines.append(f"keep: {told}, {held[constraint.scope]}")
    return lines


def limit(given: Any) -> str:
    """One number for all sites, or what each has."""
    return " / ".join(f"{v} ({site})" for site, v in given.items()) if isinstance(given, Mapping) else str(given)


def rounds_of(built: Built, limit: int) -> str:
    """How many rounds to expect of a run; what was measured is told of an algorithm with its usual settings only."""
    usual = set(built.settings["algorithm"]) == {"name"} and getattr(built.algorithm, "inner", "newton") == "newton"
    return rounds_line(built.algorithm.name if usual or built.algorithm.name in UNENDING else "", limit)


def rounds_line(name: str, limit: int) -> str:
    """How many rounds to expect."""
    if name in UNENDING:
        return f"it comes near the best model without reaching it, so it will mostly play all {limit:,} rounds"
    if name not in TYPICAL:
        return f"at most {limit:,} rounds; how many it needs depends on the data"
    low, high = TYPICAL[name]
    advice = "; raise max_rounds in [run] to let it finish" if low > limit else ""
    return (
        f"at most {limit:,} rounds; the breast-cancer set took {low:,} to {high:,} at 5 and 20 sites, and other data, "
        f"more columns or caps that bind at more sites may take many times as many{advice}"
    )


def describe(built: Built, out: Path, state: str) -> Group:
    """The whole outlook of one run."""
    problem, rules = built.problem, built.rules
    sites, rows = problem.terms.clients, sum(table.rows for table in built.cohort.tables.values())
    limit = build.rounds_of(built.settings, built.algorithm)
    asked = built.participation.size(sites)
    found = messages(built)
    down = sorted({d for d, _ in found.kinds})
    up = sorted({u for _, u in found.kinds})

    def between(values: list[int]) -> str:
        return size(values[0]) if len(values) == 1 else f"{size(values[0])} to {size(values[-1])}"

    parts: list[Text | Table] = [Text(f"{sites} sites, {rows:,} rows", style="bold"), sites_table(built)]

    def section(title: str, lines: list[str]) -> None:
        parts.append(Text(""))
        parts.append(Text(title, style="bold"))
        parts.extend(Text(f"  {line}") for line in lines)

    section("Columns", features_lines(built))
    section("Sites side by side: median [least, greatest], or the commonest word", [])
    parts.append(columns_table(built))
    section("Terms", terms_lines(built))
    who = "all sites" if asked == sites else f"{asked} of {sites} sites"
    section(
        f"Training with {built.algorithm.name}",
        [
            f"before it, {rules.rounds} rounds find the scales and words of the columns: {size(rules.up)} up, "
            f"{size(rules.down)} down" + (f", privacy epsilon {rules.epsilon:g}" if rules.epsilon is not None else ""),
            f"each round asks {who}; a site receives {between(down)} and sends {between(up)}",
            rounds_of(built, limit),
            f"at most {size(found.most(limit, asked))} travel in all",
        ],
    )
    told = {"new": "does not exist yet", "begun": "holds an unfinished run, which goes on", "finished": "is finished"}
    section("Result", [f"{out}, which {told.get(state, state)}"])
    return Group(*parts)
