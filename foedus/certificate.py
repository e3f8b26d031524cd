"""What a returned point satisfies, measured at that point by code no algorithm shares."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.problem import Problem
from foedus.terms import Data, Terms


@dataclass(frozen=True)
class Certificate:
    """Sup-norm residuals of the optimality conditions at (w, multipliers), over all clients (SPEC 1)."""

    stationarity: float
    feasibility: float = 0.0
    complementarity: float = 0.0

    def holds(self, eps1: float = 1e-3, eps2: float = 1e-3) -> bool:
        """Whether stationarity is within eps1, and feasibility and complementarity are within eps2."""
        return self.stationarity <= eps1 and self.feasibility <= eps2 and self.complementarity <= eps2

    def __str__(self) -> str:
        return f"certificate: stationarity {self.stationarity:.2g} (‖∇f + ∂h‖_∞ at the returned w)"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(kept: dict[str, Any]) -> "Certificate":
        return Certificate(**kept)


@partial(jax.jit, static_argnames=("terms",))
def _measure(terms: Terms, w: Array, data: Data) -> tuple[Array, Array]:
    values, gradients = jax.vmap(lambda d: jax.value_and_grad(terms.value)(w, d))(data)
    objective = jnp.mean(values) + terms.regularizer.value(w)
    return objective, terms.regularizer.distance(w, jnp.mean(gradients, axis=0))


def measure(problem: Problem, w: Array) -> tuple[float, Certificate]:
    """f(w) + h(w) and the certificate of w."""
    objective, stationarity = jax.tree.map(np.asarray, _measure(problem.terms, w, problem.data))
    return float(objective), Certificate(float(stationarity))
