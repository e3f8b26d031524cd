"""The frontier of an experiment: what tighter and looser caps cost, with each model started from its neighbour."""

import copy
import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from foedus.app.experiment import build, figures
from foedus.app.experiment.execute import Builder
from foedus.app.experiment.file import Experiment
from foedus.app.experiment.screen import Screen
from foedus.app.experiment.sweep import RunCase
from foedus.app.report import html
from foedus.app.report.picture import picture
from foedus.app.report.tradeoff import Curve, curves
from foedus.app.report.words import uncertified
from foedus.app.solve import solve
from foedus.base.errors import FoedusError
from foedus.base.files import write_whole
from foedus.base.pytrees import PyTree
from foedus.base.quantities import number
from foedus.runtime.run import Run

LIMITS = {"LossCap": "at_most", "LossGap": "at_most", "NormBall": "radius"}  # the terms with a cap, and its key
POINTS = 8
TIGHTEST = 0.5  # of the value that the model has without the cap: where the range ends when no caps are given
LOOSE = 1e3  # a cap that no mean loss of a sensible model reaches: the run with it finds the range
HOLDOUT = 0.2  # where the file holds no rows out
FIGURES = ("accuracy", "miss_rate", "false_alarms", "auc")


@dataclass
class Frontier:
    """The runs by the name of their cap, from the loosest to the tightest, and a sentence for each that failed."""

    constraint: str
    runs: dict[str, Run] = field(default_factory=dict)
    caps: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        """Whether at least one run is certified."""
        return any(uncertified(run) is None for run in self.runs.values())

    def csv(self) -> str:
        """Return one line a cap: objective, certificate, and figures on new rows with their intervals."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        ends = [f"{name}{end}" for name in FIGURES for end in ("", "_low", "_high")]
        writer.writerow(["cap", "objective", "certified", "largest_value", *ends, "rounds", "seconds"])
        for name in sorted(self.runs, key=lambda name: self.caps[name]):
            run = self.runs[name]
            values = [row.value for row in run.certificate.rows if row.constraint == self.constraint]
            figures: list[float | str] = []
            for key in FIGURES:
                figure = None if run.evaluation is None else run.evaluation.overall.get(key)
                figures += ["", "", ""] if figure is None else [figure.value, figure.low, figure.high]
            seconds = round(run.seconds - run.compile_seconds, 3)
            row = [self.caps[name], run.objective, uncertified(run) is None, max(values, default=math.nan)]
            writer.writerow([*row, *figures, run.rounds, seconds])
        return text.getvalue()


def place_of_cap(case: RunCase, term: int | None) -> tuple[int, str]:
    """Return the place of the term whose cap is varied, and the key of its cap."""
    terms = case.settings["constraints"]
    candidates = [i for i, one in enumerate(terms) if one["type"] in LIMITS]
    if not candidates:
        raise FoedusError(
            "it has no constraint with a cap that training keeps; write [[constraints]] with "
            'type = "LossCap", where and at_most.'
        )
    if term is None and len(candidates) > 1:
        numbers = ", ".join(f"{i + 1} ({terms[i]['type']})" for i in candidates)
        raise FoedusError(f"it has several constraints with a cap; say which one to vary with --constraint: {numbers}.")
    place = candidates[0] if term is None else term - 1
    if place not in candidates:
        there = [i + 1 for i in candidates]
        raise FoedusError(f"--constraint {term}: there is no such constraint with a cap; there are {there}.")
    key = LIMITS[terms[place]["type"]]
    if isinstance(terms[place].get(key), dict):
        raise FoedusError(
            f"[[constraints]] {place + 1} {key}: a frontier varies one cap for all sites, not one for each."
        )
    return place, key


def trace(
    experiment: Experiment, screen: Screen, *, caps: Sequence[float] | None = None, term: int | None = None,
    points: int = POINTS,
) -> Frontier:  # fmt: skip
    """Solve the experiment for each cap, from the loosest to the tightest, each from the model of the one before.

    Args:
        experiment: the experiment, which must ask for one run.
        screen: where progress is shown.
        caps: the caps; from the value that the model has without the cap down to half of it when left out.
        term: the number of the term whose cap is varied, where there are several.
        points: how many caps, where none are given.
    """
    if len(experiment.cases) != 1:
        raise FoedusError(f"{experiment.path}: its lists make {len(experiment.cases)} runs; a frontier varies one cap.")
    case = experiment.cases[0]
    try:
        place, key = place_of_cap(case, term)
        if case.settings["privacy"] is not None:
            raise FoedusError("[privacy]: each point would spend privacy anew, and figures on new rows would be exact.")
    except FoedusError as error:
        raise FoedusError(f"{experiment.path}: {error}") from None
    settings = copy.deepcopy(case.settings)
    if settings["evaluate"]["holdout"] is None:
        settings["evaluate"]["holdout"] = HOLDOUT
    builder, w0, result = Builder(experiment), None, Frontier("")

    def run_with(cap: float, name: str, w0: PyTree | None) -> Run:
        settings["constraints"][place][key] = cap
        setup = builder.build(replace(case, settings=settings))
        limit = build.rounds_of(settings, setup.algorithm, setup.problem)
        screen.begin(name, limit, setup.problem.terms.clients)
        try:
            run = solve(
                setup.problem, setup.algorithm, w0=w0, seed=settings["seed"], max_rounds=limit,
                participation=setup.participation, callback=lambda n, record: screen.round(n, dict(record)),
            )  # fmt: skip
        finally:
            screen.end()
        figures.add(run, setup)
        return run

    for cap in caps or ():  # a wrong one shows before anything is trained
        settings["constraints"][place][key] = cap
        build.check_masks(settings)
    if caps is None:
        loose = LOOSE if settings["constraints"][place]["type"] != "NormBall" else 1e6
        free = run_with(loose, "without the cap", None)
        caps, w0 = _range(free, points), free.w
    descending = sorted({float(cap) for cap in caps}, reverse=True)
    screen.total = len(descending)
    for cap in descending:
        name = f"{key} {number(cap)}"
        try:
            run = run_with(cap, name, w0)
        except FoedusError as error:
            if cap == descending[0]:
                raise
            result.failures[name] = str(error)
            continue
        if run.interrupted:
            break
        result.runs[name], result.caps[name] = run, cap
        if np.all(np.isfinite(np.asarray(run.w))) and uncertified(run) is None:
            w0 = run.w
    if curve := curve_of(result):
        result.constraint = curve.constraint
    return result


def _range(free: Run, points: int) -> list[float]:
    """Caps from the largest value that the model has without the cap down to half of it, with three digits."""
    value = max((row.value for row in free.certificate.rows), default=math.nan)
    if not (math.isfinite(value) and value > 0):
        raise FoedusError("no range of caps was found, for the run without the cap has no value there; give --caps.")
    value = math.sqrt(value) if free.certificate.rows[0].constraint == "‖w‖²" else value
    digits = 2 - math.floor(math.log10(value))
    return [round(float(cap), digits) for cap in np.linspace(value, TIGHTEST * value, points)]


def curve_of(result: Frontier) -> Curve | None:
    """Return the curve of the cap that was varied."""
    lines = curves(result.runs) if len(result.runs) > 1 else []
    return lines[0] if lines else None


def write(result: Frontier, experiment: Experiment, folder: Path) -> list[Path]:
    """Write the table, the picture and the page into a folder; return their paths."""
    curve = curve_of(result)
    if curve is None:
        raise FoedusError("a frontier needs at least two models; give more caps, or looser ones.")
    folder.mkdir(parents=True, exist_ok=True)
    points = next(iter(curve.lines.values()))
    evaluation = next((run.evaluation for run in result.runs.values() if run.evaluation is not None), None)
    note = "Hollow points are not certified. "
    if evaluation is not None:
        note += f"Left: {number(evaluation.total)} rows that took no part in training; bands are intervals at 95 %. "
    note += f"{experiment.name}, {len(next(iter(result.runs.values())).names)} sites."
    drawing = picture(points, "What a tighter cap costs", curve.constraint, note)
    paths = [folder / "frontier.csv", folder / "frontier.svg", folder / "frontier.html"]
    write_whole(paths[0], result.csv().encode())
    write_whole(paths[1], drawing.encode())
    request = {"title": f"{experiment.name}: the frontier", "command": f"foedus frontier {experiment.path}"}
    html.write(result.runs, paths[2], request)
    return paths
