"""Driving a run from the coordinator: job after job until there is a result, whoever crashes or is cut off in between.

The jobs of a run carry its name and the digest of what was submitted. Before a job is submitted the server is asked for
one of this name: a coordinator that has crashed, or was cut off, finds its run again, follows it if it is under way and
takes its result if it is done. So a run is neither played twice nor side by side with itself.
"""

import hashlib
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation.flare.console import Console, Unreachable, Watch
from foedus.federation.flare.kits import job
from foedus.federation.monitor import Glimpse
from foedus.federation.names import ENDED, RESULT
from foedus.federation.order import Order, Result
from foedus.federation.plan import Request, greetings_of, sign
from foedus.runtime.spine import Recorder
from foedus.sums.identity import Signer

SITES_SECONDS = 60.0  # for all sites to be connected
CONNECT_SECONDS = 60.0  # for a server that does not answer to be back
PAUSE_SECONDS = 2.0  # before a run is resumed


@dataclass(frozen=True)
class Submission:
    """A run as it is submitted: its name and content, who takes part, and how long the server waits for whom."""

    run: str
    content: bytes
    sites: tuple[str, ...]
    transport: str
    patience: Json
    greetings: Mapping[str, Json]  # by site, what the coordinator signs

    @property
    def name(self) -> str:
        """The name of its jobs: another submission under the same name of a run has another one."""
        return f"{self.run}-{hashlib.sha256(self.content).hexdigest()[:8]}"

    @staticmethod
    def of(work: Order | Request[Any], transport: str, patience: Json) -> "Submission":
        """Return a run as it is submitted."""
        return Submission(work.run, work.to_bytes(), work.sites, transport, patience, greetings_of(work))

    def write(self, folder: Path, kit: Path) -> Path:
        """Write the job into a folder, with the signatures of the coordinator's kit under its plan."""
        signatures = sign(self.greetings, Signer.of_coordinator(kit))
        return job(folder, self.run, self.content, self.sites, self.transport, self.patience, signatures, self.name)


class Place(Protocol):
    """Where a coordinator finds what has become of a job."""

    def ready(self) -> None:
        """Make sure that the parties run, as far as that is the coordinator's to do."""
        ...

    def over(self, number: str) -> bool:
        """Return whether a job is known to be over, without asking the server."""
        ...

    def fetch(self, console: Console, number: str) -> tuple[bytes | None, Json]:
        """Return the result of a job that is over, if it has one, and how it ended."""
        ...


class AtServer:
    """The server on another machine: results are downloaded."""

    def ready(self) -> None: ...

    def over(self, number: str) -> bool:
        return False

    def fetch(self, console: Console, number: str) -> tuple[bytes | None, Json]:
        result, ending = console.download(number, RESULT), console.download(number, ENDED)
        return result, ending_of(ending or b"")


def ending_of(content: bytes) -> Json:
    """Return what the server wrote about the end of a job; nothing where it wrote nothing."""
    try:
        ending = json.loads(content)
    except ValueError:
        return {}
    return ending if isinstance(ending, dict) else {}


def drive(
    submission: Submission, kit: Path, place: Place, *, keep_going: int, watch: Watch | None, keep: bool
) -> Result:
    """Submit a run, or find it again, and resume it where its job ends without a result; return the result.

    `keep` says whether a run that is ended early can go on later. Raises Stopped where there is no result.
    """
    finished_jobs: set[str] = set()  # jobs that are known to have no result
    attempts = 0
    while True:
        try:
            place.ready()
            with Console(kit, timeout=CONNECT_SECONDS if attempts else 20.0) as console:
                number, is_found = _begin(console, submission, kit, finished_jobs)
                rounds_seen, is_ended = console.follow(number, lambda number=number: place.over(number), watch, keep)
                if (no := console.refusal(number)) is not None:
                    raise FoedusError(no)
                content, ending = place.fetch(console, number)
                sentence = ending.get("sentence") or console.last_words or "its job ended without a word"
            finished_jobs.add(number)
            result = None if content is None else Result.from_bytes(content)
            if is_found and (result is None or (result.interrupted and not is_ended)):
                continue  # one that was ended early, before, goes on now
            if result is not None:
                history = Recorder((), result.history)
                if watch is not None and history.rounds > rounds_seen:  # they were played since the last look
                    watch(Glimpse(history.rounds, history.last()))
                return result
            if ending.get("how") == "refused":
                raise FoedusError(sentence)
        except Unreachable as error:
            sentence = str(error)
        attempts += 1
        if attempts > keep_going:
            raise Stopped(sentence.removesuffix("."))
        time.sleep(PAUSE_SECONDS)


def _begin(console: Console, submission: Submission, kit: Path, finished_jobs: set[str]) -> tuple[str, bool]:
    """Return the number of the job of a run, and whether it was found: under way, or done."""
    for one in console.jobs(submission.name):
        if (
            one.name == submission.name
            and one.number not in finished_jobs
            and one.state in ("waiting", "running", "done")
        ):
            return one.number, True
    console.wait_for_sites(submission.sites, SITES_SECONDS)
    with tempfile.TemporaryDirectory() as scratch:
        return console.submit(submission.write(Path(scratch) / "job", kit)), False


class Stopped(FoedusError):
    """A submitted run has no result yet and can be resumed."""
