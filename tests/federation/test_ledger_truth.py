"""The site's ledger against an attacker who uses everything that a site ever sent: a bound on the true ε from below.

Two sites differ in one row. Under replay, crash and monthly retraining the attacker collects every reply, scores it by
its likelihood ratio and guesses which of the two it was. From its rates of success over many trials a lower bound of
the true ε follows (Clopper and Pearson, 95 %); the site's own ledger must never lie below it.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from intruders import DIM, Intruder, private, problem, rows
from scipy.stats import beta

import foedus as fd
from foedus.federation.policy import Policy
from foedus.federation.site_ledger import SiteLedger

pytestmark = pytest.mark.slow
TRIALS = 160
EPSILON = 1.0


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Whether the disk has really turned does not matter here, and thousands of times it takes minutes."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def table(second: bool) -> dict[str, np.ndarray]:
    """All rows but one pull nowhere; that one pulls as far as it may, one way or the other."""
    arrays = rows()
    arrays["x"][:] = 0.0
    arrays["x"][0] = [50.0, 0.0, 0.0]
    arrays["y"][0] = float(second)
    return arrays


def replay(folder: Path, second: bool) -> tuple[list[float], float]:
    """The same round asked again and again, with the same model and with others."""
    intruder = _at(folder, second).enter("r1", 3)
    found = [_score(intruder, 0, w) for w in (0.0, 0.0, 1e-3, 1e-3, 2e-3)]
    return found, _ledger(folder)


def crash(folder: Path, second: bool) -> tuple[list[float], float]:
    """The site's process dies after each reply, and the server asks as if it had received none."""
    intruder, found = _at(folder, second), []
    for k in range(3):
        intruder.start()
        intruder.enter("r1", 3)
        found.append(_score(intruder, 0, k * 1e-3))
    return found, _ledger(folder)


def retraining(folder: Path, second: bool) -> tuple[list[float], float]:
    """A new run every month, under the same name and under another."""
    intruder, found = _at(folder, second), []
    for name, k in zip(("r1", "r1", "r2"), itertools.count()):
        intruder.enter(name, 3)
        found.append(_score(intruder, 0, k * 1e-3, name))
        intruder.say("end", run=name)
    return found, _ledger(folder)


def _at(folder: Path, second: bool) -> Intruder:
    noise = fd.Laplace(epsilon=EPSILON, clip=1.0)
    return Intruder(folder, private(noise), Policy(privacy=True), arrays=table(second), problem=problem())


def _score(intruder: Intruder, number: int, w: float, run: str = "r1") -> float:
    """The logarithm of the likelihood ratio of a reply; a repeated one adds nothing, and that is the point."""
    _, reply = intruder.round(number, np.full(DIM, w), run=run)
    # one row of 60, clipped at 1, moves the step by 0.5/60 either way; the noise has the scale 2·0.5/60/ε
    scale = 2 * 0.5 / 60 / EPSILON
    moved = reply[0] - w
    return float((abs(moved + 0.5 / 60) - abs(moved - 0.5 / 60)) / scale)


def _ledger(folder: Path) -> float:
    return SiteLedger(folder / "site").total(0.0)


def lower_bound(scores: dict[bool, list[float]]) -> float:
    """The largest ε that the guesses disprove at 95 % confidence, over half of the trials to choose the threshold."""
    half = TRIALS // 2
    cuts = np.quantile(scores[True][:half] + scores[False][:half], np.linspace(0.1, 0.9, 17))

    def rates(cut: float, part: slice) -> tuple[int, int, int]:
        hits, alarms = (sum(s > cut for s in scores[who][part]) for who in (True, False))
        return hits, alarms, len(scores[True][part])

    best = max(cuts, key=lambda cut: np.log((rates(cut, slice(half))[0] + 1) / (rates(cut, slice(half))[1] + 1)))
    hits, alarms, n = rates(best, slice(half, None))
    low = beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, alarms + 1, n - alarms) if alarms < n else 1.0
    return max(0.0, float(np.log(low / high))) if low > 0 else 0.0


@pytest.mark.parametrize("attack", [replay, crash, retraining], ids=lambda attack: attack.__name__)
def test_the_ledger_is_never_below_what_an_attacker_can_prove(tmp_path, attack):
    scores: dict[bool, list[float]] = {True: [], False: []}
    written = np.inf
    for trial, second in itertools.product(range(TRIALS), (True, False)):
        folder = tmp_path / f"{trial}-{second}"
        folder.mkdir()
        found, ledger = attack(folder, second)
        scores[second].append(sum(dict.fromkeys(found)))
        written = min(written, ledger)
    bound = lower_bound(scores)
    assert written == pytest.approx(3.0)
    assert bound <= written
    assert bound > 0.1, "the attack is a real one: it disproves that the replies tell nothing"


def test_the_attack_disproves_a_ledger_that_counts_replays_once(tmp_path):
    """The mutant of version 0.1: three releases, of which only the largest was written down."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    for trial, second in itertools.product(range(TRIALS), (True, False)):
        folder = tmp_path / f"{trial}-{second}"
        folder.mkdir()
        intruder = _at(folder, second).enter("r1", 12)
        scores[second].append(sum(_score(intruder, 0, k * 1e-3) for k in range(12)))
    assert lower_bound(scores) > 1.0


def test_a_ledger_whose_beginning_was_cut_short_is_begun_again(tmp_path, monkeypatch):
    """A crash between the empty file and its head once left a site that could release nothing any more."""

    def crash(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SiteLedger, "_write_head", crash)
        with pytest.raises(KeyboardInterrupt):
            SiteLedger(tmp_path)
    assert SiteLedger(tmp_path).lines == []
