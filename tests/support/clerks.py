"""A server that asks a site for what prepares its table."""

import dataclasses
from pathlib import Path

import numpy as np

import foedus as fd
from foedus.data.sites import Roles
from foedus.federation import packing, spec
from foedus.federation.order import over_a_network
from foedus.federation.policy import Policy, SiteFile, Source
from foedus.federation.site import SiteSession
from foedus.federation.site_ledger import SiteLedger
from foedus.privacy.releasing import make_private

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


class Clerk:
    """A server that prepares a table with one site, in whatever way it likes."""

    def __init__(self, folder: Path, policy: Policy | None = None, noisy: bool = False, **source):
        write_table(folder / "table.csv")
        listed = {"labels": ("ill",), "groups": ("sex",), "x": ("age", "dose", "ward")} | source
        site = SiteFile(Source(folder / "table.csv", **listed), policy or Policy())
        self.notes: list[str] = []
        self.folder = folder
        self.site = SiteSession("city", site, folder / "site", self.notes.append)
        algorithm = fd.FedAvg(lr=0.1, k0=1)
        if noisy:
            two = fd.Problem({"any": (np.zeros((2, 2)), np.array([0.0, 1.0]))}, loss=fd.losses.logistic)
            algorithm = over_a_network(make_private(algorithm, fd.Laplace(epsilon=0.01, clip=1.0), None, two, 1000))
        self.algorithm = spec.encode(algorithm)

    def say(self, ask: str, **told) -> dict:
        header = {"ask": ask, "run": "r1", "round": None} | told
        return packing.unseal(self.site.answer(packing.seal(header)))[0]

    def columns(self, noise=None, **roles) -> dict:
        named = dataclasses.asdict(Roles(**{"label": "ill", "positive": "yes", "group": None} | roles))
        problem = {"loss": "Logistic", "terms": []}
        told = {"roles": named, "algorithm": self.algorithm, "max_rounds": 4, "sites": 3}
        return self.say("columns", **told, problem=problem, noise=noise)

    def sums(self, sums=(), ranges=(), words=(), noise=None) -> dict:
        return self.say("sums", columns={"sums": sums, "ranges": ranges, "words": words}, noise=noise)

    @property
    def spent(self) -> float:
        return SiteLedger(self.folder / "site").total(0.0)


def noise(epsilon: float, figures: int = 6) -> dict:
    return {"bounds": BOUNDS, "epsilon": epsilon, "figures": figures}


PRIVATE = Policy(privacy=True, max_epsilon=1.0, max_epsilon_total=1.0)
