"""Masked sums, noise in shares and caps under noise over real sites. Slow; needs NVIDIA FLARE."""

import json

import numpy as np
import pytest
from federations import REAL, place

import foedus as fd
from foedus.cli import run as cli
from foedus.experiment import starter

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

from foedus.runtime.flare.names import RUNS
from foedus.runtime.flare.site_ledger import SiteLedger
from foedus.runtime.flare.trial import Federation

pytestmark = [*REAL, pytest.mark.slow, pytest.mark.timeout(600)]

STUDY = """
name = "study"
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
group = "sex"
[algorithm]
name = "FedAvg"
[problem]
loss = "logistic"
[evaluate]
holdout = 0.3
[run]
max_rounds = 5
secure = true
"""
PRIVATE = """
name = "private"
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
features = ["age", "blood_pressure"]
[algorithm]
name = "PrivateNewton"
rounds = 4
[run]
secure = true
[privacy]
kind = "central"
epsilon = 16.0
delta = 1e-5
tolerate = 1
least_rows = 60
[preprocess.bounds]
age = [0, 120]
blood_pressure = [60, 240]
"""
CAPS = '[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 1.5\n'


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four sites with a hospital's table each, and the folder in which a simulation finds the same tables."""
    folder = tmp_path_factory.mktemp("secure")
    federation = Federation.up(tmp_path_factory.mktemp("federation"), 4)
    (folder / "hospitals").mkdir()
    for site, text in zip(federation.sites, starter.hospitals().values(), strict=True):
        (folder / f"hospitals/{site}.csv").write_text(text)
        policy = "[policy]\nmin_subset = 1\nsecure = true\n"
        place(federation, site, text, labels=["readmitted"], groups=["sex"], more=policy)
    yield federation, folder
    federation.down()


def submit(four, name: str, text: str):
    federation, folder = four
    file = folder / f"{name}.toml"
    file.write_text(text)
    told = ["federation", "submit", str(file), "--folder", str(federation.folder), "--out", str(folder / name)]
    assert cli([*told, "--accept-uncertified"]) == 0
    return fd.load(folder / name)


def test_tables_are_prepared_trained_on_and_evaluated_as_the_simulator_does(four):
    federation, folder = four
    run = submit(four, "study", STUDY)
    out = str(folder / "simulated")
    assert cli(["run", str(folder / "study.toml"), "--out", out, "--quiet", "--accept-uncertified"]) == 0
    expected = fd.load(folder / "simulated")
    np.testing.assert_allclose(run.w, expected.w, rtol=0, atol=1e-9)
    assert run.evaluation is not None
    assert expected.evaluation is not None
    assert run.evaluation.sites == {}
    for name in run.evaluation.overall:
        np.testing.assert_allclose(run.evaluation[name].value, expected.evaluation[name].value, rtol=1e-9)
    lines = (federation.kit("site-1") / RUNS / "messages.jsonl").read_text().splitlines()
    purposes = {json.loads(line)["purpose"] for line in lines}
    assert {"keys", "words", "sums", "squares", "reveal", "round", "measure", "evaluate"} <= purposes


@pytest.mark.parametrize("text", [PRIVATE, PRIVATE + CAPS], ids=["free", "capped"])
def test_noise_in_shares_goes_through_every_sites_ledger(four, text):
    federation, _ = four
    before = {site: len(SiteLedger(federation.kit(site) / RUNS).lines) for site in federation.sites}
    run = submit(four, f"private-{len(text)}", text)
    assert run.rounds == 4
    assert run.ledger is not None
    assert 15.9 < run.ledger.total(0, "tight") <= 16.0
    for site in federation.sites:
        lines = SiteLedger(federation.kit(site) / RUNS).lines[before[site] :]
        assert len(lines) == 4
        assert all("at least 3 of 4 sites that do not collude" in line.what for line in lines)
    private = run.certificate.private
    if text == PRIVATE:
        assert private is None
    else:
        assert private is not None
        assert [row.site for row in private.rows] == list(federation.sites)


def test_private_and_constrained_from_python_is_near_the_simulators(four):
    """Noise is each party's own, so that answers agree but for it: with a large epsilon to a few thousandths."""
    federation, _ = four
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(8000, 3)), np.ones(8000)])
    y = (x @ np.array([1.0, -1.0, 0.5, 0.0]) + rng.logistic(size=8000) > 0) * 1.0
    cap = fd.constraints.LossCap(fd.label(1.0), at_most=0.48)
    problem = fd.Problem(fd.data.split(x, y, clients=4), loss=fd.losses.logistic, constraints=[cap])
    total = fd.Central(epsilon=2000.0, delta=1e-5)
    expected = fd.solve(problem, fd.PrivateNewton(rounds=6), privacy=total, secure=True)
    for site in federation.sites:
        assert federation.kit(site).exists()
    run = fd.solve(problem, fd.PrivateNewton(rounds=6), privacy=total, runtime=fd.Flare(sites=4, secure=True))
    np.testing.assert_allclose(run.w, expected.w, atol=5e-3)
    assert run.certificate.private is not None
    assert expected.certificate.private is not None
    mine, theirs = ([row.excess for row in one.certificate.private.rows] for one in (run, expected))
    np.testing.assert_allclose(mine, theirs, atol=5e-3)
