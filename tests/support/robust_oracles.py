"""DRFL's programs as the paper prints them (Appendix B, programs (4) and 𝔠_s), in CVXPY. Nothing here calls foedus."""

import warnings
from typing import Any

import cvxpy as cp
import numpy as np

DUAL: dict[str, Any] = {"l1": "inf", "l2": 2, "linf": 1}
NORM = {"l1": 1, "l2": 2, "linf": "inf"}
REGRESSION = ("huber", "epsilon_insensitive", "pinball")


def box(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cx ≤ d of a box."""
    n = len(low)
    return np.vstack([np.eye(n), -np.eye(n)]), np.concatenate([high, -low])


def _dual(parts: list[Any], metric: str) -> Any:
    return cp.norm(parts[0], DUAL[metric])


def omega(
    loss: str, eps: float, w: Any, lam: Any, X: np.ndarray, y: np.ndarray, kappa: float, metric: str,
    support: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """α and the constraints of (λ, α, w) ∈ Ω_s: Corollaries B.1 to B.6. Labels are −1/+1; κ may be infinite."""
    N = len(y)
    alpha = cp.Variable(N)
    z = X @ w
    free = 1.0 / kappa  # the dual norm of the label's part, times its slope
    if support is None:
        if loss == "huber":
            mu = cp.Variable(N)
            held = [0.5 * cp.square(mu) + eps * cp.abs(z - y - mu) <= alpha]
            return alpha, [*held, eps * cp.norm(w, DUAL[metric]) <= lam, eps * free <= lam]
        if loss == "epsilon_insensitive":
            held = [y - z - eps <= alpha, z - y - eps <= alpha, alpha >= 0]
            return alpha, [*held, cp.norm(w, DUAL[metric]) <= lam, free <= lam]
        if loss == "pinball":
            steep = max(eps, 1.0 - eps)
            held = [eps * (y - z) <= alpha, (1.0 - eps) * (z - y) <= alpha]
            return alpha, [*held, steep * cp.norm(w, DUAL[metric]) <= lam, steep * free <= lam]
        u = cp.multiply(y, z)
        held = [cp.norm(w, DUAL[metric]) <= lam]
        if loss == "hinge":
            held += [1 - u <= alpha, alpha >= 0]
            held += [1 + u - kappa * lam <= alpha] if np.isfinite(kappa) else []
        elif loss == "smooth_hinge":
            for sign in (1, -1) if np.isfinite(kappa) else (1,):
                phi, pi = cp.Variable(N), cp.Variable(N, nonneg=True)
                toll = kappa * lam if sign < 0 else 0
                held += [0.5 * cp.square(phi - sign * u) + pi - toll <= alpha, 1 - phi <= pi]
        else:
            held += [cp.logistic(-u) <= alpha]
            held += [cp.logistic(u) - kappa * lam <= alpha] if np.isfinite(kappa) else []
        return alpha, held
    C, d = support
    n = X.shape[1]
    C1, c2 = C[:, :n], C[:, n] if C.shape[1] > n else np.zeros(len(C))
    room = d - X @ C1.T - np.outer(y, c2)  # (N, r)

    def moved(slope: Any, label_slope: Any) -> tuple[Any, list[Any]]:
        """⟨φ, d − Cξ̂⟩ for each sample, and ‖slope_i·w − Cᵀφ_i‖_* ≤ λ with the label's part."""
        phi = cp.Variable((N, len(d)), nonneg=True)
        turned = slope[:, None] @ cp.reshape(w, (1, n), order="C")
        held = [cp.norm(turned - phi @ C1, DUAL[metric], axis=1) <= lam]
        if label_slope is not None and np.isfinite(kappa):
            held.append(cp.abs(label_slope - phi @ c2) <= kappa * lam)
        return cp.sum(cp.multiply(phi, room), axis=1), held

    if loss in REGRESSION:
        up, down = (1.0, 1.0) if loss == "epsilon_insensitive" else (1.0 - eps, eps)
        tube = eps if loss == "epsilon_insensitive" else 0.0
        rise, first = moved(np.full(N, up), np.full(N, -up))
        fall, second = moved(np.full(N, -down), np.full(N, down))
        held = [up * (z - y) - tube + rise <= alpha, down * (y - z) - tube + fall <= alpha, *first, *second]
        return alpha, held + ([alpha >= 0] if tube or loss == "epsilon_insensitive" else [])
    assert loss == "hinge"
    u = cp.multiply(y, z)
    same, first = moved(-y, None)
    held = [1 - u + same <= alpha, alpha >= 0, lam >= 0, *first]
    if np.isfinite(kappa):
        other, second = moved(y, None)
        held += [1 + u + other - kappa * lam <= alpha, *second]
    return alpha, held


def solved(problem: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1e-10 is more than the solver always reaches; it then says how far it came
        for tol in (1e-10, 1e-9, 1e-8):  # with exponential cones it sometimes fails where more is asked than it reaches
            try:
                problem.solve(solver="CLARABEL", tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol, max_iter=400)
                break
            except cp.error.SolverError:
                continue
    assert problem.status in ("optimal", "optimal_inaccurate"), problem.status
    return float(problem.value)


def worst_case(
    loss: str, eps: float, w: np.ndarray, X: np.ndarray, y: np.ndarray, rho: float, kappa: float, metric: str,
    support: tuple[np.ndarray, np.ndarray] | None = None,
) -> float:  # fmt: skip
    """The worst-case expected loss of w: Proposition 4.2."""
    if rho == 0:
        return plain(loss, eps, w, X, y)
    lam = cp.Variable(nonneg=True)
    fixed = cp.Constant(w)
    alpha, held = omega(loss, eps, fixed, lam, X, y, kappa, metric, support)
    return solved(cp.Problem(cp.Minimize(rho * lam + cp.sum(alpha) / len(y)), held))


def plain(loss: str, eps: float, w: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
    """The mean loss."""
    import oracles

    return float(np.mean(oracles.LOSSES[loss](X @ w, y, *([eps] if loss in REGRESSION else []))))


def client_step(
    loss: str, eps: float, X: np.ndarray, y: np.ndarray, rho: float, kappa: float, metric: str, support: Any,
    a: float, b: np.ndarray,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """𝔠_s with c = 1: argmin ½(v − a)² + ½‖w − b‖² over Ω_s."""
    w, lam = cp.Variable(X.shape[1]), cp.Variable(nonneg=True)
    alpha, held = omega(loss, eps, w, lam, X, y, kappa, metric, support)
    v = rho * lam + cp.sum(alpha) / len(y)
    problem = cp.Problem(cp.Minimize(0.5 * cp.square(v - a) + 0.5 * cp.sum_squares(w - b)), held)
    solved(problem)
    return np.asarray(w.value), float(v.value)


def program(
    loss: str, eps: float, clients: list[tuple[np.ndarray, np.ndarray]], rho: Any, kappa: float, metric: str,
    support: Any, theta: float, p: Any, q_hat: np.ndarray, units: np.ndarray | None = None,
) -> float:  # fmt: skip
    """The optimal value of program (4); the solver's variable is w/units, for columns of very different size."""
    S, dim = len(clients), clients[0][0].shape[1]
    rho = np.broadcast_to(rho, S)
    w, gamma = cp.multiply(np.ones(dim) if units is None else units, cp.Variable(dim)), cp.Variable()
    eta, z, held = cp.Variable(S, nonneg=True), [], []
    for (X, y), radius in zip(clients, rho, strict=True):
        lam = cp.Variable(nonneg=True)
        alpha, more = omega(loss, eps, w, lam, X, y, kappa, metric, support)
        z.append(radius * lam + cp.sum(alpha) / len(y))
        held += more
    z = cp.hstack(z)
    dual = {1: "inf", 2: 2, "inf": 1}[p]
    goal = q_hat @ (z + eta) + theta * cp.norm(z + gamma + eta, dual)
    return solved(cp.Problem(cp.Minimize(goal), held))


def heaviest(values: np.ndarray, q_hat: np.ndarray, theta: float, p: Any) -> float:
    """max over q in Q of qᵀv."""
    q = cp.Variable(len(values), nonneg=True)
    held = [cp.sum(q) == 1, cp.norm(q - q_hat, {1: 1, 2: 2, "inf": "inf"}[p]) <= theta]
    return solved(cp.Problem(cp.Maximize(values @ q), held))


def minimax(
    loss: str, eps: float, w: np.ndarray, clients: list[tuple[np.ndarray, np.ndarray]], rho: Any, kappa: float,
    metric: str, support: Any, theta: float, p: Any, q_hat: np.ndarray,
) -> float:  # fmt: skip
    """The minimax value at w: the clients' worst cases, then the maximum over q."""
    rho = np.broadcast_to(rho, len(clients))
    values = [worst_case(loss, eps, w, X, y, r, kappa, metric, support) for (X, y), r in zip(clients, rho, strict=True)]
    return heaviest(np.array(values), q_hat, theta, p)
