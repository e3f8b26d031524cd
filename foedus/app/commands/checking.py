"""The command that looks before anything is trained: `foedus check`."""

from typing import TYPE_CHECKING

from foedus.app.commands.experiment import File, console_of
from foedus.base.errors import FoedusError

if TYPE_CHECKING:
    from rich.console import Console

    from foedus.app.experiment.file import Experiment
    from foedus.data.doubts import Doubt


def check(file: File) -> None:
    """Read the file and the data, and say what would happen; nothing is trained and nothing is written."""
    from foedus.app.experiment.execute import Builder
    from foedus.app.experiment.file import load
    from foedus.app.experiment.folder import folder_of
    from foedus.app.experiment.preview import about_data, describe
    from foedus.base.engine import return_memory
    from foedus.data.doubts import doubts as doubts_of

    experiment = load(file)
    builder = Builder(experiment)
    several = len(experiment.cases) > 1
    console, first, data, results = console_of(), None, None, None
    try:
        for case in experiment.cases:
            if data is None:  # before the tables are let go of
                cohort, rules, kept_out = builder.prepare(case)
                results, data = doubts_of(kept_out.whole), about_data(cohort, rules)
                del cohort, kept_out
                return_memory()  # what the doubts took
            setup = builder.build(case, release=not several)
            first = first or setup
    except FoedusError:
        # something that looks wrong in the data may be the cause
        _print_doubts(console, _doubts_in(experiment) if results is None else results)
        raise
    assert first is not None
    assert data is not None
    assert results is not None
    folder = folder_of(experiment, experiment.cases[0], None)
    try:
        state = folder.state()
    except FoedusError as error:
        state = f"is in the way: {error}"
    count = _print_doubts(console, results)
    fits = "it can be run, but look at these first" if count else "everything fits"
    console.print(f"{file}: {fits}. Nothing was trained, and nothing was written.\n", soft_wrap=True)
    if several:
        console.print(f"It asks for {len(experiment.cases)} runs; this is the first, {experiment.cases[0].name}.\n")
    console.print(describe(first, data, folder.path, state), soft_wrap=True)
    console.print(f"\nNext: foedus run {file}", soft_wrap=True)


def _doubts_in(experiment: "Experiment") -> "list[Doubt]":
    """What looks wrong in the data of the first run; nothing where they cannot be read, which the caller says."""
    from foedus.app.experiment.sources import cohort_of
    from foedus.data.doubts import doubts

    try:
        return doubts(cohort_of(experiment.cases[0].settings, experiment.folder))
    except FoedusError:
        return []


def _print_doubts(console: "Console", results: "list[Doubt]") -> int:
    """Print what looks wrong in the data, and return how many things do."""
    if results:
        number = "1 thing looks" if len(results) == 1 else f"{len(results)} things look"
        console.print(f"{number} wrong in the data:", style="bold")
        for doubt in results:
            console.print(f"  {doubt}", soft_wrap=True)
        console.print()
    return len(results)
