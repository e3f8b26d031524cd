"""Every constant of the interior-point methods matters: for each there is a run that does worse with a tenfold one.

A problem comes with the end that its run has, and the most rounds that it may take. With another value of the constant
the run ends otherwise, or takes longer.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields

import jax.numpy as jnp
import numpy as np
import pytest
from constrained_cases import DIM, Coupled, Quadratic
from contradictions import UNITS
from contradictions import problem as opposed
from hard_scales_setup import weak
from hock_schittkowski import PROBLEMS as PRINTED
from hock_schittkowski_setup import posed
from infeasible_problems import contradictory
from interior_point_setup import bowl, ring
from random_problems import KINDS, infeasible
from robust_cases import LOSSES, clients
from robust_degenerate_setup import KNOWN, Case, site
from separable_rows import logistic, slope
from separable_rows import sites as separable

import foedus as fd
from foedus.algorithms.interior.constants import METHOD, Method
from foedus.algorithms.interior.learnt import products_of, rounds_of
from foedus.base.pytrees import nbytes
from foedus.numerics.interpreter import dispatch
from foedus.numerics.limited_memory import LimitedMemory

POINT, START = fd.InteriorPoint(), np.zeros(DIM)
LEAST_CAP = 0.6774279322103417  # of these sites, by CVXPY: `least_cap(0)` of test_contradiction


@dataclass(frozen=True)
class Ending:
    """A run, and how it ends: within so many rounds, with these words."""

    run: Callable[[], fd.Run]
    rounds: int
    words: str = "converged after"

    def comes(self) -> bool:
        run = self.run()
        return run.rounds <= self.rounds and self.words in run.reason


def printed(number: int, dealing: str = "one site") -> fd.Run:
    stated = PRINTED[number]
    return fd.solve(posed(stated, dealing)[0], POINT, w0=np.asarray(stated.start, float), max_rounds=120)


def circle() -> fd.Run:
    sites = [{"b": np.array([0.1, 0.05 * i, 0.0])} for i in range(3)]
    problem = fd.Problem(sites, objective=bowl, constraints=[fd.constraints.Custom(ring, name="ring")])
    return fd.solve(problem, POINT, w0={"a": np.array([0.3, 0.1]), "c": np.array([[0.4]])})


def logarithm(w, data):
    return jnp.sum(w - 0.01 * jnp.log(w)) + 0.0 * jnp.sum(data["b"])


def gentle_slope() -> fd.Run:
    problem = fd.Problem([{"b": np.full(2, 1e-5)}], objective=slope)
    return fd.solve(problem, POINT, w0=np.zeros(2), max_rounds=60)


def capped(cap: float, units: str, participation: float = 1.0) -> fd.Run:
    """Caps on both labels, below the least that can be met."""
    problem = opposed(0, cap, UNITS[units])
    return fd.solve(problem, POINT, participation=participation, max_rounds=150)


def unmeetable_by_rounding() -> fd.Run:
    """Tolerances beyond what rounding allows."""
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.5)
    return fd.solve(logistic(cap, where=fd.label(0)), fd.InteriorPoint(eps1=1e-16, eps2=1e-16))


def without_minimiser() -> fd.Run:
    split = {name: (x, (x[:, 0] > 0).astype(float)) for name, (x, _) in separable().items()}
    return fd.solve(fd.Problem(split, loss=fd.losses.logistic), POINT)


def contradictory_caps() -> fd.Run:
    case = infeasible(np.random.default_rng([KINDS.index(infeasible), 22]))
    return fd.solve(case.problem(), POINT, max_rounds=60)


def silent_sites() -> fd.Run:
    """Huber's loss, with replies that are lost."""
    algorithm = fd.DRFL(radius=0.1, kappa=0.7, metric="l2", theta=0.3, p=1)
    problem = fd.Problem(clients("huber", 0), loss=LOSSES["huber"][0])
    return fd.solve(problem, algorithm, participation=fd.Fraction(1.0, dropout=0.3), seed=4)


def far_start() -> fd.Run:
    algorithm = fd.DRFL(radius=0.1, kappa=0.7, metric="l1", theta=0.3, p=2)
    return fd.solve(fd.Problem(clients("hinge", 0), loss=fd.losses.hinge), algorithm, w0=np.full(4, 50.0))


def few_rows() -> fd.Run:
    """Rows at two sites that point the same way, where a step that was shortened raises the error."""
    alike = [[0.0, -0.40692566], [0.0, -0.57985499], [0.0, -0.3315847], [0.0, -0.40692566]]
    others = [[-1.12541247, -2.29625683], [0.1430271, -0.07360143], [-2.47784086, -1.29289074]]
    sites = [site(alike, [-1.0, 1.0, -1.0, -1.0]), site(others, [-1.0, 1.0, -1.0])]
    return Case("smooth_hinge", sites, 0.001, 0.3, "linf", 0.3, 1).run()


def beyond_rounding() -> fd.Run:
    algorithm = fd.DRFL(radius=0.1, kappa=0.7, metric="l2", theta=0.3, p=2, tol=1e-16)
    return fd.solve(fd.Problem(clients("hinge", 0), loss=fd.losses.hinge), algorithm, max_rounds=150)


NEAR = "estimated distance to the optimum"
RUNS = {
    "quadratic": Ending(lambda: fd.solve(Quadratic.random(1).problem(), POINT, w0=START), 9),
    "far start": Ending(lambda: fd.solve(Quadratic.random(1).problem(), POINT, w0=np.full(DIM, 50.0)), 17),
    "sparse": Ending(
        lambda: fd.solve(Coupled.random(5).problem(regularizer=fd.regularizers.L1(0.6)), POINT, w0=START), 15
    ),
    "ring": Ending(circle, 10),
    "logarithm": Ending(
        lambda: fd.solve(fd.Problem([{"b": np.ones(1)}] * 2, objective=logarithm), POINT, w0=np.full(2, 5.0)), 80
    ),
    "weak": Ending(lambda: fd.solve(weak(0).problem(), POINT), 33),
    "printed 2": Ending(lambda: printed(2), 20),
    "printed 3": Ending(lambda: printed(3), 20),
    "printed 36": Ending(lambda: printed(36), 40),
    "printed 63": Ending(lambda: printed(63, "everywhere"), 17),
    "gentle slope": Ending(gentle_slope, 20, "unbounded"),
    "contradictory rows": Ending(
        lambda: fd.solve(contradictory().problem(), POINT, w0=START), 10, "no feasible point was found: "
    ),
    "contradictory caps": Ending(contradictory_caps, 40, "these rows contradict each other"),
    "caps far below": Ending(lambda: capped(0.1, "one"), 60, "these rows contradict each other"),
    "caps with silent sites": Ending(
        lambda: capped(0.95 * LEAST_CAP, "mixed", participation=0.5), 60,
        "these rows contradict each other",
    ),
    "beyond rounding": Ending(unmeetable_by_rounding, 100, "rounding allows no smaller residuals"),
    "no minimiser": Ending(without_minimiser, 25, "there may be no minimiser"),
    "robust, silent sites": Ending(silent_sites, 32, NEAR),
    "robust, beyond rounding": Ending(beyond_rounding, 90, NEAR),
    "robust, far start": Ending(far_start, 30, NEAR),
    "robust, separable": Ending(KNOWN["separable"].run, 35, NEAR),
    "robust, few rows": Ending(few_rows, 32, NEAR),
    "robust, short step": Ending(KNOWN["a short step that is too long"].run, 30, NEAR),
    "robust, columns of zeros": Ending(KNOWN["columns of zeros"].run, 30, NEAR),
}  # fmt: skip


@dataclass(frozen=True)
class Need:
    """A constant, the factor by which it is changed, and the run that then ends otherwise."""

    name: str
    factor: float
    run: str

    def __str__(self) -> str:
        return f"{self.name} times {self.factor:g}"

    @property
    def value(self) -> object:
        value = getattr(METHOD, self.name)
        if isinstance(value, tuple):  # the shares, and not the lengths of steps to which they belong
            return tuple((bound, self.factor * share) for bound, share in value)
        return max(1, round(self.factor * value)) if isinstance(value, int) else self.factor * value


NEEDS = [  # the second one of a constant is slow: the other direction
    Need("streak", 0.1, "robust, silent sites"),
    Need("fall", 10.0, "far start"),
    Need("power", 10.0, "ring"),
    Need("central", 0.1, "ring"),
    Need("memory", 0.1, "quadratic"),
    pytest.param(Need("memory", 10.0, "contradictory rows"), marks=pytest.mark.slow),
    Need("away", 0.1, "ring"),
    Need("leeway", 0.1, "printed 63"),
    Need("least_cut", 0.1, "logarithm"),
    Need("most_cut", 10.0, "printed 3"),
    Need("shortest", 10.0, "printed 36"),
    Need("longer", 0.1, "gentle slope"),
    Need("boundary", 10.0, "sparse"),
    pytest.param(Need("boundary", 0.1, "far start"), marks=pytest.mark.slow),
    Need("hidden", 10.0, "printed 63"),
    Need("delta", 10.0, "weak"),
    pytest.param(Need("delta", 0.1, "contradictory caps"), marks=pytest.mark.slow),
    Need("least_share", 10.0, "weak"),
    Need("room", 10.0, "weak"),
    pytest.param(Need("room", 0.1, "weak"), marks=pytest.mark.slow),
    Need("weight", 10.0, "sparse"),
    pytest.param(Need("weight", 0.1, "weak"), marks=pytest.mark.slow),
    Need("many", 10.0, "sparse"),
    Need("least_product", 10.0, "printed 2"),
    pytest.param(Need("least_product", 0.1, "caps with silent sites"), marks=pytest.mark.slow),
    Need("far", 10.0, "contradictory caps"),
    Need("same", 10.0, "contradictory rows"),
    Need("smaller", 10.0, "caps with silent sites"),
    Need("patient", 10.0, "caps with silent sites"),
    Need("idle", 10.0, "beyond rounding"),
    pytest.param(Need("idle", 0.1, "gentle slope"), marks=pytest.mark.slow),
    Need("long_idle", 0.1, "caps far below"),
    Need("long", 10.0, "no minimiser"),
    Need("falls_after", 10.0, "robust, beyond rounding"),
    Need("bearable", 0.1, "robust, few rows"),
    Need("improved", 10.0, "robust, beyond rounding"),
    Need("patience", 10.0, "robust, beyond rounding"),
    Need("allowed", 0.1, "robust, separable"),
    Need("least_kept", 10.0, "robust, separable"),
    Need("last_kept", 10.0, "robust, short step"),
    Need("edge", 10.0, "robust, silent sites"),
    pytest.param(Need("edge", 0.1, "robust, columns of zeros"), marks=pytest.mark.slow),
    Need("first_product", 0.1, "robust, far start"),
]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_as_it_should(name):
    assert RUNS[name].comes()


@pytest.mark.parametrize("need", NEEDS, ids=str)
@pytest.mark.slow
def test_with_a_tenfold_constant_a_run_ends_otherwise_or_takes_longer(monkeypatch, need):
    monkeypatch.setitem(vars(METHOD), need.name, need.value)
    monkeypatch.setattr(dispatch, "_programs", OrderedDict())  # with the constants that they were traced with
    assert not RUNS[need.run].comes()


# how much is sent, how often, and how much the server keeps, where it learns the curvature of 2,000 columns
LIMITS = {
    "products": lambda terms: products_of(terms) * terms.dim * 8 <= 2.1e6,
    "most_rounds": lambda terms: rounds_of(terms) <= 8,
    "depth": lambda terms: nbytes(LimitedMemory.empty(terms.dim, METHOD.depth)) <= 2e6,
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_tenfold_limit_is_beyond_what_a_message_or_the_server_holds(monkeypatch, name):
    sites = [(np.ones((1, 2000)), np.ones(1))] * 5
    rows = fd.constraints.Linear(np.ones((400, 2000)), np.ones(400))
    terms = fd.Problem(sites, loss=fd.losses.least_squares, constraints=[rows]).terms
    assert LIMITS[name](terms)
    monkeypatch.setitem(vars(METHOD), name, 10 * getattr(METHOD, name))
    assert not LIMITS[name](terms)


def test_every_constant_is_needed():
    assert {need.name for need in NEEDS if isinstance(need, Need)} | LIMITS.keys() == {
        field.name for field in fields(Method)
    }
