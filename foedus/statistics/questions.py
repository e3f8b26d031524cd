"""What is asked of a site about a model on new rows: its tally, or counts and sums with noise."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.base.pytrees import PyTree
from foedus.problem.terms import Data, Terms
from foedus.statistics import figures, noisy, noisy_figures, tally
from foedus.statistics.figures import MEAN, coupled_terms, means_of
from foedus.statistics.noisy import Draw, EvaluationNoise
from foedus.statistics.noisy_figures import NoisyTally
from foedus.statistics.tally import Rule, Tally, is_count, text_of
from foedus.sums.questions import Question


@dataclass(frozen=True, eq=False)
class NewRows:
    """A site's rows that took no part in training.

    Args:
        arrays: (X, y), or (X, y, group).
        least: of fewer rows than this in a part nothing is told.
        draw: adds noise.
    """

    arrays: Sequence[np.ndarray]
    least: int = 1
    draw: Draw | None = None


@dataclass(frozen=True, eq=False)
class FiguresQuestion(Question):
    """How good is this model on new rows? The answer is a tally.

    Args:
        terms: of the problem.
        w: the model.
        cut: the threshold on the score, where a term chose one.
        groups: how many groups the rows are in, where they are; each has counts of its own.
    """

    kind: ClassVar[str] = "evaluate"
    figures: ClassVar[Any] = figures  # what reads the answers
    terms: Terms
    w: np.ndarray
    cut: float | None = None
    groups: int = 0

    @property
    def fields(self) -> Json:
        return {} if self.cut is None else {"cut": text_of(self.cut)}

    @property
    def arrays(self) -> PyTree:
        return np.asarray(self.w, dtype=float)

    @property
    def shape(self) -> dict[str, jax.ShapeDtypeStruct]:
        sizes = {
            name: jax.ShapeDtypeStruct(shape, int if is_count(name) else float)
            for name, shape in tally.shapes(self.terms, self.groups).items()
        }
        for name, _, term in coupled_terms(self.terms):
            sizes[name] = jax.ShapeDtypeStruct((len(term.labels(self.terms, Data({}))), MEAN), float)
        return sizes

    def answer(self, data: NewRows) -> Tally:
        own = tally.tally(self.terms, self.w, data.arrays, Rule(self.cut), data.least, self.groups)
        return {name: own[name].astype(int) if is_count(name) else own[name] for name in own} | means_of(
            self.terms, own
        )

    def check(self, answer: Tally) -> None:
        if not all(np.all(np.isfinite(value)) for value in answer.values()):
            raise FoedusError("the figures hold NaN or inf.")
        if any(np.any(value < 0) for name, value in answer.items() if is_count(name)):
            raise FoedusError("the figures hold a negative count.")

    def tally_of(self, answer: Tally, parties: int) -> Any:
        """Return an answer, or the total of so many, in the form that figures are made from."""
        return answer


@dataclass(frozen=True, eq=False)
class NoisyFiguresQuestion(FiguresQuestion):
    """How good is this model on new rows? The answer is a few counts and sums with noise.

    Args:
        noise: what may be spent of each row.
    """

    figures: ClassVar[Any] = noisy_figures
    noise: EvaluationNoise = field(kw_only=True)

    @property
    def shape(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: jax.ShapeDtypeStruct(shape, float) for name, shape in noisy.shapes(self.terms).items()}

    def answer(self, data: NewRows) -> dict[str, np.ndarray]:
        assert data.draw is not None
        exact = noisy.exact_parts(self.terms, self.w, data.arrays, Rule(self.cut))
        return noisy.release(self.terms, self.noise, exact, data.draw)

    def check(self, answer: Tally) -> None:
        Question.check(self, answer)

    def tally_of(self, answer: Tally, parties: int) -> NoisyTally:
        return NoisyTally(answer, self.noise.scales(self.terms), self.noise.kind, parties)


def figures_question(
    terms: Terms, w: np.ndarray, cut: float | None, noise: EvaluationNoise | None, groups: int = 0
) -> FiguresQuestion:
    """Return the question: with noise where it is stated, and then without counts of groups."""
    if noise is not None:
        return NoisyFiguresQuestion(terms, w, cut, noise=noise)
    return FiguresQuestion(terms, w, cut, groups)
