"""The constrained-learning paper's experiments: their data, what ProxAL reaches on them, and how they are shown.

What a run satisfies is measured here again, with NumPy, on the arrays that the problem holds.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import foedus as fd
from foedus.data import loaders
from foedus_lab import datasets
from foedus_lab.papers import EXPERIMENTS, Options
from foedus_lab.papers import proxal_examples as examples
from foedus_lab.papers.proxal_examples import ADULT, BREAST, MONKS, Quadratic, starts
from foedus_lab.papers.proxal_figures import outer_points

DATA = os.environ.get("FOEDUS_DATA")
FILES = ("adult.data", "adult.test", "breast-cancer-wisconsin.data", "monks-1.train")


def missing() -> list[str]:
    kept = {path.name.removesuffix(".gz") for path in Path(DATA).iterdir()} if DATA and Path(DATA).is_dir() else set()
    return [name for name in FILES if name not in kept]


needs_data = pytest.mark.skipif(bool(missing()), reason=f"FOEDUS_DATA holds no {', '.join(missing())}")
EPS = 1e-3
SETS = {held.name: held for held in (BREAST, ADULT, MONKS)}


def sites(problem: fd.Problem) -> Iterator[dict[str, np.ndarray]]:
    """Each client's arrays, without filling rows."""
    for i in range(problem.terms.clients):
        yield {key: np.asarray(value) for key, value in problem.client(i).items()}


def logistic(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses −y·xᵀw + log(1 + exp(xᵀw)) and their gradients in w, row by row."""
    z = X @ w
    return np.logaddexp(0.0, z) - y * z, (1.0 / (1.0 + np.exp(-z)) - y)[:, None] * X


def certificate(
    gradient: np.ndarray, rows: list[tuple[float, np.ndarray, float]], equal: bool = False
) -> tuple[float, float]:
    """Stationarity, and the largest of violation, |μ·c| and dist(c, N(μ)), from rows (c, ∇c, μ)."""
    c, jacobian, mu = (np.array(part) for part in zip(*rows, strict=True))
    stationarity = np.max(np.abs(gradient + mu @ jacobian))
    if equal:
        return float(stationarity), float(np.max(np.abs(c)))
    assert np.all(mu >= 0)
    distance = np.where(mu > 0, np.abs(c), np.maximum(c, 0.0))
    return float(stationarity), float(max(np.max(c), np.max(np.abs(mu * c)), np.max(distance)))


# --- data ---


@needs_data
def test_the_neyman_pearson_sets_have_the_rows_that_table_4_counts() -> None:
    # Table 4 prints what is left when each class is cut into 5 equal parts: 455/240, 24715/7840 and 275/275
    counts = {}
    for held in SETS.values():
        X, y = held.load()
        assert np.all(np.isfinite(X))
        np.testing.assert_allclose(X[:, :-1].mean(axis=0), 0.0, atol=1e-10)
        np.testing.assert_allclose(X[:, :-1].std(axis=0), 1.0)
        np.testing.assert_array_equal(X[:, -1], 1.0)
        counts[held.name] = (int(np.sum(y == 0)), int(np.sum(y == 1)))
    assert counts == {"breast-cancer-wisc": (458, 241), "adult-a": (24720, 7841), "monks-1": (278, 278)}


def test_monk_1_can_be_generated() -> None:
    X, y = loaders.monks_table()
    assert X.shape == (432, 6)
    assert int(y.sum()) == 216
    if DATA and (path := Path(DATA) / "monks-1.test").is_file():
        kept = np.loadtxt(path, usecols=range(7))
        np.testing.assert_array_equal(np.column_stack([y, X]), kept)


@needs_data
def test_adult_b_is_coded_from_the_raw_files_as_the_rebuilt_array_has_it() -> None:
    held = datasets.adult_b()
    assert held.X.shape == (45222, 38)
    assert int(held.y.sum()) == 34014
    assert int(held.sex.sum()) == 30527
    np.testing.assert_array_equal(held.X[:, held.columns.index("sex")], held.sex)
    path = Path(DATA or "") / "adult_b_rebuilt.npz"
    if not path.is_file():
        pytest.skip("adult_b_rebuilt.npz is not in FOEDUS_DATA")
    with np.load(path) as kept:
        assert held.columns == tuple(kept["columns"])
        np.testing.assert_allclose(held.X, kept["X"], atol=1e-6)  # kept in single precision
        np.testing.assert_array_equal(held.y, kept["salary"])
        np.testing.assert_array_equal(held.training, kept["from_adult_data"])


def test_data_that_is_not_there_is_asked_for_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOEDUS_DATA", str(tmp_path))
    for load, name in (
        (datasets.adult_b, "adult.data"),
        (loaders.breast_cancer_wisconsin, "breast-cancer-wisconsin.data"),
        (datasets.monks, "monks-1.train"),
    ):
        with pytest.raises(fd.FoedusError, match=name) as caught:
            load()
        assert "UCI set" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "load", "words"),
    [
        ("adult.data", "39, Private\n", datasets.integer_coded, "line 1.*2 fields"),
        ("adult.data", ", ".join(["1"] * 14) + ", rich\n", datasets.integer_coded, "'rich'"),
        ("breast-cancer-wisconsin.data", "1,2,3\n", loaders.breast_cancer_wisconsin, "line 1"),
        ("monks-1.train", "1 1 1 x 1 1 1 data_1\n", datasets.monks, "every line"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, load, words: str
) -> None:
    monkeypatch.setenv("FOEDUS_DATA", str(tmp_path))
    (tmp_path / name).write_text(text)
    with pytest.raises(fd.FoedusError, match=words):
        load()


# --- Table 1 ---


def quadratic_optimum(example: Quadratic) -> tuple[np.ndarray, float]:
    """The minimiser and minimum of (25), from its optimality conditions as one linear system."""
    H, g = example.A.sum(axis=0), example.b.sum(axis=0)
    C, d = np.concatenate(example.C), np.concatenate(example.d)
    system = np.block([[H, C.T], [C, np.zeros((len(C), len(C)))]])
    w = np.linalg.solve(system, -np.concatenate([g, d]))[: len(g)]
    return w, float(0.5 * w @ H @ w + g @ w)


@pytest.mark.parametrize(("n", "d"), [(1, 100), (5, 100), (10, 100), (1, 300), (10, 300)])
def test_the_instances_of_table_1_have_the_objectives_it_prints(n: int, d: int) -> None:
    from foedus_lab.papers.proxal import PRINTED_QUADRATIC

    algorithm_1, _, _, _ = PRINTED_QUADRATIC[n, d]
    assert abs(quadratic_optimum(Quadratic.as_printed(d, n))[1] - algorithm_1) <= 0.0051  # two decimals are printed


def test_an_instance_is_drawn_as_section_5_1_says() -> None:
    example = Quadratic.as_described(3, 100, 5)
    values = np.linalg.eigvalsh(example.A)
    assert values.min() >= 0.5
    assert values.max() <= 1.0
    assert values.max() - values.min() > 0.45
    np.testing.assert_allclose(np.linalg.norm(example.b, axis=1), 1.0)
    np.testing.assert_allclose(np.linalg.norm(example.d, axis=1), 1.0)
    assert example.C.shape == (6, 1, 100)
    assert abs(example.C.std() * 10.0 - 1.0) < 0.1
    assert abs(example.optimum() / quadratic_optimum(example)[1] - 1.0) < 1e-6


SIZES = [(n, d) for n in (1, 5, 10) for d in (100, 300, 500)]


@pytest.mark.parametrize(
    ("n", "d"), [pytest.param(*size, marks=pytest.mark.slow if size != (5, 100) else ()) for size in SIZES]
)
def test_quadratic_programs_are_solved_from_zero_multipliers(n: int, d: int) -> None:
    example = Quadratic.as_printed(d, n)
    (w0,) = starts(0, 1, d)
    run = fd.solve(example.problem(), examples.QUADRATIC.ours(), w0=w0)
    w, mu = run.w, run.multipliers
    _, best = quadratic_optimum(example)
    f = float(0.5 * w @ example.A.sum(axis=0) @ w + example.b.sum(axis=0) @ w)
    assert run.objective == pytest.approx(f, rel=1e-12)
    assert abs(f / best - 1.0) <= 1e-3
    gradient = example.A.sum(axis=0) @ w + example.b.sum(axis=0)
    held = np.concatenate([np.ravel(mu["local"]), mu["global"]])
    rows = list(
        zip(np.concatenate(example.C) @ w + np.concatenate(example.d), np.concatenate(example.C), held, strict=True)
    )
    stationarity, feasibility = certificate(gradient, rows, equal=True)
    assert stationarity <= EPS
    assert feasibility <= EPS
    assert run.converged


# --- Table 2 ---


@cache
def pearson(name: str, n: int) -> tuple[fd.Problem, fd.Run]:
    problem = SETS[name].problem(n, seed=0)
    return problem, fd.solve(problem, examples.PEARSON.ours(), w0=starts(0, 1, problem.terms.dim)[0])


INSTANCES = [(name, n) for name in (BREAST.name, MONKS.name) for n in (1, 5, 10, 20)]
INSTANCES += [(ADULT.name, n) for n in (5, 10, 20)]
SHORT = [(BREAST.name, 20), (MONKS.name, 5)]


@needs_data
@pytest.mark.parametrize(
    ("name", "n"), [pytest.param(*i, marks=pytest.mark.slow if i not in SHORT else ()) for i in INSTANCES]
)
def test_every_neyman_pearson_instance_is_certified_and_optimal(name: str, n: int) -> None:
    problem, run = pearson(name, n)
    gradient, rows, values = np.zeros(problem.terms.dim), [], []
    for data, (mu,) in zip(sites(problem), run.multipliers["local"], strict=True):
        zero, one = data["y"] == 0, data["y"] == 1
        value, slopes = logistic(data["x"][zero], 0.0, run.w)
        values.append(value.mean())
        gradient += slopes.mean(axis=0) / n
        value, slopes = logistic(data["x"][one], 1.0, run.w)
        rows.append((value.mean() - 0.2, slopes.mean(axis=0), mu))
    stationarity, feasibility = certificate(gradient, rows)
    assert stationarity <= EPS
    assert feasibility <= EPS
    assert run.certificate.holds(EPS, EPS)
    best = examples.pooled_optimum(problem)
    assert abs(np.mean(values) - best) <= 2e-3 + 5e-3 * best


@needs_data
def test_every_client_has_the_same_ratio_of_classes() -> None:
    problem = BREAST.problem(20, seed=0)
    shares = [(np.sum(data["y"] == 0), np.sum(data["y"] == 1)) for data in sites(problem)]
    assert np.ptp(np.array(shares), axis=0).max() <= 1
    assert sum(map(sum, shares)) == 699


# --- Table 3 ---


@pytest.mark.slow
@needs_data
def test_the_fair_model_of_five_clients_is_certified_and_as_good_as_the_centralised_one() -> None:
    problem = examples.fairness(5, seed=0)
    assert int(problem.counts.sum()) == 22_654
    assert problem.server is not None
    assert len(np.asarray(problem.server["y"])) == 5_659
    (w0,) = starts(0, 1, problem.terms.dim)
    run = fd.solve(problem, examples.FAIR.ours(), w0=w0)
    pooled = fd.solve(problem, examples.FAIR.central(), w0=w0)

    gradient, rows, values = np.zeros(problem.terms.dim), [], []
    own = {key: np.asarray(value) for key, value in problem.server.items()}
    multipliers = [*run.multipliers["local"], run.multipliers["global"]]
    for party, data, mu in zip(range(6), (*sites(problem), own), multipliers, strict=True):
        loss, slopes = logistic(data["x"], data["y"], run.w)
        women, men = data["group"] == 0, data["group"] == 1
        gap, slope = loss[women].mean() - loss[men].mean(), slopes[women].mean(axis=0) - slopes[men].mean(axis=0)
        assert abs(gap) <= 0.1 + EPS
        rows += [(gap - 0.1, slope, mu[0]), (-gap - 0.1, -slope, mu[1])]
        if party < 5:
            values.append(loss.mean())
            gradient += slopes.mean(axis=0) / 5
    stationarity, feasibility = certificate(gradient, rows)
    assert stationarity <= EPS
    assert feasibility <= EPS
    assert run.objective == pytest.approx(np.mean(values), rel=1e-10)
    assert pooled.certificate.holds(EPS, EPS)
    assert abs(run.objective - pooled.objective) <= 1e-3


# --- what `foedus reproduce` shows ---


def options(out: Path, said: list[str]) -> Options:
    return Options(trials=1, seed=0, quick=True, out=out, echo=said.append)


@pytest.mark.slow
@needs_data
def test_table_2_shows_ours_beside_the_optimum_and_the_printed_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(examples, "SETS", (MONKS,))
    said: list[str] = []
    EXPERIMENTS["proxal-np"].run(options(tmp_path, said))
    page = (tmp_path / "proxal-np.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| monks-1"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    heads = ("data set", "n", "objective", "centralised", "CVXPY", "diff.", "printed")
    table = dict(zip(heads, cells, strict=False))
    assert table["n"] == "5"
    assert table["printed"] == "1.65 / 1.65"
    problem, run = pearson(MONKS.name, 5)
    assert float(table["objective"].split()[0]) == pytest.approx(run.objective, abs=1e-4)
    assert float(table["CVXPY"]) == pytest.approx(examples.pooled_optimum(problem), abs=1e-4)
    assert "1/1" in cells
    assert (tmp_path / "proxal-np.csv").read_text().count("\n") == 2


@needs_data
def test_figure_1_shows_the_iterates_of_algorithm_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem, _ = pearson(MONKS.name, 5)
    (w0,) = starts(0, 1, problem.terms.dim)
    run, points = outer_points(problem, examples.PEARSON.ours(), w0)
    assert len(points) == int(run.history["outer"][-1]) + 1
    np.testing.assert_array_equal(points[0], w0)
    np.testing.assert_array_equal(points[-1], run.w)
    assert examples.class_losses(problem, points[0])[1].max() > 0.2
    monkeypatch.setattr(examples, "SETS", (MONKS,))
    EXPERIMENTS["proxal-fig1"].run(options(tmp_path, []))
    assert (tmp_path / "proxal-fig1.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "proxal-fig1.svg").read_text()


def test_without_data_an_experiment_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOEDUS_DATA", raising=False)
    for held in (examples._breast, examples._adult, examples._monks, examples._adult_b):
        held.cache_clear()
    for name in ("proxal-np", "proxal-fair", "proxal-fig1", "proxal-fig2"):
        with pytest.raises(fd.FoedusError, match="FOEDUS_DATA"):
            EXPERIMENTS[name].run(options(tmp_path, []))
    assert list(tmp_path.iterdir()) == []
