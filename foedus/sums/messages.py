"""The protocol's messages as plain data, and as bytes that have one reading: every part carries its length."""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

from foedus.base.errors import FoedusError

NUMBER, LENGTH = struct.Struct("<q"), struct.Struct("<I")
LARGEST = 2**31  # bytes of one part


class Frame:
    """Writes parts one after the other, each with its length."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def number(self, value: int) -> "Frame":
        self.parts.append(NUMBER.pack(value))
        return self

    def content(self, value: bytes) -> "Frame":
        self.parts += [LENGTH.pack(len(value)), value]
        return self

    def text(self, value: str) -> "Frame":
        return self.content(value.encode())

    def names(self, values: tuple[str, ...]) -> "Frame":
        self.number(len(values))
        for value in values:
            self.text(value)
        return self

    def table(self, values: dict[str, bytes]) -> "Frame":
        self.number(len(values))
        for name in sorted(values):
            self.text(name).content(values[name])
        return self

    def bytes(self) -> bytes:
        return b"".join(self.parts)


class Reader:
    """Reads what a Frame wrote; anything else is refused with a sentence."""

    def __init__(self, content: bytes):
        self.rest = memoryview(content)

    def _take(self, size: int) -> bytes:
        if size > min(LARGEST, len(self.rest)):
            raise FoedusError("a message of a masked sum is cut short.")
        part, self.rest = self.rest[:size], self.rest[size:]
        return bytes(part)

    def number(self) -> int:
        return NUMBER.unpack(self._take(NUMBER.size))[0]

    def content(self) -> bytes:
        return self._take(LENGTH.unpack(self._take(LENGTH.size))[0])

    def text(self) -> str:
        try:
            return self.content().decode()
        except UnicodeDecodeError:
            raise FoedusError("a message of a masked sum names a site in no readable letters.") from None

    def _count(self) -> int:
        count = self.number()
        if not 0 <= count <= len(self.rest):
            raise FoedusError("a message of a masked sum is cut short.")
        return count

    def names(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self._count()))

    def table(self) -> dict[str, bytes]:
        return {self.text(): self.content() for _ in range(self._count())}

    def end(self) -> None:
        if len(self.rest):
            raise FoedusError("a message of a masked sum is longer than it should be.")


@dataclass(frozen=True)
class KeyNote:
    """A site's public key for one run, signed with the certificate of its kit."""

    run: str
    epoch: int
    site: str
    public: bytes  # X25519, for secrets with the other sites
    signer: bytes  # Ed25519, for what the site sends under these keys
    certificate: bytes
    plan: bytes = b""  # the digest of what the site has agreed to
    signature: bytes = b""

    def statement(self) -> bytes:
        """What is signed."""
        frame = Frame().text("foedus masked sums 1: a site's keys").text(self.run).number(self.epoch)
        return frame.text(self.site).content(self.public).content(self.signer).content(self.plan).bytes()

    def to_bytes(self) -> bytes:
        frame = Frame().text(self.run).number(self.epoch).text(self.site).content(self.public).content(self.signer)
        return frame.content(self.certificate).content(self.plan).content(self.signature).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "KeyNote":
        r = Reader(content)
        run, epoch, site = r.text(), r.number(), r.text()
        note = KeyNote(run, epoch, site, r.content(), r.content(), r.content(), r.content(), r.content())
        r.end()
        return note


@dataclass(frozen=True)
class Roster:
    """Everybody's keys, as the server shows them to each site."""

    notes: tuple[KeyNote, ...]

    def to_bytes(self) -> bytes:
        frame = Frame().number(len(self.notes))
        for note in self.notes:
            frame.content(note.to_bytes())
        return frame.bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "Roster":
        r = Reader(content)
        notes = tuple(KeyNote.from_bytes(r.content()) for _ in range(r._count()))
        r.end()
        return Roster(notes)


@dataclass(frozen=True)
class MaskOrder:
    """The server asks for a masked vector: for which sum, and over whom."""

    run: str
    epoch: int
    round: int
    attempt: int
    sites: tuple[str, ...]

    def to_bytes(self) -> bytes:
        frame = Frame().text(self.run).number(self.epoch).number(self.round).number(self.attempt)
        return frame.names(self.sites).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "MaskOrder":
        r = Reader(content)
        order = MaskOrder(r.text(), r.number(), r.number(), r.number(), r.names())
        r.end()
        return order


@dataclass(frozen=True)
class MaskedVector:
    """A site's masked words, and its own mask's key in shares, one sealed for each of the others."""

    site: str
    words: bytes  # little-endian uint64
    commitment: bytes  # SHA-256 of the key of the site's own mask
    shares: dict[str, bytes]
    signature: bytes = b""  # with the signer of the site's note, of `statement`

    def statement(self, context: bytes) -> bytes:
        """What is signed: these words, as this site's part of this sum."""
        frame = Frame().text("foedus masked sums 1: a vector").content(context).text(self.site)
        return frame.content(hashlib.sha256(self.words).digest()).content(self.commitment).bytes()

    def vector(self) -> np.ndarray:
        if len(self.words) % 8:
            raise FoedusError("a masked vector is no row of 64-bit words.")
        return np.frombuffer(self.words, dtype="<u8").astype(np.uint64)

    def to_bytes(self) -> bytes:
        frame = Frame().text(self.site).content(self.words).content(self.commitment).table(self.shares)
        return frame.content(self.signature).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "MaskedVector":
        r = Reader(content)
        vector = MaskedVector(r.text(), r.content(), r.content(), r.table(), r.content())
        r.end()
        return vector


@dataclass(frozen=True)
class RevealOrder:
    """The server says whose vectors it has, and asks for what takes the masks off their sum."""

    run: str
    epoch: int
    round: int
    attempt: int
    survivors: tuple[str, ...]
    shares: dict[str, bytes]  # by sender, sealed for the receiver of this message

    def to_bytes(self) -> bytes:
        frame = Frame().text(self.run).number(self.epoch).number(self.round).number(self.attempt)
        return frame.names(self.survivors).table(self.shares).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "RevealOrder":
        r = Reader(content)
        order = RevealOrder(r.text(), r.number(), r.number(), r.number(), r.names(), r.table())
        r.end()
        return order


@dataclass(frozen=True)
class Reveal:
    """A site's shares of the survivors' own masks, and the keys of its masks with those that sent nothing."""

    site: str
    shares: dict[str, bytes]
    keys: dict[str, bytes]

    def to_bytes(self) -> bytes:
        return Frame().text(self.site).table(self.shares).table(self.keys).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "Reveal":
        r = Reader(content)
        reveal = Reveal(r.text(), r.table(), r.table())
        r.end()
        return reveal


@dataclass(frozen=True)
class OpenSum:
    """All that a sum was made from, for every site to add up itself: nothing of a single site can be read off it.

    The masks with other sites are still on every vector; only together do they cancel.
    """

    round: int
    attempt: int
    words: dict[str, bytes]  # by site, as it has masked them
    signatures: dict[str, bytes]
    keys: dict[str, bytes]  # of the sites' own masks

    def to_bytes(self) -> bytes:
        frame = Frame().number(self.round).number(self.attempt)
        return frame.table(self.words).table(self.signatures).table(self.keys).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "OpenSum":
        r = Reader(content)
        one = OpenSum(r.number(), r.number(), r.table(), r.table(), r.table())
        r.end()
        return one
