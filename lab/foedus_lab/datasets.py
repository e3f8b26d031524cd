"""The public data sets as the papers use them: Adult in three codings, MONK-1 with training rows, Heart, Abalone."""

from dataclasses import dataclass

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data import loaders
from foedus.data.loaders import ADULT_COLUMNS, ADULT_NUMBERS, monks_table

MONKS = f"set {loaders.VARIABLE} to a folder that holds monks-1.train: the UCI set 70, MONK's Problems"
HEART = f"set {loaders.VARIABLE} to a folder that holds heart.dat: the UCI set 145, Statlog (Heart)"
ABALONE = f"set {loaders.VARIABLE} to a folder that holds abalone.data: the UCI set 1, Abalone"

# the indicator columns of adult-b, in its order
LEVELS = {
    "relationship": ("Unmarried", "Wife", "Husband", "Not-in-family", "Own-child", "Other-relative"),
    "race": ("White", "Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other"),
    "workclass": ("government", "private", "self-employed", "without-pay"),
    "occupation": (
        "Adm-clerical", "Exec-managerial", "Handlers-cleaners", "Prof-specialty", "Other-service", "Sales",
        "Transport-moving", "Farming-fishing", "Machine-op-inspct", "Tech-support", "Craft-repair", "Protective-serv",
        "Armed-Forces", "Priv-house-serv",
    ),
}  # fmt: skip
EMPLOYERS = {
    "Federal-gov": "government",
    "Local-gov": "government",
    "State-gov": "government",
    "Private": "private",
    "Self-emp-inc": "self-employed",
    "Self-emp-not-inc": "self-employed",
    "Without-pay": "without-pay",
}


def integer_coded() -> tuple[np.ndarray, np.ndarray]:
    """Return adult.data with its categories numbered alphabetically: X (32561, 14), y = 1 for more than 50K.

    A missing value '?' is a category of its own.
    """
    raw = loaders.read_adult("adult.data")
    columns = [
        _number(raw, c) if c in ADULT_NUMBERS else np.unique(raw[c], return_inverse=True)[1] for c in ADULT_COLUMNS
    ]
    return np.column_stack(columns).astype(float), (raw["income"] == ">50K").astype(float)


def complete_integer_coded() -> tuple[np.ndarray, np.ndarray]:
    """Return the complete rows of adult.test and adult.data, categories numbered: X (45222, 14), y = 1 for over 50K."""
    parts = [loaders.read_adult("adult.test"), loaders.read_adult("adult.data")]
    complete = [np.all([part[c] != "?" for c in ADULT_COLUMNS], axis=0) for part in parts]
    raw = {
        c: np.concatenate([p[c][k] for p, k in zip(parts, complete, strict=True)]) for c in (*ADULT_COLUMNS, "income")
    }
    columns = [
        _number(raw, c) if c in ADULT_NUMBERS else np.unique(raw[c], return_inverse=True)[1] for c in ADULT_COLUMNS
    ]
    return np.column_stack(columns).astype(float), (raw["income"] == ">50K").astype(float)


@dataclass(frozen=True)
class AdultB:
    """Adult as fairness tutorials code it: complete rows, 38 columns.

    X has shape (45222, 38); y is 1 for at most 50K; sex is 1 for men and also a column of X; `training` marks the rows
    of adult.data, which come before those of adult.test.
    """

    X: np.ndarray
    y: np.ndarray
    sex: np.ndarray
    training: np.ndarray
    columns: tuple[str, ...]


def adult_b() -> AdultB:
    """Return adult.data and adult.test without incomplete rows, in the coding of the data set 'adult-b'.

    Four numbers are standardised over all rows; capital gain and loss become 'any'; marital status 'not married',
    native country 'not the United States'; the employers are merged into four kinds.
    """
    parts = [loaders.read_adult("adult.data"), loaders.read_adult("adult.test")]
    complete = [np.all([part[c] != "?" for c in ADULT_COLUMNS], axis=0) for part in parts]
    raw = {
        c: np.concatenate([part[c][rows] for part, rows in zip(parts, complete, strict=True)])
        for c in (*ADULT_COLUMNS, "income")
    }
    unknown = set(raw["workclass"]) - set(EMPLOYERS)
    if unknown:
        raise FoedusError(f"adult.data has the employer {min(unknown)!r}; expected one of {', '.join(EMPLOYERS)}.")
    raw["workclass"] = np.array([EMPLOYERS[employer] for employer in raw["workclass"]])

    def standard_score(column: str) -> np.ndarray:
        values = _number(raw, column)
        return (values - values.mean()) / values.std()

    columns = {
        "age": standard_score("age"),
        "fnlwgt": standard_score("fnlwgt"),
        "education-num": standard_score("education-num"),
        "marital-status": ~np.isin(raw["marital-status"], ("Married-civ-spouse", "Married-AF-spouse")),
        "sex": raw["sex"] == "Male",
        "capital-gain": _number(raw, "capital-gain") > 0,
        "capital-loss": _number(raw, "capital-loss") > 0,
        "hours-per-week": standard_score("hours-per-week"),
        "native-country": raw["native-country"] != "United-States",
    }
    columns |= {f"{column}={level}": raw[column] == level for column, levels in LEVELS.items() for level in levels}
    counts = [int(rows.sum()) for rows in complete]
    return AdultB(
        X=np.column_stack(list(columns.values())).astype(float),
        y=(raw["income"] == "<=50K").astype(float),
        sex=columns["sex"].astype(float),
        training=np.arange(sum(counts)) < counts[0],
        columns=tuple(columns),
    )


def _number(raw: dict[str, np.ndarray], column: str) -> np.ndarray:
    try:
        return raw[column].astype(float)
    except ValueError as error:
        raise FoedusError(f"Adult: the column {column} must hold numbers ({error}).") from None


def monks() -> tuple[np.ndarray, np.ndarray]:
    """Return MONK-1's training and test rows: X (556, 6); the 124 training rows are read from monks-1.train."""
    path = loaders.find("monks-1.train", MONKS)
    X, y = monks_table()
    rows = [line.split()[:7] for line in path.read_text().splitlines() if line.strip()]
    if not rows or not all(len(row) == 7 and all(field.isdigit() for field in row) for row in rows):
        raise FoedusError(f"{path}: every line must be a label, six attributes and a name; {MONKS}.")
    training = np.array(rows, dtype=float)
    return np.concatenate([training[:, 1:], X]), np.concatenate([training[:, 0], y])


def heart() -> tuple[np.ndarray, np.ndarray]:
    """Return Statlog (Heart): thirteen findings X (270, 13), y = 1 where heart disease is present (120)."""
    path = loaders.find("heart.dat", HEART)
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    if not rows or not all(len(row) == 14 and row[13] in ("1", "2") for row in rows):
        raise FoedusError(f"{path}: every line must hold 14 numbers, the last of them 1 or 2; {HEART}.")
    table = np.array(rows, dtype=float)
    return table[:, :13], (table[:, 13] == 2).astype(float)


def abalone() -> tuple[np.ndarray, np.ndarray]:
    """Return Abalone: sex as three columns of 0/1 and seven measures X (4177, 10), y = the number of rings."""
    path = loaders.find("abalone.data", ABALONE)
    rows = [line.split(",") for line in path.read_text().split()]
    if not rows or not all(len(row) == 9 and row[0] in "MFI" for row in rows):
        raise FoedusError(f"{path}: every line must hold a sex (M, F or I) and 8 numbers; {ABALONE}.")
    sex = np.array([[row[0] == kind for kind in "MFI"] for row in rows], dtype=float)
    rest = np.array([row[1:] for row in rows], dtype=float)
    return np.column_stack([sex, rest[:, :7]]), rest[:, 7]
