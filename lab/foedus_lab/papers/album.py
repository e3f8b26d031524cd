"""All experiments of `foedus reproduce` one after the other, on one page.

Each experiment leaves a record beside its tables and pictures. A second call with the same settings takes finished
experiments from their records, so a long series can be interrupted and goes on where it was.
"""

import base64
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from markupsafe import Markup

from foedus.app.report.html import assemble
from foedus.app.report.render import Cell, Column, Line, columns, paragraphs, piece, table
from foedus.app.report.words import Verdict
from foedus.base.errors import FoedusError
from foedus.base.files import write_whole
from foedus.base.quantities import count, duration
from foedus.runtime.run import versions
from foedus_lab.papers.costs import COSTS
from foedus_lab.papers.experiment import Options, PaperExperiment
from foedus_lab.papers.table import PaperTable

PAGE = "reproduce.html"

PICTURE = "display:block;max-width:100%;height:auto;margin:1rem 0;padding:.4rem;background:#fff;border-radius:8px"


@dataclass(frozen=True)
class Record:
    """What one experiment did: lines and tables, the pictures it wrote, its seconds, and why it was left out if so."""

    name: str
    settings: dict[str, object]  # those that decide the figures; a record with others is not used again
    output: list[str | PaperTable]
    pictures: list[str]
    seconds: float  # of the processor
    left_out: str | None

    @property
    def state(self) -> str:
        """Whether the experiment was made, in words."""
        return "made" if self.left_out is None else f"left out: {self.left_out}"


def reproduce_all(
    experiments: Mapping[str, PaperExperiment], options: Options, clock: Callable[[], float] = time.process_time
) -> Path:
    """Run all experiments that have not been run with these settings yet, and write them on one page.

    An experiment whose data set is missing is left out with the reason, which the page shows.

    Args:
        experiments: the experiments by name.
        options: how to run each of them; `options.out` receives their files, their records and the page.
        clock: tells processor seconds.

    Returns:
        The page.
    """
    records: list[Record] = []
    for place, (name, experiment) in enumerate(experiments.items(), start=1):
        options.echo(f"[{place}/{len(experiments)}] {name}: {experiment.title}{_forecast(name)}")
        record = _finished(name, options)
        if record is None:
            record = _play(experiment, options, clock)
            options.out.mkdir(parents=True, exist_ok=True)
            write_whole(_record_path(name, options), json.dumps(asdict(record), indent=1).encode())
        else:
            options.echo("    it was made before with the same settings")
        if record.left_out is not None:
            options.echo(f"    {record.state}")
        records.append(record)
        # after each experiment, so that an interrupted series leaves a page too
        write_whole(options.out / PAGE, _page(experiments, records, options).encode())
    options.echo(f"written: {options.out / PAGE}")
    return options.out / PAGE


def reproduce_one(experiment: PaperExperiment, options: Options) -> None:
    """Run one experiment, and say before how long it takes and afterwards how long it took."""
    options.echo(f"{experiment.name}: {experiment.title}{_forecast(experiment.name)}")
    began = time.process_time()
    experiment.run(options)
    options.echo(f"{experiment.name} took {duration(time.process_time() - began)} of the processor")


def _forecast(name: str) -> str:
    return f"; {COSTS[name].sentence()}" if name in COSTS else ""


def _settings(options: Options) -> dict[str, object]:
    return {"quick": options.quick, "trials": options.trials, "seed": options.seed, "versions": versions()}


def _record_path(name: str, options: Options) -> Path:
    return options.out / f"{name}.record.json"


def _finished(name: str, options: Options) -> Record | None:
    """The record of an experiment that was made with these settings and whose pictures are still there."""
    try:
        content = json.loads(_record_path(name, options).read_text())
        content["output"] = [one if isinstance(one, str) else PaperTable.from_json(one) for one in content["output"]]
        record = Record(**content)
    except (OSError, ValueError, TypeError, KeyError):  # none, or not one of this version's
        return None
    whole = record.left_out is None and all((options.out / picture).is_file() for picture in record.pictures)
    return record if whole and record.settings == _settings(options) else None


def _play(experiment: PaperExperiment, options: Options, clock: Callable[[], float]) -> Record:
    output: list[str | PaperTable] = []
    written: list[Path] = []
    began = clock()
    left_out = None
    try:
        experiment.run(replace(options, echo=output.append, written=written))
    except FoedusError as error:
        left_out = str(error)
    pictures = [path.name for path in written if path.suffix == ".svg"]
    output = [one for one in output if not (isinstance(one, str) and one.startswith("written: "))]
    return Record(experiment.name, _settings(options), output, pictures, clock() - began, left_out)


def _page(experiments: Mapping[str, PaperExperiment], records: Sequence[Record], options: Options) -> str:
    successes = sum(record.left_out is None for record in records)
    software = ", ".join(f"{name} {number}" for name, number in versions().items())
    settings = "Quick settings, smaller than the papers'" if options.quick else "The papers' settings"
    verdict = Verdict(
        "good" if successes == len(experiments) else "fair",
        "The papers' tables and figures, reproduced",
        (
            f"{len(records)} of {count(len(experiments), 'experiment')}, {successes} of them made.",
            "Printed figures stand beside ours in every table.",
        ),
        footnotes=(f"{settings}, seed {options.seed}; {software}.",),
    )
    papers: dict[str, list[Record]] = {}
    for record in records:
        papers.setdefault(record.name.split("-")[0], []).append(record)
    parts = [("contents", "Contents", _contents(experiments, records))]
    for paper, own in papers.items():
        title = experiments[own[0].name].title.split(",")[0]
        parts.append((paper, title, Markup("").join(_section(experiments[r.name], r, options) for r in own)))
    return assemble("The papers, reproduced", verdict, kicker="foedus reproduce all", parts=parts)


def _contents(experiments: Mapping[str, PaperExperiment], records: Sequence[Record]) -> Markup:
    lines = [
        Line(
            Markup('<a href="#{}">{}</a>').format(f"{record.name}-figures", record.name),
            [
                Cell(experiments[record.name].title),
                Cell(duration(record.seconds), record.seconds),
                Cell(_full(record.name)),
                Cell(record.state),
            ],
        )
        for record in records
    ]
    heads = [Column("Experiment", ""), Column("", "t"), *columns("Processor", "In full"), Column("", "t")]
    return table(heads, lines, "evidence")


def _full(name: str) -> str:
    """How long the full experiment takes; "computed" where it was not run as a whole."""
    if name not in COSTS:
        return ""
    return duration(COSTS[name].full) + (", computed" if COSTS[name].part else "")


def _section(experiment: PaperExperiment, record: Record, options: Options) -> Markup:
    """Return what an experiment left: its lines in one block, its tables, and its pictures."""
    pieces = [Markup('<h3 id="{}">{}</h3>').format(f"{record.name}-figures", experiment.title)]
    if record.left_out is not None:
        pieces.append(paragraphs([record.state]))
    for is_text, group in itertools.groupby(record.output, lambda one: isinstance(one, str)):
        own = list(group)
        pieces += [Markup("<pre>{}</pre>").format("\n".join(map(str, own)))] if is_text else map(_table, own)
    for name in record.pictures:
        picture = base64.b64encode((options.out / name).read_bytes()).decode()
        image = Markup('<img alt="{}" style="{}" src="data:image/svg+xml;base64,{}">')
        pieces.append(image.format(experiment.title, PICTURE, picture))
    return Markup("").join(pieces)


def _table(paper_table: str | PaperTable) -> Markup:
    assert isinstance(paper_table, PaperTable)
    lines = [Line(first, [*map(Cell, cells)]) for first, *cells in paper_table.rows]
    heads = [Column(paper_table.columns[0], ""), *columns(*paper_table.columns[1:])]
    notes = [piece("note", note) for note in paper_table.notes]
    return paragraphs([paper_table.title]) + table(heads, lines, "evidence") + Markup("").join(notes)
