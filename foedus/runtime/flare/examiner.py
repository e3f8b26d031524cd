"""A site's part of an evaluation: figures on its own rows that took no part in training.

The rows are drawn by the site itself, from the seed of the run and its own name, as a simulation draws them. A site
speaks of one model in a run: a server that could ask for many would learn more than how good the last one is. For a
threshold it answers proposals with yes or no, from which no more can be learnt than one number, the largest threshold
that it admits; and it says once for each term how many rows are wrong at the threshold that was chosen.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foedus.evaluation import noisy, rates, summed, tally
from foedus.evaluation.tally import Rule
from foedus.files import Json, write_whole
from foedus.privacy.sampling import release
from foedus.pytrees import PyTree
from foedus.runtime.flare import evaluating, layout, packing
from foedus.runtime.flare.gate import Outgoing, unfit
from foedus.runtime.flare.holdout import Holdout
from foedus.runtime.flare.packing import check_moderate
from foedus.runtime.flare.policy import Policy, Refusal
from foedus.runtime.flare.site_ledger import Release
from foedus.terms import Terms

NOT_AGREED = "it has agreed to no evaluation in this run"


@dataclass(frozen=True)
class EvaluationMask:
    """For a run whose server sees sums alone: what returns the bytes of a tree under masks, and what keeps the tree."""

    mask: Callable[[PyTree], bytes]
    keep: Callable[[PyTree], None]


@dataclass(frozen=True)
class Examiner:
    """A site's rows that took no part in training, as arrays, and what may be told about them."""

    held_out: Sequence[np.ndarray]
    threshold: Sequence[np.ndarray]
    holdout: Holdout
    rows: str  # how the ledger calls the rows that are held out
    policy: Policy
    note: Callable[[str], None]

    def evaluate(
        self, header: Json, payload: bytes, terms: Terms, record: Path, masks: EvaluationMask | None = None
    ) -> Outgoing:
        """Answer with the tally of the held-out rows; parts of fewer rows than the policy allows are left out.

        Args:
            header: of the message; it names the threshold where one was chosen.
            payload: the model.
            terms: the terms of the run.
            record: the file that says which model was evaluated in this run; written before anything is sent, so that
                a site that starts again, or is asked to prepare its data again, still knows.
            masks: in a run whose server sees sums alone.
        """
        if not self.holdout.evaluates:
            raise Refusal("policy", NOT_AGREED)
        w, before = self._model(payload, terms, record)
        noise, rule = self.holdout.noise, Rule(_cut(header["cut"]) if "cut" in header else None)
        if noise is not None:
            own = noisy.release(terms, noise, noisy.exact_parts(terms, w, self.held_out, rule), release)
            content = packing.to_bytes(own, evaluating.shapes(terms, noise)) if masks is None else masks.mask(own)
            releases = tuple(
                Release(what, noise.kind, change, scale, delta=noise.delta, rows=self.rows)
                for what, change, scale in noise.releases(terms)
            )

            def keep() -> None:
                before()
                if masks is not None:
                    masks.keep(own)

            return Outgoing(payload=content, releases=releases, before=keep)
        own = tally.tally(terms, w, self.held_out, rule, max(1, self.policy.min_subset))
        plan = evaluating.shapes(terms)
        content = packing.to_bytes(dict(own.sums), plan) if masks is None else masks.mask(summed.parts(terms, own))
        return Outgoing(payload=content, exact=True, before=before)

    def rate(
        self, header: Json, payload: bytes, terms: Terms, record: Path, masks: EvaluationMask | None = None
    ) -> Outgoing:
        """Answer about the rows that are kept out for a threshold: their number, whether one is admitted, how it does.

        Args:
            header: of the message: the type of the term, what is asked, and the threshold.
            payload: the model.
            terms: the terms of the run.
            record: the file that says which model was evaluated; beside it lies one with the thresholds whose wrong
                rows were counted.
            masks: in a run whose server sees sums alone.
        """
        term = next((one for one in self.holdout.rates if one.name == header.get("type")), None)
        if term is None:
            raise Refusal("policy", "it has agreed to no threshold for this rate in this run")
        w, before = self._model(payload, terms, record)
        X, y = (np.asarray(part, dtype=float) for part in self.threshold[:2])
        scores = rates.scores_for(term, X @ w, y)
        if 0 < len(scores) < self.policy.min_subset:
            raise unfit(f"fewer than {self.policy.min_subset} rows are kept out for the {term.title}", self.note)
        cut, what = _cut(header.get("cut")), header.get("what")
        if what not in ("count", "admits", "wrong"):
            raise Refusal("unknown", "it is asked about a rate in no form that it knows")
        own = rates.answer_of(term, scores, what, cut)

        def out(before: Callable[[], None]) -> Outgoing:
            if masks is not None:
                return Outgoing(payload=masks.mask({"rows": np.array(own, float)}), exact=True, before=before)
            return Outgoing({"rows": 1 - own[0] if what == "admits" else own[0]}, exact=True, before=before)

        if what != "wrong":
            return out(before)
        counted = record.with_name(record.name.replace("evaluated", "counted"))
        thresholds: Json = json.loads(counted.read_text()) if counted.exists() else {}
        if thresholds.get(term.name, rates.text_of(cut)) != rates.text_of(cut):
            raise Refusal("policy", "it counts wrong answers at one threshold in a run, and has counted at another")

        def keep() -> None:
            before()
            text = json.dumps(thresholds | {term.name: rates.text_of(cut)})
            write_whole(counted, text.encode(), private=True)

        return out(keep)

    def check_counts(self) -> None:
        """Raise where the rows that are kept out for a threshold are too few for a term; asked before the rounds."""
        for term in self.holdout.rates:
            y = np.asarray(self.threshold[1])
            rates.check_counts(term, {"this site": int(np.sum((y > 0) == term.positive))})

    def _model(self, payload: bytes, terms: Terms, record: Path) -> tuple[np.ndarray, Callable[[], None]]:
        """The model that is asked about, and what writes down which one it is."""
        if terms.loss is None:
            raise Refusal("unknown", "a problem with an objective of its own has no predictions to evaluate")
        digest = hashlib.sha256(payload).hexdigest().encode()
        if record.exists() and record.read_bytes() != digest:
            raise Refusal("policy", "it evaluates one model in a run, and has evaluated another")
        w = packing.from_bytes(payload, layout.vector(terms.dim))
        check_moderate(w, False)
        if not np.all(np.isfinite(w)):
            raise Refusal("unknown", "the model to evaluate is not finite")
        return np.asarray(w), lambda: write_whole(record, digest, private=True)


def _cut(value: object) -> float:
    """A threshold on the score from a message; infinite ones are texts there."""
    try:
        cut = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        cut = math.nan
    if math.isnan(cut):
        raise Refusal("unknown", "a threshold on the score must be a number")
    return cut
