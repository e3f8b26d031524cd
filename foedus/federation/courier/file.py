"""The file that is carried: a line that says what it is, a line with a signature, and compressed JSON and arrays.

    foedus courier 1\n
    the signature of all that follows, in hexadecimal digits\n
    zlib: the length of the header (4 bytes, little end first), the header (JSON, UTF-8), the payloads one after another

The header says who sends the file to whom, in which run, under which plan and in which exchange, and lists the messages
in it: of each its own header, how many bytes of payload it has, and what arrays these are. `docs/howto/courier.md`
shows how to read one in a few lines without foedus.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation import packing

NAME, VERSION = b"foedus courier ", 1
SIGNED = b"foedus courier: a file\0"  # what a signature begins with, so that it is one of a file and of nothing else
MOST_BYTES = 2**28  # of a file, and of what is in it
QUESTION, ANSWER, END = "question", "answer", "end"  # the kinds of files
COORDINATOR = "coordinator"  # the name of the one party that is no site
TEXT = "it was carried as text, which changes line ends; carry it as a binary file"


class Unreadable(FoedusError):
    """A file that is not whole, or none of ours."""


class Signs(Protocol):
    """Whoever signs a file."""

    def sign(self, statement: bytes, /) -> bytes: ...


@dataclass(frozen=True)
class Message:
    """One message of a session as a file carries it: its bytes, and what arrays are in them."""

    content: bytes  # as `packing.seal` makes it
    arrays: tuple[Json, ...] = ()

    @property
    def header(self) -> Json:
        """What the message says beside its arrays."""
        return packing.unseal(self.content)[0]


@dataclass(frozen=True)
class CourierFile:
    """A file, read or to be written.

    Args:
        kind: QUESTION, ANSWER or END.
        run: the run's name.
        plan: the digest of the plan.
        exchange: the number of the exchange, from 1.
        sender: who has signed it.
        to: whom it is for.
        messages: what the sessions say.
        answers: of an answer, the digest of the question's file.
        more: certificates, and words for a person.
        content: the bytes of the whole file, once it is signed.
        signature: under `content`.
    """

    kind: str
    run: str
    plan: str
    exchange: int
    sender: str
    to: str
    messages: tuple[Message, ...] = ()
    answers: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    signature: bytes = b""

    @property
    def digest(self) -> str:
        """The digest of the whole file."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def name(self) -> str:
        """What the file is called: letters, digits, '-' and one '.', the same on every system."""
        site = self.to if self.sender == COORDINATOR else self.sender
        return file_name(self.run, self.exchange, site, self.sender == COORDINATOR)

    @property
    def header(self) -> Json:
        """All that the file says beside the payloads."""
        messages = []
        for one in self.messages:
            header, payload = packing.unseal(one.content)
            messages.append({"header": header, "bytes": len(payload), "arrays": list(one.arrays)})
        record: Json = {"kind": self.kind, "run": self.run, "plan": self.plan, "exchange": self.exchange}
        record |= {"from": self.sender, "to": self.to, "answers": self.answers, "messages": messages}
        return record | {"more": dict(self.more)}

    @property
    def statement(self) -> bytes:
        """What is signed."""
        return SIGNED + self.content.split(b"\n", 2)[2]

    def signed(self, signer: Signs) -> "CourierFile":
        """Return the file with its bytes, signed."""
        header = json.dumps(self.header, sort_keys=True, allow_nan=False).encode()
        payloads = b"".join(packing.unseal(one.content)[1] for one in self.messages)
        body = zlib.compress(len(header).to_bytes(4, "little") + header + payloads, 9)
        signature = signer.sign(SIGNED + body)
        content = NAME + str(VERSION).encode() + b"\n" + signature.hex().encode() + b"\n" + body
        fields = {name: getattr(self, name) for name in FIELDS}
        return CourierFile(**fields, content=content, signature=signature)

    @staticmethod
    def read(content: bytes) -> "CourierFile":
        """Read a file; raise Unreadable with one sentence where it is not whole, or of a later version.

        Nobody has checked the signature then.
        """
        if len(content) > MOST_BYTES:
            raise Unreadable(f"it has {len(content)} bytes; no file of a run is larger than {MOST_BYTES}.")
        if not content.startswith(NAME):
            raise Unreadable("it is no file of foedus courier.")
        first, _, rest = content.partition(b"\n")
        if first.endswith(b"\r"):
            raise Unreadable(f"it was changed on its way: {TEXT}.")
        if first != NAME + str(VERSION).encode():
            version = first[len(NAME) :][:20].decode("ascii", "replace")
            raise Unreadable(f"it is of version {version} of the file format, and this foedus reads {VERSION}; update.")
        signature, _, body = rest.partition(b"\n")
        try:
            signed = bytes.fromhex(signature.decode("ascii"))
            inflate = zlib.decompressobj()
            raw = inflate.decompress(body, MOST_BYTES)
        except (ValueError, zlib.error):
            raise Unreadable("it was changed or cut short on its way; have it sent again.") from None
        if not inflate.eof or inflate.unused_data or len(raw) < 4:
            raise Unreadable("it is cut short; have it sent again.")
        size = int.from_bytes(raw[:4], "little")
        try:
            header = json.loads(raw[4 : 4 + size])
            return CourierFile._of(header, raw[4 + size :], content, signed)
        except (FoedusError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Unreadable("its header is none; it was changed on its way, or made by another program.") from None

    @staticmethod
    def _of(header: Json, payloads: bytes, content: bytes, signature: bytes) -> "CourierFile":
        messages, start = [], 0
        for one in header["messages"]:
            end = start + int(one["bytes"])
            if not start <= end <= len(payloads):
                raise ValueError
            arrays = tuple(dict(array) for array in one["arrays"])
            messages.append(Message(packing.seal(dict(one["header"]), payloads[start:end]), arrays))
            start = end
        texts = {name: header[name] for name in ("kind", "run", "plan", "from", "to", "answers")}
        more = dict(header["more"])
        if start != len(payloads) or not all(isinstance(text, str) for text in (*texts.values(), *more.values())):
            raise ValueError
        exchange = header["exchange"]
        if isinstance(exchange, bool) or not isinstance(exchange, int) or not 1 <= exchange < 10**6:
            raise ValueError
        packing.check_run_name(texts["run"])
        return CourierFile(
            texts["kind"], texts["run"], texts["plan"], exchange, texts["from"], texts["to"], tuple(messages),
            texts["answers"], more, content, signature,
        )  # fmt: skip


FIELDS = ("kind", "run", "plan", "exchange", "sender", "to", "messages", "answers", "more")


def file_name(run: str, exchange: int, site: str, is_to_site: bool) -> str:
    """Return the name of a file, which every system allows and which sorts by exchange."""
    return f"{run}-{exchange:03d}-{'to' if is_to_site else 'from'}-{site}.foedus"


def plain_arrays(payload: bytes) -> tuple[Json, ...]:
    """Describe a payload of which nothing else is known: as numbers where it can be, as bytes where it cannot."""
    if not payload:
        return ()
    if len(payload) % 8 == 0:
        return ({"name": "numbers", "dtype": "<f8", "shape": [len(payload) // 8]},)
    return ({"name": "bytes", "dtype": "|u1", "shape": [len(payload)]},)


def messages_of(contents: Sequence[bytes]) -> tuple[Message, ...]:
    """Return messages of a session as a file carries them."""
    return tuple(Message(one, plain_arrays(packing.unseal(one)[1])) for one in contents)


def arrays_of(message: Message) -> list[np.ndarray]:
    """Return the arrays of a message, as the file describes them; raise Unreadable where they do not fit."""
    _, payload = packing.unseal(message.content)
    arrays, start = [], 0
    for one in message.arrays:
        try:
            kind, shape = np.dtype(one["dtype"]), tuple(int(n) for n in one["shape"])
            end = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(payload[start:end], kind).reshape(shape))
        except (KeyError, TypeError, ValueError):
            raise Unreadable("its arrays are not what its header says.") from None
        start = end
    if start != len(payload):
        raise Unreadable("its arrays are not what its header says.")
    return arrays
