"""Files of 5,000 columns take about what pandas and scikit-learn take for the same."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

COLUMNS, SITES, ROWS = 5000, 4, 250
STUDY = """\
[data]
files = "sites/*.csv"
label = "ill"
[problem]
penalty = { name = "Ridge", mu = 0.1, per_example = false }
[evaluate]
holdout = 0.2
"""
POOLED = """
import glob, pandas
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
table = pandas.concat([pandas.read_csv(path) for path in glob.glob("sites/*.csv")])
y = table.pop("ill")
X, new, y, later = train_test_split(table.to_numpy(), y, test_size=0.2, random_state=0)
scale = StandardScaler().fit(X)
print(LogisticRegression(C=0.01, max_iter=2000).fit(scale.transform(X), y).score(scale.transform(new), later))
"""
FOEDUS = [sys.executable, "-m", "foedus.app.cli"]


def cost(command: list[str], folder: Path) -> tuple[float, float]:
    """Processor seconds of a command, and the most memory in MB that it or a command before it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1000


@pytest.mark.slow
def test_check_and_run_of_5000_columns_cost_a_few_times_a_pooled_fit(tmp_path: Path):
    """Measured with the programs of an earlier run in the cache: check 2.9 and run 2.6 times, 1.2 and 1.6 in memory.

    The limits leave room for a machine on which other work goes on.
    """
    draw, w = np.random.default_rng(0), np.zeros(COLUMNS)
    w[:20] = draw.normal(size=20)
    (tmp_path / "sites").mkdir()
    for site in range(SITES):
        X = draw.normal(size=(ROWS, COLUMNS))
        y = (X @ w + draw.normal(size=ROWS) > 0).astype(float)
        header = ",".join([*(f"g{j}" for j in range(COLUMNS)), "ill"])
        np.savetxt(tmp_path / f"sites/s{site}.csv", np.column_stack([X, y]), "%.5g", ",", header=header, comments="")
    (tmp_path / "study.toml").write_text(STUDY)
    pooled, memory = cost([sys.executable, "-c", POOLED], tmp_path)
    check, most = cost([*FOEDUS, "check", "study.toml"], tmp_path)
    assert check < 4.5 * pooled
    assert most < 3 * memory
    run = [*FOEDUS, "run", "study.toml", "--accept-uncertified", "--quiet", "--again"]
    cost(run, tmp_path)
    trained, most = cost(run, tmp_path)
    assert trained < 4.5 * pooled
    assert most < 3 * memory
