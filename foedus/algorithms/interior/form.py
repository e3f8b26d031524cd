"""A regulariser h as rows of the server, over the model w and variables t that only the server has.

λ‖w‖₁ is λ Σt with −t ≤ w ≤ t; the ℓ1 ball is Σt ≤ r with the same rows; boxes, the simplex and the ℓ2 ball are rows of
w itself. The method stays inside such rows, so its points have no exact zeros; `snap` puts a point on those that bind.
Groups are refused: their rows ‖w_g‖ ≤ t have no derivative where a whole group is 0, which is where they matter.

There are as many rows as columns, or twice as many, so their Jacobian is never made: `along` and `pull` multiply by it.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.base.pytrees import state
from foedus.problem.regularizers import Box, ElasticNet, L1Ball, L2Ball, Regularizer, Simplex, Zero


@state
class Blocks:
    """A symmetric matrix over (w, t) whose blocks are diagonal, plus RᵀR for the rows R."""

    ww: Array
    wt: Array
    tt: Array
    rows: Array  # R, (vectors, dim + extra)

    def dense(self) -> Array:
        """The matrix itself."""
        dim, extra = self.ww.shape[0], self.tt.shape[0]
        matrix = jnp.pad(jnp.diag(self.ww), (0, extra))
        if extra:
            w, t = np.arange(dim), dim + np.arange(extra)
            matrix = matrix.at[w, t].set(self.wt).at[t, w].set(self.wt).at[t, t].set(self.tt)
        return matrix + self.rows.T @ self.rows

    def diagonal(self) -> Array:
        """Its diagonal."""
        return jnp.concatenate([self.ww, self.tt]) + jnp.sum(self.rows**2, axis=0)


@dataclass(frozen=True)
class Form:
    """The rows, the variables and the smooth part that stand for h in `dim` parameters."""

    h: Regularizer
    dim: int

    def check(self) -> None:
        if not isinstance(self.h, Zero | ElasticNet | Box | Simplex | L2Ball | L1Ball):
            name = type(self.h).__name__
            raise FoedusError(
                f"InteriorPoint does not handle the regulariser {name}; use ProxAL, or InexactADMM without constraints."
            )

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
            return np.zeros(d * len(self._bounds), bool)
        if isinstance(h, Simplex):
            return np.append(np.zeros(d, bool), True)
        return np.zeros(1 if isinstance(h, L2Ball) else 0, bool)

    @property
    def _bounds(self) -> list[tuple[float, float]]:
        """The finite bounds of a box, each with the sign of its rows sign·(w − bound) ≤ 0."""
        assert isinstance(self.h, Box)
        return [(sign, bound) for sign, bound in ((-1.0, self.h.low), (1.0, self.h.high)) if np.isfinite(bound)]

    def start(self, w: Array) -> Array:
        """(w, t) for a first w."""
        return jnp.concatenate([w, jnp.abs(w) + 1.0]) if self.absolute else w

    def rows(self, x: Array) -> Array:
        """The rows at x."""
        d, h = self.dim, self.h
        w, t = x[:d], x[d:]
        if self.point is not None:
            return w - self.point
        if self.absolute:
            ball = [jnp.sum(t)[None] - h.radius] if isinstance(h, L1Ball) else []
            return jnp.concatenate([w - t, -w - t, *ball])
        if isinstance(h, Box) and self._bounds:
            return jnp.concatenate([sign * (w - bound) for sign, bound in self._bounds])
        if isinstance(h, Simplex):
            return jnp.append(-w, jnp.sum(w) - h.total)
        if isinstance(h, L2Ball):
            return (jnp.dot(w, w) - h.radius**2)[None]
        return jnp.zeros(0)

    def along(self, x: Array, dx: Array) -> Array:
        """The change of the rows along dx, to first order: J·dx."""
        d, h = self.dim, self.h
        w, dw, dt = x[:d], dx[:d], dx[d:]
        if self.point is not None:
            return dw
        if self.absolute:
            return jnp.concatenate([dw - dt, -dw - dt, *([jnp.sum(dt)[None]] if isinstance(h, L1Ball) else [])])
        if isinstance(h, Box) and self._bounds:
            return jnp.concatenate([sign * dw for sign, _ in self._bounds])
        if isinstance(h, Simplex):
            return jnp.append(-dw, jnp.sum(dw))
        if isinstance(h, L2Ball):
            return 2.0 * jnp.dot(w, dw)[None]
        return jnp.zeros(0)

    def pull(self, x: Array, v: Array) -> Array:
        """Jᵀv."""
        d, h, w = self.dim, self.h, x[: self.dim]
        if self.point is not None:
            return v
        if self.absolute:
            up, down = v[:d], v[d : 2 * d]
            return jnp.concatenate([up - down, -up - down + (v[-1] if isinstance(h, L1Ball) else 0.0)])
        if isinstance(h, Box) and self._bounds:
            return jnp.sum(jnp.stack([s * v[k * d : (k + 1) * d] for k, (s, _) in enumerate(self._bounds)]), axis=0)
        if isinstance(h, Simplex):
            return v[-1] - v[:d]
        if isinstance(h, L2Ball):
            return 2.0 * v[0] * w
        return jnp.zeros_like(x)

    def steepness(self, x: Array) -> Array:
        """The largest entry of J."""
        return 2.0 * jnp.max(jnp.abs(x[: self.dim])) if isinstance(self.h, L2Ball) else jnp.ones(())

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        """JᵀDJ + Σ z∇²c, plus the curvature of the smooth part of h."""
        d, h = self.dim, self.h
        ww = jnp.full(d, h.lam2 if isinstance(h, ElasticNet) else 0.0)
        wt, rows = jnp.zeros(self.extra), jnp.zeros((0, d + self.extra))
        tt = wt
        if self.point is not None:
            ww = ww + D
        elif self.absolute:
            up, down = D[:d], D[d : 2 * d]
            ww, wt, tt = ww + up + down, down - up, up + down
            if isinstance(h, L1Ball):
                rows = jnp.sqrt(D[-1]) * jnp.concatenate([jnp.zeros(d), jnp.ones(d)])[None]
        elif isinstance(h, Box) and self._bounds:
            ww = ww + jnp.sum(D.reshape(-1, d), axis=0)
        elif isinstance(h, Simplex):
            ww, rows = ww + D[:d], jnp.sqrt(D[-1]) * jnp.ones((1, d))
        elif isinstance(h, L2Ball):
            ww, rows = ww + 2.0 * z[0], 2.0 * jnp.sqrt(D[0]) * x[None, :d]
        return Blocks(ww, wt, tt, rows)

    def smooth(self, x: Array) -> tuple[Array, Array]:
        """The part of h that is no row: λ Σt + (λ2/2)‖w‖², with its gradient."""
        w, t = x[: self.dim], x[self.dim :]
        if not isinstance(self.h, ElasticNet):
            return jnp.zeros(()), jnp.zeros_like(x)
        value = self.h.lam1 * jnp.sum(t) + 0.5 * self.h.lam2 * jnp.dot(w, w)
        return value, jnp.concatenate([self.h.lam2 * w, jnp.full_like(t, self.h.lam1)])

    def snap(self, x: Array, binds: Array) -> Array:
        """x on those of the rows that bind."""
        w = self._snap(x[: self.dim], binds)
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
            for k, (_, bound) in enumerate(self._bounds):
                w = jnp.where(binds[k * d : (k + 1) * d], bound, w)
            return jnp.clip(w, h.low, h.high)
        if isinstance(h, Simplex):
            w = jnp.where(binds[:d], 0.0, jnp.maximum(w, 0.0))
            total = jnp.sum(w)
            return w * (h.total / jnp.where(total > 0, total, 1.0))
        if isinstance(h, L2Ball):
            size = jnp.linalg.norm(w)
            return jnp.where(binds[0] | (size > h.radius), w * (h.radius / jnp.where(size > 0, size, 1.0)), w)
        return w
