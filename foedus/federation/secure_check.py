"""Wrong sites where the server sees masked sums alone: a sum that cannot be true, and the group that it comes from.

The rules for single replies (`exchange.py`) hold for a mean over sites too: a mean of convex functions is convex, and
one of replies within a norm is within it. A sum that breaks one of them, or in which a site says that its numbers are
not finite, comes from at least one wrong site. Where the mean over a set breaks a rule, that over one of its halves
does; so the sums over halves (`foedus/sums/halves.py`) lead to a group, and no further than the sites allow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from foedus.base.pytrees import PyTree
from foedus.federation import packing
from foedus.federation.exchange import (
    POINTS,
    Exchange,
    Offence,
    Paused,
    check_bound,
    check_curvature,
    check_pair,
    norm_of,
)
from foedus.federation.order import Order, Patience
from foedus.privacy.releasing import sound_noise
from foedus.protocol.accountable import Account, Accountable, is_convex
from foedus.protocol.algorithm import Kind
from foedus.sums.halves import CheckOrder, HalvesSum, halves
from foedus.sums.masking import Masking
from foedus.sums.messages import MaskedVector, Reveal
from foedus.sums.questions import Coding, check_clipped
from foedus.sums.server import Unfinished

Halves = tuple[np.ndarray, np.ndarray]
"""The sums over the first half of a set and over the second."""

CHECK, CHECK_REVEAL = "check", "check-reveal"  # the kinds of messages


@dataclass(frozen=True)
class Sum:
    """The sum of a round over everybody who was asked, and what the sites were asked."""

    round: int
    kind: Kind
    coding: Coding
    message: PyTree
    sites: tuple[str, ...]
    words: np.ndarray


@dataclass(frozen=True)
class Finding:
    """A sum that cannot be true: why, the group that it comes from, and why the search went no further."""

    why: str
    group: tuple[str, ...]
    end: str


class SumReferee:
    """Holds the sums of a run against each other."""

    def __init__(self, order: Order, masking: Masking, patience: Patience):
        self.terms, self.masking, self.patience = order.terms, masking, patience
        self.convex = is_convex(order.terms)
        self.has_convex_rows = self.convex and all(c.convex for c in order.terms.constraints)
        self.resolution = 2.0 ** -(masking.point.bits + 1)
        self.sums: dict[int, Sum] = {}
        self.accounts: dict[int, Account | None] = {}

    def judge(self, new: Sum) -> tuple[str, tuple[int, ...]] | None:
        """Return why a sum cannot be true, and the rounds that show it; None where nothing speaks against it."""
        why, account = self._examine(new, new.words, len(new.sites))
        rounds = (new.round,)
        for old in [*self.sums.values()][::-1]:
            if why is None and old.sites == new.sites and self.convex:
                why, rounds = (
                    _contradiction(self.accounts.get(old.round), account, self.resolution),
                    (old.round, new.round),
                )
        self.sums[new.round], self.accounts[new.round] = new, account
        if why is not None:
            return why, rounds
        while len(self.sums) > POINTS:
            del self.accounts[min(self.sums)], self.sums[min(self.sums)]
        return None

    def verdict(self, rounds: tuple[Sum, ...], words: list[np.ndarray], count: int) -> str | None:
        """Return why the sums of these rounds over so many sites cannot be true, or None."""
        results = [self._examine(one, own, count) for one, own in zip(rounds, words, strict=True)]
        why = next((why for why, _ in results if why is not None), None)
        if why is None and self.convex and len(results) == 2:
            return _contradiction(results[0][1], results[1][1], self.resolution)
        return why

    def _examine(self, one: Sum, words: np.ndarray, count: int) -> tuple[str | None, Account | None]:
        """Why a sum cannot be true by itself, and what it says of the mean function, where it says that."""
        total, clip_count, broken_count = one.coding.tree_of(words)
        if broken_count:
            return f"{broken_count} of their replies are not finite", None
        if clip_count:
            return f"{clip_count} of their numbers are beyond the range of masked sums", None
        account = self._account(one, jax.tree.map(lambda leaf: np.asarray(leaf) / count, total))
        if account is None:
            return None, None
        try:
            check_bound(norm_of(account.size), self.patience)
            check_curvature(account, self.has_convex_rows, self.resolution)
        except Offence as no:
            return f"of their mean, {no}", None
        return None, account

    def _account(self, one: Sum, mean: PyTree) -> Account | None:
        return one.kind.account(self.terms, one.message, mean) if isinstance(one.kind, Accountable) else None

    def find(self, why: str, rounds: tuple[int, ...], ask: Callable[[CheckOrder, int], Halves | str]) -> Finding:
        """Follow a sum that cannot be true into the halves of its sites, as far as they let it be followed.

        `ask` returns the sums over both halves of a set, or why there are none.
        """
        sums = tuple(self.sums[number] for number in rounds)
        node, path, words = sums[-1].sites, "", [one.words for one in sums]
        size = sum(one.words.size for one in sums)
        while len(node) // 2 > self.masking.least_others:
            answer = ask(CheckOrder("", 0, rounds, 0, sums[-1].sites, path), size)
            if isinstance(answer, str):
                return Finding(why, node, answer)
            parts = [np.split(total, np.cumsum([one.words.size for one in sums])[:-1]) for total in answer]
            if any(np.any(first + second != own) for first, second, own in zip(*parts, words, strict=True)):
                return Finding("one of them has answered the check with other numbers than the round", node, "")
            guilty = [
                (self.verdict(sums, part, len(half)), half) for part, half in zip(parts, halves(node), strict=True)
            ]
            step = next((k for k, (verdict, _) in enumerate(guilty) if verdict is not None), None)
            if step is None:  # what the whole set shows is too small to be seen in a half
                return Finding(why, node, "each half by itself could be true")
            node, path, words, why = guilty[step][1], f"{path}{step}", parts[step], str(guilty[step][0])
        return Finding(why, node, "smaller groups would be too small for a masked sum")


def _contradiction(first: Account | None, second: Account | None, resolution: float) -> str | None:
    """Why two means cannot be of one convex function."""
    if first is None or second is None:
        return None
    try:
        check_pair(first, second, resolution)
    except Offence as no:
        return f"of their mean, {no}"
    return None


class FaultSearch:
    """Checks the sums of a run; one that cannot be true pauses it, with the group that it comes from.

    Nobody is left out: sums over the others would be over another set, and tell about the group.
    """

    def __init__(self, order: Order, masking: Masking, exchange: Exchange):
        self.order, self.masking, self.exchange = order, masking, exchange
        self.patience = exchange.patience
        self.referee = SumReferee(order, masking, self.patience)

    def check(self, new: Sum, requests: int, epoch: int) -> None:
        """Raise where a sum cannot be true; where nobody's numbers are finite, the run diverges, and that is no lie.

        Args:
            new: the sum.
            requests: how many sites were asked.
            epoch: that of the sites' keys.
        """
        _, clip_count, broken_count = new.coding.tree_of(new.words)
        if broken_count >= len(new.sites) or (doubt := self.referee.judge(new)) is None:
            return
        if len(new.sites) < requests:  # sites look at groups of those sums alone in which nobody was missing
            finding = Finding(doubt[0], new.sites, "a site was missing in this round")
        elif sound_noise(self.order.algorithm) is not None:
            finding = Finding(doubt[0], new.sites, "a sum over fewer sites would have a part of the noise alone")
        else:
            finding = self.referee.find(*doubt, lambda order, size: self._ask(order, size, epoch))
        words = _words(finding, self._names(finding.group))
        sentence = f"the sum of round {new.round} cannot be true: {words}"
        self.exchange.refusals.append(sentence)
        self.exchange.note(sentence)
        if clip_count:
            check_clipped(self.masking.point, clip_count, f" They come from {self._names(finding.group)}.")
        raise Paused(sentence)

    def _ask(self, order: CheckOrder, size: int, epoch: int) -> Halves | str:
        order = replace(order, run=self.order.run, epoch=epoch)
        return ask_halves(order, size, self.exchange)

    def _names(self, group: tuple[str, ...]) -> str:
        return "clients " + ", ".join(repr(self.exchange.client[site]) for site in group)


def _words(finding: Finding, names: str) -> str:
    end = f" ({finding.end})" if finding.end else ""
    return f"one or more of {names} are wrong: {finding.why}{end}"


def ask_halves(order: CheckOrder, size: int, exchange: Exchange) -> Halves | str:
    """Return the sums over both halves of a check's set; a sentence where a site refuses, or does not answer."""
    work = HalvesSum(order, size)

    def silent(ask: str, messages: Mapping[str, bytes], take: Callable[[str, bytes], None]) -> str | None:
        left = exchange.collect(ask, messages, lambda site, header, content: take(site, content))
        return (
            None
            if not left
            else f"client {exchange.client[left[0]]!r} lets no smaller group be summed{exchange.why(left[0])}"
        )

    asks = dict.fromkeys(order.node, packing.seal(exchange.header(CHECK), order.to_bytes()))
    if no := silent(CHECK, asks, lambda site, content: work.work.take(site, MaskedVector.from_bytes(content))):
        return no
    header = exchange.header(CHECK_REVEAL)
    asks = {site: packing.seal(header, one.to_bytes()) for site, one in work.work.reveal_orders().items()}
    if no := silent(CHECK_REVEAL, asks, lambda site, content: work.work.take_reveal(site, Reveal.from_bytes(content))):
        return no
    try:
        return work.totals()
    except Unfinished as error:
        return str(error).removesuffix(".")
