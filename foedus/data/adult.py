"""Adult (Becker and Kohavi 1996, UCI set 2): reads the raw files under FOEDUS_DATA and codes them in two ways."""

import gzip
from dataclasses import dataclass

import numpy as np

from foedus.data import files
from foedus.errors import FoedusError

ADVICE = (
    f"set {files.VARIABLE} to a folder that holds adult.data and adult.test, as they are or compressed (.gz): "
    "the UCI set 2, Adult"
)
"""How to get the data."""

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")

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


def read(name: str) -> dict[str, np.ndarray]:
    """Read the columns of `adult.data` or `adult.test` as text, with the label as `income`."""
    try:
        path = files.find(name, ADVICE)
    except FoedusError:
        path = files.find(name + ".gz", ADVICE)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("ascii")
    except (OSError, EOFError, ValueError) as error:
        raise FoedusError(f"{path} cannot be read ({error}): {ADVICE}.") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test begins with a comment
            continue
        row = [part.strip() for part in line.strip().removesuffix(".").split(",")]
        if len(row) != len(COLUMNS) + 1:
            raise FoedusError(f"{path}, line {number}: it has {len(row)} fields; expected 15.")
        if row[-1] not in ("<=50K", ">50K"):
            raise FoedusError(f"{path}, line {number}: the label is {row[-1]!r}; expected '<=50K' or '>50K'.")
        rows.append(row)
    if not rows:
        raise FoedusError(f"{path} holds no rows: {ADVICE}.")
    table = np.array(rows)
    return dict(zip((*COLUMNS, "income"), table.T, strict=True))


def integer_coded() -> tuple[np.ndarray, np.ndarray]:
    """Return adult.data with its categories numbered alphabetically: X (32561, 14), y = 1 for more than 50K.

    A missing value '?' is a category of its own.
    """
    raw = read("adult.data")
    columns = [_number(raw, c) if c in NUMBERS else np.unique(raw[c], return_inverse=True)[1] for c in COLUMNS]
    return np.column_stack(columns).astype(float), (raw["income"] == ">50K").astype(float)


def complete_integer_coded() -> tuple[np.ndarray, np.ndarray]:
    """Return the complete rows of adult.test and adult.data, categories numbered: X (45222, 14), y = 1 for over 50K."""
    parts = [read("adult.test"), read("adult.data")]
    complete = [np.all([part[c] != "?" for c in COLUMNS], axis=0) for part in parts]
    raw = {c: np.concatenate([p[c][k] for p, k in zip(parts, complete, strict=True)]) for c in (*COLUMNS, "income")}
    columns = [_number(raw, c) if c in NUMBERS else np.unique(raw[c], return_inverse=True)[1] for c in COLUMNS]
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
    parts = [read("adult.data"), read("adult.test")]
    complete = [np.all([part[c] != "?" for c in COLUMNS], axis=0) for part in parts]
    raw = {
        c: np.concatenate([part[c][rows] for part, rows in zip(parts, complete, strict=True)])
        for c in (*COLUMNS, "income")
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
