"""Examples V.1-V.3 of the FedGiA paper: instances, algorithms and tolerances as its sections V.A, V.B and V.D say.

Where the text leaves something open, we choose what reproduces Table IV's counts for FedAvg and FedProx on the
toxicity data: its columns are scaled to norm 1 (on 0/1 columns the printed step a = 0.5·d/m = 35.1 takes f from 0.69 to
31 in one round), that step is taken on the averaged f_i of (3), and the m groups are cut at random places. FedPD takes
all 5·k0 gradient steps of a round before it updates x_0 and λ_i. If it updates both after every five steps, it stays
away from the optimum of V.1 for k0 > 1; the table has that reading too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from foedus import losses, penalties
from foedus.algorithms import FedAvg, FedGiA, FedPD, FedProx
from foedus.algorithms.fedavg import FirstOrder
from foedus.data import loaders
from foedus.problem.penalties import Penalty
from foedus.problem.problem import Problem
from foedus.problem.stacked import Stacked

CLIENTS = 128
K0 = (1, 5, 10)
MOST_ROUNDS = 1000

FEATURES = 100  # n of V.1
MOST_ROWS = 150  # the largest d_i of V.1; all instances are padded to it, so that they share compiled programs

TOXICITY_EXAMPLES, TOXICITY_FEATURES = 8992, 1024
# (clients, most rows of each) by falling size in V.2 and V.3, for the same reason; two splits in three fit
TOXICITY_ROOM = ((4, 400), (12, 280), (34, 175), (78, 80))


def stack_clients(
    parts: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    rows: int,
    room: tuple[tuple[int, int], ...] | None = None,
) -> Stacked:
    """Return the clients' examples on a leading axis, each client padded to `rows` rows, with rectangles to work on."""
    x = np.zeros((len(parts), rows, parts[0].shape[1]))
    y = np.zeros((len(parts), rows))
    for i, (part, target) in enumerate(zip(parts, targets, strict=True)):
        x[i, : len(part)], y[i, : len(target)] = part, target
    return Stacked({"x": x, "y": y}, counts=np.array([len(part) for part in parts]), rectangles=room)


def linear_regression(seed: int, trial: int, clients: int = CLIENTS, heavy: int | None = None) -> Problem:
    """Return Example V.1: rows (a, b) that are normal, Student t with 5 degrees of freedom, or uniform on [-5, 5].

    There are `heavy` rows of each of the latter two. None means a third of all rows, as in the text; the released code
    has ceil(m/3).
    """
    draw = np.random.default_rng([seed, trial])
    counts = draw.integers(50, MOST_ROWS, clients, endpoint=True)
    d, width = int(counts.sum()), FEATURES + 1
    many = d // 3 if heavy is None else heavy
    rows = np.concatenate(
        [
            draw.standard_normal((d - 2 * many, width)),
            draw.standard_t(5, (many, width)),
            draw.uniform(-5, 5, (many, width)),
        ]
    )
    parts = np.split(draw.permutation(rows), np.cumsum(counts)[:-1])
    data = stack_clients([part[:, :-1] for part in parts], [part[:, -1] for part in parts], MOST_ROWS)
    return Problem(data, loss=losses.least_squares)


def toxicity_with_unit_columns() -> tuple[np.ndarray, np.ndarray]:
    """Return the toxicity data with every column of X scaled to norm 1."""
    X, y = loaders.toxicity()
    return X / np.linalg.norm(X, axis=0), y


def group_sizes(
    draw: np.random.Generator, examples: int, clients: int, room: tuple[tuple[int, int], ...]
) -> np.ndarray:
    """Return the sizes of a cut of `examples` rows at random places, drawn until all are above 0.025·d/m and fit."""
    fits = np.repeat([rows for _, rows in room], [many for many, _ in room])
    while True:
        cuts = np.sort(draw.choice(np.arange(1, examples), clients - 1, replace=False))
        sizes = np.diff(np.concatenate([[0], cuts, [examples]]))
        if sizes.min() > 0.025 * examples / clients and np.all(np.sort(sizes)[::-1] <= fits):
            return sizes


def logistic_regression(seed: int, trial: int, penalty: Penalty) -> Problem:
    """Return Example V.2 or V.3: the toxicity data, shuffled and cut into groups of random sizes."""
    X, y = toxicity_with_unit_columns()
    draw = np.random.default_rng([seed, trial])
    order = draw.permutation(len(X))
    parts = np.split(order, np.cumsum(group_sizes(draw, len(X), CLIENTS, TOXICITY_ROOM))[:-1])
    most = TOXICITY_ROOM[0][1]
    data = stack_clients([X[rows] for rows in parts], [y[rows] for rows in parts], most, TOXICITY_ROOM)
    return Problem(data, loss=losses.logistic, penalty=penalty)


@dataclass(frozen=True)
class RegressionExample:
    """One example with the constants of Table III and section V.D; `instance` makes it from a seed and a trial."""

    name: str
    title: str
    instance: Callable[[int, int], Problem]
    tol: float  # of (35)
    t: float  # σ = t·r/m
    fedavg: float  # a of γ_k(a) = a/log2(k+2)
    fedprox: float
    fedpd: float
    eta: float  # η of FedPD
    gradients: int  # the most gradients a client takes in one run, to end runs that do not pass the test
    data: Callable[[], object] = tuple  # loads what `instance` needs, or raises FoedusError

    def algorithms(self, k0: int, stop: str) -> dict[str, FirstOrder]:
        """Return the five algorithms of Table IV by their names and in their order there."""
        rule = {"tol": self.tol, "stop": stop}
        return {
            "FedAvg": FedAvg(k0=k0, lr=self.fedavg, decay="log", **rule),
            "FedProx": FedProx(k0=k0, mu=1e-4, steps=5, lr=self.fedprox, decay="log", **rule),
            "FedPD": FedPD(k0=1, steps=5 * k0, lr=self.fedpd, eta=self.eta, decay="log", **rule),
            "FedGiA_D": FedGiA(k0=k0, H="diagonal", alpha=0.5, t=self.t, **rule),
            "FedGiA_G": FedGiA(k0=k0, H="gram", alpha=0.5, t=self.t, **rule),
        }

    def variants(self, k0: int, stop: str) -> dict[str, FirstOrder]:
        """Return other readings of section V.D, where Table IV and the text disagree."""
        if self.name != "V.1":
            return {}
        rule = {"tol": self.tol, "stop": stop}
        larger_step = FedProx(k0=k0, mu=1e-4, steps=5, lr=0.003, decay="log", **rule)
        literal = FedPD(k0=k0, steps=5, lr=self.fedpd, eta=self.eta, decay="log", **rule)
        readings: dict[str, FirstOrder] = {"FedProx, a = 0.003": larger_step}
        return readings | {"FedPD, λ at every k": literal} if k0 > 1 else readings

    def gradient_descent(self, problem: Problem, stop: str) -> FirstOrder:
        """Return gradient descent with step 1/(t·r), which FedGiA approaches as k0 grows."""
        r = jnp.max(jax.vmap(lambda data: problem.terms.lipschitz(jnp.zeros(problem.terms.dim), data))(problem.data))
        return FedAvg(k0=1, lr=1.0 / (self.t * float(r)), tol=self.tol, stop=stop)

    def limit(self, algorithm: FirstOrder, gradients: int | None = None) -> int:
        """Return the limit of rounds: the paper's 1000, or fewer if a round costs a client many gradients."""
        most = self.gradients if gradients is None else gradients
        return max(1, min(MOST_ROUNDS, most // gradients_in_a_round(algorithm)))


def gradients_in_a_round(algorithm: FirstOrder) -> int:
    """Return how many gradients a client computes between two communications."""
    if isinstance(algorithm, FedGiA):
        return 1
    return getattr(algorithm, "k0", 1) * getattr(algorithm, "steps", 1)


def ridge(seed: int, trial: int) -> Problem:
    """Return Example V.2 on the toxicity data."""
    return logistic_regression(seed, trial, penalties.Ridge(1e-3))


def saturating(seed: int, trial: int) -> Problem:
    """Return Example V.3 on the toxicity data."""
    return logistic_regression(seed, trial, penalties.Saturating(1e-2))


_LOGISTIC = {
    "tol": 5e-6 / TOXICITY_EXAMPLES,
    "t": max(0.025, 4 * math.log(TOXICITY_EXAMPLES) / TOXICITY_FEATURES),
    "fedavg": 0.5 * TOXICITY_EXAMPLES / CLIENTS,
    "fedprox": 0.5 * TOXICITY_EXAMPLES / CLIENTS,
    "fedpd": 0.5 * TOXICITY_EXAMPLES / CLIENTS,
    "eta": max(400.0, TOXICITY_EXAMPLES / 50),
    "gradients": 1000,
    "data": toxicity_with_unit_columns,
}

V1 = RegressionExample(
    "V.1",
    "Example V.1, linear regression",
    linear_regression,
    tol=1e-7,
    t=0.15,
    fedavg=0.01,
    fedprox=0.001,
    fedpd=0.05,
    eta=1.0,
    gradients=10_000,
)
V2 = RegressionExample("V.2", "Example V.2, logistic regression on the toxicity data (qot)", ridge, **_LOGISTIC)
V3 = RegressionExample("V.3", "Example V.3, the same with a non-convex penalty (qot)", saturating, **_LOGISTIC)
EXAMPLES = (V1, V2, V3)
