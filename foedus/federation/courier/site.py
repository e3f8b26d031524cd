"""A site's side: reads the newest file of a run, works out what would leave, and writes one file with what leaves.

    HOME/local/foedus.toml      the site file: the data, and the policy
    HOME/startup/client.key     the site's key, which it has made itself and which stays here
    HOME/foedus-runs/           ledger, log of messages, approvals, and what runs keep, as in a kit
    HOME/courier/PROJECT/       the project's root and the site's certificate there; for each run the files so far

A home lies where no other party can read it. It holds the ledger of the site's privacy, so a site has one home. What
the next answer needs is on the disk before a file leaves: the ledger first, then the state of the run, then a copy of
the file, and then the file. After a crash at any point the same command goes on.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json, alone, write_whole
from foedus.federation import packing
from foedus.federation.approval import APPROVED, WAITING, Approvals
from foedus.federation.courier.file import (
    ANSWER,
    COORDINATOR,
    END,
    QUESTION,
    CourierFile,
    Message,
    Unreadable,
    plain_arrays,
)
from foedus.federation.courier.keys import (
    certificate_fingerprint,
    certificate_is_for,
    public_fingerprint,
    request_of,
)
from foedus.federation.gate import Outgoing
from foedus.federation.names import RUNS
from foedus.federation.plan import plan_digest
from foedus.federation.policy import SITE_FILE, SiteFile
from foedus.federation.site import OPENING, SiteSession
from foedus.federation.site_ledger import Release, SiteLedger
from foedus.sums.authority import key_of_pem, key_to_pem, new_key
from foedus.sums.identity import COORDINATOR as COORDINATOR_ROLE
from foedus.sums.identity import SITE, SiteIdentity, is_signed_by
from foedus.sums.masks import require_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY, NAME, CERTIFICATE, ROOT_FILE = "startup/client.key", "courier/site.json", "site.crt", "root.pem"
OVER = "over.foedus"  # the file that said that a run is over
HERE_ALONE = ("failed", "lost", "ledger")  # codes of refusals that concern nobody but the site
NOT_FIGURES = ("versions", "schema", "releases", "answers")  # parts of a reply's header that are about no row
WAITS = "waits for the approval"  # in a line of the log about what whoever reads the preview decides
STATES_THE_RUN = ("columns", "hello")


@dataclass(frozen=True)
class Leaving:
    """One answer that would leave, before it is masked: what a person at the site sees of it.

    Args:
        ask: the kind of the question.
        header: words of the protocol, and figures that travel as words.
        names: of the arrays.
        arrays: the numbers.
        exact: whether these are figures of the data without noise.
        releases: what it releases with noise.
        is_masked: whether only the sum over all sites will be seen.
        rows: how many rows the figures are about; None: about none.
    """

    ask: str
    header: Json
    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    exact: bool
    releases: tuple[Release, ...]
    is_masked: bool
    rows: int | None

    @property
    def count(self) -> int:
        """How many numbers leave."""
        return sum(array.size for array in self.arrays) + _numbers_in(self.header)


@dataclass(frozen=True)
class Preview:
    """All that a site would send in one file, worked out on a copy of its records: nothing is charged or has left.

    Args:
        question: the file that is answered.
        leaving: by message.
        refusals: messages that the site refuses, each as a sentence.
        failures: what keeps the site from answering at all.
        ahead: kinds of questions that were asked before the site had told its columns, and that do not fit them.
        reasons: what the site's own log says of refusals and failures; it may speak of the data.
        statement: the experiment in plain words, where it is stated in this file.
        size: of the file, in bytes.
        epsilon: what all runs have cost so far, with this file, and this run alone with it.
        delta: at which these are computed.
    """

    question: CourierFile
    leaving: tuple[Leaving, ...]
    refusals: tuple[str, ...]
    failures: tuple[str, ...]
    ahead: tuple[str, ...]
    reasons: tuple[str, ...]
    statement: tuple[str, ...]
    size: int
    epsilon: tuple[float, float, float]
    delta: float


@dataclass
class Inbox:
    """What a look into a folder has found: the file to answer next, and a sentence for each that is not."""

    question: CourierFile | None = None
    path: Path | None = None
    lines: list[str] = field(default_factory=list)
    stranger: str = ""  # the fingerprint of a project that nobody at this site has accepted yet
    again: Path | None = None  # an answer that was lost, and was written once more
    over: str = ""  # a run that has ended, as a sentence


@dataclass
class _Answers:
    """What a session has answered to the messages of a file."""

    messages: list[Message] = field(default_factory=list)
    leaving: list[Leaving] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    statement: list[str] = field(default_factory=list)


class CourierSite:
    """A site whose files are in folders; see the module."""

    def __init__(self, home: Path, note: Callable[[str], None] = lambda line: None):
        require_cryptography()
        self.home, self.records, self.note = Path(home), Path(home) / RUNS, note
        self.records.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sessions: dict[Path, tuple[int, SiteSession]] = {}  # by a run's folder, as after this exchange

    @property
    def site_file(self) -> SiteFile:
        """The site file: the data and the policy."""
        return SiteFile.read(self.home / "local" / SITE_FILE)

    def alone(self) -> AbstractContextManager[None]:
        """Keep other processes of this site from answering at the same time."""
        return alone(self.home / "courier.lock")

    @property
    def name(self) -> str | None:
        """The name of this site, once it has answered a file."""
        path = self.home / NAME
        return str(json.loads(path.read_text())["site"]) if path.is_file() else None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of this site's key."""
        return public_fingerprint(self._key.public_key())

    # --- what has come ---

    def look(self, folder: Path, site: str | None = None, trust: str | None = None) -> Inbox:
        """Return what is to be answered among the files in a folder.

        Args:
            folder: with the files; those of this site may be in a folder inside it, called site-NAME.
            site: the site's name, where the folder has files for several.
            trust: the fingerprint of the project that a person has compared; a project's first file needs it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FoedusError(f"{folder} is no folder.")
        inbox, newest, mine = Inbox(), dict[str, tuple[CourierFile, Path]](), site or self.name
        if self.name is not None and mine != self.name:
            raise FoedusError(f"{self.home} is the home of {self.name!r}, and not of {mine!r}.")
        for path in sorted([*folder.glob("*.foedus"), *folder.glob("site-*/*.foedus")]):
            try:
                one = CourierFile.read(path.read_bytes())
                if one.sender != COORDINATOR or (mine is not None and one.to != mine):
                    continue
                if not self._is_known(one, inbox, trust):
                    continue
            except OSError as error:
                inbox.lines.append(f"{path}: it cannot be read ({error.strerror}).")
                continue
            except FoedusError as error:
                inbox.lines.append(f"{path}: {error}")
                continue
            run = f"{one.to} {self._place(one)}"
            if run not in newest or newest[run][0].exchange < one.exchange:
                newest[run] = one, path
        if len({one.to for one, _ in newest.values()}) > 1:
            names = ", ".join(sorted({one.to for one, _ in newest.values()}))
            raise FoedusError(f"{folder} has files for {names}; say with --site which of them this is.")
        for one, path in newest.values():
            self._sort(one, path, inbox)
        return inbox

    def _is_known(self, one: CourierFile, inbox: Inbox, trust: str | None) -> bool:
        """Return whether a file is of a project that is known here; raise where its coordinator has not signed it."""
        root, certificate = one.more.get("root", "").encode(), one.more.get("certificate", "").encode()
        if not is_signed_by(COORDINATOR_ROLE, "", certificate, root, one.statement, one.signature):
            raise Unreadable("it is not signed by the coordinator of a project, or was changed on its way.")
        place, fingerprint = self._project(one), certificate_fingerprint(root)
        if not (place / ROOT_FILE).is_file():
            if trust != fingerprint:
                inbox.stranger = fingerprint
                return False
            place.mkdir(parents=True, mode=0o700, exist_ok=True)
            write_whole(place / ROOT_FILE, root, private=True)
        elif (place / ROOT_FILE).read_bytes() != root:
            raise Unreadable("it is of another project than the one that this site knows.")
        return True

    def _sort(self, one: CourierFile, path: Path, inbox: Inbox) -> None:
        """Note whether the newest file of a run is to be answered, was answered, or cannot be."""
        place = self._place(one)
        number = _answered(place)
        if (place / OVER).is_file():
            inbox.over = f"run {one.run} is over."
        elif one.exchange <= number:
            if (place / f"in-{number:03d}.foedus").read_bytes() == one.content:
                inbox.again = self._write_out(place, number, path.parent) or inbox.again
            elif one.exchange == number:
                inbox.lines.append(f"{path}: another file of this number was answered before; it is refused.")
        elif one.kind == END and number:
            self._close(one)
            inbox.over = f"run {one.run} is over: {one.more.get('words', '')}."
        elif one.kind != QUESTION or not one.messages:
            inbox.lines.append(f"{path}: it asks nothing.")
        elif number == 0 and one.exchange > 1:
            inbox.lines.append(f"{path}: it is of exchange {one.exchange}, and the first file of the run is missing.")
        elif number and CourierFile.read((place / "in-001.foedus").read_bytes()).plan != one.plan:
            inbox.lines.append(f"{path}: it is of another plan than the one that this site has accepted.")
        elif inbox.question is None:
            inbox.question, inbox.path = one, path

    # --- what would leave, and what leaves ---

    def preview(self, one: CourierFile) -> Preview:
        """Return what would leave, worked out on a copy of the site's records that is deleted afterwards."""
        with self.alone(), self._copy() as records:
            delta, before = self.site_file.policy.max_delta, SiteLedger(records)
            cost = before.total(delta)
            log: list[str] = []
            session = self._resumed(one, records, log.append)
            answers = self._answers(session, one, records, with_statement=True)
            reasons = [line for line in dict.fromkeys(log) if answers.refusals or answers.failures]
            ledger = SiteLedger(records)
            size = len(self._signed(one, answers).content)
            epsilon = (cost, ledger.total(delta), ledger.total(delta, one.run))
        return Preview(
            one, tuple(answers.leaving), tuple(answers.refusals), tuple(answers.failures), tuple(answers.ahead),
            tuple(line for line in reasons if WAITS not in line), tuple(answers.statement), size, epsilon, delta,
        )  # fmt: skip

    def answer(self, one: CourierFile, folder: Path) -> Path:
        """Answer a file; return the file that is to be carried back, which is in `folder`."""
        with self.alone():
            place = self._place(one)
            if one.exchange <= _answered(place):
                raise FoedusError(f"exchange {one.exchange} of run {one.run} was answered before.")
            self._begin(one, place)
            number, session = self.sessions.pop(place, (0, None))
            if session is None or number != _answered(place):
                session = self._resumed(one, self.records)
            answers = self._answers(session, one, self.records)
            if answers.failures:
                raise FoedusError(f"nothing was written: {'; '.join(answers.failures)}.")
            self._remember(one, session, answers, place)
            self.sessions[place] = one.exchange, session
            path = self._write_out(place, one.exchange, Path(folder))
            assert path is not None
            return path

    def _begin(self, one: CourierFile, place: Path) -> None:
        """Make the folder of a run, and note the site's name and certificate."""
        place.mkdir(parents=True, mode=0o700, exist_ok=True)
        if self.name is None:
            write_whole(self.home / NAME, json.dumps({"site": one.to}).encode(), private=True)
        certificate, root = one.more.get("given", "").encode(), one.more["root"].encode()
        if certificate and not self._certificate(one):
            statement, key = b"foedus courier: a certificate", self._key
            is_ours = certificate_is_for(certificate, key)
            if not (is_ours and is_signed_by(SITE, one.to, certificate, root, statement, key.sign(statement))):
                raise FoedusError(f"the certificate in the file is not for the key of this site ({self.home / KEY}).")
            write_whole(self._project(one) / CERTIFICATE, certificate, private=True)
            self.sessions.pop(place, None)  # it has signed with the bare key

    def _remember(self, one: CourierFile, session: SiteSession, answers: _Answers, place: Path) -> None:
        """Keep what the next answer needs, and then a copy of this one, by which it counts as given."""
        state, number = session.pause(), one.exchange
        write_whole(place / f"session-{number:03d}.npz", state, private=True)
        write_whole(place / f"in-{number:03d}.foedus", one.content, private=True)
        write_whole(place / f"out-{number:03d}.foedus", self._signed(one, answers).content, private=True)
        for path in place.glob("session-*.npz"):
            if path.name != f"session-{number:03d}.npz":
                path.unlink(missing_ok=True)

    def _write_out(self, place: Path, number: int, folder: Path) -> Path | None:
        """Write the copy of an answer to where it is carried from; None where it is there."""
        content = (place / f"out-{number:03d}.foedus").read_bytes()
        target = folder / CourierFile.read(content).name
        if target.is_file() and target.read_bytes() == content:
            return None
        write_whole(target, content)
        return target

    def _close(self, one: CourierFile) -> None:
        """Forget the keys and states of a run that is over."""
        place = self._place(one)
        with self.alone():
            session = self._resumed(one, self.records)
            for message in one.messages:
                session.answer(message.content)
            for path in place.glob("session-*.npz"):
                path.unlink(missing_ok=True)
            write_whole(place / OVER, one.content, private=True)

    # --- a session ---

    def _resumed(self, one: CourierFile, records: Path, note: Callable[[str], None] | None = None) -> SiteSession:
        """Return the session of a file's run as it was after the last answer."""
        root = one.more["root"].encode()
        identity = SiteIdentity(one.to, self._key, self._certificate(one), root, COORDINATOR)
        session = SiteSession(one.to, self.site_file, records, note or self.note, identity, root)
        place = self._place(one)
        if number := _answered(place):
            state = (place / f"session-{number:03d}.npz").read_bytes()
            session.resume(_opening(place), state)
        return session

    def _answers(self, session: SiteSession, one: CourierFile, records: Path, with_statement: bool = False) -> _Answers:
        """Answer the messages of a file, up to the first that is refused."""
        answers, asks = _Answers(), list[str]()
        outgoing: list[tuple[Json, Outgoing]] = []
        session.watch = lambda header, out: outgoing.append((header, out))
        try:
            for message in one.messages:
                self._check_plan(message, one)
                if with_statement and message.header["ask"] in STATES_THE_RUN:
                    answers.statement += self._statement(session, message, records)
                outgoing.clear()
                reply = session.answer(message.content)
                header, payload = packing.unseal(reply)
                if header["code"] == "waiting":  # whoever lets this file be answered has seen what it states
                    _approve(records, one.run)
                    reply = session.answer(message.content)
                    header, payload = packing.unseal(reply)
                if header["code"] in HERE_ALONE:
                    answers.failures.append(str(header["sentence"]))
                    break
                if header["code"] == "unknown" and "columns" in asks:  # it will be asked again, by what was told
                    answers.ahead.append(str(message.header["ask"]))
                    break
                asks.append(message.header["ask"])
                out = outgoing[-1][1] if outgoing else None
                answers.messages.append(Message(reply, _arrays_of(payload, out)))
                if header["code"] != "ok":
                    answers.refusals.append(f"{message.header['ask']}: {header['sentence']}")
                    break
                if out is not None:
                    answers.leaving.append(_leaving(session, message.header, out))
        finally:
            session.watch = lambda header, out: None
        return answers

    @staticmethod
    def _statement(session: SiteSession, message: Message, records: Path) -> list[str]:
        """Return the experiment in plain words, as a person who is to approve it sees it."""
        policy, known = session.policy, {one.id for one in Approvals(records).all()}
        session.policy = replace(policy, approve="ask")
        session.answer(message.content)
        session.policy = policy
        news = [one for one in Approvals(records).all() if one.id not in known]
        return [line for one in news for line in one.summary]

    @staticmethod
    def _check_plan(message: Message, one: CourierFile) -> None:
        """Raise where the plan that a file states is not the one of its digest, which all sites can compare."""
        header = message.header
        if header["ask"] == "columns" and plan_digest(dict.fromkeys(map(str, header["sites"]), header)) != one.plan:
            raise FoedusError("the file states another plan than the one that its digest names.")

    def _signed(self, one: CourierFile, answers: _Answers) -> CourierFile:
        certificate = self._certificate(one)
        key = self._key
        more = {"certificate": certificate.decode()} if certificate else {"request": request_of(one.to, key)}
        answer = CourierFile(
            ANSWER, one.run, one.plan, one.exchange, one.to, COORDINATOR, tuple(answers.messages), one.digest, more
        )
        return answer.signed(key)

    # --- what is on the disk ---

    @property
    def _key(self) -> "Ed25519PrivateKey":
        """The site's key, which is made when it is first needed."""
        path = self.home / KEY
        if not path.is_file():
            path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            write_whole(path, key_to_pem(new_key()), private=True)
        return key_of_pem(path.read_bytes(), str(path))

    def _certificate(self, one: CourierFile) -> bytes:
        path = self._project(one) / CERTIFICATE
        return path.read_bytes() if path.is_file() else b""

    def _project(self, one: CourierFile) -> Path:
        return self.home / "courier" / certificate_fingerprint(one.more["root"].encode()).replace(" ", "")[:16]

    def _place(self, one: CourierFile) -> Path:
        return self._project(one) / f"run-{one.run}"

    @contextmanager
    def _copy(self) -> Iterator[Path]:
        """Give a copy of the site's records, for as long as it is needed."""
        with tempfile.TemporaryDirectory(prefix="preview-", dir=self.home, ignore_cleanup_errors=True) as folder:
            yield Path(shutil.copytree(self.records, Path(folder) / RUNS))


def _answered(place: Path) -> int:
    """Return the number of the last exchange that was answered, from the copies in a run's folder."""
    return max((int(path.stem.removeprefix("out-")) for path in place.glob("out-*.foedus")), default=0)


def _opening(place: Path) -> list[bytes]:
    """Return the messages that state a run, as far as the site has agreed to them."""
    messages: list[bytes] = []
    for path in sorted(place.glob("out-*.foedus")):
        question = place / path.name.replace("out-", "in-")
        questions, replies = (CourierFile.read(one.read_bytes()).messages for one in (question, path))
        for message, reply in zip(questions, replies, strict=False):
            if message.header["ask"] in OPENING and reply.header["code"] == "ok":
                messages.append(message.content)
    return messages


def _approve(records: Path, run: str) -> None:
    """Approve what is asked in a run: a person has agreed to the file that asks it."""
    approvals = Approvals(records)
    for request in approvals.all():
        if request.run == run and request.decision == WAITING:
            approvals.decide(request.id, APPROVED)


def _leaving(session: SiteSession, header: Json, out: Outgoing) -> Leaving:
    names = () if out.form is None else _names(out.form.shape)
    arrays = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(out.answer)) if out.form is not None else ()
    is_masked = "mask" in header
    rows = _rows(session, header["ask"]) if out.exact or out.releases or out.form is not None else None
    return Leaving(header["ask"], dict(out.header), names, arrays, out.exact, tuple(out.releases), is_masked, rows)


def _rows(session: SiteSession, ask: str) -> int | None:
    """Return how many of the site's rows an answer is about."""
    tables = session.tables
    if tables is None:
        data = session.arrays or {}
        return max((len(value) for value in data.values() if np.ndim(value)), default=None)
    if tables.evaluation is not None and ask in ("evaluate", "rate"):
        return len((tables.evaluation.held_out if ask == "evaluate" else tables.evaluation.threshold)[1])
    return tables.table.rows


def _names(shape: object) -> tuple[str, ...]:
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(shape)[0]]
    return tuple(jax.tree_util.keystr(path, simple=True, separator=".") or "numbers" for path in paths)


def _arrays_of(payload: bytes, out: Outgoing | None) -> tuple[Json, ...]:
    """Describe the arrays of a reply, by the form of the answer where nothing masks it."""
    if out is None or out.form is None:
        return plain_arrays(payload)
    leaves = jax.tree.leaves(out.form.shape)
    if sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in leaves) != len(payload):
        return ({"name": "the answer, under masks", "dtype": "|u1", "shape": [len(payload)]},)
    return tuple(
        {"name": name, "dtype": np.dtype(leaf.dtype).newbyteorder("<").str, "shape": [int(n) for n in leaf.shape]}
        for name, leaf in zip(_names(out.form.shape), leaves, strict=True)
    )


def _numbers_in(value: object) -> int:
    """How many figures of the data a header holds; whether a number is one is not for it to say, so all count."""
    if isinstance(value, dict):
        return sum(_numbers_in(part) for name, part in value.items() if name not in NOT_FIGURES)
    if isinstance(value, list | tuple):
        return sum(map(_numbers_in, value))
    return int(isinstance(value, int | float) and not isinstance(value, bool))
