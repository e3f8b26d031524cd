"""DRFL's step against a Gram matrix and against CVXPY, its constants, and peers of the pooled special case."""

from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import foedus as fd
from foedus.benchmarks.harness import Measured, best, in_turn
from foedus.local.robust_form import Form
from foedus.local.robust_step import project
from foedus.local.worst_case import Ball, Radius


def _drawn(rows: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.clip(0.5 * rng.normal(size=(rows, dim)), -1.0, 1.0)
    return X, np.where(X @ rng.normal(size=dim) + 0.5 * rng.normal(size=rows) > 0, 1.0, -1.0)


def steps(quick: bool) -> list[Measured]:
    """The client's step on large data, and on the paper's sizes against CVXPY with parameters."""
    lines = []
    rows, dim = (20_000, 50) if quick else (100_000, 50)
    X, y = (jnp.asarray(part) for part in _drawn(rows, dim))
    share, b, a = (
        jnp.full(rows, 1.0 / rows),
        jnp.asarray(np.random.default_rng(1).normal(size=dim) * 0.5),
        jnp.asarray(0.2),
    )
    gram = jax.jit(lambda x, d: (x * d[:, None]).T @ x)
    radius = Radius(jnp.asarray(0.05), jnp.asarray(0.5), -jnp.ones(dim), jnp.ones(dim))
    forms = {"hinge": Form(Ball(fd.losses.hinge)), "logistic, l2": Form(Ball(fd.losses.logistic, "l2"))}
    forms["hinge, box"] = Form(Ball(fd.losses.hinge, "l1", "box"))
    forms["pinball, box"] = Form(Ball(fd.losses.pinball(0.3), "l1", "box"))
    for name, form in forms.items():
        found = project(form, X, y, share, radius, a, b)
        times = in_turn(
            {
                "step": lambda form=form: jax.block_until_ready(project(form, X, y, share, radius, a, b)),
                "gram": lambda: jax.block_until_ready(gram(X, share)),
            },
            repeats=3,
        )
        line = Measured(f"step, {name}, {rows} x {dim}", times["step"], "one XᵀDX", times["gram"], limit=60.0)
        line.extra = {"Newton systems": int(found.steps), "gap": f"{float(found.gap):.0e}"}
        lines.append(line)
    return lines + _against_cvxpy(quick) + _constants(quick) + _peers()


def _against_cvxpy(quick: bool) -> list[Measured]:
    if find_spec("cvxpy") is None:
        return []
    from foedus.local.polyhedron import _program

    lines = []
    for name, rows, dim in (("heart", 54, 13),) if quick else (("heart", 54, 13), ("breast-cancer", 140, 9)):
        parts = [_drawn(rows, dim, seed) for seed in range(3)]
        X, y = (jnp.stack([jnp.asarray(p[k]) for p in parts]) for k in (0, 1))
        share, a = jnp.full((3, rows), 1.0 / rows), jnp.full(3, 0.3)
        b = jnp.asarray(np.random.default_rng(2).normal(size=(3, dim)) * 0.5)
        form = Form(Ball(fd.losses.hinge, "l1", "box"))
        radius = Radius(jnp.full(3, 0.05), jnp.full(3, 0.5), -jnp.ones((3, dim)), jnp.ones((3, dim)))
        ours = jax.jit(jax.vmap(lambda *given, form=form: project(form, *given)))
        C, d = np.vstack([np.eye(dim), -np.eye(dim)]), np.ones(2 * dim)

        def theirs(parts=parts, b=b, C=C, d=d, form=form, rows=rows) -> None:
            for (X, y), point in zip(parts, np.asarray(b), strict=True):
                problem, at_a, at_b, *_ = _program(form, X, y, np.full(rows, 1.0 / rows), 0.05, 0.5, C, d)
                at_a.value, at_b.value = 0.3, point
                problem.solve(solver="CLARABEL")

        fast = best(lambda: jax.block_until_ready(ours(X, y, share, radius, a, b)), repeats=20)  # noqa: B023
        line = Measured(
            f"CVXPY + Clarabel (DPP), {name}, 3 clients", best(theirs, repeats=3), "our step", fast, 20.0, True
        )
        lines.append(line)
    return lines


def _constants(quick: bool) -> list[Measured]:
    """Rounds of Algorithm 1 with tight constants against the paper's, to the same worst case within 1e-4."""
    lines, ratios = [], []
    for seed in range(3 if quick else 12):
        sites = [_drawn(30, 5, 100 * seed + s) for s in range(6)]
        problem = fd.Problem(sites, loss=(fd.losses.hinge, fd.losses.logistic, fd.losses.smooth_hinge)[seed % 3])
        given: dict[str, Any] = {"radius": 0.03, "kappa": 0.5, "theta": 0.3, "metric": ("l1", "l2", "linf")[seed % 3]}
        goal = fd.solve(problem, fd.DRFL(**given)).worst_case.value
        needed = {}
        for constants in ("tight", "paper"):
            algorithm = fd.DRFL(splitting="linearised", constants=constants, adapt=False, **given)
            run = fd.solve(problem, algorithm, max_rounds=2000)
            off = np.abs(run.history["worst_case"] / goal - 1.0) > 1e-4
            needed[constants] = int(np.flatnonzero(off)[-1]) + 2 if np.any(off) else 1
        ratios.append(needed["tight"] / needed["paper"])
    line = Measured("rounds with tight constants, median", float(np.median(ratios)), "the paper's", 1.0, limit=0.7)
    line.extra = {"instances": len(ratios), "ratios": " ".join(f"{r:.2f}" for r in ratios)}
    return [*lines, line]


def _peers() -> list[Measured]:
    """One client, θ = 0, ℓ2 metric, labels stay: logistic regression + ρ‖w‖₂, by us and by packages that have it."""
    X, y = _drawn(200, 8, 7)
    rho = 0.05
    problem, algorithm = fd.Problem([(X, y)], loss=fd.losses.logistic), fd.DRFL(radius=rho, metric="l2")

    def objective(w: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0.0, -y * (X @ w))) + rho * np.linalg.norm(w))

    run = fd.solve(problem, algorithm)
    ours = best(lambda: fd.solve(problem, algorithm), repeats=3)
    lines = [Measured("pooled logistic, DRFL", ours, extra={"objective": f"{objective(run.w):.6f}"})]
    for name, fit in (("dro", _dro), ("skwdro", _skwdro)):
        try:
            w = fit(X, y, rho)
        except (ImportError, RuntimeError) as error:  # the packages, or what they need, or a torch that fits neither
            lines.append(Measured(f"pooled logistic, {name}: left out, {error}", 0.0))
            continue
        line = Measured(f"pooled logistic, {name}", best(lambda fit=fit: fit(X, y, rho), repeats=3), "DRFL", ours)
        line.extra = {"objective": f"{objective(w):.6f}", "apart": f"{objective(w) / objective(run.w) - 1:.1e}"}
        lines.append(line)
    return lines


def _dro(X: np.ndarray, y: np.ndarray, rho: float) -> np.ndarray:
    from dro.linear_model.wasserstein_dro import WassersteinDRO  # pyright: ignore[reportMissingImports]

    model = WassersteinDRO(input_dim=X.shape[1], model_type="logistic", fit_intercept=False, solver="CLARABEL")
    # its p is the order of the norm of x, not that of the Wasserstein distance
    model.update({"cost_matrix": np.eye(X.shape[1]), "eps": rho, "p": 2, "kappa": "inf"})
    return np.asarray(model.fit(X, y)["theta"], dtype=float)


def _skwdro(X: np.ndarray, y: np.ndarray, rho: float) -> np.ndarray:
    from skwdro.linear_models import LogisticRegression  # pyright: ignore[reportMissingImports]

    model = LogisticRegression(rho=rho, l2_reg=None, fit_intercept=False, solver="dedicated").fit(X, y)
    return np.ravel(model.coef_)
