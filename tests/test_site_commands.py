"""What a site's administrator types, and what is shown."""

from pathlib import Path

import numpy as np
import pytest
from test_site_attacks import DIM, STRICT, Intruder, private

from foedus import cli
from foedus.runtime.flare.names import RUNS
from foedus.runtime.flare.policy import Policy


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit whose site has an approved run with two releases behind it, and one request that waits."""
    intruder = Intruder(tmp_path, private(), Policy(approve="ask", **STRICT))
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "foedus.toml").write_text("[policy]\nprivacy = true\nmax_epsilon_total = 2.0\napprove = 'ask'\n")
    (tmp_path / "site").rename(kit / RUNS)
    (tmp_path / "site").symlink_to(kit / RUNS)
    intruder.start()
    intruder.hello()
    (request,) = intruder.site.approvals.all()
    assert cli.run(["site", "approve", str(kit), request.id]) == 0
    intruder.enter()
    for k in range(2):
        assert intruder.round(0, np.full(DIM, k / 10))[1].size == DIM
    intruder.hello("r2", max_rounds=2)
    return kit


def test_the_ledger_says_what_was_spent_on_what_and_what_is_left(kit, capsys):
    assert cli.run(["site", "ledger", str(kit), "--every"]) == 0
    shown = capsys.readouterr().out
    assert "run r1: 2 releases, epsilon 0.5" in shown
    assert "round 0 of FedAvg: laplace noise of scale" in shown
    assert "2 releases in all, epsilon 0.5 at delta 1e-05 for replacing one row; 1.5 of 2 is left." in shown


def test_requests_are_shown_in_words_and_decided_by_their_number(kit, capsys):
    capsys.readouterr()
    assert cli.run(["site", "requests", str(kit)]) == 0
    shown = capsys.readouterr().out
    assert "2 requests, 1 waiting." in shown
    assert "asks for the run r2, over 3 sites." in shown
    assert "parameters of the size of the model, with noise added here" in shown
    waiting = next(line.split()[0] for line in shown.splitlines() if "waiting" in line)
    assert cli.run(["site", "refuse", str(kit), waiting]) == 0
    assert "is refused." in capsys.readouterr().out
    assert cli.run(["site", "approve", str(kit), "nothing"]) == 2
    assert "there is no request 'nothing'; there are:" in capsys.readouterr().err


def test_a_damaged_ledger_is_one_sentence(kit, capsys):
    (kit / RUNS / "ledger.jsonl").write_text("")
    assert cli.run(["site", "ledger", str(kit)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "is damaged or was changed; nothing is released until it is restored" in error


def test_a_folder_that_is_no_kit_is_one_sentence(tmp_path, capsys):
    for command in (["site", "ledger"], ["site", "requests"], ["site", "audit"]):
        assert cli.run([*command, str(tmp_path)]) == 2
        assert "is no kit that has taken part in a run" in capsys.readouterr().err
