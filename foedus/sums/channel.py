"""A channel between the server's job and a site's: both know who speaks, and whoever carries the bytes reads nothing.

FLARE's messages pass processes that foedus does not trust: on a site's machine its job listens on loopback without a
certificate, and at the server one site can address another. So a site takes nothing but what is sealed for it by the
server of its project, and answers nobody else.

| message | from | to | content |
|---|---|---|---|
| `Opening` | server | site i | a fresh X25519 key S, the server's certificate, a signature over S and i |
| `Acceptance` | i | server | a fresh X25519 key K, i's certificate, a signature over the opening and K |
| sealed message n | server | i | ChaCha20-Poly1305 under the first key, n = 0, 1, … |
| sealed reply n | i | server | the same under the second key |

Both keys are HKDF-SHA256 of the agreement of S and K, bound to the digest of both messages, which is the name of the
session. A site takes each number once, upwards, so a message that is played again gets no answer; the server takes the
reply with the number that it has sent. Whoever replays an opening gets a session whose keys only the server could
work out. A signature is made once a session, and not for each message.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foedus.base.errors import FoedusError
from foedus.sums.identity import SERVER, SITE, Signer, SiteIdentity, is_signed_by
from foedus.sums.masks import new_key, public_bytes
from foedus.sums.messages import Frame, Reader

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

PROTOCOL = "foedus channel 1"
OPENING, ACCEPTANCE, MESSAGE, REPLY = b"O", b"A", b"M", b"R"  # the first byte says what follows
ADDRESS = struct.Struct("<16sQ")  # the session's name and the number of a message
MOST_SESSIONS = 16  # that a site keeps; the oldest is let go
MOST_NOTES = 100  # lines about messages that were let go, so that nobody fills a disk with them

Carry = Callable[[Mapping[str, bytes], float], Mapping[str, object]]
"""Sends bytes to sites and returns what those sent back that answered within so many seconds."""


@dataclass
class Session:
    """The keys of one session, and the next number."""

    name: bytes
    down: bytes  # the key of messages from the server
    up: bytes  # the key of replies
    next: int = 0


def _session(own: "X25519PrivateKey", other: bytes, opening: bytes, public: bytes) -> Session:
    """Return the session that an opening and the site's key make; both sides work it out."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    digest = hashlib.sha256(Frame().text(PROTOCOL).content(opening).content(public).bytes()).digest()
    try:
        agreement = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order, whose agreement everybody knows
        raise FoedusError("a key of the channel is not one that keeps a secret.") from None
    keys = HKDF(hashes.SHA256(), 64, hashlib.sha256(PROTOCOL.encode()).digest(), digest).derive(agreement)
    return Session(digest[:16], keys[:32], keys[32:])


def _opening_statement(site: str, public: bytes) -> bytes:
    return Frame().text(f"{PROTOCOL}: the server opens").text(site).content(public).bytes()


def _acceptance_statement(opening: bytes, public: bytes) -> bytes:
    return Frame().text(f"{PROTOCOL}: a site accepts").content(opening).content(public).bytes()


def _parts_of(content: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the public key, the certificate and the signature of an opening or an acceptance."""
    reader = Reader(content)
    parts = reader.content(), reader.content(), reader.content()
    reader.end()
    return parts


def _seal(kind: bytes, key: bytes, address: bytes, content: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    head = kind + address
    return head + ChaCha20Poly1305(key).encrypt(bytes(4) + address[16:], content, head)


def _open(key: bytes, message: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    head = message[: 1 + ADDRESS.size]
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(4) + head[17:], message[len(head) :], head)
    except InvalidTag:
        return None


class SiteChannel:
    """A site's end: `receive` passes on what the server has sealed for it, and seals the answer.

    Args:
        identity: the site's; None where its kit has none, and then nothing is answered.
        answer: the answer to a message of the server.
        note: writes a line in the site's own log.
    """

    def __init__(self, identity: SiteIdentity | None, answer: Callable[[bytes], bytes], note: Callable[[str], None]):
        self.identity, self.answer, self.note = identity, answer, note
        self.sessions: dict[bytes, Session] = {}
        self.notes = 0

    def receive(self, content: bytes) -> bytes | None:
        """Return the bytes to send back, or None: to whoever is not the server there is no answer."""
        try:
            if content[:1] == OPENING:
                return self._accept(content[1:])
            return self._pass_on(content)
        except FoedusError as error:
            if self.notes < MOST_NOTES:
                self.notes += 1
                self.note(f"a message is let go: {error}")
            return None

    def _accept(self, opening: bytes) -> bytes:
        identity = self.identity
        if identity is None:
            raise FoedusError("this site's kit has no key and certificate.")
        public, certificate, signature = _parts_of(opening)
        statement = _opening_statement(identity.site, public)
        if not is_signed_by(SERVER, identity.server, certificate, identity.root, statement, signature):
            raise FoedusError(f"it is not signed by the server of this project, {identity.server!r}, for this site.")
        key = new_key()
        own = public_bytes(key)
        session = _session(key, public, opening, own)
        self.sessions[session.name] = session
        while len(self.sessions) > MOST_SESSIONS:
            del self.sessions[next(iter(self.sessions))]
        signature = identity.sign(_acceptance_statement(opening, own))
        return ACCEPTANCE + Frame().content(own).content(identity.certificate).content(signature).bytes()

    def _pass_on(self, message: bytes) -> bytes:
        if message[:1] != MESSAGE or len(message) < 1 + ADDRESS.size:
            raise FoedusError("it is not sealed by the server.")
        name, number = ADDRESS.unpack_from(message, 1)
        session = self.sessions.get(name)
        content = None if session is None else _open(session.down, message)
        if session is None or content is None:
            raise FoedusError("it is sealed for no session of this site.")
        if number < session.next:
            raise FoedusError("it has been received before, or a later one has.")
        session.next = number + 1
        return _seal(REPLY, session.up, ADDRESS.pack(name, number), self.answer(content))


class ServerChannel:
    """The server's end: a session with each site, opened before its first message.

    Args:
        identity: the server's.
        note: writes a line in the run's log.
    """

    def __init__(self, identity: Signer, note: Callable[[str], None]):
        self.identity, self.note = identity, note
        self.sessions: dict[str, Session] = {}

    def ask(self, messages: Mapping[str, bytes], seconds: float, carry: Carry) -> dict[str, object]:
        """Send each site its message, sealed, and return the answers of those that answered in time."""
        self.open_sessions(messages, seconds, carry)
        envelopes = {site: self.seal(site, content) for site, content in messages.items() if site in self.sessions}
        answers = carry({site: content for site, (_, content) in envelopes.items()}, seconds) if envelopes else {}
        replies = {site: self.open(site, envelopes[site][0], raw) for site, raw in answers.items() if site in envelopes}
        return {site: reply for site, reply in replies.items() if reply is not None}

    def open_sessions(self, sites: Iterable[str], seconds: float, carry: Carry) -> None:
        """Open a session with each of these sites that has none, as far as they answer."""
        keys = {site: new_key() for site in sites if site not in self.sessions}
        openings: dict[str, bytes] = {}
        for site, key in keys.items():
            public = public_bytes(key)
            signature = self.identity.sign(_opening_statement(site, public))
            openings[site] = Frame().content(public).content(self.identity.certificate).content(signature).bytes()
        answers = carry({site: OPENING + opening for site, opening in openings.items()}, seconds) if keys else {}
        for site, raw in answers.items():
            try:
                self.sessions[site] = self._complete(site, keys[site], openings[site], raw)
            except FoedusError as error:
                self.note(f"the site {site!r} opens no channel: {error}")

    def _complete(self, site: str, key: "X25519PrivateKey", opening: bytes, raw: object) -> Session:
        if not isinstance(raw, bytes | bytearray) or bytes(raw[:1]) != ACCEPTANCE:
            raise FoedusError("its answer is none; its version of foedus may be an older one.")
        public, certificate, signature = _parts_of(bytes(raw[1:]))
        statement = _acceptance_statement(opening, public)
        if not is_signed_by(SITE, site, certificate, self.identity.root, statement, signature):
            raise FoedusError("the answer is not signed with the certificate of this site.")
        return _session(key, public, opening, public)

    def seal(self, site: str, content: bytes) -> tuple[int, bytes]:
        """Return a message sealed for a site, and its number, which the reply will have."""
        session = self.sessions[site]
        number, session.next = session.next, session.next + 1
        return number, _seal(MESSAGE, session.down, ADDRESS.pack(session.name, number), content)

    def open(self, site: str, number: int, raw: object) -> object:
        """Return what a site has replied to the message with this number; None where that is not from the site.

        What was dropped on its way, for it was too long, is passed on as it is.
        """
        if not isinstance(raw, bytes | bytearray):
            return raw
        session = self.sessions.get(site)
        reply = bytes(raw)
        if session is None or reply[: 1 + ADDRESS.size] != REPLY + ADDRESS.pack(session.name, number):
            return None
        return _open(session.up, reply)
