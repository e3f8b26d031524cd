"""Rounds that do not wait for the slowest (`foedus/runtime/clock.py` says whom they wait for, and how long).

A site that owes an answer is not asked again until the answer has arrived. Where the algorithm says how (`Buffered`)
and `late` is "next", a late answer counts from the round in which it arrives until the site's next one; where it is
"weighted", it counts in that round alone, and less the older it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from foedus.base.pytrees import PyTree
from foedus.federation.rounds import TIMES, Collected, Rounds
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.buffered import Buffered, staleness_weight
from foedus.runtime import clock, spine


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def caught_up(
    algorithm: Algorithm, terms: Terms, phase: int, server: PyTree, message: PyTree, reply: PyTree, weight: float
) -> PyTree:
    """Return a late reply in the form in which it counts now."""
    kind = algorithm.kinds[phase]
    assert isinstance(kind, Buffered)
    return kind.catch_up(terms, server, message, reply, jnp.asarray(weight))


@dataclass
class Debt:
    """An answer that a site owes: to which request and round, and the message it was sent; later also its reply."""

    ticket: int
    round: int
    phase: int
    message: PyTree
    time: float  # when it was asked
    reply: PyTree = None


class QuorumRounds(Rounds):
    """The rounds of a run with a quorum, over a post that gives out answers as they arrive."""

    def _begin(self) -> None:
        self.debts: dict[str, Debt] = {}
        self.memory: dict[int, Debt] = {}  # each client's last reply, where it stands until the next
        self.since_everybody = 0  # rounds since one that waited for all

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
        """Ask those who owe nothing, and go on when a quorum has answered and its time is over."""
        assert self.post is not None
        quorum, sites = self.patience.quorum or 1.0, self.order.sites
        need, tries = clock.quorum_count(quorum, len(indices)), 0
        uses_late = self.patience.late != "drop" and isinstance(self.order.algorithm.kinds[phase], Buffered)
        self.arrivals = set()
        while True:
            usual = {i: self._usual(i, phase) for i in indices}
            times = [time for time in usual.values() if time is not None]
            is_due = len(times) < len(indices) or self.since_everybody + 1 >= clock.period(times, quorum)
            everybody = is_due and not self.debts
            limit = min(clock.deadline(times, quorum), self.patience.timeout) if times else self.patience.timeout
            in_time = {i for i, time in usual.items() if time is None or time <= limit}
            limit = self.patience.timeout if everybody else limit
            idle = [i for i in indices if i not in out.rows and sites[i] not in self.debts]
            # an answer that would not count is not asked for
            idle = [i for i in idle if everybody or uses_late or i in in_time]
            ticket = self.post.send(seal(idle)) if idle else -1
            for i in idle:
                self.debts[sites[i]] = Debt(ticket, round, phase, spine.message_for(message, i), self.post.now())
            wait = {i for i in idle if everybody or i in in_time}
            if self._gather(out, ticket, wait, limit, need, uses_late):
                continue
            self.since_everybody = 0 if everybody else self.since_everybody + 1
            if len(out.rows | self.arrivals) >= need or out.wild >= len(indices) > 0:
                break
            tries += 1
            self.debts.clear()  # whoever is silent for so long is asked anew
            self._check_tries(tries, [i for i in indices if i not in out.rows], round)
        for i in self._judge(out, phase, message, set(out.rows)):
            self.memory.pop(i, None)
        counting = {*indices} & (self.memory.keys() if self.patience.late == "next" else self.arrivals)
        for i in counting - out.rows if uses_late else ():
            if self.memory[i].phase == phase:
                self._place_late(out, server, i, self.memory[i], round)

    def _gather(self, out: Collected, ticket: int, wait: set[int], limit: float, need: int, uses_late: bool) -> bool:
        """Take answers until all are there that are waited for, or the deadline is over and a quorum has answered.

        Returns whether a site is free again that has to be asked, as there is no quorum without it.
        """
        assert self.post is not None
        began = self.post.now()
        while not self.should_stop():
            now, is_quorum = self.post.now() - began, len(out.rows | self.arrivals) >= need
            if (is_quorum and (not wait or now >= limit)) or now >= self.patience.timeout:
                return False
            answer = self.post.take(max(0.0, min((limit if is_quorum else self.patience.timeout) - now, 1.0)))
            debt = None if answer is None else self.debts.get(answer.site)
            if answer is None or debt is None or debt.ticket != answer.ticket:
                continue
            del self.debts[answer.site]
            i = self.index[answer.site]
            is_late = debt.ticket != ticket
            target = Collected(self.plans[debt.phase].stack(len(self.order.sites))) if is_late else out
            self._put(target, i, answer.content, debt.round, debt.phase, answer.time - debt.time)
            wait.discard(i)
            if is_late:
                self._judge(target, debt.phase, debt.message, set(target.rows))
            if uses_late and i in target.rows:
                debt.reply, self.memory[i] = target.stack.row(i), debt
                self.arrivals |= {i} if is_late else set()
            elif is_late and len(out.rows) + len(wait) < need:
                return True
        return False

    def _place_late(self, out: Collected, server: PyTree, i: int, debt: Debt, round: int) -> None:
        """Let a client's last reply count, which is to an earlier message."""
        order = self.order
        weight = staleness_weight(round - debt.round) if self.patience.late == "weighted" else 1.0
        reply = caught_up(order.algorithm, order.terms, debt.phase, server, debt.message, debt.reply, weight)
        out.stack.place(i, reply)
        out.rows.add(i)
        out.about[i] = debt.round

    def _usual(self, i: int, phase: int) -> float | None:
        """Return a site's usual time in a kind of round: the median of its last; None before its first answer.

        The first answer in each kind takes longer, for the site compiles its program then, and is soon left out.
        """
        times = self.times.get((self.order.sites[i], phase), [])
        return float(np.median((times[1:] or times)[-TIMES:])) if times else None
