"""Data sets by name, as tables: those that come with scikit-learn, MONK-1, files under FOEDUS_DATA, OpenML's."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from foedus.data import adult, files, uci
from foedus.data.tables import Column, Table, Words
from foedus.errors import FoedusError, did_you_mean

OPENML = "openml:"


@dataclass(frozen=True)
class Known:
    """A set: how to get its table, its label, and in a few words what it is."""

    load: Callable[[], dict[str, Column]]
    label: str
    doc: str
    positive: str | None = None
    group: str | None = None
    classification: bool = True


def _bundled(name: str, label: str) -> Callable[[], dict[str, Column]]:
    def load() -> dict[str, Column]:
        from sklearn import datasets

        kept = getattr(datasets, f"load_{name}")()
        names = [str(feature).replace(" (cm)", "").replace(" ", "_") for feature in kept.feature_names]
        columns: dict[str, Column] = {n: np.asarray(c, dtype=float) for n, c in zip(names, kept.data.T, strict=True)}
        if "target_names" in kept and name != "digits":
            columns[label] = Words(np.asarray(kept.target, dtype=np.int64), tuple(map(str, kept.target_names))).used()
        else:
            columns[label] = np.asarray(kept.target, dtype=float)
        return columns

    return load


def _numbered(make: Callable[[], tuple[np.ndarray, np.ndarray]], label: str) -> Callable[[], dict[str, Column]]:
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


SETS: dict[str, Known] = {
    "breast-cancer": Known(_bundled("breast_cancer", "diagnosis"), "diagnosis", "569 tumours", positive="malignant"),
    "iris": Known(_bundled("iris", "species"), "species", "150 flowers of three species", positive="virginica"),
    "wine": Known(_bundled("wine", "cultivar"), "cultivar", "178 wines of three growers", positive="class_0"),
    "digits": Known(_bundled("digits", "digit"), "digit", "1797 handwritten digits", positive="0"),
    "diabetes": Known(
        _bundled("diabetes", "progression"), "progression", "442 patients, a number to predict", classification=False
    ),
    "monks-1": Known(_numbered(uci.monks_table, "class"), "class", "the 432 rows of the first MONK's problem"),
    "breast-cancer-wisconsin": Known(
        _numbered(uci.breast_cancer_wisconsin, "malignant"), "malignant", "699 tumours, a file under FOEDUS_DATA"
    ),
    "toxicity": Known(_numbered(files.toxicity, "toxic"), "toxic", "8992 molecules, a file under FOEDUS_DATA"),
    "adult": Known(
        _adult, "income", "32561 adults, a file under FOEDUS_DATA", positive=">50K", group="sex"
    ),
}  # fmt: skip


def known(name: str) -> Known:
    """The set of this name."""
    if name.startswith(OPENML):
        return Known(lambda: _openml(name[len(OPENML) :])[0], _openml(name[len(OPENML) :])[1], "a set of OpenML")
    if name not in SETS:
        hint = did_you_mean(name, SETS)
        raise FoedusError(
            f"there is no data set {name!r}; there are {', '.join(SETS)}, and with a network openml:NAME.{hint}"
        )
    return SETS[name]


def load(name: str) -> Table:
    """The table of a set."""
    columns = known(name).load()
    return Table(name, columns, np.arange(len(next(iter(columns.values())))))


def cache_folder() -> Path:
    """Where sets from a network are kept: a folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "foedus" / "data"


@lru_cache(maxsize=2)
def _openml(name: str) -> tuple[dict[str, Column], str]:
    """The columns of a set of OpenML and the name of its target, from the cache or from the network."""
    from sklearn.datasets import fetch_openml

    data_name, _, version = name.partition("@")
    asked: dict[str, Any] = {"name": data_name, "version": int(version) if version.isdigit() else "active"}
    folder = cache_folder()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept: Any = fetch_openml(
                **asked, data_home=str(folder), as_frame=False, parser="liac-arff", n_retries=1, delay=0.1
            )
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise FoedusError(
            f"the data set {name!r} of OpenML is not in the cache ({folder}) and cannot be fetched from the network "
            f"({why}); check the name and the connection, or save the set as a CSV file and name it in 'files'."
        ) from None
    columns: dict[str, Column] = {}
    for j, feature in enumerate(kept.feature_names):
        levels = (kept.categories or {}).get(feature)
        cells = kept.data[:, j]
        if levels is None:
            columns[feature] = np.asarray(cells, dtype=float)
        else:
            codes = np.where(np.isnan(cells.astype(float)), -1, np.nan_to_num(cells.astype(float))).astype(np.int64)
            columns[feature] = Words(codes, tuple(map(str, levels))).used()
    target = kept.target_names[0]
    values = np.asarray(kept.target)
    columns[target] = values.astype(float) if values.dtype.kind in "iuf" else Words.of(values).used()
    return columns, target
