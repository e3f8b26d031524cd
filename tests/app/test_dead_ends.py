"""Roads that ended nowhere: sites without positives, unfinished runs, hints that do not help."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import foedus as fd
from foedus.app import cli
from foedus.app.experiment import execute
from foedus.app.report import words
from foedus.base.errors import FoedusError

FILE = """\
[data]
files = "clinics/*.csv"
label = "ill"
[problem]
penalty = {{ name = "Ridge", mu = 0.01 }}
{rest}
"""
CAP = '[[constraints]]\ntype = "LossCap"\nwhere = "label 1"\nat_most = {at_most}\n'
MISS = '[[constraints]]\ntype = "MissRate"\nat_most = 0.3\nconfidence = 0.9\nholdout = 0.4\n'
SITES = ("bonn", "celle", "fulda")


def clinics(positive: dict[str, float], rows: int = 90) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clinics with shares of positives; X has a last column of ones."""
    draw = np.random.default_rng(5)
    sites = {}
    for name, share in positive.items():
        y = (np.arange(rows) < share * rows).astype(float)
        sites[name] = np.column_stack([draw.normal(size=(rows, 2)) + y[:, None], np.ones(rows)]), y
    return sites


SHARES = {"bonn": 0.5, "celle": 0.4, "fulda": 0.0}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinics").mkdir()
    for name, (X, y) in clinics(SHARES).items():
        rows = [f"{a:.4f},{b:.4f},{int(label)}" for (a, b, _), label in zip(X, y, strict=True)]
        (tmp_path / f"clinics/{name}.csv").write_text("\n".join(["age,dose,ill", *rows]) + "\n")
    return tmp_path


def optimum(sites: dict[str, tuple[np.ndarray, np.ndarray]], capped: list[str], cap: float) -> float:
    """The least objective by SLSQP: no code of foedus is in it."""

    def loss(w: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0.0, X @ w) - y * (X @ w)))

    def objective(w: np.ndarray) -> float:
        return float(np.mean([loss(w, X, y) for X, y in sites.values()])) + 0.005 * float(w @ w)

    def slack(w: np.ndarray) -> np.ndarray:
        return np.array([cap - loss(w, sites[s][0][sites[s][1] == 1], np.ones(int(sites[s][1].sum()))) for s in capped])

    made = minimize(objective, np.zeros(3), constraints={"type": "ineq", "fun": slack}, tol=1e-12)
    return float(made.fun)


ABSENT = {"bonn": 0.35, "celle": 0.35, "fulda": None}


@pytest.mark.parametrize(
    "cap",
    [
        fd.constraints.LossCap(fd.label(1), 0.35, skip="undefined"),
        fd.constraints.LossCap(fd.label(1), ABSENT),
        fd.constraints.LossCap(fd.label(1), [0.35, 0.35, None]),
    ],
    ids=["skip", "by name", "in order"],
)
def test_a_site_without_positives_is_left_out_of_a_cap(cap: fd.constraints.LossCap):
    sites = clinics(SHARES)
    problem = fd.Problem(
        sites, loss=fd.losses.logistic, constraints=[cap], penalty=fd.penalties.Ridge(0.01, per_example=False)
    )
    run = fd.solve(problem, fd.InteriorPoint())
    assert run.certificate.holds()
    assert run.objective == pytest.approx(optimum(sites, ["bonn", "celle"], 0.35), abs=1e-6)
    assert run.certificate.left_out == (("fulda", "loss on label 1"),)
    assert {row.site for row in run.certificate.rows} == {"bonn", "celle"}
    assert "loss on label 1: no cap at fulda" in str(run)


def test_a_cap_that_is_left_out_by_name_binds_nowhere_else():
    """The same site with positives: its own rows would break the cap, and they do not count."""
    sites = clinics({"bonn": 0.5, "celle": 0.4, "fulda": 0.3})
    limits = {"bonn": 0.3, "celle": None, "fulda": None}
    cap = fd.constraints.LossCap(fd.label(1), limits)
    problem = fd.Problem(
        sites, loss=fd.losses.logistic, constraints=[cap], penalty=fd.penalties.Ridge(0.01, per_example=False)
    )
    run = fd.solve(problem, fd.InteriorPoint())
    assert run.objective == pytest.approx(optimum(sites, ["bonn"], 0.3), abs=1e-6)
    assert run.multipliers["local"][1:].max() == 0.0


def test_a_gap_is_left_out_where_one_group_is_empty():
    sites = {
        name: (X, y, np.arange(len(y)) % (1 if name == "fulda" else 2)) for name, (X, y) in clinics(SHARES).items()
    }
    gap = fd.constraints.LossGap(fd.group(0), fd.group(1), 0.05, skip="undefined")
    run = fd.solve(fd.Problem(sites, loss=fd.losses.logistic, constraints=[gap]), fd.InteriorPoint())
    assert run.certificate.holds()
    assert {site for site, _ in run.certificate.left_out} == {"fulda"}


@pytest.mark.parametrize("settings", [{"scope": "coupled"}, {"kind": "=="}, {"scope": "global"}])
def test_what_cannot_be_left_out_is_refused(settings: dict[str, Any]):
    with pytest.raises(FoedusError, match="'skip' of LossCap goes with scope 'local'"):
        fd.constraints.LossCap(fd.label(1), 0.3, skip="undefined", **settings)
    with pytest.raises(FoedusError, match="at_most"):
        fd.constraints.LossCap(fd.label(1), None, **settings)


def test_a_private_run_leaves_no_cap_out():
    cap = fd.constraints.LossCap(fd.label(1), 0.35, skip="undefined")
    problem = fd.Problem(clinics(SHARES), loss=fd.losses.logistic, constraints=[cap])
    with pytest.raises(FoedusError, match="an exact figure about its rows"):
        fd.solve(problem, fd.PrivateNewton(), privacy=fd.Local(epsilon=5.0, delta=1e-5), max_rounds=5)


@pytest.mark.parametrize("at_most", ['0.35\nskip = "undefined"', '{ bonn = 0.35, celle = 0.35, fulda = "none" }'])
def test_a_file_leaves_a_cap_out_and_the_report_says_so(at_most: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "study.toml").write_text(FILE.format(rest=CAP.format(at_most=0.35)))
    assert cli.run(["check", "study.toml"]) == 2
    assert 'skip = "undefined"' in capsys.readouterr().err
    (folder / "study.toml").write_text(FILE.format(rest=CAP.format(at_most=at_most)))
    assert cli.run(["check", "study.toml"]) == 0
    assert cli.run(["run", "study.toml"]) == 0
    assert "loss on label 1: no cap at fulda" in capsys.readouterr().out
    run = fd.load(folder / "runs/study")
    assert run.certificate.left_out == (("fulda", "loss on label 1"),)
    page = (folder / "runs/study/report.html").read_text()
    assert "at every other site" in page
    assert "no cap at fulda" in page


def test_a_miss_rate_promises_nothing_at_a_site_without_positives(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "study.toml").write_text(FILE.format(rest=MISS))
    assert cli.run(["run", "study.toml"]) == 2
    assert "skip = 'undefined'" in capsys.readouterr().err
    (folder / "study.toml").write_text(FILE.format(rest=MISS + 'skip = "undefined"\n'))
    assert cli.run(["run", "study.toml"]) == 0
    promise = "Miss rate at most 0.3 with confidence 0.9, at every site but fulda, which keeps too few rows out."
    assert promise in capsys.readouterr().out
    decision = fd.load(folder / "runs/study").decision
    assert decision is not None
    term = decision.terms[0]
    assert term.left_out == ("fulda",)
    kept = [place for place, site in enumerate(term.sites) if site != "fulda"]
    assert all(term.wrong[place] <= term.allowed[place] for place in kept)
    assert np.isfinite(decision.cut)


RUNNING = '[algorithm]\nname = "FedAvg"\n[run]\nmax_rounds = 400\n'


def test_report_and_card_of_an_unfinished_run_show_what_is_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (folder / "study.toml").write_text(FILE.format(rest=RUNNING))
    solve = execute.solve

    def stopped(*arguments: Any, callback: Any, **settings: Any) -> fd.Run:
        return solve(*arguments, callback=lambda rounds, record: rounds >= 4, **settings)

    monkeypatch.setattr(execute, "solve", stopped)
    assert cli.run(["run", "study.toml"]) == 130
    monkeypatch.setattr(execute, "solve", solve)
    saved = (folder / "runs/study/run.ckpt").read_bytes()
    capsys.readouterr()
    assert cli.run(["report", "runs/study"]) == 0
    assert cli.run(["card", "runs/study"]) == 0
    page, card = (folder / "runs/study/report.html").read_text(), (folder / "runs/study/card.md").read_text()
    for text in (page, card):
        assert re.search(r"ot finished: [48] rounds of it are saved, and ", text)
        assert "foedus run study.toml" in text
    assert (folder / "runs/study/run.ckpt").read_bytes() == saved
    assert not (folder / "runs/study/run.json").exists()
    assert cli.run(["run", "study.toml", "--accept-uncertified", "--quiet"]) == 0
    assert fd.load(folder / "runs/study").rounds > 4


def test_report_of_a_run_without_a_round_says_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "study.toml").write_text(FILE.format(rest=RUNNING))
    assert cli.run(["run", "study.toml", "--accept-uncertified", "--quiet"]) == 0
    for name in ("run.json", "history.npz", "parameters.npz"):
        (folder / "runs/study" / name).unlink()
    assert cli.run(["report", "runs/study"]) == 2
    assert "'foedus run study.toml' goes on with it" in capsys.readouterr().err


ALONE = """\
import sys
for name in ("foedus", "jax", "jaxlib"):
    sys.modules[name] = None
import joblib, pandas
model = joblib.load("model.joblib")
print(*model.predict(pandas.read_csv("new.csv")), sep=" ")
"""


def test_an_export_by_joblib_needs_neither_foedus_nor_jax(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "study.toml").write_text(FILE.format(rest='[preprocess]\nscale = "standard"\n'))
    for path in (folder / "clinics").glob("*.csv"):
        first, *rest = path.read_text().splitlines()
        path.write_text("\n".join([f"{first},ward", *(f"{line},{'ab'[k % 2]}" for k, line in enumerate(rest))]) + "\n")
    assert cli.run(["run", "study.toml", "--quiet"]) == 0
    (folder / "new.csv").write_text("age,dose,ward\n2.5,2.5, a \n-2.0,,b\n1.5,0.5,\n")
    assert cli.run(["export", "runs/study"]) == 0
    capsys.readouterr()
    assert cli.run(["predict", "runs/study", "new.csv"]) == 0
    expected = [line.split(",")[1] for line in capsys.readouterr().out.splitlines()[1:]]
    alone = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, cwd=folder)
    assert alone.stdout.split() == expected, alone.stderr


def test_columns_go_with_the_predictions(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "study.toml").write_text(FILE.format(rest=""))
    assert cli.run(["run", "study.toml", "--quiet"]) == 0
    (folder / "new.csv").write_text("patient,age,dose,seen\nP1,2.5,2.5,3\nP2,-2.0,-2.0,\n")
    assert cli.run(["predict", "runs/study", "new.csv", "--keep", "patient, seen"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "row,patient,seen,prediction,probability,score"
    assert [line.split(",")[:4] for line in lines[1:]] == [["1", "P1", "3", "1"], ["2", "P2", "", "0"]]
    assert cli.run(["predict", "runs/study", "new.csv", "--keep", "patent"]) == 2
    assert "Did you mean 'patient'?" in capsys.readouterr().err


def test_a_file_without_an_algorithm_takes_the_one_that_fits(folder: Path):
    (folder / "study.toml").write_text(FILE.format(rest=""))
    assert cli.run(["run", "study.toml", "--quiet"]) == 0
    run = fd.load(folder / "runs/study")
    assert run.settings["algorithm"]["name"] == "InteriorPoint"
    assert run.certificate.holds()


def test_a_file_of_init_measures_the_model_on_rows_it_has_not_seen(folder: Path):
    assert cli.run(["init", "study.toml", "--data", "clinics/*.csv", "--label", "ill"]) == 0
    assert cli.run(["run", "study.toml", "--quiet"]) == 0
    evaluation = fd.load(folder / "runs/study").evaluations["held-out rows"]
    assert evaluation.rows == {"bonn": 18, "celle": 18, "fulda": 18}


@pytest.mark.parametrize("at_most", ["0", "{ bonn = 0, celle = 0.3, fulda = 0.3 }"])
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_cap_of_zero_is_refused_for_a_loss_that_is_above_zero(
    command: str, at_most: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "study.toml").write_text(FILE.format(rest=CAP.format(at_most=f'{at_most}\nskip = "undefined"')))
    assert cli.run([command, "study.toml"]) == 2
    assert "the logistic loss is above 0 for every model" in capsys.readouterr().err


def test_a_cap_of_zero_is_tried_where_a_loss_can_be_zero():
    sites = {"bonn": (np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]))}
    cap = fd.constraints.LossCap(fd.label(1), 0.0)
    run = fd.solve(fd.Problem(sites, loss=fd.losses.smooth_hinge, constraints=[cap]), max_rounds=100)
    assert run.certificate.feasibility <= 1e-6


@pytest.mark.parametrize("loss", [fd.losses.logistic, fd.losses.least_squares], ids=["finite", "infinite"])
def test_steps_that_are_too_long_are_called_divergence(loss: fd.losses.Loss):
    run = fd.solve(fd.Problem(clinics(SHARES), loss=loss), fd.FedAvg(lr=1e6), max_rounds=40)
    assert not run.converged
    assert run.reason.startswith("the run diverged: ")
    assert "try a smaller step" in run.reason
    assert words.verdict(run).title == "No usable model: the run diverged"


def test_steps_of_a_usual_length_are_not():
    run = fd.solve(fd.Problem(clinics(SHARES), loss=fd.losses.logistic), fd.FedAvg(lr=1e-3), max_rounds=5)
    assert "diverged" not in run.reason
