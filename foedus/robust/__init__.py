"""Distributional robustness: Wasserstein balls, supports, worst-case losses and the distributions that attain them.

The public names measure any linear model and cap its worst case:

    fd.robust.worst_case_loss(w, (X, y), 0.1, loss=fd.losses.hinge)
    fd.robust.worst_case(w, (X, y), 0.1, loss=fd.losses.hinge).distribution   # where each sample moves
    fd.robust.worst_case_cap(fd.label(1), at_most=0.3, radius=0.05)           # a constraint for Problem(...)

Beside them are the client's step of the minimax algorithms (`step`, `polyhedron`) and the duality gap (`bound`). No
algorithm lives here: DRFL, AFL and WAFL are in `foedus.algorithms`, and use this package.
"""

from foedus.robust.caps import worst_case_cap, worst_case_mean
from foedus.robust.stress import Stress, Threat, stress
from foedus.robust.worst_case import WorstCase, worst_case, worst_case_loss

__all__ = [
    "Stress",
    "Threat",
    "WorstCase",
    "stress",
    "worst_case",
    "worst_case_cap",
    "worst_case_loss",
    "worst_case_mean",
]
