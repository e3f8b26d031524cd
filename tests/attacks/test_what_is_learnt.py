"""What a server that lies gets out of sites: nothing of a single one, and no row, beside the sums of the plan."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

pytest.importorskip("cryptography")

from masked_halls import IDENTITIES, NAMES, SignedHall

import foedus as fd
from foedus.base.errors import FoedusError
from foedus.federation import packing, spec
from foedus.federation.exchange import Paused
from foedus.federation.flare.kits import SITE_TEMPLATE
from foedus.federation.policy import SiteFile
from foedus.sums.messages import MaskOrder, RevealOrder
from foedus.sums.play import exchange_keys
from foedus.sums.server import MaskedSum
from foedus.sums.site import Breach, MaskingSite

# --- of one site ---

TRIALS, WORDS = 1500, 3
TWO = np.zeros(WORDS, np.int64), np.full(WORDS, 2**40)  # what the victim may have: a server wants to know which


def cut_short(sites, words, number):
    """The lie: the victim is told another attempt than the others, so its vector is masked for another sum."""
    return [
        site.mask(MaskOrder("r1", 0, number, int(name == NAMES[0]), NAMES), words[name]).vector()
        for name, site in sites.items()
    ]


def without_the_victim(sites, words, number):
    """The lie: the others are told that the victim is not asked, and it is told that all are."""
    vectors = []
    for name, site in sites.items():
        order = MaskOrder("r1", 0, number, 0, NAMES if name == NAMES[0] else NAMES[1:])
        vectors.append(site.mask(order, words[name]).vector())
    return vectors


def all_unmasked(sites, words, number):
    """No lie, and the masks come off: the sum of all, from which the others' numbers, known here, are taken away."""
    work = MaskedSum("r1", 0, number, 0, sites, WORDS)
    for name, site in sites.items():
        work.take(name, site.mask(work.order, words[name]))
    for name, order in work.reveal_orders().items():
        work.take_reveal(name, sites[name].reveal(order))
    return [work.total().view(np.uint64)]


def upper(hits, trials):
    """The largest share of right guesses that so many hits leave possible: Clopper and Pearson's bound at 99.9 %."""
    return float(beta.ppf(0.999, hits + 1, trials - hits)) if hits < trials else 1.0


def right_guesses(show, trials):
    """Return how often each of some guesses is right, from what the server is shown with all else known to it."""
    draw = np.random.default_rng(11)
    sites = {name: MaskingSite(IDENTITIES[name]) for name in NAMES}
    exchange_keys(sites, "r1")
    hits = np.zeros(3, int)
    for number in range(trials):
        secret = int(draw.integers(2))
        others = {name: draw.integers(-(2**40), 2**40, WORDS) for name in NAMES[1:]}
        vectors = show(sites, {NAMES[0]: TWO[secret]} | others, number)
        rest = (np.sum(vectors, axis=0, dtype=np.uint64) - np.sum([*others.values()], axis=0).view(np.uint64)).view(
            np.int64
        )
        nearest = np.sum(np.abs(rest - TWO[1]).astype(float)) < np.sum(np.abs(rest - TWO[0]).astype(float))
        hits += np.array([nearest, rest[0] % 2**41 >= 2**40, vectors[0][0] >= 2**63], bool) == bool(secret)
    return np.maximum(hits, trials - hits)  # a guess that is mostly wrong tells as much


@pytest.mark.parametrize("lie", [cut_short, without_the_victim])
def test_a_vector_that_was_masked_for_another_sum_does_not_tell_which_of_two_a_site_has(lie):
    """Which of two very different data a site has: guesses are right in at most 62 % of all cases, coins in 50 %."""
    for hits in right_guesses(lie, TRIALS):
        assert upper(hits, TRIALS) < 0.62


def test_the_guesses_are_good_ones():
    """The same guess is always right where the masks come off."""
    assert right_guesses(all_unmasked, 20)[0] == 20


def test_no_site_reveals_what_the_lie_was_about():
    sites = {name: MaskingSite(IDENTITIES[name]) for name in NAMES}
    exchange_keys(sites, "r1")
    vectors = {
        name: site.mask(MaskOrder("r1", 0, 0, int(name == NAMES[0]), NAMES), TWO[1]) for name, site in sites.items()
    }
    shares = {name: {other: one.shares[name] for other, one in vectors.items() if other != name} for name in NAMES}
    for attempt, name in ((1, NAMES[0]), (0, NAMES[1])):
        with pytest.raises(Breach, match="was not made for this sum"):
            sites[name].reveal(RevealOrder("r1", 0, 0, attempt, NAMES, shares[name]))


# --- of rows ---

ROWS, DIM, QUESTIONS = 100, 10, 2000


def hospitals():
    draw = np.random.default_rng(3)
    sites = {}
    for name in "abcde":
        X = draw.normal(size=(ROWS, DIM)) * np.linspace(0.5, 2.0, DIM) + draw.normal(size=DIM)
        sites[name] = (X, (X[:, 0] + draw.normal(size=ROWS) > 0).astype(float))
    return fd.Problem(sites, loss=fd.losses.logistic, penalty=fd.penalties.Ridge(0.1))


def policy_of(kit, tmp_path):
    path = tmp_path / "foedus.toml"
    path.write_text(SITE_TEMPLATE.replace("privacy = false", f"privacy = {'true' if kit == 'strict' else 'false'}"))
    return SiteFile.read(path).policy


class Curious:
    """Plays the run as an honest server does, and between its messages asks single sites what it likes."""

    def __init__(self, hall, questions, seed=0):
        self.hall, self.left, self.draw = hall, questions, np.random.default_rng(seed)
        self.heard = {}  # the messages that an honest server has sent, by kind
        self.seen, self.answers = [], []  # what came with answers to the plan's questions, and to the others

    def ask(self, messages, timeout):
        for message in messages.values():
            header, payload = packing.unseal(message)
            self.heard[header["ask"]] = header, payload
        replies = self.hall.ask(messages, timeout)
        self.seen += [packing.unseal(reply)[1] for reply in replies.values()]
        for _ in range(min(self.left, 60)):
            self.question()
        return replies

    def rest(self):
        while self.left:
            self.question()

    def question(self):
        """Ask one site one thing that no plan asks for; keep what comes with an answer that is none of a refusal."""
        draw, site = self.draw, self.hall.sites[int(self.draw.integers(len(self.hall.sites)))]
        header, payload = self.heard[str(draw.choice([*self.heard]))]
        w = draw.normal(size=2 * DIM) * 10.0 ** draw.integers(-2, 9)
        lies = (
            lambda: (header | {"ask": "round", "phase": 0, "round": int(draw.integers(9)), "since": -1}, w.tobytes()),
            lambda: ({k: v for k, v in header.items() if k != "mask"}, payload),
            lambda: (header | {"ask": "measure", "since": int(draw.integers(-1, 5))}, w.tobytes()),
            lambda: (header | {"ask": "measure", "since": 0, "mask": self.order()}, w.tobytes()),
            lambda: (header | {"ask": "round", "phase": 0, "since": -1, "mask": self.order()}, payload),
            lambda: (header | {"ask": "round", "phase": 0, "since": 0, "mask": self.order()}, w.tobytes()),
            lambda: (header | {"run": f"r{draw.integers(2, 9)}"}, payload),
            lambda: (header | {"ask": "hello", "secure": False, "terms": self.subset()}, b""),
            lambda: (header | {"ask": "join", "seed": int(draw.integers(99))}, w.tobytes()),
            lambda: (header | {"ask": str(draw.choice(["sums", "squares", "rows", "evaluate", "rate"]))}, payload),
            lambda: (header | {"ask": "products", "what": "rows", "number": 0, "count": 1, "since": -1}, w.tobytes()),
            lambda: (header, bytes(draw.permutation([*payload]).astype(np.uint8))),
        )
        lie, content = lies[int(draw.integers(len(lies)))]()
        if (lie, content) == (header, payload):
            return  # it would be no lie
        self.left -= 1
        out, answer = packing.unseal(self.hall.site[site].answer(packing.seal(lie, content)))
        if out["code"] == "ok":
            self.answers.append(answer)

    def order(self):
        some = sorted(self.draw.choice(self.hall.sites, int(self.draw.integers(1, 5)), replace=False).tolist())
        number = int(self.draw.integers(9))
        return (
            MaskOrder("r1", int(self.draw.integers(3)), number, int(self.draw.integers(3)), tuple(some))
            .to_bytes()
            .hex()
        )

    def subset(self):
        return spec.encode(replace(self.hall.order.terms, where=fd.label(float(self.draw.integers(2)))))


def candidates(answers):
    """Rows that answers may hold: as many numbers in a row as there are columns, as floats, and as fixed point."""
    rows = [np.zeros((0, DIM))]
    for content in answers:
        words = content[: len(content) // 8 * 8]
        for numbers in (np.frombuffer(words, "<f8"), np.frombuffer(words, "<i8") * 2.0**-40):
            if len(numbers) >= DIM:
                rows.append(np.lib.stride_tricks.sliding_window_view(numbers, DIM))
    every = np.concatenate(rows)
    return every[np.all(np.isfinite(every) & (np.abs(every) < 1e150), axis=1)]


def nearest(X, rows):
    """The distance of each row from the nearest candidate, also where that is right but for its size."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        unit = np.where(size > 0, rows / size, 0.0)
    along = X @ unit.T  # the best multiple of each candidate
    squares = np.sum(X**2, axis=1)[:, None] - along**2
    return np.sqrt(np.maximum(np.min(squares, axis=1, initial=np.inf), 0.0))


@pytest.mark.parametrize("kit", ["default", "strict"])
def test_two_thousand_questions_recover_none_of_a_hundred_rows(tmp_path, kit):
    hall = SignedHall(tmp_path, hospitals(), fd.FedAvg(k0=1, lr=0.1), policy=policy_of(kit, tmp_path), max_rounds=8)
    server, sums = Curious(hall, QUESTIONS), []
    with contextlib.suppress(Paused, FoedusError):  # a strict site, or one that is asked too much, ends the run
        sums = [hall.play(server.ask).conclusion.w]
    server.rest()
    X = hall.site["site-1"].arrays["x"] if kit == "default" else np.load(tmp_path / "site-1.npz")["x"]
    assert X.shape == (ROWS, DIM)
    assert len(server.heard) == (10 if kit == "default" else 1), "the run went on to its end, or was refused at once"
    assert not server.answers, "no question beside the plan's has an answer"
    found = candidates([*server.seen, *(w.tobytes() for w in sums)])
    # what the plan's sums tell anybody: means and deviations of the columns; as many guesses as there are candidates
    pooled = np.concatenate([np.load(tmp_path / f"{site}.npz")["x"] for site in hall.sites])
    guesses = np.random.default_rng(1).normal(pooled.mean(axis=0), pooled.std(axis=0), size=(max(len(found), 1), DIM))
    distances, chance = nearest(X, found), nearest(X, guesses)
    assert np.sum(distances < 0.05 * np.linalg.norm(pooled.std(axis=0))) == 0, "no row is recovered"
    assert np.median(distances) >= 0.95 * np.median(chance), "a guess from the sums is no further away"


def test_the_search_for_rows_finds_them_where_they_are():
    """One plain gradient of one row, at any scale, is enough."""
    X = np.random.default_rng(0).normal(size=(ROWS, DIM))
    answers = [b"\0" * 24 + (-0.3 * row).tobytes() for row in X]
    assert np.max(nearest(X, candidates(answers))) < 1e-6
