"""Hospitals in one process that let masked sums alone be seen."""

import numpy as np
from wards import FREE, STUDY, Ward

from foedus.app.experiment import build, figures
from foedus.data.holdout import split_cohort
from foedus.federation.policy import Policy, SiteFile
from foedus.federation.site import SiteSession
from foedus.statistics.questions import FiguresQuestion, NewRows
from foedus.sums.play import trial_identities

STATED = """
[preprocess]
[preprocess.bounds]
age = [0, 120]
blood_pressure = [60, 240]
creatinine = [0, 10]
previous_stays = [0, 20]
[preprocess.categories]
ward = ["cardiology", "internal medicine", "surgery"]
smoker = ["no", "yes"]
[evaluate]
holdout = 0.3
"""


HELD = STUDY.replace("FedGiA", "FedAvg").replace("max_rounds = 8", "max_rounds = 2") + STATED


SECURE = HELD.replace("[run]\n", "[run]\nsecure = true\n")


POLICY = Policy(**FREE, secure_min=3)


class MaskedWard(Ward):
    """Four hospitals that let sums alone be seen."""

    def __init__(self, folder, text=SECURE, policy=POLICY):
        super().__init__(folder, text, policy)
        self.identities = trial_identities(self.names)

    def request(self, run="r1"):
        request = super().request(run)
        for name, source in self.sources.items():
            site = SiteFile(source, self.policy)
            self.site[name] = SiteSession(name, site, self.folder / name, self.notes.append, self.identities[name])
        return request

    def answers(self, w):
        cohort, kept_out = split_cohort(self.cohort, self.shares)
        setup = build.build(self.case.settings, cohort)
        arrays = {site: figures._arrays(setup, table) for site, table in kept_out.held_out.items()}
        question = FiguresQuestion(setup.problem.terms, w, groups=len(setup.rules.groups))
        return question, {site: question.answer(NewRows(rows)) for site, rows in arrays.items()}, arrays


def rows(draw, n, kind):
    X = np.column_stack([draw.normal(size=n), np.ones(n)])
    z = X @ [1.0, 0.3] + draw.normal(size=n)
    group = (draw.uniform(size=n) < 0.5).astype(float)
    return X, (z > 0).astype(float) if kind == "logistic" else 4e5 + 1e5 * z, group


def kept_out(sites=5, rows=200, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"s{i}": (rng.normal(loc=0.3 * i, size=(rows, 1)), rng.integers(2, size=rows).astype(float))
        for i in range(sites)
    }
