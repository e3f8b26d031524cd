"""A server that sees masked sums alone: the same rounds as `ServerSession`, with two messages to each site."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack, write_whole
from foedus.base.pytrees import PyTree
from foedus.certificate.measure import SitePart
from foedus.certificate.summed import SummedPart, summed_part
from foedus.federation import evaluating, layout, packing, products
from foedus.federation.exchange import HEADERS, AskSites, Exchange, LeftOut, Paused
from foedus.federation.flare.post import Post
from foedus.federation.masked_exchange import MaskedExchange
from foedus.federation.monitor import RunMonitor
from foedus.federation.order import Order, Patience, Result, without
from foedus.federation.preparation import Request, prepare
from foedus.federation.receipts import Receipts
from foedus.federation.rounds import Play
from foedus.federation.secure_check import FaultSearch, Sum
from foedus.federation.server import PlayRound, ServerSession
from foedus.numerics.interpreter.dispatch import jit_if_many
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.constrained import tolerances
from foedus.protocol.participation import Fraction
from foedus.protocol.summing import SumPresent
from foedus.runtime import spine
from foedus.statistics import rates
from foedus.statistics.evaluate import Evaluation, evaluation_of_sum, noisy_evaluation_of_sum
from foedus.statistics.rates import Decision, RateTerm
from foedus.sums.masking import check_clipped, check_everybody, masking_of

FILE = "left-out.npz"


class Departures:
    """The sites that have left a run, in the run's folder at the server."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / FILE
        self.reasons: dict[str, str] = {}  # by the transport's name of a site
        self.refusals: list[str] = []
        self.history: dict[str, np.ndarray] = {}
        self.names: dict[str, str] = {}  # the problem's name of a site
        if self.path.exists():
            arrays, note = unpack(self.path.read_bytes())
            self.w = arrays.pop("w")
            self.history = {name.removeprefix("history."): values for name, values in arrays.items()}
            self.reasons, self.refusals, self.names = note["reasons"], note["refusals"], note["names"]

    def add(self, order: Order, wrong: LeftOut, refusals: list[str]) -> None:
        """Note that sites have left, and keep it on the disk; raise where too few would be left."""
        names = {site: order.names[order.sites.index(site)] for site in wrong.sites}
        if len(order.sites) - len(names) < 2:
            words = ", ".join(repr(name) for name in names.values())
            raise FoedusError(f"client {words} would be left out {wrong.sentence}; one site alone is no federation.")
        self.reasons |= dict.fromkeys(wrong.sites, wrong.sentence)
        self.names |= names
        self.refusals += refusals
        self.w, self.history = wrong.w, dict(wrong.history)
        arrays = {"w": self.w} | {f"history.{column}": values for column, values in self.history.items()}
        write_whole(self.path, pack(arrays, {"reasons": self.reasons, "refusals": self.refusals, "names": self.names}))

    def apply(self, order: Order) -> Order:
        """Return the order without those who have left."""
        for site in self.reasons:
            if site in order.sites:
                order = without(order, site, self.w)
        return order

    def complete(self, result: Result) -> None:
        """Write into a result who has left, and over whom its certificate is."""
        result.left_out = {self.names[site]: why for site, why in self.reasons.items()}
        result.refused = [*self.refusals, *result.refused]
        end = result.conclusion
        result.conclusion = replace(end, certificate=replace(end.certificate, without=tuple(result.left_out)))


@jit_if_many("algorithm", "terms", "phase")
def aggregate_sum(
    algorithm: Algorithm, terms: Terms, phase: int, play: Play, total: PyTree, here: Array
) -> tuple[Play, dict[str, Array]]:
    """Return the state after a round whose replies are there as their sum alone, and its record."""
    present = SumPresent.of(jnp.sum(here))
    carry = spine.advance(algorithm, terms, algorithm.kinds[phase], play.carry, total, present, sure=False)
    return Play(carry, jnp.where(here, play.carry.round, play.last)), dict(algorithm.report(carry.server))


class SecureServerSession(ServerSession):
    """The server's side of a run in which it sees masked sums alone."""

    def _statement(self) -> Json:
        return super()._statement() | {"secure": True}

    def _join(self) -> dict[str, set[int]]:
        order = self.order
        self.masking = masking_of(order.algorithm, order.terms)
        if self.holdout.evaluates:
            self.exchange.most = max(
                self.exchange.most, packing.size_of(evaluating.masked_shapes(order.terms)) + HEADERS
            )
        self.exchange.most *= 3  # vectors of two words a number, with shares
        self.traffic = tuple(
            self.masking.traffic(packing.size_of(down), _count(up), order.terms.clients)
            for down, up in zip(self.messages, self.replies, strict=True)
        )
        self.sums = MaskedExchange(order.sites, self.exchange, self.patience)
        self.fault_search = FaultSearch(order, self.masking, self.exchange)
        return super()._join()

    def _player(self) -> PlayRound:
        return self._masked_round

    def _masked_round(self, at: Play) -> tuple[Play, dict[str, object]]:
        """Play one round; a sum that cannot be unmasked is as a round without answers."""
        order, carry = self.order, at.carry
        round, phase = int(carry.round), int(order.algorithm.phase(carry.server))
        is_asked, is_lost = self._draws(carry)
        message = self.rounds.broadcast(
            order.algorithm, order.terms, phase, carry.server, self.key, carry.round, self.uids
        )
        message = jax.tree.map(np.asarray, message)
        last = np.asarray(at.last)
        messages: dict[str, tuple[Json, bytes]] = {}
        for i, site in enumerate(order.sites):
            if is_asked[i]:
                header = self.exchange.header("round") | {"round": round, "phase": phase, "since": int(last[i])}
                messages[site] = (header, packing.to_bytes(spine.message_for(message, i), self.messages[phase]))
        least = len(messages) if self.patience.minimum is None else min(len(messages), self.patience.minimum)
        losses = frozenset(site for site, gone in zip(order.sites, is_lost, strict=True) if gone)
        answers, requests = len({*messages} - losses), len(messages)
        words, survivors = None, ()
        if self.masking.enough(answers, requests):
            words, survivors = self.sums.add_up(
                "round", round, messages, self.masking.size(self.replies[phase]), least, number=round, losses=losses,
                on_header=self._note_releases,
            )  # fmt: skip
        if words is not None:
            kind, layout = order.algorithm.kinds[phase], self.replies[phase]
            new = Sum(round, kind, layout, spine.message_for(message, 0), survivors, words)
            self.fault_search.check(new, requests, self.sums.epoch)
        here = np.array([site in survivors for site in order.sites])
        blank = np.zeros(self.masking.size(self.replies[phase]), np.int64)
        total, _, broken_count = self.masking.tree_of(blank if words is None else words, self.replies[phase])
        after, report = aggregate_sum(order.few)(order.algorithm, order.terms, phase, at, total, here)
        if broken_count:
            after = replace(at, carry=replace(carry, round=carry.round + 1, finite=jnp.zeros((), bool)))
        record = {"phase": phase, "asked": len(messages), "answered": int(here.sum())} | report | self.release_counts
        return after, record

    def _measurement(self, at: Play, nu: np.ndarray) -> SitePart | SummedPart | list[str]:
        order, terms = self.order, self.order.terms
        if self.release_counts:  # with noise nobody measures: the figures would be exact
            return list(order.names)
        last = np.asarray(at.last)
        plan = (layout.vector(terms.dim), layout.vector(terms.rows[2]))
        payload = packing.to_bytes((np.asarray(at.carry.w), nu), plan)
        messages = {
            site: (self.exchange.header("measure") | {"since": int(last[i])}, payload)
            for i, site in enumerate(order.sites)
        }
        measuring, eps2 = self.masking.measuring, tolerances(order.algorithm)[1]
        parts = layout.parts(terms, self.party)
        shapes = jax.eval_shape(lambda part: summed_part(terms, part, eps2, self.party), parts)
        words, _ = self.sums.add_up(
            "measure", order.max_rounds, messages, measuring.size(shapes), len(messages), number=None
        )
        if words is None:
            raise Paused("the sum of the measuring round could not be unmasked")
        total, clip_count, broken_count = measuring.tree_of(words, shapes)
        check_clipped(measuring, clip_count)
        return jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), total) if broken_count else total

    def sum_of(
        self, ask: str, number: int, messages: dict[str, tuple[Json, bytes]], plan: jax.ShapeDtypeStruct
    ) -> np.ndarray:
        measuring, round = self.masking.measuring, self.order.max_rounds + number
        words, _ = self.sums.add_up(ask, round, messages, measuring.size(plan), len(messages), number=None)
        if words is None:
            raise Paused(f"the sum of {ask!r} could not be unmasked")
        total, clip_count, broken_count = measuring.tree_of(words, plan)
        check_clipped(measuring, clip_count)
        return np.full_like(total, np.nan) if broken_count else total

    def _decision(self, w: np.ndarray) -> Decision:
        """Return the threshold, from sums over sites: how many of them a proposal is too much for."""
        order, measuring = self.order, self.masking.measuring
        payload = packing.to_bytes(w, layout.vector(order.terms.dim))
        shapes, numbers = {"rows": layout.vector(2)}, itertools.count(order.max_rounds + products.LAST)

        def total(term: RateTerm, what: str, cut: float) -> tuple[int, int]:
            question = {"type": term.name, "what": what, "cut": rates.text_of(cut)}
            messages = dict.fromkeys(order.sites, (self.exchange.header(evaluating.RATE) | question, payload))
            words, _ = self.sums.add_up(
                evaluating.RATE, next(numbers), messages, measuring.size(shapes), len(messages), number=None
            )
            if words is None:
                raise Paused("a sum of the sites' answers about a threshold could not be unmasked")
            tree, clip_count, broken_count = measuring.tree_of(words, shapes)
            first, second = np.rint(tree["rows"])
            if clip_count or broken_count or not (0 <= first < 2**53 and 0 <= second < 2**53):
                raise Paused("the sum of the sites' answers about a threshold is no number of rows")
            return int(first), int(second)

        return rates.decide_by_sums(self.holdout.rates, len(order.sites), total)

    def _evaluation(self, w: np.ndarray, decision: Decision | None) -> Evaluation | None:
        """Return the figures over all rows; None, with a line in the log, where the sum is none of figures."""
        order, terms = self.order, self.order.terms
        payload = packing.to_bytes(w, layout.vector(terms.dim))
        header = self.exchange.header(evaluating.EVALUATE)
        if decision is not None:
            header |= {"cut": rates.text_of(decision.cut)}
        messages = dict.fromkeys(order.sites, (header, payload))
        measuring, noise = self.masking.measuring, self.holdout.noise
        shapes = evaluating.masked_shapes(terms) if noise is None else evaluating.shapes(terms, noise)
        words, survivors = self.sums.add_up(
            evaluating.EVALUATE, order.max_rounds + 1, messages, measuring.size(shapes), len(messages), number=None
        )
        if words is None:
            raise Paused("the sum of the sites' evaluations could not be unmasked")
        total, clip_count, broken_count = measuring.tree_of(words, shapes)
        try:
            check_clipped(measuring, clip_count)
            if broken_count:
                raise FoedusError(f"{broken_count} of the sites have figures that are not finite.")
            if noise is not None:
                return noisy_evaluation_of_sum(terms, total, len(survivors), noise, decision)
            return evaluation_of_sum(terms, list(order.names), total, decision)
        except FoedusError as error:
            self.note(f"the model is not evaluated: {error}")
            return None


def _count(tree: PyTree) -> int:
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(tree))


def session_of(
    order: Order,
    folder: Path,
    ask: AskSites,
    patience: Patience | None = None,
    note: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
    monitor: RunMonitor | None = None,
    post: Post | None = None,
    history: dict[str, np.ndarray] | None = None,
) -> ServerSession:
    """Return the server's session for an order: one that sees replies, or one that sees masked sums."""
    session = SecureServerSession if order.secure else ServerSession
    return session(order, folder, ask, patience, note, should_stop, monitor, post, history)


@float64()
def play(
    work: Order | Request,
    folder: Path,
    ask: AskSites,
    patience: Patience,
    note: Callable[[str], None],
    should_stop: Callable[[], bool],
    monitor: RunMonitor | None = None,
    post: Post | None = None,
) -> Result:
    """Play an order to its end; a request first becomes one by preparing the data together with the sites.

    Where a site has to be left out, the others go on from the last model, with terms for as many as they are.
    """
    rules = None
    if isinstance(work, Order):
        order = work
    else:
        if work.plan.secure:
            check_everybody(work.plan.algorithm(len(work.sites)), Fraction(), len(work.sites), patience.minimum)
        names = {site: site for site in work.sites}
        receipts = Receipts(Path(folder).parent)
        try:
            order, rules = prepare(work, Exchange(work.run, names, ask, patience, note, should_stop, receipts))
        finally:
            receipts.save()
    if order.secure:
        check_everybody(order.algorithm, order.participation, order.terms.clients, patience.minimum)
    departures = Departures(folder)
    order = departures.apply(order)
    while True:
        session = session_of(order, folder, ask, patience, note, should_stop, monitor, post, departures.history)
        try:
            result = session.play()
            break
        except LeftOut as wrong:
            for site in wrong.sites:
                note(f"client {session.client[site]!r} is left out {wrong.sentence}")
            departures.add(order, wrong, session.exchange.refusals)
            order = departures.apply(order)
    departures.complete(result)
    result.rules = None if rules is None else rules.to_json()
    return result
