"""Evaluates the model of a run directory on raw rows, which are prepared as in training."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from foedus.app.experiment import build
from foedus.app.experiment.predict import SavedModel, new_rows, open_model
from foedus.app.experiment.sources import roles_of
from foedus.app.experiment.sweep import Settings
from foedus.app.report import html
from foedus.base.errors import FoedusError
from foedus.data import preprocess, tables
from foedus.data.columns import text_of
from foedus.data.formats import site_name
from foedus.data.preprocess import Preprocessing
from foedus.data.sites import Cohort, Roles, complete
from foedus.data.tables import Table
from foedus.federation.preparation import cohort_of
from foedus.privacy.beside_training import with_further_rows
from foedus.privacy.ledger import Ledger
from foedus.problem.terms import Shape, Terms
from foedus.statistics.evaluate import Evaluation, evaluation_of, here
from foedus.statistics.noisy import EvaluationNoise


def evaluate_files(
    folder: Path,
    files: Sequence[str],
    separator: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    *,
    strict: bool = False,
) -> tuple[Evaluation, list[str]]:
    """Evaluate a model on files, each written as FILE or SITE=FILE; keep the figures in the run.

    Returns:
        The figures, which with `epsilon` and for a private run in any case have noise, which the ledger of the run
        lists; and sentences about the rows: how they were read, and what in them the training has not seen.
    """
    model = open_model(folder)
    run = model.run
    noise = _noise(run.ledger, folder, epsilon, delta)
    if model.settings is None:
        raise FoedusError(f"{folder}: experiment.json is missing or damaged, so its terms are not known.")
    names = _names(files)
    cohort, terms = _terms(model, model.settings)
    notes: list[str] = []
    rows = {}
    for name, (path, site) in names.items():
        new = new_rows(model, path, site, separator, strict=strict)
        notes += new.notes
        rows[name] = _rows(cohort, model.rules, new.table)
    source = ", ".join(path.name for path, _ in names.values())
    sites, groups = here(rows, noise), model.rules.groups
    evaluation = evaluation_of(sites, terms, model.w, run.decision, noise, source, groups)
    if noise is not None and run.ledger is not None:
        run.ledger = with_further_rows(run.ledger, [*names], noise.releases(terms), noise.delta)
    run.evaluations[evaluation.source] = evaluation
    run.save(folder)
    html.write({folder.resolve().name: run}, folder / "report.html", html.asked_in(folder))
    return evaluation, notes


def _noise(ledger: Ledger | None, folder: Path, epsilon: float | None, delta: float | None) -> EvaluationNoise | None:
    """The noise of the figures, drawn by OpenDP; None where neither the run nor the caller asks for any."""
    if ledger is None and epsilon is None:
        if delta is not None:
            raise FoedusError("--delta goes with --epsilon.")
        return None
    total = None if ledger is None else ledger.noise.get("total")
    if epsilon is None and not total:
        raise FoedusError(
            f"{folder} was trained under [privacy] and states no total; say with --epsilon what the figures may "
            "spend of each of these rows."
        )
    epsilon = float(total[0]) if epsilon is None and total else epsilon
    delta = float(total[1] if total else 0.0) if delta is None else delta
    assert epsilon is not None
    return EvaluationNoise(epsilon, delta, "opendp")


def _names(files: Sequence[str]) -> dict[str, tuple[Path, str | None]]:
    """By the name of its site, each file and its site as it was written: SITE=FILE, or nothing where FILE alone."""
    names: dict[str, tuple[Path, str | None]] = {}
    for text in files:
        prefix, equals, rest = text.partition("=")
        is_named = bool(equals) and bool(prefix) and not Path(text).exists()
        path = Path(rest if is_named else text)
        name = prefix if is_named else site_name(path)
        if name in names:
            raise FoedusError(
                f"{names[name][0]} and {path} would both be site {name!r}; give one of them another name, as in "
                f"other={path}."
            )
        names[name] = (path, prefix if is_named else None)
    return names


def _terms(model: SavedModel, settings: Settings) -> tuple[Cohort, Terms]:
    """The roles of the columns and the terms of the run, worked out from its settings without its data."""
    cohort = cohort_of(model.rules, roles_of(settings))
    constraints = build.constraints_of(
        settings, lambda words, place: build.mask_of(words, place, cohort), model.rules.names
    )
    shape = Shape.of(np.zeros(len(model.rules.names)))
    return cohort, Terms(1, shape, loss=build.loss_of(settings), constraints=tuple(constraints))


def _rows(cohort: Cohort, rules: Preprocessing, table: Table) -> tuple[np.ndarray, ...]:
    """The arrays of a table; raise where it has no label, an unknown one, or nothing but missing values."""
    roles: Roles = cohort.roles
    for what, name in (("label", roles.label), ("group", roles.group)):
        if name is not None:
            table.column(name, f"{what} of the model")
    features = [rule.name for rule in rules.columns if rule.name in table.columns]
    table = complete(table, roles, features)
    labels = {*rules.labels}
    if roles.classification and not any(label.startswith("not ") for label in rules.labels):
        column = text_of(table.columns[roles.label])
        strange = np.array([level not in labels for level in column.levels] + [False])[column.codes]
        if strange.any():
            row = int(np.argmax(strange))
            raise FoedusError(
                f"{table.place(row)}: the label {roles.label!r} is {column.levels[column.codes[row]]!r}; the model "
                f"knows {tables.listing(rules.labels)}."
            )
    if table.rows == 0:
        raise FoedusError(f"{table.source}: no row is left to evaluate the model on.")
    arrays = preprocess.arrays_of(cohort, rules, table)
    whole = np.isfinite(arrays[0]).all(axis=1)
    if not whole.any():
        raise FoedusError(f"{table.source}: every row has a missing value, and the model fills none.")
    return tuple(part[whole] for part in arrays)
