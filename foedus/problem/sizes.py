"""Clients of very different sizes in a few groups, each cut to the height that the largest of them needs."""

from itertools import combinations, pairwise

import numpy as np

from foedus.problem.terms import Data

LEAST_BYTES = 2**25  # of X: below this, work on filling rows costs less than compiling a program for several sizes
LEAST_SAVING = 0.4  # the share of the rows that groups must save to be worth their compilation
MOST_GROUPS = 4  # a program is compiled once for each
PLACES = 17  # where a group may end: 15 places inside, so that all ways to cut are tried in a moment
ROWS = ("x", "y", "group", "weight")  # the arrays of a linear model that have a row for each example


def row_groups(counts: np.ndarray) -> list[np.ndarray]:
    """Return the clients in at most `MOST_GROUPS` groups, by falling size, whose rectangles hold the fewest rows."""
    order = np.argsort(-counts, kind="stable")
    size, n = counts[order], len(counts)
    places = np.unique(np.linspace(0, n, PLACES).astype(int)[1:-1])
    best, cuts = n * size[0], ()
    for many in range(1, MOST_GROUPS):
        for candidate in combinations(places.tolist(), many):
            ends = (0, *candidate, n)
            area = sum((b - a) * size[a] for a, b in pairwise(ends))
            if area < best:
                best, cuts = area, candidate
    return np.split(order, cuts)


def groups_of(
    data: Data, counts: np.ndarray, rectangles: tuple[tuple[int, int], ...] | None
) -> list[tuple[np.ndarray, int]] | None:
    """Return the clients of each group and its height; None where one rectangle will do.

    Args:
        data: all clients' arrays on a leading axis.
        counts: the number of examples of each client.
        rectangles: the (clients, rows) of each group, where the data came with them; else groups are chosen by size.
    """
    if rectangles is not None:
        groups = np.split(np.argsort(-counts, kind="stable"), np.cumsum([many for many, _ in rectangles])[:-1])
        return list(zip(groups, [rows for _, rows in rectangles], strict=True))
    if data["x"].nbytes < LEAST_BYTES:
        return None
    groups = row_groups(counts)
    tall = [int(counts[group[0]]) for group in groups]
    used = sum(len(group) * rows for group, rows in zip(groups, tall, strict=True))
    return None if used > (1.0 - LEAST_SAVING) * counts.size * counts.max() else list(zip(groups, tall, strict=True))


def cut(data: Data, group: np.ndarray, height: int) -> Data:
    """Return the data of some of the clients, cut to a height."""
    return Data({k: v[group, :height] if k in ROWS else v[group] for k, v in data.items()})
