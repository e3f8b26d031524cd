"""DRFL: distributionally robust federated learning (Bai, Wong, Qiao and Ho, Algorithm 1)."""

# pyright: reportIncompatibleVariableOverride=false
from typing import Any

import numpy as np

from foedus.algorithms.minimax import Minimax
from foedus.robust.support import is_support
from foedus.settings import setting, settings


def is_radii(value: Any) -> bool:
    """Whether a value is a tuple of numbers >= 0, one for each client."""
    return isinstance(value, tuple) and len(value) > 0 and all(_number(v) and 0 <= v < np.inf for v in value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


@settings
class DRFL(Minimax):
    """Distributionally robust federated learning: a Wasserstein ball around each client's data, weights in Q.

    ρ = 0 is AFL's model, with θ = 2 DRFA's, and ρ = θ = 0 with uniform q̂ the standard one.

    By default an interior-point method solves it (`robust_interior.py`). method="splitting" is the paper's way: AD-LPMM
    with splitting="linearised"; splitting="exact" projects onto the weight ball and accelerates. All have one optimum.
    """

    radius: Any = setting(
        0.01,
        "ρ_s of each client's ball; one number, or a tuple with one for each",
        ge=0,
        also=("a tuple of numbers >= 0, one for each client", is_radii),
        travels=True,
    )
    kappa: float = setting(float("inf"), "κ, the cost of moving a label; infinite: labels stay", gt=0, travels=True)
    metric: str = setting("l1", "the norm of ‖x − x̂‖ in the transport cost", choices=("l1", "l2", "linf"))
    support: Any = setting(
        None,
        "where samples may be: None for everywhere, (low, high), or (C, d) for Cx <= d",
        choices=(None,),
        also=("(low, high) with low < high or (C, d)", is_support),
        travels=True,
    )
    intercept: bool = setting(False, "whether the last column of X is a constant that stays", choices=(False, True))
    theta: float = setting(0.0, "θ, the radius of Q around q̂", ge=0, travels=True)
    p: Any = setting(1, "the norm of Q", choices=(1, 2, "inf"))
    sample: float | None = setting(
        None, "the share of its samples that a client draws for a step; None: all of them", gt=0, le=1
    )

    __eq__ = Minimax.__eq__
    __hash__ = Minimax.__hash__
