"""A check by halves: where a sum of masked replies cannot be true, in which half of the sites does that begin?

The words that the sites have sent for rounds already summed are summed once more, over each half of the sites apart,
then over the halves of one half, and so on. Every set that is ever summed is a node of ONE tree, which the server does
not choose: its root is the set of the round, and a node's halves are its sites in the order of their names, cut in
the middle. So two sets are one inside the other or have no site in common, and what all the sums together tell is told
by sums over the tree's leaves. A site refuses halves with fewer than `least_others` others, so no leaf is smaller than
any sum that its policy allows.

What a site refuses beside that:
  - rounds that it has not let be summed, or in which a site was missing: only then have all agreed on one root;
  - a path that does not go step by step from the root into the half that the site is in;
  - more checks in a run than `most_checks`; their number is kept over restarts;
  - a reveal, unless every site of the node has masked its words for the very same check: one that refuses stops it.

A site sums the words that it has sent, and computes nothing anew. It is masked with those of its own half alone, so it
cannot change the other half's sum; the shares of its own mask go to both halves.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from foedus.base.errors import FoedusError
from foedus.sums import masks
from foedus.sums.messages import Frame, MaskedVector, Reader, Reveal, RevealOrder
from foedus.sums.server import MaskedSum
from foedus.sums.site import Breach, MaskingSite

CHECK = masks.PROTOCOL + ": a check by halves"
MOST_ROUNDS = 2  # of one check: a value and a gradient contradict each other in pairs
DEEPEST = 64


def halves(node: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the two halves of a set of sites that is in order."""
    return node[: len(node) // 2], node[len(node) // 2 :]


def node_at(sites: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Return the set at the end of a path from the root: '0' is the first half, '1' the second."""
    for step in path:
        sites = halves(sites)[int(step)]
    return sites


@dataclass(frozen=True)
class CheckOrder:
    """The server asks for the sums of rounds over both halves of a set of sites."""

    run: str
    epoch: int
    rounds: tuple[int, ...]
    attempt: int
    sites: tuple[str, ...]  # the root: everybody who was asked in these rounds
    path: str  # from the root to the set whose halves are summed

    def to_bytes(self) -> bytes:
        frame = Frame().text(self.run).number(self.epoch).number(len(self.rounds))
        for number in self.rounds:
            frame.number(number)
        return frame.number(self.attempt).names(self.sites).text(self.path).bytes()

    @staticmethod
    def from_bytes(content: bytes) -> "CheckOrder":
        r = Reader(content)
        run, epoch, count = r.text(), r.number(), r.number()
        if not 1 <= count <= MOST_ROUNDS:
            raise FoedusError(f"a check is about at most {MOST_ROUNDS} rounds.")
        order = CheckOrder(run, epoch, tuple(r.number() for _ in range(count)), r.number(), r.names(), r.text())
        r.end()
        if len(order.path) > DEEPEST or {*order.path} - {"0", "1"}:
            raise FoedusError("the path of a check is a row of 0 and 1.")
        return order

    @property
    def node(self) -> tuple[str, ...]:
        """The set whose halves are summed."""
        return node_at(self.sites, self.path)

    def context(self, roster: bytes) -> bytes:
        """The digest that every key of this check is bound to."""
        return hashlib.sha256(Frame().text(CHECK).content(self.to_bytes()).content(roster).bytes()).digest()


class CheckingSite:
    """A site in the checks of a run; `masking` is its part in the sums that are checked."""

    def __init__(self, masking: MaskingSite, most_checks: int):
        self.masking, self.most_checks = masking, most_checks
        self.paths: dict[tuple[int, ...], str] = {}  # by rounds, the path as far as it was gone
        self.attempts: dict[tuple[tuple[int, ...], str], int] = {}  # by rounds and path, the last one that was masked
        self.order: CheckOrder | None = None
        self.reply: MaskedVector | None = None
        self.share = b""
        self.disclosure: tuple[RevealOrder, Reveal] | None = None

    def vector(self, order: CheckOrder) -> MaskedVector:
        """Return the words of these rounds under masks with the other sites of the own half."""
        if order == self.order and self.reply is not None:
            return self.reply
        site = self.masking
        site.check_epoch(order.run, order.epoch)
        own = self._check(order)
        context = order.context(site.roster)
        keys = {other: masks.pair_keys(site.secrets[other], context) for other in order.node if other != site.site}
        words = np.concatenate([np.frombuffer(site.history[number].words, "<i8") for number in order.rounds])
        secret = masks.new_secret()
        points = {name: number for number, name in enumerate(order.node, start=1)}
        shares = masks.split(secret, list(points.values()), masks.threshold(len(points)))
        envelopes = {
            other: masks.seal_share(pair.seal, context, site.site, other, shares[points[other]])
            for other, pair in keys.items()
        }
        pairs = {other: pair.mask for other, pair in keys.items() if other in own}
        vector = masks.masked(words.astype(np.int64).view(np.uint64), site.site, secret, pairs)
        self._note(order)
        self.order, self.share, self.disclosure = order, shares[points[site.site]], None
        commitment = hashlib.sha256(secret).digest()
        self.reply = MaskedVector(site.site, vector.astype("<u8").tobytes(), commitment, envelopes)
        return self.reply

    def _check(self, order: CheckOrder) -> tuple[str, ...]:
        """Refuse a check that would tell more than it may; return this site's half."""
        site = self.masking
        if len({*order.rounds}) != len(order.rounds) or order.attempt < 0:
            raise Breach("a check names each of its rounds once, and attempts are counted from 0")
        for number in order.rounds:
            if number not in site.history:
                raise Breach(f"round {number} was not summed over all its sites, or is long past; it is not checked")
            if site.history[number].sites != order.sites:
                raise Breach(f"round {number} was summed over another set of sites than the check names")
        node, before = order.node, self.paths.get(order.rounds)
        if site.site not in node:
            raise Breach("the check is about other sites than this one")
        if order.path not in ({""} if before is None else {before, before + "0", before + "1"}):
            raise Breach("a check goes on from the half that was summed last")
        if order.attempt <= self.attempts.get((order.rounds, order.path), -1):
            raise Breach(f"attempt {order.attempt} of this check has been masked already")
        for half in halves(node):
            if len(half) - 1 < site.least_others:
                raise Breach(
                    f"its policy (secure_min) asks for sums with at least {site.least_others} other sites, and half of "
                    f"{len(node)} has fewer"
                )
        return next(half for half in halves(node) if site.site in half)

    def _note(self, order: CheckOrder) -> None:
        """Keep on record that these rounds are checked; refuse where a run has had as many checks as it may."""
        record, name = self.masking.summed, "check-" + "-".join(map(str, order.rounds))
        if name not in record:
            if sum(key.startswith("check-") for key in record) >= self.most_checks:
                raise Breach(f"its policy (secure_checks) allows {self.most_checks} checks in a run")
            record[name] = hashlib.sha256(Frame().names(order.sites).bytes()).hexdigest()
        self.paths[order.rounds] = order.path
        self.attempts[order.rounds, order.path] = order.attempt

    def reveal(self, order: RevealOrder) -> Reveal:
        """Return what takes the masks off the halves' sums: where all sites of the set have masked for this check."""
        if self.disclosure is not None and self.disclosure[0] == order:
            return self.disclosure[1]
        site, check = self.masking, self.order
        site.check_epoch(order.run, order.epoch)
        if check is None or (order.round, order.attempt) != (check.rounds[-1], check.attempt):
            raise Breach("it has masked nothing for this check")
        if self.disclosure is not None or order.survivors != check.node:
            raise Breach("a check is revealed once, over all sites of its set")
        context = check.context(site.roster)
        shares = {site.site: self.share}
        for other in check.node:
            if other == site.site:
                continue
            pair = masks.pair_keys(site.secrets[other], context)
            share = masks.open_share(pair.seal, context, other, site.site, order.shares.get(other, b""))
            if share is None:
                raise Breach(f"what {other!r} has sent was not made for this check")
            shares[other] = share
        self.disclosure = (order, Reveal(site.site, shares, {}))
        return self.disclosure[1]


class HalvesSum:
    """One check at the server: orders out, masked vectors in, reveals in, the sums over both halves out."""

    def __init__(self, order: CheckOrder, size: int):
        self.order = order
        self.work = MaskedSum(order.run, order.epoch, order.rounds[-1], order.attempt, order.node, size)

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of the words over the first half and over the second, as int64."""
        parts: Mapping[str, np.ndarray] = self.work.parts()
        first, second = (sum((parts[s] for s in half), np.zeros(self.work.size, np.uint64)) for half in self._halves)
        return first.view(np.int64), second.view(np.int64)

    @property
    def _halves(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return halves(self.order.node)
