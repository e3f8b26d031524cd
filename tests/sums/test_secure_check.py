"""Wrong sites where the server sees masked sums alone: found by halves, named as a group, and left out."""

from dataclasses import replace

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography")

import test_secure_sessions
from test_flare_sessions import FREE
from test_secure_sessions import MaskedHall

import foedus as fd
from foedus.federation import packing
from foedus.federation.order import Patience
from foedus.federation.policy import Policy
from foedus.federation.server import Paused
from foedus.privacy.releasing import make_private
from foedus.sums.halves import CheckOrder
from foedus.sums.play import trial_identities

EIGHT = tuple(f"h{i}" for i in range(8))
SITES = tuple(f"site-{i + 1}" for i in range(8))
FIRST_HALF = "clients 'h0', 'h1', 'h2', 'h3'"
ONE_STEP = fd.FedAvg(k0=1, lr=0.5, tol=1e-9)


@pytest.fixture(autouse=True)
def _identities(monkeypatch):
    monkeypatch.setattr(test_secure_sessions, "IDENTITIES", trial_identities(SITES))


def problem() -> fd.Problem:
    rng = np.random.default_rng(1)
    sites = {}
    for name in EIGHT:
        x = rng.standard_normal((40, 3))
        sites[name] = (x, (x @ [1.0, -1.0, 0.5] + 0.5 * rng.standard_normal(40) > 0).astype(float))
    return fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(10.0))


def wrong(hall: MaskedHall, site: str, first: int, change) -> None:
    """Let a site mask other numbers than it has computed, from a round on; its gate sees the honest ones."""
    masks = hall.site[site].masks
    honest = masks.as_bytes

    def lie(header, payload, out):
        is_late = header["ask"] == "round" and header["round"] >= first
        return honest(header, payload, replace(out, answer=change(out.answer)) if is_late else out)

    masks.as_bytes = lie


def nan(reply):
    return jax.tree.map(lambda leaf: np.full(np.shape(leaf), np.nan), reply)


def patience(**more) -> Patience:
    return Patience(timeout=1.0, hello=0.0, keep_every=1e9, **more)


CHANGES = {
    "forty times as large and of the wrong sign": (lambda r: jax.tree.map(lambda v: -40 * v, r), "no convex function"),
    "not finite": (nan, "1 of their replies are not finite"),
    "beyond the norm": (lambda r: jax.tree.map(lambda v: 1e4 * v, r), "and the terms allow 50"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_run_pauses_and_names_the_group_that_a_wrong_sum_comes_from(tmp_path, what):
    change, word = CHANGES[what]
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=50)
    wrong(hall, "site-3", 4, change)
    with pytest.raises(Paused, match=f"the sum of round 4 cannot be true: one or more of {FIRST_HALF} are wrong") as no:
        hall.play(patience=patience(norm=50.0))
    assert word in str(no.value)


def test_numbers_beyond_the_range_are_traced_to_a_group(tmp_path):
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=50)
    wrong(hall, "site-7", 2, lambda r: jax.tree.map(lambda v: 1e9 * v, r))
    with pytest.raises(fd.FoedusError, match=r"scale the columns.*come from clients 'h4', 'h5', 'h6', 'h7'"):
        hall.play()


def test_honest_sites_are_never_asked_for_a_check(tmp_path):
    kinds = set()
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=400)

    def ask(messages, timeout):
        kinds.update(packing.unseal(m)[0]["ask"] for m in messages.values())
        return hall.ask(messages, timeout)

    result = hall.play(ask)
    assert result.conclusion.converged
    assert not [kind for kind in kinds if kind.startswith("check")]


@pytest.mark.parametrize(
    ("policy", "word"), [({"secure_checks": 0}, "secure_checks"), ({"secure_min": 5}, "secure_min")]
)
def test_a_site_that_allows_no_check_ends_the_search_with_its_word(tmp_path, policy, word):
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=50, policy=Policy(**FREE, **policy))
    wrong(hall, "site-3", 2, nan)
    with pytest.raises(Paused, match=f"'h0', .*'h7' are wrong: .*lets no smaller group be summed: .*{word}"):
        hall.play()


def test_a_site_that_answers_the_check_otherwise_than_the_round_is_in_the_group_that_is_named(tmp_path):
    """It cannot put the blame on the other half: the halves no longer add up to the sum, and all eight are named."""
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=50)
    wrong(hall, "site-3", 2, nan)
    masks = hall.site["site-3"].masks

    def hide(header, payload):
        for number, one in masks.site.history.items():
            words = np.zeros(len(one.words) // 8, "<i8").tobytes()
            masks.site.history[number] = type(one)(one.sites, words)
        return type(masks)._check(masks, header, payload)

    masks.answers["check"] = hide
    with pytest.raises(Paused, match=r"'h0', .*'h7' are wrong: one of them has answered the check with other numbers"):
        hall.play()


def test_the_certificate_and_an_evaluation_are_not_checked_by_halves(tmp_path):
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=3)
    replies: list[dict] = []

    def ask(messages, timeout):
        if {packing.unseal(m)[0]["ask"] for m in messages.values()} == {"end"}:
            for number in (3, 4):
                order = CheckOrder("r1", 0, (number,), 0, SITES, "").to_bytes()
                message = packing.seal({"ask": "check", "run": "r1", "round": None}, order)
                replies.extend(packing.unseal(hall.site[s].answer(message))[0] for s in SITES)
        return hall.ask(messages, timeout)

    hall.play(ask)
    assert len(replies) == 16
    assert all(r["code"] == "breach" and "only rounds are checked" in r["sentence"] for r in replies)


@pytest.mark.parametrize("total", [fd.Central, fd.Local])
def test_a_run_with_noise_is_never_checked_by_halves(tmp_path, total):
    """A half carries a part of the noise alone: a server that asks gets nothing, and an honest one does not ask."""
    private = total(epsilon=8.0, delta=1e-5, sampler="opendp")
    hall = MaskedHall(tmp_path, problem(), make_private(fd.FedAvg(k0=1), private, None, problem(), 3), max_rounds=3)
    wrong(hall, "site-3", 2, nan)
    kinds, replies = set(), []

    def ask(messages, timeout):
        kinds.update(packing.unseal(m)[0]["ask"] for m in messages.values())
        if any(packing.unseal(m)[0].get("round") == 2 for m in messages.values()):
            for name in ("check", "check-reveal"):  # rounds 0 and 1 have been summed over everybody
                order = CheckOrder("r1", 0, (1,), 0, SITES, "").to_bytes()
                message = packing.seal({"ask": name, "run": "r1", "round": None}, order)
                replies.extend(packing.unseal(hall.site[s].answer(message))[0] for s in SITES)
        return hall.ask(messages, timeout)

    with pytest.raises(Paused, match=r"'h0', .*'h7' are wrong: .* a part of the noise alone"):
        hall.play(ask)
    assert not [kind for kind in kinds if kind.startswith("check")]
    assert {r["code"] for r in replies} == {"breach"}
    assert {r["sentence"] for r in replies[:8]} == {
        "a sum over half of the sites has a part of the noise alone, so none is checked"
    }
    assert all(len(hall.site[s].gate.ledger.lines) == 3 for s in SITES)


WICKED = """
import os

def square(w, data):
    return data.mean((data["x"] @ w - data["y"]) ** 2)

if os.environ.get("FOEDUS_PARTY", "").endswith(":site-3"):
    import dataclasses
    import jax
    import numpy as np
    from foedus.federation.secure_site import SiteMasks
    honest = SiteMasks.as_bytes

    def lie(self, header, payload, out):
        if header["ask"] == "round" and header["round"] >= 2:
            wrong = jax.tree.map(lambda leaf: np.full(np.shape(leaf), np.nan), out.answer)
            out = dataclasses.replace(out, answer=wrong)
        return honest(self, header, payload, out)

    SiteMasks.as_bytes = lie
"""


@pytest.mark.slow
def test_a_wrong_site_among_eight_real_ones_is_followed_to_its_half_which_the_run_pauses_with(tmp_path, monkeypatch):
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")
    (tmp_path / "wicked_sums.py").write_text(WICKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    import wicked_sums

    rng = np.random.default_rng(0)
    sites = {name: {"x": rng.standard_normal((30, 2)), "y": rng.standard_normal(30)} for name in EIGHT}
    runtime = fd.Flare(sites=8, modules=("wicked_sums",), secure=True, keep_going=0)
    with pytest.raises(fd.FoedusError, match=f"cannot be true: one or more of {FIRST_HALF} are wrong"):
        fd.solve(
            fd.Problem(sites, objective=wicked_sums.square), fd.FedAvg(k0=1, lr=0.3, tol=1e-12), w0=np.zeros(2),
            max_rounds=300, runtime=runtime,
        )  # fmt: skip
