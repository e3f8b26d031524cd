"""Predicts raw rows with the model of a run directory, which holds all that is needed."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from foedus.app.experiment.sources import form_of, remedies_by_site
from foedus.app.experiment.sweep import Settings
from foedus.base.errors import FoedusError
from foedus.base.files import Json
from foedus.data import tables
from foedus.data.columns import Column, counted, listing, text_of
from foedus.data.formats import Format, site_name
from foedus.data.preprocess import Preprocessing
from foedus.data.remedies import Remedies
from foedus.data.tables import Table
from foedus.problem.losses import Loss, class_of
from foedus.runtime.run import Run, load
from foedus.statistics.tally import Rule


@dataclass(frozen=True)
class SavedModel:
    """A linear model as a run directory holds it; `record` is its experiment.json, empty where there is none."""

    run: Run
    rules: Preprocessing
    record: Json = field(default_factory=dict)

    @property
    def settings(self) -> Settings | None:
        """What was asked of the run; None where it was not made from an experiment file."""
        return self.record.get("settings")

    @property
    def remedies(self) -> dict[str, Remedies]:
        """The remedies for the files of single sites, by site."""
        return {} if self.settings is None else remedies_by_site(self.settings)

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
        if self.rules.formula:
            raise FoedusError(
                f"the model's columns are those of the formula {self.rules.formula!r}, which cannot be exported; "
                "predict with 'foedus predict'."
            )


@dataclass(frozen=True)
class NewRows:
    """A table of rows of after the training, in the form in which the model takes them, and what is said about it."""

    table: Table
    notes: tuple[str, ...]
    raw: Table  # as the file has it, before the remedies

    def column(self, name: str) -> Column:
        """Return a column by its name after the remedies, or by that in the file."""
        return (self.table if name in self.table.columns else self.raw).column(name, "--keep")


@dataclass(frozen=True)
class Predictions:
    """One entry a row: the answer, the probability of the positive class (logistic loss only), and the score xᵀw.

    `columns` are those of the table that go with the answers, as texts, an empty one where a cell is missing; `notes`
    are sentences about the rows: how they were read, and what in them the training has not seen.
    """

    answers: list[str]
    scores: np.ndarray
    probabilities: np.ndarray | None
    notes: tuple[str, ...]
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def csv(self) -> str:
        """Return the predictions as CSV text; the cells of a row without an answer are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        titles = (
            ["row", *self.columns, "prediction"]
            + (["probability"] if self.probabilities is not None else [])
            + ["score"]
        )
        writer.writerow(titles)
        for i, (answer, score) in enumerate(zip(self.answers, self.scores, strict=True)):
            empty = not np.isfinite(score)
            middle = [] if self.probabilities is None else ["" if empty else f"{self.probabilities[i]:.6g}"]
            own = [column[i] for column in self.columns.values()]
            writer.writerow([i + 1, *own, answer, *middle, "" if empty else f"{score:.6g}"])
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
    try:
        file = folder / "experiment.json"
        record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError):
        raise FoedusError(
            f"{folder}: experiment.json is damaged, so it is not known how its sites' files are read."
        ) from None
    return SavedModel(run, run.rules, record)


def new_rows(
    model: SavedModel, path: Path, site: str | None = None, separator: str | None = None, *, strict: bool = False
) -> NewRows:
    """Read a raw table as the training read the files of its site.

    Args:
        model: the model that the rows are for.
        path: the file.
        site: whose rows these are; the site that the file is called after, when left out. The rows of a site that is
            not one of the run are read as they are.
        separator: of the file, where it is not recognised and is not that of the site's file in training.
        strict: whether words and values that the training has not seen are refused.
    """
    remedies, notes = model.remedies, []
    sites = [*model.record.get("sites", ())]
    if site is None:
        site = site_name(path)
        if remedies and site not in sites:
            raise FoedusError(
                f"{path}: the run has remedies for the files of {listing(remedies)}, so say whose rows these are "
                f"(predict … --site NAME, evaluate … NAME={path.name}): one of {listing(sites)}, or another name for "
                "rows that are coded as the model's columns are."
            )
    elif remedies and site not in sites:
        notes.append(f"{site!r} is no site of this run ({listing(sites)}), so {path} is read as it is.")
    remedy = remedies.get(site, Remedies())
    common = Format() if model.settings is None else form_of(model.settings, remedy)
    raw = tables.read(path, Format(separator).over(common))
    table = remedy.apply(raw, f"[data.sites.{site}]", later=True)
    if remedy.words:
        notes.append(f"{path} is read as the file of {site} was in training: {remedy.words}.")
    strange = model.rules.strange(table)
    if strict and strange:
        raise FoedusError(f"{path}: {strange[0]} (--strict refuses such rows).")
    return NewRows(table, (*notes, *(f"{path}: {sentence}." for sentence in strange)), raw)


def predict(
    model: SavedModel,
    path: Path,
    separator: str | None = None,
    *,
    site: str | None = None,
    strict: bool = False,
    keep: Sequence[str] = (),
) -> Predictions:
    """Predict every row of a raw table; a row with a missing value that the rules do not fill gets an empty answer.

    `keep` names columns that go with the answers, such as an identifier: under their names in the file, or after the
    remedies of the site.
    """
    rules, rows = model.rules, new_rows(model, path, site, separator, strict=strict)
    columns = {name: _texts(rows.column(name)) for name in keep}
    X = rules.transform(rows.table)
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
    empty = int(np.sum(~has_score))
    absence = (f"{path}: no prediction for {counted(empty)}, in which a value is missing.",) if empty else ()
    return Predictions(answers, scores, probabilities, (*rows.notes, *absence), columns)


def _texts(column: Column) -> list[str]:
    """The cells of a column as a file would say them; an empty text for a missing value."""
    words = text_of(column)
    return np.array([*words.levels, ""], dtype=object)[words.codes].tolist()
