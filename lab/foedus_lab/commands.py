"""The commands that foedus-lab adds to the command line: reproduce, audit, bench, study."""

from pathlib import Path
from typing import Annotated

import typer

from foedus.base.engine import float64
from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.files import check_folder

AUDIT_QUICK = 10_000  # trials of `audit --quick`, whose bounds are looser

Seed = Annotated[int, typer.Option(help="Keys every random draw.", min=0, max=2**63 - 1)]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller and faster, to see that it works.")]
Out = Annotated[Path, typer.Option(help="The folder to write into.")]
Only = Annotated[
    str | None,
    typer.Option(
        help="Measure only these rows, and anew: logistic/w8a/FedGiA, or one row: logistic/w8a/FedGiA/default/0.",
        show_default=False,
    ),
]
Own = Annotated[
    list[str] | None,
    typer.Option(help="An algorithm of yours that takes part too, as module:Class.", show_default=False),
]


@float64()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment, or 'all'.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    trials: Annotated[int | None, typer.Option(help="How many instances to average over.", min=1)] = None,
    seed: Seed = 0,
    quick: Quick = False,
    out: Out = Path("out"),
) -> None:
    """Repeat a table or figure of a paper: the printed value, ours, the difference. 'all' makes one page of them."""
    from foedus.base.quantities import duration
    from foedus_lab.papers import EXPERIMENTS, Options
    from foedus_lab.papers.album import reproduce_all, reproduce_one
    from foedus_lab.papers.costs import COSTS

    if list_:
        width = max(map(len, EXPERIMENTS), default=0)
        for key, experiment in EXPERIMENTS.items():
            time = f" ({duration(COSTS[key].full)})" if key in COSTS else ""
            typer.echo(f"{key:{width}}  {experiment.title}{time}")
        return
    if name is None:
        raise FoedusError("reproduce needs the name of an experiment; 'foedus reproduce --list' shows them.")
    options = Options(trials=trials, seed=seed, quick=quick, out=out, echo=typer.echo)
    if name == "all":
        check_folder(out)
        reproduce_all(EXPERIMENTS, options)
        return
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, [*EXPERIMENTS, "all"])
        raise FoedusError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}, and all.{hint}")
    check_folder(out)
    reproduce_one(EXPERIMENTS[name], options)


@float64()
def audit(
    trials: Annotated[int, typer.Option(help="Runs on each of the two data sets.", min=100)] = 100_000,
    confidence: Annotated[float, typer.Option(help="The confidence of each bound.", min=0.5, max=0.9999)] = 0.95,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """Test the privacy promises: how well can what is sent tell two data sets apart that differ in one example?"""
    from foedus_lab import audit as auditing
    from foedus_lab.papers.experiment import progress

    with progress(len(auditing.cases())) as begin:
        results = auditing.run(min(trials, AUDIT_QUICK) if quick else trials, seed, confidence, begin)
    typer.echo(auditing.table(results))
    failures = [case.what for case, result in results if not case.weak and result.epsilon > case.promise()[0]]
    if failures:
        raise FoedusError(f"the audit disproves what is promised for {'; '.join(failures)}: please report this.")


@float64()
def bench(
    only: Annotated[str | None, typer.Option(help="Only this part.", show_default=False)] = None,
    quick: Quick = False,
    write: Annotated[Path | None, typer.Option(help="Write the figures into this page.", show_default=False)] = None,
) -> None:
    """Measure this machine: gradients, rounds, many clients, start-up; as ratios taken in one run."""
    from foedus_lab import benchmarks

    benchmarks.run(only, quick, write=write)


@float64()
def study(
    only: Only = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small data, and few settings tried by tuning.")] = False,
    growth: Annotated[bool, typer.Option("--growth", help="Measure how cost grows with the problem's size.")] = False,
    algorithm: Own = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the page from the results, and measure nothing.")
    ] = False,
    docs: Annotated[Path, typer.Option(help="The folder that --write writes study.md into.")] = Path("docs"),
    out: Annotated[Path, typer.Option(help="The folder of the results; a later call goes on from them.")] = Path(
        "out/study"
    ),
) -> None:
    """Compare all algorithms on all problems: rounds, bytes, gradients and seconds to four accuracies."""
    from foedus_lab.papers.experiment import progress
    from foedus_lab.study import grid
    from foedus_lab.study import growth as growing
    from foedus_lab.study.methods import find_own
    from foedus_lab.study.rows import Results

    if only is not None and (growth or write):
        raise FoedusError("--only names rows of the grid; leave --growth and --write out.")
    for name, folder in (("--out", out), ("--docs", docs)):
        if folder.exists() and not folder.is_dir():
            raise FoedusError(f"{name} {folder}: this is a file; expected a folder.")
    own, scale = find_own(algorithm or []), grid.QUICK if quick else grid.FULL
    results = Results(out / f"{scale.name}.jsonl")
    laws = Results(out / "growth.jsonl", growing.FIELDS)
    if write:
        from foedus_lab.study.page import write_page

        full = Results(out / f"{grid.FULL.name}.jsonl")
        for path in write_page(list(results), list(laws), scale, docs, list(full)):
            typer.echo(f"written: {path}")
        return
    clock = grid.stopwatch()
    if growth:
        count = len(list(growing.points(quick)))
        with progress(count) as begin:
            growing.measure(laws, quick, begin, typer.echo)
        typer.echo(f"{count} rows in {laws.path}; {clock():.0f} processor seconds now")
        return
    selection = grid.select(only, scale, own) if only is not None else list(grid.cells(scale, own))
    with progress(len(selection)) as begin:
        grid.Study(scale, results, typer.echo).run(selection, only is not None, begin)
    typer.echo(f"{len(selection)} rows in {results.path}; {clock():.0f} processor seconds now")
