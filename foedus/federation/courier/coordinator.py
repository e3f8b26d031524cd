"""The coordinator's side: a plan, and after it exchange by exchange what the sites' files say and what is asked next.

    PLAN/README.txt             what to do with the folder
    PLAN/plan.json              what is asked, for everybody to read
    PLAN/site-NAME/             the files to and from one site, and nothing of another
    PLAN/coordinator/           private: keys, the plan as it is played, copies of all files

A file to a site is copied there once all files of its exchange are in PLAN/coordinator, and never changes again: after
a crash, and where a file was lost, the same bytes are written once more.
"""

import json
import math
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foedus.base.errors import FoedusError
from foedus.base.files import Json, alone, write_whole
from foedus.federation.courier.file import ANSWER, COORDINATOR, END, QUESTION, CourierFile, Unreadable, messages_of
from foedus.federation.courier.keys import ProjectKeys, fingerprint_of, request_is_signed, sites_of_names
from foedus.federation.courier.transcript import Awaited, Foresight, Transcript
from foedus.federation.exchange import FIRST_EPOCHS, Paused
from foedus.federation.order import Order, Patience, Result
from foedus.federation.plan import Request, greetings_of, plan_digest, read, sign
from foedus.federation.play import play
from foedus.sums.identity import SITE, is_signed_by
from foedus.sums.masks import require_cryptography

PRIVATE, SENT, RECEIVED = "coordinator", "sent", "received"
WORK, SETTINGS, CERTIFICATES = "order.npz", "settings.json", "certificates.json"
RESULT = "result.npz"
README = """\
A run whose messages are files that people carry.

plan.json      what is asked, of whom, and what leaves. Everybody may read it.
site-NAME      the files for one site, and from it. Give each site its own folder, and no other.
coordinator    keys, and copies of all files. It is for the coordinator alone.
result         the model, its certificate and a report, once the run is over.

At a site, in the folder that was given to it, with a table and a folder of the site's own:
    foedus courier answer . --data mine.csv --home my-foedus
It shows what would leave, asks, and writes one file, which goes back to the coordinator.
The fingerprint of this project is {fingerprint}; the coordinator reads it to you by telephone.

At the coordinator, when files have come back into these folders:
    foedus courier next .
"""
TRIES = 1000  # an answer that is refused is asked for again, and it is people who give up


@dataclass
class Progress:
    """What became of looking at the files.

    Args:
        exchange: the number of the exchange that the run is in.
        missing: the sites whose answers are awaited.
        written: the files that were written now.
        lines: a sentence for each file that was not taken, and for what the run says of answers.
        strangers: by site, the fingerprint of a key that nobody has accepted yet.
        result: how the run has ended.
        refused: why it cannot go on.
    """

    exchange: int = 0
    missing: tuple[str, ...] = ()
    written: list[Path] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    strangers: dict[str, str] = field(default_factory=dict)
    result: Result | None = None
    refused: str = ""


class CourierPlan:
    """A plan in its folder; `make` writes one, and `next` goes on with what has come."""

    def __init__(self, folder: Path):
        self.folder, self.private = Path(folder), Path(folder) / PRIVATE
        path = self.private / SETTINGS
        if not path.is_file():
            raise FoedusError(f"{folder} holds no plan of a coordinator; 'foedus courier plan' makes one.")
        self.settings: Json = json.loads(path.read_text(encoding="utf-8"))
        self.modules = tuple(self.settings["modules"])
        self.work = read((self.private / WORK).read_bytes(), self.modules)
        self.keys = ProjectKeys.read(self.private / "keys")
        self.sites, self.run, self.digest = self.work.sites, self.work.run, str(self.settings["plan"])

    @staticmethod
    def make(
        work: Order | Request[Any],
        folder: Path,
        patience: Mapping[str, object] | None = None,
        modules: tuple[str, ...] = (),
        words: Json | None = None,
        keys: Path | None = None,
    ) -> "CourierPlan":
        """Write a plan and the first files.

        Args:
            work: what is to be played.
            folder: for the plan; it must be new, or empty.
            patience: settings of `Patience` about answers: `minimum`, `norm`, `factor`, `offences`.
            modules: beside foedus, whose functions the plan names.
            words: the plan in words, for people.
            keys: the keys of an earlier plan of the same project ("PLAN/coordinator/keys"); new ones when left out.
        """
        require_cryptography()
        sites_of_names(work.sites)
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FoedusError(f"{folder} is not empty; choose a new folder for the plan.")
        private = folder / PRIVATE
        private.mkdir(parents=True, mode=0o700)
        project = ProjectKeys.new(private / "keys") if keys is None else ProjectKeys.read(keys).copy(private / "keys")
        greetings = greetings_of(work)
        digest = plan_digest(greetings)
        settings = {
            "plan": digest,
            "epoch": secrets.randbelow(FIRST_EPOCHS),
            "patience": dict(patience or {}),
            "modules": list(modules),
            "signatures": sign(greetings, project.coordinator),
            "words": dict(words or {}),
        }
        write_whole(private / WORK, work.to_bytes(), private=True)
        public = {"run": work.run, "plan": digest, "sites": list(work.sites), "project": project.fingerprint}
        write_whole(folder / "README.txt", README.format(fingerprint=project.fingerprint).encode())
        write_whole(folder / "plan.json", json.dumps(public | dict(words or {}), indent=1).encode())
        for part in (SENT, RECEIVED):
            (private / part).mkdir(mode=0o700)
        write_whole(private / SETTINGS, json.dumps(settings).encode(), private=True)  # the last: now it is a plan
        plan = CourierPlan(folder)
        plan.next()
        return plan

    # --- what is on the disk ---

    def place(self, site: str) -> Path:
        """Return the folder of the files to and from one site."""
        return self.folder / f"site-{site}"

    @property
    def exchanges(self) -> list[Json]:
        """What is known of each exchange so far: the sites that were asked, and whom the run goes on without."""
        count = len(list((self.private / SENT).glob("*.json")))
        return [json.loads((self.private / SENT / f"{n:03d}.json").read_text()) for n in range(1, count + 1)]

    def question(self, number: int, site: str) -> CourierFile:
        """Return the file of an exchange to a site, from the coordinator's own copies."""
        return CourierFile.read((self.private / SENT / f"{number:03d}-{site}.foedus").read_bytes())

    def answer(self, number: int, site: str) -> CourierFile | None:
        """Return the file of a site that was taken for an exchange, or None."""
        path = self.private / RECEIVED / f"{number:03d}-{site}.foedus"
        return CourierFile.read(path.read_bytes()) if path.is_file() else None

    @property
    def certificates(self) -> dict[str, str]:
        """The certificates of the sites whose keys were accepted."""
        path = self.private / CERTIFICATES
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def result(self) -> Result | None:
        """The result, once there is one."""
        path = self.private / RESULT
        return Result.from_bytes(path.read_bytes()) if path.is_file() else None

    # --- what has come ---

    def next(
        self,
        trust: Mapping[str, str] | None = None,
        without: Iterable[str] = (),
        more: Iterable[Path] = (),
    ) -> Progress:
        """Take what has come; write the next files once all answers are there, or the result.

        Args:
            trust: by site, the fingerprint of the key that a person has compared; a site's first file needs it.
            without: sites that are silent in this exchange, and that the run goes on without where its method allows.
            more: further folders to look for files in.
        """
        with alone(self.private / "lock"):
            progress = Progress()
            self._take(progress, dict(trust or {}), more)
            exchanges = self.exchanges
            progress.exchange = len(exchanges)
            if (result := self.result) is not None:
                progress.result = result
            elif exchanges:
                progress.missing = self._missing(exchanges[-1], len(exchanges))
                if progress.missing and {*without} >= {*progress.missing}:
                    self._go_without(progress, exchanges)
            if not progress.missing and progress.result is None and not progress.strangers:
                self._play(progress)
            self._deliver(progress)
            return progress

    def _missing(self, exchange: Json, number: int) -> tuple[str, ...]:
        silent = exchange.get("silent", [])
        return tuple(s for s in exchange["sites"] if s not in silent and self.answer(number, s) is None)

    def _take(self, progress: Progress, trust: dict[str, str], more: Iterable[Path]) -> None:
        """Keep a copy of each answer that fits; say of each other file in a sentence why it is not taken."""
        places = [self.folder, *(self.place(site) for site in self.sites), *map(Path, more)]
        certificates, seen = self.certificates, set[str]()
        for path in sorted(path for place in places if place.is_dir() for path in place.glob("*.foedus")):
            try:
                one = CourierFile.read(path.read_bytes())
                if one.sender == COORDINATOR or one.digest in seen:
                    continue
                seen.add(one.digest)
                self._check(one, certificates, trust, progress)
            except OSError as error:
                progress.lines.append(f"{path}: it cannot be read ({error.strerror}).")
            except FoedusError as error:
                progress.lines.append(f"{path}: {error}")

    def _check(self, one: CourierFile, certificates: dict[str, str], trust: dict[str, str], progress: Progress) -> None:
        """Take one file, or raise with the reason why not; a file that was taken before, or is late, says nothing."""
        if one.run != self.run or one.plan != self.digest:
            raise Unreadable(f"it is of another plan (run {one.run}); nothing of it is used.")
        if one.sender not in self.sites or one.kind != ANSWER or one.to != COORDINATOR:
            raise Unreadable("it is from nobody who was asked; nothing of it is used.")
        site = one.sender
        if site in certificates:
            if not is_signed_by(SITE, site, certificates[site].encode(), self.keys.root, one.statement, one.signature):
                raise Unreadable(f"it is not signed by {site!r}, or was changed on its way; have it sent again.")
        else:
            self._meet(one, certificates, trust, progress)
            if site not in certificates:
                return
        exchanges = self.exchanges
        if one.exchange > len(exchanges) or site not in exchanges[one.exchange - 1]["sites"]:
            raise Unreadable(f"it answers exchange {one.exchange}, in which {site!r} was asked nothing.")
        taken = self.answer(one.exchange, site)
        if taken is not None:
            if taken.digest != one.digest:
                raise Unreadable(
                    f"{site!r} has answered exchange {one.exchange} before, otherwise; the first answer counts."
                )
            return
        if site in exchanges[one.exchange - 1].get("silent", []):
            raise Unreadable(f"it comes too late: the run went on without {site!r} in exchange {one.exchange}.")
        question = self.question(one.exchange, site)
        if one.answers != question.digest or len(one.messages) > len(question.messages):
            raise Unreadable(f"it answers another file than the one of exchange {one.exchange}.")
        write_whole(self.private / RECEIVED / f"{one.exchange:03d}-{site}.foedus", one.content, private=True)

    def _meet(self, one: CourierFile, certificates: dict[str, str], trust: dict[str, str], progress: Progress) -> None:
        """Certify the key of a site's first file, where a person has compared its fingerprint."""
        site = one.sender
        request, certificate = one.more.get("request", ""), one.more.get("certificate", "")
        if certificate:
            if not is_signed_by(SITE, site, certificate.encode(), self.keys.root, one.statement, one.signature):
                raise Unreadable(f"it is not signed by {site!r} with a certificate of this project.")
        else:
            if not request_is_signed(request, site, one.statement, one.signature):
                raise Unreadable(f"it is not signed with a key of {site!r}, or was changed on its way.")
            fingerprint = fingerprint_of(request)
            if trust.get(site) != fingerprint:
                if progress.strangers.get(site, fingerprint) != fingerprint:
                    raise Unreadable(f"a second key passes for that of {site!r}; remove the wrong file.")
                progress.strangers[site] = fingerprint
                return
            certificate = self.keys.certify(site, request)
        certificates[site] = certificate
        write_whole(self.private / CERTIFICATES, json.dumps(certificates).encode(), private=True)

    def _go_without(self, progress: Progress, exchanges: list[Json]) -> None:
        """Note that the run goes on without the sites that have not answered, where its method allows it."""
        number, missing = len(exchanges), progress.missing
        asks = {one.header["ask"] for site in missing for one in self.question(number, site).messages}
        minimum = self.settings["patience"].get("minimum")
        here = len(exchanges[-1]["sites"]) - len(missing)
        if asks != {"round"} or minimum is None or here < minimum:
            what = "a round" if asks == {"round"} else "this exchange"
            fewest = "of all sites" if minimum is None or asks != {"round"} else f"of {minimum} sites at the least"
            raise FoedusError(f"{what} needs the answers {fewest}, and {', '.join(missing)} has not answered.")
        record = exchanges[-1] | {"silent": sorted({*exchanges[-1].get("silent", []), *missing})}
        write_whole(self.private / SENT / f"{number:03d}.json", json.dumps(record).encode(), private=True)
        progress.missing = ()

    # --- what is asked next ---

    def _play(self, progress: Progress) -> None:
        """Play the run from its beginning with all answers, up to what is asked next."""
        transcript = Transcript(self._foresight())

        def note(line: str) -> None:
            if not transcript.pending:  # what is said after that follows from answers that nobody has given yet
                progress.lines.append(line)

        for number, exchange in enumerate(self.exchanges, start=1):
            for site in exchange["sites"]:
                answer = self.answer(number, site)
                replies = None if answer is None else [one.content for one in answer.messages]
                transcript.add(site, [one.content for one in self.question(number, site).messages], replies)
        transcript.begin()
        patience = Patience(
            timeout=0.0, hello=0.0, probe=math.inf, keep_every=math.inf, misses=TRIES, **self.settings["patience"]
        )
        try:
            with tempfile.TemporaryDirectory(prefix="foedus-") as scratch:
                result = play(
                    self.work, Path(scratch) / "run", transcript.ask, patience, note, lambda: False,
                    signatures=self.settings["signatures"], first_epoch=int(self.settings["epoch"]),
                    prepared=transcript.foresight.prepared,
                )  # fmt: skip
            if transcript.pending:
                raise transcript.awaited
        except Awaited as awaited:
            self._write(progress, awaited.messages, transcript)
        except Exception as error:
            if transcript.pending:  # what was foreseen led nowhere: what is awaited is awaited all the same
                self._write(progress, transcript.awaited.messages, transcript)
            elif isinstance(error, FoedusError | Paused):
                progress.refused = str(error)
            else:
                raise
        else:
            self._end(progress, result, transcript.last)

    def _foresight(self) -> Foresight:
        if not isinstance(self.work, Request):
            return Foresight()
        plan = self.work.plan
        return Foresight(tuple(one.name for one in plan.holdout.rates), None if plan.secure else plan.sketch)

    def _write(self, progress: Progress, messages: Mapping[str, tuple[bytes, ...]], transcript: Transcript) -> None:
        """Write the files of the next exchange: first all of them into the private folder, then each to its site."""
        if (site := transcript.astray()) is not None:
            raise FoedusError(
                f"played again on this machine, the run asks {site!r} something else than it did before; go on with "
                "the versions of foedus and JAX with which it was begun."
            )
        number = len(self.exchanges) + 1
        for site, contents in messages.items():
            self._sign(QUESTION, number, site, contents)
        record = {"sites": list(messages)}
        write_whole(self.private / SENT / f"{number:03d}.json", json.dumps(record).encode(), private=True)
        progress.exchange, progress.missing = number, tuple(messages)

    def _end(self, progress: Progress, result: Result, last: Mapping[str, bytes]) -> None:
        """Keep the result, and tell the sites that the run is over, so that they forget its keys and states."""
        number = len(self.exchanges) + 1
        for site, content in last.items():
            self._sign(END, number, site, (content,), {"words": result.conclusion.reason})
        write_whole(self.private / RESULT, result.to_bytes(), private=True)
        progress.result = result

    def _sign(
        self, kind: str, number: int, site: str, contents: Iterable[bytes], more: Mapping[str, str] | None = None
    ) -> None:
        words = dict(more or {}) | {"root": self.keys.root.decode()}
        words |= {"certificate": self.keys.coordinator.certificate.decode()}
        if (given := self.certificates.get(site)) is not None:
            words |= {"given": given}
        one = CourierFile(
            kind, self.run, self.digest, number, COORDINATOR, site, messages_of([*contents]), more=words
        ).signed(self.keys.coordinator)
        write_whole(self.private / SENT / f"{number:03d}-{site}.foedus", one.content, private=True)

    def _deliver(self, progress: Progress) -> None:
        """Put the newest files where the sites' are, as far as they are not there."""
        number = len(self.exchanges) + (progress.result is not None)
        for site in self.sites:
            path = self.private / SENT / f"{number:03d}-{site}.foedus"
            if not path.is_file():
                continue
            content = path.read_bytes()
            target = self.place(site) / CourierFile.read(content).name
            target.parent.mkdir(exist_ok=True)
            if not target.is_file() or target.read_bytes() != content:
                write_whole(target, content)
                progress.written.append(target)
