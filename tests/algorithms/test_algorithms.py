"""Every algorithm on every problem ends at SciPy's answer on the pooled data; FedGiA and its peers step by step."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import ALL, CASES, DIM, NAMES, PROBLEMS, RIDGE, SIZES, Case, clients_of, over, problem, regression
from played import rounds_played

import foedus as fd
from foedus.algorithms.localsgd import LocalSGD

GRADIENT = CASES["FedAvg"][0].algorithm  # k0 = 1: gradient descent
LOSS = {"least squares": ("least_squares", 0.0), "logistic": ("logistic", 0.0), "ridge": ("least_squares", RIDGE)}


@cache
def answer(name: str) -> tuple[np.ndarray, float]:
    return oracles.pooled_minimum(clients_of(name), *LOSS[name])


# every algorithm on the first problem, and one of each kind on the others
ELSEWHERE = {"logistic": ("FedGiA gram", "InteriorPoint"), "ridge": ("Scaffold", "FedEPM")}


def quick(case: Case, name: str) -> bool:
    return not case.slow and (name == PROBLEMS[0] or str(case).startswith(ELSEWHERE[name]))


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, marks=[] if quick(case, name) else [pytest.mark.slow], id=f"{case}-{name}")
        for case in ALL
        for name in PROBLEMS
    ],
)
def test_the_answer_is_scipys_on_the_pooled_data(case, name):
    run = fd.solve(problem(name), case.algorithm, max_rounds=case.rounds)
    w, minimum = answer(name)
    assert np.max(np.abs(run.w - w)) <= case.error
    assert run.objective - minimum >= -1e-13
    if case.error < 1e-6:
        assert run.converged, run.reason
        assert run.objective - minimum <= 1e-12
        assert run.certificate.holds(1e-8, 0.0)
        assert run.history["objective"][-1] == pytest.approx(run.objective, abs=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_certificate_and_the_objective_are_numpys(name):
    loss, mu = LOSS[name]
    start = np.array([0.4, -0.3, 0.2, 0.1])
    run = fd.solve(problem(name), GRADIENT, w0=start, max_rounds=3)
    parts = clients_of(name).values()
    gradient = np.mean([oracles.mean_gradient(run.w, X, y, loss, mu) for X, y in parts], axis=0)
    assert run.certificate.stationarity == pytest.approx(np.max(np.abs(gradient)), rel=1e-10)
    assert run.objective == pytest.approx(
        np.mean([oracles.mean_loss(run.w, X, y, loss, mu) for X, y in parts]), rel=1e-12
    )
    assert run.history["objective"][0] == pytest.approx(
        np.mean([oracles.mean_loss(start, X, y, loss, mu) for X, y in parts]), rel=1e-12
    )


@pytest.mark.parametrize(
    ("algorithm", "scale"),
    [(GRADIENT, 1.0), (fd.FedAvg(k0=1, lr=0.2, tol=1e-4, stop="released"), 1.0 / len(NAMES) ** 2)],
    ids=["gradient", "released"],
)
def test_stopping_rules_measure_the_gradient_at_the_returned_point(algorithm, scale):
    run = fd.solve(problem(), algorithm)
    gradient = np.mean([oracles.mean_gradient(run.w, X, y, "least_squares") for X, y in regression().values()], axis=0)
    assert run.converged
    assert scale * gradient @ gradient <= algorithm.tol * (1 + 1e-6)
    # what the clients sent and what NumPy finds differ by rounding, which is not small beside 1e-10
    assert np.sqrt(run.history["gradient"][-1] / scale) == pytest.approx(np.linalg.norm(gradient), rel=1e-6, abs=1e-14)
    assert np.all(run.history["gradient"][:-1] > algorithm.tol)


def test_without_a_stopping_rule_all_rounds_are_played():
    run = fd.solve(problem(), fd.FedAvg(k0=1, stop=None, tol=1.0), max_rounds=7)
    assert (run.rounds, run.converged) == (7, False)


@over([case for case in ALL if getattr(case.algorithm, "stop", None) is not None])
def test_a_start_that_is_optimal_is_returned_as_it_is(case):
    w = answer("least squares")[0]
    run = fd.solve(problem(), case.algorithm, w0=w)
    assert run.rounds == 1
    np.testing.assert_array_equal(run.w, w)


def test_a_step_that_is_too_long_is_said_so_and_the_last_finite_model_returned():
    run = fd.solve(problem(), fd.FedAvg(lr=1e6), max_rounds=500)
    assert not run.converged
    assert "became infinite" in run.reason
    assert np.all(np.isfinite(run.w))


# --- one round, written out ---


def replayed(step, rounds: int = 4) -> np.ndarray:
    """The mean of one client's `step(X, y, w, k)`, round after round; k counts the rounds."""
    w = np.zeros(DIM)
    for k in range(rounds):
        w = np.mean([step(X, y, w, k) for X, y in regression().values()], axis=0)
    return w


@pytest.mark.parametrize(
    ("decay", "rate"),
    [("log", lambda k: 0.1 / np.log2(k + 2)), (5.0, lambda k: 0.1 / (1 + k / 5.0))],
)
def test_fedavg_is_its_pseudocode(decay, rate):
    def step(X, y, w, k):
        for j in range(3):
            w = w - rate(3 * k + j) * oracles.mean_gradient(w, X, y, "least_squares")
        return w

    run = fd.solve(problem(), fd.FedAvg(k0=3, lr=0.1, decay=decay, tol=0.0), max_rounds=4)
    np.testing.assert_allclose(run.w, replayed(step), atol=1e-13)


def test_fedprox_is_its_pseudocode():
    def step(X, y, w, k):
        u = w
        for _ in range(6):
            u = u - 0.1 * (oracles.mean_gradient(u, X, y, "least_squares") + 0.7 * (u - w))
        return u

    run = fd.solve(problem(), fd.FedProx(k0=2, steps=3, mu=0.7, lr=0.1, tol=0.0), max_rounds=4)
    np.testing.assert_allclose(run.w, replayed(step), atol=1e-13)


def test_fedpd_is_its_pseudocode():
    """Zhang et al. 2020, oracle I: x by gradient steps on the augmented Lagrangian, then λ, then x_0."""
    eta, rate, x0 = 0.4, 0.1, np.zeros(DIM)
    x, lam = np.zeros((len(NAMES), DIM)), np.zeros((len(NAMES), DIM))
    for _ in range(4):
        sent = []
        for i, (X, y) in enumerate(regression().values()):
            own = x0
            for _ in range(2):
                for _ in range(3):
                    slope = oracles.mean_gradient(x[i], X, y, "least_squares") + lam[i] + (x[i] - own) / eta
                    x[i] = x[i] - rate * slope
                lam[i] = lam[i] + (x[i] - own) / eta
                own = x[i] + eta * lam[i]
            sent.append(own)
        x0 = np.mean(sent, axis=0)
    run = fd.solve(problem(), fd.FedPD(k0=2, steps=3, lr=rate, eta=eta, tol=0.0), max_rounds=4)
    np.testing.assert_allclose(run.w, x0, atol=1e-13)


def test_scaffold_is_its_pseudocode():
    """Karimireddy et al. 2020, Algorithm 1, option II."""
    w, c, own = np.zeros(DIM), np.zeros(DIM), np.zeros((len(NAMES), DIM))
    for _ in range(4):
        moves, changes = [], []
        for i, (X, y) in enumerate(regression().values()):
            u = w
            for _ in range(3):
                u = u - 0.1 * (oracles.mean_gradient(u, X, y, "least_squares") - own[i] + c)
            fresh = own[i] - c + (w - u) / (3 * 0.1)
            moves.append(u - w)
            changes.append(fresh - own[i])
            own[i] = fresh
        w, c = w + 0.5 * np.mean(moves, axis=0), c + np.mean(changes, axis=0)
    run = fd.solve(problem(), fd.Scaffold(k0=3, lr=0.1, global_lr=0.5, tol=0.0), max_rounds=4)
    np.testing.assert_allclose(run.w, w, atol=1e-13)


def test_the_automatic_step_is_one_over_the_largest_curvature():
    """The first round greets: its plain gradient step with 1/max r_i is what the history shows next."""
    top = max(np.linalg.eigvalsh(X.T @ X / len(X))[-1] for X, _ in regression().values())
    w = np.zeros(DIM)
    for _ in range(3):
        w = (
            w
            - np.mean([oracles.mean_gradient(w, X, y, "least_squares") for X, y in regression().values()], axis=0) / top
        )
    run = fd.solve(problem(), GRADIENT, max_rounds=3)
    np.testing.assert_allclose(run.w, w, atol=1e-10)


# --- FedGiA ---


@pytest.mark.parametrize(
    ("name", "H", "k0"),
    [
        ("least squares", "diagonal", 1),
        ("logistic", "gram", 5),
        ("ridge", "diagonal", 5),
        pytest.param("least squares", "diagonal", 5, marks=pytest.mark.slow),
        pytest.param("least squares", "gram", 5, marks=pytest.mark.slow),
        pytest.param("logistic", "diagonal", 5, marks=pytest.mark.slow),
        pytest.param("ridge", "gram", 5, marks=pytest.mark.slow),
    ],
)
def test_fedgia_in_closed_form_is_the_loop_of_the_paper(name, H, k0):
    loss, mu = LOSS[name]
    curvature, t, rounds = 0.25 if loss == "logistic" else 1.0, 0.6, 4
    grams = [curvature * X.T @ X / len(X) + mu / len(X) * np.eye(DIM) for X, _ in clients_of(name).values()]
    tops = [np.linalg.eigvalsh(gram)[-1] for gram in grams]
    sigma = t * max(tops) / len(NAMES)
    matrices = grams if H == "gram" else [top * np.eye(DIM) for top in tops]
    averages = oracles.fedgia_rounds(clients_of(name), loss, mu, matrices, sigma, k0, rounds)
    run = fd.solve(problem(name), fd.FedGiA(k0=k0, H=H, alpha=1.0, t=t, tol=0.0), max_rounds=1 + rounds)
    np.testing.assert_allclose(run.w, averages[-1], rtol=1e-9, atol=1e-10)


def test_fedgia_takes_table_threes_constant():
    def sigma(name):
        made = problem(name)
        outcome = fd.solve(made, CASES["FedGiA"][0].algorithm, max_rounds=1)
        gradient = np.mean(
            [oracles.mean_gradient(np.zeros(DIM), X, y, LOSS[name][0]) for X, y in clients_of(name).values()], 0
        )
        return -gradient / outcome.w / len(NAMES)  # the first round is x = −∇f(0)/(mσ)

    def top(name):
        return max(np.linalg.eigvalsh(X.T @ X / len(X))[-1] for X, _ in clients_of(name).values())

    examples = sum(SIZES)
    np.testing.assert_allclose(sigma("least squares"), 0.15 * top("least squares") / len(NAMES), rtol=1e-9)
    expected = max(0.025, 4 * np.log(examples) / DIM) * 0.25 * top("logistic") / len(NAMES)
    np.testing.assert_allclose(sigma("logistic"), expected, rtol=1e-9)


def test_fedgia_draws_a_group_of_the_right_size():
    """With k0 = 1 and a diagonal H_i, a client outside C has π_i = −ḡ_i exactly, and one inside does not."""

    made, algorithm = problem(), fd.FedGiA(k0=1, alpha=0.5, t=0.5, tol=0.0)
    groups = set()
    for rounds in (2, 3, 4):
        before, after = (rounds_played(made, algorithm, max_rounds=r).at for r in (rounds - 1, rounds))
        gradients = [
            oracles.mean_gradient(np.asarray(before.carry.w), X, y, "least_squares") for X, y in regression().values()
        ]
        outside = np.all(np.isclose(after.clients.pi, -np.array(gradients) / len(NAMES), rtol=1e-9, atol=0), axis=1)
        groups.add(tuple(~outside))
        assert np.sum(~outside) == np.ceil(0.5 * len(NAMES))
    assert len(groups) > 1, "a new group is drawn for each round"


def test_fedgia_recovers_from_a_constant_that_is_too_small():
    """Without t, σ doubles when the objective rises; Table III's t for these least squares makes it rise at first."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 6)) * scale, rng.normal(size=20)) for scale in (0.1, 1.0, 3.0)]
    run = fd.solve(fd.Problem(clients, loss=fd.losses.least_squares), fd.FedGiA(k0=20, H="gram", alpha=1.0))
    assert run.converged
    assert run.certificate.holds(1e-3)


# --- LocalSGD ---


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"penalty": fd.penalties.Ridge(RIDGE)},
        {"where": lambda data: data.y > 0},
    ],
    ids=["plain", "ridge", "where"],
)
def test_a_minibatch_step_is_the_full_gradient_on_average(arguments):
    made = fd.Problem(regression(), loss=fd.losses.least_squares, **arguments)
    data = fd.Data({k: array[3] for k, array in made.data.items()})  # the client with most filling rows
    method, w, draws = LocalSGD(batch=2, k0=1, lr=1.0), jnp.array([0.5, -1.0, 0.2, 0.3]), 40000
    message = method.broadcast(made.terms, method.init(made.terms, w, None), np.zeros(made.terms.clients))
    keys = jax.random.split(jax.random.key(1), draws)
    sent = jax.jit(jax.vmap(lambda key: method.local(made.terms, (), message, data, key)[1].w))(keys)
    steps = np.asarray(w - sent)
    spread = np.std(steps, axis=0) / np.sqrt(draws)
    assert np.all(np.abs(np.mean(steps, axis=0) - made.terms.gradient(w, made.client(3))) <= 5 * spread)


def test_minibatches_never_hold_a_filling_row():
    X = np.ones((2, 8, 1))
    X[:, 3:] = 1e6
    made = fd.Problem(fd.data.Stacked({"x": X, "y": np.zeros((2, 8))}, counts=[3, 3]), loss=fd.losses.least_squares)
    run = fd.solve(made, fd.LocalSGD(batch=16, lr=0.1), w0=np.ones(1), max_rounds=20)
    np.testing.assert_allclose(run.w, 0.9 ** (5 * 20), rtol=1e-9)


# --- FedNova ---


def test_with_as_many_steps_everywhere_normalised_averaging_is_fedavg():
    """And two momentum steps on a linear objective move by (1 + ρ) + 1 gradients, by which they are divided."""
    nova = fd.solve(problem(), fd.FedNova(batch=None, epochs=3, lr=0.1), max_rounds=20)
    plain = fd.solve(problem(), fd.FedAvg(k0=3, lr=0.1, stop=None), max_rounds=20)
    np.testing.assert_allclose(nova.w, plain.w, rtol=1e-12)
    slopes = np.array([1.0, 5.0])
    linear = fd.Problem([{"slope": np.full(3, slope)} for slope in slopes], objective=steady)
    run = fd.solve(linear, fd.FedNova(batch=None, epochs=2, lr=0.1, momentum=0.5), w0=np.zeros(1), max_rounds=1)
    np.testing.assert_allclose(run.w, -0.1 * 2.5 * np.mean(slopes))


def steady(w, data):
    return data.mean(data["slope"]) * w[0]


def test_a_client_with_more_steps_does_not_decide_where_fednova_ends():
    """Optima 0 and 1 of two clients, of which one takes 20 steps and one a single step: the mean of both is 1/2."""
    sites = [(np.ones((160, 1)), np.zeros(160)), (np.ones((8, 1)), np.ones(8))]
    made = fd.Problem(sites, loss=fd.losses.least_squares)
    run = fd.solve(made, fd.FedNova(batch=8, lr=1e-3), w0=np.full(1, 2.0), max_rounds=2000)
    np.testing.assert_allclose(run.w, 0.5, atol=0.01)


# --- a neural network ---


@pytest.mark.slow
def test_a_neural_network_trains_over_its_pytree(tmp_path):
    rng = np.random.default_rng(0)
    sites = {}
    for name, rows in (("north", 40), ("south", 60), ("west", 50)):
        X = rng.uniform(-2, 2, size=(rows, 2))
        sites[name] = (X, (np.sum(X**2, axis=1) < 2.0).astype(float))  # a disc: no linear model fits it

    def objective(params, data):
        hidden = jnp.tanh(data.x @ params["first"]["w"] + params["first"]["b"])
        z = hidden @ params["last"]
        return data.mean(jax.nn.softplus(z) - data.y * z)

    start = {
        "first": {"w": rng.normal(size=(2, 12)), "b": rng.normal(size=12)},
        "last": 0.1 * rng.normal(size=12),
    }
    made = fd.Problem(sites, objective=objective)
    run = fd.solve(made, fd.FedAvg(k0=5, lr=0.5), w0=start, max_rounds=600)
    assert run.history["objective"][0] > 0.5
    assert run.objective < 0.12
    assert jax.tree.structure(run.w) == jax.tree.structure(start)
    assert [leaf.shape for leaf in jax.tree.leaves(run.w)] == [leaf.shape for leaf in jax.tree.leaves(start)]
    X, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    z = np.tanh(X @ run.w["first"]["w"] + run.w["first"]["b"]) @ run.w["last"]
    assert np.mean((z > 0) == (y > 0)) > 0.95
    again = fd.load(run.save(tmp_path / "network"))
    assert jax.tree.structure(again.w) == jax.tree.structure(start)
    jax.tree.map(np.testing.assert_array_equal, again.w, run.w)
    further = fd.solve(made, fd.FedAvg(k0=5, lr=0.5), w0=again.w, max_rounds=5)
    assert further.objective < run.objective
