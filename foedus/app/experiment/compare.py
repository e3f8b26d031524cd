"""Compares several runs in one table: the objective and constraints that each reached, its rounds, bytes and time."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from foedus.app.report import sweep
from foedus.app.report.sections import figure_cell, noise_from_seed, total_epsilon
from foedus.app.report.tradeoff import curves, one_problem
from foedus.base.files import Json
from foedus.base.notebook import text_table
from foedus.base.quantities import duration, size
from foedus.runtime.run import Run
from foedus.statistics.figures import TITLES


def worst(run: Run) -> str:
    """Describe the constraint row that is closest to, or furthest beyond, its limit."""
    rows = run.certificate.rows
    if not rows:
        return "none set"
    row = min(rows, key=lambda r: r.slack)
    if row.violation > run.certificate.eps2:
        distance = f"over by {row.violation:.1g}"
    else:
        distance = f"{row.slack:.1g} to spare" if row.slack > run.certificate.eps2 else "at the limit"
    return f"{row.value:.4g} of {row.cap:.4g} at {row.site}, {distance}"


def table(runs: Mapping[str, Run], data_differ: bool = False) -> str:
    """Return a table with a row for each run, or each setting of several seeds; a narrow terminal wraps whole lines."""
    if sweep.has_repetitions(runs):
        titles, settings = sweep.summary_lines(runs)
        lines = text_table(titles, settings, [0])
        return "\n".join([*lines, caption(runs, data_differ)])
    epsilons = {name: total_epsilon(run) for name, run in runs.items()}
    methods = {name: str(run.settings["algorithm"]["name"]) for name, run in runs.items()}
    has_constraints = any(run.certificate.rows for run in runs.values())
    columns: dict[str, list[str]] = {"run": list(runs)}
    if any(methods[name] not in name for name in runs):
        columns["method"] = list(methods.values())
    columns["objective"] = [
        "not measured" if run.certificate.silent else f"{run.objective:.6g}" for run in runs.values()
    ]
    if has_constraints:
        columns["worst constraint"] = [worst(run) for run in runs.values()]
    columns["stationarity"] = [
        "not measured" if run.certificate.silent else f"{run.certificate.stationarity:.1e}" for run in runs.values()
    ]
    columns["rounds"] = [f"{run.rounds}{'' if run.converged else '*'}" for run in runs.values()]
    columns["up"] = [size(run.traffic.up) for run in runs.values()]
    columns["down"] = [size(run.traffic.down) for run in runs.values()]
    columns["time"] = [duration(run.seconds - run.compile_seconds) for run in runs.values()]
    if any(value is not None for value in epsilons.values()):
        title = "epsilon, simulated" if any(map(noise_from_seed, runs.values())) else "epsilon"
        columns[title] = ["none" if value is None else f"{value:.3g}" for value in epsilons.values()]
    for name in ("sensitivity", "specificity", "accuracy", "r2", "mae"):
        cells = [figure_cell(name, run)[1] for run in runs.values()]
        if any(cell != "–" for cell in cells):
            columns[f"{TITLES[name][0].lower()}, new rows"] = cells
    titles = list(columns)
    left = [j for j, title in enumerate(titles) if title in ("run", "method", "worst constraint")]
    lines = text_table(titles, list(zip(*columns.values(), strict=True)), left)
    return "\n".join([*lines, caption(runs, data_differ)])


def caption(runs: Mapping[str, Run], data_differ: bool = False) -> str:
    """Return how the figures were measured, and a sentence where the runs are of different problems."""
    text = "Measured over all sites at the returned model; stationarity is 0 at an optimum; time is without compiling."
    if sweep.has_repetitions(runs):
        text = "Mean ± standard deviation over the seeds of a setting, measured over all sites at the returned model; "
        text += "sent bytes and time are means, time without compiling."
    elif not all(run.converged for run in runs.values()):
        text += "\n* ended before its stopping test was passed."
    if data_differ:
        text += "\nThese runs are about different data, so their objectives do not compare."
    elif not one_problem(runs):
        text += "\nThese runs solve different problems, so none of them is the best"
        text += "; the report draws the cap against the objective." if curves(runs) else "."
    return text


def data_differ(folders: Iterable[Path]) -> bool:
    """Return whether run directories, as far as they say, are about different rows or prepare them differently.

    Where every setting was run with the same seeds, divisions that follow the seed are repetitions and no difference.
    """
    problems: dict[object, set[str]] = {}  # by seed
    seeds: dict[str, list[object]] = {}  # by algorithm
    for folder in folders:
        try:
            record = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
            settings = record["settings"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a run that Python saved says nothing about its data
        parts = [settings.get(part) for part in ("data", "partition", "preprocess")]
        problems.setdefault(settings.get("seed"), set()).add(repr([*parts, record.get("sites")]))
        seeds.setdefault(repr(settings.get("algorithm")), []).append(settings.get("seed"))
    if len({tuple(sorted(map(str, own))) for own in seeds.values()}) > 1:
        return len(set().union(*problems.values())) > 1
    return any(len(of_seed) > 1 for of_seed in problems.values())


def summary(runs: Mapping[str, Run]) -> list[Json]:
    """Return the figures of the table for programs."""
    return [
        {
            "run": name,
            "algorithm": run.settings["algorithm"]["name"],
            "objective": run.objective,
            "worst_slack": min((row.slack for row in run.certificate.rows), default=None),
            "stationarity": run.certificate.stationarity,
            "certified": run.certificate.holds(),
            "converged": run.converged,
            "rounds": run.rounds,
            "bytes_up": run.traffic.up,
            "bytes_down": run.traffic.down,
            "seconds": run.seconds - run.compile_seconds,
            "epsilon": total_epsilon(run),
            "simulated": noise_from_seed(run),
            "evaluation": None if run.evaluation is None else run.evaluation.to_json()["overall"],
        }
        for name, run in runs.items()
    ]
