"""Which algorithms take part in a problem, and with which settings: the defaults, published ones, and tuned ones.

Accuracy is no setting here: an algorithm's own stopping test is set as strict as it can be, so that a run goes on until
the accuracies of the study are measured or its limits are reached.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from foedus.algorithms import DRFL, CentralProxAL
from foedus.algorithms.drfa import DRFA
from foedus.algorithms.robust_model import RobustModel
from foedus.algorithms.wafl import WAFLGradient
from foedus.app.experiment.catalogue import algorithms, find_algorithm
from foedus.base.errors import FoedusError
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import Algorithm
from foedus_lab.study.instances import PROBLEMS, RADIUS, THETA

Settings: TypeAlias = Mapping[str, object]

DEFAULT, PUBLISHED, TUNED = "default", "published", "tuned"
KINDS = (DEFAULT, PUBLISHED, TUNED)
STRICT = {"tol": 0.0, "eps1": 1e-9, "eps2": 1e-9, "gap": 1e-10}  # by the names of settings that end a run
LEAST_TOLERANCE = 1e-10  # where a tolerance must be positive
WORST_CASE = (RobustModel, DRFA, WAFLGradient)  # they minimise a worst case, not the mean over sites
ROBUST: Settings = {"radius": RADIUS, "theta": THETA, "q_hat": "uniform", "method": "interior"}
"""The model of a robust problem, which is no choice, and DRFL's default method for it."""

CANDIDATES: dict[str, tuple[Settings, ...]] = {
    "FedAvg": ({"k0": 1}, {"k0": 20}, {"k0": 20, "decay": 100}, {"k0": 50}),
    "FedProx": ({"steps": 1}, {"mu": 0.1, "steps": 20}, {"mu": 1.0, "steps": 10}, {"mu": 1e-4, "steps": 20}),
    "Scaffold": ({"k0": 1}, {"k0": 20}, {"k0": 50}, {"k0": 20, "global_lr": 1.5}),
    "FedPD": ({"steps": 20}, {"steps": 1}, {"steps": 50}, {"k0": 5}),
    "FedDyn": ({"alpha": 0.01, "steps": 20}, {"alpha": 1.0}, {"alpha": 0.1, "steps": 20}, {"alpha": 0.03}),
    "FedGiA": ({"H": "gram", "t": 0.15}, {"t": 0.15}, {"H": "gram"}, {"k0": 1, "t": 0.15}),
    "InexactADMM": ({"rho": 1.0}, {"rho": 0.1}, {"rho": 0.03}, {"rho": 10.0}),
    "ProxAL": ({"inner": "lbfgs"}, {"inner": "admm"}, {"inner": "newton"}, {"beta": 100.0}),
    "LocalSGD": ({"k0": 20}, {"k0": 1}, {"k0": 20, "decay": 100}, {"k0": 50, "decay": 100}),
    "FedEPM": ({"rho": 1.0}, {"k0": 4}, {"rho": 1.0, "k0": 1}, {"rho": 1.0, "k0": 20}),
    "SFedAvg": ({"rho": 1.0, "k0": 1}, {"rho": 1.0}, {"k0": 4}, {"rho": 1.0, "k0": 50}),
    "SFedProx": ({"rho": 1.0, "k0": 1}, {"rho": 1.0}, {"k0": 4}, {"rho": 1.0, "k0": 50}),
    "DRFL": ({"method": "splitting"}, {"method": "splitting", "c": 10.0}, {"method": "splitting", "c": 0.1}),
}
"""The settings that tuning tries for an algorithm, in this order; the defaults are always tried too."""

_FEDGIA = {
    "FedGiA": {"k0": 10, "alpha": 0.5, "t": 0.15},
    "FedAvg": {"k0": 10, "lr": 0.01, "decay": "log"},
    "FedProx": {"k0": 10, "mu": 1e-4, "steps": 5, "lr": 0.003, "decay": "log"},
    "FedPD": {"k0": 1, "steps": 50, "lr": 0.05, "eta": 1.0, "decay": "log"},
}
_EPM = {name: {"k0": 12, "rho": 0.5} for name in ("FedEPM", "SFedAvg", "SFedProx")}
_ADMM = {"inner": "admm", "rho": 0.01, "s_bar": 1e-3}
PUBLISHED_SETTINGS: Mapping[str, Mapping[str, Settings]] = {
    "least-squares": _FEDGIA,
    "logistic": {"FedGiA": _FEDGIA["FedGiA"], **_EPM},
    "nonconvex-logistic": {"FedGiA": _FEDGIA["FedGiA"]},
    "neyman-pearson": {"ProxAL": _ADMM | {"beta": 300.0}},
    "fairness": {"ProxAL": _ADMM | {"beta": 10.0}},
    "quadratic-programs": {"ProxAL": _ADMM | {"beta": 10.0, "s_bar": 0.1, "rho": 1.0}},
    "robust-hinge": {"DRFL": {"method": "splitting", "splitting": "linearised", "constants": "paper"}},
    "robust-logistic": {"DRFL": {"method": "splitting", "splitting": "linearised", "constants": "paper"}},
    "robust-huber": {"DRFL": {"method": "splitting", "splitting": "linearised", "constants": "paper"}},
}
"""Settings of the papers for problems like theirs: FedGiA's section V.D (Example V.1's steps), FedEPM's section VII,
ProxAL's section 5 with Algorithm 2 inside, DRFL's Algorithm 1.
Steps that were stated for columns of another scale are left out."""


def names(own: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the algorithms that a study can name: those that foedus exports, and the user's, as "module:Class"."""
    public = (name for name in algorithms() if not issubclass(_class_of(name), CentralProxAL))
    return (*public, *own)


def _class_of(name: str) -> type:
    cls = find_algorithm(name, "the algorithm").make
    assert isinstance(cls, type)
    return cls


def make(problem: str, name: str, settings: Settings) -> Algorithm:
    """Return the algorithm with these settings, with a stopping test as strict as it can be."""
    offer = find_algorithm(name, "the algorithm")
    kind = PROBLEMS[problem].objective
    algorithm = offer.build({**(ROBUST if kind == "robust" else {}), **settings}, name)
    return (
        algorithm if kind == "private" else strict(algorithm)
    )  # noise ends a private run after a fixed number of rounds


def strict(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its stopping test as strict as its settings allow."""
    assert dataclasses.is_dataclass(algorithm)
    fields = {field.name for field in dataclasses.fields(algorithm)}
    if getattr(algorithm, "stop", None) == "printed":  # FedEPM's rule also ends a run that stands still
        algorithm = dataclasses.replace(algorithm, stop="gradient")
    for name, value in STRICT.items():
        if name in fields:
            try:
                algorithm = dataclasses.replace(algorithm, **{name: value})
            except FoedusError:  # it must be positive
                algorithm = dataclasses.replace(algorithm, **{name: LEAST_TOLERANCE})
    return algorithm


def why_not(problem: str, name: str) -> str | None:
    """Return None where an algorithm minimises what the problem states, and else a sentence that says why not."""
    cls = _class_of(name)
    if PROBLEMS[problem].objective == "robust":
        return (
            None if cls is DRFL or name.count(":") else f"{name} does not minimise the worst case that {problem} states"
        )
    return f"{name} minimises a worst case, and {problem} does not state one" if issubclass(cls, WORST_CASE) else None


def solves(problem: str, name: str) -> bool:
    """Return whether an algorithm minimises what the problem states."""
    return why_not(problem, name) is None


def refusal(problem: str, name: str, instance: Problem) -> str | None:
    """Return the sentence with which an algorithm refuses a problem, or None."""
    try:
        make(problem, name, {}).fit(instance.over(start(instance)))
    except FoedusError as error:
        return str(error)
    return None


def start(problem: Problem) -> np.ndarray:
    """Return w = 0; the sites of a quadratic program hold b, which is as long as w."""
    return np.zeros(problem.terms.dim or int(problem.data["b"].shape[1]))


def settings_of(problem: str, name: str, kind: str) -> list[Settings]:
    """Return the settings of a kind: one or none where they are stated, the candidates where they are tuned."""
    if kind == DEFAULT:
        return [{}]
    if kind == PUBLISHED:
        values = PUBLISHED_SETTINGS.get(problem, {}).get(name)
        return [] if values is None else [values]
    return list(CANDIDATES.get(name, ()))


def find_own(requests: list[str]) -> tuple[str, ...]:
    """Return the names of a user's algorithms, "module:Class", after looking each of them up."""
    for request in requests:
        if ":" not in request:
            raise FoedusError(f"--algorithm {request}: write module:Class; algorithms of foedus take part anyway.")
        find_algorithm(request, "--algorithm")
    return tuple(requests)
