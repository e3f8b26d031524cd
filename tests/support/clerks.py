"""A server that asks a site for what prepares its table."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import foedus as fd
from foedus.data.sites import Roles
from foedus.federation import packing, spec
from foedus.federation.order import Order, over_a_network
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.site import SiteSession
from foedus.federation.site_ledger import SiteLedger
from foedus.privacy.releasing import make_private
from foedus.protocol.algorithm import Algorithm

ROWS = 100


BOUNDS = {"age": [0.0, 120.0], "dose": [0.0, 10.0]}


def write_table(path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = ["name,age,dose,ward,sex,ill"]
    for i in range(ROWS):
        ward = "isolation" if i < 3 else ("east" if i % 2 else "west")
        sex, ill = "fm"[i % 2], "yes" if draw.random() < 0.5 else "no"
        lines.append(f"patient-{i},{20 + draw.integers(60)},{draw.random() * 10:.3f},{ward},{sex},{ill}")
    path.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class ClerkPlan:
    """A plan of whatever the clerk likes."""

    named: dict
    rounds: Algorithm
    noise: dict | None = None
    kept_out: object = None  # what is said about rows to hold out
    secure: bool = False
    max_rounds: int = 4
    counts_rows: bool = False
    summary: str | None = None
    formula: str = ""

    @property
    def roles(self) -> Roles:
        return Roles(**{k: tuple(v) if isinstance(v, list) else v for k, v in self.named.items()})

    @property
    def holdout(self):
        return SimpleNamespace(to_json=lambda: self.kept_out)

    @property
    def problem(self) -> dict:
        return {"loss": "Logistic", "terms": []}

    def algorithm(self, sites: int) -> Algorithm:
        return self.rounds

    def modules(self) -> tuple[str, ...]:
        return ()

    def verified(self, sites: int) -> bool:
        return False

    def rules(self, cohort, answers):
        raise fd.FoedusError("the clerk says which rules there are.")

    def order(self, cohort, rules, run, sites) -> Order:
        one = fd.Problem({"any": (np.zeros((2, len(rules.names))), np.array([0.0, 1.0]))}, loss=fd.losses.logistic)
        terms = dataclasses.replace(one.terms, clients=len(sites))
        uids = np.zeros((len(sites), 2), np.uint32)
        start = np.zeros(terms.dim)
        return Order(run, terms, self.rounds, start, sites, sites, uids, 0, self.max_rounds, fd.Fraction())


class Clerk:
    """A server that prepares a table with one site, in whatever way it likes."""

    def __init__(self, folder: Path, policy: Policy | None = None, noisy: bool = False, **source):
        write_table(folder / "table.csv")
        listed = {"labels": ("ill",), "groups": ("sex",), "x": ("age", "dose", "ward")} | source
        allowed = dataclasses.replace(policy or Policy(), modules=("clerks",))
        site = SiteFile(Source(folder / "table.csv", **listed), allowed)
        self.notes: list[str] = []
        self.folder = folder
        self.site = SiteSession("city", site, folder / "site", self.notes.append)
        algorithm = fd.FedAvg(lr=0.1, k0=1)
        if noisy:
            two = fd.Problem({"any": (np.zeros((2, 2)), np.array([0.0, 1.0]))}, loss=fd.losses.logistic)
            algorithm = over_a_network(make_private(algorithm, fd.Laplace(epsilon=0.01, clip=1.0), None, two, 1000))
        self.algorithm = algorithm

    def say(self, ask: str, **told) -> dict:
        header = {"ask": ask, "run": "r1", "round": None} | told
        return packing.unseal(self.site.answer(packing.seal(header)))[0]

    def plan(self, noise=None, kept_out=None, secure=False, **roles) -> dict:
        named = dataclasses.asdict(Roles(**{"label": "ill", "positive": "yes", "group": None} | roles))
        plan = ClerkPlan(named, self.algorithm, noise, kept_out, secure)
        return {"plan": spec.encode(plan), "sites": ["city", "north", "south"]}

    def columns(self, **more) -> dict:
        return self.say("columns", **self.plan(**more))

    def sums(self, sums=(), ranges=(), words=(), noise=None) -> dict:
        return self.say("sums", columns={"sums": sums, "ranges": ranges, "words": words}, noise=noise)

    @property
    def spent(self) -> float:
        return SiteLedger(self.folder / "site").total(0.0)


def noise(epsilon: float, figures: int = 6) -> dict:
    return {"bounds": BOUNDS, "epsilon": epsilon, "figures": figures}


PRIVATE = Policy(privacy=True, max_epsilon=1.0, max_epsilon_total=1.0)
