"""The problems of the constrained-learning paper (first version, section 5): (25), (26) and (28).

Some of their data are no longer public. The quadratic programs are drawn again from the generator behind Table 1. The
Neyman-Pearson sets had 20 or 21 columns in an unknown encoding: here categories are numbered, every column is
standardised, and a constant column is added, without which the caps of monks-1 and Adult cannot be met. For fairness,
rows are drawn from Adult in the encoding of adult-b: 22,654 of its training rows and 5,659 of its test rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus import losses
from foedus.algorithms import CentralProxAL, ProxAL
from foedus.base.errors import FoedusError
from foedus.data import loaders, split
from foedus.problem.constraints import Linear, LossCap, LossGap
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, group, label
from foedus_lab import datasets

if TYPE_CHECKING:
    import cvxpy as cp

CLIENTS = (1, 5, 10, 20)
STARTS = 10
CAP = 0.2  # r of (26)
GAP = 0.1  # r of (28)
AT_CLIENTS, AT_SERVER = 22_654, 5_659  # rows of (28)


@dataclass(frozen=True)
class Settings:
    """β and s̄ of section 5, for the algorithms that share them; ε1 = ε2 = 1e-3 throughout."""

    beta: float
    s_bar: float

    def ours(self) -> ProxAL:
        """Algorithm 1 with the default inner method."""
        return ProxAL(beta=self.beta, s_bar=self.s_bar)

    def paper(self, rho: float) -> ProxAL:
        """Algorithm 1 with Algorithm 2 inside."""
        return ProxAL(beta=self.beta, s_bar=self.s_bar, inner="admm", rho=rho)

    def central(self) -> CentralProxAL:
        """Algorithm 3."""
        return CentralProxAL(beta=self.beta, s_bar=self.s_bar)


QUADRATIC = Settings(beta=10.0, s_bar=0.1)
PEARSON = Settings(beta=300.0, s_bar=1e-3)
FAIR = Settings(beta=10.0, s_bar=1e-3)


def starts(seed: int, count: int, dim: int) -> list[np.ndarray]:
    """Return points w⁰ on the unit sphere."""
    directions = np.random.default_rng(seed).standard_normal((count, dim))
    return list(directions / np.linalg.norm(directions, axis=1, keepdims=True))


# --- (25): quadratic programs under linear equalities ---


def quadratic(w: Array, data: Data) -> Array:
    """Return ½wᵀAw + bᵀw."""
    return 0.5 * jnp.dot(w, data["A"] @ w) + jnp.dot(data["b"], w)


@dataclass(frozen=True)
class Quadratic:
    """min Σ ½wᵀA_i w + b_iᵀw subject to C_i w + d_i = 0 at every client and at the server.

    Row n of C and d is the server's.
    """

    A: np.ndarray  # (clients, dim, dim)
    b: np.ndarray  # (clients, dim)
    C: np.ndarray  # (clients + 1, rows, dim)
    d: np.ndarray  # (clients + 1, rows)

    @staticmethod
    def as_printed(dim: int, clients: int) -> "Quadratic":
        """Return the instance behind a row of Table 1: legacy NumPy draws from the seed 10, and d_0 = 0."""
        return _draw(np.random.RandomState(10), dim, clients, at_server=False)

    @staticmethod
    def as_described(seed: int, dim: int, clients: int) -> "Quadratic":
        """Return an instance as the text describes it: d_0 is on the unit sphere too."""
        return _draw(np.random.RandomState(seed % 2**32), dim, clients, at_server=True)

    @property
    def clients(self) -> int:
        return len(self.A)

    def problem(self) -> Problem:
        """Return the program for foedus, which minimises (1/n) Σ f_i; a factor n in f_i makes its objective the sum."""
        n = self.clients
        sites = [{"A": n * A, "b": n * b} for A, b in zip(self.A, self.b, strict=True)]
        return Problem(
            sites,
            objective=quadratic,
            constraints=[
                Linear(self.C[:n], -self.d[:n], "=="),
                Linear(self.C[n], -self.d[n], "==", scope="global"),
            ],
        )

    def optimum(self) -> float:
        """Return the optimal value, by CVXPY."""
        import cvxpy as cp

        w = cp.Variable(self.b.shape[1])
        value = 0.5 * cp.quad_form(w, np.sum(self.A, axis=0), assume_PSD=True) + np.sum(self.b, axis=0) @ w
        return _minimum(
            cp.Problem(cp.Minimize(value), [np.concatenate(self.C) @ w + np.concatenate(self.d) == 0]), 1e-9
        )


def _draw(draw: np.random.RandomState, dim: int, clients: int, at_server: bool) -> Quadratic:
    parties, rows = clients + 1, dim // 100
    A = np.empty((parties, dim, dim))
    for i in range(parties):
        eigenvalues = draw.rand(dim) * 0.5 + 0.5
        draw.permutation(dim)  # the authors' generator draws this too, and does not use it
        U = np.linalg.svd(draw.randn(dim, dim))[0]
        A[i] = (U * eigenvalues) @ U.T
    b = draw.randn(dim, parties)
    C = draw.normal(loc=0.0, scale=1.0 / np.sqrt(dim), size=(rows, dim, parties))
    d = draw.randn(rows, parties)
    d /= np.linalg.norm(d, axis=0)
    if not at_server:
        d[:, -1] = 0.0
    return Quadratic(A[:clients], (b / np.linalg.norm(b, axis=0)).T[:clients], np.moveaxis(C, 2, 0), d.T)


# --- (26): Neyman-Pearson classification ---


@dataclass(frozen=True)
class ClassificationData:
    """A data set of Table 2: its name there, and the function that loads it here."""

    name: str
    load: Callable[[], tuple[np.ndarray, np.ndarray]]

    def problem(self, clients: int, seed: int) -> Problem:
        """Return (26): least mean loss on class 0, while the mean loss on class 1 is at most 0.2 at every client."""
        return Problem(
            split(*self.load(), clients=clients, seed=seed, by="label"),
            loss=losses.logistic,
            where=label(0),
            constraints=[LossCap(label(1), CAP)],
        )

    def without_constraints(self, clients: int, seed: int) -> Problem:
        """Return (71): least mean loss over both classes."""
        return Problem(split(*self.load(), clients=clients, seed=seed, by="label"), loss=losses.logistic)


def standardise(X: np.ndarray) -> np.ndarray:
    """Return columns of mean 0 and variance 1, and a constant one."""
    return np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])


@lru_cache(maxsize=1)
def _breast() -> tuple[np.ndarray, np.ndarray]:
    X, y = loaders.breast_cancer_wisconsin()
    return standardise(X), y


@lru_cache(maxsize=1)
def _adult() -> tuple[np.ndarray, np.ndarray]:
    X, y = datasets.integer_coded()
    return standardise(X), y


@lru_cache(maxsize=1)
def _monks() -> tuple[np.ndarray, np.ndarray]:
    X, y = datasets.monks()
    return standardise(X), y


BREAST = ClassificationData("breast-cancer-wisc", _breast)
ADULT = ClassificationData("adult-a", _adult)
MONKS = ClassificationData("monks-1", _monks)
SETS = (BREAST, ADULT, MONKS)


def available_sets() -> tuple[list[ClassificationData], list[str]]:
    """Return the data sets of Table 2 that can be read, and a sentence on each that cannot."""
    sets, absent = [], []
    for examples in SETS:
        try:
            examples.load()
            sets.append(examples)
        except FoedusError as error:
            absent.append(f"{examples.name} left out: {error}")
    if not sets:
        raise FoedusError(absent[0].removesuffix(".") + ".")
    return sets, absent


def class_losses(problem: Problem, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each client's mean loss on class 0 and on class 1."""
    pairs = []
    for i in range(problem.terms.clients):
        loss, y = _losses(problem.client(i), w)
        pairs.append((loss[y == 0].mean(), loss[y == 1].mean()))
    zero, one = np.array(pairs).T
    return zero, one


def pooled_optimum(problem: Problem) -> float:
    """Return the optimal value of (26) on all clients' data, by CVXPY."""
    import cvxpy as cp

    w = cp.Variable(problem.terms.dim)
    value, caps = 0, []
    for i in range(problem.terms.clients):
        data = problem.client(i)
        X, y = np.asarray(data["x"]), np.asarray(data["y"])
        value += cp.sum(cp.logistic(X[y == 0] @ w)) / (problem.terms.clients * np.sum(y == 0))
        caps.append(cp.sum(cp.logistic(-X[y == 1] @ w)) / np.sum(y == 1) <= CAP)
    return _minimum(cp.Problem(cp.Minimize(value), caps), 1e-6)


def _minimum(program: "cp.Problem", tolerance: float) -> float:
    program.solve(solver="CLARABEL", tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
    if program.status != "optimal":
        raise ArithmeticError(f"CVXPY ended with the status {program.status}")
    return float(np.asarray(program.value))


# --- (28): fairness ---


@lru_cache(maxsize=1)
def _adult_b() -> datasets.AdultB:
    return datasets.adult_b()


def fairness_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows of adult-b go to the clients and which to the server."""
    training = _adult_b().training
    draw = np.random.default_rng(seed)
    return (
        draw.choice(np.flatnonzero(training), AT_CLIENTS, replace=False),
        draw.choice(np.flatnonzero(~training), AT_SERVER, replace=False),
    )


def fairness(clients: int, seed: int, with_constraints: bool = True) -> Problem:
    """Return (28), or (72) without constraints: least mean loss, with a small gap between the sexes at every party."""
    table = _adult_b()
    ours, server = fairness_rows(seed)
    gaps = [LossGap(group(0), group(1), GAP), LossGap(group(0), group(1), GAP, scope="global")]
    return Problem(
        split(table.X[ours], table.y[ours], table.sex[ours], clients=clients, seed=seed, by="label"),
        loss=losses.logistic,
        constraints=gaps if with_constraints else (),
        server=(table.X[server], table.y[server], table.sex[server]),
    )


def disparities(problem: Problem, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each client's mean loss, and the gap between the sexes at each client and, last, at the server."""
    assert problem.server is not None
    means, gaps = [], []
    for data in (*(problem.client(i) for i in range(problem.terms.clients)), problem.server):
        loss, sex = _losses(data, w)[0], np.asarray(data["group"])
        means.append(loss.mean())
        gaps.append(abs(loss[sex == 0].mean() - loss[sex == 1].mean()))
    return np.array(means[:-1]), np.array(gaps)


def _losses(data: Data, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = np.asarray(data["y"])
    return np.logaddexp(0.0, np.where(y > 0, -1.0, 1.0) * (np.asarray(data["x"]) @ w)), y
