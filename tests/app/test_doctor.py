"""`foedus doctor`: what is wrong with a party's machine is named with a remedy, and what is right is left alone."""

import datetime
import json
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from foedus.app import cli, doctor
from foedus.app.doctor import BAD, FAIR, GOOD, Check, examine
from foedus.sums.authority import key_to_pem, new_key

NOW = datetime.datetime.now(datetime.UTC)
POLICY = "[policy]\nmin_subset = 5\n"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "version", lambda name: {"jax": "0.10.2", "nvflare": "2.9.0"}.get(name, "46.0"))


class Authority:
    """A project's authority, which makes certificates as FLARE's provisioner does."""

    def __init__(self):
        self.key = new_key()
        self.root = self.certify("a project", self.key, NOW, 1000, is_root=True)

    def certify(self, name: str, key: Ed25519PrivateKey, start=NOW, days=300, is_root=False) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, "a project"))
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start)
        builder = builder.not_valid_after(start + datetime.timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(is_root, None), critical=True)
        if not is_root:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(self.key, None).public_bytes(Encoding.PEM)


class Project:
    """A kit of a site, and a server that it knows."""

    def __init__(self, folder: Path):
        self.folder, self.authority, self.key = folder, Authority(), new_key()
        self.kit = folder / "north"
        (self.kit / "startup").mkdir(parents=True)
        (self.kit / "local").mkdir()
        (folder / "table.csv").write_text("age,ill\n50,yes\n")
        self.policy(f"[data]\nfile = {json.dumps(str(folder / 'table.csv'))}\nlabels = ['ill']\n{POLICY}")
        (self.kit / "startup/rootCA.pem").write_bytes(self.authority.root)
        (self.kit / "startup/client.key").write_bytes(key_to_pem(self.key))
        self.certify()
        self.target("localhost", 1)

    def policy(self, text: str) -> None:
        (self.kit / "local/foedus.toml").write_text(text)

    def certify(self, **told) -> None:
        (self.kit / "startup/client.crt").write_bytes(self.authority.certify("north", self.key, **told))

    def target(self, host: str, port: int) -> None:
        service = {"target": f"{host}:{port}", "scheme": "tcp"}
        content = {"servers": [{"service": service}], "client": {"fqsn": "north"}}
        (self.kit / "startup/fed_client.json").write_text(json.dumps(content))

    def check(self, what: str) -> Check:
        (one,) = [check for check in examine(self.kit, 1.0) if check.what == what]
        return one


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def answering(context: ssl.SSLContext | None, replies: bytes = b"") -> int:
    """A server on loopback that speaks TLS, or one line, or nothing; return its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                with connection:
                    if context is None:
                        connection.recv(500)
                        connection.sendall(replies)
                    else:
                        with context.wrap_socket(connection, server_side=True) as secure:
                            secure.recv(1)
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def tls(authority: Authority, folder: Path) -> ssl.SSLContext:
    """What a server of a project speaks: TLS in which both ends show certificates."""
    key = new_key()
    (folder / "server.crt").write_bytes(authority.certify("localhost", key))
    (folder / "server.key").write_bytes(key_to_pem(key))
    (folder / "root.pem").write_bytes(authority.root)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "root.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_kit_that_is_well_is_well(project, capsys):
    project.target("localhost", answering(tls(project.authority, project.folder)))
    assert cli.run(["doctor", str(project.kit)]) == 0
    out = capsys.readouterr().out
    assert "ok     TLS: the other end is localhost of this project (TLSv1.3)." in out
    assert "none of them wrong." in out
    assert "wrong  " not in out
    assert "look   " not in out


def test_another_project_s_server_is_told_from_ours(project):
    other = Authority()
    project.target("localhost", answering(tls(other, project.folder)))
    check = project.check("TLS")
    assert check.level == BAD
    assert "not the project's server" in check.words
    assert "inspection of TLS" in check.remedy


def test_the_way_to_the_server(project, monkeypatch):
    project.target("no-such-host.invalid", 443)
    assert project.check("name").words == "no-such-host.invalid is not found"
    project.target("localhost", 1)
    assert project.check("port").level == BAD
    assert "outgoing TCP" in project.check("port").remedy
    project.target("localhost", answering(None, b"SSH-2.0\r\n"))
    assert "no TLS is spoken there" in project.check("TLS").words


@pytest.mark.parametrize(
    ("replies", "level", "words"),
    [
        (b"HTTP/1.1 200 Connection established\r\n\r\n", GOOD, "lets through to localhost:1"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", BAD, "answers 407"),
    ],
)
def test_a_proxy_is_asked_for_a_tunnel(project, monkeypatch, replies, level, words):
    monkeypatch.setattr(doctor, "proxy_bypass", lambda host: False)  # which leaves out localhost on some systems
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{answering(None, replies)}")
    assert project.check("proxy").level == FAIR
    assert "foedus party tunnel KIT" in project.check("proxy").remedy
    assert project.check("tunnel").level == level
    assert words in project.check("tunnel").words


@pytest.mark.parametrize(
    ("told", "what", "level", "words"),
    [
        ({"start": NOW - datetime.timedelta(days=400)}, "certificate", BAD, "it has ended on"),
        ({"start": NOW - datetime.timedelta(days=290)}, "certificate", FAIR, "valid until"),
        ({"start": NOW + datetime.timedelta(days=2)}, "clock", BAD, "before the certificate was made"),
    ],
)
def test_dates(project, told, what, level, words):
    project.certify(**told)
    check = project.check(what)
    assert (check.level, bool(check.remedy)) == (level, True)
    assert words in check.words


@pytest.mark.parametrize(
    ("text", "what", "words"),
    [
        (f"[data]\nfile = '/none.csv'\nlabels = ['ill']\n{POLICY}", "data", "/none.csv is missing"),
        (POLICY, "data", "no data file is named"),
        ("[policy]\nmin_subst = 5\n", "policy", "has no key 'min_subst'"),
        ("[data]\nfile = '../../table.csv'\n[policy]\n", "data", "no column may be a label"),
    ],
)
def test_data_and_policy(project, text, what, words):
    project.policy(text)
    check = project.check(what)
    assert check.level in (BAD, FAIR)
    assert check.remedy
    assert words in check.words


def test_disk_and_versions(project, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**10, 10**10, 5 * 10**7))  # pyright: ignore[reportAttributeAccessIssue]
    assert project.check("disk").words.startswith("50 MB are free")
    assert project.check("disk").level == BAD
    monkeypatch.setattr(doctor, "version", lambda name: "2.8.1")
    assert project.check("nvflare").remedy == "pip install 'nvflare==2.9.*', as all other parties have it"


def test_a_home_of_the_courier_needs_no_server_and_no_flare(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "table.csv").write_text("age,ill\n50,yes\n")
    (tmp_path / "local/foedus.toml").write_text(f"[data]\nfile = '../table.csv'\nlabels = ['ill']\n{POLICY}")
    checks = examine(tmp_path)
    assert {one.what for one in checks} == {
        "Python",
        "jax",
        "cryptography",
        "disk",
        "clock",
        "policy",
        "data",
        "ledger",
    }
    assert all(one.level == GOOD for one in checks)


def test_a_folder_that_is_no_place_is_an_error(tmp_path, capsys):
    assert cli.run(["doctor", str(tmp_path)]) == 2
    assert "is no kit, no home of a site and no plan of a run by courier" in capsys.readouterr().err
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/fed_client.json").write_text("{}")
    assert cli.run(["doctor", str(tmp_path)]) == 2
    assert "is damaged; take it from the kit" in capsys.readouterr().err
