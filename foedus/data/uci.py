"""Small sets of the UCI repository: Breast Cancer Wisconsin (Original) and MONK-1."""

from itertools import product

import numpy as np

from foedus.base.errors import FoedusError
from foedus.data import files

BREAST = (
    f"set {files.VARIABLE} to a folder that holds breast-cancer-wisconsin.data: the UCI set 15, Breast Cancer "
    "Wisconsin (Original)"
)
VALUES = (3, 3, 2, 3, 4, 2)  # of MONK's six attributes


def breast_cancer_wisconsin() -> tuple[np.ndarray, np.ndarray]:
    """Return nine grades X (699, 9) and y = 1 for malignant (241); the 16 missing grades are their column's mean."""
    path = files.find("breast-cancer-wisconsin.data", BREAST)
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
    X = np.array(list(product(*(range(1, count + 1) for count in VALUES))), dtype=float)
    return X, ((X[:, 0] == X[:, 1]) | (X[:, 4] == 1)).astype(float)
