"""Numbers beyond the range of masked sums: clipped, and counted under the masks: nobody learns whose they are."""

import contextlib
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography")

from cases import problem as five
from halls import FREE
from masked_halls import Liar, MaskedHall

import foedus as fd
from foedus.federation import packing
from foedus.federation.policy import Policy
from foedus.federation.secure_check import SumReferee
from foedus.sums.masking import masking_of
from foedus.sums.messages import MaskedVector
from foedus.sums.questions import Coding

STEP = fd.FedAvg(k0=1, lr=0.1)
SITES = tuple("abcde")


def with_rows(factor: float) -> fd.Problem:
    """Five sites of two rows, of which 'c' has entries of this size."""
    rows = {name: (np.eye(2) * (factor if name == "c" else 1.0), np.ones(2)) for name in SITES}
    return fd.Problem(rows, loss=fd.losses.least_squares)


def answers_of(hall: MaskedHall, site: str) -> list[str]:
    """What a site has sent: kind of message and code, as its own record has it."""
    lines = (hall.folder / site / "messages.jsonl").read_text().splitlines()
    return [f"{one['purpose']} {one['code']}" for one in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("algorithm", "field", "bound", "factor"),
    [(STEP, "view.g", "8.39e+05", 1e9), (fd.InteriorPoint(), "share.curvature", r"9.01e+14", 1e11)],
    ids=["one word", "two words"],
)
def test_a_simulation_names_client_field_and_value(algorithm, field, bound, factor):
    with pytest.raises(fd.FoedusError) as no:
        fd.solve(with_rows(factor), algorithm, secure=True, max_rounds=3)
    sentence = str(no.value)
    assert sentence.startswith(f"client 'c': {field!r} of its reply holds ")
    assert sentence.endswith(
        f", beyond ±{bound}, the range of masked sums here; scale the columns, or run without secure."
    )
    assert abs(float(sentence.split("holds ")[1].split(",")[0])) > float(bound)


def test_a_simulation_names_the_client_also_where_few_take_part_and_in_a_later_round():
    plan = np.ones((4, 5), bool)
    plan[:2, 2] = False  # the wrong client comes in the third round
    with pytest.raises(fd.FoedusError, match=r"client 'c': .* of its reply holds"):
        fd.solve(with_rows(1e9), STEP, secure=True, participation=plan, max_rounds=4)


def test_the_sum_tells_that_numbers_were_clipped_and_no_site_tells_that_its_own_were(tmp_path):
    hall = MaskedHall(tmp_path, with_rows(1e9), STEP, max_rounds=3)
    with pytest.raises(fd.FoedusError, match=r"the sites have clipped 4 numbers that were beyond ±8.39e\+05"):
        hall.play()
    assert answers_of(hall, "site-3") == answers_of(hall, "site-1")
    assert any("'view.g' in a round of kind 0 would hold -5e+08" in line for line in hall.notes)  # in its own log


def test_no_number_of_runs_tells_how_large_a_sites_numbers_are(tmp_path):
    """A refusal was one bit about one site at a model of the server's choice, once for each name of a run."""
    codes = []
    for number, size in enumerate((1.0, 1e3, 1e12, 1e300)):
        folder = tmp_path / str(number)
        folder.mkdir()
        hall = MaskedHall(folder, with_rows(1.0), STEP, max_rounds=1, w0=np.full(2, size))
        with contextlib.suppress(fd.FoedusError):
            hall.play()
        codes.append(answers_of(hall, "site-3"))
        assert {"round ok", "reveal ok"} <= {*codes[-1]}
    assert all(line.endswith(" ok") for one in codes for line in one)


class Prober:
    """A server that sends ever larger models, to find out when a site's numbers leave the range.

    They go to all sites: where a site is sent another model than the others, no sum comes of it.
    """

    def __init__(self, hall: MaskedHall, site: str = "site-3"):
        self.hall, self.site, self.replies = hall, site, []

    def change(self, site, header, payload):
        if header["ask"] == "round" and header["round"] > 0:
            payload = (100.0 ** header["round"] + np.frombuffer(payload, float)).tobytes()
        return header, payload

    def ask(self, messages, timeout):
        replies = Liar(self.hall, self.change).ask(messages, timeout)
        if self.site in replies:
            header, content = packing.unseal(replies[self.site])
            if header["ask"] == "round":
                self.replies.append((header["code"], len(content), header.get("sentence")))
        return replies


def test_a_server_that_chooses_models_gets_no_comparison_with_the_bound(tmp_path, monkeypatch):
    """A site answers in the same form whatever its numbers are."""
    hall = MaskedHall(tmp_path, with_rows(1.0), fd.FedAvg(k0=1, lr=0.1, tol=1e-19), max_rounds=6).unchecked()
    prober, counts = Prober(hall), []

    def check(referee, new):  # the server wants to learn, and accepts whatever comes
        counts.append(new.coding.tree_of(new.words)[1])

    monkeypatch.setattr(SumReferee, "check", check)
    hall.play(prober.ask)
    assert counts[0] == 0
    assert counts[-1] > 0, "the numbers did leave the range"
    assert {(code, sentence) for code, _, sentence in prober.replies} == {("ok", None)}
    assert len({size for _, size, _ in prober.replies}) == 1


@pytest.mark.slow
def test_in_a_run_with_noise_no_refusal_depends_on_the_data(tmp_path):
    noise = fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0, sampler="opendp", most=3)
    codes = []
    for factor in (1.0, 1e12):
        folder = tmp_path / f"{factor:g}"
        folder.mkdir()
        problem = with_rows(factor)
        private = fd.FedAvg(k0=1, lr=0.1).with_noise(noise, problem)
        hall = MaskedHall(folder, problem, private, max_rounds=3, policy=Policy(**FREE | {"privacy": True}))
        hall.play()
        codes.append(answers_of(hall, "site-3"))
    assert codes[0] == codes[1]


def test_a_certificate_beyond_the_range_ends_the_run_with_a_sentence(tmp_path):
    """The rounds' numbers fit; the second derivatives of the certificate, of 1e20, do not."""
    problem, tiny = with_rows(1e10), fd.FedAvg(k0=1, lr=1e-20)
    masking = masking_of(tiny, problem.terms)
    assert masking.measuring.point.largest < 1e15
    hall = MaskedHall(tmp_path, problem, tiny, max_rounds=1)
    site = hall.site["site-3"].masks
    real = site.as_bytes

    def sealed(header, payload, out):  # as if its gradients were small
        if header["ask"] == "round":
            reply = out.answer
            out = replace(out, answer=replace(reply, view=replace(reply.view, f=0.0, g=np.zeros(2))))
        return real(header, payload, out)

    site.as_bytes = sealed
    with pytest.raises(fd.FoedusError, match=r"the sites have clipped \d+ numbers that were beyond ±9.01e\+14"):
        hall.play()
    assert "measure ok" in answers_of(hall, "site-3")


def test_what_is_clipped_never_wraps(tmp_path):
    """A lying site whose words are at the bound: the sum of five is what five bounds add up to, and no more."""
    masking = masking_of(STEP, five().terms)
    coding = Coding({"g": jax.ShapeDtypeStruct((3,), float)}, masking.point)
    words = coding.words_of({"g": np.array([1e300, -1e300, 1.0])})
    total, clip_count, broken = coding.tree_of(5 * words)
    bound = 5 * masking.point.largest
    np.testing.assert_allclose(total["g"], [bound, -bound, 5.0], rtol=1e-12)
    assert (clip_count, broken) == (10, 0)
    assert len(MaskedVector("s", words.tobytes(), b"", {}).words) == 8 * words.size
