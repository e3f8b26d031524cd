"""Rounds to a certificate or to a duality gap; both are measured after the run by other code. No times."""

import warnings
from importlib.util import find_spec

import numpy as np

import foedus as fd
from foedus_lab.benchmarks.harness import Measurement

NO_TIME = float("nan")
LOOSE, STRICT = 1e-3, 1e-8
# loss, radius, κ, θ of DRFL on scikit-learn's breast-cancer set, and the rounds to reach
CASES = (
    ("hinge", 0.05, 1.0, 0.3, 45),
    ("hinge", 0.05, float("inf"), 0.3, None),
    ("hinge", 0.2, 1.0, 0.1, None),
    ("logistic", 0.05, 1.0, 0.3, None),
    ("logistic", 0.05, float("inf"), 0.3, None),
    ("logistic", 0.2, 1.0, 0.1, None),
)
GAP = 1e-6  # the relative duality gap to reach


def interior(quick: bool) -> list[Measurement]:
    """Count rounds of InteriorPoint to two certificates on the problems of the ProxAL paper."""
    from foedus_lab.papers.proxal_examples import BREAST, MONKS, Quadratic, fairness, starts

    sizes, lines = (5,) if quick else (1, 5, 10, 20), []
    sets = (("breast-cancer-wisc", lambda n: BREAST.problem(n, 0)), ("monks-1", lambda n: MONKS.problem(n, 0)))
    for name, problem in (*sets, ("scikit-learn's breast cancer", first_example)):
        for n in sizes:
            lines.append(_certified(f"Neyman-Pearson, {name}, {n} sites", problem(n), (LOOSE, STRICT)))
    for n in (5,) if quick else (1, 5, 10):
        what, start = f"quadratic program under equations, 100 variables, {n} sites", starts(0, 1, 100)[0]
        lines.append(_certified(what, Quadratic.as_printed(100, n).problem(), (LOOSE, STRICT), start))
    if not quick:
        what = "fairness on Adult, two gaps at every party, not convex, 20 sites"
        lines.append(_certified(what, fairness(20, 0), (LOOSE,)))
        for n in (10, 20):
            run = fd.solve(BREAST.problem(n, 0), fd.InteriorPoint(), participation=0.5)
            what = f"breast-cancer-wisc, half of {n} sites answer"
            lines.append(
                Measurement(what, NO_TIME, extra=_columns({}, None) | {"rounds to (1e-06, 1e-06)": run.rounds})
            )
    return lines


def first_example(n: int) -> fd.Problem:
    """Return the README's first problem over n sites: 30 columns, whose two classes a plane separates."""
    X, y = fd.data.breast_cancer()
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.2)
    sites = fd.data.split(X, y, clients=n, seed=0)
    return fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])


def _certified(
    what: str, problem: fd.Problem, tolerances: tuple[float, ...], w0: np.ndarray | None = None
) -> Measurement:
    rounds: dict[float, object] = {}
    size = None
    for tolerance in tolerances:
        run = fd.solve(problem, fd.InteriorPoint(eps1=tolerance, eps2=tolerance), w0=w0)
        rounds[tolerance] = run.rounds if run.certificate.holds(tolerance, tolerance) else "not certified"
        size = run.traffic.up / run.rounds / problem.terms.clients
    return Measurement(what, NO_TIME, extra=_columns(rounds, size))


def _columns(rounds: dict[float, object], size: float | None) -> dict[str, object]:
    """The columns that all lines have: rounds to both certificates, and the bytes that a site sends in a round."""
    table: dict[str, object] = {f"rounds to ({t:g}, {t:g})": rounds.get(t, "") for t in (LOOSE, STRICT)}
    return table | {"bytes a site sends a round": "" if size is None else f"{size:,.0f}"}


def drfl(quick: bool) -> list[Measurement]:
    """Count rounds of DRFL to a duality gap, and compare the worst case with CVXPY's optimum of the pooled program."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import scale

    X, y = load_breast_cancer(return_X_y=True)
    X, order = scale(X), np.random.default_rng(0).permutation(len(y))
    sites = [(X[order[i::5]], np.where(y[order[i::5]] == 0, 1.0, -1.0)) for i in range(5)]
    lines = []
    for loss, radius, kappa, theta, limit in CASES[: 1 if quick else None]:
        problem = fd.Problem(sites, loss=getattr(fd.losses, loss))
        run = fd.solve(problem, fd.DRFL(radius=radius, kappa=kappa, theta=theta, p=2, metric="l2", tol=GAP))
        case = run.worst_case
        assert case is not None
        extra: dict[str, object] = {"rounds": run.rounds}
        extra["relative duality gap"] = "–" if case.gap is None else f"{case.gap / case.value:.1e}"
        if find_spec("cvxpy") is not None:
            optimum, status = pooled_optimum(sites, loss, radius, kappa, theta)
            words = "" if status == "optimal" else f" ({status})"
            extra["above CVXPY's optimum"] = f"{case.value / optimum - 1.0:.0e}{words}"
        extra["at most"] = "" if limit is None else f"{limit} rounds: {'yes' if run.rounds <= limit else 'NO'}"
        lines.append(Measurement(f"{loss}, radius {radius:g}, κ = {kappa:g}, θ = {theta:g}", NO_TIME, extra=extra))
    return lines


def pooled_optimum(
    sites: list[tuple[np.ndarray, np.ndarray]], loss: str, radius: float, kappa: float, theta: float
) -> tuple[float, str]:
    """Return the optimum of program (4) of the DRFL paper for the ℓ2 metric and p = 2, by CVXPY, and its status.

    A sample's worst case is the larger of its loss and of the loss with the other label less κλ; λ bounds ‖w‖₂.
    """
    import cvxpy as cp

    w, rows, values = cp.Variable(sites[0][0].shape[1]), [], []
    share = np.array([len(sign) for _, sign in sites]) / sum(len(sign) for _, sign in sites)
    for X, sign in sites:
        lam, alpha = cp.Variable(nonneg=True), cp.Variable(len(sign))
        curve = (lambda u: cp.pos(1 - u)) if loss == "hinge" else (lambda u: cp.logistic(-u))
        margin = cp.multiply(sign, X @ w)
        rows += [cp.norm(w, 2) <= lam, curve(margin) <= alpha]
        if np.isfinite(kappa):
            rows.append(curve(-margin) - kappa * lam <= alpha)
        values.append(radius * lam + cp.sum(alpha) / len(sign))
    eta, gamma, z = cp.Variable(len(sites), nonneg=True), cp.Variable(), cp.hstack(values)
    goal = share @ (z + eta) + theta * cp.norm(z + gamma + eta, 2)
    program = cp.Problem(cp.Minimize(goal), rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it may be inaccurate is told by the status
        program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float(np.asarray(program.value)), str(program.status)
