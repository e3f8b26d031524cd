"""One process as all parties: a masked sum from beginning to end, for tests, examples and measurements."""

import datetime
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from foedus.sums.identity import OPERATOR, ROLES, Signer, SiteIdentity, organisation
from foedus.sums.masks import require_cryptography
from foedus.sums.messages import MaskedVector, MaskOrder, Reveal, RevealOrder, Roster
from foedus.sums.server import MaskedSum, roster_of
from foedus.sums.site import MaskingSite

A_DAY = datetime.timedelta(days=1)


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
    require_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    authority, now = Ed25519PrivateKey.generate(), datetime.datetime.now(datetime.UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trial")])

    def certificate(name: str, operator: str, key: Ed25519PrivateKey, role: str = "") -> bytes:
        fields = [(NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, operator)]
        fields += [(NameOID.UNSTRUCTURED_NAME, role)] if role else []
        subject = x509.Name([x509.NameAttribute(*field) for field in fields]) if operator else issuer
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - A_DAY).not_valid_after(now + A_DAY)
        return builder.sign(authority, None).public_bytes(Encoding.PEM)

    root = certificate("trial", "", authority)
    keys = {name: Ed25519PrivateKey.generate() for name in (*names, server)}
    sites = {
        name: SiteIdentity(name, key, certificate(name, organisation(name), key), root, server)
        for name, key in keys.items()
        if name != server
    }
    own = Ed25519PrivateKey.generate()
    coordinator = Signer(own, certificate("coordinator", OPERATOR, own, ROLES[0]), root)
    return Signer(keys[server], certificate(server, OPERATOR, keys[server]), root), sites, coordinator
