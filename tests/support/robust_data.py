"""Data of robust tests."""

import numpy as np

from foedus.data import loaders


def shares(sites) -> np.ndarray:
    sizes = np.array([len(y) for _, y in sites], dtype=float)
    return sizes / sizes.sum()


def dealt(X: np.ndarray, y: np.ndarray, sites: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(X[i::sites], np.where(y[i::sites] > 0, 1.0, -1.0)) for i in range(sites)]


def scaled_columns(exponent: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three columns, the first 10^-exponent and the last 10^exponent times as large."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X @ rng.normal(size=3) + rng.normal(size=60)
    return dealt(X * 10.0 ** np.linspace(-exponent, exponent, 3), y, 2)


def adult_columns() -> tuple[np.ndarray, np.ndarray]:
    raw = loaders.read_adult("adult.data")
    X = np.column_stack([raw[name].astype(float) for name in loaders.ADULT_NUMBERS])
    return X, np.array([1.0 if str(income).strip().startswith(">") else -1.0 for income in raw["income"]])
