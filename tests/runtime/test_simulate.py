"""The simulator: what must not matter does not, states are kept, histories repeat, traffic adds up, runs are kept."""

import json
import threading

import jax
import numpy as np
import pytest
from cases import ALL, CASES, DIM, NAMES, SIZES, SOME, Case, classification, over, problem, regression, slow
from played import rounds_played
from same_runs import same

import foedus as fd
from foedus.runtime import simulate as simulator

every = over(ALL)
FEW = 9  # rounds, far from convergence


def close(a: fd.Run, b: fd.Run) -> None:
    """Two runs agree beyond rounding."""
    np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-12 * (1 + np.max(np.abs(a.w))))
    for name in ("objective", "minibatch_objective"):
        if name in a.history:
            np.testing.assert_allclose(a.history[name], b.history[name], rtol=1e-12)


@every
def test_the_order_of_clients_changes_nothing(case):
    turned = fd.Problem(dict(reversed(regression().items())), loss=fd.losses.least_squares)
    close(fd.solve(problem(), case.algorithm, max_rounds=FEW), fd.solve(turned, case.algorithm, max_rounds=FEW))


def filled(rows: int) -> fd.Problem:
    """The ragged clients in a rectangle of as many rows, the rest of it wild numbers."""
    rng = np.random.default_rng(0)
    X, y = 1e2 * rng.normal(size=(len(NAMES), rows, DIM)), 1e2 * rng.normal(size=(len(NAMES), rows))
    for i, (own_X, own_y) in enumerate(regression().values()):
        X[i, : len(own_y)], y[i, : len(own_y)] = own_X, own_y
    return fd.Problem(fd.data.Stacked({"x": X, "y": y}, counts=SIZES, names=NAMES), loss=fd.losses.least_squares)


@every
@pytest.mark.slow
def test_what_the_filling_holds_changes_nothing(case):
    other = filled(max(SIZES))
    close(fd.solve(problem(), case.algorithm, max_rounds=FEW), fd.solve(other, case.algorithm, max_rounds=FEW))


@over([*slow(*CASES["FedAvg"]), CASES["FedGiA"][1], *CASES["LocalSGD"]])
def test_how_much_filling_there_is_changes_nothing(case):
    other = filled(max(SIZES) + 5)
    close(fd.solve(problem(), case.algorithm, max_rounds=FEW), fd.solve(other, case.algorithm, max_rounds=FEW))


@every
def test_the_same_seed_gives_the_same_history_to_the_bit(case):
    same(*(fd.solve(problem(), case.algorithm, max_rounds=FEW, seed=3) for _ in range(2)))


def test_another_seed_gives_other_minibatches_and_other_groups():
    for name in ("LocalSGD", "FedGiA"):
        algorithm = CASES[name][0].algorithm
        first, second = (fd.solve(problem(), algorithm, max_rounds=FEW, seed=seed) for seed in (3, 4))
        assert np.max(np.abs(first.w - second.w)) > 1e-6


@every
def test_chunks_are_only_a_way_of_looking(case, monkeypatch):
    whole = fd.solve(problem(), case.algorithm, max_rounds=FEW)
    monkeypatch.setattr(simulator, "CHUNK_SECONDS", 0.0)
    seen = []
    parts = fd.solve(problem(), case.algorithm, max_rounds=FEW, callback=lambda rounds, record: seen.append(rounds))
    same(whole, parts)
    assert seen == list(range(min(4, whole.rounds), whole.rounds + 1)), "after the first four, round by round"


@pytest.mark.parametrize("block", [1, 2, 3, 5, 9])
def test_blocks_of_clients_are_only_a_way_of_working(block):
    data, shift = {"x": np.arange(15.0).reshape(5, 3)}, np.array([1.0, 2.0, 3.0])

    def one(name, data, shift):
        return data["x"] @ shift + name, {"twice": 2 * data["x"]}

    dots, twice = simulator.over_clients(one, (np.arange(5.0), data, shift), (0, 0, None), block)
    np.testing.assert_array_equal(dots, data["x"] @ shift + np.arange(5.0))
    np.testing.assert_array_equal(twice["twice"], 2 * data["x"])


# --- clients that are not there ---


ALL_HERE, WITHOUT_C = [1, 1, 1, 1, 1], [1, 1, 0, 1, 1]


def states_after(case, rounds: int, fourth: list[int]) -> list:
    """The clients' states after some rounds, all of them with everyone up to the fourth, as (client, ...) arrays."""
    plan = np.array([ALL_HERE] * 3 + [fourth] * 2, dtype=bool)
    rounds_of_case = rounds_played(problem(), case.algorithm, max_rounds=rounds, participation=plan)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(rounds_of_case.at.clients)]


@over([*CASES["FedPD"], *CASES["Scaffold"], CASES["FedGiA"][2]])
def test_a_client_that_is_not_there_keeps_its_state(case):
    before, after = states_after(case, 3, WITHOUT_C), states_after(case, 5, WITHOUT_C)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old[2], new[2])
    assert any(np.any(old[3] != new[3]) for old, new in zip(before, after, strict=True))


@over([*CASES["FedPD"], *CASES["Scaffold"], CASES["FedGiA"][2]])
def test_dropping_a_client_does_not_change_the_others_state(case):
    with_it, without = states_after(case, 4, ALL_HERE), states_after(case, 4, WITHOUT_C)
    for full, part in zip(with_it, without, strict=True):
        np.testing.assert_array_equal(np.delete(full, 2, axis=0), np.delete(part, 2, axis=0))


@over(
    [*slow(*CASES["FedPD"]), *CASES["Scaffold"], CASES["FedGiA"][1], *slow(*CASES["FedGiA"][:1], *CASES["FedGiA"][2:])]
)
def test_methods_with_a_memory_reach_the_answer_when_only_some_take_part(case):
    expected = fd.solve(problem(), CASES["FedAvg"][0].algorithm)
    run = fd.solve(problem(), case.algorithm, participation=SOME, max_rounds=3000)
    np.testing.assert_allclose(run.w, expected.w, atol=1e-6)


@over([*slow(Case(fd.FedPD())), Case(fd.FedGiA(t=1.0))])
def test_a_run_that_says_it_has_converged_has(case):
    """After the first round only client a is heard, and what the others said then is no word on the model now."""
    plan = np.zeros((300, len(NAMES)), dtype=bool)
    plan[0], plan[:, 0] = True, True
    run = fd.solve(problem(), case.algorithm, participation=plan, max_rounds=300)
    assert not run.converged or run.certificate.stationarity**2 <= case.algorithm.tol


# --- traffic ---


def test_fedavgs_traffic_is_a_hand_count():
    number = 8  # bytes
    up = number * DIM + number + number * DIM  # u, f_i, ∇f_i
    down = number * DIM + number + number  # w, γ, the round
    run = fd.solve(problem(), fd.FedAvg(k0=2, lr=0.1, tol=0.0), max_rounds=6)
    assert (run.traffic.up, run.traffic.down) == (6 * 5 * up, 6 * 5 * down)
    np.testing.assert_array_equal(run.history["bytes_up"], np.full(6, 5 * up))
    without = fd.solve(problem(), fd.FedAvg(k0=2, lr=0.1, stop=None), max_rounds=6)
    assert without.traffic.up == 6 * 5 * (up - number * DIM), "no gradient is sent where no test needs it"
    greeted = fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=6)
    hello = number + number + number + number * DIM  # r_i, d_i, f_i, ∇f_i
    assert (greeted.traffic.up, greeted.traffic.down) == (5 * hello + 5 * 5 * up, 5 * number * DIM + 5 * 5 * down)


def test_fedgias_traffic_is_a_hand_count():
    number = 8
    hello = number + number + number + number * DIM  # r_i, d_i, f_i, ∇f_i
    up = number * DIM + number + number * DIM  # z_i, f_i, ∇f_i
    down = number * DIM + number + 1  # x, σ, one byte: in C or not
    for case in CASES["FedGiA"]:
        run = fd.solve(problem(), case.algorithm, max_rounds=4)
        assert (run.traffic.up, run.traffic.down) == (5 * (hello + 3 * up), 5 * (number * DIM + 3 * down))


def test_traffic_of_some_clients_counts_only_them():
    run = fd.solve(problem(), fd.FedAvg(k0=2, lr=0.1, tol=0.0), max_rounds=6, participation=0.4)
    assert np.all(run.history["asked"] == 2)
    assert run.traffic.up == 6 * 2 * (16 * DIM + 8)


# --- looking in, stopping, failing ---


def test_a_callback_sees_the_record_and_may_end_the_run(monkeypatch):
    monkeypatch.setattr(simulator, "CHUNK_SECONDS", 0.0)
    seen = {}

    def look(rounds, record):
        seen[rounds] = record
        return rounds >= 6

    run = fd.solve(problem(), fd.FedAvg(k0=2, lr=0.1, tol=0.0), callback=look)
    assert list(seen) == [4, 5, 6]
    assert (run.rounds, run.converged, run.interrupted) == (6, False, True)
    assert seen[6]["objective"] == run.history["objective"][-1]
    assert "interrupted" in run.reason


def test_a_callbacks_error_comes_through():
    def fail(rounds, record):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fd.solve(problem(), fd.FedAvg(k0=2, lr=0.1, tol=0.0), callback=fail)


def test_a_run_in_another_thread_is_the_same_run():
    algorithm = CASES["FedAvg"][0].algorithm
    runs = [fd.solve(problem(), algorithm, max_rounds=FEW)]
    thread = threading.Thread(target=lambda: runs.append(fd.solve(problem(), algorithm, max_rounds=FEW)))
    thread.start()
    thread.join()
    same(*runs)


def test_the_progress_bar_leaves_the_run_alone(capsys):
    algorithm = CASES["FedAvg"][0].algorithm
    plain, shown = (fd.solve(problem(), algorithm, max_rounds=FEW, progress=progress) for progress in (False, True))
    same(plain, shown)


# --- keeping a run ---


def test_a_run_comes_back_from_its_folder(tmp_path):
    run = fd.solve(problem(), CASES["Scaffold"][0].algorithm, participation=SOME, max_rounds=30)
    again = fd.load(run.save(tmp_path / "deep" / "run"))
    same(run, again)
    assert str(again) == str(run)
    assert (again.certificate, again.traffic, again.names) == (run.certificate, run.traffic, run.names)
    assert json.dumps(again.settings) == json.dumps(run.settings)
    assert again.settings["algorithm"]["name"] == "Scaffold"
    assert again.settings["seed"] == 0
    assert "jax" in again.settings["versions"]


def test_the_same_run_is_kept_in_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=FEW).save(tmp_path / name)
    for file in ("history.npz", "parameters.npz"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_run_may_be_kept_where_another_was(tmp_path):
    longer, shorter = (fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=rounds) for rounds in (9, 5))
    longer.save(tmp_path)
    shorter.save(tmp_path)
    same(fd.load(tmp_path), shorter)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.npz", "parameters.npz", "run.json"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "run.json").unlink(), "is not a run folder: run.json is missing"),
        (lambda folder: (folder / "history.npz").unlink(), "is not a run folder: history.npz is missing"),
        (lambda folder: (folder / "run.json").write_text("{"), "cannot be read as a run"),
        (lambda folder: (folder / "run.json").write_text("{}"), "cannot be read as a run|another version"),
        (lambda folder: (folder / "run.json").write_text('{"schema": 99}'), "another version"),
        (lambda folder: (folder / "parameters.npz").write_bytes(b"no"), "cannot be read as a run"),
    ],
)
def test_a_spoilt_folder_gets_a_sentence(tmp_path, spoil, words):
    fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=FEW).save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(fd.FoedusError, match=words):
        fd.load(tmp_path)


def test_a_folder_that_cannot_be_made_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    run = fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=FEW)
    with pytest.raises(fd.FoedusError, match="cannot make the run folder"):
        run.save(tmp_path / "file")


def test_the_run_prints_what_it_is():
    run = fd.solve(problem(), CASES["FedAvg"][0].algorithm)
    words = str(run)
    assert "FedAvg over 5 clients: ‖∇f‖² = " in words
    assert f"after {run.rounds} rounds" in words
    assert "certificate: stationarity" in words
    assert "stopped at the limit of rounds" in str(fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=FEW))


def test_a_single_client_with_a_single_example_is_a_problem_too():
    lonely = fd.Problem([(np.array([[2.0]]), np.array([3.0]))], loss=fd.losses.least_squares)
    np.testing.assert_allclose(fd.solve(lonely, fd.FedGiA(H="gram", tol=1e-20)).w, [1.5], atol=1e-9)


def test_labels_of_both_kinds_give_the_same_run():
    signed = fd.Problem({name: (X, 2 * y - 1) for name, (X, y) in classification().items()}, loss=fd.losses.logistic)
    algorithm = CASES["FedAvg"][0].algorithm
    same(*(fd.solve(made, algorithm, max_rounds=FEW) for made in (problem("logistic"), signed)))
