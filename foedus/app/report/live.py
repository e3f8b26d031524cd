"""The page that shows the present state of a run folder, follows a running job and becomes its report."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foedus.app.report import html, sections, words
from foedus.app.report.words import number, size
from foedus.base.errors import FoedusError
from foedus.base.files import unpack
from foedus.certificate.measure import Certificate
from foedus.runtime.checkpoint import MAGIC, MARK
from foedus.runtime.run import Run, Traffic, load

# asks every second whether there is something new; without JavaScript the page reloads every five seconds
LIVE = (
    "<noscript><meta http-equiv='refresh' content='5'></noscript><script>setInterval(async function () {{"
    "try {{ var now = await (await fetch('/pulse')).text(); if (now !== {pulse!r}) location.reload(); }}"
    "catch (e) {{}} }}, 1000);</script>"
)


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


def render(folder: Path, sight: Sight) -> str:
    """Return the page for the state that `look` returned."""
    live = LIVE.format(pulse=sight.pulse)
    name = folder.resolve().name
    if sight.stage == "done":
        return html.page({name: load(folder)}, html.asked_in(folder), live)
    if sight.source is None:
        wait = words.Verdict(
            "going", "Waiting", ("The job has not written a checkpoint yet. This page looks again by itself.",)
        )
        return html.assemble(name, html.body(name, wait, [], [], []), [], live)
    history = history_of(sight.source)
    rounds = len(history.get("phase", ()))
    up, down = (int(np.sum(history.get(key, 0))) for key in ("bytes_up", "bytes_down"))
    last = next((history[k] for k in ("objective", "minibatch_objective") if k in history), np.array([math.nan]))
    partial = Run(
        w=None, objective=float(last[-1]) if len(last) else math.nan, rounds=rounds, converged=False, reason="running",
        certificate=Certificate(stationarity=math.nan), history=history, traffic=Traffic(up, down), seconds=0.0,
        compile_seconds=0.0, settings={},
    )  # fmt: skip
    page_charts = sections.charts_of({name: partial})
    most = limit_of(folder)
    tiles = [
        ("Round", number(rounds), "so far" if most is None else f"of at most {number(most)}"),
        ("Objective", number(partial.objective), "at the last round"),
        ("Sent", size(up + down), f"{size(up)} up, {size(down)} down"),
    ]
    if "feasibility" in history and rounds:
        tiles.insert(
            2,
            (
                "Largest violation",
                number(float(history["feasibility"][-1])),
                "at the worst site; 0 means that all terms hold",
            ),
        )
    if "answered" in history and rounds:
        tiles.append(("Sites", number(int(history["answered"][-1])), "answered the last round"))
    going = words.Verdict(
        "going", "Running", (f"Round {number(rounds)}. This page follows the job and becomes its report at the end.",)
    )
    progress = (
        "" if most is None else f'<div class="progress"><i style="width:{100 * min(rounds / most, 1):.1f}%"></i></div>'
    )
    parts = [("convergence", "How it goes", progress + sections.convergence(page_charts, []))]
    return html.assemble(name, html.body(name, going, tiles, [], parts), page_charts, live)
