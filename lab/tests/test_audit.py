"""The audit finds nothing against the sound mechanisms, comes close to their ε, and disproves the paper's."""

from dataclasses import fields, replace

import numpy as np
import pytest

import foedus as fd
from foedus.privacy.central import NoiseShares
from foedus_lab.audit import audit, cases, flipped_pair, opposite_pair, table, turned_pair, vanishing_pair

CASES = {case.what: case for case in cases()}


def audited(case, trials):
    return case.promise()[0], case.run(trials)


@pytest.mark.parametrize(
    ("what", "share"),
    [
        ("FedEPM, restart, Laplace", 0.8),
        ("FedEPM, carried state, Laplace, 4 rounds", 0.6),
        ("FedAvg, k0 = 1, a total for 4 rounds", 0.4),
        ("PrivateNewton, second moments, Gaussian", 0.4),
        ("PrivateNewton, measuring a cap, Gaussian", 0.4),
    ],
)
def test_sound_mechanisms_keep_their_promise_and_the_audit_comes_close(what, share):
    promise, found = audited(CASES[what], 12_000)
    assert share * promise < found.epsilon <= promise


def test_the_papers_noise_breaks_its_nominal_epsilon():
    promise, found = audited(CASES["FedEPM, Eq. (39), gradient that vanishes"], 4_000)
    assert promise == 0.1
    assert found.epsilon > 5.0
    assert "DISPROVED" in table([(CASES["FedEPM, Eq. (39), gradient that vanishes"], found)])


def test_noise_that_is_too_small_is_found_out():
    """A mechanism that draws half of the noise it accounts for."""

    class Half(fd.Laplace):
        def release(self, value, scale, key):
            return super().release(value, scale / 2, key)

    pair = opposite_pair(fd.losses.logistic)
    noise = Half(epsilon=1.0, clip=1.0)
    make = CASES["FedEPM, restart, Laplace"].make
    found = audit(pair, make, noise, np.zeros((1, 3)), trials=12_000)
    assert found.epsilon > 1.2


@pytest.mark.parametrize(
    "what",
    [
        "PrivateNewton, second moments, Gaussian",
        "PrivateNewton, measuring a cap, Gaussian",
        pytest.param("PrivateNewton, a cap, Gaussian", marks=pytest.mark.slow),
        pytest.param("PrivateNewton, Gaussian", marks=pytest.mark.slow),
    ],
)
def test_a_round_of_private_newton_with_half_of_its_noise_is_found_out(what):
    class Half(fd.Gaussian):
        kind = "Gaussian"

        def release(self, value, scale, key):
            return super().release(value, scale / 2, key)

    case = CASES[what]
    half = Half(**{field.name: getattr(case.noise, field.name) for field in fields(case.noise)})
    assert replace(case, noise=half).run(20_000).epsilon > 1.2


@pytest.mark.slow
def test_shares_that_are_too_small_are_found_out():
    """Sites that draw half of their shares."""

    class Weak(NoiseShares):
        def share(self, scale):
            return super().share(scale) / 2

    case = CASES["PrivateNewton, second moments, shares of 4"]
    weak = Weak(**{field.name: getattr(case.noise, field.name) for field in fields(case.noise)})
    assert replace(case, noise=weak).run(20_000).epsilon > 1.2


def test_the_pairs_are_neighbours():
    for pair in (
        opposite_pair(fd.losses.logistic),
        vanishing_pair(fd.losses.logistic),
        turned_pair(fd.losses.logistic),
        flipped_pair(fd.losses.logistic, cap=0.05),
    ):
        one, other = (made.client(0) for made in pair)
        differ = np.any(np.asarray(one["x"] != other["x"]), axis=1) | np.asarray(one["y"] != other["y"])
        assert differ.sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
def test_every_case_of_the_command(what):
    case = CASES[what]
    promise, found = audited(case, 20_000)
    assert (found.epsilon > promise) == case.weak
