"""Thresholds and noisy figures by masked sums in submitted runs: as in `foedus run`, charged once; cheating servers."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from central_wards import PRIVATE
from hospitals import CENTRAL
from masked_wards import POLICY, SECURE, MaskedWard
from rated_wards import RATES, expected

from foedus.federation import packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.order import Result
from foedus.federation.site_ledger import ROUNDING
from foedus.statistics.evaluate import Evaluation
from foedus.statistics.figures import ALL_ROWS
from foedus.statistics.rates import Decision

RATED = SECURE.partition("[evaluate]")[0] + RATES
NOISY = CENTRAL.replace('"PrivateNewton"', '"FedAvg"\nk0 = 1').replace("secure = true", "secure = true\nmax_rounds = 2")
NOISY += "[evaluate]\nholdout = 0.3\n"
AFTER_ROUNDS = ("measure", "products", "rate", "evaluate")


def test_the_threshold_is_the_simulators_and_no_site_is_told_apart(tmp_path):
    ward = MaskedWard(tmp_path, RATED)
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.decision is not None
    decision, own = Decision.from_json(result.decision), expected(ward, result.conclusion.w)
    assert (decision.cut, decision.terms) == (own.cut, own.terms)
    assert {term.sites for term in decision.terms} == {(ALL_ROWS,)}
    assert all(term.wrong <= term.allowed for term in decision.terms)
    assert result.evaluation is not None
    assert Evaluation.from_json(result.evaluation).cut == decision.cut
    heard = [packing.unseal(raw)[0] for raw in ward.heard]
    answers = [header for header in heard if header["ask"] == "rate"]
    assert answers
    assert not any("rows" in header for header in answers), "what a site says is under masks"


def test_products_thresholds_and_figures_have_sums_of_their_own_in_one_run(tmp_path, many_columns):
    ward = MaskedWard(tmp_path, RATED)
    result = Result.from_bytes(ward.play().to_bytes())
    asks = [packing.unseal(raw)[0]["ask"] for raw in ward.heard]
    kinds = [ask for place, ask in enumerate(asks) if ask in AFTER_ROUNDS and ask not in asks[:place]]
    assert kinds == list(AFTER_ROUNDS)
    assert result.conclusion.certificate.gap is not None
    assert result.decision is not None
    assert result.evaluation is not None


def changed(ward: MaskedWard, change):
    """An `ask` whose messages to one site are changed on their way."""
    honest = ward.ask

    def ask(messages, timeout):
        sent = dict(messages)
        for site, message in messages.items():
            if site == "city":
                sent[site] = packing.seal(*change(*packing.unseal(message)))
        return honest(sent, timeout)

    return ask


def other_threshold(header, payload):
    """One site is asked at the threshold in question, the others at one that everybody admits."""
    if header["ask"] == "rate" and header["what"] == "admits":
        header["cut"] = 0.125
    return header, payload


def openly(header, payload):
    if header["ask"] == "rate":
        header.pop("mask", None)
    return header, payload


@pytest.mark.parametrize(
    ("change", "sentence"),
    [(other_threshold, "could not be unmasked|was not made for this sum"), (openly, "in no form that it knows")],
)
def test_a_server_that_singles_a_site_out_gets_no_answer(tmp_path, change, sentence):
    ward = MaskedWard(tmp_path, RATED)
    ward.ask = changed(ward, change)
    with pytest.raises((Missing, Paused), match=sentence):
        ward.play()


def test_a_site_that_is_too_small_for_a_rate_admits_no_threshold_and_does_not_refuse(tmp_path):
    """A server that moved `at_most` would count the positives of a site that refuses; so all are called positive."""
    ward = MaskedWard(tmp_path, RATED.replace("at_most = 0.4", "at_most = 0.01"))
    decision = Decision.from_json(ward.play().decision)
    assert decision.cut == -np.inf
    assert all(packing.unseal(raw)[0]["code"] == "ok" for raw in ward.heard)


def test_figures_with_noise_are_one_more_sum_and_spend_no_more_than_the_total(tmp_path):
    pytest.importorskip("opendp")
    ward = MaskedWard(tmp_path, NOISY, PRIVATE)
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.evaluation is not None
    figures = Evaluation.from_json(result.evaluation)
    assert figures.noise is not None
    assert (figures.sites, figures.noise.epsilon) == ({}, 30.0)
    rows = sum(table.rows for table in ward.cohort.tables.values())
    assert abs(figures["accuracy"].rows - 0.3 * rows) < 20  # noise of four sites, each a few rows
    for site in ward.site.values():
        ledger = site.gate.ledger
        assert {line.what.rpartition(" [")[2].split()[0] for line in ledger.lines} == {"training", "held-out"}
        assert 29.9 < ledger.total(1e-5, "r1") <= 30.0 * ROUNDING


def test_an_evaluation_that_is_asked_for_again_under_new_masks_has_the_same_noise_and_counts_once(tmp_path):
    pytest.importorskip("opendp")
    ward = MaskedWard(tmp_path, NOISY, PRIVATE)
    honest, lost = ward.ask, []

    def ask(messages, timeout):
        replies = dict(honest(messages, timeout))
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            if header["ask"] == "evaluate" and site == "city" and not lost:
                lost.append(ward.site[site].gate.words_before(header, payload))
                for one in ward.site.values():  # its keys are gone, so that everybody takes new ones
                    one.masks.site.key, one.masks.site.secrets = None, {}
                replies[site] = one_without_keys(header, site)
        return replies

    def one_without_keys(header, site):
        address = {"site": site, "run": header["run"], "round": header["round"], "ask": header["ask"]}
        return packing.seal({"code": "keys", "sentence": "it has no keys"} | address)

    ward.ask = ask
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.evaluation is not None
    assert len(lost) == 1
    assert lost[0] is not None
    for site in ward.site.values():
        held_out = [line for line in site.gate.ledger.lines if "held-out" in line.what]
        assert len({line.request for line in held_out}) == 1
        assert site.gate.ledger.total(1e-5, "r1") <= 30.0 * ROUNDING


def test_a_site_whose_policy_lets_no_figures_leave_refuses_before_its_columns_are_told(tmp_path):
    ward = MaskedWard(tmp_path, RATED, replace(POLICY, evaluate=False))
    with pytest.raises(Missing, match="lets no figures of rows leave"):
        ward.play()


@pytest.mark.slow
def test_rows_of_noise_are_those_of_all_sites(tmp_path):
    """The intervals count the noise of every site: their half width grows with it."""
    pytest.importorskip("opendp")
    widths = []
    for epsilon in (30.0, 3.0):
        folder = tmp_path / f"{epsilon:g}"
        folder.mkdir()
        ward = MaskedWard(folder, NOISY.replace("epsilon = 30.0", f"epsilon = {epsilon}"), PRIVATE)
        evaluation = Result.from_bytes(ward.play().to_bytes()).evaluation
        assert evaluation is not None
        figure = Evaluation.from_json(evaluation)["accuracy"]
        widths.append(figure.high - figure.low)
    assert np.all(np.diff(widths) > 0)
