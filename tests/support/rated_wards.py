"""Hospitals with terms on rates, and the decision that a simulation makes."""

import numpy as np
from wards import Ward

from foedus.app.experiment import build, figures
from foedus.data.holdout import split_cohort
from foedus.statistics.rates import Decision

RATES = """\
[evaluate]
holdout = 0.2
[[constraints]]
type = "MissRate"
at_most = 0.4
confidence = 0.6
[[constraints]]
type = "FalseAlarmRate"
at_most = 0.7
confidence = 0.6
"""


def expected(ward: Ward, w: np.ndarray) -> Decision:
    """The decision that `foedus run` makes, where all rows are in one place."""
    settings = ward.case.settings
    cohort, kept_out = split_cohort(ward.cohort, ward.shares)
    setup = build.build(settings, cohort)
    decision = figures.decision_of(figures.rates_of(settings), setup, kept_out, w)
    assert decision is not None
    return decision
