"""Runs of different problems on one page: no winner, every run's own terms, and the curve of a cap against f + h.

A looser cap allows every model that a tighter one allows, so the smallest objective belongs to the loosest cap whatever
the data are. Which cap to take is a choice, and the page shows what each choice costs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from foedus.report import words
from foedus.report.charts import HIGH, WIDE, axis_of, path
from foedus.report.words import number
from foedus.run import Run

LIMITS = ("at_most", "radius")  # the fields of a constraint that hold its cap


def problem_of(run: Run) -> str:
    """What a run's problem is, as far as the run tells: its terms, its sites, and the cap of every row."""
    return repr((_statement(run), run.names, [(r.site, r.constraint, r.cap) for r in run.certificate.rows]))


def one_problem(runs: Mapping[str, Run]) -> bool:
    """Whether all runs solve the same problem, so that the smallest objective is the best."""
    return len({problem_of(run) for run in runs.values()}) <= 1


def _statement(run: Run) -> list[tuple[str, Any]]:
    return sorted(run.settings.get("problem", {}).items())


def _but_for_caps(run: Run) -> str:
    """The problem without the figures of its caps."""
    stated = dict(run.settings.get("problem", {}))
    stated["constraints"] = [
        {k: v for k, v in c.items() if k not in LIMITS} if isinstance(c, Mapping) else c
        for c in stated.get("constraints") or ()
    ]
    return repr((sorted(stated.items()), run.names, [(r.site, r.constraint) for r in run.certificate.rows]))


@dataclass(frozen=True)
class Point:
    """One run: its cap, its objective, and whether its certificate holds."""

    run: str
    cap: float
    objective: float
    certified: bool


@dataclass(frozen=True)
class Curve:
    """The objective against the cap of one constraint; a line for each choice of everything else."""

    constraint: str
    nested: bool  # a looser cap allows all that a tighter one does
    lines: Mapping[str, tuple[Point, ...]]


def _caps(run: Run) -> dict[str, float] | None:
    """The cap of each constraint, or None where a constraint has another cap at another site."""
    found: dict[str, float] = {}
    for row in run.certificate.rows:
        if found.setdefault(row.constraint, row.cap) != row.cap:
            return None
    return found


def curves(runs: Mapping[str, Run]) -> list[Curve]:
    """One curve for each cap that differs, where the problems differ in caps alone; else none."""
    if len({_but_for_caps(run) for run in runs.values()}) > 1:
        return []
    caps = {name: found for name, run in runs.items() if (found := _caps(run))}
    if len(caps) < len(runs):
        return []
    varied: dict[tuple[float, ...], str] = {}  # the two rows of a gap share their cap, and one curve
    for constraint in next(iter(caps.values())):
        values = tuple(caps[name][constraint] for name in runs)
        if len(set(values)) > 1:
            varied.setdefault(values, constraint)
    made = []
    for constraint in varied.values():
        others = [c for c in varied.values() if c != constraint]
        lines: dict[str, list[Point]] = {}
        for name, run in runs.items():
            point = Point(name, caps[name][constraint], run.objective, words.verdict(run).level == "good")
            told = [f"{c} at most {number(caps[name][c])}" for c in others] + _method(run, runs)
            lines.setdefault(", ".join(told), []).append(point)
        nested = all(r.kind == "<=" for run in runs.values() for r in run.certificate.rows)
        ordered = {name: tuple(sorted(points, key=lambda p: p.cap)) for name, points in lines.items()}
        made.append(Curve(constraint, nested, ordered))
    return made


def _method(run: Run, runs: Mapping[str, Run]) -> list[str]:
    """What sets the method of a run apart from those of the others."""
    told = []
    if len({repr(r.settings.get("algorithm")) for r in runs.values()}) > 1:
        mine = run.settings.get("algorithm", {})
        fields = {k for r in runs.values() for k in r.settings.get("algorithm", {})}
        apart = [k for k in sorted(fields) if len({repr(r.settings["algorithm"].get(k)) for r in runs.values()}) > 1]
        told += [str(mine.get(k)) if k == "name" else f"{k} {_figured(mine.get(k))}" for k in apart]
    if len({r.settings.get("seed") for r in runs.values()}) > 1:
        told.append(f"seed {run.settings.get('seed')}")
    return told


def _figured(value: Any) -> str:
    return number(value) if type(value) in (int, float) else str(value)


def verdict(runs: Mapping[str, Run], drawn: Sequence[Curve], data_differ: bool) -> words.Verdict:
    """Why nobody wins here, and how many runs are certified."""
    good = [name for name, run in runs.items() if words.verdict(run).level == "good"]
    short = [name for name in runs if name not in good]
    ended = "All runs are certified or converged." if not short else f"Not certified: {words.listed(short)}."
    if drawn and not data_differ:
        why = "The runs differ in what they must keep, so none of them is the best."
        if all(curve.nested for curve in drawn):
            why += (
                " A looser cap allows every model that a tighter one allows: the objective cannot rise as the cap is "
                "raised, whatever the data are. What a tighter cap costs is the choice to make here."
            )
        return words.Verdict("open", "A trade-off: the cap against the objective", (why, ended))
    what = "are about different data" if data_differ and one_problem(runs) else "solve different problems"
    why = f"The runs {what}, so no objective is better than another. Each run's own terms are listed below."
    return words.Verdict("open", "Different problems, no winner", (why, ended))


def section(drawn: Sequence[Curve]) -> str:
    """The curves, each with a point for every run."""
    return "".join(_figure(curve) for curve in drawn)


def _figure(curve: Curve) -> str:
    points = [p for line in curve.lines.values() for p in line if math.isfinite(p.objective)]
    if not points:
        return ""
    caps, values = (np.array(v, dtype=float) for v in zip(*((p.cap, p.objective) for p in points), strict=True))
    wide = bool(np.all(caps > 0)) and float(caps.max()) > 30 * float(caps.min())
    across, upward = axis_of(caps, wide), axis_of(values, False)
    lines, dots = "", ""
    for i, line in enumerate(curve.lines.values()):
        known = [p for p in line if math.isfinite(p.objective)]
        x = across.place(np.array([p.cap for p in known], dtype=float))
        y = upward.place(np.array([p.objective for p in known], dtype=float))
        lines += f'<path class="line c{i % 8}" d="{path(x, y)}"/>'
        for point, a, b in zip(known, x.tolist(), y.tolist(), strict=True):
            told = f"{point.run}: cap {number(point.cap)}, objective {number(point.objective)}"
            told += "" if point.certified else ", not certified"
            dots += (
                f'<i class="dot c{i % 8}{"" if point.certified else " open"}" title="{escape(told)}" '
                f'style="left:{100 * a:.2f}%;top:{100 * (1 - b):.2f}%"></i>'
            )
    rows = [(v, 1 - float(upward.place(np.array(v)))) for v in upward.ticks()]
    columns = [(v, float(across.place(np.array(v)))) for v in across.ticks(6)]
    grid = "".join(f"M0 {HIGH * p:.1f}H{WIDE}" for _, p in rows)
    side = "".join(f'<span style="top:{100 * p:.1f}%">{number(v)}</span>' for v, p in rows)
    below = "".join(f'<span style="left:{100 * p:.1f}%">{number(v)}</span>' for v, p in columns)
    names = [name for name in curve.lines if name]
    key = "".join(f'<span><i class="dot c{i % 8}"></i>{escape(name)}</span> ' for i, name in enumerate(names))
    key += '<span><i class="dot open"></i>not certified</span>' if any(not p.certified for p in points) else ""
    told = "; ".join(f"at {number(p.cap)} it is {number(p.objective)}" for p in points)
    return (
        f'<figure class="curve"><figcaption><strong>Objective against a cap: {escape(curve.constraint)}</strong> '
        f'<span>one point a run; neither end is better than the other</span></figcaption><div class="plot">'
        f'<div class="side">{side}</div><div class="area"><svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" '
        f'role="img" aria-label="the objective by cap: {escape(told)}"><path class="grid" d="{grid}"/>{lines}</svg>'
        f'{dots}</div><div class="below">{below}</div></div><p class="axis">cap: {escape(curve.constraint)}</p>'
        + (f'<p class="dotkey">{key}</p>' if key else "")
        + "</figure>"
    )


def own_terms(runs: Mapping[str, Run]) -> str:
    """What each run makes small, and what it keeps."""
    body = ""
    for i, (name, run) in enumerate(runs.items()):
        kept = "<br>".join(map(escape, words.terms(run))) or "nothing: no terms were set"
        body += (
            f'<tr><th scope="row" data-v="{escape(name)}"><i class="c{i % 8}"></i>{escape(name)}</th>'
            f"<td>{escape(words.objective(run))}</td><td>{kept}</td></tr>"
        )
    heads = "".join(f'<th scope="col">{title}</th>' for title in ("Run", "Make small", "Keep"))
    scroll = "scroll tall" if len(runs) > 25 else "scroll"
    return (
        f'<div class="{scroll}"><table class="sites sortable"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )
