"""check_algorithm finds the mistakes that an author makes, and each of them gets one sentence; so does a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import CASES, ROBUST

import foedus as fd
from foedus.app.check import small_problem
from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.protocol.algorithm import Algorithm, Each


@state
class Model:
    w: jax.Array
    k: jax.Array


@settings
class Plain(Algorithm):
    """Gradient descent, as the simplest algorithm there is; the mistakes below are planted in it."""

    lr: float = setting(0.1, "step", gt=0)

    def init(self, terms, w0, own):
        return Model(w0, jnp.zeros((), int))

    def broadcast(self, terms, server, draws):
        return server.w

    def local(self, terms, client, w, data, key):
        return client, terms.gradient(w, data)

    def aggregate(self, terms, server, replies, present):
        return Model(server.w - self.lr * present.mean(replies), server.k + 1)


def test_an_algorithm_without_mistakes_passes():
    fd.check_algorithm(Plain())


@settings
class NoAggregate(Algorithm):
    init, broadcast, local = Plain.init, Plain.broadcast, Plain.local
    lr: float = setting(0.1, "step", gt=0)


@state
class Nameless:
    x: jax.Array


@settings
class NoModel(Plain):
    def init(self, terms, w0, own):
        return Nameless(w0)

    def broadcast(self, terms, server, draws):
        return server.x

    def aggregate(self, terms, server, replies, present):
        return Nameless(server.x - self.lr * present.mean(replies))


@dataclasses.dataclass(frozen=True)
class Undecorated:
    w: jax.Array


@settings
class NoState(Plain):
    def init(self, terms, w0, own):
        return Undecorated(w0)


@settings
class ChangesType(Plain):
    def aggregate(self, terms, server, replies, present):
        return Model(server.w - self.lr * present.mean(replies), server.k + 0.5)


@settings
class OneResult(Plain):
    def local(self, terms, client, w, data, key):
        return terms.gradient(w, data)


@settings
class TellsRows(Plain):
    def local(self, terms, client, w, data, key):
        return client, (terms.gradient(w, data), data["y"])

    def aggregate(self, terms, server, replies, present):
        return Model(server.w - self.lr * present.mean(replies[0]), server.k + 1)


class NoSettings(Algorithm):
    lr = 0.1
    init, broadcast, local, aggregate = Plain.init, Plain.broadcast, Plain.local, Plain.aggregate


HIDDEN = {"calls": 0}


@settings
class Impure(Plain):
    """Depends on a number outside its states, which a resumed run does not know."""

    def report(self, server):
        def count(k):
            HIDDEN["calls"] += 1
            return np.float64(HIDDEN["calls"])

        return {"calls": jax.pure_callback(count, jax.ShapeDtypeStruct((), float), server.k)}


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (NoAggregate(), "NoAggregate has no 'aggregate'"),
        (NoModel(), "the server's state of NoModel has no field 'w'"),
        (NoState(), "is a Undecorated, which JAX does not know: write @state above class Undecorated"),
        (ChangesType(), "k is int64 of shape () after init and float64 of shape () after aggregate"),
        (OneResult(), "local of OneResult must return (client state, reply)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_a_mistake_gets_one_sentence_from_the_check_and_from_a_run(algorithm, words):
    for call in (fd.check_algorithm, lambda a: fd.solve(small_problem(fd.losses.least_squares), a, max_rounds=2)):
        with pytest.raises(fd.FoedusError) as caught:
            call(algorithm)
        assert words in str(caught.value)
        assert "Traced<" not in str(caught.value)


def test_settings_without_the_decorator_are_told():
    with pytest.raises(fd.FoedusError, match="write @settings above class NoSettings"):
        NoSettings(lr=0.2)


def test_a_reply_that_tells_how_much_data_there_is_is_found():
    with pytest.raises(fd.FoedusError, match="must not tell how much data there is"):
        fd.check_algorithm(TellsRows())


def test_a_python_number_in_a_state_is_an_array():
    @settings
    class Numbers(Plain):
        def init(self, terms, w0, own):
            return Model(w0, 0)

        def aggregate(self, terms, server, replies, present):
            return Model(server.w - self.lr * present.mean(replies), 7)

    fd.check_algorithm(Numbers())


def test_a_setting_called_noise_is_the_authors_own():
    @settings
    class Dithered(Plain):
        noise: float = setting(0.5, "size of the dither", ge=0)

    run = fd.solve(small_problem(fd.losses.least_squares), Dithered(), max_rounds=3)
    assert run.ledger is None
    fd.check_algorithm(Dithered())


def test_a_run_that_depends_on_more_than_its_states_is_found():
    with pytest.raises(fd.FoedusError, match="interrupted gives another 'calls'"):
        fd.check_algorithm(Impure())


def test_a_client_that_reads_anothers_message_is_found():
    """`Each` gives a client its own row; who marks nothing sends the whole table, and its size is counted."""

    @settings
    class Rows(Plain):
        def broadcast(self, terms, server, draws):
            return Each(jnp.broadcast_to(server.w, (terms.clients, terms.dim)))

    fd.check_algorithm(Rows())
    one = fd.solve(small_problem(fd.losses.least_squares), Rows(), max_rounds=1)
    assert one.traffic.down == 4 * 3 * 8


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES | ROBUST) - {"CentralProxAL"}))
def test_every_algorithm_of_foedus_passes(name):
    fd.check_algorithm((CASES | ROBUST)[name][0].algorithm)


# --- optimisers compose ---


def logistic(**more) -> fd.Problem:
    return small_problem(fd.losses.logistic)


@pytest.mark.parametrize("make", [fd.FedAvg, fd.FedProx, fd.Scaffold, fd.LocalSGD])
def test_optimisers_of_optax_compose(make):
    algorithm = make(server=optax.adam(0.05), local=optax.sgd(0.1, momentum=0.5), stop=None)
    run = fd.solve(logistic(), algorithm, max_rounds=60)
    at_zero = np.log(2.0)
    assert run.objective < 0.8 * at_zero


def test_plain_optimisers_are_the_plain_method():
    """sgd at the clients with the same step, and sgd(1) at the server, are what FedAvg does without them."""
    plain = fd.solve(logistic(), fd.FedAvg(lr=0.2, k0=3), max_rounds=8)
    made = fd.solve(logistic(), fd.FedAvg(k0=3, local=optax.sgd(0.2), server=optax.sgd(1.0)), max_rounds=8)
    np.testing.assert_allclose(made.history["objective"], plain.history["objective"], rtol=1e-12)
    np.testing.assert_allclose(made.w, plain.w, rtol=1e-12)


def test_equal_optimisers_are_equal_settings_and_different_ones_are_not():
    one, two, other = (fd.FedAvg(server=optax.adam(rate)) for rate in (0.1, 0.1, 0.2))
    assert (one, hash(one)) == (two, hash(two))
    assert one != other
    first, last = (fd.solve(logistic(), a, max_rounds=1).settings["algorithm"] for a in (one, other))
    assert first != last, "the record of a run tells them apart"


def test_a_table_names_an_optimiser():
    algorithm = fd.FedAvg(server={"name": "adam", "learning_rate": 0.1})
    assert algorithm == fd.FedAvg(server={"learning_rate": 0.1, "name": "adam"})
    with pytest.raises(fd.FoedusError, match=r"optax has no optimiser 'adamm'.*adam"):
        fd.FedAvg(server={"name": "adamm"})
    with pytest.raises(fd.FoedusError, match=r"optax\.adam cannot be made"):
        fd.FedAvg(server={"name": "adam", "rate": 0.1})


def test_an_optimiser_has_no_private_form():
    with pytest.raises(fd.FoedusError, match="has no private form: one example's effect"):
        fd.solve(logistic(), fd.FedAvg(server=optax.adam(0.1)), privacy=fd.Local(epsilon=1.0, delta=1e-5), max_rounds=2)
