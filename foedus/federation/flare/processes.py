"""The processes of a party on this machine: those with its mark, and their end."""

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what the program of a party imports takes no time
    from foedus.base.files import Json

MARK = "FOEDUS_PARTY"  # the variable that a party and the processes of its jobs carry
SUPERVISOR = "FOEDUS_SUPERVISOR"  # the variable with the process that looks after a party
LOOK_SECONDS = 1.0  # between two looks at that process


def began(pid: int) -> float:
    """Return when a process began, by which another process of the same number is told from it."""
    import psutil

    return psutil.Process(pid).create_time()


def alive(record: "Json | None") -> int | None:
    """Return the id, if the process with this id is still the one that was started."""
    import psutil

    if not record:
        return None
    try:
        process = psutil.Process(record["pid"])
        same = abs(process.create_time() - record["began"]) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        return record["pid"] if same else None
    except psutil.NoSuchProcess:
        return None


def pids_with_mark(mark: str) -> list[int]:
    """Return the processes that carry this party's mark in their environment."""
    import psutil

    pids = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return pids


def end_all(mark: str) -> bool:
    """End all processes of a party; return whether there were any."""
    had_any = False
    for _ in range(50):
        pids = [pid for pid in pids_with_mark(mark) if pid != os.getpid()]
        if not pids:
            break
        had_any = True
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    return had_any


def end_with_supervisor() -> None:
    """End this party, and the processes of its jobs, when the process that looks after it is gone."""
    supervisor = os.environ.get(SUPERVISOR, "")

    def watch() -> None:
        while str(os.getppid()) == supervisor:
            time.sleep(LOOK_SECONDS)
        end_all(os.environ[MARK])
        os._exit(1)

    if supervisor:
        threading.Thread(target=watch, name="supervisor", daemon=True).start()
