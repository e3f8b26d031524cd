"""What `foedus check` foretells: messages as they will be sent, rounds as they were measured, and quickly."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import foedus as fd
from foedus.app.experiment import build, catalogue, file, preview, sources
from foedus.protocol.constrained import Constrained

REFERENCE = """
[data]
set = "breast-cancer"
[partition]
num_partitions = {sites}
[problem]
penalty = {{ name = "Ridge", mu = 0.001, per_example = false }}
{terms}
[algorithm]
name = "{name}"
"""
CAP = '[[constraints]]\ntype = "LossCap"\nwhere = "label malignant"\nat_most = 0.2\n'


def reference(folder: Path, name: str, sites: int) -> build.RunSetup:
    """The breast-cancer set, with a ridge, and with a cap for the methods that take constraints."""
    held = issubclass(catalogue.algorithms()[name].make, Constrained)
    path = folder / "reference.toml"
    path.write_text(REFERENCE.format(sites=sites, name=name, terms=CAP if held else ""))
    (case,) = file.load(path).cases
    return build.build(case.settings, sources.cohort_of(case.settings, folder))


@pytest.mark.parametrize("name", ["FedAvg", "FedGiA", "Scaffold", "ProxAL", "CentralProxAL"])
def test_messages_are_foretold_for_every_kind_of_round(tmp_path: Path, name: str):
    made = reference(tmp_path, name, 5)
    found = preview.messages(made)
    if name == "CentralProxAL":
        assert found.kinds == ((0, sum(int(a.nbytes) for a in made.problem.data.values())),)
    else:
        assert len(found.kinds) == len(made.algorithm.kinds)
        assert all(down > 0 and up > 0 for down, up in found.kinds)


def test_messages_are_those_that_a_run_sends(tmp_path: Path):
    made = reference(tmp_path, "FedAvg", 5)
    run = fd.solve(made.problem, made.algorithm, max_rounds=3)
    found = preview.messages(made).kinds
    np.testing.assert_array_equal(run.history["bytes_down"], [5 * found[p][0] for p in run.history["phase"]])
    np.testing.assert_array_equal(run.history["bytes_up"], [5 * found[p][1] for p in run.history["phase"]])


def test_what_is_typical_is_told_of_known_algorithms_only():
    assert set(preview.TYPICAL) <= set(catalogue.algorithms())
    assert set(preview.UNENDING) <= set(catalogue.algorithms())
    told = preview.rounds_line("ProxAL", 1000)
    assert "the breast-cancer set took 36 to 52" in told
    assert "many times as many" in told  # what was measured elsewhere is no forecast
    assert "raise max_rounds" in preview.rounds_line("FedGiA", 1000)
    assert "raise max_rounds" not in preview.rounds_line("FedGiA", 10_000)
    assert "all 50 rounds" in preview.rounds_line("FedAvg", 50)
    assert "depends on the data" in preview.rounds_line("Unheard", 1000)


def test_what_was_measured_is_not_told_of_other_settings(tmp_path: Path):
    made = reference(tmp_path, "ProxAL", 5)
    assert "36 to 52" in preview.rounds_of(made, 1000)
    path = tmp_path / "other.toml"
    path.write_text(REFERENCE.format(sites=5, name='ProxAL"\ninner = "admm', terms=CAP))
    (case,) = file.load(path).cases
    other = build.build(case.settings, sources.cohort_of(case.settings, tmp_path))
    assert "depends on the data" in preview.rounds_of(other, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*preview.TYPICAL, *preview.UNENDING])
def test_typical_rounds_are_measured(tmp_path: Path, name: str):
    rounds = []
    for sites in (5, 20):
        made = reference(tmp_path, name, sites)
        run = fd.solve(made.problem, made.algorithm, seed=0, max_rounds=20_000)
        assert run.converged == (name in preview.TYPICAL), run.reason
        rounds.append(run.rounds)
    if name in preview.TYPICAL:
        low, high = preview.TYPICAL[name]
        assert low <= min(rounds) <= 1.1 * low
        assert 0.9 * high <= max(rounds) <= high


@pytest.mark.slow
def test_a_million_rows_are_checked_in_ten_seconds(tmp_path: Path):
    draw = np.random.default_rng(0)
    names = [f"x{j}" for j in range(10)]
    (tmp_path / "sites").mkdir()
    for site in range(10):
        rows = draw.normal(size=(100_000, 10)).round(4)
        ward = draw.choice(["north", "south", "west"], 100_000)
        label = draw.integers(0, 2, 100_000)
        cells = [*(rows[:, j].astype(str) for j in range(10)), ward, label.astype(str)]
        lines = "\n".join(map(",".join, zip(*cells, strict=True)))
        (tmp_path / f"sites/s{site}.csv").write_text(",".join([*names, "ward", "ill"]) + "\n" + lines + "\n")
    text = '[data]\nfiles = "sites/*.csv"\nlabel = "ill"\n[problem]\nwhere = "label 0"\n'
    (tmp_path / "big.toml").write_text(text + CAP.replace("malignant", "1") + '[algorithm]\nname = "ProxAL"\n')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "foedus.app.cli", "check", "big.toml"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(fd.__file__).parent.parent)},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "1,000,000 rows" in ended.stdout
    # processor time, which other work on the machine does not add to
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
