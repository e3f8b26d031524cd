"""The lies of a server: what each changes in which message, and the words with which a site refuses it."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from cases import problem as five
from masked_halls import COORDINATOR, IDENTITIES, SERVER, SignedHall

import foedus as fd
from foedus.federation import packing, spec
from foedus.federation.plan import of_site
from foedus.sums import masks
from foedus.sums.messages import MaskOrder, OpenSum, RevealOrder, Roster

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
    """Keys of the server's own, signed with a certificate that is no site's of this project."""
    stranger = masks.new_signer()
    own = replace(notes[0], signer=masks.public_bytes(stranger))
    return [replace(own, signature=stranger.sign(own.statement())), *notes[1:]]


def posing(party):
    """Keys of the server's own in the place of a site's, signed as another party of the project."""

    def change(notes):
        own = replace(notes[0], public=masks.public_bytes(masks.new_key()), certificate=party.certificate)
        return [replace(own, signature=party.sign(own.statement())), *notes[1:]]

    return noted(change)


def joining(party, name):
    """Keys of one party more, with its own certificate and in its own name."""

    def change(notes):
        own = replace(notes[0], site=name, public=masks.public_bytes(masks.new_key()), certificate=party.certificate)
        return sorted([replace(own, signature=party.sign(own.statement())), *notes], key=lambda note: note.site)

    return noted(change)


class Own:
    """A lie to each site about that site itself."""

    def __init__(self, change):
        self.change = change


def only(header, *names):
    return {name: header[name] for name in ("ask", "run", "round", *names)}


def revealed(**more):
    def lie(header, payload):
        return header, replace(RevealOrder.from_bytes(payload), **more).to_bytes()

    return lie


def setting(name, value):
    """A lie about one number of the algorithm."""

    def lie(header, payload):
        fields = header["algorithm"]["fields"] | {name: value}
        return header | {"algorithm": header["algorithm"] | {"fields": fields}}, payload

    return lie


def ridge(header, payload):
    """A lie about the terms: a penalty that pulls every answer to where the server wants it."""
    fields = header["terms"]["fields"] | {"penalty": spec.encode(fd.penalties.Ridge(1e-9))}
    return header | {"terms": header["terms"] | {"fields": fields}}, payload


def model(header, payload):
    return header, np.ones(30).tobytes()


def put(**more):
    return lambda header, payload: (header | more, payload)


def without(*names):
    return lambda header, payload: ({k: v for k, v in header.items() if k not in names}, payload)


def signatures():
    """True signatures of the coordinator in the wrong place: under another site's plan, or under another plan."""
    with tempfile.TemporaryDirectory() as folder:
        hall = SignedHall(Path(folder), five(), RUN[0], **RUN[1])
        own = {site: of_site(hall.signatures(), site)["signed"] for site in hall.sites}
        hall.order = replace(hall.order, max_rounds=9)
        other = of_site(hall.signatures(), VICTIM)["signed"]
    return {site: own["site-1" if site == "site-3" else "site-3"] for site in own} | {"another plan": other}


SIGNED = signatures()
LIES = {
    # what a site is asked
    "a model of the server's choice": ("round", model, "no message of the server holds a model"),
    "a round too early": (
        "round", lambda h, p: (order(h | {"round": h["round"] + 1}, round=h["round"] + 1), p), "does not follow"),
    "an earlier round again": (
        "round 2", lambda h, p: (order(h | {"round": 0, "since": -1}, round=0), p), "after the last round|no state of"),
    "a round of another kind": ("round", lambda h, p: (h | {"phase": 1 - h["phase"]}, p), "does not follow"),
    "a round below 0": ("round", put(round=-1), "does not follow"),
    "a round that is no number": ("round", put(round=True), "does not follow"),
    "a round after the last": ("round", lambda h, p: (order(h | {"round": 99, "since": 98}, round=99), p), "no state"),
    "a round from another state": ("round 2", put(since=0), "after the last round"),
    "a round of another run": ("round", put(run="r2"), "not joined this run"),
    "a round of a run named as a path": ("round", put(run="../r1"), "the name of a run"),
    "a round without masks": ("round", without("mask"), "no form that it knows"),
    "masks of another round": ("round", lambda h, p: (order(h, round=7), p), "of another round"),
    "masks of another epoch": ("round", lambda h, p: (order(h, epoch=1), p), "no keys of this run and epoch"),
    "masks of another run": ("round", lambda h, p: (order(h, run="r2"), p), "no keys of this run and epoch"),
    "round 0 over all and round 1 over all but one": (
        "round 1", lambda h, p: (order(h, sites=("site-1", "site-2", "site-3", "site-4")), p), "over all|site once"),
    "a model so large that one row alone has a Hessian": (
        "round 2", lambda h, p: (h, np.full(30, 1e8).tobytes()), "no message of the server holds a model"),
    "masks with fewer sites": (
        "round", lambda h, p: (order(h, sites=("site-1", "site-2", "site-3", "site-4")), p), "over all|each site once"),
    "masks with two sites": ("round", lambda h, p: (order(h, sites=("site-1", "site-2")), p), "over all|site once"),
    "masks with a stranger": ("round", lambda h, p: (order(h, sites=(*IDENTITIES, "site-9")), p), "not in the roster"),
    "masks with a site twice": (
        "round", lambda h, p: (order(h, sites=("site-1", "site-1", "site-2", "site-3")), p), "each site once"),
    "masks of an attempt below 0": ("round", lambda h, p: (order(h, attempt=-1), p), "in no form|counted from 0"),
    "masks that are none": ("round", put(mask="ab"), "masked sum|cut short"),
    "a certificate at another model": ("measure", model, "no message of the server holds a model"),
    "a certificate under masks of a round": ("measure", lambda h, p: (order(h, round=3), p), "of another round"),
    "a certificate without masks": ("measure", without("mask"), "no form that it knows"),
    "a certificate from another state": ("measure", put(since=1), "after the last round|no state of"),
    "sums of columns, which the plan does not ask for": (
        "round", lambda h, p: (only(h) | {"ask": "sums", "columns": {}, "noise": None}, p), "columns of this run"),
    "figures on held-out rows, which the plan does not ask for": (
        "measure", lambda h, p: (h | {"ask": "evaluate"}, p), "columns of this run"),
    "products, which the certificate does not need": (
        "measure", lambda h, p: (h | {"ask": "products", "what": "rows", "number": 0, "count": 1}, p), "certificate"),
    "a message of no kind": ("round", put(ask="patients"), "this kind of message"),
    "a state that it has not": ("keep", put(since=77), "no state of round 77"),
    # what it is shown of a sum
    "another vector of a site": (
        "total", opened(lambda o: replace(o, words=swap(o.words, "site-4", "site-5"))), "has signed for this|itself"),
    "its own vector changed": (
        "total",
        Own(lambda site: opened(lambda o: replace(o, words=o.words | {site: flip(o.words[site])}))),
        "than those that it has sent itself",
    ),
    "two vectors exchanged": ("total", opened(lambda o: replace(o, words=swap(o.words))), "has signed for this|itself"),
    "two signatures exchanged": ("total", opened(lambda o: replace(o, signatures=swap(o.signatures))), "has signed"),
    "two keys exchanged": ("total", opened(lambda o: replace(o, keys=swap(o.keys))), "has signed for this sum"),
    "a key changed": (
        "total", opened(lambda o: replace(o, keys=o.keys | {"site-5": flip(o.keys["site-5"])})), "has signed for this"),
    "a signature changed": (
        "total", opened(lambda o: replace(o, signatures=o.signatures | {"site-5": flip(o.signatures["site-5"])})),
        "has signed for this sum",
    ),
    "a vector cut short": (
        "total", opened(lambda o: replace(o, words=o.words | {"site-5": o.words["site-5"][:-8]})), "has signed|itself"),
    "a sum without a site": (
        "total",
        opened(lambda o: replace(o, **{part: {k: v for k, v in getattr(o, part).items() if k != "site-5"}
                                       for part in ("words", "signatures", "keys")})),
        "over other sites than those of the run",
    ),
    "a sum with a stranger": (
        "total",
        opened(lambda o: replace(o, **{part: getattr(o, part) | {"site-9": getattr(o, part)["site-5"]}
                                       for part in ("words", "signatures", "keys")})),
        "over other sites than those of the run",
    ),
    "a sum of another round": ("total", opened(lambda o: replace(o, round=o.round + 1)), "has not revealed"),
    "a sum of another attempt": ("total", opened(lambda o: replace(o, attempt=o.attempt + 1)), "has not revealed"),
    "a sum that is none": ("total", lambda h, p: (h, p[:-3]), "cut short"),
    # whose keys it is shown
    "a key in the place of a site's": (
        "roster", noted(lambda n: [replace(n[0], public=bytes(range(32))), *n[1:]]), "not signed|own key"),
    "a signer in the place of a site's": (
        "roster", noted(lambda n: [replace(n[0], signer=bytes(32)), *n[1:]]), "not signed|own key"),
    "keys signed by a stranger": ("roster", noted(forged), "not signed|own key"),
    "the server's keys in the place of a site's": ("roster", posing(SERVER), "not signed|own key"),
    "the coordinator's keys in the place of a site's": ("roster", posing(COORDINATOR), "not signed|own key"),
    "a site's keys in the place of another's": ("roster", posing(IDENTITIES["site-4"]), "not signed|own key"),
    "the server as one site more": ("roster", joining(SERVER, "localhost"), "no site of the plan"),
    "the coordinator as one site more": ("roster", joining(COORDINATOR, "coordinator"), "no site of the plan"),
    "keys of one site less": ("roster", noted(lambda n: n[:-1]), "the roster lacks 'site-5'|own key"),
    "keys of a site twice": ("roster", noted(lambda n: [n[0], *n[:-1]]), "names a site twice"),
    "keys without its own": (
        "roster", Own(lambda site: noted(lambda n: [one for one in n if one.site != site])), "this site's own key"),
    "keys under another name": (
        "roster", noted(lambda n: sorted([replace(n[0], site="site-9"), *n[1:]], key=lambda one: one.site)),
        "no site of the plan|own key",
    ),
    "keys of another epoch": (
        "roster", noted(lambda n: [replace(n[0], epoch=n[0].epoch + 1), *n[1:]]), "another run or epoch|own key"),
    "keys of another plan": (
        "roster", noted(lambda n: [replace(n[0], plan=bytes(32)), *n[1:]]), "agreed to another plan|own key"),
    # what takes the masks off
    "a reveal over fewer sites": (
        "reveal", revealed(survivors=("site-1", "site-2", "site-3")), "survivors|over 3 of 5 sites|some are missing"),
    "a reveal over one site less": (
        "reveal", revealed(survivors=("site-1", "site-2", "site-3", "site-4")), "some are missing|survivors"),
    "a reveal with a stranger": (
        "reveal", revealed(survivors=(*IDENTITIES, "site-9")), "the survivors of a sum are not sites that were asked"),
    "a reveal of another round": ("reveal", revealed(round=9), "has not masked attempt 0 of round 9"),
    "a reveal of another attempt": ("reveal", revealed(attempt=5), "has not masked attempt 5"),
    "a reveal with no shares": ("reveal", revealed(shares={}), "was not made for this sum"),
    "a reveal with others' shares": (
        "reveal", lambda h, p: revealed(shares=dict.fromkeys(IDENTITIES, bytes(48)))(h, p), "not made for this sum"),
    # what it agrees to
    "a join that no greeting stated": ("join", put(seed=7), "has not agreed to this run in a greeting"),
    "a join with more rounds": ("join", put(max_rounds=400), "has not agreed to this run"),
    "a join with other sites": ("join", put(parties=["site-1", "site-2"]), "has not agreed to this run"),
    "a join that nobody checks": ("join", without("verify"), "has not agreed to this run"),
    "a join at another place": ("join", put(index=1, uid=[9, 9]), "has not agreed to this run"),
    "a greeting that nobody checks": ("hello", without("verify", "names"), "not signed by the coordinator"),
    "a greeting without masks": ("hello", without("secure"), "not signed by the coordinator"),
    "a greeting with another place": ("hello", put(index=9), "not signed by the coordinator"),
    "a greeting with other sites": ("hello", put(parties=["site-1", "site-2", "site-3"]), "not signed by the coord"),
    "a greeting with another seed": ("hello", put(seed=9), "not signed by the coordinator"),
    "a greeting with more rounds": ("hello", put(max_rounds=10**5), "not signed by the coordinator"),
    "a step of 2 to the power of 53": ("hello", setting("lr", 2.0**53), "not signed by the coordinator"),
    "a tolerance of 1e-308": ("hello", setting("tol", 1e-308), "not signed by the coordinator"),
    "another algorithm under the name of the run": (
        "hello", put(algorithm=spec.encode(fd.FedAvg(k0=7))), "not signed by the coordinator"),
    "other terms under the name of the run": ("hello", ridge, "not signed by the coordinator"),
    "the signature of another site": ("hello", Own(lambda site: put(signed=SIGNED[site])), "not signed by the coord"),
    "the signature of another plan": ("hello", put(signed=SIGNED["another plan"]), "not signed by the coordinator"),
    "no signature": ("hello", without("signed"), "not signed by the coordinator"),
    "a greeting under another name": ("hello", put(run="r7"), "not signed by the coordinator"),
    "a start of its own": ("join", lambda h, p: (h, (np.frombuffer(p) + 1.0).tobytes()), "has not agreed to this run"),
}  # fmt: skip


class Liar:
    """Carries the messages, and lies to some sites; `kind` may name the number of the round that the lie is in."""

    def __init__(self, hall, kind, change, victims):
        self.hall, self.change, self.victims = hall, change, victims
        self.kind, _, number = kind.partition(" ")
        self.number = int(number) if number else None
        self.told = set()

    def ask(self, messages, timeout):
        sent = dict(messages)
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            is_due = header["ask"] == self.kind and self.number in (None, header.get("round"))
            if site in self.victims and is_due:
                change = self.change.change(site) if isinstance(self.change, Own) else self.change
                sent[site] = packing.seal(*change(header, payload))
                if sent[site] != message:
                    self.told.add(site)
        return self.hall.ask(sent, timeout)


def record(hall, site):
    """What the site's own list of messages says that it has not answered, and why."""
    path = hall.folder / site / "messages.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [one["why"] for one in lines if one["code"] != "ok"]
