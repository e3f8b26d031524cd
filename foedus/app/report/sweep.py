"""Runs that differ in nothing but their seeds, taken together: a line for each setting, with mean and deviation."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from foedus.app.report import sections, words
from foedus.app.report.charts import Chart, ChartSeries
from foedus.app.report.render import Cell, Column, Line, columns, piece, table
from foedus.base.quantities import count, duration, number, size, spread
from foedus.runtime.run import Run
from foedus.statistics.figures import SHARES, TITLES

SEEDS = ("seed=", "partition_seed=")  # the words of a run's name that tell repetitions apart
CURVES = "mean over the seeds; the band reaches from the smallest to the largest"
HELD = "a run that has ended keeps its last value"


@dataclass(frozen=True)
class SweepSetting:
    """What runs have in common, in the words of their names, and these runs by name."""

    name: str
    runs: Mapping[str, Run]

    @property
    def successes(self) -> int:
        """How many of the runs are certified, or converged where there are no constraints."""
        return sum(words.verdict(run).level == "good" for run in self.runs.values())

    def values(self, figure: "SweepFigure") -> np.ndarray:
        """The figure in each run; NaN where it was not measured."""
        return np.array([figure.of(run) for run in self.runs.values()], dtype=float)


@dataclass(frozen=True)
class SweepFigure:
    """A figure of a run: its name in files, its title, how it is read off, and how a mean is written."""

    key: str
    title: str
    of: Callable[[Run], float]
    text: Callable[[np.ndarray], str]


def settings_of(runs: Mapping[str, Run]) -> list[SweepSetting]:
    """Return the settings that the runs have, in their order; runs that differ in seeds alone are one setting."""
    groups: dict[tuple[str, str], dict[str, Run]] = {}
    for name, run in runs.items():
        common = ", ".join(word for word in name.split(",") if not word.startswith(SEEDS))
        key = common or str(run.settings["algorithm"]["name"])
        groups.setdefault((key, repr(run.settings["algorithm"])), {})[name] = run
    return [SweepSetting(name, own) for (name, _), own in groups.items()]


def has_repetitions(runs: Mapping[str, Run]) -> bool:
    """Whether a setting was run with several seeds."""
    return any(len(setting.runs) > 1 for setting in settings_of(runs))


def figures_of(runs: Mapping[str, Run]) -> list[SweepFigure]:
    """Return the figures that these runs have."""
    every = runs.values()
    figures = [
        SweepFigure("objective", "Objective", lambda run: math.nan if run.certificate.silent else run.objective, spread)
    ]
    if any(run.certificate.rows for run in every):
        figures.append(SweepFigure("violation", "Largest violation", lambda run: run.certificate.feasibility, spread))
    for name in sections.COMPARED:
        if any(run.evaluation is not None and name in run.evaluation.overall for run in every):
            figures.append(SweepFigure(name, f"{TITLES[name][0]}, new rows", _on_new_rows(name), _text_of(name)))
    figures += [
        SweepFigure("rounds", "Rounds", lambda run: run.rounds, spread),
        SweepFigure("bytes", "Sent", lambda run: run.traffic.up + run.traffic.down, _mean_alone(size)),
        SweepFigure("seconds", "Time", lambda run: run.seconds - run.compile_seconds, _mean_alone(duration)),
    ]
    if any(sections.total_epsilon(run) is not None for run in every):
        title = "ε, simulated" if any(map(sections.noise_from_seed, every)) else "ε"
        figures.append(SweepFigure("epsilon", title, lambda run: _or_nan(sections.total_epsilon(run)), spread))
    return figures


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _on_new_rows(name: str) -> Callable[[Run], float]:
    def of(run: Run) -> float:
        return run.evaluation[name].value if run.evaluation is not None and name in run.evaluation.overall else math.nan

    return of


def _text_of(name: str) -> Callable[[np.ndarray], str]:
    return (lambda values: f"{spread(100 * values)} %") if name in SHARES else spread


def _mean_alone(text: Callable[[float], str]) -> Callable[[np.ndarray], str]:
    return lambda values: text(float(np.mean(values)))


def summary_lines(runs: Mapping[str, Run]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the lines of the summary, a line for each setting."""
    figures = figures_of(runs)
    lines = []
    for setting in settings_of(runs):
        cells = [setting.name, f"{setting.successes} of {len(setting.runs)}"]
        lines.append(cells + [_text(figure, setting) for figure in figures])
    return ["Setting", "Ended well", *(figure.title for figure in figures)], lines


def _text(figure: SweepFigure, setting: SweepSetting) -> str:
    values = setting.values(figure)
    values = values[np.isfinite(values)]
    return figure.text(values) if len(values) else "–"


def _cell(figure: SweepFigure, setting: SweepSetting) -> Cell:
    values, (mean, sign, deviation) = setting.values(figure), _text(figure, setting).partition(" ± ")
    finite = values[np.isfinite(values)]
    unit = " %" if deviation.endswith(" %") else ""
    return Cell(mean + unit, float(finite.mean()) if len(finite) else math.inf, f"± {deviation}" if sign else "")


def summary_csv(runs: Mapping[str, Run]) -> str:
    """Return the summary as a CSV file: a line for each setting, with mean and deviation of each figure."""
    figures, text = figures_of(runs), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [f"{figure.key}_{part}" for figure in figures for part in ("mean", "sd")]
    writer.writerow(["setting", "algorithm", "runs", "ended_well", *heads])
    for setting in settings_of(runs):
        method = next(iter(setting.runs.values())).settings["algorithm"]["name"]
        row = [setting.name, method, len(setting.runs), setting.successes]
        for figure in figures:
            values = setting.values(figure)
            values = values[np.isfinite(values)]
            row.append(repr(float(values.mean())) if len(values) else "")
            row.append(repr(float(values.std(ddof=1))) if len(values) > 1 else "")
        writer.writerow(row)
    return text.getvalue()


def summary_table(runs: Mapping[str, Run]) -> Markup:
    """Return the summary as a table, a line for each setting."""
    figures = figures_of(runs)
    lines = []
    for i, setting in enumerate(settings_of(runs)):
        share = setting.successes / len(setting.runs)
        kind = "met" if share == 1 else "binding" if share else "broken"
        badge = piece("badge", kind, f"{setting.successes} of {len(setting.runs)}")
        cells = [_cell(figure, setting) for figure in figures]
        lines.append(Line(setting.name, [Cell(badge, share), *cells], colour=i % 8))
    heads = [Column("Setting", ""), Column("Ended well", "v"), *columns(*(figure.title for figure in figures))]
    note = "Mean ± standard deviation over the runs of a setting, which differ in their seeds; sent bytes and time are "
    note += "means, time without compiling. A run ended well if it is certified, or converged without constraints."
    return table(heads, lines, "sortable runs evidence") + piece("note", note)


def curves(charts: Sequence[Chart], runs: Mapping[str, Run]) -> list[Chart]:
    """Return the charts with a line for each setting, the mean of its runs, in a band from least to greatest."""
    settings = settings_of(runs)
    result = []
    for chart in charts:
        by_run = {series.name: series for series in chart.series}
        lines = [
            _curve(setting.name, [by_run[name] for name in setting.runs if name in by_run], i % 8)
            for i, setting in enumerate(settings)
            if any(name in by_run for name in setting.runs)
        ]
        lengths = {len(series.y) for series in chart.series}
        remark = "; ".join([chart.words, CURVES, *([HELD] if len(lengths) > 1 else [])])
        result.append(replace(chart, series=tuple(lines), words=remark))
    return result


def _curve(name: str, series: Sequence[ChartSeries], colour: int) -> ChartSeries:
    rounds = max(len(one.y) for one in series)
    ends = [np.minimum(np.arange(rounds), len(one.y) - 1) for one in series]
    y = np.array([one.y[index] for one, index in zip(series, ends, strict=True)])
    traffic = np.array([one.bytes_sent[index] for one, index in zip(series, ends, strict=True)])
    band = (y.min(axis=0), y.max(axis=0)) if len(series) > 1 else None
    return ChartSeries(name, y.mean(axis=0), traffic.mean(axis=0), colour, band)


def verdict(runs: Mapping[str, Run], alike: bool, data_differ: bool) -> words.Verdict:
    """Say how many runs ended well, and which setting has the least mean objective where all solve one problem."""
    settings = settings_of(runs)
    good = sum(setting.successes for setting in settings)
    has_terms = any(words.constrained(run) for run in runs.values())
    success = "certified" if has_terms else "reached their stopping test"
    seeds = sorted({len(setting.runs) for setting in settings})
    each = count(seeds[0], "seed") if len(seeds) == 1 else f"{number(seeds[0])} to {count(seeds[-1], 'seed')}"
    title = f"{count(len(settings), 'setting')} with {each} each"
    sentences = [f"{number(good)} of {count(len(runs), 'run')} {success}."]
    objective = figures_of(runs)[0]
    if alike or data_differ:
        usable = [s for s in settings if s.successes == len(s.runs)] or settings
        means = {s.name: float(np.mean(s.values(objective))) for s in usable}
        finite = {name: mean for name, mean in means.items() if math.isfinite(mean)}
        if alike and len(finite) > 1:
            best = next(s for s in usable if s.name == min(finite, key=lambda name: finite[name]))
            whose = "settings that ended well with every seed" if usable != settings else "settings"
            sentences.append(f"The smallest mean objective among {whose} is {_text(objective, best)}, by {best.name}.")
        elif data_differ:
            sentences.append("Data differ between runs: compare settings whose data are the same.")
    else:
        sentences.append("The settings are different problems, so no objective is better than another.")
    level = "good" if good == len(runs) else "fair" if good else "bad"
    return words.Verdict(level, title, tuple(sentences))


def warnings(runs: Mapping[str, Run]) -> list[str]:
    """Return what a careful reader should know, once for each setting; that runs did not converge the table says."""
    remarks: dict[str, dict[str, int]] = {}
    for setting in settings_of(runs):
        for run in setting.runs.values():
            for text in words.warnings(run):
                if not text.startswith(words.UNFINISHED):
                    counts = remarks.setdefault(text, {})
                    counts[setting.name] = counts.get(setting.name, 0) + 1
    return [f"{words.join_names(list(counts))}: {text}" for text, counts in remarks.items()]
