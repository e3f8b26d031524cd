"""SiteSession: a site's side of a run. Bytes in, bytes out; the data and the client state never leave it.

A site keeps its state after each round it played under that round's number, and the server says with each message which
one it goes on from (`since`, the round of the last reply it accepted). A reply that got lost is thereby as if the round
had not reached the site, and a resumed run goes on from states both sides have on disk.

The server is not trusted: it may repeat a round, ask for one that was never announced, join without a greeting, or send
settings that no honest coordinator would. A site decides by its own policy and by what it has agreed to in the
greeting, and everything it sends passes its gate (`gate.py`).
"""

import hashlib
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree, strong
from foedus.certificate.measure import SitePart, site_part
from foedus.data.preprocess import Preprocessing
from foedus.federation import layout, packing, products, spec
from foedus.federation.agreement import (
    MOST_ROUNDS,
    check_extra,
    check_subsets,
    check_terms,
    checked_data,
    fitting,
    statement,
)
from foedus.federation.approval import Approvals, Statement, check_arrays, check_same, strength
from foedus.federation.gate import Gate, Outgoing, unfit
from foedus.federation.holdout import Holdout
from foedus.federation.names import STARTED
from foedus.federation.packing import RUN, check_moderate, one_line, whole
from foedus.federation.policy import Refusal, SiteFile
from foedus.federation.preparation import TableSession
from foedus.federation.secure_site import SiteMasks
from foedus.federation.site_evaluation import NOT_AGREED, SiteEvaluation
from foedus.federation.site_ledger import Release, SiteLedger
from foedus.federation.site_record import write_record
from foedus.numerics.interpreter.dispatch import jit_if_large, jit_if_many
from foedus.numerics.interpreter.random_bits import random_key
from foedus.privacy.noise import Sound
from foedus.privacy.releasing import sound_noise
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, name_of
from foedus.protocol.participation import LOCAL, client_key, round_key
from foedus.runtime import spine
from foedus.runtime.checkpoint import Checkpoint, fingerprint
from foedus.runtime.run import versions
from foedus.runtime.workload import condense_data
from foedus.sums.identity import SiteIdentity


def count_of(ledger: SiteLedger, run: str) -> int:
    """Return how many rounds of a run are in the ledger."""
    return sum(line.run == run and line.what.startswith("round ") for line in ledger.lines)


def to_come(
    ledger: SiteLedger, run: str, algorithm: Algorithm, rounds: int, holdout: Holdout, roles: Json
) -> list[Release]:
    """Return the releases that a run may still ask for: those of its rounds, and of its evaluation."""
    noise, releases = sound_noise(algorithm), []
    if noise is not None:
        most = rounds if noise.most is None else min(rounds, noise.most)
        rows = holdout.rows("training", roles)
        one = Release("a round", noise.kind.lower(), 1.0, noise.multiplier, noise.neighbours, noise.delta, rows)
        releases = [one] * max(0, most - count_of(ledger, run))
    evaluation = holdout.release(holdout.rows("held-out", roles))
    if evaluation is None or any(line.run == run and line.what.startswith("evaluation") for line in ledger.lines):
        return releases
    return [*releases, evaluation]


def of_round(algorithm: Algorithm, noise: Sound, round: int, following: PyTree, rows: str) -> Release:
    """Return what a round releases, by the client's own record; refuse less noise than the experiment stated."""
    release = Release(
        f"round {round} of {name_of(algorithm)}{noise.ledger_note}",
        noise.kind.lower(),
        float(following.spent.sensitivity),
        float(following.spent.scale),
        noise.neighbours,
        noise.delta,
        rows,
    )
    promise = Release("", release.kind, 1.0, noise.multiplier, noise.neighbours)
    if not release.ratio <= promise.ratio * (1 + 1e-6):  # both are computed in floating point
        raise Refusal("policy", "the noise would be smaller than the experiment states")
    return release


@jit_if_many("algorithm", "terms")
def _join(algorithm: Algorithm, terms: Terms, data: Data, w0: Array) -> PyTree:
    return strong(algorithm.join(terms, data, w0))


@jit_if_many("algorithm", "terms", "phase")
def _local(
    algorithm: Algorithm, terms: Terms, phase: int, client: PyTree, message: PyTree, data: Data, key: Array,
    round: Array, uid: Array,
) -> tuple[PyTree, PyTree]:  # fmt: skip
    own = client_key(round_key(key, LOCAL, round), uid)
    mine, reply = algorithm.kinds[phase].local(terms, client, message, data, own)
    return spine.keep_types(mine, client), reply


@jit_if_large("algorithm", "terms")
def _part(algorithm: Algorithm, terms: Terms, client: PyTree, w: Array, nu: Array, data: Data) -> SitePart:
    return site_part(terms, w, spine.client_multipliers(algorithm, terms, client), nu, data)


class SiteSession:
    """A site, in one run after the other; `answer` takes the server's bytes and never raises."""

    def __init__(
        self, name: str, site: SiteFile, folder: Path, note: Callable[[str], None] = lambda line: None,
        identity: SiteIdentity | None = None,
    ):  # fmt: skip
        self.name, self.site, self.folder = name, site, Path(folder)
        self.note = lambda line: note(one_line(line))  # what comes from a message must not pass for further lines
        self.policy = site.policy
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.gate = Gate(name, site.policy, self.folder, self.note)
        self.approvals = Approvals(self.folder)
        self.lock = threading.Lock()
        self.tables: TableSession | None = None
        self.agreement: tuple[str, str] | None = None  # the run and the statement that the greeting was about
        self.greeting: Json = {}  # the header of the first greeting, where the run prepares a table
        self.rules: Preprocessing | None = None
        self.run: str | None = None
        self.noise: Sound | None = None
        self.arrays: dict[str, np.ndarray] | None = None
        self.masks = SiteMasks(identity, site.policy, self.folder, self.check_run, self.gate)

    @float64()
    def answer(self, message: bytes) -> bytes:
        """Return the reply to a message of the server; the transport may deliver anything as one."""
        header: Json = {}
        with self.lock:  # transports may deliver on several threads; a late round must not overlap the next
            try:
                header, payload = packing.unseal(message)
                again = self.gate.repeat(header, message)
                if again is not None:
                    return again
                return self.gate.send(header, message, self._answers(header)(header, payload))
            except Refusal as no:
                self.note(f"refused {header.get('ask')}: {no.sentence}")
                return self.gate.refuse(header, no.code, no.sentence)
            except Exception as error:
                # what went wrong may hold data: it is for the site's own log, and the server gets a code alone
                self.note(f"failed in {header.get('ask')}: {type(error).__name__}: {error}")
                return self.gate.refuse(header, "failed", "it failed; its own log says why")

    def _answers(self, header: Json) -> Callable[[Json, bytes], Outgoing]:
        """Return the function that answers this kind of message."""
        answers = {
            "columns": self._columns,
            "sums": self._sums,
            "squares": self._squares,
            "prepare": self._prepare,
            "hello": self._hello,
            "join": self._join,
            "round": self._round,
            "keep": self._keep,
            "measure": self._measure,
            products.PRODUCTS: partial(products.answer, self),
            "evaluate": self._evaluate,
            "rate": self._rate,
            "end": self._end,
            **self.masks.answers,
        }
        if header.get("ask") not in answers:
            raise Refusal("unknown", "it does not know this kind of message")
        if not (isinstance(header.get("run"), str) and RUN.fullmatch(header["run"])):
            raise Refusal("unknown", "the name of a run must hold letters, digits, '-' and '_' only")
        return answers[header["ask"]]

    # --- before the rounds ---

    def _accept_algorithm(self, header: Json, sites: int, holdout: Holdout, roles: Json) -> Algorithm:
        """Return the algorithm where the policy and the ledger allow it; no data are read for that."""
        algorithm = self._decode(header["algorithm"])
        if not isinstance(algorithm, Algorithm):
            raise Refusal("unknown", "the experiment names no algorithm")
        rounds = whole(header["max_rounds"], 1, MOST_ROUNDS, "max_rounds")
        if no := self.policy.refuse(algorithm, sites):
            raise Refusal("policy", no)
        ahead = to_come(self.gate.ledger, header["run"], algorithm, rounds, holdout, roles)
        self.gate.check(header["run"], ahead)
        return algorithm

    def _decode(self, text: object) -> object:
        try:
            return spec.decode(text, self.policy.modules)
        except FoedusError as error:  # of the experiment alone
            raise Refusal("policy", str(error).removesuffix(".")) from None

    def _columns(self, header: Json, payload: bytes) -> Outgoing:
        self.gate.check_receipt(header)
        holdout, sites = Holdout.from_json(header.get("holdout")), whole(header["sites"], 1, 10**6, "sites")
        algorithm = self._accept_algorithm(header, sites, holdout, header["roles"])
        holdout.check(self.policy, sound_noise(algorithm) is not None)
        self.masks.check(header, header["sites"], algorithm)
        if self.site.data is None:
            raise Refusal("data", "its site file names no data")
        self.approvals.require(self.policy, Statement.of_table(header, algorithm), self.gate.ledger)
        self._fix_noise(header, algorithm, header)
        self.masks.begin_preparation(header)
        is_private = sound_noise(algorithm) is not None or self.policy.limits_privacy
        self.tables = TableSession(
            self.name, header["run"], self.site.data, self.policy, holdout, self.note, self.gate, is_private
        )
        self.arrays, self.run, self.agreement = None, None, None
        self.greeting, self.rules = header, None
        return Outgoing({"versions": _versions()} | self.tables.columns(header))

    def _holdout(self, run: str) -> tuple[Holdout, Json]:
        """Return what this site has agreed to hold out in a run, and the roles of the columns there."""
        tables = self.tables if self.tables is not None and self.tables.run == run else None
        return (Holdout(), {}) if tables is None else (tables.holdout, tables.stated_roles)

    def _tables(self, header: Json) -> TableSession:
        if self.tables is None or self.tables.run != header["run"]:
            raise Refusal("other-run", "it has not been asked for the columns of this run")
        return self.tables

    def _fix_noise(self, header: Json, algorithm: Algorithm, first: Json) -> None:
        """Keep the noise of a run at its first greeting; `first` states that of the preparation and the evaluation."""
        noise = strength(sound_noise(algorithm))
        beside = {"sums": first.get("noise"), "held-out": (first.get("holdout") or {}).get("noise")}
        if noise is not None or any(beside.values()):
            self.gate.fix_noise(header["run"], {"rounds": header["max_rounds"], "of": noise} | beside)

    def _sums(self, header: Json, payload: bytes) -> Outgoing:
        out, noise = self._tables(header).sums(header, self.masks.preparing(header)), header["noise"]
        if noise != self.greeting["noise"] and (self.policy.approve == "ask" or self.greeting["noise"] is not None):
            raise Refusal("policy", "it is asked for sums with other noise than the greeting has stated")
        if noise is not None:
            fixed = {name: noise[name] for name in ("bounds", "epsilon", "figures")}
            self.gate.fix_noise(f"{header['run']}.preparation", fixed)
        return out

    def _squares(self, header: Json, payload: bytes) -> Outgoing:
        return self._tables(header).squares(header, self.masks.preparing(header))

    def _prepare(self, header: Json, payload: bytes) -> Outgoing:
        tables = self._tables(header)
        self.arrays, self.rules = tables.prepare(header), Preprocessing.from_json(header["rules"])
        return Outgoing(tables.kept_rows(), exact=bool(tables.kept_rows()))

    def _hello(self, header: Json, payload: bytes) -> Outgoing:
        """Answer a greeting, which states the whole run: what the site agrees to here is all that it will join."""
        self.gate.check_receipt(header)
        if header["run"] == self.run and self.agreement == (header["run"], statement(header)):
            return Outgoing({"versions": _versions(), "schema": layout.schema(self._read())})  # a probe in between
        terms = self._terms(header)
        accepted = self._accept_algorithm(header, terms.clients, *self._holdout(header["run"]))
        algorithm = fitting(accepted, terms).algorithm
        self.masks.check(header, terms.clients, algorithm)
        is_prepared = self.tables is not None and self.tables.run == header["run"] and self.arrays is not None
        if is_prepared and self.rules is not None:
            words = {"y": self.rules.labels, "group": self.rules.groups}
            check_same(self.policy, self.greeting, header, self.name, algorithm, terms, self._decode, words)
        else:
            self.tables, self.arrays = None, None
            self.approvals.require(self.policy, Statement.of_terms(header, algorithm, terms), self.gate.ledger)
        self._fix_noise(header, algorithm, self.greeting if is_prepared else {})
        data = self._read()
        rows = len(next(iter(data.values()))) if "x" not in data else len(data["x"])
        if rows < max(self.policy.min_rows, self.policy.min_subset):
            raise Refusal("policy", "it has fewer rows than its policy asks for")
        self.agreement, self.run = (header["run"], statement(header)), None
        return Outgoing({"versions": _versions(), "schema": layout.schema(data)})

    def _terms(self, header: Json) -> Terms:
        return check_terms(self._decode(header["terms"]))

    def _read(self) -> dict[str, np.ndarray]:
        if self.arrays is None:
            if self.site.data is None:
                raise Refusal("data", "its site file names no data")
            try:
                self.arrays = self.site.data.arrays()
            except FoedusError as error:
                self.note(str(error))
                raise Refusal("data", "its data cannot be read; its own log says why") from None
        return self.arrays

    def _join(self, header: Json, payload: bytes) -> Outgoing:
        is_same = self.agreement == (header["run"], statement(header))
        if not is_same or hashlib.sha256(payload).hexdigest() != header["arrays"]:
            raise Refusal("other-run", "it has not agreed to this run in a greeting")
        terms = self._terms(header)
        fit = fitting(self._accept_algorithm(header, terms.clients, *self._holdout(header["run"])), terms)
        algorithm, arrays = fit.algorithm, self._read()
        check_extra(header["extra"], arrays)
        w0, extra = packing.from_bytes(payload, (layout.vector(terms.dim), layout.of_shapes(header["extra"])))
        if self.tables is not None and self.rules is not None:
            check_arrays(self.policy, self.greeting, self.name, terms, w0, extra, self.rules.names)
        self.noise = sound_noise(algorithm)
        check_moderate((w0, extra), self.noise is not None)
        self.w0 = jnp.asarray(w0)
        try:
            data = checked_data(str(header.get("client", self.name)), terms, algorithm, arrays, w0)
        except FoedusError as error:
            raise unfit(str(error), self.note) from None
        if self.noise is None:
            check_subsets(terms, data, self.policy.min_subset, self.note)
        full_data = Data({**data, **{k: jnp.asarray(v) for k, v in extra.items()}})
        self.run, self.algorithm, self.terms, self.local = header["run"], algorithm, terms, _local(fit.few_rounds)
        self.measurements = products.MeasuredModels(self.folder / f"measured-{header['run']}.json")
        self.rounds = whole(header["max_rounds"], 1, MOST_ROUNDS, "max_rounds")
        self.uid, self.key = jnp.asarray(np.array(header["uid"], np.uint32)), random_key(int(header["seed"]))
        own = None if header["own"] is None else Data(layout.of_shapes(header["own"]))
        self.messages = layout.messages(algorithm, terms, own)
        self.masks.begin(header, algorithm, terms, layout.common(algorithm, terms, own))
        self.measured_data = full_data
        self.data = jax.tree.map(lambda a: a[0], condense_data(fit, jax.tree.map(lambda a: a[None], full_data)))
        self.replies = layout.replies(algorithm, terms, self.messages, packing.structure(self.data))
        self.parts = layout.parts(terms, packing.structure(full_data))
        self.states = {STARTED: _join(fit.few_rounds)(algorithm, terms, full_data, self.w0)}
        self.mark = fingerprint(json.dumps([header["algorithm"], header["terms"], header["seed"]], sort_keys=True))
        return Outgoing({"kept": self._saved_rounds()})

    # --- the rounds ---

    def _round(self, header: Json, payload: bytes) -> Outgoing:
        self.check_run(header)
        round = whole(header["round"], 0, MOST_ROUNDS, "round")
        if round >= self.rounds:
            raise Refusal("policy", f"the run was announced with {self.rounds} rounds")
        phase = whole(header["phase"], 0, len(self.messages) - 1, "phase")
        client = self.state_after(since := whole(header["since"], STARTED, round - 1, "since"))
        if self.noise is not None and (again := self.masks.again(header, payload, round)) is not None:
            return Outgoing({"releases": count_of(self.gate.ledger, str(self.run))}, again)
        message = jax.tree.map(jnp.asarray, packing.from_bytes(payload, self.messages[phase]))
        check_moderate(message, self.noise is not None)
        following, reply = self.local(
            self.algorithm, self.terms, phase, client, message, self.data, self.key, np.int64(round), self.uid
        )
        if self.masks.masking is None:
            content = packing.to_bytes(reply, self.replies[phase])
        else:
            content = self.masks.masked_reply(header, payload, round, reply)
        if self.noise is None:
            self.states = {since: client, round: following}
            return Outgoing(payload=content, exact=True)
        fresh = int(following.spent.releases) > int(client.spent.releases)
        count = count_of(self.gate.ledger, str(self.run))
        if fresh and count >= self.rounds:
            raise Refusal("policy", f"the run has released {self.rounds} times, as often as was announced")
        rows = "" if self.tables is None else self.tables.rows["training"]
        own = (of_round(self.algorithm, self.noise, round, following, rows),) if fresh else ()

        # the gate calls this once the ledger is written: a state that counts a release must not exist before its charge
        def keep() -> None:
            self.states = {since: client, round: following}
            self._write_state(round, following)
            self.masks.keep_words(header, payload, reply)

        return Outgoing({"releases": count + fresh}, content, False, own, keep)

    def state_after(self, number: int) -> PyTree:
        """Return the client state after a round: the one in memory, or the one on disk."""
        # Under privacy a round that is played again goes on from the newest state, whose record counts what has left.
        if self.noise is not None and number in self.states:
            return self.states[max(self.states)]
        if number not in self.states:
            content = Checkpoint(self._file(number), self.mark).load(next(iter(self.states.values())))
            if content is None:
                raise Refusal("lost", f"it has no state of round {number}")
            self.states = {number: content[0]}
        return self.states[number]

    def _keep(self, header: Json, payload: bytes) -> Outgoing:
        """Save the state after a round, and delete those that nobody will ask for."""
        self.check_run(header)
        since = whole(header["since"], STARTED, MOST_ROUNDS, "since")
        needed_rounds = {whole(n, STARTED, MOST_ROUNDS, "needed") for n in header["needed"]}
        if since != STARTED:
            self._write_state(since, self.state_after(since))
        for path in self._place().glob("state-*.ckpt"):
            if int(path.stem.removeprefix("state-")) not in needed_rounds | {since}:
                path.unlink(missing_ok=True)
        self.gate.forget(str(self.run), min(needed_rounds | {since}))
        return Outgoing()

    def _write_state(self, number: int, state: PyTree) -> None:
        Checkpoint(self._file(number), self.mark).keep(state, {}, final=True)

    # --- after the rounds ---

    def _measure(self, header: Json, payload: bytes) -> Outgoing:
        """Return the site's part of the certificate; under privacy nothing is measured, for the figures are exact."""
        self.check_run(header)
        w, nu = packing.from_bytes(payload, (layout.vector(self.terms.dim), layout.vector(self.terms.rows[2])))
        client = self.state_after(whole(header["since"], STARTED, MOST_ROUNDS, "since"))
        part = _part(self.algorithm, self.terms, client, jnp.asarray(w), jnp.asarray(nu), self.measured_data)
        if self.noise is not None or self.policy.limits_privacy:
            write_record(self.folder, str(self.run), self.algorithm, self.terms, part, w, self.measured_data)
            return Outgoing({"measured": False})
        self.measurements.add(header, payload)
        write_record(self.folder, str(self.run), self.algorithm, self.terms, part, w, self.measured_data)
        content = self.masks.measurement(header, payload, self.rounds, part, self.parts, self.measured_data)
        return Outgoing({"measured": True}, content, exact=True)

    def _site_evaluation(self, header: Json) -> tuple[SiteEvaluation, Path]:
        self.check_run(header)
        evaluation = self._tables(header).evaluation
        if evaluation is None:
            raise Refusal("policy", NOT_AGREED)
        return evaluation, self.folder / f"evaluated-{self.run}.json"

    def _evaluate(self, header: Json, payload: bytes) -> Outgoing:
        evaluation, record = self._site_evaluation(header)
        if (again := self.masks.again(header, payload, self.rounds + 1)) is not None:
            return Outgoing(payload=again)
        mask = self.masks.evaluation(header, payload, self.rounds + 1)
        return evaluation.evaluate(header, payload, self.terms, record, mask)

    def _rate(self, header: Json, payload: bytes) -> Outgoing:
        evaluation, record = self._site_evaluation(header)
        return evaluation.rate(header, payload, self.terms, record, self.masks.evaluation(header, payload, None))

    def _end(self, header: Json, payload: bytes) -> Outgoing:
        self.check_run(header)
        for path in self._place().glob("state-*.ckpt"):
            path.unlink(missing_ok=True)
        self.gate.forget(str(self.run))
        self._place().rmdir()
        self.run, self.agreement = None, None
        return Outgoing()

    def check_run(self, header: Json) -> None:
        """Refuse a message of another run than the one that was joined."""
        if self.run is None or header.get("run") != self.run:
            raise Refusal("other-run", "it has not joined this run")

    def _place(self) -> Path:
        place = self.folder / f"run-{self.run}"
        place.mkdir(exist_ok=True, mode=0o700)
        return place

    def _file(self, number: int) -> Path:
        return self._place() / f"state-{number}.ckpt"

    def _saved_rounds(self) -> list[int]:
        """Return the rounds after which a state is on disk and whole; damaged files are deleted."""
        rounds, like = [], next(iter(self.states.values()))
        for path in self._place().glob("state-*.ckpt"):
            try:
                Checkpoint(path, self.mark).load(like)
                rounds.append(int(path.stem.removeprefix("state-")))
            except (FoedusError, ValueError) as error:
                self.note(f"a kept state is set aside: {error}")
                path.unlink(missing_ok=True)
        return sorted(rounds)


def _versions() -> dict[str, str]:
    return {k: v for k, v in versions().items() if k in ("foedus", "jax")}
