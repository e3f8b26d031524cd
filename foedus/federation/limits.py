"""How much exact answers may tell: many numbers about few rows, or a number that is nearly one row's.

Even honest sums tell something. Before a site takes part in a run without noise it counts the numbers that will leave,
against the numbers in its own rows, and looks for a row that would stand out in them. Masks divide a sum's numbers
among the sites. Noise covers what it covers: a private run has its ledger instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from foedus.base.files import Json
from foedus.base.quantities import count
from foedus.federation import layout
from foedus.federation.policy import Policy
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
from foedus.statistics.sandwich import LEVERED, Sandwich
from foedus.statistics.survival.stratified import halves
from foedus.sums.masking import Masking
from foedus.sums.questions import count_of


@dataclass(frozen=True)
class Answers:
    """What leaves a site in a run, beside what it has.

    Args:
        rounds: the most rounds.
        numbers: that leave in one round.
        after: that leave for a certificate.
        measured: how many models may be measured: the last one, and those at which the run is ended early.
        sites: over which a number is a sum; 1 where the server sees this site's own.
        size: how many numbers the site's rows hold.
        least: the fewest rows behind an entry of a sum; None where there is no X.
        leverage: the largest of a row; None where the policy allows any.
    """

    rounds: int
    numbers: int
    after: int
    measured: int
    sites: int
    size: int
    least: int | None
    leverage: float | None

    @property
    def share(self) -> float:
        """The numbers that leave, as a share of those in the site's rows; a sum counts for each of its sites alike."""
        return (self.rounds * self.numbers + self.measured * self.after) / (self.sites * self.size)

    @property
    def sentence(self) -> str:
        """What leaves, for the person who decides."""
        over = f" in sums over {self.sites} sites" if self.sites > 1 else ""
        return (
            f"Numbers: at most {self.rounds} times {self.numbers} leave{over}, and {self.measured} times {self.after} "
            f"for a certificate; the rows here hold {self.size}: a share of {self.share:.2g}."
            + ("" if self.least is None else f" The fewest rows behind an entry: {self.least}.")
            + ("" if self.leverage is None else f" The largest leverage of a row: {self.leverage:.2g}.")
        )

    def to_json(self) -> Json:
        """Return what the site keeps with the plan that it has accepted."""
        return {"share": self.share, "numbers": self.size, "least": self.least, "leverage": self.leverage}

    def why_not(self, policy: Policy) -> str | None:
        """Return why this is more than the policy allows; None where it is not."""
        if self.share > policy.max_answers:
            left = policy.max_answers * self.sites * self.size - self.measured * self.after
            most = int(left // self.numbers)
            hint = f"; at most {count(most, 'round')} would do" if most > 0 else ""
            return (
                f"the policy (max_answers) lets {policy.max_answers:g} times as many numbers leave as the rows hold, "
                f"and this run may ask for more{hint}"
            )
        if self.least is not None and self.least < policy.min_subset:
            return f"a column is other than 0 in {self.least} rows, fewer than the policy (min_subset) asks for"
        if self.leverage is not None and self.leverage > policy.max_leverage:
            return f"a row has the leverage {self.leverage:.3g}, more than the policy (max_leverage) allows"
        return None


def answers_of(
    algorithm: Algorithm, terms: Terms, arrays: Mapping[str, np.ndarray], extra: layout.Shapes, own: Data | None,
    masking: Masking | None, rounds: int, measured: int, policy: Policy, errors: str | None = None,
) -> Answers:  # fmt: skip
    """Return what leaves in a run, from what is known before its rounds.

    Args:
        algorithm: made ready for the terms.
        terms: of the run.
        arrays: the site's.
        extra: the shapes of those that the terms bring.
        own: the shapes of the server's own arrays.
        masking: how replies are added up; None: they are seen.
        rounds: the most.
        measured: how many models may be measured.
        policy: of the site.
        errors: how the standard errors are computed that are asked for at the end; None where they are not.
    """
    shapes = layout.schema(arrays)
    party = layout.party(shapes | extra)
    numbers = max(map(count_of, layout.replies(algorithm, terms, layout.messages(algorithm, terms, own), party)))
    # where no array has one row for each example, all of them count
    counted = [name for name, shape in shapes.items() if None in shape] or list(shapes)
    size = sum(np.size(arrays[name]) for name in counted)
    sites = 1 if masking is None else terms.clients
    X = np.asarray(arrays["x"]) if "x" in arrays else None
    least = None if X is None else rows_behind(X)
    leverage = None if X is None or policy.max_leverage >= 1 else largest_leverage(X)
    after = count_of(layout.parts(terms, party))
    if errors is not None:
        question = Sandwich(terms, np.zeros(terms.dim), np.zeros(terms.rows[2]), errors)
        after += count_of(question.shape) + (halves(terms.dim) if errors in LEVERED else 0)
    return Answers(rounds, numbers, after, measured, sites, size, least, leverage)


def rows_behind(X: np.ndarray) -> int:
    """Return the fewest rows in which a column is other than 0; a column of zeros adds nothing to any sum."""
    counts = np.count_nonzero(X.reshape(len(X), -1), axis=0)
    return int(np.min(counts[counts > 0], initial=len(X)))


def largest_leverage(X: np.ndarray) -> float:
    """Return the largest leverage of a row: 1 where a sum of squares over the rows is that row's alone somewhere."""
    if not len(X):
        return 0.0
    U, size, _ = np.linalg.svd(X, full_matrices=False)
    rank = int(np.sum(size > size[0] * max(X.shape) * np.finfo(float).eps))
    return float(np.max(np.sum(U[:, :rank] ** 2, axis=1)))
