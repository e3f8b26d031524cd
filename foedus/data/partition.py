"""Dividing one data set among clients, for experiments.

Arguments carry the names of flwr-datasets: `num_partitions`, `alpha`, `partition_by`, `seed`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from foedus.errors import FoedusError


def split(X: Any, y: Any, group: Any = None, *, clients: int, seed: int = 0, by: str | None = None) -> dict[str, Any]:
    """Deal the rows out at random to `clients` sites, in sizes that differ by at most one.

    With `by="label"`, each class is dealt out on its own, so that all sites have the same class ratio up to one row.
    """
    X, y = np.asarray(X), np.asarray(y)
    for name, array in (("y", y), ("group", group)):
        if array is not None and np.shape(array) != (len(X),):
            raise FoedusError(
                f"split: {name} must have one entry per row of X ({len(X)}). Got shape {np.shape(array)}."
            )
    if not isinstance(clients, int | np.integer) or not 1 <= clients <= len(X):
        raise FoedusError(
            f"The 'clients' argument of split must be in [1, {len(X)}], the number of rows. Got {clients!r}."
        )
    if by not in (None, "label"):
        raise FoedusError(f"The 'by' argument of split must be None or 'label'. Got {by!r} instead.")
    order = np.random.default_rng(seed).permutation(len(X))
    if by == "label":
        order = order[np.argsort(y[order], kind="stable")]
    parts = [order[i::clients] for i in range(clients)]
    width = len(str(clients - 1))
    arrays = (X, y) if group is None else (X, y, np.asarray(group))
    return {f"site-{i:0{width}d}": tuple(a[rows] for a in arrays) for i, rows in enumerate(parts)}


def _whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    fits = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not fits or value < least or (most is not None and value > most):
        limits = f">= {least}" if most is None else f"in [{least}, {most}]"
        raise FoedusError(f"The {name!r} of a partition must be a whole number {limits}. Got {value!r} instead.")
    return int(value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        raise FoedusError(f"The {name!r} of a partition must be a number > 0. Got {value!r} instead.")
    return float(value)


def _drawn(seed: Any) -> np.random.Generator:
    return np.random.default_rng(_whole("seed", seed, 0))


def iid_rows(values: np.ndarray, *, num_partitions: int, seed: int = 0) -> list[np.ndarray]:
    """Rows dealt out at random, in sizes that differ by at most one."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    order = _drawn(seed).permutation(len(values))
    return [order[i::n] for i in range(n)]


def dirichlet_rows(
    values: np.ndarray, *, num_partitions: int, alpha: float = 0.5, min_partition_size: int = 1, seed: int = 0
) -> list[np.ndarray]:
    """The rows of each value shared out in proportions drawn from Dirichlet(alpha): the smaller, the less alike.

    A draw that leaves a site with fewer than `min_partition_size` rows is repeated (Hsu, Qi and Brown 2019).
    """
    n = _whole("num_partitions", num_partitions, 1, len(values))
    least = _whole("min_partition_size", min_partition_size, 1, max(1, len(values) // n))
    alpha, draw = _positive("alpha", alpha), _drawn(seed)
    for _ in range(100):
        parts: list[list[np.ndarray]] = [[] for _ in range(n)]
        for value in np.unique(values):
            rows = draw.permutation(np.flatnonzero(values == value))
            shares = draw.dirichlet(np.full(n, alpha))
            cuts = np.round(np.cumsum(np.nan_to_num(shares))[:-1] * len(rows)).astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        dealt = [np.concatenate(part) for part in parts]
        if min(map(len, dealt)) >= least:
            return dealt
    raise FoedusError(
        f"alpha = {alpha:g}: in 100 draws some of the {n} sites had fewer than {least} rows each time; raise alpha, or "
        "lower num_partitions."
    )


def shards_rows(
    values: np.ndarray, *, num_partitions: int, num_shards_per_partition: int = 2, seed: int = 0
) -> list[np.ndarray]:
    """Rows sorted by value and cut into shards of which each site gets a few (McMahan et al. 2017, section 3)."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    each = _whole("num_shards_per_partition", num_shards_per_partition, 1, len(values) // n)
    draw = _drawn(seed)
    order = draw.permutation(len(values))
    order = order[np.argsort(values[order], kind="stable")]
    shards = np.array_split(order, n * each)
    dealt = draw.permutation(n * each)
    return [np.concatenate([shards[s] for s in dealt[i * each : (i + 1) * each]]) for i in range(n)]


def power_law_rows(values: np.ndarray, *, num_partitions: int, alpha: float = 1.0, seed: int = 0) -> list[np.ndarray]:
    """Rows dealt out at random to sites whose k-th has a size proportional to k^(−alpha), and at least one row."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    shares = np.arange(1, n + 1) ** -_positive("alpha", alpha)
    free = len(values) - n  # after one row for each
    cuts = np.arange(1, n) + np.round(np.cumsum(shares / shares.sum())[:-1] * free).astype(int)
    return np.split(_drawn(seed).permutation(len(values)), cuts)


def by_column_rows(values: np.ndarray, *, num_partitions: int, seed: int = 0) -> list[np.ndarray]:
    """Rows sorted by a column and cut into equal parts: each site has its own range of it."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    order = _drawn(seed).permutation(len(values))
    return list(np.array_split(order[np.argsort(values[order], kind="stable")], n))


def natural_rows(values: np.ndarray) -> dict[str, np.ndarray]:
    """One site for each value of a column: the hospital, the user."""
    return {str(value): np.flatnonzero(values == value) for value in np.unique(values)}


PARTITIONERS: dict[str, Callable[..., Any]] = {
    "iid": iid_rows,
    "dirichlet": dirichlet_rows,
    "shards": shards_rows,
    "power_law": power_law_rows,
    "by_column": by_column_rows,
    "natural": natural_rows,
}
"""By the name a file gives them. Each takes one value a row: the label where nothing else is named."""


def partition(method: str, values: Any, **settings: Any) -> dict[str, np.ndarray]:
    """The row numbers of each site, by one of PARTITIONERS."""
    dealt = PARTITIONERS[method](np.asarray(values), **settings)
    if isinstance(dealt, dict):
        return dealt
    width = len(str(len(dealt) - 1))
    return {f"site-{i:0{width}d}": rows for i, rows in enumerate(dealt)}


def _sites(method: str, X: Any, y: Any, group: Any, by: Any, **settings: Any) -> dict[str, Any]:
    X, y = np.asarray(X), np.asarray(y)
    if isinstance(by, int | np.integer) and not isinstance(by, bool):
        if not 0 <= by < X.shape[1]:
            raise FoedusError(f"partition_by must be a column of X, in [0, {X.shape[1] - 1}]. Got {by!r} instead.")
        values = X[:, by]
    else:
        values = y if by is None else np.asarray(by)
    arrays = (X, y) if group is None else (X, y, np.asarray(group))
    for name, array in (("y", y), ("group", group), ("partition_by", values)):
        if array is not None and np.shape(array) != (len(X),):
            raise FoedusError(
                f"{method}: {name} must have one entry per row of X ({len(X)}). Got shape {np.shape(array)}."
            )
    return {name: tuple(a[rows] for a in arrays) for name, rows in partition(method, values, **settings).items()}


def iid(X: Any, y: Any, group: Any = None, *, num_partitions: int, seed: int = 0) -> dict[str, Any]:
    """Sites whose rows are dealt out at random, in sizes that differ by at most one."""
    return _sites("iid", X, y, group, None, num_partitions=num_partitions, seed=seed)


def dirichlet(
    X: Any,
    y: Any,
    group: Any = None,
    *,
    num_partitions: int,
    alpha: float = 0.5,
    partition_by: Any = None,
    min_partition_size: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """Sites whose shares of each label, or of each value of `partition_by`, are drawn from Dirichlet(alpha)."""
    settings = {"num_partitions": num_partitions, "alpha": alpha, "min_partition_size": min_partition_size}
    return _sites("dirichlet", X, y, group, partition_by, **settings, seed=seed)


def shards(
    X: Any,
    y: Any,
    group: Any = None,
    *,
    num_partitions: int,
    num_shards_per_partition: int = 2,
    partition_by: Any = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Sites that hold a few shards of the rows sorted by label, or by `partition_by`: few labels each."""
    settings = {"num_partitions": num_partitions, "num_shards_per_partition": num_shards_per_partition}
    return _sites("shards", X, y, group, partition_by, **settings, seed=seed)


def power_law(
    X: Any, y: Any, group: Any = None, *, num_partitions: int, alpha: float = 1.0, seed: int = 0
) -> dict[str, Any]:
    """Sites of very different sizes: the k-th has about k^(−alpha) times the rows of the first."""
    return _sites("power_law", X, y, group, None, num_partitions=num_partitions, alpha=alpha, seed=seed)


def by_column(
    X: Any, y: Any, group: Any = None, *, partition_by: Any, num_partitions: int, seed: int = 0
) -> dict[str, Any]:
    """Sites that each have their own range of a column: `partition_by` is its number in X, or its values."""
    return _sites("by_column", X, y, group, partition_by, num_partitions=num_partitions, seed=seed)


def natural(X: Any, y: Any, group: Any = None, *, partition_by: Any) -> dict[str, Any]:
    """One site for each value of `partition_by`: a column's number in X, or one name a row."""
    return _sites("natural", X, y, group, partition_by)
