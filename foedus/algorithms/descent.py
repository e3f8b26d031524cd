"""What gradient methods share: the stopping test on ∇f, the step size γ_k, and the local steps.

A client computes the gradient at the received model anyway, for its first local step. It sends this gradient and the
value along, so that the server can test ‖∇f(w)‖² ≤ tol, GIA's rule (35), at a model that everybody has just evaluated.
With lr = "auto" a first round, the greeting, sets the step size 1/max r_i from the clients' Lipschitz constants r_i.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.optimizers import Optimizer, as_optimizer, is_optimizer
from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, T, state
from foedus.base.settings import setting, settings
from foedus.problem.problem import Problem
from foedus.problem.terms import Data, Terms
from foedus.protocol.accountable import Account, Accountable
from foedus.protocol.algorithm import Algorithm, Fit, Kind, Present, name_of
from foedus.protocol.buffered import LatePresent
from foedus.protocol.means import MEANS, largest_of, mean_of

if TYPE_CHECKING:
    import optax

OPTIMIZER = ("an optimiser of optax", is_optimizer)


@state
class View:
    """A client's view of the received model: f_i(w), and ∇f_i(w) where the stopping test needs it."""

    f: Array
    g: PyTree  # an array, or () without a stopping test

    def figures(self) -> tuple[float, np.ndarray | None]:
        """The value and the gradient as numbers; no gradient where none is sent."""
        return float(self.f), None if isinstance(self.g, tuple) else np.asarray(self.g)


@state
class Progress:
    """The server's figures for the last broadcast model: f(w), the stopping test's left side, and if all answered."""

    objective: Array
    error: Array
    complete: Array

    @staticmethod
    def none() -> "Progress":
        """The figures before the first round."""
        return Progress(jnp.full((), jnp.inf), jnp.full((), jnp.inf), jnp.zeros((), bool))


@state
class Greeting:
    """The reply to a greeting: the Lipschitz constant r_i, the number of examples d_i, and the view of w0."""

    r: Array
    count: Array
    view: View


@settings
class FirstOrder(Algorithm):
    """A method that uses gradients of f_i, with a test on ∇f that ends it."""

    tol: float = setting(1e-7, "tolerance of the stopping test, GIA (35)", ge=0)
    stop: str | None = setting(
        "gradient",
        "'gradient': ‖∇f‖² <= tol, GIA (35); 'released': ‖∇f‖²/n² <= tol, as the authors' code; None: no test",
        choices=("gradient", "released", None),
    )

    def fit(self, problem: Problem) -> Fit:
        loss = problem.terms.loss
        if loss is not None and not loss.smooth and self.automatic:
            step = "give lr, or " if hasattr(self, "lr") else ""
            raise FoedusError(
                f"{name_of(self)}: the loss {loss.name} has kinks, and no second derivative to set the step from; "
                f"{step}take a smooth loss."
            )
        return super().fit(problem)

    @property
    def automatic(self) -> bool:
        """Whether a greeting round has to ask the clients for their constants first."""
        return False

    def look(self, terms: Terms, w: Array, data: Data) -> tuple[View, Array]:
        """The view of the received model for the reply, and the gradient there for the local steps."""
        f, g = terms.value_and_gradient(w, data)
        return View(f, g if self.stop is not None else ()), g

    def judge(self, terms: Terms, mean_view: View, complete: Array) -> Progress:
        """The figures of the stopping test, from the mean of the clients' views."""
        if self.stop is None:
            return Progress(mean_view.f, jnp.full((), jnp.inf), complete)
        error = jnp.sum(mean_view.g**2)
        return Progress(mean_view.f, error / terms.clients**2 if self.stop == "released" else error, complete)

    def stops_at(self, progress: Progress) -> Array:
        """Whether the stopping test holds at the model that everybody has just evaluated."""
        return progress.complete & (progress.error <= self.tol)

    def settle(self, progress: Progress, w: Array, following: Array) -> Array:
        """The next model, or the present one where the stopping test holds: that is the model to return."""
        return jnp.where(self.stops_at(progress), w, following)

    def greet(self, terms: Terms, w: Array, data: Data) -> Greeting:
        """A client's reply in the greeting round."""
        view, _ = self.look(terms, w, data)
        return Greeting(terms.lipschitz(w, data), data.count, view)

    def ended(self, server: PyTree) -> Array:
        return self.stops_at(server.progress)

    def report(self, server: PyTree) -> dict[str, Array]:
        return {"objective": server.progress.objective, "gradient": server.progress.error}

    def reason(self, server: PyTree, converged: bool, names: list[str]) -> str:
        quantity = "‖∇f‖²/n²" if self.stop == "released" else "‖∇f‖²"
        if converged:
            return f"{quantity} = {float(server.progress.error):.2g} <= {self.tol:g}"
        if self.stop is None:
            return "played the rounds asked for"
        if not bool(server.progress.complete):
            return (
                f"stopped at the limit of rounds; {quantity} <= {self.tol:g} is tested only when every client answers"
            )
        return f"stopped at the limit of rounds with {quantity} = {float(server.progress.error):.2g} > {self.tol:g}"


@state
class DescentServer:
    """The server's state of a descent method."""

    w: Array
    round: Array  # rounds played
    gamma: Array  # the base step size; 0 until the greeting has set it
    progress: Progress
    own: PyTree  # the part of a single method, as SCAFFOLD's control variate
    memory: PyTree = ()  # the state of the server's optimiser


@state
class ModelMessage:
    """The broadcast: the model, the base step size, the round, and the part of a single method."""

    w: Array
    gamma: Array
    round: Array
    own: PyTree


def step_size(gamma: Array, decay: float | str | None, k: Array | int) -> Array:
    """The step size γ_k: constant, γ/log2(k+2) (GIA V.D) or γ/(1 + k/decay)."""
    if decay is None:
        return gamma
    return gamma / jnp.log2(k + 2.0) if isinstance(decay, str) else gamma / (1.0 + k / decay)


@settings
class Descent(FirstOrder):
    """A method whose clients take k0 local steps with γ_k = lr, lr/log2(k+2) or lr/(1+k/decay).

    The index k counts local steps over all rounds.

    Either side may use an optimiser of optax instead: the clients for their steps (`local=`), starting anew in each
    round, and the server (`server=`) for the step from w to the clients' mean, whose difference it takes as a gradient
    (Reddi et al. 2021).
    """

    k0: int = setting(5, "local steps a round", ge=1, integer=True)
    lr: float | str = setting("auto", "step size; 'auto' is 1/max r_i", gt=0, choices=("auto",))
    decay: float | str | None = setting(
        None, "None: constant; 'log': lr/log2(k+2), GIA V.D; a number: lr/(1 + k/decay)", gt=0, choices=("log",)
    )
    server_optimizer: Optimizer | None = setting(
        None, "the server's optimiser, as optax.adam(0.01)", also=OPTIMIZER, alias="server", convert=as_optimizer
    )
    local_optimizer: Optimizer | None = setting(
        None, "the clients' optimiser, in place of lr and decay", also=OPTIMIZER, alias="local", convert=as_optimizer
    )

    combine: str = setting(
        "mean", "how the server joins the models: 'mean'; 'trimmed' or 'median', which few wrong ones cannot move far",
        choices=MEANS, alias="aggregate",
    )  # fmt: skip
    greeting: str = setting(
        "maximum", "how max r_i is found: from each r_i ('maximum'), or, up to 19 %, from 'sums'",
        choices=("maximum", "sums"),
    )  # fmt: skip

    @property
    def automatic(self) -> bool:
        return self.lr == "auto" and self.local_optimizer is None

    def by_sums(self) -> Algorithm:
        """Return the form whose greeting, too, needs only sums."""
        if self.combine != "mean":
            raise FoedusError(
                f"{name_of(self)}(aggregate={self.combine!r}) needs each client's own reply, which masked sums "
                "(secure) do not show; take aggregate='mean'."
            )
        return replace(self, greeting="sums")

    @property
    def gradients(self) -> int:
        """How many gradients a client takes in a round."""
        return self.k0

    @property
    def pull(self) -> float:
        """The weight of (pull/2)‖u − w‖², which holds local steps near the received model."""
        return 0.0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        greet = Greet(self) if self.greeting == "maximum" else GreetBySums(self)
        return (greet, self) if self.automatic else (self,)

    def own_state(self, terms: Terms, w0: Array) -> PyTree:
        """The part of the server's state that only this method has."""
        return ()

    def init(self, terms: Terms, w0: Array, own: Data | None) -> DescentServer:
        gamma = 0.0 if isinstance(self.lr, str) else self.lr
        memory = () if self.server_optimizer is None else self.server_optimizer.transform.init(w0)
        start = jnp.zeros((), int)
        return DescentServer(w0, start, jnp.asarray(gamma), Progress.none(), self.own_state(terms, w0), memory)

    def phase(self, server: DescentServer) -> Array:
        return (server.gamma > 0).astype(int) if self.automatic else jnp.zeros((), int)

    def broadcast(self, terms: Terms, server: DescentServer, draws: Array) -> ModelMessage:
        return ModelMessage(server.w, server.gamma, server.round, server.own)

    def rate(self, model: ModelMessage, step: Array | int) -> Array:
        """The step size γ_k of a local step, counted from the start of this round."""
        return step_size(model.gamma, self.decay, model.round * self.k0 + step)

    def descend(self, model: ModelMessage, g: Array, gradient: Callable[[Array], Array]) -> Array:
        """The model after a round's local steps from the received w; `g` is the gradient at w."""
        per = self.gradients // self.k0  # gradient steps with the same γ_k
        if self.local_optimizer is not None:
            return self._descend_with_optimizer(model.w, g, gradient, self.local_optimizer.transform)

        def step(j: int, u: Array) -> Array:
            return u - self.rate(model, j // per) * gradient(u)

        return jax.lax.fori_loop(1, self.gradients, step, model.w - self.rate(model, 0) * g)

    def _descend_with_optimizer(
        self, w: Array, g: Array, gradient: Callable[[Array], Array], transform: "optax.GradientTransformation"
    ) -> Array:
        """The same steps by an optimiser of optax, whose state starts anew each round."""
        from optax import apply_updates  # which takes a tenth of a second, and few runs use

        def step(at: tuple[Array, PyTree], slope: Array) -> tuple[Array, PyTree]:
            u, memory = at
            change, memory = transform.update(slope, memory, u)
            return jnp.asarray(apply_updates(u, change)), memory

        first = step((w, transform.init(w)), g)
        return jax.lax.fori_loop(1, self.gradients, lambda _, at: step(at, gradient(at[0])), first)[0]

    def mean(self, replies: T, present: Present) -> T:
        """What the server makes of the replies."""
        return present.mean(replies) if self.combine == "mean" else mean_of(self.combine, replies, present)

    def advance(self, server: DescentServer, progress: Progress, following: Array, own: PyTree = ()) -> DescentServer:
        """The server's state after a round that would take w to `following`."""
        w, memory = following, server.memory
        if self.server_optimizer is not None:
            from optax import apply_updates

            change, memory = self.server_optimizer.transform.update(server.w - following, memory, server.w)
            w = jnp.asarray(apply_updates(server.w, change))
        w = self.settle(progress, server.w, w)
        return DescentServer(w, server.round + 1, server.gamma, progress, own, memory)


@dataclass(frozen=True)
class Greet(Accountable):
    """The first round under lr='auto': everyone sends r_i with its gradient, which is used for one plain step."""

    method: FirstOrder

    def broadcast(self, terms: Terms, server: DescentServer, draws: Array) -> Array:
        return server.w

    def local(self, terms: Terms, client: PyTree, message: Array, data: Data, key: Array) -> tuple[PyTree, Greeting]:
        return client, self.method.greet(terms, message, data)

    def account(self, terms: Terms, message: PyTree, reply: Greeting) -> Account:
        f, g = reply.view.figures()
        return Account(np.asarray(message), np.append(np.zeros(0) if g is None else g, reply.r), f, g)

    def aggregate(self, terms: Terms, server: DescentServer, replies: Greeting, present: Present) -> DescentServer:
        method = self.method
        if isinstance(method, Descent) and method.combine != "mean":
            gamma, view = 1.0 / largest_of(replies.r, present), method.mean(replies.view, present)
        else:
            gamma, view = 1.0 / present.max(replies.r), present.mean(replies.view)
        progress = self.method.judge(terms, view, complete(terms, present))
        w = server.w if self.method.stop is None else self.method.settle(progress, server.w, server.w - gamma * view.g)
        return replace(server, w=w, gamma=gamma, progress=progress)


LADDER = 2.0 ** np.arange(-40, 40.25, 0.25)  # the rungs among which max r_i is found; a rung is 19 % above the last


@state
class GreetingBits:
    """The reply to a greeting of which only the sum is seen: for each rung whether r_i is above it, and the view."""

    above: Array
    view: View


@dataclass(frozen=True)
class GreetBySums:
    """The first round under lr='auto' where the server sees sums alone: max r_i is below the first rung without a site.

    The number of sites above each rung is all that the server learns of the r_i.
    """

    method: Descent

    def broadcast(self, terms: Terms, server: DescentServer, draws: Array) -> Array:
        return server.w

    def local(
        self, terms: Terms, client: PyTree, message: Array, data: Data, key: Array
    ) -> tuple[PyTree, GreetingBits]:
        greeting = self.method.greet(terms, message, data)
        return client, GreetingBits(jnp.where(greeting.r > LADDER, 1.0, 0.0), greeting.view)

    def aggregate(self, terms: Terms, server: DescentServer, replies: GreetingBits, present: Present) -> DescentServer:
        mean = present.mean(replies)
        rung = jnp.sum(mean.above > 0.5 / terms.clients)  # the bits fall from rung to rung
        gamma = 1.0 / jnp.asarray(LADDER)[jnp.minimum(rung, LADDER.size - 1)]
        progress = self.method.judge(terms, mean.view, complete(terms, present))
        w = server.w
        if self.method.stop is not None:
            w = self.method.settle(progress, server.w, server.w - gamma * mean.view.g)
        return replace(server, w=w, gamma=gamma, progress=progress)


def complete(terms: Terms, present: Present) -> Array:
    """Whether every client answered, each about the model of this round."""
    everybody = present.count == terms.clients
    return everybody & ~jnp.any(present.late) if isinstance(present, LatePresent) else everybody
