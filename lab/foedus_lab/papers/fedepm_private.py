"""A figure that the FedEPM paper does not have: the objective against the ε that is really spent, with sound noise."""

from dataclasses import dataclass, replace

import numpy as np

from foedus.algorithms import FedEPM
from foedus.app.solve import solve
from foedus.privacy.budget import Budget
from foedus.privacy.noise import Gaussian, Laplace
from foedus.problem.problem import Problem
from foedus.runtime.run import Run
from foedus_lab.papers import drawing
from foedus_lab.papers.experiment import Options, PaperExperiment, tracked
from foedus_lab.papers.fedepm_examples import even, optimum

CLIP = 0.0376  # in the 1-norm; the columns have length 1, so the rows are short
DELTA = 1e-5  # of the Gaussian mechanism


@dataclass(frozen=True)
class PrivateResult:
    """One run with sound noise: its ε, and its objective, also as a ratio to the noiseless optimum."""

    mechanism: str
    epsilon: float
    delta: float
    rounds: int
    k0: int
    clip: float
    restart: bool
    trial: int
    objective: float
    ratio: float


def private_run(
    problem: Problem, total: float, kind: str, rounds: int, trial: int, *, clip: float = CLIP, **more: float
) -> tuple[Run, FedEPM]:
    """Run FedEPM with sound noise that spends `total` in this many rounds.

    Laplace noise is accounted for by basic composition, Gaussian noise by RDP at δ = 1e-5. `more` are settings of
    `FedEPM`.
    """
    if kind == "laplace":
        noise, budget = Laplace(epsilon=total / rounds, clip=clip), Budget(total)
    else:
        noise, budget = gaussian_for(total, DELTA, rounds, clip), Budget(total * (1 + 1e-6), DELTA, "rdp")
    usual = FedEPM(noise=noise, k0=1, rho=1.0, eta=1e-7, lam=0.0, mu0=0.0286, alpha=1.0, restart=True)
    algorithm = replace(usual, **more)
    run = solve(problem, algorithm, budget=budget, seed=trial, max_rounds=rounds)
    return run, algorithm


def gaussian_for(total: float, delta: float, rounds: int, clip: float) -> Gaussian:
    """Return Gaussian noise of which `rounds` releases cost `total` at δ by RDP, by bisection."""
    from foedus.privacy import composition

    low, high = 1e-4, total
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        ratio = 1.0 / Gaussian(epsilon=middle, delta=delta, clip=clip).multiplier
        cost = composition.total("gaussian", {ratio: rounds}, delta, "rdp")
        low, high = (middle, high) if cost <= total else (low, middle)
    return Gaussian(epsilon=low, delta=delta, clip=clip)


def figure_epsilon(options: Options) -> None:
    """Draw the objective against the total ε, for sound mechanisms on Adult, divided evenly among 50 clients."""
    values = (1.0, 8.0) if options.quick else (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    trials = options.instances(5)
    problem = even(50, options.seed)
    least = optimum(problem)
    series = {
        "Laplace, restart, 8 rounds": ("laplace", 8, {}),
        "Laplace, restart, 24 rounds": ("laplace", 24, {}),
        "Gaussian, restart, 24 rounds": ("gaussian", 24, {}),
        "Laplace, carried state, 24 rounds": ("laplace", 24, {"restart": False, "eta": 3e-5}),
    }
    results: list[PrivateResult] = []
    figure, panels = drawing.panels(7.5, 4.2, 1, 1)
    axes = panels[0, 0]
    for (label, (kind, rounds, more)), colour in zip(
        series.items(), ("#0072b2", "#56b4e9", "#d55e00", "#009e73"), strict=True
    ):
        means = []
        for total in tracked(values, lambda total, label=label: f"{label}, ε = {total:g}"):
            ratios = []
            for trial in range(trials):
                run, algorithm = private_run(problem, total, kind, rounds, trial, **more)
                ratios.append(run.objective / least)
                assert run.ledger is not None
                epsilon = run.ledger.total(0, "basic" if kind == "laplace" else "rdp", delta=DELTA)
                at = 0.0 if kind == "laplace" else DELTA
                results.append(
                    PrivateResult(
                        label, epsilon, at, run.rounds, algorithm.k0, CLIP, algorithm.restart, trial, run.objective,
                        ratios[-1],
                    )
                )  # fmt: skip
            means.append(float(np.mean(ratios)))
            options.echo(f"{label}, ε = {total:g}: {means[-1]:.4f} of the noiseless optimum {least:.4f}")
        axes.plot(values, means, marker="o", color=colour, label=label)
    axes.axhline(1.05, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(np.log(2.0) / least, color="grey", linewidth=0.8, linestyle="--", label="nothing learnt")
    axes.set(xscale="log", xlabel="total ε of a client (Gaussian: at δ = 1e-5, RDP)")
    axes.set(ylabel="objective / noiseless optimum (dotted: 5 % above)", xticks=values)
    axes.set_ylim(0.99, min(1.6, max(1.1, *(line.ratio for line in results)) * 1.02))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.legend(frameon=False)
    caption = f"Adult, m = 50, even parts; replace-one neighbours; {trials} seeds"
    drawing.keep_figure(options, "fedepm-epsilon", figure, caption)
    drawing.keep_rows(options, "fedepm-epsilon", [vars(line) for line in results])


EXPERIMENTS = (
    PaperExperiment("fedepm-epsilon", "FedEPM, not in the paper: objective against the ε really spent", figure_epsilon),
)
