"""Sites whose tables nobody else sees prepare them together: the simulator's rules and answers, and what is refused."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hospitals import BY_SEX
from wards import FREE, STUDY, Ward, numbers, rules_from_sums

import foedus as fd
from foedus.app.experiment import build, file
from foedus.app.experiment.plan import Plan
from foedus.base.errors import FoedusError
from foedus.data import preprocess
from foedus.federation import layout, packing
from foedus.federation.exchange import Missing, Paused
from foedus.federation.order import Result
from foedus.federation.policy import Policy, Source
from foedus.federation.preparation import prepare


def test_the_answer_is_the_simulators(tmp_path):
    ward = Ward(tmp_path)
    built = build.build(ward.case.settings, ward.cohort)
    expected = fd.solve(built.problem, built.algorithm, max_rounds=8)
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.rules is not None
    assert preprocess.Preprocessing.from_json(result.rules) == rules_from_sums(ward)
    np.testing.assert_allclose(result.conclusion.w, expected.w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.history["objective"], expected.history["objective"], rtol=1e-9)
    np.testing.assert_allclose(result.conclusion.certificate.stationarity, expected.certificate.stationarity, rtol=1e-6)
    assert not any(b".csv" in raw for raw in ward.heard)


@pytest.mark.parametrize(
    "text",
    [
        STUDY.replace("[run]", '[preprocess]\nscale = "minmax"\nintercept = false\n[run]'),
        STUDY.replace('group = "sex"', 'drop = ["sex"]\nmissing = "drop"'),
        STUDY.replace("[run]", '[preprocess]\nscale = "none"\n[run]'),
    ],
    ids=["minmax", "drop", "none"],
)
def test_every_rule_is_the_simulators(tmp_path, text):
    ward = Ward(tmp_path, text)
    assert ward.rules() == rules_from_sums(ward)


def test_noise_is_added_at_the_sites_and_is_nobodys_to_repeat(tmp_path):
    """The sums are near the exact ones, differ from run to run, and stand in the site's ledger with their epsilon."""
    text = numbers(Ward(tmp_path))
    ward = Ward(tmp_path, text)
    first = ward.rules()
    for site in ward.site.values():
        site.gate.forget("r1", before=5)  # as when states are kept after some rounds
    assert ward.rules() == first, "a resumed run prepares again, from the same answers, and releases nothing new"
    second = ward.rules("r2")
    assert first.epsilon == 2.0
    assert first.columns != second.columns
    ledger = ward.site["city"].gate.ledger
    assert ledger.total(0.0, "r1") == pytest.approx(2.0)
    assert ledger.total(0.0) == pytest.approx(4.0)
    ward.policy = Policy(max_epsilon=3.0, **FREE)
    with pytest.raises(Missing, match="its policy asks for privacy, and FedGiA adds no noise"):
        ward.rules("r3")


def test_columns_are_called_as_the_site_says(tmp_path):
    ward = Ward(tmp_path)
    expected = rules_from_sums(ward)
    path = tmp_path / "hospitals/city.csv"
    path.write_text(path.read_text().replace("readmitted", "again", 1).replace("age", "years", 1))
    ward.sources["city"] = Source(path)
    with pytest.raises(Missing, match="does not list 'readmitted' among the columns that may be the label"):
        ward.rules()
    ward.sources["city"] = Source(path, y="again", groups=("sex",))
    with pytest.raises(FoedusError, match="client 'lakeside': it has no column 'years', which client 'city' has"):
        ward.rules()
    ward.sources["city"] = Source(path, y="again", groups=("sex",), columns={"age": "years"})
    assert ward.rules() == expected
    ward.sources["city"] = Source(
        path, labels=("again",), groups=("sex",), columns={"readmitted": "again", "age": "years"}, x=("years",)
    )
    with pytest.raises(FoedusError, match=r"client 'lakeside': its column .* is not at client 'city'"):
        ward.rules()


def test_what_a_site_will_not_tell(tmp_path):
    ward = Ward(tmp_path, policy=Policy(max_words=1, **FREE))
    with pytest.raises(Missing, match="its policy lets it tell no more than 1 words of a column"):
        ward.rules()
    ward.policy = Policy(min_rows=1000, **FREE)
    with pytest.raises(Missing, match="it does not take part; its own log says why"):
        ward.rules()
    ward.policy = Policy(algorithms=("ProxAL",), **FREE)
    with pytest.raises(Missing, match="its policy allows ProxAL, not FedGiA"):
        ward.rules()
    ward.policy = Policy(**FREE)
    assert ward.request()
    header = {"run": "r1", "round": None}
    told, _ = packing.unseal(ward.site["city"].answer(packing.seal(header | {"ask": "sums", "columns": {}})))
    assert told["code"] == "other-run", "nothing is summed before the policy has been asked"
    path = tmp_path / "hospitals/city.csv"
    path.write_text(path.read_text().replace(",yes\n", ",patient 4711\n", 1) + "\n")
    ward.heard.clear()
    path.write_text(path.read_text().replace("\n", ",\n"))
    with pytest.raises(Missing, match="client 'city' refuses: it does not take part; its own log"):
        ward.rules()
    assert not any(b"4711" in raw for raw in ward.heard)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("FedGiA", "CentralProxAL"), "works on all data in one place"),
        (('name = "FedGiA"', 'name = "DRFL"'), "sites do not tell"),
        (("[run]", '[privacy]\nnoise = "Laplace"\nepsilon = 1.0\nclip = 1.0\n[run]'), "number of all rows"),
    ],
)
def test_what_needs_the_data_in_one_place_is_refused(tmp_path, change, sentence):
    ward = Ward(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY.replace(*change).replace('penalty = { name = "Ridge", mu = 0.1 }', ""))
    (case,) = file.load(tmp_path / "study.toml").cases
    with pytest.raises(FoedusError, match=sentence):
        Plan.of(case.settings)
    assert ward.names


def test_a_person_approves_a_study_once_and_is_held_to_by_its_rounds(tmp_path):
    ward = Ward(tmp_path, policy=Policy(approve="ask", **FREE))
    with pytest.raises(Paused, match=r"client 'city': it waits for the approval of a person at the site \(request"):
        ward.rules()
    for name in ward.names:
        approvals = ward.site[name].approvals
        (request,) = approvals.all()
        assert "Columns: label readmitted; group sex; features all others." in request.summary
        assert any("exact figures" in line for line in request.summary)
        approvals.decide(request.id, "approved")
    result = ward.play()
    assert np.all(np.isfinite(result.conclusion.w))


CONSTRAINED = f"""
{BY_SEX}[algorithm]
name = "InteriorPoint"
[problem]
loss = "logistic"
where = "group F"
penalty = {{ name = "Ridge", mu = 0.1 }}
[[constraints]]
type = "LossCap"
where = "label yes"
at_most = 0.6
[[constraints]]
type = "Linear"
coefficients = {{ age = 1.0, "(intercept)" = 0.5 }}
at_most = 1.0
[run]
max_rounds = 2
"""
LOSS = 'loss = "logistic"'
APPROVABLE = {
    "constraints": CONSTRAINED,
    "settings that are worked out later": STUDY.replace("FedGiA", "FedEPM"),
    "a form that is chosen later": STUDY.replace("FedGiA", "ProxAL"),
    "an intercept beside a regulariser": STUDY.replace("FedGiA", "InexactADMM").replace(
        LOSS, f'{LOSS}\nregularizer = {{ name = "L1", lam = 0.01 }}'
    ),
    "a regression": STUDY.replace("FedGiA", "FedAvg")
    .replace(LOSS, 'loss = "least_squares"')
    .replace('label = "readmitted"\npositive = "yes"', 'label = "age"'),
    "private": STUDY.replace("FedGiA", "FedAvg").replace("[run]", "[privacy]\nepsilon = 2.0\ndelta = 1e-5\n[run]"),
}


class AskingWard(Ward):
    """A ward whose people approve the run before it is played; `change` is the hand of a server that lies."""

    def __init__(self, folder: Path, text: str, policy: Policy | None = None):
        super().__init__(folder, text, policy or Policy(approve="ask", **FREE))
        self.sources = {name: replace(source, labels=("readmitted", "age")) for name, source in self.sources.items()}
        self.change = lambda header, payload: (header, payload)
        self.said: list[dict] = []

    def ask(self, messages, timeout):
        sent = {name: packing.seal(*self.change(*packing.unseal(message))) for name, message in messages.items()}
        replies = super().ask(sent, timeout)
        self.said += [packing.unseal(reply)[0] for reply in replies.values()]
        return replies

    def approve(self) -> "AskingWard":
        with pytest.raises(Paused, match="it waits for the approval of a person at the site"):
            self.play()
        for name in self.names:
            (request,) = self.site[name].approvals.all()
            self.site[name].approvals.decide(request.id, "approved")
        return self


SLOW = ("private", "an intercept beside a regulariser", "a regression")


@pytest.mark.parametrize("what", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in APPROVABLE])
def test_rounds_that_come_of_what_was_approved_are_played(tmp_path, what):
    ward = AskingWard(tmp_path, APPROVABLE[what]).approve()
    ward.change = altered("round", stop)
    with pytest.raises(InterruptedError):
        ward.play()
    assert [header["code"] for header in ward.said if header["ask"] == "join"] == ["ok"] * 4
    assert len(ward.site["city"].approvals.all()) == 1


def altered(ask: str, alter):
    """A hand that alters the messages of one kind."""

    def change(header, payload):
        return alter(header, payload) if header["ask"] == ask else (header, payload)

    return change


def stop(header, payload):
    raise InterruptedError


def with_terms(**fields):
    def alter(header, payload):
        terms = header["terms"]
        return {**header, "terms": {**terms, "fields": {**terms["fields"], **fields}}}, payload

    return alter


def other_group(header, payload):
    """The cap is on the rows of another label, under the name of the approved one."""
    text = json.dumps(header).replace('"said": "yes", "value": 1.0', '"said": "yes", "value": 0.0')
    return json.loads(text), payload


def other_array(name, header, payload):
    """The same shapes with another number in one array, which may be the first model."""
    shapes = layout.of_shapes(header["extra"])
    plan = (layout.vector(len(payload) // 8 - packing.size_of(shapes) // 8), shapes)
    w, extra = packing.from_bytes(payload, plan)
    (w if name == "w" else extra[name])[..., -1] += 0.25
    return packing.to_bytes((w, extra), plan)


def settings(old, new):
    """A hand that changes a word of the plan."""

    def alter(header, payload):
        text = json.dumps(header)
        assert old in text
        return json.loads(text.replace(old, new)), payload

    return altered("columns", alter)


PLANS = {
    "missing": settings('["missing", "mean"]', '["missing", "drop"]'),
    "positive": settings('["positive", "yes"]', '["positive", "no"]'),
    "where": settings('"group F"', '"group M"'),
    "penalty": settings('["mu", 0.1]', '["mu", 0.2]'),
    "a cap": settings('["at_most", 0.6]', '["at_most", 0.5]'),
    "rounds": settings('["max_rounds", 2]', '["max_rounds", 3]'),
    "seed": settings('["seed", 0]', '["seed", 9]'),
    "a field of a later version": altered("columns", lambda h, p: (h | {"later": 1}, p)),
}


@pytest.mark.parametrize("what", PLANS)
def test_another_plan_than_the_approved_one_is_another_request(tmp_path, what):
    ward = AskingWard(tmp_path, CONSTRAINED).approve()
    ward.said.clear()
    ward.change = PLANS[what]
    with pytest.raises((Missing, Paused, FoedusError)):
        ward.play()
    assert not [header["ask"] for header in ward.said if header["code"] == "ok"]


RIDGE = {"of": "class", "name": "foedus.problem.penalties:Ridge", "fields": {"mu": 100.0, "per_example": True}}
LIES = {
    "where": altered("hello", with_terms(where=None)),
    "penalty": altered("hello", with_terms(penalty=RIDGE)),
    "loss": altered("hello", with_terms(loss={"of": "class", "name": "foedus.problem.losses:Hinge", "fields": {}})),
    "constraints": altered("hello", with_terms(constraints={"of": "tuple", "items": []})),
    "the label of a cap": altered("hello", other_group),
    "rounds": altered("hello", lambda h, p: (h | {"max_rounds": 3}, p)),
    "seed": altered("hello", lambda h, p: (h | {"seed": 9}, p)),
    "masks": altered("hello", lambda h, p: (h | {"secure": True}, p)),
    "data of the server": altered("hello", lambda h, p: (h | {"own": {"x": [1, 2]}}, p)),
    "further arrays": altered("hello", lambda h, p: (h | {"extra": {"robust.q": [1]}}, p)),
}
OTHER = "what it is asked to join does not follow from the plan that it has accepted"


@pytest.fixture
def says_terms(monkeypatch):
    """A server that says terms of its own, where they follow from the plan."""

    def prepared(request, exchange):
        order, rules = prepare(request, exchange)
        return replace(order, prepared=False), rules

    monkeypatch.setattr("foedus.federation.play.prepare", prepared)


@pytest.mark.usefixtures("says_terms")
@pytest.mark.parametrize("what", LIES)
def test_terms_that_do_not_follow_from_the_plan_are_refused(tmp_path, what):
    ward = AskingWard(tmp_path, CONSTRAINED, Policy(**FREE))
    ward.change = LIES[what]
    with pytest.raises(Missing, match=OTHER):
        ward.play()
    assert not [h for h in ward.said if h["ask"] in ("hello", "join") and h["code"] == "ok"]


@pytest.mark.usefixtures("says_terms")
def test_what_a_person_has_approved_is_said_once(tmp_path):
    ward = AskingWard(tmp_path, CONSTRAINED).approve()
    with pytest.raises(Missing, match=OTHER):
        ward.play()


@pytest.mark.usefixtures("says_terms")
def test_a_run_without_masks_may_go_on_from_another_start(tmp_path):
    """As it does without a wrong site; its terms are those of the plan."""
    ward = AskingWard(tmp_path, CONSTRAINED, Policy(**FREE))
    ward.change = altered("round", stop)
    with pytest.raises(InterruptedError):
        ward.play()
    assert [header["code"] for header in ward.said if header["ask"] == "join"] == ["ok"] * 4


@pytest.mark.usefixtures("says_terms")
@pytest.mark.parametrize("name", ["cap0.cap", "linear1.C", pytest.param("linear1.d", marks=pytest.mark.slow)])
def test_limits_and_coefficients_that_do_not_follow_from_the_plan_are_refused(tmp_path, name):
    """They come in `join` as arrays; a lying server states their digest in its greeting."""
    ward = AskingWard(tmp_path, CONSTRAINED, Policy(**FREE))

    def change(header, payload):
        if header["ask"] == "join":
            payload = other_array(name, header, payload)
        if header["ask"] in ("hello", "join"):
            header = header | {"arrays": digests[header["client"]]}
        return header, payload

    digests: dict[str, str] = {}
    honest = AskingWard(tmp_path, CONSTRAINED, ward.policy)

    def note(header, payload):
        if header["ask"] == "join":
            digests[header["client"]] = hashlib.sha256(other_array(name, header, payload)).hexdigest()
        return stop(header, payload) if header["ask"] == "round" else (header, payload)

    honest.change = note
    with pytest.raises(InterruptedError):
        honest.play()
    ward.change = change
    with pytest.raises(Missing, match=OTHER):
        ward.play()


@pytest.mark.parametrize("approve", ["ask", "auto"])
@pytest.mark.parametrize("change", [{"epsilon": 4.0}, {"figures": 3}, None], ids=["epsilon", "figures", "exact sums"])
def test_sums_that_were_greeted_with_noise_are_not_asked_for_with_less_or_without(tmp_path, change, approve):
    ward = AskingWard(tmp_path, numbers(Ward(tmp_path)), Policy(approve=approve, **FREE))
    if approve == "ask":
        ward.approve()
    ward.said.clear()
    ward.change = altered("sums", lambda h, p: (h | {"noise": None if change is None else h["noise"] | change}, p))
    with pytest.raises(Missing, match="it is asked for sums with other noise than the greeting has stated"):
        ward.rules()
    assert not any(header["ask"] == "sums" and header["code"] == "ok" for header in ward.said)
    assert not any(site.gate.ledger.lines for site in ward.site.values())


def test_a_label_that_no_site_has_is_named(tmp_path):
    ward = Ward(tmp_path, STUDY.replace("loss =", 'where = "label maybe"\nloss ='))
    with pytest.raises(FoedusError, match="'label maybe': the column 'readmitted' has no such value, only no, yes"):
        ward.rules()


@pytest.mark.slow
def test_a_private_run_counts_its_releases_as_the_simulator_does(tmp_path):
    text = STUDY.replace('name = "FedGiA"', 'name = "FedAvg"\nlr = 0.1\nk0 = 1').replace(
        "max_rounds = 8", "max_rounds = 4"
    )
    ward = Ward(tmp_path, text.replace("[run]", '[privacy]\nnoise = "Laplace"\nepsilon = 1.0\nclip = 1.0\n[run]'))
    built = build.build(ward.case.settings, ward.cohort)
    run = fd.solve(built.problem, built.algorithm, max_rounds=4, **built.privacy)
    result = ward.play()
    assert run.ledger is not None
    np.testing.assert_array_equal(result.history["ledger.releases"][-1], run.ledger.releases)
    assert ward.site["city"].gate.ledger.total(0.0) == pytest.approx(run.ledger.total("city"))
    assert np.isnan(result.conclusion.objective)
    assert "not measured at 4 of 4 sites" in result.conclusion.certificate.verdict()
    assert not np.allclose(result.conclusion.w, run.w), "the noise is the sites' own"
