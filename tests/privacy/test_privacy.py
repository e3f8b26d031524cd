"""Noise, clipping and sensitivity: neighbouring data sets never move a release further than the recorded bound."""

import dataclasses
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIM, NAMES, SIZES, private, problem, regression

import foedus as fd
from foedus.privacy.clipping import clipped_gradient, condense
from foedus.privacy.noise import gaussian_multiplier
from foedus.runtime.spine import message_for
from foedus_lab.audit import releases

ROWS, ROUNDS = 6, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuietLaplace(fd.Laplace):
    """Laplace noise that is accounted for and not drawn."""

    def release(self, value, scale, key):
        return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuietGaussian(fd.Gaussian):
    def release(self, value, scale, key):
        return value


def quiet(order: int, **more):
    if order == 1:
        return QuietLaplace(epsilon=1.0, clip=0.7, **more)
    return QuietGaussian(epsilon=1.0, delta=1e-5, clip=0.7, **more)


def example(rng, kind: str):
    """A row and its label: ordinary, huge, tiny or zero."""
    size = {"usual": 1.0, "huge": 1e3, "tiny": 1e-3, "none": 0.0}[kind]
    return size * rng.normal(size=DIM), float(rng.integers(2))


MECHANISMS = {
    "FedEPM carried": lambda n: fd.FedEPM(k0=3, rho=1.0, eta=0.3, lam=0.05, mu0=0.8, per_example=False, noise=n),
    "FedEPM as released": lambda n: fd.FedEPM(k0=3, rho=1.0, mu0=0.05, noise=n),
    "FedEPM by default": lambda n: fd.FedEPM(k0=3, rho=1.0, noise=n),
    "FedEPM restart": lambda n: fd.FedEPM(k0=3, rho=1.0, eta=0.3, mu0=4.0, restart=True, noise=n),
    "SFedAvg": lambda n: fd.SFedAvg(k0=3, rho=1.0, lr=0.9, noise=replace(n, rows=1.5)),
    "SFedAvg, long steps": lambda n: fd.SFedAvg(k0=3, rho=1.0, lr=9.0, noise=replace(n, rows=1.5)),
    "SFedProx": lambda n: fd.SFedProx(k0=2, steps=2, mu=0.2, rho=1.0, lr=0.9, noise=replace(n, rows=1.5)),
    "FedAvg": lambda n: private(fd.FedAvg(k0=3), replace(n, rows=1.5)),
    "FedAvg, one step": lambda n: private(fd.FedAvg(k0=1, lr=0.9), n),
    "FedProx": lambda n: private(fd.FedProx(k0=2, steps=2, mu=0.2, lr=0.9), replace(n, rows=1.5)),
    "FedGiA": lambda n: private(fd.FedGiA(k0=3, alpha=0.5, t=0.4), replace(n, rows=1.5)),
}


def compiled(name: str, order: int, neighbours: str, penalty=None, loss=fd.losses.logistic):
    """What a client sends without noise, and the sensitivity it records, over ROUNDS rounds, for given messages."""
    blank = fd.Problem([(np.zeros((ROWS, DIM)), np.zeros(ROWS))] * 3, loss=loss, penalty=penalty)
    terms = blank.terms
    algorithm = MECHANISMS[name](quiet(order, neighbours=neighbours))
    algorithm = algorithm.fit(blank).algorithm

    @jax.jit
    def play(x, y, messages, draws):
        data = fd.Data({"x": x, "y": y, "weight": jnp.ones(ROWS)})
        server = algorithm.init(terms, messages[0], None)

        def step(client, at):
            w, t = at
            message = message_for(algorithm.broadcast(terms, replace(server, w=w, round=t), draws[t]), 0)
            client, reply = algorithm.local(terms, client, message, data, jax.random.key(0))
            return client, (reply.z, client.spent.sensitivity)

        first = algorithm.join(terms, data, messages[0])
        return jax.lax.scan(step, first, (messages, jnp.arange(ROUNDS)))[1]

    return play


# as the bounds are one formula in both norms but for gradient steps, the second norm is tried on some only
IN_BOTH_NORMS = ("FedEPM carried", "SFedAvg", "FedAvg", "FedGiA")
NO_NEARER = {"SFedAvg, long steps": 0.01}  # steps beyond 2/curvature make the bound grow from step to step


HALVED = ("FedEPM carried", "FedGiA")
LONG = ("FedEPM as released", "FedEPM by default", "SFedAvg, long steps", "SFedProx", "FedAvg")


@pytest.mark.parametrize(
    ("name", "order"),
    [pytest.param(name, 1, marks=[pytest.mark.slow] if name in LONG else []) for name in MECHANISMS]
    + [pytest.param(name, 2, marks=[pytest.mark.slow] if name in LONG else []) for name in IN_BOTH_NORMS],
)
def test_a_release_moves_no_further_than_its_sensitivity(name, order):
    """The real algorithm on neighbours, without noise and with the same messages, whatever they are."""
    play = compiled(name, order, "replace", penalty=fd.penalties.Ridge(0.3))
    halved = compiled(name, order, "add-or-remove", penalty=fd.penalties.Ridge(0.3)) if name in HALVED else None
    rng = np.random.default_rng(0)
    closest = 0.0
    for trial in range(60):
        kinds = rng.choice(["usual", "huge", "tiny", "none"], size=ROWS)
        rows = [example(rng, kind) for kind in kinds]
        x, y = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
        other_x, other_y = x.copy(), y.copy()
        j = rng.integers(ROWS)
        if trial % 3 == 0:  # the same row, the other label: gradients of opposite sign
            other_y[j] = 1.0 - y[j]
        elif trial % 3 == 1:
            other_x[j], other_y[j] = example(rng, "huge")
        else:
            other_x[j] = 0.0  # an example without a gradient: as if it had been removed
        messages = rng.normal(size=(ROUNDS, DIM)) * 10.0 ** rng.integers(-2, 2)
        draws = rng.random((ROUNDS, 3))
        z, bound = play(x, y, messages, draws)
        other, same = play(other_x, other_y, messages, draws)
        np.testing.assert_array_equal(bound, same)  # the bound is no function of the data
        moved = np.linalg.norm(np.asarray(z - other), ord=order, axis=1)
        assert np.all(moved <= np.asarray(bound) * (1 + 1e-9) + 1e-12)
        closest = max(closest, float(np.max(moved / bound)))
        if trial % 3 == 2 and halved is not None:
            _, half = halved(x, y, messages, draws)
            np.testing.assert_allclose(half, np.asarray(bound) / 2, rtol=1e-7)  # but for the allowance for rounding
            assert np.all(moved <= np.asarray(half) * (1 + 1e-9) + 1e-12)
    near = NO_NEARER.get(name, 0.5 if "FedEPM" in name or "one step" in name else 0.05)
    assert closest > near, "a bound that nothing comes near is idle"


def test_the_carried_state_of_fedepm_grows_as_the_recursion_says_and_restart_does_not():
    noise = fd.Laplace(epsilon=0.5, clip=1.0)
    for restart in (False, True):
        algorithm = fd.FedEPM(k0=2, rho=1.0, eta=0.1, mu0=2.0, per_example=False, restart=restart, noise=noise)
        run = fd.solve(problem("logistic"), algorithm, max_rounds=3)
        delta, expected = 0.0, []
        for k in range(6):
            mu = 2.0 * 1.001 ** (k + 1)
            delta = (mu * (0.0 if restart and k % 2 == 0 else delta) + 2.0 / SIZES[0]) / (0.1 + mu)
            expected.append(delta)
        np.testing.assert_allclose(run.ledger.sensitivity[:, 0], expected[1::2], rtol=1e-8)
        np.testing.assert_allclose(run.ledger.scale, run.ledger.sensitivity / 0.5, rtol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [
        fd.FedEPM(rho=1.0, restart=True, noise=fd.Laplace(epsilon=0.5, clip=1.0)),
        pytest.param(fd.FedEPM(rho=1.0, noise=fd.Laplace(epsilon=50.0, clip=1.0)), marks=pytest.mark.slow),
        pytest.param(fd.SFedAvg(k0=1, rho=1.0, noise=fd.Laplace(epsilon=0.5, clip=1.0)), marks=pytest.mark.slow),
        pytest.param(fd.SFedProx(k0=2, noise=fd.Laplace(epsilon=50.0, clip=1.0, rows=3.0)), marks=pytest.mark.slow),
    ],
    ids=["restart", "carried", "SFedAvg", "SFedProx"],
)
def test_by_default_steps_do_not_grow_without_bound(algorithm):
    """The penalty is not clipped, so that steps longer than 2/L would multiply w in every round."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(360, 6))
    y = (X @ rng.normal(size=6) + rng.normal(size=360) > 0).astype(float)
    made = fd.Problem(fd.data.split(X, y, clients=6), loss=fd.losses.logistic, penalty=fd.penalties.Ridge(1.0))
    run = fd.solve(made, algorithm, max_rounds=60)
    assert run.objective < np.log(2.0) + 0.05, "no worse than having learnt nothing"


@pytest.mark.parametrize("order", [1, 2])
def test_clipping_is_exact_for_linear_models_and_the_same_for_an_own_objective(order):
    noise = quiet(order)
    X, y = regression()["c"]
    w = jnp.array([0.4, -0.3, 0.2, 0.1])
    each = (X @ np.asarray(w) - y)[:, None] * X
    each *= np.minimum(1.0, noise.clip / np.linalg.norm(each, ord=order, axis=1, keepdims=True))
    linear = fd.Problem([(X, y)], loss=fd.losses.least_squares)
    own = fd.Problem([(X, y)], objective=lambda w, data: data.mean(0.5 * (data.x @ w - data.y) ** 2)).over(
        np.zeros(DIM)
    )
    for made in (linear, own):
        np.testing.assert_allclose(
            clipped_gradient(made.terms, w, made.client(0), noise), each.mean(axis=0), atol=1e-14
        )


@pytest.mark.parametrize(("order", "rows"), [(1, None), (1, 0.6), (2, 0.6)])
def test_what_is_computed_once_for_all_rounds_changes_nothing(order, rows):
    noise = quiet(order, rows=rows)
    made = fd.Problem([regression()["c"]], loss=fd.losses.least_squares)
    data, w = made.client(0), jnp.array([0.4, -0.3, 0.2, 0.1])
    short = condense(made.terms, data, noise)
    np.testing.assert_allclose(
        clipped_gradient(made.terms, w, short, noise), clipped_gradient(made.terms, w, data, noise), rtol=1e-12
    )
    if rows is not None:
        assert (
            np.max(np.linalg.norm(short["x"], axis=1)) <= rows * (1 + 1e-12) < np.max(np.linalg.norm(data["x"], axis=1))
        )


def test_examples_without_a_finite_gradient_keep_within_the_bound():
    noise = quiet(1)
    made = fd.Problem([(np.full((2, 2), 1e200), np.zeros(2))], loss=fd.losses.least_squares)
    g = clipped_gradient(made.terms, jnp.full(2, 1e200), made.client(0), noise)
    assert np.sum(np.abs(g)) <= noise.clip * (1 + 1e-12)


def test_with_sound_noise_nothing_but_the_noisy_parameters_is_sent():
    for algorithm in (
        fd.FedEPM(noise=fd.Laplace(epsilon=0.5, clip=1.0)),
        private(fd.FedAvg(lr=0.1), fd.Laplace(epsilon=0.5, clip=1.0, rows=2.0)),
        private(fd.FedGiA(), fd.Laplace(epsilon=0.5, clip=1.0, rows=2.0)),
    ):
        run = fd.solve(problem("logistic"), algorithm, max_rounds=3)
        assert set(run.history) == {"phase", "asked", "answered", "bytes_up", "bytes_down"}
        assert np.all(run.history["bytes_up"] == len(NAMES) * (8 * DIM + 1))  # z and one bit that says it is new
        assert "outside the protocol" in str(run)


@pytest.mark.parametrize("noise", [fd.Laplace(epsilon=0.5, clip=1.0), fd.Gaussian(epsilon=0.5, delta=1e-5, clip=1.0)])
def test_the_noise_drawn_has_the_scale_that_is_recorded(noise):
    """Examples without a gradient keep a client at 0, so that what it sends is its noise."""
    blank = fd.Problem([(np.zeros((ROWS, DIM)), np.zeros(ROWS))] * 3, loss=fd.losses.logistic)
    sent = releases(
        blank, private(fd.FedAvg(k0=1, lr=1.0), noise), np.zeros((1, DIM)), jax.random.split(jax.random.key(0), 4000)
    )
    scale = noise.multiplier * 2.0 / ROWS
    expected = scale if noise.order == 1 else scale * np.sqrt(2 / np.pi)
    assert np.mean(np.abs(sent)) == pytest.approx(expected, rel=0.03)
    run = fd.solve(problem("logistic"), fd.FedAvg(k0=1, lr=1.0), privacy=noise, max_rounds=1)
    np.testing.assert_allclose(run.ledger.scale[0], noise.multiplier * 2.0 / np.array(SIZES), rtol=1e-8)


def test_gaussian_noise_is_calibrated_to_the_exact_curve():
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-6), (8.0, 1e-3)):
        sigma = gaussian_multiplier(epsilon, delta)
        found = PLDAccountant().compose(GaussianDpEvent(sigma)).get_epsilon(delta)
        assert found == pytest.approx(epsilon, rel=2e-3)


def test_the_papers_noise_is_eq_39():
    noise, g, mu = fd.PaperLaplace(0.1), jnp.array([0.3, -0.2, 0.0]), 0.05
    draws = jax.vmap(lambda key: noise.draw(key, g, mu))(jax.random.split(jax.random.key(0), 20000))
    assert np.mean(np.abs(draws)) == pytest.approx(2 * 0.5 / (0.1 * 0.05), rel=0.02)
    sums = np.sum(fd.PaperLaplace(0.1, standardised=True).draw(jax.random.key(0), g, mu))
    assert abs(sums) < 1e-9, "the released draw is centred"
    run = fd.solve(problem("logistic"), fd.FedEPM(noise=noise), max_rounds=2)
    assert str(run).count("no formal guarantee") == 1
    assert "no formal guarantee" in str(run.ledger)
    with pytest.raises(fd.FoedusError, match="no formal guarantee"):
        run.ledger.total(0)


def own(params, data):
    return jnp.sum(params**2) + data.mean((data.x @ params - data.y) ** 2)


def not_a_mean(params, data):
    return data.mean((data.x @ params - data.y) ** 2) ** 2


LAPLACE = fd.Laplace(epsilon=0.5, clip=1.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fd.Laplace(epsilon=0, clip=1.0), "'epsilon' of Laplace must be a number > 0"),
        (lambda: fd.Laplace(epsilon=1.0, clip=-1.0), "'clip' of Laplace"),
        (lambda: fd.Laplace(epsilon=1.0, clip=1.0, neighbours="any"), "'replace' or 'add-or-remove'"),
        (lambda: fd.Laplace(epsilon=1.0, clip=1.0, most=-1), "'most' of Laplace"),
        (lambda: fd.Gaussian(epsilon=1.0, clip=1.0, delta=2.0), "'delta' of Gaussian must be a number > 0 and < 1"),
        (lambda: fd.solve(problem(), fd.FedAvg(), privacy=0.5), "'privacy' argument"),
        (lambda: fd.solve(problem(), fd.FedAvg(), budget=8.0), "privacy= to spend it on"),
        (lambda: fd.solve(problem(), fd.FedEPM(noise=LAPLACE), privacy=LAPLACE), "not both"),
        (lambda: fd.solve(problem(), fd.FedAvg(), privacy=fd.PaperLaplace(0.1)), "use Laplace or Gaussian"),
        (lambda: fd.solve(problem(), fd.FedEPM(noise=fd.PaperLaplace(0.1)), budget=8.0), "has none"),
        (lambda: fd.solve(problem(), fd.FedEPM(stop="released", noise=LAPLACE)), "use stop=None"),
        (lambda: fd.solve(problem(), fd.FedAvg(), privacy=LAPLACE), "rows=..."),
        (
            lambda: fd.solve(
                fd.Problem(regression(), objective=own), fd.FedAvg(k0=1), privacy=LAPLACE, w0=np.zeros(DIM)
            ),
            "Lipschitz constants, which are private",
        ),
        (lambda: fd.solve(problem(), fd.FedGiA(H="gram"), privacy=LAPLACE), "H='diagonal'"),
        (lambda: fd.solve(problem(), fd.FedGiA(), privacy=LAPLACE), "rows=..."),
        (lambda: fd.solve(problem(), fd.ProxAL(), privacy=LAPLACE), "value, gradient and Hessian"),
        (lambda: fd.solve(problem(), fd.ProxAL(inner="lbfgs"), privacy=LAPLACE), "how far its multipliers moved"),
        (lambda: fd.solve(problem(), fd.Scaffold(), privacy=LAPLACE), "control variate"),
        (lambda: fd.solve(problem(), fd.FedPD(), privacy=LAPLACE), "no private form"),
        (lambda: fd.solve(problem(), fd.LocalSGD(), privacy=LAPLACE), "with replacement"),
        (lambda: fd.solve(problem(), fd.InexactADMM(), privacy=LAPLACE), "no private form"),
        (lambda: fd.solve(problem(), fd.CentralProxAL(), privacy=LAPLACE), "the data themselves"),
        (
            lambda: fd.solve(
                fd.Problem(regression(), loss=fd.losses.least_squares, where=lambda d: d.y > 0),
                fd.FedEPM(noise=LAPLACE),
            ),
            "takes no where=",
        ),
        (
            lambda: fd.solve(
                fd.Problem(regression(), objective=not_a_mean), fd.FedEPM(noise=LAPLACE), w0=np.zeros(DIM)
            ),
            "not the mean of its values on single examples",
        ),
    ],
)
def test_what_cannot_be_private_is_refused_in_a_sentence(make, words):
    with pytest.raises(fd.FoedusError) as caught:
        make()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_an_own_objective_can_be_private():
    run = fd.solve(
        fd.Problem(regression(), objective=own),
        fd.FedEPM(k0=2, rho=1.0, eta=0.1, mu0=2.0, per_example=False, noise=fd.Laplace(epsilon=50.0, clip=20.0)),
        w0=np.zeros(DIM),
        max_rounds=3,
    )
    assert np.all(run.ledger.releases == 3)
    assert np.all(np.isfinite(run.w))


def test_releases_through_opendp_carry_its_own_proof():
    pytest.importorskip("opendp")
    from foedus.privacy.sampling import measurement, release

    assert measurement("laplace", 2.0).map(1.0) == pytest.approx(0.5)
    assert measurement("gaussian", 2.0).map(1.0) == pytest.approx(0.125)  # ρ = 1/(2σ²)
    draws = np.concatenate([release("laplace", np.full(50, 7.0), 3.0) for _ in range(40)])
    assert np.mean(np.abs(draws - 7.0)) == pytest.approx(3.0, rel=0.15)
    noise = fd.Laplace(epsilon=1.0, clip=1.0, sampler="opendp")
    runs = [fd.solve(problem("logistic"), fd.FedAvg(k0=1, lr=0.1), privacy=noise, max_rounds=2) for _ in range(2)]
    assert np.any(runs[0].w != runs[1].w), "no seed repeats a real release"
    assert "simulation" not in str(runs[0].ledger)
    with pytest.raises(fd.FoedusError, match="scale > 0"):
        release("laplace", np.zeros(2), 0.0)
