"""Worst-case losses as smooth functions of (w, data): as an objective, or as a cap at every site."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array

from foedus import losses
from foedus.constraints import Custom
from foedus.errors import FoedusError
from foedus.losses import Loss
from foedus.robust.closed import Ball
from foedus.terms import Data, Mask

ROUNDED = 1e-12  # added under the root of ‖w‖, so that it has derivatives at 0


@dataclass(frozen=True)
class WorstCaseMean:
    """A worst-case mean loss as a smooth function of (w, data), for objectives and constraints of any algorithm.

    With the ℓ2 metric and labels that stay, the worst case over a ball of fixed radius around the samples in `where` is
    mean loss + ρ·L·‖w‖₂ for the smooth losses (Corollaries B.1, B.5, B.6). The norm is computed as √(‖w‖² + 1e-12),
    which has derivatives at 0 and is at most 1e-6 larger: the value is an upper bound of the worst case.
    """

    loss: Loss
    radius: float
    where: Mask | None = None
    intercept: bool = False
    at_most: float = 0.0

    def masks(self) -> tuple[Mask, ...]:
        """The samples that count: a site refuses a cap over too few of its rows."""
        return () if self.where is None else (self.where,)

    def __call__(self, w: Array, data: Data) -> Array:
        ball = Ball(self.loss, "l2", intercept=self.intercept)
        mask = None if self.where is None else self.where(data)
        size = jnp.sqrt(jnp.sum(ball.moving(w) ** 2) + ROUNDED)
        mean = data.mean(self.loss.value(data["x"] @ w, data["y"]), mask)
        return mean + self.radius * ball.lipschitz * size - self.at_most


def worst_case_mean(loss: Loss, radius: float, *, where: Mask | None = None, intercept: bool = False) -> WorstCaseMean:
    """The worst-case mean loss as an objective for `Problem(objective=...)`, in the ℓ2 metric with labels that stay.

    Args:
        loss: a smooth loss: logistic, smooth_hinge or huber.
        radius: ρ, the Wasserstein radius around each client's samples.
        where: the samples that count, as fd.label(1); all of them when left out.
        intercept: whether the last column of X is a constant that does not move.

    Returns:
        A function of (w, data), at most 1e-6·ρ·L above the worst case, where L is the slope of the loss.

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = {"north": (np.eye(2), np.array([1.0, 2.0])), "south": (np.eye(2), np.array([3.0, 4.0]))}
        >>> robust = fd.robust.worst_case_mean(fd.losses.huber(1.0), 0.1)
        >>> run = fd.solve(fd.Problem(sites, objective=robust), fd.ProxAL(), w0=np.zeros(2))
        >>> run.converged
        True
    """
    if not isinstance(loss, losses.Logistic | losses.SmoothHinge | losses.Huber):
        name = getattr(loss, "name", loss)
        raise FoedusError(f"worst_case_mean takes a smooth loss: logistic, smooth_hinge or huber. Got {name} instead.")
    if not radius >= 0:
        raise FoedusError(f"The 'radius' of worst_case_mean must be a number >= 0. Got {radius!r} instead.")
    return WorstCaseMean(loss, float(radius), where, intercept)


def worst_case_cap(
    where: Mask | None, at_most: float, radius: float, *, loss: Loss = losses.logistic, intercept: bool = False
) -> Custom:
    """A constraint for `Problem`: at every client the worst-case mean loss over `where` is at most `at_most`.

    It is Neyman-Pearson classification for data that will differ from those at hand.

    Args:
        where: the samples that count, as fd.label(1); None for all of them.
        at_most: the cap.
        radius: ρ, the Wasserstein radius around each client's samples.
        loss: a smooth loss: logistic, smooth_hinge or huber.
        intercept: whether the last column of X is a constant that does not move.

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
    rows = replace(worst_case_mean(loss, radius, where=where, intercept=intercept), at_most=float(at_most))
    return Custom(rows, name=f"worst-case loss on {where} less its cap {at_most:g}", is_convex=True)
