"""Nobody else in: who is refused at the door of a federation, and what no party may do inside. Needs FLARE."""

import datetime
import json
import shutil
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constrained_cases import CAPPED, breast_cancer
from federations import REAL, place

import foedus as fd

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

import psutil

from foedus.app.cli import run as cli
from foedus.federation.flare import certificates
from foedus.federation.flare.console import Console, Unreachable
from foedus.federation.flare.controller import FoedusController
from foedus.federation.flare.kits import ADMIN, Project, job, provision
from foedus.federation.flare.trial import Federation, _free_ports
from foedus.federation.names import REVOKED, RUNS

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
        assert {*federation.sites} <= {*console.sites()}
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
            assert "site-9" not in console.sites()
    finally:
        stranger._end("site-9")
    said = (foreign["site-9"] / "log.txt").read_text()
    assert "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said.lower()


# --- certificates of the project itself, made by hand ---


class Authority:
    """The project's own certificate authority, which only whoever provisioned the kits has."""

    def __init__(self, federation: Federation):
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        (state,) = (federation.folder / "kits").rglob("cert.json")
        kept = json.loads(state.read_text())
        self.key = serialization.load_pem_private_key(kept["root_pri_key"].encode(), None)
        self.root = x509.load_pem_x509_certificate(kept["root_cert"].encode())

    def sign(self, model: Path, name: str, days: tuple[int, int], role: str | None = None) -> tuple[bytes, bytes]:
        """A certificate and its key like those of a kit, for a name, valid from and to so many days from now."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.x509.oid import NameOID

        like = x509.load_pem_x509_certificate((model / "startup/client.crt").read_bytes())
        new = {NameOID.COMMON_NAME: name} | ({} if role is None else {NameOID.UNSTRUCTURED_NAME: role})
        subject = x509.Name([x509.NameAttribute(part.oid, new.get(part.oid, part.value)) for part in like.subject])
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self.root.subject)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now + datetime.timedelta(days=days[0]))
        made = made.not_valid_after(now + datetime.timedelta(days=days[1]))
        for extension in like.extensions:
            value = extension.value
            if isinstance(value, x509.SubjectKeyIdentifier):
                value = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
            elif isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName([x509.DNSName(name)])
            made = made.add_extension(value, extension.critical)
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        return made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private


def joins(federation: Federation, folder: Path, name: str, identity: tuple[bytes, bytes], seconds: float) -> bool:
    """Whether a site of this name and identity is let in within some seconds."""
    kit = folder / name
    shutil.copytree(federation.kit("site-1") / "startup", kit / "startup")
    shutil.copytree(federation.kit("site-1") / "local", kit / "local")
    for file, content in zip(("client.crt", "client.key"), identity, strict=True):
        (kit / "startup" / file).write_bytes(content)
    settings = kit / "startup" / "fed_client.json"
    settings.write_text(settings.read_text().replace('"site-1"', json.dumps(name)))
    newcomer = Federation(folder / "newcomer", {"sites": [name], "kits": {name: str(kit)}, "processes": {}})
    try:
        newcomer._start(name)
        with Console(federation.kit("admin")) as console:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if name in console.sites():
                    return True
                time.sleep(0.5)
        return False
    finally:
        newcomer._end(name)


@pytest.mark.slow
def test_sites_that_made_their_own_keys_are_let_in_and_take_part(tmp_path):
    """A run over kits that came without a secret: each site has made its key, and the coordinator signed for it."""
    problem = breast_cancer().problem()
    names = tuple(f"site-{i + 1}" for i in range(3))
    ports = _free_ports(2)
    kits = provision(Project("foedus", "localhost", names, *ports), tmp_path / "kits", site_keys=False)
    state = {"sites": [*names], "ports": ports, "kits": {k: str(v) for k, v in kits.items()}, "processes": {}}
    federation = Federation(tmp_path, state)
    try:
        for name in names:
            request, words = certificates.request(kits[name])
            signed, same = certificates.sign(tmp_path / "kits", request)
            assert words == same == certificates.install(kits[name], signed)
        federation.heal()
        federation.wait()
        assert fd.solve(problem, CAPPED["newton"], runtime=fd.Flare(at=tmp_path)).certificate.holds()
    finally:
        federation.down()


@pytest.mark.slow
def test_an_expired_certificate_is_refused(federation, tmp_path):
    """A valid certificate of the same authority is let in by the same means, so it is the date that is refused."""
    authority, model = Authority(federation), federation.kit("site-1")
    assert joins(federation, tmp_path / "valid", "site-8", authority.sign(model, "site-8", (-10, 10)), 40)
    assert not joins(federation, tmp_path / "expired", "site-9", authority.sign(model, "site-9", (-10, -1)), 15)
    assert not joins(federation, tmp_path / "early", "site-7", authority.sign(model, "site-7", (1, 10)), 15)


@pytest.mark.slow
def test_a_revoked_site_is_refused_until_it_is_readmitted(federation, tmp_path):
    identity = Authority(federation).sign(federation.kit("site-1"), "site-6", (-10, 10))
    told = ["--folder", str(federation.folder)]
    assert joins(federation, tmp_path / "before", "site-6", identity, 40)
    assert cli(["federation", "revoke", "site-6", *told]) == 0
    assert not joins(federation, tmp_path / "revoked", "site-6", identity, 15)
    federation._end("server")  # the server remembers
    federation.heal()
    federation.wait()
    assert not joins(federation, tmp_path / "still", "site-6", identity, 15)
    assert cli(["federation", "readmit", "site-6", *told]) == 0
    assert joins(federation, tmp_path / "after", "site-6", identity, 40)


def test_a_run_ends_when_one_of_its_sites_is_revoked(tmp_path):
    controller: Any = FoedusController()
    controller.revocation_list = tmp_path / REVOKED
    controller.revocation_list.write_text(json.dumps({"disabled_clients": ["site-2"]}))
    with pytest.raises(fd.FoedusError, match="the site 'site-2' has been revoked"):
        controller.ask({"site-1": b"", "site-2": b""}, 1.0, None, None)
    controller.revocation_list.write_text("{")
    with pytest.raises(fd.FoedusError, match=r"list of revoked sites .* is damaged"):
        controller.ask({"site-1": b""}, 1.0, None, None)


@pytest.mark.slow
def test_a_role_that_may_look_may_not_submit_or_end_a_job(federation, tmp_path):
    """A person of the project with the role `member` gets in; jobs are the coordinator's."""
    authority, own = Authority(federation), federation.kit("admin")
    kit = tmp_path / "member" / ADMIN
    shutil.copytree(own, kit)
    certificate, key = authority.sign(own, ADMIN, (-10, 10), role="member")
    (kit / "startup/client.crt").write_bytes(certificate)
    (kit / "startup/client.key").write_bytes(key)
    made = job(tmp_path / "job", "r1", b"", federation.sites, "aux", {}, {})
    with Console(own) as console:
        number = console.submit(made)
        console.abort(number)
    with Console(kit, timeout=10.0) as console:
        assert {*federation.sites} <= {*console.sites()}, "it may look"
        with pytest.raises(Unreachable, match=r"(?i)auth"):
            console.submit(made)
        with pytest.raises(Unreachable, match=r"(?i)auth"):
            console.abort(number)


@pytest.mark.slow
def test_what_goes_wrong_at_a_site_is_not_told(federation, tmp_path, capsys):
    """The words of a table that cannot be used are in the site's own log, and nowhere at the server."""
    secret = "patient-4711"
    rows = "".join(f"{20 + i % 50},{i % 2}\n" for i in range(60))
    for site in federation.sites:
        place(federation, site, f"age,ill\n{rows}{secret},0\n", labels=["ill"], groups=[])
    (tmp_path / "e.toml").write_text('[data]\nlabel = "ill"\n[algorithm]\nname = "FedAvg"\n')
    told = ["federation", "submit", str(tmp_path / "e.toml"), "--folder", str(federation.folder)]
    assert cli([*told, "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err  # the first site that refuses ends the run
    refusing = next(site for site in federation.sites if f"client {site!r} refuses" in printed)
    assert secret in (federation.kit(refusing) / RUNS / "site.log").read_text()
    for folder in (federation.kit("server"), federation.kit("admin"), tmp_path):
        for path in folder.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_a_coordinator_in_a_notebook_states_the_problem_and_the_sites_use_their_own_rows(tmp_path):
    """`fd.Flare(kit=...)`: the rows of the statement are made up; the answer is that over the sites' rows."""
    rng = np.random.default_rng(0)
    own = {f"site-{i + 1}": (rng.standard_normal((40, 3)), rng.standard_normal(40)) for i in range(3)}
    cap = fd.constraints.Linear(C=[[1.0, 0.0, 0.0]], d=[0.01])
    expected = fd.solve(fd.Problem(own, loss=fd.losses.least_squares, constraints=[cap]), fd.InteriorPoint())
    federation = Federation.up(tmp_path, 3, {"min_subset": 1, "min_sites": 1})
    try:
        for site, (x, y) in own.items():
            np.savez(federation.data(site), x=x, y=y)
        made_up = (np.eye(3), np.zeros(3))
        statement = fd.Problem(dict.fromkeys(own, made_up), loss=fd.losses.least_squares, constraints=[cap])
        run = fd.solve(statement, fd.InteriorPoint(), runtime=fd.Flare(kit=federation.kit("admin")))
    finally:
        federation.down()
    np.testing.assert_allclose(run.w, expected.w, atol=1e-9)
    assert run.certificate.holds()


def test_a_kit_that_is_none_and_a_problem_without_names_are_refused(tmp_path):
    problem = fd.Problem([(np.eye(2), np.ones(2))] * 3, loss=fd.losses.least_squares)
    with pytest.raises(fd.FoedusError, match="is no coordinator's kit"):
        fd.solve(problem, fd.FedAvg(), runtime=fd.Flare(kit=tmp_path))
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text("{}")
    with pytest.raises(fd.FoedusError, match="carry the sites' names"):
        fd.solve(problem, fd.FedAvg(), runtime=fd.Flare(kit=tmp_path))
    with pytest.raises(fd.FoedusError, match="one of 'sites', 'at' and 'kit'"):
        fd.Flare(kit=tmp_path, sites=3)
