"""Data sets by name, as tables: sets that come with scikit-learn, MONK-1, files under FOEDUS_DATA, sets of OpenML."""

import gzip
import os
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError, did_you_mean
from foedus.data.columns import Column, Words
from foedus.data.tables import Table

OPENML = "openml:"
PLACE = "datasets/data/breast_cancer.csv"  # in scikit-learn's folder
VARIABLE = "FOEDUS_DATA"
TOXICITY = (
    f"set {VARIABLE} to a folder that holds qot.npz with X (8992 x 1024, 0/1) and y (-1/+1): "
    "the UCI set 508, QSAR oral toxicity"
)
"""How to get the toxicity data, to be put behind 'to have it, '."""
BREAST = (
    f"set {VARIABLE} to a folder that holds breast-cancer-wisconsin.data: the UCI set 15, Breast Cancer "
    "Wisconsin (Original)"
)
MONKS_VALUES = (3, 3, 2, 3, 4, 2)  # of MONK's six attributes
ADULT = (
    f"set {VARIABLE} to a folder that holds adult.data and adult.test, as they are or compressed (.gz): "
    "the UCI set 2, Adult"
)
ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip
ADULT_NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


@dataclass(frozen=True)
class DataSet:
    """A data set that a file may name: how to get its columns, its label, and in a few words what it is."""

    load: Callable[[], dict[str, Column]]
    label: str
    doc: str
    positive: str | None = None
    group: str | None = None
    classification: bool = True


def find(name: str, advice: str) -> Path:
    """Return the path of a file in the folder that FOEDUS_DATA names; `advice` says how to get a missing file."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise FoedusError(f"{name} is needed and {VARIABLE} is not set: {advice}.")
    path = Path(folder) / name
    if not path.is_file():
        problem = "holds no such file" if Path(folder).is_dir() else "is not a folder"
        raise FoedusError(f"{name} is needed and {VARIABLE}={folder} {problem}: {advice}.")
    return path


def arrays(name: str, fields: tuple[str, ...], advice: str) -> tuple[np.ndarray, ...]:
    """Return the arrays `fields` of an .npz file in the folder that FOEDUS_DATA names."""
    path = find(name, advice)
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [field for field in fields if field not in archive]
            if missing:
                raise FoedusError(f"{path}: the array {missing[0]!r} is missing; {advice}.")
            return tuple(archive[field] for field in fields)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, FoedusError):
            raise
        raise FoedusError(f"{path} cannot be read as an .npz file ({error}); {advice}.") from None


def toxicity() -> tuple[np.ndarray, np.ndarray]:
    """Return QSAR oral toxicity: fingerprints X of 0/1, (8992, 1024), and labels y of 0/1, of which 741 are 1."""
    X, y = arrays("qot.npz", ("X", "y"), TOXICITY)
    if X.shape != (8992, 1024) or y.shape != (8992,):
        raise FoedusError(f"qot.npz has X of shape {X.shape} and y of shape {y.shape}; {TOXICITY}.")
    for key, array, entries in (("X", X, (0, 1)), ("y", y, (-1, 1))):
        wrong = ~np.isin(array, entries)
        if wrong.any():
            raise FoedusError(f"qot.npz: {key} has the entry {array[wrong][0]}; {TOXICITY}.")
    return X.astype(float), (y > 0).astype(float)


def breast_cancer_wisconsin() -> tuple[np.ndarray, np.ndarray]:
    """Return nine grades X (699, 9) and y = 1 for malignant (241); the 16 missing grades are their column's mean."""
    path = find("breast-cancer-wisconsin.data", BREAST)
    rows = [line.split(",") for line in path.read_text().split()]
    wrong = [i for i, row in enumerate(rows, start=1) if len(row) != 11 or row[10] not in ("2", "4")]
    if wrong or not rows:
        where = f"line {wrong[0]}" if wrong else "it is empty"
        raise FoedusError(f"{path}: {where}; expected 11 fields, the last of them 2 or 4.")
    try:
        X = np.array([[np.nan if field == "?" else float(field) for field in row[1:10]] for row in rows])
    except ValueError as error:
        raise FoedusError(f"{path}: a grade is neither a number nor '?' ({error}).") from None
    means = np.nanmean(X, axis=0)
    return np.where(np.isnan(X), means, X), np.array([row[10] == "4" for row in rows]).astype(float)


def monks_table() -> tuple[np.ndarray, np.ndarray]:
    """Return MONK-1's test set, every combination of the attributes: X (432, 6), y = 1 where a1 = a2 or a5 = 1."""
    X = np.array(list(product(*(range(1, count + 1) for count in MONKS_VALUES))), dtype=float)
    return X, ((X[:, 0] == X[:, 1]) | (X[:, 4] == 1)).astype(float)


def read_adult(name: str) -> dict[str, np.ndarray]:
    """Read the columns of `adult.data` or `adult.test` as text, with the label as `income`."""
    try:
        path = find(name, ADULT)
    except FoedusError:
        path = find(name + ".gz", ADULT)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("ascii")
    except (OSError, EOFError, ValueError) as error:
        raise FoedusError(f"{path} cannot be read ({error}): {ADULT}.") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test begins with a comment
            continue
        row = [part.strip() for part in line.strip().removesuffix(".").split(",")]
        if len(row) != len(ADULT_COLUMNS) + 1:
            raise FoedusError(f"{path}, line {number}: it has {len(row)} fields; expected 15.")
        if row[-1] not in ("<=50K", ">50K"):
            raise FoedusError(f"{path}, line {number}: the label is {row[-1]!r}; expected '<=50K' or '>50K'.")
        rows.append(row)
    if not rows:
        raise FoedusError(f"{path} holds no rows: {ADULT}.")
    table = np.array(rows)
    return dict(zip((*ADULT_COLUMNS, "income"), table.T, strict=True))


def breast_cancer(*, scaled: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return the Wisconsin diagnostic breast-cancer set, for examples: 569 tumours with 30 measurements each.

    Args:
        scaled: whether each column is brought to mean 0 and standard deviation 1 over all rows. Sites that must not
            pool their rows use `fd.data.prepare` for that.

    Returns:
        X of shape (569, 30), and y, which is 1.0 for malignant tumours (212 of them) and 0.0 for benign ones.

    Example:
        >>> import foedus as fd
        >>> X, y = fd.data.breast_cancer()
        >>> X.shape, int(y.sum())
        ((569, 30), 212)
    """
    # importing scikit-learn takes about as long as a whole first run, so the file is read without it
    spec = find_spec("sklearn")
    path = Path(spec.origin).parent / PLACE if spec is not None and spec.origin is not None else Path(PLACE)
    if path.is_file():
        rows = np.loadtxt(path, delimiter=",", skiprows=1)
        X, benign = rows[:, :-1], rows[:, -1]
    else:  # a scikit-learn that keeps its data elsewhere
        from sklearn.datasets import load_breast_cancer

        X, benign = (np.asarray(part, dtype=float) for part in load_breast_cancer(return_X_y=True))
    return (X - X.mean(axis=0)) / X.std(axis=0) if scaled else X, 1.0 - benign


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
    raw = read_adult("adult.data")
    columns: dict[str, Column] = {}
    for name in ADULT_COLUMNS:
        columns[name] = raw[name].astype(float) if name in ADULT_NUMBERS else Words.of(raw[name]).used()
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
    "monks-1": DataSet(_from_arrays(monks_table, "class"), "class", "the 432 rows of the first MONK's problem"),
    "breast-cancer-wisconsin": DataSet(
        _from_arrays(breast_cancer_wisconsin, "malignant"), "malignant", "699 tumours, a file under FOEDUS_DATA"
    ),
    "toxicity": DataSet(_from_arrays(toxicity, "toxic"), "toxic", "8992 molecules, a file under FOEDUS_DATA"),
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
