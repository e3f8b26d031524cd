"""A site's part in masked sums: keys from its kit, one vector and one reveal for a sum, and a record on its disk."""

import os
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from foedus.algorithm import Algorithm
from foedus.certificate import SitePart
from foedus.constrained import tolerances
from foedus.errors import FoedusError
from foedus.files import Json
from foedus.privacy.central import NoiseShares
from foedus.privacy.releasing import sound_noise
from foedus.pytrees import PyTree
from foedus.runtime.flare import packing
from foedus.runtime.flare.gate import Outgoing
from foedus.runtime.flare.masked_preparation import ROUNDS, masking_for
from foedus.runtime.flare.packing import whole
from foedus.runtime.flare.policy import Policy, Refusal
from foedus.runtime.masking import Masking, masking_of
from foedus.secure.fixed_point import MOST_TERMS
from foedus.secure.identity import SiteIdentity
from foedus.secure.masks import require_cryptography
from foedus.secure.messages import MaskOrder, RevealOrder, Roster
from foedus.secure.site import MaskingSite, NoKeys
from foedus.summed_certificate import summed_part
from foedus.terms import Data, Terms

MOST_EPOCHS = 10**6  # of keys in one run


def identity_of(kit: Path, name: str) -> SiteIdentity | None:
    """Return the identity in a kit; None where there is none, and then the site takes no part in masked sums."""
    try:
        return SiteIdentity.of_kit(kit, name)
    except FoedusError:
        return None


def why_no_identity() -> str:
    """Return why a site cannot sign its part of masked sums, to go behind its name."""
    try:
        require_cryptography()
    except FoedusError as error:
        return f"it cannot take part: {str(error).removesuffix('.')}"
    return "it has no key and certificate to sign its part of masked sums with"


class SummedRounds(MutableMapping[str, str]):
    """For each round of a run, over which set the site has let it be summed: on the disk before the site reveals."""

    def __init__(self, path: Path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rounds: dict[str, str] = {}
        for line in lines:
            round, _, digest = line.partition(" ")
            self.rounds.setdefault(round, digest)

    def __setitem__(self, round: str, digest: str) -> None:
        with open(self.path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(f"{round} {digest}\n")
            file.flush()
            os.fsync(file.fileno())
        self.rounds[round] = digest

    def __getitem__(self, round: str) -> str:
        return self.rounds[round]

    def __delitem__(self, round: str) -> None:
        raise FoedusError("what has been summed stays on record.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.rounds)

    def __len__(self) -> int:
        return len(self.rounds)


class SiteMasks:
    """The masked sums of a site's session; `check_run` refuses a message of another run."""

    def __init__(self, identity: SiteIdentity | None, policy: Policy, folder: Path, check_run: Callable[[Json], None]):
        self.identity, self.policy, self.folder, self.check_run = identity, policy, folder, check_run
        self.site: MaskingSite | None = None
        self.masking: Masking | None = None
        self.run, self.least_others = "", policy.secure_min
        self.answers = {"keys": self._keys, "roster": self._roster, "reveal": self._reveal}

    def check(self, header: Json, clients: object, algorithm: Algorithm) -> None:
        """Refuse a run without masked sums where the policy or the noise asks for them, and sums over too few sites."""
        noise, secure = sound_noise(algorithm), header.get("secure") is True
        if isinstance(noise, NoiseShares) and not (secure and noise.sites == clients):
            raise Refusal("policy", f"noise in shares protects masked sums over all its {noise.sites} sites alone")
        if not secure:
            if self.policy.secure:
                raise Refusal("policy", "its policy lets replies leave as masked sums alone (secure)")
            return
        if self.identity is None:
            raise Refusal("policy", why_no_identity())
        others = whole(clients, 1, 10**6, "sites") - 1
        if others < self.policy.secure_min:
            raise Refusal(
                "policy",
                f"its policy (secure_min) asks for sums with at least {self.policy.secure_min} other sites, and this "
                f"run has {others}",
            )

    def begin(self, header: Json, algorithm: Algorithm, terms: Terms) -> None:
        """Note at the join how this run's replies are added up, as every party works it out."""
        self.masking = masking_of(algorithm, terms) if header.get("secure") is True else None
        self.site = None  # the keys of the preparation are not those of the rounds
        self.least_others = max(self.policy.secure_min, 0 if self.masking is None else self.masking.least_others)
        self.terms, self.eps2 = terms, tolerances(algorithm)[1]

    def agree(self, header: Json) -> None:
        """Note in a run's first message how many sites and rounds it has, for the masked sums that prepare its data."""
        self.clients = whole(header["sites"], 1, MOST_TERMS, "sites")
        self.rounds, self.site = whole(header["max_rounds"], 1, 10**9, "max_rounds"), None

    def figures(self, header: Json, tree: PyTree, out: Outgoing) -> Outgoing:
        """Return an answer that prepares data with its figures under masks, and nothing of them in its header."""
        round = self.rounds + ROUNDS[str(header["ask"])]
        return replace(out, header={}, payload=self.vector(header, round, masking_for(self.clients).words_of(tree)))

    def _keys(self, header: Json, payload: bytes) -> Outgoing:
        """Take new keys for the run, and return the public one."""
        self.check_run(header)
        if self.identity is None:
            raise Refusal("policy", why_no_identity())
        if self.site is None or self.run != header["run"]:
            self.run = str(header["run"])
            record = SummedRounds(self.folder / f"summed-{self.run}.txt")
            self.site = MaskingSite(self.identity, self.least_others, record)
        note = self.site.new_keys(self.run, whole(header["epoch"], 0, MOST_EPOCHS, "epoch"))
        return Outgoing(payload=note.to_bytes())

    def _roster(self, header: Json, payload: bytes) -> Outgoing:
        self.check_run(header)
        try:
            self._masking_site().accept(Roster.from_bytes(payload))
        except FoedusError as error:
            raise Refusal("policy", str(error).removesuffix(".")) from None
        return Outgoing()

    def vector(self, header: Json, round: int, words: np.ndarray) -> bytes:
        """Return the masked vector for the sum that the header of a message orders."""
        try:
            order = MaskOrder.from_bytes(bytes.fromhex(header["mask"]))
            if order.round != round:
                raise FoedusError("the sum is of another round than the message.")
            return self._masking_site().mask(order, words).to_bytes()
        except (FoedusError, ValueError, KeyError, TypeError) as error:
            raise _refusal(error) from None

    def _reveal(self, header: Json, payload: bytes) -> Outgoing:
        self.check_run(header)
        try:
            return Outgoing(payload=self._masking_site().reveal(RevealOrder.from_bytes(payload)).to_bytes())
        except FoedusError as error:
            raise _refusal(error) from None

    def masked_reply(self, header: Json, round: int, reply: PyTree) -> bytes:
        """Return the bytes of a reply under masks, in a run that has agreed on masked sums."""
        assert self.masking is not None
        return self.vector(header, round, self.masking.words_of(reply))

    def measurement(self, header: Json, round: int, part: SitePart, plan: PyTree, data: Data) -> bytes:
        """Return the bytes of the site's part of the certificate; of a masked one its own rows stay here."""
        if self.masking is None:
            return packing.to_bytes(part, plan)
        return self.vector(
            header, round, self.masking.measuring.words_of(summed_part(self.terms, part, self.eps2, data))
        )

    def evaluation(self, header: Json, round: int) -> Callable[[PyTree], bytes] | None:
        """Return what puts the site's part of an evaluation under masks; None in a run without them."""
        if (masking := self.masking) is None:
            return None
        return lambda tree: self.vector(header, round, masking.measuring.words_of(tree))

    def _masking_site(self) -> MaskingSite:
        if self.site is None:
            raise NoKeys("it has no keys for this run yet")
        return self.site


def _refusal(error: Exception) -> Refusal:
    """Return the refusal for what a masked sum does not allow; without keys the server can offer new ones."""
    if isinstance(error, FoedusError):
        return Refusal("keys" if isinstance(error, NoKeys) else "breach", str(error).removesuffix("."))
    return Refusal("unknown", "it is asked for its part of a masked sum in no form that it knows")
