"""Single lines on which a printed guarantee rests: each test fails if its line is wrong (mutants.toml)."""

import json
import math
from collections import OrderedDict
from fractions import Fraction

import cvxpy as cp
import jax
import jax.numpy as jnp
import mutants
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import foedus as fd
from foedus.algorithms import private_newton as capped
from foedus.certificate.contradiction import reach
from foedus.certificate.gap import rows_convex
from foedus.certificate.measure import Certificate, measure, site_parts
from foedus.certificate.summed import join_sums, summed_part
from foedus.data import holdout, preprocess
from foedus.data.columns import Words
from foedus.data.doubts import doubts
from foedus.data.sites import Roles, gather
from foedus.data.tables import Table
from foedus.federation.site_ledger import Damaged, Limits, Release, SiteLedger, heaviest
from foedus.privacy import clipping, composition, sensitivity
from foedus.privacy.ledger import Ledger, LedgerEntry
from foedus.protocol.algorithm import Present
from foedus.robust.bound import Game
from foedus.robust.closed import Ball
from foedus.robust.proposal import Attack, Proposal
from foedus.statistics import intervals

DELTA = 1e-5
FREE = Limits(math.inf, math.inf, DELTA)

# --- ledgers ---


@pytest.mark.parametrize(("neighbours", "moves"), [("replace", 1.0), ("add-or-remove", 2.0)])
def test_the_site_ledger_counts_what_replacing_one_row_costs(tmp_path, neighbours, moves):
    """Noise for leaving a row out: to replace one is to leave one out and add one, which moves the figure twice."""
    ledger = SiteLedger(tmp_path)
    ledger.charge("a", "x", [Release("round 0", "laplace", 0.5, 4.0, neighbours)], FREE)
    values, scale = np.linspace(-50, 50, 10_001), 4.0
    losses = (
        np.abs(values - moves * 0.5) - np.abs(values)
    ) / scale  # of Laplace densities whose means are so far apart
    assert ledger.total(0.0) == pytest.approx(np.max(losses))


@pytest.mark.parametrize("order", [1, -1])
def test_over_runs_all_laplace_releases_of_a_split_part_count(tmp_path, order):
    """A row pays for one part of a run, whichever; what stands for the run costs at least as much as each of them."""
    parts = [{("laplace", 0.7): 1}, {("laplace", 0.2): 3, ("gaussian", 0.1): 1}]
    together = heaviest(parts[::order])  # pyright: ignore[reportArgumentType]
    for part in parts:
        for other in ({}, {("laplace", 0.3): 2}, {("gaussian", 1.0): 4}):
            with_part, whole = ({**other, **one} for one in (part, together))
            assert composition.tightest(with_part, DELTA) <= composition.tightest(whole, DELTA) * (1 + 1e-9)
    ledger = SiteLedger(tmp_path)
    sides = [f"{side} rows of split 0123456789ab" for side in ("training", "held-out")][::order]
    for side, ratio in zip(sides, (0.7, 0.2), strict=True):
        ledger.charge("a", "x", [Release("round 0", "laplace", ratio, 1.0, rows=side)], FREE)
    ledger.charge("b", "x", [Release("round 0", "laplace", 0.1, 1.0)], FREE)
    assert ledger.total(0.0) >= 0.7 + 0.1 - 1e-12


def renyi_total(ratio: float, count: int) -> float:
    """Laplace releases by Rényi divergences (Mironov 2017, Canonne, Kamath and Steinke 2020), written out."""

    def epsilon(log_excess: float) -> float:
        a = 1.0 + math.exp(log_excess)
        ends = a / (2 * a - 1) * math.exp((a - 1) * ratio) + (a - 1) / (2 * a - 1) * math.exp(-a * ratio)
        spent = count * math.log(ends) / (a - 1)
        return spent + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1)

    return float(minimize_scalar(epsilon, bounds=(-3, 5), method="bounded").fun)


@pytest.mark.parametrize(("ratio", "count"), [(0.1, 40), (0.01, 2000)])
def test_where_noise_is_adaptive_only_bounds_that_allow_that_are_used(ratio, count, monkeypatch):
    releases = {("laplace", ratio): count}
    told = composition.tightest(releases, DELTA, adaptive=True)
    assert told == pytest.approx(renyi_total(ratio, count), rel=0.01)
    assert composition.tightest(releases, DELTA) < 0.99 * told
    composition._tightest.cache_clear()
    monkeypatch.setattr(composition, "have_library", lambda: False)
    assert composition.tightest(releases, DELTA, adaptive=True) == pytest.approx(ratio * count), "the sum alone is left"
    assert composition.tightest(releases, DELTA) < ratio * count
    composition._tightest.cache_clear()


def test_over_several_runs_a_ledger_takes_the_noise_to_be_adaptive(tmp_path):
    ledger = SiteLedger(tmp_path)
    for run in "ab":
        ledger.charge(run, "x", [Release(f"round {k}", "laplace", 0.1, 1.0) for k in range(20)], FREE)
    assert ledger.total(DELTA) == composition.tightest({("laplace", 0.1): 40}, DELTA, adaptive=True)
    assert ledger.total(DELTA, "a") == composition.tightest({("laplace", 0.1): 20}, DELTA)


def test_a_line_of_a_site_ledger_cannot_be_made_cheaper_afterwards(tmp_path):
    ledger = SiteLedger(tmp_path)
    ledger.charge("a", "x", [Release(f"round {k}", "laplace", 0.5, 1.0) for k in range(3)], FREE)
    first, *rest = ledger.path.read_text().splitlines()
    cheaper = json.dumps({**json.loads(first), "ratio": 0.001}, sort_keys=True)
    ledger.path.write_text("\n".join([cheaper, *rest, ""]))
    with pytest.raises(Damaged):
        SiteLedger(tmp_path)


def test_where_leaving_out_does_not_halve_a_release_the_ledger_does_not_halve_it():
    noise = {"sound": True, "kind": "Laplace", "neighbours": "replace", "epsilon": 0.5, "delta": 0.0, "halves": False}
    made = [
        Ledger({**noise, "halves": halves}, ("a",), (9,), np.ones((2, 1)), np.full((2, 1), 2.0), "w")
        for halves in (True, False)
    ]
    assert [one.total("a", neighbours="add-or-remove") for one in made] == pytest.approx([0.5, 1.0])
    assert [one.total("a") for one in made] == pytest.approx([1.0, 1.0])


def test_what_prepared_the_data_is_in_the_total_that_is_printed_first():
    noise = {"sound": True, "kind": "Laplace", "neighbours": "replace", "epsilon": 0.5, "delta": 0.0}
    before = (LedgerEntry("a", 0, "sum of age", 2.0, 8.0, 0.25, 0.0),)
    plain, prepared = (
        Ledger(noise, ("a",), (9,), np.ones((2, 1)), np.full((2, 1), 2.0), "w", before=b) for b in ((), before)
    )
    assert prepared.total("a", "tight", delta=0.0) == pytest.approx(plain.total("a", "tight", delta=0.0) + 0.25)


def test_a_step_moves_the_one_norm_by_no_more_than_is_proved():
    """Quadratic functions with curvatures between `low` and `high`, at two points and with two gradients."""
    rng, low, high, rate, dim = np.random.default_rng(0), 0.1, 2.0, 0.9, 8
    closest = 0.0
    for _ in range(200):
        basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        K = basis @ np.diag(rng.choice([low, high], dim)) @ basis.T
        apart = basis @ rng.choice([-1.0, 1.0], dim)
        change = rng.choice([-1.0, 1.0], dim) * 0.01
        moved = np.sum(np.abs(apart - rate * (K @ apart + change)))
        args = jnp.asarray(np.linalg.norm(apart)), rate, low, high, jnp.asarray(np.sum(np.abs(change)))
        bound = float(sensitivity.in_the_one_norm(*args, dim))
        assert moved <= bound
        closest = max(closest, moved / bound)
    assert closest > 0.5, "a bound that nothing comes near is idle"


@pytest.mark.parametrize("kind", [fd.Laplace(epsilon=1.0, clip=0.5, rows=2.0), fd.Laplace(epsilon=1.0, clip=0.5)])
def test_rows_are_as_long_as_the_bound_says(kind):
    """The curvature, and with it the sensitivity of several steps, rests on that bound."""
    x = np.random.default_rng(0).normal(size=(20, 3)) * np.logspace(-3, 3, 20)[:, None]
    problem = fd.Problem([(x, np.ones(20))] * 2, loss=fd.losses.logistic)
    length = np.linalg.norm(clipping.condense(problem.terms, problem.client(0), kind)["x"], axis=1)
    most = math.inf if kind.rows is None else kind.rows
    np.testing.assert_allclose(length, np.minimum(np.linalg.norm(x, axis=1), most), rtol=1e-12)


def test_the_allowance_for_rounding_covers_what_rounding_at_a_large_model_loses():
    """Of w + d in 53 bits, against exact arithmetic, under each of two neighbouring data sets."""
    rng, noise = np.random.default_rng(0), fd.Laplace(epsilon=1.0, clip=1.0)
    for size in (1.0, 1e6, 1e12):
        w, d = size * rng.normal(size=5), rng.normal(size=(2, 5))
        lost = [
            sum(abs(Fraction(a + b) - Fraction(a) - Fraction(b)) for a, b in zip(w, each, strict=True)) for each in d
        ]
        assert float(sum(lost)) <= float(noise.allowance(jnp.sum(jnp.abs(w)), 5))


# --- certificates ---


def four_sites() -> fd.Problem:
    rng = np.random.default_rng(0)
    sites = [(rng.normal(size=(9, 3)), (rng.random(9) < 0.5).astype(float)) for _ in range(4)]
    cap = fd.constraints.LossCap(fd.label(1), at_most=2.0)
    ridge = fd.penalties.Ridge(0.5, per_example=False)
    return fd.Problem(sites, loss=fd.losses.logistic, penalty=ridge, constraints=[cap])


@pytest.mark.parametrize("wrong", [False, True])
def test_a_multiplier_of_the_wrong_sign_at_one_site_spoils_a_summed_certificate(wrong):
    """Nobody sees whose it is; a bound from it would be false."""
    problem = four_sites()
    terms, w = problem.terms, jnp.full(3, 0.1)
    mu, nu = np.full((4, 1), 1e-9), jnp.zeros(0)
    mu[2] = -3.0 if wrong else 1e-9
    each = site_parts(terms, w, jnp.asarray(mu), nu, problem.data)
    parts = []
    for i in range(4):
        part, data = (jax.tree.map(lambda a, i=i: a[i], tree) for tree in (each, problem.data))
        parts.append(summed_part(terms, part, 1e9, data))
    total = jax.tree.map(lambda *leaves: sum(np.asarray(leaf) for leaf in leaves), *parts)
    _, certificate = join_sums(terms, w, total, problem.first_client, problem.server, {}, 1e9, 1e9)
    assert certificate.holds() != wrong
    assert (certificate.distance == math.inf) == wrong
    assert (certificate.gap_bound is None) == wrong


def test_a_summed_certificate_counts_a_site_that_breaks_its_row():
    problem = four_sites()
    w, eps2 = jnp.array([0.0, 0.0, 50.0]), 1e-6
    each = site_parts(problem.terms, w, jnp.zeros((4, 1)), jnp.zeros(0), problem.data)
    assert np.any(each.local > 1.0)
    parts = []
    for i in range(4):
        part, data = (jax.tree.map(lambda a, i=i: a[i], tree) for tree in (each, problem.data))
        parts.append(summed_part(problem.terms, part, eps2, data))
    total = jax.tree.map(lambda *leaves: sum(np.asarray(leaf) for leaf in leaves), *parts)
    _, certificate = join_sums(problem.terms, w, total, problem.first_client, problem.server, {}, 1e9, eps2)
    assert certificate.feasibility == math.inf
    assert certificate.counts[0].kept == np.sum(each.local <= eps2)


@pytest.mark.parametrize("multiplier", [0.5, -0.5])
def test_a_multiplier_of_the_wrong_sign_proves_no_bound(multiplier):
    row = fd.constraints.Linear(np.array([[1.0, 0.0]]), [5.0], scope="global")
    problem = fd.Problem(
        [(np.zeros((2, 2)), np.zeros(2))] * 2, loss=fd.losses.least_squares, constraints=[row],
        penalty=fd.penalties.Ridge(1.0),
    )  # fmt: skip
    _, certificate = measure(problem, jnp.ones(2), {"global": np.array([multiplier])})
    assert (certificate.gap_bound is None) == (multiplier < 0)


def bent(z, y):
    return jnp.sin(z - y)


def test_rows_of_a_loss_that_is_not_known_to_be_convex_prove_nothing():
    own, with_objectives = (fd.constraints.LossCap(fd.label(1), at_most=0.3, **more) for more in ({"loss": bent}, {}))
    sites = [(np.eye(2), np.array([0.0, 1.0]))] * 2
    assert not rows_convex(fd.Problem(sites, loss=fd.losses.logistic, constraints=[own]).terms)
    assert not rows_convex(fd.Problem(sites, loss=bent, constraints=[with_objectives]).terms)
    assert rows_convex(fd.Problem(sites, loss=fd.losses.logistic, constraints=[with_objectives]).terms)


@pytest.mark.parametrize("columns", [2, 500], ids=["products", "matrices"])
@pytest.mark.parametrize("h", [fd.regularizers.Simplex(1.0), fd.regularizers.L1Ball(1.0)], ids=["simplex", "ball"])
def test_on_a_flat_boundary_the_gap_is_what_is_to_be_had_along_it(monkeypatch, h, columns):
    """Of ½(w − t)ᵀK(w − t) along w₁ + w₂ = 1, w₃ = 0: a step along the normal would leave the domain."""
    monkeypatch.setattr("foedus.certificate.measure.GAP_COLUMNS", columns)
    monkeypatch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
    w, curves, along = np.array([0.3, 0.7, 0.0]), np.array([1.0, 5.0, 3.0]), np.array([1.0, -1.0, 0.0])
    target = np.array([2.0, 1.2, 0.0])
    x = np.diag(np.sqrt(3.0 * curves))  # three examples a site, of which the loss is a mean
    problem = fd.Problem([(x, x @ target)] * 2, loss=fd.losses.least_squares, regularizer=h)
    _, found = measure(problem, jnp.asarray(w))
    gradient = curves * (w - target)
    assert np.all(gradient <= 0)
    assert found.gap == pytest.approx((gradient @ along) ** 2 / (2.0 * along @ (curves * along)), rel=1e-6)


# --- contradictions ---


def rows_at(w: list[float], A: list[list[float]], b: list[float], mu: list[float]) -> Certificate:
    """The certificate of rows Aw ≤ b with multipliers μ."""
    row = fd.constraints.Linear(np.array(A), b, scope="global")
    problem = fd.Problem([(np.zeros((2, 2)), np.zeros(2))] * 2, loss=fd.losses.least_squares, constraints=[row])
    return measure(problem, jnp.array(w), {"global": np.array(mu)})[1]


def test_a_broken_row_that_a_model_meets_is_no_contradiction():
    """w₁ ≤ 0 at w₁ = 3: a model that meets it is three units away."""
    assert rows_at([3.0, 0.0], [[1.0, 0.0]], [0.0], [0.0]).contradiction is None


def test_rows_that_exclude_each_other_contradict_each_other_also_beside_their_middle():
    evidence = rows_at([0.01, 0.0], [[1.0, 0.0], [-1.0, 0.0]], [-1.0, -1.0], [0.0, 0.0]).contradiction
    assert evidence is not None
    assert evidence.convex
    assert evidence.reach > 10


def test_a_multiplier_of_negative_weight_is_no_contradiction():
    """−1 ≤ w₁ ≤ 1 at 0, weighed by −1 each, would add up to something that no model lessens."""
    slopes = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]
    certificate = rows_at([0.0, 1.0], slopes, [1.0, 1.0, 0.0], [-1.0, -1.0, 0.0])
    assert certificate.feasibility == 1.0
    assert certificate.contradiction is None


DOMAINS = [fd.regularizers.Box(-1.0, 1.0), fd.regularizers.L1Ball(1.0), fd.regularizers.L2Ball(1.0),
           fd.regularizers.Simplex(1.0)]  # fmt: skip


@pytest.mark.parametrize("h", DOMAINS, ids=lambda h: type(h).__name__)
def test_terms_that_a_model_of_a_bounded_domain_meets_are_not_proved_unmeetable(h):
    """pᵀ(w − w') over many points w' of the domain: no price below the largest proves anything."""
    rng = np.random.default_rng(0)
    points = np.asarray(jax.vmap(lambda v: h.prox(v, 1.0))(jnp.asarray(3.0 * rng.normal(size=(300, 3)))))
    for w in points[:5]:
        pull = rng.normal(size=3)
        at = jnp.asarray(pull), jnp.ones(3), h, jnp.asarray(w)
        most = float(np.max((w - points) @ pull))
        assert reach(jnp.asarray(0.99 * most), *at) < math.inf
        assert reach(jnp.asarray(1e3), *at) == math.inf


# --- robust runs ---


@pytest.mark.parametrize("kappa", [0.5, 2.0])
def test_a_label_takes_its_price_of_an_adversarys_radius(kappa):
    """The transport of an attack, added up example by example, is at most the radius that a lower bound may use."""
    rng = np.random.default_rng(0)
    site, share = np.repeat([0, 1], 4), np.full(8, 0.25)
    y, x = np.where(rng.random(8) < 0.5, -1.0, 1.0), rng.normal(size=(8, 3))
    ball = Ball(fd.losses.hinge, "l2", "everything", False)
    radius = np.array([0.1, 0.4])
    game = Game(ball, x, y, site, share, radius, kappa, np.full(2, 0.5), 0.0, 2, fd.regularizers.Zero())
    turn = rng.random(8)
    at = Attack(turn, np.zeros(8), np.zeros(8), rng.normal(size=(2, 3))).within_radius(game)
    for s in range(2):
        paid = sum(share[i] * at.turn[i] * kappa for i in range(8) if site[i] == s) + np.linalg.norm(at.move[s])
        assert paid <= radius[s] * (1 + 1e-9)
        assert paid == pytest.approx(at.transport(game)[s])


def test_what_an_adversary_has_left_of_its_radius_moves_labels_and_no_more():
    """Where moving labels is cheap, the worst case of pinball loss is the mean loss and max(ε, 1 − ε)·ρ/κ."""
    rng, radius, kappa = np.random.default_rng(0), 0.2, 0.05
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    problem = fd.Problem([(X[:20], y[:20]), (X[20:], y[20:])], loss=fd.losses.pinball(0.3))
    algorithm = fd.DRFL(radius=radius, kappa=kappa, metric="l2")
    run = fd.solve(problem, algorithm)
    w = cp.Variable(2)
    r = X @ w - y
    loss = cp.sum(cp.maximum(-0.3 * r, 0.7 * r)) / 40
    best = cp.Problem(cp.Minimize(loss + radius * 0.7 * cp.maximum(cp.norm2(w), 1 / kappa))).solve(solver=cp.CLARABEL)
    assert np.linalg.norm(w.value) < 1 / kappa
    assert run.worst_case.value - run.worst_case.gap <= best * (1.0 + 1e-6)
    assert run.worst_case.gap <= 1e-4 * best
    idle = [Proposal(0.5, np.zeros((2, 20)), None, np.zeros((1, 2)), None)] * 2
    far = algorithm.stress(problem, np.array([50.0, 0.0]), idle)  # nobody moves a sample, so all moves labels
    assert far.value - far.gap <= best * (1.0 + 1e-6)


# --- sites that do not answer ---


def test_the_servers_h_of_FedDyn_is_the_mean_of_all_sites_h_also_where_some_are_silent():
    """A silent site's h stays, so that the server's falls by the share of those that answered."""
    rng = np.random.default_rng(0)
    sites = [(rng.normal(size=(6, 2)), rng.normal(size=6)) for _ in range(4)]
    problem, algorithm = fd.Problem(sites, loss=fd.losses.least_squares), fd.FedDyn(alpha=0.3)
    terms, w0, key = problem.terms, jnp.ones(2), jax.random.key(0)
    data = [jax.tree.map(lambda a, i=i: a[i], problem.data) for i in range(4)]
    server, states = algorithm.init(terms, w0, None), [algorithm.join(terms, d, w0) for d in data]
    for here in ([0, 1, 2, 3], [1, 3], [0], [2, 3]):
        message = algorithm.broadcast(terms, server, jnp.zeros(4))
        with jax.disable_jit():
            answers = [algorithm.local(terms, states[i], message, data[i], key) for i in here]
        for i, (state, _) in zip(here, answers, strict=True):
            states[i] = state
        present = Present(jnp.asarray(here), jnp.ones(len(here), bool))
        server = algorithm.aggregate(terms, server, jnp.stack([reply for _, reply in answers]), present)
        np.testing.assert_allclose(server.h, np.mean([s.h for s in states], axis=0), atol=1e-12)


def test_a_round_of_FedAvg_with_silent_sites_is_the_mean_of_their_steps_at_the_rate_of_that_round():
    """Against the steps written out in NumPy; the rate falls with the steps of all rounds."""
    rng = np.random.default_rng(0)
    sites = [(rng.normal(size=(6, 2)), rng.normal(size=6)) for _ in range(4)]
    plan = np.array([[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 1, 1]], bool)
    algorithm = fd.FedAvg(k0=2, lr=0.2, decay=3.0, stop=None)
    problem = fd.Problem(sites, loss=fd.losses.least_squares)
    run = fd.solve(problem, algorithm, participation=fd.Schedule(plan), max_rounds=4, w0=np.ones(2))
    w = np.ones(2)
    for k, here in enumerate(plan):
        ends = []
        for x, y in (sites[i] for i in np.flatnonzero(here)):
            u = w
            for j in range(2):
                rate = 0.2 / (1.0 + (2 * k + j) / 3.0)
                u = u - rate * x.T @ (x @ u - y) / len(y)
            ends.append(u)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(run.w, w, atol=1e-12)


# --- caps under noise ---


def test_a_step_that_follows_the_noise_of_a_slope_leaves_room_for_its_optimism():
    """It promises more than it keeps: over draws of the noise by as much as is foreseen, and that is left free."""
    rng, dim, c, noise, kappa = np.random.default_rng(0), 30, -0.02, 0.02, 0.25
    slope = rng.normal(size=dim)
    slope *= 0.3 / np.linalg.norm(slope)
    gradient, known = jnp.asarray(-slope / 6.0), jnp.full((1, 1), 1e-6)

    @jax.jit
    def step_on(a):
        estimate = capped.CapEstimate(jnp.full((1, 1), c), known, a[None, None], jnp.full((1, 1), noise**2))
        step, multipliers, after = capped.careful_step(
            gradient, estimate, 0.95, kappa, jnp.asarray(kappa), jnp.zeros((1, 1))
        )
        return step, multipliers[0, 0], 2.0 * (after.mean[0, 0] - c)

    promised_too_much, foreseen = [], []
    for _ in range(60):
        a = slope + noise * rng.normal(size=dim)
        step, multiplier, optimism = map(np.asarray, step_on(jnp.asarray(a)))
        promised_too_much.append((slope - a) @ step)
        foreseen.append(optimism)
        if multiplier < 0.99 * capped.LARGEST:
            square, change = step @ step, a @ step
            doubt = 1e-6 + noise**2 * square + (capped.RELATIVE * change) ** 2
            # of one row at 97.5 % it is 1.96 deviations, of which the fixed number of repetitions misses some
            margin = 1.7 * math.sqrt(doubt + (capped.UNCERTAIN * kappa * square) ** 2)
            assert c + optimism + change + 0.5 * capped.CURVED * kappa * square + margin <= 0
    assert np.mean(foreseen) == pytest.approx(np.mean(promised_too_much), rel=0.3)


# --- intervals, and rows that are held out ---


def test_the_interval_of_a_skewed_mean_reaches_further_on_the_side_of_its_tail():
    """By as much as Johnson (1978) shifts Student's quantile, beside the allowance for rows that have not shown up."""
    values = np.random.default_rng(0).exponential(size=200) ** 2
    for sign in (1.0, -1.0):
        n, mean, s = len(values), np.mean(sign * values), np.std(values, ddof=1)
        skew = np.mean((sign * values - mean) ** 3) / s**3
        found = intervals.mean(intervals.moments(sign * values))
        q = 1.971956544  # of Student's law with 199 degrees of freedom
        bend = abs(skew) * (1 + 2 * q * q) / (6 * math.sqrt(n)) * s / math.sqrt(n)
        unseen = -math.log(0.05) * np.sum(values**6) ** (1 / 6) / n
        tail, other = (found.high - mean, mean - found.low)[:: int(sign)]
        assert tail == pytest.approx(q * s / math.sqrt(n) + bend + unseen, rel=1e-6)
        assert other == pytest.approx(q * s / math.sqrt(n) + unseen, rel=1e-6)


def test_a_noisy_variance_is_at_least_what_noise_alone_could_have_made():
    """A column that hardly varies, under much noise: what it is divided by must not come from a lucky draw."""
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(50.0, 0.5, size=100), "y": draw.integers(2, size=100).astype(float)}
    table = Table("site", columns, np.arange(100))
    cohort, scales = gather({"a": table, "b": table}, Roles(label="y", positive="1")), []
    for seed in range(30):
        rules = preprocess.fit(cohort, bounds={"x": (0.0, 100.0)}, epsilon=0.2, seed=seed)
        scales.append(rules.columns[0].scale)
    # two releases of ε/2 each: the noise of a sum of squares within (50)², of two sites, over 200 rows
    alone = math.sqrt(2.0 * 2.0) * 50.0**2 / (0.2 / 2) / 200
    assert min(scales) >= math.sqrt(alone)


def table_of(labels: list[str]) -> Table:
    numbers = np.arange(float(len(labels)))
    return Table("site", {"x": numbers, "y": Words.of(labels)}, np.arange(len(labels)))


ROLES = Roles(label="y", positive="yes")


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("yes", [2, 3, 7])
def test_of_every_class_some_rows_are_left_to_train_on(share, yes):
    table = table_of(["yes"] * yes + ["no"] * 20)
    for seed in range(5):
        split = holdout.split(table, ROLES, "a", holdout.Shares(evaluate=share, threshold=share, seed=seed))
        assert set(np.asarray(split.training.columns["y"].codes)) == {0, 1}


def test_under_privacy_what_is_in_a_row_does_not_choose_which_rows_are_held_out():
    blind, seeing = (holdout.Shares(evaluate=0.3, seed=1, by_class=by_class) for by_class in (False, True))
    for seen, same in ((blind, True), (seeing, False)):
        one, other = (
            holdout.split(table_of(labels), ROLES, "a", seen).held_out.numbers.tolist()
            for labels in (["yes"] * 3 + ["no"] * 20, ["no"] * 12 + ["yes"] * 11)
        )
        assert (one == other) == same


def test_labels_that_are_coded_differently_at_most_sites_are_doubted():
    """Names of wards may differ everywhere; a label must mean the same everywhere."""
    codes = {"a": ("case", "control"), "b": ("ill", "well"), "c": ("positive", "negative")}
    tables = {site: table_of([one, other] * 15) for site, (one, other) in codes.items()}
    cohort = gather(tables, Roles(label="y", positive="case"))
    strange = {doubt.site for doubt in doubts(cohort) if doubt.column == "y" and "no other site says" in str(doubt)}
    assert strange == set(codes)


def test_every_line_in_the_list_of_mutants_stands_in_its_file_once():
    for mutant in mutants.mutants():
        assert (mutants.ROOT / mutant.file).read_text().count(mutant.text) == 1, mutant.guarantee
        assert mutant.text != mutant.becomes
