"""Commands that show how good a model is: `foedus evaluate` and `foedus frontier`."""

from pathlib import Path
from typing import Annotated

import typer

from foedus.app.commands.experiment import UNCERTIFIED, File, Quiet, RunFolder, Separator, screen_for
from foedus.base.errors import FoedusError


def evaluate(
    model: RunFolder,
    tables: Annotated[
        list[Path], typer.Argument(help="Tables of raw rows with the label, one a site.", show_default=False)
    ],
    separator: Separator = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Add noise that spends this much of each row; a private run's own total.", show_default=False
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of --epsilon.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the model of a run directory on new rows; the figures become part of the run and of its report."""
    import json

    from foedus.app.experiment.evaluate import evaluate_files

    evaluation = evaluate_files(model, tables, separator, epsilon, delta)
    typer.echo(json.dumps(evaluation.to_json()) if as_json else str(evaluation))
    if not as_json:
        typer.echo(f"\nKept in {model}; open {model / 'report.html'} in a browser.")


def frontier(
    file: File,
    caps: Annotated[
        str | None, typer.Option(help="The caps, as in 0.3,0.4,0.5; found when left out.", show_default=False)
    ] = None,
    term: Annotated[
        int | None, typer.Option(help="The number of the term to vary, where there are several.", show_default=False)
    ] = None,
    points: Annotated[int, typer.Option(help="How many caps, where none are given.", min=2, max=100)] = 8,
    out: Annotated[
        Path | None, typer.Option(help="The folder; runs/<name>-frontier when left out.", show_default=False)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show what a tighter cap costs: objective, misses and false alarms over a range of caps, in a picture."""
    from foedus.app.experiment.compare import table
    from foedus.app.experiment.file import load
    from foedus.app.experiment.frontier import trace, write

    values = None if caps is None else _numbers(caps)
    screen = screen_for(quiet, as_json=False)
    experiment = load(file)
    folder = out or experiment.out.with_name(f"{experiment.out.name}-frontier")
    standing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not standing.is_dir():
        raise FoedusError(f"--out {folder}: {standing} is a file; expected a folder.")
    result = trace(experiment, screen, caps=values, term=term, points=points)
    paths = write(result, experiment, folder)
    if screen.mode == "live":
        screen.say(table(result.runs))
    for name, reason in result.failures.items():
        screen.say(f"{name} failed: {reason}")
    screen.say(f"Kept in {folder}: {', '.join(path.name for path in paths)}.")
    if not result.certified:
        raise typer.Exit(UNCERTIFIED)


def _numbers(text: str) -> list[float]:
    """The caps that --caps names."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise FoedusError(
            f"--caps must be numbers with commas between them, as in 0.3,0.4,0.5. Got {text!r}."
        ) from None
    if len(set(values)) < 2:
        raise FoedusError(f"--caps needs at least two different caps. Got {text!r}.")
    return values
