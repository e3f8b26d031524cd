"""Figures 1-6 of the FedGiA paper: its axes and series, on instances drawn here."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from foedus.algorithms import FedGiA
from foedus.algorithms.fedavg import FirstOrder
from foedus.app.solve import solve
from foedus.base.errors import FoedusError
from foedus.problem.problem import Problem
from foedus.runtime.run import Run
from foedus_lab.papers import drawing
from foedus_lab.papers.experiment import Options, PaperExperiment, tracked
from foedus_lab.papers.fedgia_examples import CLIENTS, K0, V1, V2, V3, RegressionExample, linear_regression

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7")  # a palette for readers without full colour vision
STYLES: dict[str, Literal["-", "--"]] = {"gram": "-", "diagonal": "--"}  # as in the paper: Gram solid, diagonal dashed
SUBSCRIPTS = {"gram": "FedGiA$_G$", "diagonal": "FedGiA$_D$"}
MATRICES = ("gram", "diagonal")
# of Figures 4-6; the diagonal FedGiA lies over the Gram one, which it often covers
LOOKS = {
    "FedAvg": {"color": COLOURS[0], "linestyle": "-", "linewidth": 1.4, "zorder": 2},
    "FedProx": {"color": COLOURS[1], "linestyle": "-", "linewidth": 1.4, "zorder": 2},
    "FedPD": {"color": COLOURS[2], "linestyle": "-", "linewidth": 1.4, "zorder": 2},
    "FedGiA_D": {"color": COLOURS[3], "linestyle": "--", "linewidth": 1.4, "zorder": 5},
    "FedGiA_G": {"color": COLOURS[4], "linestyle": "-", "linewidth": 1.8, "zorder": 4},
    "gradient descent": {"color": "black", "linestyle": ":", "linewidth": 1.2, "zorder": 3},
}


def _solve(problem: Problem, algorithm: FirstOrder, trial: int, most: int) -> Run:
    run = solve(problem, algorithm, seed=trial, max_rounds=most)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _panels(width: float, count: int, *, sharey: bool = False) -> "tuple[Figure, np.ndarray]":
    figure, panels = drawing.panels(width, 3.9, 1, count, sharey=sharey)
    for axes in panels[0]:
        axes.grid(alpha=0.3, linewidth=0.6)
    return figure, panels[0]


def _key(figure: "Figure", names: Iterable[str], title: str) -> None:
    """Draw a legend to the right of all panels: colours for the series, line styles for H_i."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, label=name) for colour, name in zip(COLOURS, names, strict=False)]
    handles += [Line2D([], [], color="black", linestyle=STYLES[H], label=SUBSCRIPTS[H]) for H in MATRICES]
    figure.legend(handles=handles, loc="outside right center", title=title, frameon=False)


def figure_one(options: Options) -> None:
    """Draw Figure 1: objective and error against iterations k; a round has k0 of them."""
    steps = (1, 5, 10) if options.quick else (1, 5, 10, 15, 20)
    problem = V1.instance(options.seed, 0)
    figure, (left, right) = _panels(10, 2)
    pieces = [(H, *pair) for H in MATRICES for pair in zip(steps, COLOURS, strict=False)]
    for H, k0, colour in tracked(pieces, lambda piece: f"{piece[0]} H, k0 = {piece[1]}"):
        run = _solve(problem, FedGiA(k0=k0, H=H, t=V1.t, tol=V1.tol), 0, 1000)
        options.echo(f"FedGiA, {H} H, k0 = {k0}: {run.rounds} rounds, {run.reason}")
        # x stays the same between two communications, so the curve is a staircase, as in the paper
        k = np.arange(run.rounds) * k0
        look = {"color": colour, "linestyle": STYLES[H], "linewidth": 1.5, "where": "post"}
        left.step(k, run.history["objective"], **look)
        right.step(k, run.history["gradient"], **look)
    right.axhline(V1.tol, color="grey", linewidth=0.8)
    right.text(0.9, V1.tol, "tol of (35)", transform=right.get_yaxis_transform(), ha="right", va="top", fontsize=8)
    right.set_yscale("log")
    left.set(xlabel="iterations", ylabel="$f(x)$")
    right.set(xlabel="iterations", ylabel="error $\\|\\nabla f(x)\\|^2$")
    _key(figure, [str(k0) for k0 in steps], "$k_0$")
    drawing.keep_figure(
        options, "fedgia-fig1", figure, f"Example V.1, m = {CLIENTS}, α = 0.5, one instance, until rule (35) is met"
    )


def _averages(
    problems: Callable[[int], Problem], algorithms: Sequence[FedGiA], trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each algorithm's mean rounds and median seconds to rule (35); all must meet it on all instances."""
    rounds, seconds = np.zeros((trials, len(algorithms))), np.zeros((trials, len(algorithms)))
    for trial in range(trials):
        problem = problems(trial)
        for j, algorithm in enumerate(algorithms):
            run = _solve(problem, algorithm, trial, 1000)
            if not run.converged:
                raise FoedusError(f"FedGiA(k0={algorithm.k0}, H={algorithm.H!r}) did not meet rule (35): {run.reason}.")
            rounds[trial, j], seconds[trial, j] = run.rounds, run.seconds - run.compile_seconds
    # seconds are a median, so that slow moments of a shared machine do not count
    return rounds.mean(axis=0), np.median(seconds, axis=0)


def figure_two(options: Options) -> None:
    """Draw Figure 2: rounds and time against k0, for several numbers of clients."""
    sizes = (64, 128) if options.quick else (64, 96, 128, 196, 256)
    steps = (1, 5, 10) if options.quick else tuple(range(1, 21))
    trials = options.instances(5)
    figure, (left, right) = _panels(10, 2)
    pieces = [(*pair, H) for pair in zip(sizes, COLOURS, strict=False) for H in MATRICES]
    for m, colour, H in tracked(pieces, lambda piece: f"m = {piece[0]}, {piece[2]} H"):
        algorithms = [FedGiA(k0=k0, H=H, t=V1.t, tol=V1.tol) for k0 in steps]
        rounds, seconds = _averages(lambda trial, m=m: linear_regression(options.seed, trial, m), algorithms, trials)
        options.echo(f"m = {m}, {H} H, k0 = {_list(steps)}: {_list(rounds)} rounds")
        look = {"color": colour, "linestyle": STYLES[H], "marker": ".", "markersize": 4, "linewidth": 1.3}
        left.plot(steps, rounds, **look)
        right.plot(steps, seconds, **look)
    left.set(xlabel="$k_0$", ylabel="communication rounds", ylim=(0, None), xticks=_ticks(steps))
    right.set(xlabel="$k_0$", ylabel="seconds (median)", ylim=(0, None), xticks=_ticks(steps))
    _key(figure, [str(m) for m in sizes], "$m$")
    drawing.keep_figure(options, "fedgia-fig2", figure, f"Example V.1, α = 0.5, to rule (35), over {_count(trials)}")


def figure_three(options: Options) -> None:
    """Draw Figure 3: rounds and time against α, for several k0."""
    shares = (0.2, 0.6, 1.0) if options.quick else tuple(np.round(np.arange(0.1, 1.01, 0.1), 1).tolist())
    steps = (1, 10) if options.quick else (1, 5, 10, 15, 20)
    trials = options.instances(5)
    figure, (left, right) = _panels(10, 2)
    pieces = [(*pair, H) for pair in zip(steps, COLOURS, strict=False) for H in MATRICES]
    for k0, colour, H in tracked(pieces, lambda piece: f"k0 = {piece[0]}, {piece[2]} H"):
        algorithms = [FedGiA(k0=k0, H=H, alpha=alpha, t=V1.t, tol=V1.tol) for alpha in shares]
        rounds, seconds = _averages(partial(V1.instance, options.seed), algorithms, trials)
        options.echo(f"k0 = {k0}, {H} H, α = {_list(shares)}: {_list(rounds)} rounds")
        look = {"color": colour, "linestyle": STYLES[H], "marker": ".", "markersize": 4, "linewidth": 1.3}
        left.plot(shares, rounds, **look)
        right.plot(shares, seconds, **look)
    left.set(xlabel="α, share of clients that take ADMM steps", ylabel="communication rounds", ylim=(0, None))
    right.set(xlabel="α, share of clients that take ADMM steps", ylabel="seconds (median)", ylim=(0, None))
    _key(figure, [str(k0) for k0 in steps], "$k_0$")
    drawing.keep_figure(
        options, "fedgia-fig3", figure, f"Example V.1, m = {CLIENTS}, to rule (35), over {_count(trials)}"
    )


def _ticks(steps: Sequence[int]) -> list[int]:
    return [k0 for k0 in steps if k0 == 1 or k0 % 5 == 0]


def _list(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:.3g}" for number in numbers)


def _count(trials: int) -> str:
    return "one instance" if trials == 1 else f"{trials} instances"


def comparison(example: RegressionExample, name: str, rounds: Sequence[int], options: Options) -> None:
    """Draw one of Figures 4-6: the objective against rounds, with a panel for each k0; `rounds` is the end of each."""
    problem = example.instance(options.seed, 0)
    descent = example.gradient_descent(problem, "gradient")
    figure, panels = _panels(12, len(K0), sharey=True)
    for axes, k0, far in zip(panels, K0, rounds, strict=True):
        most = max(10, far // 10) if options.quick else far
        series = list((example.algorithms(k0, "gradient") | {"gradient descent": descent}).items())
        for label, algorithm in tracked(series, lambda piece, k0=k0: f"k0 = {k0}, {piece[0]}"):
            look = LOOKS[label]
            run = _solve(problem, algorithm, 0, most)
            f, error = run.history["objective"], run.history["gradient"]
            options.echo(f"k0 = {k0}, {label}: f = {f[-1]:.4f} after {run.rounds} rounds")
            count = np.arange(1, len(f) + 1)
            axes.plot(count, f, label=label.replace("_D", "$_D$").replace("_G", "$_G$"), **look)
            for tolerance, marker in ((example.tol * CLIENTS**2, "o"), (example.tol, "s")):
                below = np.flatnonzero(error <= tolerance)
                if len(below):
                    first = below[0]
                    axes.plot(count[first], f[first], marker, color=look["color"], markersize=5, zorder=look["zorder"])
        axes.set(xlabel="communication rounds", title=f"$k_0$ = {k0}", xscale="log")
        axes.xaxis.set_major_formatter("{x:.0f}")
    panels[0].set(ylabel="$f(x)$")
    panels[0].plot([], [], "o", color="grey", label="released test met")
    panels[0].plot([], [], "s", color="grey", label="rule (35) met")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    drawing.keep_figure(options, name, figure, f"{example.title}, m = {CLIENTS}, one instance")


def _against_rounds(number: int, example: RegressionExample, rounds: Sequence[int]) -> PaperExperiment:
    name = f"fedgia-fig{number}"
    title = f"FedGiA, Figure {number}: objective against rounds, Example {example.name}"
    return PaperExperiment(name, title, partial(comparison, example, name, rounds))


EXPERIMENTS = (
    PaperExperiment("fedgia-fig1", "FedGiA, Figure 1: objective and error against iterations", figure_one),
    PaperExperiment("fedgia-fig2", "FedGiA, Figure 2: effect of k0", figure_two),
    PaperExperiment("fedgia-fig3", "FedGiA, Figure 3: effect of α", figure_three),
    _against_rounds(4, V1, (500, 200, 100)),
    _against_rounds(5, V2, (300, 60, 30)),
    _against_rounds(6, V3, (300, 60, 30)),
)
