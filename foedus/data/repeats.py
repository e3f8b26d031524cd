"""Rows that stand twice, and labels that point the other way: what shows only when whole rows are compared."""

import zlib
from collections.abc import Mapping

import numpy as np

from foedus.data.sites import Cohort
from foedus.data.tables import Table, Words, listed

MOST = 4000  # rows of a site that are looked at for the direction of its labels
LEVELS = 30  # of a column of words, for the same
ODD = np.uint64(0x9E3779B97F4A7C15)


def _hashed(table: Table) -> np.ndarray:
    """A number for each row that equal rows share; others share it with a chance of about rows²/2⁶⁴."""
    total = np.zeros(table.rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, column in table.columns.items():
            if isinstance(column, Words):
                levels = np.array([zlib.crc32(v.encode()) + 1 for v in column.levels] + [0], dtype=np.uint64)
                bits = levels[column.codes]
            else:
                bits = np.where(np.isnan(column), 0.5, column + 0.0).view(np.uint64)  # + 0.0 makes −0 into 0
            mixed = (bits + np.uint64(zlib.crc32(name.encode()))) * ODD
            mixed ^= mixed >> np.uint64(29)
            total += mixed * (ODD + np.uint64(2 * zlib.crc32(name.encode())))
    return total


def _telling(tables: Mapping[str, Table]) -> bool:
    """Whether columns of numbers tell rows apart so well that equal rows are no accident.

    From the chance that two rows agree in a column; the three columns with the least are taken to be independent.
    """
    rows = sum(table.rows for table in tables.values())
    chances = []
    for name in next(iter(tables.values())).columns:
        held = [table.columns.get(name) for table in tables.values()]
        numbers = [column[:MOST] for column in held if isinstance(column, np.ndarray)]
        if len(numbers) < len(held):
            continue
        pooled = np.concatenate(numbers)
        _, counts = np.unique(pooled, return_counts=True)
        chances.append(float(np.sum(counts * (counts - 1.0))) / max(1.0, len(pooled) * (len(pooled) - 1.0)))
    return bool(chances) and rows * float(np.prod(sorted(chances)[:3])) < 0.05


def repeated(tables: Mapping[str, Table]) -> list[tuple[str, str]]:
    """Sites with rows that stand twice, in the site itself or at another, with a sentence each."""
    said = []
    if not _telling(tables):
        return said
    hashes = {site: _hashed(table) for site, table in tables.items()}
    for site, found in hashes.items():
        twice = len(found) - len(np.unique(found))
        if twice >= max(3, 0.02 * len(found)):
            said.append(
                (site, f"{twice:,} of its {len(found):,} rows are copies of others there; take the copies out, for "
                 "they count twice.")
            )  # fmt: skip
    owners = {site: np.unique(found) for site, found in hashes.items()}
    names = list(owners)
    where = np.concatenate([np.full(len(owners[s]), k) for k, s in enumerate(names)])
    _, inverse, counts = np.unique(np.concatenate([owners[s] for s in names]), return_inverse=True, return_counts=True)
    shared = counts[inverse] > 1
    for k, site in enumerate(names):
        mine = shared & (where == k)
        common = int(np.sum(mine))
        if common < max(3, 0.05 * len(owners[site])):
            continue
        others = sorted({names[j] for j in where[np.isin(inverse, inverse[mine]) & (where != k)]})
        if others and others[0] > site:  # of two sites it is said once
            said.append(
                (site, f"{common:,} of its rows stand at {listed(others, 3)} too; let each row belong to one site.")
            )
    return said


def _features(cohort: Cohort, table: Table, rows: np.ndarray, scales: Mapping[str, tuple[float, float]]) -> np.ndarray:
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
    found: dict[str, int] = {}
    for table in cohort.tables.values():
        column = table.columns[name]
        if isinstance(column, Words):
            for level in column.levels:
                found[level] = found.get(level, 0) + 1
    return sorted(found, key=lambda level: -found[level])[:LEVELS]


def _area(scores: np.ndarray, y: np.ndarray) -> float:
    """The chance that a row of class 1 has a higher score than one of class 0."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    ones = y == 1
    n1, n0 = int(ones.sum()), int((~ones).sum())
    return float((ranks[ones].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def agreement(cohort: Cohort) -> list[tuple[str, str]]:
    """Sites where a model of the other sites is wrong more often than chance: their labels are probably swapped."""
    draw = np.random.default_rng(0)
    chosen = {}
    for site, table in cohort.tables.items():
        rows = np.arange(table.rows)
        chosen[site] = rows if len(rows) <= MOST else np.sort(draw.choice(rows, MOST, replace=False))
    scales = {}
    for name in cohort.features:
        held = [t.columns[name] for t in cohort.tables.values()]
        numbers = [c[~np.isnan(c)][:MOST] for c in held if not isinstance(c, Words)]
        if len(numbers) == len(held) and any(map(len, numbers)):
            pooled = np.concatenate(numbers)
            low, middle, high = np.quantile(pooled, (0.1, 0.5, 0.9))
            scales[name] = (float(middle), float(high - low) / 2 or float(pooled.std()) or 1.0)
    x = {site: _features(cohort, table, chosen[site], scales) for site, table in cohort.tables.items()}
    y = {site: cohort.y(table)[chosen[site]] for site, table in cohort.tables.items()}
    two = [site for site in x if 0 < y[site].sum() < len(y[site])]
    if len(two) < 2:
        return []
    # least squares on the labels, centred at each site so that shares of classes do not matter
    centred = {s: (x[s] - x[s].mean(axis=0), y[s] - y[s].mean()) for s in two}
    moments = {s: (a.T @ a / len(b), a.T @ b / len(b)) for s, (a, b) in centred.items()}
    said = []
    for site in two:
        others = [s for s in two if s != site]
        gram = np.mean([moments[s][0] for s in others], axis=0)
        w = np.linalg.solve(gram + 0.05 * np.eye(len(gram)), np.mean([moments[s][1] for s in others], axis=0))
        mine = _area(x[site] @ w, y[site])
        n1 = float(y[site].sum())
        n0 = len(y[site]) - n1
        error = np.sqrt((n1 + n0 + 1) / (12 * n1 * n0))
        elsewhere = float(np.median([_area(x[s] @ w, y[s]) for s in others]))
        if mine < 0.5 - max(4 * error, 0.1) and elsewhere > 0.6:
            said.append(
                (site, f"a model of the other sites ranks its rows the wrong way round (right in {100 * mine:.0f} % of "
                 f"pairs, {100 * elsewhere:.0f} % elsewhere); look whether its labels are swapped.")
            )  # fmt: skip
    return said[:1] if len(two) == 2 else said  # of two sites one cannot say which
