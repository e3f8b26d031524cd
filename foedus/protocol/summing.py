"""Algorithms whose server needs only sums, so that nobody has to show it a single client's reply."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.pytrees import T, state
from foedus.protocol.algorithm import Algorithm, Present


class Summing(Algorithm):
    """An algorithm whose `aggregate` uses nothing of the replies but their sum over clients and their number."""

    words: ClassVar[int] = 1  # 64-bit words that a number of its replies takes in a masked sum

    def by_sums(self) -> Algorithm:
        """Return the form whose every kind of round, a greeting included, needs only sums."""
        return self


@state
class SumPresent(Present):
    """Who answered a round whose replies are there as their sum alone; `answered` says how many there are in it."""

    answered: Array

    @staticmethod
    def of(answered: Array) -> "SumPresent":
        """Return the answer to "who is there" for a sum over so many."""
        return SumPresent(jnp.zeros(1, int), (answered > 0)[None], answered)

    @property
    def count(self) -> Array:
        return self.answered

    def mean(self, replies: T) -> T:
        """The mean over the clients in the sum; `replies` is the sum, without a client axis."""
        return jax.tree.map(lambda total: total / jnp.maximum(self.answered, 1), replies)

    def max(self, replies: Array) -> Array:
        raise FoedusError("a server that sees sums alone cannot take a maximum over clients.")

    def remember(self, table: T, replies: T) -> T:
        raise FoedusError("a server that sees sums alone cannot keep a table of clients.")
