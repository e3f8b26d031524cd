"""Hospitals that hold rows out, and the figures that a simulation has for them."""

import numpy as np
from wards import STUDY, Ward

from foedus.app.experiment import build
from foedus.app.experiment import figures as run_figures
from foedus.data.holdout import split_cohort
from foedus.federation import packing
from foedus.statistics.evaluate import Evaluation, evaluation_of, here

HELD = STUDY + "[evaluate]\nholdout = 0.3\n"


def simulated(ward: Ward, w: np.ndarray) -> Evaluation:
    """The evaluation of this model that `foedus run` makes, where all rows are in one place."""
    settings = ward.case.settings
    cohort, kept_out = split_cohort(ward.cohort, ward.shares)
    setup = build.build(settings, cohort)
    arrays = {site: run_figures._arrays(setup, table) for site, table in kept_out.held_out.items()}
    return evaluation_of(here(arrays), setup.problem.terms, w, groups=setup.rules.groups)


class Attack(Ward):
    """A ward whose server sends, before the evaluation, messages of its own to the first site."""

    def __init__(self, folder, text, forge):
        super().__init__(folder, text)
        self.forge, self.answers = forge, []

    def ask(self, messages, timeout):
        name = self.names[0]
        header, payload = packing.unseal(messages[name]) if name in messages else ({}, b"")
        if header.get("ask") in ("evaluate", "end"):
            for forged in self.forge(header | {"ask": "evaluate"}, payload):
                self.answers.append(packing.unseal(self.site[name].answer(packing.seal(*forged)))[0])
            self.forge = lambda header, payload: ()
        return super().ask(messages, timeout)
