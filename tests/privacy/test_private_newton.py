"""PrivateNewton: sensitivities by hill climbing, its step against an oracle, caps that hold, what is said of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from central_noise import TOTAL as CENTRAL
from halls import Hall
from masked_halls import MaskedHall
from scipy.optimize import minimize

import foedus as fd
from foedus.algorithms import private_newton as site
from foedus.algorithms.private_newton import (
    FORESEEN,
    LARGEST,
    LONGEST,
    CapEstimate,
    joint_margin,
    newton_step,
    pooled_slopes,
    whitening,
)
from foedus.app.report import html
from foedus.certificate.private import BROKEN, KEPT, UNTOLD, PrivateCertificate, PrivateRow
from foedus.federation.policy import Policy
from foedus.privacy.releasing import make_private

LOCAL = fd.Local(epsilon=4.0, delta=1e-5)
DIM, ROWS = 3, 6
LABEL = fd.constraints.LossCap(fd.label(1), at_most=0.4)
OTHER = fd.constraints.LossCap(fd.label(0), at_most=0.9)
GROUP = fd.constraints.LossCap(fd.group(1), at_most=0.5)


def make(clients: int = 5, rows: int = 4000, seed: int = 0, caps=(), cap_clients=None) -> fd.Problem:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(rows, DIM - 1)) * [1.0, 3.0], np.ones(rows)])
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ [1.0, 0.5, -1.0]))).astype(float)
    parts = fd.data.split(x, y, clients=clients, seed=seed)
    return fd.Problem(parts, loss=fd.losses.logistic, constraints=list(caps))


def best(problem: fd.Problem, label: float | None = None, caps: np.ndarray | None = None):
    """The optimum without noise, by SciPy: objective, w and each client's mean loss on the label."""
    data = [problem.client(i) for i in range(problem.terms.clients)]
    rows = [(np.asarray(d.x), np.asarray(d.y)) for d in data]

    def loss(w, x, y):
        return np.logaddexp(0, x @ w) - y * (x @ w)

    def objective(w):
        return float(np.mean([np.mean(loss(w, x, y)) for x, y in rows]))

    def on_label(w):
        return np.array([np.mean(loss(w, x[y == label], y[y == label])) for x, y in rows])

    limits = [] if caps is None else [{"type": "ineq", "fun": lambda w: caps - on_label(w)}]
    found = minimize(
        objective, np.zeros(problem.terms.dim), method="SLSQP", constraints=limits, options={"ftol": 1e-12}
    )
    return found.fun, found.x, on_label(found.x) if label is not None else None


# --- sensitivity ---


def neighbours(rng, trial, best):
    if best is None or trial % 3 == 0:
        size = 10.0 ** rng.integers(-2, 3, size=(ROWS, 1))
        x, y, group = (
            rng.normal(size=(ROWS, DIM)) * size,
            rng.integers(2, size=ROWS) * 1.0,
            rng.integers(2, size=ROWS) * 1.0,
        )
        row = rng.normal(size=DIM) * 10.0 ** rng.integers(-2, 3)
        w, root, labels = rng.normal(size=DIM), np.eye(DIM), (float(rng.integers(2)), float(rng.integers(2)))
    else:
        x, y, group, row, w, root, labels = best
        x, row = x + 0.2 * rng.normal(size=x.shape), row * (1 + 0.3 * rng.normal(size=DIM))
        w, root = w * (1 + 0.3 * rng.normal()), root + 0.1 * rng.normal(size=root.shape)
        labels = labels if rng.random() < 0.7 else (float(rng.integers(2)), float(rng.integers(2)))
    return x, y, group, row, w, root, labels


FUNCTIONS = {
    "moments": ((), "moments", True),
    "gradients alone": ((), "look", True),
    "one cap, in cells": ((LABEL,), "look", True),
    "two caps of one array": ((LABEL, OTHER), "look", True),
    "two caps of two arrays": ((LABEL, GROUP), "look", False),
    "measuring": ((LABEL,), "measure", True),
    "measuring two": ((LABEL, GROUP), "measure", False),
}


@pytest.mark.parametrize("relation", ["replace", "add-or-remove"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_released_moves_no_further_than_its_sensitivity(name, relation):
    """Hill climbing over pairs of neighbours, models and public matrices, in the algorithm's own functions."""
    caps, what, cells = FUNCTIONS[name]
    blank = (np.zeros((ROWS, DIM)), np.arange(ROWS) % 2, np.arange(ROWS) // 2 % 2)
    terms = fd.Problem([blank] * 2, loss=fd.losses.logistic, constraints=list(caps)).terms
    noise = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=0.7, neighbours=relation)
    limits = site.Limits(noise.clip, 1.5, (2.0, 4.0))
    blocks = site.Blocks.of(terms)
    assert blocks.cells == cells
    extra = {f"cap{k}.cap": jnp.full(1, cap.at_most) for k, cap in enumerate(caps)}
    count = jnp.asarray(float(ROWS))

    @jax.jit
    def play(x, y, group, weight, w, root):
        data = fd.Data({"x": x, "y": y, "group": group, "weight": weight, **extra})
        # a row that is left out counts in the divisor, which is a public constant
        data = fd.Data({**data, "weight": weight}) if relation == "replace" else Counted(data, count)
        if what == "moments":
            return site.moments(terms, data, noise, limits.length)
        if what == "look":
            shared, own = site.look(terms, w, root, data, noise, limits, blocks.cells)
            return jnp.concatenate([shared, own.ravel()])
        return site.measure(terms, w, data, noise, limits).ravel()

    bound = {
        "moments": lambda: site.moments_change(terms, noise, limits.length, count),
        "look": lambda: site.look_change(terms, noise, limits, blocks, count, jnp.zeros(DIM), jnp.eye(DIM)),
        "measure": lambda: site.measure_change(terms, noise, count),
    }[what]()
    rng, found, closest = np.random.default_rng(0), None, 0.0
    for trial in range(400):
        x, y, group, row, w, root, labels = pair = neighbours(rng, trial, found)
        weight = np.ones(ROWS)
        first = play(x, y, group, weight, w, root)
        if relation == "replace":
            x, y, group = x.copy(), y.copy(), group.copy()
            x[2], y[2], group[2] = row, *labels
        else:
            weight = weight.copy()
            weight[2] = 0.0
        moved = float(np.linalg.norm(np.asarray(first - play(x, y, group, weight, w, root))))
        assert moved <= float(bound)
        if moved / float(bound) > closest:
            found, closest = pair, moved / float(bound)
    assert closest > 0.45, "a bound that nothing comes near is idle"


class Counted(fd.Data):
    """Data whose number of examples stays a public constant while one row is left out."""

    def __init__(self, data, count):
        super().__init__(data)
        self._count = count

    @property
    def count(self):
        return self._count


def test_a_row_that_is_not_finite_adds_nothing_or_what_the_bound_allows():
    terms = fd.Problem([(np.zeros((2, DIM)), np.array([0, 1]))] * 2, loss=fd.losses.logistic, constraints=[LABEL]).terms
    noise, limits = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=0.7), site.Limits(0.7, 1.5, (2.0, 4.0))
    data = fd.Data({"x": jnp.array([[1e308] * DIM, [1.0] * DIM]), "y": jnp.ones(2), "weight": jnp.ones(2),
                    "cap0.cap": jnp.full(1, 0.4)})  # fmt: skip
    shared, own = site.look(terms, jnp.full(DIM, 1e300), 1e200 * jnp.eye(DIM), data, noise, limits, cells=True)
    assert np.all(np.isfinite(shared))
    assert np.all(np.isfinite(own))
    assert np.linalg.norm(own[0, :-1]) <= 0.7 * (1 + 1e-9)
    assert np.all(np.isfinite(site.moments(terms, data, noise, 1.5)))


# --- the server ---


def test_the_step_is_the_optimum_of_its_model():
    """Against SciPy's SLSQP on the primal problem, from other code and another form."""
    rng, compared = np.random.default_rng(0), 0
    kappa = 2.0  # short steps, so that the longest one is not in the way
    for _ in range(40):
        g, a = rng.normal(size=4), 5.0 * rng.normal(size=(3, 1, 4))
        c = rng.normal(size=(3, 1)) * 0.5 - 0.2
        some = jnp.full((3, 1), 0.01)
        estimate = CapEstimate(jnp.asarray(c), some, jnp.asarray(a), some)
        step, multipliers = newton_step(
            jnp.asarray(g), estimate, estimate.slope, jnp.asarray(1.5), kappa, jnp.asarray(kappa)
        )
        oracle = primal_step(g, a[:, 0], c[:, 0] + 0.15, kappa)
        if not oracle.success or np.linalg.norm(oracle.x) > LONGEST or np.max(multipliers) > 0.9 * LARGEST:
            continue
        np.testing.assert_allclose(step, oracle.x, atol=2e-5)
        assert np.all(np.asarray(multipliers) >= 0)
        compared += 1
    assert compared >= 5


def primal_step(g, a, c, kappa):
    def slack(v):
        return -(c + a @ v + 0.25 * kappa * v @ v)

    rows = {"type": "ineq", "fun": slack}
    return minimize(lambda v: g @ v + 0.5 * kappa * v @ v, np.zeros(4), constraints=rows, options={"ftol": 1e-14})


def test_slopes_are_pooled_by_as_much_as_noise_makes_them_differ():
    """Clients that differ by noise alone share one slope; those that differ by more keep their own."""
    rng, common = np.random.default_rng(1), np.random.default_rng(2).normal(size=30)
    noise = rng.normal(size=(8, 1, 30)) * 0.1
    known = jnp.full((8, 1), 0.01)
    alike = CapEstimate(jnp.zeros((8, 1)), known, jnp.asarray(common + noise), known)
    pooled = pooled_slopes(alike)
    assert np.linalg.norm(pooled.slope[0, 0] - common) < 0.5 * np.linalg.norm(noise[0, 0])
    own = rng.normal(size=(8, 1, 30))
    apart = replace(alike, slope=jnp.asarray(own + noise))
    np.testing.assert_allclose(pooled_slopes(apart).slope, own + noise, atol=0.05)
    np.testing.assert_allclose(jnp.sum(pooled.mixture, axis=1), 1.0, atol=1e-12)
    alone = CapEstimate(jnp.zeros((1, 1)), known[:1], jnp.asarray(own[:1]), known[:1])
    np.testing.assert_allclose(pooled_slopes(alone).slope, own[:1], atol=1e-12)


def test_the_joint_margin_keeps_all_rows_together():
    """Against the normal law's own function, for rows at different distances."""
    from scipy.stats import norm

    for levels in ([-2.6] * 10, [-2.6, -4.0, -9.0], [-2.6]):
        margin = float(joint_margin(jnp.asarray(levels), jnp.asarray(2.6), 0.95))
        chance = float(np.sum(norm.cdf(np.array(levels) + 2.6 - margin)))
        assert chance <= FORESEEN * 0.05 * (1 + 1e-6)
        assert chance >= 0.9 * FORESEEN * 0.05 or margin <= norm.ppf(1 - FORESEEN * 0.05) * (1 + 1e-6)


def test_the_whitening_makes_exact_moments_the_identity():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)) * [1.0, 5.0, 0.2, 2.0]
    gram = x.T @ x / 50
    rows, columns = np.triu_indices(4)
    packed = gram[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))
    root = np.asarray(whitening(jnp.asarray(packed), jnp.zeros(()), 4))
    np.testing.assert_allclose(root.T @ gram @ root, np.eye(4), atol=1e-9)


# --- runs ---


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nine_rounds_reach_the_optimum_but_for_the_noise_and_spend_the_total(secure):
    problem = make()
    privacy = CENTRAL if secure else fd.Local(epsilon=1.0, delta=1e-5)
    run = fd.solve(problem, fd.PrivateNewton(), privacy=privacy, secure=secure)
    assert run.rounds == 9
    assert 0.999 < run.ledger.total(0, "tight") <= 1.0
    assert run.objective < 1.06 * best(problem)[0]
    replaced = run.ledger.total(0, "tight", neighbours="replace")
    assert run.ledger.total(0, "tight", neighbours="add-or-remove") == replaced, "halving is not proved for moments"


@pytest.fixture(scope="module")
def capped():
    """A problem with a cap at every client, 20 % below what the optimum without caps has there; and its optimum."""
    _, _, values = best(make(), label=1.0)
    caps = 0.8 * values
    problem = make(caps=[fd.constraints.LossCap(fd.label(1), at_most=caps.tolist())])
    objective, _, _ = best(problem, 1.0, caps)
    return problem, caps, objective


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_caps_hold_on_the_rows_and_the_certificate_tells_what_it_can(capped, secure, tmp_path):
    problem, caps, objective = capped
    privacy = replace(CENTRAL, epsilon=4.0) if secure else LOCAL
    run = fd.solve(problem, fd.PrivateNewton(), privacy=privacy, secure=secure)
    private = run.certificate.private
    assert 3.999 < run.ledger.total(0, "tight") <= 4.0
    assert run.certificate.feasibility == 0 if not secure else all(c.kept == c.sites for c in run.certificate.counts)
    assert run.objective < 1.25 * objective
    assert len(private.rows) == 5
    for row, cap in zip(private.rows, caps, strict=True):
        assert row.cap == pytest.approx(cap)
        assert row.low < row.excess < row.high
        assert row.value_low < row.value < row.value_high
        assert row.standing in (KEPT, UNTOLD)
    for text in (str(run), str(private)):
        assert "kept (95 %)" in text or "cannot be told at this epsilon" in text
        assert "part of the total" in text
    again = fd.load(run.save(tmp_path / "run"))
    assert again.certificate.private == private
    caps = html.page({"run": again}, {}).partition('id="caps"')[2].partition("</section>")[0]
    assert sum(caps.count(f" {verdict}</span>") for verdict in {private.verdict(row) for row in private.rows}) == 5


def test_a_capped_problem_with_a_total_and_no_algorithm_gets_this_one(capped):
    run = fd.solve(capped[0], privacy=LOCAL)
    assert run.settings["algorithm"]["name"] == "PrivateNewton"
    assert run.rounds == 18
    assert run.certificate.private is not None


@pytest.mark.slow
def test_intervals_cover_the_truth_and_no_verdict_is_wrong_too_often(capped):
    problem, caps, _ = capped
    covered, wrong, rows = 0, 0, 0
    for seed in range(40):
        run = fd.solve(problem, fd.PrivateNewton(), privacy=LOCAL, seed=seed)
        for i, row in enumerate(run.certificate.private.rows):
            data = problem.client(i)
            x, y = np.asarray(data.x), np.asarray(data.y)
            losses = np.logaddexp(0, x @ run.w) - y * (x @ run.w)
            truth = np.mean((y == 1) * (np.minimum(losses, 2 + 4 * caps[i]) - caps[i]))
            covered += row.low <= truth <= row.high
            wrong += (row.standing == KEPT and truth > 0) or (row.standing == BROKEN and truth <= 0)
            rows += 1
    assert covered >= 0.91 * rows  # 95 % of 200, less 2.6 standard deviations
    assert wrong <= 0.05 * rows


def test_verdicts_follow_from_intervals():
    def row(low, high):
        return PrivateRow("a", "loss", 0.5, 0.5 * (low + high), 0.1, low, high, 0.4, 0.3, 0.5, 0.0)

    rows = (row(-0.2, -0.1), row(0.1, 0.2), row(-0.1, 0.1), row(-np.inf, np.inf))
    certificate = PrivateCertificate(rows, 0.95, 0.5, 1e-5, 4.0)
    words = [certificate.verdict(r) for r in rows]
    assert words == ["kept (95 %)", "broken (95 %)", UNTOLD, UNTOLD]
    assert not certificate.holds


def loss_of_all(data):
    return data.y >= jnp.mean(data.y)


@pytest.mark.parametrize(
    ("make_run", "words"),
    [
        (lambda: fd.solve(make(), fd.PrivateNewton()), "give solve privacy="),
        (lambda: fd.solve(make(), fd.PrivateNewton(), privacy=fd.Local(epsilon=1.0)), "delta > 0"),
        (lambda: capped_by(fd.constraints.LossCap(fd.label(1), 0.5, scope="coupled")), "use scope='local'"),
        (lambda: capped_by(fd.constraints.LossCap(fd.label(1), 0.5, kind="==")), "LossCap(..., kind='<=') alone"),
        (lambda: capped_by(fd.constraints.LossGap(fd.label(1), fd.label(0), 0.5)), "in LossGap"),
        (lambda: capped_by(fd.constraints.NormBall(2.0)), "in NormBall"),
        (lambda: capped_by(fd.constraints.LossCap(loss_of_all, 0.5)), "fd.label(v) or fd.group(v)"),
        (lambda: capped_by(fd.constraints.LossCap(fd.label(1), 0.5, loss=fd.losses.least_squares)), "own loss"),
        (lambda: fd.solve(make(caps=[LABEL]), fd.PrivateNewton(rounds=2), privacy=LOCAL, max_rounds=2), "3 rounds"),
        (lambda: fd.solve(make(caps=[LABEL]), fd.ProxAL(), privacy=LOCAL), "no private form"),
        (lambda: fd.solve(make(caps=[LABEL]), fd.FedAvg(k0=1), privacy=LOCAL), "does not handle constraints"),
        (
            lambda: fd.solve(make(), fd.PrivateNewton(), privacy=replace(CENTRAL, epsilon=1e-4), secure=True),
            "too small",
        ),
        (lambda: fd.PrivateNewton(confidence=1.0), "'confidence' setting of PrivateNewton"),
    ],
)
def test_what_has_no_proof_is_refused_in_a_sentence(make_run, words):
    with pytest.raises(fd.FoedusError) as caught:
        make_run()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def capped_by(constraint):
    return fd.solve(make(caps=[constraint]), fd.PrivateNewton(), privacy=LOCAL)


# --- at sites ---


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sites_charge_every_release_and_the_server_gets_a_private_certificate(secure, tmp_path):
    problem = make(caps=[LABEL])
    privacy = replace(CENTRAL if secure else LOCAL, epsilon=4.0, sampler="opendp")
    algorithm = make_private(fd.PrivateNewton(rounds=4), privacy, None, problem, 4)
    policy = Policy(max_epsilon=4.0, min_subset=1, min_sites=1)
    hall = (MaskedHall if secure else Hall)(tmp_path, problem, algorithm, max_rounds=4, policy=policy)
    result = hall.play()
    assert len(result.conclusion.certificate.private.rows) == 5
    assert result.conclusion.certificate.silent
    for name in hall.sites:
        ledger = hall.site[name].gate.ledger
        assert len(ledger.lines) == 4
        assert 3.999 < ledger.total(1e-5) <= 4.0
