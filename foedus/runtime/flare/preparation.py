"""Before the first round of a submitted run: sites whose tables nobody else sees agree on columns, scales and words.

Four messages to every site. `columns`: what the columns are for; a site tells which it has. `sums` and `squares`: the
two rounds of `foedus.data.preprocess`, with noise that the site itself adds where the plan asks for it. `prepare`: the
rules that came of it, with which the site turns its table into the arrays that the rounds work on.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from foedus.algorithm import Algorithm
from foedus.data.preprocess import Category, Preprocessing, arrays_of
from foedus.data.sites import Cohort, Roles
from foedus.data.sketch import Sketch, agreed, sketch
from foedus.data.sums import Ask, Noise, Replies, Sums
from foedus.errors import FoedusError
from foedus.runtime.checkpoint import pack, unpack
from foedus.runtime.flare import spec
from foedus.runtime.flare.exchange import Exchange
from foedus.runtime.flare.order import Order
from foedus.runtime.flare.policy import Policy, Refusal, Source


class Plan(Protocol):
    """An experiment stated without data: what is known before, and what it becomes when the sites have told."""

    @property
    def roles(self) -> Roles: ...

    @property
    def algorithm(self) -> Algorithm:
        """With its noise: a site's policy is about it."""
        ...

    @property
    def max_rounds(self) -> int: ...

    @property
    def noise(self) -> dict[str, Any] | None:
        """The bounds, ε and seed of noise on what a site sends while preparing; None where sums are exact."""
        ...

    def rules(self, cohort: Cohort, answers: Any) -> Preprocessing: ...

    def order(self, cohort: Cohort, rules: Preprocessing, run: str, sites: tuple[str, ...]) -> Order: ...


@dataclass(frozen=True)
class Request:
    """What a coordinator without data submits."""

    run: str
    sites: tuple[str, ...]
    plan: Any

    def to_bytes(self) -> bytes:
        return pack({}, {"run": self.run, "sites": list(self.sites), "plan": spec.encode(self.plan)})


def read(content: bytes, allowed: tuple[str, ...] = ()) -> Order | Request:
    """An order, or a request that becomes one."""
    _, note = unpack(content)
    if "plan" not in note:
        return Order.from_bytes(content, allowed)
    plan = spec.decode(note["plan"], (*allowed, "foedus.experiment.plan"))
    return Request(note["run"], tuple(note["sites"]), plan)


class Apart:
    """Sites that answer over a network."""

    def __init__(self, exchange: Exchange, noise: dict[str, Any] | None):
        self.exchange, self.noise = exchange, noise

    @property
    def sites(self) -> int:
        return len(self.exchange.client)

    def first(self, ask: Ask) -> list[Sums]:
        told = {"columns": dataclasses.asdict(ask), "noise": self.noise}
        return [_sums(header["sums"]) for header in self.exchange.everyone("sums", told).values()]

    def second(self, means: Mapping[str, float]) -> list[dict[str, float]]:
        found = self.exchange.everyone("squares", {"means": dict(means)}).values()
        return [{str(name): float(value) for name, value in header["squares"].items()} for header in found]


def _sums(told: Mapping[str, Any]) -> Sums:
    parts: dict[str, Any] = {k: {n: float(v) for n, v in told[k].items()} for k in ("count", "total", "least", "most")}
    return Sums(**parts, words={n: tuple(map(str, words)) for n, words in told["words"].items()})


def prepare(request: Request, exchange: Exchange) -> tuple[Order, Preprocessing]:
    """Play the preparation at the server."""
    plan = request.plan
    told = {
        "roles": dataclasses.asdict(plan.roles),
        "algorithm": spec.encode(plan.algorithm),
        "max_rounds": plan.max_rounds,
    }
    found = exchange.greet("columns", told)
    cohort = agreed({site: Sketch.from_json(header["sketch"]) for site, header in found.items()}, plan.roles)
    rules = plan.rules(cohort, Apart(exchange, plan.noise))
    exchange.everyone("prepare", {"rules": rules.to_json()})
    return plan.order(cohort, rules, request.run, request.sites), rules


def cohort_of(rules: Preprocessing, roles: Roles) -> Cohort:
    """What the rules say of the sites' tables."""
    words = frozenset(rule.name for rule in rules.columns if isinstance(rule, Category))
    return Cohort({}, roles, tuple(rule.name for rule in rules.columns), words, rules.labels, rules.groups)


# --- at a site ---


class Desk:
    """A site's answers before the first round, from its own table."""

    def __init__(self, name: str, source: Source, policy: Policy, note: Callable[[str], None]):
        self.name, self.source, self.policy, self.note = name, source, policy, note
        self.answered: tuple[dict[str, Any], dict[str, Any]] | None = None

    def columns(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in asked["roles"].items()}
        self.roles = Roles(**told)
        try:
            table = self.source.table(self.roles)
            for name in (self.roles.label, self.roles.group, *(self.roles.features or ()), *self.roles.categorical):
                if name is not None and name not in table.columns:
                    raise Refusal("data", f"it has no column {name!r}, which the experiment names")
            self.table, self.sketch = sketch(table, self.roles)
        except FoedusError as error:
            self.note(str(error))
            raise Refusal("data", "its table does not fit the experiment; its own log says how") from None
        if self.table.rows < self.policy.min_rows:
            raise Refusal("policy", "it has fewer rows than its policy asks for")
        for values in (self.sketch.labels, self.sketch.groups):
            self._few(len(values))
        return {"sketch": self.sketch.to_json()}

    def _few(self, words: int) -> None:
        if words > self.policy.max_words:
            raise Refusal("policy", f"its policy lets it tell no more than {self.policy.max_words} words of a column")

    def sums(self, asked: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
        columns = {str(k): tuple(map(str, v)) for k, v in asked["columns"].items()}
        ask = Ask(columns["sums"], columns["ranges"], columns["words"])
        numeric = {f for f, holds in zip(self.sketch.features, self.sketch.holds, strict=True) if holds != "words"}
        spoken = {*self.sketch.features, self.roles.group, *([self.roles.label] if self.roles.classification else [])}
        if not {*ask.sums, *ask.ranges} <= numeric or not {*ask.words} <= spoken:
            raise Refusal("unknown", "it is asked for sums of columns that are no features")
        noise = self._noise(asked["noise"], seed)
        beyond = {*ask.words} - {self.roles.label, self.roles.group}
        if self.policy.limits_privacy and (ask.ranges or beyond or (ask.sums and noise is None)):
            raise Refusal(
                "policy",
                "its policy asks for privacy, and the preparation would send exact sums or words; state bounds and "
                "categories in [preprocess], or add epsilon",
            )
        self.replies, self.answered = Replies(self.table, noise), None
        found = self.replies.first(ask)
        for words in found.words.values():
            self._few(len(words))
        return {"sums": dataclasses.asdict(found)}

    def _noise(self, told: Mapping[str, Any] | None, seed: int | None) -> Noise | None:
        if told is None:
            return None
        key = int(told["seed"]) if seed is None else seed
        draw = np.random.default_rng([key, zlib.crc32(self.name.encode())])
        bounds = {str(name): (float(low), float(high)) for name, (low, high) in told["bounds"].items()}
        return Noise(bounds, float(told["epsilon"]), int(told["figures"]), draw)

    def squares(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        means = {str(name): float(mean) for name, mean in asked["means"].items()}
        if self.answered is None or self.answered[0] != means:  # asked again, it does not draw its noise again
            self.answered = (means, self.replies.second(means))
        return {"squares": self.answered[1]}

    def prepare(self, asked: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays that the rounds work on."""
        rules = Preprocessing.from_json(asked["rules"])
        try:
            arrays = arrays_of(cohort_of(rules, self.roles), rules, self.table)
        except FoedusError as error:
            self.note(str(error))
            raise Refusal("data", "its table does not fit the rules; its own log says how") from None
        return dict(zip(("x", "y", "group"), arrays, strict=False))
