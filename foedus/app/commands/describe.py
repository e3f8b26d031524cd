"""`foedus describe`: who the rows of an experiment's sites are, from sums over sites."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foedus.app.commands.experiment import File, console_of, looks_wrong, print_doubts
from foedus.base.errors import FoedusError

if TYPE_CHECKING:
    from foedus.statistics.describe import Description

KINDS = (".csv", ".html")


def describe(
    file: File,
    by: Annotated[
        str | None,
        typer.Option(help="A column of words, as the label or the group; the others are told by it too."),
    ] = None,
    least: Annotated[int, typer.Option(help="Of fewer rows than this nothing is told.", min=1)] = 5,
    out: Annotated[
        Path | None, typer.Option(help="A file to write: .csv has every figure, .html is a page.", show_default=False)
    ] = None,
) -> None:
    """Print Table 1 of the sites: counts, means, quantiles, missing values, words, crosstabs; from sums alone."""
    from foedus.app.experiment import sources
    from foedus.app.experiment.file import load
    from foedus.base.files import write_whole
    from foedus.statistics.describe import describe as describe_sites

    if out is not None and (out.suffix not in KINDS or out.is_dir() or not out.parent.is_dir()):
        raise FoedusError(f"--out {out}: expected a name that ends in {' or '.join(KINDS)}, in a folder that exists.")
    experiment = load(file)
    settings = experiment.cases[0].settings
    roles, tables = sources.roles_of(settings), sources.tables_of(settings, experiment.folder)
    codes = [roles.label if roles.classification else None, roles.group, *roles.categorical]
    left_out = {*roles.drop, roles.cluster}
    parts = {
        site: replace(table, columns={name: c for name, c in table.columns.items() if name not in left_out})
        for site, table in tables.items()
    }
    result = describe_sites(
        parts,
        by=by,
        categorical=[name for name in dict.fromkeys(codes) if name is not None],
        least=least,
        secure=bool(settings["run"]["secure"]),
    )
    console = console_of()
    console.print(str(result), soft_wrap=True)
    console.print()
    print_doubts(console, looks_wrong(experiment))
    if out is not None:
        write_whole(out, (result.to_csv() if out.suffix == ".csv" else _page(experiment.name, result)).encode())
        console.print(f"Wrote {out}.")


def _page(name: str, result: "Description") -> str:
    """The description as a page."""
    from markupsafe import Markup

    from foedus.app.report import html, words
    from foedus.app.report.render import Cell, Column, Line, columns, paragraphs, table
    from foedus.base.quantities import count

    titles, lines = result.lines()
    table_lines = [Line(title, [Cell(text) for text in cells]) for title, *cells in lines]
    head = words.Verdict("open", "Who the rows are", (f"{count(len(result.sites), 'site')}, from sums alone.",))
    body: Markup = table([Column("", ""), *columns(*titles[1:])], table_lines, "baseline") + paragraphs(result.notes())
    return html.assemble(name, head, parts=[("baseline", "Rows of the sites", body)])
