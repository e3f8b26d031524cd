"""A site's part in masked sums: keys from its kit, one vector and one reveal for a sum, and a record on its disk."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.federation import packing
from foedus.federation.agreement import MOST_ROUNDS
from foedus.federation.gate import Gate, Outgoing
from foedus.federation.masked_rounds import PREPARATION, stage_name
from foedus.federation.packing import whole
from foedus.federation.policy import Policy, Refusal
from foedus.privacy.central import NoiseShares
from foedus.privacy.releasing import sound_noise
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm
from foedus.sums.fixed_point import FixedPoint
from foedus.sums.identity import SiteIdentity
from foedus.sums.masking import Masking, beyond_range, masking_of
from foedus.sums.masks import require_cryptography
from foedus.sums.messages import MaskOrder, OpenSum, RevealOrder, Roster
from foedus.sums.questions import Coding, remedy
from foedus.sums.site import MaskingSite, NoKeys

SYNC = getattr(os, "fdatasync", os.fsync)  # content and length of a file are safe; its times need not be
MOST_EPOCHS = 10**6  # of keys in one run
OF_PREPARATION = ("rows", "sums", "squares")  # the kinds of messages whose sums have keys of their own
OF_ONE_SITE = ("mask", "since")  # parts of a header that are no part of the question, which is the same for all sites


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
    """Over which set the site has let a run, or a round of one with noise, be summed: on the disk before it reveals.

    A disk takes milliseconds to say that a line is safe, so a line is begun when the site masks, while its vector is on
    its way, with the set of all who were asked and a question mark. If they all answer, the reveal only waits until
    that line is safe. If not, the set of those who did is written in a line of its own, which counts. A line with a
    question mark that a restart finds alone counts too: nobody knows whether the site has revealed.
    """

    def __init__(self, path: Path):
        self.path = path
        text = path.read_text() if path.exists() else ""
        if text and not text.endswith("\n"):  # a line that a crash cut short must not swallow the next one
            self._write("\n")
        lines = [line.split(" ") for line in text.splitlines()]
        self.rounds: dict[str, str] = {}
        for round, digest in (line for line in lines if len(line) == 2):
            self.rounds.setdefault(round, digest)
        for round, digest, _ in (line for line in lines if len(line) == 3):
            self.rounds.setdefault(round, digest)
        self.ahead: tuple[str, str, Future[None]] | None = None  # the line that was begun last
        self.writer = ThreadPoolExecutor(max_workers=1)

    def foresee(self, round: str, digest: str) -> None:
        """Begin the line of a round that will be summed over this set if nobody vanishes."""
        if round not in self.rounds and (self.ahead is None or self.ahead[:2] != (round, digest)):
            self.ahead = round, digest, self.writer.submit(self._write, f"{round} {digest} ?\n")

    def __setitem__(self, round: str, digest: str) -> None:
        if self.ahead is not None and self.ahead[:2] == (round, digest):
            self.ahead[2].result()
        else:
            self._write(f"{round} {digest}\n")
        self.rounds[round] = digest

    def _write(self, line: str) -> None:
        with open(self.path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(line)
            file.flush()
            SYNC(file.fileno())

    def __getitem__(self, round: str) -> str:
        return self.rounds[round]

    def __delitem__(self, round: str) -> None:
        raise FoedusError("what has been summed stays on record.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.rounds)

    def __len__(self) -> int:
        return len(self.rounds)


class FirstSums:
    """The sums from which a checked run has gone on, on the disk: it goes on from no other ones, whoever begins anew.

    A server and a site that colludes could otherwise play a run again and again, each time to other models.
    """

    def __init__(self, path: Path):
        self.path, self.digests = path, dict[str, str]()
        for line in path.read_text().splitlines() if path.exists() else ():
            name, _, digest = line.rpartition(" ")
            self.digests.setdefault(name, digest)

    def add(self, name: str, words: np.ndarray) -> None:
        """Note a sum before anything follows from it; refuse another one than the first under this name."""
        digest = hashlib.sha256(words.tobytes()).hexdigest()
        if (before := self.digests.get(name, digest)) != digest:
            raise Refusal("breach", f"it is shown another sum of {name} than before, and goes on from the first alone")
        if name in self.digests:
            return
        self.digests[name] = before
        with open(self.path, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"{name} {digest}\n")


class SiteMasks:
    """The masked sums of a site's session; `check_run` refuses a message of another run, `gate` keeps what left."""

    def __init__(
        self, identity: SiteIdentity | None, policy: Policy, folder: Path, check_run: Callable[[Json], None], gate: Gate
    ):
        self.identity, self.policy, self.folder, self.check_run, self.gate = identity, policy, folder, check_run, gate
        self.site: MaskingSite | None = None
        self.masking: Masking | None = None
        self.run, self.least_others = "", policy.secure_min
        self.parties, self.common, self.rounds = 0, (), 0
        self.plan_sites: tuple[str, ...] = ()
        self.is_checked = False
        self.plan, self.preparation_plan = b"", b""  # digests of what all sites have agreed to
        self.histories = {PREPARATION: b"", "": b""}  # by stage, a digest of the sums of a checked run so far
        self.clip_notes: set[str] = set()  # the kinds of replies of which a number was beyond the range
        self.preparation: tuple[str, MaskingSite] | None = None  # the run that is prepared, and the sums of that
        self.record: tuple[str, SummedRounds] | None = None  # a run, and over which sets its sums were
        self.answers = {
            "keys": self._keys,
            "roster": self._roster,
            "reveal": self._reveal,
        }

    def check(self, header: Json, clients: object, algorithm: Algorithm) -> None:
        """Refuse a run without masked sums where the policy or the noise asks for them, and sums over too few sites."""
        noise, secure = sound_noise(algorithm), header.get("secure") is True
        if isinstance(noise, NoiseShares) and not (secure and noise.sites == clients):
            raise Refusal("policy", f"noise in shares protects masked sums over all its {noise.sites} sites alone")
        if not secure:
            if self.policy.secure and noise is None:
                raise Refusal("policy", "its policy lets exact replies leave as masked sums alone (secure)")
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
        parties = header.get("parties")
        names = [name for name in parties if isinstance(name, str)] if isinstance(parties, list) else []
        if names != parties or len({*names}) != len(names) or self.identity.site not in names:
            raise Refusal(
                "unknown", "masked sums are over sites that the plan names, each once and this one among them"
            )
        if len(names) != clients:
            raise Refusal("unknown", f"the plan names {len(names)} sites, and its terms are for {clients}")

    def check_verified(self, header: Json, algorithm: Algorithm) -> None:
        """Refuse masked sums without noise in a run that the sites do not check, where the policy asks for that."""
        unchecked = header.get("secure") is True and header.get("verify") is not True
        if self.policy.verify and unchecked and sound_noise(algorithm) is None:
            raise Refusal(
                "policy", "its policy (verify) lets masked sums without noise leave in checked runs alone; this is none"
            )

    def begin(
        self, header: Json, algorithm: Algorithm, terms: Terms, plan: bytes = b"", common: Sequence[bool] = ()
    ) -> None:
        """Note at the join how this run's replies are added up, as every party works it out.

        `plan` is the digest of what all sites have agreed to; `common` says for each kind of round whether all sites
        get the same message.
        """
        self.plan, self.histories[""] = plan, b""
        self.common = tuple(common)
        self.clip_notes.clear()
        self.masking = masking_of(algorithm, terms) if header.get("secure") is True else None
        self.least_others = max(self.policy.secure_min, 0 if self.masking is None else self.masking.least_others)
        self.noise, self.parties = sound_noise(algorithm), terms.clients
        self.is_checked = header.get("verify") is True
        self.plan_sites = tuple(header.get("parties", ()))
        self.rounds = whole(header["max_rounds"], 1, MOST_ROUNDS, "max_rounds")

    def begin_preparation(self, header: Json, *plan: object) -> None:
        """Note whether what prepares the data is masked; its sums have their own keys, bound to what was agreed."""
        self.preparation, self.parties = None, whole(header["sites"], 1, 10**6, "sites")
        self.preparation_plan, self.histories[PREPARATION] = plan_of(*plan), b""
        if header.get("secure") is True and self.identity is not None:
            record = self._record_of(header["run"])
            least, parties = self.policy.secure_min, header["parties"]
            site = MaskingSite(self.identity, least, record, everybody=True, parties=parties)
            self.preparation = header["run"], site

    def _record_of(self, run: str) -> SummedRounds:
        """Return the record of a run's sums; its preparation and its rounds have the same one."""
        if self.record is None or self.record[0] != run:
            self.record = run, SummedRounds(self.folder / f"summed-{run}.txt")
        return self.record[1]

    def prepares(self, header: Json) -> bool:
        """Return whether figures that prepare the data are masked in this run; refuse plain ones by the policy."""
        if self.preparation is not None and self.preparation[0] == header["run"]:
            return True
        if self.policy.secure and header.get("noise") is None:
            raise Refusal("policy", "its policy lets exact figures leave as masked sums alone (secure)")
        return False

    def _site_of(self, header: Json, stage: object = None) -> MaskingSite:
        """Return the sums that a message is about: those of the rounds, or of the preparation."""
        if (stage or header.get("stage")) == PREPARATION:
            if self.preparation is None or self.preparation[0] != header["run"]:
                raise Refusal("other-run", "it prepares no data by masked sums in this run")
            return self.preparation[1]
        self.check_run(header)
        if self.site is None:
            raise NoKeys("it has no keys for this run yet")
        return self.site

    def _keys(self, header: Json, payload: bytes) -> Outgoing:
        """Take new keys for the run, or for its preparation, and return the public one."""
        epoch, run = whole(header["epoch"], 0, MOST_EPOCHS, "epoch"), str(header["run"])
        if header.get("stage") == PREPARATION:
            note = self._site_of(header).new_keys(stage_name(run, PREPARATION), epoch, self.preparation_plan)
            return Outgoing(payload=note.to_bytes())
        self.check_run(header)
        return Outgoing(payload=self._site_of_rounds(run).new_keys(run, epoch, self.plan).to_bytes())

    def _site_of_rounds(self, run: str) -> MaskingSite:
        """Return the site's part of the masked sums of a run's rounds."""
        if self.identity is None:
            raise Refusal("policy", why_no_identity())
        if self.site is None or self.run != run:
            self.run = run
            record, is_noisy = self._record_of(run), self.noise is not None
            self.site = MaskingSite(
                self.identity, self.least_others, record, is_noisy, self.is_checked, self.plan_sites
            )
        return self.site

    def pause(self) -> dict[str, bytes]:
        """Return the keys and sums that live in memory alone, of the preparation and of the rounds."""
        kept = {} if self.preparation is None else {PREPARATION: self.preparation[1].to_bytes()}
        return kept | ({} if self.site is None or self.masking is None else {"": self.site.to_bytes()})

    def resume(self, run: str, kept: Mapping[str, bytes]) -> None:
        """Go on with what `pause` returned, in a run that was prepared and joined again."""
        if self.preparation is not None:
            self.preparation[1].restore(kept.get(PREPARATION, b""))
        if "" in kept and self.masking is not None:
            self._site_of_rounds(run).restore(kept[""])

    def _roster(self, header: Json, payload: bytes) -> Outgoing:
        try:
            self._site_of(header).accept(Roster.from_bytes(payload))
        except FoedusError as error:
            raise Refusal("policy", str(error).removesuffix(".")) from None
        return Outgoing()

    def again(self, header: Json, payload: bytes) -> Outgoing | None:
        """Return under new masks what a request with noise got before, or None: it is one release, and counts once."""
        if "mask" not in header or not (isinstance(header.get("run"), str) and packing.RUN.fullmatch(header["run"])):
            return None
        if (before := self.gate.words_before(header, payload)) is None:
            return None
        out, words = before
        number = header["round"] if header.get("ask") == "round" else None
        return Outgoing(out, self._masked(header, payload, number, words))

    def as_bytes(self, header: Json, payload: bytes, out: Outgoing) -> Outgoing:
        """Return an answer to a question as bytes under masks, in a run that has agreed on them.

        Words that leave with noise are kept, so that new masks need no new noise.
        """
        if (form := out.form) is None:
            return out
        if not self._masks(header):
            return out
        coding = Coding.of(form, self.parties)
        self._note_clipped(header, coding.point, out.answer)
        words = coding.words_of(out.answer)
        content = self._masked(header, payload, out.round, words)
        if not out.releases:
            return replace(out, payload=content, form=None)

        def before() -> None:
            out.before()
            self.gate.keep(header, payload, out.header, words)

        return replace(out, payload=content, form=None, before=before)

    def _masks(self, header: Json) -> bool:
        return self.prepares(header) if header["ask"] in OF_PREPARATION else self.masking is not None

    def _masked(self, header: Json, payload: bytes, round: int | None, words: np.ndarray) -> bytes:
        """Return the masked vector for the sum that the header of a message orders; it is bound to what was asked.

        Sums that are of no round have numbers beyond the rounds', so that none passes for that of a round.
        """
        prepares, phase = header["ask"] in OF_PREPARATION, header.get("phase")
        same = not isinstance(phase, int) or (phase < len(self.common) and self.common[phase])
        try:
            order = MaskOrder.from_bytes(bytes.fromhex(header["mask"]))
            if not prepares and order.round != (max(order.round, self.rounds) if round is None else round):
                raise FoedusError("the sum is of another round than the message.")
            site = self._site_of(header, PREPARATION if prepares else None)
            plan = (self.preparation_plan if prepares else self.plan) + self.histories[PREPARATION if prepares else ""]
            return site.mask(order, words, question_of(plan, header, payload if same else b"")).to_bytes()
        except (FoedusError, ValueError, KeyError, TypeError) as error:
            raise _refusal(error) from None

    def _reveal(self, header: Json, payload: bytes) -> Outgoing:
        try:
            return Outgoing(payload=self._site_of(header).reveal(RevealOrder.from_bytes(payload)).to_bytes())
        except FoedusError as error:
            raise _refusal(error) from None

    def total(self, header: Json, payload: bytes) -> tuple[int, np.ndarray]:
        """Return the number of a sum and the sum itself, which the site adds up from what it is shown."""
        try:
            opened = OpenSum.from_bytes(payload)
            return opened.round, self._site_of(header).total(opened)
        except FoedusError as error:
            raise _refusal(error) from None

    def _note_clipped(self, header: Json, point: FixedPoint, tree: PyTree) -> None:
        """Write into the site's own log, once for each kind of reply, that a number is beyond the range.

        The server hears of it under the masks alone: a refusal would tell it something about one site.
        """
        kind = f"a round of kind {header['phase']}" if header["ask"] == "round" else f"the answer to {header['ask']!r}"
        if kind not in self.clip_notes and (excess := beyond_range(point, tree)) is not None:
            self.clip_notes.add(kind)
            field, value = excess
            self.gate.note(f"{field} in {kind} would hold {value:.6g}, {remedy(point)}")


def question_of(plan: bytes, header: Json, payload: bytes) -> bytes:
    """Return the digest of what a message asks: what is the same in the messages to all sites of a sum."""
    fields = {name: value for name, value in header.items() if name not in OF_ONE_SITE}
    return hashlib.sha256(plan + json.dumps(fields, sort_keys=True).encode() + b"\0" + payload).digest()


def plan_of(*parts: object) -> bytes:
    """Return the digest of what all sites have agreed to alike: masks cancel only among sites with the same plan."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def _refusal(error: Exception) -> Refusal:
    """Return the refusal for what a masked sum does not allow; without keys the server can offer new ones."""
    if isinstance(error, FoedusError):
        return Refusal("keys" if isinstance(error, NoKeys) else "breach", str(error).removesuffix("."))
    return Refusal("unknown", "it is asked for its part of a masked sum in no form that it knows")
