"""One process as all parties: a masked sum from beginning to end, for tests, examples and measurements."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from foedus.sums.authority import Authority, new_key
from foedus.sums.identity import Signer, SiteIdentity
from foedus.sums.messages import MaskedVector, MaskOrder, Reveal, RevealOrder, Roster
from foedus.sums.server import MaskedSum, roster_of
from foedus.sums.site import MaskingSite


def exchange_keys(sites: Mapping[str, MaskingSite], run: str, epoch: int = 0) -> None:
    """Let all sites take new keys and show them to each other."""
    roster = roster_of(site.new_keys(run, epoch) for site in sites.values())
    for site in sites.values():
        site.accept(Roster.from_bytes(roster.to_bytes()))


def sum_words(
    sites: Mapping[str, MaskingSite],
    words: Mapping[str, np.ndarray],
    run: str,
    epoch: int = 0,
    round: int = 0,
    *,
    silent: Collection[str] = (),
    vanishing: Collection[str] = (),
) -> np.ndarray:
    """Return the sum of the sites' words; `silent` sites send no vector, `vanishing` ones send it and no reveal."""
    size = next(iter(words.values())).size
    work = MaskedSum(run, epoch, round, 0, sites, size)
    order = MaskOrder.from_bytes(work.order.to_bytes())
    for name, site in sites.items():
        if name not in silent:
            work.take(name, MaskedVector.from_bytes(site.mask(order, words[name]).to_bytes()))
    for name, request in work.reveal_orders().items():
        if name not in vanishing:
            answer = sites[name].reveal(RevealOrder.from_bytes(request.to_bytes()))
            work.take_reveal(name, Reveal.from_bytes(answer.to_bytes()))
    return work.total()


def trial_identities(names: Iterable[str]) -> dict[str, SiteIdentity]:
    """Return identities for sites that are played in one process, under a root of their own."""
    return trial_project(names)[1]


def trial_project(names: Iterable[str], server: str = "localhost") -> tuple[Signer, dict[str, SiteIdentity], Signer]:
    """Return who signs for the server, the sites and the coordinator of a project in one process, with its own root."""
    authority = Authority.new("trial", days=1)
    keys = {name: new_key() for name in (*names, server)}
    sites = {
        name: SiteIdentity(name, key, authority.site(name, key.public_key()), authority.root, server)
        for name, key in keys.items()
        if name != server
    }
    own = new_key()
    coordinator = Signer(own, authority.coordinator(own.public_key()), authority.root)
    return Signer(keys[server], authority.server(server, keys[server].public_key()), authority.root), sites, coordinator
