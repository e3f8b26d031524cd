"""Masked sums through the sessions of server and sites: the simulator's answers, faults, and servers that lie."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from cases import problem as five
from constrained_cases import breast_cancer
from halls import FREE, Hall, agree
from masked_halls import IDENTITIES, NAMES, Liar, MaskedHall, without

import foedus as fd
from foedus.federation import packing
from foedus.federation.order import Patience
from foedus.federation.play import play
from foedus.federation.policy import Policy
from foedus.federation.secure_site import identity_of
from foedus.federation.server import Missing, Paused
from foedus.sums.messages import MaskedVector, MaskOrder, RevealOrder, Roster
from foedus.sums.play import trial_identities

pytest.importorskip("cryptography")
SCAFFOLD = (fd.Scaffold(lr=0.05), {"max_rounds": 6})


def test_the_run_is_the_simulators_and_the_server_never_sees_a_reply(tmp_path):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    (tmp_path / "plain").mkdir()
    plain = Hall(tmp_path / "plain", five(), algorithm, **more)
    seen: list[tuple[str, bytes]] = []

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        seen.extend((packing.unseal(r)[0]["ask"], r) for r in replies.values())
        return replies

    run = fd.solve(five(), algorithm, secure=True, **more)
    agree(run, hall.play(ask))
    numbers: set[bytes] = set()

    def ask_plainly(messages, timeout):
        replies = plain.ask(messages, timeout)
        for reply in replies.values():
            content = packing.unseal(reply)[1]
            numbers.update(content[k : k + 8] for k in range(0, len(content), 8))
        return replies

    plain.play(ask_plainly)
    masked = b"".join(reply for kind, reply in seen if kind in ("round", "measure"))
    assert not any(number in masked for number in numbers - {bytes(8)} if len(number) == 8)


@pytest.mark.slow
def test_constraints_are_certified_and_each_site_keeps_its_own_rows(tmp_path):
    problem = breast_cancer(5, seed=0).problem()
    hall = MaskedHall(tmp_path, problem, fd.InteriorPoint())
    result = hall.play()
    run = fd.solve(problem, fd.InteriorPoint(), secure=True)
    agree(run, result, 1e-7)
    assert result.conclusion.certificate.counts == run.certificate.counts
    assert result.conclusion.certificate.holds()
    for site in hall.sites:
        own = json.loads((tmp_path / site / "certificate-r1.json").read_text())
        assert all(row["value"] <= row["cap"] + own["eps2"] for row in own["rows"])
        assert len(own["rows"]) == 1


# --- faults ---


def test_a_sum_over_all_sites_and_one_over_all_but_one_are_not_both_revealed(tmp_path):
    """At the same model their difference was the reply of the site that is in one of them alone, to 4e-13."""
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    lying = Patience(timeout=1.0, hello=0.0, keep_every=1e9, minimum=4)  # the server goes on without the silent one
    with pytest.raises(Paused, match="the sum of round 2 could not be unmasked"):
        hall.play(without(hall, "round", {2}), lying)
    assert any("a checked sum is over all sites of the run" in line for line in hall.notes)
    hall.open_sites()  # nor after a restart, in another round
    with pytest.raises(Paused, match="the sum of round 3 could not be unmasked"):
        hall.play(without(hall, "round", {3}), lying)


@pytest.mark.parametrize(
    ("patience", "participation", "sentence"),
    [
        ({"minimum": 4}, 1.0, "'minimum' does not go with them: a run waits for a site that is away"),
        ({}, fd.Fraction(0.8), "this participation asks some of them, or loses replies"),
        ({}, fd.Fraction(1.0, dropout=0.1), "this participation asks some of them, or loses replies"),
        ({}, np.eye(5, dtype=bool) | [1, 1, 1, 1, 0], "this participation asks some of them, or loses replies"),
    ],
)
def test_a_run_that_would_sum_over_other_sites_from_round_to_round_is_refused_before_it_greets(
    tmp_path, patience, participation, sentence
):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, participation=participation, **more)
    with pytest.raises(fd.FoedusError, match=sentence):
        play(
            hall.order, tmp_path / "server", hall.ask, Patience(timeout=1.0, hello=0.0, **patience), hall.notes.append,
            lambda: False,
        )  # fmt: skip
    assert not [*tmp_path.glob("site-*/messages.jsonl")]


def test_masked_sums_leave_nobody_out():
    with pytest.raises(fd.FoedusError, match="'offences' of Flare does not go with secure=True"):
        fd.Flare(secure=True, offences=2)


def test_a_site_that_vanishes_after_masking_is_in_the_sum(tmp_path):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    result = hall.play(without(hall, "reveal", {2, 3}))
    np.testing.assert_allclose(result.conclusion.w, fd.solve(five(), algorithm, **more).w, atol=1e-10)


def test_without_a_minimum_a_silent_site_pauses_the_run(tmp_path):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    with pytest.raises(Paused, match="client 'b' does not answer in round 2"):
        hall.play(without(hall, "round", {2}))


@pytest.mark.slow
def test_sites_that_start_again_take_new_keys_and_the_run_goes_on(tmp_path):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    keeping = Patience(timeout=1.0, hello=0.0, keep_every=0.0)
    with pytest.raises(Paused):
        hall.play(without(hall, "round", {3}), keeping)
    hall.open_sites()
    result = hall.play(patience=keeping)
    np.testing.assert_allclose(result.conclusion.w, fd.solve(five(), algorithm, **more).w, atol=1e-10)


# --- policies and lies ---


def test_policies_on_masked_sums(tmp_path):
    algorithm, more = SCAFFOLD
    six = Policy(**FREE | {"secure_min": 5})
    with pytest.raises(Missing, match=r"secure_min\) asks for sums with at least 5 other sites, and this run has 4"):
        MaskedHall(tmp_path, five(), algorithm, policy=six, **more).play()
    only = Policy(**FREE | {"secure": True})
    (tmp_path / "plain").mkdir()
    with pytest.raises(Missing, match="its policy lets exact replies leave as masked sums alone"):
        Hall(tmp_path / "plain", five(), algorithm, policy=only, **more).play()
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    hall.site["site-3"].masks.identity = None
    with pytest.raises(Missing, match="no key and certificate to sign"):
        hall.play()


def refused(hall: MaskedHall, sentence: str) -> list[str]:
    """The kinds of messages that sites got before the run ended with a sentence."""
    kinds: list[str] = []

    def ask(messages, timeout):
        kinds.extend(packing.unseal(message)[0]["ask"] for message in messages.values())
        return hall.ask(messages, timeout)

    with pytest.raises(Missing, match=sentence):
        hall.play(ask)
    return sorted(set(kinds))


@pytest.mark.parametrize(
    "identity",
    [
        trial_identities(NAMES)["site-3"],  # of another project
        replace(IDENTITIES["site-3"], key=IDENTITIES["site-2"].key),  # a key that is not the certificate's
        replace(IDENTITIES["site-2"], site="site-3"),  # a certificate in another name
    ],
    ids=["project", "key", "name"],
)
def test_a_certificate_that_does_not_match_is_refused_by_the_sites_before_a_sum_is_asked_for(tmp_path, identity):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    hall.site["site-3"].masks.identity = identity
    kinds = refused(hall, "the key of 'site-3' is not signed by a certificate of this project for 'site-3'")
    assert kinds == ["hello", "join", "keys", "roster"]


def test_one_sites_own_minimum_beyond_the_federation_ends_the_run_at_the_greeting(tmp_path):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    masks = hall.site["site-4"].masks
    masks.policy = replace(masks.policy, secure_min=7)
    sentence = (
        r"client 'd' refuses: its policy \(secure_min\) asks for sums with at least 7 other sites, and this run has 4"
    )
    assert refused(hall, sentence) == ["hello"]


def test_a_site_without_cryptography_says_what_to_install_and_nothing_is_sent(tmp_path, monkeypatch):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    monkeypatch.setitem(sys.modules, "cryptography", None)  # an import of it now raises ImportError
    hall.site["site-3"].masks.identity = identity_of(tmp_path, "site-3")
    sentence = "client 'c' refuses: it cannot take part: masked sums need the package cryptography; install it with"
    assert refused(hall, sentence) == ["hello"]


def smaller_set(site, header, payload):
    """One site is shown a set without the last."""
    if header["ask"] == "round" and site == "site-1":
        order = MaskOrder.from_bytes(bytes.fromhex(header["mask"]))
        header["mask"] = MaskOrder(order.run, order.epoch, order.round, order.attempt, order.sites[:4]).to_bytes().hex()
    return header, payload


def smaller_survivors(site, header, payload):
    """Everybody hears that only three have answered."""
    if header["ask"] == "reveal":
        o = RevealOrder.from_bytes(payload)
        payload = RevealOrder(o.run, o.epoch, o.round, o.attempt, o.survivors[:3], o.shares).to_bytes()
    return header, payload


def own_key(site, header, payload):
    """The server puts its own key in the place of another site's."""
    if header["ask"] == "roster" and site == "site-1":
        notes = list(Roster.from_bytes(payload).notes)
        last = notes[-1]
        notes[-1] = replace(last, public=bytes(range(32)))
        payload = Roster(tuple(notes)).to_bytes()
    return header, payload


def plain_round(site, header, payload):
    """The server forgets to order a masked sum."""
    header.pop("mask", None)
    return header, payload


def other_model(site, header, payload):
    """One site is sent another model than the others, at which their replies may be known."""
    if header["ask"] == "round" and site == "site-1":
        payload = (np.frombuffer(payload, float) + 1.0).tobytes() or np.ones(3).tobytes()
    return header, payload


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            other_model,
            "no message of the server holds a model|was not made for this sum: .*has asked it something else",
        ),
        (smaller_set, "lacks shares for the other sites|another set|is over all sites of the run"),
        (smaller_survivors, "a sum over 3 of 5 sites is refused|not sites that were asked|here some are missing"),
        (own_key, "the key of 'site-5' is not signed"),
        (plain_round, "in no form that it knows"),
    ],
)
def test_a_lying_server_gets_no_sum(tmp_path, change, sentence, checked):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    hall = hall if checked else hall.unchecked()
    liar = Liar(hall, change)
    try:
        result = hall.play(liar.ask)
        assert np.all(result.history["answered"] == 0)  # no round has given a sum
    except (Missing, Paused) as error:
        hall.notes.append(str(error))
    assert any(re.search(sentence, line) for line in hall.notes), hall.notes


def test_a_round_is_not_answered_twice_with_other_models_under_one_mask(tmp_path):
    algorithm, more = SCAFFOLD
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    vectors = []

    def ask(messages, timeout):
        replies = hall.ask(messages, timeout)
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            if header["ask"] == "round" and site == "site-1":
                vectors.append(MaskedVector.from_bytes(packing.unseal(replies[site])[1]).words)
                other = packing.seal(header, np.frombuffer(payload, float).copy().__add__(1.0).tobytes())
                answer, content = packing.unseal(hall.site[site].answer(other))
                assert answer["code"] in ("breach", "ok")
                assert answer["code"] == "breach" or MaskedVector.from_bytes(content).words == vectors[-1]
        return replies

    hall.play(ask)
    assert len(vectors) == 6


def test_noise_and_masks_together(tmp_path):
    """Local noise goes through masked sums; every site's ledger has each release."""
    private = fd.FedAvg(k0=1, lr=0.1).with_noise(
        fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0, sampler="opendp", most=3), five()
    )
    hall = MaskedHall(tmp_path, five(), private, max_rounds=3, policy=Policy(**FREE | {"privacy": True}))
    result = hall.play()
    assert result.conclusion.certificate.silent
    for site in hall.site.values():
        assert len(site.gate.ledger.lines) == 3
    np.testing.assert_array_equal(result.history["ledger.releases"][-1], 3)
