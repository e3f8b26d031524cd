"""The command line, in which a wrong input ends in one sentence on the error stream and exit status 2."""

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from foedus.commands import checking, evidence, experiment, jobs, party, site
from foedus.commands.experiment import INTERRUPTED
from foedus.commands.report import card, report, watch
from foedus.commands.study import study
from foedus.errors import FoedusError, did_you_mean

app = typer.Typer(
    help="Federated optimisation with guarantees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AUDIT_QUICK = 10_000  # trials of `audit --quick`, whose bounds are looser

Seed = Annotated[int, typer.Option(help="Keys every random draw.", min=0, max=2**63 - 1)]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller and faster, to see that it works.")]
Out = Annotated[Path, typer.Option(help="The folder to write into.")]


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
    hospitals: Annotated[int, typer.Option(help="How many sites the model under terms is trained over.", min=1)] = 5,
    max_loss: Annotated[float, typer.Option(help="The cap on the mean loss of label 1 at each of them.")] = 0.2,
    sites: Annotated[int, typer.Option(help="How many sites the algorithms are compared over.", min=1)] = 8,
    seed: Seed = 0,
    out: Out = Path("out/demo"),
) -> None:
    """Train a model whose loss is capped at every hospital and print its certificate; then compare algorithms."""
    _check_folder(out)
    from rich.console import Console

    from foedus.demo import demo as run_demo

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


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment, or 'all'.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    trials: Annotated[int | None, typer.Option(help="How many instances to average over.", min=1)] = None,
    seed: Seed = 0,
    quick: Quick = False,
    out: Out = Path("out"),
) -> None:
    """Repeat a table or figure of a paper: the printed value, ours, the difference. 'all' makes one page of them."""
    from foedus.papers import EXPERIMENTS, Options
    from foedus.papers.album import reproduce_all, reproduce_one
    from foedus.papers.costs import COSTS, duration

    if list_:
        width = max(map(len, EXPERIMENTS), default=0)
        for key, experiment in EXPERIMENTS.items():
            time = f" ({duration(COSTS[key].full)})" if key in COSTS else ""
            typer.echo(f"{key:{width}}  {experiment.title}{time}")
        return
    if name is None:
        raise FoedusError("reproduce needs the name of an experiment; 'foedus reproduce --list' shows them.")
    options = Options(trials=trials, seed=seed, quick=quick, out=out, echo=typer.echo)
    if name == "all":
        _check_folder(out)
        reproduce_all(EXPERIMENTS, options)
        return
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, [*EXPERIMENTS, "all"])
        raise FoedusError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}, and all.{hint}")
    _check_folder(out)
    reproduce_one(EXPERIMENTS[name], options)


@app.command()
def audit(
    trials: Annotated[int, typer.Option(help="Runs on each of the two data sets.", min=100)] = 100_000,
    confidence: Annotated[float, typer.Option(help="The confidence of each bound.", min=0.5, max=0.9999)] = 0.95,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """Test the privacy promises: how well can what is sent tell two data sets apart that differ in one example?"""
    from foedus import audit as auditing
    from foedus.papers.experiment import progress

    with progress(len(auditing.cases())) as begin:
        results = auditing.run(min(trials, AUDIT_QUICK) if quick else trials, seed, confidence, begin)
    typer.echo(auditing.table(results))
    failures = [case.what for case, result in results if not case.weak and result.epsilon > case.promise()[0]]
    if failures:
        raise FoedusError(f"the audit disproves what is promised for {'; '.join(failures)}: please report this.")


@app.command()
def bench(
    only: Annotated[str | None, typer.Option(help="Only this part.", show_default=False)] = None,
    quick: Quick = False,
    write: Annotated[Path | None, typer.Option(help="Write the figures into this page.", show_default=False)] = None,
) -> None:
    """Measure this machine: gradients, rounds, many clients, start-up; as ratios taken in one run."""
    from foedus import benchmarks

    benchmarks.run(only, quick, write=write)


app.command()(experiment.init)
app.command()(checking.check)
app.command()(experiment.run)
app.command()(experiment.compare)
app.command()(experiment.predict)
app.command()(experiment.export)
app.command()(evidence.evaluate)
app.command()(evidence.frontier)
for command in (report, card, watch):
    app.command()(command)
app.command()(study)
app.add_typer(jobs.app, name="federation")
app.add_typer(party.app, name="party")
app.add_typer(site.app, name="site")


def _check_folder(out: Path) -> None:
    """Raise before any work is done where a folder cannot be made at `out`."""
    standing = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not standing.is_dir():
        raise FoedusError(f"--out {out}: {standing} is a file; expected a folder.")


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
