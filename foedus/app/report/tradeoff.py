"""Runs of different problems on one page: no winner, each run's own terms, and the curve of the objective by cap.

A looser cap allows every model that a tighter one allows, so the loosest cap has the smallest objective whatever the
data are. Which cap to take is a choice, and the page shows what each choice costs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from foedus.app.report import words
from foedus.app.report.charts import Plot, axis_of, labels, path
from foedus.app.report.render import Cell, Column, Line, piece, table
from foedus.app.report.sections import promises
from foedus.base.quantities import number
from foedus.runtime.run import Run
from foedus.statistics.figures import TITLES
from foedus.statistics.intervals import Figure

RATES = ("miss_rate", "false_alarms")  # drawn against the cap where they were measured on new rows
LIMITS = ("at_most", "radius")  # the fields of a constraint that contain its cap


def problem_of(run: Run) -> str:
    """Return a text that identifies a run's problem: its terms, its sites, and the cap of every row."""
    return repr((_statement(run), run.names, [(r.site, r.constraint, r.cap) for r in run.certificate.rows]))


def one_problem(runs: Mapping[str, Run]) -> bool:
    """Whether all runs solve the same problem, so that the smallest objective is the best."""
    return len({problem_of(run) for run in runs.values()}) <= 1


def _statement(run: Run) -> list[tuple[str, object]]:
    return sorted(run.settings.get("problem", {}).items())


def _but_for_caps(run: Run) -> str:
    """Return a text that identifies the problem apart from the values of its caps."""
    problem = dict(run.settings.get("problem", {}))
    problem["constraints"] = [
        {k: v for k, v in c.items() if k not in LIMITS} if isinstance(c, Mapping) else c
        for c in problem.get("constraints") or ()
    ]
    return repr((sorted(problem.items()), run.names, [(r.site, r.constraint) for r in run.certificate.rows]))


@dataclass(frozen=True)
class TradeoffPoint:
    """One run on a curve: its cap, its objective, and whether its certificate holds."""

    run: str
    cap: float
    objective: float
    certified: bool
    rates: Mapping[str, Figure] = field(default_factory=dict)  # on new rows, where they were measured


@dataclass(frozen=True)
class Curve:
    """The objective against the cap of one constraint, with a line for each choice of everything else."""

    constraint: str
    nested: bool  # a looser cap allows all that a tighter one does
    lines: Mapping[str, tuple[TradeoffPoint, ...]]


def _caps(run: Run) -> dict[str, float] | None:
    """Return the cap of each constraint, or None if a constraint has different caps at different sites."""
    caps: dict[str, float] = {}
    for row in run.certificate.rows:
        if caps.setdefault(row.constraint, row.cap) != row.cap:
            return None
    return caps


def curves(runs: Mapping[str, Run]) -> list[Curve]:
    """Return one curve for each cap that differs, if the problems differ only in caps; else an empty list."""
    if len({_but_for_caps(run) for run in runs.values()}) > 1:
        return []
    caps = {name: own for name, run in runs.items() if (own := _caps(run))}
    if len(caps) < len(runs):
        return []
    differing: dict[tuple[float, ...], str] = {}  # the two rows of a gap share their cap, and one curve
    for constraint in next(iter(caps.values())):
        values = tuple(caps[name][constraint] for name in runs)
        if len(set(values)) > 1:
            differing.setdefault(values, constraint)
    results = []
    for constraint in differing.values():
        others = [c for c in differing.values() if c != constraint]
        lines: dict[str, list[TradeoffPoint]] = {}
        for name, run in runs.items():
            rates = (
                {} if run.evaluation is None else {k: run.evaluation[k] for k in RATES if k in run.evaluation.overall}
            )
            good = words.verdict(run).level == "good"
            point = TradeoffPoint(name, caps[name][constraint], run.objective, good, rates)
            distinctions = [f"{c} at most {number(caps[name][c])}" for c in others] + _method(run, runs)
            lines.setdefault(", ".join(distinctions), []).append(point)
        nested = all(r.kind == "<=" for run in runs.values() for r in run.certificate.rows)
        by_cap = {name: tuple(sorted(points, key=lambda p: p.cap)) for name, points in lines.items()}
        results.append(Curve(constraint, nested, by_cap))
    return results


def _method(run: Run, runs: Mapping[str, Run]) -> list[str]:
    """Return the settings in which the methods of the runs differ, as this run has them."""
    distinctions = []
    if len({repr(r.settings.get("algorithm")) for r in runs.values()}) > 1:
        mine = run.settings.get("algorithm", {})
        fields = {k for r in runs.values() for k in r.settings.get("algorithm", {})}
        apart = [k for k in sorted(fields) if len({repr(r.settings["algorithm"].get(k)) for r in runs.values()}) > 1]
        distinctions += [str(mine.get(k)) if k == "name" else f"{k} {_text(mine.get(k))}" for k in apart]
    if len({r.settings.get("seed") for r in runs.values()}) > 1:
        distinctions.append(f"seed {run.settings.get('seed')}")
    return distinctions


def _text(value: object) -> str:
    return number(value) if type(value) is int or type(value) is float else str(value)


def verdict(runs: Mapping[str, Run], cap_curves: Sequence[Curve], data_differ: bool) -> words.Verdict:
    """Say why no run is the best, and which runs are not certified."""
    good = [name for name, run in runs.items() if words.verdict(run).level == "good"]
    short = [name for name in runs if name not in good]
    ending = "All runs are certified or converged." if not short else f"Not certified: {words.join_names(short)}."
    if cap_curves and not data_differ:
        why = "The runs differ in what they must keep, so none of them is the best."
        if all(curve.nested for curve in cap_curves):
            why += (
                " A looser cap allows every model that a tighter one allows: the objective cannot rise as the cap is "
                "raised, whatever the data are. What a tighter cap costs is the choice to make here."
            )
        return words.Verdict("open", "A trade-off: the cap against the objective", (why, ending))
    what = "are about different data" if data_differ and one_problem(runs) else "solve different problems"
    why = f"The runs {what}, so no objective is better than another. Each run's own constraints are listed below."
    return words.Verdict("open", "Different problems, no winner", (why, ending))


def section(cap_curves: Sequence[Curve]) -> Markup:
    """Return the curves, each with a point for every run: the objective against the cap, and rates on new rows."""
    plots = [_plot(curve, rate) for curve in cap_curves for rate in (None, *RATES)]
    return Markup("").join(piece("plot", plot) for plot in plots if plot is not None)


def figure_of(point: TradeoffPoint, rate: str | None) -> tuple[float, float, float]:
    """The objective of a run, or a rate of it on new rows, with the ends of its interval; NaN where not measured."""
    if rate is None:
        return point.objective, point.objective, point.objective
    figure = point.rates.get(rate)
    return (math.nan, math.nan, math.nan) if figure is None else (figure.value, figure.low, figure.high)


def _plot(curve: Curve, rate: str | None) -> Plot | None:
    """The objective against the cap, or a rate on new rows with its interval; None where no run has a figure."""
    finite = [[p for p in line if math.isfinite(figure_of(p, rate)[0])] for line in curve.lines.values()]
    points = [p for line in finite for p in line]
    if not points:
        return None
    what = "objective" if rate is None else TITLES[rate][0].lower()

    def text(value: float) -> str:
        return number(value) if rate is None else f"{100 * value:.1f} %"

    caps = np.array([p.cap for p in points], dtype=float)
    values = np.array([end for p in points for end in figure_of(p, rate)[1:]], dtype=float)
    wide = bool(np.all(caps > 0)) and float(caps.max()) > 30 * float(caps.min())
    across, upward = axis_of(caps, wide), axis_of(values, False)
    lines, dots = [], []
    for i, line in enumerate(finite):
        x = across.place(np.array([p.cap for p in line], dtype=float))
        y = upward.place(np.array([figure_of(p, rate) for p in line], dtype=float).reshape(-1, 3))
        lines.append((f"line c{i % 8}", "", path(x, y[:, 0])))
        if rate is not None:
            lines += [(f"whisker c{i % 8}", "", path(np.array([a, a]), ends[1:])) for a, ends in zip(x, y, strict=True)]
        for point, a, b in zip(line, x.tolist(), y[:, 0].tolist(), strict=True):
            label = f"{point.run}: cap {number(point.cap)}, {what} {text(figure_of(point, rate)[0])}"
            kind = f"dot c{i % 8}" + ("" if point.certified else " open")
            dots.append((kind, label + ("" if point.certified else ", not certified"), 100 * a, 100 * (1 - b)))
    legend = [(f"dot c{i % 8}", name) for i, name in enumerate(name for name in curve.lines if name)]
    legend += [("dot open", "not certified")] if any(not p.certified for p in points) else []
    remark = "one point a run; neither end is better than the other"
    if rate is not None:
        remark = f"on rows that took no part in training: {TITLES[rate][1]}; the lines are intervals at 95 %"
    description = "; ".join(f"at {number(p.cap)} it is {text(figure_of(p, rate)[0])}" for p in points)
    return Plot(
        kind="curve",
        title=f"{words.capital(what)} against a cap: {curve.constraint}",
        remark=remark,
        label=f"{what} by cap: {description}",
        side=labels(upward, text, upward=True),
        below=labels(across, number, most=6),
        axis=f"cap: {curve.constraint}",
        lines=lines,
        dots=dots,
        legend=legend,
    )


def own_terms(runs: Mapping[str, Run]) -> Markup:
    """Return a table of the objective and the terms of each run."""
    lines = [
        Line(name, [Cell(words.objective(run)), Cell(promises(run))], colour=i % 8)
        for i, (name, run) in enumerate(runs.items())
    ]
    return table([Column(title, "") for title in ("Run", "Minimise", "Subject to")], lines)
