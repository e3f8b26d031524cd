"""Worst-case losses as smooth functions of (w, data): as an objective, or as a cap at every site."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from foedus.base.errors import FoedusError
from foedus.problem import losses
from foedus.problem.constraints import Custom
from foedus.problem.losses import Loss, signed
from foedus.problem.terms import Data, Mask
from foedus.robust.closed import ROBUST_LOSSES, Ball

ROUNDED = 1e-12  # added under the root of ‖w‖, so that it has derivatives at 0


def soft_loss(loss: Loss, z: Array, y: Array, width: float) -> Array:
    """The losses of examples, with the kinks of piecewise-linear ones rounded off from above over this width.

    The maximum of the pieces a_k is replaced by width·log Σ exp(a_k/width), which is at least the maximum and at most
    width·log 2 above it, for ε-insensitive losses width·log 3; its slopes are between theirs.
    """
    if isinstance(loss, losses.Hinge):
        return width * jax.nn.softplus((1.0 - signed(y) * z) / width)
    if isinstance(loss, losses.Pinball):
        return -loss.eps * (z - y) + width * jax.nn.softplus((z - y) / width)
    if isinstance(loss, losses.EpsilonInsensitive):
        r = jnp.stack([jnp.zeros_like(z), z - y - loss.eps, y - z - loss.eps])
        return width * jax.nn.logsumexp(r / width, axis=0)
    return loss.value(z, y)


@dataclass(frozen=True)
class WorstCaseMean:
    """A worst-case mean loss as a smooth function of (w, data), for objectives and constraints of any algorithm.

    With the ℓ2 metric and labels that stay, the worst case over a ball of fixed radius around the samples in `where` is
    mean loss + ρ·L·‖w‖₂ (Corollaries B.1 to B.6). The norm is computed as √(‖w‖² + 1e-12), which has derivatives at 0
    and is at most 1e-6 larger, and kinks of the loss are rounded off from above: the value is an upper bound.
    """

    loss: Loss
    radius: float
    where: Mask | None = None
    intercept: bool = False
    at_most: float = 0.0
    smoothing: float = 1e-2

    def masks(self) -> tuple[Mask, ...]:
        """The samples that count: a site refuses a cap over too few of its rows."""
        return () if self.where is None else (self.where,)

    def __call__(self, w: Array, data: Data) -> Array:
        ball = Ball(self.loss, "l2", intercept=self.intercept)
        mask = None if self.where is None else self.where(data)
        size = jnp.sqrt(jnp.sum(ball.moving(w) ** 2) + ROUNDED)
        mean = data.mean(soft_loss(self.loss, data["x"] @ w, data["y"], self.smoothing), mask)
        return mean + self.radius * ball.lipschitz * size - self.at_most


def worst_case_mean(
    loss: Loss, radius: float, *, where: Mask | None = None, intercept: bool = False, smoothing: float = 1e-2
) -> WorstCaseMean:
    """The worst-case mean loss as an objective for `Problem(objective=...)`, in the ℓ2 metric with labels that stay.

    Args:
        loss: logistic, smooth_hinge, huber, hinge, epsilon_insensitive or pinball.
        radius: ρ, the Wasserstein radius around each client's samples.
        where: the samples that count, as fd.label(1); all of them when left out.
        intercept: whether the last column of X is a constant that does not move.
        smoothing: the width over which the kinks of the last three losses are rounded off, in units of the loss.

    Returns:
        A function of (w, data), at least the worst case and at most 1e-6·ρ·L above it, where L is the slope of the
        loss; for a loss with kinks smoothing·log 3 more.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> robust = fd.robust.worst_case_mean(fd.losses.huber(1.0), 0.1)
        >>> run = fd.solve(fd.Problem(sites, objective=robust), fd.ProxAL(), w0=np.zeros(2))
        >>> run.converged
        True
    """
    if not isinstance(loss, ROBUST_LOSSES):
        name, known = getattr(loss, "name", loss), "huber, epsilon_insensitive, pinball, hinge, smooth_hinge, logistic"
        raise FoedusError(f"worst_case_mean takes one of the losses {known}. Got {name} instead.")
    if not smoothing > 0:
        raise FoedusError(f"The 'smoothing' of worst_case_mean must be a number > 0. Got {smoothing!r} instead.")
    if not radius >= 0:
        raise FoedusError(f"The 'radius' of worst_case_mean must be a number >= 0. Got {radius!r} instead.")
    return WorstCaseMean(loss, float(radius), where, intercept, smoothing=float(smoothing))


def worst_case_cap(
    where: Mask | None, at_most: float, radius: float, *, loss: Loss = losses.logistic, intercept: bool = False,
    smoothing: float = 1e-2,
) -> Custom:  # fmt: skip
    """A constraint for `Problem`: at every client the worst-case mean loss over `where` is at most `at_most`.

    It is Neyman-Pearson classification for data that will differ from those at hand.

    Args:
        where: the samples that count, as fd.label(1); None for all of them.
        at_most: the cap.
        radius: ρ, the Wasserstein radius around each client's samples.
        loss: logistic, smooth_hinge, huber, hinge, epsilon_insensitive or pinball.
        intercept: whether the last column of X is a constant that does not move.
        smoothing: the width over which the kinks of the last three losses are rounded off. The row is never below the
            worst case, so a model that keeps it keeps the cap; a smaller width leaves less room unused.

    Returns:
        The constraint, with one row at each client.

    Example:
        >>> import foedus as fd, numpy as np
        >>> X = np.array([[1.0, 0.2], [0.8, -0.1], [-1.0, 0.3], [-0.9, -0.2]])
        >>> cap = fd.robust.worst_case_cap(fd.label(1), at_most=0.5, radius=0.05)
        >>> problem = fd.Problem({"north": (X, [1, 1, 0, 0])}, loss=fd.losses.logistic, constraints=[cap])
        >>> run = fd.solve(problem, fd.ProxAL())
        >>> run.certificate.feasibility <= 1e-3
        True
    """
    mean = worst_case_mean(loss, radius, where=where, intercept=intercept, smoothing=smoothing)
    rows = replace(mean, at_most=float(at_most))
    return Custom(rows, name=f"worst-case loss on {where} less its cap {at_most:g}", is_convex=True)
