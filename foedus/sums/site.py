"""A site's side of masked sums: fresh keys, one masked vector for a sum, one reveal, nothing for a server that lies.

What a site refuses, whoever asks:
  - keys that are not signed by the certificates of the sites they name, or a roster without its own key;
  - a sum over fewer than `least_others` other sites, or with survivors below the threshold;
  - in a run without noise, a sum over another set of sites than the first one: the difference would be about few;
  - a second vector under the same masks, or for another set of sites in the same round;
  - a second reveal in a round, unless it is the same to the letter;
  - a reveal for which another site has masked under another set, round or attempt than this site was shown, or an
    answer to another question;
  - any further sum after a recovery, until it has new keys.
"""

import hashlib
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from foedus.base.errors import FoedusError
from foedus.sums import masks
from foedus.sums.identity import SiteIdentity, check_note
from foedus.sums.masks import PairKeys, SumContext
from foedus.sums.messages import Frame, KeyNote, MaskedVector, MaskOrder, OpenSum, Reader, Reveal, RevealOrder, Roster
from foedus.sums.questions import LEAST_OTHERS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

ONE_SET = "set"  # in the record of a run without noise: the set of all its sums


@runtime_checkable
class Foreseeing(Protocol):
    """A record of sets that wants to know early over which one a round will be summed, if nobody vanishes."""

    def foresee(self, round: str, digest: str) -> None:
        """Note what will probably be written."""


class Breach(FoedusError):
    """What the server asks for would break the promise of masked sums, so the site does not do it."""


class NoKeys(Breach):
    """The site has no keys with which it could do what is asked; the server can let all sites take new ones."""


@dataclass
class _Masked:
    """A sum for which this site has sent a masked vector."""

    order: MaskOrder
    words: bytes
    reply: MaskedVector
    share: bytes  # the site's own share of its own mask's key
    context: bytes  # the digest that the keys of this sum are bound to
    question: bytes
    keys: dict[str, PairKeys]  # with each of the other sites
    disclosure: tuple[RevealOrder, Reveal] | None = None


class MaskingSite:
    """A site in the masked sums of a run; its keys live in memory, and nowhere else unless its owner keeps them.

    Args:
        identity: the site's name, key and certificate.
        least_others: the fewest other sites in a sum.
        summed: the digest of the set over which the site has let sums of the run be seen, or of the set of each round.
            Kept over restarts by its owner.
        is_noisy: whether what is summed has noise. Sums without noise are all over one set, for sums over many sets
            together may tell what a single site has sent. Noise is for each round anew, so a round has one set.
        everybody: whether sums are over all sites alone, so that nobody can be left out of one.
        parties: the sites of the plan, of which keys are taken; None: of whoever shows some.
    """

    def __init__(
        self,
        identity: SiteIdentity,
        least_others: int = LEAST_OTHERS,
        summed: MutableMapping[str, str] | None = None,
        is_noisy: bool = False,
        everybody: bool = False,
        parties: Collection[str] | None = None,
    ):
        self.everybody, self.parties = everybody, parties
        self.identity, self.least_others, self.is_noisy = identity, least_others, is_noisy
        self.summed: MutableMapping[str, str] = {} if summed is None else summed
        self.key: X25519PrivateKey | None = None
        self.signer: Ed25519PrivateKey | None = None
        self.signers: dict[str, bytes] = {}  # of all sites of the roster
        self.note: KeyNote | None = None
        self.secrets: dict[str, bytes] = {}
        self.roster = b""
        self.rounds: dict[int, _Masked] = {}

    @property
    def site(self) -> str:
        return self.identity.site

    # --- over the ends of processes ---

    def to_bytes(self) -> bytes:
        """Return all that lives in memory alone, private keys among it; nothing where there are no keys."""
        if self.note is None or self.signer is None:
            return b""
        key = b"" if self.key is None else self.key.private_bytes_raw()
        frame = Frame().content(key).content(self.signer.private_bytes_raw()).content(self.note.to_bytes())
        frame.table(self.secrets).content(self.roster).table(self.signers).number(len(self.rounds))
        for one in self.rounds.values():
            frame.content(one.order.to_bytes()).content(one.words).content(one.reply.to_bytes()).content(one.share)
            frame.content(one.context).content(one.question).number(one.disclosure is not None)
            for part in one.disclosure or ():
                frame.content(part.to_bytes())
        return frame.bytes()

    def restore(self, content: bytes) -> None:
        """Go on with what `to_bytes` returned."""
        if not content:
            return
        r = Reader(content)
        key, signer = r.content(), r.content()
        self.key = masks.private_key(key) if key else None
        self.signer, self.note = masks.private_signer(signer), KeyNote.from_bytes(r.content())
        self.secrets, self.roster, self.signers, self.rounds = r.table(), r.content(), r.table(), {}
        for _ in range(r.number()):
            order, words, reply = MaskOrder.from_bytes(r.content()), r.content(), MaskedVector.from_bytes(r.content())
            share, context, question = r.content(), r.content(), r.content()
            disclosure = None
            if r.number():
                disclosure = RevealOrder.from_bytes(r.content()), Reveal.from_bytes(r.content())
            keys = {other: masks.pair_keys(secret, context) for other, secret in self.secrets.items()}
            keys = {other: pair for other, pair in keys.items() if other in order.sites}
            self.rounds[order.round] = _Masked(order, words, reply, share, context, question, keys, disclosure)
        r.end()

    # --- keys ---

    def new_keys(self, run: str, epoch: int, plan: bytes = b"") -> KeyNote:
        """Take new keys for a run and its plan, forget the old ones, and return the public one, signed."""
        self.key, self.signer = masks.new_key(), masks.new_signer()
        self.secrets, self.rounds = {}, {}
        public, signer = masks.public_bytes(self.key), masks.public_bytes(self.signer)
        note = KeyNote(run, epoch, self.site, public, signer, self.identity.certificate, plan)
        self.note = replace(note, signature=self.identity.sign(note.statement()))
        return self.note

    def accept(self, roster: Roster) -> None:
        """Check everybody's keys, and agree with each of the other sites on a secret."""
        if self.key is None or self.note is None:
            raise NoKeys("it has no keys for this run yet")
        names = tuple(note.site for note in roster.notes)
        if names != masks.order_of({*names}):
            raise Breach("the roster names a site twice, or not in order")
        if self.note not in roster.notes:
            raise Breach("the roster does not hold this site's own key")
        self._check_parties(names)
        if len(names) - 1 < self.least_others:
            raise Breach(
                f"its policy (secure_min) asks for sums with at least {self.least_others} other sites, "
                f"and this run has {len(names) - 1}"
            )
        for note in roster.notes:
            if (note.run, note.epoch) != (self.note.run, self.note.epoch):
                raise Breach(f"the key of {note.site!r} is of another run or epoch")
            if note.plan != self.note.plan:
                raise Breach(f"{note.site!r} has agreed to another plan than this site")
            try:
                check_note(note, self.identity.root)
            except FoedusError as error:
                raise Breach(str(error).removesuffix(".")) from None
        others = [note for note in roster.notes if note.site != self.site]
        if len({note.public for note in roster.notes}) < len(names):
            raise Breach("two sites of the roster have the same key")
        self.secrets = {note.site: masks.pair_secret(self.key, note.public) for note in others}
        self.roster = hashlib.sha256(roster.to_bytes()).digest()
        self.signers = {note.site: note.signer for note in roster.notes}

    def _check_parties(self, names: tuple[str, ...]) -> None:
        """Refuse keys of others than the plan's sites and, where sums are over all of them, the lack of one."""
        if self.parties is None:
            return
        for name in names:
            if name not in self.parties:
                raise Breach(f"the roster names {name!r}, which is no site of the plan")
        for name in self.parties if self.everybody else ():
            if name not in names:
                raise Breach(f"the roster lacks {name!r}, a site of the plan, and a checked sum is over all of them")

    # --- a sum ---

    def mask(self, order: MaskOrder, words: np.ndarray, question: bytes = b"") -> MaskedVector:
        """Return the words under masks; the same order with the same words gets the same bytes again.

        `question` is a digest of what the words answer. It is part of what the masks are made from, so that masks
        cancel and shares open only among sites that were asked the same.
        """
        content = np.ascontiguousarray(words, dtype=np.int64).astype("<i8").tobytes()
        before = self.rounds.get(order.round)
        if before is not None and (before.order, before.words, before.question) == (order, content, question):
            return before.reply
        self._check_order(order, before)
        context = self._context(order, question)
        keys = {other: masks.pair_keys(self.secrets[other], context) for other in order.sites if other != self.site}
        own = masks.new_secret()
        points = {site: number for number, site in enumerate(order.sites, start=1)}
        shares = masks.split(own, list(points.values()), masks.threshold(len(points)))
        envelopes = {
            other: masks.seal_share(pair.seal, context, self.site, other, shares[points[other]])
            for other, pair in keys.items()
        }
        vector = masks.masked(
            words.astype(np.int64).view(np.uint64), self.site, own, {k: v.mask for k, v in keys.items()}
        )
        commitment = hashlib.sha256(own).digest()
        reply = MaskedVector(self.site, vector.astype("<u8").tobytes(), commitment, envelopes)
        assert self.signer is not None
        reply = replace(reply, signature=self.signer.sign(reply.statement(context)))
        self.rounds = {order.round: _Masked(order, content, reply, shares[points[self.site]], context, question, keys)}
        if self.is_noisy and isinstance(self.summed, Foreseeing):
            self.summed.foresee(str(order.round), _digest(order.sites))
        return reply

    def _check_order(self, order: MaskOrder, before: _Masked | None) -> None:
        self.check_epoch(order.run, order.epoch)
        if order.sites != masks.order_of({*order.sites}) or self.site not in order.sites:
            raise Breach("the set of a sum must name each site once, in order, and this site among them")
        if not {*order.sites} <= {self.site, *self.secrets}:
            raise Breach("the set of a sum names a site whose key is not in the roster")
        if self.everybody and {*order.sites} != {self.site, *self.secrets}:
            raise Breach("a checked sum is over all sites of the run, and this set names others")
        if len(order.sites) - 1 < self.least_others:
            raise Breach(
                f"its policy (secure_min) asks for sums with at least {self.least_others} other sites, "
                f"and this one has {len(order.sites) - 1}"
            )
        if min(order.round, order.attempt) < 0:
            raise Breach("rounds and attempts are counted from 0")
        if self.rounds and order.round < max(self.rounds):
            raise Breach(f"round {order.round} is past")
        if before is None:
            return
        if before.order.sites != order.sites:
            raise Breach(f"round {order.round} was asked for over another set of sites")
        if before.disclosure is not None:
            raise Breach(f"round {order.round} has been summed already")
        if order.attempt <= before.order.attempt:
            raise Breach(f"attempt {order.attempt} of round {order.round} has been masked already")

    def reveal(self, order: RevealOrder) -> Reveal:
        """Return what takes the masks off the sum over the survivors, once in a round."""
        sum_of = self.rounds.get(order.round)
        if sum_of is not None and sum_of.disclosure is not None and sum_of.disclosure[0] == order:
            return sum_of.disclosure[1]
        self.check_epoch(order.run, order.epoch)
        if sum_of is None or (sum_of.order.round, sum_of.order.attempt) != (order.round, order.attempt):
            raise Breach(f"it has not masked attempt {order.attempt} of round {order.round}")
        if sum_of.disclosure is not None:
            raise Breach(f"round {order.round} has been summed already, over the sites that were named then")
        sites = sum_of.order.sites
        self._check_survivors(order, sites)
        if self.everybody and order.survivors != sites:
            raise Breach("a checked sum is over all sites of the run, and here some are missing")
        context = sum_of.context
        shares, keys = {self.site: sum_of.share}, {}
        for other in sites:
            if other == self.site:
                continue
            pair = sum_of.keys[other]
            if other not in order.survivors:
                keys[other] = pair.mask
                continue
            share = masks.open_share(pair.seal, context, other, self.site, order.shares.get(other, b""))
            if share is None:
                raise Breach(
                    f"what {other!r} has sent was not made for this sum: the server has shown it another set, round or "
                    "attempt, has asked it something else, or has changed it on the way"
                )
            shares[other] = share
        self._note_summed(order)
        answer = Reveal(self.site, shares, keys)
        sum_of.disclosure = (order, answer)
        if keys:  # a recovery: these keys have done their work, and the next sum gets new ones
            self.key, self.secrets = None, {}
        return answer

    def total(self, opened: OpenSum) -> np.ndarray:
        """Return the sum over all sites of the run, added up from what each of them has signed; refuse any other.

        It is of the sum that this site has masked and revealed last, so the total is no word of the server's.
        """
        sum_of = self.rounds.get(opened.round)
        if sum_of is None or sum_of.disclosure is None or sum_of.order.attempt != opened.attempt:
            raise Breach("it is shown a sum that it has not revealed")
        sites = {*sum_of.order.sites}
        if sites != {*self.signers} or not {*opened.words} == {*opened.signatures} == {*opened.keys} == sites:
            raise Breach("it is shown a sum over other sites than those of the run")
        if opened.words[self.site] != sum_of.reply.words:
            raise Breach("it is shown other words than those that it has sent itself")
        total = np.zeros(len(sum_of.reply.words) // 8, np.uint64)
        own_part = sum_of.reply.commitment, sum_of.reply.signature
        for site in sum_of.order.sites:
            words, own = opened.words[site], opened.keys[site]
            vector = MaskedVector(site, words, hashlib.sha256(own).digest(), {}, opened.signatures[site])
            is_own = site == self.site and (vector.commitment, vector.signature) == own_part
            if len(words) != 8 * total.size or not (is_own or self._has_signed(vector, sum_of.context)):
                raise Breach(f"what it is shown as the vector of {site!r} is not what {site!r} has signed for this sum")
            total += vector.vector() - masks.mask_words(own, total.size)
        return total.view(np.int64)

    def _has_signed(self, vector: MaskedVector, context: bytes) -> bool:
        return masks.is_signed(self.signers[vector.site], vector.statement(context), vector.signature)

    def _check_survivors(self, order: RevealOrder, sites: tuple[str, ...]) -> None:
        survivors = {*order.survivors}
        if order.survivors != masks.order_of(survivors) or not survivors <= {*sites} or self.site not in survivors:
            raise Breach("the survivors of a sum are not sites that were asked, this one among them")
        least = max(masks.threshold(len(sites)), self.least_others + 1)
        if len(survivors) < least:
            raise Breach(
                f"a sum over {len(survivors)} of {len(sites)} sites is refused; at least {least} must be in it"
            )

    def _note_summed(self, order: RevealOrder) -> None:
        digest = _digest(order.survivors)
        if self.summed.setdefault(str(order.round) if self.is_noisy else ONE_SET, digest) == digest:
            return
        if self.is_noisy:
            raise Breach(f"round {order.round} has been summed over another set of sites before")
        raise Breach(
            "sums without noise are over the same sites in the whole run, and these are others than those of the first "
            "sum; the run goes on when all of them are back"
        )

    def check_epoch(self, run: str, epoch: int) -> None:
        if self.note is None or (self.note.run, self.note.epoch) != (run, epoch):
            raise NoKeys("it has no keys of this run and epoch")
        if self.key is None:
            raise NoKeys("it takes new keys after a recovery, and has none yet")
        if not self.secrets:
            raise NoKeys("it has not seen everybody's keys")

    def _context(self, order: MaskOrder, question: bytes) -> bytes:
        sum_of = SumContext(order.run, order.epoch, order.round, order.attempt, self.roster, order.sites, question)
        return sum_of.digest()


def _digest(sites: tuple[str, ...]) -> str:
    return hashlib.sha256(Frame().names(sites).bytes()).hexdigest()
