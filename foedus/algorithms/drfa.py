"""DRFA: distributionally robust federated averaging (Deng, Kamani and Mahdavi 2020, Algorithm 1).

A stage is two rounds. In the first, m clients drawn with weights λ make τ local steps, and the server keeps the mean
of their last models and of those at a random step t', the snapshot. In the second, m clients drawn evenly send their
loss at the snapshot, and λ takes a step along these losses and is projected back onto the simplex.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.localsgd import minibatch
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, state
from foedus.base.settings import setting, settings
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Algorithm, Each, Fit, Kind, Present, name_of


@state
class DrfaServer:
    """The server's state: the model, the weights λ, and where in a stage the run is."""

    w: Array
    lam: Array
    snapshot: Array  # the mean of the models at step t'
    total: Array  # the sum of all stages' models, of which the mean is returned
    stage: Array
    weighing: Array  # whether the next round is the second of its stage
    objective: Array


@state
class TrainingTask:
    """The message of a stage's first round."""

    w: Array
    step: Array  # t', at which the snapshot is taken
    times: PyTree  # how often the client was drawn


@state
class Snapshots:
    """A client's last model and its model at step t'."""

    w: Array
    snapshot: Array
    times: Array


@state
class LossQuery:
    """The message of a stage's second round: the snapshot whose loss is asked for."""

    w: Array
    times: PyTree


@state
class SampledLoss:
    """A client's loss at the snapshot, and how often the client was drawn."""

    f: Array
    times: Array


@settings
class DRFA(Algorithm):
    """Guards the worst-off client also where the model is not linear, by stochastic steps.

    It is distributionally robust federated averaging as published. For linear models `AFL()` solves the same problem
    to optimality. It has no stopping test and plays the rounds it is given.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.least_squares), fd.DRFA(), max_rounds=400)
        >>> run.rounds, run.w.round(1).tolist()
        (400, [2.0, 3.0])
    """

    k0: int = setting(5, "τ, local steps of a stage", ge=1, integer=True)
    lr: float = setting(0.05, "η, the local step size", gt=0)
    lr_weights: float = setting(0.01, "γ, the step size of the weights λ; τγ a stage", gt=0)
    drawn: int | None = setting(
        None, "m, the clients drawn for a round; None: as many as there are", ge=1, integer=True
    )
    batch: int | None = setting(None, "samples of a stochastic gradient or loss; None: all", ge=1, integer=True)
    average: bool = setting(
        True, "whether the mean of all stages' models is returned, or the last", choices=(True, False)
    )

    def fit(self, problem: Problem) -> Fit:
        if problem.terms.weights is not None:
            raise FoedusError(f"{name_of(self)} finds the clients' weights itself; leave weights= of the problem out.")
        return replace(super().fit(problem), max_rounds=2000)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return Train(self), Weigh(self)

    def phase(self, server: DrfaServer) -> Array:
        return server.weighing.astype(int)

    def init(self, terms: Terms, w0: Array, own: Data | None) -> DrfaServer:
        n, zero = terms.clients, jnp.zeros((), int)
        return DrfaServer(
            w0, jnp.full(n, 1.0 / n), w0, jnp.zeros_like(w0), zero, zero.astype(bool), jnp.asarray(jnp.inf)
        )

    def parameters(self, terms: Terms, server: DrfaServer) -> Array:
        mean = server.total / jnp.maximum(server.stage, 1)
        return jnp.where(server.stage > 0, mean, server.w) if self.average else server.w

    def report(self, server: DrfaServer) -> dict[str, Array]:
        return {"snapshot_loss": server.objective, "largest_weight": jnp.max(server.lam)}

    def reason(self, server: DrfaServer, converged: bool, names: list[str]) -> str:
        return "played the rounds asked for; a stochastic method has no test to stop at"

    def tally(self, chances: Array, draws: Array) -> tuple[Array, Array]:
        """How often each client comes up in m draws with these chances, and a further key."""
        n = draws.shape[0]
        # the round's uniform numbers are the only randomness at the server: the bits of the first one seed the draws
        key = jax.random.key(jax.lax.bitcast_convert_type(draws.astype(jnp.float32), jnp.uint32)[0])
        one, other = jax.random.split(key)
        picks = jax.random.choice(one, n, (self.drawn or n,), p=chances)
        return jnp.zeros(n).at[picks].add(1.0), other

    def examples(self, terms: Terms, data: Data, key: Array) -> tuple[Terms, Data]:
        """The terms and the data of one stochastic gradient or loss: all examples, or a minibatch."""
        if self.batch is None:
            return terms, data
        return replace(terms, where=None, penalty=None), minibatch(terms, data, key, self.batch)


@dataclass(frozen=True)
class Train:
    """A stage's first round: τ local steps at clients drawn with the weights λ."""

    method: DRFA

    def broadcast(self, terms: Terms, server: DrfaServer, draws: Array) -> TrainingTask:
        times, key = self.method.tally(server.lam, draws)
        return TrainingTask(server.w, jax.random.randint(key, (), 1, self.method.k0 + 1), Each(times))

    def local(
        self, terms: Terms, client: tuple[()], task: TrainingTask, data: Data, key: Array
    ) -> tuple[tuple[()], Snapshots]:
        def step(j: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
            u, snapshot = pair
            batch_terms, batch = self.method.examples(terms, data, jax.random.fold_in(key, j))
            u = u - self.method.lr * batch_terms.gradient(u, batch)
            return u, jnp.where(j + 1 == task.step, u, snapshot)

        u, snapshot = jax.lax.fori_loop(0, self.method.k0, step, (task.w, task.w))
        return client, Snapshots(u, snapshot, task.times)

    def aggregate(self, terms: Terms, server: DrfaServer, replies: Snapshots, present: Present) -> DrfaServer:
        share = jnp.where(present.here, replies.times, 0.0)
        anyone = jnp.sum(share) > 0
        share = share / jnp.maximum(jnp.sum(share), 1.0)
        w = jnp.where(anyone, share @ jnp.where(present.here[:, None], replies.w, 0.0), server.w)
        snapshot = jnp.where(anyone, share @ jnp.where(present.here[:, None], replies.snapshot, 0.0), server.snapshot)
        return replace(server, w=w, snapshot=snapshot, total=server.total + w, stage=server.stage + 1,
                       weighing=jnp.ones((), bool))  # fmt: skip


@dataclass(frozen=True)
class Weigh:
    """A stage's second round: the losses of evenly drawn clients at the snapshot change λ."""

    method: DRFA

    def broadcast(self, terms: Terms, server: DrfaServer, draws: Array) -> LossQuery:
        even = jnp.full(terms.clients, 1.0 / terms.clients)
        return LossQuery(server.snapshot, Each(self.method.tally(even, draws)[0]))

    def local(
        self, terms: Terms, client: tuple[()], query: LossQuery, data: Data, key: Array
    ) -> tuple[tuple[()], SampledLoss]:
        batch_terms, batch = self.method.examples(terms, data, key)
        return client, SampledLoss(batch_terms.value(query.w, batch), query.times)

    def aggregate(self, terms: Terms, server: DrfaServer, replies: SampledLoss, present: Present) -> DrfaServer:
        from optax.projections import projection_simplex  # which takes a tenth of a second, and few runs use

        n, method = terms.clients, self.method
        # n/m times the sum over the draws is an unbiased estimate of the gradient in λ, (f_1, …, f_n)
        gains = jnp.where(present.here, replies.times * replies.f, 0.0) * n / (method.drawn or n)
        v = jnp.zeros(n).at[present.index].add(gains, mode="drop")
        lam = projection_simplex(server.lam + method.k0 * method.lr_weights * v)
        mean = jnp.sum(jnp.where(present.here, replies.times * replies.f, 0.0)) / jnp.maximum(
            jnp.sum(jnp.where(present.here, replies.times, 0.0)), 1.0
        )
        return replace(server, lam=lam, weighing=jnp.zeros((), bool), objective=mean)
