"""The FedEPM paper's example and experiments: the data, the problem, and what the figures are made of."""

import os

import numpy as np
import pytest

import foedus as fd
from foedus_lab import datasets
from foedus_lab.papers import EXPERIMENTS
from foedus_lab.papers.experiment import Options
from foedus_lab.papers.fedepm import PRINTED, measure
from foedus_lab.papers.fedepm_examples import STEPS, algorithms, even, examples, instance, optimum
from foedus_lab.papers.fedepm_figures import OBJECTIVES, TARGETS
from foedus_lab.papers.fedepm_private import gaussian_for, private_run

FOLDER = os.environ.get("FOEDUS_DATA", "")
needs_adult = pytest.mark.skipif(
    not any(os.path.exists(os.path.join(FOLDER, name)) for name in ("adult.data", "adult.data.gz")),
    reason="FOEDUS_DATA holds no adult.data",
)


def test_every_table_and_figure_has_a_name():
    names = {f"fedepm-{part}" for part in ("table1", "fig2", "fig3", "fig4", "fig5", "epsilon")}
    assert names <= set(EXPERIMENTS)
    assert all(len(rows) == len(STEPS) for rows in (*PRINTED.values(), *TARGETS.values()))


def test_without_the_data_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("FOEDUS_DATA", raising=False)
    examples.cache_clear()
    with pytest.raises(fd.FoedusError, match="FOEDUS_DATA is not set"):
        EXPERIMENTS["fedepm-fig2"].run(Options(1, 0, True, tmp_path, print))
    examples.cache_clear()


@needs_adult
def test_the_coding_is_the_authors():
    X, y = datasets.complete_integer_coded()
    assert X.shape == (45222, 14)
    assert y.sum() == 11208
    kept = os.path.join(FOLDER, "adult_fedepm.npz")
    if os.path.exists(kept):
        with np.load(kept) as theirs:
            np.testing.assert_array_equal(X, theirs["X"])
            np.testing.assert_array_equal(y, theirs["y"])


@needs_adult
@pytest.mark.slow
def test_an_instance_is_cut_as_the_paper_says():
    problem = instance(50, 0, 0)
    assert problem.counts.sum() == 45222
    assert problem.counts.min() > 0.01 * 45222 / 50
    X, _ = examples()
    np.testing.assert_allclose(np.linalg.norm(X, axis=0), 1.0)
    assert 0.5 < optimum(problem) < 0.6


@needs_adult
def test_a_private_run_spends_what_it_says_and_comes_within_five_per_cent():
    """Total ε = 8 by basic composition, Laplace noise, 50 clients (what the issue of privacy asks for)."""
    problem = even(50, 0)
    run, _ = private_run(problem, 8.0, "laplace", 16, 0)
    assert run.ledger is not None
    assert all(run.ledger.total(i) == pytest.approx(8.0) for i in range(50))
    assert run.rounds == 16
    assert run.objective < 1.05 * optimum(problem)


def test_gaussian_noise_for_a_total_by_rdp():
    noise = gaussian_for(2.0, 1e-5, 24, 1.0)
    assert fd.Budget(2.0 * (1 + 1e-6), 1e-5, "rdp").limit(noise).most == 24


@needs_adult
@pytest.mark.slow
def test_local_compute_is_several_times_that_of_fedepm():
    ratios = {line.algorithm: line.ratio for line in measure(50, 12, 0, 5)}
    assert ratios["SFedAvg"] >= 3
    assert ratios["SFedProx"] >= 7


@needs_adult
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("m", [50, 100])
def test_rounds_and_objectives_under_the_released_rule_are_those_reported(m):
    """Means over 20 cuts: f/m within 1 %, rounds within 1.15 times every figure that is reported."""
    made = [algorithms(k0, "released")["FedEPM"] for k0 in STEPS]
    runs = []
    for trial in range(20):  # one instance in memory at a time
        problem = instance(m, 0, trial)
        found = [fd.solve(problem, algorithm, seed=trial, max_rounds=500) for algorithm in made]
        runs.append([(run.objective, run.rounds - 1) for run in found])
    objectives, rounds = np.moveaxis(np.mean(runs, axis=0), -1, 0)
    np.testing.assert_allclose(objectives, OBJECTIVES[m], rtol=0.01)
    assert np.all(rounds <= 1.15 * np.array(TARGETS[m]))


@needs_adult
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["table1", "epsilon"])
def test_an_experiment_writes_what_it_shows(name, tmp_path):
    said: list[str] = []
    EXPERIMENTS[f"fedepm-{name}"].run(Options(1, 0, True, tmp_path, said.append))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == (
        [".csv", ".md"] if name == "table1" else [".csv", ".png", ".svg"]
    )
    assert said


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["fig2", "fig3", "fig4", "fig5"])
def test_a_figure_is_drawn_from_any_clients(name, monkeypatch, tmp_path):
    """The figures' own work, on small clients in the place of Adult."""
    from cases import classification

    from foedus_lab.papers import fedepm_figures

    X, y = (np.concatenate(parts) for parts in zip(*classification().values(), strict=True))
    small = fd.Problem(fd.data.split(X / 50, y, clients=5), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(1e-3))
    monkeypatch.setattr(fedepm_figures, "instance", lambda m, seed, trial: small)
    monkeypatch.setattr(fedepm_figures, "MOST_ROUNDS", 20)
    said: list[str] = []
    EXPERIMENTS[f"fedepm-{name}"].run(Options(1, 0, True, tmp_path, said.append))
    assert {".csv", ".png"} <= {path.suffix for path in tmp_path.iterdir()}
    assert said
