"""A party of a federation on its machine: `start.sh` and `stop.sh` of its kit, and what systemd or a container runs.

    foedus party run KIT      in the foreground, until a SIGTERM
    foedus party start KIT    in the background
    foedus party stop KIT     without a question; the processes of its jobs end with it

A party whose supervisor is killed ends by itself, and what is left of it is ended before the next one starts, so that
there are never two. A party that crashes is started again; one that crashes five times within a minute each is given
up, with the reason in `out.log`. FLARE starts a process for each job, in a session of its own: these carry a mark, by
which they are found.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.base.quantities import count, duration
from foedus.federation.flare import frames
from foedus.federation.flare.certificates import warnings_of
from foedus.federation.flare.kits import check_kit
from foedus.federation.flare.processes import MARK, SUPERVISOR, alive, began, end_all, pids_with_mark
from foedus.federation.names import RUNS

RECORD = "party.json"  # in the party's own records: the process that looks after it
LOG = "out.log"
AGAIN_SECONDS = 5.0  # before a party that has crashed is started again
SHORT_SECONDS, MOST_CRASHES = 60.0, 5  # so many lives in a row, each shorter than this, and it is given up
STOP_SECONDS = 10.0  # for a process to end by itself
JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # what FLARE calls a job, and its folders
MOST_JOBS, KEPT_SECONDS = 20, 86400.0  # jobs whose folders stay, and how long all of them do
MOST_LOG, PRUNE_SECONDS = 2**24, 600.0  # bytes of out.log, and seconds between two looks


def role_of(kit: Path) -> str:
    """Return whether a kit is that of a 'server' or of a 'client'."""
    for role in ("server", "client"):
        if (kit / "startup" / f"fed_{role}.json").is_file():
            return role
    raise FoedusError(f"{kit} is no kit of a server or a site.")


def command_of(kit: Path) -> list[str]:
    """Return the command that runs the party of a kit, in the foreground."""
    role = role_of(kit)
    options = ["secure_train=true", "org=foedus", "config_folder=config"]
    if role == "client":
        content = json.loads((kit / "startup" / "fed_client.json").read_text())
        options.append(f"uid={content['client']['fqsn']}")
    program = [sys.executable, "-u", "-P", "-m", frames.__name__]  # with -P: its folder is no place to import from
    return [*program, role, "-m", str(kit), "-s", f"fed_{role}.json", "--set", *options]


def environment_of(mark: str, supervised: bool) -> dict[str, str]:
    """Return the environment of a party's process; one that is supervised ends when this process ends."""
    own = {"MALLOC_ARENA_MAX": "2", "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"), MARK: mark}
    return os.environ | own | {SUPERVISOR: str(os.getpid()) if supervised else ""}


def begin(kit: Path, mark: str, *, supervised: bool) -> subprocess.Popen[bytes]:
    """Start the process of a party, which ends with this process if it is supervised; it prints into its `out.log`."""
    settle(kit)
    (kit / "transfer").mkdir(exist_ok=True)
    for stale in (*(kit / name for name in ("pid.fl", "shutdown.fl", "restart.fl")), *(kit / frames.FOLDER).glob("*")):
        stale.unlink(missing_ok=True)
    with (kit / LOG).open("ab") as log:
        return subprocess.Popen(
            command_of(kit),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=kit,
            env=environment_of(mark, supervised),
            start_new_session=True,
            umask=0o077,
        )


def settle(kit: Path) -> None:
    """Let a server's kit name its storage where the kit is now: FLARE wants paths from the root."""
    path = kit / "local" / "resources.json"
    if role_of(kit) != "server":
        return
    try:
        resources = json.loads(path.read_text())
        before = json.dumps(resources)
        for part in resources["components"]:
            if part["id"] == "job_manager":
                part["args"]["uri_root"] = str(kit / "storage" / "jobs")
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "storage" / "snapshots")
    except (OSError, ValueError, KeyError, TypeError):
        raise FoedusError(f"{path} is damaged; take it from the kit as the coordinator made it.") from None
    if json.dumps(resources) != before:
        write_whole(path, json.dumps(resources, indent=1).encode())
        os.chmod(path, 0o600)


# --- the life of a party ---


def run(kit: Path) -> None:
    """Look after a party in the foreground until this process gets a SIGTERM."""
    kit = kit.absolute()
    role_of(kit)
    check_kit(kit)
    (kit / RUNS).mkdir(mode=0o700, exist_ok=True)
    if (pid := running(kit)) is not None and pid != os.getpid():
        raise FoedusError(f"the party of {kit} is running already (process {pid}).")
    for line in warnings_of(kit):
        print(line, file=sys.stderr, flush=True)
    write_whole(kit / RUNS / RECORD, json.dumps({"pid": os.getpid(), "began": began(os.getpid())}).encode())
    end_all(str(kit))  # what is left of a party whose supervisor was killed
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    crashes = 0
    try:
        while not signals:
            life = time.monotonic()
            process = begin(kit, str(kit), supervised=True)
            prune_at = life
            while process.poll() is None and not signals:
                if time.monotonic() >= prune_at:
                    prune(kit)
                    prune_at = time.monotonic() + PRUNE_SECONDS
                time.sleep(0.2)
            if signals:
                break
            crashes = crashes + 1 if time.monotonic() - life < SHORT_SECONDS else 1
            if crashes >= MOST_CRASHES:
                raise FoedusError(f"the party of {kit} was given up after {crashes} crashes; {kit / LOG} says why.")
            wake = time.monotonic() + AGAIN_SECONDS
            while time.monotonic() < wake and not signals:
                time.sleep(0.2)
    finally:
        end_all(str(kit))
        (kit / RUNS / RECORD).unlink(missing_ok=True)


def prune(kit: Path, now: float | None = None) -> list[Path]:
    """Delete what FLARE keeps of old jobs, so that a party's disk does not fill up; return what was deleted.

    The newest MOST_JOBS stay, what was touched within the last day, and jobs that a process of the party works on. A
    party's own records are not among them.
    """
    now = time.time() if now is None else now
    paths = []
    for place in (kit, kit / "storage" / "jobs"):
        jobs = [path for path in place.glob("*") if path.is_dir() and JOB.fullmatch(path.name)]
        ages = {path: now - _time_of_change(path) for path in jobs}
        old = [path for path in sorted(jobs, key=lambda path: ages[path])[MOST_JOBS:] if ages[path] > KEPT_SECONDS]
        busy = _jobs_under_way(str(kit)) if old else set()
        for path in old:
            if path.name not in busy:
                shutil.rmtree(path, ignore_errors=True)
                paths.append(path)
    if (log := kit / LOG).is_file() and log.stat().st_size > MOST_LOG:
        with log.open("r+b") as file:  # the party's process goes on appending to the same file
            file.seek(-MOST_LOG // 2, os.SEEK_END)
            newest = file.read()
            file.seek(0)
            file.write(newest)
            file.truncate()
    return paths


def _jobs_under_way(mark: str) -> set[str]:
    """Return the jobs that the command lines of a party's processes name."""
    import psutil

    lines = []
    for pid in pids_with_mark(mark):
        try:
            lines.append(" ".join(psutil.Process(pid).cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return {match[0] for line in lines for match in JOB.finditer(line)}


def _time_of_change(folder: Path) -> float:
    """Return when anything in a folder was last changed."""
    times = [folder.stat().st_mtime]
    for path in folder.rglob("*"):
        try:
            times.append(path.lstat().st_mtime)
        except OSError:
            continue
    return max(times)


def start(kit: Path) -> int:
    """Look after a party in the background; return the process that does."""
    kit = kit.absolute()
    role_of(kit)
    check_kit(kit)
    if (pid := running(kit)) is not None:
        raise FoedusError(f"the party of {kit} is running already (process {pid}); startup/stop.sh stops it.")
    with (kit / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "foedus.app.cli", "party", "run", str(kit)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=kit,
            start_new_session=True,
            umask=0o077,
        )
    until = time.monotonic() + STOP_SECONDS
    while time.monotonic() < until and running(kit) is None:
        if process.poll() is not None:
            raise FoedusError(f"the party of {kit} did not start; {kit / LOG} says why.")
        time.sleep(0.1)
    return process.pid


def stop(kit: Path) -> bool:
    """Stop a party and the processes of its jobs; return whether something was running."""
    kit = kit.absolute()
    role_of(kit)
    pid = running(kit)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until and running(kit) is not None:
            time.sleep(0.1)
    left = end_all(str(kit))
    (kit / RUNS / RECORD).unlink(missing_ok=True)
    return pid is not None or left


def health(kit: Path) -> tuple[str, bool]:
    """Return in a line whether a party runs, with its process and its supervisor, and since when."""
    kit = kit.absolute()
    role = role_of(kit)
    pid = running(kit)
    if pid is None:
        return f"{role} is not running", False
    processes = [one for one in pids_with_mark(str(kit)) if one != pid]
    if not processes:
        return f"{role} is being started again after a crash; {kit / LOG} says why", False
    seconds = time.time() - min(began(one) for one in processes)
    return f"{role} runs for {duration(seconds)} in {count(len(processes), 'process', 'processes')}", True


def running(kit: Path) -> int | None:
    """Return the process that looks after the party of a kit, or None."""
    try:
        record: Json = json.loads((kit / RUNS / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return alive(record)


# --- processes ---
