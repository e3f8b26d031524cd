"""Three real sites: processes of their own over mutual TLS on loopback. Slow; needs NVIDIA FLARE."""

import inspect
import os
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from constrained_cases import CAPPED, breast_cancer

import foedus as fd

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

import psutil

from foedus.runtime.flare.console import Console, Unreachable
from foedus.runtime.flare.kits import ADMIN, Project, provision
from foedus.runtime.flare.local import Federation
from foedus.runtime.flare.names import RUNS

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation.up(tmp_path_factory.mktemp("federation"), 3)
    yield made
    made.down()
    assert not [pid for party in ("server", *made.sites) for pid in made.processes(party)]


def problem_for(algorithm) -> fd.Problem:
    if isinstance(algorithm, fd.ProxAL):
        return breast_cancer().problem()
    return fd.Problem(breast_cancer().sites, loss=fd.losses.logistic)


SAME = {
    "FedAvg": (fd.FedAvg(k0=2), "aux", 15),
    "FedGiA": (fd.FedGiA(), "task", 15),
    "ProxAL newton": (CAPPED["newton"], "aux", 1000),
    "ProxAL admm": (CAPPED["admm"], "aux", 1000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_three_processes_give_the_simulators_iterates(federation, name):
    algorithm, transport, rounds = SAME[name]
    problem = problem_for(algorithm)
    expected = fd.solve(problem, algorithm, max_rounds=rounds)
    run = fd.solve(problem, algorithm, max_rounds=rounds, runtime=fd.Flare(at=federation.folder, transport=transport))
    np.testing.assert_allclose(run.w, expected.w, rtol=0, atol=1e-9)
    assert run.history.keys() == expected.history.keys()
    for column, values in expected.history.items():
        np.testing.assert_allclose(run.history[column], values, rtol=1e-9, atol=1e-9, err_msg=column)
    assert run.reason == expected.reason
    assert run.certificate.holds() == expected.certificate.holds()
    np.testing.assert_allclose(run.certificate.stationarity, expected.certificate.stationarity, atol=1e-9)


@pytest.mark.slow
def test_nothing_but_loopback_is_bound(federation):
    bound = set()
    for party in ("server", *federation.sites):
        for pid in federation.processes(party):
            for connection in psutil.Process(pid).net_connections():
                if connection.status == psutil.CONN_LISTEN:
                    bound.add(connection.laddr.ip)
    assert bound == {"127.0.0.1"}


def kill_in_round(federation: Federation, victim: str, round: int, killed: list[str]) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["site-2 job", "site-3", "server"])
def test_after_any_kill_the_run_ends_as_if_nothing_had_happened(federation, victim):
    problem, algorithm = breast_cancer().problem(), CAPPED["admm"]
    expected = fd.solve(problem, algorithm)
    killed: list[str] = []
    killer = threading.Thread(target=kill_in_round, args=(federation, victim, 60, killed))
    killer.start()
    run = fd.solve(problem, algorithm, runtime=fd.Flare(at=federation.folder, timeout=4.0))
    killer.join()
    assert killed, "nobody was killed"
    assert run.certificate.holds()
    np.testing.assert_allclose(run.w, expected.w, rtol=0, atol=1e-9)
    assert run.rounds == expected.rounds


@pytest.mark.slow
def test_a_party_without_a_certificate_is_refused(federation):
    port = federation.state["ports"][0]
    context = ssl.create_default_context(cafile=str(federation.kit("site-1") / "startup" / "rootCA.pem"))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012 - the refusal may come with the first read
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                wrapped.sendall(b"hello")
                if wrapped.recv(1) == b"":
                    raise ConnectionError("closed")


@pytest.mark.slow
def test_another_projects_coordinator_and_a_site_cannot_submit(federation, tmp_path):
    ports = federation.state["ports"]
    foreign = provision(Project("foedus", "localhost", ("site-1",), *ports), tmp_path)
    with pytest.raises(Unreachable), Console(foreign["admin"], timeout=5.0):
        pass
    # a site with its own certificate in the coordinator's place
    kit = tmp_path / ADMIN
    (kit / "startup").mkdir(parents=True)
    for file in (federation.kit("admin") / "startup").iterdir():
        (kit / "startup" / file.name).write_bytes(file.read_bytes())
    for name in ("client.crt", "client.key"):
        (kit / "startup" / name).write_bytes((federation.kit("site-1") / "startup" / name).read_bytes())
    with pytest.raises(Unreachable), Console(kit, timeout=5.0):
        pass


def test_flares_communicator_reads_the_period_that_we_set():
    from nvflare.apis.impl.wf_comm_server import WFCommServer

    from foedus.runtime.flare.controller import CHECK_SECONDS, FoedusController

    communicator = WFCommServer()
    FoedusController().set_communicator(communicator)
    assert communicator._task_check_period == CHECK_SECONDS
    assert "self._task_check_period" in inspect.getsource(WFCommServer._monitor_tasks)
