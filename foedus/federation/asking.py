"""Questions to sites over a network: the same for all of them; the server sees each answer, or the sum alone."""

import itertools
from collections.abc import Callable, Mapping

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.federation import packing
from foedus.federation.exchange import Exchange, Paused
from foedus.federation.masked_rounds import MaskedExchange
from foedus.sums.questions import Coding, Question, checked_total, total_of

LEAST_SECONDS = 60.0  # for an answer: a site reads its rows, or compiles a program, before it answers


class PlainSites:
    """Sites whose single answers the server sees.

    Args:
        exchange: carries the messages.
        since: by site, the round after which its state is asked about.
    """

    shows_each, has_content = True, True

    def __init__(self, exchange: Exchange, since: Mapping[str, int] | None = None):
        self.exchange, self.since = exchange, dict(since or {})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.exchange.client.values())

    def messages(self, question: Question) -> dict[str, tuple[Json, bytes]]:
        """Return by site the header and the payload of its message."""
        arrays = (question.arrays, question.free) if self.has_content else question.free
        payload = packing.to_bytes(arrays, packing.structure(arrays))
        header = self.exchange.header(question.kind) | question.fields
        return {
            site: (header | ({"since": self.since[site]} if site in self.since else {}), payload)
            for site in self.exchange.client
        }

    def each(
        self, question: Question, check: Callable[[str, PyTree], None] = lambda site, answer: None
    ) -> dict[str, PyTree]:
        """Return the answer of every site, by its name; None of one that may not answer this question.

        An answer that is none, or that `check` refuses, is asked for again.
        """
        shape, answers = question.shape, dict[str, PyTree]()
        self.exchange.allow(packing.size_of(shape))

        def take(site: str, header: Json, content: bytes) -> None:
            if header.get("answers") is False:
                answers[site] = None
                return
            answer = packing.from_bytes(content, shape)
            question.check(answer)
            check(site, answer)
            answers[site] = answer

        messages = {site: packing.seal(*message) for site, message in self.messages(question).items()}
        self.exchange.everyone(question.kind, messages, take, LEAST_SECONDS)
        return {name: answers[site] for site, name in self.exchange.client.items()}

    def total(self, question: Question) -> PyTree:
        """Return the sum of the sites' answers."""
        return total_of(question, self.each(question).values())


class MaskedSites(PlainSites):
    """Sites of whose answers the server sees the sum alone.

    Args:
        exchange: carries the messages.
        sums: the masked sums of this stage of the run.
        first: the number of the first sum; they count upwards.
        since: by site, the round after which its state is asked about.
    """

    shows_each = False

    def __init__(
        self, exchange: Exchange, sums: MaskedExchange, first: int = 0, since: Mapping[str, int] | None = None
    ):
        super().__init__(exchange, since)
        self.has_content = not sums.verified  # in a checked run every site knows what it would be
        self.sums, self.numbers = sums, itertools.count(first)

    def each(
        self, question: Question, check: Callable[[str, PyTree], None] = lambda site, answer: None
    ) -> dict[str, PyTree]:
        raise FoedusError("single answers are not seen where sums are masked (secure).")

    def total(self, question: Question) -> PyTree:
        coding, messages = Coding.of(question.form, len(self.exchange.client)), self.messages(question)
        words = self.words(question.kind, messages, coding.size)
        return checked_total(question, coding, words)

    def words(self, kind: str, messages: Mapping[str, tuple[Json, bytes]], size: int) -> np.ndarray:
        """Return the sum of the sites' words."""
        self.exchange.allow(8 * size)
        words, _ = self.sums.add_up(kind, next(self.numbers), messages, size, len(messages), number=None)
        if words is None:
            raise Paused(f"the sum of {kind!r} could not be unmasked")
        return words
