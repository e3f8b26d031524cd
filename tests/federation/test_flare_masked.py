"""Masked sums and central noise over real sites: preparation, rounds, caps, evaluation. Slow; needs NVIDIA FLARE."""

from pathlib import Path

import numpy as np
import pytest
from federations import REAL, place
from hospitals import BY_SEX, CENTRAL, draw_as_sites_do, write_tables

import foedus as fd
from foedus.algorithms.private_newton import STEPS, STEPS_WITH_CAPS
from foedus.app.cli import run as cli
from foedus.data.preprocess import Number, Preprocessing
from foedus.federation.gate import MessageLog
from foedus.federation.names import RUNS
from foedus.federation.site_ledger import ROUNDING, SiteLedger

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

pytestmark = [*REAL, pytest.mark.slow]

STUDY = f"""
name = "study"
{BY_SEX}[algorithm]
name = "InteriorPoint"
[problem]
loss = "logistic"
penalty = {{ name = "Ridge", mu = 0.1 }}
[evaluate]
holdout = 0.3
[run]
secure = true
[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.6
"""
PRIVATE = f"""
name = "private"
{CENTRAL}[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 1.5
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    from foedus.federation.flare.trial import Federation

    made = Federation.up(tmp_path_factory.mktemp("four"), 4)
    yield made
    made.down()


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_tables(folder, as_sites=True)
    (folder / "study.toml").write_text(STUDY)
    (folder / "private.toml").write_text(PRIVATE)
    return folder


def placed(federation, hospitals: Path, policy: str) -> None:
    for site in federation.sites:
        text = (hospitals / f"hospitals/{site}.csv").read_text()
        place(federation, site, text, labels=["readmitted"], groups=["sex"], more=f"[policy]\nmin_subset = 1\n{policy}")


def test_a_submitted_run_is_prepared_played_certified_and_evaluated_by_masked_sums(hospitals, four, monkeypatch):
    """Nothing is stated but the columns; the sites let sums alone leave, and the answers are the simulator's."""
    placed(four, hospitals, "secure = true\n")
    draw_as_sites_do(monkeypatch, *(four.kit(site) / RUNS for site in four.sites))
    file = str(hospitals / "study.toml")
    assert cli(["run", file, "--out", str(hospitals / "simulated"), "--quiet"]) == 0
    told = ["federation", "submit", file, "--folder", str(four.folder), "--quiet"]
    assert cli([*told, "--out", str(hospitals / "submitted")]) == 0
    run, expected = fd.load(hospitals / "submitted"), fd.load(hospitals / "simulated")
    np.testing.assert_allclose(run.w, expected.w, rtol=0, atol=1e-9)
    assert run.rounds == expected.rounds
    assert run.certificate.holds()
    assert run.certificate.counts == expected.certificate.counts
    rules, plain = (
        Preprocessing.load(hospitals / place / "preprocessing.json") for place in ("submitted", "simulated")
    )
    assert rules.names == plain.names
    for mine, theirs in zip(rules.columns, plain.columns, strict=True):
        if isinstance(mine, Number) and isinstance(theirs, Number):
            np.testing.assert_allclose([mine.shift, mine.scale], [theirs.shift, theirs.scale], rtol=1e-12)
        else:
            assert mine == theirs
    assert run.evaluation is not None
    assert expected.evaluation is not None
    assert run.evaluation.sites == {}
    for name in ("accuracy", "miss_rate"):
        assert vars(run.evaluation[name]) == vars(expected.evaluation[name])
    log = MessageLog(four.kit("site-1") / RUNS / "messages.jsonl").read()
    assert {"keys", "roster", "sums", "squares", "round", "reveal", "measure", "evaluate"} <= {
        line["purpose"] for line in log
    }


def test_central_noise_with_caps_spends_what_the_sites_allow_and_no_more(hospitals, four, capfd):
    placed(four, hospitals, "secure = true\nmax_epsilon = 30.0\nmax_epsilon_total = 40.0\n")
    told = ["federation", "submit", str(hospitals / "private.toml"), "--folder", str(four.folder), "--quiet"]
    assert cli([*told, "--accept-uncertified", "--out", str(hospitals / "private")]) == 0
    run = fd.load(hospitals / "private")
    assert run.rounds == 2 + STEPS_WITH_CAPS
    assert run.certificate.private is not None
    assert [row.site for row in run.certificate.private.rows] == list(four.sites)
    assert run.ledger is not None
    assert "in shares of 4 clients" in str(run.ledger)
    for site in four.sites:
        ledger = SiteLedger(four.kit(site) / RUNS)
        assert len(ledger.lines) == 2 + STEPS_WITH_CAPS
        assert 29.9 < ledger.total(1e-5) <= 30.0 * ROUNDING
        assert "shares of noise of at least 3 of 4 sites that do not collude" in ledger.lines[-1].what
    capfd.readouterr()
    assert cli([*told, "--accept-uncertified", "--out", str(hospitals / "again")]) == 2
    assert "its policy allows epsilon 40 in all" in " ".join(capfd.readouterr().err.split())
    assert all(len(SiteLedger(four.kit(site) / RUNS).lines) == 2 + STEPS_WITH_CAPS for site in four.sites)


def test_central_noise_in_one_line_of_python():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 3))
    y = (x @ np.array([1.0, -1.0, 0.5]) + rng.logistic(size=8000) > 0) * 1.0
    problem = fd.Problem(fd.data.split(x, y, clients=4), loss=fd.losses.logistic)
    total = fd.Central(epsilon=4.0, delta=1e-5, clip=3.0)
    run = fd.solve(problem, fd.PrivateNewton(), privacy=total, runtime=fd.Flare(secure=True))
    assert run.rounds == 1 + STEPS
    assert np.linalg.norm(run.w - [1.0, -1.0, 0.5]) < 0.3
    assert run.ledger is not None
    assert 3.99 < run.ledger.total(0, "tight") <= 4.0
    assert "SIMULATED" not in str(run.ledger)
