"""SFedAvg and SFedProx: FedAvg and FedProx with noise on what is sent, as EPM Algorithms 3-4 set them.

Clients in S take k0 full-gradient steps from the received w with γ = 2d_i/√(2k0 + ⌈k/k0⌉) (38) and send w_i + noise; w
is the mean over the clients that have just sent one. (Algorithm 3 as printed takes the mean over the NEXT round's
clients, of whatever they sent last; section IV.C of the same paper has it as here.)
"""

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.epm import EpmClient, EpmMethod, EpmTask, Upload, paper_mu
from foedus.algorithms.private import private_steps
from foedus.base.settings import setting, settings
from foedus.privacy import sensitivity
from foedus.privacy.noise import Sound
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Fit, name_of

PAPER_MU = (0.05, 1e-8, 1.001)  # μ_0, c and α of EPM (20), as FedEPM has them by default


@settings
class SFedAvg(EpmMethod):
    """The noisy FedAvg that FedEPM is compared with in its paper.

    A client in S takes k0 gradient steps from the received w and sends the result with noise; w is the mean over the
    clients that have just sent one. For a private FedAvg of your own take fd.FedAvg() with privacy=.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.SFedAvg(rho=1.0, lr=0.5))
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    lr: float | str = setting(
        "auto", "γ; 'auto': 2d_i/√(2k0 + ⌈k/k0⌉), EPM (38), with sound noise at most 1/L", gt=0, choices=("auto",)
    )

    steps = 1  # gradient steps per iteration k
    pull = 0.0  # μ of SFedProx

    @property
    def gradients(self) -> int:
        """How many gradients a client takes in a round."""
        return self.k0 * self.steps

    @property
    def needs_rows(self) -> bool:
        return self.gradients > 1

    def fit(self, problem: Problem) -> Fit:
        fit = super().fit(problem)
        if self.sound is not None and self.gradients > 1:
            sensitivity.check_several(problem.terms, self.sound, name_of(self))
        return fit

    def rate(self, k: Array, count: Array) -> Array:
        """The step size γ of (38); the paper's ⌊·⌋ rounds up."""
        if not isinstance(self.lr, str):
            return jnp.asarray(self.lr)
        return 2.0 * count / jnp.sqrt(2.0 * self.k0 + jnp.ceil(k / self.k0))

    def step_size(self, terms: Terms, k: Array, count: Array) -> Array:
        """The step size γ that is used: with sound noise (38) is cut to 1/L.

        It fits columns of length 1, and with longer ones w would grow without bound.
        """
        rate = self.rate(k, count)
        if not isinstance(self.noise, Sound) or not isinstance(self.lr, str):
            return rate
        return jnp.minimum(rate, 1.0 / (sensitivity.public_curvature(terms, self.noise, count) + self.pull))

    def local(self, terms: Terms, client: EpmClient, task: EpmTask, data: Data, key: Array) -> tuple[EpmClient, Upload]:
        w, start = task.w, task.round * self.k0
        if isinstance(self.noise, Sound):
            # the same steps, taken as increments d = u − w, because d is what is released

            def rate(j: int | Array) -> Array:
                return self.step_size(terms, start + j // self.steps, data.count)

            d, bound = private_steps(terms, self.noise, w, data, rate, self.gradients, self.pull)
            return self.upload(client, task, (), d, w + d, key, (bound, jnp.zeros(())))
        view, g = self.look(terms, w, data)
        first = w - self.step_size(terms, start, data.count) * g

        def step(j: int, u: Array) -> Array:
            slope = terms.gradient(u, data) + self.pull * (u - w)
            return u - self.step_size(terms, start + j // self.steps, data.count) * slope

        u = jax.lax.fori_loop(1, self.gradients, step, first)
        mu = paper_mu(*PAPER_MU, start + self.k0 - 1, client.w - w)  # of the noise (39)
        return self.upload(client, task, view, u - w, u, key, (g, mu))

    def model(self, terms: Terms, z: Array, spoke: Array) -> Array:
        return jnp.where(spoke, 1.0, 0.0) @ z / jnp.maximum(jnp.sum(spoke), 1)


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
