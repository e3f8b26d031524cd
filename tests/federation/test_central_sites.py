"""Noise in shares in submitted runs: over messages in one process, and over real sites (slow)."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from central_wards import PRIVATE
from hospitals import CENTRAL
from masked_wards import MaskedWard

import foedus as fd
from foedus.algorithms.private_newton import STEPS, STEPS_WITH_CAPS
from foedus.app.experiment import build
from foedus.app.experiment.plan import Plan
from foedus.federation import packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.order import Result
from foedus.federation.site_ledger import ROUNDING
from foedus.sums.play import trial_identities

pytest.importorskip("cryptography")
CAPS = '[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 1.5\n'


def test_a_submitted_run_of_fedavg_spends_its_total_at_every_site(tmp_path):
    text = CENTRAL.replace('"PrivateNewton"', '"FedAvg"\nk0 = 1').replace(
        "secure = true", "secure = true\nmax_rounds = 2"
    )
    ward = MaskedWard(tmp_path, text, PRIVATE)
    ward.play()
    for site in ward.site.values():
        assert len(site.gate.ledger.lines) == 2
        assert 29.9 < site.gate.ledger.total(1e-5) <= 30.0 * ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize(("caps", "rounds"), [("", 1 + STEPS), (CAPS, 2 + STEPS_WITH_CAPS)], ids=["free", "capped"])
def test_a_submitted_run_spends_its_total_at_every_site_and_brings_a_private_certificate(tmp_path, caps, rounds):
    ward = MaskedWard(tmp_path, CENTRAL + caps, PRIVATE)
    result = Result.from_bytes(ward.play().to_bytes())
    assert len(result.history["phase"]) == rounds
    for site in ward.site.values():
        ledger = site.gate.ledger
        assert len(ledger.lines) == rounds
        assert 29.9 < ledger.total(1e-5) <= 30.0 * ROUNDING
        assert "shares of noise of at least 3 of 4 sites that do not collude" in ledger.lines[0].what
    certificate = result.conclusion.certificate
    assert certificate.silent, "nobody measures exactly"
    if not caps:
        assert certificate.private is None
        return
    assert certificate.private is not None
    assert [row.site for row in certificate.private.rows] == list(ward.names)
    setup = build.build(ward.case.settings, ward.cohort)  # the rows themselves say whether the intervals are true
    values = []
    for i in range(len(ward.names)):
        x, y = (np.asarray(setup.problem.client(i)[key]) for key in ("x", "y"))
        values.append(float(np.mean(np.where(y == 1, np.logaddexp(0.0, -(x @ result.conclusion.w)) - 1.5, 0.0))))
    inside = [row.low <= value <= row.high for row, value in zip(certificate.private.rows, values, strict=True)]
    assert sum(inside) >= 3, (values, certificate.private.rows)


def test_a_site_that_allows_less_refuses_before_its_columns_are_told(tmp_path):
    ward = MaskedWard(tmp_path, CENTRAL, replace(PRIVATE, max_epsilon=29.0))
    with pytest.raises(Missing, match=r"allows epsilon 29 a run at delta 1e-05, and with this run 30"):
        ward.play()
    assert all(not site.gate.ledger.lines for site in ward.site.values())
    assert {packing.unseal(raw)[0]["ask"] for raw in ward.heard} == {"columns"}


def more_sites(header):
    """The shares are those of ten sites."""
    return header | {"sites": [*header["sites"], *(f"site-{k}" for k in range(6))]} if "sites" in header else header


def without_masks(header):
    text = json.dumps(header)
    return json.loads(text.replace('["secure", true]', '["secure", false]')) if "plan" in header else header


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (more_sites, "the roster lacks 'site-0', a site of the plan"),
        (without_masks, "does not protect its reply alone"),
    ],
)
def test_a_server_that_asks_with_other_settings_gets_nothing(tmp_path, change, sentence):
    ward = MaskedWard(tmp_path, CENTRAL, PRIVATE)
    honest, changes = ward.ask, list[bool]()

    def ask(messages, timeout):
        changed = {}
        for site, message in messages.items():
            header, payload = packing.unseal(message)
            before = packing.seal(header, payload)
            changed[site] = packing.seal(change(header), payload)
            changes.append(changed[site] != before)
        return honest(changed, timeout)

    ward.ask = ask
    with pytest.raises(fd.FoedusError, match=sentence):
        ward.play()
    assert any(changes), "the attack has changed nothing"
    assert all(not site.gate.ledger.lines for site in ward.site.values())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("epsilon = 30.0", "epsilon = 0.001"), "epsilon 0.001 is too small for any useful noise"),
        (("[run]", "[participation]\nfraction = 0.5\n[run]"), "needs the noise of 3 of 4 clients in every round"),
    ],
)
def test_noise_that_cannot_do_is_refused_before_a_round(tmp_path, change, sentence):
    ward = MaskedWard(tmp_path, CENTRAL.replace(*change))
    with pytest.raises(fd.FoedusError, match=sentence):
        ward.play()
    assert "round" not in {packing.unseal(raw)[0]["ask"] for raw in ward.heard}


def test_a_person_who_approves_is_told_whom_the_noise_relies_on(tmp_path):
    ward = MaskedWard(tmp_path, CENTRAL, replace(PRIVATE, approve="ask"))
    with pytest.raises(Paused, match="it waits for the approval of a person at the site"):
        ward.play()
    (request,) = ward.site[ward.names[0]].approvals.all()
    text = " ".join(request.summary)
    assert "a share of the noise is added here" in text
    assert "at least 3 of the 4 sites do not collude" in text


# --- bad input: one sentence, and nothing is sent ---


def test_what_is_known_without_data_is_refused_at_the_coordinator(tmp_path):
    plan = Plan.of(MaskedWard(tmp_path, CENTRAL).case.settings)
    plan.check(4)
    with pytest.raises(fd.FoedusError, match=r"need at least 4 sites.*Got 3 instead"):
        plan.check(3)
    small = Plan.of(MaskedWard(tmp_path, CENTRAL.replace("epsilon = 30.0", "epsilon = 0.001")).case.settings)
    with pytest.raises(fd.FoedusError, match=r"epsilon 0\.001 is too small for any useful noise"):
        small.check(4)


def heard(ward: MaskedWard, sentence: str) -> set[str]:
    """The kinds of messages that were answered before the run ended with a sentence."""
    with pytest.raises((fd.FoedusError, Paused), match=sentence):
        ward.play()
    return {header["ask"] for header, _ in map(packing.unseal, ward.heard) if header["code"] == "ok"}


def with_identity(ward: MaskedWard, site: str, identity) -> None:
    honest = ward.request

    def request(run="r1"):
        result = honest(run)
        ward.site[site].masks.identity = identity
        return result

    ward.request = request


def test_fewer_sites_than_a_site_asks_for(tmp_path):
    ward = MaskedWard(tmp_path, CENTRAL, replace(PRIVATE, secure_min=5))
    assert heard(ward, r"\(secure_min\) asks for sums with at least 5 other sites, and this run has 3") == set()


def test_a_site_without_cryptography(tmp_path, monkeypatch):
    ward = MaskedWard(tmp_path, CENTRAL, PRIVATE)
    with_identity(ward, ward.names[0], None)
    monkeypatch.setitem(sys.modules, "cryptography", None)  # an import of it now raises ImportError
    words = f"client '{ward.names[0]}' refuses: it cannot take part: masked sums need the package cryptography"
    assert heard(ward, words) <= {"columns"}, "others have told their columns, and nobody a figure"


def test_a_certificate_of_another_project(tmp_path):
    ward = MaskedWard(tmp_path, CENTRAL, PRIVATE)
    with_identity(ward, ward.names[1], trial_identities(ward.names)[ward.names[1]])
    kinds = heard(ward, f"the key of '{ward.names[1]}' is not signed by a certificate of this project")
    assert kinds <= {"columns", "keys", "roster"}, "no figure has been sent"


def test_numbers_that_no_sum_holds(tmp_path):
    """A column of 1e200, whose squares are beyond float64: cut to 1e100, which the site's own log says alone."""
    ward = MaskedWard(tmp_path, CENTRAL.partition("[preprocess.bounds]")[0] + CENTRAL[CENTRAL.index("[algorithm]") :])
    for name in ward.names:
        path = tmp_path / f"hospitals/{name}.csv"
        lines = path.read_text().splitlines()
        place = lines[0].split(",").index("age")
        rows = [line.split(",") for line in lines[1:]]
        for k, row in enumerate(rows):
            row[place] = f"{k + 1}e200"
        path.write_text("\n".join([lines[0], *(",".join(row) for row in rows)]) + "\n")
    assert np.all(np.isfinite(ward.play().conclusion.w))
    assert sum("numbers of column 'age' are cut to the range of 1e+100" in line for line in ward.notes) >= 4
    assert not any(b"cut" in raw for raw in ward.heard)
