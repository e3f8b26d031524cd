"""A total for a whole run: the noise that keeps it, what is printed of it, and how good the model still is."""

import dataclasses
import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from adult_rows import adult_of
from cases import NAMES, problem

import foedus as fd
from foedus.app.experiment import execute, file
from foedus.app.report import card, html, sections
from foedus.data import preprocess
from foedus.data.columns import Words
from foedus.data.loaders import ADULT_COLUMNS, ADULT_NUMBERS, read_adult
from foedus.data.sites import Roles, gather
from foedus.data.tables import Table
from foedus.privacy.composition import tightest
from foedus.privacy.ledger import ledger_of
from foedus.privacy.total import ROUNDS
from foedus.runtime.simulate import Simulator

TOTAL = fd.Local(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("releases", [1, 7, 40, 1000])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-3)])
def test_the_noise_is_the_least_that_keeps_the_total(epsilon, delta, releases):
    noise = fd.Local(epsilon=epsilon, delta=delta).noise(releases, clip=1.0)
    ratio = 1.0 / noise.multiplier
    assert tightest({("gaussian", ratio): releases}, delta) <= epsilon
    assert tightest({("gaussian", ratio * (1 + 1e-6)): releases}, delta) > epsilon
    assert noise.most == releases, "a client itself ends its part there"


def test_with_delta_0_the_noise_is_laplace_noise_of_an_equal_share():
    noise = fd.Local(epsilon=2.0).noise(8, clip=1.0)
    assert isinstance(noise, fd.Laplace)
    assert noise.epsilon == pytest.approx(0.25)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_what_prepares_the_data_is_part_of_the_total(delta):
    alone = fd.Local(epsilon=1.0, delta=delta).noise(10, clip=1.0)
    beside = fd.Local(epsilon=1.0, delta=delta, before=((0.05, 6),)).noise(10, clip=1.0)
    ratio, kind = 1.0 / beside.multiplier, beside.kind.lower()
    mixture = {("laplace", 0.05): 6, (kind, ratio): 10}
    assert beside.multiplier > alone.multiplier
    assert 0.999 < tightest(mixture, delta) <= 1.0 + 1e-12
    with pytest.raises(fd.FoedusError, match="leaves nothing for the training"):
        fd.Local(epsilon=0.3, delta=delta, before=((0.05, 600),)).noise(10, clip=1.0)


@pytest.mark.parametrize(
    "algorithm",
    [
        fd.FedAvg(k0=1),
        fd.FedEPM(rho=1.0, restart=True),
        pytest.param(fd.FedGiA(), marks=pytest.mark.slow),
        pytest.param(fd.FedProx(), marks=pytest.mark.slow),
    ],
)
def test_a_run_with_a_total_spends_it_and_no_more(algorithm):
    run = fd.solve(problem("logistic"), algorithm, privacy=TOTAL, max_rounds=6)
    assert np.all(run.ledger.releases == 6)
    for client in range(len(NAMES)):
        spent = run.ledger.total(client, "tight")
        assert 0.999 < spent <= 1.0 + 1e-8
        assert spent <= run.ledger.total(client, "basic")
    assert run.ledger.delta == 1e-5
    assert np.all(np.isfinite(run.w))


def test_without_a_limit_a_run_with_a_total_plays_few_rounds():
    run = fd.solve(problem("logistic"), fd.FedAvg(k0=1), privacy=fd.Local(epsilon=4.0))
    assert run.rounds == ROUNDS
    assert run.ledger.total(0, "tight", delta=0.0) == pytest.approx(4.0)


def test_the_headline_is_the_tight_total_with_basic_composition_beside_it_and_says_that_it_is_simulated():
    run = fd.solve(problem("logistic"), fd.FedAvg(k0=1), privacy=TOTAL, max_rounds=6)
    line = next(line for line in str(run).splitlines() if line.startswith("privacy"))
    assert line.startswith("privacy: SIMULATED epsilon 1 at delta 1e-05 in all for each client")
    assert f"{run.ledger.total(0):.4g} by basic composition" in line
    assert "asked for: epsilon 1, delta 1e-05" in line
    for text in (str(run), str(run.ledger)):
        assert "has protected nobody" in text
    assert "tight, replace" in str(run.ledger)
    real = fd.solve(problem("logistic"), fd.FedAvg(k0=1), privacy=dataclasses.replace(TOTAL, sampler="opendp"))
    assert "SIMULATED" not in str(real)


def test_a_run_over_real_sites_is_not_called_simulated(monkeypatch):
    monkeypatch.setattr(fd.Flare, "play", lambda self, job, **more: replace(Simulator().play(job, **more), opendp=True))
    run = fd.solve(problem("logistic"), fd.FedAvg(k0=1), privacy=TOTAL, max_rounds=3, runtime=fd.Flare(sites=5))
    assert "SIMULATED" not in str(run)
    assert "SIMULATED" not in str(run.ledger)


def test_the_seed_of_a_simulated_private_run_stands_on_no_page():
    """Who knows it can run two guesses of the data and compare; real noise has none."""
    seed = 9184467
    run = fd.solve(problem("logistic"), fd.FedAvg(k0=1), privacy=fd.Local(epsilon=2.0), seed=seed, max_rounds=3)
    other = dataclasses.replace(run, settings=run.settings | {"max_rounds": 4})
    pages = (html.page({"a": run}, {}), html.page({"a": run, "b": other}, {}), card.card("a", run))
    for page in pages:
        assert str(seed) not in page
        assert "imulated" in page or "SIMULATED" in page
    assert "The seed of this run is not shown" in pages[0]
    assert "The seed of this run is not shown" in pages[2]
    again = eval(sections.call(run).removeprefix("run = "), {"fd": fd, "problem": problem("logistic")})
    assert again.settings["algorithm"] == run.settings["algorithm"], (
        "the call that is shown is the run's, but for the seed"
    )
    plain = fd.solve(problem("logistic"), fd.FedAvg(k0=1), seed=seed, max_rounds=3)
    assert str(seed) in html.page({"a": plain}, {})
    assert str(seed) in card.card("a", plain)


def test_leaving_an_example_out_is_not_called_removing_it():
    """The number of examples is kept fixed, so that truly removing a row is not covered by it."""
    noise = fd.Laplace(epsilon=1.0, clip=1.0, neighbours="add-or-remove")
    run = fd.solve(problem("logistic"), fd.FedAvg(k0=1, lr=0.1), privacy=noise, max_rounds=2)
    for text in (str(noise), str(run), str(run.ledger)):
        assert "adding or removing" not in text
        assert "leaving out one example's contribution, the number of examples kept fixed" in text


def test_a_ledger_of_sites_that_tell_only_how_often_they_released():
    noise = fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0, sampler="opendp")
    history = {"ledger.releases": np.array([[1, 1], [3, 1], [3, 2]]), "phase": np.zeros(3)}
    ledger = ledger_of(noise, history, ["north", "south"], np.array([-1, -1]), "parameters")
    assert list(history) == ["phase"]
    np.testing.assert_array_equal(ledger.releases, [3, 2])
    ratio = 1.0 / noise.multiplier
    assert ledger.total("north", "tight") == pytest.approx(tightest({("gaussian", ratio): 3}, 1e-5), rel=1e-6)
    assert [e.round for e in ledger.entries("north")] == [1, 2, 2]
    assert math.isnan(ledger.entries("north")[0].scale)
    row = next(line for line in str(ledger).splitlines() if line.startswith("north"))
    assert row.count("not told") == 3  # examples, sensitivity, noise scale
    assert "SIMULATED" not in str(ledger)


def test_a_ledger_without_scales_is_kept_with_its_run(tmp_path):
    noise = fd.Laplace(epsilon=0.5, clip=1.0, sampler="opendp")
    ledger = ledger_of(noise, {"ledger.releases": np.array([[2], [3]])}, ["a"], np.array([-1]), "parameters")
    ledger.save(tmp_path / "ledger.npz")
    again = type(ledger).load(tmp_path / "ledger.npz")
    assert str(again) == str(ledger)
    assert again.total("a") == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fd.Local(epsilon=0), "'epsilon' of Local must be a number > 0"),
        (lambda: fd.Local(epsilon=math.inf), "'epsilon' of Local must be a number > 0"),
        (lambda: fd.Local(epsilon=1.0, delta=1.0), "'delta' of Local must be a number >= 0 and < 1"),
        (lambda: fd.Local(epsilon=1.0, clip=0.0), "'clip' of Local must be a number > 0 or None"),
        (lambda: fd.Local(epsilon=1.0, neighbours="any"), "'replace' or 'add-or-remove'"),
        (lambda: fd.Local(epsilon=1.0, sampler="dice"), "'simulation' or 'opendp'"),
        (lambda: fd.solve(problem(), fd.FedAvg(k0=1), privacy=TOTAL, budget=1.0), "leave the budget out"),
        (lambda: fd.solve(problem(), fd.ProxAL(), privacy=TOTAL), "no private form"),
        (
            lambda: fd.solve(
                fd.Problem([(np.ones((2, 1)), np.ones(2))], objective=lambda w, data: data.mean((data.x @ w) ** 2)),
                fd.FedEPM(),
                privacy=TOTAL,
                w0=np.zeros(1),
            ),
            "Local needs clip",
        ),
    ],
)
def test_a_wrong_total_gets_a_sentence(make, words):
    with pytest.raises(fd.FoedusError) as caught:
        make()
    assert words in str(caught.value)


def test_noise_on_the_preparation_never_blows_a_column_up():
    """A variance that noise has made tiny, or negative, would stretch the column a hundred times."""
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(50.0, 10.0, size=200), "y": draw.integers(2, size=200).astype(float)}
    table = Table("site", columns, np.arange(200))
    for seed in range(40):
        cohort = gather({"a": table, "b": table}, Roles(label="y", positive="1"))
        rules = preprocess.fit(cohort, bounds={"x": (0.0, 100.0)}, epsilon=0.05, seed=seed)
        assert np.max(np.abs(rules.transform(table)[:, 0])) <= 12.0
    close = preprocess.fit(cohort, bounds={"x": (0.0, 100.0)}, epsilon=1e7, seed=0)
    assert np.std(close.transform(table)[:, 0]) == pytest.approx(1.0, rel=1e-3)


FILE = """
seed = {seed}
[data]
set = "adult"
drop = ["fnlwgt"]
[partition]
num_partitions = 10
seed = {seed}
[algorithm]
name = "FedAvg"
k0 = 1
[privacy]
epsilon = 1
delta = 1e-5
[preprocess]
epsilon = 0.1
[preprocess.bounds]
age = [17, 90]
education-num = [1, 16]
capital-gain = [0, 20000]
capital-loss = [0, 4500]
hours-per-week = [1, 99]
[preprocess.categories]
"""


@pytest.mark.slow
@pytest.mark.skipif("FOEDUS_DATA" not in os.environ, reason="needs Adult; set FOEDUS_DATA")
def test_a_file_with_a_total_of_1_gives_a_useful_model_of_adult_preparation_included(tmp_path):
    """The categories are those of the data set's public description; they are read off the rows here."""
    train, raw = read_adult("adult.data"), read_adult("adult.test")
    words = [name for name in ADULT_COLUMNS if name not in ADULT_NUMBERS and name != "sex"]  # sex is the set's group
    stated = "\n".join(f"{name} = {json.dumps(sorted(set(train[name])))}" for name in words)
    columns = {n: raw[n].astype(float) if n in ADULT_NUMBERS else Words.of(raw[n]).used() for n in ADULT_COLUMNS}
    tested = Table("test", columns, np.arange(len(raw["income"])))
    for seed in range(3):
        path = tmp_path / "study.toml"
        path.write_text(FILE.format(seed=seed) + stated + "\n")
        experiment = file.load(path)
        built = execute.Builder(experiment).build(experiment.cases[0])
        run = fd.solve(built.problem, built.algorithm, seed=seed, **built.privacy)
        ledger = built.with_preparation(run.ledger)
        assert ledger is not None
        assert ledger.exact == ()
        assert ledger.total(0, "tight") <= 1.0 + 1e-8
        assert np.mean((built.rules.transform(tested) @ run.w > 0) == (raw["income"] == ">50K")) >= 0.836


@pytest.mark.slow
@pytest.mark.skipif("FOEDUS_DATA" not in os.environ, reason="needs Adult; set FOEDUS_DATA")
def test_with_a_total_of_1_the_default_settings_give_a_useful_model_of_adult():
    right = []
    for seed in range(5):
        made, X, y = adult_of(seed)
        run = fd.solve(made, fd.FedAvg(k0=1), privacy=TOTAL, seed=seed)
        assert run.ledger.total(0, "tight") <= 1.0 + 1e-8
        right.append(float(np.mean((X @ run.w > 0) == y)))
    assert min(right) >= 0.836
