"""Wrong sites where the server sees masked sums alone: a sum that cannot be true pauses the run.

The rules for single replies (`exchange.py`) hold for a mean over sites too: a mean of convex functions is convex, and
one of replies within a norm is within it. A sum that breaks one of them, or in which a site says that its numbers are
not finite, comes from at least one wrong site. Nobody looks which one: sums over fewer sites would tell about them.
"""

from collections import deque
from dataclasses import dataclass

import jax
import numpy as np

from foedus.base.pytrees import PyTree
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
from foedus.federation.order import Order
from foedus.protocol.accountable import Account, Accountable, is_convex
from foedus.protocol.algorithm import Kind
from foedus.sums.masking import Masking
from foedus.sums.questions import Coding, check_clipped


@dataclass(frozen=True)
class Sum:
    """The sum of a round over everybody who was asked, and what the sites were asked."""

    round: int
    kind: Kind
    coding: Coding
    message: PyTree
    sites: tuple[str, ...]
    words: np.ndarray


class SumReferee:
    """Holds the sums of a run against each other; one that cannot be true pauses it.

    Nobody is left out: sums over the others would be over another set, and tell about the one that is left out.
    """

    def __init__(self, order: Order, masking: Masking, exchange: Exchange):
        self.order, self.masking, self.exchange = order, masking, exchange
        self.convex = is_convex(order.terms)
        self.has_convex_rows = self.convex and all(c.convex for c in order.terms.constraints)
        self.resolution = 2.0 ** -(masking.point.bits + 1)
        self.accounts: deque[tuple[tuple[str, ...], Account]] = deque(maxlen=POINTS)

    def check(self, new: Sum) -> None:
        """Raise where a sum cannot be true; where nobody's numbers are finite, the run diverges, and that is no lie."""
        total, clip_count, broken_count = new.coding.tree_of(new.words)
        if broken_count >= len(new.sites) or (why := self._doubt(new, total, clip_count, broken_count)) is None:
            return
        names = "clients " + ", ".join(repr(self.exchange.client[site]) for site in new.sites)
        sentence = f"the sum of round {new.round} cannot be true: one or more of {names} are wrong: {why}"
        self.exchange.refusals.append(sentence)
        self.exchange.note(sentence)
        if clip_count:
            check_clipped(self.masking.point, clip_count)
        raise Paused(sentence)

    def _doubt(self, new: Sum, total: PyTree, clip_count: int, broken_count: int) -> str | None:
        """Why a sum cannot be true, by itself or beside earlier ones."""
        if broken_count:
            return f"{broken_count} of their replies are not finite"
        if clip_count:
            return f"{clip_count} of their numbers are beyond the range of masked sums"
        mean = jax.tree.map(lambda leaf: np.asarray(leaf) / len(new.sites), total)
        account = new.kind.account(self.order.terms, new.message, mean) if isinstance(new.kind, Accountable) else None
        if account is None:
            return None
        try:
            check_bound(norm_of(account.size), self.exchange.patience)
            check_curvature(account, self.has_convex_rows, self.resolution)
            for sites, earlier in self.accounts if self.convex else ():
                if sites == new.sites:
                    check_pair(earlier, account, self.resolution)
        except Offence as no:
            return f"of their mean, {no}"
        self.accounts.append((new.sites, account))
        return None
