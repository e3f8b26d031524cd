"""What several tests share."""

from dataclasses import dataclass

import numpy as np
import robust_oracles as oracle
from robust_cases import LOSSES

import foedus as fd
from foedus.app.estimators.rows import WEIGHTS, WeightedMask


@dataclass(frozen=True)
class Case:
    """A loss by name, sites of (X, y, whole weights), and the settings of DRFL."""

    loss: str
    sites: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    radius: float
    kappa: float = np.inf
    metric: str = "l1"
    theta: float = 0.0
    p: object = 1
    support: tuple[np.ndarray, np.ndarray] | None = None

    def run(self) -> fd.Run:
        rows = [{"x": x, "y": y, WEIGHTS: weight} for x, y, weight in self.sites]
        algorithm = fd.DRFL(
            radius=self.radius, kappa=self.kappa, metric=self.metric, theta=self.theta, p=self.p, support=self.support
        )
        return fd.solve(fd.Problem(rows, loss=LOSSES[self.loss][0], where=WeightedMask()), algorithm)

    def best(self) -> float:
        sites = [[np.repeat(part, weight.astype(int), axis=0) for part in (x, y)] for x, y, weight in self.sites]
        sizes = np.array([len(y) for _, y in sites])
        given = (self.radius, self.kappa, self.metric, self.support, self.theta, self.p, sizes / sizes.sum())
        return oracle.program(self.loss, LOSSES[self.loss][1], sites, *given)


def site(x: list[list[float]], y: list[float], weight: list[float] | None = None):
    return np.array(x), np.array(y), np.ones(len(y)) if weight is None else np.array(weight)


def separable() -> Case:
    """Five rows in twelve columns: at the optimum no sample loses anything, and wide slacks have closed."""
    draw = np.random.default_rng(9)
    x, weight = draw.random((5, 12)), draw.integers(1, 5, size=5).astype(float)
    x[:, -1] = 1.0
    return Case("hinge", [(x, np.where(np.arange(5) < 3, 1.0, -1.0), weight)], 0.01)


KNOWN = {
    "separable": separable(),
    "a start without a loss": Case(
        "epsilon_insensitive",
        [site([[0.35]], [-0.54]), site([[-1.2]], [0.04]), site([[-0.97]], [1.16]), site([[1.28]], [-0.82])],
        0.05,
    ),
    "a ball that costs more than the loss": Case(
        "huber", [site([[-1.28, 1.0, -0.82]], [-0.29], [2.0]), site([[0.1, 1.0, 0.1]], [-0.015])], 0.5, 1.0
    ),
    "a short step that is too long": Case(
        "smooth_hinge",
        [
            site([[-1.27989091, 0.37054487, -0.20508259]], [1.0], [2.0]),
            site([[1.0, 0.29374975, 1.87998864]], [-1.0]),
            site([[0.2, -0.9, 1.0]], [1.0]),
        ],
        0.001, 0.3, "linf",
    ),
    "columns of zeros": Case(
        "epsilon_insensitive", [site([[0.0], [0.0]], [-0.75, -0.75]), site([[0.0]], [0.68])], 0.0, 1.0, "l1", 2.0, "inf"
    ),
    "a row at each site": Case(
        "hinge", [site([[-1.46796432, -1.01469081]], [-1.0]), site([[1.24748493, 0.25656366]], [1.0])], 0.001, 1.0
    ),
}  # fmt: skip
