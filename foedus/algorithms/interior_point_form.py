"""A regulariser h as rows of the server, over the model w and variables t that only the server has.

λ‖w‖₁ is λ Σt with −t ≤ w ≤ t; the ℓ1 ball is Σt ≤ r with the same rows; boxes, the simplex and the ℓ2 ball are rows of
w itself. The method stays inside such rows, so its points have no exact zeros; `snap` puts a point on those that bind.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.algorithms.interior_point_rows import Rows
from foedus.errors import FoedusError
from foedus.regularizers import Box, ElasticNet, L1Ball, L2Ball, Regularizer, Simplex, Zero


@dataclass(frozen=True)
class Form:
    """The rows, the variables and the smooth part that stand for h in `dim` parameters."""

    h: Regularizer
    dim: int

    def check(self) -> None:
        if not isinstance(self.h, Zero | ElasticNet | Box | Simplex | L2Ball | L1Ball):
            name = type(self.h).__name__
            raise FoedusError(f"InteriorPoint does not handle the regulariser {name}; use ProxAL.")

    @property
    def point(self) -> float | None:
        """The value of every coordinate, where the domain of h is a single point."""
        h = self.h
        if isinstance(h, Box) and h.low == h.high:
            return h.low
        zero = (isinstance(h, L1Ball | L2Ball) and h.radius == 0) or (isinstance(h, Simplex) and h.total == 0)
        return 0.0 if zero else None

    @property
    def absolute(self) -> bool:
        """Whether t bounds |w|."""
        h = self.h
        return self.point is None and (isinstance(h, L1Ball) or (isinstance(h, ElasticNet) and h.lam1 > 0))

    @property
    def extra(self) -> int:
        """How many variables t there are."""
        return self.dim if self.absolute else 0

    @property
    def snaps(self) -> bool:
        """Whether a point has to be put on the rows that bind before its certificate can hold."""
        return not (isinstance(self.h, Zero) or (isinstance(self.h, ElasticNet) and self.h.lam1 == 0))

    @property
    def equal(self) -> np.ndarray:
        """Which rows are equations."""
        d, h = self.dim, self.h
        if self.point is not None:
            return np.ones(d, bool)
        if self.absolute:
            return np.zeros(2 * d + isinstance(h, L1Ball), bool)
        if isinstance(h, Box):
            return np.zeros(d * (int(np.isfinite(h.low)) + int(np.isfinite(h.high))), bool)
        if isinstance(h, Simplex):
            return np.append(np.zeros(d, bool), True)
        return np.zeros(1 if isinstance(h, L2Ball) else 0, bool)

    def start(self, w: Array) -> Array:
        """(w, t) for a first w."""
        return jnp.concatenate([w, jnp.abs(w) + 1.0]) if self.absolute else w

    def rows(self, x: Array) -> tuple[Array, Array]:
        """The rows at x and their Jacobian."""
        d, h = self.dim, self.h
        w, t, one = x[:d], x[d:], jnp.eye(d)
        if self.point is not None:
            return w - self.point, one
        if self.absolute:
            c, J = jnp.concatenate([w - t, -w - t]), jnp.block([[one, -one], [-one, -one]])
            if isinstance(h, L1Ball):
                total = jnp.concatenate([jnp.zeros(d), jnp.ones(d)])
                c, J = jnp.append(c, jnp.sum(t) - h.radius), jnp.concatenate([J, total[None]])
            return c, J
        if isinstance(h, Box):
            parts = [(sign * (w - bound), sign * one) for sign, bound in ((-1.0, h.low), (1.0, h.high))
                     if np.isfinite(bound)]  # fmt: skip
            if parts:
                return jnp.concatenate([c for c, _ in parts]), jnp.concatenate([J for _, J in parts])
        if isinstance(h, Simplex):
            return jnp.append(-w, jnp.sum(w) - h.total), jnp.concatenate([-one, jnp.ones((1, d))])
        if isinstance(h, L2Ball):
            return (jnp.dot(w, w) - h.radius**2)[None], 2.0 * w[None, :]
        return jnp.zeros(0), jnp.zeros((0, x.shape[0]))

    def bend(self, z: Array) -> Array | float:
        """The diagonal of Σ z∇²c, plus that of the smooth part of h."""
        ridge = self.h.lam2 if isinstance(self.h, ElasticNet) else 0.0
        ball = isinstance(self.h, L2Ball) and self.point is None
        bend = jnp.full(self.dim, ridge + 2.0 * z[0] if ball else ridge)
        return jnp.pad(bend, (0, self.extra))

    def smooth(self, x: Array) -> tuple[Array, Array]:
        """The part of h that is no row: λ Σt + (λ2/2)‖w‖², with its gradient."""
        if not isinstance(self.h, ElasticNet):
            return jnp.zeros(()), jnp.zeros_like(x)
        w, t = x[: self.dim], x[self.dim :]
        value = self.h.lam1 * jnp.sum(t) + 0.5 * self.h.lam2 * jnp.dot(w, w)
        return value, jnp.concatenate([self.h.lam2 * w, jnp.full_like(t, self.h.lam1)])

    def snap(self, x: Array, rows: Rows, start: int) -> Array:
        """x on those of the rows from `start` on whose multiplier is larger than their slack."""
        w = self._snap(x[: self.dim], rows.z[start:] > rows.s[start:])
        return jnp.concatenate([w, jnp.abs(w)]) if self.absolute else w

    def _snap(self, w: Array, binds: Array) -> Array:
        d, h = self.dim, self.h
        if self.point is not None:
            return jnp.full(d, self.point)
        if self.absolute:
            w = jnp.where(binds[:d] & binds[d : 2 * d], 0.0, w)
            if isinstance(h, L1Ball):
                size = jnp.sum(jnp.abs(w))
                w = jnp.where(binds[-1] | (size > h.radius), w * (h.radius / jnp.where(size > 0, size, 1.0)), w)
            return w
        if isinstance(h, Box):
            start = 0
            for bound in (h.low, h.high):
                if np.isfinite(bound):
                    w = jnp.where(binds[start : start + d], bound, w)
                    start += d
            return jnp.clip(w, h.low, h.high)
        if isinstance(h, Simplex):
            w = jnp.where(binds[:d], 0.0, jnp.maximum(w, 0.0))
            total = jnp.sum(w)
            return w * (h.total / jnp.where(total > 0, total, 1.0))
        if isinstance(h, L2Ball):
            size = jnp.linalg.norm(w)
            return jnp.where(binds[0] | (size > h.radius), w * (h.radius / jnp.where(size > 0, size, 1.0)), w)
        return w
