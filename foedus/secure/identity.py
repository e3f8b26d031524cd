"""Who a key belongs to: a site signs it with its kit's key, and the others check that against the project's root."""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foedus.errors import FoedusError
from foedus.secure.masks import require_cryptography
from foedus.secure.messages import KeyNote

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

KEY, CERTIFICATE, ROOT = "startup/client.key", "startup/client.crt", "startup/rootCA.pem"


@dataclass(frozen=True)
class SiteIdentity:
    """A site's name, its private key, its certificate and the root that all certificates of the project come from."""

    site: str
    key: "PrivateKeyTypes"
    certificate: bytes  # PEM
    root: bytes  # PEM

    @staticmethod
    def of_kit(kit: Path, site: str) -> "SiteIdentity":
        """Read the identity from a site's kit."""
        require_cryptography()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key((kit / KEY).read_bytes(), None)
            certificate, root = (kit / CERTIFICATE).read_bytes(), (kit / ROOT).read_bytes()
        except (OSError, ValueError):
            raise FoedusError(f"the kit {kit} has no key and certificate that can be read.") from None
        return SiteIdentity(site, key, certificate, root)

    def sign(self, statement: bytes) -> bytes:
        """Sign with the key of the kit, which is an RSA or an Ed25519 key."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

        if isinstance(self.key, Ed25519PrivateKey):
            return self.key.sign(statement)
        if isinstance(self.key, RSAPrivateKey):
            return self.key.sign(statement, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
        raise FoedusError("the key of this kit is neither an RSA nor an Ed25519 key.")


def check_note(note: KeyNote, root: bytes) -> None:
    """Raise where a key is not signed by the certificate of the site that it names, or the root did not sign that."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509.oid import NameOID

    wrong = FoedusError(f"the key of {note.site!r} is not signed by a certificate of this project for {note.site!r}.")
    try:
        certificate = x509.load_pem_x509_certificate(note.certificate)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(root))
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        now = datetime.datetime.now(datetime.UTC)
        if name.value != note.site or not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise wrong
        public = certificate.public_key()
        if isinstance(public, Ed25519PublicKey):
            public.verify(note.signature, note.statement())
        elif isinstance(public, RSAPublicKey):
            scheme = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
            public.verify(note.signature, note.statement(), scheme, hashes.SHA256())
        else:
            raise wrong
    except (InvalidSignature, ValueError, TypeError):
        raise wrong from None
