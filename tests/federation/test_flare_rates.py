"""Sites that bring their own rows choose a threshold together, and evaluate under privacy; servers that cheat."""

import contextlib
import json

import numpy as np
import pytest
from evaluated_wards import Attack
from plans import holding_out
from rated_wards import RATES, expected
from wards import FREE, STUDY, Ward

import foedus as fd
from foedus.app.experiment import build
from foedus.app.experiment.remote import run_of
from foedus.base.errors import FoedusError
from foedus.data.preprocess import Preprocessing
from foedus.federation import packing
from foedus.federation.exchange import Missing
from foedus.federation.holdout import Holdout
from foedus.federation.order import Result
from foedus.federation.policy import Policy, Refusal
from foedus.federation.site_ledger import Limits, Release, SiteLedger, heaviest, total_of
from foedus.statistics.evaluate import Evaluation
from foedus.statistics.rates import Decision

RATED = STUDY + RATES


def test_the_threshold_is_the_simulators_and_the_evaluation_uses_it(tmp_path):
    ward = Ward(tmp_path, RATED)
    request = ward.request()
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.decision is not None
    decision, own = Decision.from_json(result.decision), expected(ward, result.conclusion.w)
    assert (decision.cut, decision.terms) == (own.cut, own.terms)
    assert all(w <= a for t in decision.terms for w, a in zip(t.wrong, t.allowed, strict=True))
    assert result.evaluation is not None
    figures = Evaluation.from_json(result.evaluation)
    assert figures.cut == decision.cut
    assert {t.constraint for t in figures.terms} == {"miss rate", "false-alarm rate"}
    run = run_of(request.plan, Preprocessing.from_json(result.rules), result, request)
    assert run.decision == decision
    run.save(tmp_path / "kept")
    assert fd.load(tmp_path / "kept").decision == decision


def test_a_site_answers_proposals_with_yes_or_no(tmp_path):
    ward = Ward(tmp_path, RATED)
    asked, replies = [], []
    real = ward.ask

    def ask(messages, timeout):
        heard = real(messages, timeout)
        for name, message in messages.items():
            header = packing.unseal(message)[0]
            if header.get("ask") == "rate":
                asked.append(header["what"])
                replies.append(tuple(np.frombuffer(packing.unseal(heard[name])[1], np.int64).tolist()))
        return heard

    ward.ask = ask
    ward.play()
    assert {"count", "admits", "wrong"} == {*asked}
    assert {r for a, r in zip(asked, replies, strict=True) if a == "admits"} == {(0, 0), (1, 0)}
    assert asked.count("wrong") == asked.count("count") == 2 * len(ward.names)


def rate(header, **more):
    return header | {"ask": "rate", "type": "MissRate", "what": "admits", "cut": 0.0} | more


@pytest.mark.parametrize(
    ("text", "forged", "answers"),
    [
        # the number of wrong answers at many thresholds would be the law of the scores
        (RATED, [{"cut": 0.25}, {"cut": 0.5}, {"what": "wrong", "cut": 0.25}, {"what": "wrong", "cut": 0.5}],
         ["ok", "ok", "ok", "policy"]),
        (RATED, [{"cut": 0.25}, *[{"what": "wrong", "cut": 0.25}] * 2], ["ok"] * 3),
        (RATED, [{"what": "wrong", "cut": 0.25}, {"what": "wrong", "cut": "-inf"}], ["policy", "ok"]),
        # thresholds beside the grid would tell one row's score to its last digit, and more than a bisection nothing new
        (RATED, [{"cut": 0.1}, {"cut": 33.0}, *[{"cut": k / 1024} for k in range(18)], {"cut": 0.0}],
         ["unknown"] * 2 + ["ok"] * 17 + ["policy", "ok"]),
        (RATED, [{"what": "scores"}, {"cut": "nan"}, {"cut": None}, {"type": "Accuracy"}],
         ["unknown", "unknown", "unknown", "policy"]),
        (STUDY + "[evaluate]\nholdout = 0.3\n", [{}], ["policy"]),
        (STUDY, [{}], ["policy"]),
    ],
)  # fmt: skip
def test_a_server_that_asks_for_more_gets_nothing(tmp_path, text, forged, answers):
    def forge(header, payload):
        if not payload:
            payload = np.zeros(9).tobytes()
        return [(rate(header, **more), payload) for more in forged]

    class First(Attack):
        """Forges before the first message about a rate, an evaluation or the end."""

        def ask(self, messages, timeout):
            name = self.names[0]
            if name in messages and (header := packing.unseal(messages[name])[0]).get("ask") == "rate":
                payload = packing.unseal(messages[name])[1]
                for one in self.forge(header, payload):
                    self.answers.append(packing.unseal(self.site[name].answer(packing.seal(*one)))[0])
                self.forge = lambda header, payload: ()
            return super().ask(messages, timeout)

    ward = First(tmp_path, text, forge)
    with contextlib.suppress(Missing):  # the honest part of the run may find wrong answers counted elsewhere
        ward.play()
    assert [a["code"] for a in ward.answers] == answers


def test_another_model_is_not_asked_about(tmp_path):
    def forge(header, payload):
        return [(rate(header), payload), (rate(header), (np.frombuffer(payload) + 1e-9).tobytes())]

    ward = Attack(tmp_path, RATED, forge)
    ward.play()
    assert [a["code"] for a in ward.answers] == ["ok", "policy"]


def test_too_few_rows_are_noticed_before_the_rounds_by_the_server(tmp_path):
    """No site refuses: a server that moved `at_most` would count the positives of one that does."""
    ward = Ward(tmp_path, RATED.replace("at_most = 0.4", "at_most = 0.01"))
    with pytest.raises(FoedusError, match=r"site 'city': it keeps \d+ positives out of training"):
        ward.play()
    assert not any(b'"round"' in raw and b'"ask": "round"' in raw for raw in ward.heard)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Policy(**FREE, evaluate=False), "lets no figures of rows leave"),
        (Policy(**FREE, privacy=True), "asks for privacy"),
    ],
)
def test_a_policy_forbids_it(tmp_path, policy, sentence):
    with pytest.raises(Missing, match=sentence):
        Ward(tmp_path, RATED, policy).play()


# under privacy

PRIVATE = (
    STUDY.replace('"FedGiA"', '"FedAvg"\nk0 = 1')
    .replace('penalty = { name = "Ridge", mu = 0.1 }\n', "")
    .replace("max_rounds = 8", "max_rounds = 3")
    + '[preprocess]\nscale = "none"\n[privacy]\nepsilon = 2.0\ndelta = 1e-5\n[evaluate]\nholdout = 0.3\n'
)
LIMIT = Policy(**FREE, max_epsilon=2.0, max_epsilon_total=4.0)


def private(ward: Ward) -> str:
    """The study with bounds and words stated, so that preparing sends nothing exact."""
    numbers = [f"{name!r} = [-1000, 1000]" for name in ward.cohort.features if name not in ward.cohort.words]
    columns = build.rules_of(ward.case.settings, ward.cohort).to_json()["columns"]
    listed = [f"{c['name']!r} = {list(c['levels'])!r}" for c in columns if c["kind"] == "category"]
    return "\n".join([PRIVATE, "[preprocess.bounds]", *numbers, "[preprocess.categories]", *listed])


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    pytest.importorskip("opendp")
    return private(Ward(tmp_path_factory.mktemp("plain"), PRIVATE))


def test_a_private_site_evaluates_with_noise_within_its_limit(tmp_path, text):
    ward = Ward(tmp_path, text, LIMIT)
    request = ward.request()
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.evaluation is not None
    figures = Evaluation.from_json(result.evaluation)
    assert figures.noise is not None
    assert (figures.noise.epsilon, figures.noise.delta, figures.noise.sampler) == (2.0, 1e-5, "opendp")
    assert "SIMULATED" not in str(figures)
    run = run_of(request.plan, Preprocessing.from_json(result.rules), result, request)
    assert run.ledger is not None
    assert {entry.client for entry in run.ledger.after} == {*ward.names}
    assert run.ledger.total("city", "tight") <= 2.0 * (1 + 1e-9)
    ledger = ward.site["city"].gate.ledger
    kinds = {line.what.rpartition(" [")[2].split()[0] for line in ledger.lines}
    assert kinds == {"training", "held-out"}
    assert 1.9 < ledger.total(1e-5, "r1") <= 2.0 * (1 + 1e-6)
    assert ledger.total(1e-5) == ledger.total(1e-5, "r1")
    for line in ledger.lines:  # everything added up would exceed the limit, which a row never pays
        assert "split" in line.what
    assert total_of([Release("", x.kind, x.sensitivity, x.scale, x.neighbours) for x in ledger.lines], 1e-5) > 2.5


@pytest.mark.parametrize("limit", [2.0, np.inf])
def test_other_rows_held_out_in_the_same_run_are_charged_in_full(tmp_path, text, limit):
    """A server that asks for the columns again with another share would hold out rows that have trained the model."""
    ward = Ward(tmp_path, text, Policy(**FREE, privacy=True, max_epsilon=limit))
    past, answers, real = [], [], ward.ask

    def ask(messages, timeout):
        kind = packing.unseal(messages["city"])[0]["ask"] if "city" in messages else ""
        if kind in ("columns", "sums", "prepare", "hello", "join"):
            past.append(packing.unseal(messages["city"]))
        if kind == "evaluate":
            for header, payload in past:
                if header["ask"] == "columns":
                    header = json.loads(json.dumps(header).replace('["holdout", 0.3]', '["holdout", 0.4]'))
                answers.append(packing.unseal(ward.site["city"].answer(packing.seal(header, payload)))[0])
        return real(messages, timeout)

    ward.ask = ask
    ward.play()
    ledger = ward.site["city"].gate.ledger
    total, splits = ledger.total(1e-5, "r1"), {line.what.rpartition(" ")[2] for line in ledger.lines}
    if limit == np.inf:
        assert answers[0]["code"] == "ok"
        assert len(splits) == 2
        assert total > 2.5, "rows of two splits may have paid for both"
    else:
        assert answers[0]["code"] == "policy"
        assert "may be spent" in answers[0]["sentence"]
        assert len(splits) == 1
        assert total <= 2.0 * (1 + 1e-6)


def test_a_second_evaluation_is_charged_and_refused(tmp_path, text):
    def forge(header, payload):
        return [(header, payload), (header | {"again": 1}, payload)]

    ward = Attack(tmp_path, text, forge)
    ward.policy = LIMIT
    ward.play()
    assert [a["code"] for a in ward.answers] == ["ok", "policy"]
    assert ward.site["city"].gate.ledger.total(1e-5, "r1") <= 2.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"noise": None}, "its policy asks for privacy"),
        ({"noise": {"epsilon": 2.5, "delta": 1e-5}}, "may be spent"),
        ({"noise": {"epsilon": -1.0, "delta": 1e-5}}, "is wrong"),
        ({"noise": {"epsilon": "all"}}, "is wrong"),
        ({"rates": [{"type": "MissRate", "at_most": 0.2, "confidence": 0.9}]}, "its policy asks for privacy"),
    ],
)
def test_a_site_refuses_an_evaluation_that_its_policy_does_not_allow(tmp_path, text, change, sentence, monkeypatch):
    holding_out(monkeypatch, lambda honest: honest | change)
    with pytest.raises(Missing, match=sentence):
        Ward(tmp_path, text, LIMIT).play()


def test_the_total_of_several_runs_counts_the_dearer_part_of_each(tmp_path):
    ledger = SiteLedger(tmp_path)
    one, other = (f"{part} rows of split 0123456789ab" for part in ("training", "held-out"))
    dear, cheap = (
        Release("round 0", "gaussian", 1.0, 2.0, rows=one),
        Release("evaluation", "gaussian", 1.0, 4.0, rows=other),
    )

    free = Limits(np.inf, np.inf, 1e-5)
    ledger.charge("a", "x", [dear], free)
    alone = ledger.total(1e-5)
    ledger.charge("a", "y", [cheap], free)
    assert ledger.total(1e-5) == ledger.total(1e-5, "a") == alone
    ledger.charge("b", "z", [cheap], free)
    both = ledger.total(1e-5)
    assert both > alone
    ledger.charge("b", "z", [Release("a round of no split", "gaussian", 1.0, 4.0)], free)
    assert ledger.total(1e-5, "b") > total_of([cheap], 1e-5), "without a split both parts count"
    assert SiteLedger(tmp_path).total(1e-5) == ledger.total(1e-5)  # read anew from the disk
    mixed = heaviest([{("laplace", 0.5): 2}, {("gaussian", 0.1): 1}, {("gaussian", 0.2): 1}])  # pyright: ignore
    assert mixed == {("laplace", 0.5): 2, ("gaussian", 0.2): 1}


@pytest.mark.parametrize(
    "record",
    [
        {"share": 0.0},
        {"share": 0.2, "threshold": 1.0},
        {"share": 0.2, "rates": [{"type": "Accuracy", "at_most": 0.1, "confidence": 0.9}]},
        {"share": 0.2, "rates": [{"type": "MissRate", "at_most": 1.1, "confidence": 0.9}]},
        {"share": 0.2, "rates": "MissRate"},
    ],
)
def test_nonsense_about_rows_to_hold_out_is_refused(record):
    with pytest.raises(Refusal):
        Holdout.from_json(json.loads(json.dumps(record)))


def test_a_threshold_without_a_rate_is_refused():
    with pytest.raises(Refusal, match="no rate is stated"):
        Holdout.from_json({"share": 0.2, "threshold": 0.2}).check(Policy(), False)
