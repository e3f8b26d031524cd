"""DRFL: distributionally robust federated learning (Bai, Wong, Qiao and Ho, Algorithm 1)."""

# pyright: reportIncompatibleVariableOverride=false
from collections.abc import Sequence

import numpy as np

from foedus.algorithms.minimax import Minimax
from foedus.base.settings import setting, settings
from foedus.robust.support import Support, is_support


def is_radii(value: object) -> bool:
    """Whether a value is a tuple of numbers >= 0, one for each client."""
    return isinstance(value, tuple) and len(value) > 0 and all(_number(v) and 0 <= v < np.inf for v in value)


def _number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


@settings
class DRFL(Minimax):
    """Finds a linear model whose loss stays small if the clients' data, or their weights, will differ from today's.

    It minimises the worst case over a Wasserstein ball of radius ρ around each client's data and over the clients'
    weights q within θ of q̂. ρ = 0 is AFL's model, with θ = 2 DRFA's, and ρ = θ = 0 with uniform q̂ the standard one.

    By default an interior-point method solves it (`algorithms/interior`). method="splitting" is the paper's way:
    AD-LPMM with splitting="linearised"; splitting="exact" projects onto the weight ball and accelerates. All have one
    optimum.
    `run.worst_case` has the value, the worst weights and the duality gap.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.huber(10.0)), fd.DRFL(radius=0.1))
        >>> run.converged, run.w.round(3).tolist()
        (True, [1.5, 1.5])
    """

    radius: float | Sequence[float] = setting(
        0.01,
        "ρ_s of each client's ball; one number, or a tuple with one for each",
        ge=0,
        also=("a tuple of numbers >= 0, one for each client", is_radii),
        travels=True,
    )
    kappa: float = setting(float("inf"), "κ, the cost of moving a label; infinite: labels stay", gt=0, travels=True)
    metric: str = setting("l1", "the norm of ‖x − x̂‖ in the transport cost", choices=("l1", "l2", "linf"))
    support: Support = setting(
        None,
        "where samples may be: None for everywhere, (low, high), or (C, d) for Cx <= d",
        choices=(None,),
        also=("(low, high) with low < high or (C, d)", is_support),
        travels=True,
    )
    intercept: bool = setting(False, "whether the last column of X is a constant that stays", choices=(False, True))
    theta: float = setting(0.0, "θ, the radius of Q around q̂", ge=0, travels=True)
    p: int | str = setting(1, "the norm of Q", choices=(1, 2, "inf"))
    sample: float | None = setting(
        None, "the share of its samples that a client draws for a step; None: all of them", gt=0, le=1
    )

    __eq__ = Minimax.__eq__
    __hash__ = Minimax.__hash__
