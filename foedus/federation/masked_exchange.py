"""Masked sums over messages: the server asks for keys, vectors and reveals, and gets a total."""

import secrets
import time
from collections.abc import Callable, Mapping

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation import packing
from foedus.federation.exchange import Exchange, Missing, Paused
from foedus.federation.order import Patience
from foedus.sums.messages import KeyNote, MaskedVector, Reveal
from foedus.sums.server import MaskedSum, Unfinished, roster_of

FIRST_EPOCHS = 2**19  # numbers from which the first one is drawn; a site takes up to 10^6
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
    """

    def __init__(self, sites: tuple[str, ...], exchange: Exchange, patience: Patience, stage: str = ""):
        self.sites, self.exchange, self.patience, self.stage = sites, exchange, patience, stage
        # a server that starts again must not call other keys by the same number
        self.epoch, self.has_keys = secrets.randbelow(FIRST_EPOCHS), False
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
            return work.total(), work.survivors
        except Unfinished as error:  # the sites have revealed once in this round, so there is no other attempt
            self.exchange.note(str(error))
            self.has_keys = False
            return None, ()


def _code(raw: object) -> object:
    try:
        return packing.unseal(raw)[0].get("code")
    except FoedusError:
        return None
