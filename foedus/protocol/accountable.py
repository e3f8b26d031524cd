"""Kinds of rounds whose replies can be held against each other: what a reply says, in a form that all methods share."""

from dataclasses import dataclass

import numpy as np

from foedus.base.pytrees import PyTree
from foedus.problem.terms import Terms


@dataclass(frozen=True)
class Account:
    """What a reply says of a client's function at the point it was asked about; None where it does not say it.

    w         the point
    size      the numbers whose norm can be bounded: how far the reply would move the model, or the gradient
    f, g, K   value, gradient and curvature at w
    product   K·w, where the reply repeats it
    """

    w: np.ndarray
    size: np.ndarray
    f: float | None = None
    g: np.ndarray | None = None
    K: np.ndarray | None = None
    product: np.ndarray | None = None


class Accountable:
    """A kind of round whose replies give such an account."""

    def account(self, terms: Terms, message: PyTree, reply: PyTree) -> Account | None:
        """Return what one client's reply to a message says; None where it says nothing that could be held against it.

        Args:
            terms: those of the problem.
            message: what the client received, as NumPy arrays.
            reply: what it sent back, as NumPy arrays.
        """
        raise NotImplementedError


def is_convex(terms: Terms) -> bool:
    """Whether every client's function is known to be convex."""
    return terms.loss is not None and terms.loss.convex and (terms.penalty is None or terms.penalty.convex)
