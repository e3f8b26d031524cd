"""foedus: federated optimisation with guarantees. State a problem, pick an algorithm, get an answer with its terms."""

from typing import TYPE_CHECKING

from foedus.engine import configure_with_jax as _configure_with_jax
from foedus.engine import import_late as _import_late

_configure_with_jax()

if TYPE_CHECKING:
    from foedus import constraints, data, losses, penalties, regularizers, robust
    from foedus.algorithms import (
        AFL,
        DRFA,
        DRFL,
        WAFL,
        CentralProxAL,
        FedAvg,
        FedDyn,
        FedEPM,
        FedGiA,
        FedPD,
        FedProx,
        InexactADMM,
        InteriorPoint,
        LocalSGD,
        PrivateNewton,
        ProxAL,
        Scaffold,
        SFedAvg,
        SFedProx,
        WAFLGradient,
    )
    from foedus.algorithms.ens import ens
    from foedus.check import check_algorithm
    from foedus.errors import FoedusError
    from foedus.estimators import FairClassifier, NeymanPearsonClassifier, RobustClassifier, RobustRegressor
    from foedus.evaluation import evaluate
    from foedus.privacy.budget import Budget
    from foedus.privacy.central import Central
    from foedus.privacy.noise import Gaussian, Laplace, PaperLaplace
    from foedus.privacy.total import Local
    from foedus.problem import Problem
    from foedus.run import Run, load
    from foedus.runtime.flare.driver import Flare
    from foedus.runtime.participation import Coverage, Fraction, Schedule
    from foedus.runtime.spread import Spread
    from foedus.solve import solve
    from foedus.terms import Data, group, label

__version__ = "0.2.0"

__all__ = [
    "AFL",
    "DRFA",
    "DRFL",
    "WAFL",
    "Budget",
    "Central",
    "CentralProxAL",
    "Coverage",
    "Data",
    "FairClassifier",
    "FedAvg",
    "FedDyn",
    "FedEPM",
    "FedGiA",
    "FedPD",
    "FedProx",
    "Flare",
    "FoedusError",
    "Fraction",
    "Gaussian",
    "InexactADMM",
    "InteriorPoint",
    "Laplace",
    "Local",
    "LocalSGD",
    "NeymanPearsonClassifier",
    "PaperLaplace",
    "PrivateNewton",
    "Problem",
    "ProxAL",
    "RobustClassifier",
    "RobustRegressor",
    "Run",
    "SFedAvg",
    "SFedProx",
    "Scaffold",
    "Schedule",
    "Spread",
    "WAFLGradient",
    "check_algorithm",
    "constraints",
    "data",
    "ens",
    "evaluate",
    "group",
    "label",
    "load",
    "losses",
    "penalties",
    "regularizers",
    "robust",
    "solve",
]

# The module of each public name, which is imported when the name is first asked for
_HOMES = {
    **dict.fromkeys(("AFL", "DRFA", "DRFL", "WAFL", "CentralProxAL", "FedAvg", "FedDyn", "FedEPM"), "algorithms"),
    **dict.fromkeys(("FedGiA", "FedPD", "FedProx", "InexactADMM", "InteriorPoint", "LocalSGD"), "algorithms"),
    **dict.fromkeys(("PrivateNewton", "ProxAL", "SFedAvg", "SFedProx", "Scaffold", "WAFLGradient"), "algorithms"),
    **dict.fromkeys(("FairClassifier", "NeymanPearsonClassifier"), "estimators"),
    **dict.fromkeys(("RobustClassifier", "RobustRegressor"), "estimators"),
    **dict.fromkeys(("Gaussian", "Laplace", "PaperLaplace"), "privacy.noise"),
    **dict.fromkeys(("Coverage", "Fraction", "Schedule"), "runtime.participation"),
    **dict.fromkeys(("Data", "group", "label"), "terms"),
    **dict.fromkeys(("Run", "load"), "run"),
    "Budget": "privacy.budget",
    "Central": "privacy.central",
    "Flare": "runtime.flare.driver",
    "FoedusError": "errors",
    "Local": "privacy.total",
    "Problem": "problem",
    "Spread": "runtime.spread",
    "check_algorithm": "check",
    "ens": "algorithms.ens",
    "evaluate": "evaluation",
    "solve": "solve",
}
_import_late(__name__, _HOMES)
