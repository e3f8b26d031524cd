"""Miss rates and false alarms as terms: a threshold that keeps them at every site with a stated confidence.

A term on a rate takes no part in training. Each site keeps some rows out of training; the umbrella rule
(`umbrella`) then finds from counts which thresholds the term allows: all up to one for a miss rate, all from one on for
false alarms. The decision takes the largest threshold that the miss rate allows, which has the fewest false alarms;
with a term on false alarms alone it takes the smallest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.base.quantities import number, percent
from foedus.base.settings import check
from foedus.problem.constraints import UNDEFINED
from foedus.statistics import umbrella
from foedus.statistics.figures import ALL_ROWS
from foedus.statistics.questions import NewRows
from foedus.statistics.tally import Rule, text_of
from foedus.sums.questions import Question, Sites, ask_all


@dataclass(frozen=True)
class RateTerm:
    """A cap on the share of one class that gets the wrong answer, at every site, with a confidence.

    Args:
        at_most: the largest share, in (0, 1).
        confidence: the probability, over the rows that are kept out, with which the share is kept, in (0, 1).
        holdout: the share of each site's rows that is kept out of training for it, in (0, 1). Rows of both classes are
            kept out, so that those that train the model keep their proportions.
        skip: "undefined" promises nothing at sites that keep too few rows out for any bound, and names them.
    """

    at_most: float
    confidence: float = 0.95
    holdout: float = 0.3
    skip: str = ""
    positive: ClassVar[bool] = True  # the class that the term is about
    title: ClassVar[str] = "miss rate"

    def __post_init__(self) -> None:
        for name in ("at_most", "confidence", "holdout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise FoedusError(
                    f"The {name!r} of {type(self).__name__} must be a number > 0 and < 1. Got {value!r} instead."
                )
        check(f"The 'skip' of {type(self).__name__}", self.skip, choices=("", UNDEFINED))

    @property
    def name(self) -> str:
        """What an experiment file calls the term."""
        return type(self).__name__

    @property
    def words(self) -> str:
        """The term as the end of a sentence that begins with 'keep'."""
        return f"{self.title} at most {self.at_most:g} with confidence {self.confidence:g}, at every site"


@dataclass(frozen=True)
class MissRate(RateTerm):
    """The share of positives that are called negative is at most `at_most`, with confidence `confidence`."""


@dataclass(frozen=True)
class FalseAlarmRate(RateTerm):
    """The share of negatives that are called positive is at most `at_most`, with confidence `confidence`."""

    positive: ClassVar[bool] = False
    title: ClassVar[str] = "false-alarm rate"


KINDS: dict[str, type[RateTerm]] = {"MissRate": MissRate, "FalseAlarmRate": FalseAlarmRate}


@dataclass(frozen=True)
class RateRecord:
    """One term of a decision: its limit, and at each site the rows kept out for it and how many of them are wrong."""

    type: str
    at_most: float
    confidence: float
    cut: float  # the limit that the term puts on the threshold
    sites: tuple[str, ...]
    rows: tuple[int, ...]
    wrong: tuple[int, ...]
    allowed: tuple[int, ...]
    holds: bool = True
    left_out: tuple[str, ...] = ()  # sites with too few rows for any bound, where nothing is promised

    @property
    def title(self) -> str:
        """The name of the rate."""
        return KINDS[self.type].title

    @property
    def words(self) -> str:
        """The term in words."""
        words = KINDS[self.type](self.at_most, self.confidence).words
        few = "which keep too few rows out for a bound" if len(self.left_out) > 1 else "which keeps too few rows out"
        return words + (f" but {', '.join(self.left_out)}, {few}" if self.left_out else "")


@dataclass(frozen=True)
class Decision:
    """The threshold on the score at which a row is called positive, the terms that chose it, and what that took."""

    cut: float
    terms: tuple[RateRecord, ...]
    rounds: int
    up: int
    down: int

    @property
    def rule(self) -> Rule:
        """The rule that turns scores into answers."""
        return Rule(self.cut)

    def threshold(self, *, log_odds: bool) -> str:
        """Return the threshold in words: as a probability too, where scores are log-odds."""
        if not log_odds or not np.isfinite(self.cut):
            return f"the score {number(self.cut)}"
        probability = 1.0 / (1.0 + math.exp(-self.cut)) if self.cut >= -700.0 else 0.0
        digits = 1 if 0.01 <= probability <= 0.99 else 3
        return f"a predicted probability of {percent(probability, digits)} (the score {number(self.cut)})"

    def sentences(self, *, log_odds: bool) -> tuple[str, ...]:
        """Return a sentence on each rate that the threshold bounds, and one on the threshold or why there is none."""
        if self.trouble is not None:
            return (f"{self.trouble[:1].upper()}{self.trouble[1:]}.",)
        promises = (f"{term.words[:1].upper()}{term.words[1:]}." for term in self.terms)
        return (*promises, f"A row is called positive from {self.threshold(log_odds=log_odds)} on.")

    @property
    def holds(self) -> bool:
        """Whether the threshold keeps all terms."""
        return all(term.holds for term in self.terms)

    @property
    def trouble(self) -> str | None:
        """Why the threshold does not keep a term, as the end of a sentence; None where it keeps all."""
        failure = next((term for term in self.terms if not term.holds), None)
        if failure is None:
            return None
        other = next(term for term in self.terms if term.holds)
        return (
            f"no threshold keeps both the {other.title} of at most {other.at_most:g} (scores up to {other.cut:.4g}) "
            f"and the {failure.title} of at most {failure.at_most:g} (scores from {failure.cut:.4g} on)"
        )

    @staticmethod
    def of(calibration: umbrella.Calibration) -> "Decision":
        """Return the decision that a calibration of one miss rate comes to."""
        c = calibration
        allowed = tuple(rank - 1 for rank in c.ranks)
        term = RateRecord(
            MissRate.__name__, c.max_miss_rate, c.confidence, c.cut, c.sites, c.held_out, c.missed, allowed
        )
        return Decision(c.cut, (term,), c.rounds, c.traffic.up, c.traffic.down)

    def to_json(self) -> Json:
        """Return the decision as JSON holds it; JSON has no infinite numbers, so these are texts."""
        terms = [{**vars(term), "cut": text_of(term.cut)} for term in self.terms]
        return {**vars(self), "cut": text_of(self.cut), "terms": terms}

    @staticmethod
    def from_json(record: Json) -> "Decision":
        """Read what `to_json` wrote."""
        terms = []
        for term in record["terms"]:
            lists = {name: tuple(term[name]) for name in ("sites", "rows", "wrong", "allowed")}
            lists["left_out"] = tuple(term.get("left_out", ()))
            terms.append(RateRecord(**{**term, **lists, "cut": float(term["cut"])}))
        return Decision(**{**record, "cut": float(record["cut"]), "terms": tuple(terms)})


def check_terms(terms: Sequence[RateTerm]) -> None:
    """Raise where a kind of rate is capped twice."""
    for kind in KINDS:
        if sum(term.name == kind for term in terms) > 1:
            raise FoedusError(f"[[constraints]]: there are two of type {kind}; one threshold serves one of them.")


def least_rows(term: RateTerm) -> int:
    """Return how many rows a site must keep out for the term to be kept at all."""
    return umbrella.least_count(term.at_most, term.confidence)


def check_counts(term: RateTerm, counts: Mapping[str, int]) -> None:
    """Raise an error that names the first site that keeps too few rows out, and the number it needs."""
    least = least_rows(term)
    for site, rows in counts.items():
        if rows < least and not (term.skip and max(counts.values()) >= least):
            what = "positives" if term.positive else "negatives"
            raise FoedusError(
                f"site {site!r}: it keeps {rows} {what} out of training for the {term.title}, and at most "
                f"{term.at_most:g} with confidence {term.confidence:g} needs at least {least} at each site; raise "
                f"holdout of {term.name} (now {term.holdout:g}), merge the site with another, or write skip = "
                f"{UNDEFINED!r}, which promises nothing there."
            )


def rank_of(term: RateTerm, rows: int) -> int:
    """Return k: a site with so many rows admits a threshold with fewer than k of them wrong."""
    return umbrella.rank(rows, term.at_most, term.confidence)


def scores_for(term: RateTerm, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the scores of the rows that a term is about; of negatives with the opposite sign."""
    return scores[y > 0] if term.positive else -scores[y <= 0]


@dataclass(frozen=True, eq=False)
class RateQuestion(Question):
    """What is asked about a term on a rate. The answer is two whole numbers.

    Args:
        term: the term.
        what: "count": the rows kept out for it, and how many of them may be wrong; "admits": 1 where the threshold is
            too much for the site, and 0; "wrong": how many rows are wrong at it, and 0.
        w: the model.
        cut: the threshold, in the scores of `scores_for`.
    """

    kind: ClassVar[str] = "rate"
    term: RateTerm
    what: str
    w: np.ndarray
    cut: float = 0.0

    @property
    def fields(self) -> Json:
        return {"type": self.term.name, "what": self.what, "cut": text_of(self.cut)}

    @property
    def arrays(self) -> PyTree:
        return np.asarray(self.w, dtype=float)

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2,), int)

    def answer(self, data: NewRows) -> np.ndarray:
        """Return a site's answer; one with too few rows for the term admits no threshold."""
        scores = kept_scores(self.term, self.w, data)
        rank, wrong = rank_of(self.term, len(scores)), umbrella.below(scores, self.cut)
        admits = wrong < rank or self._is_left_out(rank)
        answers = {"count": (len(scores), max(rank - 1, 0)), "admits": (int(not admits), 0), "wrong": (wrong, 0)}
        return np.array(answers[self.what])

    def _is_left_out(self, rank: int) -> bool:
        """Whether the site has too few rows for any bound, and the term promises nothing there."""
        return rank == 0 and bool(self.term.skip)

    def check(self, answer: np.ndarray) -> None:
        if not np.all((answer >= 0) & (answer < 2**53)):
            raise FoedusError("an answer about a rate is no number of rows.")


def kept_scores(term: RateTerm, w: np.ndarray, data: NewRows) -> np.ndarray:
    """Return the scores of the rows that a term is about; none where these are fewer than may be spoken of."""
    X, y = (np.asarray(part, dtype=float) for part in data.arrays[:2])
    scores = scores_for(term, X @ w, y)
    return scores if len(scores) >= data.least else scores[:0]


def decide(sites: Sites, terms: Sequence[RateTerm], w: np.ndarray) -> Decision:
    """Find the threshold, from how many sites one is too much for: none at the end.

    A site compares its count with its own rank and says yes or no. What a decision then says of rows is by site where
    single answers are seen, and over all sites otherwise.
    """
    records: list[RateRecord] = []
    rounds = 0
    for term in terms:
        counts, total = ask_all(sites, RateQuestion(term, "count", w))
        check_counts(term, {name: int(rows) for name, (rows, _) in counts.items()})
        cut, tries = umbrella.largest_cut(
            lambda cut, term=term: int(sites.total(RateQuestion(term, "admits", w, cut))[0]) == 0
        )
        wrong, total_wrong = ask_all(sites, RateQuestion(term, "wrong", w, cut))
        rounds += tries + 2
        # A negative is no false alarm where its score is below the threshold: on the grid, one step beyond.
        limit = cut if term.positive else -cut + umbrella.STEP
        counts, wrong = counts or {ALL_ROWS: total}, wrong or {ALL_ROWS: total_wrong}
        rows, allowed = (tuple(int(count[k]) for count in counts.values()) for k in (0, 1))
        wrong = tuple(int(count[0]) for count in wrong.values())
        record = RateRecord(term.name, term.at_most, term.confidence, limit, tuple(counts), rows, wrong, allowed)
        few = tuple(site for site, n in zip(counts, rows, strict=True) if term.skip and n < least_rows(term))
        records.append(replace(record, left_out=few))
    most = next((record.cut for record in records if record.type == "MissRate"), None)
    cut = records[0].cut if most is None else most
    records = [
        record if record.type == "MissRate" or record.cut <= cut else replace(record, holds=False) for record in records
    ]
    size = 8 * len(sites.names) * rounds
    return Decision(cut, tuple(records), rounds, size, size)


def check_sums(term: RateTerm, counts: Mapping[str, int]) -> None:
    """Raise where some site keeps too few rows out; only their number is known, and none is named."""
    least = least_rows(term)
    if few := sum(rows < least for rows in counts.values()):
        what = "positives" if term.positive else "negatives"
        raise FoedusError(
            f"{few} of the sites keep fewer than {least} {what} out of training, which the {term.title} of at most "
            f"{term.at_most:g} with confidence {term.confidence:g} needs at each site; raise holdout of {term.name} "
            f"(now {term.holdout:g}), or merge sites."
        )
