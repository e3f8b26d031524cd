"""Generated data for caps under privacy."""

import numpy as np


def generated_pair(
    seed: int, rows: int = 30162, dim: int = 39
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Correlated columns, most of them 0/1 and some rare, standardised, with a constant; labels of a logistic model.

    Rows and labels to learn from, and as many to test with.
    """
    rng = np.random.default_rng(seed)
    mixture = rng.normal(size=(dim - 1, dim - 1)) * (rng.random((dim - 1, dim - 1)) < 0.15) + np.eye(dim - 1)
    z = rng.normal(size=(2 * rows, dim - 1)) @ mixture
    words = np.column_stack([z[:, j] > np.quantile(z[:, j], q) for j, q in enumerate(rng.uniform(0.5, 0.99, 25))])
    x = np.column_stack([words.astype(float), z[:, 25:]])
    x = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(2 * rows)])
    y = (rng.random(2 * rows) < 1 / (1 + np.exp(-x @ (rng.normal(size=dim) * 0.4)))).astype(float)
    return x[:rows], y[:rows], x[rows:], y[rows:]
