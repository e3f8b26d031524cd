"""Nobody else in: who is refused at the door of a federation, and what no party may do inside. Needs FLARE."""

import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest
from federations import REAL

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

import psutil

from foedus.runtime.flare.console import Console, Unreachable
from foedus.runtime.flare.kits import ADMIN, Project, provision
from foedus.runtime.flare.local import Federation

pytestmark = REAL


@pytest.mark.slow
def test_nothing_but_loopback_is_bound(federation):
    bound = set()
    for party in ("server", *federation.sites):
        for pid in federation.processes(party):
            for connection in psutil.Process(pid).net_connections():
                if connection.status == psutil.CONN_LISTEN:
                    bound.add(connection.laddr.ip)
    assert bound == {"127.0.0.1"}


def answered(federation: Federation, certified: bool) -> bool:
    """Whether the server keeps a TLS connection open that brings the site's certificate, or none."""
    startup = federation.kit("site-1") / "startup"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    if certified:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    address = ("127.0.0.1", federation.state["ports"][0])
    try:
        with (
            socket.create_connection(address, timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            wrapped.settimeout(2.0)
            return wrapped.recv(1) != b""
    except TimeoutError:
        return True  # it waits for us to speak
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.slow
def test_a_party_without_a_certificate_is_refused(federation):
    assert answered(federation, certified=True)
    assert not answered(federation, certified=False)


def copied(kit: Path, to: Path, identity: Path) -> Path:
    """The coordinator's kit with the certificate and key of another."""
    shutil.copytree(kit, to)
    for name in ("client.crt", "client.key"):
        shutil.copy(identity / "startup" / name, to / "startup" / name)
    return to


@pytest.mark.slow
def test_another_projects_coordinator_and_a_site_cannot_submit(federation, tmp_path):
    own = federation.kit("admin")
    with Console(copied(own, tmp_path / "control" / ADMIN, own), timeout=5.0) as console:
        assert console.sites() == list(federation.sites)
    foreign = provision(Project("foedus", "localhost", ("site-1",), *federation.state["ports"]), tmp_path / "foreign")
    for where, identity in (("other", foreign["admin"]), ("site", federation.kit("site-1"))):
        with pytest.raises(Unreachable), Console(copied(own, tmp_path / where / ADMIN, identity), timeout=5.0):
            pass
    with pytest.raises(Unreachable), Console(foreign["admin"], timeout=5.0):
        pass


@pytest.mark.slow
def test_another_projects_site_is_refused(federation, tmp_path):
    foreign = provision(Project("foedus", "localhost", ("site-9",), *federation.state["ports"]), tmp_path)
    stranger = Federation(
        tmp_path / "stranger", {"sites": ["site-9"], "kits": {"site-9": str(foreign["site-9"])}, "processes": {}}
    )
    try:
        stranger._start("site-9")
        time.sleep(12)
        with Console(federation.kit("admin")) as console:
            assert console.sites() == list(federation.sites)
    finally:
        stranger._end("site-9")
    said = (foreign["site-9"] / "log.txt").read_text()
    assert "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said.lower()
