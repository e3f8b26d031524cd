"""Problems whose terms cannot be met."""

from dataclasses import replace

import numpy as np
from constrained_cases import DIM, NAMES, NeymanPearson, Quadratic, breast_cancer, dealt


def contradictory() -> Quadratic:
    """Two sites ask for different values of the same combination of parameters: w₀ + w₁ = 1 and w₀ + w₁ = 2."""
    case = Quadratic.random(1)
    rows, values = case.equal[0].copy(), case.equal[1].copy()
    rows[:2] = np.eye(DIM)[0] + np.eye(DIM)[1]
    values[:2, 0] = 1.0, 2.0
    rows[2], values[2] = np.eye(DIM)[5], 0.0
    idle = np.zeros_like(case.most[0]), np.ones_like(case.most[1])
    return replace(case, equal=(rows, values), most=idle, own=(np.zeros((2, DIM)), np.ones(2)))


def unmeetable() -> NeymanPearson:
    """At one site the examples with label 1 come in pairs ±x along a direction of their own: their loss is ≥ log 2.

    The numbers of rows are those of the breast-cancer problem, and so is the compiled program.
    """
    case = breast_cancer()
    rng = np.random.default_rng(0)
    sites = {}
    for name, (X, y) in case.sites.items():
        X = X.copy()
        X[:, 0] = 0.0
        if name == NAMES[2]:
            ones = np.flatnonzero(y == 1)[: 2 * (int(np.sum(y == 1)) // 2)]
            X[y == 1] = 0.0
            along = rng.normal(size=len(ones) // 2)
            X[ones, 0] = np.concatenate([along, -along])
        sites[name] = (X, y)
    return NeymanPearson(sites)


def separable() -> NeymanPearson:
    """A plane divides the labels, so the loss tends to zero along a ray and no model attains it."""
    shape = breast_cancer().sites
    rng = np.random.default_rng(3)
    rows = sum(len(y) for _, y in shape.values())
    ones = sum(int(np.sum(y)) for _, y in shape.values())
    y = np.concatenate([np.ones(ones), np.zeros(rows - ones)])
    X = rng.normal(size=(rows, shape[NAMES[0]][0].shape[1]))
    X[:, 0] = np.where(y == 1, 1.0, -1.0) * (0.5 + np.abs(X[:, 0]))
    X[:, -1] = 1.0
    return NeymanPearson(dealt(X, y, NAMES))
