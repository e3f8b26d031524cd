"""foedus study: every algorithm on every problem that it solves, measured to stated accuracies."""

from pathlib import Path
from typing import Annotated

import typer

from foedus.errors import FoedusError


def study(
    only: Annotated[
        str | None,
        typer.Option(help="Measure these rows again, as logistic/w8a/FedGiA[/default[/0]].", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data, three seeds, one setting tried in tuning.")
    ] = False,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="An algorithm of yours that takes part too, as module:Class.", show_default=False),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the page, pictures and CSV into this folder and measure nothing.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the results, which a later call goes on from.")] = Path(
        "out/study"
    ),
) -> None:
    """Compare all algorithms on all problems: rounds, bytes, gradients and seconds to four accuracies."""
    from foedus.papers.experiment import progress
    from foedus.study import grid
    from foedus.study.methods import find_own
    from foedus.study.rows import Results

    own = find_own(algorithm or [])
    scale = grid.QUICK if quick else grid.FULL
    if out.exists() and not out.is_dir():
        raise FoedusError(f"--out {out}: is a file; expected a folder.")
    results = Results(out / f"{scale.name}.jsonl")
    if write is not None:
        from foedus.study.page import write_page

        for path in write_page(list(results), scale, write):
            typer.echo(f"written: {path}")
        return
    wanted = grid.select(only, scale, own) if only is not None else list(grid.cells(scale, own))
    clock = grid.stopwatch()
    with progress(len(wanted)) as begin:
        grid.Study(scale, results, typer.echo).run(wanted, only is not None, begin)
    typer.echo(f"{len(wanted)} rows in {results.path}; {clock():.0f} processor seconds now")
