"""Who speaks: a party signs with the key of its kit, and others check that against the project's root.

A certificate says by its subject what it is for. A site's names the site and an organisation of the same name; the
server's names the server, by the name that every site's kit has for it; a person's names a role. So nobody can take
part as a site with the certificate of the server or of the coordinator, nor speak as the server with a site's.
"""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foedus.base.errors import FoedusError
from foedus.sums.masks import require_cryptography
from foedus.sums.messages import KeyNote

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Name

KEY, CERTIFICATE, ROOT = "startup/client.key", "startup/client.crt", "startup/rootCA.pem"
SERVER_KEY, SERVER_CERTIFICATE = "startup/server.key", "startup/server.crt"
SITE, SERVER, COORDINATOR = "site", "server", "coordinator"  # what a certificate is for
ROLES = ("project_admin", "lead")  # of a person, as a certificate names it, who may sign plans
OPERATOR = "foedus"  # the organisation in the server's certificate


def organisation(site: str) -> str:
    """Return a site's name in the form in which its certificate names its organisation."""
    return site.replace("-", "_")


def _load(kit: Path, key: str, certificate: str) -> "tuple[PrivateKeyTypes, bytes, bytes]":
    """Return the private key of a kit, its certificate and the project's root."""
    require_cryptography()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        secret = load_pem_private_key((kit / key).read_bytes(), None)
        return secret, (kit / certificate).read_bytes(), (kit / ROOT).read_bytes()
    except (OSError, ValueError):
        raise FoedusError(f"the kit {kit} has no key and certificate that can be read.") from None


def _sign(key: "PrivateKeyTypes", statement: bytes) -> bytes:
    """Sign with the key of a kit, which is an RSA or an Ed25519 key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    if isinstance(key, Ed25519PrivateKey):
        return key.sign(statement)
    if isinstance(key, RSAPrivateKey):
        return key.sign(statement, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
    raise FoedusError("the key of this kit is neither an RSA nor an Ed25519 key.")


@dataclass(frozen=True)
class SiteIdentity:
    """A site's name, its private key, its certificate, the project's root, and the name of the project's server."""

    site: str
    key: "PrivateKeyTypes"
    certificate: bytes  # PEM
    root: bytes  # PEM
    server: str = ""

    @staticmethod
    def of_kit(kit: Path, site: str) -> "SiteIdentity":
        """Read the identity from a site's kit."""
        try:
            stated = json.loads((kit / "startup" / "fed_client.json").read_text())
            server = str(stated["servers"][0]["identity"])
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            raise FoedusError(f"{kit} is no kit of a site.") from None
        return SiteIdentity(site, *_load(kit, KEY, CERTIFICATE), server)

    def sign(self, statement: bytes) -> bytes:
        """Sign with the key of the kit."""
        return _sign(self.key, statement)


@dataclass(frozen=True)
class Signer:
    """A private key, its certificate and the project's root: the server's, or the coordinator's."""

    key: "PrivateKeyTypes"
    certificate: bytes  # PEM
    root: bytes  # PEM

    @staticmethod
    def of_server(kit: Path) -> "Signer":
        """Read what signs from the server's kit."""
        return Signer(*_load(kit, SERVER_KEY, SERVER_CERTIFICATE))

    @staticmethod
    def of_coordinator(kit: Path) -> "Signer":
        """Read what signs from the coordinator's kit."""
        return Signer(*_load(kit, KEY, CERTIFICATE))

    def sign(self, statement: bytes) -> bytes:
        """Sign with the key of the kit."""
        return _sign(self.key, statement)


def name_in(certificate: str) -> str:
    """Return the name in a certificate (PEM)."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    subject = x509.load_pem_x509_certificate(certificate.encode()).subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def is_signed_by(role: str, name: str, certificate: bytes, root: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether a statement is signed with a valid certificate of the project for this role and name."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    try:
        one = x509.load_pem_x509_certificate(certificate)
        one.verify_directly_issued_by(x509.load_pem_x509_certificate(root))
        now = datetime.datetime.now(datetime.UTC)
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc or not _is_for(one.subject, role, name):
            return False
        public = one.public_key()
        if isinstance(public, Ed25519PublicKey):
            public.verify(signature, statement)
        elif isinstance(public, RSAPublicKey):
            public.verify(signature, statement, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
        else:
            return False
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _is_for(subject: "Name", role: str, name: str) -> bool:
    """Return whether a certificate's subject is this party: its name, its organisation, and no role of a person."""
    from cryptography.x509.oid import NameOID

    fields = [(field.oid, field.value) for field in subject]
    if role == COORDINATOR:
        return any(oid == NameOID.UNSTRUCTURED_NAME and value in ROLES for oid, value in fields)
    expected = organisation(name) if role == SITE else OPERATOR
    return sorted(fields, key=str) == sorted(
        [(NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, expected)], key=str
    )


def check_note(note: KeyNote, root: bytes) -> None:
    """Raise where a key is not signed by the certificate of the site that it names, or the root did not sign that."""
    if not is_signed_by(SITE, note.site, note.certificate, root, note.statement(), note.signature):
        raise FoedusError(f"the key of {note.site!r} is not signed by a certificate of this project for {note.site!r}.")
