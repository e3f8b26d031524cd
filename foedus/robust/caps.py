"""Worst-case losses as smooth functions of (w, data): an objective, or a cap that every site holds."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array

from foedus import losses
from foedus.constraints import Custom
from foedus.errors import FoedusError
from foedus.losses import Loss
from foedus.robust.closed import Ball
from foedus.terms import Data, Mask


@dataclass(frozen=True)
class WorstCaseMean:
    """A worst-case mean loss as a smooth function of (w, data), for objectives and constraints of any algorithm.

    With the ℓ2 metric and labels that stay, the worst case over a ball of fixed radius around the samples in `where` is
    mean loss + ρ·L·‖w‖₂ for the smooth losses (Corollaries B.1, B.5, B.6). The norm is taken as √(‖w‖² + 1e-12), at
    most 1e-6 above it, so that it has derivatives at 0: what is promised is an upper bound of the worst case.
    """

    loss: Loss
    radius: float
    where: Mask | None = None
    intercept: bool = False
    at_most: float = 0.0

    def __call__(self, w: Array, data: Data) -> Array:
        ball = Ball(self.loss, "l2", intercept=self.intercept)
        mask = None if self.where is None else self.where(data)
        size = jnp.sqrt(jnp.sum(ball.moving(w) ** 2) + 1e-12)
        mean = data.mean(self.loss.value(data["x"] @ w, data["y"]), mask)
        return mean + self.radius * ball.lipschitz * size - self.at_most


def worst_case_mean(loss: Loss, radius: float, *, where: Mask | None = None, intercept: bool = False) -> WorstCaseMean:
    """The worst-case mean loss over `where`, for `Problem(objective=...)`; ℓ2 metric, labels stay."""
    if not isinstance(loss, losses.Logistic | losses.SmoothHinge | losses.Huber):
        name = getattr(loss, "name", loss)
        raise FoedusError(f"worst_case_mean takes a smooth loss: logistic, smooth_hinge or huber. Got {name} instead.")
    if not radius >= 0:
        raise FoedusError(f"The 'radius' of worst_case_mean must be a number >= 0. Got {radius!r} instead.")
    return WorstCaseMean(loss, float(radius), where, intercept)


def worst_case_cap(
    where: Mask | None, at_most: float, radius: float, *, loss: Loss = losses.logistic, intercept: bool = False
) -> Custom:
    """A cap on the worst-case mean loss over `where`, at every client: Neyman-Pearson for data that will differ."""

    rows = replace(worst_case_mean(loss, radius, where=where, intercept=intercept), at_most=float(at_most))
    return Custom(rows, name=f"worst-case loss on {where} less its cap {at_most:g}", is_convex=True)
