"""Post: messages between the server's job and the sites' jobs, as bytes over FLARE's cells.

FLARE's aux messages wrap bytes into a Shareable with the properties of both parties (about 4 kB each way), serialise
it, and keep a thread waiting for each answer. A cell sends bytes as they are. Requests and answers are messages without
a reply of FLARE's own, so nobody waits in a thread, and an answer that comes too late for its round is still received.

What the messages hold is sealed for their receivers (`foedus/sums/channel.py`): FLARE's cells carry bytes for
whoever can reach one of them.
"""

# pyright: reportMissingImports=false

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from foedus.base.files import write_whole
from foedus.federation import packing
from foedus.federation.flare.frames import length_of_note
from foedus.sums.channel import ServerChannel

CHANNEL = "foedus"
REQUEST, ANSWER = "ask", "answer"  # topics
TICKET = "t"  # the header with the number of a request, which its answer repeats
OLDEST = 1_000  # requests ago: answers to older ones are let go
UNREACHABLE_SECONDS = 0.05  # before a site that cannot be reached is asked again: it is known at once


@dataclass(frozen=True)
class TooLong:
    """Stands for an answer of so many bytes, more than the terms allow, that was dropped as it arrived."""

    size: int


@dataclass(frozen=True)
class Answer:
    """An answer that has arrived: to which request, from whom, and when (by `time.monotonic`)."""

    ticket: int
    site: str
    content: bytes | TooLong
    time: float


class Post(Protocol):
    """Sends messages without waiting, and gives out answers in the order in which they arrive."""

    @property
    def missing(self) -> set[str]:
        """The sites that have not answered what they were asked last."""
        ...

    @property
    def most(self) -> int:
        """The bytes of an answer; a longer one is dropped as it arrives."""
        ...

    @most.setter
    def most(self, value: int) -> None: ...

    def send(self, messages: Mapping[str, bytes]) -> int:
        """Send each site its message; return the number that their answers will carry."""
        ...

    def take(self, seconds: float) -> Answer | None:
        """Return the next answer, or None where none arrives within so many seconds."""
        ...

    def give_back(self, answers: list[Answer]) -> None:
        """Let answers be taken once more, by whoever waits for them."""
        ...

    def now(self) -> float:
        """Return the time by the clock that answers are timed with."""
        ...


class CellPost:
    """The server's end, over the cell of its job; `addresses` are the names of the sites' jobs among the cells."""

    def __init__(self, cell: Any, addresses: Mapping[str, str], announcement: Path | None = None):
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
        from nvflare.fuel.f3.cellnet.utils import new_cell_message

        self.core = cell.core_cell
        self.addresses = dict(addresses)
        self.site_of = {address: site for site, address in self.addresses.items()}
        self.origin, self.message = MessageHeaderKey.ORIGIN, new_cell_message
        self.ticket = 0
        self.announcement = announcement  # the file by which the server's own process learns what is too long
        self.most = packing.LONGEST_HEADER + packing.LENGTH.size  # before the terms are known: a header alone
        self.queue: deque[Answer] = deque()
        self.missing: set[str] = set()  # sites that have not answered what they were asked last
        self.bell = threading.Condition()
        self.core.register_request_cb(channel=CHANNEL, topic=ANSWER, cb=self._receive)

    @property
    def most(self) -> int:
        """The bytes of an answer; a longer one is dropped, by the server's own process where it comes in."""
        return self._most

    @most.setter
    def most(self, value: int) -> None:
        self._most = value
        if self.announcement is not None:
            self.announcement.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.announcement, str(value).encode())

    def send(self, messages: Mapping[str, bytes]) -> int:
        from nvflare.fuel.f3.cellnet.core_cell import TargetMessage

        self.ticket += 1
        with self.bell:
            self.missing = set(messages)
        outgoing = {
            self.addresses[site]: TargetMessage(
                self.addresses[site], CHANNEL, REQUEST, self.message({TICKET: self.ticket}, content)
            )
            for site, content in messages.items()
        }
        errors = self.core.fire_multi_requests_and_forget(outgoing, optional=True)
        if any((errors or {}).values()):
            time.sleep(UNREACHABLE_SECONDS)
        return self.ticket

    def take(self, seconds: float) -> Answer | None:
        with self.bell:
            if not self.queue:
                self.bell.wait(max(0.0, seconds))
            return self.queue.popleft() if self.queue else None

    def give_back(self, answers: list[Answer]) -> None:
        with self.bell:
            self.queue.extendleft(reversed(answers))

    def now(self) -> float:
        return time.monotonic()

    def _receive(self, message: Any) -> None:
        """Called by FLARE, on a thread of its own, with each answer."""
        site, ticket = self.site_of.get(message.get_header(self.origin)), message.get_header(TICKET)
        content = message.payload
        if site is None or not isinstance(ticket, int) or not isinstance(content, bytes | bytearray | memoryview):
            return
        size = length_of_note(content) or len(content)
        short = TooLong(size) if size > self.most else bytes(content)
        with self.bell:
            self.queue.append(Answer(ticket, site, short, time.monotonic()))
            self.missing.discard(site)
            self.bell.notify()


class SealedPost:
    """The post of a run with a quorum: messages go out sealed, and answers are opened when they are taken.

    The sessions are those of the greeting: FLARE ends a job with any of its processes, so no site loses its own.
    """

    def __init__(self, post: Post, channel: ServerChannel):
        self.post, self.channel = post, channel
        self.numbers: dict[tuple[str, int], int] = {}  # by site and ticket, the number of the sealed message

    @property
    def missing(self) -> set[str]:
        return self.post.missing

    @property
    def most(self) -> int:
        return self.post.most

    @most.setter
    def most(self, value: int) -> None:
        self.post.most = value

    def send(self, messages: Mapping[str, bytes]) -> int:
        envelopes = {s: self.channel.seal(s, content) for s, content in messages.items() if s in self.channel.sessions}
        ticket = self.post.send({site: content for site, (_, content) in envelopes.items()})
        self.numbers |= {(site, ticket): number for site, (number, _) in envelopes.items()}
        while len(self.numbers) > OLDEST * max(1, len(self.channel.sessions)):
            del self.numbers[next(iter(self.numbers))]
        return ticket

    def take(self, seconds: float) -> Answer | None:
        answer = self.post.take(seconds)
        number = None if answer is None else self.numbers.pop((answer.site, answer.ticket), None)
        if answer is None or number is None:
            return None
        content = self.channel.open(answer.site, number, answer.content)
        return replace(answer, content=content) if isinstance(content, bytes | TooLong) else None

    def give_back(self, answers: list[Answer]) -> None:
        raise NotImplementedError("rounds with a quorum take each answer once.")

    def now(self) -> float:
        return self.post.now()


def ask(
    post: Post, messages: Mapping[str, bytes], seconds: float, should_stop: Callable[[], bool]
) -> dict[str, object]:
    """Send each site its message and return the answers, by site, of those that answered in time."""
    if not messages:
        return {}
    ticket = post.send(messages)
    answers: dict[str, object] = {}
    others: list[Answer] = []  # to earlier requests: a round may still wait for them
    until = post.now() + seconds
    while len(answers) < len(messages) and not should_stop():
        rest = until - post.now()
        if rest <= 0:
            break
        answer = post.take(min(rest, 1.0))
        if answer is not None and answer.ticket == ticket:
            answers[answer.site] = answer.content
        elif answer is not None:
            others.append(answer)
    post.give_back([one for one in others if ticket - one.ticket <= OLDEST])
    return answers


def serve(cell: Any, worker: Executor, answer: Callable[[bytes], bytes | None]) -> None:
    """At a site: answer every request that arrives, one after the other on the worker's thread; None is no answer."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.cellnet.utils import new_cell_message

    core = cell.core_cell

    def work(origin: str, ticket: int, content: bytes) -> None:
        if (own := answer(content)) is None:
            return
        reply = new_cell_message({TICKET: ticket}, own)
        core.fire_and_forget(channel=CHANNEL, topic=ANSWER, targets=origin, message=reply, optional=True)

    def receive(message: Any) -> None:
        content, ticket = message.payload, message.get_header(TICKET)
        if isinstance(content, bytes | bytearray | memoryview) and isinstance(ticket, int):
            worker.submit(work, message.get_header(MessageHeaderKey.ORIGIN), ticket, bytes(content))

    core.register_request_cb(channel=CHANNEL, topic=REQUEST, cb=receive)
