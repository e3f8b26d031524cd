"""The client's step where the worst case has no closed form: polyhedra Cx ≤ d, and boxes under another metric than ℓ1.

Corollaries B.2 to B.4 give every sample multipliers φ of its own, so the program grows with samples times rows of C. It
goes to CVXPY and Clarabel, called from the compiled round; one program is kept for each client's data, with (a, b) as
its parameters. CVXPY is not among foedus's own requirements: pip install 'foedus[oracles]'.
"""

import hashlib
import warnings
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus import losses
from foedus.errors import FoedusError
from foedus.local.robust_form import Form
from foedus.local.worst_case import DUAL, Ball, Radius

NORMS = {"l1": 1, "l2": 2, "linf": np.inf}
KEPT = 64  # programs, one for each client's data
TIGHT = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10, "max_iter": 200}
_programs: dict[str, tuple[Any, Any, Any, Any, Any]] = {}


@lru_cache(maxsize=1)
def _cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError:
        raise FoedusError("a polyhedral support needs CVXPY; install it with: pip install 'foedus[oracles]'.") from None
    return cvxpy


def omega(ball: Ball, w: Any, lam: Any, x: np.ndarray, y: np.ndarray, kappa: float, C: np.ndarray, d: np.ndarray):
    """α and the constraints that tie it to (λ, w): Corollaries B.2 (SVR), B.3 (quantile), B.4 (SVM)."""
    cp = _cvxpy()
    rows, width = len(y), x.shape[1] - ball.intercept
    alpha, z = cp.Variable(rows), x @ w
    moving = cp.reshape(w[:width], (1, width), order="C")
    C1, c2 = C[:, :width], C[:, width] if C.shape[1] > width else np.zeros(len(C))
    room = np.maximum(d - x[:, :width] @ C1.T - np.outer(y, c2), 0.0)

    def moved(slope: np.ndarray) -> tuple[Any, list[Any]]:
        """What moving adds to slope·(xᵀw − y), and ‖(slope·w, −slope) − φC‖_* ≤ λ for every sample."""
        phi = cp.Variable((rows, len(d)), nonneg=True)
        held = [cp.norm(slope[:, None] @ moving - phi @ C1, NORMS[DUAL[ball.metric]], axis=1) <= lam]
        if not ball.classifies and np.isfinite(kappa):
            held.append(cp.abs(-slope - phi @ c2) <= kappa * lam)
        return cp.sum(cp.multiply(phi, room), axis=1), held

    if ball.classifies:
        sign = np.where(y > 0, 1.0, -1.0)
        same, held = moved(-sign)
        held += [1 - cp.multiply(sign, z) + same <= alpha, alpha >= 0]
        if np.isfinite(kappa):
            other, more = moved(sign)
            held += [1 + cp.multiply(sign, z) + other - kappa * lam <= alpha, *more]
        return alpha, held
    up, down = ball.slopes
    tube = ball.loss.eps if isinstance(ball.loss, losses.EpsilonInsensitive) else 0.0
    rise, held = moved(np.full(rows, up))
    fall, more = moved(np.full(rows, -down))
    held += [up * (z - y) - tube + rise <= alpha, down * (y - z) - tube + fall <= alpha, *more]
    return alpha, held + ([alpha >= 0] if isinstance(ball.loss, losses.EpsilonInsensitive) else [])


def _program(form: Form, x: np.ndarray, y: np.ndarray, share: np.ndarray, rho: float, kappa: float, C: Any, d: Any):
    """The parametrised program of one client, made once."""
    made = hashlib.sha256(repr((form, rho, kappa)).encode())
    for array in (x, y, share, C, d):
        made.update(np.ascontiguousarray(array).tobytes())
    key = made.hexdigest()
    if key not in _programs:
        cp = _cvxpy()
        held = form.held(x.shape[1])
        used = share > 0
        w, lam = cp.Variable(x.shape[1]), cp.Variable(nonneg=True)
        a, b = cp.Parameter(), cp.Parameter(held)
        alpha, constraints = omega(form.ball, w, lam, x[used], y[used], kappa, C, d)
        v = rho * lam + share[used] @ alpha
        point = cp.hstack([w, lam]) if form.shared else w
        goal = 0.5 * cp.square(v - a) + 0.5 * cp.sum_squares(point - b)
        if len(_programs) >= KEPT:
            _programs.pop(next(iter(_programs)))
        _programs[key] = cp.Problem(cp.Minimize(goal), constraints), a, b, point, v
    return _programs[key]


def _solve(problem: Any) -> None:
    """Solve to tolerances near what doubles allow, or, where Clarabel gives up on them, to its usual ones.

    An answer a little short of the tolerances is taken without a warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        for settings in (TIGHT, {}):
            try:
                problem.solve(solver="CLARABEL", warm_start=False, **settings)
            except _cvxpy().error.SolverError:
                continue
            if problem.value is not None and np.isfinite(problem.value):
                return
    raise FoedusError(f"Clarabel did not solve the worst case over a polyhedral support (status {problem.status!r}).")


def project_by_cvxpy(
    form: Form, x: Array, y: Array, share: Array, radius: Radius, C: Array, d: Array, a: Array, b: Array
) -> tuple[Array, Array]:
    """(ŵ, v): the projection of (b, a) onto the epigraph of the worst-case loss, as `robust_step.project`."""

    def call(*arrays: Any) -> tuple[np.ndarray, np.ndarray]:
        x, y, share, rho, kappa, C, d, a, b = (np.asarray(array) for array in arrays)
        problem, at_a, at_b, point, v = _program(form, x, y, share, float(rho), float(kappa), C, d)
        at_a.value, at_b.value = float(a), b
        _solve(problem)
        return np.asarray(point.value, dtype=float), np.asarray(v.value, dtype=float).reshape(())

    _cvxpy()
    shapes = jax.ShapeDtypeStruct(b.shape, b.dtype), jax.ShapeDtypeStruct((), b.dtype)
    arguments = (x, y, share, radius.rho, radius.kappa, C, d, jnp.asarray(a), b)
    return jax.pure_callback(call, shapes, *arguments, vmap_method="sequential")


def worst_case_by_cvxpy(
    ball: Ball, w: np.ndarray, x: np.ndarray, y: np.ndarray, share: np.ndarray, rho: float, kappa: float, C: Any, d: Any
) -> tuple[float, float]:
    """The worst-case loss at w and its λ."""
    cp = _cvxpy()
    lam = cp.Variable(nonneg=True)
    alpha, held = omega(ball, cp.Constant(w), lam, x, y, kappa, np.asarray(C), np.asarray(d))
    problem = cp.Problem(cp.Minimize(rho * lam + share @ alpha), held)
    _solve(problem)
    return float(problem.value), float(lam.value)
