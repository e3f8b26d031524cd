"""DRFL's step against a Gram matrix and against CVXPY, its constants, and peers of the pooled special case."""

from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import foedus as fd
from foedus.benchmarks.harness import Measured, best, in_turn
from foedus.robust import polyhedron
from foedus.robust.closed import Ball, Radius
from foedus.robust.form import Form
from foedus.robust.step import project


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
    """Three clients' steps on the paper's sizes: in a box with the closed form, and in a polyhedron without one."""
    if find_spec("cvxpy") is None:
        return []
    lines = []
    for name, rows, dim in (("heart", 54, 13),) if quick else (("heart", 54, 13), ("breast-cancer", 140, 9)):
        parts = [_drawn(rows, dim, seed) for seed in range(3)]
        X, y = (jnp.stack([jnp.asarray(p[k]) for p in parts]) for k in (0, 1))
        share, a = jnp.full((3, rows), 1.0 / rows), jnp.full(3, 0.3)
        b = jnp.asarray(np.random.default_rng(2).normal(size=(3, dim)) * 0.5)
        radius = Radius(jnp.full(3, 0.05), jnp.full(3, 0.5), -jnp.ones((3, dim)), jnp.ones((3, dim)))
        C, d = np.vstack([np.eye(dim), -np.eye(dim)]), np.ones(2 * dim)
        box, body = Form(Ball(fd.losses.hinge, "l1", "box")), Form(Ball(fd.losses.hinge, "l2", "polyhedron"))
        within = jnp.tile(jnp.asarray(C), (3, 1, 1)), jnp.tile(jnp.asarray(d), (3, 1))
        in_box = jax.jit(jax.vmap(partial(project, box)))
        in_body = jax.jit(jax.vmap(polyhedron.one_by_one(body)))
        for kind, order, limit, ours in (
            ("box", np.inf, 20.0, partial(in_box, X, y, share, radius, a, b)),
            ("polyhedron, l2", 2, None, partial(in_body, X, y, share, radius, *within, a, b)),
        ):
            programs = [_program(*part, C, d, order) for part in parts]

            def theirs(programs=programs, b=b) -> None:
                for (problem, at), point in zip(programs, np.asarray(b), strict=True):
                    at.value = point
                    problem.solve(solver="CLARABEL")

            fast = best(lambda ours=ours: jax.block_until_ready(ours()), repeats=20)
            title = f"CVXPY + Clarabel (DPP), {name}, {kind}, 3 clients"
            lines.append(Measured(title, best(theirs, repeats=3), "our step", fast, limit, True))
    return lines


def _program(X: np.ndarray, y: np.ndarray, C: np.ndarray, d: np.ndarray, order: Any) -> tuple[Any, Any]:
    """Corollary B.4 (SVM, ρ = 0.05, κ = 0.5) with the point that w is drawn to as its parameter."""
    import cvxpy as cp

    rows, dim = X.shape
    w, lam, alpha, at = cp.Variable(dim), cp.Variable(nonneg=True), cp.Variable(rows, nonneg=True), cp.Parameter(dim)
    held = []
    for sign, toll in ((-y, 0.0), (y, 0.5)):
        phi = cp.Variable((rows, len(d)), nonneg=True)
        held.append(cp.norm(sign[:, None] @ cp.reshape(w, (1, dim), order="C") - phi @ C, order, axis=1) <= lam)
        moved = cp.sum(cp.multiply(phi, d - X @ C.T), axis=1)
        held.append(1 + cp.multiply(sign, X @ w) + moved - toll * lam <= alpha)
    v = 0.05 * lam + cp.sum(alpha) / rows
    return cp.Problem(cp.Minimize(0.5 * cp.square(v - 0.3) + 0.5 * cp.sum_squares(w - at)), held), at


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
