"""foedus: federated optimisation with guarantees. State a problem, pick an algorithm, get an answer with its terms."""

from typing import TYPE_CHECKING, Any

from foedus.engine import configure as _configure
from foedus.moved import install as _install

_configure()
_install()

from foedus import constraints, data, losses, penalties, regularizers, robust  # noqa: E402
from foedus.algorithms import (  # noqa: E402
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
from foedus.algorithms.ens import ens  # noqa: E402
from foedus.check import check_algorithm  # noqa: E402
from foedus.errors import FoedusError  # noqa: E402
from foedus.evaluation import evaluate  # noqa: E402
from foedus.privacy.budget import Budget  # noqa: E402
from foedus.privacy.central import Central  # noqa: E402
from foedus.privacy.noise import Gaussian, Laplace, PaperLaplace  # noqa: E402
from foedus.privacy.total import Local  # noqa: E402
from foedus.problem import Problem  # noqa: E402
from foedus.run import Run, load  # noqa: E402
from foedus.runtime.flare.driver import Flare  # noqa: E402
from foedus.runtime.participation import Coverage, Fraction, Schedule  # noqa: E402
from foedus.runtime.spread import Spread  # noqa: E402
from foedus.solve import solve  # noqa: E402
from foedus.terms import Data, group, label  # noqa: E402

if TYPE_CHECKING:
    from foedus.estimators import FairClassifier, NeymanPearsonClassifier, RobustClassifier, RobustRegressor

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


def __getattr__(name: str) -> Any:
    """The estimators, which bring scikit-learn with them, are imported when they are first asked for."""
    if name in ("FairClassifier", "NeymanPearsonClassifier", "RobustClassifier", "RobustRegressor"):
        from foedus import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What `dir` and completion list: also the estimators that are not imported yet."""
    return sorted({*globals(), *__all__})
