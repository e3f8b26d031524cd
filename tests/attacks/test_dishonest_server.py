"""A server that lies in a checked run, one lie each: a site refuses and has it on record, or the lie changes nothing.

The server is whoever carries the messages: a lie changes what one site, or every site, is told on the way.
"""

import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from cases import problem as five
from lies import LIES, RUN, VICTIM, Liar, Own, flip, record
from masked_halls import MaskedHall, SignedHall
from masked_wards import SECURE, MaskedWard

import foedus as fd
from foedus.base.errors import FoedusError
from foedus.federation import packing
from foedus.federation.exchange import Paused
from foedus.federation.server import ServerSession
from foedus.sums.messages import OpenSum

WITHOUT_BOUNDS = SECURE.partition("[preprocess]")[0] + "[evaluate]\nholdout = 0.3\n"


@pytest.mark.parametrize("whom", ["every site", pytest.param("one site", marks=pytest.mark.slow)])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_in_a_refusal_that_the_site_has_on_record_with_its_reason(tmp_path, lie, whom):
    kind, change, why = LIES[lie]
    algorithm, more = RUN
    hall = SignedHall(tmp_path, five(), algorithm, **more)
    victims = (VICTIM,) if whom == "one site" else hall.sites
    liar = Liar(hall, kind, change, victims)
    with pytest.raises((Paused, FoedusError)):
        hall.play(liar.ask)
    assert liar.told
    for site in liar.told:
        assert any(re.search(why, line) for line in record(hall, site)), (site, record(hall, site), hall.notes)


def test_the_suite_holds_at_least_forty_lies_and_no_two_are_alike(tmp_path):
    """A lie counts once, by what it changes in which message."""
    sites = five()
    hall = SignedHall(tmp_path, sites, RUN[0], **RUN[1])
    heard = {}

    def ask(messages, timeout):
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            heard.setdefault((header["ask"], header.get("round"), site), (header, payload))
        return hall.ask(messages, timeout)

    hall.play(ask)
    told = set()
    for kind, change, _ in LIES.values():
        name, _, number = kind.partition(" ")
        honest = next(
            v for k, v in heard.items() if k[0] == name and k[2] == VICTIM and (not number or k[1] == int(number))
        )
        one = change.change(VICTIM) if isinstance(change, Own) else change
        lie = packing.seal(*one(dict(honest[0]), honest[1]))
        assert lie != packing.seal(*honest)
        told.add(lie)
    assert len(told) == len(LIES) >= 40


def test_the_honest_run_has_nothing_on_record(tmp_path):
    algorithm, more = RUN
    hall = SignedHall(tmp_path, five(), algorithm, **more)
    result = hall.play()
    run = fd.solve(five(), algorithm, secure=True, **more)
    np.testing.assert_allclose(result.conclusion.w, run.w, atol=1e-12)
    for name, site in hall.site.items():  # each knows the model that the server returns, to the bit
        assert not record(hall, name)
        assert site.replay is not None
        assert np.array_equal(site.replay.model, result.conclusion.w)


KINDS = ("hello", "join", "keys", "roster", "round", "reveal", "total", "measure", "end")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The answer of the honest run."""
    return SignedHall(tmp_path_factory.mktemp("honest"), five(), RUN[0], **RUN[1]).play().conclusion.w


def with_one_byte_changed(honest, kind, place, bit, number):
    """Play the run with one bit of one byte changed in a message of this kind to one site; check what comes of it."""
    told = []
    with tempfile.TemporaryDirectory() as folder:
        hall = SignedHall(Path(folder), five(), RUN[0], **RUN[1])

        def ask(messages, timeout):
            sent = dict(messages)
            if VICTIM in sent and packing.unseal(sent[VICTIM])[0]["ask"] == kind and len(told) <= number:
                told.append(bytearray(sent[VICTIM]))
                if len(told) > number:
                    told[-1][int(place * len(told[-1]))] ^= 1 << bit
                    sent[VICTIM] = bytes(told[-1])
            return hall.ask(sent, timeout)

        try:
            w = hall.play(ask).conclusion.w
        except (Paused, FoedusError):
            assert any(record(hall, site) for site in hall.sites), "a run ends early where a site has refused"
            return
        assert np.array_equal(w, honest)


changed = given(
    kind=st.sampled_from(KINDS),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    number=st.integers(0, 2),
)


@settings(max_examples=12, deadline=None, derandomize=True)
@changed
def test_any_byte_that_is_changed_ends_in_a_refusal_or_in_the_same_answer(honest, kind, place, bit, number):
    with_one_byte_changed(honest, kind, place, bit, number)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@changed
def test_any_byte_of_many_that_is_changed_ends_in_a_refusal_or_in_the_same_answer(honest, kind, place, bit, number):
    with_one_byte_changed(honest, kind, place, bit, number)


def test_sites_that_were_told_different_things_in_the_greeting_have_no_sum_in_common(tmp_path):
    """Where all other sites start at another model, their answers may be known, and the sum would be the victim's."""
    algorithm, more = RUN
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    other = replace(hall.order, w0=np.asarray(hall.order.w0) + 50.0)
    statements = {}
    for name, one in (("victim", hall.order), ("others", other)):
        session = ServerSession(one, tmp_path / name, hall.ask)
        statements[name] = session._joins()

    def ask(messages, timeout):
        replies = {}
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            if site != VICTIM and header["ask"] in ("hello", "join"):
                told, content = statements["others"][site]
                header, payload = header | told, content if header["ask"] == "join" else payload
                message = packing.seal(header, payload)
            replies |= hall.ask({site: message}, timeout)
        return replies

    with pytest.raises((Paused, FoedusError)):
        hall.play(ask)
    assert any("has agreed to another plan than this site" in line for line in hall.notes)
    assert not (tmp_path / VICTIM / "summed-r1.txt").exists(), "it has revealed nothing"


@pytest.mark.parametrize("kind", ["sums", "squares", "evaluate", "round", "measure"])
def test_no_answer_of_a_masked_run_leaves_without_masks(tmp_path, kind):
    """Whatever is asked: a server that leaves the order of a sum out gets no plain answer."""
    ward = MaskedWard(tmp_path, WITHOUT_BOUNDS)
    honest, answers = ward.ask, []

    def ask(messages, timeout):
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            if header["ask"] == kind and site == ward.names[0]:
                plain = packing.seal({k: v for k, v in header.items() if k != "mask"}, payload)
                answers.append(packing.unseal(ward.site[site].answer(plain)))
        return honest(messages, timeout)

    ward.ask = ask
    ward.play()
    assert answers
    for header, content in answers:
        assert header["code"] != "ok"
        assert content == b""
        assert not {"sums", "squares"} & {*header}


def test_a_site_that_signs_two_vectors_for_the_server_ends_the_run_before_anything_is_revealed(tmp_path):
    """It shows the victim another sum than the others, and both are signed; the next sum then opens nowhere."""
    hall = SignedHall(tmp_path, five(), RUN[0], **RUN[1])
    told = []

    def ask(messages, timeout):
        sent = dict(messages)
        header, payload = packing.unseal(sent[VICTIM]) if VICTIM in sent else ({"ask": ""}, b"")
        if header["ask"] == "total" and not told:
            opened, colluder = OpenSum.from_bytes(payload), hall.site["site-5"].masks.site
            mine = colluder.rounds[opened.round]
            vector = replace(mine.reply, words=flip(mine.reply.words))
            signature = colluder.signer.sign(vector.statement(mine.context))
            other = replace(
                opened,
                words=opened.words | {"site-5": vector.words},
                signatures=opened.signatures | {"site-5": signature},
            )
            sent[VICTIM] = packing.seal(header, other.to_bytes())
            told.append(opened.round)
        return hall.ask(sent, timeout)

    with pytest.raises((Paused, FoedusError)):
        hall.play(ask)
    assert told == [0]
    assert any("was not made for this sum" in line for line in record(hall, VICTIM))
    assert hall.site[VICTIM].masks.site.rounds[1].disclosure is None, "nothing of the next sum is revealed"


def test_a_run_that_is_begun_anew_with_a_site_that_colludes_goes_nowhere_else(tmp_path):
    """Other numbers of one site would lead to other models, as often as the server likes."""
    hall = SignedHall(tmp_path, five(), RUN[0], **RUN[1])
    first = hall.play().conclusion.w
    shutil.rmtree(tmp_path / "server")
    hall.open_sites()
    assert np.array_equal(hall.play().conclusion.w, first), "the same run again tells nothing new"
    shutil.rmtree(tmp_path / "server")
    shutil.rmtree(tmp_path / "site-5")
    with np.load(tmp_path / "site-5.npz") as file:
        np.savez(tmp_path / "site-5.npz", **{name: 100 * np.array(file[name]) for name in file.files})
    hall.open_sites()
    with pytest.raises((Paused, FoedusError)):
        hall.play()
    for site in ("site-1", "site-2", "site-3", "site-4"):
        assert any("shown another sum of round 0 than before" in line for line in record(hall, site))
