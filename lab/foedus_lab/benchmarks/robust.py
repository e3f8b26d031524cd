"""DRFL's step against a Gram matrix and against CVXPY, its constants, and peers of the pooled special case."""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import foedus as fd
from foedus.robust import polyhedron
from foedus.robust.closed import Ball, Radius
from foedus.robust.form import EpigraphForm
from foedus.robust.step import project
from foedus_lab.benchmarks.harness import Measurement, best, in_turn

if TYPE_CHECKING:
    import cvxpy as cp

RHO, KAPPA = 0.05, 0.5  # radius and label cost in the steps that are compared with CVXPY's


def _sample(rows: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw features in the box [−1, 1] and labels from a noisy linear rule."""
    rng = np.random.default_rng(seed)
    X = np.clip(0.5 * rng.normal(size=(rows, dim)), -1.0, 1.0)
    return X, np.where(X @ rng.normal(size=dim) + 0.5 * rng.normal(size=rows) > 0, 1.0, -1.0)


def steps(quick: bool) -> list[Measurement]:
    """Time a client's step on large data, and on the paper's sizes against CVXPY; then the constants and the peers."""
    lines = []
    rows, dim = (20_000, 50) if quick else (100_000, 50)
    X, y = (jnp.asarray(part) for part in _sample(rows, dim))
    share, b, a = (
        jnp.full(rows, 1.0 / rows),
        jnp.asarray(np.random.default_rng(1).normal(size=dim) * 0.5),
        jnp.asarray(0.2),
    )
    gram = jax.jit(lambda x, d: (x * d[:, None]).T @ x)
    radius = Radius(jnp.asarray(RHO), jnp.asarray(KAPPA), -jnp.ones(dim), jnp.ones(dim))
    forms = {"hinge": EpigraphForm(Ball(fd.losses.hinge)), "logistic, l2": EpigraphForm(Ball(fd.losses.logistic, "l2"))}
    forms["hinge, box"] = EpigraphForm(Ball(fd.losses.hinge, "l1", "box"))
    forms["pinball, box"] = EpigraphForm(Ball(fd.losses.pinball(0.3), "l1", "box"))
    for name, form in forms.items():
        result = project(form, X, y, share, radius, a, b)
        times = in_turn(
            {
                "step": lambda form=form: jax.block_until_ready(project(form, X, y, share, radius, a, b)),
                "gram": lambda: jax.block_until_ready(gram(X, share)),
            },
            repeats=3,
        )
        line = Measurement(f"step, {name}, {rows} x {dim}", times["step"], "one XᵀDX", times["gram"], limit=60.0)
        line.extra = {"Newton systems": int(result.steps), "gap": f"{float(result.gap):.0e}"}
        lines.append(line)
    return lines + _against_cvxpy(quick) + _over_polyhedra(quick) + _constants(quick) + _peers()


def _against_cvxpy(quick: bool) -> list[Measurement]:
    """Time three clients' steps on the paper's sizes: in a box by the closed form, and in a polyhedron without one."""
    if find_spec("cvxpy") is None:
        return []
    lines = []
    for name, rows, dim in (("heart", 54, 13),) if quick else (("heart", 54, 13), ("breast-cancer", 140, 9)):
        parts = [_sample(rows, dim, seed) for seed in range(3)]
        X, y = (jnp.stack([jnp.asarray(p[k]) for p in parts]) for k in (0, 1))
        share, a = jnp.full((3, rows), 1.0 / rows), jnp.full(3, 0.3)
        b = jnp.asarray(np.random.default_rng(2).normal(size=(3, dim)) * 0.5)
        radius = Radius(jnp.full(3, RHO), jnp.full(3, KAPPA), -jnp.ones((3, dim)), jnp.ones((3, dim)))
        C, d = np.vstack([np.eye(dim), -np.eye(dim)]), np.ones(2 * dim)
        box, body = (
            EpigraphForm(Ball(fd.losses.hinge, "l1", "box")),
            EpigraphForm(Ball(fd.losses.hinge, "l2", "polyhedron")),
        )
        within = jnp.tile(jnp.asarray(C), (3, 1, 1)), jnp.tile(jnp.asarray(d), (3, 1))
        in_box = jax.jit(jax.vmap(partial(project, box)))
        in_body = jax.jit(jax.vmap(polyhedron.one_by_one(body)))
        for kind, order, limit, ours in (
            ("box", "inf", 20.0, partial(in_box, X, y, share, radius, a, b)),
            ("polyhedron, l2", 2, None, partial(in_body, X, y, share, radius, *within, a, b)),
        ):
            programs = [_program(*part, C, d, order) for part in parts]

            def theirs(programs=programs, b=b) -> None:
                for (problem, at), point in zip(programs, np.asarray(b), strict=True):
                    at.value = point
                    problem.solve(solver="CLARABEL")

            fast = best(lambda ours=ours: jax.block_until_ready(ours()), repeats=20)
            title = f"CVXPY + Clarabel (DPP), {name}, {kind}, 3 clients"
            lines.append(Measurement(title, best(theirs, repeats=3), "our step", fast, limit, True))
    return lines


def _rows(
    X: np.ndarray, y: np.ndarray, C: np.ndarray, d: np.ndarray, order: int | str, w: "cp.Variable",
    lam: "cp.Variable", alpha: "cp.Variable",
) -> "list[cp.Constraint]":  # fmt: skip
    """Return Corollary B.4's rows of a client, for the hinge loss in a polyhedron; `order` is that of the dual norm."""
    import cvxpy as cp

    (rows, dim), constraints = X.shape, []
    for sign, toll in ((-y, 0.0), (y, KAPPA)):  # the label stays, or changes at a cost
        phi = cp.Variable((rows, len(d)), nonneg=True)
        constraints.append(cp.norm(sign[:, None] @ cp.reshape(w, (1, dim), order="C") - phi @ C, order, axis=1) <= lam)
        shift = cp.sum(cp.multiply(phi, d - X @ C.T), axis=1)
        constraints.append(1 + cp.multiply(sign, X @ w) + shift - toll * lam <= alpha)
    return constraints


def _program(
    X: np.ndarray, y: np.ndarray, C: np.ndarray, d: np.ndarray, order: int | str
) -> "tuple[cp.Problem, cp.Parameter]":
    """Return the step of Corollary B.4 (SVM) as a program, and its parameter: the point that w is drawn towards."""
    import cvxpy as cp

    rows, dim = X.shape
    w, lam, alpha, at = cp.Variable(dim), cp.Variable(nonneg=True), cp.Variable(rows, nonneg=True), cp.Parameter(dim)
    constraints = _rows(X, y, C, d, order, w, lam, alpha)
    v = RHO * lam + cp.sum(alpha) / rows
    return cp.Problem(cp.Minimize(0.5 * cp.square(v - 0.3) + 0.5 * cp.sum_squares(w - at)), constraints), at


def _over_polyhedra(quick: bool) -> list[Measurement]:
    """Time whole runs of DRFL over polyhedra, compiled before, against CVXPY and Clarabel on all data in one place."""
    if find_spec("cvxpy") is None:
        return []
    import cvxpy as cp

    lines = []
    for metric, order in (("l2", 2),) if quick else (("l1", "inf"), ("l2", 2), ("linf", 1)):
        dim, theta = (6, 0.3) if quick else (15, 0.3)
        sites = [_sample(50 if quick else 130, dim, seed) for seed in range(5)]
        C = np.vstack([np.eye(dim), -np.eye(dim), np.ones((1, dim))])
        d = np.append(np.full(2 * dim, 1.1), 1.1 * dim)
        w, norms, values = cp.Variable(dim), [], []
        for X, y in sites:
            lam, alpha = cp.Variable(nonneg=True), cp.Variable(len(y), nonneg=True)
            norms += _rows(X, y, C, d, order, w, lam, alpha)
            values.append(RHO * lam + cp.sum(alpha) / len(y))
        # the largest of qᵀv over the simplex with ‖q − q̂‖₂ ≤ θ, as program (4) has it
        eta, gamma, z = cp.Variable(5, nonneg=True), cp.Variable(), cp.hstack(values)
        goal = cp.sum(z + eta) / 5 + theta * cp.norm(z + gamma + eta, 2)
        pooled = cp.Problem(cp.Minimize(goal), norms)
        problem = fd.Problem(sites, loss=fd.losses.hinge)
        method = fd.DRFL(radius=RHO, kappa=KAPPA, theta=theta, p=2, metric=metric, support=(C, d))
        run = fd.solve(problem, method)
        times = in_turn(
            {"ours": partial(fd.solve, problem, method), "theirs": partial(pooled.solve, solver="CLARABEL")}, repeats=3
        )
        size = f"5 x {len(sites[0][1])} x {dim}, {len(d)} half-spaces"
        title, against = f"DRFL in a polyhedron, {metric}, {size}", "CVXPY + Clarabel, pooled"
        line = Measurement(title, times["ours"], against, times["theirs"], limit=3.0)
        above = (
            run.worst_case.value / np.asarray(pooled.value, dtype=float).item() - 1.0
            if run.worst_case is not None
            else float("nan")
        )
        line.extra = {"rounds": run.rounds, "above its optimum": f"{above:.0e}"}
        lines.append(line)
    return lines


def _constants(quick: bool) -> list[Measurement]:
    """Count rounds of Algorithm 1 to within 1e-4 of the worst case, with tight constants and with the paper's."""
    lines, ratios = [], []
    for seed in range(3 if quick else 12):
        sites = [_sample(30, 5, 100 * seed + s) for s in range(6)]
        problem = fd.Problem(sites, loss=(fd.losses.hinge, fd.losses.logistic, fd.losses.smooth_hinge)[seed % 3])
        plain = fd.DRFL(radius=0.03, kappa=0.5, theta=0.3, metric=("l1", "l2", "linf")[seed % 3])
        goal = fd.solve(problem, plain).worst_case.value
        rounds = {}
        for constants in ("tight", "paper"):
            algorithm = replace(plain, method="splitting", splitting="linearised", constants=constants, adapt=False)
            run = fd.solve(problem, algorithm, max_rounds=2000)
            off = np.abs(run.history["worst_case"] / goal - 1.0) > 1e-4
            rounds[constants] = int(np.flatnonzero(off)[-1]) + 2 if np.any(off) else 1
        ratios.append(rounds["tight"] / rounds["paper"])
    line = Measurement("rounds with tight constants, median", float(np.median(ratios)), "the paper's", 1.0, limit=0.7)
    line.extra = {"instances": len(ratios), "ratios": " ".join(f"{r:.2f}" for r in ratios)}
    return [*lines, line]


def _peers() -> list[Measurement]:
    """Solve one client's problem, which is logistic regression + ρ‖w‖₂, by DRFL and by packages for this case.

    It has θ = 0, the ℓ2 metric and labels that stay.
    """
    X, y = _sample(200, 8, 7)
    rho = 0.05
    problem, algorithm = fd.Problem([(X, y)], loss=fd.losses.logistic), fd.DRFL(radius=rho, metric="l2")

    def objective(w: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0.0, -y * (X @ w))) + rho * np.linalg.norm(w))

    run = fd.solve(problem, algorithm)
    ours = best(lambda: fd.solve(problem, algorithm), repeats=3)
    lines = [Measurement("pooled logistic, DRFL", ours, extra={"objective": f"{objective(run.w):.6f}"})]
    for name, fit in (("dro", _dro), ("skwdro", _skwdro)):
        try:
            w = fit(X, y, rho)
        except (ImportError, RuntimeError) as error:  # a package, or a version of torch that suits it, is missing
            lines.append(Measurement(f"pooled logistic, {name}: left out, {error}", 0.0))
            continue
        line = Measurement(f"pooled logistic, {name}", best(lambda fit=fit: fit(X, y, rho), repeats=3), "DRFL", ours)
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
