"""The command line, in which a wrong input ends in one sentence on the error stream and exit status 2."""

import os
import shutil
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from foedus.app.commands import courier, experiment, federation, site
from foedus.app.commands.describe import describe
from foedus.app.commands.experiment import INTERRUPTED
from foedus.app.commands.report import card, report, summary, watch
from foedus.base.errors import FoedusError
from foedus.base.files import check_folder

app = typer.Typer(
    help="Federated optimisation with guarantees.",
    epilog="reproduce, study, bench and audit come with foedus-lab.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    """Print the version and exit."""
    if show:
        from foedus import __version__

        typer.echo(f"foedus {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated optimisation with guarantees."""


@app.command()
def demo(
    algorithms: Annotated[str, typer.Option(help="Names, separated by commas.")] = "InteriorPoint,FedGiA,FedAvg",
    data: Annotated[
        Path | None, typer.Option(help="A CSV file, label (0/1 or -1/+1) in the last column, instead of the example.")
    ] = None,
    hospitals: Annotated[int, typer.Option(help="How many sites the constrained model is trained over.", min=1)] = 5,
    max_loss: Annotated[float, typer.Option(help="The cap on the mean loss of label 1 at each of them.")] = 0.2,
    sites: Annotated[int, typer.Option(help="How many sites the algorithms are compared over.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Keys every random draw.", min=0, max=2**63 - 1)] = 0,
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("out/demo"),
) -> None:
    """Train a model whose loss is capped at every hospital and print its certificate; then compare algorithms."""
    check_folder(out)
    from rich.console import Console

    from foedus.app.demo import demo as run_demo

    console = Console(markup=False, highlight=False)  # a file's name may hold square brackets
    # as the user can type it: after `make demo` the command may not be on the path
    command = "foedus" if shutil.which("foedus") else sys.argv[0]
    run_demo(
        algorithms=algorithms,
        data=data,
        hospitals=hospitals,
        max_loss=max_loss,
        sites=sites,
        seed=seed,
        out=out,
        console=console,
        command=command,
    )


app.command()(experiment.init)
app.command()(experiment.check)
app.command()(describe)
app.command()(experiment.run)
app.command()(experiment.compare)
app.command()(experiment.predict)
app.command()(experiment.export)
app.command()(experiment.evaluate)
app.command()(experiment.frontier)
for command in (report, card, summary, watch):
    app.command()(command)
app.add_typer(federation.app, name="federation")
app.command()(site.doctor)
app.add_typer(courier.app, name="courier")
app.add_typer(site.party_app, name="party")
app.add_typer(site.app, name="site")
for point in entry_points(group="foedus.commands"):  # those of foedus-lab, where it is installed
    app.command(point.name)(point.load())


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without ‖ or ∇ shows a question mark
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        app(args=arguments, prog_name="foedus")
    except FoedusError as error:
        print(f"foedus: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def main() -> None:
    """Run the command line; the entry point of the `foedus` command."""
    status = run()
    if status == INTERRUPTED:
        print("foedus: interrupted.", file=sys.stderr)
    # JAX, interrupted while it compiles, crashes when Python takes it down in an orderly way; and where a call to a
    # server that stands still was left behind, Python would wait for FLARE's threads
    if status == INTERRUPTED or any(one.name == "console" for one in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
