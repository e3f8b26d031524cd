"""Algorithms of a user's own: named in experiment files, offered by packages, sent to sites that allow them."""

import importlib.metadata

import numpy as np
import pytest
from own_algorithm import Descent

import foedus as fd
from foedus.app.experiment import build, catalogue
from foedus.app.experiment.file import load
from foedus.federation import spec

TABLE = "a,b,label\n" + "\n".join(f"{i % 5},{(i * 7) % 3},{'yes' if i % 2 else 'no'}" for i in range(12)) + "\n"


def experiment(folder, name: str, more: str = ""):
    (folder / "north.csv").write_text(TABLE)
    (folder / "south.csv").write_text(TABLE)
    path = folder / "own.toml"
    path.write_text(f'[data]\nfiles = "*.csv"\nlabel = "label"\npositive = "yes"\n[algorithm]\nname = "{name}"\n{more}')
    return load(path)


def test_a_file_names_an_algorithm_of_a_module(tmp_path):
    (case,) = experiment(tmp_path, "own_algorithm:Descent", "lr = 0.25\n").cases
    assert build.algorithm_of(case.settings) == Descent(lr=0.25)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Descent", "the module 'no_such_module' cannot be imported"),
        ("own_algorithm:Nothing", "'own_algorithm' has no algorithm 'Nothing'"),
        ("own_algorithm:Point", "'own_algorithm' has no algorithm 'Point'"),
        ("os:system", "'os' has no algorithm 'system'"),
    ],
)
def test_what_is_no_algorithm_gets_a_sentence(tmp_path, name, words):
    with pytest.raises(fd.FoedusError, match=words):
        experiment(tmp_path, name)


def test_a_wrong_setting_is_named(tmp_path):
    with pytest.raises(fd.FoedusError, match=r"own_algorithm:Descent has no setting 'rate'; its settings are lr"):
        experiment(tmp_path, "own_algorithm:Descent", "rate = 1\n")


def test_a_package_offers_an_algorithm_by_an_entry_point(monkeypatch):
    point = importlib.metadata.EntryPoint("TheirDescent", "own_algorithm:Descent", catalogue.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    catalogue.algorithms.cache_clear()
    try:
        assert catalogue.find_algorithm("theirdescent", "[algorithm]").build({"lr": 0.1}, "") == Descent(lr=0.1)
    finally:
        catalogue.algorithms.cache_clear()


def test_a_site_runs_it_only_where_its_policy_allows_the_module():
    text = spec.encode(Descent(lr=0.125))
    assert spec.decode(text, ("own_algorithm",)) == Descent(lr=0.125)
    with pytest.raises(fd.FoedusError, match="of a module that is not allowed here"):
        spec.decode(text)


def test_auto_can_be_named_in_a_file(tmp_path):
    (case,) = experiment(tmp_path, "auto").cases
    made = build.algorithm_of(case.settings)
    sites = [(np.eye(3), np.array([0.0, 1.0, 0.0]))] * 2
    problem = fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1))
    assert isinstance(made.fit(problem).algorithm, fd.InteriorPoint)


def test_an_optimiser_can_be_named_in_a_file(tmp_path):
    more = 'server = { name = "adam", learning_rate = 0.1 }\n'
    (case,) = experiment(tmp_path, "FedAvg", more).cases
    assert build.algorithm_of(case.settings) == fd.FedAvg(server={"name": "adam", "learning_rate": 0.1})
