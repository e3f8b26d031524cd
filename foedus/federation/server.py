"""ServerSession: the server's side of a run, over any transport that can `ask`.

`ask(messages, timeout)` takes bytes by site and returns the bytes of those that answered in time. Everything else is
here: the same draws and history as in a simulation, refusals of replies that do not fit, checkpoints, and the measuring
round from which the certificate is made.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation import layout, measuring, packing, spec
from foedus.federation.asking import MaskedSites, PlainSites
from foedus.federation.exchange import AskSites, Exchange, LeftOut, Missing, Paused
from foedus.federation.flare.post import Post
from foedus.federation.holdout import Holdout
from foedus.federation.masked_rounds import MaskedExchange, MaskedRounds
from foedus.federation.monitor import RunMonitor
from foedus.federation.names import STARTED
from foedus.federation.order import Order, Patience, Result
from foedus.federation.plan import arrays_in_bytes, joins_of
from foedus.federation.quorum import QuorumRounds
from foedus.federation.receipts import Receipts
from foedus.federation.rounds import Play, Rounds, first_play
from foedus.numerics.interpreter.random_bits import random_key
from foedus.privacy.releasing import sound_noise
from foedus.protocol.algorithm import name_of
from foedus.runtime import clock, spine
from foedus.runtime.checkpoint import Checkpoint, fingerprint
from foedus.runtime.spine import Recorder
from foedus.statistics import rates, sandwich
from foedus.statistics.evaluate import Evaluation, evaluation_of
from foedus.statistics.rates import Decision
from foedus.sums.masking import masking_of
from foedus.sums.questions import count_of

CHECKPOINTS = 2  # how many are kept

T = TypeVar("T")


class ServerCheckpoints:
    """The checkpoints of one run, in a folder of the server's."""

    def __init__(self, order: Order, folder: Path, exchange: Exchange):
        self.order, self.folder, self.exchange = order, folder, exchange
        self.rounds: list[tuple[int, np.ndarray]] = []  # of each checkpoint: its round, and each client's last one
        statement = [spec.encode(order.algorithm), spec.encode(order.terms), order.seed, list(order.names)]
        self.mark = fingerprint(json.dumps(statement, sort_keys=True), order.w0)

    def files(self) -> list[Path]:
        """Return the files of the checkpoints, newest first."""
        return sorted(
            self.folder.glob("server-*.ckpt"), key=lambda p: int(p.stem.removeprefix("server-")), reverse=True
        )

    def keep(self, play: object, round: int, last: np.ndarray, recorder: Recorder) -> None:
        """Have every site save its state, then save the server's; `last` is each client's last accepted round.

        The server's comes last: a checkpoint is worth something only where every site can go back to the same round.
        The sites keep the states of the checkpoint before as well (`needed`), for a crash may come in between.
        """
        exchange, newest = self.exchange, self.rounds[:1]
        messages = {}
        for i, site in enumerate(self.order.sites):
            rounds_to_keep = sorted({int(rounds[i]) for _, rounds in newest})
            messages[site] = packing.seal(exchange.header("keep") | {"since": int(last[i]), "needed": rounds_to_keep})
        answers = exchange.ask(messages, exchange.patience.timeout)
        for site in self.order.sites:
            header, _ = exchange.open_reply(site, answers.get(site), "keep", None)
            if header is None:
                exchange.note(
                    f"no checkpoint after round {round}: client {exchange.client[site]!r} has not kept its state"
                )
                return
        try:
            Checkpoint(self.folder / f"server-{round}.ckpt", self.mark).keep(play, recorder.columns, final=True)
        except FoedusError as error:  # a full disk must not end a run that can go on
            exchange.note(str(error))
            return
        self.rounds = [(round, last.copy()), *self.rounds][:CHECKPOINTS]
        for old in self.files()[CHECKPOINTS:]:
            old.unlink(missing_ok=True)

    def load(self, path: Path, fresh: T) -> tuple[T, dict[str, np.ndarray]] | None:
        """Return the state and the history in a file, or None where it is damaged."""
        try:
            return Checkpoint(path, self.mark).load(fresh)
        except FoedusError as error:
            self.exchange.note(f"{error} The one before is tried.")
            return None


JOIN_SECONDS = 60.0  # at the least, for an answer to `join`: a site compiles its program before it answers
GOODBYE_SECONDS = 5.0  # for the answers to `end`, on which nothing depends

__all__ = ["Missing", "Paused", "ServerSession"]


class ServerSession:
    """The server's side of one run; `play` returns a Result, or raises Paused where the run can be resumed."""

    def __init__(
        self,
        order: Order,
        folder: Path,
        ask: AskSites,
        patience: Patience | None = None,
        note: Callable[[str], None] = lambda line: None,
        should_stop: Callable[[], bool] = lambda: False,
        monitor: RunMonitor | None = None,
        post: Post | None = None,
        history: dict[str, np.ndarray] | None = None,
        signatures: Json | None = None,
        first_epoch: int | None = None,
    ):
        self.earlier = history or {}  # rounds that were played with more sites
        self.order, self.folder, self.ask, self.note, self.should_stop = order, Path(folder), ask, note, should_stop
        self.patience, self.monitor = patience or Patience(), monitor or RunMonitor()
        self.client = dict(zip(order.sites, order.names, strict=True))
        self.receipts = Receipts(self.folder.parent)
        self.exchange = Exchange(
            order.run, self.client, ask, self.patience, note, should_stop, self.receipts, signatures, first_epoch
        )
        self.post = self.exchange.post = post
        self.key, self.uids = random_key(order.seed), jnp.asarray(order.uids)
        self.pace: list[float] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoints = ServerCheckpoints(order, self.folder, self.exchange)

    def play(self) -> Result:
        """Greet the sites, let them join, play the rounds, and measure the last model."""
        try:
            return self._play()
        finally:
            self.receipts.save()

    def _play(self) -> Result:
        began = time.perf_counter()
        monitor = self.monitor
        monitor.statement = {
            "run": self.order.run, "algorithm": name_of(self.order.algorithm), "clients": list(self.order.names),
            "max_rounds": self.order.max_rounds,
        }  # fmt: skip
        monitor.refusals = self.exchange.refusals
        if (post := self.post) is not None:
            monitor.waiting = lambda: sorted(self.client[site] for site in {*post.missing} & self.client.keys())
        monitor.enter("greeting")
        self._greet()
        order, terms, algorithm = self.order, self.order.terms, self.order.algorithm
        own_shapes = None if order.own is None else packing.structure(order.own)
        self.messages = layout.messages(algorithm, terms, own_shapes)
        self.replies = layout.replies(algorithm, terms, self.messages, self.party)
        self.holdout = Holdout.from_json(order.holdout)
        masking = replace(masking_of(algorithm, terms), verified=order.verified) if order.secure else None
        forms = layout.forms(self.replies, masking)
        self.numbers = max(count_of(form.shape) for form in forms)
        if masking is not None and order.verified:
            masking.check_size(self.numbers, terms.clients)
        sizes = [
            (packing.size_of(down), packing.size_of(up)) for down, up in zip(self.messages, self.replies, strict=True)
        ]
        self.exchange.allow(max(up for _, up in sizes))
        if masking is not None:
            numbers = [count_of(form.shape) for form in forms]
            sizes = [masking.traffic(down, n, terms.clients) for (down, _), n in zip(sizes, numbers, strict=True)]
            self.exchange.allow(max(up for _, up in sizes))
        noisy = sound_noise(algorithm) is not None
        # How often each site says that it has released, for the run's ledger; the server learns nothing else about a
        # site's noise, and a site's own ledger does not depend on it.
        self.release_counts = {"ledger.releases": np.zeros(terms.clients, int)} if noisy else {}
        monitor.enter("joining")
        site_rounds = self._join()
        start = first_play(order.few)(algorithm, terms, jnp.asarray(order.w0, dtype=float), order.own)
        at, columns = self._resume(start, site_rounds)
        recorder = Recorder(sizes, columns)
        self.release_counts |= {name: columns[name][-1].copy() for name in self.release_counts if name in columns}
        rounds = MaskedRounds if masking is not None else Rounds
        if masking is None and self.patience.quorum is not None and self.post is not None:
            rounds = QuorumRounds
        self.rounds = rounds(
            order, self.exchange, self.messages, self.replies, self.statements, self.release_counts, self.post,
            self.should_stop,
        )  # fmt: skip
        self.sites = PlainSites(self.exchange)
        if masking is not None and isinstance(self.rounds, MaskedRounds):
            sums = MaskedExchange(order.sites, self.exchange, self.patience, verified=order.verified)
            self.rounds.begin(sums, masking, forms)
            self.sites = MaskedSites(self.exchange, sums, order.max_rounds)
        monitor.sights = {self.client[site]: sight for site, sight in self.rounds.sights.items()}
        monitor.enter("rounds")
        compiled_at = time.perf_counter()
        first = recorder.rounds
        kept_at = time.monotonic()
        now = time.perf_counter if self.post is None else self.post.now
        self.monitor.recorder = recorder
        while recorder.rounds < order.max_rounds and not bool(at.carry.done) and not self.monitor.stop:
            if self.should_stop():
                raise Paused("the run was stopped from outside")
            tick = now()
            try:
                at, record = self.rounds.play(at)
            except LeftOut as wrong:
                wrong.w, wrong.history = np.asarray(at.carry.w), recorder.columns
                raise
            recorder.add({name: np.array(value)[None] for name, value in record.items()})
            self.pace.append(now() - tick)
            self.monitor.look()
            if recorder.rounds == first + 1:
                compiled_at = time.perf_counter()
            # a checkpoint waits for everybody: with a quorum it comes so seldom that this costs little
            patient = 0.0 if self.patience.quorum is None else self.rounds.slowest / clock.SHARE
            if time.monotonic() - kept_at >= max(self.patience.keep_every, patient):
                self._keep(at, recorder)
                kept_at = time.monotonic()
        self._keep(at, recorder)
        return self._finish(at, recorder, time.perf_counter() - began, compiled_at - began)

    # --- before the rounds ---

    def _greet(self) -> None:
        """Wait until every site answers, and check that the shapes of their arrays agree."""
        self.joins = self._joins()
        self.statements = {site: statement for site, (statement, _) in self.joins.items()}
        schemas = {site: header["schema"] for site, header in self.exchange.greet("hello", {}, self.statements).items()}
        first = self.order.sites[0]
        for site in self.order.sites:
            mine, theirs = layout.beyond_rows(schemas[site]), layout.beyond_rows(schemas[first])
            if mine != theirs:
                raise Missing(
                    f"client {self.client[site]!r}: its arrays are {layout.in_words(mine)}, "
                    f"but client {self.client[first]!r} has {layout.in_words(theirs)}."
                )
        extra_shapes = layout.schema(self.order.extra[0]) if self.order.extra else {}
        self.party = layout.party(schemas[first] | {k: list(v) for k, v in extra_shapes.items()})

    def _joins(self) -> dict[str, tuple[Json, bytes]]:
        """Return by site what it is asked to agree to in the greeting and in `join`, and the arrays of the latter.

        What follows from a plan and from sums that all sites know is not said again.
        """
        if self.order.prepared:
            return {site: ({}, b"") for site in self.order.sites}
        dim = self.order.terms.dim
        return {
            site: (stated, arrays_in_bytes(arrays, dim, stated["extra"]))
            for site, (stated, arrays) in joins_of(self.order).items()
        }

    def _join(self) -> dict[str, set[int]]:
        """Tell every site the terms; return the rounds after which each site has saved its state."""
        order = self.order
        header = self.exchange.header("join")
        messages = {
            site: packing.seal(header | statement, payload) for site, (statement, payload) in self.joins.items()
        }
        answers = self.ask(messages, max(self.patience.timeout, JOIN_SECONDS))
        site_rounds: dict[str, set[int]] = {}
        for site in order.sites:
            header, _ = self.exchange.open_reply(site, answers.get(site), "join", None)
            if header is None:
                raise Paused(f"client {self.client[site]!r} did not join{self.exchange.why(site)}")
            site_rounds[site] = {STARTED, *header["kept"]}
        return site_rounds

    # --- keeping and resuming ---

    def _keep(self, at: Play, recorder: Recorder) -> None:
        self.receipts.save()
        if self.patience.keep_every < math.inf:
            self.checkpoints.keep(at, int(at.carry.round), np.asarray(at.last), recorder)

    def _resume(self, fresh: Play, states: dict[str, set[int]]) -> tuple[Play, dict[str, np.ndarray]]:
        """Return the newest checkpoint that is whole and whose states all sites have; the start where there is none."""
        for path in self.checkpoints.files():
            content = self.checkpoints.load(path, fresh)
            if content is None:
                continue
            at, columns = content
            last = np.asarray(at.last)
            lacking = [s for i, s in enumerate(self.order.sites) if int(last[i]) not in states[s]]
            if lacking:
                self.note(f"{path.name}: client {self.client[lacking[0]]!r} lacks its state; the one before is tried.")
                continue
            self.checkpoints.rounds = [(int(at.carry.round), last)]
            self.note(f"resumed after round {int(at.carry.round)}")
            return at, columns
        return fresh, dict(self.earlier)

    # --- after the rounds ---

    def _finish(self, at: Play, recorder: Recorder, seconds: float, compile_seconds: float) -> Result:
        """Have every site measure its part of the certificate at the last model, and return the result."""
        order, algorithm, terms, carry = self.order, self.order.algorithm, self.order.terms, at.carry
        self.monitor.enter("measuring")
        multipliers = spine.server_multipliers(algorithm, terms, carry)
        nu = multipliers.get("coupled", np.zeros(terms.rows[2]))
        self.sites.since = dict(zip(order.sites, np.asarray(at.last).tolist(), strict=True))
        # with noise nobody measures: the figures would be exact
        silent = list(order.names) if order.secure and self.release_counts else None
        parts_or_names = silent or measuring.measurement(self, at, nu)
        end = spine.conclude(algorithm, terms, order.names, carry, parts_or_names, self.party, order.own, multipliers)
        end = measuring.with_gap(self, end, parts_or_names, multipliers, nu)
        interrupted = self.monitor.stop and not bool(carry.done) and recorder.rounds < order.max_rounds
        evaluation, decision, errors, w = None, None, None, np.asarray(carry.w)
        if order.summary is not None and bool(carry.finite) and not interrupted:
            errors = self._errors(w, nu, order.summary)
        if self.holdout and bool(carry.finite) and not interrupted:
            decision = self._decision(w) if self.holdout.rates else None
            evaluation = self._evaluation(w, decision) if self.holdout.evaluates else None
        if not (interrupted and self.monitor.keep):  # nobody will resume this run: the sites may delete their states
            self.ask({site: packing.seal(self.exchange.header("end")) for site in order.sites}, GOODBYE_SECONDS)
        return Result(
            conclusion=end,
            history=recorder.columns,
            seconds=seconds,
            compile_seconds=compile_seconds,
            interrupted=interrupted,
            pace=np.array(self.pace),
            refused=self.exchange.refusals,
            errors=errors,
            evaluation=None if evaluation is None else evaluation.to_json(),
            decision=None if decision is None else decision.to_json(),
        )

    def check_value(self, site: str, w: np.ndarray, f: float) -> None:
        """Refuse a value at the last model that is not one of the site's function's."""
        self.rounds.referee.check_measurement(self.order.sites.index(site), w, f)

    def _decision(self, w: np.ndarray) -> Decision:
        """Return the threshold that the terms on rates choose."""
        try:
            return rates.decide(self.sites, self.holdout.rates, w)
        except Missing:
            raise
        except FoedusError as error:
            raise Paused(f"no threshold is chosen: {error}") from None

    def _errors(self, w: np.ndarray, nu: np.ndarray, errors: str) -> dict[str, np.ndarray] | None:
        """Return what standard errors are made of; None, and a line in the log, where there are none."""
        try:
            return sandwich.ask(self.sites, self.order.terms, w, nu, errors)
        except Missing:
            raise
        except FoedusError as error:
            self.note(f"there are no standard errors: {error}")
            return None

    def _evaluation(self, w: np.ndarray, decision: Decision | None) -> Evaluation | None:
        """Return the figures on held-out rows; None, and a line in the log, where there are none."""
        try:
            noise, groups = self.holdout.noise, self.order.groups
            return evaluation_of(self.sites, self.order.terms, w, decision, noise, groups=groups)
        except Missing:
            raise
        except FoedusError as error:
            self.note(f"the model is not evaluated: {error}")
            return None
