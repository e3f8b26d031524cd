"""What FedEPM, SFedAvg and SFedProx share (EPM Algorithms 2-3): who takes steps, the noisy upload, the stopping rules.

In each round the server chooses S with |S| = ⌈ρm⌉ and broadcasts w. Clients in S make their k0 local steps and send
z_i = w_i + noise; for the others the server uses the last z_i it received. The stopping rules are about f(w) = Σ f_i(w)
over ALL clients, so with a rule everybody evaluates the received w and sends f_i(w) and ∇f_i(w) along. Sound noise
forbids that: then there is no stopping rule and nothing but z_i is sent. The rules, with n = dim:
    gradient   ‖Σ∇f_i(w)‖² < tol
    printed    the same; or the variance of the last four f(w) is at most 1e-8·n/(1 + |f(w)|)
    released   ‖(1/m)Σ∇f_i(w)‖² < 1e-9·n, the gradient of the mean; or that variance is at most 1e-9·n/(1 + |f(w)|); or
               f(w) and the norm of the gradient are both above their last three values
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from foedus.algorithms.fedavg import Progress, View, complete
from foedus.algorithms.private import Noisy
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, state
from foedus.base.settings import setting, settings
from foedus.privacy import clipping
from foedus.privacy.noise import Noise, PaperLaplace, Sound
from foedus.privacy.release import Spent, release, speaks
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import CONVERGED, RUNNING, STUCK, Each, Fit, Present, name_of

MOST_TESTED = 4  # the rules look at the last four values of f
PRINTED_VARIANCE, RELEASED_VARIANCE = 1e-8, 1e-9  # the bounds on the variance of f, per parameter
RELEASED_GRADIENT = 1e-9  # the released code's bound on the squared gradient of the mean, per parameter


@state
class EpmServer:
    """The server's state."""

    w: Array
    z: Array  # the last z_i of each client. (m, dim)
    round: Array  # τ
    waiting: Array  # clients not yet in S in this block of `every` rounds
    releases: Array  # how often each client has sent a new z_i
    f: Array  # the last four Σ f_i(w), oldest first; infinite where there are fewer
    error: Array  # the last four ‖Σ ∇f_i(w)‖²
    progress: Progress


@state
class EpmClient:
    """A client's state."""

    w: Array  # w_i
    z: Array  # what it sent last
    snr: Array  # log10 ‖w_i‖/‖noise‖ of that
    spent: PyTree  # its record of releases, with sound noise


@state
class EpmTask:
    """The message: the model, the round, and whether the client is in S."""

    w: Array
    round: Array
    in_S: PyTree


@state
class Upload:
    """A client's reply: z_i, and its view of the received model where a stopping rule needs it."""

    z: Array
    spoke: Array  # whether z is new
    view: PyTree


@settings
class EpmMethod(Noisy):
    """Settings and functions common to the three methods; a method adds its local steps and its aggregation."""

    k0: int = setting(12, "local steps a round", ge=1, integer=True)
    rho: float = setting(0.5, "ρ: the share of clients in S, which take steps in a round", gt=0, le=1)
    every: int | None = setting(None, "s_0 of Setup VI.1: everybody is in S once in so many rounds", ge=1, integer=True)
    noise: Noise | None = setting(
        None,
        "added to what is sent: PaperLaplace, Laplace, Gaussian",
        also=("a noise, as fd.Laplace", lambda v: isinstance(v, Noise)),
    )
    stop: str | None = setting(
        "printed",
        "'printed': section VII.B; 'released': as the authors' code; 'gradient': tol alone; or None",
        choices=("printed", "released", "gradient", None),
    )
    tol: float = setting(1e-6, "tolerance on ‖Σ∇f_i‖²; the released rule has its own", ge=0)

    def with_noise(self, noise: Noise, problem: Problem) -> "EpmMethod":
        return replace(self, noise=noise)

    def fit(self, problem: Problem) -> Fit:
        terms = problem.terms
        size = math.ceil(self.rho * terms.clients - 1e-9)
        if self.every is not None and size * self.every < terms.clients:
            raise FoedusError(
                f"{name_of(self)}(every={self.every}) takes {size} of {terms.clients} clients a round, which cannot "
                "reach all of them in that many rounds; raise rho or every."
            )
        fit = super().fit(problem)
        if self.sound is None:
            return fit
        if self.stop not in ("printed", None):  # 'printed' is the default, and is dropped here
            raise FoedusError(
                f"{name_of(self)}(stop={self.stop!r}) sends f_i and its gradient as they are, which no noise protects; "
                f"with {type(self.noise).__name__} noise use stop=None and max_rounds."
            )
        return replace(fit, algorithm=replace(self, stop=None))

    def init(self, terms: Terms, w0: Array, own: Data | None) -> EpmServer:
        m, none = terms.clients, jnp.full(MOST_TESTED, jnp.inf)
        # everybody's first upload would be the start that everybody knows, so it is not sent
        z = jnp.broadcast_to(w0, (m, terms.dim))
        counts = jnp.zeros(m, int)
        return EpmServer(w0, z, jnp.zeros((), int), jnp.ones(m, bool), counts, none, none, Progress.none())

    def join(self, terms: Terms, data: Data, w0: Array) -> EpmClient:
        return EpmClient(w0, w0, jnp.full((), jnp.inf), Spent.nothing() if isinstance(self.noise, Sound) else ())

    def broadcast(self, terms: Terms, server: EpmServer, draws: Array) -> EpmTask:
        m = terms.clients
        size = math.ceil(self.rho * m - 1e-9)
        if self.every is not None:  # those still waiting in this block come first, in random order
            draws = draws + jnp.where(server.waiting, 0.0, 1.0)
        in_S = jnp.zeros(m, bool).at[jnp.argsort(draws)[:size]].set(True)
        return EpmTask(server.w, server.round, Each(in_S))

    def look(self, terms: Terms, w: Array, data: Data) -> tuple[PyTree, Array]:
        """The view of the received model for the reply, and the gradient there for the local steps."""
        if isinstance(self.noise, Sound):
            return (), clipping.clipped_gradient(terms, w, data, self.noise)
        f, g = terms.value_and_gradient(w, data)
        return (View(f, g) if self.stop is not None else ()), g

    def upload(
        self, client: EpmClient, task: EpmTask, view: PyTree, v: Array, w: Array, key: Array, scale: tuple[Array, Array]
    ) -> tuple[EpmClient, Upload]:
        """The new state and z_i = w_i + noise of (21), or the old ones for a client outside S or without budget.

        w is w_i, and v its increment over the received model. `scale` is (g_i, μ) for the paper's noise. For sound
        noise it is (the sensitivity of v, the sensitivity δ of the state that the next round starts from).
        """
        spoke, spent = task.in_S, client.spent
        if isinstance(self.noise, Sound):
            spoke = speaks(self.noise, client.spent, spoke)
            bound, delta = scale
            spent, z = release(self.noise, client.spent, task.w, v, bound, delta, key, spoke)
        elif isinstance(self.noise, PaperLaplace):
            g, mu = scale
            z = w + self.noise.draw(key, g, mu)
        else:
            z = w
        snr = jnp.log10(jnp.linalg.norm(w) / jnp.linalg.norm(z - w))
        next_client = EpmClient(
            w=jnp.where(spoke, w, client.w),
            z=jnp.where(spoke, z, client.z),
            snr=jnp.where(spoke, snr, client.snr),
            spent=spent,
        )
        return next_client, Upload(next_client.z, spoke, view)

    def aggregate(self, terms: Terms, server: EpmServer, replies: Upload, present: Present) -> EpmServer:
        z, spoke, releases, following = self.collect(terms, server, replies, present)
        waiting = server.waiting & ~spoke
        if self.every is not None:
            waiting = jnp.where((server.round + 1) % self.every == 0, jnp.ones_like(waiting), waiting)
        f, error, progress = server.f, server.error, server.progress
        if self.stop is not None:
            mean, all_here = present.mean(replies.view), complete(terms, present)
            objective, slope = mean.f, jnp.sum((terms.clients * mean.g) ** 2)
            f = jnp.where(all_here, jnp.append(f[1:], terms.clients * objective), f)
            error = jnp.where(all_here, jnp.append(error[1:], slope), error)
            progress = Progress(objective, slope, all_here)
        after = EpmServer(following, z, server.round + 1, waiting, releases, f, error, progress)
        over = self._stops_at(after) | self._rising(after)
        return replace(after, w=jnp.where(over, server.w, following))  # the model that was tested is the one to return

    def _limit(self, server: EpmServer) -> float:
        """The limit for ‖Σ∇f_i(w)‖²; the released code compares the gradient of the mean with 1e-9·n."""
        m, n = server.z.shape
        return RELEASED_GRADIENT * n * m**2 if self.stop == "released" else self.tol

    def _variance(self, server: EpmServer) -> tuple[Array, Array]:
        """The variance of the last four f(w), and the limit that the rule sets for it."""
        has_history = jnp.all(jnp.isfinite(server.f))
        f = jnp.where(jnp.isfinite(server.f), server.f, 0.0)
        tolerance = (RELEASED_VARIANCE if self.stop == "released" else PRINTED_VARIANCE) * server.w.size
        return jnp.where(has_history, jnp.var(f, ddof=1), jnp.inf), tolerance / (1.0 + jnp.abs(f[-1]))

    def _rising(self, server: EpmServer) -> Array:
        """Whether f(w) and ‖∇f(w)‖² are both above their last three values, at which the released code stops too."""
        if self.stop != "released":
            return jnp.zeros((), bool)
        has_history = jnp.all(jnp.isfinite(server.f)) & server.progress.complete
        return has_history & (server.f[-1] > jnp.max(server.f[:-1])) & (server.error[-1] > jnp.max(server.error[:-1]))

    def _stops_at(self, server: EpmServer) -> Array:
        """Whether a stopping rule holds at the model that everybody has just evaluated."""
        if self.stop is None:
            return jnp.zeros((), bool)
        small = server.error[-1] < self._limit(server)
        if self.stop != "gradient":
            variance, limit = self._variance(server)
            small = small | (variance <= limit)
        return server.progress.complete & small

    def ended(self, server: EpmServer) -> Array:
        is_stuck = self._rising(server) | self.budgets_are_spent(server)
        return jnp.where(self._stops_at(server), CONVERGED, jnp.where(is_stuck, STUCK, RUNNING))

    def release_record(self, clients: EpmClient) -> Mapping[str, Array]:
        # the paper's SNR is of the data; it is noted only where no guarantee is given anyway
        snr = {"snr": jnp.min(clients.snr)} if isinstance(self.noise, PaperLaplace) else {}
        return {**snr, **super().release_record(clients)}

    def report(self, server: EpmServer) -> dict[str, Array]:
        if self.stop is None:
            return {}
        return {"objective": server.progress.objective, "gradient": server.error[-1]}

    def reason(self, server: EpmServer, converged: bool, names: list[str]) -> str:
        error = float(server.error[-1])
        if converged and error < self._limit(server):
            return f"‖Σ∇f_i‖² = {error:.2g} < {self._limit(server):.3g}"
        if converged:
            variance, limit = self._variance(server)
            words = f"the variance of the last four f is {float(variance):.2g} <= {float(limit):.2g}"
            return f"{words}, with ‖Σ∇f_i‖² = {error:.2g}"
        if bool(self._rising(server)):
            return f"f and ‖Σ∇f_i‖² = {error:.2g} rose above their last three values, at which the released code stops"
        if bool(self.budgets_are_spent(server)):
            return "every client's privacy budget is spent"
        if self.stop is None:
            return "played the rounds asked for"
        return f"stopped at the limit of rounds with ‖Σ∇f_i‖² = {error:.2g}"


def soft(t: Array, a: Array | float) -> Array:
    """The soft threshold of EPM (2): t moved towards 0 by a, and 0 where |t| ≤ a."""
    return jnp.sign(t) * jnp.maximum(jnp.abs(t) - a, 0.0)


def paper_mu(mu0: Array | float, c: float, alpha: float, k: Array, gap: Array) -> Array:
    """The weight μ_{i,k+1} of EPM (20)."""
    return mu0 * (1.0 + c * jnp.sum(gap**2)) * alpha ** (k + 1.0)
