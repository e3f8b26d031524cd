"""The page of a running federation: what an operator sees, read only, on this machine alone."""

import json
import re
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from cases import problem as five
from halls import QUICK, Hall, tampered

import foedus as fd
from foedus.app.report.operator import Scene, history_of, metrics, render, sites_table
from foedus.app.report.watch import serve
from foedus.federation import packing
from foedus.federation.flare.console import JobStatus
from foedus.federation.monitor import RunMonitor
from foedus.federation.server import ServerSession

JOB = JobStatus("1234-abcd", "r1-aa", "running", "2026-11-18 10:00:00.123", "0:00:12.5")


def overview(tmp_path, rounds: int = 6) -> dict:
    """What the server of a real session says after so many rounds, as it travels: JSON."""
    hall = Hall(tmp_path, five(), fd.FedAvg(k0=2, tol=0.0), max_rounds=50)
    monitor = RunMonitor()
    seen: list[dict] = []

    def watch(history):
        if history.rounds == rounds:
            seen.append(monitor.answer({"do": "overview"}))
        return history.rounds >= rounds

    losses = [2]

    def lose(header, payload):
        """The first reply of round 2 is lost."""
        return packing.seal(header, payload) if not losses or not losses.pop() else None

    monitor.watch = watch
    ask = tampered(hall, "site-2", {2}, lose)
    session = ServerSession(hall.order, tmp_path / "server", ask, QUICK, monitor=monitor)
    session.play()
    return json.loads(json.dumps(seen[0]))


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    return overview(tmp_path_factory.mktemp("hall"))


def test_the_server_tells_state_pace_bytes_and_faults_of_every_site(seen):
    assert seen["stage"] == "rounds"
    assert (seen["rounds"], seen["max_rounds"], seen["algorithm"]) == (6, 50, "FedAvg")
    assert [*seen["sites"]] == seen["clients"]
    faults = {name: sight["faults"] for name, sight in seen["sites"].items()}
    assert faults[seen["clients"][1]] == 1, "its lost reply of round 2"
    assert sum(faults.values()) == 1
    for sight in seen["sites"].values():
        assert sight["replies"] == 6
        assert sight["bytes"] > 0
        assert sight["age"] >= 0
    assert len(seen["series"]["objective"]) == len(seen["at"]) == 6


def test_a_question_of_an_operator_changes_nothing():
    monitor = RunMonitor()
    monitor.answer({"do": "overview"})
    assert (monitor.stop, monitor.keep) == (False, True)


def test_the_page_names_every_site_and_what_is_waited_for(seen):
    client = seen["clients"][1]
    page = render(Scene(0.0, ["site-1"], [JOB], [seen | {"waiting": [client]}]))
    for name in seen["clients"]:
        assert name in page
    assert f"waiting for {client}" in page
    assert "Round 6 of at most 50" in page
    assert "is waited for" in sites_table(seen | {"waiting": [client]}, seen["clients"])
    assert "2026-11-18 10:00:00" in page


def test_names_are_escaped(seen):
    evil = "<script>alert(1)</script>"
    page = render(Scene(0.0, [evil], [JOB], [seen | {"clients": [evil], "waiting": [evil]}]))
    assert evil not in page


SAMPLE = re.compile(r'(foedus_[a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')  # by Prometheus' grammar


def test_prometheus_reads_the_figures_of_the_page(seen):
    evil = 'a"} 7\nfoedus_server_up 0'
    text = metrics(Scene(0.0, seen["clients"], [JOB, JOB], [seen | {"waiting": [evil], "run": evil}]))
    samples: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            samples[match[1], match[2] or ""] = float(match[3])
    assert samples["foedus_server_up", ""] == 1
    assert samples["foedus_sites_connected", ""] == 5
    assert samples["foedus_jobs", 'state="running"'] == 2
    rounds = [value for (name, _), value in samples.items() if name == "foedus_run_rounds"]
    assert rounds == [6]
    faults = [value for (name, _), value in samples.items() if name == "foedus_site_faults"]
    assert sorted(faults) == [0, 0, 0, 0, 1]
    assert "foedus_server_up 0" in metrics(Scene(0.0, trouble="the server does not answer"))


def test_without_a_run_or_an_answer_the_page_says_so():
    assert "No run is under way" in render(Scene(0.0, ["city"], [JOB]))
    assert "does not answer" in render(Scene(0.0, trouble="the server does not answer the coordinator."))


def test_a_history_with_holes_is_drawn():
    history = history_of({"rounds": 9, "record": {}, "at": [1, 5, 9], "series": {"objective": [3.0, None, 1.0]}})
    assert len(history["objective"]) == len(history["phase"]) == 9
    assert history["objective"][-1] == 1.0


class Still:
    """A show that stands still."""

    def pulse(self) -> str:
        return "7"

    def page(self) -> str:
        return render(Scene(0.0, ["city"], [JOB]))

    def metrics(self) -> str:
        return metrics(Scene(0.0, ["city"], [JOB]))


def test_the_page_is_for_this_machine_alone_and_cannot_be_written_to():
    server = serve(Still())
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert server.server_address[0] == "127.0.0.1"
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(address + "/pulse", timeout=5) as reply:
            assert reply.read() == b"7"
        with urllib.request.urlopen(address + "/metrics", timeout=5) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain")
            assert b"\nfoedus_sites_connected 1\n" in reply.read()
        strange = urllib.request.Request(address + "/", headers={"Host": "evil.example.org"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(strange, timeout=5)
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(urllib.request.Request(address + "/", data=b"do=stop"), timeout=5)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_series_of_long_runs_are_thinned_and_end_with_the_last_round():
    from foedus.runtime.spine import Recorder

    monitor = RunMonitor()
    count = 5000
    monitor.recorder = Recorder(((8, 8),), {"phase": np.zeros(count, int), "objective": np.arange(count, dtype=float)})
    seen = monitor.answer({"do": "overview"})
    assert len(seen["at"]) <= 200
    assert (seen["at"][0], seen["at"][-1]) == (1, count)
    assert seen["series"]["objective"][-1] == count - 1
