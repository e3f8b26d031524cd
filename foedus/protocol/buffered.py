"""Algorithms in which a reply that comes too late for its round can still count in a later one."""

import math

from jax import Array

from foedus.base.pytrees import PyTree, state
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm, Present

LATE = ("drop", "next", "weighted")  # what may become of a late reply


def staleness_weight(age: int) -> float:
    """Return FedBuff's weight of a reply to a message of so many rounds ago, 1/√(1 + age)."""
    return 1.0 / math.sqrt(1.0 + age)


@state
class LatePresent(Present):
    """Who answered a round in which replies may be late; `late` marks those to an earlier round's message."""

    late: Array


class Buffered(Algorithm):
    """An algorithm that can go on with a reply to an earlier message.

    With `late="next"` a site's last reply counts until its next one arrives: the memory of MIFA (Gu et al. 2021), whose
    answer is that over all data. With `late="weighted"` a late reply counts once, in the round in which it arrives, and
    less the older it is, as in FedBuff (Nguyen et al. 2022): the data of slow sites count less.
    """

    def catch_up(self, terms: Terms, server: PyTree, message: PyTree, reply: PyTree, weight: Array) -> PyTree:
        """Return a reply to an earlier message in the form in which it counts now; of its change only this share."""
        raise NotImplementedError
