"""Problems and algorithms that several test modules share, and with them the compiled programs."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import settings

import foedus as fd
from foedus.privacy.releasing import make_private
from foedus.protocol.algorithm import Algorithm, name_of

NAMES = ("a", "b", "c", "d", "e")
SIZES = (12, 9, 15, 7, 11)
DIM = 4
RIDGE = 6.0

# a first call compiles, so no deadline; the same examples every time, so that a failure is the code's doing
properties = settings(deadline=None, derandomize=True, max_examples=25)


@cache
def regression() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Five ragged clients whose own optima differ."""
    rng = np.random.default_rng(1)
    centre = np.array([1.0, -2.0, 0.5, 1.5])
    clients = {}
    for name, rows in zip(NAMES, SIZES, strict=True):
        X = rng.normal(size=(rows, DIM)) * np.array([1.0, 0.7, 1.3, 1.0])
        clients[name] = (X, X @ (centre + 0.5 * rng.normal(size=DIM)) + 0.3 * rng.normal(size=rows))
    return clients


@cache
def classification() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same clients' rows with labels 0/1 that no plane separates."""
    rng = np.random.default_rng(2)
    centre = np.array([0.8, -0.6, 0.3, 0.4])
    chances = {name: 1.0 / (1.0 + np.exp(-X @ centre)) for name, (X, _) in regression().items()}
    return {name: (regression()[name][0], (rng.random(len(p)) < p).astype(float)) for name, p in chances.items()}


def clients_of(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The clients of one of PROBLEMS."""
    return classification() if name == "logistic" else regression()


def terms_of(name: str) -> dict:
    """The arguments of Problem beside the clients."""
    return {
        "least squares": {"loss": fd.losses.least_squares},
        "logistic": {"loss": fd.losses.logistic},
        "ridge": {"loss": fd.losses.least_squares, "penalty": fd.penalties.Ridge(RIDGE)},
    }[name]


PROBLEMS = ("least squares", "logistic", "ridge")


@cache
def problem(name: str = "least squares") -> fd.Problem:
    """One of PROBLEMS over the ragged clients."""
    return fd.Problem(clients_of(name), **terms_of(name))


@dataclass(frozen=True)
class Case:
    """An algorithm, the rounds it is given on each of PROBLEMS, and the largest error in w it may end with.

    `problem` is the one on which its protocol is checked.
    """

    algorithm: Algorithm
    rounds: int = 3000
    error: float = 1e-7
    problem: str = "least squares"
    slow: bool = False

    def __str__(self) -> str:
        names = ("H", "alpha", "t", "decay", "lr", "inner", "rho", "stop")
        shown = [getattr(self.algorithm, name) for name in names if hasattr(self.algorithm, name)]
        return " ".join(
            [name_of(self.algorithm), *(str(value) for value in shown if value not in (None, "auto", "gradient"))]
        )


TIGHT = 1e-20
GRADIENT = {"stop": "gradient", "tol": 1e-18}

# Every algorithm that foedus exports has its cases here; test_protocol fails where one is missing.
CASES: dict[str, tuple[Case, ...]] = {
    "FedAvg": (Case(fd.FedAvg(k0=1, tol=TIGHT)),),
    "FedProx": (
        Case(fd.FedProx(k0=1, steps=1, mu=0.0, tol=TIGHT)),
        Case(fd.FedProx(decay=20.0, tol=TIGHT), rounds=4000, error=0.01, slow=True),
    ),
    "FedDyn": (Case(fd.FedDyn(), rounds=1500, error=1e-5),),
    "FedNova": (Case(fd.FedNova(batch=None, lr=0.3), rounds=2000, error=1e-6),),
    "FedPD": (Case(fd.FedPD(tol=TIGHT)),),
    "Scaffold": (Case(fd.Scaffold(tol=TIGHT)),),
    "FedGiA": (
        Case(fd.FedGiA(tol=TIGHT)),
        Case(fd.FedGiA(H="gram", tol=TIGHT)),
        Case(fd.FedGiA(k0=3, H="gram", alpha=1.0, t=0.5, tol=TIGHT), slow=True),
    ),
    "FedEPM": (Case(fd.FedEPM(k0=2, rho=1.0, mu0=4.0, alpha=1.0, eta=0.01, per_example=False, **GRADIENT)),),
    "SFedAvg": (Case(fd.SFedAvg(k0=1, rho=1.0, lr=0.3, **GRADIENT)),),
    "SFedProx": (Case(fd.SFedProx(k0=1, steps=1, mu=0.0, rho=1.0, lr=0.3, **GRADIENT)),),
    "LocalSGD": (Case(fd.LocalSGD(batch=4, k0=2, decay=100.0), rounds=6000, error=0.05),),
    "InexactADMM": (Case(fd.InexactADMM(tol=1e-9)),),
    "InteriorPoint": (Case(fd.InteriorPoint(eps1=1e-9, eps2=1e-9)),),
    "ProxAL": (Case(fd.ProxAL(beta=300.0, s_bar=1e-8, eps1=1e-8, eps2=1e-8)),),
    "CentralProxAL": (Case(fd.CentralProxAL(beta=300.0, s_bar=1e-8, eps1=1e-8, eps2=1e-8)),),
}

# robust algorithms answer another question than the least mean loss; test_drfl and test_rivals say whether they do
ROBUST: dict[str, tuple[Case, ...]] = {
    "AFL": (Case(fd.AFL(), problem="logistic"),),
    "DRFA": (Case(fd.DRFA(batch=3, drawn=2), problem="logistic"),),
    "DRFL": (
        Case(fd.DRFL(radius=0.1, kappa=1.0, theta=0.3), problem="logistic"),
        Case(
            fd.DRFL(radius=0.1, theta=0.3, p=2, metric="l2", method="splitting", splitting="linearised"),
            problem="logistic",
        ),
        Case(fd.DRFL(radius=0.1, metric="linf", method="splitting", sample=0.5), problem="logistic"),
    ),
    "WAFL": (Case(fd.WAFL(radius=0.1, kappa=1.0), problem="logistic"),),
    "WAFLGradient": (Case(fd.WAFLGradient(), problem="logistic"),),
}

# private algorithms end near an optimum with noise; test_private_newton says how near
PRIVATE: dict[str, tuple[Case, ...]] = {
    "PrivateNewton": (
        Case(fd.PrivateNewton(rounds=4, noise=fd.Gaussian(epsilon=50.0, delta=1e-5, clip=1.0)), problem="logistic"),
    ),
}

ALL = [case for cases in CASES.values() for case in cases]


def slow(*cases: Case) -> list[Case]:
    """The cases for a test that is quick on others."""
    return [replace(case, slow=True) for case in cases]


def over(cases: list[Case]) -> pytest.MarkDecorator:
    """Parametrise a test over cases."""
    marks = {True: (pytest.mark.slow,), False: ()}
    return pytest.mark.parametrize("case", [pytest.param(case, marks=marks[case.slow], id=str(case)) for case in cases])


def private(algorithm: Algorithm, noise: object) -> Algorithm:
    """The algorithm as `solve(..., privacy=noise)` runs it."""
    return make_private(algorithm, noise, None, problem(), 1000)


# the one partial participation that tests share
SOME = fd.Fraction(0.6, dropout=0.2)

# further settings under which the functions differ; their protocol is checked, not their convergence
VARIANTS = [
    Case(fd.FedAvg(lr=0.1)),
    Case(fd.FedAvg(stop=None)),
    Case(fd.FedPD(lr=0.1)),
    Case(fd.FedPD(lr=0.1, eta=0.1, stop=None)),
    Case(fd.FedGiA(stop=None)),
    Case(fd.FedGiA(H="gram", t=0.2, stop="released")),
    Case(fd.LocalSGD(lr=0.1)),
    Case(fd.FedNova(batch=4, momentum=0.5)),
    Case(fd.FedEPM(rho=0.5, every=3, noise=fd.PaperLaplace(0.1))),
    Case(fd.FedEPM(noise=fd.Laplace(epsilon=0.5, clip=1.0))),
    Case(fd.FedEPM(stop=None, restart=True, noise=fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0, most=3))),
    Case(fd.SFedAvg(noise=fd.Laplace(epsilon=0.5, clip=1.0, rows=2.0))),
    Case(fd.SFedProx(stop="released", noise=fd.PaperLaplace(0.1))),
    Case(private(fd.FedAvg(lr=0.1), fd.Laplace(epsilon=0.5, clip=1.0, rows=2.0))),
    Case(private(fd.FedProx(), fd.Gaussian(epsilon=0.5, delta=1e-6, clip=1.0, rows=2.0, most=2))),
    Case(private(fd.FedGiA(), fd.Laplace(epsilon=0.5, clip=1.0, rows=2.0))),
    Case(fd.InteriorPoint(eps1=float("inf"), gap=1e-9)),
    Case(fd.ProxAL(inner="lbfgs")),
    Case(fd.ProxAL(inner="admm")),
    Case(fd.ProxAL(inner="admm", rho=1.0)),
]
