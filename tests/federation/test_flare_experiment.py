"""Experiment files over real sites: the run directories and answers of the simulator. Slow; needs NVIDIA FLARE."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from federations import REAL, kill_in_round, place, wait_for_round
from hospitals import BY_SEX, draw_as_sites_do, write_tables

import foedus as fd
from foedus.app.cli import run as cli
from foedus.app.commands.experiment import INTERRUPTED
from foedus.app.experiment import starter
from foedus.federation.names import RUNS

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")

pytestmark = [*REAL, pytest.mark.slow]

STUDY = f"""
name = "study"
{BY_SEX}[algorithm]
name = "ProxAL"
inner = "newton"
[problem]
loss = "logistic"
where = "label no"
[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.6
"""
SITES = ("city", "lakeside", "valley")  # of the four invented hospitals; as many as the federation has sites


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_tables(folder, SITES, as_sites=True)
    (folder / "study.toml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def simulated(hospitals) -> fd.Run:
    assert cli(["run", str(hospitals / "study.toml"), "--out", str(hospitals / "simulated"), "--quiet"]) == 0
    return fd.load(hospitals / "simulated")


def same(folder: Path, simulated: fd.Run, expected: Path) -> None:
    run = fd.load(folder)
    np.testing.assert_allclose(run.w, simulated.w, rtol=0, atol=1e-9)
    assert run.certificate.holds()
    assert [(r.site, r.constraint) for r in run.certificate.rows] == [
        (r.site, r.constraint) for r in simulated.certificate.rows
    ]
    assert run.history.keys() == simulated.history.keys()
    assert run.rounds == simulated.rounds
    np.testing.assert_allclose(run.objective, simulated.objective, rtol=1e-9)
    made = {path.name for path in folder.iterdir()}
    assert made == {path.name for path in expected.iterdir()}
    rules = json.loads((folder / "preprocessing.json").read_text())
    assert rules == json.loads((expected / "preprocessing.json").read_text())


def test_one_word_in_the_file_plays_the_run_over_real_sites(hospitals, simulated, capsys):
    (hospitals / "real.toml").write_text(STUDY + '[run]\nruntime = "flare"\n')
    assert cli(["run", str(hospitals / "real.toml"), "--out", str(hospitals / "real")]) == 0
    assert "label yes" in capsys.readouterr().out, "the certificate, in the words of the file"
    same(hospitals / "real", simulated, hospitals / "simulated")
    events = [json.loads(line) for line in (hospitals / "real/events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events][0 :: len(events) - 1] == ["start", "end"]


def placed(federation, hospitals: Path) -> None:
    """Each site's table, and the site file that names it."""
    for site in federation.sites:
        text = (hospitals / f"hospitals/{site}.csv").read_text()
        # the invented hospitals have words that stand in a few rows, which the simulator does not hide
        place(federation, site, text, labels=["readmitted"], groups=["sex"], more="[policy]\nmin_subset = 1\n")


def test_a_submitted_run_is_resumed_by_hand_after_the_server_was_killed(hospitals, federation, capfd):
    placed(federation, hospitals)
    file = hospitals / "slow.toml"
    file.write_text(STUDY.replace('"newton"', '"admm"'))
    assert cli(["run", str(file), "--out", str(hospitals / "slow-simulated"), "--quiet"]) == 0
    expected = fd.load(hospitals / "slow-simulated")
    killed: list[str] = []
    killer = threading.Thread(target=kill_in_round, args=(federation, "server", 40, killed))
    killer.start()
    told = ["federation", "submit", str(file), "--folder", str(federation.folder), "--keep-going", "0"]
    assert cli([*told, "--out", str(hospitals / "slow")]) == 2
    killer.join()
    assert killed
    assert "'foedus federation resume" in capfd.readouterr().err
    federation.heal()
    federation.wait()
    assert cli(["federation", "resume", str(hospitals / "slow")]) == 0
    same(hospitals / "slow", expected, hospitals / "slow-simulated")
    events = [json.loads(line)["event"] for line in (hospitals / "slow/events.jsonl").read_text().splitlines()]
    assert [e for e in events if e != "rounds"] == ["start", "stopped", "resume", "end"]
    assert "rounds" in events, "which 'foedus watch' shows"


def test_a_submitted_file_over_the_sites_own_tables(hospitals, simulated, federation):
    """The coordinator has no data; one site calls its columns by other names."""
    for site in federation.sites:
        text = (hospitals / f"hospitals/{site}.csv").read_text()
        label, group, named = "readmitted", "sex", ""
        if site == "site-2":
            label, group = "came back", "gender"
            text = text.replace("readmitted", label, 1).replace("sex", group, 1)
            named = '[data.columns]\nreadmitted = "came back"\nsex = "gender"\n'
        more = f'{named}[policy]\nalgorithms = ["ProxAL"]\nmin_subset = 1\n'
        place(federation, site, text, labels=[label], groups=[group], more=more)
    (hospitals / "alone").mkdir()
    file = hospitals / "alone" / "study.toml"  # the files that it names are not there
    file.write_text(STUDY)
    told = ["federation", "submit", str(file), "--folder", str(federation.folder)]
    assert cli([*told, "--out", str(hospitals / "submitted")]) == 0
    same(hospitals / "submitted", simulated, hospitals / "simulated")
    file.write_text(STUDY.split("[algorithm]")[0] + '[algorithm]\nname = "FedAvg"\n')
    assert cli([*told, "--out", str(hospitals / "refused")]) == 2
    kit = federation.kit("site-1")
    assert cli(["site", "audit", str(kit)]) == 0
    from foedus.federation.gate import MessageLog

    purposes = [line["purpose"] for line in MessageLog(kit / RUNS / "messages.jsonl").read()]
    assert {"columns", "sums", "prepare", "round", "measure"} <= set(purposes)


RATED = """
name = "rated"
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
group = "sex"
[algorithm]
name = "InteriorPoint"
[problem]
loss = "logistic"
penalty = { name = "Ridge", mu = 0.1 }
[evaluate]
holdout = 0.2
[[constraints]]
type = "MissRate"
at_most = 0.3
confidence = 0.7
"""
PRIVATE = """
name = "private"
[data]
label = "readmitted"
positive = "yes"
features = ["age"]
[preprocess.bounds]
age = [0, 120]
[algorithm]
name = "FedAvg"
k0 = 1
[run]
max_rounds = 5
[privacy]
epsilon = 2.0
delta = 1e-5
[evaluate]
holdout = 0.3
"""


def test_sites_choose_a_threshold_together_and_evaluate_with_it(hospitals, federation, monkeypatch):
    placed(federation, hospitals)
    draw_as_sites_do(monkeypatch, *(federation.kit(site) / RUNS for site in federation.sites))
    file = hospitals / "rated.toml"
    file.write_text(RATED)
    assert cli(["run", str(file), "--out", str(hospitals / "rated-simulated"), "--quiet"]) == 0
    told = ["federation", "submit", str(file), "--folder", str(federation.folder)]
    assert cli([*told, "--out", str(hospitals / "rated")]) == 0
    here, there = fd.load(hospitals / "rated-simulated"), fd.load(hospitals / "rated")
    np.testing.assert_allclose(there.w, here.w, rtol=0, atol=1e-9)
    assert there.decision is not None
    assert here.decision is not None
    assert (there.decision.cut, there.decision.terms) == (here.decision.cut, here.decision.terms)
    assert there.evaluation is not None
    assert here.evaluation is not None
    assert there.evaluation["miss_rate"] == here.evaluation["miss_rate"]
    answers = hospitals / "answers.csv"
    table = hospitals / "hospitals/site-1.csv"
    assert cli(["predict", str(hospitals / "rated"), str(table), "--out", str(answers)]) == 0
    assert cli(["predict", str(hospitals / "rated-simulated"), str(table), "--out", str(hospitals / "other.csv")]) == 0
    here, there = (path.read_text().splitlines() for path in (hospitals / "other.csv", answers))
    assert [line.split(",")[0] for line in here] == [line.split(",")[0] for line in there]


def test_private_sites_evaluate_with_noise_and_write_it_into_their_ledgers(hospitals, federation, capsys):
    for site in federation.sites:
        text = (hospitals / f"hospitals/{site}.csv").read_text()
        policy = "[policy]\nmin_subset = 1\nprivacy = true\nmax_epsilon = 2.0\n"
        place(federation, site, text, labels=["readmitted"], groups=[], more=policy)
    file = hospitals / "private.toml"
    file.write_text(PRIVATE)
    told = ["federation", "submit", str(file), "--folder", str(federation.folder), "--accept-uncertified"]
    assert cli([*told, "--out", str(hospitals / "private")]) == 0
    run = fd.load(hospitals / "private")
    assert run.evaluation is not None
    assert run.evaluation.noise is not None
    assert run.evaluation.noise.sampler == "opendp"
    assert run.ledger is not None
    assert not run.ledger.simulated
    assert 1.99 < run.ledger.total(0, "tight") <= 2.0 * (1 + 1e-9)
    capsys.readouterr()
    assert cli(["site", "ledger", str(federation.kit("site-1"))]) == 0
    printed = capsys.readouterr().out
    assert "evaluation: right and wrong answers" in printed or "epsilon 2" in printed


def test_a_job_that_is_cancelled_ends_and_is_not_begun_again_by_whoever_follows_it(federation, tmp_path, capsys):
    """The one who submitted it is told, with status 130; the log can be read; the run is there to be resumed."""
    for site, text in zip(federation.sites, starter.hospitals().values(), strict=False):
        place(federation, site, text, labels=["readmitted"], groups=[], more="[policy]\nmin_subset = 1\n")
    text = STUDY[: STUDY.index("[algorithm]")].replace('group = "sex"\n', "")
    text += '[algorithm]\nname = "FedAvg"\ntol = 0.0\n[problem]\nloss = "logistic"\n[run]\nmax_rounds = 100000\n'
    (tmp_path / "long.toml").write_text(text)
    told = ["--folder", str(federation.folder)]
    command = ["federation", "submit", str(tmp_path / "long.toml"), *told, "--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "foedus.app.cli", *command], stderr=subprocess.PIPE, text=True)
    try:
        wait_for_round(federation, 20)
        assert cli(["federation", "jobs", *told]) == 0
        number = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if " running " in line)
        assert cli(["federation", "cancel", number[:8], *told]) == 0
        assert "is ended; its run can be resumed" in capsys.readouterr().out
        assert process.wait(timeout=90) == INTERRUPTED
    finally:
        process.kill()
        process.wait()
    assert cli(["federation", "jobs", *told]) == 0
    assert ", 0 of them running or waiting." in capsys.readouterr().out, "nobody has begun it again"
    assert cli(["federation", "logs", number[:8], *told]) == 0
    assert capsys.readouterr().out
    assert cli(["federation", "cancel", "nothing", *told]) == 2
