"""What a coordinator sees of a run while it goes on, and how it ends one early."""

from dataclasses import dataclass
from threading import Event

from foedus.files import Json
from foedus.runtime.spine import Recorder, Watch


class Window:
    """At the server: the last round's record for whoever asks, and whether the run should end."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.watch: Watch | None = None  # is called after each round; a true result ends the run
        self.stop = False
        self.keep = True  # whether a run that is ended early can be resumed
        self.ending = ""  # why the run ends, where the server's disk takes no file that says so
        self.ending_was_read = Event()

    def look(self) -> None:
        """Show the rounds so far to whoever watches in this process."""
        if self.watch is not None and self.recorder is not None and self.watch(self.recorder):
            self.stop = True

    def answer(self, command: object) -> Json:
        """Return the reply to a coordinator's command; `{"do": "stop"}` ends the run after this round."""
        fields = command if isinstance(command, dict) else {}
        if fields.get("do") == "stop":
            self.keep, self.stop = bool(fields.get("keep", True)), True
        recorder, ending = self.recorder, self.ending
        if ending:
            self.ending_was_read.set()
        if recorder is None or recorder.rounds == 0:
            return {"rounds": 0, "record": {}, "ending": ending}
        return {"rounds": recorder.rounds, "record": recorder.last(), "ending": ending}


@dataclass(frozen=True)
class Glimpse:
    """At the coordinator: how far a run is, in the form in which `solve` looks at one."""

    rounds: int
    record: dict[str, float]

    def last(self) -> dict[str, float]:
        return self.record
