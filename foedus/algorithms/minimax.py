"""AD-LPMM for distributionally robust federated learning (Bai, Wong, Qiao and Ho, Algorithm 1 and Appendix E).

    minimise over w  max over q in Q  Σ_s q_s · sup over P_s in a Wasserstein ball of radius ρ_s of E[L],
    Q = {q in the simplex, ‖q − q̂‖_p ≤ θ}

A client receives what its step depends on, b_s = w + ψ_s/c and a_s = z_s − ζ_s/c, and answers with the projection of
(b_s, a_s) onto the epigraph of its worst-case loss: (ŵ_s, v_s), and neither λ_s nor α_s. All else is the server's.

With `splitting="linearised"` the server's steps are (6) to (10). Without linearisation they are one: z is the prox of
max over Q of qᵀz, which a projection onto Q gives. What is left is a fixed-point map of the points (b, a), and Anderson
acceleration of it takes an order of magnitude off the rounds. Both end at the optimum of program (4).
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithm import Each, Fit, Present, name_of, refuse
from foedus.algorithms.robust_interior_server import takes
from foedus.errors import FoedusError
from foedus.losses import LeastSquares
from foedus.numerics import anderson
from foedus.problem import Problem
from foedus.pytrees import select, state
from foedus.robust import polyhedron
from foedus.robust.closed import Ball, Radius
from foedus.robust.form import Form
from foedus.robust.step import project
from foedus.robust.stress import Robust, Stress, Threat, stress
from foedus.robust.support import kind_of, support_arrays
from foedus.robust.weights import ball_projection, dual_norm, weights_projection
from foedus.settings import setting, settings
from foedus.terms import Data, Terms

BALANCE = 10.0  # how far apart the residuals may be before c moves
ADAPTING = 400  # rounds in which c may move every OFTEN rounds
SETTLED = 4000  # rounds in which it may move every SELDOM rounds; afterwards Algorithm 1's convergence proof holds
OFTEN, SELDOM = 10, 100
DENSE = 500  # columns up to which sites send matrices without being asked to: a message of 1 MB
SPLITTING = ("c", "adapt", "splitting", "constants", "tol")  # settings that only the splitting method has


@state
class MinimaxServer:
    """Algorithm 1's variables, with (ŵ_s, v_s) as last heard; `primal` and `dual` are the residuals of program (5)."""

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
    heard: Array
    k: Array
    done: Array
    memory: Any  # of the acceleration; () without one


@state
class Target:
    """What a client is drawn to, and the share of its samples that it uses."""

    b: Each
    a: Each


@state
class Projection:
    w_hat: Array
    v: Array


@settings
class Minimax(Robust):
    """AD-LPMM for a minimax over weights and balls; DRFL, AFL and WAFL say which of both there are."""

    method: str | None = setting(
        None,
        "'interior': an interior-point method, a round being an iteration; 'splitting': the settings from c to tol and "
        "`sample` belong to it. None: 'splitting' where one of these is given, else 'interior'",
        choices=(None, "interior", "splitting"),
    )
    gap: float = setting(1e-7, "relative distance to the optimum at which method='interior' ends", gt=0)
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
    q_hat: str = setting("size", "q̂: by the number of samples, or 1/S", choices=("size", "uniform"))
    tol: float = setting(1e-7, "largest primal and dual residual of program (5) at which a run ends", gt=0)

    # what an algorithm below may turn into a setting
    radius: ClassVar[Any] = 0.0
    kappa: ClassVar[float] = math.inf
    theta: ClassVar[float] = 0.0
    p: ClassVar[Any] = 1
    metric: ClassVar[str] = "l1"
    support: ClassVar[Any] = None
    intercept: ClassVar[bool] = False
    sample: ClassVar[float | None] = None
    shared: ClassVar[bool] = False

    # --- what is fixed when a program is compiled ---

    @property
    def robust(self) -> bool:
        """Whether any ball has a positive radius."""
        return bool(np.any(np.asarray(self.radius) > 0))

    @property
    def kind(self) -> str:
        return kind_of(self.support) if self.robust else "everything"

    def _fixed(self) -> tuple[Any, ...]:
        compared = tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)
        return (*compared, self.robust, self.kind, bool(np.isfinite(self.kappa)))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fixed() == other._fixed()  # pyright: ignore[reportAttributeAccessIssue]

    def __hash__(self) -> int:
        return hash(self._fixed())

    @property
    def exact(self) -> bool:
        return self.splitting == "exact"

    def interior(self, terms: Terms) -> bool:
        """Whether the interior-point method solves the problem: asked for, or not too large and nothing else asked for.

        It has no rows for polyhedra, for boxes under another metric than ℓ1, and for some regularisers.
        """
        kept = {f.name: f.default for f in dataclasses.fields(self) if f.name in SPLITTING}
        given = any(getattr(self, name) != default for name, default in kept.items()) or terms.dim > DENSE
        if self.method == "splitting" or (self.method is None and given) or self.sample is not None:
            return False
        return (not self.robust or self.ball(terms).closed) and takes(terms.regularizer)

    def ball(self, terms: Terms) -> Ball:
        assert terms.loss is not None
        return Ball(terms.loss, self.metric, self.kind, self.intercept)

    def form(self, terms: Terms) -> Form:
        return Form(self.ball(terms), self.robust, bool(np.isfinite(self.kappa)), self.shared)

    # --- the problem as it is run ---

    def fit(self, problem: Problem) -> Fit:
        terms = problem.terms
        refuse(self, terms, regularizer=False)
        if terms.loss is None:
            raise FoedusError(f"{name_of(self)} needs a loss of xᵀw, with which the worst case is known: give loss=.")
        if terms.penalty is not None:
            raise FoedusError(f"{name_of(self)} does not take a penalty; the radius already holds w back.")
        if isinstance(terms.loss, LeastSquares):
            raise FoedusError(f"{name_of(self)}: least_squares has no finite worst case; use losses.huber(eps).")
        self.ball(terms).check()
        if isinstance(self.radius, tuple) and len(self.radius) != terms.clients:
            raise FoedusError(
                f"The 'radius' setting of {name_of(self)} must have one entry for each of {terms.clients} clients. "
                f"Got {len(self.radius)} instead."
            )
        # a site checks the settings before it opens its data, and gets the arrays with the terms
        stated = self.restate(problem) if "x" in problem.data else problem
        if self.interior(terms):
            from foedus.algorithms.robust_interior import RobustInterior

            return Fit(RobustInterior(self), stated, max_rounds=300)
        return Fit(self, stated, max_rounds=5000)

    def weights(self, problem: Problem) -> np.ndarray:
        """q̂: every client's share of the samples that count, or 1/S."""
        n = problem.terms.clients
        counted = jax.vmap(lambda d: jnp.sum(d["weight"] * _chosen(problem.terms, d)))(problem.data)
        sizes = np.asarray(counted) if self.q_hat == "size" else np.ones(n)
        return sizes / sizes.sum()

    def restate(self, problem: Problem) -> Problem:
        """The problem with ρ, κ and the support beside each client's data, and θ, q̂ and c at the server."""
        n, width = problem.terms.clients, problem.terms.dim - self.intercept
        rho = np.broadcast_to(np.asarray(self.radius, dtype=float), n)
        # a ball of no width beside wider ones: the least radius that keeps λ bounded
        rho = np.maximum(rho, 1e-9) if self.robust else rho
        own = {"robust.rho": rho, "robust.kappa": np.full(n, self.kappa)}
        own |= support_arrays(f"setting of {name_of(self)}", self.support, self.ball(problem.terms), problem, width)
        own["robust.share"] = self.weights(problem)
        held = {**self.server_data(problem.terms), "robust.q_hat": self.weights(problem)}
        data = Data({**problem.data, **{k: jnp.asarray(v) for k, v in own.items()}})
        server = Data({"weight": jnp.ones(1), **{k: jnp.asarray(v, dtype=float) for k, v in held.items()}})
        return problem.with_data(data, server)

    def server_data(self, terms: Terms) -> Data:
        """The numbers that the server holds, with equal weights q̂."""
        held = {"robust.theta": self.theta, "robust.c": self.c, "robust.price": self.cost, "robust.kappa": self.kappa}
        weights = jnp.full(terms.clients, 1.0 / terms.clients)
        return Data({"robust.q_hat": weights, **{k: jnp.asarray(v, dtype=float) for k, v in held.items()}})

    @property
    def cost(self) -> float:
        return 0.0

    # --- the protocol ---

    def init(self, terms: Terms, w0: Array, own: Data | None) -> MinimaxServer:
        n = terms.clients
        if own is None:
            own = self.server_data(terms)
        held = jnp.append(w0, 1.0) if self.shared else w0
        q_hat, S = own["robust.q_hat"], jnp.zeros(n)
        big = jnp.asarray(jnp.inf)
        # −σ and ζ end as the adversarial q
        return MinimaxServer(
            held, S, S, S, jnp.zeros(()), -q_hat, jnp.zeros((n, held.shape[0])), q_hat, jnp.tile(held, (n, 1)), S,
            own["robust.c"], own["robust.theta"], q_hat, own["robust.price"], big, big, jnp.zeros(n, bool),
            jnp.zeros((), int), jnp.zeros((), bool), anderson.blank(n * (held.shape[0] + 1)) if self.exact else (),
        )  # fmt: skip

    def broadcast(self, terms: Terms, server: MinimaxServer, draws: Array) -> Target:
        return Target(Each(server.w + server.psi / server.c), Each(server.z - server.zeta / server.c))

    def local(self, terms: Terms, client: tuple[()], call: Any, data: Data, key: Array) -> tuple[tuple[()], Projection]:
        form, x, y, omega = self.form(terms), data["x"], data["y"], terms.share(data)
        rho = jnp.zeros(()) if self.shared else data["robust.rho"]
        radius = Radius(rho, data["robust.kappa"], data["robust.low"], data["robust.high"])
        if self.sample is not None:
            x, y, omega = draw(self.sample, x, y, omega, key)
        if form.robust and not form.ball.closed:
            step = polyhedron.one_by_one(form)
            found = step(x, y, omega, radius, data["robust.C"], data["robust.d"], call.a, call.b)
        else:
            found = project(form, x, y, omega, radius, call.a, call.b)
        w = jnp.append(found.w, found.lam) if self.shared else found.w
        return client, Projection(w, found.v)

    def aggregate(self, terms: Terms, server: MinimaxServer, replies: Projection, present: Present) -> MinimaxServer:
        n, c = terms.clients, server.c
        here = jnp.zeros(n).at[jnp.where(present.here, present.index, n)].set(1.0, mode="drop")
        w_hat = present.remember(server.w_hat, replies.w_hat)
        v = present.remember(server.v, replies.v)
        heard = server.heard | (here > 0)
        apart = server.t - server.z - server.gamma - server.eta
        # duals; a silent client's stay
        sigma = server.sigma + (0.0 if self.exact else c * apart)
        psi = server.psi + c * here[:, None] * (server.w - w_hat)
        zeta = server.zeta + c * here * (v - server.z)
        after = dataclasses.replace(server, sigma=sigma, psi=psi, zeta=zeta, w_hat=w_hat, v=v, heard=heard)
        following, moved = self._primal(terms, after)
        primal = jnp.max(jnp.abs(jnp.concatenate([apart, v - server.z, jnp.ravel(server.w - w_hat)])))
        size = 1.0 + jnp.maximum(jnp.max(jnp.abs(server.w)), jnp.max(jnp.abs(v)))
        if self.exact:
            moved = c * jnp.max(jnp.abs(v - server.v))
        primal, dual = primal / size, jnp.maximum(moved, c * jnp.max(jnp.abs(jnp.sum(w_hat - server.w_hat, axis=0))))
        done = jnp.all(heard) & (primal <= self.tol) & (dual <= self.tol)
        taken_back, plain = jnp.zeros((), bool), following
        if self.exact:
            following, taken_back = accelerate(server, following, present.count == n)
        following = select(done, dataclasses.replace(after, memory=following.memory), following)
        if self.adapt:
            # where the residuals drift far apart late, the iterates crawl along a line: c then moves by what is missing
            soon = server.k < ADAPTING
            turn = ((server.k + 1) % jnp.where(soon, OFTEN, SELDOM) == 0) & (server.k < SETTLED)
            step = jnp.where(soon, 2.0, jnp.clip(jnp.sqrt(jnp.maximum(primal / dual, dual / primal)), 1.0, 10.0))
            factor = jnp.where(primal > BALANCE * dual, step, jnp.where(dual > BALANCE * primal, 1.0 / step, 1.0))
            turn = turn & (factor != 1.0) & ~done & ~taken_back
            if self.exact:
                # the plain step: an accelerated one could not be taken back after c has moved
                plain = dataclasses.replace(plain, memory=anderson.forget(server.memory, growth=step))
                following = select(turn, plain, following)
            following = dataclasses.replace(following, c=jnp.where(turn, c * factor, c))
        return dataclasses.replace(following, primal=primal, dual=dual, k=server.k + 1, done=done)

    def _primal(self, terms: Terms, at: MinimaxServer) -> tuple[MinimaxServer, Array]:
        """The server's steps (6) to (10), and by how much they miss the stationarity of program (5)."""
        S, c = at.z.shape[0], at.c
        near, far = (2.0 * S * c, 2.0 * S * c) if self.constants == "paper" else (2.0 * c, (S + 1.0) * c)
        w = jnp.mean(at.w_hat - at.psi / c, axis=0)
        if self.shared:
            w = w.at[-1].add(-at.price / (c * S))
        dim = terms.dim
        w = w.at[:dim].set(terms.regularizer.prox(w[:dim], 1.0 / (c * S)))
        if self.exact:
            # Φ(z) = max over Q of qᵀz has its prox from the projection onto Q; t, η, γ are not needed
            y = at.v + at.zeta / c
            q = weights_projection(c * y, at.q_hat, at.theta, self.p)
            z = y - q / c
            return dataclasses.replace(at, w=w, z=z, t=z, sigma=-q), jnp.zeros(())
        apart = at.t - at.z - at.gamma - at.eta
        z = (c * (at.v + apart) + near * at.z + at.zeta + at.sigma) / (c + near)
        u = at.t - (at.q_hat + at.sigma + c * apart) / near
        t = u - ball_projection(u, at.theta / near, self.p)
        between = t - z - at.gamma - at.eta
        eta = jnp.maximum(at.eta + (at.sigma + c * between) / far, 0.0)
        gamma = at.gamma + (1.0 + jnp.sum(at.sigma) + c * jnp.sum(between)) / far
        ends = t - z - gamma - eta
        missed = jnp.concatenate([
            c * (ends - apart) - near * (t - at.t),
            c * (apart - ends) + near * (at.z - z),
            c * (between - ends) - far * (eta - at.eta),
            (far * (gamma - at.gamma) + c * jnp.sum(ends - between))[None],
        ])  # fmt: skip
        return dataclasses.replace(at, w=w, z=z, t=t, eta=eta, gamma=gamma), jnp.max(jnp.abs(missed))

    def stress(self, problem: Problem, w: np.ndarray) -> Stress:
        """The worst case of the returned model, client by client."""
        return stress(problem, w, self.threat(problem))

    def threat(self, problem: Problem) -> Threat:
        """What the algorithm guards against on this problem."""
        return Threat(
            radius=self.radius,
            q_hat=self.weights(problem),
            kappa=self.kappa,
            theta=self.theta,
            p=self.p,
            metric=self.metric,
            support=self.support,
            intercept=self.intercept,
            mixture=self.shared,
        )

    def ended(self, server: MinimaxServer) -> Array:
        return server.done

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
        if not bool(np.all(np.asarray(server.heard))):
            silent = names[int(np.argmin(np.asarray(server.heard)))]
            return f"stopped at the limit of rounds; client {silent!r} never answered"
        return f"stopped at the limit of rounds with residuals {primal:.2g} and {dual:.2g} > {self.tol:g}"


def accelerate(server: MinimaxServer, following: MinimaxServer, everyone: Array) -> tuple[MinimaxServer, Array]:
    """Mix the points (b, a) that clients are sent, of which the iteration is a fixed-point map; only in full rounds.

    Second, whether the last such point is taken back.
    """
    c, (n, held) = server.c, server.psi.shape

    def flat(at: MinimaxServer) -> Array:
        return jnp.concatenate([jnp.ravel(at.w + at.psi / c), at.z - at.zeta / c])

    xi, plain = flat(server), flat(following)
    mixed, memory, worse = anderson.advance(server.memory, xi, plain - xi)
    mixed = jnp.where(everyone, mixed, plain)
    psi = c * (mixed[: n * held].reshape(n, held) - following.w)
    zeta = c * (following.z - mixed[n * held :])
    kept = select(everyone, memory, anderson.forget(server.memory))
    return dataclasses.replace(following, psi=psi, zeta=zeta, memory=kept), worse & everyone


def _chosen(terms: Terms, data: Data) -> Array:
    return jnp.ones_like(data["weight"]) if terms.where is None else terms.where(data).astype(float)


def draw(share: float, x: Array, y: Array, omega: Array, key: Array) -> tuple[Array, Array, Array]:
    """A random subset of the samples, ⌈share·N⌉ of the client's own N, each with the same chance."""
    rows = x.shape[0]
    most = max(1, int(np.ceil(share * rows)))
    order = jnp.argsort(jnp.where(omega > 0, jax.random.uniform(key, (rows,)), jnp.inf))[:most]
    kept = jnp.arange(most) < jnp.ceil(share * jnp.sum(omega > 0))
    chosen = jnp.where(kept, omega[order], 0.0)
    return x[order], y[order], chosen / jnp.sum(chosen)
