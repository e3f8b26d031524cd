"""Losses, metrics, supports and instances that the tests of robust learning share."""

from itertools import product

import numpy as np

import foedus as fd

# the loss by its name in `robust_oracles`, and its eps there
LOSSES = {
    "hinge": (fd.losses.hinge, 0.0),
    "smooth_hinge": (fd.losses.smooth_hinge, 0.0),
    "logistic": (fd.losses.logistic, 0.0),
    "huber": (fd.losses.huber(0.5), 0.5),
    "epsilon_insensitive": (fd.losses.epsilon_insensitive(0.1), 0.1),
    "pinball": (fd.losses.pinball(0.3), 0.3),
}
LINEAR = ("hinge", "epsilon_insensitive", "pinball")
METRICS = ("l1", "l2", "linf")
NORMS = (1, 2, "inf")
LOW, HIGH = -1.0, 1.2
CLOSED = [(name, metric, None) for name, metric in product(LOSSES, METRICS)] + [(name, "l1", "box") for name in LINEAR]
OPEN = [(name, metric, "polyhedron") for name, metric in product(LINEAR, METRICS)]
OPEN += [(name, metric, "box") for name, metric in product(LINEAR, ("l2", "linf"))]


def polyhedron(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """A box whose corners are cut off."""
    C = np.vstack([np.eye(dim), -np.eye(dim), np.ones((1, dim))])
    return C, np.concatenate([np.full(2 * dim, 1.1), [1.1 * dim]])


def support(kind: str | None, dim: int):
    """A support as foedus takes it, and as the oracle does."""
    import robust_oracles

    if kind is None:
        return None, None
    if kind == "box":
        return (LOW, HIGH), robust_oracles.box(np.full(dim, LOW), np.full(dim, HIGH))
    return polyhedron(dim), polyhedron(dim)


def check_step(found, value: float, theirs: tuple[np.ndarray, float], a: float, b: np.ndarray) -> None:
    """v is the worst case of ŵ, whose value is measured apart; CVXPY's own point (w, v) is no better, and near."""
    assert abs(float(found.v) - max(value, a)) <= 1e-7
    ours = 0.5 * np.sum((np.asarray(found.w) - b) ** 2) + 0.5 * max(value - a, 0.0) ** 2
    best = 0.5 * np.sum((theirs[0] - b) ** 2) + 0.5 * (theirs[1] - a) ** 2
    assert ours <= best + 1e-8 * (1.0 + best)
    assert np.max(np.abs(found.w - theirs[0])) <= 2e-5


def clients(name: str, seed: int, sites: int = 4, dim: int = 4, sizes: tuple[int, int] = (24, 25)):
    """Sites whose own models differ; labels -1/+1 for classification."""
    rng = np.random.default_rng(seed)
    centre, made = rng.normal(size=dim), []
    for _ in range(sites):
        rows = int(rng.integers(*sizes))
        X = np.clip(0.5 * rng.normal(size=(rows, dim)), -1.0, 1.0)
        z = X @ (centre + 0.5 * rng.normal(size=dim)) + 0.3 * rng.normal(size=rows)
        made.append(
            (X, np.where(z > 0, 1.0, -1.0) if fd.losses.as_loss(LOSSES[name][0]).kind == "classification" else z)
        )
    return made
