"""Rows of the Adult data as private tests take them."""

import numpy as np

import foedus as fd
from foedus_lab.datasets import adult_b


def adult_of(seed: int) -> tuple[fd.Problem, np.ndarray, np.ndarray]:
    """Adult over ten sites, every column standardised, and the test set."""
    coded = adult_b()
    train = coded.training
    X = (coded.X - coded.X[train].mean(axis=0)) / coded.X[train].std(axis=0)
    X = np.column_stack([X, np.ones(len(X))])
    sites = fd.data.split(X[train], coded.y[train], clients=10, seed=seed)
    return fd.Problem(sites, loss=fd.losses.logistic), X[~train], coded.y[~train]
