"""All experiments of `foedus reproduce` one after the other, on one page.

Each experiment leaves a record beside its tables and pictures. A second call with the same settings takes finished
experiments from their records, so a long series can be interrupted and goes on where it was.
"""

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import write_whole
from foedus.runtime.run import versions
from foedus_lab.papers.costs import COSTS, duration
from foedus_lab.papers.experiment import Options, PaperExperiment

PAGE = "reproduce.html"

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fcfcfa; --line: #d5d9de; --soft: #5b6673; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ed; --paper: #14181d; --line: #39424d; --soft: #9aa6b3; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.soft { color: var(--soft); } a { color: inherit; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; }
pre { margin: 0; font-size: .8rem; line-height: 1.4; }
img { display: block; max-width: 100%; background: #fff; border-radius: 6px; margin: 1rem 0; padding: .4rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1rem .2rem 0; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True)
class Record:
    """What one experiment did: what it printed, the pictures it wrote, its seconds, and why it was left out if so."""

    name: str
    settings: dict[str, object]  # those that decide the figures; a record with others is not used again
    text: str
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
    options.echo(f"{experiment.name} took {time.process_time() - began:.0f} processor seconds")


def _forecast(name: str) -> str:
    return f"; {COSTS[name].sentence()}" if name in COSTS else ""


def _settings(options: Options) -> dict[str, object]:
    return {"quick": options.quick, "trials": options.trials, "seed": options.seed, "versions": versions()}


def _record_path(name: str, options: Options) -> Path:
    return options.out / f"{name}.record.json"


def _finished(name: str, options: Options) -> Record | None:
    """The record of an experiment that was made with these settings and whose pictures are still there."""
    try:
        record = Record(**json.loads(_record_path(name, options).read_text()))
    except (OSError, ValueError, TypeError):  # none, or not one of this version's
        return None
    whole = record.left_out is None and all((options.out / picture).is_file() for picture in record.pictures)
    return record if whole and record.settings == _settings(options) else None


def _play(experiment: PaperExperiment, options: Options, clock: Callable[[], float]) -> Record:
    printed: list[str] = []
    written: list[Path] = []
    began = clock()
    left_out = None
    try:
        experiment.run(replace(options, echo=printed.append, written=written))
    except FoedusError as error:
        left_out = str(error)
    pictures = [path.name for path in written if path.suffix == ".svg"]
    lines = [line for line in printed if not line.startswith("written: ")]
    return Record(experiment.name, _settings(options), "\n".join(lines), pictures, clock() - began, left_out)


def _page(experiments: Mapping[str, PaperExperiment], records: Sequence[Record], options: Options) -> str:
    size = "quick settings" if options.quick else "full settings"
    software = ", ".join(f"{name} {number}" for name, number in versions().items())
    rows = "".join(
        f'<tr><td><a href="#{r.name}">{escape(r.name)}</a></td><td>{escape(experiments[r.name].title)}</td>'
        f'<td class="number">{r.seconds:.0f} s</td><td class="number">{_full(r.name)}</td>'
        f"<td>{escape(r.state)}</td></tr>"
        for r in records
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>The papers, reproduced</title><style>{STYLE}</style></head><body>"
        "<h1>The papers' tables and figures, reproduced</h1>"
        f'<p class="soft">{len(records)} of {len(experiments)} experiments, {size}, seed {options.seed}; '
        f"{escape(software)}. Printed figures stand beside ours in every table.</p>"
        '<div class="wide"><table><tr><th>experiment</th><th></th><th>processor</th><th>in full</th><th></th>'
        f"</tr>{rows}</table></div>"
        + "".join(_section(experiments[r.name], r, options) for r in records)
        + "</body></html>\n"
    )


def _full(name: str) -> str:
    """How long the full experiment takes; "computed" where it was not run as a whole."""
    if name not in COSTS:
        return ""
    return duration(COSTS[name].full) + (", computed" if COSTS[name].part else "")


def _section(experiment: PaperExperiment, record: Record, options: Options) -> str:
    pictures = "".join(
        f'<img alt="{escape(experiment.title)}" src="data:image/svg+xml;base64,{_base64(options.out / name)}">'
        for name in record.pictures
    )
    text = f'<div class="wide"><pre>{escape(record.text)}</pre></div>' if record.text else ""
    left_out = "" if record.left_out is None else f"<p>{escape(record.state)}</p>"
    return f'<h2 id="{record.name}">{escape(experiment.title)}</h2>{left_out}{text}{pictures}'


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
