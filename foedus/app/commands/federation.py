"""Commands about federations of real sites: `foedus federation up`, `status`, `provision`, `submit` and more."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foedus.base.errors import FoedusError

if TYPE_CHECKING:
    from foedus.base.files import Json

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
    typer.echo(f"A server and {sites} sites are running in {folder}; only this machine can reach them.")
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
        typer.echo(f"The server answers; {len(sites)} sites are connected.")
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
