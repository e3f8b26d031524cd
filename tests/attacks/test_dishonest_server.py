"""A server that lies in a checked run, one lie each: a site refuses and has it on record, or the lie changes nothing.

The server is whoever carries the messages: a lie changes what one site, or every site, is told on the way.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cases import problem as five
from masked_halls import IDENTITIES, MaskedHall
from masked_wards import SECURE, MaskedWard

import foedus as fd
from foedus.base.errors import FoedusError
from foedus.federation import packing
from foedus.federation.exchange import Paused
from foedus.sums import masks
from foedus.sums.messages import MaskOrder, OpenSum, RevealOrder, Roster

WITHOUT_BOUNDS = SECURE.partition("[preprocess]")[0] + "[evaluate]\nholdout = 0.3\n"
VICTIM = "site-2"
RUN = (fd.FedAvg(k0=1, lr=0.1), {"max_rounds": 4})


def order(header, **more):
    one = MaskOrder.from_bytes(bytes.fromhex(header["mask"]))
    return header | {"mask": replace(one, **more).to_bytes().hex()}


def opened(change):
    """A lie about what a sum was made from."""

    def lie(header, payload):
        one = OpenSum.from_bytes(payload)
        return header, change(one).to_bytes()

    return lie


def flip(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def swap(table: dict, first="site-1", second="site-3") -> dict:
    return table | {first: table[second], second: table[first]}


def noted(change):
    """A lie about the sites' keys."""

    def lie(header, payload):
        return header, Roster(tuple(change(list(Roster.from_bytes(payload).notes)))).to_bytes()

    return lie


def forged(notes):
    """The server's own keys, signed with a certificate that is no site's of this project."""
    stranger = masks.new_signer()
    own = replace(notes[0], signer=masks.public_bytes(stranger))
    return [replace(own, signature=stranger.sign(own.statement())), *notes[1:]]


def revealed(**more):
    def lie(header, payload):
        return header, replace(RevealOrder.from_bytes(payload), **more).to_bytes()

    return lie


def model(header, payload):
    return header, np.ones(30).tobytes()


def put(**more):
    return lambda header, payload: (header | more, payload)


def without(*names):
    return lambda header, payload: ({k: v for k, v in header.items() if k not in names}, payload)


def terms_of(header):
    return header["terms"]


LIES = {
    # what a site is asked
    "a model of the server's choice": ("round", model),
    "a round too early": ("round", lambda h, p: (order(h | {"round": h["round"] + 1}, round=h["round"] + 1), p)),
    "an earlier round again": ("round 2", lambda h, p: (order(h | {"round": 0, "since": -1}, round=0), p)),
    "a round of another kind": ("round", lambda h, p: (h | {"phase": 1 - h["phase"]}, p)),
    "a round after the last": ("round", lambda h, p: (order(h | {"round": 99, "since": 98}, round=99), p)),
    "a round from another state": ("round 2", put(since=0)),
    "a round of another run": ("round", put(run="r2")),
    "a round without masks": ("round", without("mask")),
    "masks of another round": ("round", lambda h, p: (order(h, round=7), p)),
    "masks of another epoch": ("round", lambda h, p: (order(h, epoch=1), p)),
    "masks with fewer sites": ("round", lambda h, p: (order(h, sites=("site-1", "site-2", "site-3", "site-4")), p)),
    "masks with two sites": ("round", lambda h, p: (order(h, sites=("site-1", "site-2")), p)),
    "masks with a stranger": ("round", lambda h, p: (order(h, sites=(*IDENTITIES, "site-9")), p)),
    "masks with a site twice": ("round", lambda h, p: (order(h, sites=("site-1", "site-1", "site-2", "site-3")), p)),
    "masks of an attempt below 0": ("round", lambda h, p: (order(h, attempt=-1), p)),
    "masks that are none": ("round", put(mask="ab")),
    "a certificate at another model": ("measure", model),
    "a certificate under masks of a round": ("measure", lambda h, p: (order(h, round=3), p)),
    "a certificate without masks": ("measure", without("mask")),
    "a certificate from another state": ("measure", put(since=1)),
    # what it is shown of a sum
    "another vector of a site": ("total", opened(lambda o: replace(o, words=swap(o.words, "site-4", "site-5")))),
    "its own vector changed": ("total", opened(lambda o: replace(o, words=o.words | {VICTIM: flip(o.words[VICTIM])}))),
    "two vectors exchanged": ("total", opened(lambda o: replace(o, words=swap(o.words)))),
    "two signatures exchanged": ("total", opened(lambda o: replace(o, signatures=swap(o.signatures)))),
    "two keys exchanged": ("total", opened(lambda o: replace(o, keys=swap(o.keys)))),
    "a key changed": ("total", opened(lambda o: replace(o, keys=o.keys | {"site-5": flip(o.keys["site-5"])}))),
    "a signature changed": (
        "total", opened(lambda o: replace(o, signatures=o.signatures | {"site-5": flip(o.signatures["site-5"])})),
    ),
    "a vector cut short": ("total", opened(lambda o: replace(o, words=o.words | {"site-5": o.words["site-5"][:-8]}))),
    "a sum without a site": (
        "total",
        opened(lambda o: replace(o, **{part: {k: v for k, v in getattr(o, part).items() if k != "site-5"}
                                       for part in ("words", "signatures", "keys")})),
    ),
    "a sum with a stranger": (
        "total",
        opened(lambda o: replace(o, **{part: getattr(o, part) | {"site-9": getattr(o, part)["site-5"]}
                                       for part in ("words", "signatures", "keys")})),
    ),
    "a sum of another round": ("total", opened(lambda o: replace(o, round=o.round + 1))),
    "a sum of another attempt": ("total", opened(lambda o: replace(o, attempt=o.attempt + 1))),
    "a sum that is none": ("total", lambda h, p: (h, p[:-3])),
    # whose keys it is shown
    "a key in the place of a site's": ("roster", noted(lambda n: [replace(n[0], public=bytes(range(32))), *n[1:]])),
    "a signer in the place of a site's": ("roster", noted(lambda n: [replace(n[0], signer=bytes(32)), *n[1:]])),
    "keys signed by a stranger": ("roster", noted(forged)),
    "keys of one site less": ("roster", noted(lambda n: n[:-1])),
    "keys of a site twice": ("roster", noted(lambda n: [n[0], *n[:-1]])),
    "keys without its own": ("roster", noted(lambda n: [one for one in n if one.site != VICTIM])),
    "keys under another name": ("roster", noted(lambda n: [replace(n[0], site="site-9"), *n[1:]])),
    "keys of another epoch": ("roster", noted(lambda n: [replace(n[0], epoch=n[0].epoch + 1), *n[1:]])),
    # what takes the masks off
    "a reveal over fewer sites": ("reveal", revealed(survivors=("site-1", "site-2", "site-3"))),
    "a reveal over one site less": ("reveal", revealed(survivors=("site-1", "site-2", "site-3", "site-4"))),
    "a reveal of another round": ("reveal", revealed(round=9)),
    "a reveal with no shares": ("reveal", revealed(shares={})),
    # what it agrees to
    "a join that no greeting stated": ("join", put(seed=7)),
    "a join with more rounds": ("join", put(max_rounds=400)),
    "a join that nobody checks": ("join", without("verify")),
    "a greeting that nobody checks": ("hello", without("verify", "uids", "names")),
    "a greeting without masks": ("hello", without("secure")),
    "a greeting with another place": ("hello", put(index=0)),
    "a start of its own": ("join", lambda h, p: (h, (np.frombuffer(p) + 1.0).tobytes())),
}  # fmt: skip


class Liar:
    """Carries the messages, and lies to one site; `kind` may name the number of the round that the lie is in."""

    def __init__(self, hall, kind, change):
        self.hall, self.change = hall, change
        self.kind, _, number = kind.partition(" ")
        self.number = int(number) if number else None
        self.lies = 0

    def ask(self, messages, timeout):
        replies = {}
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            is_due = header["ask"] == self.kind and self.number in (None, header.get("round"))
            if site == VICTIM and is_due:
                self.lies += 1
                message = packing.seal(*self.change(header, payload))
            replies |= self.hall.ask({site: message}, timeout)
        return replies


def record(hall, site=VICTIM):
    """What the site's own list of messages says that it has not answered."""
    lines = (hall.folder / site / "messages.jsonl").read_text().splitlines()
    return [(one["purpose"], one["code"]) for one in map(json.loads, lines) if one["code"] != "ok"]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_in_a_refusal_that_the_site_has_on_record(tmp_path, lie):
    kind, change = LIES[lie]
    algorithm, more = RUN
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    liar = Liar(hall, kind, change)
    with pytest.raises((Paused, FoedusError)):
        hall.play(liar.ask)
    assert liar.lies
    assert record(hall), hall.notes
    assert {code for _, code in record(hall)} <= {"breach", "unknown", "policy", "other-run", "keys", "lost", "failed"}


def test_the_honest_run_has_nothing_on_record(tmp_path):
    algorithm, more = RUN
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    result = hall.play(Liar(hall, "round", lambda header, payload: (header, payload)).ask)
    run = fd.solve(five(), algorithm, secure=True, **more)
    np.testing.assert_allclose(result.conclusion.w, run.w, atol=1e-12)
    assert not record(hall)
    for site in hall.site.values():  # each knows the model that the server returns, to the bit
        assert site.replay is not None
        assert np.array_equal(site.replay.model, result.conclusion.w)


@pytest.mark.parametrize("kind", ["round", "total", "measure", "reveal", "roster"])
def test_any_byte_that_is_changed_ends_in_a_refusal_or_in_the_same_answer(tmp_path, kind):
    """A message to one site, with one byte changed at a place drawn at random."""
    algorithm, more = RUN
    (tmp_path / "honest").mkdir()
    honest = MaskedHall(tmp_path / "honest", five(), algorithm, **more).play().conclusion.w
    draw = np.random.default_rng(0)
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        hall, places = MaskedHall(folder, five(), algorithm, **more), []

        def ask(messages, timeout, hall=hall, places=places):
            sent = dict(messages)
            if VICTIM in sent and packing.unseal(sent[VICTIM])[0]["ask"] == kind and not places:
                content = bytearray(sent[VICTIM])
                places.append(int(draw.integers(len(content))))
                content[places[0]] ^= 1 << int(draw.integers(8))
                sent[VICTIM] = bytes(content)
            return hall.ask(sent, timeout)

        try:
            w = hall.play(ask).conclusion.w
        except (Paused, FoedusError):
            continue
        np.testing.assert_allclose(w, honest, atol=1e-12)


def test_sites_that_were_told_different_things_in_the_greeting_have_no_sum_in_common(tmp_path):
    """Where all other sites start at another model, their answers may be known, and the sum would be the victim's."""
    algorithm, more = RUN
    hall = MaskedHall(tmp_path, five(), algorithm, **more)
    other = replace(hall.order, w0=np.asarray(hall.order.w0) + 50.0)
    from foedus.federation.server import ServerSession

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
