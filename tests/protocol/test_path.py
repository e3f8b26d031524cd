"""How many files and functions of foedus a round passes through: what somebody has to open who follows one."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from halls import Hall
from masked_halls import MaskedHall

import foedus as fd
from foedus.app.check import small_problem
from foedus.federation.masked_rounds import MaskedRounds
from foedus.federation.rounds import Rounds
from foedus.privacy.releasing import make_private
from foedus.protocol.algorithm import Algorithm
from foedus.runtime import simulate

PACKAGE = str(Path(fd.__file__).parent)
OF_EVERY_CALL = "base/engine.py"  # which public functions enter for float64; nothing of a round is in it
NOISE = fd.Gaussian(epsilon=1.0, delta=1e-5, clip=1.0)


@dataclass(repr=False)
class Walk:
    """What a call passes through: files, functions, and how often the next line stands in another file."""

    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    changes: int = 0
    last: str = ""

    def note(self, frame, event, argument):
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(PACKAGE):
            return
        path = path.removeprefix(PACKAGE + "/")
        if path != OF_EVERY_CALL:
            self.files.add(path)
            self.functions.add((path, frame.f_code.co_qualname))
            self.changes += path != self.last
            self.last = path

    def watch(self, call: Callable[[], object]) -> object:
        jax.clear_caches()  # a round that was traced before would pass nothing
        sys.setprofile(self.note)
        try:
            return call()
        finally:
            sys.setprofile(None)

    def __repr__(self) -> str:
        figures = f"{len(self.files)} files, {len(self.functions)} functions, {self.changes} changes of file"
        return f"{figures}: {' '.join(sorted(self.files))}"


def simulated(algorithm: Algorithm) -> Walk:
    problem = small_problem(fd.losses.logistic).over(np.zeros(3))
    fit = algorithm.fit(problem)
    inputs = simulate.inputs_of(fit, fd.Fraction(1.0), 0)
    at = simulate.start(fit.algorithm, problem.terms, jnp.zeros(3), inputs.data, None)
    walk = Walk()
    walk.watch(lambda: simulate.chunk(fit.algorithm, problem.terms, at, inputs, np.int64(1)))
    return walk


def over_messages(hall: Hall, monkeypatch: pytest.MonkeyPatch, kind: type[Rounds] = Rounds) -> Walk:
    """The first round of all parties together: the server's part, and that of each site."""
    walks: list[Walk] = []
    play = kind.play

    def watched(rounds, at):
        if walks:
            return play(rounds, at)
        walks.append(Walk())
        return walks[0].watch(lambda: play(rounds, at))

    monkeypatch.setattr(kind, "play", watched)
    hall.play()
    return walks[0]


@pytest.mark.parametrize(
    ("algorithm", "files", "functions"),
    [(fd.FedAvg(lr=0.1), 7, 70), pytest.param(fd.InteriorPoint(), 18, 200, marks=pytest.mark.slow)],
)
def test_a_simulated_round_passes_few_files(algorithm, files, functions):
    walk = simulated(algorithm)
    assert {"FedAvg": "algorithms/fedavg.py"}.get(type(algorithm).__name__, "interior_point.py") in repr(walk)
    assert len(walk.files) <= files, walk
    assert len(walk.functions) <= functions, walk


@pytest.mark.parametrize(
    ("algorithm", "files", "functions"),
    [(fd.FedAvg(lr=0.1), 11, 130), pytest.param(fd.InteriorPoint(), 28, 320, marks=pytest.mark.slow)],
)
def test_a_round_over_messages_passes_few_files(algorithm, files, functions, tmp_path, monkeypatch):
    hall = Hall(tmp_path, small_problem(fd.losses.logistic), algorithm, max_rounds=2)
    walk = over_messages(hall, monkeypatch)
    assert len(walk.files) <= files, walk
    assert len(walk.functions) <= functions, walk


def test_a_private_masked_round_over_messages_passes_few_files(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    problem = small_problem(fd.losses.logistic)
    algorithm = make_private(fd.FedAvg(lr=0.1, k0=1), NOISE, None, problem, 2)
    walk = over_messages(MaskedHall(tmp_path, problem, algorithm, max_rounds=2), monkeypatch, MaskedRounds)
    assert "sums/masks.py" in walk.files
    assert len(walk.files) <= 37, walk
    assert len(walk.functions) <= 340, walk


def test_a_reader_of_fedavg_opens_one_file():
    """Mixins without a line of its rounds do not count."""
    own = [cls for cls in fd.FedAvg.__mro__ if cls.__module__.startswith("foedus.algorithms.")]
    rounds = {"init", "join", "broadcast", "local", "aggregate", "ended", "phase", "kinds", "parameters", "report"}
    files = {cls.__module__ for cls in own if rounds & vars(cls).keys()}
    assert files == {"foedus.algorithms.fedavg"}
