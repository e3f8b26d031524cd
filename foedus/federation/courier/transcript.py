"""The server's part of a run, played again from the answers so far: `ask` of a session whose sites are days away.

A run at the server is a pure function of its plan and of the sites' answers. So nothing of it is kept between two
exchanges but the files: it is played from the beginning, each message that was answered gets its answer, and the first
that was not ends the play (`Awaited`). Nobody is asked anything twice.

Some answers are known beforehand: that a site has noted a sum, that it joins. The play then goes on as if they were
there (`Foresight`), and what it would ask next is carried with the same files. What was foreseen decides nothing: once
the real answers are there the run is played with them, and a message that differs from the one that was sent is a new
one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Sketch
from foedus.federation import packing
from foedus.federation.order import Order
from foedus.runtime.run import versions

ENOUGH = 2**40  # a foreseen number of rows, more than any term asks for
SPARED = ("errors",)  # without whose answers the run goes on: the same exchange brings what is asked after them
NOTED = ("cohort", "roster", "total", "join")  # what a site answers without a figure


class Awaited(Exception):
    """The run waits for the answers to these messages, which are by site, in the order in which they are to be read."""

    def __init__(self, messages: Mapping[str, Sequence[bytes]]):
        super().__init__()
        self.messages = {site: tuple(contents) for site, contents in messages.items()}


@dataclass
class Foresight:
    """What sites will answer, as far as it follows from what is known.

    Args:
        rates: the names of the terms on rates.
        sketch: what the sites' columns hold, as far as the plan says.
    """

    rates: tuple[str, ...] = ()
    sketch: Sketch | None = None
    order: Order | None = None
    rules: Preprocessing | None = None

    def prepared(self, order: Order, rules: Preprocessing) -> None:
        """Note what the preparation of the data has settled."""
        self.order, self.rules = order, rules

    def reply(self, site: str, message: bytes) -> bytes | None:
        """Return a reply on which the next messages do not depend, beyond what it surely says; None: nobody knows."""
        header, _ = packing.unseal(message)
        content = self._content(header)
        if content is None:
            return None
        more, payload = content
        address = {name: header.get(name) for name in ("run", "round", "ask")}
        return packing.seal({"code": "ok", "site": site} | address | more, payload)

    def _content(self, header: Json) -> tuple[Json, bytes] | None:
        ask = header["ask"]
        if ask in NOTED:
            return {"kept": []}, b""
        if ask == "columns" and self.sketch is not None:
            return {"versions": dict(versions()), "sketch": self.sketch.to_json()}, b""
        if ask == "prepare":
            return {"kept": dict.fromkeys(self.rates, ENOUGH)}, b""
        if ask == "hello" and self.rules is not None:
            shapes = {"x": [None, len(self.rules.names)], "y": [None]}
            shapes |= {} if self.rules.group is None else {"group": [None]}
            return {"versions": dict(versions()), "schema": shapes}, b""
        if "mask" in header:
            return None
        if ask == "measure":  # as of a site that may not say: what is asked about the same model comes next
            return {"answers": False}, b""
        if ask == "rate" and header["what"] == "count":
            return {}, np.array([ENOUGH, 0], "<i8").tobytes()
        return None


@dataclass
class Transcript:
    """What was asked and answered so far, and what is asked next.

    Args:
        foresight: says which answers are known beforehand.
        answers: by site and digest of a message, the answers in the order in which it was asked; None where the run
            goes on without this site's.
    """

    foresight: Foresight
    answers: dict[tuple[str, str], list[bytes | None]] = field(default_factory=dict)
    headers: dict[tuple[str, str], Json] = field(default_factory=dict)  # of the messages that were answered

    def add(self, site: str, questions: Sequence[bytes], replies: Sequence[bytes] | None) -> None:
        """Note what a site has answered to the messages of one file, one after the other; None: nothing in time."""
        for i, question in enumerate(questions):
            replied = None if replies is None else replies[i] if i < len(replies) else b""
            if replied != b"":  # a site stops at the first message that it refuses
                self.headers[site, digest(question)] = packing.unseal(question)[0]
                self.answers.setdefault((site, digest(question)), []).append(replied)

    def begin(self) -> None:
        """Begin a play."""
        self.used: dict[tuple[str, str], int] = {}
        self.pending: list[dict[str, bytes]] = []
        self.last: dict[str, bytes] = {}  # messages that end the run, and that nobody has to answer

    @property
    def awaited(self) -> Awaited:
        """What the run waits for."""
        sites = dict.fromkeys(site for messages in self.pending for site in messages)
        return Awaited({site: [one[site] for one in self.pending if site in one] for site in sites})

    def astray(self) -> str | None:
        """Return a site that would be asked with other numbers what it was asked and has answered; None: nobody.

        The play is the same each time, unless another machine or version rounds otherwise.
        """
        unused = {
            (site, json.dumps(self.headers[site, one], sort_keys=True))
            for site, one in self.answers
            if (site, one) not in self.used
        }
        for site, message in self.pending[0].items():
            if (site, json.dumps(packing.unseal(message)[0], sort_keys=True)) in unused:
                return site
        return None

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, object]:
        """Return the answers; raise Awaited where some are not there and not known beforehand."""
        if messages and packing.unseal(next(iter(messages.values())))[0]["ask"] == "end":
            self.last = dict(messages)
            return {}
        replies: dict[str, object] = {}
        missing: dict[str, bytes] = {}
        for site, message in messages.items():
            key = site, digest(message)
            answers, used = self.answers.get(key, []), self.used.get(key, 0)
            if used >= len(answers):
                missing[site] = message
                continue
            self.used[key] = used + 1
            if (answer := answers[used]) is not None:
                replies[site] = answer
        if not missing:
            return replies
        self.pending.append(missing)
        if packing.unseal(next(iter(missing.values())))[0]["ask"] in SPARED:
            raise FoedusError("its answer is not there yet.")
        foreseen = {site: self.foresight.reply(site, message) for site, message in missing.items()}
        if None in foreseen.values():
            raise self.awaited
        return replies | foreseen


def digest(message: bytes) -> str:
    """Return the digest by which a message is known."""
    return hashlib.sha256(message).hexdigest()
