"""The frontier: a range of caps, each model from its neighbour's, as a table, a picture and a page."""

import csv
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hospitals import DATA, commands

import foedus as fd
from foedus.app.experiment.execute import Builder
from foedus.app.experiment.file import load
from foedus.app.experiment.frontier import trace
from foedus.app.experiment.screen import Screen
from foedus.app.report.picture import picture
from foedus.app.report.tradeoff import TradeoffPoint
from foedus.statistics.intervals import rate

STUDY = f"""\
{DATA}[algorithm]
name = "ProxAL"
[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.5
"""
SECOND = '[[constraints]]\ntype = "NormBall"\nradius = 9\n'

Foedus = Callable[..., tuple[int, str]]


@pytest.fixture
def foedus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foedus:
    run = commands(STUDY, tmp_path, monkeypatch, capsys)

    def status_and_errors(*arguments: str) -> tuple[int, str]:
        result = run(*arguments)
        return result.status, result.err

    return status_and_errors


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (STUDY, ["--caps", "a,b"], "--caps must be numbers with commas between them, as in 0.3,0.4,0.5. Got 'a,b'."),
        (STUDY, ["--caps", "0.3"], "--caps needs at least two different caps. Got '0.3'."),
        (STUDY, ["--caps", "0.4,-1"], "at_most must be a number >= 0"),
        (STUDY, ["--constraint", "7"], "--constraint 7: there is no such constraint with a cap; there are [1]."),
        (STUDY + SECOND, [], "say which one to vary with --constraint: 1 (LossCap), 2 (NormBall)."),
        (STUDY.replace("0.5", "[0.5, 0.6]"), [], "its lists make 2 runs; a frontier varies one cap."),
        (STUDY.replace("0.5", "{ city = 0.5 }"), [], "a frontier varies one cap for all sites, not one for each."),
        (STUDY.partition("[[constraints]]")[0], [], "it has no constraint with a cap that training keeps"),
        (STUDY + "[privacy]\nepsilon = 2\n", [], "each point would spend privacy anew"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(
    foedus: Foedus, text: str, options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("foedus.app.experiment.frontier.solve", lambda *a, **k: pytest.fail("nothing is to be trained"))
    Path("study.toml").write_text(text)
    status, err = foedus("frontier", "study.toml", *options)
    assert status == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_the_picture_is_an_image_with_a_point_for_every_model():
    points = [
        TradeoffPoint(f"cap {cap}", cap, 1 - cap, cap > 0.3, {"miss_rate": rate(9, 40), "false_alarms": rate(k, 90)})
        for k, cap in enumerate((0.3, 0.4, 0.5))
    ]
    drawing = ET.fromstring(picture(points, "A <title>", "loss on label 1 & 2", "A note."))
    circles = [c for c in drawing.iter("{http://www.w3.org/2000/svg}circle") if len(c)]
    assert len(circles) == 9
    assert sum(c.get("fill") == "#fff" for c in circles) == 3  # one model is not certified
    width, height = (float(drawing.get(side, "0")) for side in ("width", "height"))
    for circle in circles:
        assert 0 < float(circle.get("cx", "-1")) < width
        assert 0 < float(circle.get("cy", "-1")) < height
    alone = [TradeoffPoint(p.run, p.cap, p.objective, True) for p in points]
    assert len(list(ET.fromstring(picture(alone, "", "", "")).iter("{http://www.w3.org/2000/svg}circle"))) == 3


@pytest.mark.slow
def test_the_frontier_of_four_hospitals(foedus: Foedus):
    status, err = foedus("frontier", "study.toml", "--points", "5", "--quiet")
    assert (status, err) == (0, "")
    rows = list(csv.DictReader(Path("runs/study-frontier/frontier.csv").read_text().splitlines()))
    caps, objectives = (np.array([float(row[key]) for row in rows]) for key in ("cap", "objective"))
    assert len(rows) == 5
    assert np.all(np.diff(caps) > 0)
    assert np.all(np.diff(objectives) < 1e-3)  # nested caps
    assert all(float(row["largest_value"]) <= cap + 1e-3 for row, cap in zip(rows, caps, strict=True))
    assert all(float(r["miss_rate_low"]) <= float(r["miss_rate"]) <= float(r["miss_rate_high"]) for r in rows)
    ET.parse("runs/study-frontier/frontier.svg")
    page = Path("runs/study-frontier/frontier.html").read_text()
    assert "Miss rate against a cap" in page
    assert "False-alarm rate against a cap" in page


@pytest.mark.slow
def test_warm_starts_reach_the_models_of_cold_starts_and_another_cap_compiles_nothing(foedus: Foedus):
    experiment = load(Path("study.toml"))
    result = trace(experiment, Screen("quiet"), caps=[0.45, 0.4, 0.35])
    first, *others = result.runs.values()
    assert all(run.compile_seconds < 0.3 * max(first.compile_seconds, 0.5) for run in others)
    settings = experiment.cases[0].settings
    settings["evaluate"]["holdout"] = 0.2
    cold_rounds = 0
    for name, run in result.runs.items():
        settings["constraints"][0]["at_most"] = result.caps[name]
        setup = Builder(experiment).build(experiment.cases[0])
        cold = fd.solve(setup.problem, setup.algorithm, seed=0)
        cold_rounds += cold.rounds
        assert run.certificate.holds()
        assert run.objective == pytest.approx(cold.objective, abs=2e-3)
    assert sum(run.rounds for run in result.runs.values()) <= cold_rounds
