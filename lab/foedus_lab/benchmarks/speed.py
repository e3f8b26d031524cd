"""Gradients, rounds and solves against NumPy, and against the other frameworks that are installed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import foedus as fd
from foedus.problem.losses import Loss
from foedus.protocol.algorithm import Algorithm
from foedus.runtime import simulate
from foedus_lab.benchmarks import peers
from foedus_lab.benchmarks.harness import Measurement, in_turn

SQUARES = fd.losses.least_squares
# (clients, rows, dim)
SHAPES = ((128, 100, 100), (128, 70, 1024), (128, 1562, 200), (1000, 20, 50))


def random_problem(
    clients: int, rows: int, dim: int, loss: Loss = SQUARES
) -> tuple[fd.Problem, np.ndarray, np.ndarray]:
    """Return a problem of standard normal features and targets, or the targets' signs as labels, and its arrays."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((clients, rows, dim)), rng.standard_normal((clients, rows))
    y = y if loss.kind == "regression" else (y > 0).astype(float)
    return fd.Problem(fd.data.Stacked({"x": x, "y": y}), loss=loss), x, y


def gradients(quick: bool) -> list[Measurement]:
    """Time the gradients of all clients at one w, against two passes of numpy.sum over the features."""
    lines = []
    for shape in SHAPES:
        problem, x, _ = random_problem(*shape)
        terms, data, w = problem.terms, problem.data, jnp.zeros(shape[2])
        all_gradients = jax.jit(lambda w, data, terms=terms: jax.vmap(terms.gradient, in_axes=(None, 0))(w, data))
        times = in_turn(
            {
                "ours": lambda f=all_gradients, w=w, data=data: f(w, data).block_until_ready(),
                "two passes": lambda x=x: (x.sum(), x.sum()),
            },
            repeats=9 if quick else 41,
        )
        lines.append(Measurement(f"gradients, {shape}", times["ours"], "two passes", times["two passes"], limit=1.25))
    return lines


Slope = Callable[[np.ndarray, np.ndarray], np.ndarray]
SLOPES: dict[str, Slope] = {
    "least squares": lambda z, y: z - y,
    "logistic": lambda z, y: 1.0 / (1.0 + np.exp(-z)) - y,
}


def numpy_round(x: np.ndarray, y: np.ndarray, w: np.ndarray, steps: int, lr: float, slope: Slope) -> np.ndarray:
    """Play a FedAvg round in NumPy with all clients in one batch."""
    u = np.repeat(w[None], len(x), axis=0)
    for _ in range(steps):
        residual = slope(np.matmul(x, u[:, :, None])[:, :, 0], y)
        u -= lr / x.shape[1] * np.matmul(residual[:, None, :], x)[:, 0, :]
    return u.mean(axis=0)


def loop_round(x: np.ndarray, y: np.ndarray, w: np.ndarray, steps: int, lr: float, slope: Slope) -> np.ndarray:
    """Play a FedAvg round in NumPy as a Python loop over clients."""
    total = np.zeros_like(w)
    for features, targets in zip(x, y, strict=True):
        u = w.copy()
        for _ in range(steps):
            u = u - lr * (features.T @ slope(features @ u, targets)) / len(targets)
        total += u
    return total / len(x)


class Rounds:
    """Rounds of an algorithm in the simulator, without the time for compilation after the first call of `play`."""

    def __init__(self, problem: fd.Problem, algorithm: Algorithm):
        self.fit = algorithm.fit(problem)
        self.fixed = simulate.inputs_of(self.fit, fd.Fraction(1.0), seed=0)

    def play(self, rounds: int) -> int:
        """Play so many rounds from the start; returns the number played."""
        algorithm, problem = self.fit.algorithm, self.fit.problem
        start = simulate.start(algorithm, problem.terms, jnp.zeros(problem.terms.dim), self.fixed.data, problem.server)
        return int(simulate.chunk(algorithm, problem.terms, start, self.fixed, np.int64(rounds))[2])


def fedavg_round(quick: bool) -> list[Measurement]:
    """Time a FedAvg round of 5 full-batch steps with 128 clients, 100 rows and dimension 50.

    Only least squares has limits; the logistic loss is printed for comparison.
    """
    lines, many, w = [], 20, np.zeros(50)
    for name, slope in SLOPES.items():
        problem, x, y = random_problem(128, 100, 50, fd.losses.logistic if name == "logistic" else SQUARES)
        ours = Rounds(problem, fd.FedAvg(k0=5, lr=0.01, stop=None))
        times = in_turn(
            {
                "ours": lambda ours=ours: ours.play(many),
                "batch": lambda x=x, y=y, slope=slope: [numpy_round(x, y, w, 5, 0.01, slope) for _ in range(many)],
                "loop": lambda x=x, y=y, slope=slope: [loop_round(x, y, w, 5, 0.01, slope) for _ in range(many)],
            },
            repeats=5 if quick else 21,
        )
        mine, batch, loop = (times[key] / many for key in ("ours", "batch", "loop"))
        limits = (1.0, 5.0) if name == "least squares" else (None, None)
        lines += [
            Measurement(f"FedAvg round, {name}", mine, "NumPy in one batch", batch, limit=limits[0]),
            Measurement(f"Python loop over clients, {name}", loop, "foedus", mine, limit=limits[1], at_least=True),
        ]
    problem, x, y = random_problem(128, 100, 50)
    mine = lines[0].seconds
    others, remarks = peers.rounds(x, y, mine)
    if remarks:
        lines[0].extra["peers:"] = "; ".join(remarks)
    return lines + others


def thirds(clients: int = 128, dim: int = 100, seed: int = 0) -> fd.Problem:
    """Return Example V.1 of the FedGiA paper: equal thirds of three distributions, shuffled, 50-150 rows a client."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(50, 151, clients)
    total = int(counts.sum())
    sizes = [total // 3, total // 3, total - 2 * (total // 3)]
    parts = [
        rng.standard_normal((sizes[0], dim + 1)),
        rng.standard_t(5, (sizes[1], dim + 1)),
        rng.uniform(-5, 5, (sizes[2], dim + 1)),
    ]
    rows = rng.permutation(np.concatenate(parts))
    x, y = np.zeros((clients, 150, dim)), np.zeros((clients, 150))
    for i, (start, count) in enumerate(zip(np.cumsum(counts) - counts, counts, strict=True)):
        x[i, :count], y[i, :count] = rows[start : start + count, :dim], rows[start : start + count, dim]
    return fd.Problem(fd.data.Stacked({"x": x, "y": y}, counts=counts), loss=fd.losses.least_squares)


def fedgia_solve(quick: bool) -> list[Measurement]:
    """Time a FedGiA solve after compilation, with its Lipschitz constants, against NumPy gradients of all clients."""
    problem = thirds()
    x, y = np.asarray(problem.data["x"]), np.asarray(problem.data["y"])
    counts, w = problem.counts[:, None], np.zeros(x.shape[2])

    def gradient() -> np.ndarray:
        residual = x @ w - y
        return np.matmul(residual[:, None, :], x)[:, 0, :] / counts

    lines = []
    for k0 in (1, 5, 10):
        ours = Rounds(problem, fd.FedGiA(k0=k0))
        times = in_turn({"ours": lambda ours=ours: ours.play(1000), "numpy": gradient}, repeats=5 if quick else 15)
        line = Measurement(f"FedGiA solve, k0={k0}", times["ours"], "NumPy gradients", times["numpy"], limit=60.0)
        line.extra["rounds"] = ours.play(1000)
        lines.append(line)
    return lines
