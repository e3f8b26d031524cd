"""The server's side of masked sums: it passes keys and shares on, adds masked vectors up, and takes the masks off.

It sees sums and nothing else, however it is programmed: what keeps it from more is what the sites refuse.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from foedus.base.errors import FoedusError
from foedus.sums import masks
from foedus.sums.messages import KeyNote, MaskedVector, MaskOrder, OpenSum, Reveal, RevealOrder, Roster


class Unfinished(FoedusError):
    """A sum cannot be had in this attempt: too few sites have answered."""


def roster_of(notes: Iterable[KeyNote]) -> Roster:
    """Return the roster of these keys, in order."""
    return Roster(tuple(sorted(notes, key=lambda note: note.site)))


class MaskedSum:
    """One sum at the server: orders out, masked vectors in, reveals in, the total out."""

    def __init__(self, run: str, epoch: int, round: int, attempt: int, sites: Iterable[str], size: int):
        self.order = MaskOrder(run, epoch, round, attempt, masks.order_of({*sites}))
        self.size = size  # words in a vector
        self.vectors: dict[str, MaskedVector] = {}
        self.reveals: dict[str, Reveal] = {}
        self.survivors: tuple[str, ...] = ()

    @property
    def threshold(self) -> int:
        """The fewest sites that a sum can be over."""
        return masks.threshold(len(self.order.sites))

    @property
    def missing(self) -> tuple[str, ...]:
        """The sites whose vectors are not there."""
        return tuple(site for site in self.order.sites if site not in self.vectors)

    def take(self, site: str, vector: MaskedVector) -> None:
        """Take a site's masked vector; what does not fit is refused with a sentence."""
        if vector.site != site or site not in self.order.sites:
            raise FoedusError(f"a masked vector of {vector.site!r} came from {site!r}.")
        if len(vector.words) != 8 * self.size or len(vector.commitment) != 32:
            raise FoedusError(
                f"its masked vector takes {len(vector.words)} bytes, where the terms make it {8 * self.size}."
            )
        if {*vector.shares} != {*self.order.sites} - {site}:
            raise FoedusError("its masked vector lacks shares for the other sites.")
        if self.survivors:
            raise FoedusError("its masked vector comes too late: the sum is being unmasked.")
        self.vectors[site] = vector

    def reveal_orders(self) -> dict[str, RevealOrder]:
        """Close the set, and return the message to each survivor."""
        if len(self.vectors) < self.threshold:
            raise Unfinished(
                f"{len(self.vectors)} of {len(self.order.sites)} sites have answered, and a masked sum needs "
                f"{self.threshold}."
            )
        self.survivors = masks.order_of(self.vectors)
        o = self.order
        return {
            site: RevealOrder(
                o.run, o.epoch, o.round, o.attempt, self.survivors,
                {other: self.vectors[other].shares[site] for other in self.survivors if other != site},
            )
            for site in self.survivors
        }  # fmt: skip

    def take_reveal(self, site: str, reveal: Reveal) -> None:
        """Take a survivor's shares and keys; what does not fit is refused with a sentence."""
        gone = {*self.order.sites} - {*self.survivors}
        if reveal.site != site or {*reveal.shares} != {*self.survivors} or {*reveal.keys} != gone:
            raise FoedusError("its shares are not those of this sum.")
        if any(len(part) != 32 for part in (*reveal.shares.values(), *reveal.keys.values())):
            raise FoedusError("its shares are not of the agreed length.")
        self.reveals[site] = reveal

    @property
    def recovers(self) -> bool:
        """Whether a site that was asked is missing, so that masks with it have to be revealed."""
        return bool(self.survivors) and len(self.survivors) < len(self.order.sites)

    @property
    def finished(self) -> bool:
        """Whether enough has been revealed."""
        needed = len(self.survivors) if self.recovers else self.threshold
        return len(self.reveals) >= needed

    def own_keys(self) -> dict[str, bytes]:
        """Return the key of each survivor's own mask, from the shares that were revealed."""
        if not self.finished:
            raise Unfinished(
                f"{len(self.reveals)} of {len(self.survivors)} sites have revealed their shares, and "
                f"{len(self.survivors) if self.recovers else self.threshold} must."
            )
        points = {site: number for number, site in enumerate(self.order.sites, start=1)}
        speakers = masks.order_of(self.reveals)[: self.threshold]
        combiner = masks.Combiner([points[site] for site in speakers])
        keys: dict[str, bytes] = {}
        for site in self.survivors:
            shares = {points[speaker]: self.reveals[speaker].shares[site] for speaker in speakers}
            keys[site] = combiner.secret(shares)
            if hashlib.sha256(keys[site]).digest() != self.vectors[site].commitment:
                raise Unfinished(
                    f"the shares of the mask of {site!r} do not fit together: somebody has sent a wrong one."
                )
        return keys

    def parts(self) -> dict[str, np.ndarray]:
        """Return each survivor's words without its own mask; those with other sites are still on them."""
        return {
            site: self.vectors[site].vector() - masks.mask_words(own, self.size)
            for site, own in self.own_keys().items()
        }

    def opened(self) -> OpenSum:
        """Return what every site can add the sum up from."""
        vectors = {site: self.vectors[site] for site in self.survivors}
        return OpenSum(
            self.order.round,
            self.order.attempt,
            {site: one.words for site, one in vectors.items()},
            {site: one.signature for site, one in vectors.items()},
            self.own_keys(),
        )

    def total(self) -> np.ndarray:
        """Return the sum of the survivors' words, as int64."""
        total = np.zeros(self.size, np.uint64)
        for part in self.parts().values():
            total += part
        for site, reveal in self.reveals.items():
            for other, key in reveal.keys.items():
                mask = masks.mask_words(key, self.size)
                total = total - mask if site < other else total + mask
        return total.view(np.int64)
