"""Rows that a model is evaluated on."""

import numpy as np

import foedus as fd

W = np.array([1.5, -1.0, 0.3])


GAP = fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.1)


CAP = fd.constraints.LossCap(fd.label(1), at_most={"a": 0.5, "b": 0.1})


def rows(n: int, seed: int) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(seed)
    X = np.column_stack([draw.normal(size=(n, 2)), np.ones(n)])
    y = (draw.random(n) < 1 / (1 + np.exp(-X @ W))).astype(float)
    return X, y, draw.integers(0, 2, n).astype(float)


def problem(**terms: object) -> fd.Problem:
    return fd.Problem({"a": rows(30, 1), "b": rows(40, 2)}, loss=fd.losses.logistic, **terms)  # pyright: ignore


SITES = {"a": rows(400, 3), "b": rows(250, 4)}
