"""foedus: federated optimisation with guarantees. State a problem, pick an algorithm, get an answer with its terms."""

from foedus.engine import configure as _configure

_configure()

from foedus import constraints, data, losses, penalties, regularizers  # noqa: E402
from foedus.algorithms import (  # noqa: E402
    CentralProxAL,
    FedAvg,
    FedGiA,
    FedPD,
    FedProx,
    InexactADMM,
    LocalSGD,
    ProxAL,
    Scaffold,
)
from foedus.errors import FoedusError  # noqa: E402
from foedus.problem import Problem  # noqa: E402
from foedus.run import Run, load  # noqa: E402
from foedus.runtime.participation import Coverage, Fraction, Schedule  # noqa: E402
from foedus.solve import solve  # noqa: E402
from foedus.terms import Data, group, label  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "CentralProxAL",
    "Coverage",
    "Data",
    "FedAvg",
    "FedGiA",
    "FedPD",
    "FedProx",
    "FoedusError",
    "Fraction",
    "InexactADMM",
    "LocalSGD",
    "Problem",
    "ProxAL",
    "Run",
    "Scaffold",
    "Schedule",
    "constraints",
    "data",
    "group",
    "label",
    "load",
    "losses",
    "penalties",
    "regularizers",
    "solve",
]
