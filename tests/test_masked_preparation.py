"""Scales and categories from masked sums: the simulator's rules, nothing of a single site, and servers that lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_flare_preparation import FREE, QUICK, STUDY
from test_secure_evaluation import POLICY, MaskedWard

from foedus.data import preprocess
from foedus.data.preprocess import Category, Number
from foedus.errors import FoedusError
from foedus.experiment import build, file
from foedus.experiment.plan import Plan
from foedus.runtime.flare import packing
from foedus.runtime.flare.exchange import Exchange, Missing, Paused
from foedus.runtime.flare.order import Result
from foedus.runtime.flare.policy import Policy
from foedus.runtime.flare.preparation import prepare
from foedus.runtime.flare.secure_server import MaskedExchange
from foedus.secure.words import LONGEST, WordTable

pytest.importorskip("cryptography")
SECURE = STUDY.replace("FedGiA", "FedAvg").replace("max_rounds = 8", "max_rounds = 2\nsecure = true")
CENTRAL = """
[data]
files = "hospitals/*.csv"
label = "readmitted"
positive = "yes"
features = ["age", "blood_pressure"]
[algorithm]
name = "PrivateNewton"
rounds = 3
[run]
secure = true
[privacy]
kind = "central"
epsilon = 16.0
delta = 1e-5
tolerate = 1
least_rows = 60
[preprocess.bounds]
age = [0, 120]
blood_pressure = [60, 240]
"""


class Clinic(MaskedWard):
    """Four hospitals that prepare their tables from masked sums."""

    def __init__(self, folder, text=SECURE, policy=POLICY):
        super().__init__(folder, text, policy)

    def rules(self, run="r1", ask=None):
        request, names = self.request(run), {name: name for name in self.names}
        exchange = Exchange(run, names, ask or self.ask, QUICK, self.notes.append, lambda: False)
        return prepare(request, exchange, MaskedExchange(run, self.names, exchange, QUICK).whole)[1]


# --- sets as sums ---


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.text(max_size=12), max_size=12), min_size=1, max_size=6))
def test_a_sum_of_tables_gives_every_word_and_how_many_sites_have_it(sites):
    table = WordTable(most=72, salt="run")
    total = sum((table.write(words) for words in sites), np.zeros(table.shape))
    expected = {word: sum(word in words for words in sites) for words in sites for word in words}
    assert table.read(total) == expected


def test_tables_hold_as_many_words_as_they_say_and_refuse_more():
    for seed in range(50):  # other salts, other cells
        table = WordTable(most=50, salt=str(seed))
        words = [f"word {k}" for k in range(50)]
        assert table.read(table.write(words[:30]) + table.write(words[20:])).keys() == {*words}
    with pytest.raises(FoedusError, match="more than 50 different words"):
        table.read(table.write([f"word {k}" for k in range(200)]))
    with pytest.raises(FoedusError, match=f"more than {LONGEST} bytes"):
        table.write(["x" * (LONGEST + 1)])


def test_the_size_of_a_table_depends_on_no_word():
    table = WordTable(most=5)
    assert table.write([]).shape == table.write(["a", "b"]).shape == table.shape


# --- rules ---


def test_rules_are_the_simulators_and_no_site_is_seen(tmp_path):
    ward = Clinic(tmp_path)
    rules, expected = ward.rules(), build.rules_of(ward.case.settings, ward.cohort)
    assert (rules.labels, rules.groups, rules.names) == (expected.labels, expected.groups, expected.names)
    for mine, theirs in zip(rules.columns, expected.columns, strict=True):
        if isinstance(mine, Number) and isinstance(theirs, Number):
            np.testing.assert_allclose(
                [mine.shift, mine.scale, mine.fill], [theirs.shift, theirs.scale, theirs.fill], rtol=1e-12
            )
        else:
            assert mine == theirs
    words = {w for c in expected.columns if isinstance(c, Category) for w in c.levels} | {"yes", "F", "M"}
    heard = {}
    for raw in ward.heard:
        header, content = packing.unseal(raw)
        heard.setdefault(header["ask"], []).append((header, content))
    assert {"columns", "keys", "roster", "words", "sums", "squares", "reveal", "prepare"} == heard.keys()
    for header, _ in heard["columns"]:
        assert header["sketch"]["labels"] == header["sketch"]["groups"] == []
    for kind in ("words", "sums", "squares"):
        for header, content in heard[kind]:
            assert {"sums", "squares"}.isdisjoint(header)
            assert not any(word.encode() in content for word in words if len(word) > 3)
        assert len({len(content) for _, content in heard[kind]}) == 1, "every site's reply has the same size"


def test_a_submitted_run_prepares_and_trains_on_sums_alone(tmp_path):
    ward = Clinic(tmp_path, policy=Policy(**FREE, secure=True, secure_min=3))
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.rules is not None
    assert preprocess.Preprocessing.from_json(result.rules).labels == ("no", "yes")
    assert np.all(np.isfinite(result.conclusion.w))


def test_what_is_no_sum_is_refused_with_a_remedy(tmp_path):
    ward = Clinic(tmp_path, SECURE.replace("[run]", '[preprocess]\nscale = "minmax"\n[run]'))
    with pytest.raises(FoedusError, match="the least and the greatest value are no sums"):
        ward.rules()
    ward = Clinic(tmp_path, SECURE.replace('group = "sex"', 'group = "sex"\nmax_categories = 2'))
    with pytest.raises(
        FoedusError, match=r"column 'ward': the sites have more than 2 different words|max_categories = 2"
    ):
        ward.rules()


def changed(ward: Clinic, kind: str, change):
    """An `ask` whose server changes the messages of one kind to the first site."""

    def ask(messages, timeout):
        messages = dict(messages)
        site = ward.names[0]
        if site in messages:
            header, payload = packing.unseal(messages[site])
            if header["ask"] == kind:
                change(header)
                messages[site] = packing.seal(header, payload)
        return ward.ask(messages, timeout)

    return ask


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("sums", lambda header: header.pop("mask"), "in no form that it knows"),
        ("squares", lambda header: header.pop("mask"), "in no form that it knows"),
        ("words", lambda header: header["columns"].update(words=["age"]), "neither label nor group"),
        ("sums", lambda header: header["columns"].update(sums=["readmitted"]), "columns that are no features"),
    ],
)
def test_a_server_that_asks_for_more_gets_nothing(tmp_path, kind, change, sentence):
    ward = Clinic(tmp_path)
    with pytest.raises((Missing, Paused, FoedusError), match=sentence):
        ward.rules(ask=changed(ward, kind, change))


# --- noise in shares ---


def test_a_submitted_run_adds_noise_in_shares_and_every_ledger_names_whom_it_relies_on(tmp_path):
    ward = Clinic(tmp_path, CENTRAL, Policy(**FREE, privacy=True, secure=True, max_epsilon=16.0))
    result = Result.from_bytes(ward.play().to_bytes())
    assert np.all(np.isfinite(result.conclusion.w))
    np.testing.assert_array_equal(result.history["ledger.releases"][-1], 3)
    for site in ward.site.values():
        lines = site.gate.ledger.lines
        assert len(lines) == 3
        assert all("shares of noise of at least 3 of 4 sites that do not collude" in line.what for line in lines)
        assert 15.9 < site.gate.ledger.total(1e-5) <= 16.0
    again = Clinic(tmp_path, CENTRAL, Policy(**FREE, privacy=True, max_epsilon=15.0))
    with pytest.raises(Missing, match="epsilon"):
        again.rules("r2")


def test_a_submitted_run_needs_the_fewest_rows_of_a_site(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(CENTRAL.replace("least_rows = 60\n", ""))
    with pytest.raises(FoedusError, match="state it as least_rows"):
        Plan.of(file.load(path).cases[0].settings)
