"""How much exact answers may tell: many numbers about few rows, or a number that is nearly one row's.

Even honest sums tell something. Before a site takes part in a run without noise it counts the numbers that will leave,
against the numbers in its own rows, and looks for a row that would stand out in them. Masks divide a sum's numbers
among the sites. Noise covers what it covers: a private run has its ledger instead.
"""

from dataclasses import dataclass

import numpy as np

from foedus.base.quantities import count
from foedus.federation import layout
from foedus.federation.policy import Policy, Refusal
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm
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
    """

    rounds: int
    numbers: int
    after: int
    measured: int
    sites: int
    size: int

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
        )

    def check(self, policy: Policy) -> None:
        """Refuse a run that would tell more numbers than the policy allows; it depends on no value of the data."""
        if self.share > policy.max_answers:
            left = policy.max_answers * self.sites * self.size - self.measured * self.after
            most = int(left // self.numbers)
            hint = f"; at most {count(most, 'round')} would do" if most > 0 else ""
            raise Refusal(
                "policy",
                f"its policy (max_answers) lets {policy.max_answers:g} times as many numbers leave as its rows hold, "
                f"and this run may ask for more{hint}",
            )


def answers_of(
    algorithm: Algorithm, terms: Terms, shapes: layout.Shapes, masking: Masking | None, rounds: int, rows: int,
    measured: int,
) -> Answers:  # fmt: skip
    """Return what leaves in a run, from what is known before its rounds.

    Args:
        algorithm: made ready for the terms.
        terms: of the run.
        shapes: of the site's arrays, with those that the terms bring.
        masking: how replies are added up; None: they are seen.
        rounds: the most.
        rows: of the site.
        measured: how many models may be measured.
    """
    party = layout.party(shapes)
    numbers = max(map(count_of, layout.replies(algorithm, terms, layout.messages(algorithm, terms, None), party)))
    own = sum(int(np.prod([n for n in shape if n is not None])) * rows for shape in shapes.values() if None in shape)
    sites = 1 if masking is None else terms.clients
    return Answers(rounds, numbers, count_of(layout.parts(terms, party)), measured, sites, own)


def largest_leverage(X: np.ndarray) -> float:
    """Return the largest leverage of a row: 1 where a sum of squares over the rows is that row's alone somewhere."""
    if not len(X):
        return 0.0
    U, size, _ = np.linalg.svd(X, full_matrices=False)
    rank = int(np.sum(size > size[0] * max(X.shape) * np.finfo(float).eps))
    return float(np.max(np.sum(U[:, :rank] ** 2, axis=1)))


def check_leverage(data: Data | dict[str, np.ndarray], policy: Policy) -> bool:
    """Return whether no row stands out in the sums more than the policy allows."""
    return "x" not in data or policy.max_leverage >= 1 or largest_leverage(np.asarray(data["x"])) <= policy.max_leverage
