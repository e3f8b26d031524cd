"""Hospitals in one process that prepare their tables together."""

from pathlib import Path

from hospitals import BY_SEX, know_secrets, shares_at, write_tables

from foedus.app.experiment import build, file, sources
from foedus.app.experiment.plan import Plan
from foedus.data import preprocess
from foedus.federation.exchange import Exchange
from foedus.federation.order import Patience, Result
from foedus.federation.plan import Request, read
from foedus.federation.play import play
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.preparation import prepare
from foedus.federation.site import SiteSession

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


def rules_from_sums(ward: Ward, cohort=None) -> preprocess.Preprocessing:
    """The simulator's rules as they follow from sums alone: without quantiles, which need the rows in one place."""
    cohort = cohort or ward.cohort
    return build.rules_of(ward.case.settings, cohort, preprocess.Here(cohort.tables, dict.fromkeys(cohort.tables)))


def numbers(ward: Ward) -> str:
    """The study with bounds of every column of numbers, the words of every other, and noise on the sums."""
    bounds = [f"{name!r} = [-1000, 1000]" for name in ward.cohort.features if name not in ward.cohort.words]
    words = build.rules_of(ward.case.settings, ward.cohort).to_json()["columns"]
    listed = [f"{c['name']!r} = {list(c['levels'])!r}" for c in words if c["kind"] == "category"]
    stated = ["[preprocess]", "epsilon = 2.0", "[preprocess.bounds]", *bounds, "[preprocess.categories]", *listed]
    return STUDY.replace("[run]", "\n".join([*stated, "[run]"]))
