"""Held-out rows and terms on rates through the commands: run, predict, export, evaluate, report, card and compare."""

import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import ACCEPT, FEDAVG, Command, commands

import foedus as fd
from foedus.app.experiment import starter
from foedus.app.experiment.file import load
from foedus.app.experiment.plan import Plan
from foedus.app.experiment.predict import open_model, predict
from foedus.app.report import words
from foedus.data import tables
from foedus.data.holdout import Shares, split
from foedus.data.sites import Roles

STUDY = f"""\
{FEDAVG}[evaluate]
holdout = 0.3
[[constraints]]
type = "MissRate"
at_most = 0.3
confidence = 0.8
"""
ROLES = Roles(label="readmitted", positive="yes", group="sex")


@pytest.fixture
def foedus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `foedus` in a folder with four hospitals and study.toml."""
    return commands(STUDY, tmp_path, monkeypatch, capsys, columns=200)


def test_from_the_file_to_the_report(foedus: Command):
    checked = foedus("check", "study.toml")
    assert checked.status == 0
    assert "held out to evaluate the model on" in checked.out
    assert "miss rate at most 0.3 with confidence 0.8" in checked.out
    done = foedus("run", "study.toml", ACCEPT)
    assert done.status == 0, done.err
    run = fd.load("runs/study")
    evaluation, decision = run.evaluation, run.decision
    assert evaluation is not None
    assert decision is not None
    # the held-out figures, recomputed from the raw files with numpy alone
    model = open_model(Path("runs/study"))
    right, rows, misses, positives = 0, 0, 0, 0
    for site in run.names:
        table = split(tables.read(Path(f"hospitals/{site}.csv")), ROLES, site, Shares(0.3, 0.3, 5)).held_out
        label = table.columns["readmitted"]
        y = np.array(label.levels)[label.codes] == "yes"
        answer = model.rules.transform(table) @ model.w >= decision.cut
        right, rows = right + np.sum(answer == y), rows + len(y)
        misses, positives = misses + np.sum(~answer & y), positives + np.sum(y)
    assert evaluation["accuracy"].value == pytest.approx(right / rows, abs=1e-12)
    assert evaluation["miss_rate"].value == pytest.approx(misses / positives, abs=1e-12)
    assert run.settings["problem"]["constraints"] == []
    # saved, loaded, and saved again
    assert fd.load(run.save("again")).evaluation == evaluation
    assert fd.load("again").decision == decision
    page = Path("runs/study/report.html").read_text()
    assert f"On {rows} rows that took no part in training: sensitivity " in page
    assert "miss rate at most 0.3 with confidence 0.8, at every site" in page
    card = foedus("card", "runs/study", "--out", "-").out
    assert "## New rows" in card
    assert "miss rate at most 0.3" in card
    # predictions, the ONNX graph and the scikit-learn pipeline apply the threshold
    answers = predict(model, Path("hospitals/city.csv"))
    positive = [a == "yes" for a in answers.answers]
    assert positive == (answers.scores >= decision.cut).tolist()
    assert positive != (answers.scores > 0).tolist()
    _exports_agree(answers.answers)
    # new rows
    Path("new.csv").write_text(Path("hospitals/valley.csv").read_text())
    done = foedus("evaluate", "runs/study", "new.csv")
    assert done.status == 0, done.err
    assert "on new.csv (60 rows); they count as unseen only if they took no part in training" in done.out
    again = fd.load("runs/study")
    assert list(again.evaluations) == ["held-out rows", "new.csv"]
    assert again.evaluation == evaluation
    assert "On new.csv" in Path("runs/study/report.html").read_text()
    assert json.loads(foedus("evaluate", "runs/study", "new.csv", "--json").out)["overall"]["accuracy"][3] == 60
    _mistakes_of_evaluate(foedus)
    compared = foedus("compare", "runs/study", "runs/study")
    assert "sensitivity, new rows" in compared.out
    # a decision that keeps no threshold makes the run uncertified
    broken = json.loads(Path("runs/study/run.json").read_text())
    broken["converged"] = True
    broken["decision"]["terms"].append({**broken["decision"]["terms"][0], "type": "FalseAlarmRate", "holds": False})
    Path("again/run.json").write_text(json.dumps(broken))
    assert "no threshold keeps both" in (words.uncertified(fd.load("again")) or "")


def _exports_agree(answers: list[str]) -> None:
    """The exported forms give the same answers to the rows of one hospital."""
    import pandas

    from foedus.app.experiment.export import to_sklearn

    frame = pandas.read_csv("hospitals/city.csv")
    assert to_sklearn(Path("runs/study")).predict(frame.drop(columns=["sex", "readmitted"])).tolist() == answers
    from onnx.reference import ReferenceEvaluator

    from foedus.app.experiment.onnx_export import to_onnx

    graph = to_onnx(Path("runs/study"))
    feeds = {}
    for name in (one.name for one in graph.graph.input):
        column = frame[name]
        words = column.dtype == object or str(column.dtype) in ("str", "string")
        values = column.fillna("").to_numpy(dtype=object) if words else column.to_numpy(dtype=float)
        feeds[name] = values[:, None]
    assert [*ReferenceEvaluator(graph).run(["prediction"], feeds)[0]] == answers


def _mistakes_of_evaluate(foedus: Command) -> None:
    before = Path("runs/study/run.json").read_bytes()
    text = Path("new.csv").read_text()
    Path("unlabelled.csv").write_text(text.replace("readmitted", "back"))
    Path("strange.csv").write_text(text.replace(",yes\n", ",ja\n"))
    for file, sentence in (
        ("nowhere.csv", "there is no such file"),
        ("unlabelled.csv", "there is no column 'readmitted'"),
        ("strange.csv", "the label 'readmitted' is 'ja'; the model knows no, yes"),
    ):
        wrong = foedus("evaluate", "runs/study", file)
        assert wrong.status == 2
        assert sentence in wrong.err
        assert wrong.err.count("\n") == 1
    assert Path("runs/study/run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("holdout = 0.3", "holdout = 1.5"), "[evaluate] holdout must be a number > 0 and < 1. Got 1.5 instead."),
        (("holdout = 0.3", "holdout = 'much'"), "[evaluate] holdout must be a number. Got 'much' instead."),
        (("holdout = 0.3", "hold_out = 0.3"), "[evaluate] has no key 'hold_out'"),
        (
            ("at_most = 0.3", "at_most = 30"),
            "[[constraints]] 1: The 'at_most' of MissRate must be a number > 0 and < 1",
        ),
        (("at_most = 0.3\n", ""), "[[constraints]] 1: MissRate needs 'at_most'."),
        (("at_most = 0.3", "at_most = 0.05"), "needs at least 32 at each site; raise holdout of MissRate (now 0.3)"),
        (("MissRate", "MissRat"), "Did you mean 'MissRate'?"),
        (
            ("[evaluate]", "[privacy]\nepsilon = 4\ndelta = 1e-5\n[evaluate]"),
            "under [privacy] no exact figure leaves a site",
        ),
        (("[problem]", '[problem]\nloss = "least_squares"'), "MissRate is about two classes"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(foedus: Command, change: tuple[str, str], sentence: str):
    Path("study.toml").write_text(STUDY.replace(*change))
    for command in ("check", "run"):
        wrong = foedus(command, "study.toml")
        assert wrong.status == 2
        assert sentence in wrong.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("part", ["[evaluate]", "[[constraints]]"])
def test_a_submitted_run_states_its_terms_on_rates(foedus: Command, part: str):
    head, _, rest = STUDY.partition("[evaluate]")
    Path("study.toml").write_text(STUDY if part == "[evaluate]" else head + rest[rest.index("[[") :])
    stated = Plan.of(load(Path("study.toml")).cases[0].settings).holdout.to_json()
    assert stated is not None
    assert stated["rates"] == [{"type": "MissRate", "at_most": 0.3, "confidence": 0.8}]
    assert stated["threshold"] == 0.3
    assert stated["share"] == (0.3 if part == "[evaluate]" else 0.0)


def test_each_site_draws_its_own_rows_class_by_class(tmp_path: Path):
    text = starter.hospitals()["city"]
    path = tmp_path / "city.csv"
    path.write_text(text)
    table = tables.read(path)
    one = split(table, ROLES, "city", Shares(0.2, 0.3, 1))
    again = split(table, ROLES, "city", Shares(0.2, 0.3, 1))
    other = split(table, ROLES, "valley", Shares(0.2, 0.3, 1))
    parts = [one.training, one.held_out, one.threshold]
    assert np.array_equal(np.sort(np.concatenate([part.numbers for part in parts])), np.arange(table.rows))
    assert np.array_equal(one.held_out.numbers, again.held_out.numbers)
    assert not np.array_equal(one.held_out.numbers, other.held_out.numbers)
    label = np.array(table.columns["readmitted"].levels)[table.columns["readmitted"].codes]
    for word in ("yes", "no"):
        share = np.mean(label[one.held_out.numbers] == word) - np.mean(label == word)
        assert abs(share) < 0.05
    with pytest.raises(fd.FoedusError, match="none is left for training"):
        split(table.take(np.zeros(0, dtype=int)), ROLES, "city", Shares(0.5))
