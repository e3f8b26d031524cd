"""Rows that a site keeps out of training: some to evaluate the model on, some to choose a threshold by.

Each site draws them itself, from a seed and its own name, so that the draw does not depend on which other sites there
are. In a simulation the seed is that of the run; a real site has one of its own, which it tells nobody
(`runtime/flare/holdout.py`). It draws class by class and group by group: the rows that train the model keep the
proportions of all rows, and the probabilities that it predicts stay calibrated.

Under privacy it draws from all rows alike, by their places in the table alone. What is in a row then has no influence
on which rows are held out, so that replacing one row changes one row of the training or one that is held out, and no
other: the rounds and the evaluation are about different rows, and each row pays for one of them.
"""

import math
import zlib
from dataclasses import dataclass, field, replace

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data.columns import text_of
from foedus.data.sites import Cohort, Roles
from foedus.data.tables import Table


@dataclass(frozen=True)
class Shares:
    """The share of a site's rows that is held out to evaluate the model, and that of the rest for a threshold."""

    evaluate: float = 0.0
    threshold: float = 0.0
    seed: int = 0
    by_class: bool = True  # whether rows are drawn class by class and group by group; not under privacy

    def __bool__(self) -> bool:
        return max(self.evaluate, self.threshold) > 0


@dataclass(frozen=True)
class Split:
    """A site's rows: those that train the model, those held out to evaluate it, and those to choose a threshold by."""

    training: Table
    held_out: Table
    threshold: Table


def split(table: Table, roles: Roles, name: str, shares: Shares) -> Split:
    """Divide the rows of one site; of a class and group with two rows or more, at least one stays in training."""
    draw = np.random.default_rng([shares.seed, zlib.crc32(name.encode())])
    strata = _strata(table, roles) if shares.by_class else np.zeros(table.rows, dtype=int)
    rows = np.arange(table.rows)
    held_out = _draw(rows, strata, shares.evaluate, draw)
    rest = np.setdiff1d(rows, held_out)
    threshold = _draw(rest, strata, shares.threshold, draw)
    training = np.setdiff1d(rest, threshold)
    if not len(training):
        raise FoedusError(
            f"{table.source}: it has {table.rows} rows, and none is left for training; hold out fewer, or merge the "
            "site with another."
        )
    return Split(table.take(training), table.take(np.sort(held_out)), table.take(np.sort(threshold)))


def _draw(rows: np.ndarray, strata: np.ndarray, share: float, draw: np.random.Generator) -> np.ndarray:
    """A share of the rows of each stratum, rounded, at least one and never all of them."""
    draws = [np.zeros(0, dtype=int)]
    for code in np.unique(strata[rows]) if share else ():
        mine = draw.permutation(rows[strata[rows] == code])
        if len(mine) > 1:
            draws.append(mine[: min(max(1, math.floor(share * len(mine) + 0.5)), len(mine) - 1)])
    return np.concatenate(draws)


def _strata(table: Table, roles: Roles) -> np.ndarray:
    """A number for each row that says its class and its group; the targets of a regression are no classes."""
    names = [roles.label if roles.classification else None, roles.group]
    codes = np.zeros(table.rows, dtype=int)
    for name in (name for name in names if name is not None):
        column = text_of(table.columns[name])
        codes = codes * (len(column.levels) + 1) + column.codes
    return codes


@dataclass(frozen=True)
class KeptOut:
    """The rows that all sites keep out of training, by site; `whole` is the cohort before the rows were divided."""

    whole: Cohort
    held_out: dict[str, Table] = field(default_factory=dict)
    threshold: dict[str, Table] = field(default_factory=dict)


def split_cohort(cohort: Cohort, shares: Shares) -> tuple[Cohort, KeptOut]:
    """Return the cohort with the training rows alone, and the rows that its sites keep out."""
    if not shares:
        return cohort, KeptOut(cohort)
    splits = {name: split(table, cohort.roles, name, shares) for name, table in cohort.tables.items()}
    training = replace(cohort, tables={name: one.training for name, one in splits.items()})
    held_out = {name: one.held_out for name, one in splits.items()}
    return training, KeptOut(cohort, held_out, {name: one.threshold for name, one in splits.items()})
