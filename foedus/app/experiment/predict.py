"""Predicts raw rows with the model of a run directory, which holds all that is needed."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data import tables
from foedus.data.formats import Format
from foedus.data.preprocess import Preprocessing
from foedus.problem.losses import Loss, class_of
from foedus.runtime.run import Run, load
from foedus.statistics.tally import Rule


@dataclass(frozen=True)
class SavedModel:
    """A linear model as a run directory holds it."""

    run: Run
    rules: Preprocessing

    @property
    def w(self) -> np.ndarray:
        """The model's numbers, in the order of `rules.names`."""
        return np.asarray(self.run.w)

    @property
    def loss(self) -> type[Loss]:
        """The class of the loss that it was trained with, which says what a score stands for."""
        loss = self.run.settings["problem"].get("loss") or {}
        return class_of(str(loss.get("name")))

    @property
    def rule(self) -> Rule:
        """How scores become answers: by the threshold that a term on a rate chose, or by their sign."""
        return Rule() if self.run.decision is None else self.run.decision.rule

    def check_linear(self) -> None:
        """Raise where the model is not linear with one number a column."""
        if self.w.ndim != 1 or self.w.size != len(self.rules.names):
            raise FoedusError("only a linear model, one number a column, can be exported.")


@dataclass(frozen=True)
class Predictions:
    """One entry a row: the answer, the probability of the positive class (logistic loss only), and the score xᵀw.

    `unknown` counts the rows with a word that no site had in training, by column; `empty` those without an answer.
    """

    answers: list[str]
    scores: np.ndarray
    probabilities: np.ndarray | None
    unknown: dict[str, int]
    empty: int

    def csv(self) -> str:
        """Return the predictions as CSV text; the cells of a row without an answer are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        titles = ["row", "prediction"] + (["probability"] if self.probabilities is not None else []) + ["score"]
        writer.writerow(titles)
        for i, (answer, score) in enumerate(zip(self.answers, self.scores, strict=True)):
            empty = not np.isfinite(score)
            middle = [] if self.probabilities is None else ["" if empty else f"{self.probabilities[i]:.6g}"]
            writer.writerow([i + 1, answer, *middle, "" if empty else f"{score:.6g}"])
        return text.getvalue()


def open_model(folder: Path) -> SavedModel:
    """Open the model of a run directory."""
    if not folder.is_dir():
        raise FoedusError(f"{folder} is not a run directory; 'foedus run' makes one.")
    if not (folder / "run.json").is_file():
        inside = sorted(path.parent.name for path in folder.glob("*/run.json"))
        hint = f"; it holds the runs {tables.listing(inside)}: name one of them" if inside else ""
        what = "the run in it is not finished" if (folder / "experiment.json").is_file() else "it holds no finished run"
        raise FoedusError(f"{folder}: {what}{hint}.")
    if not (folder / "preprocessing.json").is_file():
        raise FoedusError(f"{folder}: preprocessing.json is missing, so raw rows cannot be prepared as in training.")
    run = load(folder)
    assert run.rules is not None
    return SavedModel(run, run.rules)


def predict(model: SavedModel, path: Path, separator: str | None = None) -> Predictions:
    """Predict every row of a raw table; a row with a missing value that the rules do not fill gets an empty answer."""
    rules = model.rules
    table = tables.read(path, Format(separator))
    X = rules.transform(table)
    if X.shape[1] != model.w.size:
        raise FoedusError(
            f"the model has {model.w.size} numbers, but its preprocessing makes {X.shape[1]}; the folder is damaged."
        )
    scores = X @ model.w
    has_score = np.isfinite(scores)
    probabilities = None
    if rules.labels:
        positive = model.rule.positive(scores)
        answers = [rules.labels[int(p)] if ok else "" for p, ok in zip(positive, has_score, strict=True)]
        if model.loss.log_odds:
            with np.errstate(over="ignore", invalid="ignore"):
                probabilities = 1.0 / (1.0 + np.exp(-scores))
    else:
        numbers = model.loss.answer(scores)
        answers = [f"{s:.6g}" if ok else "" for s, ok in zip(numbers, has_score, strict=True)]
    return Predictions(answers, scores, probabilities, rules.unknown(table), int(np.sum(~has_score)))
