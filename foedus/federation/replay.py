"""A checked run: each site plays the server's part itself, and answers only at what follows.

A run is a pure function of its plan and of the sums. In a checked run the plan has all that the server's part needs
(algorithm, terms, start, the names of all sites), and nobody draws for all: no seed of the server's is used. Each site
draws for itself, from a secret of its own, and adds every sum up itself, from the vectors that all sites have signed
(`foedus/sums/site.py`). So it knows the next message, the last model and its multipliers, and no message of the server
holds any of them. A server can stop such a run, and steer it nowhere.

Totals are integers, and the same for all parties. Two machines may round what they compute from them differently, by
some units in the last place; nothing is compared between parties, so no bound on that is needed.
"""

import hashlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from foedus.base.pytrees import PyTree
from foedus.federation import layout, packing
from foedus.federation.masked_rounds import after_sum
from foedus.federation.policy import Refusal
from foedus.federation.rounds import Play, broadcast, first_play
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.runtime import spine
from foedus.sums.questions import Coding, Form

OF_THE_MODEL = ("measure", "products", "errors", "evaluate", "rate")  # questions about the last model


def history_of(before: bytes, words: np.ndarray) -> bytes:
    """Return the digest of the sums so far and of one more, which are 64-bit integers, little-endian."""
    return hashlib.sha256(before + np.ascontiguousarray(words, "<i8").tobytes()).digest()


class Replay:
    """The server's part of a run, as a site plays it.

    Args:
        algorithm: made ready for the terms.
        terms: of the run.
        w0: the start.
        index: the site's own place among all of them.
        few: whether some tens of rounds will do.
    """

    def __init__(self, algorithm: Algorithm, terms: Terms, w0: np.ndarray, index: int, few: bool):
        self.algorithm, self.terms, self.index, self.few = algorithm, terms, index, few
        self.uids = jnp.zeros((terms.clients, 2), jnp.uint32)
        self.trace = bytes(32)  # a digest of the sums so far
        self.play: Play = first_play(few)(algorithm, terms, jnp.asarray(w0, dtype=float), None)

    @property
    def round(self) -> int:
        """The number of the next round."""
        return int(self.play.carry.round)

    @property
    def since(self) -> int:
        """The round after which the site's own state is the newest."""
        return int(self.play.last[self.index])

    @property
    def phase(self) -> int:
        """The kind of the next round."""
        return int(self.algorithm.phase(self.play.carry.server))

    def content(self, ask: str, round: object, phase: object, payload: bytes, messages: Sequence[PyTree]) -> bytes:
        """Return the content that a message of the server would have; refuse what does not follow from the sums."""
        if payload and ask not in ("products", "errors"):  # vectors of products, and a bread that a site checks itself
            raise Refusal("breach", "in a checked run no message of the server holds a model: it follows from the sums")
        if ask in OF_THE_MODEL:
            model = (self.model, self.nu) if ask in ("measure", "products", "errors") else self.model
            return packing.to_bytes(model, packing.structure(model)) + payload
        carry = self.play.carry
        if bool(carry.done) or (round, phase) != (self.round, self.phase):
            raise Refusal("breach", f"round {round} of kind {phase} does not follow from the sums that it has added up")
        message = broadcast(self.few)(
            self.algorithm, self.terms, self.phase, carry.server, None, carry.round, self.uids
        )
        message = spine.message_for(jax.tree.map(np.asarray, message), self.index)
        return packing.to_bytes(message, messages[self.phase])

    def advance(self, forms: Sequence[Form], words: np.ndarray) -> None:
        """Go on with the sum of the round."""
        coding, here = Coding.of(forms[self.phase], self.terms.clients), np.ones(self.terms.clients, bool)
        self.trace = history_of(self.trace, words)
        self.play, _ = after_sum(self.few, self.algorithm, self.terms, self.phase, self.play, coding, words, here)

    @property
    def kept(self) -> PyTree:
        """What a site keeps on its disk."""
        return self.play, np.frombuffer(self.trace, np.uint8)

    def restore(self, kept: PyTree) -> None:
        """Go on with what was kept."""
        self.play, trace = kept
        self.trace = np.asarray(trace).tobytes()

    @property
    def model(self) -> np.ndarray:
        """The last model."""
        return np.asarray(self.play.carry.w)

    @property
    def nu(self) -> np.ndarray:
        """The multipliers of the coupled rows."""
        own = spine.server_multipliers(self.algorithm, self.terms, self.play.carry)
        return np.asarray(own.get("coupled", np.zeros(layout.vector(self.terms.rows[2]).shape)))
