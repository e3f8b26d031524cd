"""Pooled references: the least objective of a problem with all rows in one place, by NumPy, SciPy and CVXPY.

Nothing here is shared with an algorithm or with the simulator. A smooth problem is solved by Newton's method with a
line search, constrained ones by SLSQP and then Newton's method on the optimality conditions of the rows that bind,
quadratic programs by one linear system, robust ones by CVXPY with Clarabel.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foedus.base.errors import FoedusError

STEPS = 200  # of Newton's method
SMALLEST_SLOPE = 1e-13  # Newton's method ends at a gradient whose largest entry is below this share of 1 + |f|
BINDS = 1e-5  # a row within this distance of its cap is taken to bind
PROVED = 1e-9  # the largest entry of the optimality conditions' residual at which a reference is accepted


class Curve(Protocol):
    """A function of w with its gradient and Hessian."""

    def __call__(self, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]: ...


class RowCurves(Protocol):
    """Rows that are to be ≤ 0: their values (m,) and Jacobian (m, dim), and the Hessian of Σ mu_j·row_j."""

    def value(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def hessian(self, w: np.ndarray, mu: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Reference:
    """The least objective, a point that has it, and what computed it."""

    value: float
    w: np.ndarray
    method: str


def newton(curve: Curve, dim: int) -> Reference:
    """Return a minimum by Newton's method from 0; eigenvalues that are not positive count by their size."""
    w = np.zeros(dim)
    f, g, H = curve(w)
    for _ in range(STEPS):
        if np.max(np.abs(g)) <= SMALLEST_SLOPE * (1.0 + abs(f)):
            break
        sizes, axes = np.linalg.eigh(H)
        sizes = np.maximum(np.abs(sizes), 1e-12 * np.max(np.abs(sizes)))
        step = -axes @ ((axes.T @ g) / sizes)
        length = 1.0
        while length > 1e-12 and not curve(w + length * step)[0] <= f + 1e-4 * length * (g @ step) + 1e-15 * abs(f):
            length *= 0.5
        if length <= 1e-12:
            break
        w = w + length * step
        f, g, H = curve(w)
    return Reference(f, w, "pooled Newton")


def minimum_under(curve: Curve, rows: RowCurves, dim: int) -> Reference:
    """Return a minimum subject to rows ≤ 0, by SLSQP and then by Newton's method on the rows that bind."""
    from scipy.optimize import minimize

    result = minimize(
        lambda w: curve(w)[:2],
        np.zeros(dim),
        jac=True,
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda w: -rows.value(w)[0], "jac": lambda w: -rows.value(w)[1]}],
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    binding = np.flatnonzero(rows.value(result.x)[0] > -BINDS)
    w, mu = _on_binding_rows(curve, rows, result.x, binding)
    if np.any(mu < 0):  # a row that happens to lie at its cap does not push
        binding = binding[mu > 0]
        w, mu = _on_binding_rows(curve, rows, w, binding)
    f, g, _ = curve(w)
    c, J = rows.value(w)
    worst = max(np.max(np.abs(g + J[binding].T @ mu)), np.max(c), -np.min(mu, initial=0.0))
    if not worst <= PROVED:
        raise FoedusError(f"the pooled reference misses its optimality conditions by {worst:.1e}; it is not used.")
    return Reference(f, w, "pooled SLSQP and Newton on the binding rows")


def _on_binding_rows(
    curve: Curve, rows: RowCurves, w: np.ndarray, binding: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Newton's method on ∇f + Σ μ_j ∇c_j = 0 and c_j = 0 for the binding rows; the point and the multipliers."""
    n = len(w)
    mu = -np.linalg.lstsq(rows.value(w)[1][binding].T, curve(w)[1], rcond=None)[0]
    for _ in range(20):
        _, g, H = curve(w)
        c, J = rows.value(w)
        J, prices = J[binding], np.zeros(len(c))
        prices[binding] = mu
        residual = np.concatenate([g + J.T @ mu, c[binding]])
        if np.max(np.abs(residual)) <= SMALLEST_SLOPE:
            break
        zero = np.zeros((len(binding), len(binding)))
        system = np.block([[H + rows.hessian(w, prices), J.T], [J, zero]])
        step = np.linalg.lstsq(system, -residual, rcond=None)[0]
        w, mu = w + step[:n], mu + step[n:]
    return w, mu


def equations(A: np.ndarray, b: np.ndarray, C: np.ndarray, d: np.ndarray) -> Reference:
    """Return the minimum of ½wᵀAw + bᵀw subject to Cw + d = 0, from one linear system."""
    zero = np.zeros((len(C), len(C)))
    w = np.linalg.solve(np.block([[A, C.T], [C, zero]]), np.concatenate([-b, -d]))[: len(b)]
    return Reference(float(0.5 * w @ A @ w + b @ w), w, "one linear system")


def robust(
    X: np.ndarray, y: np.ndarray, sites: int, loss: str, eps: float, radius: float, theta: float, slope: float
) -> Reference:
    """Return the least worst case over weights of the sites and balls around their rows, by CVXPY.

    A site's worst case is its mean loss + radius·slope·‖w‖_∞, because rows move in the ℓ1 norm and labels stay. Over
    the weights q with ‖q − q̂‖₁ ≤ θ, q̂ uniform, the largest Σ q_s z_s is the least η + γθ + Σ q̂_s max(z_s − η, −γ)
    over γ ≥ 0 and η ≥ z_s − γ, by duality of linear programs.
    """
    try:
        import cvxpy as cp
    except ImportError:
        raise FoedusError("the reference of a robust problem needs CVXPY: pip install cvxpy.") from None
    rows, w = len(X) // sites, cp.Variable(X.shape[1])
    sign = np.where(y > 0, 1.0, -1.0)
    parts = []
    for s in range(sites):
        place = slice(s * rows, (s + 1) * rows)
        z = X[place] @ w
        if loss == "hinge":
            parts.append(cp.sum(cp.pos(1 - cp.multiply(sign[place], z))) / rows)
        elif loss == "logistic":
            parts.append(cp.sum(cp.logistic(-cp.multiply(sign[place], z))) / rows)
        else:
            curve = cp.huber(z - y[place], eps)  # pyright: ignore[reportArgumentType]
            parts.append(cp.sum(curve) / (2 * rows))
    eta, gamma = cp.Variable(), cp.Variable(nonneg=True)
    share = sum(cp.maximum(part - eta, -gamma) for part in parts) / sites
    goal = eta + theta * gamma + share + radius * slope * cp.norm_inf(w)
    program = cp.Problem(cp.Minimize(goal), [part - eta <= gamma for part in parts])
    program.solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    if program.status not in ("optimal", "optimal_inaccurate"):
        raise FoedusError(f"the pooled reference of a robust problem was not found: CVXPY says {program.status}.")
    return Reference(float(np.asarray(program.value)), np.asarray(w.value), f"CVXPY with Clarabel ({program.status})")
