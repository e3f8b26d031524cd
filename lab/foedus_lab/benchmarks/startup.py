"""The processor time that a user pays for a first answer: from the start of a process to its exit, all threads."""

import os
import re
import resource
import subprocess
import sys
import tempfile

from foedus_lab.benchmarks.harness import Measurement

JAX_ALONE = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
jax.jit(lambda a, b: a @ b)(jnp.ones((50, 50)), jnp.ones((50, 50))).block_until_ready()
"""
IMPORT = """
import foedus
"""
LIBRARIES = """
from foedus import Problem, constraints, data, losses, solve
"""
SITES = """
import foedus as fd
X, y = fd.data.breast_cancer()
sites = fd.data.split(X, y, clients=5, seed=0)
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
    sites = fd.data.split(X[:rows], y[:rows], clients=clients, seed=0)
    fd.solve(fd.Problem(sites, loss=fd.losses.logistic))
print("programs compiled:", len(compiled))
"""


def _spent(code: str, cache: str, bytecode: str) -> tuple[float, str]:
    """The processor seconds of a process that runs this code, and what it prints; modules' bytecode is kept."""
    environment = dict(os.environ, FOEDUS_CACHE=cache, PYTHONPYCACHEPREFIX=bytecode)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, process.stdout


def startup(quick: bool) -> list[Measurement]:
    """Measure first answers beside `import jax` and one compiled matrix product, the least that JAX programs pay.

    Modules are read as bytecode, as they are where a package has been installed.
    """
    repeats = 1 if quick else 5
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as bytecode, tempfile.TemporaryDirectory() as warm_cache:

        def spend(name: str, code: str, cache: str | None) -> str:
            with tempfile.TemporaryDirectory() as empty:
                seconds, output = _spent(code, empty if cache is None else cache, bytecode)
            times.setdefault(name, []).append(seconds)
            return output

        for code in (JAX_ALONE, SITES + README, SITES + DRFL):
            _spent(code, warm_cache, bytecode)
        for _ in range(repeats):  # in turn, so that a busy moment of the machine hits all
            spend("alone", JAX_ALONE, "off")
            spend("import", IMPORT, "off")
            spend("libraries", LIBRARIES, "off")
            spend("cold", SITES + README, None)
            spend("warm", SITES + README, warm_cache)
            spend("robust", SITES + DRFL, None)
        other = spend("other", SITES + OTHER_ROWS, warm_cache)
    match = re.search(r"compiled: (\d+)", other)
    least = {name: min(values) for name, values in times.items()}
    against, alone = "import jax and a matrix product", least["alone"]
    return [
        Measurement("import foedus, CPU-s", least["import"], against, alone),
        Measurement("importing what the README example uses, CPU-s", least["libraries"], against, alone),
        Measurement("README example, cold cache, CPU-s", least["cold"], against, alone, limit=3.0),
        Measurement("the same against the clock, CPU-s", least["cold"], "a second", 1.0, limit=2.5),
        Measurement(
            "README example beyond imports, warm", least["warm"] - least["libraries"], "a second", 1.0, limit=0.5
        ),
        Measurement(
            "DRFL, cold cache, CPU-s", least["robust"], "a second", 1.0, limit=5.0,
            extra={"programs compiled for other rows and sites": match.group(1) if match else "?"},
        ),
    ]  # fmt: skip
