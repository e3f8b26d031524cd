"""FedGiA: one gradient a round, k0 inexact ADMM steps in closed form (Zhou and Li, GIA Alg. 1).

σ > 0 and H_i ⪰ 0 are fixed, ḡ_i = ∇f_i(x)/m at the received average x. Clients in C repeat k0 times
    x_i = x − (H_i/m + σI)⁻¹(ḡ_i + π_i),   π_i += σ(x_i − x)                                 (12)-(13)
and the others set x_i = x, π_i = −ḡ_i (15)-(16); all send z_i = x_i + π_i/σ (14), (17). x is the mean of the z_i (11).

With p = ḡ_i + π_i, one step is p ← (I − σM)p where M = (H_i/m + σI)⁻¹: for H_i = h·I a power of a number, so a round's
cost does not grow with k0. In the first round C is empty and clients send their r_i too, from which σ = t·r/m is set.
"""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.fedavg import FirstOrder, Greeting, Progress, View, complete
from foedus.algorithms.gram import Inverse, inverse_of
from foedus.algorithms.private import NoisyClient, NoisyReply, NoisyServer, PrivateForm
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, select, state
from foedus.base.settings import setting, settings
from foedus.privacy import clipping, sensitivity
from foedus.privacy.noise import Noise, Sound
from foedus.privacy.releasing import Releasing, only_for_paper
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, Each, Fit, Kind, Present

LEAST_SQUARES_T, LEAST_T = 0.15, 0.025  # of Table III
SAFE_T = 6.0  # of Theorem IV.1, with which f cannot rise
RISE = 1e-9  # the relative increase of f that counts as a rise


@state
class GiaServer:
    """The server's state."""

    w: Array  # x, the average
    z: Array  # the last z_i of each client. (m, dim)
    view: View  # the last f_i and ∇f_i of each client
    greetings: Greeting  # of the first round, which is repeated until everybody has answered
    has_answered: Array  # who has answered it
    sigma: Array  # σ; 0 until then
    stale: Array  # which clients must factorise H_i/m + σI anew
    best: Array  # the x with the smallest f so far, and that f; used with t="auto"
    best_f: Array
    progress: Progress


@state
class GiaClient:
    """A client's state."""

    pi: Array  # π_i
    r: Array  # r_i
    inverse: Inverse  # (H_i/m + σI)⁻¹ in a form that fits the shape; empty for a diagonal H_i


@state
class GiaTask:
    """The message: x, σ, and whether the client is in C."""

    x: Array
    sigma: Array
    in_C: PyTree


@state
class GiaUpdate:
    """A client's z_i, and its view of the received x."""

    z: Array
    view: View


@settings
class FedGiA(FirstOrder, Releasing):
    """Solves smooth problems without constraints in few rounds, with one gradient a round and no step size to choose.

    Between two rounds a client takes k0 ADMM steps in closed form, with a diagonal or a Gram matrix in the place of its
    Hessian. Every client answers every round.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.FedGiA())
        >>> run.converged, run.w.round(3).tolist()
        (True, [2.0, 3.0])
    """

    k0: int = setting(10, "steps between two communications", ge=1, integer=True)
    H: str = setting("diagonal", "H_i of Table III: r_i·I or the Gram matrix", choices=("diagonal", "gram"))
    alpha: float = setting(0.5, "share of clients in C, which take ADMM steps", gt=0, le=1)
    t: float | None = setting(
        None,
        "σ = t·r/m; None takes Table III's value and doubles it when f rises, or 6 where clients are missing",
        gt=0,
    )

    noise = None

    @property
    def automatic(self) -> bool:
        return True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (GiaGreet(self), GiaStep(self, factorise=True), GiaStep(self, factorise=False))

    def fit(self, problem: Problem) -> Fit:
        loss = problem.terms.loss
        if self.H == "gram" and (loss is None or loss.curvature is None):
            raise FoedusError(
                "FedGiA(H='gram') needs a loss of xᵀw with a bound on its second derivative; use H='diagonal'."
            )
        return super().fit(problem)

    def with_noise(self, noise: Noise, problem: Problem) -> Algorithm:
        if not isinstance(noise, Sound):
            raise only_for_paper(noise)
        return PrivateGiA(replace(self, stop=None), noise, int(problem.counts.sum()))

    @property
    def needs_rows(self) -> bool:
        return True

    def init(self, terms: Terms, w0: Array, own: Data | None) -> GiaServer:
        m = terms.clients
        views = View(jnp.zeros(m), jnp.zeros((m, terms.dim)) if self.stop is not None else ())
        return GiaServer(
            w=w0,
            z=jnp.broadcast_to(w0, (m, terms.dim)),
            view=views,
            greetings=Greeting(jnp.zeros(m), jnp.zeros(m), views),
            has_answered=jnp.zeros(m, bool),
            sigma=jnp.zeros(()),
            stale=jnp.ones(m, bool),
            best=w0,
            best_f=jnp.full((), jnp.inf),
            progress=Progress.none(),
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> GiaClient:
        blank = Inverse.blank(terms, data) if self.H == "gram" else Inverse(())
        return GiaClient(jnp.zeros_like(w0), jnp.zeros(()), blank)

    def phase(self, server: GiaServer) -> Array:
        return jnp.where(server.sigma == 0, 0, jnp.where(jnp.any(server.stale) & (self.H == "gram"), 1, 2))

    def ratio(self, terms: Terms, examples: Array, everyone: Array) -> Array | float:
        """The factor t: the setting, or Table III's: 0.15 for least squares and max{0.025, 4 ln(d)/n} otherwise.

        Table III's t is bold: where it is too small f rises, and σ is doubled. Where clients are missing nobody knows
        f, so that correction is not possible, and Theorem IV.1's safe t = 6 is taken.
        """
        if self.t is not None:
            return self.t
        bold = LEAST_SQUARES_T
        if terms.loss is None or not terms.loss.quadratic:
            bold = jnp.maximum(LEAST_T, 4.0 * jnp.log(examples) / terms.dim)
        return jnp.where(everyone, bold, SAFE_T)

    def combine(self, terms: Terms, server: GiaServer, replies: GiaUpdate, present: Present, sigma: Array) -> GiaServer:
        """The average (11), with the last z_i of silent clients.

        Under t=None, the server returns to the best x and doubles σ when f has risen.
        """
        z, view = present.remember((server.z, server.view), (replies.z, replies.view))
        mean_view = jax.tree.map(lambda rows: jnp.mean(rows, axis=0), view)
        everyone = complete(terms, present)
        progress = self.judge(terms, mean_view, everyone)
        x = jnp.mean(z, axis=0)
        f, best, best_f = progress.objective, server.best, server.best_f
        stale = present.remember(server.stale, jnp.zeros_like(present.here))
        if self.t is None:
            # f(x) is known only if all answered: the last f_i of a silent client is about an older x. The tolerance
            # keeps rounding of f near the optimum from counting as a rise, and ~(≤) makes a NaN count as one.
            rise = everyone & ~(f <= best_f + RISE * (1.0 + jnp.abs(best_f))) & ~self.stops_at(progress)
            sigma = jnp.where(rise, 2.0 * sigma, sigma)
            x = jnp.where(rise, best, x)
            better = everyone & ~rise
            stale, best, best_f = stale | rise, jnp.where(better, server.w, best), jnp.where(better, f, best_f)
        w = self.settle(progress, server.w, x)
        return replace(
            server, w=w, z=z, view=view, sigma=sigma, stale=stale, best=best, best_f=best_f, progress=progress
        )


@dataclass(frozen=True)
class GiaGreet:
    """The first round: nobody is in C, and σ is set from the r_i that come with the gradients."""

    method: FedGiA

    def broadcast(self, terms: Terms, server: GiaServer, draws: Array) -> Array:
        return server.w

    def local(self, terms: Terms, client: GiaClient, x: Array, data: Data, key: Array) -> tuple[GiaClient, Greeting]:
        hello = self.method.greet(terms, x, data)
        gradient = terms.gradient(x, data) if self.method.stop is None else hello.view.g
        return GiaClient(-gradient / terms.clients, hello.r, client.inverse), hello

    def aggregate(self, terms: Terms, server: GiaServer, replies: Greeting, present: Present) -> GiaServer:
        m = terms.clients
        greetings, has_answered = present.remember(
            (server.greetings, server.has_answered), (replies, jnp.ones_like(present.here))
        )
        waiting = replace(server, greetings=greetings, has_answered=has_answered)
        r = jnp.maximum(jnp.max(greetings.r), 1e-300)  # σ = 0 would mean that the first round is still to come
        sigma = self.method.ratio(terms, jnp.sum(greetings.count), complete(terms, present)) * r / m
        gradients = greetings.view.g if self.method.stop is not None else jnp.zeros_like(server.z)
        z = server.w - gradients / (m * sigma)  # (17)
        all_of_them = Present(jnp.arange(m), jnp.ones(m, bool))
        after_greeting = self.method.combine(terms, waiting, GiaUpdate(z, greetings.view), all_of_them, sigma)
        return select(jnp.all(has_answered), replace(after_greeting, stale=jnp.ones(m, bool)), waiting)


@dataclass(frozen=True)
class GiaStep:
    """A round of (12)-(17); with `factorise`, H_i/m + σI is inverted first and the inverse is stored."""

    method: FedGiA
    factorise: bool

    def broadcast(self, terms: Terms, server: GiaServer, draws: Array) -> GiaTask:
        m = terms.clients
        size = math.ceil(self.method.alpha * m - 1e-9)
        in_C = jnp.zeros(m, bool).at[jnp.argsort(draws)[:size]].set(True)
        return GiaTask(server.w, server.sigma, Each(in_C))

    def local(
        self, terms: Terms, client: GiaClient, task: GiaTask, data: Data, key: Array
    ) -> tuple[GiaClient, GiaUpdate]:
        x, sigma, m, k0 = task.x, task.sigma, terms.clients, self.method.k0
        view, gradient = self.method.look(terms, x, data)
        g = gradient / m
        p, inverse = g + client.pi, client.inverse
        # k0 steps at once: k0 − 1 multiplications of p by I − σM, then the last step, from which x_i and π_i follow
        if self.method.H == "diagonal":
            a = 1.0 / (client.r / m + sigma)
            before = (1.0 - sigma * a) ** (k0 - 1) * p  # ḡ + π before the last step
            x_i = x - a * before
            pi = before * (1.0 - sigma * a) - g
        else:
            if self.factorise:
                inverse = inverse_of(terms, data, m, sigma)
            before, last = inverse.steps(terms, data, m, sigma, p, k0)
            x_i, pi = x - last, before - sigma * last - g
        x_i = jnp.where(task.in_C, x_i, x)
        pi = jnp.where(task.in_C, pi, -g)
        return GiaClient(pi, client.r, inverse), GiaUpdate(x_i + pi / sigma, view)

    def aggregate(self, terms: Terms, server: GiaServer, replies: GiaUpdate, present: Present) -> GiaServer:
        return self.method.combine(terms, server, replies, present, server.sigma)


@state
class GiaOrder:
    """The private form's message: x, and whether the client is in C."""

    x: Array
    in_C: PyTree


@dataclass(frozen=True)
class PrivateGiA(PrivateForm):
    """FedGiA with noise and H_i = r·I, where r comes from the bound on the rows of X.

    π_i goes from round to round, so its sensitivity is tracked (`sensitivity.inexact_admm`).
    """

    plain: FedGiA
    examples: int  # in all; public, as every d_i is

    def fit(self, problem: Problem) -> Fit:
        fit, loss = super().fit(problem), problem.terms.loss
        kind = type(self.noise).__name__
        if not self.examples >= 1:
            raise FoedusError(f"FedGiA with {kind} noise needs the number of all examples. Got {self.examples!r}.")
        if self.plain.H == "gram":
            raise FoedusError(
                f"FedGiA(H='gram') multiplies what a client sends by the inverse of its Gram matrix, whose sensitivity "
                f"is not known; with {kind} noise use H='diagonal'."
            )
        if loss is None or loss.curvature is None or self.noise.rows is None:
            raise FoedusError(
                f"FedGiA with {kind} noise needs a loss of xᵀw with bounded curvature and {kind}(rows=...), a bound on "
                "the 2-norm of the rows of X, in the place of the clients' Lipschitz constants, which are private."
            )
        return fit

    def top(self, terms: Terms, count: Array | float) -> Array:
        """The largest curvature of a client's objective that the bound on the rows allows."""
        assert self.noise.rows is not None
        return jnp.asarray(sensitivity.curvature(terms, self.noise.rows, jnp.asarray(count))[1])

    def sigma(self, terms: Terms) -> Array:
        """The penalty σ = t·r/m with Table III's t, all of it public: f is private, so it cannot correct a bold t."""
        t = self.plain.t
        if t is None:
            bold = max(LEAST_T, 4.0 * math.log(max(self.examples, 2)) / terms.dim)
            t = LEAST_SQUARES_T if terms.loss is not None and terms.loss.quadratic else bold
        typical = self.examples / terms.clients
        return t * self.top(terms, typical) / terms.clients

    def broadcast(self, terms: Terms, server: NoisyServer, draws: Array) -> GiaOrder:
        m = terms.clients
        size = math.ceil(self.plain.alpha * m - 1e-9)
        in_C = jnp.zeros(m, bool).at[jnp.argsort(draws)[:size]].set(True)
        # the first round has C empty, as in the plain method
        return GiaOrder(server.w, Each(in_C & (server.round > 0)))

    def local(
        self, terms: Terms, client: NoisyClient, task: GiaOrder, data: Data, key: Array
    ) -> tuple[NoisyClient, NoisyReply]:
        m, k0, sigma = terms.clients, self.plain.k0, self.sigma(terms)
        a = 1.0 / (self.top(terms, data.count) / m + sigma)
        g = clipping.clipped_gradient(terms, task.x, data, self.noise) / m
        before = (1.0 - sigma * a) ** (k0 - 1) * (g + client.pi)
        step = jnp.where(task.in_C, -a * before, 0.0)  # x_i − x
        pi = jnp.where(task.in_C, before * (1.0 - sigma * a) - g, -g)
        change = sensitivity.change(self.noise, data.count) / m
        delta, bound = sensitivity.inexact_admm(client.spent.carried, change, a, sigma, k0, task.in_C)
        # what rounding adds: |π| is at most the longest |ḡ| so far, and what is released at most 2|π| + |ḡ| over σ
        reach = jnp.maximum(client.spent.reach, jnp.sum(jnp.abs(task.x)))
        longest = sensitivity.longest_gradient(terms, self.noise, data.count, reach) / m
        rounding = sensitivity.within_reach(longest, sensitivity.ROUNDING * (k0 + 8.0) * longest)
        delta, bound = delta + rounding, bound + 3.0 * rounding / sigma
        return self.send(client, task.x, pi, step + pi / sigma, bound, delta, key)

    def model(self, terms: Terms, z: Array, spoke: Array) -> Array:
        return jnp.mean(z, axis=0)
