"""Auto: the algorithm that fits a problem, with the reason in one sentence.

The choice is that of docs/howto/choosing.md and follows from the study (docs/study.md): where algorithms were compared,
`tests/test_study.py` holds it to the winners of the study's table.
"""

from dataclasses import replace

from foedus.algorithms.afl import AFL
from foedus.algorithms.fedavg import FedAvg
from foedus.algorithms.fedgia import FedGiA
from foedus.algorithms.inexact_admm import InexactADMM
from foedus.algorithms.interior.interior_point import InteriorPoint
from foedus.algorithms.private_newton import PrivateNewton
from foedus.algorithms.proxal import ProxAL
from foedus.algorithms.scaffold import Scaffold
from foedus.base.errors import FoedusError
from foedus.base.settings import setting, settings
from foedus.privacy.noise import Noise
from foedus.privacy.releasing import Releasing
from foedus.problem.problem import Problem
from foedus.protocol.algorithm import Algorithm, Fit, name_of


@settings
class Auto(Releasing):
    """Chooses the algorithm for a problem; `run.reason` names it and says why."""

    eps1: float = setting(1e-6, "stationarity to reach, where the algorithm is one for constraints", gt=0)
    eps2: float = setting(1e-6, "feasibility and complementarity to reach there", gt=0)

    noise = None

    def fit(self, problem: Problem) -> Fit:
        algorithm, why = choose(problem)
        if isinstance(algorithm, InteriorPoint | ProxAL):
            algorithm = replace(algorithm, eps1=self.eps1, eps2=self.eps2)
        return replace(algorithm.fit(problem), note=f"{name_of(algorithm)} was chosen because {why}")

    def with_noise(self, noise: Noise, problem: Problem) -> Algorithm:
        plain = PrivateNewton() if problem.terms.constraints else FedAvg(k0=1)
        return plain.with_noise(noise, problem)

    def private_rounds(self, problem: Problem) -> int | None:
        return PrivateNewton().private_rounds(problem) if problem.terms.constraints else None


def choose(problem: Problem) -> tuple[Algorithm, str]:
    """The algorithm for a problem, and why, to go behind "because"."""
    terms = problem.terms
    loss, constrained, regularized = terms.loss, bool(terms.constraints), not terms.regularizer.vanishes
    if loss is not None and not loss.smooth:
        if constrained or terms.penalty is not None:
            what = "constraints" if constrained else "a penalty"
            raise FoedusError(
                f"no algorithm takes {what} together with the loss {loss.name}, which has kinks; use a smooth loss "
                "(smooth_hinge, huber, logistic), or fd.regularizers in place of a penalty."
            )
        return AFL(theta=0.0, q_hat="uniform"), f"the loss {loss.name} has kinks, which it handles exactly"
    # a network of a user's own has many parameters and no need of an exact minimum
    network = loss is None and not constrained and not regularized and terms.dim > InteriorPoint.dense
    if not network:
        try:
            InteriorPoint().fit(problem)
            return InteriorPoint(), "it takes the fewest rounds in the study"
        except FoedusError:
            pass
    if constrained:
        return ProxAL(), "it takes constraints, and InteriorPoint does not fit this problem"
    if regularized and terms.dim <= ProxAL.dense:
        return ProxAL(), "it takes the regulariser, and InteriorPoint does not fit this problem"
    if regularized:
        return InexactADMM(), "it takes the regulariser, and InteriorPoint does not fit this problem"
    if loss is not None:
        return FedGiA(), "it takes one gradient a round, and there are too many parameters for InteriorPoint"
    return Scaffold(), f"it suits an objective of your own with more than {InteriorPoint.dense} parameters"
