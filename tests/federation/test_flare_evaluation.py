"""Sites that bring their own rows hold some out and evaluate the model: the simulator's figures, and refusals."""

import numpy as np
import pytest
from evaluated_wards import HELD, Attack, simulated
from plans import holding_out
from wards import FREE, QUICK, STUDY, Ward, rules_from_sums

from foedus.app.experiment import build
from foedus.data.holdout import split_cohort
from foedus.data.preprocess import Preprocessing
from foedus.federation import layout, packing
from foedus.federation.approval import Statement
from foedus.federation.exchange import Missing, Paused
from foedus.federation.order import Result
from foedus.federation.play import play
from foedus.federation.policy import Policy, SiteFile
from foedus.federation.site import SiteSession
from foedus.statistics import tally
from foedus.statistics.evaluate import Evaluation
from foedus.statistics.questions import FiguresQuestion

CAPPED = HELD + '[[constraints]]\ntype = "LossCap"\nwhere = "label yes"\nat_most = 0.9\n'


def test_the_figures_are_those_of_a_simulation(tmp_path):
    ward = Ward(tmp_path, HELD)
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.evaluation is not None
    figures = Evaluation.from_json(result.evaluation)
    expected = simulated(ward, result.conclusion.w)
    assert figures == expected
    assert figures.total == sum(round(0.3 * 60) for _ in ward.names)
    trained = split_cohort(ward.cohort, ward.shares)[0]
    assert result.rules is not None
    rules = rules_from_sums(ward, trained)
    assert Preprocessing.from_json(result.rules) == rules  # held-out rows set no scale


def test_a_site_lets_no_figure_about_few_rows_leave(tmp_path):
    ward = Ward(tmp_path, HELD, Policy(min_subset=7))
    result = ward.play()
    exact = simulated(ward, result.conclusion.w)
    figures = Evaluation.from_json(result.evaluation)
    site = ward.names[0]
    sent = packing.from_bytes(packing.unseal(ward.heard[-2 * len(ward.names)])[1], _shape(ward))
    assert exact.groups.keys() == {"F", "M"}
    assert not sent["groups"].any()  # a class of a group has fewer than seven of the eighteen rows
    for name in ("positives.first", "positives.last", "negatives.first", "negatives.last"):
        assert set(np.unique(sent[name])) <= {0.0} | set(range(7, 61)), name
    assert figures.sites[site]["accuracy"] == exact.sites[site]["accuracy"]
    assert abs(figures["auc"].value - exact["auc"].value) <= figures.auc_error + exact.auc_error


def test_a_class_with_few_rows_is_told_nothing_about(tmp_path):
    figures = Evaluation.from_json(Ward(tmp_path, HELD, Policy(min_subset=10)).play().evaluation)
    assert figures.total == 0


def _shape(ward: Ward):
    terms = _terms(ward)
    return FiguresQuestion(terms, np.zeros(terms.dim), groups=2).shape


def _terms(ward: Ward):
    settings = ward.case.settings
    return build.build(settings, split_cohort(ward.cohort, ward.shares)[0]).problem.terms


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Policy(**FREE, evaluate=False), r"its policy \(evaluate\) lets no figures of rows leave"),
        (Policy(**FREE, privacy=True), "its policy asks for privacy"),
    ],
)
def test_a_policy_forbids_it_before_anything_is_read(tmp_path, policy, sentence):
    ward = Ward(tmp_path, HELD, policy)
    with pytest.raises(Missing, match=sentence):
        ward.play()
    assert len(ward.heard) <= len(ward.names)  # nobody said more than no


# --- a server that does not keep to the protocol ---


def test_a_run_that_stated_no_evaluation_gets_none(tmp_path):
    ward = Attack(tmp_path, STUDY, lambda header, payload: [(header, np.zeros(9).tobytes())])
    ward.play()
    assert [(a["code"], a["sentence"]) for a in ward.answers] == [
        ("policy", "it has agreed to no evaluation in this run")
    ]


def test_a_site_evaluates_one_model_in_a_run(tmp_path):
    def forge(header, payload):
        w = np.frombuffer(payload)
        return [(header, payload), (header, (w + 1e-9).tobytes()), (header, payload)]

    ward = Attack(tmp_path, HELD, forge)
    ward.play()
    assert [a["code"] for a in ward.answers] == ["ok", "policy", "ok"]
    assert ward.answers[1]["sentence"] == "it evaluates one model in a run, and has evaluated another"


def test_a_site_that_prepares_its_data_anew_still_knows_the_model_it_has_evaluated(tmp_path):
    class Again(Attack):
        """A ward whose server repeats all that came before the rounds, and then asks about another model."""

        past: tuple = ()

        def ask(self, messages, timeout):
            name = self.names[0]
            kinds = ("columns", "sums", "prepare", "hello", "join")
            if name in messages and packing.unseal(messages[name])[0]["ask"] in kinds:
                self.past += (messages[name],)
            return super().ask(messages, timeout)

    def forge(header, payload):
        w = np.frombuffer(payload)
        yield header, payload
        for session in ("the same", "a new one"):
            if session == "a new one":
                name = ward.names[0]
                site = SiteFile(ward.sources[name], ward.policy)
                ward.site[name] = SiteSession(name, site, tmp_path / name, ward.notes.append)
            yield from (packing.unseal(message) for message in ward.past)
            yield header, (w + 1e-9).tobytes()
            yield header, payload

    ward = Again(tmp_path, HELD, forge)
    ward.play()
    codes = [a["code"] for a in ward.answers if a["ask"] == "evaluate"]
    assert codes == ["ok", "policy", "ok", "policy", "ok"]
    assert all(a["code"] == "ok" for a in ward.answers if a["ask"] != "evaluate")


def test_wild_models_are_refused(tmp_path):
    def forge(header, payload):
        w = np.frombuffer(payload)
        return [(header, (w * bad).tobytes()) for bad in (np.nan, np.inf)] + [(header, payload[:-8])]

    ward = Attack(tmp_path, HELD, forge)
    ward.play()
    assert [a["code"] for a in ward.answers] == ["unknown", "unknown", "failed"]


@pytest.mark.parametrize("holdout", [{"share": 1.5}, {"share": 0.205}, {"share": 0.01}, {"share": "a"}, 0.2])
def test_a_wrong_share_is_refused(tmp_path, holdout, monkeypatch):
    holding_out(monkeypatch, lambda honest: holdout)
    with pytest.raises(Missing, match="refuses"):
        Ward(tmp_path, HELD).play()


def test_a_site_that_sends_nonsense_stops_the_run_by_name(tmp_path):
    ward = Ward(tmp_path, HELD)
    request, real = ward.request(), ward.ask

    def ask(messages, timeout):
        replies = real(messages, timeout)
        first = ward.names[0]
        header, payload = packing.unseal(replies[first])
        if header["ask"] == "evaluate":
            replies[first] = packing.seal(header, (np.frombuffer(payload) * np.nan).tobytes())
        return replies

    with pytest.raises(Paused, match=f"client {ward.names[0]!r} does not answer 'evaluate': the figures hold NaN"):
        play(request, tmp_path / "server", ask, QUICK, ward.notes.append, lambda: False)


def test_a_person_reads_that_rows_are_held_out():
    header = {
        "run": "r1", "max_rounds": 3, "sites": 2, "algorithm": {}, "noise": None, "holdout": {"share": 0.2},
        "problem": {"loss": "Logistic", "terms": []}, "roles": {"label": "ill", "group": None, "features": None},
    }  # fmt: skip
    import foedus as fd
    from foedus.federation.site_ledger import SiteLedger

    asked = Statement.of_table(header, fd.FedAvg(), "a plan")
    lines = asked.summary(Policy(), SiteLedger.__new__(SiteLedger))
    assert any(line.startswith("Evaluation: 20 % of the rows are held out of training") for line in lines)
    assert asked.id != Statement.of_table(header, fd.FedAvg(), "another plan").id


def test_the_layout_follows_from_the_terms_alone(tmp_path):
    ward = Ward(tmp_path, CAPPED.replace("FedGiA", "InteriorPoint"))
    sizes = packing.size_of(_shape(ward))
    assert sizes == 8 * sum(int(np.prod(s)) for s in tally.shapes(_terms(ward), groups=2).values())
    assert "term 0.0" in _shape(ward)
    assert layout.vector(3).shape == (3,)
