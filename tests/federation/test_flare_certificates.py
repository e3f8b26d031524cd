"""Keys that never travel: a site makes its own, and the coordinator signs for it. Needs NVIDIA FLARE."""

import base64
import shutil
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

import foedus as fd

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

from foedus.app.cli import run as cli
from foedus.federation.flare import certificates
from foedus.federation.flare.kits import Project, provision

SITES = ("site-1", "site-2")


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A folder of kits as the coordinator has them: the sites are on other machines."""
    folder = tmp_path_factory.mktemp("project") / "kits"
    provision(Project("foedus", "localhost", SITES), folder, site_keys=False)
    return folder


def kits_of(folder: Path) -> dict[str, Path]:
    (made,) = (folder / "made" / "foedus").glob("prod_*")
    return {path.name: path for path in made.iterdir()}


@pytest.fixture
def two(project, tmp_path) -> Path:
    """The kit of site-1 as it came to the site, on another machine."""
    return Path(shutil.copytree(kits_of(project)["site-1"], tmp_path / "at the site"))


def shake(site: Path, server: Path) -> dict[str, Any]:
    """Mutual TLS between a site's kit and the server's, in memory; what the server sees of the site."""
    ours = ssl.create_default_context(cafile=str(site / "startup/rootCA.pem"))
    ours.load_cert_chain(site / "startup/client.crt", site / "startup/client.key")
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(server / "startup/rootCA.pem"))
    theirs.load_cert_chain(server / "startup/server.crt", server / "startup/server.key")
    theirs.verify_mode = ssl.CERT_REQUIRED
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(down, up, server_hostname="localhost")
    host = theirs.wrap_bio(up, down, server_side=True)
    for _ in range(10):
        for end in (client, host):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return host.getpeercert() or {}


def test_a_site_makes_its_key_and_gets_a_certificate_for_it(project, two, capsys):
    """From the command line of both; an SSL library accepts what comes of it, under the site's name."""
    assert cli(["site", "request", str(two)]) == 0
    seen = capsys.readouterr().out
    assert cli(["federation", "sign", str(two / "site-1.csr"), "--kits", str(project), "--again"]) == 0
    words = certificates.fingerprint(certificates._load_key(two / certificates.KEY).public_key())
    assert words in seen
    assert words in capsys.readouterr().out
    assert cli(["site", "install", str(project / "signed/site-1.crt"), str(two)]) == 0
    names = dict(part for (part,) in shake(two, kits_of(project)["localhost"])["subject"])
    assert (names["commonName"], names["organizationName"]) == ("site-1", "site_1")
    assert stat.S_IMODE((two / certificates.KEY).stat().st_mode) == 0o600
    secret = (two / certificates.KEY).read_bytes()
    for path in project.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path


def test_a_request_in_another_name_or_a_second_one_is_not_signed(project, two, tmp_path):
    path, _ = certificates.request(two)
    signed = certificates.sign(project, path, again=True)[0].read_bytes()
    with pytest.raises(fd.FoedusError, match="'site-1' has a certificate already"):
        certificates.sign(project, path)
    assert (project / "signed/site-1.crt").read_bytes() == signed
    named = two / "startup/fed_client.json"
    named.write_text(named.read_text().replace("site-1", "server"))
    path, _ = certificates.request(two)
    with pytest.raises(fd.FoedusError, match="asks for 'server', which is no site of this project: site-1, site-2"):
        certificates.sign(project, path)
    path.write_text("no request")
    with pytest.raises(fd.FoedusError, match="is no certificate request"):
        certificates.sign(project, path)
    with pytest.raises(fd.FoedusError, match="holds no project"):
        certificates.sign(tmp_path, path)


def test_a_request_that_was_changed_on_its_way_is_not_signed(project, two):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    path, _ = certificates.request(two)
    plain = x509.load_pem_x509_csr(path.read_bytes()).public_bytes(Encoding.DER)
    words = base64.encodebytes(plain.replace(b"site-1", b"site-2")).decode()
    path.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{words}-----END CERTIFICATE REQUEST-----\n")
    with pytest.raises(fd.FoedusError, match="is not signed with the key that it names"):
        certificates.sign(project, path)


def test_a_certificate_for_another_key_or_of_another_authority_is_not_installed(project, two, tmp_path):
    path, _ = certificates.request(two)
    foreign = tmp_path / "foreign"
    provision(Project("foedus", "localhost", SITES), foreign, site_keys=False)
    with pytest.raises(fd.FoedusError, match="was not signed by the authority of this kit"):
        certificates.install(two, certificates.sign(foreign, path)[0])
    own = certificates.sign(project, path, again=True)[0]
    (two / certificates.KEY).unlink()
    certificates.request(two)
    with pytest.raises(fd.FoedusError, match="not for the key of 'site-1'"):
        certificates.install(two, own)
    assert not (two / certificates.CERTIFICATE).exists()
