"""Every sentence that says "proved" of an objective, held against CVXPY's optimum."""

import re
from dataclasses import replace
from html import unescape

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest

import foedus as fd
from foedus.app.report import card, html
from foedus.base.notebook import at_least, at_most
from foedus.certificate.measure import measure
from foedus.problem.losses import Loss

rng = np.random.default_rng(0)
SITES = [(rng.normal(size=(rows, 4)), np.sign(rng.normal(size=rows))) for rows in (20, 30)]
ROW = np.array([[1.0, -1.0, 0.5, 0.0]])


def smooth_hinge(u):
    """½t² + [u − t]₊ at its least t: u − ½ beyond 1, ½u² below."""
    t = cp.Variable(u.shape)
    return 0.5 * cp.square(t) + cp.pos(u - t)


LOSSES = {
    "least squares": (fd.losses.least_squares, lambda z, y: 0.5 * cp.square(z - y)),
    "logistic": (fd.losses.logistic, lambda z, y: cp.logistic(-cp.multiply(y, z))),
    "huber": (fd.losses.huber(0.5), lambda z, y: 0.5 * cp.huber(z - y, 0.5)),
    "smooth hinge": (fd.losses.smooth_hinge, lambda z, y: smooth_hinge(1.0 - cp.multiply(y, z))),
}
TERMS = {  # the terms, h and rows in CVXPY, and a map into the domain of h
    "nothing": ({}, lambda w: (0.0, []), None),
    "elastic net": ({"regularizer": fd.regularizers.ElasticNet(0.05, 0.1)},
                    lambda w: (0.05 * cp.norm1(w) + 0.05 * cp.sum_squares(w), []), None),
    "box": ({"regularizer": fd.regularizers.Box(-0.1, 0.2)},
            lambda w: (0.0, [w >= -0.1, w <= 0.2]), lambda w: np.clip(w, -0.1, 0.2)),
    "simplex": ({"regularizer": fd.regularizers.Simplex(0.7)},
                lambda w: (0.0, [w >= 0, cp.sum(w) == 0.7]), lambda w: 0.7 * np.abs(w) / np.sum(np.abs(w))),
    "ball": ({"regularizer": fd.regularizers.L2Ball(0.2)},
             lambda w: (0.0, [cp.norm2(w) <= 0.2]), lambda w: 0.2 * w / max(np.linalg.norm(w), 0.2)),
    "equation": ({"constraints": [fd.constraints.Linear(ROW, [0.3], kind="==", scope="global")]},
                 lambda w: (0.0, [ROW @ w == 0.3]), None),
    "rows at sites": ({"constraints": [fd.constraints.Linear(ROW, [-0.1])]}, lambda w: (0.0, [ROW @ w <= -0.1]), None),
}  # fmt: skip
SENTENCE = re.compile(r"at most (\S+) above the optimum, which is at least (\S+) \(proved\)")
TILE = re.compile(r"(\S+) at most; proved by the ridge")


def optimum(loss, terms, ridge: float) -> float:
    """The least objective of the pooled problem; the ridge is that of each site."""
    w = cp.Variable(4)
    h, rows = terms(w)
    f = sum(cp.sum(loss(x @ w, y)) / len(y) for x, y in SITES) / len(SITES) + 0.5 * ridge * cp.sum_squares(w)
    tight = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
    return float(cp.Problem(cp.Minimize(f + h), rows).solve(solver=cp.CLARABEL, **tight))


def texts(run: fd.Run) -> list[str]:
    page = unescape(re.sub(r"<[^>]+>", " ", html.page({"run": run}, {})))
    return [str(run), " ".join(page.split()), card.card("run", run)]


def check(run: fd.Run, best: float, pages: bool = True) -> bool:
    """Whether something is said to be proved; it must be true, and every sentence that says so must be known here."""
    room = 1e-8 * (1.0 + abs(best))  # what CVXPY's optimum is uncertain by
    for text in texts(run) if pages else [str(run)]:
        sentences, tiles = SENTENCE.findall(text), [figure.replace("−", "-") for figure in TILE.findall(text)]
        assert text.count("proved") == len(sentences) + len(tiles), text
        for above, least in sentences:
            assert run.objective - best <= float(above) + room
            assert 0.0 <= float(least) <= best + room, "a loss is not negative, which is known without any measurement"
        assert all(run.objective - best <= float(above) + room for above in tiles)
    return bool(SENTENCE.search(str(run)))


@pytest.mark.parametrize(
    "name", ["logistic", *(pytest.param(n, marks=pytest.mark.slow) for n in LOSSES if n != "logistic")]
)
def test_what_is_called_proved_is_so(name):
    """At models near the optimum and far from it, with multipliers of the method and with poor ones."""
    (loss, stated_loss), told = LOSSES[name], 0
    for terms, stated, inside in TERMS.values():
        for ridge in (0.3, 1e-3):
            problem = fd.Problem(SITES, loss=loss, penalty=fd.penalties.Ridge(ridge, per_example=False), **terms)
            run = fd.solve(problem, fd.InteriorPoint(), seed=0)
            best = optimum(stated_loss, stated, ridge)
            assert check(run, best, pages=False)
            for away in (1e-4, 0.03, 1.0):
                w = run.w + away * rng.normal(size=4)
                w = w if inside is None else inside(w)
                objective, certificate = measure(
                    problem, jnp.asarray(w), {k: (1.0 + away) * v for k, v in run.multipliers.items()}
                )
                told += check(
                    replace(run, w=w, objective=objective, certificate=certificate), best, (away, ridge) == (0.03, 0.3)
                )
    assert told >= 10


def test_of_an_equation_that_is_not_met_the_multiplier_counts():
    """½‖w‖² with w₁ = 1 at w₁ = 1.1: the residual is 0, and what is left is paid by the multiplier."""
    sites = [(np.zeros((2, 2)), np.zeros(2))] * 2
    row = fd.constraints.Linear(np.array([[1.0, 0.0]]), [1.0], kind="==", scope="global")
    ridge = fd.penalties.Ridge(1.0, per_example=False)
    problem = fd.Problem(sites, loss=fd.losses.least_squares, penalty=ridge, constraints=[row])
    objective, certificate = measure(problem, jnp.array([1.1, 0.0]), {"global": np.array([-1.1])})
    assert certificate.stationarity == 0
    assert objective - 0.5 <= certificate.gap_bound


@pytest.mark.parametrize("weight", [1e-3, 1.0, 50.0])
def test_where_the_problem_is_its_ridge_alone_the_bound_is_exact(weight):
    """‖r‖²/2σ with r = σw is the objective itself, which is 0 at its minimum; ElasticNet's lam2 adds to σ."""
    w = np.array([0.3, -2.0])
    problem = fd.Problem(
        [(np.zeros((3, 2)), np.zeros(3)), (np.zeros((5, 2)), np.zeros(5))], loss=fd.losses.least_squares,
        penalty=fd.penalties.Ridge(weight), regularizer=fd.regularizers.ElasticNet(0.0, 2.0),
    )  # fmt: skip
    objective, certificate = measure(problem, jnp.asarray(w))
    assert objective == pytest.approx(0.5 * (weight * (1 / 3 + 1 / 5) / 2 + 2.0) * w @ w, rel=1e-12)
    assert certificate.gap_bound == pytest.approx(objective, rel=1e-12)


def test_a_bound_that_reaches_below_zero_is_not_told():
    """A loss is not negative; a run that was stopped early once had a best possible objective of -1881."""
    problem = fd.Problem(SITES, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(1e-6))
    run = fd.solve(problem, fd.FedAvg(), max_rounds=2)
    assert run.certificate.gap_bound > run.objective
    assert not any("proved" in text for text in texts(run))


def test_an_objective_of_zero_is_not_called_far_from_the_best():
    x = rng.normal(size=(9, 4))
    problem = fd.Problem([(x, np.zeros(9))] * 2, loss=fd.losses.least_squares)
    objective, certificate = measure(problem, jnp.full(4, 1e-17))
    assert certificate.gap is not None
    told = str(replace(certificate, gap=3.1e-16).optimality(objective))
    assert re.fullmatch(r"the objective is at most \S+e-3\d above the optimum, as it is never below 0", told)
    assert "far" not in str(certificate.optimality(objective))


class Shifted(Loss):
    """A logistic loss less 1: convex, and negative for many."""

    curvature = 0.25

    def value(self, z, y):
        return jnp.logaddexp(0.0, -y * z) - 1.0


def test_of_a_loss_that_may_be_negative_no_floor_is_taken_for_granted():
    ridge = fd.penalties.Ridge(0.01, per_example=False)
    problem = fd.Problem(SITES, loss=Shifted(), penalty=ridge)
    best = optimum(LOSSES["logistic"][1], TERMS["nothing"][1], 0.01) - 1.0
    objective, certificate = measure(problem, jnp.full(4, 0.4))
    above, least = SENTENCE.search(certificate.optimality(objective)).groups()
    assert objective - best <= float(above)
    assert float(least) <= best < 0


def bent(z, y):
    return jnp.sin(z - y)


def test_of_a_function_of_ones_own_nothing_is_called_proved():
    """Nobody has said that it is convex: with this one the bound of a ridge would be false."""
    problem = fd.Problem(SITES, loss=bent, penalty=fd.penalties.Ridge(0.5, per_example=False))
    _, certificate = measure(problem, jnp.zeros(4))
    assert certificate.gap_bound is None
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.3, loss=bent)
    problem = fd.Problem(SITES, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.5), constraints=[cap])
    _, certificate = measure(problem, jnp.zeros(4), {"local": np.ones((2, 1))})
    assert certificate.gap_bound is None


@pytest.mark.parametrize("value", [0.0481, 1.05, 1881.2, 3.1e-16, 0.5, 2.0, 0.0])
def test_a_bound_is_rounded_to_the_side_on_which_it_holds(value):
    for sign in (1.0, -1.0):
        assert sign * value <= float(at_most(sign * value)) <= sign * value + 0.11 * value
        assert sign * value - 2e-5 * value <= float(at_least(sign * value / 3.0)) * 3.0 <= sign * value + 1e-15 * value
    assert at_most(0.6) == "0.6"
