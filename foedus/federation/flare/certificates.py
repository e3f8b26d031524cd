"""Certificates of sites: a site makes its own key, which never leaves it, and the coordinator signs its certificate.

The kit that the coordinator gives a site holds no secret. At the site, `request` makes a private key, which stays
there, and a certificate request for the coordinator; `sign` turns the request of a site of the project into a
certificate, and `install` puts it into the kit. Both ends see the same fingerprint of the site's public key and compare
it by another way than the files took, for instance by telephone.

What this does not do: whoever has the key of the project's authority can sign a second certificate in a site's name.
That key is in the coordinator's folder, in `state/cert.json`, and is all that is secret in there beside the kits of
the server and of the coordinator.
"""

# pyright: reportMissingImports=false

import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.federation.flare.kits import ADMIN, require_nvflare
from foedus.sums.identity import organisation

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
    from cryptography.x509 import Certificate

KEY, CERTIFICATE, ROOT = "startup/client.key", "startup/client.crt", "startup/rootCA.pem"
PARTIES = (CERTIFICATE, "startup/server.crt")  # the certificate of a kit: a site's or coordinator's, or the server's
WARN_DAYS = 30  # before its end a certificate is spoken of
DAYS = 360  # for which a certificate is valid, unless that of the authority ends before


def request(kit: Path) -> tuple[Path, str]:
    """At a site, make its key if it has none; return the request for the coordinator and its fingerprint."""
    require_nvflare()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID
    from nvflare.lighter.utils import generate_keys, serialize_pri_key

    site = name_of(kit)
    if (kit / CERTIFICATE).exists():
        raise FoedusError(f"the kit {kit} has a certificate already; nothing is to be requested.")
    if (kit / KEY).exists():
        key = _load_key(kit / KEY)
    else:
        key, _ = generate_keys()
        with open(os.open(kit / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(serialize_pri_key(key))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())  # pyright: ignore[reportArgumentType]
    path = kit / f"{site}.csr"
    write_whole(path, csr.public_bytes(serialization.Encoding.PEM))
    return path, fingerprint(key.public_key())


def sign(folder: Path, file: Path, again: bool = False) -> tuple[Path, str]:
    """At the coordinator, sign the request of one of the project's sites; return the certificate and its fingerprint.

    `folder` is that of `provision`. A site has one certificate; `again` makes another, for a site that lost its key.
    """
    require_nvflare()
    from cryptography import x509
    from cryptography.x509.oid import NameOID
    from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

    project, authority, root = _authority(folder)
    try:
        csr = x509.load_pem_x509_csr(file.read_bytes())
        (name,) = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError):
        raise FoedusError(f"{file} is no certificate request; 'foedus site request' at a site makes one.") from None
    site = str(name.value)
    sites = [one["name"] for one in project["participants"] if one["type"] == "client"]
    if site not in sites:
        raise FoedusError(f"{file} asks for {site!r}, which is no site of this project: {', '.join(sites)}.")
    if not csr.is_signature_valid:
        raise FoedusError(f"{file} is not signed with the key that it names.")
    path = folder / "signed" / f"{site}.crt"
    if path.exists() and not again:
        raise FoedusError(
            f"{site!r} has a certificate already ({path}); if it has lost its key, sign the new request with --again."
        )
    now = datetime.datetime.now(datetime.UTC)
    certificate = generate_cert(
        Identity(site, organisation(site)),
        Identity(project["name"]),
        authority,
        csr.public_key(),
        not_valid_before=now,
        not_valid_after=min(root.not_valid_after_utc, now + datetime.timedelta(days=DAYS)),
    )
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, serialize_cert(certificate))
    return path, fingerprint(csr.public_key())


def install(kit: Path, file: Path) -> str:
    """At a site, put its certificate into the kit, if it is for its key and of the kit's authority.

    Returns the fingerprint of the key.
    """
    require_nvflare()
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509.oid import NameOID

    site = name_of(kit)
    if not (kit / KEY).exists():
        raise FoedusError(f"the kit {kit} has no key; 'foedus site request' makes one.")
    try:
        content = file.read_bytes()
        certificate = x509.load_pem_x509_certificate(content)
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (OSError, ValueError):
        raise FoedusError(f"{file} is no certificate; the coordinator makes one from the site's request.") from None
    own = _load_key(kit / KEY).public_key()
    if name.value != site or fingerprint(certificate.public_key()) != fingerprint(own):
        raise FoedusError(f"{file} is a certificate for {name.value!r} and not for the key of {site!r} in {kit}.")
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((kit / ROOT).read_bytes()))
    except (InvalidSignature, ValueError, TypeError):
        raise FoedusError(f"{file} was not signed by the authority of this kit ({kit / ROOT}).") from None
    write_whole(kit / CERTIFICATE, content)
    os.chmod(kit / CERTIFICATE, 0o600)
    return fingerprint(own)


def renew(folder: Path, party: str) -> tuple[Path, datetime.datetime]:
    """At the coordinator, make a new certificate for the key that a party has; return it and its end.

    That of the server or the coordinator goes into its kit in `folder`; a site's goes to the site, which installs it.
    """
    require_nvflare()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from nvflare.lighter.utils import serialize_cert

    project, authority, root = _authority(folder)
    path = _certificate_of(folder, project, party)
    if not path.exists():
        raise FoedusError(f"{party!r} has no certificate yet; 'foedus federation sign {party}.csr' makes its first.")
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    end = min(root.not_valid_after_utc, now + datetime.timedelta(days=DAYS))
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number(), now, end)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate = builder.sign(authority, hashes.SHA256())  # pyright: ignore[reportArgumentType]
    write_whole(path, serialize_cert(certificate))
    os.chmod(path, 0o600)
    return path, end


def _certificate_of(folder: Path, project: Json, party: str) -> Path:
    """Return the file of a party's certificate at the coordinator."""
    kinds = {one["name"]: one["type"] for one in project["participants"]}
    server = next(name for name, kind in kinds.items() if kind == "server")
    name = {"server": server, "coordinator": ADMIN}.get(party, party)
    if name not in kinds:
        sites = ", ".join(name for name, kind in kinds.items() if kind == "client")
        raise FoedusError(f"{party!r} is no party of this project: server, coordinator, {sites}.")
    if kinds[name] == "client":
        return folder / "signed" / f"{name}.crt"
    return newest_build(folder, project["name"]) / name / PARTIES[kinds[name] == "server"]


def newest_build(folder: Path, project: str) -> Path:
    """Return the folder of the kits that were made."""
    builds = sorted((folder / "made" / project).glob("prod_*"))
    if not builds:
        raise FoedusError(f"{folder} holds no kits; 'foedus federation provision' makes them.")
    return builds[-1]


def end_of(path: Path) -> datetime.datetime | None:
    """Return when a certificate ends; None where there is none."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


def warnings_of(kit: Path, now: datetime.datetime | None = None) -> list[str]:
    """Return what a party must be told about the end of its certificate: nothing, or a sentence."""
    now = now or datetime.datetime.now(datetime.UTC)
    return [
        _warning(f"the certificate {kit / name}", end, now, "ask the coordinator for a new one")
        for name in PARTIES
        if (end := end_of(kit / name)) is not None and end - now < datetime.timedelta(days=WARN_DAYS)
    ]


def warnings_in(folder: Path, now: datetime.datetime | None = None) -> list[str]:
    """Return what a coordinator must be told about the certificates of its project."""
    now = now or datetime.datetime.now(datetime.UTC)
    project, _, _ = _authority(folder)
    lines = []
    for name in ("server", "coordinator", *(one["name"] for one in project["participants"] if one["type"] == "client")):
        end = end_of(_certificate_of(folder, project, name))
        if end is not None and end - now < datetime.timedelta(days=WARN_DAYS):
            remedy = f"'foedus federation renew {name}' makes a new one"
            lines.append(_warning(f"the certificate of {name!r}", end, now, remedy))
    return lines


def _warning(what: str, end: datetime.datetime, now: datetime.datetime, remedy: str) -> str:
    days = (end - now).days
    when = f"has ended on {end:%Y-%m-%d}" if end <= now else f"ends on {end:%Y-%m-%d}, in {days} days"
    return f"{what} {when}; {remedy}."


def fingerprint(public: "PublicKeyTypes") -> str:
    """Return the first half of a public key's SHA-256 digest, in groups that can be read out."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    digest = hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def name_of(kit: Path) -> str:
    """Return the site that a kit is for."""
    try:
        return str(json.loads((kit / "startup" / "fed_client.json").read_text())["client"]["fqsn"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FoedusError(f"{kit} is no kit of a site.") from None


def _load_key(path: Path) -> "PrivateKeyTypes":
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError):
        raise FoedusError(f"the key {path} cannot be read.") from None


def _authority(folder: Path) -> tuple[Json, "PrivateKeyTypes", "Certificate"]:
    """Return the project of a folder of kits, the key of its authority and that authority's certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        project = json.loads((folder / "project.yml").read_text())
        state = json.loads((folder / "made" / project["name"] / "state" / "cert.json").read_text())
        key = load_pem_private_key(state["root_pri_key"].encode(), None)
        return project, key, x509.load_pem_x509_certificate(state["root_cert"].encode())
    except (OSError, ValueError, KeyError, TypeError):
        raise FoedusError(f"{folder} holds no project; 'foedus federation provision' makes one.") from None
