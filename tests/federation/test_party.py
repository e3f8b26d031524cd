"""A party and the process that looks after it: there are never two of a kit, whoever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="comes with NVIDIA FLARE: pip install 'foedus[flare]'")

from foedus.federation.flare import party, processes

# a party without FLARE: it begins a job in a session of its own, and waits
PARTY = """
import subprocess, sys, time
from foedus.federation.flare.processes import end_with_supervisor
end_with_supervisor()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""
SUPERVISOR = """
import sys
from pathlib import Path
from foedus.federation.flare import party
party.check_kit, party.warnings_of = (lambda kit: None), (lambda kit: [])
party.command_of = lambda kit: [sys.executable, "-c", sys.argv[2]]
party.run(Path(sys.argv[1]))
"""

# what `foedus federation up` does: it starts a party, and ends
TRIAL = SUPERVISOR.replace(
    "party.run(Path(sys.argv[1]))", "party.begin(Path(sys.argv[1]), sys.argv[1], supervised=False)"
)


@pytest.fixture
def kit(tmp_path: Path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/fed_client.json").write_text(json.dumps({"client": {"fqsn": "north"}}))
    yield tmp_path
    processes.end_all(str(tmp_path))


def supervise(kit: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(kit), PARTY])


def until(kit: Path, count: int, seconds: float = 60.0) -> list[int]:
    """Wait until so many processes carry the party's mark, and return them."""
    end = time.monotonic() + seconds
    while len(pids := processes.pids_with_mark(str(kit))) != count and time.monotonic() < end:
        time.sleep(0.1)
    return pids


@pytest.mark.skipif(os.name != "posix", reason="parties over FLARE run on Linux and macOS")
def test_a_killed_supervisor_leaves_no_second_party_behind(kit):
    first = supervise(kit)
    assert len(until(kit, 2)) == 2  # the party, and its job
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert until(kit, 0) == []  # without anybody's help


@pytest.mark.skipif(os.name != "posix", reason="parties over FLARE run on Linux and macOS")
def test_a_party_of_a_trial_goes_on_when_the_command_that_started_it_has_ended(kit):
    assert subprocess.run([sys.executable, "-c", TRIAL, str(kit), PARTY], check=False).returncode == 0
    before = until(kit, 2)
    assert len(before) == 2
    time.sleep(2 * processes.LOOK_SECONDS)
    assert until(kit, 2, 0.0) == before


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="parties over FLARE run on Linux and macOS")
def test_what_is_left_of_a_party_ends_before_the_next_one_starts(kit):
    first = supervise(kit)
    before = until(kit, 2)
    for pid in before:
        os.kill(pid, signal.SIGSTOP)  # it cannot even end by itself
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = supervise(kit)
    end = time.monotonic() + 60
    while set(before) & set(processes.pids_with_mark(str(kit))) and time.monotonic() < end:
        time.sleep(0.1)
    assert not set(before) & set(until(kit, 2))
    second.send_signal(signal.SIGTERM)
    second.wait(60)
    assert until(kit, 0) == []


def test_disk_use_is_bounded_over_fifty_jobs(kit):
    now = time.time()
    (kit / "foedus-runs").mkdir()
    (kit / "foedus-runs/ledger.jsonl").write_text("kept")
    for number in range(50):
        for place in (kit, kit / "storage/jobs"):
            folder = place / str(uuid.UUID(int=number)) / "app"
            folder.mkdir(parents=True)
            (folder / "log.txt").write_bytes(bytes(1000))
            for path in (folder / "log.txt", folder, folder.parent):
                os.utime(path, (now - 3 * 86400 + number,) * 2)
    (kit / party.LOG).write_bytes(b"old" + bytes(party.MOST_LOG) + b"new")
    assert len(party.prune(kit, now)) == 2 * (50 - party.MOST_JOBS)
    for place in (kit, kit / "storage/jobs"):
        left = {path.name for path in place.iterdir() if party.JOB.fullmatch(path.name)}
        assert left == {str(uuid.UUID(int=number)) for number in range(50 - party.MOST_JOBS, 50)}
    assert (kit / "foedus-runs/ledger.jsonl").read_text() == "kept"
    log = (kit / party.LOG).read_bytes()
    assert len(log) == party.MOST_LOG // 2
    assert log.endswith(b"new")


def test_a_job_that_is_under_way_stays(kit, monkeypatch):
    now = time.time()
    for number in range(50):
        folder = kit / str(uuid.UUID(int=number))
        folder.mkdir()
        os.utime(folder, (now - 3 * 86400 + number,) * 2)
    busy = str(uuid.UUID(int=0))
    program = [sys.executable, "-c", "import time; time.sleep(60)", "-n", busy]
    with subprocess.Popen(program, env=os.environ | {processes.MARK: str(kit)}) as process:
        assert kit / busy not in party.prune(kit, now)
        process.kill()
    assert (kit / busy).is_dir()


def test_what_was_touched_today_stays(kit):
    for number in range(50):
        (kit / str(uuid.UUID(int=number))).mkdir()
    assert party.prune(kit) == []
