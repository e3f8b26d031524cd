"""Doubts that show only when whole rows are compared: rows that stand twice, and labels that are swapped at a site."""

import zlib
from collections.abc import Mapping

import numpy as np

from foedus.data.columns import Words, listing
from foedus.data.sites import Cohort
from foedus.data.tables import Table

MOST = 4000  # rows of a site that are enough to see the direction of its labels
LEVELS = 30  # words of a column that are enough for the same
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio, the usual multiplier of hashing
ACCIDENTS = 0.05  # how many equal pairs of different rows a table may be expected to have at most
RANGES = 16  # in which the numbers of rows are compared, one after the other
FEW = 3  # fewer equal rows are not worth a sentence
COPIES, COMMON = 0.02, 0.05  # nor is a smaller share: of copies within a site, of rows common to two sites
RIDGE = 0.05  # on standardised columns: makes the system solvable where columns repeat each other
BELOW_CHANCE, ERRORS = 0.1, 4  # how far below one half the ranking must be, and in how many standard errors
RIGHT_ELSEWHERE = 0.6  # a model that does not rank the other sites' rows better than this says nothing


def _row_hashes(table: Table) -> np.ndarray:
    """One number a row, the same for equal rows; any two different rows share one with a chance of about rows²/2⁶⁴."""
    total = np.zeros(table.rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, column in table.columns.items():
            if isinstance(column, Words):
                levels = np.array([zlib.crc32(v.encode()) + 1 for v in column.levels] + [0], dtype=np.uint64)
                bits = levels[column.codes]
            else:
                bits = np.where(np.isnan(column), 0.5, column + 0.0).view(np.uint64)  # + 0.0 makes −0 into 0
            mix = (bits + np.uint64(zlib.crc32(name.encode()))) * ODD
            mix ^= mix >> np.uint64(29)
            total += mix * (ODD + np.uint64(2 * zlib.crc32(name.encode())))
    return total


def _telling(tables: Mapping[str, Table]) -> bool:
    """Whether columns of numbers tell rows apart so well that equal rows are no accident.

    The chance that two rows agree is estimated column by column. The three most telling columns are taken to be
    independent; more are not, for columns of one table mostly depend on each other.
    """
    rows = sum(table.rows for table in tables.values())
    chances = []
    for name in next(iter(tables.values())).columns:
        columns = [table.columns.get(name) for table in tables.values()]
        numbers = [column[:MOST] for column in columns if isinstance(column, np.ndarray)]
        if len(numbers) < len(columns):
            continue
        values = np.concatenate(numbers)
        _, counts = np.unique(values, return_counts=True)
        chances.append(float(np.sum(counts * (counts - 1.0))) / max(1.0, len(values) * (len(values) - 1.0)))
    return bool(chances) and rows * float(np.prod(sorted(chances)[:3])) < ACCIDENTS


def _shared(owners: list[np.ndarray]) -> np.ndarray:
    """The numbers that several lists have, in order; the lists are sorted, and hold each number once.

    They are compared range by range: there may be millions, and a copy of all of them takes memory.
    """
    found = [np.zeros(0, dtype=np.uint64)]
    bounds = np.arange(1, RANGES, dtype=np.uint64) * np.uint64(2**64 // RANGES)
    for parts in zip(*(np.split(own, np.searchsorted(own, bounds)) for own in owners), strict=True):
        everything = np.sort(np.concatenate(parts))
        found.append(np.unique(everything[1:][everything[1:] == everything[:-1]]))
    return np.concatenate(found)


def repeated_rows(tables: Mapping[str, Table]) -> list[tuple[str, str]]:
    """Return the sites with rows that stand twice, in the site itself or at another, with a sentence each."""
    sentences = []
    if not _telling(tables):
        return sentences
    owners = {}
    for site, table in tables.items():
        owners[site] = np.unique(_row_hashes(table))
        twice = table.rows - len(owners[site])
        if twice >= max(FEW, COPIES * table.rows):
            sentences.append(
                (site, f"{twice:,} of its {table.rows:,} rows are copies of others there; take the copies out, for "
                 "they count twice.")
            )  # fmt: skip
    shared = _shared(list(owners.values()))
    if not len(shared):
        return sentences
    common_rows = {site: own[np.isin(own, shared, assume_unique=True)] for site, own in owners.items()}
    for site, mine in common_rows.items():
        common = len(mine)
        if common < max(FEW, COMMON * len(owners[site])):
            continue
        others = sorted(name for name, own in common_rows.items() if name != site and np.isin(own, mine).any())
        if others and others[0] > site:  # of sites that share rows, the first in the alphabet is named
            sentences.append(
                (site, f"{common:,} of its rows stand at {listing(others, 3)} too; let each row belong to one site.")
            )
    return sentences


def _features(cohort: Cohort, table: Table, rows: np.ndarray, scales: Mapping[str, tuple[float, float]]) -> np.ndarray:
    """Some rows as numbers of about the same size, one 0/1 column a word; outliers are cut off at 4 scales."""
    parts = []
    for name in cohort.features:
        column = table.columns[name]
        if isinstance(column, Words):
            for level in sorted(_levels(cohort, name)):
                place = column.levels.index(level) if level in column.levels else -2
                parts.append((column.codes[rows] == place).astype(float))
        elif name in scales:
            shift, width = scales[name]
            z = (column[rows] - shift) / width
            parts.append(np.clip(np.where(np.isnan(z), 0.0, z), -4, 4))
    return np.column_stack([*parts, np.ones(len(rows))])


def _levels(cohort: Cohort, name: str) -> list[str]:
    """The words of a column that most sites have."""
    counts: dict[str, int] = {}
    for table in cohort.tables.values():
        column = table.columns[name]
        if isinstance(column, Words):
            for level in column.levels:
                counts[level] = counts.get(level, 0) + 1
    return sorted(counts, key=lambda level: -counts[level])[:LEVELS]


def _area(scores: np.ndarray, y: np.ndarray) -> float:
    """The chance that a row of class 1 has a higher score than one of class 0 (the area under the ROC curve)."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    ones = y == 1
    n1, n0 = int(ones.sum()), int((~ones).sum())
    return float((ranks[ones].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def _moments(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a.T @ a / len(b), a.T @ b / len(b)


def _first(column: np.ndarray) -> np.ndarray:
    """The first numbers of a column, as many as are enough."""
    return column[np.flatnonzero(~np.isnan(column))[:MOST]]


def agreement(cohort: Cohort) -> list[tuple[str, str]]:
    """Return the sites whose labels are probably swapped: a model of the other sites ranks their rows wrongly.

    The model is least squares on the labels, fitted to the other sites' rows. Its ranking is compared with one half,
    which chance would give, in standard errors of the Wilcoxon statistic, √((n₁ + n₀ + 1)/(12·n₁·n₀)).
    """
    draw = np.random.default_rng(0)
    sample = {}
    for site, table in cohort.tables.items():
        rows = np.arange(table.rows)
        sample[site] = rows if len(rows) <= MOST else np.sort(draw.choice(rows, MOST, replace=False))
    scales = {}
    for name in cohort.features:
        columns = [t.columns[name] for t in cohort.tables.values()]
        numbers = [_first(c) for c in columns if not isinstance(c, Words)]
        if len(numbers) == len(columns) and any(map(len, numbers)):
            values = np.concatenate(numbers)
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
            scales[name] = (float(middle), float(high - low) / 2 or float(values.std()) or 1.0)
    x = {site: _features(cohort, table, sample[site], scales) for site, table in cohort.tables.items()}
    y = {site: cohort.y(table)[sample[site]] for site, table in cohort.tables.items()}
    two = [site for site in x if 0 < y[site].sum() < len(y[site])]
    if len(two) < 2:
        return []
    # centred at each site, so that a site's share of the classes and its level of a column do not matter
    moments = {s: _moments(x[s] - x[s].mean(axis=0), y[s] - y[s].mean()) for s in two}
    sentences = []
    for site in two:
        others = [s for s in two if s != site]
        gram = np.mean([moments[s][0] for s in others], axis=0)
        w = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), np.mean([moments[s][1] for s in others], axis=0))
        mine = _area(x[site] @ w, y[site])
        n1 = float(y[site].sum())
        n0 = len(y[site]) - n1
        error = np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))
        elsewhere = float(np.median([_area(x[s] @ w, y[s]) for s in others]))
        if mine < 0.5 - max(ERRORS * error, BELOW_CHANCE) and elsewhere > RIGHT_ELSEWHERE:
            sentences.append(
                (site, f"a model of the other sites ranks its rows the wrong way round (right in {100 * mine:.0f} % of "
                 f"pairs, {100 * elsewhere:.0f} % elsewhere); look whether its labels are swapped.")
            )  # fmt: skip
    return sentences[:1] if len(two) == 2 else sentences  # of two sites, nobody can say which has swapped labels
