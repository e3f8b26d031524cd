"""Attacks on the arithmetic of a release: huge rows, huge models, scales that are no scales, steps backwards."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIM, private

import foedus as fd
from foedus.privacy import sensitivity
from foedus.privacy.clipping import clipped_gradient, condense
from foedus.runtime.spine import message_for

NOISES = {
    "Laplace": fd.Laplace(epsilon=1.0, clip=0.7, rows=1.5),
    "Gaussian": fd.Gaussian(epsilon=1.0, delta=1e-5, clip=0.7, rows=1.5),
}


@pytest.mark.parametrize("rows", [None, 1.5])
@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("size", [1e200, 1.7e308, 1e-300, 0.0])
def test_a_row_of_any_size_is_clipped_to_a_finite_gradient(kind, rows, size):
    noise = dataclasses.replace(NOISES[kind], rows=rows)
    x = np.array([[size, -size, size], [1.0, 2.0, -1.0]])
    made = fd.Problem([(x, np.array([0.0, 1.0]))], loss=fd.losses.logistic)
    data = made.client(0)
    for held in (data, condense(made.terms, data, noise)):
        for w in (jnp.zeros(3), jnp.array([3.0, -1e10, 2.0])):
            g = np.asarray(clipped_gradient(made.terms, w, held, noise))
            assert np.all(np.isfinite(g))
            # the huge row alone, twice, has a gradient of the clip's length and no more
            assert np.linalg.norm(g, ord=noise.order) <= noise.clip * (1 + 1e-12)


@pytest.mark.parametrize("kind", NOISES)
def test_a_huge_row_counts_as_much_as_clipping_lets_it(kind):
    """With norms that overflow it would count for nothing, or for everything."""
    noise = NOISES[kind]
    gradients = []
    for size in (1e10, 1e200):
        made = fd.Problem([(np.array([[size, size, 0.0]]), np.zeros(1))], loss=fd.losses.logistic)
        gradients.append(np.asarray(clipped_gradient(made.terms, jnp.zeros(3), made.client(0), noise)))
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-9)
    assert np.linalg.norm(gradients[0], ord=noise.order) > 0.5


def test_one_huge_row_does_not_end_a_run():
    """A run that ended early because of one row would tell that the row is there."""
    x = np.random.default_rng(0).normal(size=(20, 3))
    x[4] = 1e200
    made = fd.Problem([(x, (x[:, 0] > 0).astype(float))] * 2, loss=fd.losses.logistic)
    for algorithm in (fd.FedAvg(k0=3), fd.FedGiA()):
        run = fd.solve(made, algorithm, privacy=NOISES["Gaussian"], max_rounds=4)
        assert run.rounds == 4
        assert np.all(np.isfinite(run.w))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampler", ["simulation", "opendp"])
def test_a_value_never_leaves_without_noise(scale, sampler):
    if sampler == "opendp":
        pytest.importorskip("opendp")
    for kind in NOISES.values():
        noise = dataclasses.replace(kind, sampler=sampler)
        sent = np.asarray(noise.release(jnp.full(3, 7e9), jnp.asarray(scale), jax.random.key(0)))
        assert np.all(np.isfinite(sent))
        assert np.all(np.abs(sent) < 1e6), "nothing of the value is left"


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
def test_a_draw_without_a_scale_raises(scale):
    pytest.importorskip("opendp")
    from foedus.privacy.sampling import release_inside

    with pytest.raises(Exception, match="scale > 0"):
        release_inside("laplace", jnp.full(3, 7.0), jnp.asarray(scale)).block_until_ready()


def test_what_is_not_a_number_is_not_released():
    for noise in NOISES.values():
        value = jnp.array([math.nan, math.inf, 1.0])
        assert np.all(np.isfinite(np.asarray(noise.release(value, jnp.asarray(1.0), jax.random.key(0)))))


@pytest.mark.parametrize("kind", NOISES)
def test_a_step_backwards_has_the_sensitivity_of_one_forwards(kind):
    """A negative one would have made the noise's scale negative, and with it the test of scale > 0 fail."""
    made = fd.Problem([(np.ones((4, DIM)), np.ones(4))], loss=fd.losses.logistic)
    for steps in (1, 3):
        count = made.client(0).count
        forth, back = (
            float(
                sensitivity.several_steps(made.terms, NOISES[kind], count, [jnp.asarray(rate)] * steps, jnp.zeros(()))
            )
            for rate in (0.1, -0.1)
        )
        assert 0 < forth <= back
    for make in (lambda: fd.FedAvg(lr=-0.1), lambda: fd.SFedAvg(lr=-0.1), lambda: fd.FedProx(decay=-1.0)):
        with pytest.raises(fd.FoedusError, match="must be a number > 0"):
            make()


# --- models of size 2^52 ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen(fd.Gaussian):
    """Gaussian noise that is not drawn, and notes what it was asked to hide."""

    noted: list = dataclasses.field(default_factory=list, compare=False)

    def release(self, value, scale, key):
        self.noted.append(np.asarray(value))
        return value


SEVERAL = {
    "FedAvg, one step": lambda n: private(fd.FedAvg(k0=1, lr=0.9), n),
    "FedAvg": lambda n: private(fd.FedAvg(k0=3, lr=0.9), n),
    "FedProx": lambda n: private(fd.FedProx(k0=2, steps=2, mu=0.2, lr=0.9), n),
    "FedGiA": lambda n: private(fd.FedGiA(k0=3, alpha=0.5, t=0.4), n),
    "SFedAvg": lambda n: fd.SFedAvg(k0=3, rho=1.0, lr=0.9, noise=n),
    "FedEPM": lambda n: fd.FedEPM(k0=3, rho=1.0, eta=0.3, mu0=4.0, per_example=False, noise=n),
    "FedEPM, restart": lambda n: fd.FedEPM(k0=3, rho=1.0, eta=0.3, mu0=4.0, restart=True, noise=n),
}


@pytest.mark.parametrize("penalty", [None, fd.penalties.Ridge(0.3)], ids=["plain", "ridge"])
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.slow
def test_a_huge_model_does_not_round_what_the_noise_is_added_to_beyond_the_bound(name, penalty):
    """The server sends 2^52, where numbers are whole: an increment added to it before the noise would be rounded."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, DIM)), rng.integers(2, size=6).astype(float)
    other = x.copy()
    other[0] = -x[0]
    sent = [np.zeros(DIM), np.full(DIM, 2.0**52), np.zeros(DIM)]
    found, bounds = [], []
    for rows in (x, other):
        noise = Seen(epsilon=1.0, delta=1e-5, clip=0.7, rows=1.5)
        made = fd.Problem([(rows, y)] * 3, loss=fd.losses.logistic, penalty=penalty)
        terms, data = made.terms, made.client(0)
        algorithm = SEVERAL[name](noise)
        algorithm = algorithm.fit(made).algorithm
        server, client = algorithm.init(terms, jnp.zeros(DIM), None), algorithm.join(terms, data, jnp.zeros(DIM))
        bounds = []
        for t, w in enumerate(sent):
            here = dataclasses.replace(server, w=jnp.asarray(w), round=jnp.asarray(t))
            message = message_for(algorithm.broadcast(terms, here, jnp.array([0.1, 0.5, 0.9])), 0)
            client, reply = algorithm.local(terms, client, message, data, jax.random.key(t))
            bounds.append(float(client.spent.sensitivity))
            np.testing.assert_allclose(np.asarray(reply.z), w + noise.noted[-1], rtol=1e-15)
        found.append(noise.noted)
    for a, b, bound in zip(*found, bounds, strict=True):
        assert np.all(np.isfinite(a))
        assert np.linalg.norm(a - b) <= bound
    if name == "FedAvg, one step" and penalty is None:
        assert np.any(found[0][1] != np.round(found[0][1])), "the increment itself is not rounded"


def test_the_allowance_for_rounding_is_small_for_ordinary_models_and_public():
    noise = NOISES["Gaussian"]
    assert float(sensitivity.change(noise, jnp.asarray(1000.0))) == pytest.approx(2 * 0.7 / 1000, rel=1e-7)
    assert float(sensitivity.change(noise, jnp.asarray(1e6))) == pytest.approx(2 * 0.7 / 1e6, rel=1e-3)
    assert float(noise.allowance(jnp.asarray(50.0), 4)) < 1e-10
