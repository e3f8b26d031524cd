"""Answers from NumPy, SciPy and CVXPY. Nothing here calls foedus."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import log_ndtr

LOSSES = {
    "least_squares": lambda z, y: 0.5 * (z - y) ** 2,
    "logistic": lambda z, y: np.logaddexp(0.0, -y * z),
    "hinge": lambda z, y: np.maximum(0.0, 1.0 - y * z),
    "smooth_hinge": lambda z, y: np.select([y * z <= 0, y * z < 1], [0.5 - y * z, 0.5 * (1.0 - y * z) ** 2], 0.0),
    "poisson": lambda z, y: np.exp(z) - y * z,
    "probit": lambda z, y: -log_ndtr(y * z),
    "cloglog": lambda z, y: np.where(y > 0, -np.log(-np.expm1(-np.exp(z))), np.exp(z)),
    "gamma": lambda z, y: z + y * np.exp(-z),
    "negative_binomial": lambda z, y, a: (y + 1 / a) * np.log1p(a * np.exp(z)) - y * z,
    "tweedie": lambda z, y, p: y * np.exp((1 - p) * z) / (p - 1) + np.exp((2 - p) * z) / (2 - p),
    "huber": lambda z, y, eps: np.where(np.abs(z - y) <= eps, 0.5 * (z - y) ** 2, eps * (np.abs(z - y) - 0.5 * eps)),
    "epsilon_insensitive": lambda z, y, eps: np.maximum(0.0, np.abs(z - y) - eps),
    "pinball": lambda z, y, eps: np.where(z >= y, (1.0 - eps) * (z - y), eps * (y - z)),
}
"""Values of (z, y), classification labels as -1/+1."""


def mean_loss(w: np.ndarray, X: np.ndarray, y: np.ndarray, loss: str, mu: float = 0.0) -> float:
    """f_i of one client: the mean loss and (mu / 2d)‖w‖²."""
    labels = np.where(y > 0, 1.0, -1.0) if loss == "logistic" else y
    return float(np.mean(LOSSES[loss](X @ w, labels)) + 0.5 * mu / len(X) * w @ w)


def mean_gradient(w: np.ndarray, X: np.ndarray, y: np.ndarray, loss: str, mu: float = 0.0) -> np.ndarray:
    """∇f_i of one client, for least squares and logistic regression."""
    z = X @ w
    slope = z - y if loss == "least_squares" else 1.0 / (1.0 + np.exp(-z)) - (y > 0)
    return X.T @ slope / len(X) + mu / len(X) * w


def mean_hessian(w: np.ndarray, X: np.ndarray, y: np.ndarray, loss: str, mu: float = 0.0) -> np.ndarray:
    """∇²f_i of one client, for least squares and logistic regression."""
    p = 1.0 / (1.0 + np.exp(-X @ w))
    bend = np.ones(len(X)) if loss == "least_squares" else p * (1.0 - p)
    return (X.T * bend) @ X / len(X) + mu / len(X) * np.eye(X.shape[1])


def pooled_minimum(clients: Mapping[str, Any], loss: str, mu: float = 0.0) -> tuple[np.ndarray, float]:
    """The minimiser and minimum of the unweighted mean of the clients' f_i, by SciPy's trust region."""
    from scipy.optimize import minimize

    def over(part: Any) -> Any:
        return lambda w: sum(part(w, X, y, loss, mu) for X, y in clients.values()) / len(clients)

    dim = next(iter(clients.values()))[0].shape[1]
    found = minimize(
        over(mean_loss),
        np.zeros(dim),
        jac=over(mean_gradient),
        hess=over(mean_hessian),
        method="trust-exact",
        options={"gtol": 1e-10},
    )
    # the trust region stops where the value's rounding hides any decrease; one Newton step goes on from there
    w = found.x - np.linalg.solve(over(mean_hessian)(found.x), over(mean_gradient)(found.x))
    assert np.max(np.abs(over(mean_gradient)(w))) < 1e-12
    return w, over(mean_loss)(w)


def prox(name: str, v: np.ndarray, step: float, **parameters: Any) -> np.ndarray:
    """argmin h(w) + ‖w − v‖²/(2·step), by CVXPY."""
    import cvxpy as cp

    w = cp.Variable(len(v))
    h, constraints = 0, []
    match name:
        case "ElasticNet":
            h = parameters["lam1"] * cp.norm1(w) + 0.5 * parameters["lam2"] * cp.sum_squares(w)
        case "Box":
            constraints = [w >= parameters["low"]]
            constraints += [w <= parameters["high"]] if np.isfinite(parameters["high"]) else []
        case "Simplex":
            constraints = [w >= 0, cp.sum(w) == parameters["total"]]
        case "L2Ball":
            constraints = [cp.norm2(w) <= parameters["radius"]]
        case "L1Ball":
            constraints = [cp.norm1(w) <= parameters["radius"]]
        case "Group":
            members = _members(parameters["groups"])
            h = parameters["lam"] * sum(cp.norm2(w[rows]) for rows in members)
        case _:
            assert name == "Zero"
    _solve(cp.Problem(cp.Minimize(h + cp.sum_squares(w - v) / (2.0 * step)), constraints))
    return np.asarray(w.value)


def subdifferential_distance(name: str, w: np.ndarray, g: np.ndarray, **parameters: Any) -> float:
    """min ‖g + s‖_∞ over s ∈ ∂h(w) for w in the domain of h, by CVXPY."""
    import cvxpy as cp

    s = cp.Variable(len(w))
    constraints: list[Any] = []
    support, off = np.flatnonzero(w != 0), np.flatnonzero(w == 0)

    def signs(u: Any, scale: Any) -> list[Any]:
        """u ∈ scale·∂‖w‖₁."""
        return [u[support] == scale * np.sign(w[support]), cp.abs(u[off]) <= scale]

    match name:
        case "ElasticNet":
            constraints = signs(s - parameters["lam2"] * w, parameters["lam1"])
        case "Box":
            low, high = w == parameters["low"], w == parameters["high"]
            constraints = [s[~low & ~high] == 0, s[low & ~high] <= 0, s[high & ~low] >= 0]
        case "Simplex":
            level = cp.Variable()
            constraints = [s[support] == level, s[off] <= level]
        case "L2Ball":
            t = cp.Variable(nonneg=True)
            outer = np.linalg.norm(w) >= parameters["radius"] - 1e-12
            constraints = [s == t * w] if outer else [s == 0]
        case "L1Ball":
            t = cp.Variable(nonneg=True)
            outer = np.sum(np.abs(w)) >= parameters["radius"] - 1e-12
            constraints = signs(s, t) if outer else [s == 0]
        case "Group":
            free = [j for j, group in enumerate(parameters["groups"]) if group < 0]
            constraints = [s[free] == 0]
            for rows in _members(parameters["groups"]):
                size = np.linalg.norm(w[rows])
                alive = size > 0
                constraints.append(
                    s[rows] == parameters["lam"] * w[rows] / size if alive else cp.norm2(s[rows]) <= parameters["lam"]
                )
        case _:
            constraints = [s == 0]
    problem = cp.Problem(cp.Minimize(cp.norm_inf(g + s)), constraints)
    _solve(problem)
    return float(problem.value)


def _members(groups: tuple[int, ...]) -> list[list[int]]:
    return [[j for j, other in enumerate(groups) if other == group] for group in sorted(set(groups) - {-1})]


def _solve(problem: Any) -> None:
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert problem.status == "optimal", problem.status


def fedgia_rounds(
    clients: Mapping[str, Any], loss: str, mu: float, H: list[np.ndarray], sigma: float, k0: int, rounds: int
) -> list[np.ndarray]:
    """The averages x of GIA Algorithm 1 with everyone in C, every step written out; C is empty in the first round."""
    m = len(clients)
    x = np.zeros(H[0].shape[0])
    xs, averages = [], []
    gradient = [mean_gradient(x, X, y, loss, mu) / m for X, y in clients.values()]
    pi = [-g for g in gradient]
    xs = [x + p / sigma for p in pi]
    x = np.mean(xs, axis=0)
    averages.append(x)
    for _ in range(rounds):
        sent = []
        for i, (X, y) in enumerate(clients.values()):
            g = mean_gradient(x, X, y, loss, mu) / m
            x_i = x
            for _ in range(k0):
                x_i = x - np.linalg.solve(H[i] / m + sigma * np.eye(len(x)), g + pi[i])
                pi[i] = pi[i] + sigma * (x_i - x)
            sent.append(x_i + pi[i] / sigma)
        x = np.mean(sent, axis=0)
        averages.append(x)
    return averages


def central_difference(fn: Any, z: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The elementwise derivative of an elementwise function."""
    return (fn(z + step) - fn(z - step)) / (2.0 * step)


def numeric_gradient(fn: Any, w: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient of a scalar function, by central differences."""
    basis = np.eye(len(w))
    return np.array([(fn(w + step * e) - fn(w - step * e)) / (2.0 * step) for e in basis])
