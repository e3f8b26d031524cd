"""foedus: federated optimisation with guarantees. State a problem, pick an algorithm, get an answer with its terms."""

from typing import TYPE_CHECKING

from foedus.algorithms import __all__ as _ALGORITHMS
from foedus.base.engine import late_names as _late_names

if TYPE_CHECKING:
    from foedus import data, robust
    from foedus.algorithms import *  # noqa: F403
    from foedus.algorithms.ens import ens
    from foedus.app.check import check_algorithm
    from foedus.app.estimators import (
        FairClassifier,
        LinearRegression,
        LogisticRegression,
        NeymanPearsonClassifier,
        RobustClassifier,
        RobustRegressor,
    )
    from foedus.app.glm import glm
    from foedus.app.solve import solve
    from foedus.app.tracking import log_to_mlflow, log_to_wandb
    from foedus.base.errors import FoedusError
    from foedus.federation.flare.driver import Flare
    from foedus.privacy.budget import Budget
    from foedus.privacy.central import Central
    from foedus.privacy.noise import Gaussian, Laplace, PaperLaplace
    from foedus.privacy.total import Local
    from foedus.problem import constraints, likelihoods, losses, penalties, regularizers
    from foedus.problem.problem import Problem
    from foedus.problem.terms import Data, group, label
    from foedus.protocol.participation import Coverage, Fraction, Schedule
    from foedus.runtime.run import Run, load, runs_to_frame
    from foedus.runtime.spread import Spread
    from foedus.statistics import evaluate
    from foedus.statistics.describe import describe
    from foedus.statistics.survival.cox import cox
    from foedus.statistics.survival.curves import kaplan_meier

__version__ = "0.2.0"

__all__ = [
    *_ALGORITHMS,
    "Budget",
    "Central",
    "Coverage",
    "Data",
    "FairClassifier",
    "Flare",
    "FoedusError",
    "Fraction",
    "Gaussian",
    "Laplace",
    "LinearRegression",
    "Local",
    "LogisticRegression",
    "NeymanPearsonClassifier",
    "PaperLaplace",
    "Problem",
    "RobustClassifier",
    "RobustRegressor",
    "Run",
    "Schedule",
    "Spread",
    "check_algorithm",
    "constraints",
    "cox",
    "data",
    "describe",
    "ens",
    "evaluate",
    "glm",
    "group",
    "kaplan_meier",
    "label",
    "likelihoods",
    "load",
    "log_to_mlflow",
    "log_to_wandb",
    "losses",
    "penalties",
    "regularizers",
    "robust",
    "runs_to_frame",
    "solve",
]

# The module of each public name, which is imported when the name is first asked for
_HOMES = {
    **dict.fromkeys(_ALGORITHMS, "algorithms"),
    **dict.fromkeys(("FairClassifier", "LinearRegression", "LogisticRegression"), "app.estimators"),
    "NeymanPearsonClassifier": "app.estimators",
    **dict.fromkeys(("RobustClassifier", "RobustRegressor"), "app.estimators"),
    **dict.fromkeys(("Gaussian", "Laplace", "PaperLaplace"), "privacy.noise"),
    **dict.fromkeys(("Coverage", "Fraction", "Schedule"), "protocol.participation"),
    **dict.fromkeys(("Data", "group", "label"), "problem.terms"),
    **dict.fromkeys(("Run", "load", "runs_to_frame"), "runtime.run"),
    **dict.fromkeys(("log_to_mlflow", "log_to_wandb"), "app.tracking"),
    **dict.fromkeys(("constraints", "likelihoods", "losses", "penalties", "regularizers"), "problem"),
    "Budget": "privacy.budget",
    "Central": "privacy.central",
    "Flare": "federation.flare.driver",
    "FoedusError": "base.errors",
    "Local": "privacy.total",
    "Problem": "problem.problem",
    "Spread": "runtime.spread",
    "check_algorithm": "app.check",
    "cox": "statistics.survival.cox",
    "describe": "statistics.describe",
    "ens": "algorithms.ens",
    "evaluate": "statistics",
    "glm": "app.glm",
    "kaplan_meier": "statistics.survival.curves",
    "solve": "app.solve",
}
__getattr__, __dir__ = _late_names(__name__, _HOMES)
