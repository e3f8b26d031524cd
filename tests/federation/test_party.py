"""A party and the process that looks after it: there are never two of a kit, whoever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="comes with NVIDIA FLARE: pip install 'foedus[flare]'")

from foedus.federation.flare import party

# a party without FLARE: it begins a job in a session of its own, and waits
PARTY = """
import subprocess, sys, time
from foedus.federation.flare.frames import end_with_supervisor
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


@pytest.fixture
def kit(tmp_path: Path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/fed_client.json").write_text(json.dumps({"client": {"fqsn": "north"}}))
    yield tmp_path
    party.end_all(str(tmp_path))


def supervise(kit: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(kit), PARTY])


def until(kit: Path, count: int, seconds: float = 60.0) -> list[int]:
    """Wait until so many processes carry the party's mark, and return them."""
    end = time.monotonic() + seconds
    while len(pids := party.pids_with_mark(str(kit))) != count and time.monotonic() < end:
        time.sleep(0.1)
    return pids


@pytest.mark.skipif(os.name != "posix", reason="parties over FLARE run on Linux and macOS")
def test_a_killed_supervisor_leaves_no_second_party_behind(kit):
    first = supervise(kit)
    assert len(until(kit, 2)) == 2  # the party, and its job
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert until(kit, 0) == []  # without anybody's help


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
    while set(before) & set(party.pids_with_mark(str(kit))) and time.monotonic() < end:
        time.sleep(0.1)
    assert not set(before) & set(until(kit, 2))
    second.send_signal(signal.SIGTERM)
    second.wait(60)
    assert until(kit, 0) == []
