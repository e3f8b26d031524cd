"""What a coordinator and an officer type for a run by courier, and what they are shown."""

import json
import os
import re
from pathlib import Path

import pytest
from hospitals import Command, commands

from foedus.app.commands import courier

pytest.importorskip("cryptography")

SITES = ("city", "lakeside", "st-mary")
STUDY = """
[data]
files = "hospitals/*.csv"
label = "blood_pressure"
features = ["age", "creatinine"]
[problem]
loss = "least_squares"
penalty = { name = "Ridge", mu = 0.01, per_example = false }
[algorithm]
name = "InteriorPoint"
[run]
max_rounds = 3
"""
FINGERPRINT = re.compile(r"[0-9a-f]{4}(?: [0-9a-f]{4}){7}")


@pytest.fixture
def foedus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(STUDY, tmp_path, monkeypatch, capsys)


def table_of(site: str) -> str:
    return f"hospitals/{site}.csv"


def plan(foedus: Command) -> str:
    """Make the plan; return the project's fingerprint."""
    made = foedus("courier", "plan", "study.toml", "--sites", ",".join(SITES))
    assert made.status == 0, made.err
    assert "at most 5 exchanges" in made.out
    return FINGERPRINT.findall(made.out)[-1]


def answer(foedus: Command, site: str, *more: str):
    return foedus("courier", "answer", f"plan/site-{site}", "--home", f"homes/{site}", *more)


def test_a_plan_is_answered_and_carried_on_to_a_certified_model(foedus, tmp_path, monkeypatch):
    project = plan(foedus)
    public = json.loads(Path("plan/plan.json").read_text(encoding="utf-8"))
    assert (public["features"], public["rounds at most"]) == (["age", "creatinine"], 3)
    keys = {}
    for site in SITES:
        first = answer(foedus, site, "--data", table_of(site), "--trust", project.replace(" ", "").upper(), "--yes")
        assert first.status == 0, first.err
        assert "sums.total.age: " in first.out
        assert re.search(r"- sums: .* 6 numbers about \d+ rows, exact", first.out)
        assert "Privacy: epsilon 0 before this file, 0 with it" in first.out
        keys[site] = FINGERPRINT.findall(first.out)[-1]
        page = Path(f"homes/{site}/leaving.html")
        assert os.name != "posix" or page.stat().st_mode & 0o077 == 0
        text = page.read_text(encoding="utf-8")
        assert "sums.total.age" in text
        assert "What the run asks" in text
    waits = foedus("courier", "next", "plan")
    assert "nothing of it is used yet" in waits.out
    assert "waiting for city, lakeside, st-mary" in waits.out
    one, *others = (f"{site}={key}" for site, key in keys.items())
    wrong = foedus("courier", "next", "plan", "--trust", f"city={keys['lakeside']}")
    assert "city has made a key with the fingerprint" in wrong.out
    trust = [part for pair in (one, *others) for part in ("--trust", pair)]
    assert "002-to-city.foedus: carry it to the site." in foedus("courier", "next", "plan", *trust).out
    for site in SITES[1:]:
        file = Path(f"homes/{site}/local/foedus.toml")
        file.write_text(file.read_text().replace('"ask"', '"auto"'))
    for exchange in range(2, 6):
        assert answer(foedus, "city", "--yes").status == 0
        for site in SITES[1:]:
            told = foedus("courier", "watch", f"plan/site-{site}", "--home", f"homes/{site}", "--once")
            assert f"the answer to exchange {exchange} of run study-" in told.out
        last = foedus("courier", "next", "plan")
        assert last.status == 0, last.err
        if Path("plan/result/run.json").exists():
            break
    assert "certificate: stationarity" in last.out
    assert {"report.html", "parameters.npz", "preprocessing.json"} <= {p.name for p in Path("plan/result").iterdir()}
    assert foedus("predict", "plan/result", table_of("valley")).status == 0
    assert "is over: converged after" in answer(foedus, "city").out
    assert "converged after" in foedus("courier", "next", "plan").out  # the same once more

    (path,) = Path("plan/site-city").glob("*-002-from-city.foedus")
    shown = foedus("courier", "show", str(path))
    assert "answer of exchange 2" in shown.out
    assert "Signed by city, with the key of the certificate in it" in shown.out
    assert "share.curvature (6, <f8): " in shown.out
    content = path.read_bytes()
    path.write_bytes(content[:60])
    cut = foedus("courier", "show", str(path))
    assert (cut.status, cut.err) == (
        2,
        f"foedus: {path}: it was changed or cut short on its way; have it sent again.\n",
    )


def test_a_person_is_asked_before_anything_leaves(foedus, monkeypatch):
    project = plan(foedus)
    told = ("--data", table_of("city"))
    alone = answer(foedus, "city", *told)
    assert alone.status == 2
    assert f'there is nobody to ask: --trust "{project}" accepts the project' in alone.err
    questions = []

    def say_no(question: str, default: bool) -> bool:
        questions.append(question)
        return len(questions) == 1

    monkeypatch.setattr(courier.sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr(courier.typer, "confirm", say_no)
    seen = answer(foedus, "city", *told)
    assert seen.status == 0
    assert "Columns: label blood_pressure; features age, creatinine." in seen.out
    assert questions == ["Has the coordinator read the same to you?", "Write the file that lets it leave?"]
    assert seen.out.endswith("Nothing was written.\n")
    assert not [*Path("plan/site-city").glob("*from*")]
    assert not Path("homes/city/foedus-runs/ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (("plan", "study.toml", "--sites", "a,b,A"), "a plan needs sites with different names"),
        (("plan", "study.toml", "--sites", "a b,c"), "the site name 'a b' must hold letters, digits and '-' only"),
        (("plan", "none.toml", "--sites", "a,b"), "none.toml: there is no such file."),
        (("plan", "two.toml", "--sites", "a,b"), "two.toml states 2 runs; a plan is of one"),
        (("plan", "study.toml", "--sites", "a,b", "--out", "hospitals"), "hospitals is not empty; choose a new folder"),
        (("next", "hospitals"), "hospitals holds no plan of a coordinator"),
        (("answer", "hospitals", "--home", "home"), "foedus.toml is missing; name the site's table with --data"),
        (("answer", "hospitals", "--home", "home", "--data", "none.csv"), "--data none.csv: there is no such file."),
        (("answer", ".", "--home", "home", "--data", "study.toml"), "--home home lies in ., which others read"),
        (("watch", "hospitals", "--home", "ask"), 'says approve = "ask", so a person answers'),
        (("next", "hospitals", "--trust", "city"), "--trust must be SITE=FINGERPRINT. Got 'city' instead."),
        (("show", "study.toml"), "study.toml: it is no file of foedus courier."),
        (("show", "none.foedus"), "cannot read none.foedus: No such file or directory."),
    ],
)
def test_a_wrong_input_ends_in_one_sentence(foedus, told, sentence):
    Path("two.toml").write_text(STUDY.replace("[data]", "seed = [0, 1]\n[data]"))
    Path("ask/local").mkdir(parents=True)
    Path("ask/local/foedus.toml").write_text('[policy]\napprove = "ask"\n')
    result = foedus("courier", *told)
    assert result.status == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert not Path("plan").exists()
