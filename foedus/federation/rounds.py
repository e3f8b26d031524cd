"""Rounds of a federated run at the server: who is asked, whose answers arrive in time, and what counts of the others.

The draws (who is asked, whose reply is lost) are those of a simulation with the same seed. A reply that the draws call
lost is asked for all the same and then left out.
A round waits for everybody; those that do not wait for the slowest are in `quorum.py`. Replies that cannot be true are
refused (`exchange.py`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree, state, strong
from foedus.federation import packing
from foedus.federation.exchange import Exchange, LeftOut, Paused, Referee
from foedus.federation.flare.post import Post
from foedus.federation.names import STARTED
from foedus.federation.order import Order, Patience
from foedus.numerics.interpreter.dispatch import jit_if_many
from foedus.numerics.interpreter.random_bits import random_key
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import Algorithm, Present
from foedus.protocol.buffered import LatePresent
from foedus.protocol.participation import LOSE, SERVER, Participation, Schedule, client_uniforms, round_key
from foedus.runtime import spine
from foedus.runtime.spine import Carry

TIMES = 7  # of a site's last answers, by whose median its usual time is known
LARGEST_WHOLE = 2**53 - 1  # the largest whole number below which all are floating-point numbers


@state
class Play:
    """The state of a run between two rounds, at the server of a federation."""

    carry: Carry
    last: Array  # for each client, the round of the last reply that was accepted


@jit_if_many("algorithm", "terms")
def first_play(algorithm: Algorithm, terms: Terms, w0: Array, own: Data | None) -> Play:
    """Return the state before the first round."""
    return Play(strong(spine.first(algorithm, terms, w0, own)), jnp.full(terms.clients, STARTED))


@jit_if_many("algorithm", "terms", "phase")
def broadcast(
    algorithm: Algorithm, terms: Terms, phase: int, server: PyTree, key: Array | None, round: Array, uids: Array
) -> PyTree:
    """Return the message of this round; without a key nobody draws, and what would depend on a draw is NaN."""
    no_draws = jnp.full(terms.clients, jnp.nan)
    draws = no_draws if key is None else client_uniforms(round_key(key, SERVER, round), uids)
    return algorithm.kinds[phase].broadcast(terms, server, draws)


@jit_if_many("algorithm", "terms", "phase")
def aggregate(
    algorithm: Algorithm, terms: Terms, phase: int, play: Play, replies: PyTree, here: Array, late: PyTree, about: Array
) -> tuple[Play, dict[str, Array]]:
    """Return the state after a round, and its record; a round that nobody answered changes nothing.

    `about` is for each client the round that its reply is to; `late` is () where all are to this one.
    """
    everyone = jnp.arange(terms.clients)
    present = Present(everyone, here) if isinstance(late, tuple) else LatePresent(everyone, here, late)
    carry = spine.advance(algorithm, terms, algorithm.kinds[phase], play.carry, replies, present, sure=False)
    return Play(carry, jnp.where(here, about, play.last)), dict(algorithm.report(carry.server))


@jax.jit
def asked_clients(participation: Participation, key: Array, round: Array, uids: Array) -> Array:
    """Return who is asked in a round; (clients,) booleans."""
    n = uids.shape[0]
    return jnp.zeros(n, bool).at[participation.choose(key, round, uids)].set(True, mode="drop")


@jax.jit
def loss_draws(key: Array, round: Array, uids: Array) -> Array:
    """Return the uniform numbers that decide whose reply is lost."""
    return client_uniforms(round_key(key, LOSE, round), uids)


@dataclass
class Collected:
    """The replies of one round: stacked rows, who is in them, and which of them are late."""

    stack: packing.ReplyStack
    rows: set[int] = field(default_factory=set)
    about: dict[int, int] = field(default_factory=dict)  # the round of a late reply, and of one that stands
    wild: int = 0  # replies that were refused because they were not finite


class Rounds:
    """The rounds of one run; `play` plays one and returns the state after it, with its record."""

    def __init__(
        self,
        order: Order,
        exchange: Exchange,
        messages: list[PyTree],
        replies: list[PyTree],
        statements: Mapping[str, Json],
        releases: dict[str, np.ndarray],
        post: Post | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.order, self.exchange, self.messages, self.statements = order, exchange, messages, statements
        self.plans = [packing.ReplyPlan(reply) for reply in replies]
        self.release_counts, self.post, self.should_stop = releases, post, should_stop
        self.key, self.uids, self.is_verified = random_key(order.seed), jnp.asarray(order.uids), order.verified
        self.broadcast, self.aggregate = broadcast(order.few), aggregate(order.few)
        self.index = {site: i for i, site in enumerate(order.sites)}
        self.misses = dict.fromkeys(order.sites, 0)
        self.greeting_times = dict.fromkeys(order.sites, 0.0)
        self.times: dict[tuple[str, int], list[float]] = {}  # of a site's last answers in a kind of round
        self.arrivals: set[int] = set()  # clients whose late replies have arrived in this round
        self.referee = Referee(order.terms, self.patience)
        self.sights: dict[str, Json] = {
            site: {"replies": 0, "faults": 0, "bytes": 0, "time": None, "seconds": None} for site in order.sites
        }
        self._begin()

    def _begin(self) -> None:
        """Prepare what only another way of asking needs."""

    @property
    def patience(self) -> Patience:
        return self.exchange.patience

    def play(self, at: Play) -> tuple[Play, dict[str, object]]:
        """Play one round; return the state after it, and its record."""
        order, n, carry = self.order, self.order.terms.clients, at.carry
        round, phase, message = self.message(carry)
        is_asked, is_lost = self.draws(carry.round)
        indices = [i for i in range(n) if is_asked[i]]
        seal = partial(self._seal, round, phase, message, np.asarray(at.last))
        gathering = Collected(self.plans[phase].stack(n))
        # the run has diverged where nobody's numbers are finite; the NaN of one site alone is that site's fault
        self._ask(gathering, carry.server, round, phase, indices, seal, message)
        here = np.array([i in gathering.rows and not is_lost[i] for i in range(n)])
        answer_count = int(here.sum()) - len({*gathering.about} - self.arrivals)
        about = np.full(n, round)
        late: PyTree = ()
        if self.patience.quorum is not None:
            late = np.zeros(n, bool)
            for i, earlier in gathering.about.items():
                about[i], late[i] = earlier, True
        after, report = self.aggregate(
            order.algorithm, order.terms, phase, at, gathering.stack.tree, here, late, jnp.asarray(about)
        )
        if gathering.wild >= len(indices) > 0:
            after = replace(at, carry=replace(carry, round=carry.round + 1, finite=jnp.zeros((), bool)))
        record: dict[str, object] = {"phase": phase, "asked": int(is_asked.sum()), "answered": answer_count}
        return after, record | report | self.release_counts

    def message(self, carry: Carry) -> tuple[int, int, PyTree]:
        """Return the number and the kind of the next round, and its message."""
        order, phase = self.order, int(self.order.algorithm.phase(carry.server))
        key = None if self.is_verified else self.key
        message = self.broadcast(order.algorithm, order.terms, phase, carry.server, key, carry.round, self.uids)
        return int(carry.round), phase, jax.tree.map(np.asarray, message)

    def draws(self, round: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return who is asked in a round, and whose reply is lost."""
        who, n = self.order.participation, self.order.terms.clients
        if who.size(n) == n and not isinstance(who, Schedule):
            is_asked = np.ones(n, bool)
        else:
            is_asked = np.asarray(asked_clients(who, self.key, round, self.uids))
        is_lost = np.zeros(n, bool)
        if who.dropout > 0:
            is_lost = np.asarray(loss_draws(self.key, round, self.uids)) < who.dropout
        return is_asked, is_lost

    def _seal(self, round: int, phase: int, message: PyTree, last: np.ndarray, indices: list[int]) -> dict[str, bytes]:
        """Return the contents messages of a round; what all sites receive alike is packed once."""
        header = self.exchange.header("round") | {"round": round, "phase": phase}
        same = not any(spine.is_each(node) for node in jax.tree.leaves(message, is_leaf=spine.is_each))
        payload = packing.to_bytes(spine.message_for(message, 0), self.messages[phase]) if same else b""
        contents = {}
        for i in indices:
            if not same:
                payload = packing.to_bytes(spine.message_for(message, i), self.messages[phase])
            contents[self.order.sites[i]] = packing.seal(header | {"since": int(last[i])}, payload)
        return contents

    # --- everybody ---

    def _ask(
        self,
        out: Collected,
        server: PyTree,
        round: int,
        phase: int,
        indices: list[int],
        seal: Callable[[list[int]], dict[str, bytes]],
        message: PyTree,
    ) -> None:
        """Ask until everybody, or `minimum`, has answered; a site that stays silent pauses the run, or is left out."""
        order, tries = self.order, 0
        minimum = len(indices) if self.patience.minimum is None else min(len(indices), self.patience.minimum)
        while True:
            self._probe()  # a site that was given up may be back
            missing = [i for i in indices if i not in out.rows and not self._given_up(order.sites[i])]
            messages = seal(missing)
            began = time.monotonic()
            answers = self.exchange.ask(messages, self.patience.timeout) if messages else {}
            out.wild = 0
            for i in missing:
                self._put(out, i, answers.get(order.sites[i]), round, phase, time.monotonic() - began)
            self._judge(out, phase, message, out.rows & {*missing})
            tries += 1
            if len(out.rows) >= minimum or out.wild >= len(indices) > 0:
                return
            self._check_tries(tries, [i for i in indices if i not in out.rows], round)

    def _check_tries(self, tries: int, missing: list[int], round: int) -> None:
        if tries > self.patience.misses or self.should_stop():
            silent = missing[0]
            why = self.exchange.why(self.order.sites[silent])
            raise Paused(f"client {self.order.names[silent]!r} does not answer in round {round}{why}")

    @property
    def slowest(self) -> float:
        """The usual time of the slowest site, in seconds."""
        return max((float(np.median(times[-TIMES:])) for times in self.times.values()), default=0.0)

    # --- one reply ---

    def _put(self, out: Collected, i: int, raw: object, round: int, phase: int, seconds: float) -> None:
        """Write a site's reply into its row; one that does not fit is refused, by name."""
        site = self.order.sites[i]
        sight = self.sights[site]
        header, payload = self.exchange.open_reply(site, raw, "round", round)
        try:
            if header is not None:
                out.stack.put(i, payload)
                self.note_releases(i, header)
                out.rows.add(i)
                self.misses[site] = 0
                sight |= {"replies": sight["replies"] + 1, "bytes": sight["bytes"] + len(payload), "time": time.time()}
                self.times.setdefault((site, phase), []).append(seconds)
                sight["seconds"] = seconds
                return
        except packing.NotFinite as error:
            self.exchange.refuse(site, str(error))
            out.wild += 1
        except FoedusError as error:
            self.exchange.refuse(site, str(error))
        self.misses[site] += 1
        sight["faults"] += 1

    def _judge(self, out: Collected, phase: int, message: PyTree, new: set[int]) -> set[int]:
        """Refuse the new replies that cannot be true, and return whose; raise LeftOut where a site sent too many."""
        kind = self.order.algorithm.kinds[phase]
        if not isinstance(kind, Accountable):
            return set()
        accounts: dict[int, Account] = {}
        for i in out.rows - out.about.keys():
            account = kind.account(self.order.terms, spine.message_for(message, i), out.stack.row(i))
            if account is not None:
                accounts[i] = account
        verdicts = self.referee.judge({i: one for i, one in accounts.items() if i in new}, accounts)
        for i, why in verdicts.items():
            site = self.order.sites[i]
            out.rows.discard(i)
            self.exchange.refuse(site, why)
            self.misses[site] += 1
            self.sights[site]["faults"] += 1
            if self.referee.is_over(i):
                raise LeftOut(
                    (site,), f"after {self.referee.offences[i]} replies that cannot be true; in the last {why}"
                )
        return {*verdicts}

    def note_releases(self, i: int, header: Json) -> None:
        """Note how often the site says that it has released; the entry of a silent site stays as it was."""
        for column in self.release_counts.values():
            count = header.get("releases")
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= LARGEST_WHOLE:
                raise FoedusError("its reply does not say how often it has released")
            column[i] = count

    def _given_up(self, site: str) -> bool:
        """Return whether a site was silent so often that rounds go on without it."""
        return self.patience.minimum is not None and self.misses[site] >= self.patience.misses

    def _probe(self) -> None:
        """Greet the sites that were given up; one that answers is asked again."""
        now = time.monotonic()
        waits = {site: now - self.greeting_times[site] for site in self.order.sites}
        silent = [s for s in self.order.sites if self._given_up(s) and waits[s] >= self.patience.probe]
        if not silent:
            return
        for site in silent:
            self.greeting_times[site] = now
        header = self.exchange.header("hello")
        messages = {site: packing.seal(header | self.statements[site]) for site in silent}
        answers: Mapping[str, object] = self.exchange.ask(messages, min(1.0, self.patience.timeout))
        for site in silent:
            header, _ = self.exchange.open_reply(site, answers.get(site), "hello", None)
            if header is not None:
                self.misses[site] = 0
