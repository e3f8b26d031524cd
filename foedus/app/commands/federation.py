"""Commands about federations of real sites: `foedus federation up`, `status`, `provision`, `submit` and more."""

import tomllib
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
from foedus.base.errors import FoedusError
from foedus.base.quantities import count

if TYPE_CHECKING:
    from foedus.app.experiment.execute import ExperimentOutcome
    from foedus.app.experiment.screen import Screen
    from foedus.base.files import Json
    from foedus.federation.flare.console import JobStatus


app = typer.Typer(help="Run a federation of real sites, over NVIDIA FLARE.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="The folder of the federation on this machine.")]
HOME = Path("federation")
Kits = Annotated[Path, typer.Option(help="The folder of 'foedus federation provision'.")]
Kit = Annotated[
    Path | None, typer.Option(help="The coordinator's kit, for sites on other machines.", show_default=False)
]


@app.command()
def up(
    sites: Annotated[int, typer.Option(help="How many sites to start.", min=1, max=100)] = 3, folder: Folder = HOME
) -> None:
    """Make kits and start a server and sites on this machine; nothing but loopback is bound."""
    from foedus.federation.flare.trial import Federation

    federation = Federation.up(folder, sites)
    typer.echo(f"A server and {count(sites, 'site')} are running in {folder}; only this machine can reach them.")
    for name in federation.sites:
        typer.echo(f"  {name}: name its data in {federation.kit(name) / 'local' / 'foedus.toml'}")
    typer.echo("'foedus federation submit experiment.toml' runs an experiment, 'foedus federation down' stops all.")


@app.command()
def status(folder: Folder = HOME, kit: Kit = None) -> None:
    """Say which parties run and which sites are connected, and which certificates end soon."""
    from foedus.federation.flare.console import Console, Unreachable
    from foedus.federation.flare.trial import Federation

    if kit is not None:
        with Console(kit) as console:
            sites, jobs = console.sites(), console.jobs()
        typer.echo(f"The server answers; {count(len(sites), 'site')} connected.")
        for site in sites:
            typer.echo(f"{site}: connected")
        for one in jobs:
            if one.state in ("running", "waiting"):
                typer.echo(f"job {one.number}: {one.state} since {one.submitted}")
        tell_of_certificates(kit)
        return
    federation = Federation.at(folder)
    parties = federation.status()
    online: list[str] = []
    if parties[0].running:
        try:
            with Console(federation.kit("admin"), timeout=5.0) as console:
                online = console.sites()
        except Unreachable as error:
            typer.echo(str(error))
    for party in parties:
        words = f"running (process {party.pid})" if party.running else "not running"
        if party.running and party.name != "server":
            words += ", connected" if party.name in online else ", not connected"
        typer.echo(f"{party.name}: {words}")


def tell_of_certificates(kit: Path) -> None:
    """Warn of certificates that end soon: those of all parties where the kit lies in the project's folder."""
    from foedus.federation.flare import certificates

    folder = next((one for one in kit.absolute().parents if (one / "project.yml").is_file()), None)
    lines = certificates.warnings_of(kit) if folder is None else certificates.warnings_in(folder)
    for line in lines:
        typer.echo(f"Warning: {line}", err=True)


@app.command()
def down(folder: Folder = HOME) -> None:
    """Stop every process of the federation on this machine."""
    from foedus.federation.flare.trial import Federation

    federation = Federation.at(folder)
    running = sum(party.running for party in federation.status())
    federation.down()
    typer.echo(f"Stopped {running} of {len(federation.sites) + 1} parties; nothing of {folder} runs any more.")


@app.command()
def provision(
    project: Annotated[Path, typer.Argument(help="The project file (TOML).", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder for the kits.")] = Path("kits"),
) -> None:
    """Make one kit a site, one for the server and one for the coordinator, from a project file.

    The project file names the server's address and the sites: server = "fl.example.org", sites = ["st-mary", "city"];
    and, if other than 8002 and 8003, port and admin_port. A site's kit holds no secret: the site makes its own key.
    """
    from foedus.federation.flare.kits import Project
    from foedus.federation.flare.kits import provision as make

    kits = make(Project(**_project(project)), out, site_keys=False)
    for name, kit in kits.items():
        typer.echo(f"{name}: {kit}")
    typer.echo("Give each site its folder; README.txt in it says what to do. The site makes its own key and sends you")
    typer.echo(f"a request; 'foedus federation sign SITE.csr --kits {out}' makes the certificate to send back.")
    typer.echo(f"Keep {out} to yourself: it holds the keys of the server, the coordinator and the project's authority.")


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(help="The site's request, SITE.csr.", show_default=False)],
    kits: Kits = Path("kits"),
    again: Annotated[bool, typer.Option("--again", help="For a site that lost its key: a second certificate.")] = False,
) -> None:
    """Make the certificate for a site's request, to send back to the site."""
    from foedus.federation.flare import certificates

    certificate, fingerprint = certificates.sign(kits, request, again)
    typer.echo(f"{certificate}: send it to the site.")
    typer.echo(f"Fingerprint of its key: {fingerprint}. Ask the site, by telephone, whether it sees the same.")


@app.command()
def add(
    site: Annotated[str, typer.Argument(help="The name of the new site.", show_default=False)],
    kits: Kits = Path("kits"),
) -> None:
    """Make the kit of one more site; what runs goes on meanwhile, and the server needs no change."""
    from foedus.federation.flare.kits import add_site

    typer.echo(f"{site}: {add_site(kits, site)}")
    typer.echo("Give the site this folder; README.txt in it says what to do. The site makes its own key and sends you")
    typer.echo(f"a request; 'foedus federation sign {site}.csr --kits {kits}' makes the certificate to send back.")


@app.command()
def renew(
    party: Annotated[str, typer.Argument(help="A site, 'server' or 'coordinator'.", show_default=False)],
    kits: Kits = Path("kits"),
) -> None:
    """Make a new certificate for the key that a party has, for 360 days from today."""
    from foedus.federation.flare import certificates

    path, end = certificates.renew(kits, party)
    typer.echo(f"{path}: valid until {end:%Y-%m-%d}.")
    if path.parent.name == "signed":
        typer.echo(f"Send it to the site, which runs 'foedus site install {path.name}', startup/stop.sh and start.sh.")
    elif party == "server":
        typer.echo(
            "Copy it to startup/server.crt of the server's kit; then startup/stop.sh and startup/start.sh there."
        )
        typer.echo("A run that is under way is resumed afterwards.")


def _project(path: Path) -> "Json":
    """The arguments of `Project` that a project file states."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FoedusError(f"the project file {path} is missing.") from None
    except (OSError, ValueError) as error:
        raise FoedusError(f"the project file {path} cannot be read: {error}.") from None
    kinds = {"name": str, "server": str, "sites": list, "port": int, "admin_port": int}
    for key, value in settings.items():
        if key not in kinds or not isinstance(value, kinds[key]):
            raise FoedusError(
                f"{path}: {key} = {value!r} is not what a project file holds; expected {', '.join(kinds)}."
            )
    for key in ("server", "sites"):
        if key not in settings:
            raise FoedusError(f"{path}: the key {key!r} is missing.")
    return {"name": "foedus"} | settings | {"sites": tuple(settings["sites"])}


@app.command()
def revoke(
    site: Annotated[str, typer.Argument(help="The site's name.", show_default=False)],
    folder: Folder = HOME,
    kit: Kit = None,
) -> None:
    """Keep a site out from now on, whoever has its key: it is refused at the door and gets no further message.

    The server remembers it, also when it is started again. A site whose key was stolen comes back under another name.
    """
    from foedus.federation.flare.console import Console

    with Console(kit_of(kit, folder)) as console:
        console.revoke(site)
    typer.echo(f"{site} is revoked: the server refuses it. 'foedus federation readmit {site}' takes that back.")


@app.command()
def readmit(
    site: Annotated[str, typer.Argument(help="The site's name.", show_default=False)],
    folder: Folder = HOME,
    kit: Kit = None,
) -> None:
    """Let a revoked site in again."""
    from foedus.federation.flare.console import Console

    with Console(kit_of(kit, folder)) as console:
        console.readmit(site)
    typer.echo(f"{site} may take part again.")


def kit_of(kit: Path | None, folder: Path) -> Path:
    """The coordinator's kit: the one that is named, or that of the federation on this machine."""
    from foedus.federation.flare.trial import Federation

    return Federation.at(folder).kit("admin") if kit is None else kit


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
