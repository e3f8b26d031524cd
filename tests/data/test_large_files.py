"""Large files: each is read once, rows are held once, and few passes over them compile nothing."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import foedus as fd
from foedus.app.cli import app
from foedus.certificate import measure as certificate
from foedus.certificate.gap import hessian_of_losses
from foedus.certificate.measure import measure, site_part
from foedus.data import columns, preprocess, tables
from foedus.data.sites import Roles, gather
from foedus.numerics.interpreter import threads
from foedus.numerics.second_derivatives import weighted_gram
from foedus.problem.penalties import BesideIntercept
from foedus.runtime import simulate
from foedus_lab.benchmarks import files

OPENED: list[str] = []
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for site, rows in (("north", 40), ("south", 30)):
        lines = [f"{a:.3f},{w},{'yes' if a + draw.normal() > 0 else 'no'}" for a, w in
                 zip(draw.normal(size=rows), draw.choice(["a", "b"], rows), strict=True)]  # fmt: skip
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,ward,ill", *lines]) + "\n")
    (tmp_path / "one.toml").write_text(
        '[data]\nfiles = "*.csv"\nlabel = "ill"\npositive = "yes"\n[problem]\nloss = "logistic"\n'
        'penalty = { name = "Ridge", mu = 0.1 }\n[algorithm]\nname = "auto"\n'
    )
    return tmp_path


def test_check_reads_each_file_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    OPENED.clear()
    result = CliRunner().invoke(app, ["check", "one.toml"])
    assert result.exit_code == 0, result.output
    names = [Path(name).name for name in OPENED]
    assert {name: names.count(name) for name in ("north.csv", "south.csv")} == {"north.csv": 1, "south.csv": 1}


def cohort(folder: Path):
    parts = {path.stem: tables.read(path) for path in sorted(folder.glob("*.csv"))}
    return gather(parts, Roles("ill", "yes"))


def test_rows_are_stacked_as_the_problem_would_and_then_let_go(folder):
    whole = cohort(folder)
    rules = preprocess.fit(whole)
    expected = fd.Problem(preprocess.sites_of(whole, rules), loss=fd.losses.logistic)
    stacked = preprocess.stacked_of(whole, rules, release=True)
    problem = fd.Problem(stacked, loss=fd.losses.logistic)
    for key, array in expected.data.items():
        assert np.array_equal(array, problem.data[key]), key
    assert (problem.names, problem.counts.tolist()) == (expected.names, [40, 30])
    assert [(table.rows, len(table.columns)) for table in whole.tables.values()] == [(40, 0), (30, 0)]
    # JAX works on the very array that the columns were written into
    assert np.asarray(problem.data["x"]).ctypes.data == np.asarray(stacked.arrays["x"]).ctypes.data


def test_again_with_wrong_data_leaves_the_former_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert CliRunner().invoke(app, ["run", "one.toml"]).exit_code == 0
    (folder / "south.csv").write_text("age,ward\n1,a\n")
    result = CliRunner().invoke(app, ["run", "one.toml", "--again"])
    assert result.exit_code == 2 or isinstance(result.exception, fd.FoedusError)
    assert (folder / "runs/one/run.json").is_file()


def sites(rows: int) -> dict:
    draw = np.random.default_rng(1)
    x = {name: np.column_stack([draw.normal(size=(rows, 3)), np.ones(rows)]) for name in ("a", "b", "c")}
    return {name: (X, (X[:, 0] + draw.normal(size=rows) > 0.3).astype(float)) for name, X in x.items()}


CAPS = [fd.constraints.LossCap(fd.label(1), 0.6), fd.constraints.LossCap(fd.label(0), 0.9, scope="coupled")]


@pytest.mark.parametrize("constraints", [[], CAPS], ids=["free", "capped"])
def test_client_after_client_gives_the_same_answer_and_compiles_nothing(monkeypatch, constraints):
    ridge = BesideIntercept.of(fd.penalties.Ridge(0.01))
    problem = fd.Problem(sites(50), loss=fd.losses.logistic, constraints=constraints, penalty=ridge)
    expected = fd.solve(problem, fd.InteriorPoint())
    for module in (certificate, simulate):  # as for data of more than a million numbers
        monkeypatch.setattr(module, "is_small", lambda *arguments: False)
    programs = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: programs.append(event) if "backend_compile" in event else None
    )
    run = fd.solve(problem, fd.InteriorPoint())
    np.testing.assert_allclose(run.w, expected.w, rtol=1e-9)
    assert run.certificate.gap == pytest.approx(expected.certificate.gap, abs=1e-12)
    assert len(programs) == 0


@pytest.mark.parametrize("penalty", [None, fd.penalties.Ridge(0.3)])
def test_the_hessian_of_losses_is_that_of_the_lagrangian(penalty):
    problem = fd.Problem(sites(20), loss=fd.losses.logistic, constraints=CAPS, penalty=penalty)
    terms, w = problem.terms, np.array([0.3, -0.2, 0.5, 0.1])
    mu, nu, data = np.array([0.7]), np.array([0.4]), problem.client(1)

    def lagrangian(u):
        x, y = np.asarray(data["x"]), np.asarray(data["y"])
        loss = jax.numpy.logaddexp(0.0, (1 - 2 * y) * (x @ u))
        total = loss.mean() + (0 if penalty is None else penalty.value(u, 20))
        return total / 3 + 0.7 * loss[y == 1].mean() + 0.4 * loss[y == 0].mean() / 3

    found = site_part(terms, w, mu, nu, data).hessian
    np.testing.assert_allclose(found, jax.hessian(lagrangian)(w), rtol=1e-10, atol=1e-14)
    assert measure(problem, w)[1].gap is not None


def test_narrow_products_take_one_thread_and_wide_ones_all():
    from threadpoolctl import threadpool_info

    def most() -> int:
        return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")

    before = most()
    with threads.threads_for(31):
        assert most() == 1
    with threads.threads_for(1000):
        assert most() == before


@pytest.mark.parametrize("null", [False, True])
def test_numbers_are_copied_from_arrows_buffers_as_pyarrow_would(null):
    pa = pytest.importorskip("pyarrow")
    values = [None if null and i % 3 == 0 else i / 7 for i in range(40)]
    chunks = pa.chunked_array([pa.array(values[:13], pa.float64()), pa.array(values, pa.float64())[13:]])
    expected = np.array([np.nan if v is None else v for v in values])
    np.testing.assert_array_equal(columns.from_arrow(chunks), expected)
    np.testing.assert_array_equal(columns.from_arrow(chunks.slice(5, 20)), expected[5:25])
    assert columns.from_arrow(pa.chunked_array([pa.array([], pa.float64())])).shape == (0,)


@pytest.mark.slow
def test_reading_a_file_imports_no_pandas(folder):
    program = (
        "import sys; from pathlib import Path; from foedus.data import tables; tables.read(Path('north.csv'));"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system's own files say how much is resident")
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_large_table_is_held_about_once(tmp_path, command):
    """Beyond the imports a command takes at most twice the numbers: them, and a file while it is read."""
    size = files.write_sites(tmp_path, 200_000) / 1e6
    own = [sys.executable, "-m", "foedus.app.cli", command, "large.toml"]
    imports = files.spent([sys.executable, "-c", files.IMPORTS], tmp_path)[1]
    assert files.spent(own, tmp_path)[1] - imports <= 2.0 * size


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system's own files say how much is resident")
def test_a_million_rows_take_at_most_two_and_a_half_times_their_size_imports_included(tmp_path):
    size = files.write_sites(tmp_path, 1_000_000) / 1e6
    for command in (["run", "large.toml"], ["check", "large.toml"]):
        peak = files.spent([sys.executable, "-m", "foedus.app.cli", *command], tmp_path)[1]
        print(f"{command[0]}: {peak:.0f} MB, {peak / size:.2f} times the numbers")
        assert peak <= 2.5 * size


@pytest.mark.parametrize("rows", [2**15 + 1, 2**15 + 2**12])
def test_a_product_over_bands_of_rows_is_the_product_over_all(rows):
    draw = np.random.default_rng(0)
    x, d = draw.normal(size=(rows, 3)), draw.normal(size=rows)
    np.testing.assert_allclose(weighted_gram(x, d), (x * d[:, None]).T @ x, rtol=1e-12, atol=1e-11)
    y = (draw.random(rows) > 0.5).astype(float)
    problem = fd.Problem([(x, y)], loss=fd.losses.logistic)
    w, none = np.array([0.3, -0.2, 0.5]), np.zeros(0)
    p = 1 / (1 + np.exp(-x @ w))
    found = hessian_of_losses(problem.terms, w, none, none, problem.client(0))
    np.testing.assert_allclose(found, (x * (p * (1 - p))[:, None]).T @ x / rows, rtol=1e-10)
