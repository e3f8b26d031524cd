"""The gap of many columns over messages: the server asks for products with vectors, and the sites send their parts.

Questions come after the measuring round, at the same point, and each is one more sum over the sites (`wide_gap.py` says
what for). A site answers so many of them at a model and no more, so that nobody puts its matrix together from products;
and it measures few models in a run, so that nobody finds out by many of them what each row is.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.files import Json, write_whole
from foedus.base.pytrees import PyTree
from foedus.certificate.measure import SitePart, needs_products, widened
from foedus.certificate.summed import SummedPart, as_one_part, unseen_of
from foedus.certificate.wide_gap import BATCH, CURVATURE, DIAGONAL, MOST_ROWS, ROWS, site_bends, site_products
from foedus.federation import layout, packing
from foedus.federation.agreement import MOST_ROUNDS
from foedus.federation.exchange import AskSites, Exchange, Missing, Paused
from foedus.federation.gate import Outgoing
from foedus.federation.names import STARTED
from foedus.federation.order import Order
from foedus.federation.packing import whole
from foedus.federation.policy import Policy, Refusal
from foedus.federation.rounds import Play
from foedus.federation.secure_site import SiteMasks
from foedus.numerics.interpreter.dispatch import jit_if_large
from foedus.privacy.noise import Sound
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.runtime import spine
from foedus.runtime.spine import Conclusion

PRODUCTS = "products"  # the kind of message
KINDS = (CURVATURE, ROWS, DIAGONAL)
MOST = 60  # questions for products with the Hessian, one after the other: each is a round between sites
MOST_QUESTIONS = 2 * MOST + MOST_ROWS // BATCH + 16  # of all kinds in a run, for a saddle point is searched first
FIRST = 2  # the number of the first question after the last round; those before are the measurement and an evaluation
MOST_MODELS = 5  # that a site measures in a run: the last one, and those at which the run was ended early
LAST = FIRST + MOST_QUESTIONS  # what else is asked has numbers from here on


def shape(terms: Terms) -> jax.ShapeDtypeStruct | None:
    """Return the shape of the largest answer; None where nothing of the kind will be asked."""
    return jax.ShapeDtypeStruct((BATCH, terms.dim), float) if needs_products(terms) else None


@jit_if_large("algorithm", "terms", "kind")
def _products(
    algorithm: Algorithm, terms: Terms, kind: str, client: PyTree, w: Array, nu: Array, V: Array, data: Data
) -> Array:
    mu = spine.client_multipliers(algorithm, terms, client)
    return site_products(terms, kind, w, mu, nu, site_bends(terms, w, mu, nu, data), data, V)


# --- a site ---


class MeasuredModels:
    """Which models a site has measured in a run, and how many questions about the last it has answered: on its disk."""

    def __init__(self, path: Path):
        self.path = path
        content: Json = json.loads(path.read_text()) if path.exists() else {}
        self.models: list[str] = content.get("models", [])
        self.questions: int = content.get("questions", 0)

    def add(self, header: Json, model: bytes) -> None:
        """Note a model before its measurement leaves, or refuse it; one that was measured before may be once more."""
        if (digest := self._digest(header, model)) in self.models:
            return
        if len(self.models) >= MOST_MODELS:
            raise Refusal("policy", f"it measures {MOST_MODELS} models in a run, and has measured as many")
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
    """What the answer takes of a site's session."""

    terms: Terms
    algorithm: Algorithm
    noise: Sound | None
    policy: Policy
    masks: SiteMasks
    measured_data: Data
    rounds: int
    measurements: MeasuredModels

    def check_run(self, header: Json) -> None: ...

    def state_after(self, number: int) -> PyTree: ...


def answer(session: Site, header: Json, payload: bytes) -> Outgoing:
    """Return a site's products with the vectors of a question; under privacy none, for they are exact."""
    session.check_run(header)
    terms = session.terms
    if session.noise is not None or session.policy.limits_privacy:
        raise Refusal("policy", "it sends no exact figure")
    if header.get("what") not in KINDS or not needs_products(terms):
        raise Refusal("unknown", "it is asked for products that no certificate of this run needs")
    number = whole(header["number"], 0, MOST_QUESTIONS - 1, "number")
    count = whole(header["count"], 1, BATCH, "count")
    model, vectors = (layout.vector(terms.dim), layout.vector(terms.rows[2])), (count, terms.dim)
    session.measurements.ask(header, payload[: packing.size_of(model)])
    plan = (*model, jax.ShapeDtypeStruct(vectors, float))
    w, nu, V = (jnp.asarray(part) for part in packing.from_bytes(payload, plan))
    client = session.state_after(whole(header["since"], STARTED, MOST_ROUNDS, "since"))
    what = str(header["what"])
    products = np.asarray(
        _products(session.algorithm, terms, what, client, w, nu, V, session.measured_data), dtype=float
    )
    masking = session.masks.masking
    if masking is None:
        content = packing.to_bytes(products, jax.ShapeDtypeStruct(products.shape, float))
    else:
        session.masks.note_clipped("products", masking.measuring, products)
        words = masking.measuring.words_of(products)
        content = session.masks.vector(header, payload, session.rounds + FIRST + number, words)
    return Outgoing(payload=content, exact=True)


# --- the server ---


class Coordinator(Protocol):
    """What the questions take of a server's session."""

    order: Order
    exchange: Exchange
    client: dict[str, str]
    ask: AskSites
    note: Callable[[str], None]

    def sum_of(
        self, ask: str, number: int, messages: dict[str, tuple[Json, bytes]], plan: jax.ShapeDtypeStruct
    ) -> np.ndarray: ...


class Questions:
    """The questions of a server to all its sites at one point: an `Ask`."""

    def __init__(self, session: Coordinator, at: Play, nu: np.ndarray):
        self.session, self.w, self.nu = session, np.asarray(at.carry.w), nu
        self.last, self.number = np.asarray(at.last), 0

    def __call__(self, what: str, V: np.ndarray) -> np.ndarray:
        """Return the sum of the sites' products with these vectors."""
        order, terms = self.session.order, self.session.order.terms
        V = np.asarray(V, dtype=float)
        plan = (layout.vector(terms.dim), layout.vector(terms.rows[2]), jax.ShapeDtypeStruct(V.shape, float))
        payload = packing.to_bytes((self.w, self.nu, V), plan)
        header = self.session.exchange.header(PRODUCTS) | {"what": what, "number": self.number, "count": len(V)}
        messages = {site: (header | {"since": int(self.last[i])}, payload) for i, site in enumerate(order.sites)}
        self.number += 1
        rows = 1 if what == DIAGONAL else len(V)
        answer_shape = jax.ShapeDtypeStruct((rows, terms.dim), float)
        return self.session.sum_of(PRODUCTS, FIRST + self.number - 1, messages, answer_shape)


def sum_of_replies(
    session: Coordinator, ask: str, messages: Mapping[str, tuple[Json, bytes]], plan: jax.ShapeDtypeStruct
) -> np.ndarray:
    """Return the sum of what the sites send in reply to these messages, each seen by the server."""
    exchange, patience, replies = session.exchange, session.exchange.patience, {}
    for _ in range(1 + patience.misses):
        missing = {site: packing.seal(*message) for site, message in messages.items() if site not in replies}
        for site, raw in session.ask(missing, patience.timeout).items() if missing else ():
            header, content = exchange.open_reply(site, raw, ask, None)
            try:
                if header is not None:
                    part = packing.from_bytes(content, plan)
                    packing.check_finite(part, [False])
                    replies[site] = part
            except FoedusError as error:
                exchange.refuse(site, str(error))
    if silent := [site for site in messages if site not in replies]:
        raise Paused(f"client {session.client[silent[0]]!r} does not answer {ask!r}{exchange.why(silent[0])}")
    return np.sum([replies[site] for site in messages], axis=0)


def with_gap(
    session: Coordinator, at: Play, end: Conclusion, parts: SitePart | SummedPart | list[str],
    multipliers: Mapping[str, np.ndarray], nu: np.ndarray,
) -> Conclusion:  # fmt: skip
    """Return the conclusion with an estimate of the gap; what the sites do not answer is said and spoils nothing."""
    order, terms = session.order, session.order.terms
    if isinstance(parts, list) or not end.finite or not needs_products(terms):
        return end
    slack = unseen_of(terms, parts).slack if isinstance(parts, SummedPart) else 0.0
    each = as_one_part(parts, terms.clients) if isinstance(parts, SummedPart) else parts
    w, ask = jnp.asarray(end.w), Questions(session, at, nu)
    try:
        certificate = widened(end.certificate, terms, order.own, w, each, multipliers, ask, slack, MOST)
    except (Missing, Paused, FoedusError) as error:
        session.note(f"the gap is not estimated: {error}")
        certificate = replace(end.certificate, gap_note="not all sites answered the questions for it")
    return replace(end, certificate=certificate)
