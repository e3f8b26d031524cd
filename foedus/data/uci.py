"""Small sets of the UCI repository: Breast Cancer Wisconsin (Original), MONK-1, Statlog (Heart) and Abalone."""

from itertools import product

import numpy as np

from foedus.data import files
from foedus.errors import FoedusError

BREAST = (
    f"set {files.VARIABLE} to a folder that holds breast-cancer-wisconsin.data: the UCI set 15, Breast Cancer "
    "Wisconsin (Original)"
)
MONKS = f"set {files.VARIABLE} to a folder that holds monks-1.train: the UCI set 70, MONK's Problems"
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


def monks() -> tuple[np.ndarray, np.ndarray]:
    """Return MONK-1's training and test rows: X (556, 6); the 124 training rows are read from monks-1.train."""
    path = files.find("monks-1.train", MONKS)
    X, y = monks_table()
    rows = [line.split()[:7] for line in path.read_text().splitlines() if line.strip()]
    if not rows or not all(len(row) == 7 and all(field.isdigit() for field in row) for row in rows):
        raise FoedusError(f"{path}: every line must be a label, six attributes and a name; {MONKS}.")
    training = np.array(rows, dtype=float)
    return np.concatenate([training[:, 1:], X]), np.concatenate([training[:, 0], y])


HEART = f"set {files.VARIABLE} to a folder that holds heart.dat: the UCI set 145, Statlog (Heart)"
ABALONE = f"set {files.VARIABLE} to a folder that holds abalone.data: the UCI set 1, Abalone"


def heart() -> tuple[np.ndarray, np.ndarray]:
    """Return Statlog (Heart): thirteen findings X (270, 13), y = 1 where heart disease is present (120)."""
    path = files.find("heart.dat", HEART)
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    if not rows or not all(len(row) == 14 and row[13] in ("1", "2") for row in rows):
        raise FoedusError(f"{path}: every line must hold 14 numbers, the last of them 1 or 2; {HEART}.")
    table = np.array(rows, dtype=float)
    return table[:, :13], (table[:, 13] == 2).astype(float)


def abalone() -> tuple[np.ndarray, np.ndarray]:
    """Return Abalone: sex as three columns of 0/1 and seven measures X (4177, 10), y = the number of rings."""
    path = files.find("abalone.data", ABALONE)
    rows = [line.split(",") for line in path.read_text().split()]
    if not rows or not all(len(row) == 9 and row[0] in "MFI" for row in rows):
        raise FoedusError(f"{path}: every line must hold a sex (M, F or I) and 8 numbers; {ABALONE}.")
    sex = np.array([[row[0] == kind for kind in "MFI"] for row in rows], dtype=float)
    rest = np.array([row[1:] for row in rows], dtype=float)
    return np.column_stack([sex, rest[:, :7]]), rest[:, 7]
