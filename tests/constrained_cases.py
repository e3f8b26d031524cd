"""Constrained problems that several test modules share, and their answers by CVXPY and NumPy.

The answers and the certificates here call nothing of foedus: they work on the arrays a problem was made from.
"""

from dataclasses import dataclass
from functools import cache, cached_property
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


def residuals(gradient: np.ndarray, rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]) -> Residuals:
    """From the gradient of f (+ h) and, block by block, (c, Jacobian, multipliers, whether they are equalities)."""
    total, feasibility, complementarity, distance = gradient, 0.0, 0.0, 0.0
    for c, jacobian, mu, equal in rows:
        total = total + jacobian.T @ mu
        violation = np.abs(c) if equal else np.maximum(c, 0.0)
        feasibility = max(feasibility, float(np.max(violation)))
        if not equal:
            assert np.all(mu >= 0), "the multiplier of an inequality is never negative"
            complementarity = max(complementarity, float(np.max(np.abs(mu * c))))
        distance = max(distance, float(np.max(np.where(mu > 0, np.abs(c), violation))))
    return Residuals(float(np.max(np.abs(total))), feasibility, complementarity, distance)


def soften(gradient: np.ndarray, w: np.ndarray, lam: float) -> np.ndarray:
    """The element of `gradient` + ∂(lam‖w‖₁) that is nearest to zero."""
    inside = np.sign(gradient) * np.maximum(np.abs(gradient) - lam, 0.0)
    return np.where(w != 0, gradient + lam * np.sign(w), inside)


# --- quadratic programs ---

DIM = 6


def quadratic(w: Any, data: fd.Data) -> Any:
    """½wᵀAw + bᵀw."""
    return 0.5 * jnp.dot(w, data["A"] @ w) + jnp.dot(data["b"], w)


@dataclass(frozen=True)
class Quadratic:
    """f_i = ½wᵀA_iw + b_iᵀw under linear rows: equalities and inequalities at each client, inequalities at the server.

    All instances have the same shapes, so they share one compiled program.
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
        for _, jacobian, mu, _ in blocks if lam else ():
            gradient = gradient + jacobian.T @ mu
        if lam:  # the subgradient is chosen against the whole smooth part
            zero = [(c, 0.0 * jacobian, mu, equal) for c, jacobian, mu, equal in blocks]
            return residuals(soften(gradient, w, lam), zero)
        return residuals(gradient, blocks)


def solve(problem: Any) -> float:
    """The value of a CVXPY problem, solved as accurately as Clarabel can."""
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert problem.status == "optimal", problem.status
    return float(problem.value)
