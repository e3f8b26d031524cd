"""Constrained problems that several test modules share, and their answers by CVXPY and NumPy.

The answers and the certificates here call nothing of foedus: they work on the arrays a problem was made from.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

import foedus as fd

TIGHT = {"s_bar": 1e-6, "eps1": 1e-6, "eps2": 1e-6}
NAMES = ("ash", "birch", "cedar")


@dataclass(frozen=True)
class Answer:
    """An optimum and its multipliers, laid out as those of a run: local (clients, rows), global and coupled (rows,)."""

    w: np.ndarray
    objective: float
    multipliers: dict[str, np.ndarray]


@dataclass(frozen=True)
class Residuals:
    """The certificate of (w, μ) as NumPy finds it."""

    stationarity: float
    feasibility: float
    complementarity: float
    distance: float


Block = tuple[np.ndarray, np.ndarray, np.ndarray, bool]


def residuals(gradient: np.ndarray, blocks: list[Block], w: np.ndarray, lam: float = 0.0) -> Residuals:
    """From ∇f(w) and, block by block, (c, its Jacobian, multipliers, whether it is = 0); h is lam‖w‖₁."""
    total, feasibility, complementarity, distance = gradient, 0.0, 0.0, 0.0
    for c, jacobian, mu, equal in blocks:
        total = total + jacobian.T @ mu
        violation = np.abs(c) if equal else np.maximum(c, 0.0)
        feasibility = max(feasibility, float(np.max(violation)))
        if not equal:
            assert np.all(mu >= 0), "the multiplier of an inequality is never negative"
            complementarity = max(complementarity, float(np.max(np.abs(mu * c))))
        distance = max(distance, float(np.max(np.where(mu > 0, np.abs(c), violation))))
    at_zero = np.sign(total) * np.maximum(np.abs(total) - lam, 0.0)
    total = np.where(w != 0, total + lam * np.sign(w), at_zero)
    return Residuals(float(np.max(np.abs(total))), feasibility, complementarity, distance)


def solve(problem: Any, accuracy: float = 1e-10) -> float:
    """The value of a CVXPY problem, by Clarabel."""
    problem.solve(solver="CLARABEL", tol_gap_abs=accuracy, tol_gap_rel=accuracy, tol_feas=accuracy)
    assert problem.status == "optimal", problem.status
    return float(problem.value)


# --- quadratic programs ---

DIM = 6


def quadratic(w: Any, data: fd.Data) -> Any:
    """½wᵀAw + bᵀw."""
    return 0.5 * jnp.dot(w, data["A"] @ w) + jnp.dot(data["b"], w)


@dataclass(frozen=True)
class Quadratic:
    """f_i = ½wᵀA_iw + b_iᵀw under linear rows: equalities and inequalities at each client, inequalities at the server.

    All instances have the same shapes, so they share one compiled program, infeasible ones included.
    """

    A: np.ndarray  # (clients, dim, dim)
    b: np.ndarray  # (clients, dim)
    equal: tuple[np.ndarray, np.ndarray]  # (clients, 1, dim), (clients, 1)
    most: tuple[np.ndarray, np.ndarray]  # (clients, 2, dim), (clients, 2)
    own: tuple[np.ndarray, np.ndarray]  # (2, dim), (2,)

    @staticmethod
    def random(seed: int, clients: int = 3, dim: int = DIM) -> "Quadratic":
        """A strongly convex program that some point meets with a little room in the inequalities."""
        rng = np.random.default_rng(seed)
        turned = [np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(clients)]
        A = np.stack([(U * rng.uniform(0.5, 1.0, size=dim)) @ U.T for U in turned])
        inside = rng.normal(size=dim)
        C, G, S = rng.normal(size=(clients, 1, dim)), rng.normal(size=(clients, 2, dim)), rng.normal(size=(2, dim))
        return Quadratic(
            A=A,
            b=rng.normal(size=(clients, dim)),
            equal=(C, C @ inside),
            most=(G, G @ inside + rng.uniform(0.0, 0.3, size=(clients, 2))),
            own=(S, S @ inside + rng.uniform(0.0, 0.3, size=2)),
        )

    @property
    def clients(self) -> int:
        return len(self.A)

    def problem(self, **more: Any) -> fd.Problem:
        linear = fd.constraints.Linear
        return fd.Problem(
            {name: {"A": A, "b": b} for name, A, b in zip(NAMES, self.A, self.b, strict=True)},
            objective=quadratic,
            constraints=[
                linear(*self.equal, "=="),
                linear(*self.most),
                linear(*self.own, scope="global"),
            ],
            **more,
        )

    def value(self, w: np.ndarray) -> float:
        return float(0.5 * w @ np.mean(self.A, axis=0) @ w + np.mean(self.b, axis=0) @ w)

    def answer(self, lam: float = 0.0) -> Answer:
        """The optimum of f + lam‖w‖₁ by CVXPY."""
        import cvxpy as cp

        w = cp.Variable(self.A.shape[1])
        equal = [C @ w == d for C, d in zip(*self.equal, strict=True)]
        most = [C @ w <= d for C, d in zip(*self.most, strict=True)]
        own = self.own[0] @ w <= self.own[1]
        f = 0.5 * cp.quad_form(w, np.mean(self.A, axis=0), assume_PSD=True) + np.mean(self.b, axis=0) @ w
        value = solve(cp.Problem(cp.Minimize(f + lam * cp.norm1(w)), [*equal, *most, own]))
        local = [np.concatenate([e.dual_value, m.dual_value]) for e, m in zip(equal, most, strict=True)]
        return Answer(np.asarray(w.value), value, {"local": np.stack(local), "global": np.asarray(own.dual_value)})

    def residuals(self, w: np.ndarray, multipliers: dict[str, np.ndarray], lam: float = 0.0) -> Residuals:
        gradient = np.mean(self.A, axis=0) @ w + np.mean(self.b, axis=0)
        blocks = []
        for i in range(self.clients):
            equal, most = multipliers["local"][i][:1], multipliers["local"][i][1:]
            blocks.append((self.equal[0][i] @ w - self.equal[1][i], self.equal[0][i], equal, True))
            blocks.append((self.most[0][i] @ w - self.most[1][i], self.most[0][i], most, False))
        blocks.append((self.own[0] @ w - self.own[1], self.own[0], multipliers["global"], False))
        return residuals(gradient, blocks, w, lam)


@dataclass(frozen=True)
class Coupled:
    """The same objective under rows of every scope: coupled and local inequalities at the clients, one at the server.

    `pooled=True` states the means of the coupled rows as rows of the server instead.
    """

    A: np.ndarray
    b: np.ndarray
    mean: tuple[np.ndarray, np.ndarray]  # (clients, 2, dim), (clients, 2)
    most: tuple[np.ndarray, np.ndarray]  # (clients, 1, dim), (clients, 1)
    own: tuple[np.ndarray, np.ndarray]  # (1, dim), (1,)

    @staticmethod
    def random(seed: int, clients: int = 3, dim: int = DIM) -> "Coupled":
        """The clients' own shares of a coupled row are far from zero; only their mean is near it."""
        rng = np.random.default_rng(seed)
        base = Quadratic.random(seed, clients, dim)
        inside = rng.normal(size=dim)
        C, G, S = rng.normal(size=(clients, 2, dim)), rng.normal(size=(clients, 1, dim)), rng.normal(size=(1, dim))
        apart = rng.normal(size=(clients, 2))
        return Coupled(
            A=base.A,
            b=2.0 * base.b,
            mean=(C, C @ inside + 2.0 * (apart - np.mean(apart, axis=0))),
            most=(G, G @ inside + 0.1),
            own=(S, S @ inside + 0.1),
        )

    def problem(self, pooled: bool = False, **more: Any) -> fd.Problem:
        linear = fd.constraints.Linear
        C, d = self.mean
        coupled = (
            linear(np.mean(C, axis=0), np.mean(d, axis=0), scope="global") if pooled else linear(C, d, scope="coupled")
        )
        return fd.Problem(
            {name: {"A": A, "b": b} for name, A, b in zip(NAMES, self.A, self.b, strict=True)},
            objective=quadratic,
            constraints=[linear(*self.own, scope="global"), coupled, linear(*self.most)],
            **more,
        )

    def answer(self, lam: float = 0.0) -> Answer:
        """The optimum of f + lam‖w‖₁ under the mean of the coupled rows, by CVXPY."""
        import cvxpy as cp

        w = cp.Variable(self.A.shape[1])
        most = [C @ w <= d for C, d in zip(*self.most, strict=True)]
        own = self.own[0] @ w <= self.own[1]
        mean = np.mean(self.mean[0], axis=0) @ w <= np.mean(self.mean[1], axis=0)
        f = 0.5 * cp.quad_form(w, np.mean(self.A, axis=0), assume_PSD=True) + np.mean(self.b, axis=0) @ w
        value = solve(cp.Problem(cp.Minimize(f + lam * cp.norm1(w)), [*most, own, mean]))
        duals = {"local": np.stack([m.dual_value for m in most]), "global": own.dual_value, "coupled": mean.dual_value}
        return Answer(np.asarray(w.value), value, duals)

    def residuals(self, w: np.ndarray, multipliers: dict[str, np.ndarray], lam: float = 0.0) -> Residuals:
        gradient = np.mean(self.A, axis=0) @ w + np.mean(self.b, axis=0)
        C, d = np.mean(self.mean[0], axis=0), np.mean(self.mean[1], axis=0)
        blocks = [(C @ w - d, C, multipliers["coupled"], False)]
        blocks += [(self.own[0] @ w - self.own[1], self.own[0], multipliers["global"], False)]
        blocks += [(G @ w - g, G, mu, False) for G, g, mu in zip(*self.most, multipliers["local"], strict=True)]
        return residuals(gradient, blocks, w, lam)


# --- Neyman-Pearson classification ---


@dataclass(frozen=True)
class NeymanPearson:
    """The mean loss on label 0, averaged over sites, under a cap on the mean loss on label 1 at every site."""

    sites: dict[str, tuple[np.ndarray, np.ndarray]]
    cap: float = 0.2

    def problem(self, **more: Any) -> fd.Problem:
        return fd.Problem(
            self.sites,
            loss=fd.losses.logistic,
            where=fd.label(0),
            constraints=[fd.constraints.LossCap(fd.label(1), at_most=self.cap)],
            **more,
        )

    def classes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows with label 0 and those with label 1, site by site."""
        return [(X[y == 0], X[y == 1]) for X, y in self.sites.values()]

    def answer(self) -> Answer:
        """The optimum of the pooled problem by CVXPY."""
        import cvxpy as cp

        parts = self.classes()
        w = cp.Variable(parts[0][0].shape[1])
        f = sum(cp.sum(cp.logistic(X @ w)) / len(X) for X, _ in parts) / len(parts)
        caps = [cp.sum(cp.logistic(-X @ w)) / len(X) <= self.cap for _, X in parts]
        value = solve(cp.Problem(cp.Minimize(f), caps), accuracy=1e-8)  # exponential cones allow no more
        return Answer(np.asarray(w.value), value, {"local": np.array([[float(c.dual_value)] for c in caps])})

    def values(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective, and each site's mean loss on label 1."""
        f = np.mean([np.mean(np.logaddexp(0.0, X @ w)) for X, _ in self.classes()])
        return float(f), np.array([np.mean(np.logaddexp(0.0, -X @ w)) for _, X in self.classes()])

    def residuals(self, w: np.ndarray, multipliers: dict[str, np.ndarray]) -> Residuals:
        gradient, blocks = np.zeros(len(w)), []
        for (X0, X1), mu in zip(self.classes(), multipliers["local"], strict=True):
            gradient = gradient + np.mean(X0 / (1.0 + np.exp(-X0 @ w))[:, None], axis=0) / len(self.sites)
            slope = -np.mean(X1 / (1.0 + np.exp(X1 @ w))[:, None], axis=0)
            blocks.append((np.mean(np.logaddexp(0.0, -X1 @ w))[None] - self.cap, slope[None], mu, False))
        return residuals(gradient, blocks, w)


def dealt(X: np.ndarray, y: np.ndarray, names: tuple[str, ...]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The rows dealt out to sites one by one, each label apart, so that every site has its share of both."""
    n = len(names)
    order = np.argsort(y, kind="stable")
    return {name: (X[order[i::n]], y[order[i::n]]) for i, name in enumerate(names)}


APART = (0, 1, 4, 5, 8, 9)  # columns of the breast-cancer data that do not repeat each other


@cache
def breast_cancer(sites: int = 3, columns: tuple[int, ...] = APART, seed: int | None = None) -> NeymanPearson:
    """Scikit-learn's breast-cancer data, standardised, with an intercept; label 1 is malignant.

    A few columns do not separate the labels. All thirty do, and then the objective has no minimiser. With a seed the
    rows are shuffled before they are dealt out.
    """
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, list(columns)]
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    order = np.arange(len(X)) if seed is None else np.random.default_rng(seed).permutation(len(X))
    names = NAMES if sites == len(NAMES) else tuple(f"site {i}" for i in range(sites))
    return NeymanPearson(dealt(X[order], 1.0 - y[order], names))


# --- the runs that modules share ---

NEWTON = fd.ProxAL(inner="newton", **TIGHT)
ADMM = fd.ProxAL(inner="admm", **TIGHT)
CAPPED = {inner: fd.ProxAL(beta=300.0, inner=inner) for inner in ("newton", "lbfgs", "admm")}


@cache
def quadratic_run(seed: int, algorithm: fd.ProxAL = NEWTON) -> fd.Run:
    """A random quadratic program, solved."""
    return fd.solve(Quadratic.random(seed).problem(), algorithm, w0=np.zeros(DIM))


@cache
def capped_run(inner: str) -> fd.Run:
    """The Neyman-Pearson problem, solved."""
    return fd.solve(breast_cancer().problem(), CAPPED[inner])
