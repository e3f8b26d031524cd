"""Who takes part: observed from inside, with an algorithm whose clients only write down that they were asked."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import NAMES, SOME, problem, properties, regression
from hypothesis import given
from hypothesis import strategies as st
from played import rounds_played

import foedus as fd
from foedus.base.pytrees import state
from foedus.base.settings import settings
from foedus.protocol.algorithm import Algorithm, Present

ROUNDS = 24


@state
class Notes:
    w: jax.Array
    round: jax.Array
    heard: jax.Array  # what arrived from whom in which round. (ROUNDS, n)


@state
class Note:
    draw: jax.Array


@settings
class Diary(Algorithm):
    """Clients keep the random number they draw in each round they are asked, and send it."""

    def init(self, terms, w0, own):
        return Notes(w0, jnp.zeros((), int), jnp.full((ROUNDS, terms.clients), jnp.nan))

    def join(self, terms, data, w0):
        return jnp.full(ROUNDS, jnp.nan)

    def broadcast(self, terms, server, draws):
        return server.round

    def local(self, terms, client, message, data, key):
        draw = jax.random.uniform(key)
        return client.at[message].set(draw), Note(draw)

    def aggregate(self, terms, server, replies, present):
        row = present.remember(server.heard[server.round], replies.draw)
        return Notes(server.w, server.round + 1, server.heard.at[server.round].set(row))


def played(participation, clients=None, seed: int = 0, rounds: int = ROUNDS, algorithm: Algorithm | None = None):
    """What the clients wrote down, what the server heard (both (rounds, n), nan for silence), and the history."""
    made = problem() if clients is None else fd.Problem(clients, loss=fd.losses.least_squares)
    outcome = rounds_played(made, algorithm or Diary(), max_rounds=rounds, seed=seed, participation=participation)
    heard = np.asarray(outcome.at.carry.server.heard)[:rounds]
    return np.asarray(outcome.at.clients).T[:rounds], heard, outcome.recorder.columns


def test_everyone_takes_part_unless_told_otherwise():
    wrote, heard, history = played(1.0)
    assert not np.any(np.isnan(wrote))
    np.testing.assert_array_equal(wrote, heard)
    assert np.all(history["asked"] == len(NAMES))
    assert len(np.unique(wrote)) == wrote.size, "no two draws are alike"


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_a_fraction_asks_that_many_and_all_in_turn(fraction):
    wrote, heard, history = played(fraction)
    asked = ~np.isnan(wrote)
    assert np.all(asked.sum(axis=1) == math.ceil(fraction * len(NAMES)))
    np.testing.assert_array_equal(asked.sum(axis=1), history["asked"])
    np.testing.assert_array_equal(wrote, heard)
    assert np.all(asked.any(axis=0))


def test_every_client_is_as_likely_as_any_other():
    who, rounds = fd.Fraction(0.4), 4000
    uids = jnp.asarray(problem().stacked.uids())
    chosen = jax.jit(jax.vmap(lambda r: who.choose(jax.random.key(3), r, uids)))(jnp.arange(rounds))
    share = np.bincount(np.asarray(chosen).ravel(), minlength=len(NAMES)) / rounds
    spread = math.sqrt(0.4 * 0.6 / rounds)
    assert np.all(np.abs(share - 0.4) <= 5 * spread)


@pytest.mark.parametrize(("fraction", "every"), [(0.4, 4), (0.6, 2)])
def test_coverage_reaches_everyone_in_each_block(fraction, every):
    n, blocks, seeds = len(NAMES), 6, 40
    size = math.ceil(fraction * n)
    who, uids = fd.Coverage(fraction, every=every), jnp.asarray(problem().stacked.uids())
    draw = jax.jit(jax.vmap(lambda key: jax.vmap(lambda r: who.choose(key, r, uids))(jnp.arange(every * blocks))))
    for chosen in np.asarray(draw(jax.random.split(jax.random.key(0), seeds))):
        assert all(len(set(row)) == size for row in chosen.tolist()), "nobody is asked twice in a round"
        for block in chosen.reshape(blocks, every * size):
            assert set(block.tolist()) == set(range(n))
        assert len({tuple(block) for block in chosen.reshape(blocks, -1).tolist()}) > 1


@properties
@given(plan=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=4, max_size=4))
def test_a_schedule_names_exactly_its_clients(plan):
    who = fd.Schedule(plan)
    for r in range(9):
        chosen = np.asarray(who.choose(jax.random.key(0), jnp.asarray(r), jnp.zeros((5, 2), jnp.uint32)))
        assert len(chosen) == who.size(5)
        assert sorted(c for c in chosen.tolist() if c < 5) == np.flatnonzero(plan[r % 4]).tolist()


def test_a_schedule_runs_and_starts_again_from_the_top():
    plan = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=bool)
    wrote, heard, history = played(plan, rounds=10)
    np.testing.assert_array_equal(history["asked"], plan[np.arange(10) % 4].sum(axis=1))
    # a round that nobody answers changes nothing, so the server's own count, by which all write, stays behind
    expected = plan[[0, 1, 3, 0, 1, 3, 0, 1]]
    np.testing.assert_array_equal(~np.isnan(wrote)[:8], expected)
    np.testing.assert_array_equal(wrote, heard)
    assert np.all(np.isnan(wrote[8:]))


@pytest.mark.parametrize("who", [fd.Fraction(dropout=0.2), SOME], ids=str)
def test_lost_replies_are_as_if_the_client_had_not_taken_part(who):
    wrote, heard, history = played(who)
    np.testing.assert_array_equal(np.sort(wrote[~np.isnan(wrote)]), np.sort(heard[~np.isnan(heard)]))
    answered = (~np.isnan(wrote)).sum(axis=1)
    assert history["answered"].sum() == np.sum(~np.isnan(heard))
    assert np.all(history["asked"] == who.size(len(NAMES)))
    lost = history["asked"].sum() - history["answered"].sum()
    assert 0.05 < lost / history["asked"].sum() < 0.4
    assert np.all(answered <= who.size(len(NAMES)))


def test_a_clients_draws_depend_on_the_seed_the_round_and_its_name_alone():
    named = regression()
    wrote, _, _ = played(1.0)
    more = dict(reversed(named.items())) | {"z": named["a"]}
    again, _, _ = played(1.0, more)
    places = [list(more).index(name) for name in NAMES]
    np.testing.assert_array_equal(again[:, places], wrote)
    other, _, _ = played(1.0, seed=1)
    assert not np.any(other == wrote)
    half, _, _ = played(0.5)  # asks some of them only
    asked = ~np.isnan(half)
    np.testing.assert_array_equal(half[asked], wrote[asked])


def test_who_is_asked_depends_on_names_not_on_places():
    named = regression()
    first, _, _ = played(0.5)
    turned, _, _ = played(0.5, dict(reversed(named.items())))
    np.testing.assert_array_equal(first, turned[:, ::-1])


def test_only_the_clients_asked_do_work():
    """Each call of local is counted where it happens: as many as were asked, not as many as there are."""
    calls = []

    @settings
    class Counting(Diary):
        """A diary that also counts."""

        def local(self, terms, client, message, data, key):
            client, note = super().local(terms, client, message, data, key)
            jax.debug.callback(lambda draw: calls.append(float(draw)), note.draw)
            return client, note

    wrote, _, _ = played(fd.Fraction(0.5), rounds=5, algorithm=Counting())
    jax.effects_barrier()
    assert sorted(calls) == sorted(wrote[~np.isnan(wrote)])
    assert len(calls) == 5 * 3


def test_bytes_count_the_asked_downwards_and_the_answers_upwards():
    _, _, history = played(SOME)
    np.testing.assert_array_equal(history["bytes_down"], 8 * history["asked"])  # the round's number, an int64
    np.testing.assert_array_equal(history["bytes_up"], 8 * history["answered"])  # a float64


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, r"'participation' fraction must be in \(0, 1\]\. Got 0"),
        (1.2, "Got 1.2"),
        (-0.5, "Got -0.5"),
        (float("nan"), "Got nan"),
        ("half", "half"),
        (None, "None"),
        (True, "True"),
        (np.ones(5, bool), r"array \(rounds, clients\)\. Got shape \(5,\)"),
        (np.ones((2, 4), bool), "The Schedule is for 4 clients, but the problem has 5"),
        (lambda: fd.Fraction(0.5, dropout=1.0), r"'dropout' of replies must be in \[0, 1\)\. Got 1\.0"),
        (lambda: fd.Schedule(np.ones((1, 5)), dropout=-0.1), r"'dropout' of replies must be in \[0, 1\)\. Got -0\.1"),
        (lambda: fd.Coverage(0.2, every=4), "asks 1 of 5 clients a round, which cannot reach all of them in 4 rounds"),
        (lambda: fd.Coverage(0.2, every=0), "cannot reach|whole number"),
        (lambda: fd.Coverage(0.5, every=2.5), "Got 2.5"),
    ],
)
def test_a_wrong_participation_gets_a_sentence(value, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.solve(problem(), fd.FedAvg(), participation=value() if callable(value) else value, max_rounds=2)


# --- what a server may do with the replies ---

rows = st.lists(st.floats(-10, 10), min_size=3, max_size=3).map(np.array)


@properties
@given(values=rows, here=st.lists(st.booleans(), min_size=3, max_size=3), junk=st.sampled_from([np.nan, np.inf, 7.0]))
def test_a_mean_over_those_present_ignores_what_the_others_hold(values, here, junk):
    here = np.array(here)
    present = Present(jnp.array([4, 0, 2]), jnp.array(here))
    replies = jnp.array(np.where(here, values, junk))
    assert present.mean(replies) == pytest.approx(values[here].mean() if here.any() else 0.0)
    assert present.max(replies) == (values[here].max() if here.any() else -np.inf)
    table = np.arange(5.0)
    expected = table.copy()
    expected[np.array([4, 0, 2])[here]] = values[here]
    np.testing.assert_array_equal(present.remember(jnp.array(table), replies), expected)
