"""Masked sums: exact in integers, silent about their terms, and refused to a server that lies."""

import hashlib
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foedus as fd
from foedus.sums import masks
from foedus.sums.fixed_point import HEAD, FixedPoint
from foedus.sums.messages import KeyNote, MaskOrder, Reveal, Roster
from foedus.sums.play import exchange_keys, sum_words, trial_identities
from foedus.sums.server import MaskedSum, Unfinished, roster_of
from foedus.sums.site import Breach, MaskingSite

pytest.importorskip("cryptography")
NAMES = ("ash", "beech", "cedar", "elm", "fir")
WORDS = {name: np.arange(7) * (i + 1) - 3 for i, name in enumerate(NAMES)}
IDENTITIES = trial_identities((*NAMES, "ghost"))
FOREIGN = trial_identities(NAMES)


def party(names=NAMES, least=3, run="r1", identities=IDENTITIES) -> dict[str, MaskingSite]:
    sites = {name: MaskingSite(identities[name], least) for name in names}
    exchange_keys(sites, run)
    return sites


def expected(names=NAMES):
    return sum(WORDS[name] for name in names)


def masked_by_all(sites, round=0, attempt=0, epoch=0):
    """A sum at the server with everybody's vector in."""
    work = MaskedSum("r1", epoch, round, attempt, sites, 7)
    for name, site in sites.items():
        work.take(name, site.mask(work.order, WORDS[name]))
    return work


# --- fixed point ---

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(finite, min_size=1, max_size=20),
    st.sampled_from([(40, 1), (20, 1), (60, 2), (98, 2)]),
    st.integers(1, 8192),
)
def test_a_sum_of_encoded_numbers_never_wraps_and_is_as_near_as_the_resolution(values, form, terms):
    bits, words = form
    point = FixedPoint(terms=terms, bits=bits, words=words)
    encoded, clipped = point.encode(np.array(values))
    assert all(abs(int(w)) * terms < 2**63 for w in encoded.ravel())
    assert int(clipped) == sum(abs(v) > point.largest for v in values)
    bounded = np.clip(values, -point.largest, point.largest)
    # a word alone decodes to the number, up to the resolution and the last bits of float64
    np.testing.assert_allclose(point.decode(encoded), bounded, rtol=2.0**-52, atol=0.5 * 2.0**-bits)


def test_the_simulators_arithmetic_is_the_sites_to_the_bit():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000) * 10.0 ** rng.integers(-15, 18, size=1000)
    for point in (FixedPoint(terms=10), FixedPoint(terms=10, bits=60, words=2)):
        at_a_site, clipped = point.encode(values)
        in_simulation, also = point.encode(jnp.asarray(values), jnp)
        np.testing.assert_array_equal(at_a_site, in_simulation)
        assert int(clipped) == int(also)
        np.testing.assert_array_equal(point.decode(at_a_site), point.decode(jnp.asarray(at_a_site), jnp))


def test_the_largest_number_of_every_term_adds_up_below_the_top():
    for terms in (1, 3, 7, 100, 8191, 8192):
        for form in ({}, {"bits": 60, "words": 2}):
            point = FixedPoint(terms=terms, **form)
            words, clipped = point.encode(np.array([point.largest, -np.inf, 1e300]))
            assert int(clipped) == 2
            assert np.max(np.abs(words[:, 0])) * terms <= 2**HEAD


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"terms": 0}, "from 1 to 8192"), ({"terms": 9000}, "from 1 to 8192"), ({"bits": 60}, "from 0 to 48"),
     ({"words": 3}, "1 or 2 words"), ({"bits": 40, "words": 2}, "from 50 to 98")],
)  # fmt: skip
def test_a_form_that_could_overflow_is_refused(wrong, sentence):
    with pytest.raises(fd.FoedusError, match=sentence):
        FixedPoint(**{"terms": 3} | wrong)


# --- shares ---


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_threshold_of_shares_gives_the_secret_back_and_one_less_does_not(data):
    count = data.draw(st.integers(2, 12))
    least = data.draw(st.integers(2, count))
    secret = masks.new_secret()
    shares = masks.split(secret, range(1, count + 1), least)
    chosen = data.draw(st.permutations(range(1, count + 1)))
    assert masks.Combiner(chosen[:least]).secret(shares) == secret
    assert masks.Combiner(chosen[: least - 1]).secret(shares) != secret


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """With the shares below the threshold, each possible secret has exactly one polynomial, so they say nothing."""
    shares = masks.split(masks.new_secret(), [1, 2, 3], 3)
    for guess in (1, 12345, masks.PRIME - 1):
        content = guess.to_bytes(32, "big")
        weights = masks.Combiner([1, 2, 3]).weights
        rest = (guess - sum(weights[p] * int.from_bytes(shares[p], "big") for p in (1, 2))) % masks.PRIME
        third = (rest * pow(weights[3], -1, masks.PRIME) % masks.PRIME).to_bytes(32, "big")
        assert masks.Combiner([1, 2, 3]).secret({1: shares[1], 2: shares[2], 3: third}) == content


# --- sums ---


def test_the_sum_is_exact_in_integers():
    np.testing.assert_array_equal(sum_words(party(), WORDS, "r1"), expected())


def test_the_sum_of_real_numbers_is_the_plain_one():
    rng, point = np.random.default_rng(1), FixedPoint(terms=5)
    numbers = {name: rng.normal(size=50) * 100 for name in NAMES}
    words = {name: point.encode(v)[0].ravel() for name, v in numbers.items()}
    total = point.decode(sum_words(party(), words, "r1")[:, None])
    np.testing.assert_allclose(total, sum(numbers.values()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("gone", NAMES)
def test_a_site_that_sends_nothing_is_left_out_of_the_sum(gone):
    rest = [name for name in NAMES if name != gone]
    np.testing.assert_array_equal(sum_words(party(), WORDS, "r1", silent=[gone]), expected(rest))


@pytest.mark.parametrize("gone", NAMES)
def test_a_site_that_vanishes_after_masking_is_in_the_sum(gone):
    np.testing.assert_array_equal(sum_words(party(), WORDS, "r1", vanishing=[gone]), expected())


def test_a_site_whose_vector_comes_too_late_is_not_unmasked():
    sites = party()
    work = MaskedSum("r1", 0, 0, 0, sites, 7)
    late = sites["ash"].mask(work.order, WORDS["ash"])
    for name in NAMES[1:]:
        work.take(name, sites[name].mask(work.order, WORDS[name]))
    for name, order in work.reveal_orders().items():
        work.take_reveal(name, sites[name].reveal(order))
    with pytest.raises(fd.FoedusError, match="too late"):
        work.take("ash", late)
    np.testing.assert_array_equal(work.total(), expected(NAMES[1:]))
    # the server knows every mask between ash and the others now; ash's own mask still hides its words
    keys = {name: reveal.keys["ash"] for name, reveal in work.reveals.items()}
    rest = late.vector()
    for name, key in keys.items():
        rest = rest - masks.mask_words(key, 7) if name > "ash" else rest + masks.mask_words(key, 7)
    assert not np.any(rest.view(np.int64) == WORDS["ash"])


def test_too_few_sites_end_the_attempt_with_a_sentence():
    with pytest.raises(Unfinished, match="3 of 5 sites have answered, and a masked sum needs 4"):
        sum_words(party(), WORDS, "r1", silent=NAMES[:2])
    with pytest.raises(Unfinished, match="3 of 5 sites have revealed their shares, and 4 must"):
        sum_words(party(), WORDS, "r1", vanishing=NAMES[:2])


def test_after_a_recovery_nothing_is_masked_without_new_keys():
    sites = party()
    sum_words(sites, WORDS, "r1", silent=["elm"])
    with pytest.raises(Breach, match="takes new keys after a recovery"):
        sites["ash"].mask(MaskOrder("r1", 0, 1, 0, NAMES), WORDS["ash"])
    exchange_keys(sites, "r1", epoch=1)
    with pytest.raises(Breach, match="over the same sites in the whole run"):
        sum_words(sites, WORDS, "r1", epoch=1, round=1)
    exchange_keys(sites, "r1", epoch=2)
    rest = [name for name in NAMES if name != "elm"]
    np.testing.assert_array_equal(sum_words(sites, WORDS, "r1", epoch=2, round=2, silent=["elm"]), expected(rest))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_whoever_drops_out_the_sum_is_over_those_that_answered(data):
    names = [f"s{i:02d}" for i in range(data.draw(st.integers(4, 9)))]
    identities = trial_identities(names)
    words = {n: np.array(data.draw(st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3))) for n in names}
    spare = len(names) - max(masks.threshold(len(names)), 4)
    gone = data.draw(st.permutations(names))[: data.draw(st.integers(0, spare))]
    rest = [n for n in names if n not in gone]
    total = sum_words(party(names, 3, "r1", identities), words, "r1", silent=gone)
    np.testing.assert_array_equal(total, sum(words[n] for n in rest))


# --- what the server sees ---


def test_what_the_server_sees_does_not_depend_on_a_sites_words_but_through_the_sum():
    """Two worlds with one sum, in which the words of two sites differ by 2^40; nobody tells them apart.

    Everything that reaches the server in 150 sums of each world is searched for a trace: the bits of masked words, of
    sealed shares and of revealed shares, each against its world, with a level that 1 of 10,000 honest runs exceeds.
    """
    worlds = []
    for big in (0, 2**40):
        sites, seen = party(), []
        for round in range(150):
            words = {name: np.zeros(2, int) for name in NAMES}
            words["ash"][:], words["beech"][:] = big, -big
            work = MaskedSum("r1", 0, round, 0, sites, 2)
            for name, site in sites.items():
                work.take(name, site.mask(work.order, words[name]))
            for name, order in work.reveal_orders().items():
                work.take_reveal(name, sites[name].reveal(order))
            assert not np.any(work.total())
            vectors = [work.vectors[n] for n in NAMES]
            content = b"".join(v.words + v.commitment + b"".join(v.shares.values()) for v in vectors)
            content += b"".join(b"".join(r.shares.values()) for r in work.reveals.values())
            # all that the server can compute: the vectors without their own masks, and their differences
            own = [v.vector() - masks.mask_words(_own_mask(work, n), 2) for n, v in zip(NAMES, vectors, strict=True)]
            content += b"".join((a - b).tobytes() for a in own for b in own) + b"".join(a.tobytes() for a in own)
            seen.append(np.unpackbits(np.frombuffer(content, np.uint8)))
        worlds.append(np.array(seen, float))
    first, second = worlds
    moving = (first.std(axis=0) > 0) | (second.std(axis=0) > 0)  # the difference of a vector with itself is 0
    z = (first.mean(axis=0) - second.mean(axis=0))[moving] / np.sqrt(0.5 / 150)
    bound = np.sqrt(2 * np.log(2 * z.size * 1e4))
    assert np.max(np.abs(z)) < bound
    assert abs(np.mean(z**2) - 1.0) < 0.1


def _own_mask(work: MaskedSum, site: str) -> bytes:
    points = {name: number for number, name in enumerate(NAMES, start=1)}
    speakers = NAMES[: work.threshold]
    return masks.Combiner([points[s] for s in speakers]).secret(
        {points[s]: work.reveals[s].shares[site] for s in speakers}
    )


def test_all_the_others_and_the_server_see_a_uniform_vector_of_the_last():
    """With one site's message left out, the other messages hold no word of the sum; with it, only the sum."""
    sites = party()
    heads = []
    for round in range(200):
        work = masked_by_all(sites, round)
        for name, order in work.reveal_orders().items():
            work.take_reveal(name, sites[name].reveal(order))
        partial = sum(
            (work.vectors[n].vector() - masks.mask_words(_own_mask(work, n), 7) for n in NAMES[1:]),
            np.zeros(7, np.uint64),
        )
        heads.append(partial >> np.uint64(60))
    counts = np.bincount(np.concatenate(heads).astype(int), minlength=16)
    expected_count = counts.sum() / 16
    assert np.sum((counts - expected_count) ** 2 / expected_count) < 44.3  # χ² with 15 degrees of freedom, 1 in 10,000


# --- a server that lies ---


def test_different_sets_shown_to_different_sites_are_caught_by_the_sites():
    sites = party()
    all_five = MaskedSum("r1", 0, 0, 0, sites, 7)
    without = MaskOrder("r1", 0, 0, 0, tuple(n for n in NAMES if n != "fir"))
    for name in NAMES:
        order = without if name == "ash" else all_five.order
        vector = sites[name].mask(order, WORDS[name])
        all_five.vectors[name] = replace(vector, shares={n: vector.shares.get(n, b"") for n in NAMES if n != name})
    orders = all_five.reveal_orders()
    with pytest.raises(Breach, match="'ash' has sent was not made for this sum: the server has shown it another set"):
        sites["beech"].reveal(orders["beech"])
    with pytest.raises(Breach, match="survivors of a sum are not sites that were asked"):
        sites["ash"].reveal(orders["ash"])


@pytest.mark.parametrize("lie", [{"round": 1}, {"attempt": 1}, {"epoch": 1}, {"run": "r2"}])
def test_another_round_attempt_epoch_or_run_shown_to_one_site_is_caught(lie):
    sites = party()
    work = MaskedSum("r1", 0, 0, 0, sites, 7)
    try:
        for name in NAMES:
            order = replace(work.order, **lie) if name == "ash" else work.order
            work.take(name, sites[name].mask(order, WORDS[name]))
    except Breach:
        assert {*lie} & {"epoch", "run"}
        return
    orders = work.reveal_orders()
    for name in NAMES:
        with pytest.raises(Breach, match=r"not made for this sum|has not masked"):
            sites[name].reveal(orders[name])


def test_survivors_shown_differently_do_not_give_two_sums():
    """One half hears that ash is gone, the other that it is there: neither has enough sites, or no share is left."""
    sites = party()
    work = masked_by_all(sites)
    orders = work.reveal_orders()
    without = tuple(n for n in NAMES if n != "ash")
    some = {n: sites[n].reveal(replace(orders[n], survivors=without)) for n in ("beech", "cedar")}
    rest = {n: sites[n].reveal(orders[n]) for n in ("ash", "elm", "fir")}
    assert all("ash" in reveal.shares for reveal in rest.values())
    assert len(rest) < work.threshold  # so ash's own mask is not to be had
    assert all("ash" not in reveal.shares for reveal in some.values())
    for n, order in orders.items():
        with pytest.raises(Breach, match=r"summed already|new keys"):
            sites[n].reveal(replace(order, survivors=without if n in rest else NAMES))


def test_a_round_is_masked_and_summed_once():
    sites = party()
    work = masked_by_all(sites)
    ash = sites["ash"]
    assert ash.mask(work.order, WORDS["ash"]) == work.vectors["ash"]  # a repeated request gets the same bytes
    with pytest.raises(Breach, match="attempt 0 of round 0 has been masked already"):
        ash.mask(work.order, WORDS["ash"] + 1)
    with pytest.raises(Breach, match="round 0 was asked for over another set"):
        ash.mask(replace(work.order, attempt=1, sites=NAMES[:4]), WORDS["ash"])
    again = masked_by_all(sites, attempt=1)  # nothing was revealed, so another attempt over the same set is harmless
    assert again.vectors["ash"].words != work.vectors["ash"].words
    orders = again.reveal_orders()
    first = ash.reveal(orders["ash"])
    assert ash.reveal(orders["ash"]) == first
    with pytest.raises(Breach, match="has been summed already"):
        ash.reveal(replace(orders["ash"], survivors=NAMES[:4]))
    with pytest.raises(Breach, match="round 0 has been summed already"):
        ash.mask(replace(work.order, attempt=2), WORDS["ash"])
    ash.mask(MaskOrder("r1", 0, 5, 0, NAMES), WORDS["ash"])
    with pytest.raises(Breach, match="round 3 is past"):
        ash.mask(MaskOrder("r1", 0, 3, 0, NAMES), WORDS["ash"])


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.parametrize("round", [0, 1])
def test_no_sum_is_over_another_set_than_the_first_also_after_a_restart(round, is_noisy):
    """The difference of a sum over all and of one over all but fir, at the same model, was what fir had sent.

    With noise in shares, which is drawn anew for each round, only the same round has one set.
    """
    record: dict[str, dict[str, str]] = {name: {} for name in NAMES}
    sites = {name: MaskingSite(IDENTITIES[name], 3, record[name], is_noisy) for name in NAMES}
    exchange_keys(sites, "r1")
    whole = sum_words(sites, WORDS, "r1")
    sites = {name: MaskingSite(IDENTITIES[name], 3, record[name], is_noisy) for name in NAMES}
    exchange_keys(sites, "r1", epoch=1)
    if is_noisy and round:
        rest = sum_words(sites, WORDS, "r1", 1, round, silent=["fir"])
        np.testing.assert_array_equal(whole - rest, WORDS["fir"])
        return
    with pytest.raises(Breach, match="over another set of sites before" if is_noisy else "the same sites in the whole"):
        sum_words(sites, WORDS, "r1", 1, round, silent=["fir"])
    exchange_keys(sites, "r1", epoch=2)
    np.testing.assert_array_equal(sum_words(sites, WORDS, "r1", 2, round + 1), whole)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (MaskOrder("r1", 0, 0, 0, NAMES[:3]), "at least 3 other sites, and this one has 2"),
        (MaskOrder("r1", 0, 0, 0, NAMES[1:]), "this site among them"),
        (MaskOrder("r1", 0, 0, 0, (*NAMES, "ash")), "name each site once"),
        (MaskOrder("r1", 0, 0, 0, tuple(sorted((*NAMES, "ghost")))), "whose key is not in the roster"),
        (MaskOrder("r2", 0, 0, 0, NAMES), "no keys of this run"),
        (MaskOrder("r1", 1, 0, 0, NAMES), "no keys of this run"),
        (MaskOrder("r1", 0, -1, 0, NAMES), "counted from 0"),
    ],
)
def test_orders_that_would_give_a_site_away_are_refused(order, sentence):
    with pytest.raises(Breach, match=sentence):
        party()["ash"].mask(order, WORDS["ash"])


def test_survivors_below_the_least_are_refused():
    sites = party()
    orders = masked_by_all(sites).reveal_orders()
    with pytest.raises(Breach, match="a sum over 3 of 5 sites is refused; at least 4"):
        sites["ash"].reveal(replace(orders["ash"], survivors=NAMES[:3]))
    with pytest.raises(Breach, match="not sites that were asked"):
        sites["ash"].reveal(replace(orders["ash"], survivors=(*NAMES, "ghost")))


def test_shares_that_were_changed_swapped_or_kept_back_are_caught():
    sites = party()
    orders = masked_by_all(sites).reveal_orders()
    good = orders["ash"]
    flipped = bytes([good.shares["elm"][0] ^ 1]) + good.shares["elm"][1:]
    for shares in (
        good.shares | {"elm": flipped},
        good.shares | {"elm": good.shares["fir"]},
        good.shares | {"elm": orders["beech"].shares["elm"]},
        {n: s for n, s in good.shares.items() if n != "elm"},
    ):
        with pytest.raises(Breach, match="'elm' has sent was not made for this sum"):
            sites["ash"].reveal(replace(good, shares=shares))


def test_a_wrong_share_of_a_site_is_noticed_by_the_server():
    sites = party()
    work = masked_by_all(sites)
    for name, order in work.reveal_orders().items():
        reveal = sites[name].reveal(order)
        wrong = {n: (1).to_bytes(32, "big") if n == "elm" and name == "ash" else s for n, s in reveal.shares.items()}
        work.take_reveal(name, replace(reveal, shares=wrong))
    with pytest.raises(Unfinished, match="shares of the mask of 'elm' do not fit together"):
        work.total()


# --- keys ---


def test_a_server_cannot_put_itself_between_two_sites():
    sites = {name: MaskingSite(IDENTITIES[name], 3) for name in NAMES}
    notes = {name: site.new_keys("r1", 0) for name, site in sites.items()}
    own = masks.public_bytes(masks.new_key())
    forged = {
        "its own key": replace(notes["elm"], public=own),
        "its own key, signed by another certificate": _signed(replace(notes["elm"], public=own), IDENTITIES["ghost"]),
        "another project's certificate": _signed(
            replace(notes["elm"], public=own, certificate=FOREIGN["elm"].certificate), FOREIGN["elm"]
        ),
        "another site's certificate": _signed(
            replace(notes["elm"], public=own, certificate=IDENTITIES["ghost"].certificate), IDENTITIES["ghost"]
        ),
        "a certificate that is none": replace(notes["elm"], certificate=b"no certificate"),
        "another epoch": _signed(replace(notes["elm"], epoch=1), IDENTITIES["elm"]),
        "another run": _signed(replace(notes["elm"], run="r0"), IDENTITIES["elm"]),
    }
    for note in forged.values():
        with pytest.raises(Breach, match=r"'elm' is (not signed|of another run)"):
            sites["ash"].accept(roster_of((notes | {"elm": note}).values()))


def _signed(note: KeyNote, identity) -> KeyNote:
    return replace(note, signature=identity.sign(note.statement()))


def test_a_roster_must_hold_the_sites_own_key_once_and_enough_others():
    sites = {name: MaskingSite(IDENTITIES[name], 3) for name in NAMES}
    notes = [site.new_keys("r1", 0) for site in sites.values()]
    old, notes[0] = notes[0], sites["ash"].new_keys("r1", 0)
    with pytest.raises(Breach, match="does not hold this site's own key"):
        sites["ash"].accept(roster_of([old, *notes[1:]]))
    with pytest.raises(Breach, match="at least 3 other sites, and this run has 2"):
        sites["ash"].accept(roster_of(notes[:3]))
    with pytest.raises(Breach, match="twice"):
        sites["ash"].accept(Roster((notes[0], *notes)))
    mirror = _signed(replace(notes[1], public=notes[0].public), IDENTITIES["beech"])
    with pytest.raises(Breach, match="the same key"):
        sites["ash"].accept(roster_of([notes[0], mirror, *notes[2:]]))
    nothing = _signed(replace(notes[1], public=bytes(32)), IDENTITIES["beech"])
    with pytest.raises(fd.FoedusError, match="not one that keeps a secret"):
        sites["ash"].accept(roster_of([notes[0], nothing, *notes[2:]]))


def test_keys_are_new_for_every_run_and_epoch():
    site = MaskingSite(IDENTITIES["ash"], 3)
    assert len({site.new_keys("r1", 0).public, site.new_keys("r1", 1).public, site.new_keys("r2", 0).public}) == 3


# --- messages ---


def test_messages_come_back_as_they_were_and_nothing_else_is_read():
    sites = party()
    work = masked_by_all(sites)
    orders = work.reveal_orders()
    reveal = sites["ash"].reveal(orders["ash"])
    notes = [site.note for site in sites.values() if site.note is not None]
    for message in (*notes, roster_of(notes), work.order, work.vectors["ash"], orders["ash"], reveal):
        content = message.to_bytes()
        assert type(message).from_bytes(content) == message
        for wrong in (content[:-1], content + b"\0", b"", content[:5]):
            with pytest.raises(fd.FoedusError, match="masked sum"):
                type(message).from_bytes(wrong)
    huge = b"\xff" * 7 + b"\x7f"
    with pytest.raises(fd.FoedusError, match="cut short"):
        Roster.from_bytes(huge)
    vector = work.vectors["ash"]
    for wrong in (replace(vector, words=vector.words[:-8]), replace(vector, shares={}), replace(vector, site="elm")):
        with pytest.raises(fd.FoedusError, match="masked vector"):
            MaskedSum("r1", 0, 0, 0, sites, 7).take("ash", wrong)
    with pytest.raises(fd.FoedusError, match="not those of this sum"):
        work.take_reveal("ash", Reveal("ash", {}, {}))


def test_contexts_that_differ_in_anything_have_different_keys():
    base = masks.SumContext("r1", 0, 1, 0, b"\1" * 32, NAMES)
    others = [replace(base, run="r"), replace(base, epoch=1), replace(base, round=2), replace(base, attempt=1),
              replace(base, roster=b"\2" * 32), replace(base, sites=NAMES[:4]),
              replace(base, sites=("ash", "beechcedar", "elm", "fir"))]  # fmt: skip
    keys = {masks.pair_keys(b"s" * 32, one.digest()).mask for one in (base, *others)}
    assert len(keys) == 1 + len(others)


def test_the_vectors_in_the_documentation_are_those_of_the_code():
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    text = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
    ash, beech = (X25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2))
    secret = masks.pair_secret(ash, masks.public_bytes(beech))
    assert secret == masks.pair_secret(beech, masks.public_bytes(ash))
    roster = hashlib.sha256(b"roster").digest()
    context = masks.SumContext("run-1", 0, 7, 0, roster, ("ash", "beech", "cedar", "elm")).digest()
    keys = masks.pair_keys(secret, context)
    words = masks.masked(np.array([1, 2, 3], np.uint64), "ash", b"\3" * 32, {"beech": keys.mask})
    for content in (masks.public_bytes(ash), masks.public_bytes(beech), secret, context, keys.mask, keys.seal):
        assert f"`{content.hex()}`" in text
    assert f"`{masks.seal_share(keys.seal, context, 'ash', 'beech', bytes(range(32))).hex()}`" in text
    for row in (masks.mask_words(keys.mask, 3), words):
        assert f"`{' '.join(f'{int(word):016x}' for word in row)}`" in text


def test_the_vectors_of_checked_runs_in_the_documentation_are_those_of_the_code():
    from foedus.federation.agreement import statement
    from foedus.federation.plan import SIGNED, plan_digest
    from foedus.federation.replay import history_of
    from foedus.federation.secure_site import plan_of, question_of
    from foedus.sums.messages import MaskedVector

    text = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
    sites = ["ash", "beech", "cedar", "elm"]
    plan = {"run": "run-1", "sites": sites, "plan": {"of": "tuple", "items": [1, 0.5]}}
    signed = SIGNED + statement(plan | {"ask": "columns", "round": None}).encode()
    context = masks.SumContext("run-1", 0, 7, 0, hashlib.sha256(b"roster").digest(), tuple(sites)).digest()
    ash, beech = (masks.private_key(bytes([i]) * 32) for i in (1, 2))
    key = masks.pair_keys(masks.pair_secret(ash, masks.public_bytes(beech)), context).mask
    words = masks.masked(np.array([1, 2, 3], np.uint64), "ash", b"\3" * 32, {"beech": key}).astype("<u8").tobytes()
    vector = MaskedVector("ash", words, hashlib.sha256(b"\3" * 32).digest(), {}).statement(context)
    history = history_of(bytes(32), np.array([1, 2, 3], np.int64))
    header = {"ask": "round", "run": "run-1", "round": 8, "phase": 0}
    shown = (
        hashlib.sha256(signed).digest(),
        masks.private_signer(b"\4" * 32).sign(signed),
        bytes.fromhex(plan_digest(dict.fromkeys(sites, plan))),
        hashlib.sha256(vector).digest(),
        masks.private_signer(b"\5" * 32).sign(vector),
        history,
        question_of(plan_of({"run": "run-1"}) + history, header | {"since": 7, "mask": "00"}, b""),
    )
    for content in shown:
        assert f"`{content.hex()}`" in text
