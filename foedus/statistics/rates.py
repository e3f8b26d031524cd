"""Miss rates and false alarms as terms: a threshold that keeps them at every site with a stated confidence.

A term on a rate takes no part in training. Each site keeps some rows out of training; the umbrella rule
(`umbrella`) then finds from counts which thresholds the term allows: all up to one for a miss rate, all from one on for
false alarms. The decision takes the largest threshold that the miss rate allows, which has the fewest false alarms;
with a term on false alarms alone it takes the smallest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.statistics import umbrella
from foedus.statistics.figures import ALL_ROWS
from foedus.statistics.tally import Rule
from foedus.sums.site import check_enough

Ask = Callable[["RateTerm", float], Sequence[int]]
"""Plays a round: how many rows that were kept out for a term lie below a score (above it, for negatives), by site."""


@dataclass(frozen=True)
class RateTerm:
    """A cap on the share of one class that gets the wrong answer, at every site, with a confidence.

    Args:
        at_most: the largest share, in (0, 1).
        confidence: the probability, over the rows that are kept out, with which the share is kept, in (0, 1).
        holdout: the share of each site's rows that is kept out of training for it, in (0, 1). Rows of both classes are
            kept out, so that those that train the model keep their proportions.
    """

    at_most: float
    confidence: float = 0.95
    holdout: float = 0.3
    positive: ClassVar[bool] = True  # the class that the term is about
    title: ClassVar[str] = "miss rate"

    def __post_init__(self) -> None:
        for name in ("at_most", "confidence", "holdout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise FoedusError(
                    f"The {name!r} of {type(self).__name__} must be a number > 0 and < 1. Got {value!r} instead."
                )

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

    @property
    def title(self) -> str:
        """The name of the rate."""
        return KINDS[self.type].title

    @property
    def words(self) -> str:
        """The term in words."""
        return KINDS[self.type](self.at_most, self.confidence).words


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
            terms.append(RateRecord(**{**term, **lists, "cut": float(term["cut"])}))
        return Decision(**{**record, "cut": float(record["cut"]), "terms": tuple(terms)})


def text_of(number: float) -> float | str:
    """Return a number as JSON holds it, which has no infinite ones."""
    return number if abs(number) < float("inf") else str(number)


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
        if rows < least:
            what = "positives" if term.positive else "negatives"
            raise FoedusError(
                f"site {site!r}: it keeps {rows} {what} out of training for the {term.title}, and at most "
                f"{term.at_most:g} with confidence {term.confidence:g} needs at least {least} at each site; raise "
                f"holdout of {term.name} (now {term.holdout:g}), or merge the site with another."
            )


def rank_of(term: RateTerm, rows: int) -> int:
    """Return k: a site with so many rows admits a threshold with fewer than k of them wrong."""
    return umbrella.rank(rows, term.at_most, term.confidence)


def proposal_of(term: RateTerm, cut: float) -> float:
    """Return the proposal that a term's limit on the threshold was, in the scores of `scores_for`."""
    return cut if term.positive else umbrella.STEP - cut


def scores_for(term: RateTerm, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the scores of the rows that a term is about; of negatives with the opposite sign."""
    return scores[y > 0] if term.positive else -scores[y <= 0]


Total = Callable[["RateTerm", str, float], tuple[int, int]]
"""Adds up over sites: for "count" the rows kept out and how many may be wrong; for "admits" how many sites a threshold
is too much for, and for "wrong" how many rows are wrong at it, each with a 0."""


def answer_of(term: RateTerm, scores: np.ndarray, what: str, cut: float) -> tuple[int, int]:
    """Return what a site adds to such a sum, from the scores of its rows; the three words are those of `Total`.

    A site with too few rows for the term admits no threshold.
    """
    rank, wrong = rank_of(term, len(scores)), umbrella.below(scores, cut)
    return {"count": (len(scores), max(rank - 1, 0)), "admits": (int(wrong >= rank), 0), "wrong": (wrong, 0)}[what]


def decide_by_sums(terms: Sequence[RateTerm], sites: int, total: Total) -> Decision:
    """Find the threshold from sums over sites: how many of them a threshold is too much for, which is none at the end.

    A site compares its count with its own rank and adds a yes or no. What a decision then says of rows is over all
    sites: how many were kept out, are wrong, and may be wrong.
    """
    check_enough(sites, "sites")
    records: list[RateRecord] = []
    rounds, traffic = 0, 0
    for term in terms:
        rows, allowed = total(term, "count", 0.0)
        cut, tries = umbrella.largest_cut(lambda cut, term=term: total(term, "admits", cut)[0] == 0)
        wrong, _ = total(term, "wrong", cut)
        rounds, traffic = rounds + tries + 2, traffic + 8 * sites * (tries + 2)
        place = cut if term.positive else -cut + umbrella.STEP
        figures = ((ALL_ROWS,), (rows,), (wrong,), (allowed,))
        records.append(RateRecord(term.name, term.at_most, term.confidence, place, *figures))
    return _decision(records, rounds, traffic, traffic)


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


def decide(terms: Sequence[RateTerm], counts: Mapping[str, Mapping[str, int]], ask: Ask) -> Decision:
    """Find the threshold; this is the server's part, which sees counts alone.

    Args:
        terms: the terms, at most one of each kind.
        counts: by the name of a term, the rows that each site kept out for it.
        ask: plays a round of counting for a term. For negatives the scores are taken with the opposite sign.
    """
    records: list[RateRecord] = []
    rounds, up, down = 0, 0, 0
    for term in terms:
        check_counts(term, counts[term.name])
        result = umbrella.search(
            counts[term.name], lambda cut, term=term: ask(term, cut), term.at_most, term.confidence
        )
        # A negative is no false alarm where its score is below the threshold: on the grid, one step beyond.
        cut = result.cut if term.positive else -result.cut + umbrella.STEP
        most_wrong = tuple(rank - 1 for rank in result.ranks)
        records.append(
            RateRecord(
                term.name, term.at_most, term.confidence, cut, result.sites, result.held_out, result.missed, most_wrong
            )
        )
        rounds, up, down = rounds + result.rounds, up + result.traffic.up, down + result.traffic.down
    return _decision(records, rounds, up, down)


def _decision(records: list[RateRecord], rounds: int, up: int, down: int) -> Decision:
    most = next((record.cut for record in records if record.type == "MissRate"), None)
    cut = records[0].cut if most is None else most
    records = [
        record if record.type == "MissRate" or record.cut <= cut else RateRecord(**{**vars(record), "holds": False})
        for record in records
    ]
    return Decision(cut, tuple(records), rounds, up, down)
