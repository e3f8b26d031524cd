"""Losses against plain formulas, their derivatives against finite differences."""

import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import properties
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import foedus as fd
from foedus.problem.losses import as_loss

CLASSIFICATION = ("logistic", "probit", "cloglog", "hinge", "smooth_hinge")
EXPONENTIAL = ("poisson", "cloglog", "gamma", "negative_binomial", "tweedie")  # losses that hold e^z
SETTINGS = {
    "negative_binomial": (0.5,),
    "tweedie": (1.4,),
    "huber": (0.3, 1.5),
    "epsilon_insensitive": (0.0, 0.4),
    "pinball": (0.0, 0.2, 0.5, 1.0),
}
PLAIN = [name for name in oracles.LOSSES if name not in SETTINGS]
EVERY = [(name, ()) for name in PLAIN] + [(name, (eps,)) for name, values in SETTINGS.items() for eps in values]
SMOOTH = [(name, eps) for name, eps in EVERY if name in ("least_squares", "logistic", "smooth_hinge", "huber")]

# quarters, so that kinks and ties are met exactly; never so large that a difference quotient loses its digits
quarters = st.lists(st.integers(-40, 40), min_size=8, max_size=8).map(lambda v: np.array(v) / 4.0)


def made(name: str, eps: tuple[float, ...]) -> fd.losses.Loss:
    loss = getattr(fd.losses, name)
    return loss(*eps) if eps else loss


def targets(name: str, y: np.ndarray) -> np.ndarray:
    if name in CLASSIFICATION:
        return np.where(y > 0, 1.0, -1.0)
    return np.abs(y) + 0.25 if name in EXPONENTIAL else y


def scores(name: str, z: np.ndarray) -> np.ndarray:
    """Scores whose exponential is a number of usual size."""
    return z / 4.0 if name in EXPONENTIAL else z


@pytest.mark.parametrize(("name", "eps"), EVERY)
@properties
@given(z=quarters, y=quarters)
def test_value_is_the_formula(name, eps, z, y):
    z, y = scores(name, z), targets(name, y)
    np.testing.assert_allclose(made(name, eps).value(z, y), oracles.LOSSES[name](z, y, *eps), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("name", "eps"), EVERY)
@properties
@given(z=quarters, y=quarters)
def test_slope_is_the_difference_quotient(name, eps, z, y):
    # an eighth and a bit away from the quarters on which the kinks may lie
    z, y = scores(name, z + 0.1403), targets(name, y)
    expected = oracles.central_difference(lambda s: oracles.LOSSES[name](s, y, *eps), z)
    np.testing.assert_allclose(
        made(name, eps).slope(z, y), expected, rtol=1e-6, atol=1e-7 * (1 + np.abs(expected).max())
    )


@pytest.mark.parametrize(("name", "eps"), SMOOTH)
@properties
@given(z=quarters, y=quarters)
def test_bend_is_the_difference_quotient_of_the_slope(name, eps, z, y):
    z, y = z + 0.1403, targets(name, y)
    loss = made(name, eps)
    bend = np.asarray(loss.bend(z, y))
    np.testing.assert_allclose(bend, oracles.central_difference(lambda s: np.asarray(loss.slope(s, y)), z), atol=1e-6)
    assert loss.curvature is not None
    assert np.all(np.abs(bend) <= loss.curvature * (1 + 1e-12))


@pytest.mark.parametrize(("name", "eps"), SMOOTH)
def test_the_slope_of_a_smooth_loss_is_continuous_at_its_joints(name, eps):
    joints = np.array([0.0, 1.0, -1.0, *eps, *(-e for e in eps)])
    loss, y = made(name, eps), np.ones(len(joints)) if name in CLASSIFICATION else np.zeros(len(joints))
    for shift in (-1e-9, 1e-9):
        np.testing.assert_allclose(loss.slope(joints + shift, y), loss.slope(joints, y), atol=2e-9)


@pytest.mark.parametrize(("name", "eps"), EVERY)
@properties
@given(a=quarters, b=quarters, y=quarters, part=st.floats(0, 1))
def test_losses_declared_convex_are(name, eps, a, b, y, part):
    loss, y = made(name, eps), targets(name, y)
    a, b = scores(name, a), scores(name, b)
    assert loss.convex
    chord = part * np.asarray(loss.value(a, y)) + (1 - part) * np.asarray(loss.value(b, y))
    assert np.all(loss.value(part * a + (1 - part) * b, y) <= chord + 1e-12 * (1 + np.abs(chord)))


LIKELIHOODS = [(n, e) for n, e in EVERY if made(n, e).likelihood]


@pytest.mark.parametrize(("name", "eps"), LIKELIHOODS)
def test_the_slope_and_the_bend_of_a_likelihood_are_right_far_out(name, eps):
    """Close to the limits of a score a formula must not lose its digits; `slope` is differentiated by JAX."""
    loss = made(name, eps)
    z = np.array([-30.0, -26.0, -24.0, -8.0, -1e-9, 0.0, 3.0, 5.5, 30.0])
    z = z if name not in EXPONENTIAL else np.clip(z, -30.0, 3.0)
    for y in (np.zeros(9), np.ones(9)) if name != "gamma" else (np.ones(9),):
        own, plain = loss.slope(z, y), fd.losses.Loss.slope(loss, z, y)
        np.testing.assert_allclose(own, plain, rtol=1e-9, atol=1e-13)
        own, plain = np.asarray(loss.bend(z, y)), fd.losses.Loss.bend(loss, z, y)
        np.testing.assert_allclose(own, plain, rtol=1e-7, atol=1e-11)
        assert np.all(own >= 0)


@pytest.mark.parametrize(("name", "eps"), LIKELIHOODS)
def test_information_is_the_second_derivative_on_average(name, eps):
    loss, z, draw = made(name, eps), np.full(400_000, 0.4), np.random.default_rng(0)
    mean = np.exp(0.4)
    y = {
        "least_squares": lambda: z + draw.normal(size=z.size),
        "poisson": lambda: draw.poisson(mean, z.size),
        "gamma": lambda: draw.gamma(3.0, mean / 3.0, z.size),
        "negative_binomial": lambda: draw.poisson(mean * draw.gamma(2.0, 0.5, z.size)),
        "tweedie": lambda: draw.gamma(2.0, 0.5, z.size) * draw.binomial(1, 0.6, z.size) * mean / 0.6,
    }.get(name, lambda: draw.random(z.size) < np.asarray(loss.probability(z)))()  # fmt: skip
    expected = float(np.mean(np.asarray(loss.bend(z, np.asarray(y, dtype=float)))))
    assert float(loss.information(z, z)[0]) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", CLASSIFICATION)
@properties
@given(z=quarters, y=quarters)
def test_labels_of_both_kinds_mean_the_same(name, z, y):
    loss = getattr(fd.losses, name)
    zero_one, signed = (y > 0).astype(float), np.where(y > 0, 1.0, -1.0)
    for part in (loss.value, loss.slope, loss.bend):
        np.testing.assert_array_equal(part(z, zero_one), part(z, signed))


def test_logistic_stays_finite_far_out():
    z, y = np.array([1000.0, 1000.0, -1000.0, -1000.0]), np.array([1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(fd.losses.logistic.value(z, y), [0.0, 1000.0, 1000.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(fd.losses.logistic.slope(z, y), [0.0, 1.0, -1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(fd.losses.logistic.bend(z, y), np.zeros(4), atol=1e-12)


def test_a_users_own_function_is_a_loss():
    def cauchy(z, y):
        return fd.losses.jnp.log1p((z - y) ** 2)

    loss, z = as_loss(cauchy), np.array([0.3, -1.2])
    np.testing.assert_allclose(loss.slope(z, 0 * z), 2 * z / (1 + z**2))
    assert loss.name == "cauchy"
    assert as_loss(cauchy) is loss, "one function is one loss, so that its programs are compiled once"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fd.losses.huber(0.0), r"'eps' parameter of huber must be > 0\. Got 0\.0"),
        (lambda: fd.losses.huber(float("nan")), "Got nan"),
        (lambda: fd.losses.epsilon_insensitive(-0.1), r"must be >= 0\. Got -0\.1"),
        (lambda: fd.losses.pinball(1.2), r"must be in \[0, 1\]\. Got 1\.2"),
        (lambda: fd.losses.huber("wide"), "'eps' parameter of huber must be > 0. Got 'wide'"),
        (lambda: as_loss(fd.losses.huber), r"losses\.huber needs its eps"),
        (lambda: as_loss(fd.losses.tweedie), r"losses\.tweedie needs its power"),
        (lambda: fd.losses.negative_binomial(0.0), r"'alpha' parameter of negative_binomial must be > 0"),
        (lambda: fd.losses.tweedie(2.0), "must be between 1 and 2"),
        (lambda: as_loss("logistic"), "Got 'logistic'"),
        (lambda: as_loss(fd.losses.Logistic), "Logistic"),
    ],
)
def test_a_wrong_loss_gets_a_sentence(make, words):
    with pytest.raises(fd.FoedusError, match=words):
        make()


def counts() -> tuple[list, np.ndarray, float]:
    """Sites with counts, and SciPy's answer."""
    rng = np.random.default_rng(0)
    sites = []
    for rows in (30, 40, 25):
        X = rng.normal(size=(rows, 3))
        sites.append((X, rng.poisson(np.exp(X @ [0.5, -0.3, 0.2])).astype(float)))

    def mean(part):
        return lambda w: np.mean([part(w, X, y) for X, y in sites], axis=0)

    value = mean(lambda w, X, y: np.mean(np.exp(X @ w) - y * (X @ w)))
    found = minimize(value, np.zeros(3), jac=mean(lambda w, X, y: X.T @ (np.exp(X @ w) - y) / len(y)), tol=1e-9)
    return sites, found.x, found.fun


SLOW = [fd.ProxAL(), fd.CentralProxAL(), fd.InexactADMM(), fd.FedPD(), fd.FedDyn(), fd.FedAvg(k0=1), fd.FedProx()]


@pytest.mark.parametrize(
    "algorithm",
    [
        None,
        fd.FedGiA(),
        *(pytest.param(a, marks=pytest.mark.slow) for a in (*SLOW, fd.Scaffold(), fd.LocalSGD(lr=0.1))),
    ],
    ids=lambda a: type(a).__name__,
)
def test_a_smooth_loss_without_a_bound_on_its_curvature_is_taken(algorithm):
    """Counts: e^z has no bound on its curvature. LocalSGD and FedProx end near the optimum, the others at it."""
    sites, best, least = counts()
    problem = fd.Problem(sites, loss=fd.losses.poisson)
    run = fd.solve(problem, algorithm, seed=0) if algorithm else fd.solve(problem)
    near = isinstance(algorithm, fd.LocalSGD | fd.FedProx)
    np.testing.assert_allclose(run.w, best, atol=0.1 if near else 1e-3)
    assert run.objective - least <= (1e-2 if near else 1e-6)
    if algorithm is None:
        assert run.settings["algorithm"]["name"] == "InteriorPoint"
        assert run.certificate.holds(1e-6, 1e-6)


def test_counts_below_zero_are_refused_and_answers_are_numbers_such_as_they():
    sites = {"north": (np.eye(2), np.array([1.0, -2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
    with pytest.raises(fd.FoedusError, match=r"'north': y has the value -2 at row 1; Poisson expects numbers >= 0"):
        fd.Problem(sites, loss=fd.losses.poisson)
    sites, best, _ = counts()
    problem = fd.Problem(sites, loss=fd.losses.poisson)
    run = fd.solve(problem)
    np.testing.assert_allclose(run.predict(sites[0][0]), np.exp(sites[0][0] @ best), rtol=1e-3)
    mae = fd.evaluate(problem, run.w, sites).overall["mae"].value
    assert mae == pytest.approx(np.mean(np.abs(np.concatenate([y - np.exp(X @ best) for X, y in sites]))), rel=1e-3)


def test_a_cap_takes_such_a_loss_too():
    sites, best, _ = counts()
    X, y = sites[2]
    free = float(np.mean(np.exp(X @ best) - y * (X @ best)))
    cap = fd.constraints.LossCap(lambda data: data["weight"] > 0, at_most={"c": free - 0.02, "a": 9.0, "b": 9.0})
    problem = fd.Problem(dict(zip("abc", sites, strict=True)), loss=fd.losses.poisson, constraints=[cap])
    run = fd.solve(problem)
    assert run.certificate.holds(1e-6, 1e-6)
    assert np.mean(np.exp(X @ run.w) - y * (X @ run.w)) == pytest.approx(free - 0.02, abs=1e-6)


@pytest.mark.parametrize("algorithm", [fd.InteriorPoint(), fd.ProxAL(), fd.FedAvg(), fd.FedGiA()])
def test_a_loss_that_is_declared_to_have_kinks_is_refused_where_second_derivatives_are_needed(algorithm):
    kinked = type("Absolute", (fd.losses.Loss,), {"smooth": False, "value": lambda self, z, y: jnp.abs(z - y)})()
    with pytest.raises(fd.FoedusError, match="the loss Absolute has kinks"):
        fd.solve(fd.Problem(counts()[0], loss=kinked), algorithm)
