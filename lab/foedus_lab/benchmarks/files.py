"""Large files: `foedus run` and `foedus check` against pandas.read_csv and scikit-learn on the same files."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from foedus.base.errors import FoedusError
from foedus_lab.benchmarks.harness import Measurement

COLUMNS, SITES = 30, 10
LOOK_SECONDS = 0.01  # between two looks at the memory of a process
IMPORTS = "import foedus.app.cli, foedus.app.experiment.execute"
RIVAL = """
import pandas, pathlib
from sklearn.linear_model import LogisticRegression
table = pandas.concat([pandas.read_csv(path) for path in sorted(pathlib.Path("sites").glob("*.csv"))])
y = table.pop("ill").to_numpy()
LogisticRegression().fit(table.to_numpy(), y)
"""
EXPERIMENT = """
[data]
files = "sites/*.csv"
label = "ill"
[problem]
loss = "logistic"
[algorithm]
name = "auto"
"""


def write_sites(folder: Path, rows: int) -> int:
    """Write the files of an experiment; return the bytes of their numbers as float64."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=COLUMNS)
    (folder / "sites").mkdir()
    names = ",".join([f"x{j}" for j in range(COLUMNS)] + ["ill"])
    for site in range(SITES):
        X = draw.normal(size=(rows // SITES, COLUMNS))
        y = X @ truth / 3 + draw.logistic(size=len(X)) > 0
        table = np.column_stack([X, y])
        path = folder / "sites" / f"site-{site}.csv"
        np.savetxt(path, table, fmt=["%.6g"] * COLUMNS + ["%d"], delimiter=",", header=names, comments="")
    (folder / "large.toml").write_text(EXPERIMENT)
    return rows * (COLUMNS + 1) * 8


def spent(command: list[str], folder: Path) -> tuple[float, float]:
    """The processor seconds of a process and its own, and the most megabytes that they took together."""
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        most = 0
        while (end := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            most = max(most, sum(map(_resident, _family(process.pid))))
            time.sleep(LOOK_SECONDS)
        _, status, usage = end
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise FoedusError(f"{' '.join(command[-2:])} failed: {(folder / 'output.txt').read_text()[-300:]}")
    return usage.ru_utime + usage.ru_stime, max(most, usage.ru_maxrss * 1024) / 1e6


def _family(pid: int) -> list[int]:
    """A process and those that it has started, where the system says so.

    Until a new process has loaded its own program, it has its parent's command and its parent's memory, which counts
    once.
    """
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [pid, *(one for child in children if _command(child) != _command(pid) for one in _family(child))]
    except OSError:
        return [pid]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _resident(pid: int) -> int:
    """The bytes of a process that are in memory; 0 where it is gone, or the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def large(quick: bool) -> list[Measurement]:
    """Measure processor seconds and peak memory on a million rows of 30 columns over ten sites; a fifth if quick."""
    if importlib.util.find_spec("pandas") is None:
        raise FoedusError("the benchmark 'files' compares with pandas; install it with: pip install 'foedus[files]'.")
    rows = 200_000 if quick else 1_000_000
    python = [sys.executable, "-c"]
    foedus = [sys.executable, "-m", "foedus.app.cli"]
    results: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_sites(folder, rows) / 1e6
        commands = {
            "imports": [*python, IMPORTS],
            "rival": [*python, RIVAL],
            "run": [*foedus, "run", "large.toml", "--again"],
            "check": [*foedus, "check", "large.toml"],
        }
        for _ in range(1 if quick else 2):  # in turn, so that a busy moment of the machine hits all
            for what, command in commands.items():
                now = spent(command, folder)
                results[what] = min(results.get(what, now), now)
    seconds = {what: value[0] for what, value in results.items()}
    megabytes = {what: value[1] for what, value in results.items()}
    against = "pandas.read_csv and LogisticRegression"
    memory: dict[str, object] = {
        "peak": f"{megabytes['run']:.0f} MB, {megabytes['run'] / size:.2f} times the numbers as float64",
        "of it beyond imports": f"{(megabytes['run'] - megabytes['imports']) / size:.2f} times",
        "theirs": f"{megabytes['rival']:.0f} MB",
    }
    return [
        Measurement(f"foedus run, {rows:,} rows, CPU-s", seconds["run"], against, seconds["rival"], 1.5, extra=memory),
        Measurement(
            f"foedus check, {rows:,} rows, CPU-s", seconds["check"], against, seconds["rival"],
            extra={"peak": f"{megabytes['check']:.0f} MB, {megabytes['check'] / size:.2f} times the numbers"},
        ),
    ]  # fmt: skip
