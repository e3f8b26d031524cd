"""What a comparison of algorithms needs: figures of every round, tables, trackers, few programs, plain models."""

import pydoc
import sys
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn import linear_model

import foedus as fd
from foedus.app import cli
from foedus.base.errors import FoedusError

RNG = np.random.default_rng(4)


def site(rows: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.column_stack([RNG.normal(size=(rows, 3)), np.ones(rows)])
    return X, (X @ [1.5, -1.0, 0.0, 0.3] + RNG.logistic(size=rows) > 0).astype(float)


SITES = {"north": site(60), "south": site(45), "west": site(52)}
PROBLEM = fd.Problem(SITES, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.02, per_example=False))


def objective(w: np.ndarray) -> float:
    losses = [np.mean(np.logaddexp(0.0, X @ w) - y * (X @ w)) for X, y in SITES.values()]
    return float(np.mean(losses)) + 0.01 * float(w @ w)


def gradient(w: np.ndarray) -> np.ndarray:
    parts = [X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y) for X, y in SITES.values()]
    return np.mean(parts, axis=0) + 0.02 * w


@pytest.mark.parametrize(
    "algorithm",
    [fd.InteriorPoint(), fd.FedGiA(), fd.InexactADMM(), fd.FedNova(batch=None)],
    ids=lambda a: type(a).__name__,
)
def test_every_round_is_measured_and_shown_with_its_model(algorithm: Any):
    """The oracle is NumPy at the models that the callback was given."""
    models: list[np.ndarray] = []
    records: list[dict[str, float]] = []

    def look(rounds: int, record: dict[str, float], model: np.ndarray) -> None:
        assert rounds == len(models) + 1
        models.append(model)
        records.append(record)

    run = fd.solve(PROBLEM, algorithm, max_rounds=5, measure=True, callback=look)
    assert len(models) == run.rounds
    np.testing.assert_allclose(run.history["measured_objective"], [objective(w) for w in models], rtol=1e-10)
    slopes = [np.max(np.abs(gradient(w))) for w in models]
    np.testing.assert_allclose(run.history["measured_gradient"], slopes, rtol=1e-6, atol=1e-12)
    assert records[0]["measured_objective"] == run.history["measured_objective"][0]
    np.testing.assert_array_equal(models[-1], run.w)
    plain = fd.solve(PROBLEM, algorithm, max_rounds=5)
    np.testing.assert_array_equal(plain.w, run.w)
    assert plain.traffic == run.traffic


def test_violations_are_measured_too():
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.4)
    problem = fd.Problem(SITES, loss=fd.losses.logistic, constraints=[cap])
    run = fd.solve(problem, fd.InteriorPoint(), measure=True)
    worst = max(np.mean(np.logaddexp(0.0, -(X[y == 1] @ run.w))) for X, y in SITES.values()) - 0.4
    assert run.history["measured_violation"][-1] == pytest.approx(max(worst, 0.0), abs=1e-9)


def test_a_callback_of_two_arguments_stays_between_chunks():
    calls: list[int] = []
    fd.solve(PROBLEM, fd.FedAvg(lr=0.1), max_rounds=30, callback=lambda rounds, record: calls.append(rounds))
    assert calls[0] == 4
    assert len(calls) < 30


def test_measuring_needs_the_rounds_in_this_process():
    with pytest.raises(FoedusError, match="leave runtime and delays out"):
        fd.solve(PROBLEM, fd.FedAvg(), measure=True, runtime=fd.Spread())


def test_histories_become_one_frame():
    runs = {
        name: fd.solve(PROBLEM, made, max_rounds=3) for name, made in (("a", fd.FedGiA()), ("b", fd.FedAvg(lr=0.1)))
    }
    frame = fd.runs_to_frame(runs)
    assert list(frame.columns[:3]) == ["run", "algorithm", "round"]
    assert [(frame.run == name).sum() for name in ("a", "b")] == [3, 3]
    np.testing.assert_array_equal(frame[frame.run == "b"]["objective"], runs["b"].history["objective"])
    assert len(fd.runs_to_frame([*runs.values()])) == 6


def test_tables_of_latex_escape_what_latex_would_read():
    cap = fd.constraints.LossCap(fd.label(1, "50_% & more"), at_most=0.4)
    run = fd.solve(fd.Problem(SITES, loss=fd.losses.logistic, constraints=[cap]), fd.InteriorPoint())
    lines = run.to_latex().splitlines()
    assert lines[:2] == [r"\begin{tabular}{llrrr}", r"\toprule"]
    assert lines[4].startswith(r"north & loss on label 50\_\% \& more & ")
    assert len(lines) == 9
    plain = fd.solve(PROBLEM)
    assert r"InteriorPoint & " in plain.to_latex()
    table = plain.summary(PROBLEM, ["a", "b", "c", "(intercept)"]).to_latex()
    assert table.count(r" \\") == 5


def test_rounds_are_logged_to_mlflow(monkeypatch: pytest.MonkeyPatch):
    """A stand-in with the two functions of MLflow's documented interface that are used."""
    logged: list[tuple[int, dict[str, float]]] = []
    parameters: dict[str, object] = {}
    module: Any = ModuleType("mlflow")
    module.log_metrics = lambda metrics, step: logged.append((step, metrics))
    module.log_params = parameters.update
    monkeypatch.setitem(sys.modules, "mlflow", module)
    run = fd.solve(PROBLEM, fd.FedAvg(lr=0.1), max_rounds=6, measure=True, callback=fd.log_to_mlflow(lr=0.1))
    assert parameters == {"lr": 0.1}
    assert [step for step, _ in logged] == [1, 2, 3, 4, 5, 6]
    assert [m["measured_objective"] for _, m in logged] == run.history["measured_objective"].tolist()


def test_rounds_are_logged_to_weights_and_biases():
    class Run:
        logged: list[tuple[dict[str, float], int]] = []

        def log(self, data: dict[str, float], step: int) -> None:
            assert all(map(np.isfinite, data.values()))
            self.logged.append((data, step))

    fd.solve(PROBLEM, fd.FedGiA(), max_rounds=4, callback=fd.log_to_wandb(Run()))
    assert [step for _, step in Run.logged] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FoedusError, match=rf"pip install 'foedus\[{name}\]'"):
        getattr(fd, f"log_to_{name}")()


def test_new_dirichlet_splits_have_few_shapes():
    X, y = RNG.normal(size=(400, 5)), (np.arange(400) % 3 == 0).astype(float)
    heights = set()
    for seed in range(30):
        sites = fd.data.dirichlet(X, y, num_partitions=5, alpha=0.5, seed=seed)
        problem = fd.Problem(sites, loss=fd.losses.logistic)
        assert problem.counts.sum() == 400
        heights.add(problem.stacked.rows)
    assert len(heights) <= 6


@pytest.mark.parametrize("made", [fd.InteriorPoint, fd.FedAvg, fd.ProxAL, fd.PrivateNewton], ids=lambda c: c.__name__)
def test_help_documents_every_setting(made: Any):
    shown = pydoc.render_doc(made, renderer=getattr(pydoc, "plaintext"))  # noqa: B009  (types of pydoc leave it out)
    for setting in made.__dataclass_fields__.values():
        if setting.metadata.get("doc"):
            assert f"{setting.metadata.get('alias') or setting.name}: " in shown
            assert setting.metadata["doc"] in shown


def test_completion_shows_public_names_alone():
    import foedus.runtime.spine  # noqa: F401  (a room that has been imported is no public name)

    assert {name for name in dir(fd) if not name.startswith("__")} == set(fd.__all__)


POLARS = {"age": np.array([40.0, 50.0, 60.0, 70.0]),
          "seen": np.array(["2024-01-01", "NaT", "2024-01-03", "2024-01-02"], "M8[D]"),
          "ill": np.array(["no", "yes", "no", "yes"], object)}  # fmt: skip


class Frame:
    """A data frame with the interface of polars: columns by name, and neither keys nor items."""

    columns = [*POLARS]

    def get_column(self, name: str) -> np.ndarray:
        return POLARS[name]

    __getitem__ = get_column


def test_frames_of_polars_and_dates_are_prepared():
    ready = fd.data.prepare({"north": Frame(), "south": Frame()}, label="ill", positive="yes", scale="none")
    assert ready.names == ["age", "seen", "(intercept)"]
    days = ready.sites["north"][0][:, 1]
    assert days[0] == (date(2024, 1, 1) - date(1970, 1, 1)).days
    assert days[1] == pytest.approx(days[0] + 1)  # the mean fills what is missing


def test_dates_of_pandas_are_prepared():
    import pandas

    for zone in (None, "Europe/Berlin"):
        frame = pandas.DataFrame({"seen": pandas.to_datetime(["2024-01-01", "2024-01-03", None]), "y": [0, 1, 0]})
        frame["seen"] = frame["seen"].dt.tz_localize(zone)
        ready = fd.data.prepare({"north": frame}, label="y", scale="none", intercept=False)
        assert ready.sites["north"][0][:2, 0].tolist() == [19723.0, 19725.0]


def pooled() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = np.concatenate([X[:, :3] for X, _ in SITES.values()])
    names = np.repeat([*SITES], [len(y) for _, y in SITES.values()])
    return X, np.concatenate([y for _, y in SITES.values()]), names


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_logistic_regression_is_that_of_the_pooled_rows(ridge: float):
    X, y, sites = pooled()
    model = fd.LogisticRegression(ridge=ridge).fit(X, y, sites=sites)
    strength: Any = 1 / (ridge * len(y)) if ridge else np.inf
    theirs = linear_model.LogisticRegression(C=strength, tol=1e-12, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    assert model.n_rounds_ < 20


def test_logistic_regression_takes_weights_and_three_classes():
    X, y, sites = pooled()
    three = y + (X[:, 1] > 0.5)
    weights = RNG.uniform(0.2, 2.0, len(y))
    model = fd.LogisticRegression(ridge=0.05).fit(X, y, sites=sites, sample_weight=weights)
    scale = 1 / (0.05 * weights.sum())
    theirs = linear_model.LogisticRegression(C=scale, tol=1e-12, max_iter=5000).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-5)
    assert fd.LogisticRegression(ridge=0.05).fit(X, three, sites=sites).predict_proba(X).shape == (len(y), 3)


def test_linear_regression_is_that_of_the_pooled_rows():
    X, _, sites = pooled()
    y = X @ [1.0, 2.0, -1.0] + 0.4 + RNG.normal(size=len(X))
    model = fd.LinearRegression().fit(X, y, sites=sites)
    theirs = linear_model.LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-7)
    assert model.intercept_ == pytest.approx(theirs.intercept_, abs=1e-7)
    np.testing.assert_allclose(model.to_sklearn().predict(X), model.predict(X))
    equal = fd.LinearRegression(weights="sites").fit(X, y, sites=sites)
    assert not np.allclose(equal.coef_, model.coef_, atol=1e-9)


OWN = """\
from foedus.algorithms import FedAvg
from foedus.base.settings import settings

@settings
class Mine(FedAvg):
    \"\"\"FedAvg under another name.\"\"\"
"""


def test_an_algorithm_beside_the_experiment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(elsewhere)
    (tmp_path / "study").mkdir()
    (tmp_path / "study/own_fedavg.py").write_text(OWN)
    (tmp_path / "study/study.toml").write_text(
        '[data]\nset = "breast-cancer"\n[partition]\nnum_partitions = 3\n[run]\nmax_rounds = 5\n'
        '[algorithm]\nname = "own_fedavg:Mine"\nlr = 0.1\n'
    )
    assert cli.run(["run", "../study/study.toml", "--accept-uncertified", "--quiet"]) == 0
    assert fd.load("runs/study").settings["algorithm"]["name"] == "Mine"


def test_the_citation_on_the_page_is_that_of_the_file():
    root = Path(__file__).parents[2]
    entry = (root / "docs/howto/comparing.md").read_text(encoding="utf-8").partition("```bibtex")[2]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version = {{{fd.__version__}}}" in entry
    title = next(line for line in citation.splitlines() if line.startswith("title: "))
    assert title.partition('"')[2].rstrip('"') in entry
