"""Dividing one data set among clients, for experiments."""

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
