"""Commands about the jobs of a federation: `foedus federation submit`, `resume`, `jobs`, `cancel` and `logs`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foedus.app.commands.experiment import (
    INTERRUPTED,
    Accept,
    Again,
    AsJson,
    Quiet,
    require_certified,
    screen_for,
    tell_folder,
)
from foedus.app.commands.federation import HOME, Folder, Kit, app, kit_of, tell_of_certificates
from foedus.base.errors import FoedusError

if TYPE_CHECKING:
    from foedus.app.experiment.execute import ExperimentOutcome
    from foedus.app.experiment.screen import Screen
    from foedus.federation.flare.console import JobStatus

Job = Annotated[str, typer.Argument(help="The job, as 'foedus federation jobs' shows it.", show_default=False)]


@app.command()
def submit(
    experiment: Annotated[
        Path, typer.Argument(help="The experiment file (TOML), as 'foedus run' takes it.", show_default=False)
    ],
    folder: Folder = HOME,
    kit: Kit = None,
    sites: Annotated[
        str, typer.Option(help="The sites that take part, separated by commas; with --kit. All that are connected.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="The run directory, instead of the file's.", show_default=False)
    ] = None,
    again: Again = False,
    transport: Annotated[
        str | None, typer.Option(help="'aux', or 'task' where sites rely on FLARE's filters.", show_default=False)
    ] = None,
    keep_going: Annotated[
        int | None, typer.Option(help="How often to resume after a crash; 3.", min=0, show_default=False)
    ] = None,
    accept_uncertified: Accept = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment over the sites' own rows, from the coordinator.

    The file is one that 'foedus run' takes; where it says which files the rows are in, each site's own file is used
    instead. Scales and words of the columns are found in rounds of their own, in which no site shows a row.
    """
    from foedus.app.experiment.file import load
    from foedus.app.experiment.remote import Coordinator, place_data
    from foedus.app.experiment.remote import submit as run
    from foedus.federation.flare.console import Console
    from foedus.federation.flare.trial import Federation

    if transport not in (None, "aux", "task"):
        raise FoedusError(f"--transport must be 'aux' or 'task'. Got {transport!r} instead.")
    screen = screen_for(quiet, as_json)
    study = load(experiment, elsewhere=True)
    if kit is None:
        federation = Federation.at(folder)
        place_data(study, federation, screen)
        if federation.refresh():  # a site reads its file when it is started
            federation.wait()
        kit, names = federation.kit("admin"), federation.sites
    elif sites:
        names = tuple(name.strip() for name in sites.split(","))
    else:
        with Console(kit) as console:
            names = tuple(console.sites())
        if not names:
            raise FoedusError("no site is connected to the server.")
    tell_of_certificates(kit)
    outcome = run(study, Coordinator(kit, names, transport, keep_going), screen, out=out, again=again)
    _tell(outcome, screen, accept_uncertified)


def _tell(outcome: "ExperimentOutcome", screen: "Screen", accept_uncertified: bool) -> None:
    """Say what became of submitted runs, and exit with the status that belongs to it."""
    for name, finished_run in outcome.runs.items():
        screen.say(str(finished_run))
        tell_folder(screen, outcome.folders[name], finished_run)
    if outcome.interrupted:
        place = list(outcome.folders.values())[-1]
        screen.say(f"Stopped. 'foedus federation resume {place}' goes on where it was.")
        raise typer.Exit(INTERRUPTED)
    if not accept_uncertified:
        require_certified({str(outcome.folders[name]): run for name, run in outcome.runs.items()})


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run directory of a submitted run.", show_default=False)],
    keep_going: Annotated[
        int | None, typer.Option(help="How often to resume again after a crash.", min=0, show_default=False)
    ] = None,
    accept_uncertified: Accept = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a submitted run from its last checkpoint."""
    from foedus.app.experiment.execute import ExperimentOutcome
    from foedus.app.experiment.remote import resume as again

    screen = screen_for(quiet, as_json)
    finished_run = again(run, screen, keep_going)
    runs = {} if finished_run.interrupted else {run.name: finished_run}
    _tell(ExperimentOutcome(runs, {run.name: run}, interrupted=finished_run.interrupted), screen, accept_uncertified)


@app.command()
def jobs(folder: Folder = HOME, kit: Kit = None) -> None:
    """List the jobs at the server, newest first: waiting, running, done, failed, ended, or lost in a crash."""
    from foedus.federation.flare.console import Console

    with Console(kit_of(kit, folder)) as console:
        entries = console.jobs()
    for one in entries:
        typer.echo(f"{one.number}  {one.state:8} {one.submitted:.19}  {one.duration:.7}  run {one.name}")
    count = sum(one.state in ("running", "waiting") for one in entries)
    typer.echo(f"{len(entries)} job{'' if len(entries) == 1 else 's'}, {count} of them running or waiting.")


@app.command()
def cancel(job: Job, folder: Folder = HOME, kit: Kit = None) -> None:
    """End a job: one that runs after its round, with a certificate, and at once where it does not answer.

    One that waits does not begin. Whoever follows the run is told, and it can be resumed.
    """
    from foedus.federation.flare.console import Console

    with Console(kit_of(kit, folder)) as console:
        number = _job_number(console.jobs(), job)
        how = "is ended; its run can be resumed" if console.end(number) else "was ended at once"
    typer.echo(f"Job {number} {how}.")


@app.command()
def logs(job: Job, folder: Folder = HOME, kit: Kit = None) -> None:
    """Print what the server noted about a job that is over; a site's own log stays at the site."""
    from foedus.federation.flare.console import Console

    with Console(kit_of(kit, folder)) as console:
        number = _job_number(console.jobs(), job)
        content = console.download(number, "log.txt")
    if content is None:
        raise FoedusError(f"job {number} has no log yet; it is there when the job is over.")
    typer.echo(content.decode(errors="replace"), nl=False)


def _job_number(entries: "list[JobStatus]", job: str) -> str:
    """Return the number of the one job that begins so."""
    numbers = [one.number for one in entries if one.number.startswith(job)]
    if len(numbers) != 1:
        raise FoedusError(f"{len(numbers)} jobs begin with {job!r}; 'foedus federation jobs' lists them.")
    return numbers[0]
