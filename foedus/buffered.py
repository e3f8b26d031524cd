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
    """An algorithm that can use a reply to an earlier message, in the manner of FedBuff (Nguyen et al. 2022)."""

    def catch_up(self, terms: Terms, server: PyTree, message: PyTree, reply: PyTree, age: PyTree) -> PyTree:
        """Return a reply to a message of `age` rounds ago in the form in which it counts now."""
        raise NotImplementedError
