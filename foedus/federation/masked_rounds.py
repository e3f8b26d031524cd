"""Masked sums over messages: the server asks for keys, vectors and reveals, and gets a total; rounds are such sums."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.federation import packing
from foedus.federation.exchange import Exchange, Missing, Paused
from foedus.federation.order import Patience
from foedus.federation.rounds import Play, Rounds
from foedus.federation.secure_check import Sum, SumReferee
from foedus.numerics.interpreter.dispatch import jit_if_many
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.summing import SumPresent
from foedus.runtime import spine
from foedus.sums.masking import Masking
from foedus.sums.messages import KeyNote, MaskedVector, Reveal
from foedus.sums.questions import Coding, Form
from foedus.sums.server import MaskedSum, Unfinished, roster_of

PREPARATION = "preparation"  # the stage before the rounds


def stage_name(run: str, stage: str) -> str:
    """Return the name under which keys and sums of a stage of a run are bound; no run has such a name."""
    return f"{run}.{stage}" if stage else run


class MaskedExchange:
    """Masked sums with the sites of a run: keys where they are needed, vectors, reveals, the total.

    Args:
        sites: the sites, as the transport calls them.
        exchange: carries the messages.
        patience: how long the server waits, and for how many.
        stage: the part of the run that the sums belong to: "" for its rounds; each has keys of its own.
        verified: whether every site adds the sums up itself.
    """

    def __init__(
        self, sites: tuple[str, ...], exchange: Exchange, patience: Patience, stage: str = "", verified: bool = False
    ):
        self.sites, self.exchange, self.patience, self.stage = sites, exchange, patience, stage
        self.verified = verified
        self.epoch, self.has_keys = exchange.first_epoch, False
        self.key_holders: tuple[str, ...] = ()  # the sites that have keys
        self.key_time, self.latest = 0.0, 0  # the latter is the round of the last sum

    def new_keys(self) -> None:
        """Let the sites take new keys and show them to each other; without `minimum` a silent one pauses the run."""
        self.epoch += 1
        header = self._header("keys") | {"epoch": self.epoch}
        notes = self._ask_all("keys", {site: packing.seal(header) for site in self.sites}, self.patience.minimum)
        roster = roster_of(KeyNote.from_bytes(content) for content in notes.values()).to_bytes()
        self._ask_all("roster", dict.fromkeys(notes, packing.seal(self._header("roster"), roster)), None)
        self.has_keys, self.key_holders, self.key_time = True, tuple(notes), time.monotonic()

    def _header(self, ask: str) -> Json:
        return self.exchange.header(ask) | ({"stage": self.stage} if self.stage else {})

    def _show(self, work: MaskedSum) -> None:
        """In a checked run, show every site what the sum was made from, so that it adds it up itself."""
        if not self.verified:
            return
        if work.recovers:
            gone = next(site for site in work.order.sites if site not in work.survivors)
            raise Paused(
                f"client {self.exchange.client[gone]!r} is gone; a checked run goes on when all of its sites are back"
            )
        message = packing.seal(self._header("total"), work.opened().to_bytes())
        self.exchange.everyone("total", dict.fromkeys(work.survivors, message))

    def _ready(self) -> None:
        """Exchange keys where there are none, and now and then where a site that was silent may be back."""
        waits = time.monotonic() - self.key_time
        if not self.has_keys or (len(self.key_holders) < len(self.sites) and waits > self.patience.probe):
            self.new_keys()

    def _ask_all(self, ask: str, messages: Mapping[str, bytes], least: int | None) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        silent = self.exchange.collect(ask, messages, lambda site, header, content: contents.update({site: content}))
        if len(contents) < (len(messages) if least is None else least):
            why = self.exchange.why(silent[0])
            raise Paused(f"client {self.exchange.client[silent[0]]!r} does not answer {ask!r}{why}")
        return contents

    def add_up(
        self,
        ask: str,
        round: int,
        messages: Mapping[str, tuple[Json, bytes]],
        size: int,
        least: int,
        *,
        number: int | None,
        losses: frozenset[str] = frozenset(),
        on_header: Callable[[str, Json], None] = lambda site, header: None,
    ) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """Return the sum of the sites' words and who is in it; None where the sum could not be unmasked.

        Args:
            ask: the kind of message.
            round: the round that the sum is bound to.
            messages: by site, the header and the payload of its message.
            size: the words of a vector.
            least: the fewest sites to go on with.
            number: the round in the header of messages.
            losses: sites whose vectors count as lost.
            on_header: called with the header of each vector that is taken.
        """
        if round < self.latest:
            self.has_keys = False  # rounds count upwards under the same keys
        self.latest = round
        for attempt in range(1 + self.patience.misses):
            self._ready()
            targets = {site: message for site, message in messages.items() if site in self.key_holders}
            work = MaskedSum(stage_name(self.exchange.run, self.stage), self.epoch, round, attempt, targets, size)
            if not self._vectors(work, ask, number, messages, max(least, work.threshold), losses, on_header):
                self.has_keys = False  # a site has none, as after a restart: everybody takes new ones
                continue
            return self._unmask(work)
        raise Paused(f"the sites have no keys in common for round {round}")

    def _vectors(
        self,
        work: MaskedSum,
        ask: str,
        number: int | None,
        messages: Mapping[str, tuple[Json, bytes]],
        least: int,
        losses: frozenset[str],
        on_header: Callable[[str, Json], None],
    ) -> bool:
        """Collect the masked vectors; return False where a site says that it has no keys; raise where it is silent."""
        order = work.order.to_bytes().hex()
        for _ in range(1 + self.patience.misses):
            asks = {s: packing.seal(messages[s][0] | {"mask": order}, messages[s][1]) for s in work.missing}
            for site, raw in self.exchange.ask(asks, self.patience.timeout).items() if asks else ():
                if _code(raw) == "keys":
                    return False
                header, content = self.exchange.open_reply(site, raw, ask, number)
                if header is None:
                    continue
                try:
                    if header.get("answers") is False:
                        raise Missing(f"client {self.exchange.client[site]!r} sends no exact measurement.")
                    on_header(site, header)
                    vector = MaskedVector.from_bytes(content)
                    work.take(site, vector)
                except Missing:
                    raise
                except FoedusError as error:
                    self.exchange.refuse(site, str(error))
            if len(work.vectors) >= least:
                break
        for site in losses & {*work.vectors}:
            del work.vectors[site]
        if len(work.vectors) < least - len(losses & {*work.order.sites}):
            silent = work.missing[0]
            raise Paused(
                f"client {self.exchange.client[silent]!r} does not answer in round {work.order.round}"
                f"{self.exchange.why(silent)}"
            )
        return True

    def _unmask(self, work: MaskedSum) -> tuple[np.ndarray | None, tuple[str, ...]]:
        try:
            orders = {site: order.to_bytes() for site, order in work.reveal_orders().items()}
        except Unfinished as error:
            self.exchange.note(str(error))
            return None, ()
        messages = {site: packing.seal(self._header("reveal"), content) for site, content in orders.items()}

        def take(site: str, header: Json, content: bytes) -> None:
            work.take_reveal(site, Reveal.from_bytes(content))

        self.exchange.collect("reveal", messages, take, until=lambda: work.finished)
        if work.recovers:
            self.has_keys = False  # the sites take new keys after a recovery
        try:
            total = work.total()
            self._show(work)
            return total, work.survivors
        except Unfinished as error:  # the sites have revealed once in this round, so there is no other attempt
            self.exchange.note(str(error))
            self.has_keys = False
            return None, ()


def _code(raw: object) -> object:
    try:
        return packing.unseal(raw)[0].get("code")
    except FoedusError:
        return None


@jit_if_many("algorithm", "terms", "phase")
def aggregate_sum(
    algorithm: Algorithm, terms: Terms, phase: int, play: Play, total: PyTree, here: Array
) -> tuple[Play, dict[str, Array]]:
    """Return the state after a round whose replies are there as their sum alone, and its record."""
    present = SumPresent.of(jnp.sum(here))
    carry = spine.advance(algorithm, terms, algorithm.kinds[phase], play.carry, total, present, sure=False)
    return Play(carry, jnp.where(here, play.carry.round, play.last)), dict(algorithm.report(carry.server))


def after_sum(
    few: bool, algorithm: Algorithm, terms: Terms, phase: int, at: Play, coding: Coding, words: np.ndarray | None,
    here: np.ndarray,
) -> tuple[Play, dict[str, Array]]:  # fmt: skip
    """Return the state after a round with this sum, and its record."""
    total, _, broken_count = coding.tree_of(np.zeros(coding.size, np.int64) if words is None else words)
    after, report = aggregate_sum(few)(algorithm, terms, phase, at, total, here)
    if broken_count:
        after = replace(at, carry=replace(at.carry, round=at.carry.round + 1, finite=jnp.zeros((), bool)))
    return after, report


class MaskedRounds(Rounds):
    """The rounds of a run whose replies the server sees the sum of."""

    def begin(self, sums: MaskedExchange, masking: Masking, forms: list[Form]) -> None:
        """Note how replies are added up."""
        self.sums, self.masking = sums, masking
        self.codings = [Coding.of(form, self.order.terms.clients) for form in forms]
        self.sum_referee = SumReferee(self.order, masking, self.exchange)

    def play(self, at: Play) -> tuple[Play, dict[str, object]]:
        """Play one round; return the state after it, and its record."""
        order, carry = self.order, at.carry
        round, phase, message = self.message(carry)
        is_asked, is_lost = self.draws(carry.round)
        coding = self.codings[phase]
        messages = self._messages(round, phase, message, is_asked, np.asarray(at.last))
        losses = frozenset(site for site, gone in zip(order.sites, is_lost, strict=True) if gone)
        least = len(messages) if self.patience.minimum is None else min(len(messages), self.patience.minimum)
        words, survivors = None, ()
        if self.masking.enough(len({*messages} - losses), len(messages)):
            words, survivors = self.sums.add_up(
                "round", round, messages, coding.size, least, number=round, losses=losses,
                on_header=lambda site, header: self.note_releases(self.index[site], header),
            )  # fmt: skip
        if words is None and order.verified:  # a round without a sum is none: the sites would not go on from it
            raise Paused(f"the sum of round {round} could not be unmasked")
        if words is not None:
            one = Sum(round, order.algorithm.kinds[phase], coding, spine.message_for(message, 0), survivors, words)
            self.sum_referee.check(one)
        here = np.array([site in survivors for site in order.sites])
        after, report = after_sum(order.few, order.algorithm, order.terms, phase, at, coding, words, here)
        record: dict[str, object] = {"phase": phase, "asked": len(messages), "answered": int(here.sum())}
        return after, record | report | self.release_counts

    def _messages(
        self, round: int, phase: int, message: PyTree, is_asked: np.ndarray, last: np.ndarray
    ) -> Mapping[str, tuple[Json, bytes]]:
        messages: dict[str, tuple[Json, bytes]] = {}
        order = self.order
        for i, site in enumerate(order.sites):
            if is_asked[i]:
                header = self.exchange.header("round") | {"round": round, "phase": phase, "since": int(last[i])}
                content = (
                    b"" if order.verified else packing.to_bytes(spine.message_for(message, i), self.messages[phase])
                )
                messages[site] = (header, content)
        return messages
