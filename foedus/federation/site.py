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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.engine import float64
from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack
from foedus.base.pytrees import PyTree, strong
from foedus.federation import layout, measuring, packing, spec
from foedus.federation.agreement import (
    MOST_ROUNDS,
    OF_ONE_SITE,
    VARYING,
    check_extra,
    check_numbers,
    check_subsets,
    check_terms,
    checked_data,
    factor_of,
    fitting,
    statement,
    without_count,
)
from foedus.federation.approval import Approvals, Statement, strength
from foedus.federation.gate import Gate, Outgoing, unfit
from foedus.federation.holdout import Holdout, drawn
from foedus.federation.limits import Answers, answers_of
from foedus.federation.masked_rounds import PREPARATION
from foedus.federation.names import STARTED
from foedus.federation.packing import RUN, check_moderate, one_line, whole
from foedus.federation.plan import AcceptedPlans, Request, arrays_in_bytes, is_signed, joins_of
from foedus.federation.policy import Policy, Refusal, SiteFile
from foedus.federation.preparation import TableSession, cohort_of
from foedus.federation.replay import OF_THE_MODEL, Replay
from foedus.federation.secure_site import FirstSums, SiteMasks, plan_of
from foedus.federation.site_evaluation import NOT_AGREED, SiteEvaluation
from foedus.federation.site_ledger import Release, SiteLedger
from foedus.numerics.interpreter.dispatch import jit_if_many
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
from foedus.sums.masking import masking_of

OTHER = "what it is asked to join does not follow from the plan that it has accepted"
OPENING = ("columns", "cohort", "prepare", "hello", "join")  # the kinds of messages that state a run
STATES = 2  # of the last rounds, that a site keeps where its process ends between messages
CHECKED = ("round", *OF_THE_MODEL)  # the kinds of messages whose content a checked run decides


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


class SiteSession:
    """A site, in one run after the other; `answer` takes the server's bytes and never raises."""

    def __init__(
        self, name: str, site: SiteFile, folder: Path, note: Callable[[str], None] = lambda line: None,
        identity: SiteIdentity | None = None, root: bytes | None = None,
    ):  # fmt: skip
        self.root = root  # of the project, whose coordinator signs plans; None: there is nobody to ask
        self.plans = AcceptedPlans(Path(folder))
        self.name, self.site, self.folder = name, site, Path(folder)
        self.note = lambda line: note(one_line(line))  # what comes from a message must not pass for further lines
        self.watch: Callable[[Json, Outgoing], None] = lambda header, out: None  # sees an answer before it is masked
        self.policy = site.policy
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.gate = Gate(name, site.policy, self.folder, self.note)
        self.approvals = Approvals(self.folder)
        self.lock = threading.Lock()
        self.tables: TableSession | None = None
        self.agreement: tuple[str, str] | None = None  # the run and the statement that the greeting was about
        self.greeting: Json = {}  # what follows from the plan alone, where the run prepares a table
        self.letter = ""  # the plan to the letter
        self.agreed_join: tuple[Json, bytes] | None = None  # what it is asked to join, as it follows
        self.run: str | None = None
        self.noise: Sound | None = None
        self.arrays: dict[str, np.ndarray] | None = None
        self.data_alone = Data({})  # the same, checked
        self.replay: Replay | None = None
        self.first_sums: FirstSums | None = None
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
                answer = self._answers(header)
                out = self.masks.again(header, payload) if "mask" in header else None
                out = out or answer(header, self._content(header, payload))
                self.watch(header, out)
                if "mask" in header or self.masks.masking is not None or self.masks.preparation is not None:
                    out = self.masks.as_bytes(header, payload, out)
                return self.gate.send(header, message, out)
            except Refusal as no:
                self.note(f"refused {header.get('ask')}: {no.sentence}")
                return self.gate.refuse(header, no.code, no.sentence)
            except Exception as error:
                # what went wrong may hold data: it is for the site's own log, and the server gets a code alone
                why = f"failed in {header.get('ask')}: {type(error).__name__}: {error}"
                self.note(why)
                return self.gate.refuse(header, "failed", "it failed; its own log says why", why)

    def _answers(self, header: Json) -> Callable[[Json, bytes], Outgoing]:
        """Return the function that answers this kind of message."""
        answers = {
            "columns": self._columns,
            "cohort": self._cohort,
            "rows": self._rows,
            "sums": self._sums,
            "squares": self._squares,
            "prepare": self._prepare,
            "hello": self._hello,
            "join": self._join,
            "round": self._round,
            "keep": self._keep,
            "total": self._total,
            measuring.MEASURE: partial(measuring.measure, self),
            measuring.PRODUCTS: partial(measuring.products, self),
            measuring.Sandwich.kind: partial(measuring.errors, self),
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

    def _content(self, header: Json, payload: bytes) -> bytes:
        """Return what a message holds: in a checked run of the rounds' model what the site has found itself."""
        if self.replay is None or header["run"] != self.run or header["ask"] not in CHECKED:
            return payload
        since = whole(header["since"], STARTED, MOST_ROUNDS, "since")
        self.state_after(since)  # with that of the server's part
        if since != self.replay.since:
            raise Refusal("breach", "in a checked run it goes on from its state after the last round")
        return self.replay.content(header["ask"], header.get("round"), header.get("phase"), payload, self.messages)

    # --- before the rounds ---

    def _accept_algorithm(self, header: Json, sites: int, holdout: Holdout, roles: Json) -> Algorithm:
        """Return the algorithm where the policy and the ledger allow it; no data are read for that."""
        algorithm = self._decode(header["algorithm"])
        if not isinstance(algorithm, Algorithm):
            raise Refusal("unknown", "the experiment names no algorithm")
        if sound_noise(algorithm) is None:  # what noise rests on has narrower ranges of its own
            check_numbers(header)
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
        """Answer the plan of a run that begins with tables: what the site agrees to here is all that it will answer."""
        self._check_signed(header)
        self.gate.check_receipt(header)
        check_numbers(header)
        try:
            request = Request.from_json(header, self.policy.modules)
            stated = request.stated
        except FoedusError as error:  # of the experiment alone
            raise Refusal("policy", str(error).removesuffix(".")) from None
        if self.name not in request.sites:
            raise Refusal("unknown", "the plan names other sites than this one")
        holdout = Holdout.from_json(stated["holdout"])
        algorithm = self._accept_algorithm(stated, len(request.sites), holdout, stated["roles"])
        holdout.check(self.policy, sound_noise(algorithm) is not None)
        self.masks.check(stated, stated["sites"], algorithm)
        self.masks.check_verified(stated, algorithm)
        if self.site.data is None:
            raise Refusal("data", "its site file names no data")
        is_private = sound_noise(algorithm) is not None or self.policy.limits_privacy
        tables = TableSession(
            self.name, request, self.site.data, self.policy, holdout, self.note, self.gate, is_private
        )
        what = Statement.of_table(stated, algorithm, statement(header))
        self.approvals.require(self.policy, what, self.gate.ledger, partial(self._foreseen, tables, is_private))
        self._fix_noise(stated, algorithm, stated)
        self.masks.begin_preparation(stated, statement(header))
        self.tables = tables
        self.arrays, self.run, self.agreement = None, None, None
        self.greeting, self.letter, self.agreed_join = stated, statement(header), None
        sketch = self.tables.columns()
        answers = None if is_private else self._ahead(tables)
        self._accept(header, algorithm, answers, stated["secure"])
        return Outgoing({"versions": _versions()} | sketch)

    def _ahead(self, tables: TableSession) -> Answers | None:
        """Check the data against the plan before anything leaves, by what follows from it with this site alone.

        Returns how much the run tells; None where the site's own rows do not say what follows, as where it has one
        label of two, and then the checks are made with everybody's sums.
        """
        request = tables.request
        try:
            rules = tables.rules_alone()
            order = request.plan.order(cohort_of(rules, tables.roles), rules, request.run, request.sites)
            arrays = tables.arrays(rules)
        except FoedusError:
            return None
        stated, _ = joins_of(order)[self.name]
        algorithm = fitting(order.algorithm, order.terms).algorithm
        return self._check_data(stated, algorithm, order.terms, arrays)[1]

    def _foreseen(self, tables: TableSession, is_private: bool) -> list[str]:
        """Return what is known of the numbers that will leave before any other site has answered."""
        if is_private:
            return []
        try:
            tables.columns()
            answers = self._ahead(tables)
        except (Refusal, FoedusError):  # said when the plan is answered
            return []
        return [] if answers is None else [f"By the columns of this site alone. {answers.sentence}"]

    def _cohort(self, header: Json, payload: bytes) -> Outgoing:
        tables = self._tables(header)
        tables.cohort(header)
        self.masks.begin_preparation(self.greeting, self.letter, header["sketches"])
        return Outgoing()

    def _accept(self, header: Json, algorithm: Algorithm, answers: Answers | None, secure: bool) -> None:
        """Keep the plan of a run on the disk; noise covers what other data at the same plan would tell."""
        is_exact = sound_noise(algorithm) is None and self.site.data is not None
        data = self.site.data.digest() if is_exact and self.site.data is not None else ""
        try:
            self.plans.accept(header, data, None if answers is None else answers.to_json(), is_fixed=secure)
        except FoedusError as error:
            raise unfit(str(error), self.note) from None

    def _check_signed(self, header: Json) -> None:
        """Refuse a plan that the project's coordinator has not signed, where the site has the project's root.

        A run without masks that goes on without a wrong site has terms for fewer sites, and nobody signs them: all
        else must be what this site has accepted.
        """
        if self.root is None or is_signed(header, self.root):
            return
        before = self.plans.accepted(header["run"])
        if before is None or header.get("secure") is True or without_count(before) != without_count(header):
            raise Refusal("policy", "the plan is not signed by the coordinator of this project")

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

    def _rows(self, header: Json, payload: bytes) -> Outgoing:
        return self._tables(header).row_count(header, self.masks.prepares(header))

    def _sums(self, header: Json, payload: bytes) -> Outgoing:
        out = self._tables(header).sums(header, self.masks.prepares(header))
        self._fix_preparation(header)
        return out

    def _squares(self, header: Json, payload: bytes) -> Outgoing:
        out = self._tables(header).squares(header, self.masks.prepares(header))
        self._fix_preparation(header)
        return out

    def _fix_preparation(self, header: Json) -> None:
        """Refuse sums with other noise than was stated in the greeting, or was fixed by the first of them."""
        noise = header["noise"]
        if noise != self.greeting["noise"] and (self.policy.approve == "ask" or self.greeting["noise"] is not None):
            raise Refusal("policy", "it is asked for sums with other noise than the greeting has stated")
        if noise is not None:
            fixed = {name: noise[name] for name in ("bounds", "epsilon", "figures")}
            self.gate.fix_noise(f"{header['run']}.preparation", fixed)

    def _prepare(self, header: Json, payload: bytes) -> Outgoing:
        tables = self._tables(header)
        self.arrays = tables.prepare(header)
        self.agreed_join = self._order_of(tables)
        return Outgoing(tables.kept_rows(), exact=bool(tables.kept_rows()))

    def _order_of(self, tables: TableSession) -> tuple[Json, bytes]:
        """Return what this site is asked to join: it follows from the plan and the rules."""
        request, rules = tables.request, tables.rules
        try:
            order = request.plan.order(cohort_of(rules, tables.roles), rules, request.run, request.sites)
        except FoedusError as error:  # from what all parties know
            raise Refusal("policy", str(error).removesuffix(".")) from None
        stated, arrays = joins_of(order)[self.name]
        return stated, arrays_in_bytes(arrays, order.terms.dim, stated["extra"])

    def _complete(self, header: Json, payload: bytes) -> tuple[Json, bytes]:
        """Return a greeting or a join with all that it states; after a preparation that follows from the plan.

        A run without masks may go on without a wrong site: then the number of sites and the start are new.
        """
        if self.agreed_join is None or self.tables is None or self.tables.run != header["run"]:
            return header, payload
        stated, arrays = self.agreed_join
        if "terms" not in header:
            return header | stated, arrays
        if self.policy.approve == "ask" or header.get("secure") is True:
            raise Refusal("policy", OTHER)
        if without_count(header) != without_count({"run": header["run"]} | stated):
            raise Refusal("policy", OTHER)
        own = packing.size_of(layout.of_shapes(stated["extra"]))
        if payload and payload[len(payload) - own :] != arrays[len(arrays) - own :]:
            raise Refusal("policy", OTHER)
        return header, payload

    def _hello(self, header: Json, payload: bytes) -> Outgoing:
        """Answer a greeting, which states the whole run: what the site agrees to here is all that it will join."""
        self.gate.check_receipt(header)
        is_prepared = self.agreed_join is not None and self.tables is not None and self.tables.run == header["run"]
        stated, _ = self._complete(header, b"")
        if header["run"] == self.run and self.agreement == (header["run"], statement(stated)):
            return Outgoing({"versions": _versions(), "schema": layout.schema(self._read())})  # a probe in between
        if not is_prepared:
            self._check_signed(header)
        terms = self._terms(stated)
        accepted = self._accept_algorithm(stated, terms.clients, *self._holdout(header["run"]))
        algorithm = fitting(accepted, terms).algorithm
        self.masks.check(stated, terms.clients, algorithm)
        self.masks.check_verified(stated, algorithm)
        if not is_prepared:
            self.tables, self.arrays, self.agreed_join = None, None, None

            def more() -> list[str]:
                if sound_noise(algorithm) is not None:
                    return []
                return [_answers_of(stated, algorithm, terms, self._read(), self.policy).sentence]

            what = Statement.of_terms(header, algorithm, terms)
            self.approvals.require(self.policy, what, self.gate.ledger, more)
        self._fix_noise(stated, algorithm, self.greeting if is_prepared else {})
        arrays = self._read()
        self.data_alone, answers = self._check_data(stated, algorithm, terms, arrays)
        if not is_prepared:
            self._accept(header, algorithm, answers, stated.get("secure") is True)
        elif answers is not None:
            self.plans.note(header["run"], answers.to_json())
        self.agreement, self.run = (header["run"], statement(stated)), None
        return Outgoing({"versions": _versions(), "schema": layout.schema(arrays)})

    def _check_data(
        self, stated: Json, algorithm: Algorithm, terms: Terms, arrays: dict[str, np.ndarray]
    ) -> tuple[Data, Answers | None]:
        """Return the data, checked, and how much a run without noise tells of them.

        All that a site refuses because of its data is here and in `TableSession.columns`, before it accepts a plan.
        """
        rows = len(next(iter(arrays.values()))) if "x" not in arrays else len(arrays["x"])
        if rows < max(self.policy.min_rows, self.policy.min_subset):
            raise unfit("there are fewer rows than the policy asks for", self.note)
        try:
            data = checked_data(str(stated.get("client", self.name)), terms, algorithm, arrays)
        except FoedusError as error:
            raise unfit(str(error), self.note) from None
        if sound_noise(algorithm) is not None:
            return data, None
        check_subsets(terms, data, self.policy.min_subset, self.note)
        answers = _answers_of(stated, algorithm, terms, arrays, self.policy)
        self.note(answers.sentence)
        if (why := answers.why_not(self.policy)) is not None:
            raise unfit(why, self.note)
        return data, answers

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
        header, payload = self._complete(header, payload)
        is_same = self.agreement == (header["run"], statement(header))
        if not is_same or hashlib.sha256(payload).hexdigest() != header["arrays"]:
            raise Refusal("other-run", "it has not agreed to this run in a greeting")
        terms = self._terms(header)
        fit = fitting(self._accept_algorithm(header, terms.clients, *self._holdout(header["run"])), terms)
        algorithm, arrays = fit.algorithm, self._read()
        check_extra(header["extra"], arrays)
        w0, extra = packing.from_bytes(payload, (layout.vector(terms.dim), layout.of_shapes(header["extra"])))
        self.noise = sound_noise(algorithm)
        check_moderate((w0, extra), self.noise is not None)
        self.w0, data = jnp.asarray(w0), self.data_alone
        own_factor = factor_of(terms, data, extra)
        full_data = Data({**data, **{k: jnp.asarray(v) for k, v in (extra | own_factor).items()}})
        self.replay = self._replay(header, algorithm, terms, fit.few_rounds)
        self.run, self.algorithm, self.terms, self.local = header["run"], algorithm, terms, _local(fit.few_rounds)
        measured = self.folder / f"measured-{header['run']}.json"
        self.measurements = measuring.MeasuredModels(measured, _most_measured(header))
        self.summary = header.get("summary")
        self.rounds = whole(header["max_rounds"], 1, MOST_ROUNDS, "max_rounds")
        self.uid, self.key = jnp.asarray(np.array(header["uid"], np.uint32)), self._own_key(header["run"])
        own = _own_shapes(header)
        self.messages = layout.messages(algorithm, terms, own)
        self.masks.begin(header, algorithm, terms, self._plan(header, w0), layout.common(algorithm, terms, own))
        self.measured_data = full_data
        self.data = jax.tree.map(lambda a: a[0], condense_data(fit, jax.tree.map(lambda a: a[None], full_data)))
        replies = layout.replies(algorithm, terms, self.messages, packing.structure(self.data))
        self.forms = layout.forms(replies, self.masks.masking)
        self.states = {STARTED: _join(fit.few_rounds)(algorithm, terms, full_data, self.w0)}
        self.mark = fingerprint(json.dumps([header["algorithm"], header["terms"], header["seed"]], sort_keys=True))
        return Outgoing({"kept": self._saved_rounds()})

    def _own_key(self, run: str) -> Array:
        """Return what decides the site's own draws, such as the rows of a batch: whoever knew them would know sums over
        rows of his choice."""
        return random_key(drawn(self.gate.folder, f"draws of {run}") % 2**63)

    def _plan(self, header: Json, w0: np.ndarray) -> bytes:
        """Return the digest of all that decides a site's answers and must be the same at every site."""
        common = {name: value for name, value in header.items() if name not in (*VARYING, *OF_ONE_SITE)}
        start = np.asarray(w0, dtype=float).tobytes().hex()
        if self.agreed_join is None or self.tables is None:
            return plan_of(common, start)
        # what each site has worked out itself may differ by a rounding; what it is worked out from does not
        rest = [] if header.get("verify") is True else [common, start]
        return plan_of(self.letter, self.tables.rules.to_json(), rest)

    def _replay(self, header: Json, algorithm: Algorithm, terms: Terms, few: bool) -> Replay | None:
        """Return the server's part of a checked run, as the site plays it; None in another run."""
        if header.get("verify") is not True:
            return None
        index, parties = whole(header["index"], 0, terms.clients - 1, "index"), header.get("parties") or ()
        if header.get("secure") is not True or header["own"] is not None or self.name not in parties[index : index + 1]:
            raise Refusal("unknown", "a checked run is one of masked sums that states all of its sites")
        return Replay(algorithm, terms, np.asarray(self.w0), index, few)

    # --- the rounds ---

    def _total(self, header: Json, payload: bytes) -> Outgoing:
        """Add a sum up from what all sites have signed; that of a round is what the next one follows from."""
        number, words = self.masks.total(header, payload)
        sums = self._first_sums(str(header["run"]))
        if header.get("stage") == PREPARATION:
            sums.add(f"{PREPARATION} {number}", words)
            self._tables(header).add_total(number, words)
            self._know_totals()
            return Outgoing()
        self.check_run(header)
        if self.replay is None:
            raise Refusal("unknown", "it checks no sums in this run")
        if number == self.replay.round and number < self.rounds:
            sums.add(f"round {number}", words)
            self.replay.advance(self.forms, words)
            self.masks.histories[""] = self.replay.trace
        return Outgoing()

    def _first_sums(self, run: str) -> FirstSums:
        """Return the sums from which a run has gone on here."""
        path = self.folder / f"totals-{run}.txt"
        if self.first_sums is None or self.first_sums.path != path:
            self.first_sums = FirstSums(path)
        return self.first_sums

    def _know_totals(self) -> None:
        """Bind the next sums of the preparation to those so far: all sites have been shown the same, or none opens."""
        totals = [] if self.tables is None else self.tables.totals
        self.masks.histories[PREPARATION] = plan_of([words.tobytes().hex() for words in totals]) if totals else b""

    def _round(self, header: Json, payload: bytes) -> Outgoing:
        self.check_run(header)
        round = whole(header["round"], 0, MOST_ROUNDS, "round")
        if round >= self.rounds:
            raise Refusal("policy", f"the run was announced with {self.rounds} rounds")
        phase = whole(header["phase"], 0, len(self.messages) - 1, "phase")
        client = self.state_after(since := whole(header["since"], STARTED, round - 1, "since"))
        message = jax.tree.map(jnp.asarray, packing.from_bytes(payload, self.messages[phase]))
        check_moderate(message, self.noise is not None)
        following, reply = self.local(
            self.algorithm, self.terms, phase, client, message, self.data, self.key, np.int64(round), self.uid
        )
        form = self.forms[phase]
        if self.noise is None:
            self.states = {since: client, round: following}
            return Outgoing(answer=reply, form=form, round=round, exact=True)
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

        released = {"releases": count + fresh}
        return Outgoing(released, answer=reply, form=form, round=round, releases=own, before=keep)

    def state_after(self, number: int) -> PyTree:
        """Return the client state after a round: the one in memory, or the one on disk."""
        # Under privacy a round that is played again goes on from the newest state, whose record counts what has left.
        if self.noise is not None and number in self.states:
            return self.states[max(self.states)]
        if number not in self.states:
            self._load_state(number, next(iter(self.states.values())))
        return self.states[number]

    def _load_state(self, number: int, like: PyTree) -> None:
        content = Checkpoint(self._file(number), self.mark).load(self._kept(like))
        if content is None:
            raise Refusal("lost", f"it has no state of round {number}")
        client, kept = content[0]
        self.states = {number: client}
        if self.replay is not None:
            self.replay.restore(kept)
            self.masks.histories[""] = self.replay.trace

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
        Checkpoint(self._file(number), self.mark).keep(self._kept(state), {}, final=True)

    def _kept(self, state: PyTree) -> PyTree:
        """What is kept with a state of the site: in a checked run that of the server's part too."""
        return state, () if self.replay is None else self.replay.kept

    # --- after the rounds ---

    def _site_evaluation(self, header: Json) -> tuple[SiteEvaluation, Path]:
        self.check_run(header)
        evaluation = self._tables(header).evaluation
        if evaluation is None:
            raise Refusal("policy", NOT_AGREED)
        return evaluation, self.folder / f"evaluated-{self.run}.json"

    def _evaluate(self, header: Json, payload: bytes) -> Outgoing:
        evaluation, record = self._site_evaluation(header)
        return evaluation.evaluate(header, payload, self.terms, record)

    def _rate(self, header: Json, payload: bytes) -> Outgoing:
        evaluation, record = self._site_evaluation(header)
        return evaluation.rate(header, payload, self.terms, record)

    def _end(self, header: Json, payload: bytes) -> Outgoing:
        self.check_run(header)
        for path in self._place().glob("state-*.ckpt"):
            path.unlink(missing_ok=True)
        self.gate.forget(str(self.run))
        self._place().rmdir()
        self.run, self.agreement = None, None
        return Outgoing()

    # --- over the end of the process, where messages are days apart ---

    def pause(self) -> bytes:
        """Keep the state of the run on the disk, and return what else lives in memory alone, private keys among it."""
        if self.run is not None:
            newest = max(self.states)
            self._write_state(newest, self.states[newest])
            for path in sorted(self._place().glob("state-*.ckpt"), key=_number_of)[:-STATES]:
                path.unlink(missing_ok=True)
        totals = [] if self.tables is None else self.tables.totals
        arrays = {f"total.{i}": words for i, words in enumerate(totals)}
        arrays |= {f"masks.{stage}": np.frombuffer(keys, np.uint8) for stage, keys in self.masks.pause().items()}
        return pack(arrays, {"newest": None if self.run is None else max(self.states)})

    @float64()
    def resume(self, messages: Sequence[bytes], kept: bytes) -> None:
        """Go on after `pause`, in a new process: no row leaves again, and nothing is charged.

        Args:
            messages: those of a run that state it, and whose answers have left: OPENING says which kinds.
            kept: what `pause` returned.
        """
        arrays, note = unpack(kept)
        totals = [arrays[name] for i in range(len(arrays)) if (name := f"total.{i}") in arrays]
        for message in messages:
            header, payload = packing.unseal(message)
            if header["ask"] == "prepare" and self.tables is not None:
                self.tables.totals = totals
            self._answers(header)(header, self._content(header, payload))
        if self.tables is not None:
            self.tables.totals = totals
            self._know_totals()
        if self.run is not None and (newest := note["newest"]) is not None:
            self._load_state(int(newest), self.states[STARTED])
        masks = {name.removeprefix("masks."): array.tobytes() for name, array in arrays.items() if "masks." in name}
        self.masks.resume(str(self.run), masks)

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
        rounds, like = [], self._kept(next(iter(self.states.values())))
        for path in self._place().glob("state-*.ckpt"):
            try:
                Checkpoint(path, self.mark).load(like)
                rounds.append(int(path.stem.removeprefix("state-")))
            except (FoedusError, ValueError) as error:
                self.note(f"a kept state is set aside: {error}")
                path.unlink(missing_ok=True)
        return sorted(rounds)


def _number_of(path: Path) -> int:
    """The round after which a state was kept, by its file."""
    return int(path.stem.removeprefix("state-"))


def _answers_of(
    stated: Json, algorithm: Algorithm, terms: Terms, arrays: dict[str, np.ndarray], policy: Policy
) -> Answers:
    """Return what leaves in a run without noise, as its greeting states it."""
    extra: layout.Shapes = {name: list(shape) for name, shape in stated["extra"].items()}
    masking = masking_of(algorithm, terms) if stated.get("secure") is True else None
    own, rounds, measured = _own_shapes(stated), stated["max_rounds"], _most_measured(stated)
    return answers_of(algorithm, terms, arrays, extra, own, masking, rounds, measured, policy, stated.get("summary"))


def _own_shapes(stated: Json) -> Data | None:
    """The shapes of the server's own arrays, as a greeting states them."""
    return None if stated.get("own") is None else Data(layout.of_shapes(stated["own"]))


def _most_measured(stated: Json) -> int:
    """Return how many models a site measures in a run that states this."""
    return measuring.MOST_CHECKED if stated.get("verify") is True else measuring.MOST_MODELS


def _versions() -> dict[str, str]:
    return {k: v for k, v in versions().items() if k in ("foedus", "jax")}
