"""The page of `foedus watch`: it follows a running job and becomes its report; only this machine can reach it."""

import functools
import json
import math
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

import numpy as np
from markupsafe import Markup

from foedus.app.report import html, sections, words
from foedus.app.report.charts import Chart
from foedus.app.report.render import piece
from foedus.base.errors import FoedusError
from foedus.base.files import unpack
from foedus.base.quantities import number, size
from foedus.certificate.measure import Certificate
from foedus.runtime.checkpoint import MAGIC, MARK
from foedus.runtime.run import Run, Traffic, load

# the Content-Security-Policy: nothing is loaded from elsewhere
SAFE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


@dataclass(frozen=True)
class Sight:
    """The present state of a job's folder; `pulse` is a text that changes whenever the page does."""

    stage: str  # waiting, running or done
    pulse: str
    source: Path | None = None


def look(folder: Path) -> Sight:
    """Find out how far the job in `folder` is, from the names, times and first bytes of its files."""
    finished_run = folder / "run.json"
    newest = _checkpoint(folder)
    if finished_run.is_file() and (newest is None or finished_run.stat().st_mtime_ns >= newest.stat().st_mtime_ns):
        return Sight("done", f"done-{finished_run.stat().st_mtime_ns}", folder)
    if newest is not None:
        return Sight("running", f"running-{newest.stat().st_mtime_ns}", newest)
    return Sight("waiting", "waiting")


def _checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint in the folder; `folder` may also be a checkpoint file itself."""
    files = [folder] if folder.is_file() else [p for p in folder.iterdir() if p.is_file() and p.name[0] != "."]
    checkpoints = []
    for path in files:
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) == MAGIC:
                    checkpoints.append((path.stat().st_mtime_ns, path))
        except OSError:
            continue
    return max(checkpoints)[1] if checkpoints else None


def history_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """Return the history up to now from a checkpoint."""
    try:
        arrays, _ = unpack(checkpoint.read_bytes()[MARK:])
    except Exception as error:
        raise FoedusError(f"checkpoint {checkpoint} cannot be read: {error}.") from None
    return {name[8:]: values for name, values in arrays.items() if name.startswith("history.")}


def limit_of(folder: Path) -> int | None:
    """Return the limit of rounds of the job, or None if `foedus run` has not written it among its events."""
    file = folder / "events.jsonl"
    if not file.is_file():
        return None
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # the last line may be half written
                continue
            if isinstance(event, dict) and isinstance(event.get("max_rounds"), int) and event["max_rounds"] > 0:
                return event["max_rounds"]
    return None


def running(history: dict[str, np.ndarray], rounds: int, traffic: Traffic) -> Run:
    """Return a run that has not ended, with the history up to now."""
    series = next((history[k] for k in ("objective", "minibatch_objective") if k in history), np.zeros(0))
    return Run(
        w=None, objective=float(series[-1]) if len(series) else math.nan, rounds=rounds, converged=False,
        reason="running", certificate=Certificate(stationarity=math.nan), history=history, traffic=traffic,
        seconds=0.0, compile_seconds=0.0, settings={},
    )  # fmt: skip


def progress(charts: list[Chart], rounds: int, most: int | None) -> html.Section:
    """Return the section of a page on a running job: how far it is, and its charts."""
    share = Markup("") if most is None else piece("progress", min(rounds / max(1, most), 1.0))
    return "convergence", "Progress", share + sections.convergence(charts, [])


def render(folder: Path, sight: Sight) -> str:
    """Return the page for the state that `look` returned."""
    name = folder.resolve().name
    if sight.stage == "done":
        return html.page({name: load(folder)}, html.asked_in(folder), sight.pulse)
    if sight.source is None:
        wait = "The job has not written a checkpoint yet. This page looks again by itself."
        return html.assemble(name, words.Verdict("going", "Waiting", (wait,)), pulse=sight.pulse)
    history = history_of(sight.source)
    rounds = len(history.get("phase", ()))
    up, down = (int(np.sum(history.get(key, 0))) for key in ("bytes_up", "bytes_down"))
    partial = running(history, rounds, Traffic(up, down))
    page_charts = sections.charts_of({name: partial})
    most = limit_of(folder)
    tiles = [
        ("Round", number(rounds), "so far" if most is None else f"of at most {number(most)}"),
        ("Objective", number(partial.objective), "at the last round"),
    ]
    if "feasibility" in history and rounds:
        violation = number(float(history["feasibility"][-1]))
        tiles.append(("Largest violation", violation, "at the worst site; 0 means that all constraints hold"))
    tiles.append(("Sent", size(up + down), f"{size(up)} up, {size(down)} down"))
    if "answered" in history and rounds:
        tiles.append(("Sites", number(int(history["answered"][-1])), "answered the last round"))
    text = f"Round {number(rounds)}. This page follows the job and becomes its report at the end."
    return html.assemble(
        name,
        words.Verdict("going", "Running", (text,)),
        tiles=tiles,
        parts=[progress(page_charts, rounds, most)],
        page_charts=page_charts,
        pulse=sight.pulse,
    )


class Show(Protocol):
    """What is shown: a page, and a text that changes whenever the page does."""

    def pulse(self) -> str: ...

    def page(self) -> str: ...

    def metrics(self) -> str: ...


class FolderShow:
    """The show of a run folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def pulse(self) -> str:
        return look(self.folder).pulse

    def page(self) -> str:
        return render(self.folder, look(self.folder))

    def metrics(self) -> str:
        return f"# TYPE foedus_running gauge\nfoedus_running {int(look(self.folder).stage == 'running')}\n"


class Page(BaseHTTPRequestHandler):
    """The handler of requests: `/` is the page, `/pulse` a text that changes with it, `/metrics` for Prometheus."""

    def __init__(self, show: Show, *args: object) -> None:
        self.show = show
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        # a web site whose name resolves to 127.0.0.1 (DNS rebinding) must not be able to read the page
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            return self.answer(403, "this page is for this machine alone", "text/plain")
        texts = {"/": self.show.page, "/pulse": self.show.pulse, "/metrics": self.show.metrics}
        if self.path not in texts:
            return self.answer(404, "there is only /, /pulse and /metrics here", "text/plain")
        try:
            text = texts[self.path]()
        except (FoedusError, OSError) as error:  # a file that is being replaced, or a folder that is gone
            trouble = words.Verdict("bad", "Nothing to show", (str(error),), ("The page looks again by itself.",))
            text = html.assemble("trouble", trouble, pulse="") if self.path == "/" else "trouble"
        return self.answer(200, text, "text/html" if self.path == "/" else "text/plain")

    def answer(self, status: int, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", SAFE)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""


def serve(show: Show | Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server for a page, or the one about a run folder, bound to 127.0.0.1; the caller runs and closes it."""
    show = FolderShow(show) if isinstance(show, Path) else show
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Page, show))
    except OSError as error:
        raise FoedusError(
            f"--port {port}: it cannot be used ({error.strerror}); leave it out to take one that is free."
        ) from None
