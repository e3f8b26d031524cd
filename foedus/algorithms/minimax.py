"""The splitting method of DRFL, AFL and WAFL: AD-LPMM (Bai, Wong, Qiao and Ho, Algorithm 1 and Appendix E).

    minimise over w  max over q in Q  Σ_s q_s · sup over P_s in a Wasserstein ball of radius ρ_s of E[L],
    Q = {q in the simplex, ‖q − q̂‖_p ≤ θ}

A client receives b_s = w + ψ_s/c and a_s = z_s − ζ_s/c and answers with the projection (ŵ_s, v_s) of (b_s, a_s) onto
the epigraph of its worst-case loss; its λ_s and α_s stay with it. All other variables are the server's.

With `splitting="linearised"` the server's steps are (6) to (10). With "exact" they are a single step: z is the prox of
Φ(z) = max over Q of qᵀz, and by Moreau's identity a projection onto Q gives it, so t, η and γ are not needed. The
iteration is then a fixed-point map of the points (b, a), and its Anderson acceleration takes an order of magnitude
fewer rounds. Both end at the optimum of program (4).

In the names below: ψ_s are the multipliers of ŵ_s = w, ζ_s those of v_s = z_s, σ those of t = z + γ + η; −σ and ζ both
end as the adversary's q.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior.robust_interior import RobustInterior, takes
from foedus.algorithms.robust_model import RobustModel
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, device_array, select, state
from foedus.base.settings import setting, settings
from foedus.numerics import anderson
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Each, Fit, Present, name_of
from foedus.robust import polyhedron
from foedus.robust.closed import Radius
from foedus.robust.step import project
from foedus.robust.weights import ball_projection, dual_norm, weights_projection

BALANCE = 10.0  # the ratio of the residuals beyond which c changes
ADAPTING = 400  # rounds in which c may change every OFTEN rounds
SETTLED = 4000  # rounds in which it may change every SELDOM rounds; afterwards Algorithm 1's convergence proof holds
OFTEN, SELDOM = 10, 100
EARLY_FACTOR, LATE_FACTOR = 2.0, 10.0  # the factor of an early change of c, and the largest of a late one
DENSE = 500  # columns up to which sites send matrices without being asked to: a message of 1 MB
SPLITTING = ("c", "adapt", "splitting", "constants", "sample")  # settings that only the splitting method has


@state
class MinimaxServer:
    """Algorithm 1's variables, with each client's last (ŵ_s, v_s); `primal` and `dual` are residuals of program (5)."""

    w: Array
    z: Array
    t: Array
    eta: Array
    gamma: Array
    sigma: Array
    psi: Array
    zeta: Array
    w_hat: Array
    v: Array
    c: Array
    theta: Array
    q_hat: Array
    price: Array  # of the shared λ in the objective: WAFL's ρ, else nothing
    primal: Array
    dual: Array
    has_answered: Array
    k: Array
    finished: Array
    memory: PyTree  # of the acceleration; () without one


@state
class Target:
    """The message: the point (b_s, a_s) that client s projects."""

    b: PyTree
    a: PyTree


@state
class ProjectionReply:
    """A client's projection (ŵ_s, v_s)."""

    w_hat: Array
    v: Array


@settings
class Minimax(RobustModel):
    """A minimax over clients' weights and balls around data; DRFL, AFL and WAFL say which there are.

    `fit` hands the problem to the interior-point method, or leaves it to the splitting method below.
    """

    c: float = setting(1.0, "the step size c of Algorithm 1", gt=0, travels=True)
    adapt: bool = setting(True, "whether c is moved towards equal residuals", choices=(False, True))
    splitting: str = setting(
        "exact",
        "'linearised': Algorithm 1; 'exact': t, η, γ eliminated by the projection onto Q, and Anderson acceleration",
        choices=("exact", "linearised"),
    )
    constants: str = setting(
        "tight",
        "c' and c'' of Algorithm 1: 2c and (S+1)c, or 2Sc both as the paper has them",
        choices=("tight", "paper"),
    )

    def __post_init__(self) -> None:
        fields = {f.name: f.default for f in dataclasses.fields(self) if f.name in SPLITTING}
        given = [name for name, default in fields.items() if getattr(self, name) != default]
        if given and self.method != "splitting":
            raise FoedusError(
                f"The {given[0]!r} setting of {name_of(self)} belongs to method='splitting': name that method too, or "
                f"leave {given[0]} out."
            )

    @property
    def exact(self) -> bool:
        """Whether the server's step is the projection onto Q."""
        return self.splitting == "exact"

    def interior(self, terms: Terms) -> bool:
        """Whether the interior-point method solves the problem; it has no rows for some regularisers."""
        if self.method == "interior" and not takes(terms.regularizer):
            raise FoedusError(
                f"{name_of(self)}(method='interior') does not handle the regulariser {type(terms.regularizer).__name__}"
                "; use method='splitting'."
            )
        return self.method == "interior" or (self.method is None and terms.dim <= DENSE and takes(terms.regularizer))

    # @settings would write a comparison of its own, in which ρ = 0 and ρ > 0 share one compiled program
    __eq__ = RobustModel.__eq__
    __hash__ = RobustModel.__hash__

    def fit(self, problem: Problem) -> Fit:
        self.check(problem.terms)
        if self.interior(problem.terms):
            return Fit(RobustInterior(self), self.stated(problem), max_rounds=300, few_rounds=True)
        return Fit(self, self.stated(problem), max_rounds=5000)

    def server_data(self, terms: Terms) -> Data:
        return Data({**super().server_data(terms), "robust.c": device_array(float(self.c))})

    # --- the protocol ---

    def init(self, terms: Terms, w0: Array, own: Data | None) -> MinimaxServer:
        n = terms.clients
        if own is None:
            own = self.server_data(terms)
        point = jnp.append(w0, 1.0) if self.shares_lambda else w0  # w, with λ last where it is shared
        q_hat, S = own["robust.q_hat"], jnp.zeros(n)
        big = jnp.asarray(jnp.inf)
        # −σ and ζ end as the adversarial q, so they start at q̂
        return MinimaxServer(
            point, S, S, S, jnp.zeros(()), -q_hat, jnp.zeros((n, point.shape[0])), q_hat, jnp.tile(point, (n, 1)), S,
            own["robust.c"], own["robust.theta"], q_hat, own["robust.price"], big, big, jnp.zeros(n, bool),
            jnp.zeros((), int), jnp.zeros((), bool), anderson.blank(n * (point.shape[0] + 1)) if self.exact else (),
        )  # fmt: skip

    def broadcast(self, terms: Terms, server: MinimaxServer, draws: Array) -> Target:
        return Target(Each(server.w + server.psi / server.c), Each(server.z - server.zeta / server.c))

    def local(
        self, terms: Terms, client: tuple[()], target: Target, data: Data, key: Array
    ) -> tuple[tuple[()], ProjectionReply]:
        form, x, y, omega = self.form(terms), data["x"], data["y"], terms.share(data)
        rho = jnp.zeros(()) if self.shares_lambda else data["robust.rho"]
        radius = Radius(rho, data["robust.kappa"], data["robust.low"], data["robust.high"])
        if self.sample is not None:
            x, y, omega = draw(self.sample, x, y, omega, key)
        if form.robust and not form.ball.has_closed_form:
            step = polyhedron.one_by_one(form)
            projection = step(x, y, omega, radius, data["robust.C"], data["robust.d"], target.a, target.b)
        else:
            projection = project(form, x, y, omega, radius, target.a, target.b)
        w = jnp.append(projection.w, projection.lam) if self.shares_lambda else projection.w
        return client, ProjectionReply(w, projection.v)

    def aggregate(
        self, terms: Terms, server: MinimaxServer, replies: ProjectionReply, present: Present
    ) -> MinimaxServer:
        n, c = terms.clients, server.c
        here = jnp.zeros(n).at[jnp.where(present.here, present.index, n)].set(1.0, mode="drop")
        w_hat = present.remember(server.w_hat, replies.w_hat)
        v = present.remember(server.v, replies.v)
        has_answered = server.has_answered | (here > 0)
        apart = server.t - server.z - server.gamma - server.eta  # what the constraint t = z + γ + η lacks; 0 if exact
        # the dual steps; the multipliers of a silent client stay
        sigma = server.sigma + (0.0 if self.exact else c * apart)
        psi = server.psi + c * here[:, None] * (server.w - w_hat)
        zeta = server.zeta + c * here * (v - server.z)
        after = dataclasses.replace(
            server, sigma=sigma, psi=psi, zeta=zeta, w_hat=w_hat, v=v, has_answered=has_answered
        )
        following, dual_step = self._primal(terms, after)
        # program (5)'s residuals: primal, how far its equations are from holding; dual, how far the variables that the
        # equations tie together have moved, times c. The primal one is relative to the size of (w, v).
        primal = jnp.max(jnp.abs(jnp.concatenate([apart, v - server.z, jnp.ravel(server.w - w_hat)])))
        size = 1.0 + jnp.maximum(jnp.max(jnp.abs(server.w)), jnp.max(jnp.abs(v)))
        if self.exact:
            dual_step = c * jnp.max(jnp.abs(v - server.v))
        primal = primal / size
        dual = jnp.maximum(dual_step, c * jnp.max(jnp.abs(jnp.sum(w_hat - server.w_hat, axis=0))))
        finished = jnp.all(has_answered) & (primal <= self.tol) & (dual <= self.tol)
        is_dropped, plain = jnp.zeros((), bool), following
        if self.exact:
            following, is_dropped = accelerate(server, following, present.count == n)
        # at the end w stays the point at which the residuals were measured
        following = select(finished, dataclasses.replace(after, memory=following.memory), following)
        if self.adapt:
            # c grows where the primal residual is much larger, and falls where the dual one is. Late in a run,
            # residuals far apart mean that the iterates crawl along a line: then c changes so as to balance them.
            soon = server.k < ADAPTING
            turn = ((server.k + 1) % jnp.where(soon, OFTEN, SELDOM) == 0) & (server.k < SETTLED)
            imbalance = jnp.sqrt(jnp.maximum(primal / dual, dual / primal))
            step = jnp.where(soon, EARLY_FACTOR, jnp.clip(imbalance, 1.0, LATE_FACTOR))
            factor = jnp.where(primal > BALANCE * dual, step, jnp.where(dual > BALANCE * primal, 1.0 / step, 1.0))
            turn = turn & (factor != 1.0) & ~finished & ~is_dropped
            if self.exact:
                # c is never changed in the same round as an accelerated step: the fallback that acceleration needs,
                # the last plain step, would belong to the old c. The new c rescales residuals by up to `step`.
                plain = dataclasses.replace(plain, memory=anderson.forget(server.memory, growth=step))
                following = select(turn, plain, following)
            following = dataclasses.replace(following, c=jnp.where(turn, c * factor, c))
        return dataclasses.replace(following, primal=primal, dual=dual, k=server.k + 1, finished=finished)

    def _primal(self, terms: Terms, at: MinimaxServer) -> tuple[MinimaxServer, Array]:
        """The server's steps (6) to (10), and the residual that they leave in the stationarity of program (5)."""
        S, c = at.z.shape[0], at.c
        # c' and c'' are the weights of the proximal terms that replace quadratic ones: at least their largest
        # eigenvalues, which are 2c for (z, t) and (S + 1)c for (η, γ)
        near, far = (2.0 * S * c, 2.0 * S * c) if self.constants == "paper" else (2.0 * c, (S + 1.0) * c)
        # (6): w minimises h(w) + price·λ + Σ_s (c/2)‖w − ŵ_s + ψ_s/c‖², one prox around a mean
        w = jnp.mean(at.w_hat - at.psi / c, axis=0)
        if self.shares_lambda:
            w = w.at[-1].add(-at.price / (c * S))
        dim = terms.dim
        w = w.at[:dim].set(terms.regularizer.prox(w[:dim], 1.0 / (c * S)))
        if self.exact:
            # Moreau: prox of Φ/c at y is y − q/c with q the projection of cy onto Q
            y = at.v + at.zeta / c
            q = weights_projection(c * y, at.q_hat, at.theta, self.p)
            z = y - q / c
            return dataclasses.replace(at, w=w, z=z, t=z, sigma=-q), jnp.zeros(())
        # (7) to (10): z and t linearised at the last iterate, then η and γ with the new z and t
        apart = at.t - at.z - at.gamma - at.eta
        z = (c * (at.v + apart) + near * at.z + at.zeta + at.sigma) / (c + near)
        u = at.t - (at.q_hat + at.sigma + c * apart) / near
        t = u - ball_projection(u, at.theta / near, self.p)
        between = t - z - at.gamma - at.eta
        eta = jnp.maximum(at.eta + (at.sigma + c * between) / far, 0.0)
        gamma = at.gamma + (1.0 + jnp.sum(at.sigma) + c * jnp.sum(between)) / far
        ends = t - z - gamma - eta
        # each variable was stationary for the others' values at its own turn; the difference to their final values, and
        # the proximal terms, are what stationarity of program (5) lacks
        residuals = jnp.concatenate([
            c * (ends - apart) - near * (t - at.t),
            c * (apart - ends) + near * (at.z - z),
            c * (between - ends) - far * (eta - at.eta),
            (far * (gamma - at.gamma) + c * jnp.sum(ends - between))[None],
        ])  # fmt: skip
        return dataclasses.replace(at, w=w, z=z, t=t, eta=eta, gamma=gamma), jnp.max(jnp.abs(residuals))

    def ended(self, server: MinimaxServer) -> Array:
        return server.finished

    def parameters(self, terms: Terms, server: MinimaxServer) -> Array:
        return server.w[: terms.dim]

    def report(self, server: MinimaxServer) -> dict[str, Array]:
        if self.exact:
            value = -jnp.dot(server.sigma, server.v)
            return {"worst_case": value, "primal": server.primal, "dual": server.dual, "c": server.c}
        value = jnp.dot(server.q_hat, server.v + server.eta) + server.theta * dual_norm(
            server.v + server.gamma + server.eta, self.p
        )
        return {"worst_case": value, "primal": server.primal, "dual": server.dual, "c": server.c}

    def reason(self, server: MinimaxServer, converged: bool, names: list[str]) -> str:
        primal, dual = float(server.primal), float(server.dual)
        if converged:
            return f"primal residual {primal:.2g} and dual residual {dual:.2g} <= {self.tol:g}"
        if self.sample is not None:
            return "played the rounds asked for; a sampled worst case has no residual to stop at"
        if not bool(np.all(np.asarray(server.has_answered))):
            silent = names[int(np.argmin(np.asarray(server.has_answered)))]
            return f"stopped at the limit of rounds; client {silent!r} never answered"
        return f"stopped at the limit of rounds with residuals {primal:.2g} and {dual:.2g} > {self.tol:g}"


def accelerate(server: MinimaxServer, following: MinimaxServer, everyone: Array) -> tuple[MinimaxServer, Array]:
    """The next server with Anderson-accelerated points (b, a), and whether the last such point was dropped.

    The iteration is a fixed-point map of these points only if every client answers; otherwise the plain step is taken
    and the memory is cleared. The duals ψ and ζ are set so that clients receive the accelerated points.
    """
    c, (n, width) = server.c, server.psi.shape

    def flat(at: MinimaxServer) -> Array:
        return jnp.concatenate([jnp.ravel(at.w + at.psi / c), at.z - at.zeta / c])

    xi, plain = flat(server), flat(following)
    mixture, memory, worse = anderson.advance(server.memory, xi, plain - xi)
    mixture = jnp.where(everyone, mixture, plain)
    psi = c * (mixture[: n * width].reshape(n, width) - following.w)
    zeta = c * (following.z - mixture[n * width :])
    next_memory = select(everyone, memory, anderson.forget(server.memory))
    return dataclasses.replace(following, psi=psi, zeta=zeta, memory=next_memory), worse & everyone


def draw(share: float, x: Array, y: Array, omega: Array, key: Array) -> tuple[Array, Array, Array]:
    """A random subset of the samples, ⌈share·N⌉ of the client's own N, each with the same chance."""
    rows = x.shape[0]
    most = max(1, int(np.ceil(share * rows)))
    # filling rows come last in the random order; `most` is a constant of the program, the client's own number is not
    order = jnp.argsort(jnp.where(omega > 0, jax.random.uniform(key, (rows,)), jnp.inf))[:most]
    in_sample = jnp.arange(most) < jnp.ceil(share * jnp.sum(omega > 0))
    weights = jnp.where(in_sample, omega[order], 0.0)
    return x[order], y[order], weights / jnp.sum(weights)
