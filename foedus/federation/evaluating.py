"""Evaluation over sites, the server's part: a threshold for terms on rates, and figures on rows that sites hold out.

What a run keeps out of training is stated before any data are read (`holdout.py`), and a site's policy may forbid it.
A site's part is in `site_evaluation.py`. In a run with masked sums what a site sends is its part of one more such sum,
and the figures are those over all rows alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.federation import layout, packing
from foedus.federation.exchange import Exchange, Paused
from foedus.federation.holdout import Holdout
from foedus.problem.terms import Terms
from foedus.statistics import noisy, rates, summed, tally
from foedus.statistics.evaluate import Evaluation, evaluation_of, noisy_evaluation_of
from foedus.statistics.noisy import EvaluationNoise
from foedus.statistics.rates import Decision, RateTerm
from foedus.statistics.tally import Tally

EVALUATE, RATE = "evaluate", "rate"  # the kinds of messages


def masked_shapes(terms: Terms) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the layout of what a site adds to a masked sum."""
    return {name: jax.ShapeDtypeStruct(shape, float) for name, shape in summed.layout(terms).items()}


def shapes(terms: Terms, noise: EvaluationNoise | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the layout of what a site sends; it follows from the terms, and does not depend on its rows."""
    sizes = tally.shapes(terms) if noise is None else noisy.shapes(terms)
    return {name: jax.ShapeDtypeStruct(shape, float) for name, shape in sizes.items()}


def collect(
    exchange: Exchange,
    sites: Mapping[str, str],
    terms: Terms,
    w: np.ndarray,
    holdout: Holdout,
    decision: Decision | None = None,
) -> Evaluation:
    """Have every site evaluate the model; return the figures of each and over all of them."""
    plan, tallies = shapes(terms, holdout.noise), {}
    header = exchange.header(EVALUATE) | ({} if decision is None else {"cut": rates.text_of(decision.cut)})
    message = packing.seal(header, packing.to_bytes(w, layout.vector(terms.dim)))
    for _ in range(1 + exchange.patience.misses):
        missing = {site: message for site in sites if site not in tallies}
        for site, raw in exchange.ask(missing, max(exchange.patience.timeout, 60.0)).items() if missing else ():
            header, content = exchange.open_reply(site, raw, EVALUATE)
            try:
                if header is not None:
                    tallies[site] = _checked(packing.from_bytes(content, plan), plan, holdout.noise is not None)
            except FoedusError as error:
                exchange.refuse(site, str(error))
    if silent := [site for site in sites if site not in tallies]:
        raise Paused(f"client {sites[silent[0]]!r} does not evaluate the model{exchange.why(silent[0])}")
    own = {name: tallies[site] for site, name in sites.items()}
    if holdout.noise is not None:
        return noisy_evaluation_of(terms, own, holdout.noise, decision)
    return evaluation_of(terms, {name: Tally(sums) for name, sums in own.items()}, decision)


def _checked(
    sums: dict[str, np.ndarray], plan: dict[str, jax.ShapeDtypeStruct], has_noise: bool
) -> dict[str, np.ndarray]:
    """The sums of a site; raise where a number is not finite, or a count without noise is negative."""
    packing.check_finite(sums, [False] * len(plan))
    if not has_noise and any(np.any(sums[name] < 0) for name in sums if tally.is_count(name)):
        raise FoedusError("its evaluation holds a negative count")
    return sums


def choose_threshold(
    exchange: Exchange, sites: Mapping[str, str], terms: Terms, w: np.ndarray, stated: Sequence[RateTerm]
) -> Decision:
    """Play the umbrella rule with the sites: each says how many rows it keeps out, and which thresholds it admits.

    A site answers a proposal with yes or no: the rule needs no more. How many of its rows are wrong at the threshold
    that was chosen it says at the end.
    """
    payload = packing.to_bytes(w, layout.vector(terms.dim))

    def ask(term: RateTerm, what: str, cut: float = 0.0) -> list[int]:
        content = {"type": term.name, "what": what, "cut": rates.text_of(cut)}
        replies = exchange.everyone(RATE, content, payload)
        return [_rows(name, replies[site].get("rows")) for site, name in sites.items()]

    counts = {term.name: dict(zip(sites.values(), ask(term, "count"), strict=True)) for term in stated}
    ranks = {term.name: [rates.rank_of(term, n) for n in counts[term.name].values()] for term in stated}

    def admits(term: RateTerm, cut: float) -> list[int]:
        # a site that admits the threshold counts as having no row below it, and one that does not as having too many
        return [0 if yes else rank for yes, rank in zip(ask(term, "admits", cut), ranks[term.name], strict=True)]

    decision = rates.decide(stated, counts, admits)
    by_name = {term.name: term for term in stated}
    records = []
    for record in decision.terms:
        term = by_name[record.type]
        records.append(replace(record, wrong=tuple(ask(term, "wrong", rates.proposal_of(term, record.cut)))))
    size = 8 * len(sites) * len(records)
    more = {"rounds": decision.rounds + len(records), "up": decision.up + size, "down": decision.down + size}
    return replace(decision, terms=tuple(records), **more)


def _rows(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise Paused(f"client {name!r} answers about a rate with something that is no number of rows")
    return value


def results(evaluation: Evaluation | None, decision: Decision | None) -> Json:
    """Return both as parts of the record of a result."""
    return {
        "evaluation": None if evaluation is None else evaluation.to_json(),
        "decision": None if decision is None else decision.to_json(),
    }
