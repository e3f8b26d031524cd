"""`secure`: the server sees sums alone, and runs end where they end without masks."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import problem as five
from constrained_cases import breast_cancer

import foedus as fd
from foedus.certificate.measure import Certificate
from foedus.protocol.summing import SumPresent
from foedus.sums.fixed_point import FixedPoint
from foedus.sums.masking import Masking, masking_of


def close(secure: fd.Run, plain: fd.Run, tolerance=1e-9):
    scale = 1.0 + np.max(np.abs(plain.w))
    np.testing.assert_allclose(secure.w, plain.w, rtol=0, atol=tolerance * scale)
    assert secure.rounds == plain.rounds
    np.testing.assert_allclose(secure.objective, plain.objective, rtol=1e-9)
    np.testing.assert_allclose(secure.certificate.stationarity, plain.certificate.stationarity, atol=1e-8)


def capped() -> fd.Problem:
    """The malignant cases' loss is capped at each of five sites."""
    return breast_cancer(5, seed=0).problem()


SAME = {
    "FedAvg": (fd.FedAvg(k0=2, lr=0.1), {"max_rounds": 12}),
    "FedAvg, some": (fd.FedAvg(k0=2, lr=0.1), {"max_rounds": 6, "participation": ~np.eye(6, 5, dtype=bool)}),
    "FedProx": (fd.FedProx(lr=0.1), {"max_rounds": 8}),
    "LocalSGD": (fd.LocalSGD(batch=4, k0=2, lr=0.05), {"max_rounds": 8}),
    "Scaffold": (fd.Scaffold(lr=0.05), {"max_rounds": 8}),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in SAME])
def test_the_iterates_are_those_without_masks(name):
    algorithm, more = SAME[name]
    close(fd.solve(five(), algorithm, secure=True, **more), fd.solve(five(), algorithm, **more))


def test_a_round_with_too_few_sites_gives_no_sum_and_changes_nothing():
    plan = np.ones((3, 5), bool)
    plan[1, :2] = False  # three of five: below secure_min + 1
    algorithm = fd.FedAvg(k0=2, lr=0.1)
    secure = fd.solve(five(), algorithm, participation=plan, max_rounds=3, secure=True)
    np.testing.assert_array_equal(secure.history["answered"], [5, 0, 5])
    with_two = fd.solve(five(), algorithm, max_rounds=2)
    np.testing.assert_allclose(secure.w, with_two.w, atol=1e-10)


@pytest.mark.slow
def test_the_greeting_finds_the_largest_constant_from_sums():
    plain = fd.solve(five(), fd.FedAvg(), max_rounds=2)
    secure = fd.solve(five(), fd.FedAvg(), max_rounds=2, secure=True)
    assert secure.settings["algorithm"]["greeting"] == "sums"
    assert plain.settings["algorithm"]["greeting"] == "maximum"
    r = max(float(five().terms.lipschitz(jnp.zeros(plain.w.size), five().client(i))) for i in range(5))
    step = secure.history["objective"]  # the first step is −γ∇f from 0 with γ = 1/(the rung above max r_i)
    assert np.all(np.isfinite(step))
    greet = fd.FedAvg(greeting="sums").kinds[0]
    algorithm, terms = fd.FedAvg(greeting="sums"), five().over(np.zeros(plain.w.size)).terms
    server = algorithm.init(terms, jnp.zeros(plain.w.size), None)
    replies = [greet.local(terms, (), jnp.zeros(plain.w.size), five().client(i), None)[1] for i in range(5)]
    total = Masking(FixedPoint(terms=5)).add_up(
        jnp.stack([jnp.concatenate([one.above, one.view.f[None], one.view.g]) for one in replies]), jnp.ones(5, bool)
    )[0]
    rungs = replies[0].above.size
    summed = type(replies[0])(total[:rungs], type(replies[0].view)(total[rungs], total[rungs + 1 :]))
    gamma = float(greet.aggregate(terms, server, summed, SumPresent.of(jnp.asarray(5))).gamma)
    assert 1.0 / r / 2**0.25 <= gamma * (1 + 1e-12)
    assert gamma <= 1.0 / r


def test_constraints_are_certified_from_sums():
    plain, secure = (fd.solve(capped(), fd.InteriorPoint(), secure=s) for s in (False, True))
    close(secure, plain, 1e-8)
    assert secure.converged
    assert secure.certificate.holds()
    assert not secure.certificate.rows  # nobody's own rows are told
    assert {(row.kept, row.sites) for row in secure.certificate.counts} == {(5, 5)}
    assert "is kept at" in str(secure.certificate)
    assert np.all(np.isnan(secure.multipliers["local"]))
    np.testing.assert_allclose(secure.certificate.gap, plain.certificate.gap, rtol=1e-3, atol=1e-9)
    again = Certificate.from_json(secure.certificate.to_json())
    assert again == secure.certificate


@pytest.mark.slow
def test_coupled_rows_are_sums_anyway():
    sites = breast_cancer(5, seed=0)
    cap = fd.constraints.LossCap(fd.label(1), at_most=0.2, scope="coupled")
    problem = fd.Problem(sites.sites, loss=fd.losses.logistic, constraints=[cap])
    plain, secure = (fd.solve(problem, fd.InteriorPoint(), secure=s) for s in (False, True))
    np.testing.assert_allclose(secure.w, plain.w, atol=1e-7)
    told = {row.constraint: row.value for row in secure.certificate.rows}
    known = {row.constraint: row.value for row in plain.certificate.rows if row.site in ("server", "all sites")}
    assert told.keys() == known.keys()
    for name, value in known.items():
        np.testing.assert_allclose(told[name], value, atol=1e-6)


def test_a_cap_that_a_site_breaks_shows_in_the_count_alone():
    secure = fd.solve(capped(), fd.InteriorPoint(), secure=True, max_rounds=2)
    broken = [row for row in secure.certificate.counts if row.kept < row.sites]
    assert broken
    assert not secure.certificate.holds()
    assert "NOT certified" in str(secure.certificate)


@pytest.mark.slow
def test_private_descent_needs_only_sums():
    plain, secure = (
        fd.solve(
            five(), fd.FedAvg(k0=1, lr=0.1), max_rounds=4, privacy=fd.Local(epsilon=8.0, delta=1e-3, clip=1.0), secure=s
        )
        for s in (False, True)
    )
    np.testing.assert_allclose(secure.w, plain.w, atol=1e-10)
    assert secure.ledger.total(0, "tight") == plain.ledger.total(0, "tight")


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [(fd.FedGiA(), "FedGiA needs each client's own reply, .* use FedAvg, Scaffold or InteriorPoint"),
     (fd.ProxAL(), "ProxAL needs each client's own reply"),
     (fd.FedEPM(), "FedEPM needs each client's own reply")],
)  # fmt: skip
def test_algorithms_that_need_single_replies_are_refused(algorithm, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        fd.solve(five(), algorithm, secure=True)


def test_few_sites_are_refused():
    few = fd.Problem([(np.eye(2), np.ones(2))] * 3, loss=fd.losses.least_squares)
    with pytest.raises(fd.FoedusError, match=r"need at least 4 clients.* Got 3"):
        fd.solve(few, fd.FedAvg(lr=0.1), secure=True)


def test_the_numbers_of_a_form_are_agreed_before_the_first_round():
    terms = five().terms
    assert masking_of(fd.FedAvg(), terms).point == FixedPoint(terms=terms.clients, bits=40, words=1)
    assert masking_of(fd.InteriorPoint(), terms).point == FixedPoint(terms=terms.clients, bits=60, words=2)
