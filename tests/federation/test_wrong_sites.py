"""Sites whose replies are finite and wrong: refused by name, left out, bounded by robust means."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from halls import FREE, QUICK, Hall
from scipy.optimize import minimize

import foedus as fd
from foedus.app.report import html
from foedus.federation import packing
from foedus.federation.order import Order, Patience
from foedus.federation.play import play
from foedus.federation.policy import Policy
from foedus.federation.server import Paused
from foedus.protocol.algorithm import Present
from foedus.protocol.means import geometric_median, mean_of, trimmed_mean

# --- robust means ---


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_has_the_least_sum_of_distances(seed):
    rng = np.random.default_rng(seed)
    rows, here = rng.standard_normal((7, 3)) * 10.0 ** rng.integers(-2, 3), np.array([1, 1, 0, 1, 1, 1, 1], bool)
    median = np.asarray(geometric_median(jnp.asarray(rows), jnp.asarray(here)))

    def distance(x):
        return np.sum(np.linalg.norm(rows[here] - x, axis=1))

    best = minimize(distance, rows[here].mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-13})
    assert distance(median) <= best.fun * (1 + 1e-9)


def test_the_trimmed_mean_leaves_out_a_fifth_at_each_end_of_those_that_are_here():
    rows = np.array([[5.0], [1.0], [-1e9], [2.0], [1e9], [9.0]])
    here = np.array([1, 1, 1, 1, 1, 0], bool)
    assert float(trimmed_mean(jnp.asarray(rows), jnp.asarray(here))[0]) == pytest.approx((5 + 1 + 2) / 3)


@pytest.mark.parametrize("how", ["trimmed", "median"])
def test_what_one_of_five_sends_moves_a_robust_mean_by_a_bounded_amount_and_the_mean_without_bound(how):
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((5, 4))
    present = Present(jnp.arange(5), jnp.ones(5, bool))
    for size in (1e3, 1e9):
        wrong = honest.copy()
        wrong[2] = size * rng.standard_normal(4)
        moved = np.asarray(mean_of(how, jnp.asarray(wrong), present))
        assert np.linalg.norm(moved) <= 2 * np.max(np.linalg.norm(honest, axis=1))
        assert np.linalg.norm(present.mean(jnp.asarray(wrong))) > size / 50


@pytest.mark.parametrize("how", ["trimmed", "median"])
def test_a_robust_mean_of_equal_replies_is_the_reply(how):
    reply = {"w": jnp.tile(jnp.array([1.0, -2.0]), (4, 1)), "f": jnp.full(4, 3.0)}
    mean = mean_of(how, reply, Present(jnp.arange(4), jnp.array([True, True, False, True])))
    np.testing.assert_allclose(mean["w"], [1.0, -2.0], rtol=1e-12)
    assert float(mean["f"]) == pytest.approx(3.0)


def test_fedavg_with_a_robust_mean_is_refused_where_only_sums_are_seen_and_under_noise():
    sites = [(np.eye(2), np.ones(2)) for _ in range(4)]
    problem = fd.Problem(sites, loss=fd.losses.least_squares)
    with pytest.raises(fd.FoedusError, match="needs each client's own reply"):
        fd.solve(problem, fd.FedAvg(aggregate="median"), secure=True)
    with pytest.raises(fd.FoedusError, match="has no private form"):
        fd.solve(problem, fd.FedAvg(aggregate="trimmed", k0=1), privacy=fd.Local(epsilon=1, delta=1e-5))
    with pytest.raises(fd.FoedusError, match="The 'combine' setting of Scaffold"):
        fd.Scaffold(aggregate="median")


# --- the referee, over sessions ---

FIVE = tuple(f"h{i}" for i in range(5))


def problem(loss=fd.losses.logistic, constraints=()) -> fd.Problem:
    rng = np.random.default_rng(1)
    sites = {}
    for name in FIVE:
        x = rng.standard_normal((40, 3))
        sites[name] = (x, (x @ [1.0, -1.0, 0.5] + 0.5 * rng.standard_normal(40) > 0).astype(float))
    return fd.Problem(sites, loss=loss, penalty=fd.penalties.Ridge(10.0), constraints=list(constraints))


def wrong_from(hall: Hall, site: str, first: int, change, key: int = 0):
    """An `ask` in which the numbers of one site's replies are changed from a round on, as the site would send them."""

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        if site in replies:
            header, payload = packing.unseal(replies[site])
            if header.get("ask") == "round" and header["round"] >= first:
                numbers = change(np.frombuffer(payload, "<f8").copy())
                replies[site] = packing.seal(header, numbers.tobytes())
        return replies

    return ask


def flip_gradient(numbers: np.ndarray) -> np.ndarray:
    """FedAvg's reply is w, f, g: the site sends its gradient with the wrong sign."""
    return np.concatenate([numbers[:4], -numbers[4:]])


CHANGES = {
    "scaled": (lambda v: 1e6 * v, "norm"),
    "sign of the gradient": (flip_gradient, "no convex function"),
}
JUDGED = Patience(timeout=1.0, hello=0.0, keep_every=1e9, offences=3)


def reference(names) -> np.ndarray:
    """The minimiser over some of the sites, by scipy."""
    whole = problem()
    stacked = {name: (np.asarray(whole.data["x"][i]), np.asarray(whole.data["y"][i])) for i, name in enumerate(FIVE)}

    def value(w):
        parts = [np.mean(np.logaddexp(0, stacked[n][0] @ w) - stacked[n][1] * (stacked[n][0] @ w)) for n in names]
        return np.mean(parts) + 5.0 * w @ w / 40

    return minimize(value, np.zeros(3), tol=1e-14).x


@pytest.mark.parametrize("what", CHANGES)
def test_a_wrong_site_is_named_and_left_out_and_the_certificate_says_over_whom_it_holds(tmp_path, what):
    change, word = CHANGES[what]
    hall = Hall(tmp_path, problem(), fd.FedAvg(k0=1, tol=1e-12), max_rounds=4000)
    result = play(
        hall.order, tmp_path / "server", wrong_from(hall, "site-2", 4, change), JUDGED, hall.notes.append, lambda: False
    )
    assert [*result.left_out] == ["h1"]
    assert "after 3 replies that cannot be true" in result.left_out["h1"]
    assert word in result.left_out["h1"]
    assert sum("'h1'" in line for line in result.refused) == 3
    assert not any(f"'{name}'" in line for line in result.refused for name in FIVE if name != "h1")
    assert result.conclusion.converged, result.conclusion.reason
    honest = [name for name in FIVE if name != "h1"]
    np.testing.assert_allclose(result.conclusion.w, reference(honest), atol=1e-5)
    assert result.conclusion.certificate.without == ("h1",)
    assert "without h1" in str(result.conclusion.certificate)
    assert len(result.history["phase"]) > 4, "the rounds before are part of the history"


def test_a_run_that_states_no_number_of_offences_pauses_with_the_sites_name(tmp_path):
    hall = Hall(tmp_path, problem(), fd.FedAvg(k0=1), max_rounds=50)
    with pytest.raises(Paused, match="client 'h1' does not answer in round 4: its reply has norm"):
        hall.play(wrong_from(hall, "site-2", 4, lambda v: 1e6 * v), QUICK)


@pytest.mark.parametrize(
    "what", [pytest.param("scaled", marks=pytest.mark.slow), "negative curvature", "wrong product"]
)
def test_the_interior_point_method_refuses_curvature_that_does_not_fit(tmp_path, what):
    """Its reply is a packed matrix K, the gradient, K·w, f and more; K has six numbers here."""

    def change(numbers):
        numbers = numbers.copy()
        if what == "scaled":
            return np.concatenate([1e6 * numbers[:-2], numbers[-2:]])
        if what == "negative curvature":
            numbers[:6], numbers[9:12] = -numbers[:6], -numbers[9:12]
        else:
            numbers[0] *= 1.5
        return numbers

    word = {"scaled": "norm", "negative curvature": "eigenvalue", "wrong product": "do not belong together"}[what]
    hall = Hall(tmp_path, problem(), fd.InteriorPoint())
    result = play(
        hall.order, tmp_path / "server", wrong_from(hall, "site-4", 1, change), JUDGED, hall.notes.append, lambda: False
    )
    assert [*result.left_out] == ["h3"]
    assert word in result.left_out["h3"]
    assert result.conclusion.certificate.holds()
    np.testing.assert_allclose(result.conclusion.w, reference([n for n in FIVE if n != "h3"]), atol=1e-6)


def test_honest_sites_whose_data_differ_much_are_never_refused(tmp_path):
    rng = np.random.default_rng(3)
    sites = {}
    for i, name in enumerate(FIVE):
        x = rng.standard_normal((30, 3)) * 3.0**i + rng.standard_normal(3)
        sites[name] = (x, x @ rng.standard_normal(3) * 5.0**i)
    different = fd.Problem(sites, loss=fd.losses.least_squares)
    for folder, algorithm in (("a", fd.FedAvg(k0=3)), ("b", fd.InteriorPoint())):
        (tmp_path / folder).mkdir()
        result = Hall(tmp_path / folder, different, algorithm, max_rounds=40).play()
        assert result.refused == []


def test_a_measurement_that_contradicts_the_rounds_is_refused(tmp_path):
    hall = Hall(tmp_path, problem(), fd.FedAvg(k0=1, tol=1e-3), max_rounds=50)

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        for site, raw in replies.items():
            header, payload = packing.unseal(raw)
            if site == "site-3" and header["ask"] == "measure":
                numbers = np.frombuffer(payload, "<f8").copy()
                replies[site] = packing.seal(header, (numbers - 1.0).tobytes())
        return replies

    with pytest.raises(Paused, match="client 'h2' does not answer 'measure': its values and gradients"):
        hall.play(ask)


@pytest.mark.slow
def test_a_resumed_run_goes_on_without_those_who_were_left_out(tmp_path):
    hall = Hall(tmp_path, problem(), fd.FedAvg(k0=1, tol=1e-12), max_rounds=4000)
    wrong = wrong_from(hall, "site-2", 4, lambda v: 1e6 * v)
    count = [0]

    def ask(messages, timeout):
        count[0] += 1
        if count[0] == 12:
            raise Paused("the server stops here")
        return wrong(messages, timeout)

    with pytest.raises(Paused):
        play(hall.order, tmp_path / "server", ask, JUDGED, hall.notes.append, lambda: False)
    result = play(hall.order, tmp_path / "server", hall.ask, JUDGED, hall.notes.append, lambda: False)
    assert [*result.left_out] == ["h1"]
    np.testing.assert_allclose(result.conclusion.w, reference([n for n in FIVE if n != "h1"]), atol=1e-5)


def test_two_sites_are_no_run_without_one_of_them(tmp_path):
    two = fd.Problem({k: (np.eye(2), np.ones(2)) for k in ("a", "b")}, loss=fd.losses.least_squares)
    hall = Hall(tmp_path, two, fd.FedAvg(k0=1, tol=0.0), max_rounds=20, w0=np.array([3.0, 3.0]))
    patience = Patience(timeout=1.0, hello=0.0, keep_every=1e9, offences=1, norm=100.0)
    with pytest.raises(fd.FoedusError, match="one site alone is no federation"):
        play(
            hall.order, tmp_path / "server", wrong_from(hall, "site-2", 2, lambda v: 1e6 * v), patience,
            hall.notes.append, lambda: False,
        )  # fmt: skip


# --- the norm ---


@pytest.mark.parametrize("norm", [1e-6, 1e-3])
def test_a_site_says_nothing_about_the_size_of_its_reply(tmp_path, norm):
    """The server judges what it sees. A site's refusal told, under masks too, how large the reply of one site was."""
    hall = Hall(tmp_path, problem(), fd.FedAvg(k0=1), max_rounds=5)
    codes, greetings = set(), []

    def ask(messages, timeout):
        greetings.extend(packing.unseal(m)[0] for m in messages.values())
        replies = hall.ask(messages, timeout)
        codes.update(packing.unseal(reply)[0]["code"] for reply in replies.values())
        return replies

    with pytest.raises(Paused, match=r"its reply has norm .*, and the terms allow"):
        hall.play(ask, Patience(timeout=1.0, hello=0.0, keep_every=1e9, norm=norm))
    assert codes == {"ok"}
    assert not any("norm" in greeting for greeting in greetings)


def test_flare_refuses_numbers_that_cannot_be():
    for told in ({"norm": 0.0}, {"factor": 1.0}, {"offences": 0}):
        with pytest.raises(fd.FoedusError, match=f"The '{next(iter(told))}' of Flare"):
            fd.Flare(**told)
    assert json.loads(json.dumps(fd.Flare(norm=2.0, offences=3).patience))["norm"] == 2.0


def test_an_order_without_a_site_is_the_order_of_the_others(tmp_path):
    from foedus.federation.order import without

    plan = np.array([[1, 0, 1, 0, 1], [0, 1, 1, 1, 0]], bool)
    hall = Hall(tmp_path, problem(), fd.FedAvg(k0=1), participation=plan, policy=Policy(**FREE))
    rest = Order.from_bytes(without(hall.order, "site-2", np.ones(3)).to_bytes())
    assert rest.terms.clients == 4
    assert rest.names == ("h0", "h2", "h3", "h4")
    np.testing.assert_array_equal(rest.uids, np.delete(hall.order.uids, 1, axis=0))
    np.testing.assert_array_equal(np.asarray(rest.participation.table)[1], [1, 2, 4])


@pytest.mark.slow
def test_under_masked_sums_the_norm_of_the_mean_is_judged_and_no_site_refuses(tmp_path):
    from masked_halls import MaskedHall

    hall = MaskedHall(tmp_path, problem(), fd.FedAvg(k0=1, lr=0.1), max_rounds=3)
    with pytest.raises(Paused, match=r"the sum of round .* cannot be true: .* has norm .*, and the terms allow 1e-06"):
        hall.play(patience=Patience(timeout=1.0, hello=0.0, keep_every=1e9, norm=1e-6))
    assert not any(line.startswith("refused") for line in hall.notes)


def test_who_was_left_out_is_in_the_record_the_report_and_the_certificates_sentence(tmp_path):
    problem = fd.Problem([(np.eye(2), np.ones(2))] * 3, loss=fd.losses.least_squares)
    plain = fd.solve(problem, fd.FedAvg(lr=0.5), max_rounds=3)
    certificate = dataclasses.replace(plain.certificate, without=("city",))
    run = dataclasses.replace(plain, left_out={"city": "after 3 replies that cannot be true"}, certificate=certificate)
    again = fd.load(run.save(tmp_path))
    assert again.left_out == run.left_out
    assert again.certificate.without == ("city",)
    assert "city was left out after 3 replies" in str(again)
    assert "without city" in str(again)
    page = html.page({"study": again}, {})
    assert "city was left out after 3 replies that cannot be true" in page
