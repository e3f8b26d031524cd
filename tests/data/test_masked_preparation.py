"""Tables are prepared through masked sums: the plain rules, nothing of a single site, and servers that lie."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_wards import MaskedWard
from wards import FREE, STUDY, Ward, numbers

from foedus.app.experiment import build
from foedus.base.errors import FoedusError
from foedus.data.preprocess import Category, Number, Preprocessing
from foedus.federation import packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.policy import Policy
from foedus.sums.fixed_point import MOST_TERMS, exact
from foedus.sums.messages import MaskedVector, RevealOrder
from foedus.sums.word_sets import LONGEST, WordTable

pytest.importorskip("cryptography")
PLAIN = STUDY.replace("FedGiA", "FedAvg").replace("max_rounds = 8", "max_rounds = 2")
SECURE = PLAIN.replace("[run]\n", "[run]\nsecure = true\n")


# --- the arithmetic ---


def test_no_sum_of_words_wraps_over_as_many_sites_as_there_may_be():
    words, _ = exact(MOST_TERMS).encode(np.array([1.7976931348623157e308, -5e-324, -1.7976931348623157e308]))
    assert np.max(np.abs(words.astype(object))) * MOST_TERMS < 2**63


@given(st.lists(st.sets(st.text(max_size=12).filter(lambda w: not w.endswith("\0")), max_size=8), max_size=5))
@settings(max_examples=50, deadline=None)
def test_sets_of_words_are_joined_by_adding_up(sets):
    union = {word for one in sets for word in one}
    for attempt in range(9):
        table = WordTable(40, f"salt {attempt}".encode())
        total = sum((table.encode(one) for one in sets), np.zeros(table.size, np.int64))
        if (words := table.words_of(total)) is not None:
            break
    assert words == tuple(sorted(union))


def test_more_words_than_cells_are_told_to_be_unreadable_and_too_long_ones_are_refused():
    table = WordTable(4, b"salt")
    assert table.words_of(table.encode([f"word {k}" for k in range(60)])) is None
    assert table.words_of(np.arange(table.size)) is None
    with pytest.raises(FoedusError, match=f"masked sums take {LONGEST}"):
        table.encode(["x" * (LONGEST + 1)])


def test_the_table_of_a_sum_says_how_many_sites_have_a_word_and_not_which():
    table = WordTable(8, b"salt")
    one, other = ["eye", "ear"], ["ear", "skin"]
    assert np.array_equal(table.encode(one) + table.encode(other), table.encode(["ear"]) + table.encode([*one, "skin"]))


# --- rules ---


def near(rules: Preprocessing, plain: Preprocessing) -> None:
    assert rules.names == plain.names
    assert (rules.labels, rules.groups, rules.exact) == (plain.labels, plain.groups, plain.exact)
    for mine, theirs in zip(rules.columns, plain.columns, strict=True):
        if isinstance(mine, Category):
            assert mine == theirs
            continue
        assert isinstance(theirs, Number)
        np.testing.assert_allclose(
            [mine.shift, mine.scale, mine.fill],
            [theirs.shift, theirs.scale, theirs.fill],
            rtol=1e-12,
            err_msg=mine.name,
        )


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        ('group = "sex"', 'drop = ["sex"]\nmissing = "drop"'),
        ("[run]", '[preprocess]\nscale = "none"\n[run]'),
        ("[run]", '[preprocess.categories]\nward = ["cardiology", "surgery"]\n[run]'),
    ],
    ids=["standard", "drop", "none", "listed"],
)
def test_the_rules_are_the_plain_ones_here_and_over_messages(tmp_path, change):
    plain = Ward(tmp_path, PLAIN.replace(*change))
    expected = build.rules_of(plain.case.settings, plain.cohort)
    ward = MaskedWard(tmp_path, SECURE.replace(*change))
    here = build.rules_of(ward.case.settings, ward.cohort)
    near(here, expected)
    assert ward.rules() == here


def test_columns_in_any_units_keep_their_digits(tmp_path):
    """Numbers of 1e-150 and of 1e+150: a fixed point would lose one or the other."""
    (tmp_path / "plain").mkdir()
    wards = [Ward(tmp_path / "plain", PLAIN), MaskedWard(tmp_path, SECURE)]
    for ward in wards:
        for table in ward.cohort.tables.values():
            table.columns["age"] = table.columns["age"] * 1e-150
            table.columns["creatinine"] = table.columns["creatinine"] * 1e150
    plain, masked = (build.rules_of(ward.case.settings, ward.cohort) for ward in wards)
    near(masked, plain)


def test_nothing_of_a_single_site_is_in_what_the_server_hears(tmp_path):
    ward = MaskedWard(tmp_path, SECURE)
    result = ward.play()
    assert len(result.history["phase"]) == 2
    words = {"cardiology", "surgery", "internal medicine", "yes", "female", "male"}
    asks = set()
    for raw in ward.heard:
        header, content = packing.unseal(raw)
        asks.add(header["ask"])
        text = json.dumps(header)
        assert not any(f'"{word}"' in text for word in words), text
        if header["ask"] in ("sums", "squares"):
            assert not {*header} & {"sums", "squares"}
            vector = MaskedVector.from_bytes(content).words
            pieces = {vector[k : k + 8] for k in range(0, len(vector), 8)}
            assert len(pieces) == len(vector) // 8, "masked words are all different, also those of empty cells"
    assert {"sums", "squares", "keys", "roster", "reveal"} <= asks


# --- noise ---


def test_noise_of_the_sites_is_in_the_sums_and_a_resumed_run_releases_nothing_new(tmp_path):
    text = numbers(Ward(tmp_path, PLAIN)).replace("FedGiA", "FedAvg").replace("[run]\n", "[run]\nsecure = true\n")
    ward = MaskedWard(tmp_path, text)
    ward.rules()
    first = {name: len(site.gate.ledger.lines) for name, site in ward.site.items()}
    assert set(first.values()) == {12}  # three figures of each of four columns
    rules = ward.rules()
    assert {name: len(site.gate.ledger.lines) for name, site in ward.site.items()} == first
    assert ward.site["city"].gate.ledger.total(0.0, "r1") == pytest.approx(2.0)
    again = ward.rules()
    assert again == rules, "new masks, the same figures with the same noise"
    assert ward.rules("r2").columns != rules.columns


# --- attacks ---


class Hand:
    """A server that follows the protocol until its hand changes a message."""

    def __init__(self, ward: MaskedWard, change):
        self.honest, self.change = ward.ask, change
        ward.ask = self.ask

    def ask(self, messages, timeout):
        changed = {}
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            changed[site] = packing.seal(*self.change(site, header, payload))
        return self.honest(changed, timeout)


def unmasked(site, header, payload):
    """A run that was announced with masked sums is asked for plain ones."""
    header.pop("mask", None)
    return header, payload


def few(site, header, payload):
    """Sites are told that only two have answered."""
    if header["ask"] == "reveal":
        order = RevealOrder.from_bytes(payload)
        payload = replace(order, survivors=order.survivors[:2]).to_bytes()
    return header, payload


def ranges(site, header, payload):
    """The least and greatest values of single rows are asked for under masks."""
    if header["ask"] == "sums":
        header["columns"]["ranges"] = ["age"]
    return header, payload


def stranger(site, header, payload):
    """A column that is no feature is asked for."""
    if header["ask"] == "sums":
        header["columns"]["sums"] = ["readmitted"]
    return header, payload


def other_run(site, header, payload):
    """Keys are asked for a run that nobody has agreed to."""
    if header["ask"] == "keys":
        header["run"] = "r9"
    return header, payload


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (unmasked, "in no form that it knows"),
        (few, "a sum over 2 of 4 sites is refused|survivors of a sum are not sites that were asked"),
        (ranges, "other sums than follow"),
        (stranger, "other sums than follow"),
        (other_run, "of another run|prepares no data by masked sums in this run"),
    ],
)
def test_a_lying_server_gets_no_figures(tmp_path, change, sentence):
    ward = MaskedWard(tmp_path, SECURE)
    Hand(ward, change)
    with pytest.raises((Missing, Paused), match=r".") as no:
        ward.rules()
    assert any(re.search(sentence, line) for line in [*ward.notes, str(no.value)]), ward.notes


def test_a_site_with_masked_sums_alone_refuses_a_plain_preparation_before_its_columns_are_told(tmp_path):
    ward = MaskedWard(tmp_path, PLAIN, Policy(**FREE, secure=True))
    with pytest.raises(Missing, match="its policy lets exact replies leave as masked sums alone"):
        ward.rules()
    assert [packing.unseal(raw)[0]["ask"] for raw in ward.heard] == ["columns"] * len(ward.heard)


def test_other_keys_are_used_before_the_rounds_than_in_them(tmp_path):
    ward = MaskedWard(tmp_path, SECURE)
    ward.play()
    (file,) = (tmp_path / "city").glob("summed-*")
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["set"], "both are over the same sites"
    site = ward.site["city"].masks
    assert site.preparation is not None
    assert site.site is not None
    assert site.preparation[1].note.run == "r1.preparation"
    assert site.site.note.run == "r1"


# --- refusals ---


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("[run]", '[preprocess]\nscale = "minmax"\n[run]'), r"tell no least .* 'age' in \[preprocess.bounds\]"),
        (("[algorithm]", "max_categories = 2\n[algorithm]"), r"'ward' holds 3 different words|more different words"),
    ],
)
def test_what_is_no_sum_is_refused_with_a_remedy(tmp_path, change, sentence):
    ward = MaskedWard(tmp_path, SECURE.replace(*change))
    with pytest.raises(FoedusError, match=sentence):
        build.rules_of(ward.case.settings, ward.cohort)
    with pytest.raises(FoedusError, match=sentence):
        ward.rules()


def test_three_sites_are_too_few(tmp_path):
    ward = MaskedWard(tmp_path, SECURE)
    cohort = replace(ward.cohort, tables=dict(list(ward.cohort.tables.items())[:3]))
    with pytest.raises(FoedusError, match=r"need at least 4 sites.* Got 3"):
        build.rules_of(ward.case.settings, cohort)
