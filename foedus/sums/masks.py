"""Keys, masks and shares: X25519 between each pair of sites, HKDF-SHA256 bound to one sum, ChaCha20 for the words.

The key of a site's own mask is cut into shares (Shamir 1979), so that enough of the others can stand in for the site.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foedus.base.errors import FoedusError
from foedus.sums.messages import Frame

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

PRIME = 2**256 - 189  # the largest prime below 2^256: a secret is a number below it
SIZE = 32  # bytes of a secret and of a share


def new_secret() -> bytes:
    """Return a secret from the operating system's randomness."""
    return secrets.randbelow(PRIME).to_bytes(SIZE, "big")


def split(secret: bytes, points: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share for each point above 0: the value there of a random polynomial that is the secret at 0."""
    if not 1 <= threshold <= len(points) or len({*points}) < len(points) or min(points) < 1:
        raise FoedusError("shares need different points above 0, and no more of them to give the secret back.")
    coefficients = [_number(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SIZE, "big")
    return shares


class Combiner:
    """Gives secrets back from shares at these points; the weights are computed once for many secrets."""

    def __init__(self, points: Sequence[int]):
        self.weights: dict[int, int] = {}
        for point in points:
            above, below = 1, 1
            for other in points:
                if other != point:
                    above, below = above * other % PRIME, below * (other - point) % PRIME
            self.weights[point] = above * pow(below, -1, PRIME) % PRIME

    def secret(self, shares: Mapping[int, bytes]) -> bytes:
        """Return the secret whose shares these are, one for each of the points."""
        return (sum(w * _number(shares[point]) for point, w in self.weights.items()) % PRIME).to_bytes(SIZE, "big")


def _number(content: bytes) -> int:
    value = int.from_bytes(content, "big")
    if len(content) != SIZE or value >= PRIME:
        raise FoedusError("a share or a secret is not a number of 32 bytes below the prime.")
    return value


PROTOCOL = "foedus masked sums 1"


def require_cryptography() -> None:
    """Raise a sentence on how to install the library where it is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise FoedusError(
            "masked sums need the package cryptography; install it with: pip install 'foedus[secure]'."
        ) from None


@dataclass(frozen=True)
class SumContext:
    """The one sum that keys are for: run, epoch, round, attempt, the keys of all, who takes part, and what is asked."""

    run: str
    epoch: int
    round: int
    attempt: int
    roster: bytes  # the digest of everybody's public keys
    sites: tuple[str, ...]  # exactly those that are asked, in order
    question: bytes = b""  # a digest of what they are asked, where that is the same for all

    def digest(self) -> bytes:
        """The digest that every key of this sum is bound to."""
        frame = Frame().text(PROTOCOL).text(self.run).number(self.epoch).number(self.round).number(self.attempt)
        frame.content(self.roster).number(len(self.sites))
        for site in self.sites:
            frame.text(site)
        if self.question:
            frame.content(self.question)
        return hashlib.sha256(frame.bytes()).digest()


def new_key() -> "X25519PrivateKey":
    """Return a private key from the operating system's randomness."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()


def new_signer() -> "Ed25519PrivateKey":
    """Return a new key for signing what a site sends under its other keys."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def private_key(content: bytes) -> "X25519PrivateKey":
    """Return the private key whose 32 bytes these are."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(content)


def private_signer(content: bytes) -> "Ed25519PrivateKey":
    """Return the key for signing whose 32 bytes these are."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(content)


def is_signed(signer: bytes, statement: bytes, signature: bytes) -> bool:
    """Return whether a statement is signed with this key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_bytes(key: "X25519PrivateKey | Ed25519PrivateKey") -> bytes:
    """Return the 32 bytes of the public key."""
    return key.public_key().public_bytes_raw()


def pair_secret(own: "X25519PrivateKey", other: bytes) -> bytes:
    """Return what this site and the owner of the other key share: HKDF's extraction of the X25519 agreement."""
    from cryptography.hazmat.primitives import hashes, hmac
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        agreement = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order, whose agreement everybody knows
        raise FoedusError("a public key of the roster is not one that keeps a secret.") from None
    extraction = hmac.HMAC(hashlib.sha256(PROTOCOL.encode()).digest(), hashes.SHA256())
    extraction.update(agreement)
    return extraction.finalize()


@dataclass(frozen=True)
class PairKeys:
    """The keys of two sites for one sum; they are independent of each other, so one can be revealed."""

    mask: bytes
    seal: bytes  # for shares on their way through the server


def pair_keys(secret: bytes, context: bytes) -> PairKeys:
    """Return the keys that a pair derives for one sum, by HKDF's expansion."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    content = HKDFExpand(hashes.SHA256(), 64, b"pair" + context).derive(secret)
    return PairKeys(content[:32], content[32:])


def mask_words(key: bytes, count: int) -> np.ndarray:
    """Return `count` words of the mask that this key gives: ChaCha20's stream, read as little-endian uint64."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8")


def masked(words: np.ndarray, own: str, self_key: bytes, keys: dict[str, bytes]) -> np.ndarray:
    """Return the words with a site's own mask and, with each other site, one that the two add and subtract."""
    total = words.astype(np.uint64) + mask_words(self_key, words.size)
    for other, key in keys.items():
        if own < other:
            total += mask_words(key, words.size)
        else:
            total -= mask_words(key, words.size)
    return total


def seal_share(key: bytes, context: bytes, sender: str, receiver: str, share: bytes) -> bytes:
    """Return a share that only the receiver can read, and only as part of this sum."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_nonce(sender, receiver), share, _address(context, sender, receiver))


def open_share(key: bytes, context: bytes, sender: str, receiver: str, content: bytes) -> bytes | None:
    """Return the share, or None where it was not sealed by the sender for this receiver and this sum."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(sender, receiver), content, _address(context, sender, receiver))
    except InvalidTag:
        return None


def _nonce(sender: str, receiver: str) -> bytes:
    # a key seals one share in each of the two directions, and never another: a sum is masked once
    return bytes(11) + (b"\x00" if sender < receiver else b"\x01")


def _address(context: bytes, sender: str, receiver: str) -> bytes:
    return Frame().content(context).text(sender).text(receiver).bytes()


def threshold(sites: int) -> int:
    """Return how many sites must reveal their shares: more than two thirds, so that a round gives no two sums.

    With c sites that collude with the server, two different sets could both be unmasked only if 2·threshold <= sites +
    c; with floor(2n/3) + 1 that takes more than a third of the sites.
    """
    return 2 * sites // 3 + 1


def order_of(sites: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the order in which a set of sites is written."""
    return tuple(sorted(sites))
