"""DRFL (Bai, Wong, Qiao and Ho, *Distributionally robust federated learning: an ADMM algorithm*): Figures 1-5."""

import numpy as np

from foedus_lab.papers import drawing
from foedus_lab.papers.drfl_examples import (
    ABALONE,
    BREAST,
    BREAST_IMBALANCED,
    COARSE,
    FOLDS,
    FULL,
    HEART,
    HEART_IMBALANCED,
    MODELS,
    Setting,
    TwoClientExample,
    resilience,
)
from foedus_lab.papers.experiment import Options, PaperExperiment, progress, tracked

COLOURS = dict(zip(MODELS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000"), strict=True))
# lines that coincide stay visible: DRFL's is the widest and lowest, and the others are dashed
LINES = dict(zip(MODELS, ("-", "--", (0, (1, 1)), "-.", (0, (4, 3))), strict=True))
# probabilities of coverage in Figure 1
LEVELS = np.round(np.arange(0.1, 1.0001, 0.05), 2)


def figure_one(options: Options) -> None:
    """Draw Figure 1: how often the sets of DRFL and WAFL contain the truth, and how large they then are.

    The paper does not print its atoms, so they are drawn at random: once with both clients in the same interval, and
    once with client 2 ten away.
    """
    count = options.instances(10)
    trials, volume = (100, 2000) if options.quick else (1000, 10_000)
    radii = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 200)])
    figure, panels = drawing.panels(9.0, 7.2, 2, 2)
    for line, apart, words in zip(panels, (0.0, 10.0), ("clients alike", "clients 10 apart"), strict=True):
        results = [
            _coverage(TwoClientExample.draw(options.seed + k, apart), (options.seed, k, 65), trials, volume)
            for k in tracked(range(count), lambda k, words=words: f"{words}, example {k + 1} of {count}")
        ]
        need, least, sizes = (np.stack(part) for part in zip(*results, strict=True))
        coverage = np.mean(need[..., None] <= radii, axis=2)
        for axes, values, x, labels in (
            (line[0], coverage, radii, ("radius ρ", "P(the truth is in the set)")),
            (line[1], sizes, LEVELS, ("P(the truth is in the set)", "normalised volume")),
        ):
            for i, model in enumerate(("DRFL", "WAFL")):
                axes.plot(x, np.median(values[:, i], axis=0), color=COLOURS[model], label=model)
                low, high = values[:, i].min(axis=0), values[:, i].max(axis=0)
                axes.fill_between(x, low, high, color=COLOURS[model], alpha=0.15, linewidth=0)
            axes.set(xlabel=labels[0], ylabel=labels[1])
            axes.set_title(words, fontsize=9)
        line[0].set_xscale("symlog", linthresh=1e-3)
        line[1].set_yscale("symlog", linthresh=1e-3)
        radius, size = (int(np.sum(v[:, 0].mean(axis=1) < v[:, 1].mean(axis=1))) for v in (least, sizes))
        options.echo(
            f"{words}: in {radius} of {count} drawn examples DRFL needs the smaller radius, in {size} its set is "
            "smaller (means over the levels)"
        )
    panels[0, 0].legend(frameon=False)
    drawing.keep_figure(options, "drfl-fig1", figure, f"Example 4.1 over {count} drawn examples: median and range")


def _coverage(
    example: TwoClientExample, seed: tuple[int, ...], trials: int, volume: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for DRFL and WAFL the radius that each trial needs, the least radius by level, and the volume there.

    The volume is the share of uniformly drawn distributions that the set contains.
    """
    rng = np.random.default_rng(seed)
    p, q = (np.stack(part) for part in zip(*(example.sample(rng) for _ in range(trials)), strict=True))
    need = np.stack(example.least_radii(np.broadcast_to(example.p, p.shape), np.broadcast_to(example.q, q.shape), p, q))
    least = np.quantile(need, LEVELS, axis=1, method="higher").T
    centre = [np.broadcast_to(part, (volume, *part.shape)) for part in example.sample(rng)]
    others = rng.dirichlet(np.ones(3), size=(volume, 2)), rng.dirichlet(np.ones(2), size=volume)
    radii = np.stack(example.least_radii(*others, *centre))
    return need, least, np.mean(radii[:, None, :] <= least[..., None], axis=2)


def _panels(options: Options, name: str, settings: tuple[Setting, ...]) -> None:
    """Draw a figure with a row for each data set and a column for each sweep of the noise."""
    count = options.instances(10)
    grids, folds = (COARSE, 2) if options.quick else (FULL, FOLDS)
    figure, panels = drawing.panels(12.0, 3.4 * len(settings), len(settings), 3)
    rows: list[dict[str, object]] = []
    first = level = total = 0
    with progress(count * len(settings) * len(MODELS)) as step:
        for line, setting in zip(panels, settings, strict=True):
            runs = [resilience(setting, options.seed + k, grids, folds, step) for k in range(count)]
            scores = {model: np.stack([run[model] for run in runs]) for model in MODELS}  # (seeds, sweeps, levels)
            for s, (axes, sweep) in enumerate(zip(line, setting.sweeps, strict=True)):
                verdict, ahead, near = _verdict({m: scores[m][:, s, -1] for m in MODELS})
                options.echo(f"{setting.name}, {sweep.words}: {verdict}")
                first, level, total = first + ahead, level + near, total + 1
                for model in MODELS:
                    values = scores[model][:, s] * (1.0 if setting.classifies else -1.0)
                    mean, sd = values.mean(axis=0), values.std(axis=0)
                    look: dict[str, object] = {"color": COLOURS[model], "linestyle": LINES[model], "label": model}
                    axes.plot(sweep.levels, mean, marker=".", linewidth=3.0 if model == "DRFL" else 1.4, **look)
                    axes.fill_between(sweep.levels, mean - sd, mean + sd, color=COLOURS[model], alpha=0.1, linewidth=0)
                    for v, m, d in zip(sweep.levels, mean, sd, strict=True):
                        row: dict[str, object] = {
                            "data": setting.name,
                            "panel": sweep.words,
                            "level": f"{v:g}",
                            "model": model,
                        }
                        rows.append(row | {"mean": f"{m:.6g}", "sd": f"{d:.3g}", "seeds": count})
                axes.set_title(f"{setting.name}{', imbalanced' if setting.imbalanced else ''}\n{verdict}", fontsize=8)
                axes.set(xlabel=f"test noise: {sweep.words}", ylabel=setting.measure)
    panels[0, 0].legend(frameon=False, fontsize=7)
    options.echo(
        f"DRFL is at least as good as every rival at the highest noise in {first} of {total} panels; in {level} no "
        "rival is ahead by more than two standard errors"
    )
    drawing.keep_figure(
        options, name, figure, f"Noise in the test data: mean and standard deviation over {count} seeds"
    )
    drawing.keep_rows(options, name, rows)


def _verdict(last: dict[str, np.ndarray]) -> tuple[str, bool, bool]:
    """Compare DRFL with its best rival at the highest noise.

    Returns a sentence, whether no rival is ahead, and whether none is ahead by more than two standard errors. The
    error is that of the mean difference on the same seeds, which share rows and noise.
    """
    rival = max((m for m in MODELS if m != "DRFL"), key=lambda m: last[m].mean())
    apart = last[rival] - last["DRFL"]
    behind = float(apart.mean())
    error = float(apart.std(ddof=1) / np.sqrt(len(apart))) if len(apart) > 1 else float("inf")
    if behind <= 0:
        return "highest noise: no rival ahead of DRFL", True, True
    words = f"highest noise: {rival} ahead of DRFL by {behind:.2g} ± {error:.1g}"
    return words, False, behind <= 2 * error


EXPERIMENTS = (
    PaperExperiment("drfl-fig1", "DRFL, Figure 1: coverage and volume of two ambiguity sets, Example 4.1", figure_one),
    PaperExperiment(
        "drfl-fig2",
        "DRFL, Figure 2: noise resilience, heart and abalone",
        lambda o: _panels(o, "drfl-fig2", (HEART, ABALONE)),
    ),
    PaperExperiment(
        "drfl-fig3", "DRFL, Figure 3: noise resilience, breast-cancer", lambda o: _panels(o, "drfl-fig3", (BREAST,))
    ),
    PaperExperiment(
        "drfl-fig4",
        "DRFL, Figure 4: noise resilience, breast-cancer, imbalanced classes",
        lambda o: _panels(o, "drfl-fig4", (BREAST_IMBALANCED,)),
    ),
    PaperExperiment(
        "drfl-fig5",
        "DRFL, Figure 5: noise resilience, heart, imbalanced classes",
        lambda o: _panels(o, "drfl-fig5", (HEART_IMBALANCED,)),
    ),
)
