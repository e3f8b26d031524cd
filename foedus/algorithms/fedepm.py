"""FedEPM: the exact penalty method for federated learning (Zhou and Li, EPM Algorithm 2).

A round: w = ENS(z_1, …, z_m) (19); clients in S repeat k0 times, with g_i = ∇f_i(w) computed once,
    μ = μ_0(1 + c‖w_i − w‖²)α^(k+1),   w_i ← w + soft(μ(w_i − w) − g_i, λ)/(η + μ)                     (20)
and send z_i = w_i + noise (21). The printed μ_0 = 0.05 goes with steps of μ/d_i, as in the released code: f_i is a mean
over d_i examples. Taken literally (`per_example=False`) the local steps are d_i times too short.

That μ_0 fits columns of length 1. A round moves w by about k0·g_i/μ, so where the curvature L of f_i is larger w can
grow without bound: through the penalty even with clipped gradients. With sound noise the default is therefore no less
than k0·L, with an L that everybody knows (`sensitivity.public_curvature`).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.ens import ens
from foedus.algorithms.epm import EpmClient, EpmMethod, EpmTask, Upload, paper_mu, soft
from foedus.base.settings import setting, settings
from foedus.privacy import sensitivity
from foedus.privacy.noise import Sound
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Fit

PRINTED_MU0 = 0.05  # μ_0 of EPM section VII.B


@settings
class FedEPM(EpmMethod):
    """Solves smooth problems where only some clients work in a round, and what they send can carry noise.

    A client in S computes one gradient and takes k0 steps with it; the server averages by `fd.ens`, the exact minimiser
    of a sum of elastic nets. Give `noise=` or solve(..., privacy=...) to make it private.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedEPM(mu0=20.0))
        >>> run.w.round(1).tolist()
        [2.0, 3.0]
    """

    eta: float | None = setting(None, "η of the elastic net (8); None: (0.02m + 1)(ρ + 0.1)·1e-5", gt=0)
    lam: float | None = setting(None, "λ of the elastic net (8); None: η/2", ge=0)
    mu0: float | None = setting(
        None, "μ_{i,0} of (20); None: 0.05, and with sound noise no step of a round longer than 1/L", gt=0
    )
    alpha: float = setting(1.001, "α_i of (20)", ge=1)
    c: float = setting(1e-8, "c_i of (20); taken as 0 with sound noise, for it makes μ depend on the data", ge=0)
    per_example: bool = setting(True, "whether steps use μ/d_i, as released, or μ, as printed", choices=(True, False))
    restart: bool = setting(False, "whether each round starts at the received w, not at w_i", choices=(True, False))

    def fit(self, problem: Problem) -> Fit:
        fit, terms = super().fit(problem), problem.terms
        algorithm = fit.algorithm
        assert isinstance(algorithm, FedEPM)
        eta = self.eta if self.eta is not None else (0.02 * terms.clients + 1.0) * (self.rho + 0.1) * 1e-5
        c = 0.0 if isinstance(self.noise, Sound) else self.c
        mu0 = PRINTED_MU0 if self.mu0 is None and not isinstance(self.noise, Sound) else self.mu0
        algorithm = replace(algorithm, eta=eta, lam=eta / 2 if self.lam is None else self.lam, c=c, mu0=mu0)
        return replace(fit, algorithm=algorithm)

    def weight(self, terms: Terms, count: Array) -> Array:
        """The μ_0 that the steps use: over d_i with `per_example`, as printed without."""
        by = count if self.per_example else jnp.ones(())
        if self.mu0 is not None:
            return self.mu0 / by
        assert isinstance(self.noise, Sound)
        return jnp.maximum(PRINTED_MU0 / by, self.k0 * sensitivity.public_curvature(terms, self.noise, count))

    def local(self, terms: Terms, client: EpmClient, task: EpmTask, data: Data, key: Array) -> tuple[EpmClient, Upload]:
        assert self.eta is not None and self.lam is not None
        eta, lam = self.eta, self.lam
        view, g = self.look(terms, task.w, data)
        weight = self.weight(terms, data.count)
        by = data.count if self.per_example else 1.0
        private = isinstance(self.noise, Sound)
        change = sensitivity.change(self.noise, data.count) if isinstance(self.noise, Sound) else jnp.zeros(())
        delta0 = client.spent.carried if private and not self.restart else jnp.zeros(())
        start = jnp.maximum(task.round, 0) * self.k0

        def step(j: int, at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            v, _, delta = at  # v = w_i − w
            own = paper_mu(weight, self.c, self.alpha, start + j, v)
            following = sensitivity.exact_penalty(delta, own, eta, change) if private else delta
            return soft(own * v - g, lam) / (eta + own), own, following

        first = jnp.zeros_like(task.w) if self.restart else client.w - task.w
        v, own, delta = jax.lax.fori_loop(0, self.k0, step, (first, jnp.zeros(()), delta0))
        scale = (g, own * by)
        if isinstance(self.noise, Sound):
            reach = jnp.maximum(client.spent.reach, jnp.sum(jnp.abs(task.w)))
            delta = delta + sensitivity.exact_penalty_rounding(
                terms, self.noise, data.count, self.k0, reach, client.spent.releases, weight, lam
            )
            delta = sensitivity.within_reach(own, delta)
            scale = delta, delta
        return self.upload(client, task, view, v, task.w + v, key, scale)

    def model(self, terms: Terms, z: Array, spoke: Array) -> Array:
        assert self.eta is not None and self.lam is not None
        return ens(z, self.lam, self.eta)
