"""AFL: agnostic federated learning (Mohri, Sivek and Suresh 2019), solved to optimality as DRFL without balls."""

# pyright: reportIncompatibleVariableOverride=false
from foedus.algorithms.minimax import Minimax
from foedus.base.settings import setting, settings


@settings
class AFL(Minimax):
    """Finds the model whose worst-off client is as well off as possible: it minimises the largest of their losses.

    The clients' mean losses are weighed by the worst q in Q, the weights within θ of the nominal q̂; there is no ball
    around the data. θ = 2 makes Q the whole simplex, the model that DRFA approximates; θ = 0 is the standard model
    with weights q̂. `run.worst_case` has the value, the weights and the duality gap.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.huber(10.0)), fd.AFL())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    theta: float = setting(2.0, "θ, the radius of Q around q̂", ge=0, travels=True)
    p: int | str = setting(1, "the norm of Q", choices=(1, 2, "inf"))

    __eq__ = Minimax.__eq__
    __hash__ = Minimax.__hash__
