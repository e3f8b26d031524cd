"""CentralProxAL: ProxAL's outer loop on pooled data (PAL Algorithm 3), for comparison only.

Its traffic is the data, shipped once; its rounds are evaluations in one place, not communication.
"""

from dataclasses import replace

from foedus.algorithms.proxal import ProxAL
from foedus.base.settings import setting, settings
from foedus.problem.pooled import pool
from foedus.problem.problem import Problem
from foedus.problem.terms import Terms
from foedus.protocol.algorithm import Fit


@settings
class CentralProxAL(ProxAL):
    """Solves the pooled problem by ProxAL with all data in one place: what a federation is compared with.

    The data are sent to the server, and counted as traffic.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.CentralProxAL())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    inner: str = setting("newton", "subproblems are solved by (proximal) Newton", choices=("newton",))

    def fit(self, problem: Problem) -> Fit:
        return replace(super().fit(problem), problem=pool(problem))

    def privacy_refusal(self, terms: Terms) -> str:
        return "it sends the data themselves to the server"
