"""Small problems of many kinds, drawn at random."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import cvxpy as cp
import numpy as np

import foedus as fd

DIM, NAMES, ROWS = 5, ("ash", "birch", "cedar"), 40


Sites = dict[str, tuple[np.ndarray, ...]]


@dataclass
class Case:
    """A random problem: its data, and the terms in foedus' words and in CVXPY's."""

    sites: Sites
    terms: list = field(default_factory=list)
    rows: Callable[[cp.Variable], list] = lambda w: []
    ridge: float = 1e-2
    h: object = None
    penalty: Callable[[cp.Variable], object] = lambda w: 0.0
    where: int | None = None  # the label that the objective is about
    meets: bool = True

    def problem(self) -> fd.Problem:
        more = {} if self.h is None else {"regularizer": self.h}
        where = {} if self.where is None else {"where": fd.label(self.where)}
        ridge = fd.penalties.Ridge(self.ridge, per_example=False)
        return fd.Problem(self.sites, loss=fd.losses.logistic, penalty=ridge, constraints=self.terms, **more, **where)

    def optimum(self) -> float:
        """The least objective, infinite where no point meets the terms; with columns in units in which they are 1."""
        units = np.max([np.sqrt(np.mean(site[0] ** 2, axis=0)) for site in self.sites.values()], axis=0)
        units = units if np.max(units) > 100.0 * np.min(units) else np.ones(DIM)
        v = cp.Variable(DIM)
        w = cp.multiply(v, 1.0 / units)
        f = sum(loss(site, self.where, w) for site in self.sites.values()) / len(self.sites)
        goal = f + 0.5 * self.ridge * cp.sum_squares(w) + self.penalty(w)
        made = cp.Problem(cp.Minimize(goal), self.rows(w))
        return solved(made)


def solved(made: cp.Problem) -> float:
    """CVXPY's optimum; where Clarabel fails, which it does on some of these, SCS is asked."""
    for tolerance in (1e-11, 1e-9, 1e-8, 1e-7, 1e-6):
        try:
            with warnings.catch_warnings(action="ignore"):  # an inaccurate answer is not used
                made.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        except cp.SolverError:
            continue
        if made.status in ("optimal", "infeasible"):
            return float(made.value)
    with warnings.catch_warnings(action="ignore"):
        made.solve(solver=cp.SCS, eps_abs=1e-9, eps_rel=1e-9, max_iters=200_000)
    assert made.status in ("optimal", "infeasible"), "the oracle gave no answer"
    return float(made.value)


def loss(site: tuple[np.ndarray, ...], k: int | None, w) -> cp.Expression:
    """The mean logistic loss of a label, or of all rows, in CVXPY's words."""
    x, y = site[:2]
    at = np.ones(len(y), bool) if k is None else y == k
    return cp.sum(cp.logistic(cp.multiply(1 - 2 * y[at], x[at] @ w))) / np.sum(at)


def drawn(rng: np.random.Generator, units: np.ndarray | float = 1.0) -> Sites:
    sites: Sites = {}
    truth = rng.normal(size=DIM)
    for name in NAMES:
        x = np.column_stack([rng.normal(size=(ROWS, DIM - 1)), np.ones(ROWS)])
        y = (x @ (truth + 0.3 * rng.normal(size=DIM)) + 2.0 * rng.normal(size=ROWS) > 0).astype(float)
        y[:2] = 0.0, 1.0
        sites[name] = (x * units, y)
    return sites


def cap(k: int, most: float, **more) -> fd.constraints.LossCap:
    return fd.constraints.LossCap(fd.label(k), at_most=most, **more)


def capped(sites: Sites, k: int, most: float) -> Callable[[cp.Variable], list]:
    return lambda w: [loss(site, k, w) <= most for site in sites.values()]


def least(sites: Sites, ks: tuple[int, ...]) -> float:
    """The least cap on these labels' losses that can be met at every site."""
    t, v = cp.Variable(), cp.Variable(DIM)
    return solved(cp.Problem(cp.Minimize(t), [loss(s, k, v) <= t for s in sites.values() for k in ks]))


def caps(rng: np.random.Generator) -> Case:
    sites, most = drawn(rng), rng.uniform(0.3, 0.6)
    return Case(sites, [cap(1, most)], capped(sites, 1, most), where=0)


def equalities(rng: np.random.Generator) -> Case:
    sites, C, d = drawn(rng), rng.normal(size=(2, DIM)), rng.normal(size=2)
    return Case(sites, [fd.constraints.Linear(C, d, "==", scope="global")], lambda w: [C @ w == d])


def coupled(rng: np.random.Generator) -> Case:
    sites, most = drawn(rng), rng.uniform(0.3, 0.6)
    rows = [cap(1, most, scope="coupled")]
    return Case(sites, rows, lambda w: [sum(loss(s, 1, w) for s in sites.values()) / len(sites) <= most], where=0)


def sparse(rng: np.random.Generator) -> Case:
    sites, lam, most = drawn(rng), 10.0 ** rng.uniform(-3, -1), rng.uniform(0.45, 0.65)
    return Case(
        sites, [cap(1, most)], capped(sites, 1, most),
        h=fd.regularizers.L1(lam), penalty=lambda w: lam * cp.norm1(w),
    )  # fmt: skip


def boxes(rng: np.random.Generator) -> Case:
    sites, low, high, most = drawn(rng), -rng.uniform(0.1, 0.5), rng.uniform(0.3, 1.0), 0.68
    rows = capped(sites, 1, most)
    return Case(sites, [cap(1, most)], lambda w: [*rows(w), w >= low, w <= high], h=fd.regularizers.Box(low, high))


def badly_scaled(rng: np.random.Generator) -> Case:
    sites, most = drawn(rng, 10.0 ** rng.uniform(-3, 3, size=DIM)), rng.uniform(0.3, 0.6)
    return Case(sites, [cap(1, most)], capped(sites, 1, most), where=0, ridge=1e-9)


def degenerate(rng: np.random.Generator) -> Case:
    """Rows stated twice, and a column that is the sum of two others."""
    sites, most = drawn(rng), rng.uniform(0.35, 0.6)
    for x, _ in sites.values():
        x[:, 0] = x[:, 1] + x[:, 2]
    C, d = rng.normal(size=(1, DIM)), np.full(1, 0.3)
    twice = [cap(1, most), cap(1, most), *[fd.constraints.Linear(C, d, "<=", scope="global") for _ in range(2)]]
    return Case(sites, twice, lambda w: [*capped(sites, 1, most)(w), C @ w <= d], where=0)


def infeasible(rng: np.random.Generator) -> Case:
    sites = drawn(rng)
    most = rng.uniform(0.3, 0.98) * least(sites, (0, 1))
    return Case(sites, [cap(0, most), cap(1, most)], meets=False)


def nearly_infeasible(rng: np.random.Generator) -> Case:
    """Caps that are at most 1 % above the least that can be met."""
    sites = drawn(rng)
    most = (1.0 + 10.0 ** rng.uniform(-4, -2)) * least(sites, (0, 1))
    return Case(sites, [cap(0, most), cap(1, most)], lambda w: [*capped(sites, 0, most)(w), *capped(sites, 1, most)(w)])


def gaps(rng: np.random.Generator) -> Case:
    sites = {name: (x, y, (rng.random(ROWS) < 0.5).astype(float)) for name, (x, y) in drawn(rng).items()}
    return Case(sites, [fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.1)])


KINDS = (caps, gaps, equalities, coupled, sparse, boxes, badly_scaled, degenerate, infeasible, nearly_infeasible)
