"""What an algorithm for constraints answers beside the protocol: its tolerances and its multipliers."""

import jax.numpy as jnp
from jax import Array

from foedus.base.pytrees import PyTree
from foedus.certificate.private import PrivateCertificate
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Algorithm


class Constrained(Algorithm):
    """An algorithm that handles constraints and ends with a multiplier for each row."""

    eps1: float  # stationarity to reach
    eps2: float  # feasibility and complementarity to reach

    def client_multipliers(self, terms: Terms, client: PyTree) -> Array:
        """The multipliers of one client's local rows, from its final state."""
        return jnp.zeros(terms.rows[0])

    def server_multipliers(self, terms: Terms, server: PyTree) -> dict[str, Array]:
        """The multipliers of the global and the coupled rows, from the server's final state."""
        raise NotImplementedError

    def private_certificate(self, terms: Terms, server: PyTree, names: list[str]) -> PrivateCertificate | None:
        """What was measured of the caps under noise, from the server's final state; None where nothing was."""
        return None


def tolerances(algorithm: Algorithm) -> tuple[float, float]:
    """(eps1, eps2) that a run's certificate is held against; 1e-3 where the algorithm names none."""
    return (algorithm.eps1, algorithm.eps2) if isinstance(algorithm, Constrained) else (1e-3, 1e-3)
