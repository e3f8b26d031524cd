"""How many files of foedus a round passes through: what somebody has to open who follows one with a debugger."""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import foedus as fd
from foedus.app.check import small_problem
from foedus.base.pytrees import nbytes
from foedus.federation.order import Patience, order_of, site_arrays
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.rounds import Rounds
from foedus.federation.server import ServerSession
from foedus.federation.site import SiteSession
from foedus.runtime import simulate

PACKAGE = str(Path(fd.__file__).parent)
SIMULATED, FEDERATED = 7, 11


def files_passed(call: Callable[[], object]) -> set[str]:
    """The files of foedus whose functions run in a call."""
    files: set[str] = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.add(frame.f_code.co_filename.removeprefix(PACKAGE + "/"))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files - {"base/engine.py"}  # which public functions enter for float64; nothing of a round is in it


def test_a_simulated_round_of_fedavg_passes_few_files():
    problem = small_problem(fd.losses.logistic).over(np.zeros(3))
    fit = fd.FedAvg(lr=0.1).fit(problem)
    inputs = simulate.inputs_of(fit, fd.Fraction(1.0), 0)
    at = simulate.start(fit.algorithm, problem.terms, jnp.zeros(3), inputs.data, None)
    jax.clear_caches()  # a round that was traced before would pass nothing
    files = files_passed(lambda: simulate.chunk(fit.algorithm, problem.terms, at, inputs, np.int64(1)))
    assert "algorithms/fedavg.py" in files
    assert len(files) <= SIMULATED, " ".join(sorted(files))


def test_a_round_of_fedavg_over_messages_passes_few_files(tmp_path, monkeypatch):
    problem = small_problem(fd.losses.logistic).over(np.zeros(3))
    fit = fd.FedAvg(lr=0.1, stop=None).fit(problem)
    sites = tuple(f"site-{i}" for i in range(4))
    order = order_of(
        problem, fit.algorithm, np.zeros(3), run="r1", sites=sites, seed=0, max_rounds=3, participation=fd.Fraction()
    )
    policy, parties = Policy(min_subset=1, min_sites=1), {}
    for i, site in enumerate(sites):
        np.savez(tmp_path / f"{site}.npz", **site_arrays(problem, i))
        parties[site] = SiteSession(site, SiteFile(Source(tmp_path / f"{site}.npz"), policy), tmp_path / site)
    passed: list[set[str]] = []

    def ask(messages, timeout):
        return {name: parties[name].answer(message) for name, message in messages.items()}

    patience = Patience(timeout=5.0, hello=0.0, keep_every=1e9)
    session = ServerSession(order, tmp_path / "server", ask, patience)
    play = Rounds.play

    def watched(rounds, at):
        jax.clear_caches()
        result = []
        passed.append(files_passed(lambda: result.append(play(rounds, at))))
        return result[0]

    monkeypatch.setattr(Rounds, "play", watched)
    session.play()
    assert "algorithms/fedavg.py" in passed[0]
    assert len(passed[0]) <= FEDERATED, " ".join(sorted(passed[0]))


def test_a_reader_of_fedavg_opens_one_file():
    """Mixins without a line of its rounds do not count."""
    own = [cls for cls in fd.FedAvg.__mro__ if cls.__module__.startswith("foedus.algorithms.")]
    rounds = {"init", "join", "broadcast", "local", "aggregate", "ended", "phase", "kinds", "parameters", "report"}
    files = {cls.__module__ for cls in own if rounds & vars(cls).keys()}
    assert files == {"foedus.algorithms.fedavg"}
    assert isinstance(nbytes(np.zeros(2)), int)
