"""What a coordinator sees of a run while it goes on, and how it ends one early."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from foedus.base.files import Json

if TYPE_CHECKING:  # a coordinator's commands use this module too, and need no JAX
    from foedus.runtime.spine import Recorder, Watch

POINTS = 200  # of a series, at the most, in what an operator sees
SERIES = (
    "objective", "minibatch_objective", "worst_case", "feasibility", "gap", "stationarity", "gradient", "residual",
)  # fmt: skip


class RunMonitor:
    """At the server: the last round's record for whoever asks, and whether the run should end."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.watch: Watch | None = None  # is called after each round; a true result ends the run
        self.stop = False
        self.keep = True  # whether a run that is ended early can be resumed
        self.ending = ""  # why the run ends, where the server's disk takes no file that says so
        self.ending_was_read = Event()
        # for an operator
        self.statement: Json = {}  # the run's name, its algorithm, its clients and the most rounds
        self.stage, self.since = "starting", time.time()
        self.sights: Mapping[str, Json] = {}  # by client: replies, faults, bytes, the last one's time and seconds
        self.waiting: Callable[[], list[str]] = list  # the clients whose answers are awaited
        self.refusals: list[str] = []

    def enter(self, stage: str) -> None:
        """Note what the run is doing now."""
        self.stage, self.since = stage, time.time()

    def look(self) -> None:
        """Show the rounds so far to whoever watches in this process."""
        if self.watch is not None and self.recorder is not None and self.watch(self.recorder):
            self.stop = True

    def answer(self, command: object) -> Json:
        """Return the reply to a coordinator's command.

        `{"do": "stop"}` ends the run after this round, `{"do": "overview"}` is an operator's question.
        """
        fields = command if isinstance(command, dict) else {}
        if fields.get("do") == "overview":
            return self.overview()
        if fields.get("do") == "stop":
            self.keep, self.stop = bool(fields.get("keep", True)), True
        recorder, ending = self.recorder, self.ending
        if ending:
            self.ending_was_read.set()
        if recorder is None or recorder.rounds == 0:
            return {"rounds": 0, "record": {}, "ending": ending}
        return {"rounds": recorder.rounds, "record": recorder.last(), "ending": ending}

    def overview(self) -> Json:
        """Return everything that an operator sees: the stage, the sites, what is awaited, and how the figures move."""
        now, recorder = time.time(), self.recorder
        columns = {} if recorder is None else dict(recorder.columns)
        rounds = min(map(len, columns.values()), default=0)  # a round may be written just now
        places = np.unique(np.linspace(0, rounds - 1, min(rounds, POINTS)).astype(int)) if rounds else np.zeros(0, int)
        series = {
            name: [float(value) if np.isfinite(value) else None for value in columns[name][places]]
            for name in SERIES
            if name in columns and np.ndim(columns[name]) == 1
        }
        releases = columns.get("ledger.releases")
        sites = {}
        for i, (client, sight) in enumerate(list(self.sights.items())):
            age = None if sight["time"] is None else now - sight["time"]
            sites[client] = {**sight, "age": age, "releases": None if releases is None else int(releases[-1][i])}
        return {
            **self.statement,
            "stage": self.stage,
            "stage_seconds": now - self.since,
            "rounds": rounds,
            "record": {} if recorder is None or not rounds else recorder.last(),
            "at": [int(place) + 1 for place in places],
            "series": series,
            "sites": sites,
            "waiting": self.waiting(),
            "refusals": list(self.refusals[-5:]),
            "refusal_count": len(self.refusals),
        }


@dataclass(frozen=True)
class Glimpse:
    """At the coordinator: how far a run is, in the form in which `solve` looks at one."""

    rounds: int
    record: dict[str, float]

    def last(self) -> dict[str, float]:
        return self.record
