"""Convex regularisers h, each with all that algorithms and certificates ask of it.

`prox(v, step)` is argmin_w h(w) + ‖w − v‖²/(2·step). `distance(w, g)` is dist_∞(0, g + ∂h(w)): zero exactly when w
minimises h + ⟨g, ·⟩, and infinite when w lies outside the domain of h. A regulariser has these and its value. What it
says beyond them (`face`, `epigraph`, `most_gain`, `room`, `kinks`) opens further methods and figures to it.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.base.errors import FoedusError
from foedus.problem.epigraph import Absolute, Bounds, Epigraph, Round, SinglePoint, Total

INSIDE = 1e-9  # a point this close to a set, relative to its size, is in it
EDGE = 1e-7  # of a ball's radius: a point that is nearer to the boundary is on it


def soft(v: Array, threshold: Array | float) -> Array:
    """Soft thresholding, the prox of the l1 norm."""
    return jnp.sign(v) * jnp.maximum(jnp.abs(v) - threshold, 0.0)


def _sup(v: Array) -> Array:
    return jnp.max(jnp.abs(v), initial=0.0)


def _shrunk(g: np.ndarray, by: float) -> np.ndarray:
    return np.sign(g) * np.maximum(np.abs(g) - by, 0.0)


def _none(w: np.ndarray) -> np.ndarray:
    return np.zeros((0, len(w)))


def _bisect(decreasing, low: Array, high: Array, steps: int = 100) -> Array:
    """Return the root of a decreasing function of a scalar in [low, high]."""

    def halve(_, ends):
        a, b = ends
        middle = 0.5 * (a + b)
        right = decreasing(middle) > 0
        return jnp.where(right, middle, a), jnp.where(right, b, middle)

    return jax.lax.fori_loop(0, steps, halve, (low, high))[1]


@dataclass(frozen=True)
class Face:
    """How a regulariser h holds a point w at which the smooth part has the gradient g."""

    r: np.ndarray  # an element of g + ∂h(w), the least one where h is separable
    free: np.ndarray  # the coordinates that h leaves free
    normals: np.ndarray  # directions that leave the domain's boundary, (0 or 1, dim)
    curvature: np.ndarray | float = 0.0  # the diagonal that h, or a round boundary, adds to the Hessian along the face
    slack: float = 0.0  # what is left of the boundary times its multiplier
    less: np.ndarray | None = None  # vectors R whose RᵀR this diagonal has too much, (any, dim)

    def times(self, V: np.ndarray) -> np.ndarray:
        """The products of V's rows with what h adds to the Hessian."""
        product = self.curvature * V
        return product if self.less is None else product - (V @ self.less.T) @ self.less


def _whole(g: np.ndarray) -> Face:
    """The face of a point that h leaves free."""
    return Face(g, np.ones(g.shape, bool), _none(g))


def _point(w: np.ndarray) -> Face:
    """The face of a domain of one point."""
    return Face(np.zeros(w.shape), np.zeros(w.shape, bool), _none(w))


def _boundary(size: float, w: np.ndarray, g: np.ndarray, radius: float) -> tuple[float, float]:
    """The multiplier of ‖w‖ ≤ radius, 0 inside, and the slack times it."""
    lam = -float(g @ w) / max(size, 1e-300)
    if size < (1.0 - EDGE) * radius or lam <= 0:
        return 0.0, 0.0
    return lam, lam * max(radius - size, 0.0)


@dataclass(frozen=True)
class Regularizer:
    """A convex function h(w) of the model, the same for all clients.

    A class of its own states `value` (infinite outside its domain), and `prox` and `distance`, which are exact; the
    module's first lines define them. What else it states is used where it is there, and nothing is assumed where not.
    """

    vanishes: ClassVar[bool] = False  # whether h is 0

    @property
    def name(self) -> str:
        """What sentences call the regulariser."""
        return type(self).__name__

    @property
    def ridge(self) -> float:
        """The strong convexity of h: the largest c for which h − (c/2)‖w‖² is known to be convex."""
        return 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            has_limit = name in ("lam", "lam1", "lam2", "radius", "total")
            if has_limit and not (isinstance(value, Real) and 0 <= float(value) < float("inf")):
                raise FoedusError(
                    f"The {name!r} parameter of {type(self).__name__} must be a number >= 0. Got {value!r} instead."
                )

    def check(self, dim: int) -> None:
        """Raise where the regulariser does not fit a vector of this length."""

    def value(self, w: Array) -> Array:
        """h(w)."""
        raise NotImplementedError

    def prox(self, v: Array, step: Array | float) -> Array:
        """argmin_w h(w) + ‖w − v‖²/(2·step)."""
        raise NotImplementedError

    def distance(self, w: Array, g: Array) -> Array:
        """The largest entry of the smallest vector in g + ∂h(w); infinite outside the domain."""
        raise NotImplementedError

    def face(self, w: np.ndarray, g: np.ndarray) -> Face | None:
        """The face on which h holds the point w where the smooth part has the gradient g; None: no gap is estimated."""
        return None

    def epigraph(self, dim: int) -> Epigraph:
        """The rows and variables that stand for h in `dim` parameters, for methods that stay inside them."""
        raise FoedusError(
            f"InteriorPoint does not handle the regulariser {self.name}; leave the choice to auto, or use InexactADMM "
            "without constraints."
        )

    def most_gain(self, w: Array, pull: Array) -> Array:
        """The most that pullᵀ(w − w') can be for w' in the domain of h; infinite where it is not bounded."""
        return jnp.full((), jnp.inf)

    def room(self, w: Array, pull: Array) -> Array:
        """How far each coordinate can go against the pull until it leaves the domain of h."""
        return jnp.full_like(pull, jnp.inf)

    def kinks(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Which coordinates of w lie in a kink of h, and the diagonal of its second derivatives in the others.

        None where it is not so simple, and standard errors are therefore not known.
        """
        return None


@dataclass(frozen=True)
class Leading(Regularizer):
    """A regulariser of the first `dim` coordinates only; the others are free."""

    inside: Regularizer
    dim: int

    @property
    def name(self) -> str:
        return self.inside.name

    def value(self, w: Array) -> Array:
        return self.inside.value(w[: self.dim])

    def prox(self, v: Array, step: Array | float) -> Array:
        return jnp.concatenate([self.inside.prox(v[: self.dim], step), v[self.dim :]])

    def distance(self, w: Array, g: Array) -> Array:
        return jnp.maximum(self.inside.distance(w[: self.dim], g[: self.dim]), _sup(g[self.dim :]))

    def face(self, w: np.ndarray, g: np.ndarray) -> Face | None:
        inside, rest = self.inside.face(w[: self.dim], g[: self.dim]), len(w) - self.dim
        if inside is None:
            return None
        return Face(
            np.append(inside.r, g[self.dim :]),
            np.append(inside.free, np.ones(rest, bool)),
            np.pad(inside.normals, ((0, 0), (0, rest))),
            np.append(np.broadcast_to(inside.curvature, self.dim), np.zeros(rest)),
            inside.slack,
            None if inside.less is None else np.pad(inside.less, ((0, 0), (0, rest))),
        )

    def kinks(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        inside, rest = self.inside.kinks(w[: self.dim]), len(w) - self.dim
        return inside and (np.append(inside[0], np.zeros(rest, bool)), np.append(inside[1], np.zeros(rest)))

    def most_gain(self, w: Array, pull: Array) -> Array:
        free = pull[self.dim :]
        return self.inside.most_gain(w[: self.dim], pull[: self.dim]) + jnp.sum(jnp.where(free == 0, 0.0, jnp.inf))

    def room(self, w: Array, pull: Array) -> Array:
        return super().room(w, pull).at[: self.dim].set(self.inside.room(w[: self.dim], pull[: self.dim]))


class Zero(Regularizer):
    """No regulariser: h = 0."""

    vanishes: ClassVar[bool] = True

    def value(self, w: Array) -> Array:
        return jnp.zeros(())

    def prox(self, v: Array, step: Array | float) -> Array:
        return v

    def distance(self, w: Array, g: Array) -> Array:
        return _sup(g)

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        return _whole(g)

    def epigraph(self, dim: int) -> Epigraph:
        return Epigraph(dim)

    def kinks(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(w.shape, bool), np.zeros(w.shape)


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """The elastic net lam1·‖w‖₁ + (lam2/2)·‖w‖².

    Args:
        lam1: the weight of the 1-norm, >= 0.
        lam2: the weight of the squared 2-norm, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.ElasticNet(1.0, 1.0).prox(jnp.array([3.0, 0.5]), 1.0).tolist()
        [1.0, 0.0]
    """

    lam1: float
    lam2: float

    def value(self, w: Array) -> Array:
        return self.lam1 * jnp.sum(jnp.abs(w)) + 0.5 * self.lam2 * jnp.sum(w**2)

    def prox(self, v: Array, step: Array | float) -> Array:
        return soft(v, step * self.lam1) / (1.0 + step * self.lam2)

    def distance(self, w: Array, g: Array) -> Array:
        g = g + self.lam2 * w
        return _sup(jnp.where(w != 0, g + self.lam1 * jnp.sign(w), soft(g, self.lam1)))

    @property
    def ridge(self) -> float:
        return self.lam2

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        g = g + self.lam2 * w
        r = np.where(w != 0, g + self.lam1 * np.sign(w), _shrunk(g, self.lam1)) if self.lam1 > 0 else g
        free = (w != 0) | (r != 0) if self.lam1 > 0 else np.ones(w.shape, bool)
        return Face(r, free, _none(w), curvature=self.lam2)

    def epigraph(self, dim: int) -> Epigraph:
        return Absolute(dim, self.lam2, self.lam1) if self.lam1 > 0 else Epigraph(dim, self.lam2)

    def kinks(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (w == 0) & (self.lam1 > 0), np.full(w.shape, self.lam2)


def L1(lam: float) -> ElasticNet:
    """Return the regulariser lam·‖w‖₁, which sets coordinates to exactly 0.

    Args:
        lam: the weight, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.L1(1.0).prox(jnp.array([3.0, 0.5]), 1.0).tolist()
        [2.0, 0.0]
    """
    return ElasticNet(lam, 0.0)


def L2(lam: float) -> ElasticNet:
    """Return the regulariser (lam/2)·‖w‖², the same for all clients whatever their size.

    Args:
        lam: the weight, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> float(fd.regularizers.L2(2.0).value(jnp.array([1.0, 2.0])))
        5.0
    """
    return ElasticNet(0.0, lam)


@dataclass(frozen=True)
class Box(Regularizer):
    """The indicator of low ≤ w ≤ high, with the same bounds for every coordinate.

    Args:
        low: the least value of a coordinate.
        high: the greatest value of a coordinate.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.Box(-1.0, 1.0).prox(jnp.array([3.0, 0.5]), 1.0).tolist()
        [1.0, 0.5]
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise FoedusError(f"Box needs low <= high. Got low={self.low!r}, high={self.high!r} instead.")

    def value(self, w: Array) -> Array:
        return jnp.where(jnp.all((w >= self.low) & (w <= self.high)), 0.0, jnp.inf)

    def prox(self, v: Array, step: Array | float) -> Array:
        from optax.projections import projection_box

        return projection_box(v, self.low, self.high)

    def distance(self, w: Array, g: Array) -> Array:
        g = jnp.where(w <= self.low, jnp.minimum(g, 0.0), g)
        g = jnp.where(w >= self.high, jnp.maximum(g, 0.0), g)
        return _sup(g) + self.value(w)

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        r = np.where(w <= self.low, np.minimum(g, 0.0), np.where(w >= self.high, np.maximum(g, 0.0), g))
        return Face(r, ((w > self.low) & (w < self.high)) | (r != 0), _none(w))

    def epigraph(self, dim: int) -> Epigraph:
        if self.low == self.high:
            return SinglePoint(dim, value=self.low)
        return Bounds(dim, low=self.low, high=self.high) if np.isfinite([self.low, self.high]).any() else Epigraph(dim)

    def most_gain(self, w: Array, pull: Array) -> Array:
        gap = jnp.where(pull > 0, w - self.low, self.high - w)
        return jnp.sum(jnp.where(pull == 0, 0.0, jnp.abs(pull) * gap))

    def room(self, w: Array, pull: Array) -> Array:
        return jnp.maximum(jnp.where(pull > 0, w - self.low, self.high - w), 0.0)


def NonNegative() -> Box:
    """Return the indicator of w ≥ 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.NonNegative().prox(jnp.array([-3.0, 0.5]), 1.0).tolist()
        [0.0, 0.5]
    """
    return Box(0.0, float("inf"))


@dataclass(frozen=True)
class Simplex(Regularizer):
    """The indicator of the simplex w ≥ 0, Σw = total.

    Args:
        total: the sum of the coordinates, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.Simplex().prox(jnp.array([1.0, 1.0]), 1.0).tolist()
        [0.5, 0.5]
    """

    total: float = 1.0

    def value(self, w: Array) -> Array:
        inside = jnp.all(w >= 0) & (jnp.abs(jnp.sum(w) - self.total) <= INSIDE * (1.0 + self.total))
        return jnp.where(inside, 0.0, jnp.inf)

    def prox(self, v: Array, step: Array | float) -> Array:
        from optax.projections import projection_simplex

        # optax divides by the scale, which may be 0 here
        return projection_simplex(v, self.total) if self.total > 0 else jnp.zeros_like(v)

    def distance(self, w: Array, g: Array) -> Array:
        # The normal cone is {νe − s : s ≥ 0, s_j = 0 where w_j > 0}; the best ν halves the spread of g.
        top = jnp.max(jnp.where(w > 0, g, -jnp.inf))
        return jnp.maximum(0.5 * (top - jnp.min(g)), 0.0) + self.value(w)

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        if self.total == 0:
            return _point(w)
        g = g - float(g @ w) / self.total
        r = np.where(w > 0, g, np.minimum(g, 0.0))
        return Face(r, (w > 0) | (r != 0), np.ones((1, len(w))))

    def epigraph(self, dim: int) -> Epigraph:
        return Total(dim, total=self.total) if self.total > 0 else SinglePoint(dim)

    def most_gain(self, w: Array, pull: Array) -> Array:
        return pull @ w - self.total * jnp.min(pull)


@dataclass(frozen=True)
class L2Ball(Regularizer):
    """The indicator of the ball ‖w‖₂ ≤ radius.

    Args:
        radius: its radius, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.L2Ball(5.0).prox(jnp.array([6.0, 8.0]), 1.0).tolist()
        [3.0, 4.0]
    """

    radius: float = 1.0

    def value(self, w: Array) -> Array:
        return jnp.where(jnp.linalg.norm(w) <= self.radius * (1.0 + INSIDE), 0.0, jnp.inf)

    def prox(self, v: Array, step: Array | float) -> Array:
        from optax.projections import projection_l2_ball

        return projection_l2_ball(v, self.radius)

    def distance(self, w: Array, g: Array) -> Array:
        if self.radius == 0:  # a single point, where every vector is normal
            return self.value(w)
        w, g = jnp.asarray(w), jnp.asarray(g)

        # min over t ≥ 0 of ‖g + t·w‖_∞, convex in t; its slope is bisected.
        def downhill(t: Array) -> Array:
            r = g + t * w
            j = jnp.argmax(jnp.abs(r))
            return -jnp.sign(r[j]) * w[j]

        far = 2.0 * (_sup(g) + 1e-300) / jnp.maximum(_sup(w), 1e-300)
        t = _bisect(downhill, jnp.zeros(()), far)
        on_boundary = jnp.linalg.norm(w) >= self.radius * (1.0 - INSIDE)
        return _sup(g + jnp.where(on_boundary, t, 0.0) * w) + self.value(w)

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        if self.radius == 0:
            return _point(w)
        size = float(np.linalg.norm(w))
        lam, slack = _boundary(size, w, g, self.radius)
        return _whole(g) if lam == 0 else Face(g + lam * w / size, np.ones(w.shape, bool), w[None], lam / size, slack)

    def epigraph(self, dim: int) -> Epigraph:
        return Round(dim, radius=self.radius) if self.radius > 0 else SinglePoint(dim)

    def most_gain(self, w: Array, pull: Array) -> Array:
        return pull @ w + self.radius * jnp.linalg.norm(pull)


@dataclass(frozen=True)
class L1Ball(Regularizer):
    """The indicator of the ball ‖w‖₁ ≤ radius.

    Args:
        radius: its radius, >= 0.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.L1Ball(1.0).prox(jnp.array([2.0, 0.5]), 1.0).tolist()
        [1.0, 0.0]
    """

    radius: float = 1.0

    def value(self, w: Array) -> Array:
        return jnp.where(jnp.sum(jnp.abs(w)) <= self.radius * (1.0 + INSIDE), 0.0, jnp.inf)

    def prox(self, v: Array, step: Array | float) -> Array:
        from optax.projections import projection_l1_ball

        return projection_l1_ball(v, self.radius) if self.radius > 0 else jnp.zeros_like(v)

    def distance(self, w: Array, g: Array) -> Array:
        # min over t ≥ 0 of max{t + a, b − t, 0}: on the support |g_j + t·sign(w_j)|, elsewhere (|g_j| − t)₊.
        along = jnp.where(w != 0, g * jnp.sign(w), -jnp.inf)
        a = jnp.max(along)
        b = jnp.maximum(jnp.max(-jnp.where(w != 0, along, jnp.inf)), _sup(jnp.where(w != 0, 0.0, g)))
        t = jnp.maximum(jnp.where(jnp.isfinite(a), 0.5 * (b - a), b), 0.0)
        t = jnp.where(jnp.sum(jnp.abs(w)) >= self.radius * (1.0 - INSIDE), t, 0.0)
        return jnp.maximum(jnp.maximum(t + a, b - t), 0.0) + self.value(w)

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        if self.radius == 0:
            return _point(w)
        lam, slack = _boundary(float(np.sum(np.abs(w))), w, g, self.radius)
        if lam == 0:
            return _whole(g)
        r = np.where(w != 0, g + lam * np.sign(w), _shrunk(g, lam))
        return Face(r, (w != 0) | (r != 0), np.where(w != 0, np.sign(w), -np.sign(r))[None], 0.0, slack)

    def epigraph(self, dim: int) -> Epigraph:
        return Absolute(dim, radius=self.radius) if self.radius > 0 else SinglePoint(dim)

    def most_gain(self, w: Array, pull: Array) -> Array:
        return pull @ w + self.radius * jnp.max(jnp.abs(pull))


@dataclass(frozen=True)
class Group(Regularizer):
    """The group lasso lam·Σ_g ‖w_g‖₂, which sets whole groups of coordinates to 0.

    Args:
        lam: the weight, >= 0.
        groups: the group of each coordinate, from 0; -1 for a coordinate in none.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> fd.regularizers.Group(1.0, (0, 0, -1)).prox(jnp.array([0.3, 0.4, 2.0]), 1.0).tolist()
        [0.0, 0.0, 2.0]
    """

    lam: float
    groups: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "groups", tuple(int(group) for group in self.groups))

    def check(self, dim: int) -> None:
        if len(self.groups) != dim:
            raise FoedusError(f"Group names {len(self.groups)} coordinates, but the parameters have {dim}.")

    def _ids(self) -> tuple[Array, int]:
        return jnp.asarray(self.groups), max(self.groups, default=-1) + 1

    def _norms(self, w: Array) -> tuple[Array, Array]:
        """The norm of each coordinate's group, and whether the coordinate is in one."""
        ids, count = self._ids()
        squares = jax.ops.segment_sum(jnp.where(ids >= 0, w**2, 0.0), jnp.maximum(ids, 0), max(count, 1))
        return jnp.sqrt(squares)[jnp.maximum(ids, 0)], ids >= 0

    def value(self, w: Array) -> Array:
        ids, count = self._ids()
        squares = jax.ops.segment_sum(jnp.where(ids >= 0, w**2, 0.0), jnp.maximum(ids, 0), max(count, 1))
        return self.lam * jnp.sum(jnp.sqrt(squares))

    def prox(self, v: Array, step: Array | float) -> Array:
        norm, member = self._norms(v)
        shrink = jnp.maximum(1.0 - step * self.lam / jnp.where(norm > 0, norm, 1.0), 0.0)
        return jnp.where(member, shrink * v, v)

    def distance(self, w: Array, g: Array) -> Array:
        norm, member = self._norms(w)
        smooth = g + jnp.where(member & (norm > 0), self.lam * w / jnp.where(norm > 0, norm, 1.0), 0.0)
        ids, count = self._ids()

        def to_ball(group: Array) -> Array:
            # the smallest e for which soft(g, e) fits in the l2 ball of radius lam
            part = jnp.where(ids == group, g, 0.0)
            root = _bisect(lambda e: jnp.linalg.norm(soft(part, e)) - self.lam, jnp.zeros(()), _sup(part))
            return jnp.where(jnp.linalg.norm(part) <= self.lam, 0.0, root)

        dead = member & (norm == 0)
        alive = _sup(jnp.where(dead, 0.0, smooth))
        if count == 0:
            return alive
        at_zero = jax.vmap(to_ball)(jnp.arange(count))
        return jnp.maximum(alive, jnp.max(jnp.where(dead, at_zero[jnp.maximum(ids, 0)], 0.0)))

    def face(self, w: np.ndarray, g: np.ndarray) -> Face:
        r, curvature, less = np.array(g, dtype=float), np.zeros(w.shape), []
        for group in range(max(self.groups, default=-1) + 1):
            part = np.asarray(self.groups) == group
            size = float(np.linalg.norm(w[part]))
            if size > 0:  # ∇²‖w_g‖ = (I − uuᵀ)/‖w_g‖ with u = w_g/‖w_g‖
                u = np.where(part, w, 0.0) / size
                r, curvature = r + self.lam * u, curvature + part * (self.lam / size)
                less.append(math.sqrt(self.lam / size) * u)
            else:
                r[part] *= max(1.0 - self.lam / max(float(np.linalg.norm(g[part])), 1e-300), 0.0)
        free = (w != 0) | (r != 0) | (curvature > 0) | (np.asarray(self.groups) < 0)
        return Face(r, free, _none(w), curvature, less=np.array(less).reshape(-1, len(w)))
