"""Evaluation over sites: each holds rows out of training, and at the end sends sums and histograms of them.

The share of rows is stated before any data are read, and a site's policy may forbid it (`evaluate`). A site draws the
rows itself, from the seed of the run and its own name, as a simulation does. It evaluates one model in a run: a server
that could ask for many models would learn more than how good the last one is. In a run with masked sums what a site
sends is its part of one more such sum, and the figures are those over all rows alone.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from foedus.data.holdout import Shares
from foedus.errors import FoedusError
from foedus.evaluation import summed, tally
from foedus.evaluation.evaluate import Evaluation, evaluation_of
from foedus.evaluation.tally import Rule, Tally
from foedus.files import Json, write_whole
from foedus.pytrees import PyTree
from foedus.runtime.flare import layout, packing
from foedus.runtime.flare.exchange import Exchange, Paused
from foedus.runtime.flare.gate import Outgoing
from foedus.runtime.flare.packing import check_moderate
from foedus.runtime.flare.policy import Policy, Refusal
from foedus.terms import Terms

EVALUATE = "evaluate"  # the kind of message


def masked_shapes(terms: Terms) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the layout of what a site adds to a masked sum."""
    return {name: jax.ShapeDtypeStruct(shape, float) for name, shape in summed.layout(terms).items()}


def shapes(terms: Terms) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the layout of what a site sends; it follows from the terms, and does not depend on its rows."""
    return {name: jax.ShapeDtypeStruct(shape, float) for name, shape in tally.shapes(terms).items()}


# --- at the server ---


def statement(shares: Shares) -> Json | None:
    """Return what the sites are told before they read any data; None where nothing is held out."""
    return {"share": shares.evaluate, "seed": shares.seed} if shares.evaluate else None


def collect(exchange: Exchange, sites: dict[str, str], terms: Terms, w: np.ndarray) -> Evaluation:
    """Have every site evaluate the model; return the figures of each and over all of them."""
    plan, tallies = shapes(terms), {}
    message = packing.seal(exchange.header(EVALUATE), packing.to_bytes(w, layout.vector(terms.dim)))
    for _ in range(1 + exchange.patience.misses):
        missing = {site: message for site in sites if site not in tallies}
        for site, raw in exchange.ask(missing, max(exchange.patience.timeout, 60.0)).items() if missing else ():
            header, content = exchange.open_reply(site, raw, EVALUATE)
            try:
                if header is not None:
                    tallies[site] = _checked(packing.from_bytes(content, plan), plan)
            except FoedusError as error:
                exchange.refuse(site, str(error))
    if silent := [site for site in sites if site not in tallies]:
        raise Paused(f"client {sites[silent[0]]!r} does not evaluate the model{exchange.why(silent[0])}")
    return evaluation_of(terms, {name: tallies[site] for site, name in sites.items()}, None)


def _checked(sums: dict[str, np.ndarray], plan: dict[str, jax.ShapeDtypeStruct]) -> Tally:
    """The tally of a site; raise where a number is not finite, or a count is negative."""
    packing.check_finite(sums, [False] * len(plan))
    if any(np.any(sums[name] < 0) for name in sums if tally.is_count(name)):
        raise FoedusError("its evaluation holds a negative count")
    return Tally(sums)


# --- at a site ---


def shares_of(record: object, policy: Policy) -> Shares:
    """Return the shares that a run states; refuse them where the policy lets no figures of held-out rows leave."""
    if record is None:
        return Shares()
    share, seed = (record.get(key) for key in ("share", "seed")) if isinstance(record, dict) else (None, None)
    if not isinstance(share, float) or not 0 < share < 1 or not math.isfinite(share):
        raise Refusal("unknown", "the share of rows to hold out must be a number > 0 and < 1")
    if not policy.evaluate:
        raise Refusal("policy", "its policy (evaluate) lets no figures of rows leave that are held out of training")
    if policy.limits_privacy:
        raise Refusal("policy", "its policy asks for privacy, and an evaluation would send exact figures")
    return Shares(share, 0.0, packing.whole(seed, 0, 2**63 - 1, "seed"))


class Examiner:
    """A site's held-out rows, as arrays, and what may be told about them."""

    def __init__(self, arrays: tuple[np.ndarray, ...], policy: Policy):
        self.arrays, self.policy = arrays, policy

    def evaluate(
        self, payload: bytes, terms: Terms, record: Path, mask: Callable[[PyTree], bytes] | None = None
    ) -> Outgoing:
        """Answer with the tally of the held-out rows; parts of fewer rows than the policy allows are left out.

        Args:
            payload: the model.
            terms: the terms of the run.
            record: the file that says which model was evaluated in this run; written before anything is sent, so that
                a site that starts again, or is asked to prepare its data again, still knows.
            mask: returns the bytes of a tree under masks, in a run whose server sees sums alone.
        """
        if terms.loss is None:
            raise Refusal("unknown", "a problem with an objective of its own has no predictions to evaluate")
        digest = hashlib.sha256(payload).hexdigest().encode()
        if record.exists() and record.read_bytes() != digest:
            raise Refusal("policy", "it evaluates one model in a run, and has evaluated another")
        w = packing.from_bytes(payload, layout.vector(terms.dim))
        check_moderate(w, False)
        if not np.all(np.isfinite(w)):
            raise Refusal("unknown", "the model to evaluate is not finite")
        own = tally.tally(terms, np.asarray(w), self.arrays, Rule(), max(1, self.policy.min_subset))
        content = packing.to_bytes(dict(own.sums), shapes(terms)) if mask is None else mask(summed.parts(terms, own))
        return Outgoing(payload=content, exact=True, before=lambda: write_whole(record, digest, private=True))
