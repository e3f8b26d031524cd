"""Sites whose tables nobody else sees prepare them together: the simulator's rules and answers, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from hospitals import BY_SEX, know_secrets, shares_at, write_tables

import foedus as fd
from foedus.data import preprocess
from foedus.errors import FoedusError
from foedus.experiment import build, file, sources
from foedus.experiment.plan import Plan
from foedus.runtime.flare import packing
from foedus.runtime.flare.approval import Statement
from foedus.runtime.flare.exchange import Exchange, Missing, Paused
from foedus.runtime.flare.order import Patience, Result
from foedus.runtime.flare.policy import Policy, Refusal, SiteFile, Source
from foedus.runtime.flare.preparation import Request, prepare, read
from foedus.runtime.flare.secure_server import play
from foedus.runtime.flare.site import SiteSession

STUDY = f"""
{BY_SEX}[algorithm]
name = "FedGiA"
[problem]
loss = "logistic"
penalty = {{ name = "Ridge", mu = 0.1 }}
[run]
max_rounds = 8
"""
ROLES: dict = {"labels": ("readmitted",), "groups": ("sex",)}
FREE: dict = {"min_subset": 1, "ranges": True}  # 60 rows a site: rare words are few
QUICK = Patience(timeout=1.0, hello=0.0, keep_every=1e9)


class Ward:
    """Four hospitals with a table each, and the same study as the simulator sees it."""

    def __init__(self, folder: Path, text: str = STUDY, policy: Policy | None = None):
        self.folder, self.notes = folder, []
        write_tables(folder, rows=60)
        (folder / "study.toml").write_text(text)
        experiment = file.load(folder / "study.toml")
        (self.case,) = experiment.cases
        self.cohort = sources.cohort_of(self.case.settings, folder)
        self.names = tuple(self.cohort.tables)
        self.sources = {name: Source(folder / f"hospitals/{name}.csv", **ROLES) for name in self.names}
        self.policy = policy or Policy(**FREE)
        self.heard: list[bytes] = []
        know_secrets(*(folder / name for name in self.names))
        self.shares = shares_at(self.case.settings, folder / self.names[0])

    def ask(self, messages, timeout):
        replies = {name: self.site[name].answer(message) for name, message in messages.items()}
        self.heard += replies.values()
        return replies

    def request(self, run: str = "r1") -> Request:
        self.site = {
            name: SiteSession(name, SiteFile(source, self.policy), self.folder / name, self.notes.append)
            for name, source in self.sources.items()
        }
        found = read(Request(run, self.names, Plan.of(self.case.settings)).to_bytes())
        assert isinstance(found, Request)
        return found

    def play(self) -> Result:
        return play(self.request(), self.folder / "server", self.ask, QUICK, self.notes.append, lambda: False)

    def rules(self, run: str = "r1") -> preprocess.Preprocessing:
        names = {name: name for name in self.names}
        exchange = Exchange(run, names, self.ask, QUICK, self.notes.append, lambda: False)
        return prepare(self.request(run), exchange)[1]


def test_the_answer_is_the_simulators(tmp_path):
    ward = Ward(tmp_path)
    built = build.build(ward.case.settings, ward.cohort)
    expected = fd.solve(built.problem, built.algorithm, max_rounds=8)
    result = Result.from_bytes(ward.play().to_bytes())
    assert result.rules is not None
    assert preprocess.Preprocessing.from_json(result.rules) == built.rules
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
    assert ward.rules() == build.rules_of(ward.case.settings, ward.cohort)


def numbers(ward: Ward) -> str:
    """The study with bounds of every column of numbers, the words of every other, and noise on the sums."""
    bounds = [f"{name!r} = [-1000, 1000]" for name in ward.cohort.features if name not in ward.cohort.words]
    words = build.rules_of(ward.case.settings, ward.cohort).to_json()["columns"]
    listed = [f"{c['name']!r} = {list(c['levels'])!r}" for c in words if c["kind"] == "category"]
    stated = ["[preprocess]", "epsilon = 2.0", "[preprocess.bounds]", *bounds, "[preprocess.categories]", *listed]
    return STUDY.replace("[run]", "\n".join([*stated, "[run]"]))


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
    expected = build.rules_of(ward.case.settings, ward.cohort)
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
    with pytest.raises(Missing, match="it has fewer rows than its policy asks for"):
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
    with pytest.raises(Missing, match="client 'city' refuses: its data do not fit the experiment; its own log"):
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
    site = ward.site["city"]
    statement = Statement("r1", "FedGiA", 8, 4, "Hinge", ())
    with pytest.raises(Refusal, match="is not what a person at the site has approved"):
        site.approvals.same(ward.policy, statement)


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
