"""What tests over real sites share: one federation for all of them, and marks for what FLARE's threads leave behind."""

import contextlib
import json
import os
import signal
import time
from typing import Any

import pytest

from foedus.federation.names import RUNS
from foedus.federation.policy import SITE_FILE

REAL = [
    # what is left when a server is killed under FLARE's threads
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def place(federation: Any, site: str, table: str, *, labels: list[str], groups: list[str], more: str = "") -> None:
    """A site's table, outside its kit, and the site file that names it; the site reads it when it is started."""
    data = federation.data(site).with_suffix(".csv")
    data.write_text(table)
    told = f"[data]\nfile = {json.dumps(str(data))}\nlabels = {json.dumps(labels)}\ngroups = {json.dumps(groups)}\n"
    path = federation.kit(site) / "local" / SITE_FILE
    path.write_text(told + more)
    path.chmod(0o600)


def kill_in_round(federation: Any, victim: str, round: int, killed: list[str]) -> None:
    """kill -9 of a party, or of its job alone, once the first site has answered this many rounds."""
    log = federation.kit("site-1") / RUNS / "messages.jsonl"
    before = log.stat().st_size if log.exists() else 0
    party, _, what = victim.partition(" ")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        time.sleep(0.02)
        if log.exists() and f'"round": {round},' in log.read_bytes()[before:].decode():
            pids = federation.processes(party)
            for pid in pids[1:] if what == "job" else pids:
                os.kill(pid, signal.SIGKILL)
                killed.append(f"{party} {pid}")
            return


def break_in_round(federation: Any, victim: str, round: int, broken: list[str], line: Any) -> None:
    """Kill a party, let it stand still for half a minute, fill its disk for ten seconds, or slow the line down."""
    party, _, what = victim.partition(" ")
    if what not in ("stopped", "full", "slow"):
        return kill_in_round(federation, victim, round, broken)
    wait_for_round(federation, min(round, 60))
    broken.append(victim)
    if what == "stopped":
        pids = federation.processes(party)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(30.0)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    elif what == "full":
        log = federation.kit(party) / RUNS / "messages.jsonl"
        aside = log.with_suffix(".aside")
        log.rename(aside)
        log.symlink_to("/dev/full")
        time.sleep(10.0)
        log.unlink()
        aside.rename(log)
    else:
        line.delay = 0.02
        time.sleep(20.0)
        line.delay = 0.0
    return None


def rounds_answered(federation: Any, site: str, run: str) -> list[int]:
    """The rounds of a run that a site has answered, in order."""
    log = federation.kit(site) / RUNS / "messages.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line["round"] for line in lines if line["run"] == run and line["purpose"] == "round"]


def wait_for_round(federation: Any, round: int, seconds: float = 240.0) -> None:
    """Return once the first site has answered this round of a run that begins now."""
    log = federation.kit("site-1") / RUNS / "messages.jsonl"
    before = log.stat().st_size if log.exists() else 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        if log.exists() and f'"round": {round},' in log.read_bytes()[before:].decode():
            return
    raise AssertionError(f"round {round} was not reached within {seconds:g} s")
