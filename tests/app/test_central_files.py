"""Noise in shares, masked sums and PrivateNewton in an experiment file; `check` refuses what `run` refuses."""

from pathlib import Path

import pytest

import foedus as fd
from foedus.app import cli
from foedus.app.experiment import build, execute, file, starter
from foedus.app.experiment.plan import Plan
from foedus.app.experiment.preview import messages
from foedus.app.experiment.screen import Screen
from foedus.base.errors import FoedusError

FILE = """
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
features = ["age", "blood_pressure"]
[algorithm]
name = "PrivateNewton"
rounds = 3
[run]
secure = true
[privacy]
kind = "central"
epsilon = 8.0
delta = 1e-5
tolerate = 1
least_rows = 100
"""
CAPS = '[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 1.5\n'


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "hospitals").mkdir()
    for name, text in starter.hospitals().items():
        (tmp_path / f"hospitals/{name}.csv").write_text(text)
    return tmp_path / "study.toml"


def read(study: Path, text: str) -> file.Experiment:
    study.write_text(text)
    return file.load(study)


@pytest.mark.slow
def test_a_file_states_noise_in_shares_and_the_run_is_that_of_the_library(study: Path):
    experiment = read(study, FILE)
    settings = experiment.cases[0].settings
    total = build.privacy_of(settings).get("privacy")
    assert total == fd.Central(epsilon=8.0, delta=1e-5, tolerate=1, least_rows=100)
    setup = execute.Builder(experiment).build(experiment.cases[0])
    (run,) = execute.execute(experiment, Screen("quiet"), out=study.parent / "out").runs.values()
    by_hand = fd.solve(setup.problem, fd.PrivateNewton(rounds=3), privacy=setup.privacy.get("privacy"), secure=True)
    assert run.w.tolist() == by_hand.w.tolist()
    assert run.rounds == 3
    assert run.ledger is not None
    assert "in shares of 4 clients, of which 1 may collude or vanish" in str(run.ledger)
    assert 7.99 < run.ledger.total(0, "tight") <= 8.0
    (page,) = study.parent.glob("out/**/report.html")
    assert "Central" in page.read_text()
    down, up = zip(*messages(setup).kinds, strict=True)  # of the matrix, of a gradient
    assert run.traffic.up == 4 * (up[0] + 2 * up[1])
    assert run.traffic.down == 4 * (down[0] + 2 * down[1])


def test_caps_in_a_file_go_with_a_total_and_check_says_how_long_it_takes(study: Path, capsys):
    for text in (FILE, FILE.replace("secure = true", "").replace('kind = "central"', "").partition("tolerate")[0]):
        experiment = read(study, text.replace("rounds = 3", "") + CAPS)
        setup = execute.Builder(experiment).build(experiment.cases[0])
        assert build.rounds_of(setup.settings, setup.algorithm, setup.problem) == 18
        assert cli.run(["check", str(study)]) == 0
        output = capsys.readouterr().out
        assert "PrivateNewton" in output
        assert "18" in output


def test_auto_takes_the_private_algorithm_where_a_file_asks_for_privacy(study: Path, capsys):
    from foedus.app.experiment.build import fit_of

    experiment = read(study, FILE.replace('"PrivateNewton"\nrounds = 3', '"auto"') + CAPS)
    setup = execute.Builder(experiment).build(experiment.cases[0])
    assert type(fit_of(setup).algorithm).__name__ == "PrivateNewton"
    assert cli.run(["check", str(study)]) == 0
    assert "Training with PrivateNewton" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("secure = true", "secure = false"), 'kind = "central": each site adds a share of the noise'),
        (('"central"', '"centrl"'), "there is no kind of total 'centrl', only Central, Local. Did you mean 'Central'?"),
        (('"central"', '"local"'), "Local has no setting 'tolerate'"),
        (("delta = 1e-5", ""), "The 'delta' of Central must be a number > 0"),
        (("tolerate = 1", "tolerate = 4"), "The 'tolerate' of Central must be a whole number from 0 to 3"),
        (("least_rows = 100", "least_rows = 0"), "The 'least_rows' of Central must be a whole number from 1"),
        (("epsilon = 8.0", "epsilon = 1e-4"), "epsilon 0.0001 is too small for any useful noise"),
        (('"PrivateNewton"\nrounds = 3', '"FedGiA"'), "needs each client's own reply, which masked sums"),
        (("[run]", "[participation]\nfraction = 0.5\n[run]"), "needs the noise of 3 of 4 clients in every round"),
        ((FILE[FILE.index("[privacy]") :], ""), "PrivateNewton is for private training alone"),
    ],
)
def test_check_and_run_refuse_a_wrong_file_in_the_same_words_and_write_nothing(study: Path, capsys, change, words):
    assert change[0] in FILE
    study.write_text(FILE.replace(*change))
    sentences = []
    for command in ("check", "run"):
        assert cli.run([command, str(study)]) == 2
        sentences.append(" ".join(capsys.readouterr().err.split()))
    assert sentences[0] == sentences[1]
    assert words in sentences[0]
    assert not (study.parent / "runs").exists()


def test_masked_sums_without_noise_are_checked_as_well(study: Path):
    plain = FILE.partition("[privacy]")[0].replace('"PrivateNewton"\nrounds = 3', '"FedGiA"')
    experiment = read(study, plain)
    with pytest.raises(FoedusError, match=r"\[run\] secure: FedGiA needs each client's own reply"):
        execute.Builder(experiment).build(experiment.cases[0])
    assert build.runtime_of(experiment.cases[0].settings) == {"secure": True}


def test_secure_of_the_section_is_that_of_sites_of_their_own(study: Path):
    text = FILE.replace("secure = true", 'runtime = "flare"\nsecure = true')
    assert build.secure_of(read(study, text).cases[0].settings)
    inside = FILE.replace("secure = true", 'runtime = { name = "flare", secure = true }')
    assert build.secure_of(read(study, inside).cases[0].settings)
    assert Plan.of(read(study, inside).cases[0].settings).secure
    with pytest.raises(FoedusError, match=r"\[privacy\] least_rows: .*state a number that every site has"):
        Plan.of(read(study, inside.replace("least_rows = 100", "")).cases[0].settings)
