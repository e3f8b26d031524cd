"""The files that `foedus init` writes: a commented experiment file, and an example with four invented hospitals."""

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foedus.app.report.render import render
from foedus.base.errors import FoedusError, did_you_mean
from foedus.data import tables
from foedus.data.columns import Words, text_of
from foedus.data.formats import Format
from foedus.data.tables import Table

# name, rows, mean age, and how much more ill its patients are than elsewhere
HOSPITALS = (("city", 120, 62, 0.0), ("lakeside", 80, 55, -0.3), ("st-mary", 100, 68, 0.3), ("valley", 60, 59, 0.1))
AFFIRMATIVE = ("yes", "true", "positive", "malignant", "ill", "sick", "dead", "died")
WARDS = ("cardiology", "internal medicine", "surgery")


@dataclass(frozen=True)
class Wish:
    """What the user wants of an experiment, and what the first data file says about it."""

    files: str
    label: str
    positive: str | None = None
    group: str | None = None
    max_loss: float | None = None
    max_gap: float | None = None
    algorithm: str = "auto"
    separator: str | None = None
    columns: tuple[str, ...] = ()
    negative: str = "0"
    groups: tuple[str, ...] = ()


def toml_string(text: str) -> str:
    """Return a text as a TOML string; a JSON string is one."""
    return json.dumps(text, ensure_ascii=False)


def first_table(pattern: str, folder: Path, separator: str | None) -> Table:
    """Read the first file that the pattern names."""
    from foedus.app.experiment.sources import files_of

    return tables.read(next(iter(files_of(pattern, folder).values())), Format(separator))


def example_table(wish: Wish, folder: Path) -> Table:
    """Read the first file that the pattern names; the first that has the positive label, where one is named.

    Sites spell labels differently, and 'foedus check' says how to bring them together.
    """
    from foedus.app.experiment.sources import files_of

    labels: set[str] = set()
    for path in files_of(wish.files, folder).values():
        table = tables.read(path, Format(wish.separator))
        levels = text_of(table.column(wish.label, "--label")).used().levels
        if wish.positive is None or wish.positive in levels:
            return table
        labels |= {*levels}
    raise FoedusError(
        f"--positive {wish.positive!r}: no file has it; the column {wish.label!r} has only "
        f"{tables.listing(sorted(labels))}.{did_you_mean(str(wish.positive), labels)}"
    )


def complete_wish(wish: Wish, folder: Path) -> Wish:
    """Check the wish against one of the files, and add the columns and which label counts as 1."""
    table = example_table(wish, folder)
    label = text_of(table.columns[wish.label]).used().levels
    if wish.group is not None:
        table.column(wish.group, "--group")
    positive = wish.positive
    if positive is None and set(label) not in ({"0", "1"}, {"-1", "1"}) and len(label) <= 10:
        column = text_of(table.columns[wish.label]).used()
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(label))
        rarer = label[int(np.argmin(counts))]  # an illness, a default, a fraud: what one looks for is mostly rarer
        positive = next((level for level in label if level.lower() in AFFIRMATIVE), rarer)
    others = [level for level in label if level != (positive or "1")]
    negative = others[0] if len(others) == 1 else f"not {positive or 1}"
    groups = text_of(table.columns[wish.group]).used().levels if wish.group is not None else ()
    if wish.max_gap is not None and len(groups) < 2:
        raise FoedusError(f"--max-gap: the column {wish.group!r} has {len(groups)} values; expected at least two.")
    columns = tuple(name for name in table.columns if name not in (wish.label, wish.group))
    return replace(wish, positive=positive, negative=negative, groups=groups, columns=columns)


def starter(wish: Wish) -> str:
    """Return the text of an experiment file, every choice with a comment."""
    hint = f" (here {tables.listing(wish.columns, 8)})" if wish.columns else ""
    return render("starter.toml", wish=wish, hint=hint, quoted=toml_string)


EXAMPLE = Wish(
    files="hospitals/*.csv",
    label="readmitted",
    positive="yes",
    group="sex",
    max_loss=0.55,
    columns=("age", "ward", "blood_pressure", "creatinine", "previous_stays", "smoker"),
    negative="no",
    groups=("F", "M"),
)


def hospitals(seed: int = 0) -> dict[str, str]:
    """Return four invented hospitals as CSV text; who was readmitted depends on age, kidneys and earlier stays."""
    draw = np.random.default_rng(seed)
    texts = {}
    for name, rows, age, ill in HOSPITALS:
        years = np.clip(draw.normal(age, 13, rows), 18, 97).round()
        pressure = draw.normal(132, 16, rows).round()
        kidneys = np.exp(draw.normal(0.05 + 0.15 * ill, 0.35, rows)).round(2)
        stays = draw.poisson(1.2 + 0.6 * (years > 70), rows)
        smokes = draw.random(rows) < 0.3
        ward = draw.choice(WARDS, rows, p=draw.dirichlet((6, 6, 6)))
        sex = draw.choice(("F", "M"), rows)
        score = 0.05 * (years - 62) + 1.6 * (kidneys - 1) + 0.7 * (stays - 1.4) + 0.5 * smokes + 0.5 * ill
        back = draw.random(rows) < 1 / (1 + np.exp(-1.6 * score + 0.2))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            ["age", "sex", "ward", "blood_pressure", "creatinine", "previous_stays", "smoker", "readmitted"]
        )
        for i in range(rows):
            lab = "" if draw.random() < 0.06 else f"{kidneys[i]:.2f}"
            words = ("yes" if smokes[i] else "no", "yes" if back[i] else "no")
            writer.writerow([f"{years[i]:.0f}", sex[i], ward[i], f"{pressure[i]:.0f}", lab, stays[i], *words])
        texts[name] = text.getvalue()
    return texts


def columns_of(table: Table) -> list[str]:
    """Describe each column in a few words, for the questions of `foedus init`."""
    return [
        f"{name} ({tables.listing(column.used().levels, 3)})" if isinstance(column, Words) else f"{name} (numbers)"
        for name, column in table.columns.items()
    ]
