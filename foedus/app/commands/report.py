"""Commands that make runs readable, finished or not: `foedus report`, `card`, `summary` and `foedus watch`."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from foedus.base.errors import FoedusError, did_you_mean


def folder_called(name: Path) -> Path:
    """Return a folder that exists; raise, with the nearest name there is, where it does not."""
    if name.is_dir():
        return name
    beside = [p.name for p in name.parent.iterdir() if p.is_dir()] if name.parent.is_dir() else []
    if name.exists():
        raise FoedusError(f"{name} is a file; expected a run folder, as 'foedus run' and Run.save write it.")
    raise FoedusError(f"there is no run folder {name}.{did_you_mean(name.name, beside)}")


def names_of(folders: list[Path]) -> list[str]:
    """Return what to call the runs: the folders' own names, with as many parents as tell them apart."""
    whole = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(set(whole)):
            return names
    return [str(path) for path in whole]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared on one page.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file to write; RUN/report.html when left out, or report.html here for several."),
    ] = None,
) -> None:
    """Write the HTML report of a run, or of several side by side; of an unfinished one as far as it is saved."""
    from foedus.app.experiment.compare import data_differ
    from foedus.app.experiment.execute import open_run
    from foedus.app.report import html

    folders = list(dict.fromkeys(folder_called(run) for run in runs))
    path = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    if path.is_dir():
        raise FoedusError(f"--out {path} is a folder; expected the name of a file, such as {path / 'report.html'}.")
    runs_by_name = dict(zip(names_of(folders), map(open_run, folders), strict=True))
    description = html.asked_in(folders[0]) if len(folders) == 1 else {"data_differ": data_differ(folders)}
    typer.echo(html.write(runs_by_name, path, description))


def card(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write, RUN/card.md when left out; '-' prints the card.")
    ] = None,
) -> None:
    """Write the model card of a run: a page of Markdown with the certificate and its limits."""
    from foedus.app.experiment.execute import open_run
    from foedus.app.report import html
    from foedus.app.report.card import card as card_of
    from foedus.base.files import write_whole

    folder = folder_called(run)
    text = card_of(folder.resolve().name, open_run(folder), html.asked_in(folder))
    if out == Path("-"):
        typer.echo(text, nl=False)
        return
    path = out or folder / "card.md"
    if path.is_dir() or not path.parent.is_dir():
        raise FoedusError(f"--out {path}: expected the name of a file in a folder that exists.")
    write_whole(path, text.encode())
    typer.echo(path)


def summary(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON, with the covariance.")] = False,
) -> None:
    """Print the coefficients of a finished run with standard errors, intervals, tests and figures of the fit."""
    from foedus.runtime.run import load

    folder = folder_called(run)
    table = load(folder).coefficients
    if table is None:
        raise FoedusError(
            f"{folder} has no table of coefficients: standard errors were not known, or, in a submitted run, not asked "
            "for; write [summary] into the experiment file."
        )
    if as_json:
        typer.echo(json.dumps(table.to_json()))
        return
    typer.echo(str(table))
    tested = [row.name for row in table.rows if row.name != "(intercept)" and not math.isnan(row.error)]
    if tested:
        typer.echo(f"Wald's test that all coefficients but the intercept are 0: {table.wald()}.")


def coordinator_kit(folder: Path) -> Path | None:
    """Return the coordinator's kit where a folder is one, or that of a federation on this machine; else None."""
    from foedus.federation.flare.trial import STATE, Federation

    if (folder / STATE).is_file():
        return Federation.at(folder).kit("admin")
    return folder if (folder / "startup" / "fed_admin.json").is_file() else None


def watch(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a running job, or its checkpoint; the folder of a federation on this machine, or the "
            "coordinator's kit.",
        ),
    ],
    port: Annotated[
        int, typer.Option(help="The port on this machine; 0 takes any that is free.", min=0, max=65535)
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Follow a running job, or a whole federation, on a web page that only this machine can reach.

    The page of a job becomes its report when the job ends. That of a federation shows the sites, the run under way and
    what it waits for; it looks, and changes nothing.
    """
    from foedus.app.report.watch import serve

    if not run.is_file():
        folder_called(run)
    kit = coordinator_kit(run)
    if kit is not None:
        from foedus.app.report.operator import FederationShow

        server = serve(FederationShow(kit), port)
    else:
        server = serve(run, port)
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    typer.echo(f"{run} is at {address} (Ctrl-C ends watching, not the job)")
    if browser:
        import webbrowser

        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
