"""An authority of a project: it certifies whose key is whose, with no other program than Python's cryptography.

A certificate names a party by its subject, as `foedus/sums/identity.py` reads it. Keys are Ed25519 keys.
"""

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foedus.base.errors import FoedusError
from foedus.sums.identity import OPERATOR, ROLES, organisation
from foedus.sums.masks import require_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
    from cryptography.x509 import Name

DAYS = 3650  # for which certificates are valid, unless it is said otherwise
SLACK = datetime.timedelta(days=1)  # by which clocks may differ


@dataclass(frozen=True)
class Authority:
    """The key that signs a project's certificates, and its own certificate, the root (PEM)."""

    key: "Ed25519PrivateKey"
    root: bytes
    days: int = DAYS

    @staticmethod
    def new(name: str, days: int = DAYS) -> "Authority":
        """Return a new authority of this name."""
        require_cryptography()
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        key, subject = new_key(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return Authority(key, _certificate(subject, subject, key.public_key(), key, days), days)

    def site(self, name: str, public: "PublicKeyTypes") -> bytes:
        """Return the certificate of a site."""
        return self._certify(name, organisation(name), public)

    def server(self, name: str, public: "PublicKeyTypes") -> bytes:
        """Return the certificate of the server."""
        return self._certify(name, OPERATOR, public)

    def coordinator(self, public: "PublicKeyTypes") -> bytes:
        """Return the certificate of the person who signs plans."""
        return self._certify("coordinator", OPERATOR, public, ROLES[0])

    def _certify(self, name: str, operator: str, public: "PublicKeyTypes", role: str = "") -> bytes:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        fields = [(NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, operator)]
        fields += [(NameOID.UNSTRUCTURED_NAME, role)] if role else []
        issuer = x509.load_pem_x509_certificate(self.root).subject
        return _certificate(
            x509.Name([x509.NameAttribute(*one) for one in fields]), issuer, public, self.key, self.days
        )


def new_key() -> "Ed25519PrivateKey":
    """Return a new key for signing."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def _certificate(
    subject: "Name", issuer: "Name", public: "PublicKeyTypes", key: "Ed25519PrivateKey", days: int
) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())  # pyright: ignore[reportArgumentType]
    builder = builder.not_valid_before(now - SLACK).not_valid_after(now + datetime.timedelta(days=days))
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def key_to_pem(key: "Ed25519PrivateKey") -> bytes:
    """Return a private key as its file holds it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_of_pem(content: bytes, what: str) -> "Ed25519PrivateKey":
    """Return the private key in a file; `what` names the file where it holds none."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise FoedusError(f"{what} holds no Ed25519 key.")
    return key
