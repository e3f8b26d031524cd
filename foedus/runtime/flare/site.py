"""SiteSession: a site's side of a run. Bytes in, bytes out; the data and the client state never leave it.

A site keeps its state after each round it played under that round's number, and the server says with each message which
one it goes on from (`since`, the round of the last reply it accepted). A reply that got lost is thereby as if the round
had not reached the site, and a resumed run goes on from states both sides have on disk.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Algorithm
from foedus.certificate import SitePart, site_part
from foedus.constraints import Capped, Linear
from foedus.errors import FoedusError
from foedus.privacy.attach import prepare as prepare_noise
from foedus.problem import Problem
from foedus.run import versions
from foedus.runtime.checkpoint import Checkpoint, fingerprint
from foedus.runtime.flare import layout, packing, spec
from foedus.runtime.flare.policy import Refusal, SiteFile, Spent
from foedus.runtime.flare.preparation import Desk
from foedus.runtime.participation import LOCAL, client_key, round_key
from foedus.terms import Data, Terms

STARTED = -1  # the number of the state that `join` makes


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def _join(algorithm: Algorithm, terms: Terms, data: Data, w0: Array) -> Any:
    return layout.strong(algorithm.join(terms, data, w0))


@partial(jax.jit, static_argnames=("algorithm", "terms", "phase"))
def _local(
    algorithm: Algorithm, terms: Terms, phase: int, client: Any, message: Any, data: Data, key: Array, round: Array,
    uid: Array,
) -> tuple[Any, Any]:  # fmt: skip
    own = client_key(round_key(key, LOCAL, round), uid)
    mine, reply = algorithm.kinds[phase].local(terms, client, message, data, own)
    return layout.strong(mine), reply


@partial(jax.jit, static_argnames=("algorithm", "terms"))
def _part(algorithm: Algorithm, terms: Terms, client: Any, w: Array, nu: Array, data: Data) -> SitePart:
    return site_part(terms, w, algorithm.client_multipliers(terms, client), nu, data)


class SiteSession:
    """One site in one run after the other. `answer` takes the server's bytes and never raises."""

    def __init__(self, name: str, site: SiteFile, folder: Path, note: Callable[[str], None] = lambda line: None):
        self.name, self.site, self.folder, self.note = name, site, Path(folder), note
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = MessageLog(self.folder / "messages.jsonl")
        self.lock = threading.Lock()
        self.run: str | None = None
        self.arrays: dict[str, np.ndarray] | None = None

    def answer(self, message: Any) -> bytes:
        """The reply to a message of the server."""
        asked: dict[str, Any] = {}
        with self.lock:  # transports may deliver on several threads; a late round must not overlap the next
            try:
                asked, payload = packing.unseal(message)
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
                    "end": self._end,
                }
                if asked.get("ask") not in answers:
                    raise Refusal("unknown", "it does not know this kind of message")
                header, content = answers[asked["ask"]](asked, payload)
                if len(content) > self.site.policy.max_message:
                    raise Refusal(
                        "policy", f"its policy allows no message of more than {self.site.policy.max_message} bytes"
                    )
                header = {"code": "ok"} | header
            except Refusal as no:
                header, content = {"code": no.code, "sentence": no.sentence}, b""
                self.note(f"refused {asked.get('ask')}: {no.sentence}")
            except Exception as error:
                # what went wrong may hold data: it is for the site's own log, and the server gets a code alone
                self.note(f"failed in {asked.get('ask')}: {type(error).__name__}: {error}")
                header, content = {"code": "failed", "sentence": "it failed; its own log says why"}, b""
            header |= {"site": self.name, "run": asked.get("run"), "round": asked.get("round"), "ask": asked.get("ask")}
            reply = packing.seal(header, content)
            try:
                self.log.add(asked, header, len(reply))
            except OSError as error:  # what is not on record is not sent
                self.note(f"cannot write {self.log.path}: {error.strerror}")
                header |= {"code": "failed", "sentence": "it cannot keep its record of messages; its disk may be full"}
                return packing.seal(header)
            return reply

    def _hello(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        data = self._read()
        rows = len(next(iter(data.values()))) if "x" not in data else len(data["x"])
        if rows < self.site.policy.min_rows:
            raise Refusal("policy", "it has fewer rows than its policy asks for")
        return {"versions": _versions(), "schema": layout.schema(data)}, b""

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

    def _allowed(self, asked: dict[str, Any]) -> Algorithm:
        """The algorithm, where the policy allows it; no data has been looked at."""
        policy = self.site.policy
        algorithm = self._decoded(asked["algorithm"])
        if not isinstance(algorithm, Algorithm):
            raise Refusal("unknown", "the experiment names no algorithm")
        self.spent = Spent(self.folder / "privacy.json")
        if no := policy.refuse(algorithm, int(asked["max_rounds"]), self.spent.besides(asked["run"])):
            raise Refusal("policy", no)
        return algorithm

    def _decoded(self, text: Any) -> Any:
        try:
            return spec.decode(text, self.site.policy.modules)
        except FoedusError as error:  # of the experiment alone
            raise Refusal("policy", str(error).removesuffix(".")) from None

    def _columns(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        self._allowed(asked)
        if self.site.data is None:
            raise Refusal("data", "its site file names no data")
        self.desk = Desk(self.name, self.site.data, self.site.policy, self.note)
        return {"versions": _versions()} | self.desk.columns(asked), b""

    def _sums(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        noise = asked["noise"]
        if noise is not None:
            self.spent.note(f"{asked['run']} preparation", float(noise["epsilon"]))
        own = self._seed(0) if self.site.policy.own_keys else None
        return self.desk.sums(asked, own), b""

    def _squares(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        return self.desk.squares(asked), b""

    def _prepare(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        self.arrays = self.desk.prepare(asked)
        return {}, b""

    def _join(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        algorithm = self._allowed(asked)
        terms: Terms = self._decoded(asked["terms"])
        if not isinstance(terms, Terms):
            raise Refusal("unknown", "the experiment names no terms")
        extra_layout, w0_layout = layout.of_shapes(asked["extra"]), layout.vector(terms.dim)
        w0, extra = packing.from_bytes(payload, (w0_layout, extra_layout))
        self.w0 = jnp.asarray(w0)
        arrays = self._read()
        try:
            data = self._checked(terms, algorithm, arrays, w0)
        except FoedusError as error:
            self.note(str(error))
            raise Refusal("data", "its data do not fit the terms; its own log says how") from None
        held = Data({**data, **{k: jnp.asarray(v) for k, v in extra.items()}})
        self.run, self.algorithm, self.terms = asked["run"], algorithm, terms
        self.index, self.uid = int(asked["index"]), jnp.asarray(np.array(asked["uid"], np.uint32))
        self.key = jax.random.key(self._seed(int(asked["seed"])))
        own = None if asked["own"] is None else Data(layout.of_shapes(asked["own"]))
        self.messages = layout.messages(algorithm, terms, own)
        passes = max(getattr(kind, "passes", 1) for kind in algorithm.kinds)
        self.measured, self.data = held, algorithm.condense(terms, terms.condensed(held, passes))
        self.replies = layout.replies(algorithm, terms, self.messages, packing.structure(self.data))
        self.parts = layout.parts(terms, packing.structure(held))
        self.states = {STARTED: _join(algorithm, terms, held, self.w0)}
        self.mark = fingerprint(json.dumps([asked["algorithm"], asked["terms"], asked["seed"]], sort_keys=True))
        return {"kept": self._kept()}, b""

    def _checked(self, terms: Terms, algorithm: Algorithm, arrays: dict[str, np.ndarray], w0: np.ndarray) -> Data:
        """The data of a problem with this one client: everything that is checked at the door is checked here."""
        problem = Problem(
            {self.name: arrays},
            loss=terms.loss,
            objective=terms.objective,
            where=terms.where,
            penalty=terms.penalty,
            regularizer=terms.regularizer,
            constraints=[
                c.at(self.name) if isinstance(c, Capped) else c
                for c in terms.constraints
                if c.scope != "global" and not isinstance(c, Linear)
            ],
        ).over(terms.shape.unravel(jnp.asarray(w0)))
        prepare_noise(problem, algorithm, w0)
        return Data({k: v[0] for k, v in problem.data.items()})

    def _seed(self, shared: int) -> int:
        """The run's seed, or a secret: noise that the server could repeat would hide nothing from it."""
        if not self.site.policy.own_keys:
            return shared
        path = self.folder / "seed"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(str(secrets.randbits(62)))
        return int(path.read_text())

    def _round(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        self._check_run(asked)
        round, phase, since = int(asked["round"]), int(asked["phase"]), int(asked["since"])
        client = self._state(since)
        message = jax.tree.map(jnp.asarray, packing.from_bytes(payload, self.messages[phase]))
        following, reply = _local(
            self.algorithm, self.terms, phase, client, message, self.data, self.key, np.int64(round), self.uid
        )
        self.states = {since: client, round: following}
        noise = getattr(self.algorithm, "noise", None)
        if noise is not None:
            self.spent.note(asked["run"], float(noise.epsilon) * (round + 1))
        record = {name: float(value) for name, value in self.algorithm.observe(following).items()}
        return {"record": record} if record else {}, packing.to_bytes(reply, self.replies[phase])

    def _state(self, number: int) -> Any:
        """The client state after a round: the one in memory, or the one on disk."""
        if getattr(self.algorithm, "keeps_lost", False) and number in self.states:
            return self.states[max(self.states)]
        if number not in self.states:
            kept = Checkpoint(self._file(number), self.mark).load(next(iter(self.states.values())))
            if kept is None:
                raise Refusal("lost", f"it has no state of round {number}")
            self.states = {number: kept[0]}
        return self.states[number]

    def _keep(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Write the state after a round to disk, and forget those that nobody will ask for."""
        self._check_run(asked)
        since, needed = int(asked["since"]), {int(n) for n in asked["needed"]}
        if since != STARTED:
            Checkpoint(self._file(since), self.mark).keep(self._state(since), {}, final=True)
        for path in self._place().glob("state-*.ckpt"):
            if int(path.stem.removeprefix("state-")) not in needed | {since}:
                path.unlink(missing_ok=True)
        return {}, b""

    def _measure(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        self._check_run(asked)
        w, nu = packing.from_bytes(payload, (layout.vector(self.terms.dim), layout.vector(self.terms.rows[2])))
        client = self._state(int(asked["since"]))
        part = _part(self.algorithm, self.terms, client, jnp.asarray(w), jnp.asarray(nu), self.measured)
        return {}, packing.to_bytes(part, self.parts)

    def _end(self, asked: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        self._check_run(asked)
        for path in self._place().glob("state-*.ckpt"):
            path.unlink(missing_ok=True)
        self._place().rmdir()
        self.run = None
        return {}, b""

    def _check_run(self, asked: dict[str, Any]) -> None:
        if self.run is None or asked.get("run") != self.run:
            raise Refusal("other-run", "it has not joined this run")

    def _place(self) -> Path:
        place = self.folder / f"run-{self.run}"
        place.mkdir(exist_ok=True)
        return place

    def _file(self, number: int) -> Path:
        return self._place() / f"state-{number}.ckpt"

    def _kept(self) -> list[int]:
        """The rounds whose states are on disk, whole."""
        found, like = [], next(iter(self.states.values()))
        for path in self._place().glob("state-*.ckpt"):
            try:
                Checkpoint(path, self.mark).load(like)
                found.append(int(path.stem.removeprefix("state-")))
            except (FoedusError, ValueError) as error:
                self.note(f"a kept state is set aside: {error}")
                path.unlink(missing_ok=True)
        return sorted(found)


class MessageLog:
    """Every message that a site sends: when, what for, how many bytes. One JSON line each, at the site alone."""

    def __init__(self, path: Path):
        self.path = path

    def add(self, asked: dict[str, Any], header: dict[str, Any], size: int) -> None:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
            "run": asked.get("run"),
            "purpose": asked.get("ask"),
            "round": asked.get("round"),
            "bytes": size,
            "code": header["code"],
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """The lines so far; one that was cut short by a crash is left out."""
        lines = []
        for text in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
        return lines


def _versions() -> dict[str, str]:
    return {k: v for k, v in versions().items() if k in ("foedus", "jax")}
