"""The processor time that a user pays for a first answer: from the start of a process to its exit, all threads."""

import os
import re
import resource
import subprocess
import sys
import tempfile

from foedus.benchmarks.harness import Measurement

JAX_ALONE = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
jax.jit(lambda a, b: a @ b)(jnp.ones((50, 50)), jnp.ones((50, 50))).block_until_ready()
"""
LIBRARIES = """
import foedus
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
"""
SITES = """
import foedus as fd
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
X, y = load_breast_cancer(return_X_y=True)
sites = fd.data.split(scale(X), 1 - y, clients=5, seed=0)
"""
README = """
cap = fd.constraints.LossCap(fd.label(1), at_most=0.2)
print(fd.solve(fd.Problem(sites, loss=fd.losses.logistic, where=fd.label(0), constraints=[cap])))
"""
DRFL = """
print(fd.solve(fd.Problem(sites, loss=fd.losses.logistic), fd.DRFL(radius=0.05, kappa=1.0, theta=0.3)))
"""
OTHER_ROWS = """
import jax
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None)
for rows, clients in ((500, 5), (400, 5), (400, 8)):
    sites = fd.data.split(scale(X)[:rows], 1 - y[:rows], clients=clients, seed=0)
    fd.solve(fd.Problem(sites, loss=fd.losses.logistic))
print("programs compiled:", len(compiled))
"""


def _spent(code: str, cache: str) -> tuple[float, str]:
    """The processor seconds of a process that runs this code, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = dict(os.environ, FOEDUS_CACHE=cache)
    process = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, process.stdout


def startup(quick: bool) -> list[Measurement]:
    """Measure first answers beside `import jax` and one compiled matrix product, the least that JAX programs pay."""
    repeats = 1 if quick else 3
    alone, libraries, cold, warm, robust = [], [], [], [], []
    other = ""
    with tempfile.TemporaryDirectory() as cache_folder:
        for _ in range(repeats):  # in turn, so that a busy moment of the machine hits all
            alone.append(_spent(JAX_ALONE, "off")[0])
            libraries.append(_spent(LIBRARIES, "off")[0])
            with tempfile.TemporaryDirectory() as cache:
                cold.append(_spent(SITES + README, cache)[0])
            _spent(SITES + README, cache_folder)
            warm.append(_spent(SITES + README, cache_folder)[0])
            with tempfile.TemporaryDirectory() as cache:
                robust.append(_spent(SITES + DRFL, cache)[0])
        other = _spent(SITES + OTHER_ROWS, cache_folder)[1]
    match = re.search(r"compiled: (\d+)", other)
    least = min(alone)
    imports = {"CPU-s of its imports": round(min(libraries), 2)}
    against = "import jax and a matrix product"
    return [
        Measurement("import foedus and scikit-learn, CPU-s", min(libraries), against, least),
        Measurement("README example, cold cache, CPU-s", min(cold), against, least, limit=3.0, extra=imports),
        Measurement("the same against the clock, CPU-s", min(cold), "a second", 1.0, limit=2.5),
        Measurement("README example beyond imports, warm", min(warm) - min(libraries), "a second", 1.0, limit=0.5),
        Measurement(
            "DRFL, cold cache, CPU-s", min(robust), "a second", 1.0, limit=5.0,
            extra={"programs compiled for other rows and sites": match.group(1) if match else "?"},
        ),
    ]  # fmt: skip
