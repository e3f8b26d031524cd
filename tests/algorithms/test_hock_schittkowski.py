"""InteriorPoint on problems of Hock and Schittkowski, whose rows are dealt to three sites in three ways.

A run ends at a point at which the optimality conditions hold, measured from the statements with the run's multipliers,
or in a sentence that is true. The statements themselves are checked with scipy's SLSQP.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hock_schittkowski import PROBLEMS, Stated
from hock_schittkowski_setup import posed
from scipy.optimize import minimize

import foedus as fd

DEALINGS = ("one site", "one row a site", "everywhere")

# other points at which the optimality conditions hold, and where a run may end as well
OTHERS = {2: (4.9412293,), 16: (23.1446609,), 20: (40.1987296,), 23: (9.4721360,), 55: (6.6666667,)}
# 13 has no multipliers at its optimum; of the others these dealings are still too hard for the method
OPEN = {(13, dealing) for dealing in DEALINGS} | {(93, "one site"), (93, "everywhere"), (106, "everywhere")}
QUICK = [
    (13, "one site"), (19, "everywhere"), (33, "everywhere"), (44, "one row a site"), (63, "everywhere"),
    (36, "one site"), (61, "one site"), (100, "one site"),
]  # fmt: skip
EVERY = [(number, dealing) for number in PROBLEMS for dealing in DEALINGS]
REST = [pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in QUICK]


def conditions(stated: Stated, run: fd.Run, picks: dict[str, list[np.ndarray]]) -> tuple[float, float, float]:
    """Stationarity, feasibility and complementarity of the problem as it was stated, with the run's multipliers."""
    w = jnp.asarray(run.w)
    mu, first = np.asarray(run.multipliers["local"]), picks["inequalities"][0].shape[0]
    prices = sum(pick.T @ m[:first] for pick, m in zip(picks["inequalities"], mu, strict=True))
    values = sum(pick.T @ m[first:] for pick, m in zip(picks["equations"], mu, strict=True))
    c, e = np.asarray(stated.inequalities(w)), np.asarray(stated.equations(w))
    slope = jax.grad(stated.f)(w)
    slope = slope + prices @ jax.jacobian(stated.inequalities)(w) + values @ jax.jacobian(stated.equations)(w)
    broken = max(np.max(c, initial=0.0), np.max(np.abs(e), initial=0.0))
    assert np.min(prices, initial=0.0) >= 0.0
    return float(np.max(np.abs(slope))), float(broken), float(np.max(np.abs(prices * c), initial=0.0))


@pytest.mark.slow
@pytest.mark.parametrize("number", PROBLEMS)
def test_scipy_finds_the_published_optimum_of_what_is_stated(number):
    """From the standard start, or from a point near the run's end where SLSQP fails or finds another minimum."""
    stated = PROBLEMS[number]
    start = np.asarray(stated.start, float)
    if number in (16, 33, 55, 61):
        near = {16: [0.4, 0.3], 33: [0.1, 1.3, 1.5], 55: [0, 4 / 3, 5 / 3, 1, 2 / 3, 1 / 3], 61: [5.3, -2.1, 3.2]}
        start = np.asarray(near[number], float)
    rows = []
    independent = -1 if number == 55 else None  # the last of its equations follows from the others
    equations = lambda x: stated.equations(x)[:independent]  # noqa: E731
    for kind, fn, sign in (("ineq", stated.inequalities, -1.0), ("eq", equations, 1.0)):
        if fn(jnp.asarray(start)).shape[0]:
            both = jax.jit(fn), jax.jit(jax.jacobian(fn))
            value, slope = (lambda x, g=g, sign=sign: sign * np.asarray(g(x)) for g in both)
            rows.append({"type": kind, "fun": value, "jac": slope})
    f, gradient = jax.jit(stated.f), jax.jit(jax.grad(stated.f))
    found = minimize(
        lambda x: float(f(x)), start, jac=lambda x: np.asarray(gradient(x)), constraints=rows, method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    )  # fmt: skip
    assert max((float(np.max(np.abs(np.minimum(r["fun"](found.x), 0) if r["type"] == "ineq" else r["fun"](found.x))))
                for r in rows), default=0.0) <= 1e-6  # fmt: skip
    near_enough = 2e-4 if number == 13 else 1e-6  # without multipliers SLSQP creeps
    assert found.fun == pytest.approx(stated.best, abs=near_enough * (1.0 + abs(stated.best)))


@pytest.mark.parametrize(("number", "dealing"), [*QUICK, *REST])
def test_every_end_is_true(number, dealing):
    stated = PROBLEMS[number]
    problem, picks = posed(stated, dealing)
    run = fd.solve(problem, fd.InteriorPoint(), w0=np.asarray(stated.start, float))
    assert "unbounded" not in run.reason
    assert "contradict" not in run.reason
    if (number, dealing) in OPEN:
        check_open(number, run)
        return
    assert run.converged, run.reason
    assert run.certificate.holds(1e-6, 1e-6)
    stationarity, broken, complementarity = conditions(stated, run, picks)
    assert stationarity <= 2e-6
    assert broken <= 2e-6
    assert complementarity <= 4e-6  # a row that every site has adds up the products of three
    ends = (stated.best, *OTHERS.get(number, ()))
    assert any(run.objective == pytest.approx(end, abs=1e-5 * (1.0 + abs(end))) for end in ends), run.objective


def check_open(number: int, run: fd.Run) -> None:
    """A run without a certificate says what is left of the residuals, and what it says is what NumPy measures."""
    assert not run.converged
    assert not run.certificate.holds(1e-6, 1e-6)
    assert "stationarity is" in run.reason or "no feasible point was found from this start" in run.reason
    if number == 13:
        np.testing.assert_allclose(run.w, [1.0, 0.0], atol=5e-3)
        assert run.certificate.feasibility <= 1e-6
        assert "multipliers have grown to" in run.reason


# --- terms that cannot be met, without convexity ---


def bowl(w, data):
    return jnp.sum(w**2) + 0.0 * data["b"][0]


def discs(w, data):
    """Two discs that do not meet."""
    return jnp.stack([(w[0] - 3.0) ** 2 + w[1] ** 2 - 1.0, (w[0] + 3.0) ** 2 + w[1] ** 2 - 1.0])


def wave(w, data):
    return jnp.sin(w[0]) - 2.0


@pytest.mark.parametrize(("rows", "kind"), [(discs, "<="), pytest.param(wave, "==", marks=pytest.mark.slow)])
def test_without_convexity_nothing_more_is_said_than_that_no_point_was_found_from_this_start(rows, kind):
    terms = [fd.constraints.Custom(rows, kind=kind)]
    problem = fd.Problem([{"b": np.ones(1)}] * 3, objective=bowl, constraints=terms)
    run = fd.solve(problem, fd.InteriorPoint(), w0=np.array([0.5, 0.7]))
    assert not run.converged
    assert run.reason.startswith("no feasible point was found from this start")
    assert "contradict each other" not in run.reason
    assert run.rounds <= 100


@pytest.mark.slow
def test_proxal_calls_no_objective_unbounded_at_points_that_break_the_rows():
    problem, _ = posed(PROBLEMS[93], "everywhere")
    run = fd.solve(problem, fd.ProxAL(), w0=np.asarray(PROBLEMS[93].start, float))
    assert run.converged or run.reason.startswith("no feasible point was found from this start")
