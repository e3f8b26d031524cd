"""Figures 1-3 of the constrained-learning paper: ProxAL's outer iterations, models with and without constraints."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foedus.algorithms import ProxAL
from foedus.app.solve import solve
from foedus.base.errors import FoedusError
from foedus.problem.problem import Problem
from foedus.runtime.run import Run
from foedus_lab.papers import drawing
from foedus_lab.papers.experiment import Options, PaperExperiment, tracked
from foedus_lab.papers.proxal_examples import (
    CAP,
    FAIR,
    GAP,
    PEARSON,
    Settings,
    available_sets,
    class_losses,
    disparities,
    fairness,
    starts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# as in the paper, the bounded quantity is blue and the minimised one brown; the pair suits limited colour vision too
BOUNDED, MINIMISED = "#0072b2", "#a6611a"
SIZES = (5, 10, 20)

Measure = Callable[[Problem, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _solve(problem: Problem, algorithm: ProxAL, w0: np.ndarray, most: int | None = None) -> Run:
    run = solve(problem, algorithm, w0=w0, max_rounds=most)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def outer_points(problem: Problem, algorithm: ProxAL, w0: np.ndarray) -> tuple[Run, list[np.ndarray]]:
    """Return a run and its outer iterates w⁰, w¹, …

    A run does not record its iterates, so it is repeated up to the round that announces each of them.
    """
    run = _solve(problem, algorithm, w0)
    announcements = np.flatnonzero(run.history["phase"] == 0)
    return run, [w0] + [_solve(problem, algorithm, w0, int(k)).w for k in announcements if k > 0]


def _course(axes: "Axes", least: np.ndarray, constraint: np.ndarray, limit: float) -> "Axes":
    """Draw two quantities of all clients over the outer iterations: the mean as a line, the range as a band.

    Args:
        axes: the axes of the bounded quantity.
        least: the quantity that is minimised, (iterations, clients).
        constraint: the quantity that is constrained, (iterations, clients).
        limit: the bound on `constraint`.

    Returns:
        The axes of the minimised quantity, with a scale of its own on the right.
    """
    k = np.arange(len(constraint))
    right = axes.twinx()
    right.spines["top"].set_visible(False)
    for scale, values, colour in ((axes, constraint, BOUNDED), (right, least, MINIMISED)):
        scale.fill_between(k, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.2, linewidth=0)
        scale.plot(k, values.mean(axis=1), color=colour, linewidth=1.6, marker="." if len(k) < 20 else None)
        scale.tick_params(axis="y", colors=colour)
    axes.axhline(limit, color="black", linestyle="--", linewidth=0.9)
    axes.set_xlabel("outer iterations")
    axes.xaxis.get_major_locator().set_params(integer=True)  # pyright: ignore[reportCallIssue]
    return right


def _print_run(options: Options, name: str, n: int, run: Run) -> None:
    options.echo(f"{name}, n = {n}: {run.rounds} rounds, {run.reason}; {run.certificate.verdict()}")


def figure_one(options: Options) -> None:
    """Draw Figure 1: the clients' losses on both classes over the outer iterations, n = 5."""
    sets, absent = available_sets()
    figure, panels = drawing.panels(4.2 * len(sets), 3.6, 1, len(sets))
    for axes, examples in tracked(list(zip(panels[0], sets, strict=True)), lambda piece: piece[1].name):
        problem = examples.problem(5, options.seed)
        w0 = starts(options.seed, 1, problem.terms.dim)[0]
        run, points = outer_points(problem, PEARSON.ours(), w0)
        _print_run(options, examples.name, 5, run)
        zero, one = (np.array(part) for part in zip(*(class_losses(problem, w) for w in points), strict=True))
        right = _course(axes, zero, one, CAP)
        axes.set_title(f"{examples.name} (n = 5)", fontsize=10)
        if examples is sets[0]:
            axes.set_ylabel("loss on class 1 (dashed: its cap)", color=BOUNDED)
        if examples is sets[-1]:
            right.set_ylabel("loss on class 0, which is minimised", color=MINIMISED)
    for sentence in absent:
        options.echo(sentence)
    drawing.keep_figure(
        options, "proxal-fig1", figure, "Losses at the clients over the outer iterations: mean and range"
    )


def figure_two(options: Options) -> None:
    """Draw Figure 2: loss and loss gap of the clients, and the gap at the server, by outer iteration on adult-b."""
    sizes = SIZES[:1] if options.quick else SIZES
    figure, panels = drawing.panels(4.2 * len(sizes), 3.6, 1, len(sizes))
    for axes, n in tracked(list(zip(panels[0], sizes, strict=True)), lambda piece: f"n = {piece[1]}"):
        problem = fairness(n, options.seed)
        w0 = starts(options.seed, 1, problem.terms.dim)[0]
        run, points = outer_points(problem, FAIR.ours(), w0)
        _print_run(options, "adult-b", n, run)
        loss, gap = (np.array(part) for part in zip(*(disparities(problem, w) for w in points), strict=True))
        right = _course(axes, loss, gap[:, :-1], GAP)
        axes.plot(gap[:, -1], color=BOUNDED, linestyle="-.", linewidth=1.2, label="at the server")
        axes.set_title(f"adult-b (n = {n})", fontsize=10)
        if n == sizes[0]:
            axes.set_ylabel("loss gap (dashed: its bound)", color=BOUNDED)
            axes.legend(frameon=False, labelcolor=BOUNDED)
        if n == sizes[-1]:
            right.set_ylabel("loss, which is minimised", color=MINIMISED)
    drawing.keep_figure(
        options,
        "proxal-fig2",
        figure,
        "Loss and its gap between the sexes over the outer iterations: clients' mean and range",
    )


def _boxes(axes: "Axes", by_size: Sequence[tuple[np.ndarray, np.ndarray]], sizes: Sequence[int]) -> None:
    """Draw two boxes over the clients for each number of clients: with and without constraints."""
    for column, (colour, side) in enumerate(((BOUNDED, -0.35), (MINIMISED, 0.35))):
        axes.boxplot(
            [pair[column] for pair in by_size],
            positions=[2.0 * i + side for i in range(len(sizes))],
            widths=0.55,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.75},
            medianprops={"color": "black"},
            flierprops={"marker": ".", "markersize": 4},
            manage_ticks=False,
        )
    axes.set_xticks([2.0 * i for i in range(len(sizes))], [str(n) for n in sizes])
    axes.spines["right"].set_visible(False)


def figure_three(options: Options) -> None:
    """Draw Figure 3: the clients' losses and the bounded quantity, with and without the constraints."""
    sizes = SIZES[:1] if options.quick else SIZES
    sets, absent = available_sets()
    cases: list[tuple[str, Callable[[int], tuple[Problem, Problem]], Settings, Measure, float]] = [
        (
            examples.name,
            lambda n, examples=examples: (
                examples.problem(n, options.seed),
                examples.without_constraints(n, options.seed),
            ),
            PEARSON,
            class_losses,
            CAP,
        )
        for examples in sets
    ]
    try:
        fairness(1, options.seed)
        both = lambda n: (fairness(n, options.seed), fairness(n, options.seed, with_constraints=False))  # noqa: E731
        cases.append(("adult-b", both, FAIR, disparities, GAP))
    except FoedusError as error:
        absent.append(f"adult-b left out: {error}")
    figure, panels = drawing.panels(3.3 * len(cases), 5.6, 2, len(cases))
    for (upper, lower), (name, make, settings, measure, limit) in zip(panels.T, cases, strict=True):
        least, constraint = [], []
        for n in tracked(sizes, lambda n, name=name: f"{name}, n = {n}"):
            pair = []
            for problem, words in zip(make(n), ("constrained", "unconstrained"), strict=True):
                run = _solve(problem, settings.ours(), starts(options.seed, 1, problem.terms.dim)[0])
                _print_run(options, f"{name}, {words}", n, run)
                pair.append(measure(problem, run.w))
            least.append((pair[0][0], pair[1][0]))
            constraint.append((pair[0][1], pair[1][1]))
        _boxes(upper, least, sizes)
        _boxes(lower, constraint, sizes)
        lower.axhline(limit, color="black", linestyle="--", linewidth=0.9)
        fair = measure is disparities
        upper.set_title(name, fontsize=10)
        upper.set_ylabel("loss" if fair else "loss on class 0")
        lower.set(xlabel="number of clients", ylabel="loss gap" if fair else "loss on class 1")
    from matplotlib.patches import Patch

    words = ("with constraints (dashed: the bound)", "without")
    keys = [
        Patch(color=colour, alpha=0.75, label=text) for colour, text in zip((BOUNDED, MINIMISED), words, strict=True)
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False)
    for sentence in absent:
        options.echo(sentence)
    drawing.keep_figure(options, "proxal-fig3", figure, "Losses over the clients, with and without constraints")


EXPERIMENTS = (
    PaperExperiment("proxal-fig1", "ProxAL, Figure 1: losses over the outer iterations, Neyman-Pearson", figure_one),
    PaperExperiment(
        "proxal-fig2", "ProxAL, Figure 2: loss and loss gap over the outer iterations, fairness", figure_two
    ),
    PaperExperiment("proxal-fig3", "ProxAL, Figure 3: models with and without constraints", figure_three),
)
