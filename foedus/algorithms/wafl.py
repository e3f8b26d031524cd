"""WAFL: one Wasserstein ball around the clients' mixture (Nguyen et al. 2022), exactly and by adversarial gradients."""

# pyright: reportIncompatibleVariableOverride=false
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from foedus.algorithms.fedavg import Descent, DescentServer, ModelMessage, Progress, complete
from foedus.algorithms.minimax import Minimax
from foedus.base.pytrees import state
from foedus.base.settings import setting, settings
from foedus.problem.terms import Data, Terms
from foedus.protocol.algorithm import Present
from foedus.robust.support import Support, is_support


@settings
class WAFL(Minimax):
    """Finds a linear model whose loss stays small if the pooled data, as a whole, will differ from today's.

    It minimises the worst case over one Wasserstein ball around the mixture Σ q̂_s·P̂_s of the clients' data. The ball's
    multiplier λ is shared by all clients, and travels with w.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.huber(10.0)), fd.WAFL(radius=0.1))
        >>> run.converged, run.w.round(3).tolist()
        (True, [1.5, 1.5])
    """

    radius: float = setting(0.01, "ρ of the ball around the mixture", gt=0, travels=True)
    kappa: float = setting(float("inf"), "κ, the cost of moving a label; infinite: labels stay", gt=0, travels=True)
    metric: str = setting("l1", "the norm of ‖x − x̂‖ in the transport cost", choices=("l1", "l2", "linf"))
    support: Support = setting(
        None,
        "where samples may be: None for everywhere, (low, high), or (C, d) for Cx <= d",
        choices=(None,),
        also=("(low, high) with low < high or (C, d)", is_support),
        travels=True,
    )
    intercept: bool = setting(False, "whether the last column of X is a constant that stays", choices=(False, True))
    shares_lambda: ClassVar[bool] = True

    @property
    def cost(self) -> float:
        return float(self.radius)

    __eq__ = Minimax.__eq__
    __hash__ = Minimax.__hash__


@state
class AdversarialUpdate:
    """A client's model after its local steps, and its loss at the adversarial points."""

    w: Array
    f: Array  # the mean loss of the received model at its own adversarial points


@settings
class WAFLGradient(Descent):
    """Trains against shifted data where no worst case is known in closed form: WAFL's published algorithm.

    Clients take gradient steps at samples that a few ascent steps have made worse; the server averages the models. A
    sample maximises ℓ(xᵀw, y) − lam·‖x − x̂‖² about as well as `ascent` steps of size `ascent_lr` do. The paper fixes
    lam instead of the radius, so the radius that it stands for is known only afterwards.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> method = fd.WAFLGradient(lr=0.5, lam=20.0, ascent_lr=0.01)
        >>> run = fd.solve(fd.Problem(sites, loss=fd.losses.huber(10.0)), method, max_rounds=50)
        >>> run.rounds, run.w.round(1).tolist()
        (50, [2.0, 3.0])
    """

    lam: float = setting(1.0, "λ, the price of moving a sample by its squared distance", gt=0)
    ascent: int = setting(10, "ascent steps at each sample", ge=1, integer=True)
    ascent_lr: float = setting(0.1, "their size", gt=0)
    stop: str | None = setting(None, "no stopping test: it plays the rounds it is given", choices=(None,))

    def adversary(self, terms: Terms, w: Array, data: Data) -> Array:
        """The samples, moved so that the loss is larger. (rows, dim)"""
        x, y = data["x"], data["y"]
        assert terms.loss is not None
        loss = terms.loss

        def climb(_: int, at: Array) -> Array:
            return at + self.ascent_lr * (loss.slope(at @ w, y)[:, None] * w - 2.0 * self.lam * (at - x))

        return jax.lax.fori_loop(0, self.ascent, climb, x)

    def local(
        self, terms: Terms, client: tuple[()], model: ModelMessage, data: Data, key: Array
    ) -> tuple[tuple[()], AdversarialUpdate]:
        def look(u: Array) -> tuple[Array, Array]:
            return terms.value_and_gradient(u, Data({**data, "x": self.adversary(terms, u, data)}))

        f, g = look(model.w)
        return client, AdversarialUpdate(self.descend(model, g, lambda u: look(u)[1]), f)

    def aggregate(
        self, terms: Terms, server: DescentServer, replies: AdversarialUpdate, present: Present
    ) -> DescentServer:
        mean = self.mean(replies, present)
        progress = Progress(mean.f, jnp.full((), jnp.inf), complete(terms, present))
        return self.advance(server, progress, mean.w)

    def report(self, server: DescentServer) -> dict[str, Array]:
        return {"adversarial_objective": server.progress.objective}
