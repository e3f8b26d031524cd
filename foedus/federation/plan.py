"""The plan of a run: all that will be asked of a site, made before anything is asked, signed by the coordinator.

A run begins with a plan. Either it states a problem whose terms are known (an `Order`), or an experiment whose sites
bring tables (a `Request`), whose terms follow from the plan and from what the sites answer to its questions. The
coordinator signs what the first greeting will say, a site accepts it by its policy or by a person, and keeps it on its
disk. Whatever comes later is held against it: the server carries a plan, and makes none.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json, pack, unpack, write_whole
from foedus.base.pytrees import PyTree
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Cohort, Roles, Sketch
from foedus.data.sums import Answers
from foedus.federation import layout, packing, spec
from foedus.federation.agreement import statement
from foedus.federation.holdout import Holdout
from foedus.federation.order import Order, over_a_network
from foedus.federation.policy import Refusal
from foedus.privacy.releasing import sound_noise
from foedus.protocol.algorithm import Algorithm
from foedus.sums.identity import COORDINATOR, Signer, is_signed_by, name_in

PLANS = "plan-{run}.json"  # a site's copy of the plan that it has accepted
PLAN_MODULE = "foedus.app.experiment.plan"  # states experiments; the class of a `Request`'s plan is defined there
SIGNED = b"foedus plan 1\0"  # what a signature begins with, so that it is one of a plan and of nothing else


class RunPlan(Protocol):
    """An experiment stated without data, and how it becomes an order once the sites have sent their sums."""

    @property
    def roles(self) -> Roles: ...

    def algorithm(self, sites: int) -> Algorithm:
        """Return the algorithm over so many sites with its noise, on which a site's policy decides."""
        ...

    def modules(self) -> tuple[str, ...]:
        """Return the modules beside foedus whose classes the experiment names."""
        ...

    def verified(self, sites: int) -> bool:
        """Return whether the sites check the server."""
        ...

    @property
    def max_rounds(self) -> int: ...

    @property
    def noise(self) -> Json | None:
        """The bounds and ε of noise on what a site sends while preparing; None where sums are exact."""
        ...

    @property
    def counts_rows(self) -> bool:
        """Whether sites tell their number of rows, because they weigh by it."""
        ...

    @property
    def summary(self) -> str | None:
        """How the standard errors are computed that the sites are asked for at the end; None where they are not."""
        ...

    @property
    def formula(self) -> str:
        """The formula whose columns the model's numbers belong to; empty without one."""
        ...

    @property
    def secure(self) -> bool:
        """Whether the server sees masked sums alone."""
        ...

    @property
    def holdout(self) -> Holdout:
        """Which rows the sites keep out of training, and what they tell about them."""
        ...

    @property
    def problem(self) -> Json:
        """The loss and the terms in words, for a person at a site."""
        ...

    @property
    def sketch(self) -> Sketch | None:
        """What each site's columns hold, where the experiment names its features; None where sites tell."""
        ...

    def rules(self, cohort: Cohort, answers: Answers, /) -> Preprocessing: ...

    def order(self, cohort: Cohort, rules: Preprocessing, run: str, sites: tuple[str, ...], /) -> Order: ...


PlanT = TypeVar("PlanT", bound=RunPlan)


@dataclass(frozen=True)
class Request(Generic[PlanT]):
    """What a coordinator without data submits: an experiment, which becomes an order with the sites' help."""

    run: str
    sites: tuple[str, ...]
    plan: PlanT

    def to_bytes(self) -> bytes:
        return pack({}, self.to_json())

    def to_json(self) -> Json:
        """Return all that the first greeting states."""
        return {"run": self.run, "sites": list(self.sites), "plan": spec.encode(self.plan)}

    @staticmethod
    def from_json(note: Json, modules: tuple[str, ...]) -> "Request[RunPlan]":
        """Read what `to_json` wrote; raise where it names modules that are not allowed here."""
        plan = spec.decode(note["plan"], (*modules, PLAN_MODULE))
        if not hasattr(plan, "roles"):
            raise FoedusError("the plan states no experiment.")
        for module in plan.modules():
            if not any(module == one or module.startswith(one + ".") for one in modules):
                raise FoedusError(f"the experiment names the module {module}, which is not allowed here.")
        return Request(str(note["run"]), tuple(map(str, note["sites"])), plan)

    @cached_property
    def stated(self) -> Json:
        """All that follows from the plan alone, in the form in which a site decides about it."""
        plan, count = self.plan, len(self.sites)
        return {
            "run": self.run,
            "roles": asdict(plan.roles),
            "algorithm": spec.encode(over_a_network(plan.algorithm(count))),
            "max_rounds": plan.max_rounds,
            "sites": count,
            "parties": list(self.sites),
            "noise": plan.noise,
            "secure": plan.secure,
            "verify": plan.verified(count),
            "holdout": plan.holdout.to_json(),
            "summary": plan.summary,
            "problem": plan.problem,
        }


def read(content: bytes, modules: tuple[str, ...] = ()) -> "Order | Request[Any]":
    """Read an order, or a request that becomes one."""
    _, note = unpack(content)
    return Request.from_json(note, modules) if "plan" in note else Order.from_bytes(content, modules)


def plan_digest(greetings: Mapping[str, Json]) -> str:
    """Return the digest of all that sites are asked to agree to, by which all parties know that they mean the same."""
    text = json.dumps({site: statement(stated) for site, stated in greetings.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def joins_of(order: Order) -> dict[str, tuple[Json, PyTree]]:
    """Return by site what it is asked to agree to before the rounds, and the arrays that it is told."""
    own = None if order.own is None else layout.schema(order.own)
    common: Json = {"algorithm": spec.encode(order.algorithm), "terms": spec.encode(order.terms)}
    common |= {"max_rounds": order.max_rounds, "seed": order.seed, "own": own}
    common |= {} if order.summary is None else {"summary": order.summary}
    common |= {"secure": True, "parties": list(order.sites)} if order.secure else {}
    if order.verified:
        common |= {"verify": True, "names": list(order.names)}
    joins: dict[str, tuple[Json, PyTree]] = {}
    for i, site in enumerate(order.sites):
        extra = order.extra[i] if order.extra else {}
        shapes = {k: list(np.shape(v)) for k, v in extra.items()}
        arrays = (order.w0, extra)
        digest = hashlib.sha256(arrays_in_bytes(arrays, order.terms.dim, shapes)).hexdigest()
        single = {"index": i, "uid": [int(v) for v in order.uids[i]], "extra": shapes, "client": order.names[i]}
        joins[site] = common | single | {"arrays": digest}, arrays
    return joins


def arrays_in_bytes(arrays: PyTree, dim: int, shapes: layout.Shapes) -> bytes:
    """Return the start and the terms' own arrays of one site as bytes."""
    return packing.to_bytes(arrays, (layout.vector(dim), layout.of_shapes(shapes)))


def greetings_of(work: "Order | Request[Any]") -> dict[str, Json]:
    """Return by site all that its first greeting states: what the coordinator signs."""
    if isinstance(work, Request):
        return dict.fromkeys(work.sites, work.to_json())
    return {site: {"run": work.run} | stated for site, (stated, _) in joins_of(work).items()}


def sign(greetings: Mapping[str, Json], coordinator: Signer) -> Json:
    """Return the coordinator's signatures under a plan, with the certificate that they are checked by."""
    signatures = {site: coordinator.sign(_signed(stated)).hex() for site, stated in greetings.items()}
    return {"certificate": coordinator.certificate.decode(), "signatures": signatures}


def record_of(work: "Order | Request[Any]", signatures: Json | None, numbers: int) -> Json:
    """Return the plan as a run's folder, report and card have it; `numbers` are the most of a site in a round."""
    greetings = greetings_of(work)
    if isinstance(work, Request):
        stated, noise = work.stated, sound_noise(work.plan.algorithm(len(work.sites)))
        secure, verified, rounds = bool(stated["secure"]), bool(stated["verify"]), int(stated["max_rounds"])
    else:
        secure, verified, rounds, noise = work.secure, work.verified, work.max_rounds, sound_noise(work.algorithm)
    sums = ("masked and checked" if verified else "masked") if secure else "plain"
    return {
        "digest": plan_digest(greetings),
        "signed_by": None if signatures is None else name_in(signatures["certificate"]),
        "sites": list(work.sites),
        "sums": sums if noise is None else f"{sums}, with noise",
        "max_rounds": rounds,
        "numbers": numbers,
        "stated": greetings,
    }


def of_site(signatures: Json | None, site: str) -> Json:
    """Return what a greeting to one site says about the signature."""
    if signatures is None:
        return {}
    return {"signed": {"certificate": signatures["certificate"], "signature": signatures["signatures"].get(site, "")}}


def _signed(greeting: Json) -> bytes:
    return SIGNED + statement(greeting).encode()


def is_signed(greeting: Json, root: bytes) -> bool:
    """Return whether the project's coordinator has signed what a greeting states."""
    try:
        certificate = greeting["signed"]["certificate"].encode()
        signature = bytes.fromhex(greeting["signed"]["signature"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return is_signed_by(COORDINATOR, "", certificate, root, _signed(greeting), signature)


class AcceptedPlans:
    """The plans that a site has accepted, by run: on its disk, each with the digest of the data it was accepted for."""

    def __init__(self, folder: Path):
        self.folder = folder

    def accepted(self, run: object) -> Json | None:
        """Return what the plan of a run stated that this site has accepted; None where there is none."""
        path = self.folder / PLANS.format(run=run)
        return json.loads(json.loads(path.read_text())["statement"]) if path.exists() else None

    def note(self, run: object, limits: Json) -> None:
        """Keep how much an accepted plan tells of the rows, once that is known to the number."""
        path = self.folder / PLANS.format(run=run)
        record = json.loads(path.read_text())
        if record["limits"] != limits:
            write_whole(path, json.dumps(record | {"limits": limits}, indent=1).encode(), private=True)

    def all(self) -> list[Json]:
        """Return what the site keeps of each plan that it has accepted, newest first, with the name of its run."""
        before, after = PLANS.split("{run}")
        records = []
        for path in self.folder.glob(PLANS.format(run="*")):
            try:
                records.append(
                    {"run": path.name.removeprefix(before).removesuffix(after), **json.loads(path.read_text())}
                )
            except ValueError:
                raise FoedusError(f"the plan {path} is damaged; restore it, or delete it if its run is over.") from None
        return sorted(records, key=lambda record: record["time"], reverse=True)

    def accept(self, greeting: Json, data: str, limits: Json | None, *, is_fixed: bool) -> None:
        """Keep a plan before anything about the data leaves; refuse another one under the same name, or other data.

        Args:
            greeting: what states the plan.
            data: a digest of the data.
            limits: how much the run tells of the rows; None of one whose answers have noise.
            is_fixed: whether the run may have no other plan; one that goes on without a wrong site has a new one.
        """
        path, text = self.folder / PLANS.format(run=greeting["run"]), statement(greeting)
        digest = hashlib.sha256(text.encode()).hexdigest()
        before = json.loads(path.read_text()) if path.exists() else None
        if before is not None and is_fixed and before["plan"] != digest:
            raise Refusal("policy", "it has accepted another plan under the name of this run")
        if before is not None and before["data"] != data:
            raise FoedusError("its data are others than those for which it has accepted the plan of this run")
        if before is None or before["plan"] != digest:
            now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            record = {"time": now, "plan": digest, "data": data, "limits": limits, "signed": greeting.get("signed")}
            write_whole(path, json.dumps(record | {"statement": text}, indent=1).encode(), private=True)
