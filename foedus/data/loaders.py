"""Data sets by name, as tables: sets that come with scikit-learn, MONK-1, files under FOEDUS_DATA, sets of OpenML."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.data import adult, files, uci
from foedus.data.columns import Column, Words
from foedus.data.tables import Table

OPENML = "openml:"


@dataclass(frozen=True)
class DataSet:
    """A data set that a file may name: how to get its columns, its label, and in a few words what it is."""

    load: Callable[[], dict[str, Column]]
    label: str
    doc: str
    positive: str | None = None
    group: str | None = None
    classification: bool = True


def _from_sklearn(name: str, label: str) -> Callable[[], dict[str, Column]]:
    def load() -> dict[str, Column]:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        names = [str(feature).replace(" (cm)", "").replace(" ", "_") for feature in bunch.feature_names]
        columns: dict[str, Column] = {n: np.asarray(c, dtype=float) for n, c in zip(names, bunch.data.T, strict=True)}
        if "target_names" in bunch and name != "digits":
            columns[label] = Words(np.asarray(bunch.target, dtype=np.int64), tuple(map(str, bunch.target_names))).used()
        else:
            columns[label] = np.asarray(bunch.target, dtype=float)
        return columns

    return load


def _from_arrays(make: Callable[[], tuple[np.ndarray, np.ndarray]], label: str) -> Callable[[], dict[str, Column]]:
    def load() -> dict[str, Column]:
        X, y = make()
        width = len(str(X.shape[1]))
        return {f"a{j + 1:0{width}d}": column for j, column in enumerate(X.T)} | {label: y}

    return load


def _adult() -> dict[str, Column]:
    raw = adult.read("adult.data")
    columns: dict[str, Column] = {}
    for name in adult.COLUMNS:
        columns[name] = raw[name].astype(float) if name in adult.NUMBERS else Words.of(raw[name]).used()
    return columns | {"income": Words.of(raw["income"]).used()}


SETS: dict[str, DataSet] = {
    "breast-cancer": DataSet(
        _from_sklearn("breast_cancer", "diagnosis"), "diagnosis", "569 tumours", positive="malignant"
    ),
    "iris": DataSet(_from_sklearn("iris", "species"), "species", "150 flowers of three species", positive="virginica"),
    "wine": DataSet(_from_sklearn("wine", "cultivar"), "cultivar", "178 wines of three growers", positive="class_0"),
    "digits": DataSet(_from_sklearn("digits", "digit"), "digit", "1797 handwritten digits", positive="0"),
    "diabetes": DataSet(
        _from_sklearn("diabetes", "progression"), "progression", "442 patients, a number to predict",
        classification=False,
    ),
    "monks-1": DataSet(_from_arrays(uci.monks_table, "class"), "class", "the 432 rows of the first MONK's problem"),
    "breast-cancer-wisconsin": DataSet(
        _from_arrays(uci.breast_cancer_wisconsin, "malignant"), "malignant", "699 tumours, a file under FOEDUS_DATA"
    ),
    "toxicity": DataSet(_from_arrays(files.toxicity, "toxic"), "toxic", "8992 molecules, a file under FOEDUS_DATA"),
    "adult": DataSet(
        _adult, "income", "32561 adults, a file under FOEDUS_DATA", positive=">50K", group="sex"
    ),
}  # fmt: skip


def data_set(name: str) -> DataSet:
    """Return the data set of this name, without loading its rows.

    Args:
        name: one of `SETS`, or "openml:NAME" or "openml:NAME@VERSION" for a set of OpenML, which is fetched.

    Returns:
        Its label, the label's positive value and its group, and the function that loads its columns.

    Example:
        >>> from foedus.data import loaders
        >>> loaders.data_set("breast-cancer").label
        'diagnosis'
    """
    if name.startswith(OPENML):
        return DataSet(lambda: _openml(name[len(OPENML) :])[0], _openml(name[len(OPENML) :])[1], "a set of OpenML")
    if name not in SETS:
        hint = did_you_mean(name, SETS)
        raise FoedusError(
            f"there is no data set {name!r}; there are {', '.join(SETS)}, and with a network openml:NAME.{hint}"
        )
    return SETS[name]


def load(name: str) -> Table:
    """Load the table of a data set.

    Args:
        name: one of `SETS`, or "openml:NAME" or "openml:NAME@VERSION" for a set of OpenML.

    Returns:
        The table with all columns, the label among them.

    Example:
        >>> from foedus.data import loaders
        >>> table = loaders.load("iris")
        >>> table.rows, list(table.columns)
        (150, ['sepal_length', 'sepal_width', 'petal_length', 'petal_width', 'species'])
    """
    columns = data_set(name).load()
    return Table(name, columns, np.arange(len(next(iter(columns.values())))))


def cache_folder() -> Path:
    """Return the folder in the user's cache that holds sets fetched from a network."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "foedus" / "data"


@lru_cache(maxsize=2)
def _openml(name: str) -> tuple[dict[str, Column], str]:
    """The columns of a set of OpenML and the name of its target, from the cache or from the network."""
    from sklearn.datasets import fetch_openml

    data_name, _, version = name.partition("@")
    folder = cache_folder()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bunch = fetch_openml(
                name=data_name,
                version=int(version) if version.isdigit() else "active",
                data_home=str(folder),
                as_frame=False,
                parser="liac-arff",
                n_retries=1,
                delay=0.1,
            )
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise FoedusError(
            f"the data set {name!r} of OpenML is not in the cache ({folder}) and cannot be fetched from the network "
            f"({why}); check the name and the connection, or save the set as a CSV file and name it in 'files'."
        ) from None
    assert not isinstance(bunch, tuple)  # it would be with return_X_y
    columns: dict[str, Column] = {}
    for j, feature in enumerate(bunch.feature_names):
        levels = (bunch.categories or {}).get(feature)
        cells = bunch.data[:, j]
        if levels is None:
            columns[feature] = np.asarray(cells, dtype=float)
        else:
            codes = np.where(np.isnan(cells.astype(float)), -1, np.nan_to_num(cells.astype(float))).astype(np.int64)
            columns[feature] = Words(codes, tuple(map(str, levels))).used()
    target = bunch.target_names[0]
    values = np.asarray(bunch.target)
    columns[target] = values.astype(float) if values.dtype.kind in "iuf" else Words.of(values).used()
    return columns, target
