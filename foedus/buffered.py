"""Algorithms in which a reply that comes too late for its round can still count in a later one."""

from jax import Array

from foedus.algorithm import Algorithm, Present
from foedus.pytrees import PyTree, state
from foedus.terms import Terms


@state
class LatePresent(Present):
    """Who answered a round in which replies may be late; `late` marks those to an earlier round's message."""

    late: Array


class Buffered(Algorithm):
    """An algorithm that goes on with a site's last reply, to an earlier message, until the site's next one arrives.

    This is the memory of MIFA (Gu et al. 2021). Weights that fall with a reply's age, as FedBuff's, would let the data
    of slow sites count less, and lead to another answer than that over all data.
    """

    def catch_up(self, terms: Terms, server: PyTree, message: PyTree, reply: PyTree) -> PyTree:
        """Return a reply to an earlier message in the form in which it counts now."""
        raise NotImplementedError
