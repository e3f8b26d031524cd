"""Figures 2-5 of the FedEPM paper, under the printed and the released stopping rule."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from foedus.algorithms import FedEPM
from foedus.algorithms.epm import EpmMethod
from foedus.app.solve import solve
from foedus.problem.problem import Problem
from foedus.runtime.run import Run
from foedus_lab.papers import drawing
from foedus_lab.papers.experiment import Options, PaperExperiment, progress, tracked
from foedus_lab.papers.fedepm_examples import EPSILON, RHO, RULES, STEPS, algorithms, instance, optimum
from foedus_lab.papers.table import PaperTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"SFedAvg": "#0072b2", "SFedProx": "#e69f00", "FedEPM": "#d55e00"}
MOST_ROUNDS = 500
# rounds of FedEPM in the authors' code at ρ = 0.5, noise 0.1, for k0 = 4, 8, 12, 16, 20, and its objectives, by m
TARGETS = {50: (16.4, 10.6, 9.0, 8.6, 7.8), 100: (15.8, 10.8, 9.6, 9.0, 7.6)}
OBJECTIVES = {50: 0.542, 100: 0.567}


Attempt: TypeAlias = tuple[int, EpmMethod]
"""A number of clients and an algorithm with its settings."""


@dataclass(frozen=True)
class Factors:
    """The factors of section VII.C of one run; the fields are the columns of the CSV files.

    As in the released code, `rounds` does not count the last exchange, which only serves the stopping test.
    """

    figure: str
    m: int
    k0: int
    rho: float
    epsilon: float
    rule: str
    algorithm: str
    trial: int
    objective: float
    rounds: int
    seconds: float
    snr: float
    ended: bool


def _solve(problem: Problem, algorithm: EpmMethod, trial: int) -> Run:
    run = solve(problem, algorithm, seed=trial, max_rounds=limit_of(algorithm))
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def limit_of(algorithm: EpmMethod) -> int:
    """Return the limit of rounds; it is lower for the others, whose rounds take up to 20 times as long as FedEPM's."""
    return MOST_ROUNDS if isinstance(algorithm, FedEPM) else MOST_ROUNDS // 5


def factors(
    figure: str, m: int, k0: int, rule: str, trial: int, problem: Problem, hopeless: set[Attempt], **more: float
) -> list[Factors]:
    """Run the three algorithms on one cut.

    An algorithm whose first run with these settings reached the limit of rounds goes into `hopeless` and is skipped.
    """
    rho, epsilon = more.get("rho", RHO), more.get("epsilon", EPSILON)
    results = []
    for name, algorithm in algorithms(k0, rule, rho=rho, epsilon=epsilon).items():
        setting = (m, algorithm)
        if setting in hopeless:
            continue
        run = _solve(problem, algorithm, trial)
        ended = run.rounds < limit_of(algorithm)
        if not ended and trial == 0:
            hopeless.add(setting)
        seconds, snr = run.seconds - run.compile_seconds, float(run.history["snr"][-1])
        rounds = run.rounds - ended
        results.append(
            Factors(figure, m, k0, rho, epsilon, rule, name, trial, run.objective, rounds, seconds, snr, ended)
        )
    return results


def _keep(options: Options, name: str, figure: "Figure", caption: str, results: Sequence[Factors]) -> None:
    drawing.keep_figure(options, name, figure, caption)
    drawing.keep_rows(options, name, [vars(line) for line in results])


def _mean(results: Iterable[Factors], field: str, **match: object) -> float:
    values = [getattr(line, field) for line in results if all(getattr(line, k) == v for k, v in match.items())]
    return float(np.mean(values)) if values else float("nan")


def figure_two(options: Options) -> None:
    """Draw Figure 2: f/m against communication rounds, for two m and three k0."""
    sizes, steps = ((50,), (4, 12)) if options.quick else ((50, 100), (4, 12, 20))
    figure, panels = drawing.panels(4.0 * len(steps), 3.2 * len(sizes), len(sizes), len(steps))
    results: list[Factors] = []
    for m, row in zip(sizes, panels, strict=True):
        problem = instance(m, options.seed, 0)
        least = optimum(problem)
        for k0, axes in tracked(list(zip(steps, row, strict=True)), lambda piece, m=m: f"m = {m}, k0 = {piece[0]}"):
            for name, algorithm in algorithms(k0, "printed").items():
                run = _solve(problem, replace(algorithm, stop="gradient"), 0)
                f = run.history["objective"]
                axes.plot(np.arange(len(f)), f, color=COLOURS[name], linewidth=1.4, label=name)
                options.echo(f"m = {m}, k0 = {k0}, {name}: f/m = {run.objective:.4f} after {run.rounds} rounds")
            axes.axhline(least, color="grey", linewidth=0.8, linestyle=":", label="optimum (SciPy)")
            axes.set(title=f"m = {m}, $k_0$ = {k0}", xlabel="communication rounds", xlim=(0, 60))
            for rule in RULES:
                results += factors("fig2", m, k0, rule, 0, problem, set())
            for line in results[-len(COLOURS) :]:  # under the released rule
                options.echo(f"m = {m}, k0 = {k0}, {line.algorithm}, released rule: {line.rounds} rounds")
                if line.ended:
                    axes.plot(line.rounds, line.objective, "o", color=COLOURS[line.algorithm], markersize=5)
        row[0].set_ylabel("$f(w)/m$")
    panels[0, 0].plot([], [], "o", color="grey", label="released rule met")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    _keep(options, "fedepm-fig2", figure, "Adult, ε = 0.1 (nominal: no formal guarantee), ρ = 0.5, one cut", results)


def figure_three(options: Options) -> None:
    """Draw Figure 3: rounds and time against k0, under each stopping rule, with the targets for FedEPM."""
    sizes, steps = ((50,), (4, 20)) if options.quick else ((50, 100), STEPS)
    trials = options.instances(20)
    results: list[Factors] = []
    hopeless: set[Attempt] = set()
    with progress(len(sizes) * trials * len(steps)) as step:
        for m in sizes:
            for trial in range(trials):
                problem = instance(m, options.seed, trial)
                for k0 in steps:
                    step(f"m = {m}, cut {trial + 1} of {trials}, k0 = {k0}")
                    for rule in RULES:
                        results += factors("fig3", m, k0, rule, trial, problem, hopeless)
    for table in _round_tables(results, sizes, steps, trials):
        options.echo(table)
        options.keep(f"fedepm-fig3-m{table.title.split()[2].rstrip(',')}.md", table.markdown().encode())
    figure, panels = drawing.panels(4.0 * len(RULES), 3.2 * 2 * len(sizes), 2 * len(sizes), len(RULES))
    for row, (m, field, label) in zip(
        panels,
        [(m, *pair) for m in sizes for pair in (("rounds", "rounds (CR)"), ("seconds", "seconds (TCT)"))],
        strict=True,
    ):
        for axes, (rule, words) in zip(row, RULES.items(), strict=True):
            for name, colour in COLOURS.items():
                # a run that reached the limit of rounds has no number of rounds to show
                match = {"m": m, "rule": rule, "algorithm": name, "ended": True}
                means = [_mean(results, field, k0=k0, **match) for k0 in steps]
                axes.plot(steps, means, color=colour, marker=".", label=name)
            if (rule, field) == ("released", "rounds"):
                targets = [TARGETS[m][STEPS.index(k0)] for k0 in steps]
                axes.plot(steps, targets, "kx", markersize=5, label="FedEPM, as reported")
            axes.set(xlabel="$k_0$", ylim=(0, 1.15 * axes.get_ylim()[1]), xticks=steps)
            axes.set_title(f"m = {m}, {words}", fontsize=10)
            _silent(axes, [line for line in results if (line.m, line.rule) == (m, rule)])
        row[0].set_ylabel(label)
    handles, labels = panels[0, list(RULES).index("released")].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    over = f"means over {trials} cuts" if trials > 1 else "one cut"
    caption = f"Adult, ε = 0.1 (nominal: no formal guarantee), ρ = 0.5, {over}; without runs that no rule ended"
    _keep(options, "fedepm-fig3", figure, caption, results)


def _silent(axes: "Axes", lines: Sequence[Factors], at: float = 0.96) -> None:
    """Write into a panel which algorithms it does not show, because no rule ended any of their runs."""
    algorithms_with_end = {line.algorithm for line in lines if line.ended}
    if silent := [name for name in COLOURS if name not in algorithms_with_end]:
        words = f"{', '.join(silent)}: no run ended"
        axes.text(0.98, at, words, transform=axes.transAxes, ha="right", va="center", fontsize=8, color="dimgrey")


def _round_tables(results: list[Factors], sizes: Sequence[int], steps: Sequence[int], trials: int) -> list[PaperTable]:
    tables = []
    for m in sizes:
        rows = []
        for rule, words in RULES.items():
            for name in COLOURS:
                for k0 in steps:
                    match = {"m": m, "k0": k0, "rule": rule, "algorithm": name}
                    rounds, objective = _mean(results, "rounds", **match), _mean(results, "objective", **match)
                    target = TARGETS[m][STEPS.index(k0)] if name == "FedEPM" else None
                    lines = [line for line in results if all(getattr(line, k) == v for k, v in match.items())]
                    endings, attempts = sum(line.ended for line in lines), len(lines)
                    first = words if name == next(iter(COLOURS)) and k0 == steps[0] else ""
                    share = f"{endings}/{attempts}"
                    row = [first, name, f"{k0}", f"{objective:.4f}", "", f"{rounds:.1f}", "", "", share]
                    if target is not None:
                        row[4], row[6], row[7] = f"{OBJECTIVES[m]:.3f}", f"{target:.1f}", f"{rounds / target:.2f}"
                    rows.append(tuple(row))
        columns = ("rule", "algorithm", "k0", "f/m", "target", "rounds", "target", "ratio", "ended")
        notes = (
            "rounds: without the last exchange, whose replies only end the run, as the released code counts",
            f"ended: cuts on which a rule ended the run, within {MOST_ROUNDS} rounds, or {MOST_ROUNDS // 5} of the "
            "other two; a setting that misses it on the first cut is not tried on the others",
            "epsilon is nominal: the noise of Eq. (39) has no formal guarantee",
        )
        title = f"m = {m}, {trials} cut{'s' if trials > 1 else ''}, ε = 0.1, ρ = 0.5"
        tables.append(PaperTable(title, columns, tuple(rows), notes))
    return tables


def _boxes(
    options: Options,
    name: str,
    values: Sequence[float],
    label: str,
    make: Callable[[float], dict[str, float]],
    fields: Sequence[tuple[str, str]],
    caption: str,
) -> None:
    """Draw box plots over trials for each value of a setting, with a row for each rule, a column for each factor."""
    trials = options.instances(20)
    results: list[Factors] = []
    hopeless: set[Attempt] = set()
    with progress(trials) as step:
        for trial in range(trials):
            step(f"cut {trial + 1} of {trials}")
            problem = instance(50, options.seed, trial)
            for rule in RULES:
                for value in values:
                    results += factors(name, 50, 12, rule, trial, problem, hopeless, **make(value))
    figure, panels = drawing.panels(4.6 * len(fields), 2.9 * len(RULES), len(RULES), len(fields))
    for row, (rule, words) in zip(panels, RULES.items(), strict=True):
        for axes, (field, unit) in zip(row, fields, strict=True):
            for j, (algorithm, colour) in enumerate(COLOURS.items()):
                mine = [line for line in results if (line.rule, line.algorithm, line.ended) == (rule, algorithm, True)]
                series = [
                    [
                        getattr(line, field)
                        for line in mine
                        if all(getattr(line, k) == v for k, v in make(value).items())
                    ]
                    for value in values
                ]
                axes.boxplot(
                    series,
                    positions=[4.0 * i + j for i in range(len(values))],
                    widths=0.8,
                    patch_artist=True,
                    boxprops={"facecolor": colour, "alpha": 0.75},
                    medianprops={"color": "black" if trials > 1 else colour, "linewidth": 1.0 if trials > 1 else 2.5},
                    flierprops={"marker": "x", "markersize": 4},
                    manage_ticks=False,
                )
                middle = [f"{np.median(part):.3g}" if part else "(not ended)" for part in series]
                options.echo(f"{words}, {algorithm}, {unit}, medians for {label} = {values}: {' '.join(middle)}")
            axes.set_xticks([4.0 * i + 1 for i in range(len(values))], [f"{value:g}" for value in values])
            axes.set(xlabel=label, ylabel=unit, xlim=(-1.0, 4.0 * len(values) - 1.0))
            if field != "snr":
                axes.set_ylim(0, 1.12 * axes.get_ylim()[1])  # room for words above
            axes.set_title(words, fontsize=10)
            # a signal-to-noise ratio rises with ε, so there is room for text below
            _silent(axes, [line for line in results if line.rule == rule], 0.04 if field == "snr" else 0.96)
    from matplotlib.patches import Patch

    keys = [Patch(color=colour, alpha=0.75, label=algorithm) for algorithm, colour in COLOURS.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False)
    _keep(options, f"fedepm-{name}", figure, f"{caption}; {_cuts(trials)}", results)


def _cuts(trials: int) -> str:
    return (
        f"{trials} cuts, without runs that no rule ended" if trials > 1 else "one cut, without runs that no rule ended"
    )


def figure_four(options: Options) -> None:
    """Draw Figure 4: rounds and time against ρ."""
    values = (0.2, 0.6, 1.0) if options.quick else (0.2, 0.4, 0.6, 0.8, 1.0)
    fields = (("rounds", "rounds (CR)"), ("seconds", "seconds (TCT)"))
    caption = "Adult, m = 50, k0 = 12, ε = 0.1 (nominal: no formal guarantee)"
    _boxes(options, "fig4", values, "ρ", lambda rho: {"rho": rho}, fields, caption)


def figure_five(options: Options) -> None:
    """Draw Figure 5: rounds, time and signal-to-noise ratio against the nominal ε."""
    values = (0.1, 0.5, 0.9) if options.quick else (0.1, 0.3, 0.5, 0.7, 0.9)
    fields = (("rounds", "rounds (CR)"), ("seconds", "seconds (TCT)"), ("snr", "SNR, log10"))
    caption = "Adult, m = 50, k0 = 12, ρ = 0.5; ε is nominal: no formal guarantee"
    _boxes(options, "fig5", values, "ε (nominal)", lambda epsilon: {"epsilon": epsilon}, fields, caption)


EXPERIMENTS = (
    PaperExperiment("fedepm-fig2", "FedEPM, Figure 2: objective against rounds", figure_two),
    PaperExperiment("fedepm-fig3", "FedEPM, Figure 3: effect of k0 on rounds and time", figure_three),
    PaperExperiment("fedepm-fig4", "FedEPM, Figure 4: effect of ρ", figure_four),
    PaperExperiment("fedepm-fig5", "FedEPM, Figure 5: effect of the nominal ε", figure_five),
)
