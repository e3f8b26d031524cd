"""The coordinator's console: a session with the server under the coordinator's certificate."""

# pyright: reportMissingImports=false

import contextlib
import io
import logging
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation.flare.kits import ADMIN, require_nvflare
from foedus.federation.monitor import Glimpse
from foedus.federation.names import TOPIC

FINISHED = "FINISHED"
WAITING = ("SUBMITTED", "APPROVED")  # the states of a job that the server has not begun
POLL_SECONDS, STATUS_SECONDS = 0.25, 2.0  # between looks at a running job, and at the server's word on its status
LOGIN_SECONDS = 1.5  # between two attempts of FLARE's to log in
COMMAND_SECONDS = 30.0  # for the answer to a command; FLARE itself gives up after about ten
END_SECONDS = 30.0  # for a job to end after its round
CLOSE_SECONDS = 3.0  # for a goodbye, on which nothing depends
DOWNLOAD_SECONDS = 600.0  # for a result, which may be large and the line slow

T = TypeVar("T")
Watch = Callable[[Glimpse], bool | None]


@dataclass(frozen=True)
class JobStatus:
    """A job at the server; `state` is waiting, running, done, failed, ended or lost (its server was restarted)."""

    number: str
    name: str
    state: str
    submitted: str
    duration: str


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call of FLARE's, or raise Unreachable where it takes longer than this.

    FLARE waits without end for threads of its own that write to a server whose process stands still, so a call runs in
    a thread that can be left behind.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # handed to the caller below
            errors.append(error)

    thread = threading.Thread(target=work, name="console", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise Unreachable(f"the server has not answered the coordinator for {seconds:g} s.")
    return results[0]


def _settings_of(kit: Path) -> None:
    """Let FLARE take its settings from the kit: it would search every folder below the current one for them."""
    from nvflare.fuel.utils.config_service import ConfigService

    if (kit / "local").is_dir():
        ConfigService.initialize({}, [str((kit / "local").absolute())])


class Console:
    """A session that submits jobs and follows them; use it in a `with` block."""

    def __init__(self, kit: Path, timeout: float = 20.0):
        self.kit, self.timeout = kit, timeout
        self.last_words = ""  # what the server said last about why a job ends

    def __enter__(self) -> "Console":
        require_nvflare()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from nvflare.fuel.flare_api.flare_api import new_secure_session

            _settings_of(self.kit)
            logger = logging.getLogger("nvflare")
            self.level = logger.level
            logger.setLevel(logging.CRITICAL)
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # FLARE prints its progress
                    self.session: Any = within(
                        self.timeout + COMMAND_SECONDS,
                        lambda: new_secure_session(
                            self.kit.name,
                            str(self.kit),
                            timeout=self.timeout,
                            auto_login_max_tries=max(1, round(self.timeout / LOGIN_SECONDS)),
                        ),
                    )
            except Unreachable:
                logger.setLevel(self.level)
                raise
            except Exception as error:
                logger.setLevel(self.level)
                raise Unreachable(f"the server does not answer the coordinator ({type(error).__name__}).") from None
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            within(CLOSE_SECONDS, self.session.close)
        except Exception:
            logging.getLogger(__name__).debug("the session was gone already")
        logging.getLogger("nvflare").setLevel(self.level)

    def sites(self, since: Mapping[str, float] | None = None) -> list[str]:
        """Return the connected sites; a site in `since` counts only if the server has heard of it after that time."""
        clients = self._do(lambda: self.session.get_system_info()).client_info
        return sorted(one.name for one in clients if (one.last_connect_time or 0.0) >= (since or {}).get(one.name, 0.0))

    def jobs(self, prefix: str = "") -> list[JobStatus]:
        """Return the jobs at the server whose names begin so, newest first."""
        rows = self._do(lambda: self.session.list_jobs(name_prefix=prefix or None, reverse=True))
        running = {one.job_id for one in self._do(lambda: self.session.get_system_info()).job_info}
        return [_job_status(row, running) for row in rows]

    def submit(self, job: Path) -> str:
        """Submit the job in a folder; return its number."""
        return str(self._do(lambda: self.session.submit_job(str(job))))

    def status(self, job: str) -> str:
        """Return a job's status in the server's words; that of a job that is over starts with FINISHED."""
        return str(self._do(lambda: self.session.get_job_meta(job)).get("status", ""))

    def refusal(self, job: str) -> str | None:
        """Return the sentence with which a site refused a job at its door, or None."""
        details = self._do(lambda: self.session.get_job_meta(job)).get("job_deploy_detail") or []
        for line in map(str, details):
            site, _, words = line.partition(": ")
            if "refused: " in words:
                return f"site {site!r} refused the job: {words.rpartition('refused: ')[2]}"
        return None

    def abort(self, job: str) -> None:
        """End a job at once, without a result."""
        self._do(lambda: self.session.abort_job(job))

    def end(self, job: str, seconds: float = END_SECONDS) -> bool:
        """End a job after its round, as its coordinator would; abort it where it is not over within so many seconds.

        Returns whether it ended by itself. A job that is aborted under its coordinator's eyes is resumed by it.
        """
        try:
            self.look(job, do="stop", keep=True)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self.status(job).startswith(FINISHED):
                    return True
                time.sleep(POLL_SECONDS)
        except Unreachable:  # it has not begun, or stands still
            pass
        self.abort(job)
        return False

    def revoke(self, site: str) -> None:
        """Keep a site out: its session ends, and its certificate admits it no more."""
        self._do(lambda: self.session.disable_client(site))

    def readmit(self, site: str) -> None:
        """Let a revoked site in again."""
        self._do(lambda: self.session.enable_client(site))

    def look(self, job: str, **command: str | bool) -> Glimpse:
        """Return how far a running job has come; `do="stop"` ends it after this round."""
        reply = self._do(lambda: self.session.do_app_command(job, TOPIC, command or {"do": "look"}))
        if not isinstance(reply, dict) or not {"rounds", "record"} <= reply.keys():
            raise Unreachable("the server does not say how far the job is.")  # its job stands still, or is over
        self.last_words = str(reply.get("ending", ""))
        return Glimpse(int(reply["rounds"]), dict(reply["record"]))

    def overview(self, job: str) -> Json:
        """Return what the server shows an operator of a running job; it changes nothing there."""
        reply = self._do(lambda: self.session.do_app_command(job, TOPIC, {"do": "overview"}))
        if not isinstance(reply, dict) or "stage" not in reply:
            raise Unreachable("the server does not say how far the job is.")
        return reply

    def follow(self, job: str, over: Callable[[], bool], watch: Watch | None, keep: bool) -> tuple[int, bool]:
        """Return, when the job is over, the last round that was shown, and whether it was ended from here.

        `watch` sees each new state of it, and ends it with a true result.
        Ctrl-C ends it in the same way: after the round, with a certificate. `keep` says whether it can be resumed then.
        """
        rounds_seen, stopping, last_look = 0, False, time.monotonic()
        while True:
            try:
                if over():
                    return rounds_seen, stopping
                time.sleep(POLL_SECONDS)
                if time.monotonic() - last_look > STATUS_SECONDS:
                    last_look = time.monotonic()
                    if self.status(job).startswith(FINISHED):
                        return rounds_seen, stopping
                elif watch is None or stopping:
                    continue
                try:
                    glimpse = self.look(job)
                except Unreachable:  # it has not begun, or is over
                    continue
                if watch is not None and not stopping and glimpse.rounds > rounds_seen:
                    rounds_seen = glimpse.rounds
                    stopping = bool(watch(glimpse))
                    if stopping:
                        self.look(job, do="stop", keep=keep)
            except KeyboardInterrupt:
                if stopping:
                    raise
                self.look(job, do="stop", keep=keep)
                stopping = True
            except FoedusError:
                raise
            except Exception:  # the watcher's own: nobody waits for the job any more
                self.abort(job)
                raise

    def download(self, job: str, name: str) -> bytes | None:
        """Return the content of a file of a finished job, or None where it has none of this name."""
        with tempfile.TemporaryDirectory() as folder:
            place = self._do(lambda: self.session.download_job_result(job, folder), DOWNLOAD_SECONDS)
            paths = sorted(Path(place or folder).rglob(name)) or sorted(Path(folder).rglob(name))
            content = paths[0].read_bytes() if paths else None
            shutil.rmtree(Path(place), ignore_errors=True) if place else None
            return content

    def _do(self, call: Callable[[], T], seconds: float = COMMAND_SECONDS) -> T:
        try:
            return within(seconds, call)
        except Unreachable:
            raise
        except Exception as error:
            raise Unreachable(f"the server refused the coordinator ({type(error).__name__}: {error}).") from None

    def wait_for_sites(self, names: tuple[str, ...], seconds: float, since: Mapping[str, float] | None = None) -> None:
        """Return when all these sites are connected."""
        until = time.monotonic() + seconds
        while missing := [n for n in names if n not in self.sites(since)]:
            if time.monotonic() > until:
                raise Unreachable(f"site {missing[0]!r} is not connected after {seconds:g} s.")
            time.sleep(0.3)


def _job_status(row: Mapping[str, object], running: set[str]) -> JobStatus:
    number, status = str(row.get("job_id")), str(row.get("status"))
    state = "failed"
    if status in WAITING:
        state = "waiting"
    elif not status.startswith(FINISHED):  # after its server has crashed, FLARE calls a job RUNNING for good
        state = "running" if number in running or status == "DISPATCHED" else "lost"
    elif status.endswith("COMPLETED"):
        state = "done"
    elif status.endswith("ABORTED"):
        state = "ended"
    return JobStatus(
        number, str(row.get("job_name")), state, str(row.get("submit_time", "")), str(row.get("duration", ""))
    )


class Unreachable(FoedusError):
    """A server or a site does not answer now."""


__all__ = ["ADMIN", "FINISHED", "Console", "JobStatus", "Unreachable"]
