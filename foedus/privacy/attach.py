"""Which private form an algorithm has, or the sentence that says why it has none."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from foedus.algorithm import Algorithm
from foedus.algorithms import FedAvg, FedGiA, FedProx, ProxAL
from foedus.algorithms.private import PrivateDescent, PrivateGiA
from foedus.algorithms.secure import Secure
from foedus.errors import FoedusError
from foedus.privacy.clipping import check_examples
from foedus.privacy.ledger import Budget
from foedus.privacy.noise import Noise, Sound
from foedus.privacy.total import Local
from foedus.problem import Problem

REFUSALS = {
    "ProxAL": (
        "each round it sends {what} and how far its multipliers moved, and both are functions of multipliers that "
        "carry the data from round to round without a bound"
    ),
    "InexactADMM": "its local solves end when their own gradient is small, so one example's effect has no known bound",
    "FedPD": "its multipliers carry the data from round to round, and one example's effect has no proved bound",
    "Scaffold": "it sends its control variate beside its model, and no joint bound on the two is proved here",
    "LocalSGD": "its minibatches are drawn with replacement, so one example can count many times in a step",
    "CentralProxAL": "it sends the data themselves to the server",
}
RELEASED = {
    "newton": "the value, gradient and Hessian of its augmented Lagrangian (Newton steps)",
    "lbfgs": "the value and gradient of its augmented Lagrangian (L-BFGS steps)",
    "admm": "the solution of its augmented subproblem (ADMM steps)",
}


def attach(algorithm: Algorithm, privacy: Any, budget: Any, problem: Problem, rounds: int | None = None) -> Algorithm:
    """The algorithm with this noise and this budget, or with the noise that keeps a total over so many rounds."""
    if isinstance(privacy, Local):
        if budget is not None:
            raise FoedusError("Local is a total already; leave the budget out.")
        privacy = privacy.settled(algorithm, problem.terms, algorithm.default_rounds if rounds is None else rounds)
    noise = getattr(algorithm, "noise", None) if privacy is None else privacy
    if not isinstance(noise, Noise):
        given = "privacy" if privacy is not None else "budget"
        expected = (
            "fd.Local(...), fd.Laplace(...) or fd.Gaussian(...)" if privacy is not None else "privacy= to spend it on"
        )
        raise FoedusError(f"The {given!r} argument of solve needs {expected}. Got {noise!r} instead.")
    if privacy is not None and getattr(algorithm, "noise", None) is not None:
        raise FoedusError(f"{algorithm.name} has noise= already; give it there or as privacy=, not both.")
    if budget is not None:
        if not isinstance(noise, Sound):
            raise FoedusError(f"a budget needs noise with a guarantee; {type(noise).__name__} has none.")
        noise = as_budget(budget).limit(noise)
    if isinstance(algorithm, Secure):
        return replace(algorithm, noise=noise)
    if not isinstance(noise, Sound):
        raise FoedusError(f"{type(noise).__name__} is for FedEPM, SFedAvg and SFedProx; use Laplace or Gaussian.")
    if isinstance(algorithm, FedAvg | FedProx):
        return PrivateDescent(replace(algorithm, stop=None), noise)
    if isinstance(algorithm, FedGiA):
        return PrivateGiA(replace(algorithm, stop=None), noise, int(problem.counts.sum()))
    raise FoedusError(f"{algorithm.name} has no private form: {_refusal(algorithm, problem)}.")


def _refusal(algorithm: Algorithm, problem: Problem) -> str:
    why = REFUSALS.get(type(algorithm).__name__, "no bound on what one example changes in its replies is proved")
    if isinstance(algorithm, ProxAL):
        resolved = algorithm.resolve(problem.terms)
        why = why.format(what=RELEASED[getattr(resolved, "inner", "newton")])
    return why


def prepare(problem: Problem, algorithm: Algorithm, w0: Any) -> None:
    """Check what can be checked only with the data at hand, before the first round."""
    if isinstance(getattr(algorithm, "noise", None), Sound):
        check_examples(problem, jnp.asarray(w0))


def as_budget(budget: Any) -> Budget:
    """A Budget, or a number: the total ε by basic composition, with δ = 0."""
    if isinstance(budget, Budget):
        return budget
    return Budget(budget)
