"""Rounds that do not wait for the slowest: sessions in one process over a post with a clock of its own."""

import heapq

import numpy as np
import pytest
from halls import QUICK, Hall

import foedus as fd
from foedus.federation.flare.post import Answer, ask
from foedus.federation.order import Patience, Result
from foedus.federation.server import ServerSession
from foedus.runtime import clock

TEN = tuple(f"site-{i + 1}" for i in range(10))


class SlowPost:
    """Answers arrive after each site's delay, by a clock that moves only while somebody waits."""

    def __init__(self, hall: Hall, delays: dict[str, float]):
        self.hall, self.delays, self.time, self.ticket, self.most = hall, delays, 0.0, 0, 2**30
        self.queue: list[tuple[float, str, int, bytes]] = []
        self.asked: list[set[str]] = []
        self.busy: set[str] = set()
        self.missing: set[str] = set()

    def send(self, messages) -> int:
        is_round = all(b'"ask": "round"' in message for message in messages.values())
        assert not (is_round and self.busy & messages.keys()), "a site that owes an answer is not asked"
        self.ticket += 1
        self.asked.append({*messages})
        self.busy |= messages.keys()
        for site, message in messages.items():
            answer = (self.time + self.delays[site], site, self.ticket, self.hall.site[site].answer(message))
            heapq.heappush(self.queue, answer)
        return self.ticket

    def take(self, seconds: float) -> Answer | None:
        if not self.queue or self.queue[0][0] > self.time + seconds:
            self.time += seconds
            return None
        at, site, ticket, content = heapq.heappop(self.queue)
        self.time = max(self.time, at)
        self.busy.discard(site)
        return Answer(ticket, site, content, self.time)

    def give_back(self, answers) -> None:
        for one in answers:
            self.busy.add(one.site)
            heapq.heappush(self.queue, (one.time, one.site, one.ticket, one.content))

    def now(self) -> float:
        return self.time


def problem(rows: int = 6) -> fd.Problem:
    """Ten sites whose data differ, the last one's most of all: an answer without it is another one."""
    rng = np.random.default_rng(0)
    truth = [np.array([1.0, -1.0])] * 9 + [np.array([-4.0, 6.0])]
    sites = {}
    for name, w in zip(TEN, truth, strict=True):
        x = rng.standard_normal((rows, 2))
        sites[name] = (x, x @ w)
    return fd.Problem(sites, loss=fd.losses.least_squares)


def play(folder, algorithm, delays, quorum=None, late="drop", **told) -> tuple[Result, SlowPost]:
    hall = Hall(folder, problem(), algorithm, **told)
    post = SlowPost(hall, delays)
    patience = Patience(timeout=5.0, hello=5.0, keep_every=1e9, quorum=quorum, late=late)
    session = ServerSession(
        hall.order, folder / "server", lambda m, t: ask(post, m, t, lambda: False), patience, post=post
    )
    return session.play(), post


SLOW = dict.fromkeys(TEN, 0.01) | {TEN[-1]: 0.1}
FAST = dict.fromkeys(TEN, 0.01)


def test_the_deadline_and_the_period_follow_from_the_sites_own_times():
    times = [SLOW[site] for site in TEN]
    assert clock.quorum_count(0.8, 10) == 8
    assert clock.deadline(times, 0.8) == pytest.approx(0.015)
    period = clock.period(times, 0.8)
    waited = (period * 0.01 + 0.09) / (period * 0.01)  # the time of a period beside that of its rounds alone
    assert 1.05 < waited <= 1 + clock.SHARE
    assert clock.period([0.01] * 10, 0.8) == 1, "nobody is slow: everybody is waited for in every round"


def test_without_a_quorum_every_round_waits_for_the_slowest(tmp_path):
    algorithm = fd.FedAvg(k0=1, lr=0.05, tol=0.0)
    _, post = play(tmp_path, algorithm, SLOW, max_rounds=20)
    assert post.time >= 20 * 0.1


def test_with_a_quorum_few_rounds_wait_and_nobody_fast_is_left_out(tmp_path):
    algorithm = fd.FedAvg(k0=1, lr=0.05, tol=0.0)
    result, post = play(tmp_path, algorithm, SLOW, 0.8, max_rounds=30)
    answered = result.history["answered"]
    assert answered[0] == 10, "the first round waits for everybody, and finds the times"
    assert np.all(answered[1:] == 9)
    # greeting, joining, the first round, the checkpoint, the measurement and the goodbye; all other rounds 10 ms each
    assert post.time == pytest.approx(6 * 0.1 + 29 * 0.01)


def test_when_nobody_is_slow_a_quorum_changes_no_iterate(tmp_path):
    algorithm = fd.FedAvg(k0=1, lr=0.05, tol=0.0)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, _ = play(tmp_path / "a", algorithm, FAST, max_rounds=12)
    two, _ = play(tmp_path / "b", algorithm, FAST, 0.8, late="next", max_rounds=12)
    np.testing.assert_array_equal(one.conclusion.w, two.conclusion.w)
    assert np.all(two.history["answered"] == 10)


def by_hand(late: str, rounds: int, lr: float) -> np.ndarray:
    """The model after so many rounds in NumPy: the last site's answers take nine rounds and a half."""
    sites = [(np.asarray(c["x"]), np.asarray(c["y"])) for c in (problem().client(i) for i in range(10))]
    w, change, age = np.zeros(2), np.zeros(2), 0

    def step(i: int) -> np.ndarray:
        x, y = sites[i]
        return -lr * x.T @ (x @ w - y) / len(y)

    for round in range(rounds):
        changes = [step(i) for i in range(9)]
        if round == 0:  # which waits for everybody
            arrived = step(9)
            changes.append(arrived)
        else:
            asked = (round - 1) % 10 == 0
            change = step(9) if asked else change
            age = 0 if asked else age + 1
            if age == 9:
                arrived = change
            if late == "next":
                changes.append(arrived)
            elif age == 9:
                changes.append(arrived / np.sqrt(1 + 9))
        w = w + np.mean(changes, axis=0)
    return w


@pytest.mark.parametrize("late", ["next", "weighted"])
def test_a_late_answer_counts_until_the_next_or_once_by_its_age(tmp_path, late):
    algorithm = fd.FedAvg(k0=1, lr=0.05, tol=0.0)
    slow = SLOW | {TEN[-1]: 0.095}
    result, _ = play(tmp_path, algorithm, slow, 0.8, late=late, max_rounds=45)
    np.testing.assert_allclose(result.conclusion.w, by_hand(late, 45, 0.05), rtol=1e-9)


@pytest.mark.slow
def test_the_memory_leads_to_the_answer_over_all_data_and_weights_by_age_do_not():
    truth = fd.solve(problem(), fd.FedAvg(k0=1, tol=1e-10), max_rounds=20_000).w
    apart = {}
    for late in ("drop", "next", "weighted"):
        who = fd.Fraction(delays=[SLOW[site] for site in TEN], quorum=0.8, late=late)
        run = fd.solve(problem(), fd.FedAvg(k0=1, lr=0.05, tol=0.0), max_rounds=600, participation=who)
        apart[late] = float(np.linalg.norm(run.w - truth))
    print(apart)
    assert apart["next"] < 0.05 * apart["weighted"]
    assert apart["weighted"] < apart["drop"]


@pytest.mark.slow
def test_one_slow_site_of_ten_costs_at_most_a_third_and_its_data_count(tmp_path):
    """The run over all ten ends by its own test, at the answer over all data, within 1.3 times the fast one's time."""
    algorithm = fd.FedAvg(k0=1, lr=0.008, tol=1e-10)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    fast, quick = play(tmp_path / "a", algorithm, FAST, max_rounds=5000)
    slow, post = play(tmp_path / "b", algorithm, SLOW, 0.8, late="next", max_rounds=5000)
    assert fast.conclusion.converged
    assert slow.conclusion.converged, slow.conclusion.reason
    np.testing.assert_allclose(slow.conclusion.w, fast.conclusion.w, atol=1e-3)
    assert slow.conclusion.certificate.stationarity <= 1e-4
    print(f"fast {quick.time:.2f} s, with the slow site {post.time:.2f} s: {post.time / quick.time:.3f}")
    assert post.time <= 1.3 * quick.time


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"quorum": 1.5}, "'quorum' of Flare must be in"),
        ({"late": "never"}, "'late' of Flare must be"),
        ({"quorum": 0.8, "transport": "task"}, "goes with transport='aux'"),
        ({"quorum": 0.8, "secure": True}, "masked sums wait for their sites"),
    ],
)
def test_settings_that_cannot_be_are_refused(told, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.Flare(**told)


def test_the_patience_of_a_job_carries_the_quorum():
    assert fd.Flare(quorum=0.8, late="next").patience["quorum"] == 0.8
    assert QUICK.quorum is None


# --- the same clock in a simulation ---


def seconds(*names: str) -> tuple[float, ...]:
    return tuple(0.1 if name in names else 0.01 for name in TEN)


def test_a_simulation_with_delays_plays_the_clock_of_real_sites(tmp_path):
    """The same rounds at the same times as the sessions over a post, and the same iterates."""
    algorithm = fd.FedAvg(k0=1, lr=0.05, tol=0.0)
    result, _ = play(tmp_path, algorithm, SLOW, 0.8, late="next", max_rounds=30)
    slow = fd.Fraction(delays=seconds(TEN[-1]), quorum=0.8, late="next")
    run = fd.solve(problem(), algorithm, max_rounds=30, participation=slow)
    np.testing.assert_array_equal(run.w, result.conclusion.w)
    np.testing.assert_array_equal(run.history["answered"], result.history["answered"])
    assert np.all(np.diff(run.history["clock"]) >= 0.01 - 1e-12)
    assert run.settings["participation"]["quorum"] == 0.8


def test_without_a_quorum_delays_change_the_clock_and_no_iterate():
    algorithm = fd.FedAvg(k0=1, lr=0.05, tol=0.0)
    plain = fd.solve(problem(), algorithm, max_rounds=12)
    run = fd.solve(problem(), algorithm, max_rounds=12, participation=fd.Fraction(delays=seconds(TEN[3])))
    np.testing.assert_allclose(run.w, plain.w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.history["clock"], 0.1 * np.arange(1, 13))
    assert run.certificate.stationarity == pytest.approx(plain.certificate.stationarity, rel=1e-9)


@pytest.mark.slow
def test_a_callback_ends_a_simulation_with_delays():
    slow = fd.Fraction(delays=seconds())
    run = fd.solve(problem(), fd.FedAvg(tol=0.0), participation=slow, callback=lambda rounds, record: rounds >= 5)
    assert (run.rounds, run.interrupted) == (5, True)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"delays": [0.1, -1.0]}, "must be seconds > 0"),
        ({"quorum": 0.5}, "are for clients with 'delays'"),
        ({"delays": [0.1], "quorum": 2.0}, "must be in"),
        ({"delays": [0.1], "late": "never"}, "must be 'drop', 'next' or 'weighted'"),
    ],
)
def test_delays_that_cannot_be_are_refused(told, words):
    with pytest.raises(fd.FoedusError, match=words):
        fd.Fraction(**told)


def test_delays_are_refused_where_they_would_not_be_played(tmp_path):
    slow = fd.Fraction(delays=seconds())
    two = fd.Problem([(np.eye(2), np.ones(2))] * 2, loss=fd.losses.least_squares)
    with pytest.raises(fd.FoedusError, match="are for 10 clients, but the problem has 2"):
        fd.solve(two, fd.FedAvg(), participation=slow)
    with pytest.raises(fd.FoedusError, match="without checkpoint="):
        fd.solve(problem(), fd.FedAvg(), participation=slow, checkpoint=tmp_path / "run.ckpt")
    with pytest.raises(fd.FoedusError, match="real sites take the time they take"):
        Hall(tmp_path, problem(), fd.FedAvg(), participation=slow)
