"""Unconstrained rounds and bytes on three LIBSVM sets, beside the figures of u-FedNL, a second-order code in C++.

Its rounds and bytes are quoted: it was run on the same files with 142 sites and λ = 1e-3 to ‖∇f‖ ≤ 1e-9, with full
matrices and with TopK compression. Its seconds are its authors': 24.12 s and 18.72 s for 1,000 rounds of w8a on 24
cores at 3.3 GHz (Burlachenko and Richtárik, "Unlocking FedNL", arXiv:2410.08760, Table 1); for the other two sets none
are known here. Machines with different numbers of cores are compared by processor seconds: seconds times cores.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.base.errors import FoedusError
from foedus_lab.benchmarks.harness import Measurement

SITES, RIDGE, GRADIENT = 142, 1e-3, 1e-9
CORES = 24  # of the machine on which u-FedNL's authors measured
REPEATS = 3  # runs, of which the fastest counts


@dataclass(frozen=True)
class Rival:
    """The data set's columns, the rounds to reach, u-FedNL's figures in words, and its fewest megabytes."""

    columns: int
    rounds: int
    full: str
    sparse: str
    megabytes: float
    seconds: tuple[float, float] | None = None  # of a round, as published, with full matrices and with TopK


RIVALS = {
    "phishing": Rival(68, 7, "15-20 rounds, 40-54 MB", "60-100 rounds, 60-98 MB", 40.0),
    "a9a": Rival(123, 9, "15-20 rounds, 120-171 MB", "51-100 rounds, 88-175 MB", 88.0),
    "w8a": Rival(300, 10, "15-20 rounds, 694-991 MB", "more than 100 rounds, 424 MB", 424.0, (0.02412, 0.01872)),
}


def sites_of(name: str, columns: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows of a set with an intercept, dealt out in order to sites of equal size; the rest is dropped."""
    from sklearn.datasets import load_svmlight_file

    file = Path(os.environ.get("FOEDUS_DATA", ".")) / "libsvm" / f"{name}.gz"
    if not file.exists():
        raise FoedusError(
            f"this benchmark reads {file}, which is not there; set FOEDUS_DATA to the folder of data sets."
        )
    x, y = load_svmlight_file(str(file), n_features=columns)[:2]
    x = np.column_stack([np.asarray(x.todense()), np.ones(x.shape[0])])
    y, rows = (np.asarray(y) > 0).astype(float), x.shape[0] // SITES
    return [(x[i * rows : (i + 1) * rows], y[i * rows : (i + 1) * rows]) for i in range(SITES)]


def gradient_at(sites: list[tuple[np.ndarray, np.ndarray]], w: np.ndarray) -> float:
    """Return ‖∇f(w)‖₂, by NumPy."""
    parts = [(1.0 / (1.0 + np.exp(-(x @ w))) - y) @ x / len(y) for x, y in sites]
    return float(np.linalg.norm(np.mean(parts, axis=0) + RIDGE * w))


def play(problem: fd.Problem, algorithm: fd.InteriorPoint, most: int | None) -> tuple[float, fd.Run]:
    """Return the processor seconds until the last round is over, the fewest of some runs, and the run."""
    runs = []
    for _ in range(REPEATS):
        clock = [time.process_time()]
        run = fd.solve(problem, algorithm, max_rounds=most, callback=lambda *_, c=clock: c.append(time.process_time()))
        runs.append((clock[-1] - clock[0], run))
    return min(runs, key=lambda each: each[0])


def newton(quick: bool) -> list[Measurement]:
    """Solve each set, traced before, and measure the gradient by NumPy and what a round after the first costs."""
    lines = []
    for name, rival in list(RIVALS.items())[: 1 if quick else 3]:
        sites = sites_of(name, rival.columns)
        problem = fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(RIDGE, per_example=False))
        algorithm = fd.InteriorPoint(eps1=GRADIENT / (rival.columns + 1) ** 0.5)
        fd.solve(problem, algorithm, max_rounds=1)
        first, (whole, run) = play(problem, algorithm, 1)[0], play(problem, algorithm, None)
        seconds = (whole - first) / (run.rounds - 1)
        megabytes, gradient = (run.traffic.up + run.traffic.down) / 1e6, gradient_at(sites, np.asarray(run.w))
        good = run.rounds <= rival.rounds and megabytes < rival.megabytes and gradient <= GRADIENT
        line = Measurement(f"{name}, a round of {SITES} sites, processor seconds", seconds)
        if rival.seconds is not None:
            line.against, line.limit = f"u-FedNL's published seconds times {CORES} cores, full matrices", 0.2
            line.reference = CORES * rival.seconds[0]
        line.extra = {
            "rounds": run.rounds, "MB": round(megabytes, 1), "gradient": f"{gradient:.1g}",
            f"at most {rival.rounds} rounds, {rival.megabytes:g} MB": "yes" if good else "NO",
            "u-FedNL in full": rival.full, "with TopK": rival.sparse,
        }  # fmt: skip
        lines.append(line)
    return lines
