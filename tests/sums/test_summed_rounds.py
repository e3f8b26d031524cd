"""The record of sets that a site has let be summed: on the disk before it reveals, and binding after any crash."""

import os
import threading

import pytest

pytest.importorskip("cryptography")

import numpy as np

from foedus.federation import secure_site
from foedus.federation.secure_site import SummedRounds
from foedus.sums.messages import MaskOrder, RevealOrder
from foedus.sums.play import exchange_keys, trial_identities
from foedus.sums.server import MaskedSum
from foedus.sums.site import Breach, MaskingSite

NAMES = ("ash", "beech", "cedar", "elm", "fir")
IDENTITIES = trial_identities(NAMES)
WORDS = np.arange(3)


def grove(folder) -> dict[str, MaskingSite]:
    """Five sites with their records in a folder, as after a start."""
    sites = {n: MaskingSite(IDENTITIES[n], 3, SummedRounds(folder / f"{n}.txt"), is_noisy=True) for n in NAMES}
    exchange_keys(sites, "run")
    return sites


def reveals_of(sites, names=NAMES, lost=(), round: int = 0) -> dict[str, RevealOrder]:
    """Let these sites mask, take the vectors of all but some, and return what they are asked to reveal."""
    work = MaskedSum("run", 0, round, 0, names, WORDS.size)
    for name in names:
        vector = sites[name].mask(MaskOrder.from_bytes(work.order.to_bytes()), WORDS)
        if name not in lost:
            work.take(name, vector)
    return work.reveal_orders()


def test_no_reveal_leaves_before_its_line_is_safe(tmp_path, monkeypatch):
    sites, gate, real = grove(tmp_path), threading.Event(), os.fdatasync

    def slow(number):
        assert gate.wait(10)
        real(number)

    monkeypatch.setattr(secure_site, "SYNC", slow)
    orders, answers = reveals_of(sites), []
    thread = threading.Thread(target=lambda: answers.append(sites["ash"].reveal(orders["ash"])))
    thread.start()
    thread.join(0.2)
    assert not answers, "masking does not wait for the disk, revealing does"
    gate.set()
    thread.join(10)
    assert len(answers) == 1
    assert SummedRounds(tmp_path / "ash.txt").rounds.keys() == {"0"}


def test_a_disk_that_fails_keeps_the_reveal_back(tmp_path, monkeypatch):
    sites = grove(tmp_path)

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(secure_site, "SYNC", full)
    orders = reveals_of(sites)
    with pytest.raises(OSError, match="No space left"):
        sites["ash"].reveal(orders["ash"])


@pytest.mark.parametrize("revealed", [False, True])
def test_after_a_crash_the_set_that_may_have_been_summed_is_the_only_one(tmp_path, revealed):
    sites = grove(tmp_path)
    orders = reveals_of(sites)
    for name in NAMES:
        if revealed:
            sites[name].reveal(orders[name])
        sites[name].summed.writer.shutdown()
    again = grove(tmp_path)
    for name, order in reveals_of(again, NAMES[:4]).items():
        with pytest.raises(Breach, match="round 0 has been summed over another set of sites before"):
            again[name].reveal(order)
    same = grove(tmp_path)
    for name, order in reveals_of(same).items():
        assert same[name].reveal(order).site == name


def test_the_set_of_those_who_answered_counts_and_not_the_one_that_was_foreseen(tmp_path):
    sites = grove(tmp_path)
    for name, order in reveals_of(sites, lost=("fir",)).items():
        sites[name].reveal(order)
    again = grove(tmp_path)
    for name, order in reveals_of(again, NAMES[:4]).items():
        assert again[name].reveal(order).site == name
    third = grove(tmp_path)
    with pytest.raises(Breach, match="over another set"):
        third["ash"].reveal(reveals_of(third)["ash"])


def test_a_run_without_noise_has_one_line_that_is_safe_before_its_first_reveal(tmp_path, monkeypatch):
    identities = trial_identities(NAMES)
    sites = {n: MaskingSite(identities[n], 3, SummedRounds(tmp_path / f"{n}.txt")) for n in NAMES}
    exchange_keys(sites, "run")
    orders, calls = reveals_of(sites), []
    assert not (tmp_path / "ash.txt").exists()
    monkeypatch.setattr(secure_site, "SYNC", calls.append)
    sites["ash"].reveal(orders["ash"])
    assert len(calls) == 1
    assert [*SummedRounds(tmp_path / "ash.txt")] == ["set"]


def test_a_line_that_a_crash_cut_short_swallows_no_other(tmp_path):
    path = tmp_path / "ash.txt"
    path.write_text("0 abc\n1 de")
    SummedRounds(path)["2"] = "f" * 64
    assert SummedRounds(path).rounds == {"0": "abc", "1": "de", "2": "f" * 64}
