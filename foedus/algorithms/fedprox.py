"""FedProx: local steps held near the received model by (mu/2)‖u − w‖² (Li et al. 2020, Alg. 2; as GIA V.D)."""

from foedus.algorithms.fedavg import FedAvg
from foedus.base.settings import setting, settings


@settings
class FedProx(FedAvg):
    """FedAvg for clients whose data differ: a proximal term keeps the local steps near the received model.

    A client takes k0 times `steps` gradient steps a round on f_i(u) + (mu/2)‖u − w‖². The default of `mu` is that of
    GIA's section V.D, and so small that the answer is nearly FedAvg's: to compare the two, choose mu from the grid of
    Li et al., 0.001, 0.01, 0.1 and 1.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedProx())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    k0: int = setting(1, "inexact proximal solves a round", ge=1, integer=True)
    mu: float = setting(1e-4, "weight of the proximal term; Li et al. choose from 0.001, 0.01, 0.1 and 1", ge=0)
    steps: int = setting(5, "gradient steps per solve", ge=1, integer=True)

    @property
    def gradients(self) -> int:
        return self.k0 * self.steps

    @property
    def pull(self) -> float:
        return self.mu
