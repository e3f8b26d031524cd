"""What a user waits for: importing foedus, and a first small run from start to exit."""

import os
import subprocess
import sys
import tempfile
import time

from foedus.benchmarks.harness import Measured

FIRST_RUN = """
import numpy as np, foedus as fd
rng = np.random.default_rng(0)
sites = [(rng.standard_normal((50, 10)), rng.integers(0, 2, 50)) for _ in range(5)]
problem = fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(1.0))
print(fd.solve(problem, fd.FedGiA()))
"""


def _seconds(code: str, cache: str) -> float:
    environment = dict(os.environ, FOEDUS_CACHE=cache)
    tick = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    return time.perf_counter() - tick


def startup(quick: bool) -> list[Measured]:
    """Against a second: the issue of a user's patience is absolute."""
    with tempfile.TemporaryDirectory() as cache:
        empty = min(_seconds("pass", cache) for _ in range(3))
        imported = min(_seconds("import foedus", cache) for _ in range(3)) - empty
        cold = _seconds(FIRST_RUN, cache)
        warm = min(_seconds(FIRST_RUN, cache) for _ in range(3))
    return [
        Measured("import foedus", imported, "a second", 1.0, limit=2.0),
        Measured("first small run, cold cache, start to exit", cold, "a second", 1.0, limit=6.0),
        Measured("first small run, warm cache, start to exit", warm, "a second", 1.0, limit=3.0),
    ]
