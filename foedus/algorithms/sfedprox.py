"""SFedProx: FedProx with noise on what is sent (Li et al. 2020, as EPM Algorithms 3-4 set it)."""

from foedus.algorithms.sfedavg import SFedAvg
from foedus.base.settings import setting, settings


@settings
class SFedProx(SFedAvg):
    """The noisy FedProx that FedEPM is compared with in its paper.

    k0 times a round a client takes ℓ gradient steps on f_i(u) + (μ/2)‖u − w‖²; otherwise it is SFedAvg.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.SFedProx(rho=1.0, lr=0.5))
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    mu: float = setting(1e-5, "μ, the weight of the proximal term (36)", ge=0)
    steps: int = setting(3, "ℓ, gradient steps per proximal solve (Algorithm 4)", ge=1, integer=True)

    @property
    def pull(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mu
