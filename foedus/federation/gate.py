"""The gate: every reply of a site leaves through it.

An answer that has not left yet is an `Outgoing`, which says what it holds: words of the protocol, exact figures of the
data, or releases with noise. The gate refuses what the site's policy forbids, writes releases into the site's
ledger, keeps a copy of what it sends, notes the message, and only then returns the reply. No other code at a site makes
a reply.

A request that is repeated, to the byte, gets the same bytes again, and its releases count once. A request that differs
in anything is a new one: its noise is drawn anew and it is charged anew.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack, write_whole
from foedus.base.pytrees import PyTree
from foedus.federation import packing
from foedus.federation.packing import RUN, one_line
from foedus.federation.policy import Policy, Refusal
from foedus.federation.site_ledger import Damaged, Exceeded, Limits, Release, SiteLedger
from foedus.sums.questions import Form

PREPARATION = -1  # the number of the round that stands for messages before the first
SENT = "sent-{round}-{request}.bin"  # the file with a copy of what was sent for a request, by the request's digest
NOISE = "noise-{run}.json"  # the file with the noise that a run was first greeted with
RECEIPT_BYTES = 256  # that a receipt of the ledger adds to a reply, at the most
REFUSED = "it does not take part; its own log says why"
"""The one sentence of every refusal that depends on the data, so that its words tell the server nothing about them."""


@dataclass(frozen=True)
class Outgoing:
    """An answer that has not left yet.

    Args:
        header: words of the protocol.
        payload: bytes of the protocol.
        answer: to a question; it becomes the payload, plain or under masks.
        form: what the answer is made of.
        round: the round that a masked sum of it is of; None: it is of no round.
        exact: whether it holds figures of the data without noise.
        releases: what it releases with noise.
        before: called after the ledger is written, and before the reply is saved.
    """

    header: Json = field(default_factory=dict)
    payload: bytes = b""
    exact: bool = False
    releases: tuple[Release, ...] = ()
    before: Callable[[], None] = lambda: None
    answer: PyTree = None
    form: Form | None = None
    round: int | None = None


def request_digest(message: bytes) -> str:
    """Return the digest by which a repeated request is recognised: of all its bytes."""
    return hashlib.sha256(message).hexdigest()


def unfit(why: str, note: Callable[[str], None]) -> Refusal:
    """Return the refusal for a reason that lies in the data; only the site's own log says which reason."""
    note(why)
    return Refusal("data", REFUSED)


class Gate:
    """What every reply of a site's session passes before it reaches the network."""

    def __init__(self, site: str, policy: Policy, folder: Path, note: Callable[[str], None]):
        self.site, self.policy, self.folder, self.note = site, policy, folder, note
        self.log = MessageLog(folder / "messages.jsonl")
        self.ledger = SiteLedger(folder)
        self.sends_exact = not policy.limits_privacy
        self.limits = Limits(policy.max_epsilon, policy.max_epsilon_total, policy.max_delta)

    def repeat(self, header: Json, message: bytes) -> bytes | None:
        """Return the reply that this very request got before, or None.

        A copy counts only where the ledger has the request's releases, so that no other file is ever sent.
        """
        run = header.get("run")
        if not (isinstance(run, str) and RUN.fullmatch(run)):
            return None
        request = request_digest(message) if self.ledger.lines else ""
        if not any(line.request == request and line.run == run for line in self.ledger.lines):
            return None
        for path in self._place(run).glob(SENT.format(round="*", request=request)):
            reply = path.read_bytes()
            self._record(header, "ok", len(reply))
            return reply
        return None

    def send(self, header: Json, message: bytes, out: Outgoing) -> bytes:
        """Return the sealed reply, once everything that must be on record is on the disk.

        The order matters. The ledger comes first, so that after a crash at any point it holds every release that may
        have left. Then the session's own state (`out.before`), then the copy for a repeated request: if the copy is
        missing, the request counts as new, gets fresh noise and is charged again, which is safe.
        """
        policy = self.policy
        payload = out.payload if out.form is None else packing.to_bytes(out.answer, out.form.shape)
        if out.exact and not self.sends_exact:
            raise Refusal("policy", "its policy asks for privacy, and this would send exact figures")
        reply = packing.seal({"code": "ok"} | out.header | self._address(header), payload)
        if len(reply) + RECEIPT_BYTES * bool(out.releases) > policy.max_message:
            raise Refusal("policy", f"its policy allows no message of more than {policy.max_message} bytes")
        if out.releases:
            self._charge(str(header["run"]), request_digest(message), list(out.releases))
            more = {"receipt": self.ledger.receipt} | self._address(header)
            reply = packing.seal({"code": "ok"} | out.header | more, payload)
        try:
            out.before()
            if out.releases:
                self._keep_reply(header, message, reply)
            self._record(header, "ok", len(reply))
        except (OSError, FoedusError) as error:
            raise self._full(error) from None
        return reply

    def refuse(self, header: Json, code: str, sentence: str, why: str = "") -> bytes:
        """Return a sealed refusal, which holds nothing of the data; the site's own record says `why`."""
        reply = packing.seal({"code": code, "sentence": sentence} | self._address(header))
        try:
            self._record(header, code, len(reply), why or sentence)
        except OSError as error:
            return packing.seal(self._failure(error) | self._address(header))
        return reply

    def check(self, run: str, releases: list[Release]) -> None:
        """Refuse a run whose releases, all together, would exceed a limit; nothing is written."""
        try:
            self.limits.check(self.ledger, run, releases)
        except Exceeded as no:
            raise Refusal("policy", str(no)) from None

    def check_receipt(self, header: Json) -> None:
        """Refuse a greeting with a receipt of another ledger than this one: it was rolled back, or deleted."""
        if (receipt := header.get("receipt")) is None:
            return
        try:
            self.ledger.check_receipt(receipt if isinstance(receipt, dict) else {})
        except Damaged as error:
            self.note(str(error))
            sentence = "its ledger of privacy is not the newest one; its own log says what is to be done"
            raise Refusal("ledger", sentence) from None
        except FoedusError as error:
            raise Refusal("unknown", str(error).removesuffix(".")) from None

    def fix_noise(self, run: str, noise: Json) -> None:
        """Keep the noise that a run is first greeted with; refuse the same run with other noise.

        What a run costs in all is proved for noise that was fixed before its first answer.
        """
        path, content = self.folder / NOISE.format(run=run), json.dumps(noise, sort_keys=True).encode()
        if not path.exists():
            write_whole(path, content, private=True)
        elif path.read_bytes() != content:
            raise Refusal("policy", "a run of this name was greeted with other noise; give the run another name")

    def forget(self, run: str, before: int | None = None) -> None:
        """Delete the copies of what was sent in a run, or in its rounds before this one.

        Copies of the preparation stay while the run goes on: a resumed run asks for it again, and must get the same.
        """
        for path in self._place(run).glob(SENT.format(round="*", request="*")):
            number = int(path.name.removeprefix("sent-").rpartition("-")[0])
            if before is None or PREPARATION < number < before:
                path.unlink(missing_ok=True)

    def words_before(self, header: Json, payload: bytes) -> tuple[Json, np.ndarray] | None:
        """Return the header and the words that left under masks for this request, with their noise, or None."""
        path = self._words_file(header, payload)
        if not path.exists():
            return None
        arrays, out = unpack(path.read_bytes())
        return out, arrays["words"]

    def keep(self, header: Json, payload: bytes, out: Json, words: np.ndarray) -> None:
        """Keep words that leave with noise, so that new masks need no new noise; `forget` deletes them in the end."""
        path = self._words_file(header, payload)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_whole(path, pack({"words": words}, out), private=True)

    def _words_file(self, header: Json, payload: bytes) -> Path:
        content = (
            json.dumps({k: v for k, v in header.items() if k != "mask"}, sort_keys=True).encode() + b"\0" + payload
        )
        name = SENT.format(round=_number(header), request="words" + request_digest(content))
        return self._place(str(header["run"])) / name

    def _charge(self, run: str, request: str, releases: list[Release]) -> None:
        try:
            self.ledger.charge(run, request, releases, self.limits)
        except Exceeded as no:
            raise Refusal("policy", str(no)) from None
        except Damaged as error:
            self.note(str(error))
            raise Refusal("ledger", "its ledger of privacy is damaged, so it releases nothing") from None
        except (OSError, FoedusError) as error:
            raise self._full(error) from None

    def _full(self, error: Exception) -> Refusal:
        failure = self._failure(error)
        return Refusal(failure["code"], failure["sentence"])

    def _failure(self, error: Exception) -> dict[str, str]:
        self.note(f"cannot write in {self.folder}: {getattr(error, 'strerror', None) or error}")
        return {"code": "failed", "sentence": "it cannot keep its record of messages; its disk may be full"}

    def _keep_reply(self, header: Json, message: bytes, reply: bytes) -> None:
        place = self._place(str(header["run"]))
        place.mkdir(exist_ok=True, mode=0o700)
        name = SENT.format(round=_number(header), request=request_digest(message))
        write_whole(place / name, reply, private=True)

    def _place(self, run: str) -> Path:
        return self.folder / f"run-{run}"

    def _address(self, header: Json) -> Json:
        return {"site": self.site, "run": header.get("run"), "round": header.get("round"), "ask": header.get("ask")}

    def _record(self, header: Json, code: str, size: int, why: str = "") -> None:
        self.log.add(header, code, size, why)


class MessageLog:
    """The list of all messages that a site sends, for the site alone: a JSON line with time, purpose and size.

    A message that was refused is there with the reason, so a server that has lied is on record at the site.
    """

    def __init__(self, path: Path):
        self.path = path

    def add(self, header: Json, code: str, size: int, why: str = "") -> None:
        """Append the line of one message, and why it was refused."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
            "run": _word(header.get("run")),
            "purpose": _word(header.get("ask")),
            "round": _word(header.get("round")),
            "bytes": size,
            "code": code,
        } | ({"why": one_line(why, 500)} if why else {})
        with open(self.path, "a", encoding="utf-8", opener=_private) as file:
            file.write(json.dumps(line) + "\n")

    def read(self) -> list[Json]:
        """Return the lines so far, without one that a crash cut short."""
        lines = []
        for text in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
        return lines


def _word(value: object) -> object:
    """What a line of the list says of a part of a message, which may be anything: a number, or a short text."""
    if value is None or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return one_line(str(value), 64)


def _number(header: Json) -> int:
    """The round of a message, by which copies of what was sent are deleted; those without one stay until the end."""
    return header["round"] if isinstance(header.get("round"), int) else PREPARATION


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
