"""What a site's administrator types, and what is shown."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from halls import Hall
from intruders import DIM, STRICT, Intruder, private, problem

import foedus as fd
from foedus.app import cli
from foedus.federation.names import RUNS
from foedus.federation.policy import Policy


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


def test_each_sites_own_page_has_its_rows_and_nothing_of_the_others(tmp_path, capsys):
    """Four sites with a cap of their own end a run; each page has that site's value, model figures and messages."""
    rng = np.random.default_rng(0)
    sites = {}
    for i in range(4):
        x = rng.standard_normal((30, 2))
        sites[f"clinic-{i}"] = (x, (x[:, 0] + 0.3 * rng.standard_normal(30) > 0).astype(float))
    cap = fd.constraints.LossCap(fd.label(1), at_most={f"clinic-{i}": 0.5 + 0.01 * i for i in range(4)})
    capped = fd.Problem(sites, loss=fd.losses.logistic, constraints=[cap])
    hall = Hall(tmp_path, capped, fd.InteriorPoint())
    result = hall.play()
    assert result.conclusion.certificate.holds()
    pages, rows = {}, result.conclusion.certificate.by_site()
    for i in range(4):
        kit = tmp_path / f"kit-{i}"
        (kit / "local").mkdir(parents=True)
        (kit / "local" / "foedus.toml").write_text("[policy]\n")
        shutil.copytree(tmp_path / f"site-{i + 1}", kit / "foedus-runs")
        assert cli.run(["site", "report", str(kit)]) == 0
        path = Path(capsys.readouterr().out.strip())
        assert path.stat().st_mode & 0o077 == 0, "its figures are for this site alone"
        pages[f"clinic-{i}"] = path.read_text()
    for name, page in pages.items():
        (own,) = rows[name]
        page = re.sub(r'<span.*?</span>| class="t"|(?<=>)\s+(?=<)', "", page)
        assert f"<td>{own.value:.4f}</td><td>{own.cap:.4g}</td>" in page
        assert "Every constraint holds here" in page
        assert "accuracy" in page
        for other, (row,) in rows.items():
            if other != name:
                assert f"<td>{row.cap:.4g}</td><td>{row.multiplier:.4g}</td>" not in page
                assert other not in page


def test_under_privacy_a_site_measures_the_model_for_itself_and_sends_nothing_of_it(tmp_path):
    result = Hall(tmp_path, problem(), private(), max_rounds=2).play()
    assert len(result.conclusion.certificate.silent) == 3
    record = json.loads((tmp_path / "site-1" / "certificate-r1.json").read_text())
    assert record["figures"]["rows"] == 60
