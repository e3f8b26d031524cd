"""The time that a user waits for an import of foedus and for a first small run from start to exit."""

import os
import subprocess
import sys
import tempfile
import time

from foedus.benchmarks.harness import Measurement

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


def startup(quick: bool) -> list[Measurement]:
    """Time the import and a first run in processes of their own, against a second, as a user's patience is absolute."""
    with tempfile.TemporaryDirectory() as cache:
        empty = min(_seconds("pass", cache) for _ in range(3))
        import_time = min(_seconds("import foedus", cache) for _ in range(3)) - empty
        cold = _seconds(FIRST_RUN, cache)
        warm = min(_seconds(FIRST_RUN, cache) for _ in range(3))
    return [
        Measurement("import foedus", import_time, "a second", 1.0, limit=2.0),
        Measurement("first small run, cold cache, start to exit", cold, "a second", 1.0, limit=6.0),
        Measurement("first small run, warm cache, start to exit", warm, "a second", 1.0, limit=3.0),
    ]
