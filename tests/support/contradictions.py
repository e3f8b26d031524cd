"""Terms that contradict each other."""

import numpy as np

import foedus as fd

COLUMNS = 4


UNITS = {
    "one": np.ones(COLUMNS),
    "1e-6": np.full(COLUMNS, 1e-6),
    "1e-4": np.full(COLUMNS, 1e-4),
    "1e6": np.full(COLUMNS, 1e6),
    "mixed": np.array([1e-6, 1e-2, 1e3, 1e6]),
}


LABELS = (0, 1)


def sites(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows whose labels have much noise, so that caps on both cannot be low."""
    rng = np.random.default_rng(seed)
    out = {}
    for name in ("ash", "birch", "cedar"):
        x = np.column_stack([rng.normal(size=(60, COLUMNS - 1)), np.ones(60)])
        y = (x @ rng.normal(size=COLUMNS) + 2.0 * rng.normal(size=60) > 0).astype(float)
        y[:2] = 0.0, 1.0
        out[name] = (x, y)
    return out


def problem(seed: int, cap: float, units: np.ndarray) -> fd.Problem:
    return fd.Problem(
        {name: (x * units, y) for name, (x, y) in sites(seed).items()},
        loss=fd.losses.logistic,
        constraints=[fd.constraints.LossCap(fd.label(k), at_most=cap) for k in LABELS],
    )
