"""foedus study: every algorithm on every problem that it solves, measured to stated accuracies."""

from pathlib import Path
from typing import Annotated

import typer

from foedus.errors import FoedusError

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
    from foedus.papers.experiment import progress
    from foedus.study import grid
    from foedus.study import growth as growing
    from foedus.study.methods import find_own
    from foedus.study.rows import Results

    if only is not None and (growth or write):
        raise FoedusError("--only names rows of the grid; leave --growth and --write out.")
    for name, folder in (("--out", out), ("--docs", docs)):
        if folder.exists() and not folder.is_dir():
            raise FoedusError(f"{name} {folder}: this is a file; expected a folder.")
    own, scale = find_own(algorithm or []), grid.QUICK if quick else grid.FULL
    results = Results(out / f"{scale.name}.jsonl")
    laws = Results(out / "growth.jsonl", growing.FIELDS)
    if write:
        from foedus.study.page import write_page

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
