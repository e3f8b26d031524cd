"""Keys of a project whose parties exchange files: the coordinator's authority, and a key that each site makes itself.

Nobody provisions anything. The first file of a plan brings the project's root, and a site's first answer a request for
its certificate; people compare both fingerprints by telephone, once. A site's private key never leaves it.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foedus.base.errors import FoedusError
from foedus.base.files import write_whole
from foedus.federation.courier.file import COORDINATOR, CourierFile
from foedus.sums.authority import Authority, key_of_pem, key_to_pem, new_key
from foedus.sums.identity import COORDINATOR as COORDINATOR_ROLE
from foedus.sums.identity import Signer, is_signed_by

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SITE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
AUTHORITY_KEY, COORDINATOR_KEY = "authority.key", "coordinator.key"
ROOT, COORDINATOR_CERTIFICATE = "root.pem", "coordinator.crt"


def sites_of_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of sites; raise where one is no part of a file's name, or two differ in their case alone."""
    for name in names:
        if not SITE_NAME.fullmatch(name) or name.lower() == COORDINATOR:
            raise FoedusError(f"the site name {name!r} must hold letters, digits and '-' only.")
    if len({name.lower() for name in names}) < len(names):
        raise FoedusError(f"a plan needs sites with different names, in capitals or not. Got {', '.join(names)}.")
    return tuple(names)


@dataclass(frozen=True)
class ProjectKeys:
    """The keys of a coordinator: the authority's, with which it certifies sites, and its own."""

    authority: Authority
    coordinator: Signer

    @property
    def root(self) -> bytes:
        """The certificate of the authority (PEM)."""
        return self.authority.root

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the authority, by which people know the project."""
        return certificate_fingerprint(self.root)

    @staticmethod
    def new(folder: Path) -> "ProjectKeys":
        """Make the keys of a new project, in a folder that is for its owner alone."""
        authority, key = Authority.new("foedus project"), new_key()
        coordinator = Signer(key, authority.coordinator(key.public_key()), authority.root)
        return ProjectKeys(authority, coordinator).copy(folder)

    def copy(self, folder: Path) -> "ProjectKeys":
        """Write the keys into a folder."""
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        files = {AUTHORITY_KEY: key_to_pem(self.authority.key), ROOT: self.root}
        files |= {
            COORDINATOR_KEY: key_to_pem(_own(self.coordinator)),
            COORDINATOR_CERTIFICATE: self.coordinator.certificate,
        }
        for name, content in files.items():
            write_whole(folder / name, content, private=True)
        return self

    @staticmethod
    def read(folder: Path) -> "ProjectKeys":
        """Read the keys of a project."""
        try:
            parts = {
                name: (folder / name).read_bytes()
                for name in (AUTHORITY_KEY, ROOT, COORDINATOR_KEY, COORDINATOR_CERTIFICATE)
            }
        except OSError:
            raise FoedusError(f"{folder} holds no keys of a project; a plan has them in coordinator/keys.") from None
        authority = Authority(key_of_pem(parts[AUTHORITY_KEY], str(folder / AUTHORITY_KEY)), parts[ROOT])
        key = key_of_pem(parts[COORDINATOR_KEY], str(folder / COORDINATOR_KEY))
        return ProjectKeys(authority, Signer(key, parts[COORDINATOR_CERTIFICATE], parts[ROOT]))

    def certify(self, site: str, request: str) -> str:
        """Return the certificate for a site's request."""
        from cryptography import x509

        return self.authority.site(site, x509.load_pem_x509_csr(request.encode()).public_key()).decode()


def _own(signer: Signer) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    assert isinstance(signer.key, Ed25519PrivateKey)
    return signer.key


def request_of(site: str, key: "Ed25519PrivateKey") -> str:
    """Return a site's request for a certificate of its key (PEM)."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, None).public_bytes(Encoding.PEM).decode()


def request_is_signed(request: str, site: str, statement: bytes, signature: bytes) -> bool:
    """Return whether a request is for this site, signed with its own key, and a statement with the same."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.x509.oid import NameOID

    try:
        one = x509.load_pem_x509_csr(request.encode())
        names = [field.value for field in one.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        public = one.public_key()
        if names != [site] or not one.is_signature_valid or not isinstance(public, Ed25519PublicKey):
            return False
        public.verify(signature, statement)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def signer_of(one: CourierFile) -> str:
    """Return in words who has signed a file, by what the file brings; it does not bring the root that you know."""
    certificate, root = one.more.get("certificate", "").encode(), one.more.get("root", "").encode()
    if one.sender == COORDINATOR:
        if is_signed_by(COORDINATOR_ROLE, "", certificate, root, one.statement, one.signature):
            return f"the coordinator of the project {certificate_fingerprint(root)}"
    elif certificate:
        if _is_signed_with(certificate, one):
            return f"{one.sender}, with the key of the certificate in it, which the coordinator checks"
    elif request_is_signed(one.more.get("request", ""), one.sender, one.statement, one.signature):
        return f"a key of {one.sender} with the fingerprint {fingerprint_of(one.more['request'])}"
    return "nobody: the signature does not fit, so it was changed on its way or made by somebody else"


def _is_signed_with(certificate: bytes, one: CourierFile) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = x509.load_pem_x509_certificate(certificate).public_key()
        if not isinstance(public, Ed25519PublicKey):
            return False
        public.verify(one.signature, one.statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint_of(request: str) -> str:
    """Return the fingerprint of the key in a request."""
    from cryptography import x509

    return public_fingerprint(x509.load_pem_x509_csr(request.encode()).public_key())


def certificate_fingerprint(certificate: bytes) -> str:
    """Return the fingerprint of the key in a certificate; raise where it is none."""
    from cryptography import x509

    try:
        return public_fingerprint(x509.load_pem_x509_certificate(certificate).public_key())
    except ValueError:
        raise FoedusError("it brings no certificate that can be read.") from None


def public_fingerprint(public: object) -> str:
    """Return the fingerprint of a public key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    content = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # pyright: ignore[reportAttributeAccessIssue]
    digest = hashlib.sha256(content).hexdigest()
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def certificate_is_for(certificate: bytes, key: "Ed25519PrivateKey") -> bool:
    """Return whether a certificate is about this key."""
    from cryptography import x509

    try:
        public = x509.load_pem_x509_certificate(certificate).public_key()
    except ValueError:
        return False
    return public == key.public_key()
