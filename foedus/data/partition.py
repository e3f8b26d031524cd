"""Partitioners: they divide one data set among clients, for experiments.

Arguments carry the names of flwr-datasets: `num_partitions`, `alpha`, `partition_by`, `seed`. Every public function
returns its sites as `Problem` takes them, a dict from the site's name to (X, y) or (X, y, group). The functions whose
names end in `_rows` do the work on row numbers alone.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.base.settings import check

Sites: TypeAlias = dict[str, tuple[np.ndarray, ...]]
"""The arrays of each site by its name: (X, y), or (X, y, group)."""

DRAWS = 100  # of `dirichlet`: a setting that fails this often leaves some site short almost surely


def split(
    X: ArrayLike, y: ArrayLike, group: ArrayLike | None = None, *, clients: int, seed: int = 0, by: str | None = None
) -> Sites:
    """Deal the rows out at random to `clients` sites, in sizes that differ by at most one.

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row, for constraints between groups; left out where there are none.
        clients: the number of sites, between 1 and the number of rows.
        seed: keys the draw.
        by: "label" deals out each class on its own, so that all sites have the same class ratio up to one row.

    Returns:
        The arrays of each site by its name, "site-0" and so on.

    Example:
        >>> import foedus as fd
        >>> sites = fd.data.split([[1.0], [2.0], [3.0], [4.0]], [0, 0, 1, 1], clients=2, by="label")
        >>> {name: y.tolist() for name, (X, y) in sites.items()}
        {'site-0': [0, 1], 'site-1': [0, 1]}
    """
    X, y = np.asarray(X), np.asarray(y)
    group = None if group is None else np.asarray(group)
    _check_lengths("split", X, {"y": y, "group": group})
    if not isinstance(clients, int | np.integer) or not 1 <= clients <= len(X):
        raise FoedusError(
            f"The 'clients' argument of split must be in [1, {len(X)}], the number of rows. Got {clients!r}."
        )
    if by not in (None, "label"):
        raise FoedusError(f"The 'by' argument of split must be None or 'label'. Got {by!r} instead.")
    order = np.random.default_rng(seed).permutation(len(X))
    if by == "label":
        # sorted by label, every k-th row goes to the same site: each class is dealt out evenly
        order = order[np.argsort(y[order], kind="stable")]
    arrays = (X, y) if group is None else (X, y, group)
    return {
        name: tuple(a[rows] for a in arrays) for name, rows in _with_names([order[i::clients] for i in range(clients)])
    }


def _check_lengths(function: str, X: np.ndarray, arrays: dict[str, np.ndarray | None]) -> None:
    """Raise where an array has not one entry per row of X."""
    for name, array in arrays.items():
        if array is not None and array.shape != (len(X),):
            raise FoedusError(
                f"{function}: {name} must have one entry per row of X ({len(X)}). Got shape {array.shape}."
            )


def _with_names(parts: list[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """The parts with the names site-0, site-1, …, with leading zeros so that names sort as their numbers do."""
    width = len(str(len(parts) - 1))
    return [(f"site-{i:0{width}d}", rows) for i, rows in enumerate(parts)]


def _whole(name: str, value: object, least: int, most: int | None = None) -> int:
    return check(f"The {name!r} of a partition", value, ge=least, le=most, whole=True)


def _positive(name: str, value: object) -> float:
    return check(f"The {name!r} of a partition", value, gt=0, finite=True)


def _generator(seed: object) -> np.random.Generator:
    return np.random.default_rng(_whole("seed", seed, 0))


def iid_rows(values: np.ndarray, *, num_partitions: int, seed: int = 0) -> list[np.ndarray]:
    """Deal the rows out at random, in sizes that differ by at most one."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    order = _generator(seed).permutation(len(values))
    return [order[i::n] for i in range(n)]


def dirichlet_rows(
    values: np.ndarray, *, num_partitions: int, alpha: float = 0.5, min_partition_size: int = 1, seed: int = 0
) -> list[np.ndarray]:
    """Share out the rows of each value in proportions drawn from Dirichlet(alpha) (Hsu, Qi and Brown 2019).

    The smaller alpha is, the less alike the sites are. A draw that leaves a site with fewer than `min_partition_size`
    rows is repeated.
    """
    n = _whole("num_partitions", num_partitions, 1, len(values))
    least = _whole("min_partition_size", min_partition_size, 1, max(1, len(values) // n))
    alpha, draw = _positive("alpha", alpha), _generator(seed)
    for _ in range(DRAWS):
        parts: list[list[np.ndarray]] = [[] for _ in range(n)]
        for value in np.unique(values):
            rows = draw.permutation(np.flatnonzero(values == value))
            # numpy's draw can be NaN where alpha is tiny, which then counts as no share
            shares = draw.dirichlet(np.full(n, alpha))
            cuts = np.round(np.cumsum(np.nan_to_num(shares))[:-1] * len(rows)).astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        sites = [np.concatenate(part) for part in parts]
        if min(map(len, sites)) >= least:
            return sites
    raise FoedusError(
        f"alpha = {alpha:g}: in {DRAWS} draws some of the {n} sites had fewer than {least} rows each time; raise "
        "alpha, or lower num_partitions."
    )


def shards_rows(
    values: np.ndarray, *, num_partitions: int, num_shards_per_partition: int = 2, seed: int = 0
) -> list[np.ndarray]:
    """Sort the rows by value, cut them into shards and give each site a few (McMahan et al. 2017, section 3)."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    each = _whole("num_shards_per_partition", num_shards_per_partition, 1, len(values) // n)
    draw = _generator(seed)
    order = draw.permutation(len(values))
    order = order[np.argsort(values[order], kind="stable")]
    shards = np.array_split(order, n * each)
    hands = draw.permutation(n * each)
    return [np.concatenate([shards[s] for s in hands[i * each : (i + 1) * each]]) for i in range(n)]


def power_law_rows(values: np.ndarray, *, num_partitions: int, alpha: float = 1.0, seed: int = 0) -> list[np.ndarray]:
    """Deal the rows out at random to sites whose k-th has a size proportional to k^(−alpha), and at least one row."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    shares = np.arange(1, n + 1) ** -_positive("alpha", alpha)
    free = len(values) - n  # after one row for each
    cuts = np.arange(1, n) + np.round(np.cumsum(shares / shares.sum())[:-1] * free).astype(int)
    return np.split(_generator(seed).permutation(len(values)), cuts)


def by_column_rows(values: np.ndarray, *, num_partitions: int, seed: int = 0) -> list[np.ndarray]:
    """Sort the rows by a column and cut them into equal parts: each site has its own range of the column."""
    n = _whole("num_partitions", num_partitions, 1, len(values))
    order = _generator(seed).permutation(len(values))
    return list(np.array_split(order[np.argsort(values[order], kind="stable")], n))


def natural_rows(values: np.ndarray) -> dict[str, np.ndarray]:
    """Make one site of each value of a column: the hospital, the user."""
    return {str(value): np.flatnonzero(values == value) for value in np.unique(values)}


PARTITIONERS: dict[str, Callable[..., list[np.ndarray] | dict[str, np.ndarray]]] = {
    "iid": iid_rows,
    "dirichlet": dirichlet_rows,
    "shards": shards_rows,
    "power_law": power_law_rows,
    "by_column": by_column_rows,
    "natural": natural_rows,
}
"""By the name a file gives them. Each takes one value a row: the label where nothing else is named."""


def partition(method: str, values: ArrayLike, **settings: object) -> dict[str, np.ndarray]:
    """Return the row numbers of each site, as one of PARTITIONERS divides them."""
    parts = PARTITIONERS[method](np.asarray(values), **settings)
    return parts if isinstance(parts, dict) else dict(_with_names(parts))


def _sites(
    method: str, X: ArrayLike, y: ArrayLike, group: ArrayLike | None, by: ArrayLike | None, **settings: object
) -> Sites:
    """The arrays of each site; `by` is a column's number in X, one value a row, or None for the label."""
    X, y = np.asarray(X), np.asarray(y)
    group = None if group is None else np.asarray(group)
    if isinstance(by, int | np.integer) and not isinstance(by, bool):
        if not 0 <= by < X.shape[1]:
            raise FoedusError(f"partition_by must be a column of X, in [0, {X.shape[1] - 1}]. Got {by!r} instead.")
        values = X[:, by]
    else:
        values = y if by is None else np.asarray(by)
    _check_lengths(method, X, {"y": y, "group": group, "partition_by": values})
    arrays = (X, y) if group is None else (X, y, group)
    return {name: tuple(a[rows] for a in arrays) for name, rows in partition(method, values, **settings).items()}


def iid(X: ArrayLike, y: ArrayLike, group: ArrayLike | None = None, *, num_partitions: int, seed: int = 0) -> Sites:
    """Deal the rows out at random to sites whose sizes differ by at most one.

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row; left out where there are none.
        num_partitions: the number of sites.
        seed: keys the draw.

    Returns:
        The arrays of each site by its name.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> sites = fd.data.iid(np.eye(7), np.arange(7), num_partitions=3)
        >>> {name: len(y) for name, (X, y) in sites.items()}
        {'site-0': 3, 'site-1': 2, 'site-2': 2}
    """
    return _sites("iid", X, y, group, None, num_partitions=num_partitions, seed=seed)


def dirichlet(
    X: ArrayLike,
    y: ArrayLike,
    group: ArrayLike | None = None,
    *,
    num_partitions: int,
    alpha: float = 0.5,
    partition_by: ArrayLike | None = None,
    min_partition_size: int = 1,
    seed: int = 0,
) -> Sites:
    """Share out the rows of each label in proportions drawn from Dirichlet(alpha) (Hsu, Qi and Brown 2019).

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row; left out where there are none.
        num_partitions: the number of sites.
        alpha: the smaller it is, the less alike the sites are.
        partition_by: what takes the label's place: a column's number in X, or one value a row.
        min_partition_size: the fewest rows of a site; a draw with a smaller site is repeated.
        seed: keys the draw.

    Returns:
        The arrays of each site by its name.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> y = np.repeat([0, 1], 50)
        >>> sites = fd.data.dirichlet(np.eye(100), y, num_partitions=4, alpha=0.3, min_partition_size=5)
        >>> len(sites), sum(len(y) for X, y in sites.values()), min(len(y) for X, y in sites.values()) >= 5
        (4, 100, True)
    """
    settings = {"num_partitions": num_partitions, "alpha": alpha, "min_partition_size": min_partition_size}
    return _sites("dirichlet", X, y, group, partition_by, **settings, seed=seed)


def shards(
    X: ArrayLike,
    y: ArrayLike,
    group: ArrayLike | None = None,
    *,
    num_partitions: int,
    num_shards_per_partition: int = 2,
    partition_by: ArrayLike | None = None,
    seed: int = 0,
) -> Sites:
    """Sort the rows by label, cut them into shards and give each site a few (McMahan et al. 2017, section 3).

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row; left out where there are none.
        num_partitions: the number of sites.
        num_shards_per_partition: the number of shards of a site; with few of them a site has few labels.
        partition_by: what takes the label's place: a column's number in X, or one value a row.
        seed: keys the draw.

    Returns:
        The arrays of each site by its name.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> y = np.repeat(np.arange(10), 10)
        >>> sites = fd.data.shards(np.eye(100), y, num_partitions=5)
        >>> max(len(set(y.tolist())) for X, y in sites.values())
        2
    """
    settings = {"num_partitions": num_partitions, "num_shards_per_partition": num_shards_per_partition}
    return _sites("shards", X, y, group, partition_by, **settings, seed=seed)


def power_law(
    X: ArrayLike,
    y: ArrayLike,
    group: ArrayLike | None = None,
    *,
    num_partitions: int,
    alpha: float = 1.0,
    seed: int = 0,
) -> Sites:
    """Deal the rows out at random to sites of very different sizes: the k-th has about k^(−alpha) times the first's.

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row; left out where there are none.
        num_partitions: the number of sites.
        alpha: the larger it is, the more the sizes differ.
        seed: keys the draw.

    Returns:
        The arrays of each site by its name, the largest first.

    Example:
        >>> import numpy as np
        >>> import foedus as fd
        >>> sites = fd.data.power_law(np.eye(100), np.arange(100), num_partitions=4)
        >>> [len(y) for X, y in sites.values()]
        [47, 24, 16, 13]
    """
    return _sites("power_law", X, y, group, None, num_partitions=num_partitions, alpha=alpha, seed=seed)


def by_column(
    X: ArrayLike,
    y: ArrayLike,
    group: ArrayLike | None = None,
    *,
    partition_by: ArrayLike,
    num_partitions: int,
    seed: int = 0,
) -> Sites:
    """Sort the rows by a column and cut them into equal parts, so that each site has its own range of the column.

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row; left out where there are none.
        partition_by: the column's number in X, or its values, one a row.
        num_partitions: the number of sites.
        seed: keys the order of rows with the same value.

    Returns:
        The arrays of each site by its name, in rising order of the column.

    Example:
        >>> import foedus as fd
        >>> ages = [[31], [78], [45], [62]]
        >>> sites = fd.data.by_column(ages, [0, 1, 0, 1], partition_by=0, num_partitions=2)
        >>> [X[:, 0].tolist() for X, y in sites.values()]
        [[31, 45], [62, 78]]
    """
    return _sites("by_column", X, y, group, partition_by, num_partitions=num_partitions, seed=seed)


def natural(X: ArrayLike, y: ArrayLike, group: ArrayLike | None = None, *, partition_by: ArrayLike) -> Sites:
    """Make one site of each value of `partition_by`, such as the hospital or the user.

    Args:
        X: features, one row an example.
        y: labels, one a row.
        group: the group of each row; left out where there are none.
        partition_by: a column's number in X, or one name a row.

    Returns:
        The arrays of each site by its name, which is the value as text.

    Example:
        >>> import foedus as fd
        >>> hospitals = ["north", "south", "north"]
        >>> sites = fd.data.natural([[1.0], [2.0], [3.0]], [0, 1, 1], partition_by=hospitals)
        >>> {name: y.tolist() for name, (X, y) in sites.items()}
        {'north': [0, 1], 'south': [1]}
    """
    return _sites("natural", X, y, group, partition_by)
