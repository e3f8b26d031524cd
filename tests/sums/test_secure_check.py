"""Wrong sites where the server sees masked sums alone: a sum that cannot be true pauses the run."""

from dataclasses import replace

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography")

import masked_halls
from masked_halls import MaskedHall

import foedus as fd
from foedus.federation.order import Patience
from foedus.federation.server import Paused
from foedus.sums.play import trial_identities

EIGHT = tuple(f"h{i}" for i in range(8))
SITES = tuple(f"site-{i + 1}" for i in range(8))
EVERYBODY = "clients 'h0', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'h7'"
ONE_STEP = fd.FedAvg(k0=1, lr=0.5, tol=1e-9)


@pytest.fixture(autouse=True)
def _identities(monkeypatch):
    monkeypatch.setattr(masked_halls, "IDENTITIES", trial_identities(SITES))


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
def test_the_run_pauses_where_a_sum_cannot_be_true_and_no_site_is_left_out(tmp_path, what):
    change, word = CHANGES[what]
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=50)
    wrong(hall, "site-3", 4, change)
    with pytest.raises(Paused, match=f"the sum of round 4 cannot be true: one or more of {EVERYBODY} are wrong") as no:
        hall.play(patience=patience(norm=50.0))
    assert word in str(no.value)


def test_numbers_beyond_the_range_end_the_run_with_a_remedy(tmp_path):
    hall = MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=50)
    wrong(hall, "site-7", 2, lambda r: jax.tree.map(lambda v: 1e9 * v, r))
    with pytest.raises(fd.FoedusError, match=r"the sites have clipped \d+ numbers .* scale the columns"):
        hall.play()


def test_honest_sites_are_never_doubted(tmp_path):
    assert MaskedHall(tmp_path, problem(), ONE_STEP, max_rounds=400).play().conclusion.converged


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
def test_a_wrong_site_among_eight_real_ones_pauses_the_run(tmp_path, monkeypatch):
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'foedus[flare]'")
    (tmp_path / "wicked_sums.py").write_text(WICKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    import wicked_sums

    rng = np.random.default_rng(0)
    sites = {name: {"x": rng.standard_normal((30, 2)), "y": rng.standard_normal(30)} for name in EIGHT}
    runtime = fd.Flare(sites=8, modules=("wicked_sums",), secure=True, keep_going=0)
    with pytest.raises(fd.FoedusError, match=f"cannot be true: one or more of {EVERYBODY} are wrong"):
        fd.solve(
            fd.Problem(sites, objective=wicked_sums.square), fd.FedAvg(k0=1, lr=0.3, tol=1e-12), w0=np.zeros(2),
            max_rounds=300, runtime=runtime,
        )  # fmt: skip
