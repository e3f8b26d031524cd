"""Slips of a user who states a problem in Python: each gets one sentence, and names can be found."""

import jax.numpy as jnp
import numpy as np
import pytest

import foedus as fd

X = np.random.default_rng(0).normal(size=(20, 3))
Y = (X[:, 0] > 0).astype(float)


def test_every_public_name_is_found_by_dir():
    assert set(fd.__all__) <= set(dir(fd))
    assert callable(fd.FairClassifier)


@pytest.mark.parametrize(("make", "word"), [(fd.group, "F"), (fd.label, "yes"), (fd.group, None)])
def test_a_word_for_a_group_or_label_gets_one_sentence(make, word):
    with pytest.raises(fd.FoedusError) as raised:
        make(word)
    told = str(raised.value)
    assert "\n" not in told
    assert repr(word) in told
    assert f"fd.{make.__name__}(NUMBER, said=" in told


def by_numpy(w, data):
    return data.mean(np.log(1 + np.exp(-data.x @ w)))


def by_asarray(w, data):
    return np.mean(np.asarray(data.x) @ np.asarray(w)) ** 2


def by_float(w, data):
    return float(data.mean(data.x @ w)) ** 2


def by_branch(w, data):
    return data.mean(data.x @ w) if w[0] > 0 else jnp.sum(w**2)


@pytest.mark.parametrize("objective", [by_numpy, by_asarray, by_float, by_branch])
def test_numpy_inside_an_own_objective_gets_one_sentence(objective):
    problem = fd.Problem([(X, Y)], objective=objective)
    with pytest.raises(fd.FoedusError) as raised:
        fd.solve(problem, fd.FedAvg(lr=0.1), w0=np.zeros(3), max_rounds=2)
    assert "\n" not in str(raised.value)
    assert "jax.numpy" in str(raised.value)


def test_numpy_on_constants_inside_an_own_objective_is_no_slip():
    def objective(w, data):
        return jnp.sum(w**2) * np.log(2.0) + data.mean((data.x @ w - data.y) ** 2)

    run = fd.solve(fd.Problem([(X, Y)], objective=objective), fd.FedAvg(lr=0.01), w0=np.zeros(3), max_rounds=2)
    assert np.isfinite(run.objective)
