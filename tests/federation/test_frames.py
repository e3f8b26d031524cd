"""Messages longer than announced: dropped as they arrive, named by their sender, and never in memory."""

import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from foedus.federation.flare import frames
from foedus.federation.flare.frames import OWN, Limit, length_of_note
from foedus.federation.flare.patches import NOTE

RECEIVER = """
import socket, sys
from pathlib import Path
from types import SimpleNamespace
from foedus.federation.flare.frames import Limit
from foedus.federation.flare.patches import limit_frames
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection
limit_frames(Limit(Path(sys.argv[2])))
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
reader = SocketConnection.__new__(SocketConnection)
reader.sock, reader.name = line, "test"
peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
before = peak()
for _ in range(3):
    frame = reader.read_frame()
    print(len(frame), bytes(frame[16:120]), flush=True)
print(peak() - before)
"""


def frame(headers: bytes, size: int, kind: int = 1) -> bytes:
    """The first bytes of a frame of FLARE's whose content takes so many bytes."""
    return struct.pack(">IHBBHHHH", 16 + len(headers) + size, len(headers), kind, 0, 0, 1, 0, 0) + headers


def test_a_message_of_half_a_gigabyte_is_read_off_the_line_and_takes_no_memory(tmp_path):
    pytest.importorskip("nvflare")
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", RECEIVER, str(server.getsockname()[1]), str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line, _ = server.accept()
        with line:
            line.sendall(frame(b"who", 5) + b"small")
            line.sendall(frame(b"who", 500_000_000))
            for _ in range(500):
                line.sendall(bytes(1_000_000))
            line.sendall(frame(b"who", 5) + b"again")
            out, _ = process.communicate(timeout=60)
    first, huge, last, growth = out.splitlines()
    assert "whosmall" in first
    assert "whoagain" in last, "the line is still in step"
    assert f"who{NOTE.decode()}500000000" in huge, "its headers are there, and its length"
    assert int(growth) < 5_000_000, f"{int(growth)} bytes more"


def test_a_note_says_how_long_the_message_was_and_nothing_else_is_one():
    assert length_of_note(NOTE + b"500000000") == 500_000_000
    for content in (b"", b"500000000", NOTE, NOTE + b"x1", memoryview(b"abc")):
        assert length_of_note(content) is None


def test_the_server_takes_what_a_running_job_has_announced_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "LOOK_SECONDS", 0.0)
    limit = Limit(tmp_path)
    assert not limit(OWN)
    assert limit(100_000_000)
    announcement = tmp_path / frames.FOLDER / "job-1"
    announcement.parent.mkdir(parents=True)
    announcement.write_text("100000000")
    assert not limit(100_000_000)
    assert limit(101_000_000)
    announcement.unlink()
    assert limit(100_000_000), "the job is over"


def test_a_sites_own_file_says_how_long_a_message_may_be(tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text("{}")
    (tmp_path / "local").mkdir()
    assert not Limit(tmp_path)(2**30)
    (tmp_path / "local" / "foedus.toml").write_text("[policy]\nmax_message = 50000000\n")
    assert not Limit(tmp_path)(50_000_000)
    assert Limit(tmp_path)(51_000_000)


def test_the_program_that_starts_a_party_imports_nothing_that_takes_long():
    code = f"import sys, {frames.__name__}; print({{'jax', 'numpy', 'nvflare'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


WICKED = """
import os
import jax.numpy as jnp

def square(w, data):
    return data.mean((data["x"] @ w - data["y"]) ** 2)

if os.environ.get("FOEDUS_PARTY", "").endswith(":site-2"):
    from foedus.federation.gate import Gate
    honest = Gate.send

    def send(self, header, message, out):
        reply = honest(self, header, message, out)
        return bytes(500_000_000) if header.get("round") == 3 else reply

    Gate.send = send
"""


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@pytest.mark.slow
def test_half_a_gigabyte_from_a_site_of_a_real_federation_is_refused_by_name_and_takes_no_memory(tmp_path, monkeypatch):
    pytest.importorskip("nvflare")
    import numpy as np

    import foedus as fd
    from foedus.federation.flare.trial import Federation

    (tmp_path / "wicked.py").write_text(WICKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    import wicked

    rng = np.random.default_rng(0)
    sites = [{"x": rng.standard_normal((30, 3)), "y": rng.standard_normal(30)} for _ in range(3)]
    problem = fd.Problem(sites, objective=wicked.square)
    federation = Federation.up(tmp_path / "f", 3, {"min_subset": 1, "min_sites": 1, "modules": ["wicked"]})
    try:
        watched = federation.processes("server")[0]
        before = peak(watched)
        # the site answers the round with half a gigabyte however often it is asked, so it is left out of that round
        runtime = fd.Flare(at=tmp_path / "f", modules=("wicked",), minimum=2, misses=1, timeout=20.0)
        run = fd.solve(problem, fd.FedAvg(k0=1, lr=0.05), w0=np.zeros(3), max_rounds=8, runtime=runtime)
        assert run.rounds == 8
        # the channel's seal takes some bytes more
        assert any("its reply takes 5000000" in line for line in run.refused), run.refused
        growth = peak(watched) - before
        assert growth < 60_000_000, f"{growth} bytes more in the server's own process"
    finally:
        federation.down()
