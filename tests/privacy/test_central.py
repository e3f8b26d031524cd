"""Noise in shares: what the sum carries, what is proved for it, what a site does with it, and what is refused."""

import dataclasses
import json
import math
from dataclasses import replace
from fractions import Fraction as Rational

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import private
from central_noise import TOTAL
from halls import QUICK
from masked_halls import MaskedHall, without
from scipy.stats import norm

import foedus as fd
from foedus.federation import packing
from foedus.federation.order import Patience
from foedus.federation.policy import Policy
from foedus.federation.server import Paused
from foedus.privacy.central import BITS, LEAST_SHARE, SMOOTHING, NoiseShares, usual_tolerance
from foedus.privacy.composition import gaussian_epsilon, tightest
from foedus.privacy.releasing import make_private
from foedus.sums.masking import masking_of
from foedus.sums.masks import threshold
from foedus.sums.messages import KeyNote, MaskOrder
from foedus.sums.server import roster_of

DIM = 3


def make(clients: int = 5, rows: int = 1000, seed: int = 0) -> fd.Problem:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, DIM))
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ [1.0, 2.0, -1.0]))).astype(float)
    return fd.Problem(fd.data.split(x, y, clients=clients, seed=seed), loss=fd.losses.logistic)


def shares(**more) -> NoiseShares:
    settings = {"epsilon": 1.0, "delta": 1e-5, "clip": 0.7, "sites": 5, "tolerate": 1, "least_rows": 6}
    return NoiseShares(**settings | more)


# --- what is proved, by brute force ---


def discrete(sigma: float, reach: int) -> np.ndarray:
    """The discrete Gaussian on −reach … reach."""
    p = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    return p / p.sum()


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("sites", [2, 5])
def test_a_sum_of_discrete_gaussians_is_one_but_for_the_factor_that_the_proof_states(sigma, sites):
    """docs/privacy.md, step 1, at scales so small that the factor can be seen."""
    one = discrete(sigma, 12)
    total = one
    for _ in range(sites - 1):
        total = np.convolve(total, one)
    place = np.arange(len(total)) - len(total) // 2
    density = norm.pdf(place, scale=sigma * math.sqrt(sites))
    near = np.abs(place) <= 9
    tau = 8 * sites * math.exp(-(math.pi**2) * sigma**2)
    worst = np.max(np.abs(np.log(total[near] / density[near])))
    assert worst <= tau
    if sigma < 0.6:
        assert worst > 1e-3, "the factor is there to be seen"


@pytest.mark.parametrize("shift", [1, 3])
def test_the_curve_of_the_sum_is_below_the_gaussian_one_of_the_proof(shift):
    """docs/privacy.md, step 2: the sum is as private as Gaussian noise of variance s² − r², here with r = 1."""
    sigma, sites = 2.0, 4
    one = discrete(sigma, 60)
    total = one
    for _ in range(sites - 1):
        total = np.convolve(total, one)
    s = math.sqrt(sites * sigma**2 - 1.0)
    moved = np.concatenate([np.zeros(shift), total])
    total = np.concatenate([total, np.zeros(shift)])
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        delta = np.sum(np.maximum(0.0, moved - math.exp(epsilon) * total))
        a, b = shift / (2 * s), epsilon * s / shift
        gaussian = norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)
        assert delta <= gaussian * (1 + 1e-6) + 1e-12


def test_the_constants_of_the_code_make_the_factor_vanish():
    """Shares of 20 units and r = 10 units: over 2^13 sites, 10^6 numbers and 10^6 rounds, still less than 1e-300."""
    exponent = -(math.pi**2) * LEAST_SHARE**2 + math.log(8.0 * 2**13 * 1e12)
    rounding = -2 * math.pi**2 * SMOOTHING**2 + math.log(8.0 * 1e12)
    assert max(exponent, rounding) < math.log(1e-300)


@pytest.mark.parametrize("sites", [4, 5, 10, 200])
def test_what_is_tolerated_by_default_is_what_masked_sums_can_do_without(sites):
    assert sites - usual_tolerance(sites) == threshold(sites)


def test_the_shares_of_all_but_those_tolerated_carry_the_whole_noise():
    noise = shares(sites=10, tolerate=3)
    assert SMOOTHING == 10.0
    for scale in (1e-6, 0.01, 1.0):
        share = float(noise.share(jnp.asarray(scale)))
        needed = (Rational(scale) * 2**BITS) ** 2 + 100  # without rounding; SMOOTHING is 10
        assert 7 * Rational(share) ** 2 >= needed
        assert 7 * share**2 <= max(1.0001 * (scale * 2**BITS) ** 2 + SMOOTHING**2, 7 * LEAST_SHARE**2)


def test_opendp_itself_promises_no_less_for_the_sum():
    """One measurement with the noise of n − t shares has ρ = ratio²/2 of zero-concentrated privacy, by OpenDP."""
    from foedus.privacy.sampling import units_measurement

    noise = shares(sites=10, tolerate=3)
    sensitivity = 0.01
    share = float(noise.share(noise.scale(jnp.asarray(sensitivity))))
    rho = units_measurement(math.sqrt(7) * share).map(sensitivity * 2**BITS)
    assert rho <= 0.5 / noise.multiplier**2 * (1 + 1e-9)
    draws = np.array(units_measurement(share)([0] * 4000))
    assert np.std(draws) == pytest.approx(share, rel=0.05)
    assert np.all(draws == np.rint(draws))


# --- what is sent ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuietShares(NoiseShares):
    """Shares that are accounted for and not drawn."""

    def release(self, value, scale, key):
        return jnp.rint(value * 2.0**BITS) * 2.0**-BITS


def test_a_sum_moves_no_further_than_the_sensitivity_and_every_client_adds_the_same_share():
    """Hill climbing: the worst pair so far is changed a little, again and again; other clients have other sizes."""
    settings = {f.name: getattr(shares(), f.name) for f in dataclasses.fields(NoiseShares)}
    noise = QuietShares(**settings)
    blank = fd.Problem([(np.zeros((6, DIM)), np.zeros(6))] * 5, loss=fd.losses.logistic)
    algorithm = replace(private(fd.FedAvg(k0=1, lr=0.9), shares(least_rows=600)), noise=noise)
    terms = blank.terms

    @jax.jit
    def play(x, y, w):
        data = fd.Data({"x": x, "y": y, "weight": jnp.ones(len(y))})
        client = algorithm.join(terms, data, w)
        message = algorithm.broadcast(terms, algorithm.init(terms, w, None), jnp.zeros(5))
        client, reply = algorithm.local(terms, client, message, data, jax.random.key(0))
        return reply.z, client.spent.sensitivity, client.spent.scale

    rng = np.random.default_rng(0)
    best, closest = None, 0.0
    for trial in range(300):
        if best is None or trial % 3 == 0:
            x, y, w = (
                rng.normal(size=(6, DIM)) * 10.0 ** rng.integers(-2, 3),
                rng.integers(2, size=6) * 1.0,
                np.zeros(DIM),
            )
            row, label = rng.normal(size=DIM) * 10.0 ** rng.integers(-2, 3), float(rng.integers(2))
        else:
            x, y, w, row, label = best
            x, row = x + 0.1 * rng.normal(size=x.shape), row + 0.3 * rng.normal(size=DIM)
            w = w + 0.1 * rng.normal(size=DIM)
        other, other_y = x.copy(), y.copy()
        other[2], other_y[2] = row, label
        (z, bound, _), (neighbour, same, _) = play(x, y, w), play(other, other_y, w)
        assert float(bound) == float(same)
        moved = float(np.linalg.norm(np.asarray(z - neighbour)))
        assert moved <= float(bound)
        if moved / float(bound) > closest:
            best, closest = (x, y, w, row, label), moved / float(bound)
        assert np.all(np.asarray(z) * 2.0**BITS == np.rint(np.asarray(z) * 2.0**BITS))
    assert closest > 0.9, "a bound that nothing comes near is idle"
    few, many = play(x[:3], y[:3], w), play(np.tile(x, (50, 1)), np.tile(y, 50), w)
    assert float(few[1]) == float(many[1]) == float(bound), "the share says nothing about a client's size"
    assert float(few[2]) == float(many[2])
    assert np.linalg.norm(few[0]) <= 3 * 0.9 * 0.7 / 6 * 1.0001, "three rows are divided by six"


def test_models_beyond_the_reach_and_values_beyond_the_range_get_noise_alone():
    noise = QuietShares(**{f.name: getattr(shares(), f.name) for f in dataclasses.fields(NoiseShares)})
    assert not bool(noise.within(jnp.asarray(2.0**15)))
    sent = shares().release(jnp.array([np.nan, np.inf, 1e30]), jnp.asarray(1e-3), jax.random.key(0))
    assert np.all(np.isfinite(sent))
    assert float(sent[2]) <= 2.0**7 + 1
    sent = shares().release(jnp.ones(3), jnp.asarray(1e9), jax.random.key(0))  # more noise than the range holds
    assert np.max(np.abs(sent)) < 64 * 2.0**2


def test_the_simulation_adds_up_the_integers_that_sites_mask():
    problem = make()
    algorithm = make_private(fd.FedAvg(k0=1), TOTAL, None, problem, 4)
    masking = masking_of(algorithm, problem.terms)
    rng = np.random.default_rng(0)
    units = rng.integers(-(2**48), 2**48, size=(5, DIM))
    replies = units * 2.0**-BITS
    total, clipped = masking.add_up(jnp.asarray(replies), jnp.ones(5, bool))
    at_sites = sum(masking.point.encode(reply)[0][:, 0] for reply in replies)
    assert not np.any(clipped)
    np.testing.assert_array_equal(at_sites, units.sum(axis=0))
    np.testing.assert_array_equal(np.asarray(total) * 2.0**BITS, units.sum(axis=0))


@pytest.mark.slow
def test_a_run_spends_its_total_and_the_noise_of_the_sum_does_not_grow_with_the_number_of_sites():
    spread = {}
    for clients in (5, 20):
        rows = np.zeros((2000, DIM))
        blank = fd.Problem(fd.data.split(rows, np.zeros(2000), clients=clients), loss=fd.losses.logistic)
        run = fd.solve(blank, fd.FedAvg(k0=1, lr=1.0), privacy=TOTAL, secure=True, max_rounds=40)
        assert 0.999 < run.ledger.total(0, "tight") <= 1.0
        assert np.all(run.ledger.releases == 40)
        expected = run.ledger.scale[0, 0] * math.sqrt(clients / (clients - usual_tolerance(clients))) / clients
        spread[clients] = expected
        # w is the sum of 40 independent draws
        assert np.std(run.w) == pytest.approx(expected * math.sqrt(40), rel=0.75)
    assert spread[20] == pytest.approx(spread[5], rel=0.3)


def test_the_ledger_says_how_many_sites_may_collude_or_vanish():
    run = fd.solve(make(), fd.FedAvg(k0=1), privacy=TOTAL, secure=True, max_rounds=4)
    for text in (str(run), str(run.ledger)):
        assert "of which 1 may collude or vanish in all" in text
        assert "SIMULATED" in text
    assert "each of 5 adds 1/4 of the noise's variance" in str(run.ledger)


def test_a_client_that_has_spent_its_total_still_adds_its_share():
    problem = make()
    algorithm = make_private(fd.FedAvg(k0=1), TOTAL, None, problem, 1)
    terms, data, w = problem.terms, problem.client(0), jnp.zeros(DIM)
    message = algorithm.broadcast(terms, algorithm.init(terms, w, None), jnp.zeros(5))
    client = algorithm.join(terms, data, w)
    client, first = algorithm.local(terms, client, message, data, jax.random.key(0))
    after, second = algorithm.local(terms, client, message, data, jax.random.key(1))
    assert bool(first.spoke)
    assert not bool(second.spoke)
    assert int(after.spent.releases) == 1
    assert np.all(np.asarray(second.z) != 0)
    blank = fd.Data({"x": jnp.zeros_like(data.x), "y": data.y, "weight": data.weight})
    _, silent = algorithm.local(terms, client, message, blank, jax.random.key(1))
    np.testing.assert_array_equal(second.z, silent.z)  # nothing of the data is in it


# --- refusals ---


@pytest.mark.parametrize(
    ("make_run", "words"),
    [
        (lambda: fd.solve(make(), fd.FedAvg(k0=1), privacy=TOTAL), "use secure=True"),
        (lambda: fd.solve(make(), fd.FedAvg(k0=2), privacy=TOTAL, secure=True), "one gradient a round"),
        (lambda: fd.solve(make(), fd.FedGiA(), privacy=TOTAL, secure=True), "needs each client's own reply"),
        (lambda: fd.solve(make(), fd.Scaffold(), privacy=TOTAL, secure=True), "no private form"),
        (lambda: fd.solve(make(3), fd.FedAvg(k0=1), privacy=TOTAL, secure=True), "at least 4 clients"),
        (lambda: fd.solve(make(), fd.FedAvg(k0=1), privacy=TOTAL, secure=True, participation=0.5), "in every round"),
        (lambda: fd.solve(make(), fd.FedAvg(k0=1), privacy=replace(TOTAL, epsilon=1e-4), secure=True), "too small"),
        (lambda: fd.solve(make(), fd.FedAvg(k0=1), privacy=TOTAL, budget=1.0, secure=True), "a total already"),
        (lambda: fd.Central(epsilon=1.0), "'delta' of Central must be a number > 0"),
        (lambda: fd.Central(epsilon=0.0, delta=1e-5), "'epsilon' of Central"),
        (lambda: fd.solve(make(), fd.FedAvg(k0=1), privacy=replace(TOTAL, tolerate=5), secure=True), "from 0 to 4"),
        (lambda: fd.solve(make(), fd.FedAvg(k0=1), privacy=replace(TOTAL, least_rows=0), secure=True), "'least_rows'"),
    ],
)
def test_what_shares_would_not_protect_is_refused_in_a_sentence(make_run, words):
    with pytest.raises(fd.FoedusError) as caught:
        make_run()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


# --- at sites ---


def hall_of(folder, problem=None, **more) -> MaskedHall:
    problem = make() if problem is None else problem
    algorithm = make_private(fd.FedAvg(k0=1), replace(TOTAL, sampler="opendp"), None, problem, 4)
    return MaskedHall(folder, problem, algorithm, max_rounds=4, **more)


def test_a_site_charges_its_ledger_and_names_the_sites_it_relies_on(tmp_path):
    hall = hall_of(tmp_path, policy=Policy(max_epsilon=1.0, min_subset=1, min_sites=1))
    result = hall.play()
    assert len(result.history["phase"]) == 4
    for site in hall.sites:
        ledger = hall.site[site].gate.ledger
        assert len(ledger.lines) == 4
        assert 0.999 < ledger.total(1e-5) <= 1.0
        assert "in a sum with shares of noise of at least 4 of 5 sites" in ledger.lines[0].what
        assert "spent" not in json.dumps(list(result.history))
    assert result.conclusion.certificate.silent, "under privacy nobody measures"


def test_a_site_that_allows_less_refuses_before_anything_is_sent(tmp_path):
    hall = hall_of(tmp_path, policy=Policy(max_epsilon=0.9, min_subset=1, min_sites=1))
    with pytest.raises(fd.FoedusError, match=r"allows epsilon 0\.9"):
        hall.play()
    assert all(not hall.site[site].gate.ledger.lines for site in hall.sites)


def test_a_site_refuses_shares_of_noise_without_masks_and_over_another_number_of_sites(tmp_path):
    hall = hall_of(tmp_path)
    site = hall.site["site-1"]
    for header, clients in (({}, 5), ({"secure": True}, 4)):
        with pytest.raises(Exception, match="noise in shares protects masked sums over all its 5 sites alone"):
            site.masks.check(header, clients, hall.order.algorithm)


def test_one_site_may_be_silent_and_a_second_stops_the_sum(tmp_path):
    """Four of five carry the noise; with three it would be too little, and the sites themselves reveal nothing."""
    hall = hall_of(tmp_path)
    loose = Patience(timeout=1.0, hello=0.0, keep_every=1e9, minimum=3)
    result = hall.play(without(hall, "round", {2}), loose)
    np.testing.assert_array_equal(result.history["answered"], [5, 5, 4, 5])
    (tmp_path / "again").mkdir()
    again = hall_of(tmp_path / "again")
    for site in again.sites:
        session = again.site[site]
        assert session.masks.least_others == 3
    with pytest.raises(Paused):
        again.play(lambda m, t: {k: v for k, v in again.ask(m, t).items() if k not in ("site-1", "site-2")}, QUICK)


def test_a_run_that_is_paused_and_resumed_masks_the_same_noise_anew_and_charges_it_once(tmp_path):
    """Round 2 is masked by four sites and never summed; after a restart of all, they mask the same words again."""
    hall = hall_of(tmp_path, policy=Policy(max_epsilon=1.0, min_subset=1, min_sites=1))
    keeping = Patience(timeout=1.0, hello=0.0, keep_every=0.0)
    with pytest.raises(Paused):
        hall.play(without(hall, "round", {2}), keeping)
    assert {len(hall.site[site].gate.ledger.lines) for site in hall.sites} == {3}
    hall.open_sites()
    result = hall.play(patience=keeping)
    assert len(result.history["phase"]) == 4
    for site in hall.sites:
        assert len(hall.site[site].gate.ledger.lines) == 4
        assert hall.site[site].gate.ledger.total(1e-5) <= 1.0


def test_a_server_that_asks_a_round_again_at_another_model_spends_what_was_announced_and_then_gets_noise(tmp_path):
    """Four releases were announced: from the fifth on, whatever it is called, the site sends a share of noise alone."""
    hall = hall_of(tmp_path)
    counts = []

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            if header["ask"] == "round" and site == "site-1":
                order = MaskOrder.from_bytes(bytes.fromhex(header["mask"]))
                for attempt in (1, 2):
                    header["mask"] = replace(order, attempt=attempt).to_bytes().hex()
                    model = (np.frombuffer(payload, float) + attempt).tobytes()
                    answer, _ = packing.unseal(hall.site[site].answer(packing.seal(header, model)))
                    counts.append(answer["releases"])
        return replies

    hall.play(ask, Patience(timeout=1.0, hello=0.0, keep_every=1e9, minimum=4))
    assert counts == [2, 3, 4, 4, 4, 4, 4, 4]  # beside the honest ones
    ledger = hall.site["site-1"].gate.ledger
    assert len(ledger.lines) == 4
    assert ledger.total(1e-5) <= 1.0


def test_a_server_that_states_more_sites_than_there_are_gets_no_sum(tmp_path):
    """Noise for ten sites in shares of a seventh would be too little in a sum over five."""
    hall = hall_of(tmp_path)
    noise = replace(hall.order.algorithm.noise, sites=10, tolerate=3)
    algorithm, terms = replace(hall.order.algorithm, noise=noise), replace(hall.order.terms, clients=10)
    site = hall.site["site-1"]
    stated = {"run": "r1", "secure": True, "max_rounds": 4, "parties": [f"site-{i + 1}" for i in range(10)]}
    site.masks.check(stated, 10, algorithm)  # nothing can be told by the statement alone
    site.masks.begin(stated, algorithm, terms)
    assert site.masks.least_others == 6
    for one in hall.site.values():
        one.masks.check_run = lambda header: None
        one.masks.begin(stated, algorithm, terms)
    header = {"ask": "keys", "run": "r1", "round": None, "epoch": 0}
    notes = [packing.unseal(one.answer(packing.seal(header)))[1] for one in hall.site.values()]
    roster = roster_of(KeyNote.from_bytes(note) for note in notes).to_bytes()
    answer, _ = packing.unseal(site.answer(packing.seal({"ask": "roster", "run": "r1", "round": None}, roster)))
    assert (answer["code"], "at least 6 other sites, and this run has 4" in answer["sentence"]) == ("policy", True)


def test_the_exact_curve_is_what_the_ledger_uses():
    noise = TOTAL.noise_for(make(), 4, needs_rows=False)
    ratio = 1 / noise.multiplier
    assert tightest({("gaussian", ratio): 4}, 1e-5) == pytest.approx(gaussian_epsilon(1 / (2 * ratio), 1e-5))
    assert tightest({("gaussian", ratio): 4}, 1e-5) <= 1.0
