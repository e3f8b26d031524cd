"""Checkpoints: a run goes on as if nothing had happened, and a file that is not its own is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import ALL, CASES, SOME, classification, over, problem, regression
from same_runs import same

import foedus as fd
from foedus.base.files import pack, unpack, write_whole
from foedus.runtime import simulate as simulator
from foedus.runtime.checkpoint import Checkpoint, fingerprint

ROUNDS = 12
every = over(ALL)


@pytest.fixture
def one_round_chunks(monkeypatch):
    """The first chunk plays four rounds, every later one a single round."""
    monkeypatch.setattr(simulator, "CHUNK_SECONDS", 0.0)


def stop_at(rounds: int):
    return lambda played, record: played >= rounds


@every
@pytest.mark.usefixtures("one_round_chunks")
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    file, told = tmp_path / "run.ckpt", {"max_rounds": ROUNDS, "seed": 5}
    whole = fd.solve(problem(), case.algorithm, **told)
    if whole.rounds <= 6:  # it ends before it could be interrupted; with sites that are not asked it takes longer
        told["participation"] = fd.Fraction(0.4)
        whole = fd.solve(problem(), case.algorithm, **told)
    part = fd.solve(problem(), case.algorithm, **told, checkpoint=file, callback=stop_at(6))
    assert part.rounds == 6
    assert part.interrupted
    assert str(file) in part.reason
    same(fd.solve(problem(), case.algorithm, **told, checkpoint=file), whole)


@pytest.mark.usefixtures("one_round_chunks")
@pytest.mark.parametrize(
    "who",
    [fd.Coverage(0.4, every=3), pytest.param(fd.Schedule(np.eye(5, dtype=bool), dropout=0.1), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_resumed_run_asks_the_same_clients(who, tmp_path):
    arguments = {"max_rounds": ROUNDS, "participation": who}
    algorithm, file = CASES["LocalSGD"][0].algorithm, tmp_path / "run.ckpt"
    whole = fd.solve(problem(), algorithm, **arguments)
    fd.solve(problem(), algorithm, **arguments, checkpoint=file, callback=stop_at(5))
    same(fd.solve(problem(), algorithm, **arguments, checkpoint=file), whole)


def test_a_run_may_be_given_more_rounds_later(tmp_path):
    algorithm, file = CASES["FedPD"][0].algorithm, tmp_path / "run.ckpt"
    fd.solve(problem(), algorithm, max_rounds=5, checkpoint=file)
    same(
        fd.solve(problem(), algorithm, max_rounds=ROUNDS, checkpoint=file),
        fd.solve(problem(), algorithm, max_rounds=ROUNDS),
    )


def test_a_finished_run_is_returned_from_its_checkpoint(tmp_path):
    algorithm, file = CASES["FedAvg"][0].algorithm, tmp_path / "run.ckpt"
    first = fd.solve(problem(), algorithm, checkpoint=file)
    assert first.converged
    same(first, fd.solve(problem(), algorithm, checkpoint=file))


SCRIPT = """
import os, sys
sys.path[:0] = {folders!r}
import foedus as fd
from foedus.runtime import simulate as simulator
from foedus.runtime.checkpoint import Checkpoint
from cases import CASES, SOME, problem

simulator.CHUNK_SECONDS = 0.0
Checkpoint.__init__.__defaults__ = (0.0,)  # keep every chunk

def look(rounds, record):
    if rounds == int(sys.argv[1]):
        os.kill(os.getpid(), 9)

algorithm = CASES["Scaffold"][0].algorithm
fd.solve(problem(), algorithm, max_rounds={rounds}, participation=SOME, checkpoint="ckpt", callback=look)
"""


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    script = tmp_path / "run.py"
    folders = [str(Path(__file__).parents[1] / "support"), os.path.dirname(os.path.dirname(fd.__file__))]
    script.write_text(SCRIPT.format(folders=folders, rounds=ROUNDS))

    command = [sys.executable, "-W", "error", str(script), "7"]
    assert subprocess.run(command, cwd=tmp_path, timeout=120, check=False).returncode == -signal.SIGKILL
    kept, _ = unpack((tmp_path / "ckpt").read_bytes())
    assert len(kept["history.phase"]) == 6, "the last whole checkpoint is the one before the kill"
    (tmp_path / ".ckpt.1.tmp").write_bytes(b"half a file, as a crash may leave it")
    algorithm, told = CASES["Scaffold"][0].algorithm, {"max_rounds": ROUNDS, "participation": SOME}
    resumed = fd.solve(problem(), algorithm, **told, checkpoint=tmp_path / "ckpt")
    same(resumed, fd.solve(problem(), algorithm, **told))


@pytest.mark.usefixtures("one_round_chunks")
def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    algorithm, file = CASES["Scaffold"][0].algorithm, tmp_path / "run.ckpt"

    def press(rounds, record):
        if rounds == 5:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    part = fd.solve(problem(), algorithm, max_rounds=ROUNDS, checkpoint=file, callback=press)
    assert signal.getsignal(signal.SIGINT) is before
    assert part.interrupted
    assert 5 <= part.rounds < ROUNDS
    assert f"run again with checkpoint={str(file)!r} to go on" in part.reason
    same(
        fd.solve(problem(), algorithm, max_rounds=ROUNDS, checkpoint=file),
        fd.solve(problem(), algorithm, max_rounds=ROUNDS),
    )


@pytest.mark.usefixtures("one_round_chunks")
def test_a_second_ctrl_c_goes_through_at_once():
    def press(rounds, record):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fd.solve(problem(), CASES["Scaffold"][0].algorithm, max_rounds=ROUNDS, callback=press)


# --- files that are not this run's ---


@pytest.fixture
def kept(tmp_path):
    """A checkpoint after five rounds."""
    file = tmp_path / "run.ckpt"
    fd.solve(problem(), CASES["FedAvg"][0].algorithm, max_rounds=5, checkpoint=file)
    return file


def other_data() -> fd.Problem:
    clients = {name: (X.copy(), y.copy()) for name, (X, y) in regression().items()}
    clients["e"][0][0, 0] += 1e-12
    return fd.Problem(clients, loss=fd.losses.least_squares)


def other_names() -> fd.Problem:
    return fd.Problem({name.upper(): part for name, part in regression().items()}, loss=fd.losses.least_squares)


@pytest.mark.parametrize(
    "other",
    [
        {"problem": other_data},
        {"problem": other_names},
        {"problem": lambda: problem("ridge")},
        {"problem": lambda: fd.Problem(classification(), loss=fd.losses.logistic)},
        {"algorithm": fd.FedAvg(k0=2, tol=1e-20)},
        {"algorithm": fd.FedProx()},
        {"seed": 1},
        {"participation": 0.5},
        {"participation": np.ones((1, 5), dtype=bool)},
        {"w0": np.ones(4)},
    ],
    ids=["data", "names", "penalty", "loss", "setting", "algorithm", "seed", "fraction", "schedule", "start"],
)
def test_a_checkpoint_of_another_run_is_refused_and_left_alone(kept, other):
    content = kept.read_bytes()
    arguments = {"problem": problem, "algorithm": CASES["FedAvg"][0].algorithm} | other
    with pytest.raises(fd.FoedusError, match=r"checkpoint .*run\.ckpt: it belongs to another run"):
        fd.solve(arguments.pop("problem")(), arguments.pop("algorithm"), **arguments, checkpoint=kept)
    assert kept.read_bytes() == content


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: b"not a checkpoint",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: pack({}, {}),
        lambda content: pack({}, {"leaves": 0}),
        lambda content: content.replace(b"foedus checkpoint 2", b"foedus checkpoint 1"),
    ],
    ids=["empty", "text", "half", "short by one", "no note", "no digest", "version"],
)
def test_a_damaged_checkpoint_is_refused(kept, spoil):
    kept.write_bytes(spoil(kept.read_bytes()))
    with pytest.raises(fd.FoedusError, match=r"checkpoint .*run\.ckpt: it .*delete it to start anew"):
        fd.solve(problem(), CASES["FedAvg"][0].algorithm, checkpoint=kept)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_is_noticed_or_harmless(tmp_path, flip):
    """Every single byte of the file in turn."""
    file = tmp_path / "run.ckpt"
    carry, history = {"w": np.arange(3.0), "k": np.array(3)}, {"objective": np.linspace(0, 1, 4)}
    Checkpoint(file, "name").keep(carry, history, final=True)
    content = file.read_bytes()
    refused = 0
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
        try:
            found, columns = Checkpoint(file, "name").load(carry)
        except fd.FoedusError:
            refused += 1
            continue
        for name, array in carry.items():
            np.testing.assert_array_equal(found[name], array)
        assert columns.keys() == history.keys()
        np.testing.assert_array_equal(columns["objective"], history["objective"])
    assert refused > len(content) / 2


def test_a_checkpoint_needs_a_folder_that_is_there(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "run.ckpt"):
        with pytest.raises(fd.FoedusError, match="expected a file name in a folder that exists"):
            fd.solve(problem(), CASES["FedAvg"][0].algorithm, checkpoint=path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    file = tmp_path / "whole"
    write_whole(file, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        fd.FoedusError, match=r"cannot write .*: No space left on device; what was there before is unchanged"
    ):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_packing_is_exact_and_repeatable():
    arrays = {"a": np.array([np.nan, -0.0, np.inf]), "b": np.arange(6).reshape(2, 3), "c": np.array(True)}
    content = pack(arrays, {"n": 1})
    found, note = unpack(content)
    assert note == {"n": 1}
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes())
    assert pack(arrays, {"n": 1}) == content


def test_fingerprints_tell_arrays_apart():
    names = [fingerprint("a", np.zeros(2)), fingerprint("b", np.zeros(2)), fingerprint("a", np.zeros(3))]
    names += [
        fingerprint("a", np.zeros(2, int)),
        fingerprint("a", {"x": np.zeros(2)}),
        fingerprint("a", np.array([0.0, 1e-300])),
    ]
    assert len(set(names)) == len(names)
    assert fingerprint("a", np.zeros(2)) == names[0]
