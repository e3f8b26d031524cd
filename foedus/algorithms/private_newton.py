"""PrivateNewton: noisy second moments once, then a few preconditioned steps; caps are held by public multipliers.

The first round releases the mean of xxᵀ over all rows, with noise. The server makes of it a matrix T that whitens the
rows, and everybody works with x̃ = Tᵀx from then on: there rows are about √dim long in every direction, so that clipping
and noise treat all directions alike, and steps of 1/κ need few rounds (a bound on the curvature, Böhning and Lindsay
1988, with noisy moments in place of exact ones).

Each following round releases the mean of clipped gradients and, where mean losses are capped, the gradient and the
excess of every cap. Multipliers, estimates and steps are functions of what was released, so that nothing that depends
on the data is carried from round to round, and every release has a fixed sensitivity given the past. A last round
measures the caps at the returned model; `run.certificate.private` has what came of it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms import private_newton_server as server_side
from foedus.algorithms import private_newton_site as site_side
from foedus.algorithms.private_newton_server import CapEstimate
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, state
from foedus.base.settings import setting, settings
from foedus.certificate.private import PrivateCertificate
from foedus.numerics.lapack import lu_solve
from foedus.privacy import clipping
from foedus.privacy.central import NoiseShares
from foedus.privacy.composition import gaussian_epsilon
from foedus.privacy.noise import Gaussian, Noise, Sound
from foedus.privacy.release import Spent, release_columns, release_vector
from foedus.privacy.releasing import Releasing, only_for_paper
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import RUNNING, STUCK, Algorithm, Each, Fit, Kind, Present, name_of, refuse
from foedus.protocol.constrained import Constrained
from foedus.protocol.summing import Summing

STEPS, STEPS_WITH_CAPS = 8, 16  # rounds between the first and, with caps, the last
CLIP, CLIP_WITH_CAPS = 0.45, 0.55  # the usual clip over the length √dim that whitened rows have on average
MOST_COLUMNS = 1000  # the public matrix travels in every message


@state
class NewtonServer:
    """The server's state; all of it follows from releases."""

    w: Array
    u: Array  # w = root @ u
    root: Array  # T
    round: Array
    estimate: CapEstimate
    step: Array  # the last one, in u
    gradient: Array  # in u, with memory where there are caps
    error: Array  # the scale of each client's noise in its last release. (clients,)
    multipliers: Array  # (clients, caps)
    measured: Array  # excess and share of each cap, as released last. (clients, caps, 2)
    caps: Array  # (clients, caps)
    measure_error: Array  # the scale of the noise in `measured`, 0 for clients that did not measure. (clients,)


@state
class NewtonClient:
    """A client's state: its record, and the multipliers of its own rows for a certificate that is measured outside."""

    spent: Spent
    mu: Array


@state
class NewtonMessage:
    """The model, the public matrix, the client's place in what only it fills, and its multipliers."""

    w: Array
    root: Array
    place: PyTree  # `Each` on its way, a client's own number when it has arrived
    multipliers: PyTree


@state
class NewtonReply:
    """A release: a part to be added up, and a part that only this client fills, at its place."""

    z: Array
    slots: Array  # (clients, caps, numbers)
    scale: Array  # of the noise, at the client's place; 0 where it is silent. (clients,)
    caps: Array  # the limits of the client's caps, at its place. (clients, caps)


@settings
class PrivateNewton(Releasing, Summing, Constrained):
    """Private training in about ten rounds, with or without caps on mean losses: noisy moments, then Newton-like steps.

    For a smooth loss of xᵀw with Gaussian noise: `privacy=fd.Local(epsilon=, delta=)`, or `fd.Central(...)` with
    `secure=True`. `LossCap` constraints are held with a margin that follows from the noise, and
    `run.certificate.private` says for each whether it is kept, broken, or cannot be told.

    Example:
        >>> import foedus as fd, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(20000, 3))
        >>> y = (x @ np.array([1.0, -1.0, 0.5]) + rng.logistic(size=20000) > 0) * 1.0
        >>> problem = fd.Problem(fd.data.split(x, y, clients=5), loss=fd.losses.logistic)
        >>> total = fd.Central(epsilon=1.0, delta=1e-5, clip=3.0)  # the usual clip, 1 here, would make w a third longer
        >>> run = fd.solve(problem, fd.PrivateNewton(), privacy=total, secure=True)
        >>> run.rounds, bool(np.linalg.norm(run.w - [1.0, -1.0, 0.5]) < 0.2)
        (9, True)
    """

    rounds: int | None = setting(None, "rounds in all; None: 9, and 18 with caps", integer=True, ge=2)
    confidence: float = setting(0.95, "with which all caps are to hold, and of each measured interval", gt=0.5, lt=1)
    loss_clip: float | None = setting(
        None, "the largest loss of an example that counts in a cap; None: 2 + 4·cap", gt=0
    )
    noise: Noise | None = setting(
        None,
        "the noise of one release, which solve(privacy=...) sets",
        also=("a noise, as fd.Gaussian", lambda v: isinstance(v, Noise)),
    )

    eps1: ClassVar[float] = 1e-3  # pyright: ignore[reportIncompatibleVariableOverride]
    eps2: ClassVar[float] = 1e-3  # pyright: ignore[reportIncompatibleVariableOverride]

    # --- what is fixed before the first round ---

    def rounds_for(self, terms: Terms) -> int:
        """The rounds in all: moments, steps and, with caps, a measurement."""
        return self.rounds or (2 + STEPS_WITH_CAPS if terms.constraints else 1 + STEPS)

    def private_rounds(self, problem: Problem) -> int:
        return self.rounds_for(problem.terms)

    def usual_clip(self, terms: Terms, columns: int) -> float:
        """With caps a row's gradient may be longer: clipping turns away from the optimum by more than noise does."""
        return max(1.0, (CLIP_WITH_CAPS if terms.constraints else CLIP) * terms.dim**0.5)

    def with_noise(self, noise: Noise, problem: Problem) -> Algorithm:
        if not isinstance(noise, Sound):
            raise only_for_paper(noise)
        return replace(self, noise=replace(noise, halves=False), rounds=noise.most or self.rounds)

    @property
    def sound(self) -> Sound:
        """The noise."""
        assert isinstance(self.noise, Sound)
        return self.noise

    def fit(self, problem: Problem) -> Fit:
        terms = problem.terms
        if self.noise is None:
            raise FoedusError(f"{name_of(self)} is for private training alone: give solve privacy=fd.Local(...).")
        if not isinstance(self.noise, Gaussian):
            raise FoedusError(f"{name_of(self)} needs Gaussian noise, so a total with delta > 0.")
        if terms.loss is None or terms.loss.curvature is None:
            raise FoedusError(f"{name_of(self)} needs a loss of xᵀw with bounded curvature; use FedAvg(k0=1).")
        if terms.dim > MOST_COLUMNS:
            raise FoedusError(f"{name_of(self)} takes up to {MOST_COLUMNS} columns, and there are {terms.dim}.")
        refuse(self, terms, constraints=False)
        clipping.check(self, terms, self.noise, name_of(self))
        caps, least = site_side.caps_of(terms), 3 if terms.constraints else 2
        if self.rounds_for(terms) < least:
            raise FoedusError(f"{name_of(self)} needs {least} rounds at least here. Got {self.rounds} instead.")
        if isinstance(self.noise, NoiseShares):
            self.noise.check_useful(terms.dim)
        kappa = float(terms.loss.curvature)
        ready = replace(self, rounds=self.rounds_for(terms), noise=replace(self.noise, halves=False))
        assert len(caps) == terms.rows[0] and kappa > 0
        return Fit(ready, problem, max_rounds=ready.rounds_for(terms))

    def limits(self, terms: Terms) -> site_side.Limits:
        """The public bounds on what a row adds."""
        length = self.sound.rows or terms.dim**0.5
        loss = (2.0, 4.0) if self.loss_clip is None else (self.loss_clip, 0.0)
        return site_side.Limits(self.sound.clip, length, loss)

    # --- the protocol ---

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (Moments(self), Looks(self), Measures(self))

    def phase(self, server: NewtonServer) -> Array:
        looks_end = self._rounds - (1 if server.multipliers.size else 0)
        return jnp.where(server.round == 0, 0, jnp.where(server.round < looks_end, 1, 2))

    @property
    def _rounds(self) -> int:
        assert self.rounds is not None
        return self.rounds

    def init(self, terms: Terms, w0: Array, own: Data | None) -> NewtonServer:
        n, caps, dim = terms.clients, terms.rows[0], terms.dim
        return NewtonServer(
            w=w0,
            u=w0,
            root=jnp.eye(dim),
            round=jnp.zeros((), int),
            estimate=CapEstimate.nothing(n, caps, dim),
            step=jnp.zeros(dim),
            gradient=jnp.zeros(dim),
            error=jnp.zeros(n),
            multipliers=jnp.zeros((n, caps)),
            measured=jnp.zeros((n, caps, 2)),
            caps=jnp.zeros((n, caps)),
            measure_error=jnp.zeros(n),
        )

    def join(self, terms: Terms, data: Data, w0: Array) -> NewtonClient:
        return NewtonClient(Spent.nothing(), jnp.zeros(terms.rows[0]))

    def broadcast(self, terms: Terms, server: NewtonServer, draws: Array) -> NewtonMessage:
        place = jnp.arange(terms.clients)
        return NewtonMessage(server.w, server.root, Each(place), Each(server.multipliers))

    def send(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, shared: Array, own: Array,
        sensitivity: Array, key: Array,
    ) -> tuple[NewtonClient, NewtonReply]:  # fmt: skip
        """A client's next state and its release of the two parts."""
        noise, place = self.sound, message.place
        reach = jnp.sum(jnp.abs(message.w))
        spent, speaks, z, mine = release_vector(noise, client.spent, reach, shared, own.ravel(), sensitivity, key)
        slots = jnp.zeros((terms.clients, *own.shape)).at[place].set(mine.reshape(own.shape))
        scale = jnp.zeros(terms.clients).at[place].set(jnp.where(speaks, spent.scale, 0.0))
        caps = jnp.zeros((terms.clients, own.shape[0])).at[place].set(site_side.limits_of_caps(terms, data))
        return replace(client, spent=spent), NewtonReply(z, slots, scale, caps)

    def ended(self, server: NewtonServer) -> Array:
        return jnp.where(server.round >= self._rounds, STUCK, RUNNING)

    def reason(self, server: PyTree, converged: bool, names: list[str]) -> str:
        return "played its rounds; a stopping test would have to be paid for"

    def release_record(self, clients: NewtonClient) -> Mapping[str, Array]:
        return release_columns(clients.spent)

    # --- what is said about caps ---

    def client_multipliers(self, terms: Terms, client: NewtonClient) -> Array:
        return client.mu

    def server_multipliers(self, terms: Terms, server: NewtonServer) -> dict[str, Array]:
        return {"global": jnp.zeros(terms.rows[1]), "coupled": jnp.zeros(terms.rows[2])}

    def private_certificate(self, terms: Terms, server: PyTree, names: list[str]) -> PrivateCertificate | None:
        constraints = site_side.caps_of(terms)
        if not constraints:
            return None
        limits, noise, rows = self.limits(terms), self.sound, []
        change = np.asarray(site_side.value_change(noise, limits, jnp.asarray(server.caps)))
        for i, name in enumerate(names):
            for k, constraint in enumerate(constraints):
                scale = float(server.measure_error[i])
                error = scale * float(change[i, k]) if scale > 0 else np.inf
                excess = float(server.measured[i, k, 0]) * float(change[i, k]) if scale > 0 else np.nan
                share = float(server.measured[i, k, 1]) / site_side.GROUP_SHARE
                rows.append(
                    server_side.row_of(
                        name, f"loss on {constraint.where}", float(server.caps[i, k]), (excess, error),
                        (share, scale / site_side.GROUP_SHARE), self.confidence, float(server.multipliers[i, k]),
                    )
                )  # fmt: skip
        delta = noise.delta if noise.total is None else noise.total[1]
        clip = float(np.max(np.asarray(limits.cut(jnp.asarray(server.caps)))))
        return PrivateCertificate(tuple(rows), self.confidence, gaussian_epsilon(noise.multiplier, delta), delta, clip)


# --- the kinds of rounds ---


class Round:
    """What the kinds of rounds share."""

    def __init__(self, algorithm: PrivateNewton):
        self.algorithm = algorithm

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Round) and self.algorithm == other.algorithm

    def __hash__(self) -> int:
        return hash((type(self), self.algorithm))

    def broadcast(self, terms: Terms, server: NewtonServer, draws: Array) -> NewtonMessage:
        return self.algorithm.broadcast(terms, server, draws)

    def total(self, server: NewtonServer, replies: NewtonReply, present: Present) -> tuple[NewtonReply, Array, Array]:
        """The sum of the replies, who has spoken, and how many."""
        total = jax.tree.map(lambda mean: mean * present.count, present.mean(replies))
        here = total.scale > 0
        return total, here, jnp.sum(here)


class Moments(Round):
    """The first round: second moments of the rows."""

    def local(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, key: Array
    ) -> tuple[NewtonClient, NewtonReply]:
        noise, limits = self.algorithm.sound, self.algorithm.limits(terms)
        packed = site_side.moments(terms, data, noise, limits.length)
        change = site_side.moments_change(terms, noise, limits.length, data.count)
        own = jnp.zeros((terms.rows[0], 0))
        return self.algorithm.send(terms, client, message, data, packed, own, change, key)

    def aggregate(self, terms: Terms, server: NewtonServer, replies: NewtonReply, present: Present) -> NewtonServer:
        total, _, speakers = self.total(server, replies, present)
        spread = server_side.spread_of(self.algorithm.sound, total.scale, present.count, terms.rows[0] > 0)
        spread = spread / jnp.maximum(speakers, 1)
        root = server_side.whitening(total.z / jnp.maximum(speakers, 1), spread, terms.dim)
        root = jnp.where(speakers > 0, root, server.root)
        return replace(server, root=root, u=lu_solve(root, server.w), round=server.round + 1, caps=total.caps)


class Looks(Round):
    """A step: clipped gradients, and for every cap its gradient and its excess."""

    def local(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, key: Array
    ) -> tuple[NewtonClient, NewtonReply]:
        noise, limits, blocks = self.algorithm.sound, self.algorithm.limits(terms), site_side.Blocks.of(terms)
        shared, own = site_side.look(terms, message.w, message.root, data, noise, limits, blocks.cells)
        change = site_side.look_change(terms, noise, limits, blocks, data.count, message.w, message.root)
        return self.algorithm.send(terms, client, message, data, shared, own, change, key)

    def aggregate(self, terms: Terms, server: NewtonServer, replies: NewtonReply, present: Present) -> NewtonServer:
        assert terms.loss is not None and terms.loss.curvature is not None
        noise, limits, kappa = self.algorithm.sound, self.algorithm.limits(terms), float(terms.loss.curvature)
        total, here, speakers = self.total(server, replies, present)
        gradient = total.z
        estimate = server.estimate
        error = jnp.where(here, total.scale, server.error)
        caps = jnp.where(here[:, None], total.caps, server.caps)
        if terms.rows[0]:
            slope = total.slots[..., :-1]
            if site_side.Blocks.of(terms).cells:
                gradient = gradient + jnp.sum(slope, axis=(0, 1))
            weight = site_side.value_weight(noise, limits, caps)
            value, value_error = total.slots[..., -1] / weight, error[:, None] / weight
            present_rows = jnp.broadcast_to(here[:, None], value.shape)
            estimate = estimate.updated(server.step, value, value_error, slope, error[:, None], present_rows, kappa)
        gradient, bend = gradient / jnp.maximum(speakers, 1), jnp.asarray(kappa)
        if terms.rows[0]:
            past = jnp.where(server.round <= 1, 0.0, server_side.MOMENTUM)
            gradient = past * server.gradient + (1.0 - past) * gradient
            bend = kappa * jnp.maximum(1.0, server.round / server_side.DAMPED)
        # with cells the noise of a cap's slope is part of the gradient's
        cells = bool(terms.rows[0]) and site_side.Blocks.of(terms).cells
        mixed = (1.0 - server_side.MOMENTUM) * estimate.slope_variance / terms.clients if cells else jnp.zeros(())
        step, multipliers, estimate = server_side.careful_step(
            gradient, estimate, self.algorithm.confidence, kappa, bend, mixed
        )
        step = jnp.where(speakers > 0, step, 0.0)
        u = server.u + step
        return replace(
            server, w=server.root @ u, u=u, round=server.round + 1, estimate=estimate, step=step, error=error,
            gradient=jnp.where(speakers > 0, gradient, server.gradient), multipliers=multipliers, caps=caps,
        )  # fmt: skip


class Measures(Round):
    """The last round, where there are caps: each one's excess at the returned model, and its group's share of rows."""

    def local(
        self, terms: Terms, client: NewtonClient, message: NewtonMessage, data: Data, key: Array
    ) -> tuple[NewtonClient, NewtonReply]:
        noise, limits = self.algorithm.sound, self.algorithm.limits(terms)
        own = site_side.measure(terms, message.w, data, noise, limits)
        change = site_side.measure_change(terms, noise, data.count)
        shared = jnp.zeros(1)  # noise alone: whoever adds up needs no special case
        after, reply = self.algorithm.send(terms, client, message, data, shared, own, change, key)
        # L = f + Σλ·excess, and the row that a certificate knows is the group's mean loss − cap, excess over share
        share = jnp.sum(site_side.groups_of(terms, data) * data["weight"], axis=1) / data.count
        return replace(after, mu=message.multipliers * share), reply

    def aggregate(self, terms: Terms, server: NewtonServer, replies: NewtonReply, present: Present) -> NewtonServer:
        total, here, _ = self.total(server, replies, present)
        return replace(
            server, measured=total.slots, measure_error=jnp.where(here, total.scale, 0.0), round=server.round + 1,
            caps=jnp.where(here[:, None], total.caps, server.caps),
        )  # fmt: skip
