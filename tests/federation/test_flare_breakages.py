"""What stands still, crashes, is cut off or fills up while a run goes on. Slow; needs NVIDIA FLARE."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constrained_cases import CAPPED, breast_cancer
from federations import REAL, place, rounds_answered, wait_for_round

import foedus as fd
from foedus.app.cli import run as cli
from foedus.app.experiment import starter

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

from foedus.federation.flare.console import Console, Unreachable
from foedus.federation.names import RUNS

pytestmark = [*REAL, pytest.mark.slow]

STUDY = """
name = "study"
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
[algorithm]
name = "ProxAL"
inner = "admm"
[problem]
loss = "logistic"
[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.6
"""


def stand_still(pids: list[int], seconds: float) -> None:
    """SIGSTOP, and SIGCONT after so many seconds."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_stands_still_for_half_a_minute_does_not_hang_the_coordinator(federation):
    problem, algorithm = breast_cancer().problem(), CAPPED["admm"]
    expected = fd.solve(problem, algorithm)
    stopped: list[int] = []

    def hold() -> None:
        wait_for_round(federation, 20)
        stopped.extend(federation.processes("server"))
        stand_still(stopped, 30.0)

    holder = threading.Thread(target=hold)
    holder.start()
    began = time.monotonic()
    run = fd.solve(problem, algorithm, runtime=fd.Flare(at=federation.folder, timeout=10.0))
    holder.join()
    assert len(stopped) >= 2, "the server and its job"
    assert run.certificate.holds()
    np.testing.assert_allclose(run.w, expected.w, rtol=0, atol=1e-9)
    assert time.monotonic() - began < 240


def test_a_coordinator_gives_up_on_a_server_that_never_wakes_and_its_process_ends(federation):
    """The command ends with its sentence and status 2: no thread of FLARE's keeps the process."""
    pids = federation.processes("server")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        told = subprocess.run(
            [sys.executable, "-m", "foedus.app.cli", "federation", "status", "--kit", str(federation.kit("admin"))],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert told.returncode == 2
        assert "does not answer the coordinator" in told.stderr or "has not answered" in told.stderr
        assert time.monotonic() - began < 120
        with pytest.raises(Unreachable), Console(federation.kit("admin"), timeout=5.0):
            pass
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def tables(federation: Any, folder: Path) -> Path:
    """Each site's table in its place; returns the experiment file."""
    texts = [*starter.hospitals().values()]
    for site, text in zip(federation.sites, texts, strict=False):
        place(federation, site, text, labels=["readmitted"], groups=[], more="[policy]\nmin_subset = 1\n")
    (folder / "study.toml").write_text(STUDY)
    return folder / "study.toml"


def test_a_coordinator_that_crashed_finds_its_run_again_and_nothing_is_played_twice(federation, tmp_path):
    file, out = tables(federation, tmp_path), tmp_path / "run"
    command = ["federation", "submit", str(file), "--folder", str(federation.folder), "--out", str(out), "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "foedus.app.cli", *command])
    wait_for_round(federation, 30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    name = json.loads((out / "submission.json").read_text())
    assert name["name"] == "study"
    assert cli(command) == 0, "the same command goes on with the run that is under way"
    assert fd.load(out).certificate.holds()
    run = next(json.loads(line)["id"] for line in (out / "events.jsonl").read_text().splitlines() if '"id"' in line)
    with Console(federation.kit("admin")) as console:
        assert [one.state for one in console.jobs(run)] == ["done"], "one job"
    for site in federation.sites:
        rounds = rounds_answered(federation, site, run)
        assert len(rounds) == len({*rounds}), "no round was played twice"


def test_a_run_that_ended_while_nobody_looked_gives_its_result(federation, tmp_path):
    file, out = tables(federation, tmp_path), tmp_path / "run"
    command = ["federation", "submit", str(file), "--folder", str(federation.folder), "--out", str(out), "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "foedus.app.cli", *command])
    wait_for_round(federation, 5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = next(json.loads(line)["id"] for line in (out / "events.jsonl").read_text().splitlines() if '"id"' in line)
    with Console(federation.kit("admin")) as console:
        until = time.monotonic() + 300
        while console.jobs(run)[0].state != "done" and time.monotonic() < until:
            time.sleep(1.0)
        assert cli(["federation", "resume", str(out), "--quiet"]) == 0
        assert len(console.jobs(run)) == 1
    assert fd.load(out).certificate.holds()


def test_a_full_disk_at_a_site_is_called_one(federation):
    """Its record of messages cannot grow; the site is not 'not there'."""
    log = federation.kit("site-2") / RUNS / "messages.jsonl"
    log.unlink(missing_ok=True)
    log.symlink_to("/dev/full")
    try:
        with pytest.raises(fd.FoedusError, match="its disk may be full"):
            fd.solve(
                breast_cancer().problem(),
                CAPPED["newton"],
                runtime=fd.Flare(at=federation.folder, timeout=2.0, keep_going=0),
            )
    finally:
        log.unlink()
