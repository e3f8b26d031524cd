"""A server that asks a site for whatever it likes."""

import dataclasses
import hashlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import foedus as fd
from foedus.federation import layout, packing, spec
from foedus.federation.order import over_a_network
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.site import SiteSession
from foedus.federation.site_ledger import SiteLedger
from foedus.privacy.noise import Sound
from foedus.privacy.releasing import make_private
from foedus.protocol.algorithm import Algorithm
from foedus.runtime import spine

ROWS, DIM = 60, 3


STRICT: dict = {"privacy": True, "max_epsilon": 1.0, "max_epsilon_total": 1.0}


def rows(seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(ROWS, DIM))
    return {"x": x, "y": (x[:, 0] + 0.3 * draw.normal(size=ROWS) > 0).astype(float)}


def problem(arrays: dict[str, np.ndarray] | None = None, **terms) -> fd.Problem:
    """Three sites with rows of the same shape; the attacked one is the first."""
    first = rows() if arrays is None else arrays
    told = {"loss": fd.losses.logistic} | terms
    return fd.Problem({"city": first, "north": rows(1), "south": rows(2)}, **told).over(np.zeros(DIM))


def private(noise: Sound | None = None, **settings) -> Algorithm:
    noise = noise or fd.Laplace(epsilon=0.25, clip=1.0)
    algorithm = fd.FedAvg(**{"lr": 0.5, "k0": 1} | settings)
    return over_a_network(make_private(algorithm, noise, None, problem(), 1000))


class Intruder:
    """A server that says what it likes to one site. `folder` is the site's own, kept over restarts."""

    def __init__(self, folder: Path, algorithm: Algorithm, policy: Policy | None = None, **told):
        self.folder, self.algorithm = folder, algorithm
        self.policy = policy or Policy(**STRICT)
        self.arrays = told.pop("arrays", rows())
        self.problem = told.pop("problem", None) or problem(self.arrays, **told)
        self.terms = told.pop("stated", self.problem.terms)
        np.savez(folder / "data.npz", **self.arrays)
        self.notes: list[str] = []
        self.start()

    def start(self) -> None:
        """The site's process, as after a crash: only its folder remains."""
        site = SiteFile(Source(self.folder / "data.npz"), self.policy)
        self.site = SiteSession("city", site, self.folder / "site", self.notes.append)

    def say(self, ask: str, payload: bytes = b"", **told) -> tuple[dict, bytes]:
        header = {"ask": ask, "run": "r1", "round": None} | told
        return packing.unseal(self.site.answer(packing.seal(header, payload)))

    def arrays_of(self, extra: dict[str, np.ndarray] | None) -> tuple[dict[str, list[int]], bytes]:
        """The shapes of the arrays that `join` brings beside the first model, and all of them as bytes."""
        extra = {} if extra is None else extra
        shapes = {k: list(np.shape(v)) for k, v in extra.items()}
        plan = (layout.vector(self.terms.dim), layout.of_shapes(shapes))
        return shapes, packing.to_bytes((np.zeros(self.terms.dim), extra), plan)

    def statement(self, extra: dict[str, np.ndarray] | None = None) -> dict:
        """What an honest server states in the greeting and in `join`."""
        shapes, content = self.arrays_of(extra)
        settings = {"algorithm": spec.encode(self.algorithm), "terms": spec.encode(self.terms), "max_rounds": 4}
        settings |= {"seed": 0, "own": None, "index": 0, "uid": [0, 0], "extra": shapes, "client": "city"}
        return settings | {"arrays": hashlib.sha256(content).hexdigest()}

    def hello(self, run: str = "r1", extra: dict[str, np.ndarray] | None = None, **told) -> dict:
        return self.say("hello", **{"run": run} | self.statement(extra) | told)[0]

    def join(self, run: str = "r1", extra: dict[str, np.ndarray] | None = None, **told) -> dict:
        return self.say("join", self.arrays_of(extra)[1], **{"run": run} | self.statement(extra) | told)[0]

    def enter(self, run: str = "r1", max_rounds: int = 4) -> "Intruder":
        for reply in (self.hello(run, max_rounds=max_rounds), self.join(run, max_rounds=max_rounds)):
            assert reply["code"] == "ok", reply
        return self

    def message(self, w: np.ndarray) -> bytes:
        """What an honest server would broadcast with this model."""
        algorithm, terms = self.algorithm, self.terms
        server = dataclasses.replace(algorithm.init(terms, jnp.zeros(terms.dim), None), w=jnp.asarray(w, dtype=float))
        one = spine.message_for(algorithm.kinds[0].broadcast(terms, server, jnp.zeros(terms.clients)), 0)
        return packing.to_bytes(one, layout.messages(algorithm, terms, None)[0])

    def round(self, number: int, w=None, run: str = "r1", since: int = -1) -> tuple[dict, np.ndarray]:
        """A round's reply: its header, and the first DIM numbers of what it brings."""
        w = np.zeros(DIM) if w is None else w
        header, content = self.say("round", self.message(w), run=run, round=number, phase=0, since=since)
        return header, np.frombuffer(content[: 8 * DIM]) if content else np.zeros(0)

    @property
    def spent(self) -> float:
        return SiteLedger(self.folder / "site").total(0.0)
