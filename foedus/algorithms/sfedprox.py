"""SFedProx: FedProx with noise on what is sent (Li et al. 2020, as EPM Algorithms 3-4 set it)."""

from foedus.algorithms.sfedavg import SFedAvg
from foedus.settings import setting, settings


@settings
class SFedProx(SFedAvg):
    """SFedProx: k0 times a round, ℓ gradient steps on f_i(u) + (μ/2)‖u − w‖²; otherwise as SFedAvg."""

    mu: float = setting(1e-5, "μ, the weight of the proximal term (36)", ge=0)
    steps: int = setting(3, "ℓ, gradient steps per proximal solve (Algorithm 4)", ge=1, integer=True)

    @property
    def pull(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mu
