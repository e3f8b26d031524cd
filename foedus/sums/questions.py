"""Questions and their sums: whatever is learnt from a site is its answer to a question, or the sum of the answers.

A question is a frozen value that names a pure function of one site's data. The shape of the answer follows from what
all parties know, and never from the data. `Sites` answer questions: data in this process (`Here`), or sites over a
network (`foedus.federation.asking`), plain or under masks. Who asks does not know which of them: it takes the `total`,
and the single answers where `shows_each` says that they are seen.

In a shape, a leaf of an integer type marks whole numbers. A total is added up in integers (`fixed_point.py`), under
masks or not, so that both are the same to the bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.sums.fixed_point import HEAD, FixedPoint, exact

EXTRA = 2  # words beside the numbers: how many were clipped, and how many sites had a number that is not finite
RESOLUTION = {1: 40, 2: 60}  # bits, by the words of a moderate number: 9e-13 and 9e-19
LEAST_OTHERS = 3  # other sites in a sum, where the policy says nothing else


@dataclass(frozen=True, eq=False)
class Form:
    """What an answer is made of.

    Args:
        shape: the shapes and types of its arrays.
        words: the 64-bit words of a real number in a sum: one or two of moderate size; None: the exact form.
    """

    shape: PyTree
    words: int | None = None


class Question(ABC):
    """What is asked of one site's data; a subclass is a frozen dataclass of what all parties know."""

    kind: ClassVar[str]  # what a message calls it
    words: ClassVar[int | None] = None  # as `Form.words`

    @property
    @abstractmethod
    def shape(self) -> PyTree:
        """The shapes and types of the answer's arrays."""

    @abstractmethod
    def answer(self, data: Any, /) -> PyTree:
        """Return the answer of one site, from its data."""

    @property
    def form(self) -> Form:
        """What the answer is made of."""
        return Form(self.shape, self.words)

    @property
    def fields(self) -> Json:
        """What a message says of the question beside its arrays."""
        return {}

    @property
    def arrays(self) -> PyTree:
        """The arrays of the question, the same for every site; in a checked run every site knows them."""
        return ()

    @property
    def free(self) -> PyTree:
        """Arrays that no sum decides, and that are sent in a checked run too."""
        return ()

    def check(self, answer: PyTree, /) -> None:
        """Raise where one site's answer, or the total, can be none."""
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(answer)):
            raise FoedusError("a number of the answer is NaN or infinite.")


def check_enough(count: int, who: str) -> None:
    """Raise where there are too few parties for a sum that says little about one."""
    if count <= LEAST_OTHERS:
        raise FoedusError(
            f"masked sums (secure) need at least {LEAST_OTHERS + 1} {who}, so that a sum says little about one. "
            f"Got {count} instead."
        )


class NotFinite(FoedusError):
    """A site's numbers are not finite, so there is no sum."""


@dataclass(frozen=True, eq=False)
class Coding:
    """How a tree of numbers of this shape stands in the 64-bit words of a sum.

    Args:
        shape: of the tree.
        point: how its real numbers are written.
    """

    shape: PyTree
    point: FixedPoint

    @staticmethod
    def of(form: Form, parties: int) -> "Coding":
        """Return the coding of answers of this form, for a sum over so many parties."""
        words = form.words
        point = exact(parties) if words is None else FixedPoint(parties, RESOLUTION[words], words)
        return Coding(form.shape, point)

    @cached_property
    def points(self) -> list[tuple[jax.ShapeDtypeStruct, FixedPoint | None]]:
        """The leaves of the shape, each with how its numbers are written; None for whole numbers."""
        leaves = jax.tree.leaves(self.shape)
        return [(leaf, None if np.dtype(leaf.dtype).kind in "iu" else self.point) for leaf in leaves]

    @property
    def size(self) -> int:
        """The words of a vector."""
        return sum((1 if point is None else point.words) * count_of(leaf) for leaf, point in self.points) + EXTRA

    def words_of(self, tree: PyTree) -> np.ndarray:
        """Return a site's words for a tree; one with a number that is not finite stands for zeros, and is counted."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        broken = not all(np.all(np.isfinite(leaf)) for leaf in leaves)
        parts, clip_count, most = [np.zeros(0, np.int64)], 0, 2**HEAD // self.point.terms
        for leaf, (_, point) in zip(leaves, self.points, strict=True):
            leaf = np.zeros_like(leaf) if broken else leaf
            if point is None:
                words, clipped = np.clip(leaf, -most, most).astype(np.int64), np.sum(np.abs(leaf) > most)
            else:
                words, clipped = point.encode(leaf)
            parts.append(words.ravel())
            clip_count += int(clipped)
        return np.concatenate([*parts, np.array([clip_count, int(broken)], np.int64)])

    def tree_of(self, total: np.ndarray) -> tuple[PyTree, int, int]:
        """Return the sum as a tree, how many numbers were clipped, and how many sites had one that is not finite."""
        leaves, start = [], 0
        for leaf, point in self.points:
            end = start + (1 if point is None else point.words) * count_of(leaf)
            words = total[start:end]
            numbers = words if point is None else point.decode(words.reshape(-1, point.words))
            leaves.append(numbers.reshape(leaf.shape))
            start = end
        clip_count, broken = (int(word) for word in total[-EXTRA:])
        return jax.tree.unflatten(jax.tree.structure(self.shape), leaves), clip_count, broken


def count_of(layout: PyTree) -> int:
    """Return how many numbers a tree of this shape holds."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(layout))


def sum_of_words(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sum of the sites' words."""
    return np.sum(np.stack(list(vectors)), axis=0)


def total_of(question: Question, answers: Iterable[PyTree]) -> PyTree:
    """Return the sum of answers that are seen: in integers where their form is exact, so that masks change no bit."""
    answers = list(answers)
    is_finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(answers))
    if question.words is None and is_finite:
        coding = Coding.of(question.form, len(answers))
        return checked_total(question, coding, sum_of_words(map(coding.words_of, answers)))
    return jax.tree.map(lambda *leaves: np.sum(np.stack(leaves), axis=0), *answers)


def checked_total(question: Question, coding: Coding, words: np.ndarray) -> PyTree:
    """Return the total that the sum of the sites' words holds; raise where it can be none."""
    total, clip_count, broken_count = coding.tree_of(words)
    if broken_count:
        raise NotFinite(f"{broken_count} of the sites have figures that are not finite.")
    check_clipped(coding.point, clip_count)
    question.check(total)
    return total


def remedy(point: FixedPoint) -> str:
    """Return the end of every sentence about a number beyond the range."""
    return f"beyond ±{point.largest:.3g}, the range of masked sums here; scale the columns, or run without secure"


def check_clipped(point: FixedPoint, clip_count: int, whose: str = "") -> None:
    """Raise where sites say that they have clipped numbers, so that a sum is not what it should be."""
    if clip_count:
        raise FoedusError(f"the sites have clipped {clip_count} numbers that were {remedy(point)}.{whose}")


class Sites(Protocol):
    """Whoever answers questions: sites by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, as the problem calls them."""
        ...

    @property
    def shows_each(self) -> bool:
        """Whether single answers are seen, or their total alone."""
        ...

    def each(self, question: Question, /) -> dict[str, PyTree]:
        """Return the answer of every site, by its name."""
        ...

    def total(self, question: Question, /) -> PyTree:
        """Return the sum of the sites' answers."""
        ...


class Here:
    """Sites whose data are all in this process.

    Args:
        data: by site, what its questions are answered from.
        secure: whether totals alone are seen.
    """

    def __init__(self, data: Mapping[str, object], secure: bool = False):
        if secure:
            check_enough(len(data), "sites")
        self.data, self.shows_each = dict(data), not secure

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.data)

    def each(self, question: Question) -> dict[str, PyTree]:
        if not self.shows_each:
            raise FoedusError("single answers are not seen where sums are masked (secure).")
        return self._answers(question)

    def total(self, question: Question) -> PyTree:
        answers = list(self._answers(question).values())
        if self.shows_each:
            return total_of(question, answers)
        coding = Coding.of(question.form, len(answers))
        return checked_total(question, coding, sum_of_words(map(coding.words_of, answers)))

    def _answers(self, question: Question) -> dict[str, PyTree]:
        return {name: question.answer(own) for name, own in self.data.items()}


def ask_all(sites: Sites, question: Question) -> tuple[dict[str, PyTree], PyTree]:
    """Ask once; return the single answers as far as they are seen, and their total."""
    if not sites.shows_each:
        return {}, sites.total(question)
    each = sites.each(question)
    return each, total_of(question, each.values())
