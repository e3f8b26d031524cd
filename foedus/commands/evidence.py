"""Commands that show how good a model is: `foedus evaluate` and `foedus frontier`."""

from pathlib import Path
from typing import Annotated

import typer

from foedus.commands.experiment import RunFolder, Separator


def evaluate(
    model: RunFolder,
    tables: Annotated[
        list[Path], typer.Argument(help="Tables of raw rows with the label, one a site.", show_default=False)
    ],
    separator: Separator = ",",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the model of a run directory on new rows; the figures become part of the run and of its report."""
    import json

    from foedus.experiment.evaluate import evaluate_files

    evaluation = evaluate_files(model, tables, separator)
    typer.echo(json.dumps(evaluation.to_json()) if as_json else str(evaluation))
    if not as_json:
        typer.echo(f"\nKept in {model}; open {model / 'report.html'} in a browser.")
