"""Methods that average local gradient descent: their step size γ_k, and the greeting that sets it to 1/max r_i."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Kind, Present
from foedus.algorithms.first_order import FirstOrder, Greeting, Progress, complete
from foedus.pytrees import state
from foedus.settings import setting, settings
from foedus.terms import Data, Terms


@state
class Server:
    """The model, the rounds played, the base step size (0: not known yet), what is seen, and a method's own."""

    w: Array
    round: Array
    gamma: Array
    progress: Progress
    own: Any


@state
class Model:
    """The broadcast: the model, the base step size, the round, and a method's own."""

    w: Array
    gamma: Array
    round: Array
    own: Any


@settings
class Descent(FirstOrder):
    """k0 local steps with γ_k = lr, lr/log2(k+2) or lr/(1+k/decay), k counting local steps over all rounds."""

    k0: int = setting(5, "local steps a round", ge=1, integer=True)
    lr: float | str = setting("auto", "step size; 'auto' is 1/max r_i", gt=0, choices=("auto",))
    decay: float | str | None = setting(
        None, "None: constant; 'log': lr/log2(k+2), GIA V.D; a number: lr/(1 + k/decay)", gt=0, choices=("log",)
    )

    @property
    def passes(self) -> int:
        """How often a round goes over a client's data."""
        return self.k0 * getattr(self, "steps", 1)

    @property
    def automatic(self) -> bool:
        return self.lr == "auto"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (Greet(self), self) if self.automatic else (self,)  # pyright: ignore[reportReturnType]

    def own_state(self, terms: Terms, w0: Array) -> Any:
        """What a method keeps at the server beside the model."""
        return ()

    def init(self, terms: Terms, w0: Array, own: Data | None) -> Server:
        gamma = 0.0 if isinstance(self.lr, str) else self.lr
        return Server(w0, jnp.zeros((), int), jnp.asarray(gamma), Progress.none(), self.own_state(terms, w0))

    def phase(self, server: Server) -> Array:
        return (server.gamma > 0).astype(int) if self.automatic else jnp.zeros((), int)

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> Model:
        return Model(server.w, server.gamma, server.round, server.own)

    def rate(self, model: Model, step: Array | int) -> Array:
        """γ_k of the given local step of this round."""
        k = model.round * self.k0 + step
        if self.decay is None:
            return model.gamma
        if self.decay == "log":
            return model.gamma / jnp.log2(k + 2.0)
        return model.gamma / (1.0 + k / float(self.decay))


@dataclass(frozen=True)
class Greet:
    """The first round under lr='auto': everyone sends r_i with its gradient, which is used for one plain step."""

    method: Descent

    def broadcast(self, terms: Terms, server: Server, draws: Array) -> Array:
        return server.w

    def local(self, terms: Terms, client: Any, message: Array, data: Data, key: Array) -> tuple[Any, Greeting]:
        return client, self.method.greet(terms, message, data)

    def aggregate(self, terms: Terms, server: Server, replies: Greeting, present: Present) -> Server:
        gamma = 1.0 / present.max(replies.r)
        seen = present.mean(replies.seen)
        progress = self.method.judge(terms, seen, complete(terms, present))
        w = server.w if self.method.stop is None else self.method.settle(progress, server.w, server.w - gamma * seen.g)
        return Server(w, server.round, gamma, progress, server.own)
