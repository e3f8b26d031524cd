"""A regulariser h as rows of the server, over the model w and variables t that only the server has.

λ‖w‖₁ is λ Σt with −t ≤ w ≤ t; the ℓ1 ball is Σt ≤ r with the same rows; boxes, the simplex and the ℓ2 ball are rows of
w itself. A method that stays inside such rows has points without exact zeros; `snap` puts a point on those that bind.

There are as many rows as columns, or twice as many, so their Jacobian J is never made: `along` and `pull` multiply by
it.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.pytrees import state


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
class Epigraph:
    """The rows c ≤ 0 (or = 0), variables x = (w, t) and smooth part that stand for h; here h is (ridge/2)‖w‖²."""

    dim: int
    ridge: float = 0.0

    snaps: ClassVar[bool] = False  # whether a point has to be put on the rows that bind before its certificate can hold

    @property
    def extra(self) -> int:
        """How many variables t there are."""
        return 0

    @property
    def equal(self) -> np.ndarray:
        """Which rows are equations."""
        return np.zeros(0, bool)

    def start(self, w: Array) -> Array:
        """(w, t) for a first w."""
        return w

    def rows(self, x: Array) -> Array:
        """The rows at x."""
        return jnp.zeros(0)

    def along(self, x: Array, dx: Array) -> Array:
        """The change of the rows along dx, to first order: J·dx."""
        return jnp.zeros(0)

    def pull(self, x: Array, v: Array) -> Array:
        """Jᵀv."""
        return jnp.zeros_like(x)

    def steepness(self, x: Array) -> Array:
        """The largest entry of J."""
        return jnp.ones(())

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        """JᵀDJ + Σ z∇²c, plus the curvature of the smooth part of h."""
        return self._of_w(jnp.full(self.dim, self.ridge))

    def _of_w(self, ww: Array, rows: Array | None = None) -> Blocks:
        none = jnp.zeros(0)
        return Blocks(ww, none, none, jnp.zeros((0, self.dim)) if rows is None else rows)

    def smooth(self, x: Array) -> tuple[Array, Array]:
        """The part of h that is no row, with its gradient."""
        if self.ridge == 0:
            return jnp.zeros(()), jnp.zeros_like(x)
        return 0.5 * self.ridge * jnp.dot(x, x), self.ridge * x

    def snap(self, x: Array, binds: Array) -> Array:
        """x on those of the rows that bind."""
        return x


@dataclass(frozen=True)
class SinglePoint(Epigraph):
    """w = value in every coordinate: a domain that is a single point."""

    value: float = 0.0

    snaps: ClassVar[bool] = True

    @property
    def equal(self) -> np.ndarray:
        return np.ones(self.dim, bool)

    def rows(self, x: Array) -> Array:
        return x - self.value

    def along(self, x: Array, dx: Array) -> Array:
        return dx

    def pull(self, x: Array, v: Array) -> Array:
        return v

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        return self._of_w(D)

    def snap(self, x: Array, binds: Array) -> Array:
        return jnp.full(self.dim, self.value)


@dataclass(frozen=True)
class Absolute(Epigraph):
    """λ Σt + (ridge/2)‖w‖² with −t ≤ w ≤ t, and Σt ≤ radius where there is one."""

    lam: float = 0.0
    radius: float | None = None

    snaps: ClassVar[bool] = True

    @property
    def extra(self) -> int:
        return self.dim

    @property
    def equal(self) -> np.ndarray:
        return np.zeros(2 * self.dim + (self.radius is not None), bool)

    def start(self, w: Array) -> Array:
        return jnp.concatenate([w, jnp.abs(w) + 1.0])

    def rows(self, x: Array) -> Array:
        w, t = x[: self.dim], x[self.dim :]
        return jnp.concatenate([w - t, -w - t, *([] if self.radius is None else [jnp.sum(t)[None] - self.radius])])

    def along(self, x: Array, dx: Array) -> Array:
        dw, dt = dx[: self.dim], dx[self.dim :]
        return jnp.concatenate([dw - dt, -dw - dt, *([] if self.radius is None else [jnp.sum(dt)[None]])])

    def pull(self, x: Array, v: Array) -> Array:
        up, down = v[: self.dim], v[self.dim : 2 * self.dim]
        return jnp.concatenate([up - down, -up - down + (0.0 if self.radius is None else v[-1])])

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        d, up, down = self.dim, D[: self.dim], D[self.dim : 2 * self.dim]
        rows = jnp.zeros((0, 2 * d))
        if self.radius is not None:
            rows = jnp.sqrt(D[-1]) * jnp.concatenate([jnp.zeros(d), jnp.ones(d)])[None]
        return Blocks(jnp.full(d, self.ridge) + up + down, down - up, up + down, rows)

    def smooth(self, x: Array) -> tuple[Array, Array]:
        if self.radius is not None:
            return jnp.zeros(()), jnp.zeros_like(x)
        w, t = x[: self.dim], x[self.dim :]
        value = self.lam * jnp.sum(t) + 0.5 * self.ridge * jnp.dot(w, w)
        return value, jnp.concatenate([self.ridge * w, jnp.full_like(t, self.lam)])

    def snap(self, x: Array, binds: Array) -> Array:
        d = self.dim
        w = jnp.where(binds[:d] & binds[d : 2 * d], 0.0, x[:d])
        if self.radius is not None:
            w = shrunk_to(self.radius, w, jnp.sum(jnp.abs(w)), binds[-1])
        return jnp.concatenate([w, jnp.abs(w)])


@dataclass(frozen=True)
class Bounds(Epigraph):
    """low ≤ w ≤ high in every coordinate, of which at least one is finite."""

    low: float = -np.inf
    high: float = np.inf

    snaps: ClassVar[bool] = True

    @property
    def _finite(self) -> list[tuple[float, float]]:
        """The finite bounds, each with the sign of its rows sign·(w − bound) ≤ 0."""
        return [(sign, bound) for sign, bound in ((-1.0, self.low), (1.0, self.high)) if np.isfinite(bound)]

    @property
    def equal(self) -> np.ndarray:
        return np.zeros(self.dim * len(self._finite), bool)

    def rows(self, x: Array) -> Array:
        return jnp.concatenate([sign * (x - bound) for sign, bound in self._finite])

    def along(self, x: Array, dx: Array) -> Array:
        return jnp.concatenate([sign * dx for sign, _ in self._finite])

    def pull(self, x: Array, v: Array) -> Array:
        d = self.dim
        return jnp.sum(jnp.stack([s * v[k * d : (k + 1) * d] for k, (s, _) in enumerate(self._finite)]), axis=0)

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        return self._of_w(jnp.sum(D.reshape(-1, self.dim), axis=0))

    def snap(self, x: Array, binds: Array) -> Array:
        for k, (_, bound) in enumerate(self._finite):
            x = jnp.where(binds[k * self.dim : (k + 1) * self.dim], bound, x)
        return jnp.clip(x, self.low, self.high)


@dataclass(frozen=True)
class Total(Epigraph):
    """w ≥ 0 and Σw = total."""

    total: float = 1.0

    snaps: ClassVar[bool] = True

    @property
    def equal(self) -> np.ndarray:
        return np.append(np.zeros(self.dim, bool), True)

    def rows(self, x: Array) -> Array:
        return jnp.append(-x, jnp.sum(x) - self.total)

    def along(self, x: Array, dx: Array) -> Array:
        return jnp.append(-dx, jnp.sum(dx))

    def pull(self, x: Array, v: Array) -> Array:
        return v[-1] - v[: self.dim]

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        return self._of_w(D[: self.dim], jnp.sqrt(D[-1]) * jnp.ones((1, self.dim)))

    def snap(self, x: Array, binds: Array) -> Array:
        w = jnp.where(binds[: self.dim], 0.0, jnp.maximum(x, 0.0))
        total = jnp.sum(w)
        return w * (self.total / jnp.where(total > 0, total, 1.0))


@dataclass(frozen=True)
class Round(Epigraph):
    """‖w‖² ≤ radius²."""

    radius: float = 1.0

    snaps: ClassVar[bool] = True

    @property
    def equal(self) -> np.ndarray:
        return np.zeros(1, bool)

    def rows(self, x: Array) -> Array:
        return (jnp.dot(x, x) - self.radius**2)[None]

    def along(self, x: Array, dx: Array) -> Array:
        return 2.0 * jnp.dot(x, dx)[None]

    def pull(self, x: Array, v: Array) -> Array:
        return 2.0 * v[0] * x

    def steepness(self, x: Array) -> Array:
        return 2.0 * jnp.max(jnp.abs(x))

    def blocks(self, x: Array, D: Array, z: Array) -> Blocks:
        return self._of_w(jnp.full(self.dim, 2.0 * z[0]), 2.0 * jnp.sqrt(D[0]) * x[None])

    def snap(self, x: Array, binds: Array) -> Array:
        return shrunk_to(self.radius, x, jnp.linalg.norm(x), binds[0])


def shrunk_to(radius: float, w: Array, size: Array, binds: Array) -> Array:
    """w at the size of a ball's radius, where its row binds or w lies outside."""
    return jnp.where(binds | (size > radius), w * (radius / jnp.where(size > 0, size, 1.0)), w)
