"""The cost of a round over real sites on loopback, beside the simulator's; skipped without NVIDIA FLARE."""

import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.benchmarks.harness import Measurement
from foedus.runtime.flare.order import order_of
from foedus.runtime.flare.trial import Federation

DIM = 100  # of the model; small, so that a message costs its overhead
WARM_UP = 10  # rounds that are not counted
LIMITS = {(3, "aux"): 0.04, (3, "task"): 0.1, (10, "aux"): 0.12}  # median seconds of a round, by sites and transport


def little(sites: int) -> fd.Problem:
    """Return a problem with so little work at each site that a round costs what its messages cost."""
    rng = np.random.default_rng(0)
    return fd.Problem(
        [(rng.standard_normal((4, DIM)), rng.standard_normal(4)) for _ in range(sites)], loss=fd.losses.least_squares
    )


def rounds(quick: bool) -> list[Measurement]:
    """Measure the median round after a warm-up, over both transports."""
    if find_spec("nvflare") is None:
        return []
    algorithm, count = fd.LocalSGD(k0=1, batch=1, lr=1e-3), 60 if quick else 200
    lines = []
    for sites in (3,) if quick else (3, 10):
        problem = little(sites).over(np.zeros(DIM))
        with tempfile.TemporaryDirectory(prefix="foedus-") as folder:
            federation = Federation.up(Path(folder), sites)
            try:
                for transport in ("aux", "task"):
                    order = order_of(
                        problem, algorithm, np.zeros(DIM), run=f"bench-{transport}", sites=federation.sites, seed=0,
                        max_rounds=count, participation=fd.Fraction(),
                    )  # fmt: skip
                    runtime = fd.Flare(at=folder, transport=transport)
                    result = runtime.run(federation, order, order.to_bytes(), problem)
                    pace = np.sort(result.pace[WARM_UP:])
                    line = Measurement(
                        f"a round over {sites} real sites, {transport}",
                        float(np.median(pace)),
                        "a second",
                        1.0,
                        limit=LIMITS.get((sites, transport)),
                    )
                    line.extra["nine in ten within"] = f"{pace[int(0.9 * len(pace))]:.3g} s"
                    lines.append(line)
            finally:
                federation.down()
        run = fd.solve(problem, algorithm, max_rounds=2000)
        lines.append(Measurement(f"the simulator's, {sites} clients", (run.seconds - run.compile_seconds) / run.rounds))
    return lines
