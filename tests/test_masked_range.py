"""Numbers beyond the range of masked sums: a sentence before anything leaves, and no oracle for a server that lies."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cases import problem as five
from test_flare_sessions import FREE
from test_secure_sessions import Liar, MaskedHall

import foedus as fd
from foedus.runtime.flare import packing
from foedus.runtime.flare.exchange import Missing
from foedus.runtime.flare.policy import Policy
from foedus.runtime.flare.secure_check import Jury
from foedus.runtime.masking import masking_of
from foedus.secure.messages import MaskedVector

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
    [(STEP, "view.g", "8.39e+05", 1e9), (fd.InteriorPoint(), "model.curvature", r"9.01e+14", 1e11)],
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


def test_a_site_refuses_before_its_vector_leaves_and_the_sentence_holds_no_value(tmp_path):
    hall = MaskedHall(tmp_path, with_rows(1e9), STEP, max_rounds=3)
    with pytest.raises(Missing) as no:
        hall.play()
    assert str(no.value) == (
        "client 'c' refuses: 'view.g' of its reply has a number beyond ±8.39e+05, the range of masked sums here; scale "
        "the columns, or run without secure."
    )
    assert "round ok" not in answers_of(hall, "site-3")
    assert not any(line.startswith("reveal") for site in hall.sites for line in answers_of(hall, site))
    assert any("'view.g' of a reply would hold -5e+08" in line for line in hall.notes)  # in the site's own log


def test_the_refusal_stays_for_the_run_also_after_a_restart(tmp_path):
    hall = MaskedHall(tmp_path, with_rows(1e9), STEP, max_rounds=3)
    messages: list[tuple[str, bytes]] = []

    def ask(sent, timeout):
        messages.extend(sent.items())
        return hall.ask(sent, timeout)

    with pytest.raises(Missing):
        hall.play(ask)
    for path in tmp_path.glob("site-3.npz"):  # the site mends its columns, and is asked again in the same run
        np.savez(path, x=np.eye(2), y=np.ones(2))
    hall.open_sites()
    codes = [packing.unseal(hall.site["site-3"].answer(m))[0]["code"] for site, m in messages if site == "site-3"]
    assert codes == ["ok", "ok", "ok", "policy", "data"]  # greeting, join, new keys, the old roster, the round


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
    """After a first reply within the range, a site answers in the same form whatever its numbers are."""
    hall = MaskedHall(tmp_path, with_rows(1.0), fd.FedAvg(k0=1, lr=0.1, tol=1e-300), max_rounds=6)
    prober, counts = Prober(hall), []

    def accepts(jury, new, requests, epoch):  # the server wants to learn, and accepts whatever comes
        counts.append(jury.masking.tree_of(new.words, new.layout)[1])
        return True

    monkeypatch.setattr(Jury, "accepts", accepts)
    hall.play(prober.ask)
    assert counts[0] == 0
    assert counts[-1] > 0, "the numbers did leave the range"
    assert {(code, sentence) for code, _, sentence in prober.replies} == {("ok", None)}
    assert len({size for _, size, _ in prober.replies}) == 1


@pytest.mark.parametrize(("order", "expected"), [(1, {"keys", "breach"}), (-1, {"data"})], ids=["upwards", "downwards"])
def test_a_site_answers_about_its_range_once_for_each_kind_of_reply(tmp_path, order, expected):
    """The attack by many attempts: a site is asked at 60 models of all sizes, and its answers do not depend on them."""
    hall = MaskedHall(tmp_path, with_rows(1.0), STEP, max_rounds=3)
    first: dict[str, bytes] = {}

    def ask(messages, timeout):
        for message in messages.values():
            first.setdefault(packing.unseal(message)[0]["ask"], message)
        return hall.ask(messages, timeout)

    hall.play(ask)
    (tmp_path / "site-3" / "range-r1.json").unlink()  # as at the first round of the run
    site = hall.site["site-3"]
    site.answer(first["hello"])
    site.answer(first["join"])
    header, payload = packing.unseal(first["round"])
    codes = []
    for power in range(-30, 30)[::order]:
        model = np.full(len(payload) // 8, 10.0**power)
        reply, _ = packing.unseal(site.answer(packing.seal(header, model.tobytes())))
        codes.append(reply["code"])
    assert len({*codes}) == 1
    assert codes[0] in expected


def test_with_noise_the_range_is_never_a_reason_to_refuse(tmp_path):
    hall = MaskedHall(tmp_path, with_rows(1e9), STEP, max_rounds=2)
    hall.site["site-3"].masks.begin = lambda *told: begin(*told) or setattr(masks, "noise", "some")
    masks, begin = (m := hall.site["site-3"].masks), type(m).begin.__get__(m)
    with pytest.raises(fd.FoedusError, match=r"the sites have clipped 4 numbers that were beyond ±8.39e\+05"):
        hall.play()
    assert "round ok" in answers_of(hall, "site-3")


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


def test_a_certificate_beyond_the_range_is_refused_before_it_leaves(tmp_path):
    """The rounds' numbers fit; the second derivatives of the certificate, of 1e20, do not."""
    problem, tiny = with_rows(1e10), fd.FedAvg(k0=1, lr=1e-25)
    masking = masking_of(tiny, problem.terms)
    assert masking.measuring.point.largest < 1e15
    hall = MaskedHall(tmp_path, problem, tiny, max_rounds=1)
    site = hall.site["site-3"].masks
    site.masked_reply = lambda header, payload, round, reply: site.vector(  # as if its gradients were small
        header, payload, round, site.masking.words_of(replace(reply, view=replace(reply.view, f=0.0, g=np.zeros(2))))
    )
    with pytest.raises(Missing, match=r"client 'c' refuses: '.*' of its reply has a number beyond ±9.01e\+14"):
        hall.play()
    assert "measure ok" not in answers_of(hall, "site-3")


def test_what_is_clipped_never_wraps(tmp_path):
    """A lying site whose words are at the bound: the sum of five is what five bounds add up to, and no more."""
    masking = masking_of(STEP, five().terms)
    words = masking.words_of({"g": np.array([1e300, -1e300, 1.0])})
    total, clip_count, broken = masking.tree_of(5 * words, {"g": np.zeros(3)})
    bound = 5 * masking.point.largest
    np.testing.assert_allclose(total["g"], [bound, -bound, 5.0], rtol=1e-12)
    assert (clip_count, broken) == (10, 0)
    assert len(MaskedVector("s", words.tobytes(), b"", {}).words) == 8 * words.size
