"""The page of a running federation: its sites, the run under way, and what it waits for. It changes nothing."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from foedus.app.report import html, sections, watch, words
from foedus.app.report.render import Cell, Column, Line, columns, paragraphs, piece, table
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.quantities import count, duration, number, size
from foedus.runtime.run import Traffic

if TYPE_CHECKING:
    from foedus.federation.flare.console import Console, JobStatus

LOOK_SECONDS = 2.0  # between two looks at the server
STAGES = {
    "starting": "The job starts.",
    "greeting": "The sites are greeted, and agree to the plan or refuse it.",
    "joining": "The sites read their data and compile their programs.",
    "rounds": "Rounds are played.",
    "measuring": "The rounds are over; every site measures its part of the certificate.",
}


@dataclass(frozen=True)
class Scene:
    """What was seen in one look at the server: the connected sites, the jobs, and the running jobs' own words."""

    time: float
    sites: list[str] = field(default_factory=list)
    jobs: "list[JobStatus]" = field(default_factory=list)
    runs: list[Json] = field(default_factory=list)
    trouble: str = ""


def look(console: "Console") -> Scene:
    """Look at the server once."""
    from foedus.federation.flare.console import Unreachable

    jobs = console.jobs()
    runs = []
    for job in jobs:
        if job.state == "running":
            try:
                runs.append(console.overview(job.number) | {"job": job.number})
            except Unreachable:  # it has not begun, or is just over
                continue
    return Scene(time.time(), console.sites(), jobs, sorted(runs, key=lambda run: -run["rounds"]))


class FederationShow:
    """Follows a federation from the coordinator's kit, in a thread of its own, for the page of `foedus watch`."""

    def __init__(self, kit: Path):
        self.kit = kit
        self.scene = Scene(time.time(), trouble="The server has not answered yet.")
        self.over = threading.Event()
        threading.Thread(target=self._follow, name="watch", daemon=True).start()

    def _follow(self) -> None:
        from foedus.federation.flare.console import Console

        while not self.over.is_set():
            try:
                with Console(self.kit) as console:
                    while not self.over.wait(0 if self.scene.trouble else LOOK_SECONDS):
                        self.scene = look(console)
            except FoedusError as error:
                self.scene = Scene(time.time(), trouble=str(error))
                self.over.wait(LOOK_SECONDS)

    def pulse(self) -> str:
        """Return a text that changes whenever the page does."""
        return f"{self.scene.time:.3f}"

    def page(self) -> str:
        """Return the page."""
        scene = self.scene
        return render(scene, f"{scene.time:.3f}")

    def metrics(self) -> str:
        """Return the figures of the page for Prometheus."""
        return metrics(self.scene)


def render(scene: Scene, pulse: str | None = None) -> str:
    """Return the page of a scene; one with a `pulse` follows the federation."""
    if scene.trouble:
        trouble = words.Verdict("bad", "The server does not answer", (scene.trouble,), ("The page looks again.",))
        return html.assemble("federation", trouble, pulse=pulse)
    if not scene.runs:
        text = f"{count(len(scene.sites), 'site')} connected: {_names(scene.sites)}."
        idle = words.Verdict("open", "No run is under way", (text,))
        return html.assemble("federation", idle, parts=[("jobs", "Jobs", jobs_table(scene.jobs))], pulse=pulse)
    run, *others = scene.runs
    partial = watch.running(history_of(run), run["rounds"], Traffic(0, 0))
    charts = sections.charts_of({str(run["run"]): partial})
    warnings = (
        [f"Replies that were not accepted: {run['refusal_count']}; {run['refusals'][-1]}."] if run["refusals"] else []
    )
    warnings += [f"Run {one['run']} goes on beside it, at round {one['rounds']}." for one in others]
    return html.assemble(
        "federation",
        words.Verdict("going", f"{run['algorithm']}: {STAGES[run['stage']]}", (waits_for(run),)),
        kicker=f"run {run['run']}",
        tiles=tiles(run, scene),
        warnings=warnings,
        parts=[
            ("sites", "The sites", sites_table(run, scene.sites)),
            watch.progress(charts, run["rounds"], run["max_rounds"]),
            ("jobs", "Jobs", jobs_table(scene.jobs)),
        ],
        page_charts=charts,
        pulse=pulse,
    )


def metrics(scene: Scene) -> str:
    """Return the figures of a scene in Prometheus' text format; none of them is about a row."""
    lines: list[str] = []

    def gauge(name: str, what: str, values: Mapping[str, float]) -> None:
        lines.append(f"# HELP foedus_{name} {what}")
        lines.append(f"# TYPE foedus_{name} gauge")
        lines.extend(f"foedus_{name}{labels} {value:.10g}" for labels, value in values.items())

    gauge("server_up", "Whether the server answers.", {"": float(not scene.trouble)})
    gauge("sites_connected", "Sites that are connected to the server.", {"": len(scene.sites)})
    states = Counter(job.state for job in scene.jobs)
    gauge("jobs", "Jobs at the server, by state.", {_labels(state=state): n for state, n in sorted(states.items())})
    names = [_labels(run=run["run"]) for run in scene.runs]
    for name, what, figure in FIGURES:
        gauge(name, what, {label: figure(run) for label, run in zip(names, scene.runs, strict=True)})
    each = [(run, site, sight) for run in scene.runs for site, sight in run["sites"].items()]
    for name, what in OF_A_SITE.items():
        values = {_labels(run=run["run"], site=site): sight.get(name) for run, site, sight in each}
        gauge(f"site_{name}", what, {label: value for label, value in values.items() if value is not None})
    return "\n".join(lines) + "\n"


FIGURES: tuple[tuple[str, str, Callable[[Json], float]], ...] = (
    ("run_rounds", "Rounds played so far.", lambda run: run["rounds"]),
    ("run_rounds_limit", "The most rounds of the run.", lambda run: run["max_rounds"]),
    ("run_stage_seconds", "Seconds in the present stage.", lambda run: run["stage_seconds"]),
    ("run_sites_waited_for", "Sites that the run waits for.", lambda run: len(run["waiting"])),
    ("run_refusals", "Replies that were not accepted.", lambda run: run["refusal_count"]),
    ("run_bytes_up", "Bytes that the sites have sent in rounds.", lambda run: run["record"].get("total_up", 0)),
    ("run_bytes_down", "Bytes that were sent to the sites in rounds.", lambda run: run["record"].get("total_down", 0)),
)
OF_A_SITE = {
    "replies": "Replies of a site in a run.",
    "faults": "Replies of a site that were lost or refused.",
    "age": "Seconds since the last reply of a site.",
    "releases": "Releases under its privacy budget, as the site says.",
}


def _labels(**labels: str) -> str:
    """Labels as Prometheus reads them; what a name holds cannot end one."""
    texts = {name: str(text).translate(ESCAPES) for name, text in labels.items()}
    return "{" + ",".join(f'{name}="{text}"' for name, text in texts.items()) + "}"


ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def waits_for(run: Json) -> str:
    """Return a sentence on what a run is waiting for."""
    waiting, ago = list(run["waiting"]), duration(run["stage_seconds"])
    whom = f"waiting for {_names(waiting)}" if waiting else "waiting for nobody"
    return f"Round {number(run['rounds'])} of at most {number(run['max_rounds'])}; {whom}. In this stage for {ago}."


def tiles(run: Json, scene: Scene) -> list[html.Tile]:
    """Return the figures at the top of the page."""
    record, series = run["record"], run["series"]
    figures = [("Round", number(run["rounds"]), f"of at most {number(run['max_rounds'])}")]
    titles = {"feasibility": "Largest violation", "gap": "Optimality gap", "stationarity": "Stationarity"}
    for name in ("objective", "minibatch_objective", "worst_case", "feasibility", "gap", "stationarity"):
        if name in series and name in record:
            figures.append((titles.get(name, sections.SERIES[name][0]), number(record[name]), "at the last round"))
    up, down = record.get("total_up", 0), record.get("total_down", 0)
    figures.append(("Sent", size(up + down), f"{size(up)} up, {size(down)} down"))
    figures.append(("Sites", number(len(scene.sites)), "connected to the server"))
    return figures


def sites_table(run: Json, connected_sites: list[str]) -> Markup:
    """Return a table with a row for each site of a run: its state, last reply, pace, bytes, faults and releases."""
    lines = []
    for name in run["clients"]:
        sight = run["sites"].get(name, {})
        state = "answers" if sight.get("replies") else "has not answered yet"
        if name in run["waiting"]:
            state = "is waited for"
        if name not in connected_sites and len({*connected_sites} & {*run["clients"]}):
            state = "not connected"
        age, seconds, releases = sight.get("age"), sight.get("seconds"), sight.get("releases")
        cells = [
            state,
            "–" if age is None else f"{duration(age)} ago",
            "–" if seconds is None else duration(seconds),
            size(sight.get("bytes", 0)),
            number(sight.get("replies", 0)),
            number(sight.get("faults", 0)),
            "–" if releases is None else number(releases),
        ]
        lines.append(Line(name, [*map(Cell, cells)]))
    heads = columns("State", "Last reply", "Time of a round", "Bytes", "Replies", "Faults", "Releases", kind="t")
    note = "Releases are those that a site says it has made under its privacy budget; its own ledger stays there."
    return table([Column("Site", ""), *heads], lines, "") + piece("note", note)


def jobs_table(jobs: "list[JobStatus]") -> Markup:
    """Return a table of the jobs at the server, newest first."""
    if not jobs:
        return paragraphs(["None was submitted yet."])
    lines = [
        Line(one.name, [*map(Cell, (one.state, one.submitted[:19], one.duration[:8], one.number))]) for one in jobs[:20]
    ]
    return table([Column("Run", ""), *columns("State", "Submitted", "Time", "Job", kind="t")], lines, "")


def history_of(run: Json) -> dict[str, np.ndarray]:
    """Return the series of a run as the history that charts are drawn from; between its points nothing is known."""
    count = int(run["rounds"])
    history = {"phase": np.zeros(count, int)}
    for way in ("up", "down"):  # every round the same: single rounds' bytes are not told
        history[f"bytes_{way}"] = np.full(count, run["record"].get(f"total_{way}", 0.0) / max(1, count))
    places = np.asarray(run["at"], int) - 1
    for name, values in run["series"].items():
        numbers = np.array([math.nan if value is None else float(value) for value in values])
        history[name] = np.interp(np.arange(count), places, numbers) if count else numbers
    return history


def _names(names: list[str]) -> str:
    return words.join_names(names) if names else "nobody"
