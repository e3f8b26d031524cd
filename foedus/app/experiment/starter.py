"""The files that `foedus init` writes: a commented experiment file, and an example with four invented hospitals."""

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

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


def _line(code: str, comment: str) -> str:
    return f"{code:<26} # {comment}"


def starter(wish: Wish) -> str:
    """Return the text of an experiment file, every choice with a comment."""
    one = f"label {wish.positive or '1'}"
    column_hint = f" (here {tables.listing(wish.columns, 8)})" if wish.columns else ""
    data = [
        _line(f"files = {toml_string(wish.files)}", "one file a site, called after the file; CSV or Parquet"),
        '# or one file for all:  file = "all.csv"  and  site = "hospital", the column that tells the sites apart',
        _line(f"label = {toml_string(wish.label)}", "the column to predict"),
        _line(f"positive = {toml_string(wish.positive)}", "the label that counts as 1; the others count as 0")
        if wish.positive is not None
        else _line('# positive = "yes"', "the label that counts as 1, where labels are words"),
        _line(f"group = {toml_string(wish.group)}", "groups whose losses can be compared; not used to predict")
        if wish.group is not None
        else _line('# group = "sex"', "groups whose losses can be compared; not used to predict"),
        *([f"separator = {toml_string(wish.separator)}"] if wish.separator is not None else []),
        _line('# features = ["age"]', f"the columns to predict from; all others when left out{column_hint}"),
        _line('# drop = ["patient"]', "columns to leave out"),
        _line('# categorical = ["code"]', "columns of numbers that are codes; columns of words need not be named"),
        _line('missing = "mean"', '"mean" fills numbers with the mean over all sites and makes a missing word a'),
        _line("", 'category of its own; "drop" leaves such rows out; "error" refuses them'),
    ]
    problem = [_line('loss = "logistic"', 'for two classes; "least_squares" to predict a number')]
    terms = []
    if wish.max_loss is not None:
        other = toml_string(f"label {wish.negative}")
        problem += [
            _line("", "of all rows, while the cap below holds at every site"),
            _line(f"# where = {other}", "Neyman-Pearson's form: the loss of these rows alone."),
            _line("", "The rows under the cap then count through the cap only, so the cap becomes a"),
            _line("", "target: at a site that could stay below it, nothing keeps the model there"),
        ]
        terms += [
            _line("[[constraints]]", "a limit that holds at every site:"),
            'type = "LossCap"',
            f"where = {toml_string(one)}",
            _line(f"at_most = {wish.max_loss:g}", "the mean loss on these rows; always guessing one half costs 0.69"),
            "",
        ]
    if wish.max_gap is not None:
        terms += [
            _line("[[constraints]]", "the mean losses of two groups are close at every site"),
            'type = "LossGap"',
            f"first = {toml_string(f'group {wish.groups[0]}')}",
            f"second = {toml_string(f'group {wish.groups[1]}')}",
            f"at_most = {wish.max_gap:g}",
            "",
        ]
    if not terms:
        terms = [
            _line("# [[constraints]]", "a limit that holds at every site, for instance:"),
            '# type = "LossCap"',
            f"# where = {toml_string(one)}",
            _line("# at_most = 0.5", "the mean loss on these rows; always guessing one half costs 0.69"),
            "",
        ]
    problem.append('penalty = { name = "Ridge", mu = 0.001, per_example = false }  # keeps the model small')
    method = [
        _line(
            f"name = {toml_string(wish.algorithm)}",
            "the one that fits; 'foedus check' says which, what it sends, and how often",
        )
    ]
    lines = [
        "# An experiment for foedus. Look first:  foedus check FILE    then train:  foedus run FILE",
        "# A list in place of one value, as in seed = [0, 1, 2], makes one run for each.",
        "",
        _line("seed = 0", "the same seed gives the same result"),
        "",
        "[data]",
        *data,
        "",
        _line("[preprocess]", "from sums and sets that the sites send; no rows are pooled"),
        _line('scale = "standard"', 'mean 0, deviation 1 over all sites; or "minmax", or "none"'),
        "",
        "[problem]",
        *problem,
        "",
        *terms,
        "[algorithm]",
        *method,
        "",
        "[participation]",
        _line("fraction = 1.0", "the share of the sites asked in each round"),
        "",
        "[run]",
        "max_rounds = 2000",
    ]
    return "\n".join(lines) + "\n"


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
