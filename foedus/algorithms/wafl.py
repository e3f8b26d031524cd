"""WAFL: one Wasserstein ball around the clients' mixture (Nguyen et al. 2022), exactly and by adversarial gradients."""

# pyright: reportIncompatibleVariableOverride=false
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithm import Present
from foedus.algorithms.descent import Descent, DescentServer, Model, Progress, complete
from foedus.algorithms.minimax import Minimax
from foedus.pytrees import state
from foedus.robust.support import is_support
from foedus.settings import setting, settings
from foedus.terms import Data, Terms


@settings
class WAFL(Minimax):
    """The worst case over one ball around Σ q̂_s·P̂_s: λ is shared by all clients, and travels with w."""

    radius: float = setting(0.01, "ρ of the ball around the mixture", gt=0, travels=True)
    kappa: float = setting(float("inf"), "κ, the cost of moving a label; infinite: labels stay", gt=0, travels=True)
    metric: str = setting("l1", "the norm of ‖x − x̂‖ in the transport cost", choices=("l1", "l2", "linf"))
    support: Any = setting(
        None,
        "where samples may be: None for everywhere, (low, high), or (C, d) for Cx <= d",
        choices=(None,),
        also=("(low, high) with low < high or (C, d)", is_support),
        travels=True,
    )
    intercept: bool = setting(False, "whether the last column of X is a constant that stays", choices=(False, True))
    shared: ClassVar[bool] = True

    @property
    def cost(self) -> float:
        return float(self.radius)

    __eq__ = Minimax.__eq__
    __hash__ = Minimax.__hash__


@state
class AdversarialUpdate:
    """A client's model after its local steps, and its loss at the adversarial points."""

    w: Array
    f: Array  # the mean loss of the received model, at its adversarial points


@settings
class WAFLGradient(Descent):
    """WAFL's published algorithm: gradient steps at points that a few ascent steps make worse, then the mean.

    A point maximises ℓ(xᵀw, y) − lam·‖x − x̂‖² about as well as `ascent` steps of size `ascent_lr` do. The paper fixes
    lam instead of the radius, so the radius that it stands for is known only afterwards.
    """

    lam: float = setting(1.0, "λ, the price of moving a sample by its squared distance", gt=0)
    ascent: int = setting(10, "ascent steps at each sample", ge=1, integer=True)
    ascent_lr: float = setting(0.1, "their size", gt=0)
    stop: str | None = setting(None, "no stopping test: it plays the rounds it is given", choices=(None,))

    def adversary(self, terms: Terms, w: Array, data: Data) -> Array:
        """The samples, moved to where they hurt. (rows, dim)"""
        x, y = data["x"], data["y"]
        assert terms.loss is not None
        loss = terms.loss

        def climb(_: int, at: Array) -> Array:
            return at + self.ascent_lr * (loss.slope(at @ w, y)[:, None] * w - 2.0 * self.lam * (at - x))

        return jax.lax.fori_loop(0, self.ascent, climb, x)

    def local(
        self, terms: Terms, client: tuple[()], model: Model, data: Data, key: Array
    ) -> tuple[tuple[()], AdversarialUpdate]:
        def look(u: Array) -> tuple[Array, Array]:
            return terms.value_and_gradient(u, Data({**data, "x": self.adversary(terms, u, data)}))

        f, g = look(model.w)
        return client, AdversarialUpdate(self.descend(model, g, lambda u: look(u)[1]), f)

    def aggregate(
        self, terms: Terms, server: DescentServer, replies: AdversarialUpdate, present: Present
    ) -> DescentServer:
        mean = present.mean(replies)
        progress = Progress(mean.f, jnp.full((), jnp.inf), complete(terms, present))
        return self.advance(server, progress, mean.w)

    def report(self, server: DescentServer) -> dict[str, Array]:
        return {"adversarial_objective": server.progress.objective}
