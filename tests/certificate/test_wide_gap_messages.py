"""The gap of many columns where sites answer in messages, with masks and without: the simulator's, and attacks.

Two columns count as many here, so that the tests are cheap and a gap from matrices can be held against the answers.
"""

from collections import OrderedDict
from dataclasses import replace

import pytest
from cases import problem as five
from halls import FREE, Hall
from masked_halls import MaskedHall

import foedus as fd
from foedus.federation import measuring, packing
from foedus.federation.policy import Policy

RIDGE = fd.penalties.Ridge(0.1, per_example=False)
CAP = fd.constraints.LossCap(fd.label(1), at_most=0.75)
ROUGH = fd.InteriorPoint(eps1=3e-2, eps2=3e-2)  # so that there is a gap to speak of


def stated(**more) -> fd.Problem:
    return fd.Problem(five("logistic").stacked, loss=fd.losses.logistic, penalty=RIDGE, **more)


def gap_from_matrices(problem: fd.Problem, monkeypatch) -> float:
    with monkeypatch.context() as patch:
        patch.setattr("foedus.certificate.measure.GAP_COLUMNS", 500)
        patch.setattr("foedus.numerics.interpreter.dispatch._programs", OrderedDict())
        return fd.solve(problem, ROUGH).certificate.gap


@pytest.mark.parametrize("hall", [Hall, MaskedHall])
@pytest.mark.parametrize("scope", ["local", pytest.param("coupled", marks=pytest.mark.slow)])
def test_sites_that_answer_in_messages_give_the_simulators_gap(tmp_path, many_columns, monkeypatch, hall, scope):
    pytest.importorskip("cryptography")
    problem = stated(constraints=[replace(CAP, scope=scope)])
    run = fd.solve(problem, ROUGH, secure=hall is MaskedHall)
    found = hall(tmp_path, problem, ROUGH).play().conclusion.certificate
    assert found.gap > 1e-7
    assert found.gap == pytest.approx(run.certificate.gap, rel=1e-6)
    assert found.gap_bound == pytest.approx(run.certificate.gap_bound, rel=1e-6)
    assert found.gap == pytest.approx(gap_from_matrices(problem, monkeypatch), rel=0.02)
    assert found.gap_note == ""


def messages_of(hall: Hall) -> dict[str, bytes]:
    """The first question for products that the server of a hall sends to each site."""
    first: dict[str, bytes] = {}

    def ask(messages, timeout):
        for site, message in messages.items():
            if packing.unseal(message)[0]["ask"] == measuring.PRODUCTS:
                first.setdefault(site, message)
            if packing.unseal(message)[0]["ask"] == "end":
                return {}  # the sites stay in the run
        return hall.ask(messages, timeout)

    hall.play(ask)
    return first


def test_a_site_answers_a_limited_number_of_questions_and_none_that_no_certificate_needs(tmp_path, many_columns):
    hall = Hall(tmp_path, stated(), ROUGH)
    (site, message), *_ = messages_of(hall).items()
    header, payload = packing.unseal(message)

    def code(**changes) -> str:
        return packing.unseal(hall.site[site].answer(packing.seal(header | changes, payload)))[0]["code"]

    assert code() == "ok"
    assert code(what="examples") == "unknown"
    for wrong in ({"count": measuring.BATCH + 1}, {"number": measuring.MOST_QUESTIONS}, {"since": 7}, {"run": "r2"}):
        assert code(**wrong) != "ok", wrong
    other = bytes([payload[0] ^ 1]) + payload[1:]  # another model in the last bit of a number
    assert packing.unseal(hall.site[site].answer(packing.seal(header, other)))[0]["code"] == "breach"
    answers = [code() for _ in range(measuring.MOST_QUESTIONS + 1)]
    assert answers[-1] == "breach"
    assert "ok" in answers
    record = measuring.MeasuredModels(tmp_path / site / "measured-r1.json")
    assert record.questions == measuring.MOST_QUESTIONS, "it is on the disk, so that a restart changes nothing"


def test_few_columns_are_measured_by_matrices_and_no_question_is_answered(tmp_path):
    hall = Hall(tmp_path, stated(), ROUGH)
    assert messages_of(hall) == {}
    header = {
        "ask": measuring.PRODUCTS,
        "run": "r1",
        "round": None,
        "what": "rows",
        "number": 0,
        "count": 1,
        "since": 0,
    }
    answer = packing.unseal(hall.site["site-1"].answer(packing.seal(header, b"")))[0]
    assert answer["code"] == "unknown"


def test_under_a_policy_of_privacy_no_product_leaves(tmp_path, many_columns):
    hall = Hall(tmp_path, stated(), ROUGH)
    (site, message), *_ = messages_of(hall).items()
    hall.site[site].policy = Policy(**FREE | {"max_epsilon": 1.0})
    header, payload = packing.unseal(hall.site[site].answer(message))
    assert (header["code"], payload) == ("policy", b"")


def test_a_site_that_does_not_answer_spoils_the_gap_and_nothing_else(tmp_path, many_columns):
    hall = Hall(tmp_path, stated(constraints=[CAP]), ROUGH)

    def ask(messages, timeout):
        kinds = {packing.unseal(message)[0]["ask"] for message in messages.values()}
        replies = hall.ask(messages, timeout)
        return {s: r for s, r in replies.items() if s != "site-2"} if kinds == {measuring.PRODUCTS} else replies

    end = hall.play(ask).conclusion
    assert end.converged
    assert end.certificate.holds()
    assert end.certificate.gap is None
    assert "not all sites answered" in end.certificate.gap_note


def test_rows_that_are_not_convex_prove_no_bound_under_masked_sums_either():
    gap = fd.constraints.LossGap(fd.label(0), fd.label(1), at_most=0.05)
    problem = stated(constraints=[gap])
    for secure in (False, True):
        found = fd.solve(problem, fd.InteriorPoint(), secure=secure).certificate
        assert found.gap_bound is None, f"secure={secure}"
        assert found.gap is not None
