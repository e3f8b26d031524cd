"""ServerSession: the server's side of a run, over any transport that can `ask`.

`ask(messages, timeout)` takes bytes by site and returns the bytes of those that answered in time. Everything else is
here: the same draws and history as in a simulation, refusals of replies that do not fit, checkpoints, and the measuring
round from which the certificate is made.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Algorithm, Present
from foedus.certificate import SitePart
from foedus.errors import FoedusError
from foedus.files import Json
from foedus.privacy.releasing import sound_noise
from foedus.pytrees import PyTree, state, strong
from foedus.runtime import spine
from foedus.runtime.flare import layout, packing, spec
from foedus.runtime.flare.exchange import HEADERS, AskSites, Exchange, Missing, Paused
from foedus.runtime.flare.keeping import ServerCheckpoints
from foedus.runtime.flare.names import STARTED
from foedus.runtime.flare.order import Order, Patience, Result
from foedus.runtime.flare.preparation import Request, prepare
from foedus.runtime.flare.window import Window
from foedus.runtime.participation import LOSE, SERVER, Participation, Schedule, client_uniforms, round_key
from foedus.runtime.spine import Carry, Recorder
from foedus.terms import Data, Terms

JOIN_SECONDS = 60.0  # at the least, for an answer to `join`: a site compiles its program before it answers
GOODBYE_SECONDS = 5.0  # for the answers to `end`, on which nothing depends
LARGEST_WHOLE = 2**53 - 1  # the largest whole number below which all are floating-point numbers

__all__ = ["Missing", "Paused", "ServerSession", "play"]


@state
class Play:
    """The state of a run between two rounds, at the server of a federation."""

    carry: Carry
    last: Array  # for each client, the round of the last reply that was accepted


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def first_play(algorithm: Algorithm, terms: Terms, w0: Array, own: Data | None) -> Play:
    """Return the state before the first round."""
    return Play(strong(spine.first(algorithm, terms, w0, own)), jnp.full(terms.clients, STARTED))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def broadcast(
    algorithm: Algorithm, terms: Terms, phase: int, server: PyTree, key: Array, round: Array, uids: Array
) -> PyTree:
    """Return the message of this round."""
    return algorithm.kinds[phase].broadcast(terms, server, client_uniforms(round_key(key, SERVER, round), uids))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def aggregate(
    algorithm: Algorithm, terms: Terms, phase: int, play: Play, replies: PyTree, here: Array
) -> tuple[Play, dict[str, Array]]:
    """Return the state after a round, and its record; a round that nobody answered changes nothing."""
    present = Present(jnp.arange(terms.clients), here)
    carry = spine.advance(algorithm, terms, algorithm.kinds[phase], play.carry, replies, present, sure=False)
    last = jnp.where(here, play.carry.round, play.last)
    return Play(carry, last), dict(algorithm.report(carry.server))


@jax.jit
def asked_clients(participation: Participation, key: Array, round: Array, uids: Array) -> Array:
    """Return who is asked in a round; (clients,) booleans."""
    n = uids.shape[0]
    return jnp.zeros(n, bool).at[participation.choose(key, round, uids)].set(True, mode="drop")


@jax.jit
def draws(key: Array, round: Array, uids: Array) -> Array:
    """Return the uniform numbers that decide whose reply is lost."""
    return client_uniforms(round_key(key, LOSE, round), uids)


def play(
    work: Order | Request,
    folder: Path,
    ask: AskSites,
    patience: Patience,
    note: Callable[[str], None],
    should_stop: Callable[[], bool],
    window: Window | None = None,
) -> Result:
    """Play an order to its end; a request first becomes one by preparing the data together with the sites."""
    if isinstance(work, Order):
        return ServerSession(work, folder, ask, patience, note, should_stop, window).play()
    names = {site: site for site in work.sites}
    order, rules = prepare(work, Exchange(work.run, names, ask, patience, note, should_stop))
    result = ServerSession(order, folder, ask, patience, note, should_stop, window).play()
    result.rules = rules.to_json()
    return result


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
        window: Window | None = None,
    ):
        self.order, self.folder, self.ask, self.note, self.should_stop = order, Path(folder), ask, note, should_stop
        self.patience, self.window = patience or Patience(), window or Window()
        self.client = dict(zip(order.sites, order.names, strict=True))
        self.exchange = Exchange(order.run, self.client, ask, self.patience, note, should_stop)
        self.pace: list[float] = []
        self.misses = dict.fromkeys(order.sites, 0)
        self.greeting_times = dict.fromkeys(order.sites, 0.0)
        self.key, self.uids = jax.random.key(order.seed), jnp.asarray(order.uids)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoints = ServerCheckpoints(order, self.folder, self.exchange)

    def play(self) -> Result:
        """Greet the sites, let them join, play the rounds, and measure the last model."""
        began = time.perf_counter()
        self._greet()
        order, terms, algorithm = self.order, self.order.terms, self.order.algorithm
        own_shapes = None if order.own is None else packing.structure(order.own)
        self.messages = layout.messages(algorithm, terms, own_shapes)
        self.replies = layout.replies(algorithm, terms, self.messages, self.party)
        largest = max(packing.size_of(one) for one in (*self.replies, layout.parts(terms, self.party)))
        self.exchange.most = largest + HEADERS
        self.free = [packing.may_be_infinite(reply) for reply in self.replies]
        self.traffic = tuple(
            (packing.size_of(down), packing.size_of(up)) for down, up in zip(self.messages, self.replies, strict=True)
        )
        noisy = sound_noise(algorithm) is not None
        # How often each site says that it has released, for the run's ledger; the server learns nothing else about a
        # site's noise, and a site's own ledger does not depend on it.
        self.release_counts = {"ledger.releases": np.zeros(terms.clients, int)} if noisy else {}
        site_rounds = self._join()
        start = first_play(algorithm, terms, jnp.asarray(order.w0, dtype=float), order.own)
        at, columns = self._resume(start, site_rounds)
        recorder = Recorder(self.traffic, columns)
        self.release_counts |= {name: columns[name][-1].copy() for name in self.release_counts if name in columns}
        compiled_at = time.perf_counter()
        first = recorder.rounds
        kept_at = time.monotonic()
        self.window.recorder = recorder
        while recorder.rounds < order.max_rounds and not bool(at.carry.done) and not self.window.stop:
            if self.should_stop():
                raise Paused("the run was stopped from outside")
            tick = time.perf_counter()
            at = self._round(at, recorder)
            self.pace.append(time.perf_counter() - tick)
            if recorder.rounds == first + 1:
                compiled_at = time.perf_counter()
            if time.monotonic() - kept_at >= self.patience.keep_every:
                self._keep(at, recorder)
                kept_at = time.monotonic()
        self._keep(at, recorder)
        return self._finish(at, recorder, time.perf_counter() - began, compiled_at - began)

    # --- before the rounds ---

    def _greet(self) -> None:
        """Wait until every site answers, and check that the shapes of their arrays agree."""
        schemas = {site: header["schema"] for site, header in self.exchange.greet("hello", self._statement()).items()}
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

    def _statement(self) -> Json:
        """Return what a site is asked to agree to before it joins."""
        order = self.order
        terms, algorithm = spec.encode(order.terms), spec.encode(order.algorithm)
        return {"algorithm": algorithm, "terms": terms, "max_rounds": order.max_rounds}

    def _join(self) -> dict[str, set[int]]:
        """Tell every site the terms; return the rounds after which each site has saved its state."""
        order = self.order
        common = self._statement() | {
            "seed": order.seed,
            "own": None if order.own is None else layout.schema(order.own),
        }
        messages = {}
        for i, site in enumerate(order.sites):
            extra = order.extra[i] if order.extra else {}
            shapes = {k: list(np.shape(v)) for k, v in extra.items()}
            plan = (layout.vector(order.terms.dim), layout.of_shapes(shapes))
            uid = [int(v) for v in order.uids[i]]
            header = self.exchange.header("join") | common | {"index": i, "uid": uid, "extra": shapes}
            messages[site] = packing.seal(header, packing.to_bytes((order.w0, extra), plan))
        answers = self.ask(messages, max(self.patience.timeout, JOIN_SECONDS))
        site_rounds: dict[str, set[int]] = {}
        for site in order.sites:
            header, _ = self.exchange.open_reply(site, answers.get(site), "join", None)
            if header is None:
                raise Paused(f"client {self.client[site]!r} did not join{self.exchange.why(site)}")
            site_rounds[site] = {STARTED, *header["kept"]}
        return site_rounds

    # --- a round ---

    def _round(self, at: Play, recorder: Recorder) -> Play:
        """Play one round; return the state after it.

        The draws (who is asked, whose reply is lost) are those of a simulation with the same seed. A reply that the
        draws call lost is asked for all the same and then left out.
        """
        order, n, carry = self.order, self.order.terms.clients, at.carry
        round, phase = int(carry.round), int(order.algorithm.phase(carry.server))
        who = order.participation
        if who.size(n) == n and not isinstance(who, Schedule):
            is_asked = np.ones(n, bool)
        else:
            is_asked = np.asarray(asked_clients(who, self.key, carry.round, self.uids))
        is_lost = np.zeros(n, bool)
        if who.dropout > 0:
            is_lost = np.asarray(draws(self.key, carry.round, self.uids)) < who.dropout
        message = broadcast(order.algorithm, order.terms, phase, carry.server, self.key, carry.round, self.uids)
        message = jax.tree.map(np.asarray, message)
        last = np.asarray(at.last)
        rows: dict[int, PyTree] = {}
        tries = 0
        asked_indices = [i for i in range(n) if is_asked[i]]
        minimum = len(asked_indices)
        if self.patience.minimum is not None:
            minimum = min(minimum, self.patience.minimum)
        while True:
            self._probe()  # a site that was given up may be back
            missing = [i for i in asked_indices if i not in rows and not self._given_up(order.sites[i])]
            messages = {}
            for i in missing:
                header = self.exchange.header("round") | {"round": round, "phase": phase, "since": int(last[i])}
                one = spine.message_for(message, i)
                messages[order.sites[i]] = packing.seal(header, packing.to_bytes(one, self.messages[phase]))
            answers = self.ask(messages, self.patience.timeout) if messages else {}
            wild = 0
            for i in missing:
                row, infinite = self._row(order.sites[i], answers.get(order.sites[i]), round, phase)
                wild += infinite
                if row is not None:
                    rows[i] = row
            tries += 1
            # the run has diverged where nobody's numbers are finite; the NaN of one site alone is that site's fault
            all_infinite = wild >= len(asked_indices) > 0
            if len(rows) >= minimum or all_infinite:
                break
            if tries > self.patience.misses or self.should_stop():
                silent = next(i for i in asked_indices if i not in rows)
                why = self.exchange.why(order.sites[silent])
                raise Paused(f"client {order.names[silent]!r} does not answer in round {round}{why}")
        # Replies are stacked with a row for every client. Rows of absent ones are zeros, which `here` leaves out.
        here = np.array([i in rows and not is_lost[i] for i in range(n)])
        blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.replies[phase])
        replies = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows.get(i, blank) for i in range(n)))
        after, report = aggregate(order.algorithm, order.terms, phase, at, replies, here)
        if all_infinite:
            after = replace(at, carry=replace(carry, round=carry.round + 1, finite=jnp.zeros((), bool)))
        record = {"phase": phase, "asked": int(is_asked.sum()), "answered": int(here.sum())}
        record |= report | self.release_counts
        recorder.add({name: np.array(value)[None] for name, value in record.items()})
        return after

    def _row(self, site: str, raw: object, round: int, phase: int) -> tuple[PyTree, bool]:
        """Return a site's reply as a tree, or None; and whether it was refused for not being finite."""
        header, payload = self.exchange.open_reply(site, raw, "round", round)
        try:
            if header is not None:
                row = packing.from_bytes(payload, self.replies[phase])
                packing.check_finite(row, self.free[phase])
                self._note_releases(site, header)
                self.misses[site] = 0
                return row, False
        except packing.NotFinite as error:
            self.exchange.refuse(site, str(error))
            self.misses[site] += 1
            return None, True
        except FoedusError as error:
            self.exchange.refuse(site, str(error))
        self.misses[site] += 1
        return None, False

    def _note_releases(self, site: str, header: Json) -> None:
        """Note how often the site says that it has released; the entry of a silent site stays as it was."""
        for column in self.release_counts.values():
            count = header.get("releases")
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= LARGEST_WHOLE:
                raise FoedusError("its reply does not say how often it has released")
            column[self.order.sites.index(site)] = count

    def _given_up(self, site: str) -> bool:
        """Return whether a site was silent so often that rounds go on without it."""
        return self.patience.minimum is not None and self.misses[site] >= self.patience.misses

    def _probe(self) -> None:
        """Greet the sites that were given up; one that answers is asked again."""
        now = time.monotonic()
        waits = {site: now - self.greeting_times[site] for site in self.order.sites}
        silent = [s for s in self.order.sites if self._given_up(s) and waits[s] >= self.patience.probe]
        if not silent:
            return
        for site in silent:
            self.greeting_times[site] = now
        answers = self.ask(
            {site: packing.seal(self.exchange.header("hello") | self._statement()) for site in silent},
            min(1.0, self.patience.timeout),
        )
        for site in silent:
            header, _ = self.exchange.open_reply(site, answers.get(site), "hello", None)
            if header is not None:
                self.misses[site] = 0

    # --- keeping and resuming ---

    def _keep(self, at: Play, recorder: Recorder) -> None:
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
        return fresh, {}

    # --- after the rounds ---

    def _finish(self, at: Play, recorder: Recorder, seconds: float, compile_seconds: float) -> Result:
        """Have every site measure its part of the certificate at the last model, and return the result."""
        order, algorithm, terms, carry = self.order, self.order.algorithm, self.order.terms, at.carry
        finite = bool(carry.finite)
        multipliers = spine.server_multipliers(algorithm, terms, carry)
        nu = multipliers.get("coupled", np.zeros(terms.rows[2]))
        w, last = np.asarray(carry.w), np.asarray(at.last)
        payload = packing.to_bytes((w, nu), (layout.vector(terms.dim), layout.vector(terms.rows[2])))
        plan = layout.parts(terms, self.party)
        parts: dict[str, SitePart | None] = {}  # None for a site that does not measure
        for _ in range(1 + self.patience.misses):
            messages = {
                s: packing.seal(self.exchange.header("measure") | {"since": int(last[i])}, payload)
                for i, s in enumerate(order.sites)
                if s not in parts
            }
            for site, raw in self.ask(messages, self.patience.timeout).items() if messages else ():
                header, content = self.exchange.open_reply(site, raw, "measure", None)
                try:
                    if header is not None:
                        parts[site] = (
                            layout.part_from(content, plan, finite) if header.get("measured") is True else None
                        )
                except FoedusError as error:
                    self.exchange.refuse(site, str(error))
        if silent := [s for s in order.sites if s not in parts]:
            why = self.exchange.why(silent[0])
            raise Paused(f"client {self.client[silent[0]]!r} does not answer the measuring round{why}")
        silent = [name for site, name in zip(order.sites, order.names, strict=True) if parts[site] is None]
        parts_or_names = silent or jax.tree.map(lambda *rows: jnp.stack(rows), *(parts[site] for site in order.sites))
        end = spine.conclude(algorithm, terms, order.names, carry, parts_or_names, self.party, order.own, multipliers)
        interrupted = self.window.stop and not bool(carry.done) and recorder.rounds < order.max_rounds
        if not (interrupted and self.window.keep):  # nobody will resume this run: the sites may delete their states
            self.ask({site: packing.seal(self.exchange.header("end")) for site in order.sites}, GOODBYE_SECONDS)
        return Result(
            conclusion=end,
            history=recorder.columns,
            seconds=seconds,
            compile_seconds=compile_seconds,
            interrupted=interrupted,
            pace=np.array(self.pace),
            refused=self.exchange.refusals,
        )
