"""A linear model's answers for new rows: scores, probabilities, and classes by the threshold that a term chose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse
from scipy.special import expit

from foedus.base.errors import FoedusError
from foedus.data.prepared import is_columns, table_of
from foedus.data.preprocess import Preprocessing
from foedus.problem.losses import class_of
from foedus.statistics.tally import Rule

Rows: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
"""New rows: a table of numbers, one column for each number of the model; or raw columns by name."""


@dataclass(frozen=True)
class Predictor:
    """A linear model with all that turns rows into answers.

    Args:
        w: the model, one number a column.
        loss: the name of the loss that it was trained with; None for an objective of one's own.
        classes: what stands for the negative and for the positive class; empty for a regression.
        rule: how scores become answers.
        rules: how raw rows become numbers, where that is known.
    """

    w: np.ndarray
    loss: str | None
    classes: Sequence[object]
    rule: Rule
    rules: Preprocessing | None = None

    def __post_init__(self) -> None:
        if self.loss is None or self.w.ndim != 1:
            raise FoedusError(
                "only a linear model, trained with loss=, predicts rows; with an objective of your own, apply run.w "
                "to the rows as the objective does."
            )

    def predict(self, rows: Rows) -> np.ndarray:
        """Return the answer for each row: a class, or a number in a regression. Shape (rows,)."""
        scores = self.scores(rows)
        if not self.classes:
            return class_of(str(self.loss)).answer(scores)
        return np.asarray(self.classes)[self.rule.positive(scores).astype(int)]

    def probabilities(self, rows: Rows) -> np.ndarray:
        """Return the probabilities of the negative and of the positive class. Shape (rows, 2)."""
        if not class_of(str(self.loss)).log_odds:
            raise FoedusError(f"only the logistic loss has probabilities; this model was trained with {self.loss}.")
        scores = self.scores(rows)
        return np.column_stack([expit(-scores), expit(scores)])

    def scores(self, rows: Rows) -> np.ndarray:
        """Return xᵀw for each row; the logarithm of the odds where the loss is logistic. Shape (rows,)."""
        by_name = isinstance(rows, Mapping) or (self.rules is not None and is_columns(rows))
        numbers = self._prepared(rows) if by_name else _numbers(rows)
        shape = tuple(numbers.shape or ())
        if len(shape) != 2 or shape[1] != self.w.size:
            raise FoedusError(f"the model has {self.w.size} numbers, one a column. Got rows of shape {shape}.")
        scores = np.asarray(numbers @ self.w)
        wrong = ~np.isfinite(scores)
        if np.any(wrong):
            raise FoedusError(f"row {int(np.argmax(wrong))}: a value is missing or infinite, and the model fills none.")
        return scores

    def _prepared(self, rows: object) -> np.ndarray:
        if self.rules is None:
            raise FoedusError(
                "this run does not know how raw columns become numbers; give it a table of numbers, or train on "
                "fd.Problem(fd.data.prepare(...), ...)."
            )
        return self.rules.transform(table_of("the new rows", rows))


def _numbers(rows: object) -> np.ndarray | csr_array:
    """A table of numbers, which stays sparse if it is."""
    try:
        if issparse(rows):
            return csr_array(rows)
        return np.asarray(rows, dtype=float)
    except (TypeError, ValueError):
        raise FoedusError(f"expected a table of numbers. Got {type(rows).__name__} instead.") from None
