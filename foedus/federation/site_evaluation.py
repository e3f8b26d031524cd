"""A site's part of an evaluation: figures on its own rows that took no part in training.

The rows are drawn by the site itself, from a secret of its own. A site speaks of one model in a run, and answers one
question about it, to the letter: a server that could ask for many models, or for many thresholds, would learn more than
how good the last one is. What was asked is on the disk before an answer leaves.

For a threshold a site answers proposals on the grid of the rule with yes or no, as many as a bisection needs. No more
can be learnt from them than one number, the largest threshold of the grid that it admits. It says once for each term
how many rows are wrong at one of these proposals.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from foedus.base.files import Json, write_whole
from foedus.federation import layout, packing
from foedus.federation.gate import Outgoing
from foedus.federation.holdout import Holdout
from foedus.federation.packing import check_moderate
from foedus.federation.policy import Policy, Refusal
from foedus.federation.site_ledger import Release
from foedus.privacy.sampling import release
from foedus.problem.terms import Terms
from foedus.statistics import umbrella
from foedus.statistics.questions import NewRows, figures_question
from foedus.statistics.rates import RateQuestion, kept_scores
from foedus.statistics.tally import text_of

NOT_AGREED = "it has agreed to no evaluation in this run"
OF_THE_SUM = ("mask", "attempt")  # what the header of a message says about masks, and not about the question


@dataclass(frozen=True)
class SiteEvaluation:
    """A site's rows that took no part in training, as arrays, and what may be told about them."""

    held_out: Sequence[np.ndarray]
    threshold: Sequence[np.ndarray]
    holdout: Holdout
    rows: str  # how the ledger calls the rows that are held out
    policy: Policy
    groups: int = 0  # how many groups the run knows

    def evaluate(self, header: Json, payload: bytes, terms: Terms, record: Path) -> Outgoing:
        """Answer with the tally of the held-out rows; parts of fewer rows than the policy allows are left out.

        Args:
            header: of the message; it names the threshold where one was chosen.
            payload: the model.
            terms: the terms of the run.
            record: the file that says what was asked in this run; written before anything is sent, so that a site that
                starts again, or is asked to prepare its data again, still knows.
        """
        if not self.holdout.evaluates:
            raise Refusal("policy", NOT_AGREED)
        w, earlier = self._model(payload, terms, record)
        noise = self.holdout.noise
        cut = _cut(header["cut"]) if "cut" in header else None
        question = figures_question(terms, w, cut, noise, self.groups)
        letter = json.dumps({k: v for k, v in header.items() if k not in OF_THE_SUM}, sort_keys=True)
        if earlier.setdefault("question", letter) != letter:
            raise Refusal("policy", "it answers one question about a model in a run, and was asked another")
        answer = question.answer(NewRows(self.held_out, max(1, self.policy.min_subset), release))
        releases = (
            ()
            if noise is None
            else tuple(
                Release(what, noise.kind, change, scale, delta=noise.delta, rows=self.rows)
                for what, change, scale in noise.releases(terms)
            )
        )
        keep = partial(_keep, record, earlier)
        return Outgoing(answer=answer, form=question.form, exact=noise is None, releases=releases, before=keep)

    def rate(self, header: Json, payload: bytes, terms: Terms, record: Path) -> Outgoing:
        """Answer about the rows that are kept out for a threshold: their number, whether one is admitted, how it does.

        Args:
            header: of the message: the type of the term, what is asked, and the threshold.
            payload: the model.
            terms: the terms of the run.
            record: the file that says what was asked in this run.
        """
        term = next((one for one in self.holdout.rates if one.name == header.get("type")), None)
        if term is None:
            raise Refusal("policy", "it has agreed to no threshold for this rate in this run")
        w, earlier = self._model(payload, terms, record)
        cut, what = _cut(header.get("cut")), header.get("what")
        if what not in ("count", "admits", "wrong"):
            raise Refusal("unknown", "it is asked about a rate in no form that it knows")
        if what != "count":
            _note_threshold(earlier.setdefault(term.name, {"admits": [], "wrong": None}), what, cut)
        question = RateQuestion(term, what, w, cut)
        answer = question.answer(NewRows(self.threshold, self.policy.min_subset))
        return Outgoing(answer=answer, form=question.form, exact=True, before=partial(_keep, record, earlier))

    def counts(self) -> dict[str, int]:
        """Return how many rows are kept out for each term on a rate, as far as the policy allows."""
        rows, w = NewRows(self.threshold, self.policy.min_subset), np.zeros(self.threshold[0].shape[1])
        return {term.name: len(kept_scores(term, w, rows)) for term in self.holdout.rates}

    def _model(self, payload: bytes, terms: Terms, record: Path) -> tuple[np.ndarray, Json]:
        """The model that is asked about, and what was asked in this run so far, of which it is a part."""
        if terms.loss is None:
            raise Refusal("unknown", "a problem with an objective of its own has no predictions to evaluate")
        digest = hashlib.sha256(payload).hexdigest()
        questions: Json = json.loads(record.read_text()) if record.exists() else {"model": digest}
        if questions["model"] != digest:
            raise Refusal("policy", "it evaluates one model in a run, and has evaluated another")
        w = packing.from_bytes(payload, layout.vector(terms.dim))
        check_moderate(w, self.holdout.noise is not None)
        if not np.all(np.isfinite(w)):
            raise Refusal("unknown", "the model to evaluate is not finite")
        return np.asarray(w), questions


def _keep(record: Path, questions: Mapping[str, object]) -> None:
    write_whole(record, json.dumps(questions).encode(), private=True)


def _note_threshold(questions: Json, what: str, cut: float) -> None:
    """Note a question about a threshold; refuse one that the umbrella rule does not ask."""
    text = text_of(cut)
    if what == "wrong":
        if text not in (*questions["admits"], text_of(-math.inf)):
            raise Refusal("policy", "it counts wrong answers at a threshold that was proposed")
        if questions["wrong"] not in (None, text):
            raise Refusal("policy", "it counts wrong answers at one threshold in a run, and has counted at another")
        questions["wrong"] = text
    elif text not in questions["admits"]:
        if not umbrella.on_grid(cut):
            raise Refusal("unknown", "a proposed threshold must lie on the grid of the rule")
        if len(questions["admits"]) >= umbrella.MOST_PROPOSALS:
            raise Refusal("policy", f"it answers {umbrella.MOST_PROPOSALS} proposals of a threshold, and has done so")
        questions["admits"].append(text)


def _cut(value: object) -> float:
    """A threshold on the score from a message; infinite ones are texts there."""
    try:
        cut = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        cut = math.nan
    if math.isnan(cut):
        raise Refusal("unknown", "a threshold on the score must be a number")
    return cut
