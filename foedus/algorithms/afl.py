"""AFL: agnostic federated learning (Mohri, Sivek and Suresh 2019), solved to optimality by AD-LPMM (DRFL C.1)."""

# pyright: reportIncompatibleVariableOverride=false
from typing import Any

from foedus.algorithms.minimax import Minimax
from foedus.settings import setting, settings


@settings
class AFL(Minimax):
    """Agnostic federated learning: the worst weights in Q of the clients' mean losses; no ball around the data.

    θ = 2 makes Q the whole simplex, the model that DRFA is for; θ = 0 is the standard model with weights q̂.
    """

    theta: float = setting(2.0, "θ, the radius of Q around q̂", ge=0, travels=True)
    p: Any = setting(1, "the norm of Q", choices=(1, 2, "inf"))

    __eq__ = Minimax.__eq__
    __hash__ = Minimax.__hash__
