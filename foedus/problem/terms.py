"""Terms: what all parties know of a problem. Data are passed to their methods and are never a part of them.

`Terms` is hashable and holds no arrays, so one compiled program serves every problem with the same terms and shapes.
Its methods speak of ONE client; runtimes `vmap` them or call them beside the data.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from foedus.base.errors import FoedusError
from foedus.base.pytrees import PyTree, device_array, state
from foedus.numerics.second_derivatives import weighted_gram
from foedus.numerics.spectrum import largest_eigenvalue
from foedus.problem.losses import Loss
from foedus.problem.penalties import Penalty, SitePenalty
from foedus.problem.regularizers import Regularizer, Zero
from foedus.problem.weights import FACTOR, SiteWeights


@state
class Moments:
    """XᵀSX, XᵀSy and yᵀSy of one client, S holding the rows' shares: all that a quadratic loss needs of its data."""

    gram: Array
    moment: Array
    square: Array


@jax.tree_util.register_pytree_with_keys_class
class Data(Mapping[str, Array]):
    """One client's arrays by name. `weight` is 1 for its examples and 0 for rows that only fill a rectangle.

    `data["x"]` and `data.x` are the same. A mean over examples is `data.mean(values)`, not `jnp.mean(values)`, which
    would count the filling rows too.

    Args:
        arrays: the arrays by name; or their shapes, while a program is traced.
        moments: XᵀX, Xᵀy and yᵀy where they save time. They are kept beside the arrays and are none of them, so data
            made from some of the rows do not inherit moments of all rows.

    Example:
        >>> import foedus as fd, jax.numpy as jnp
        >>> data = fd.Data({"y": jnp.array([1.0, 3.0, 9.0]), "weight": jnp.array([1.0, 1.0, 0.0])})
        >>> float(data.count), float(data.mean(data.y))
        (2.0, 2.0)
    """

    def __init__(self, arrays: Mapping[str, PyTree], moments: Moments | None = None):
        self._arrays = dict(arrays)
        self._moments = moments

    @property
    def moments(self) -> Moments | None:
        """The moments; None where they were not computed."""
        return self._moments

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._arrays[name]
        except KeyError:
            raise AttributeError(f"this client's data has no array {name!r}, only {sorted(self._arrays)}") from None

    def __repr__(self) -> str:
        return "Data(" + ", ".join(f"{k}: {jnp.shape(v)}" for k, v in self._arrays.items()) + ")"

    @property
    def count(self) -> Array:
        """The number of examples d_i."""
        return jnp.sum(self["weight"])

    def mean(self, values: Array, mask: Array | None = None) -> Array:
        """Average per-example values over this client's examples.

        Args:
            values: one value, or one array of values, for each row.
            mask: 1 or True for the rows to average over; all examples when left out.
        """
        weight = self["weight"] if mask is None else self["weight"] * mask
        weight = weight / jnp.sum(weight)
        return jnp.tensordot(weight, values, axes=(0, 0))

    def tree_flatten_with_keys(self):
        names = tuple(sorted(self._arrays))
        arrays = tuple((jax.tree_util.DictKey(k), self._arrays[k]) for k in names)
        return (*arrays, (jax.tree_util.GetAttrKey("moments"), self._moments)), names

    @classmethod
    def tree_unflatten(cls, names, children):
        *arrays, moments = children
        return cls(dict(zip(names, arrays, strict=True)), moments)


Mask = Callable[[Data], Array]


@runtime_checkable
class OfSubsets(Protocol):
    """A function of (w, data) that says which subsets of a client's rows it is about."""

    def masks(self) -> tuple[Mask, ...]:
        """The subsets, none of which may be empty at any client."""
        ...


def subsets_of(function: object) -> tuple[Mask, ...]:
    """The subsets that an objective or a constraint's function is about, as far as it says so."""
    return function.masks() if isinstance(function, OfSubsets) else ()


@dataclass(frozen=True)
class Where:
    """The examples whose array `key` equals `value`; made by `label` and `group`."""

    key: str
    value: float
    said: str = field(default="", compare=False)  # what a data file calls the value, for messages and reports

    def __call__(self, data: Data) -> Array:
        values = data[self.key]
        return (values if values.ndim == 1 else values[:, 0]) == self.value  # a row's y may bring an offset with it

    def __str__(self) -> str:
        return f"{'label' if self.key == 'y' else self.key} {self.said or format(self.value, 'g')}"


def label(value: float, said: str = "") -> Where:
    """Select the examples with this label.

    Args:
        value: the number that `y` holds for the label.
        said: what messages and reports call the label; its number when left out.

    Returns:
        A mask for `where=` of a problem or of a constraint.

    Example:
        >>> import foedus as fd
        >>> print(fd.label(1, said="ill"), "/", fd.label(0))
        label ill / label 0
    """
    return Where("y", _code("label", value), said)


def group(value: float, said: str = "") -> Where:
    """Select the examples of this group.

    Args:
        value: the number that the third array of (X, y, group) holds for the group.
        said: what messages and reports call the group; its number when left out.

    Returns:
        A mask for `where=` of a problem or of a constraint.

    Example:
        >>> import foedus as fd
        >>> print(fd.group(2, said="ward B"))
        group ward B
    """
    return Where("group", _code("group", value), said)


def _code(kind: str, value: float) -> float:
    """Return the number of a label or a group; raise where a word was given for it."""
    try:
        return float(value)
    except (TypeError, ValueError):
        place = "y" if kind == "label" else "the third array of (X, y, group)"
        raise FoedusError(
            f"fd.{kind} takes the number that {place} holds for a {kind}. Got {value!r} instead; write "
            f"fd.{kind}(NUMBER, said={str(value)!r})."
        ) from None


@dataclass(frozen=True)
class Shape:
    """The map between a flat vector w and the user's parameters, which may be any pytree of arrays."""

    tree: PyTree  # the structure, as jax.tree.structure gives it
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(params: PyTree) -> "Shape":
        """Return the shape of these parameters."""
        leaves, tree = jax.tree.flatten(params)
        return Shape(tree, tuple(tuple(jnp.shape(leaf)) for leaf in leaves))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each array."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def dim(self) -> int:
        """The length of the flat vector."""
        return sum(self.sizes)

    def ravel(self, params: PyTree) -> Array:
        """Write the parameters as one flat vector."""
        leaves = jax.tree.leaves(params)
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return device_array(np.concatenate([np.zeros(0), *(np.ravel(np.asarray(leaf)) for leaf in leaves)]))
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, dtype=float)) for leaf in leaves])

    def unravel(self, w: Array) -> PyTree:
        """Write a flat vector as parameters of this shape."""
        if len(self.shapes) == 1 and len(self.shapes[0]) == 1:
            return jax.tree.unflatten(self.tree, [w])
        leaves, start = [], 0
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            leaves.append(w[start : start + size].reshape(shape))
            start += size
        return jax.tree.unflatten(self.tree, leaves)


SCOPES = ("local", "global", "coupled")
KINDS = ("<=", "==")


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """Rows `value − cap` that must be ≤ 0, or = 0 with `kind="=="`."""

    scope: str = "local"
    kind: str = "<="
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, choices in (("scope", SCOPES), ("kind", KINDS)):
            if getattr(self, name) not in choices:
                raise FoedusError(
                    f"The {name!r} of {type(self).__name__} must be one of {', '.join(map(repr, choices))}. "
                    f"Got {getattr(self, name)!r} instead."
                )

    @property
    def equality(self) -> bool:
        """Whether the rows must be 0, and not only ≤ 0."""
        return self.kind == "=="

    def labels(self, terms: "Terms", data: Data) -> list[str]:
        """Name each row in a few words."""
        raise NotImplementedError

    def caps(self, terms: "Terms", data: Data) -> Array:
        """Return the number that each row's value must not exceed, or must equal. (rows,)"""
        raise NotImplementedError

    def value(self, terms: "Terms", w: Array, data: Data) -> Array:
        """Return the rows' values, before the cap is subtracted. (rows,)"""
        raise NotImplementedError

    def arrays(self, clients: int, dim: int, names: list[str]) -> dict[str, np.ndarray]:
        """Return the constraint's own arrays, which each party holds beside its data; they have a client axis first."""
        return {}

    def with_key(self, number: int, names: list[str]) -> "Constraint":
        """Return this constraint with the name under which its own arrays lie beside a party's data."""
        return self

    def masks(self) -> tuple[Mask, ...]:
        """Return the subsets of examples that must not be empty at any party."""
        return ()


@dataclass(frozen=True)
class Terms:
    """The public statement of a problem: minimise Σ ω_i f_i + h subject to the constraints."""

    clients: int
    shape: Shape
    loss: Loss | None = None
    objective: Callable[[PyTree, Data], Array] | None = None
    where: Mask | None = None
    penalty: Penalty | None = None
    regularizer: Regularizer = Zero()
    constraints: tuple["Constraint", ...] = ()
    rows: tuple[int, int, int] = (0, 0, 0)  # of local, global and coupled scope, filled in by Problem
    weights: SiteWeights | None = None  # None: every client's f_i weighs 1/n

    @property
    def dim(self) -> int:
        return self.shape.dim

    @property
    def linear(self) -> bool:
        """Whether f_i is a per-example loss of xᵀw, so that gradients and Hessians have a closed structure."""
        return self.loss is not None

    def counting(self, data: Data) -> Array:
        """The weight of each row among those that count in f_i, and 0 for the others."""
        return data["weight"] if self.where is None else data["weight"] * self.where(data)

    def factor(self, data: Data) -> Array | float:
        """By how much f_i weighs more than 1/n: n·ω_i."""
        return 1.0 if self.weights is None else data[FACTOR]

    def share(self, data: Data) -> Array:
        """The weight of each row in f_i: 1/|where| on the rows that count, 0 elsewhere; times the client's factor."""
        weight = self.counting(data)
        weight = weight / jnp.sum(weight)
        return weight if self.weights is None else self.factor(data) * weight

    def penalty_of(self, data: Data) -> SitePenalty | None:
        """The penalty of this client's f_i; None where there is none."""
        return None if self.penalty is None else SitePenalty(self.penalty, data.count, self.factor(data))

    def has_moments(self, shape: tuple[int, ...]) -> bool:
        """Whether gradients from moments are cheaper, for an X of this shape: dim² instead of 2·rows·dim products."""
        return self.loss is not None and self.loss.quadratic and len(shape) == 2 and self.dim < 2 * shape[0]

    def with_moments(self, data: Data) -> Data:
        """Return the data with their moments, which change the speed of gradients and not their values."""
        share, x, y = self.share(data), data["x"], data["y"]
        return Data(data, Moments(weighted_gram(x, share), (share * y) @ x, jnp.dot(share, y**2)))

    def value(self, w: Array, data: Data) -> Array:
        """f_i(w)."""
        if self.loss is not None:
            f = jnp.dot(self.share(data), self.loss.value(data["x"] @ w, data["y"]))
        else:
            assert self.objective is not None
            f = self.factor(data) * self.objective(self.shape.unravel(w), data)
        penalty = self.penalty_of(data)
        return f if penalty is None else f + penalty.value(w)

    def gradient(self, w: Array, data: Data) -> Array:
        """∇f_i(w)."""
        return self.value_and_gradient(w, data)[1]

    def value_and_gradient(self, w: Array, data: Data) -> tuple[Array, Array]:
        """f_i(w) and ∇f_i(w), from one pass over the predictions."""
        if self.loss is None:
            return jax.value_and_grad(self.value)(w, data)
        if data.moments is not None:
            # f = ½wᵀGw − mᵀw + ½yᵀSy and ∇f = Gw − m, with G = XᵀSX and m = XᵀSy
            gram_w = data.moments.gram @ w
            f = 0.5 * (jnp.dot(w, gram_w - 2.0 * data.moments.moment) + data.moments.square)
            g = gram_w - data.moments.moment
        else:
            share, x, y = self.share(data), data["x"], data["y"]
            z = x @ w
            f = jnp.dot(share, self.loss.value(z, y))
            g = (share * self.loss.slope(z, y)) @ x
        penalty = self.penalty_of(data)
        return (f, g) if penalty is None else (f + penalty.value(w), g + penalty.gradient(w))

    def hessian(self, w: Array, data: Data) -> Array:
        """∇²f_i(w), dim × dim; XᵀDX for a linear model."""
        if self.loss is None:
            return jax.hessian(self.value)(w, data)
        x = data["x"]
        d = self.share(data) * self.loss.bend(x @ w, data["y"])
        h = weighted_gram(x, d)
        penalty = self.penalty_of(data)
        return h if penalty is None else h + jnp.diag(penalty.bend(w))

    def hessian_product(self, w: Array, v: Array, data: Data) -> Array:
        """∇²f_i(w)·v without forming the matrix."""
        return jax.jvp(lambda u: self.gradient(u, data), (w,), (v,))[1]

    def lipschitz(self, w: Array, data: Data) -> Array:
        """r_i, the gradient's Lipschitz constant: a bound if the loss has one, the local curvature at w otherwise."""
        if self.loss is not None and self.loss.curvature is not None:
            x, share = data["x"], self.share(data)
            top = self.loss.curvature * largest_eigenvalue(lambda v: (share * (x @ v)) @ x, self.dim)
            penalty = self.penalty_of(data)
            return top if penalty is None else top + penalty.curvature
        return largest_eigenvalue(lambda v: self.hessian_product(w, v, data), self.dim)


def rows(terms: Terms, constraint: Constraint, w: Array, data: Data) -> Array:
    """Return the rows c(w) = value − cap of one constraint at one party."""
    return constraint.value(terms, w, data) - constraint.caps(terms, data)
