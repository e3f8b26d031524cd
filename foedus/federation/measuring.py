"""The certificate over messages: what sites measure at the returned model, and products of their Hessians with vectors.

Both are questions (`foedus/sums/questions.py`). Where single answers are seen, a site sends its whole part; of a masked
sum it keeps its own rows to itself (`foedus/certificate/summed.py`). Products are asked for afterwards, at the same
model, where there are too many columns for matrices (`wide_gap.py` says what for). A site answers so many of them at a
model and no more, so that nobody puts its matrix together from products; and it measures few models in a run, so that
nobody finds out by many of them what each row is.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.base.pytrees import PyTree
from foedus.certificate.measure import SitePart, needs_products, site_part, widened
from foedus.certificate.summed import SummedPart, as_one_part, summed_part, unseen_of
from foedus.certificate.wide_gap import BATCH, CURVATURE, DIAGONAL, MOST_ROWS, ROWS, site_bends, site_products
from foedus.federation import layout, packing
from foedus.federation.agreement import MOST_ROUNDS
from foedus.federation.asking import PlainSites
from foedus.federation.exchange import Missing, Paused
from foedus.federation.gate import Outgoing
from foedus.federation.names import STARTED
from foedus.federation.order import Order
from foedus.federation.packing import whole
from foedus.federation.policy import Policy, Refusal
from foedus.federation.rounds import Play
from foedus.federation.secure_site import SiteMasks
from foedus.federation.site_record import write_record
from foedus.numerics.interpreter.dispatch import jit_if_large
from foedus.privacy.noise import Sound
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.protocol.constrained import tolerances
from foedus.runtime import spine
from foedus.runtime.spine import Conclusion
from foedus.statistics.sandwich import LEVERED, AtModel, Sandwich, check_terms
from foedus.statistics.survival.stratified import halves, square
from foedus.sums.questions import NotFinite, Question

MEASURE, PRODUCTS = "measure", "products"  # the kinds of messages
KINDS = (CURVATURE, ROWS, DIAGONAL)
MOST = 60  # questions for products with the Hessian, one after the other: each is a round between sites
MOST_QUESTIONS = 2 * MOST + MOST_ROWS // BATCH + 16  # of all kinds in a run, for a saddle point is searched first
MOST_MODELS = 5  # that a site measures in a run: the last one, and those at which the run was ended early
MOST_CHECKED = 2  # that it measures in a checked run


@dataclass(frozen=True, eq=False)
class Measure(Question):
    """What does a site measure at this model?

    Args:
        terms: of the problem.
        w: the model.
        nu: the multipliers of coupled rows.
        party: the shapes of a site's data.
        eps2: the tolerance within which a site says yes or no of its own rows, where sums alone are seen; else None.
        finite: whether the model is finite, so that all that is measured must be.
    """

    kind: ClassVar[str] = MEASURE
    words: ClassVar[int | None] = 2
    terms: Terms
    w: Array | np.ndarray
    nu: Array | np.ndarray
    party: Data
    eps2: float | None = None
    finite: bool = True

    @property
    def arrays(self) -> PyTree:
        return np.asarray(self.w, dtype=float), np.asarray(self.nu, dtype=float)

    @property
    def shape(self) -> PyTree:
        part = layout.parts(self.terms, self.party)
        if self.eps2 is None:
            return part
        return jax.eval_shape(lambda one: summed_part(self.terms, one, float(self.eps2 or 0.0), self.party), part)

    def answer(self, data: AtModel) -> SitePart:
        return _part(self.terms, jnp.asarray(self.w), jnp.asarray(data.mu), jnp.asarray(self.nu), data.data)

    def in_sum(self, part: SitePart) -> SitePart | SummedPart:
        """Return what a site sends of its part."""
        return part if self.eps2 is None else summed_part(self.terms, part, self.eps2, self.party)

    def check(self, answer: SitePart) -> None:
        if self.finite:
            packing.check_finite(answer, packing.may_be_infinite(self.shape))


@dataclass(frozen=True, eq=False)
class Products(Question):
    """What are the products of a site's second derivatives with these vectors?

    Args:
        terms: of the problem.
        w: the model.
        nu: the multipliers of coupled rows.
        what: CURVATURE, ROWS or DIAGONAL.
        V: the vectors. (up to BATCH, dim)
        number: of the question, among those at this model.
    """

    kind: ClassVar[str] = PRODUCTS
    words: ClassVar[int | None] = 2
    terms: Terms
    w: Array | np.ndarray
    nu: Array | np.ndarray
    what: str
    V: np.ndarray
    number: int

    @property
    def fields(self) -> Json:
        return {"what": self.what, "number": self.number, "count": len(self.V)}

    @property
    def arrays(self) -> PyTree:
        return np.asarray(self.w, dtype=float), np.asarray(self.nu, dtype=float)

    @property
    def free(self) -> PyTree:
        return np.asarray(self.V, dtype=float)

    @property
    def shape(self) -> PyTree:
        return jax.ShapeDtypeStruct((1 if self.what == DIAGONAL else len(self.V), self.terms.dim), float)

    def answer(self, data: AtModel) -> np.ndarray:
        w, nu, V = map(jnp.asarray, (*self.arrays, self.free))
        return np.asarray(_products(self.terms, self.what, jnp.asarray(data.mu), w, nu, V, data.data), dtype=float)


@jit_if_large("terms")
def _part(terms: Terms, w: Array, mu: Array, nu: Array, data: Data) -> SitePart:
    return site_part(terms, w, mu, nu, data)


@jit_if_large("terms", "kind")
def _products(terms: Terms, kind: str, mu: Array, w: Array, nu: Array, V: Array, data: Data) -> Array:
    return site_products(terms, kind, w, mu, nu, site_bends(terms, w, mu, nu, data), data, V)


# --- a site ---


class MeasuredModels:
    """Which models a site has measured in a run, and how many questions about the last it has answered: on its disk.

    Args:
        path: of the record.
        most: the models that the site measures.
    """

    def __init__(self, path: Path, most: int = MOST_MODELS):
        self.path, self.most = path, most
        content: Json = json.loads(path.read_text()) if path.exists() else {}
        self.models: list[str] = content.get("models", [])
        self.questions: int = content.get("questions", 0)

    def add(self, header: Json, model: bytes) -> None:
        """Note a model before its measurement leaves, or refuse it; one that was measured before may be once more."""
        if (digest := self._digest(header, model)) in self.models:
            return
        if len(self.models) >= self.most:
            raise Refusal("policy", f"it measures {self.most} models in a run, and has measured as many")
        self.models, self.questions = [*self.models, digest], 0
        self._save()

    def ask(self, header: Json, model: bytes) -> None:
        """Note a question before its answer leaves; it must be about the model that was measured last."""
        if self._digest(header, model) not in self.models[-1:]:
            raise Refusal("breach", "it is asked for products at another model than the one that it has measured")
        if self.questions >= MOST_QUESTIONS:
            raise Refusal("breach", f"it answers {MOST_QUESTIONS} such questions about a model, and no more")
        self.questions += 1
        self._save()

    @staticmethod
    def _digest(header: Json, model: bytes) -> str:
        return hashlib.sha256(f"{header.get('since')} ".encode() + model).hexdigest()

    def _save(self) -> None:
        content = {"models": self.models, "questions": self.questions}
        write_whole(self.path, json.dumps(content).encode(), private=True)


class Site(Protocol):
    """What the answers take of a site's session."""

    terms: Terms
    algorithm: Algorithm
    noise: Sound | None
    policy: Policy
    masks: SiteMasks
    measured_data: Data
    measurements: MeasuredModels
    summary: str | None
    folder: Path

    def check_run(self, header: Json) -> None: ...

    def state_after(self, number: int) -> PyTree: ...


def _at_model(session: Site, header: Json) -> AtModel:
    client = session.state_after(whole(header["since"], STARTED, MOST_ROUNDS, "since"))
    return AtModel(session.measured_data, spine.client_multipliers(session.algorithm, session.terms, client))


def measure(session: Site, header: Json, payload: bytes) -> Outgoing:
    """Answer with a site's part of the certificate; under privacy it is kept, for the figures are exact."""
    session.check_run(header)
    terms, party = session.terms, packing.structure(session.measured_data)
    w, nu = packing.from_bytes(payload, (layout.vector(terms.dim), layout.vector(terms.rows[2])))
    eps2 = None if session.masks.masking is None else tolerances(session.algorithm)[1]
    question = Measure(terms, w, nu, party, eps2)
    part = question.answer(_at_model(session, header))
    says_nothing = session.noise is not None or session.policy.limits_privacy
    if not says_nothing:
        session.measurements.add(header, payload)
    write_record(session.folder, str(header["run"]), session.algorithm, terms, part, w, session.measured_data)
    if says_nothing:
        return Outgoing({"answers": False})
    return Outgoing({"answers": True}, answer=question.in_sum(part), form=question.form, exact=True)


def products(session: Site, header: Json, payload: bytes) -> Outgoing:
    """Answer with a site's products with the vectors of a question; under privacy with none, for they are exact."""
    session.check_run(header)
    terms = session.terms
    if session.noise is not None or session.policy.limits_privacy:
        raise Refusal("policy", "it sends no exact figure")
    if header.get("what") not in KINDS or not needs_products(terms):
        raise Refusal("unknown", "it is asked for products that no certificate of this run needs")
    number = whole(header["number"], 0, MOST_QUESTIONS - 1, "number")
    count = whole(header["count"], 1, BATCH, "count")
    model = (layout.vector(terms.dim), layout.vector(terms.rows[2]))
    session.measurements.ask(header, payload[: packing.size_of(model)])
    w, nu, V = packing.from_bytes(payload, (*model, jax.ShapeDtypeStruct((count, terms.dim), float)))
    question = Products(terms, w, nu, str(header["what"]), V, number)
    return Outgoing(answer=question.answer(_at_model(session, header)), form=question.form, exact=True)


def errors(session: Site, header: Json, payload: bytes) -> Outgoing:
    """Answer with what standard errors are made of, where the plan has named them: one question, or two."""
    session.check_run(header)
    terms, kind, is_second = session.terms, session.summary, header.get("levered") is True
    if session.noise is not None or session.policy.limits_privacy:
        raise Refusal("policy", "it sends no exact figure")
    if kind is None or header.get("errors") != kind or (is_second and kind not in LEVERED):
        raise Refusal("policy", "it is asked for standard errors that the plan of this run does not name")
    try:
        check_terms(terms, kind)
    except FoedusError as error:
        raise Refusal("policy", str(error).removesuffix(".")) from None
    model = (layout.vector(terms.dim), layout.vector(terms.rows[2]))
    session.measurements.ask(header, payload[: packing.size_of(model)])
    half = layout.vector(halves(terms.dim)) if is_second else ()
    w, nu, half = packing.from_bytes(payload, (*model, half))
    question = Sandwich(terms, w, nu, kind, square(half, terms.dim) if is_second else None)
    try:
        answer = question.answer(_at_model(session, header))
    except FoedusError as error:
        raise Refusal("breach", str(error).removesuffix(".")) from None
    return Outgoing(answer=answer, form=question.form, exact=True)


# --- the server ---


class Coordinator(Protocol):
    """What the questions take of a server's session."""

    order: Order
    party: Data
    sites: PlainSites

    def check_value(self, site: str, w: np.ndarray, f: float) -> None: ...

    def note(self, line: str, /) -> None: ...


def measurement(session: Coordinator, at: Play, nu: np.ndarray) -> SitePart | SummedPart | list[str]:
    """Return what the sites measure at the last model, or its sum; or the names of those that do not measure."""
    order, sites, finite = session.order, session.sites, bool(at.carry.finite)
    eps2 = None if sites.shows_each else tolerances(order.algorithm)[1]
    w = np.asarray(at.carry.w)
    question = Measure(order.terms, w, nu, session.party, eps2, finite)
    if not sites.shows_each:
        try:
            return sites.total(question)
        except NotFinite:
            return jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan), question.shape)

    def check(site: str, part: SitePart) -> None:
        if finite:
            session.check_value(site, w, float(part.f))

    parts = sites.each(question, check)
    silent = [name for name, part in parts.items() if part is None]
    return silent or jax.tree.map(lambda *rows: jnp.stack(rows), *parts.values())


def with_gap(
    session: Coordinator, end: Conclusion, parts: SitePart | SummedPart | list[str],
    multipliers: Mapping[str, np.ndarray], nu: np.ndarray,
) -> Conclusion:  # fmt: skip
    """Return the conclusion with an estimate of the gap; what the sites do not answer is said and spoils nothing."""
    order, terms = session.order, session.order.terms
    if isinstance(parts, list) or not end.finite or not needs_products(terms):
        return end
    slack = unseen_of(terms, parts).slack if isinstance(parts, SummedPart) else 0.0
    each = as_one_part(parts, terms.clients) if isinstance(parts, SummedPart) else parts
    w, numbers = jnp.asarray(end.w), itertools.count()

    def ask(what: str, V: np.ndarray) -> np.ndarray:
        return session.sites.total(Products(terms, w, nu, what, np.asarray(V, dtype=float), next(numbers)))

    try:
        certificate = widened(end.certificate, terms, order.own, w, each, multipliers, ask, slack, MOST)
    except (Missing, Paused, FoedusError) as error:
        session.note(f"the gap is not estimated: {error}")
        certificate = replace(end.certificate, gap_note="not all sites answered the questions for it")
    return replace(end, certificate=certificate)
