"""Rounds of which the server sees masked sums alone; a sum that cannot be unmasked is as a round without answers."""

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.federation import packing
from foedus.federation.masked_exchange import MaskedExchange
from foedus.federation.rounds import Play, Rounds
from foedus.federation.secure_check import FaultSearch, Sum
from foedus.numerics.interpreter.dispatch import jit_if_many
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.summing import SumPresent
from foedus.runtime import spine
from foedus.sums.masking import Masking
from foedus.sums.questions import Coding, Form


@jit_if_many("algorithm", "terms", "phase")
def aggregate_sum(
    algorithm: Algorithm, terms: Terms, phase: int, play: Play, total: PyTree, here: Array
) -> tuple[Play, dict[str, Array]]:
    """Return the state after a round whose replies are there as their sum alone, and its record."""
    present = SumPresent.of(jnp.sum(here))
    carry = spine.advance(algorithm, terms, algorithm.kinds[phase], play.carry, total, present, sure=False)
    return Play(carry, jnp.where(here, play.carry.round, play.last)), dict(algorithm.report(carry.server))


class MaskedRounds(Rounds):
    """The rounds of a run whose replies the server sees the sum of."""

    def begin(self, sums: MaskedExchange, masking: Masking, forms: list[Form]) -> None:
        """Note how replies are added up."""
        self.sums, self.masking = sums, masking
        self.codings = [Coding.of(form, self.order.terms.clients) for form in forms]
        self.fault_search = FaultSearch(self.order, masking, self.exchange)

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
        if words is not None:
            one = Sum(round, order.algorithm.kinds[phase], coding, spine.message_for(message, 0), survivors, words)
            self.fault_search.check(one, len(messages), self.sums.epoch)
        here = np.array([site in survivors for site in order.sites])
        total, _, broken_count = coding.tree_of(np.zeros(coding.size, np.int64) if words is None else words)
        after, report = aggregate_sum(order.few)(order.algorithm, order.terms, phase, at, total, here)
        if broken_count:
            after = replace(at, carry=replace(carry, round=carry.round + 1, finite=jnp.zeros((), bool)))
        record = {"phase": phase, "asked": len(messages), "answered": int(here.sum())} | report | self.release_counts
        return after, record

    def _messages(
        self, round: int, phase: int, message: PyTree, is_asked: np.ndarray, last: np.ndarray
    ) -> Mapping[str, tuple[Json, bytes]]:
        messages: dict[str, tuple[Json, bytes]] = {}
        for i, site in enumerate(self.order.sites):
            if is_asked[i]:
                header = self.exchange.header("round") | {"round": round, "phase": phase, "since": int(last[i])}
                messages[site] = (header, packing.to_bytes(spine.message_for(message, i), self.messages[phase]))
        return messages
