"""The worst-case loss of one client over a Wasserstein ball (DRFL Proposition 4.2), in closed form.

    V(λ, w) = ρλ + Σ_i ω_i α_i(λ, w),   α_i = sup over (x, y) in Ξ of L(xᵀw, y) − λ·dist((x, y), sample i)

dist = ‖x − x̂‖ + κ|y − ŷ| in regression, ‖x − x̂‖ + κ·1[y ≠ ŷ] in classification. With Ξ everything, α_i is finite where
λ is at least the Lipschitz constant of the loss in (x, y), and then only the label can still be worth moving. With a
box and the ℓ1 metric the supremum separates by coordinate: coordinate j of a piece of slope g stays, or moves to an end
where |g_j| > λ. So V is an explicit convex function of (λ, w), and the best λ is found by bisection.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.pytrees import state
from foedus.problem import losses
from foedus.problem.losses import Loss, signed

DUAL = {"l1": "linf", "l2": "l2", "linf": "l1"}
ORDER = {"l1": 1, "l2": 2, "linf": np.inf}  # of a metric, as NumPy names norms
PIECEWISE_LINEAR = (losses.Hinge, losses.EpsilonInsensitive, losses.Pinball)
ROBUST_LOSSES = (*PIECEWISE_LINEAR, losses.Huber, losses.SmoothHinge, losses.Logistic)
HALVINGS = 200  # of the interval around the best λ; more than floating point can tell apart


@dataclass(frozen=True)
class Ball:
    """The kind of ball, known to all parties: loss, metric of x, kind of support, and whether a last column stays.

    `support` is "everything", "box" or "polyhedron". With `intercept` the last column of X is a constant, which no
    distribution moves and no norm counts.
    """

    loss: Loss
    metric: str = "l1"
    support: str = "everything"
    intercept: bool = False

    @property
    def classifies(self) -> bool:
        """Whether labels are classes; else they are numbers."""
        return self.loss.kind == "classification"

    @property
    def slopes(self) -> tuple[float, float]:
        """The largest slopes of the loss in the residual or margin, upwards and downwards."""
        loss = self.loss
        if isinstance(loss, losses.Huber):
            return loss.eps, loss.eps
        if isinstance(loss, losses.Pinball):
            return 1.0 - loss.eps, loss.eps
        return 1.0, 1.0

    @property
    def lipschitz(self) -> float:
        """L, the larger of the two slopes."""
        return max(self.slopes)

    @property
    def has_closed_form(self) -> bool:
        """Whether V is known in closed form: not so for polyhedra, and boxes under another metric than ℓ1."""
        return self.support == "everything" or (self.support == "box" and self.metric == "l1")

    def moving(self, w: Array) -> Array:
        """The coordinates of w that belong to columns which can move."""
        return w[:-1] if self.intercept else w

    def pieces(self, y: Any) -> tuple[Any, Any]:
        """The pieces slope·xᵀw + constant of a piecewise-linear loss that are not 0, in NumPy or JAX as y is.

        Both have the shape (pieces, rows); in classification the second piece is that of the other label.
        """
        stack = np.stack if isinstance(y, np.ndarray) else jnp.stack
        if self.classifies:
            sign = 2.0 * (y > 0) - 1.0
            return stack([-sign, sign]), stack([0.0 * y + 1.0] * 2)
        up, down = self.slopes
        tube = self.loss.eps if isinstance(self.loss, losses.EpsilonInsensitive) else 0.0
        slope = stack([0.0 * y + up, 0.0 * y - down])
        return slope, -slope * y - tube

    def check(self) -> None:
        """Raise where no worst case is known for the loss, or for the loss with this support."""
        if not isinstance(self.loss, ROBUST_LOSSES):
            names = "huber, epsilon_insensitive, pinball, hinge, smooth_hinge and logistic"
            raise FoedusError(f"a worst-case loss is known for {names}. Got {self.loss.name} instead.")
        if self.support != "everything" and not isinstance(self.loss, PIECEWISE_LINEAR):
            raise FoedusError(
                f"a bounded support is known for hinge, epsilon_insensitive and pinball. Got {self.loss.name} instead; "
                "leave support out."
            )


@state
class Radius:
    """A client's own numbers: ρ, κ, and the ends of the box, (columns that move,); empty without one."""

    rho: Array
    kappa: Array
    low: Array
    high: Array


def norm(w: Array, name: str) -> Array:
    """The norm of w that has this name."""
    if name == "l1":
        return jnp.sum(jnp.abs(w))
    if name == "linf":
        return jnp.max(jnp.abs(w), initial=0.0)
    return jnp.sqrt(jnp.sum(w**2))


def smallest_lambda(ball: Ball, w: Array, radius: Radius) -> Array:
    """The smallest λ for which every α_i is finite.

    On an unbounded support a sample (or, in regression, its label) could move without end where λ is below the slope
    of the loss.
    """
    label = jnp.zeros(()) if ball.classifies else ball.lipschitz / radius.kappa
    if ball.support != "everything":
        return label
    return jnp.maximum(ball.lipschitz * norm(ball.moving(w), DUAL[ball.metric]), label)


def stretch(ball: Ball, slope: float, lam: Array, w: Array, x: Array, radius: Radius) -> tuple[Array, Array]:
    """The gain in slope·xᵀw and in −slope·xᵀw from moving x within the box, less λ times the distance.

    Both have the shape (rows,). A coordinate moves to the end of the box on which it gains, where its gain |g_j| per
    unit exceeds the price λ.
    """
    g, lam = slope * ball.moving(w), jnp.asarray(lam)
    x = x[:, : g.shape[0]]
    up, down = jnp.maximum(g - lam, 0.0), jnp.maximum(-g - lam, 0.0)
    to_high, to_low = radius.high - x, x - radius.low
    return to_high @ up + to_low @ down, to_high @ down + to_low @ up


def sample_losses(ball: Ball, lam: Array, w: Array, x: Array, y: Array, radius: Radius) -> Array:
    """The samples' losses α_i(λ, w), for λ not below `smallest_lambda`. (rows,)"""
    z = x @ w
    # ∞·0 would be NaN: a label that costs infinitely much never moves, also where λ = 0
    labels_stay = jnp.isinf(radius.kappa)
    toll = (
        jnp.where(labels_stay, jnp.inf, jnp.where(labels_stay, 0.0, radius.kappa) * lam)
        if ball.classifies
        else jnp.zeros(())
    )
    if ball.support == "everything":
        if not ball.classifies:
            return ball.loss.value(z, y)
        return jnp.maximum(ball.loss.value(z, y), ball.loss.value(-z, y) - toll)
    up, down = ball.slopes
    if ball.classifies:
        sign = signed(y)
        rise, fall = stretch(ball, 1.0, lam, w, x, radius)
        same, other = jnp.where(sign > 0, fall, rise), jnp.where(sign > 0, rise, fall)
        return jnp.maximum(jnp.maximum(0.0, 1.0 - sign * z + same), 1.0 + sign * z + other - toll)
    rise, _ = stretch(ball, up, lam, w, x, radius)
    _, fall = stretch(ball, down, lam, w, x, radius)
    if isinstance(ball.loss, losses.EpsilonInsensitive):
        eps = ball.loss.eps
        return jnp.maximum(0.0, jnp.maximum(z - y - eps + rise, y - z - eps + fall))
    return jnp.maximum(up * (z - y) + rise, down * (y - z) + fall)


def worst_case(ball: Ball, w: Array, x: Array, y: Array, share: Array, radius: Radius) -> tuple[Array, Array]:
    """The minimum over λ of V(λ, w) and its λ, by bisection on the slope of this convex function.

    `share` are the weights ω_i, which sum to one. For ρ = 0 it is the mean loss, and λ is infinite in the limit.
    """
    least = smallest_lambda(ball, w, radius)

    def value(lam: Array) -> Array:
        return radius.rho * lam + jnp.dot(share, sample_losses(ball, lam, w, x, y, radius))

    if ball.support == "everything" and not ball.classifies:
        lowest, best = value(least), least
    else:
        # beyond `most` no label and no coordinate is worth moving, and V only grows with λ
        z = x @ w
        spread = jnp.max(jnp.abs(z), initial=0.0) * 2.0 / radius.kappa if ball.classifies else jnp.zeros(())
        most = jnp.maximum(least, spread) + ball.lipschitz * norm(ball.moving(w), "linf")
        if ball.support == "box" and ball.classifies:
            most = most + jnp.dot(radius.high - radius.low, jnp.abs(ball.moving(w))) * 2.0 / radius.kappa

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            downhill = jax.grad(value)(middle) < 0
            return jnp.where(downhill, middle, low), jnp.where(downhill, high, middle)

        low, high = jax.lax.fori_loop(0, HALVINGS, halve, (least, most))
        # V has kinks, where the slope's sign is decided by rounding: the best of the ends is taken
        ends = jnp.stack([least, low, high])
        values = jax.vmap(value)(ends)
        pick = jnp.argmin(values)
        lowest, best = values[pick], ends[pick]
    plain = jnp.dot(share, ball.loss.value(x @ w, y))
    return jnp.where(radius.rho > 0, lowest, plain), jnp.where(radius.rho > 0, best, jnp.inf)
