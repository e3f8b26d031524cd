"""Rounds, bytes and time to a certificate, for ProxAL's inner methods and for solvers on pooled data."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import jax
import numpy as np

import foedus as fd
from foedus_lab.benchmarks.harness import Measurement, best, in_turn
from foedus_lab.benchmarks.speed import Rounds

if TYPE_CHECKING:
    import cvxpy as cp

MAX_LOSS = 0.2  # the cap of the ProxAL paper's Neyman-Pearson experiments


def neyman_pearson(clients: int) -> fd.Problem:
    """Return a problem on scikit-learn's breast-cancer data whose loss on malignant cases is capped at each site."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import scale

    x, y = load_breast_cancer(return_X_y=True)
    x = np.column_stack([scale(x), np.ones(len(x))])
    sites = fd.data.split(x, 1 - y, clients=clients, seed=0, by="label")
    cap = fd.constraints.LossCap(fd.label(1), at_most=MAX_LOSS)
    return fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])


def certificate(quick: bool) -> list[Measurement]:
    """Solve three instances by three inner methods, then the pooled problem by general solvers."""
    lines: list[Measurement] = []
    problem = neyman_pearson(20)
    terms, data = problem.terms, problem.data
    both = jax.jit(lambda w, data: jax.vmap(lambda d: (terms.gradient(w, d), terms.hessian(w, d)))(data))
    admm = Rounds(problem, fd.ProxAL(beta=300, inner="admm", rho=0.01))
    newton = Rounds(problem, fd.ProxAL())
    many, w = 400, np.full(terms.dim, 0.1)
    times = in_turn(
        {
            "admm": lambda: admm.play(many),
            "newton": lambda: newton.play(1000),
            "evaluation": lambda: jax.block_until_ready(both(w, data)),
        },
        repeats=3 if quick else 11,
    )
    a_round = times["admm"] / many
    lines.append(
        Measurement("ADMM round, breast-cancer n=20", a_round, "gradients and Hessians", times["evaluation"], limit=8.0)
    )
    lines.append(
        Measurement("default, whole problem, n=20", times["newton"], "400 ADMM rounds", times["admm"], limit=1.0)
    )

    for clients in (5,) if quick else (5, 10, 20):
        instance = neyman_pearson(clients)
        for inner, rho in (("newton", "auto"), ("lbfgs", "auto"), ("admm", "auto"), ("admm", 0.01)):
            algorithm = fd.ProxAL(beta=300 if inner == "admm" else "auto", inner=inner, rho=rho)
            run = fd.solve(instance, algorithm)
            again = fd.solve(instance, algorithm)
            name = inner if inner != "admm" else f"admm, rho={rho}"
            line = Measurement(f"n={clients}, {name}", again.seconds)
            line.extra = {"rounds": run.rounds, "kB": (run.traffic.up + run.traffic.down) // 1000}
            line.extra["certified"] = run.certificate.holds()
            lines.append(line)
    return lines + _general_solvers(
        neyman_pearson(5), best(lambda: fd.solve(neyman_pearson(5), fd.ProxAL()), repeats=3)
    )


def _general_solvers(problem: fd.Problem, ours: float) -> list[Measurement]:
    """Solve the same problem with all data in one place, by SLSQP, by trust-constr, and by CVXPY with Clarabel."""
    from scipy.optimize import NonlinearConstraint, minimize

    sites = [problem.client(i) for i in range(problem.terms.clients)]
    arrays = [(np.asarray(s["x"]), np.asarray(s["y"])) for s in sites]

    def loss(w: np.ndarray, x: np.ndarray, sign: float) -> tuple[float, np.ndarray]:
        z = sign * (x @ w)
        return float(np.mean(np.logaddexp(0.0, z))), sign * (x.T @ (1.0 / (1.0 + np.exp(-z)))) / len(z)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        parts = [loss(w, x[y == 0], 1.0) for x, y in arrays]
        return float(np.mean([f for f, _ in parts])), np.mean([g for _, g in parts], axis=0)

    def caps(w: np.ndarray) -> np.ndarray:
        return np.array([loss(w, x[y == 1], -1.0)[0] - MAX_LOSS for x, y in arrays])

    def jacobian(w: np.ndarray) -> np.ndarray:
        return np.array([loss(w, x[y == 1], -1.0)[1] for x, y in arrays])

    start = np.zeros(problem.terms.dim)
    lines = []

    def least(method: str, constraint: dict[str, object] | NonlinearConstraint) -> float:
        options = {"maxiter": 500}
        return minimize(objective, start, jac=True, method=method, constraints=[constraint], options=options).fun

    def slsqp() -> float:
        return least("SLSQP", {"type": "ineq", "fun": lambda w: -caps(w), "jac": lambda w: -jacobian(w)})

    def trust() -> float:
        constraint = NonlinearConstraint(caps, -np.inf, 0.0, jac=jacobian)  # pyright: ignore[reportArgumentType]
        return least("trust-constr", constraint)

    for name, call in (("SLSQP, pooled", slsqp), ("trust-constr, pooled", trust)):
        line = Measurement(f"n=5, {name}", best(call, repeats=1), "foedus solve", ours)
        line.extra["objective"] = f"{call():.6f}"
        lines.append(line)
    if find_spec("cvxpy") is not None:
        lines.append(_cvxpy(arrays, ours))
    return lines


def _cvxpy(arrays: list[tuple[np.ndarray, np.ndarray]], ours: float) -> Measurement:
    import cvxpy as cp

    w = cp.Variable(arrays[0][0].shape[1])

    def mean_loss(x: np.ndarray, sign: float) -> "float | cp.Expression":
        return cp.sum(cp.logistic(sign * (x @ w))) / len(x)

    goal = sum(mean_loss(x[y == 0], 1.0) for x, y in arrays) / len(arrays)
    constraints = [mean_loss(x[y == 1], -1.0) <= MAX_LOSS for x, y in arrays]
    problem = cp.Problem(cp.Minimize(goal), constraints)  # pyright: ignore[reportArgumentType]
    seconds = best(lambda: problem.solve(solver=cp.CLARABEL), repeats=1)
    return Measurement(
        "n=5, CVXPY + Clarabel, pooled", seconds, "foedus solve", ours, extra={"objective": f"{problem.value:.6f}"}
    )
