"""The commands around an experiment file: what they print, write and leave alone."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hospitals import ACCEPT, Command, Result, commands
from hospitals import FEDAVG as STUDY

import foedus as fd

ROOT = Path(__file__).parents[2]
COUNTS = """\
[data]
files = "hospitals/*.csv"
label = "previous_stays"
features = ["age"]
[problem]
loss = "poisson"
[algorithm]
name = "InteriorPoint"
"""


@pytest.fixture
def foedus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `foedus` in a folder with four hospitals and study.toml."""
    return commands(STUDY, tmp_path, monkeypatch, capsys)


def written() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_help_names_every_command(foedus: Command):
    told = foedus("--help").out
    for name in ("init", "check", "run", "compare", "predict", "export"):
        assert name in told


def test_check_tells_what_would_happen_and_writes_nothing(foedus: Command):
    before = written()
    result = foedus("check", "study.toml")
    assert result.status == 0, result.err
    for words in ("4 sites, 360 rows", "readmitted yes", "ward (3)", "10 numbers", "all 40 rounds", "Next: foedus run"):
        assert words in result.out
    # a model of ten numbers with the step size and the round; back, a model and the objective
    assert "a site receives 96 B and sends 88 B" in result.out
    assert written() == before


def test_a_run_directory_holds_what_is_needed_to_use_and_repeat_it(foedus: Command):
    result = foedus("run", ACCEPT, "study.toml")
    assert result.status == 0, result.err
    folder = Path("runs/study")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("asked.json", "events.jsonl", "experiment.json", "history.npz", "parameters.npz"),
        *("preprocessing.json", "report.html", "run.json"),
    }
    run = fd.load(folder)
    assert run.rounds == 40
    assert run.history["objective"][-1] < run.history["objective"][0]
    kept = json.loads((folder / "experiment.json").read_text())
    assert kept["schema"] == 1
    assert kept["sites"] == {"city": 120, "lakeside": 80, "st-mary": 100, "valley": 60}
    assert kept["seed"] == 5
    assert kept["versions"]["foedus"]
    assert len(kept["features"]) == run.w.size
    assert kept["preparation"]["rounds"] == 1
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]
    assert f"objective {run.objective:.6g}" in result.out
    up, down = kept["preparation"]["up"], kept["preparation"]["down"]
    assert (
        f"preparation beside that: 1 round for the scales and words of the columns, {up} B up and {down} B"
        in result.out
    )


def test_the_same_file_gives_the_same_bytes(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml", "--out", "one").status == 0
    assert foedus("run", ACCEPT, "study.toml", "--out", "two").status == 0
    for name in ("history.npz", "parameters.npz", "preprocessing.json"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


def test_a_finished_run_is_not_repeated_unless_asked(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml").status == 0
    before = written()
    result = foedus("run", ACCEPT, "study.toml")
    assert result.status == 0
    assert "already finished" in result.out
    assert written() == before
    assert "already finished" not in foedus("run", ACCEPT, "study.toml", "--again").out


def test_other_settings_do_not_overwrite_a_run(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml").status == 0
    Path("study.toml").write_text(STUDY.replace("seed = 5", "seed = 6"))
    before = written()
    refused = foedus("run", ACCEPT, "study.toml")
    assert refused.status == 2
    assert "--again" in refused.err
    assert written() == before
    assert foedus("run", ACCEPT, "study.toml", "--again").status == 0
    assert json.loads(Path("runs/study/experiment.json").read_text())["seed"] == 6


def test_other_data_do_not_overwrite_a_run(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml").status == 0
    with Path("hospitals/city.csv").open("a") as more:
        more.write("50,F,surgery,120,1.0,1,no,no\n")
    assert foedus("run", ACCEPT, "study.toml").status == 2


def test_an_interrupted_run_goes_on_to_the_bit(foedus: Command, monkeypatch: pytest.MonkeyPatch):
    from foedus.app.experiment import execute

    assert foedus("run", ACCEPT, "study.toml", "--out", "whole").status == 0
    solve = execute.solve

    def stopped(*arguments, callback, **settings):
        def watch(rounds: int, record: dict[str, float]) -> bool:
            callback(rounds, record)
            return rounds >= 4  # as Ctrl-C does, after the first chunk

        return solve(*arguments, callback=watch, **settings)

    monkeypatch.setattr(execute, "solve", stopped)
    result = foedus("run", ACCEPT, "study.toml", "--out", "parts")
    assert result.status == 130
    assert "goes on" in result.out
    assert {path.name for path in Path("parts").iterdir()} == {
        "events.jsonl", "experiment.json", "preprocessing.json", "run.ckpt"
    }  # fmt: skip
    refused = foedus("predict", ACCEPT, "parts", "hospitals/city.csv")
    assert refused.status == 2
    assert "not finished" in refused.err
    monkeypatch.setattr(execute, "solve", solve)
    assert foedus("run", ACCEPT, "study.toml", "--out", "parts").status == 0
    assert not Path("parts/run.ckpt").exists()
    for name in ("history.npz", "parameters.npz"):
        assert Path("parts", name).read_bytes() == Path("whole", name).read_bytes()
    kinds = [json.loads(line)["event"] for line in Path("parts/events.jsonl").read_text().splitlines()]
    assert [kind for kind in kinds if kind != "rounds"] == ["start", "interrupted", "resume", "end"]


def test_quiet_prints_nothing(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml", "--quiet") == Result(0, "", "")


def test_json_is_one_line_an_event(foedus: Command):
    result = foedus("run", ACCEPT, "study.toml", "--json")
    events = [json.loads(line) for line in result.out.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]
    rounds = [event for event in events if event["event"] == "rounds"]
    assert rounds[-1]["rounds"] == 40
    run = fd.load("runs/study")
    assert rounds[-1]["total_up"] == run.traffic.up
    assert rounds[-1]["objective"] == run.history["objective"][-1]
    assert foedus("run", ACCEPT, "study.toml", "--json", "--quiet").status == 2


def test_predictions_of_raw_rows_are_those_of_the_model(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml", "--quiet").status == 0
    result = foedus("predict", ACCEPT, "runs/study", "hospitals/valley.csv", "--out", "answers.csv")
    assert result.status == 0, result.err
    header, *lines = Path("answers.csv").read_text().splitlines()
    assert header == "row,prediction,probability,score"
    assert len(lines) == 60
    # by hand, from the file and the kept numbers: the model is a sum over columns
    kept = json.loads(Path("runs/study/preprocessing.json").read_text())
    names, w = json.loads(Path("runs/study/experiment.json").read_text())["features"], fd.load("runs/study").w
    weights = dict(zip(names, w, strict=True))
    columns = Path("hospitals/valley.csv").read_text().splitlines()
    titles = columns[0].split(",")
    for line, raw in zip(lines, columns[1:], strict=True):
        row = dict(zip(titles, raw.split(","), strict=True))
        score = weights["(intercept)"]
        for rule in kept["columns"]:
            if rule["kind"] == "number":
                value = float(row[rule["name"]]) if row[rule["name"]] else rule["fill"]
                score += weights[rule["name"]] * (value - rule["shift"]) / rule["scale"]
            else:
                score += weights[f"{rule['name']}={row[rule['name']]}"]
        _, answer, chance, said = line.split(",")
        assert float(said) == pytest.approx(score, rel=1e-5, abs=1e-9)
        assert float(chance) == pytest.approx(1 / (1 + np.exp(-score)), rel=1e-5)
        assert answer == ("yes" if score > 0 else "no")


def test_rows_to_predict_need_no_label_and_may_hold_new_words(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml", "--quiet").status == 0
    text = "age,ward,blood_pressure,creatinine,previous_stays,smoker\n"
    Path("new.csv").write_text(text + "70,moon base,130,,2,yes\n")
    result = foedus("predict", ACCEPT, "runs/study", "new.csv")
    assert result.status == 0
    assert "in 1 of 1 row 'ward' is a word that no site had in training ('moon base')" in result.err
    assert result.out.count("\n") == 2
    for wrong, words in (
        (text.replace("age", "agee") + "70,surgery,130,1,2,yes\n", ("'age'", "Did you mean 'agee'?")),
        (text + "old,surgery,130,1,2,yes\n", ("new.csv, line 2", "'age'", "'old'")),
    ):
        Path("new.csv").write_text(wrong)
        refused = foedus("predict", ACCEPT, "runs/study", "new.csv", "--out", "never.csv")
        assert refused.status == 2
        for word in words:
            assert word in refused.err
        assert not Path("never.csv").exists()


def test_the_exported_pipeline_answers_like_predict(foedus: Command):
    import joblib
    import pandas

    assert foedus("run", ACCEPT, "study.toml", "--quiet").status == 0
    assert foedus("export", ACCEPT, "runs/study", "model.joblib").status == 0
    pipeline = joblib.load("model.joblib")
    assert foedus("predict", ACCEPT, "runs/study", "hospitals/city.csv", "--out", "answers.csv").status == 0
    ours = pandas.read_csv("answers.csv")
    raw = pandas.read_csv("hospitals/city.csv")[list(pipeline.feature_names_in_)]
    np.testing.assert_array_equal(pipeline.predict(raw), ours["prediction"].to_numpy())
    np.testing.assert_allclose(pipeline.predict_proba(raw)[:, 1], ours["probability"], rtol=1e-5)
    assert list(pipeline.classes_) == ["no", "yes"]
    assert foedus("export", "runs/study", "model.pkl").status == 2


@pytest.mark.parametrize("missing", ["mean", "drop"])
def test_the_exported_onnx_graph_answers_like_predict(foedus: Command, missing: str):
    import onnx
    import pandas
    from onnx.reference import ReferenceEvaluator

    Path("study.toml").write_text(STUDY.replace("[data]", f'[data]\nmissing = "{missing}"', 1))
    assert foedus("run", ACCEPT, "study.toml", "--quiet").status == 0
    assert foedus("export", ACCEPT, "runs/study", "model.onnx").status == 0
    text = "age,ward,blood_pressure,creatinine,previous_stays,smoker\n"
    Path("new.csv").write_text(
        text + "70,surgery,130,1.5,2,yes\n61,moon base,120,,1,no\n40,,110,1,0,yes\n55,?,99,2,3,\n"
    )
    assert foedus("predict", ACCEPT, "runs/study", "new.csv", "--out", "answers.csv").status == 0
    ours = pandas.read_csv("answers.csv", keep_default_na=False, na_values={"score": [""], "probability": [""]})
    graph = onnx.load("model.onnx")
    raw = pandas.read_csv("new.csv")
    fed = {}
    for column in graph.graph.input:
        if column.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            fed[column.name] = raw[[column.name]].fillna("").astype(str).to_numpy(dtype=object)
        else:
            fed[column.name] = raw[[column.name]].to_numpy(dtype=float)
    answers, probability, score = ReferenceEvaluator(graph).run(None, fed)
    assert [str(a) for a in answers] == list(ours["prediction"])
    np.testing.assert_allclose(score, ours["score"], rtol=1e-5)
    np.testing.assert_allclose(probability, ours["probability"], rtol=1e-5)
    assert np.isfinite(score).sum() == (4 if missing == "mean" else 1)


def test_counts_are_answered_with_counts_in_files_and_in_onnx(foedus: Command):
    import onnx
    from onnx.reference import ReferenceEvaluator

    Path("study.toml").write_text(COUNTS)
    assert foedus("run", "study.toml", "--quiet").status == 0
    assert foedus("export", "runs/study", "model.onnx").status == 0
    assert foedus("predict", "runs/study", "hospitals/city.csv", "--out", "answers.csv").status == 0
    rows = np.genfromtxt("answers.csv", delimiter=",", names=True)
    np.testing.assert_allclose(rows["prediction"], np.exp(rows["score"]), rtol=1e-4)
    raw = np.genfromtxt("hospitals/city.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    fed = {"age": raw["age"].astype(float)[:, None]}
    answers, _ = ReferenceEvaluator(onnx.load("model.onnx")).run(None, fed)
    np.testing.assert_allclose(answers, rows["prediction"], rtol=1e-4)
    refused = foedus("export", "runs/study", "model.joblib")
    assert refused.status == 2
    assert "can be given a model of the Poisson loss; take ONNX" in refused.err


def test_a_run_that_is_not_certified_ends_with_status_3_and_is_not_used_unawares(foedus: Command):
    result = foedus("run", "study.toml", "--quiet")
    assert result.status == 3
    assert result.err.startswith("foedus: runs/study is not certified: it did not converge")
    assert result.err.count("\n") == 1
    assert foedus("run", "study.toml", "--quiet").status == 3  # also when it is only looked up
    assert foedus("run", ACCEPT, "study.toml", "--quiet").status == 0
    for command in (
        ("predict", "runs/study", "hospitals/city.csv", "--out", "x.csv"),
        ("export", "runs/study", "x.joblib"),
        ("export", "runs/study", "x.onnx"),
    ):
        refused = foedus(*command)
        assert refused.status == 3
        assert "runs/study is not certified" in refused.err
        assert "--accept-uncertified" in refused.err
        assert not Path(command[-1]).exists()
        accepted = foedus(*command, ACCEPT)
        assert accepted.status == 0
        assert "foedus: note: runs/study is not certified" in accepted.err
        assert Path(command[-1]).exists()


def test_a_cap_that_cannot_be_kept_ends_with_status_3_and_one_that_can_with_0(foedus: Command):
    # ProxAL does not meet such a small cap in so few rounds
    text = (ROOT / "examples/hospital.toml").read_text().replace('name = "auto"', 'name = "ProxAL"')
    Path("kept.toml").write_text(text)
    assert foedus("run", "kept.toml", "--quiet") == Result(0, "", "")
    assert foedus("predict", "runs/kept", "hospitals/city.csv").err == ""
    Path("broken.toml").write_text(text.replace("at_most = 0.55", "at_most = 0.001").replace("= 2000", "= 60"))
    result = foedus("run", "broken.toml", "--quiet")
    assert result.status == 3
    assert "its certificate does not hold" in result.err
    assert foedus("export", "runs/broken", "model.joblib").status == 3
    Path("both.toml").write_text(text.replace("at_most = 0.55", "at_most = [0.001, 0.55]").replace("= 2000", "= 60"))
    swept = foedus("run", "both.toml", "--quiet")
    assert swept.status == 3
    assert "runs/both/at_most=0.001 is not certified" in swept.err
    assert "at_most=0.55" not in swept.err


def test_a_submitted_run_that_is_not_certified_ends_with_status_3(foedus: Command, monkeypatch: pytest.MonkeyPatch):
    from foedus.app.experiment import remote

    told = foedus("run", ACCEPT, "study.toml")
    assert "Next: foedus predict" not in told.out
    kept = fd.load("runs/study")
    monkeypatch.setattr(remote, "resume", lambda *_: kept)
    refused = foedus("federation", "resume", "runs/study")
    assert refused.status == 3
    assert "runs/study is not certified" in refused.err
    assert foedus("federation", "resume", "runs/study", ACCEPT).status == 0
    stopped = dataclasses.replace(kept, interrupted=True)
    monkeypatch.setattr(remote, "resume", lambda *_: stopped)
    assert foedus("federation", "resume", "runs/study").status == 130


def test_the_history_becomes_a_frame(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml", "--quiet").status == 0
    run = fd.load("runs/study")
    frame = run.to_frame()
    assert list(frame.index) == list(range(1, 41))
    np.testing.assert_array_equal(frame["objective"], run.history["objective"])
    assert set(frame.columns) == set(run.history)


def test_a_sweep_runs_on_after_a_failure_and_lists_it(foedus: Command):
    Path("study.toml").write_text(STUDY.replace("lr = 0.5", "lr = [0.5, 1e200]"))
    result = foedus("run", ACCEPT, "study.toml")
    assert result.status == 1
    assert "1 of 2 runs failed:" in result.out
    assert "lr=1e+200: the run diverged: the iterates became infinite" in result.out
    assert "could not be written" not in result.out
    good = fd.load("runs/study/lr=0.5")
    assert f"{good.objective:.6g}" in result.out
    before = written()
    again = foedus("run", ACCEPT, "study.toml")
    assert "lr=0.5: already finished" in again.out
    assert written().keys() == before.keys()


def test_one_broken_run_does_not_cost_the_others(foedus: Command, monkeypatch: pytest.MonkeyPatch):
    from foedus.app.experiment import execute

    solve = execute.solve

    def failing(problem, algorithm, **settings):
        if algorithm.lr == 0.25:
            raise RuntimeError("out of memory\nand more lines")
        return solve(problem, algorithm, **settings)

    monkeypatch.setattr(execute, "solve", failing)
    Path("study.toml").write_text(STUDY.replace("lr = 0.5", "lr = [0.25, 0.5]"))
    result = foedus("run", ACCEPT, "study.toml")
    assert result.status == 1
    assert "lr=0.25: out of memory\n" in result.out
    assert Path("runs/study/lr=0.5/run.json").exists()
    monkeypatch.setattr(execute, "solve", solve)
    assert foedus("run", ACCEPT, "study.toml").status == 0  # the one that failed is run, the other is there
    assert Path("runs/study/lr=0.25/run.json").exists()


def test_compare_puts_runs_side_by_side(foedus: Command):
    assert foedus("run", ACCEPT, "study.toml", "--quiet", "--out", "first").status == 0
    Path("other.toml").write_text(STUDY.replace("lr = 0.5", "lr = 0.25"))
    result = foedus("compare", "first", "other.toml", "--out", "both")
    assert result.status == 0, result.err
    for run in (fd.load("first"), fd.load("runs/other")):
        assert f"{run.objective:.6g}" in result.out
        assert f"{run.certificate.stationarity:.1e}" in result.out
    kept = json.loads(Path("both/comparison.json").read_text())
    assert [entry["run"] for entry in kept["runs"]] == ["first", "other"]
    assert "different problems" not in result.out
    Path("third.toml").write_text(STUDY.replace("mu = 0.01", "mu = 0.02"))
    assert "different problems" in foedus("compare", "first", "third.toml", "--out", "three").out
    page = Path("three/report.html").read_text()
    assert "does best" not in page
    assert "no winner" in page
    Path("fourth.toml").write_text(STUDY.replace("[problem]", 'drop = ["age"]\n[problem]').replace("= 40", "= 41"))
    assert "different data" in foedus("compare", "first", "fourth.toml", "--out", "four").out
    assert "no winner" in Path("four/report.html").read_text()


def test_compare_algorithms_on_one_file(foedus: Command):
    Path("study.toml").write_text(STUDY.replace("= 40", "= 5"))
    result = foedus("compare", "study.toml", "--algorithms", "fedavg,Scaffold")
    assert result.status == 0, result.err
    assert fd.load("runs/study/FedAvg").settings["algorithm"]["k0"] == 2  # the file's own settings
    assert f"{fd.load('runs/study/Scaffold').objective:.6g}" in result.out
    refused = foedus("compare", "study.toml", "--algorithms", "Scafold")
    assert refused.status == 2
    assert "Did you mean 'Scaffold'?" in refused.err


def test_init_writes_what_check_accepts(foedus: Command):
    asked = ("--data", "hospitals/*.csv", "--label", "readmitted", "--group", "sex", "--max-gap", "0.3")
    assert foedus("init", "mine.toml", *asked).status == 0
    assert foedus("check", "mine.toml").status == 0
    refused = foedus("init", "mine.toml", *asked)
    assert refused.status == 2
    assert "already there" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("init", "new.toml"), ("--data", "--example")),
        (("init", "new.toml", "--data", "hospitals/*.csv"), ("--label", "readmitted")),
        (("init", "new.toml", "--data", "hospitals/*.csv", "--label", "readmited"), ("Did you mean 'readmitted'?",)),
        (("init", "new.toml", "--data", "nowhere/*.csv", "--label", "y"), ("no file matches",)),
        (("init", "new.toml", "--data", "hospitals/*.csv", "--label", "readmitted", "--max-gap", "1"), ("--group",)),
        (("init", "far/new.toml", "--data", "hospitals/*.csv", "--label", "readmitted"), ("no folder far",)),
        (("predict", "nowhere", "hospitals/city.csv"), ("nowhere", "run directory")),
        (("predict", "hospitals", "hospitals/city.csv"), ("no finished run",)),
        (("compare", "study.toml", "--algorithms", ","), ("--algorithms",)),
        (("compare", "nothing.toml"), ("nothing.toml",)),
        (("export", "nowhere"), ("nowhere",)),
    ],
)
def test_wrong_commands(foedus: Command, arguments: tuple[str, ...], words: tuple[str, ...]):
    before = written()
    result = foedus(*arguments)
    assert result.status == 2
    assert result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err
    assert written() == before


def test_the_example_is_the_one_in_the_examples_folder(foedus: Command):
    assert foedus("init", "--example").status == 2  # hospitals/ is there
    Path("empty").mkdir()
    assert foedus("init", "empty/hospital.toml", "--example").status == 0
    assert Path("empty/hospital.toml").read_text() == (ROOT / "examples/hospital.toml").read_text()
    assert len(list(Path("empty/hospitals").iterdir())) == 4


def test_the_example_ends_in_a_certificate(foedus: Command):
    result = foedus("run", str(ROOT / "examples/hospital.toml"))
    assert result.status == 2  # its hospitals are not beside it
    assert "hospitals/*.csv" in result.err
    Path("hospital.toml").write_text((ROOT / "examples/hospital.toml").read_text())
    result = foedus("run", "hospital.toml")
    assert result.status == 0, result.err
    assert "certified (1e-6, 1e-6)" in result.out
    rows = fd.load("runs/hospital").certificate.rows
    assert {row.constraint for row in rows} == {"loss on label yes"}
    assert {row.site for row in rows} == {"city", "lakeside", "st-mary", "valley"}
    assert max(row.value for row in rows) <= 0.55 + 1e-3
    caps = {"city": 0.55, "lakeside": 0.5, "st-mary": 0.6, "valley": 0.55}
    stated = ", ".join(f"{site} = {cap}" for site, cap in caps.items())
    Path("apart.toml").write_text(
        Path("hospital.toml").read_text().replace("at_most = 0.55", f"at_most = {{ {stated} }}")
    )
    assert "0.5 (lakeside)" in foedus("check", "apart.toml").out
    assert foedus("run", "apart.toml", "--quiet").status == 0
    certificate = fd.load("runs/apart").certificate
    assert {row.site: row.cap for row in certificate.rows} == caps
    assert certificate.holds()


def test_starting_the_command_line_stays_fast():
    heavy = ("sklearn", "pyarrow", "pandas", "foedus.app.experiment")
    code = f"import sys, foedus.app.cli; sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr == "[]\n"


def test_init_asks_what_it_is_not_told(foedus: Command, monkeypatch: pytest.MonkeyPatch):
    answers = iter(["hospitals/*.csv", "readmitted"])
    asked = []

    def prompt(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("typer.prompt", prompt)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    assert foedus("init", "mine.toml").status == 0
    assert len(asked) == 2
    assert foedus("check", "mine.toml").status == 0


def test_a_report_that_fails_does_not_cost_the_run(foedus: Command, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise ValueError("no ink")

    monkeypatch.setattr("foedus.app.report.html.write", broken)
    result = foedus("run", ACCEPT, "study.toml")
    assert result.status == 0
    assert "the report could not be written (no ink)" in result.out
    assert fd.load("runs/study").rounds == 40
    result = foedus("compare", "runs/study", "--out", "both")
    assert result.status == 0
    assert Path("both/comparison.json").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on(foedus: Command):
    import os
    import signal
    import time

    Path("study.toml").write_text(STUDY.replace("= 40", "= 2000000"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = subprocess.Popen([sys.executable, "-m", "foedus.app.cli", "run", "study.toml"], env=environment)
    kept = Path("runs/study/run.ckpt")
    for _ in range(600):
        if kept.exists():
            break
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=60) == 130
    assert kept.exists()
    assert not Path("runs/study/run.json").exists()
    events = [json.loads(line) for line in Path("runs/study/events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "interrupted"
    again = subprocess.Popen(
        [sys.executable, "-m", "foedus.app.cli", "run", "study.toml", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert again.stdout is not None
    first, second = json.loads(again.stdout.readline()), json.loads(again.stdout.readline())
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    assert first["event"] == "resume"
    assert second["rounds"] > events[-1]["rounds"]
