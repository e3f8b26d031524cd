"""Commands that start and stop the server or a site on its machine: `foedus party run`, `start` and `stop`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Start or stop the server or a site on its machine, from its kit.", no_args_is_help=True)

Kit = Annotated[Path, typer.Argument(help="The kit of the server or of the site.")]


@app.command()
def run(kit: Kit = Path(".")) -> None:
    """Run a party in the foreground until a SIGTERM, for systemd and containers; after a crash it is started again."""
    from foedus.federation.flare import party

    party.run(kit)


@app.command()
def start(kit: Kit = Path(".")) -> None:
    """Start a party in the background; startup/start.sh of a kit does the same."""
    from foedus.federation.flare import party

    typer.echo(f"Started (process {party.start(kit)}); {kit / party.LOG} is its log, 'foedus party stop' stops it.")


@app.command()
def stop(kit: Kit = Path(".")) -> None:
    """Stop a party and the processes of its jobs, without a question; startup/stop.sh of a kit does the same."""
    from foedus.federation.flare import party

    typer.echo("Stopped." if party.stop(kit) else "Nothing was running.")
