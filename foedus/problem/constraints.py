"""Constraints c(w) ≤ 0 or c(w) = 0: at every client, on the server's data, or on the mean over the clients.

A constraint is written as rows `value(w) − cap`. `scope="local"` holds it at each client, `"global"` on the data the
server holds, `"coupled"` on the mean over clients of its rows, which no single party can evaluate.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError, did_you_mean
from foedus.base.pytrees import PyTree
from foedus.problem.losses import Loss, as_loss
from foedus.problem.terms import Constraint, Data, Mask, Terms, subsets_of

T = TypeVar("T")


NO_CAP = 1.0 + 2.0**-30
"""The cap of a row that does not apply at a client: its value is 0 there, so that it always holds and never binds."""
UNDEFINED = "undefined"


def _mean_weights(data: Data, mask: Mask) -> Array:
    weight = data["weight"] * mask(data)
    total = jnp.sum(weight)
    return weight / jnp.where(total > 0, total, 1.0)


ByClient: TypeAlias = ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike]
"""An array for all clients, or one for each: in their order, or by name."""

Limit: TypeAlias = float | Sequence[float | None] | Mapping[str, float | None] | None
"""A number, or one for each client: in their order, or by name; None where a loss is not limited."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Capped(Constraint):
    """Rows with one limit, which may be a different number at each client.

    The limit is stored among the parties' arrays, so problems that differ only in it share a compiled program: once a
    problem has given the constraint a `key`, the limit takes no part in comparing two constraints.
    """

    key: str = field(default="", repr=False, metadata={"hidden": True})
    count: ClassVar[int] = 1
    limit_name: ClassVar[str] = "at_most"  # the field that holds the limit
    least: ClassVar[tuple[float, str]] = (-np.inf, "a finite number")  # a limit must lie above it; and that in words

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.limit, list | np.ndarray):
            object.__setattr__(self, self.limit_name, tuple(self.limit))
        limits = tuple(self.limit.values()) if isinstance(self.limit, Mapping) else self.limit
        for one in limits if isinstance(limits, tuple) else (limits,):
            if one is None and self._takes_none:
                continue
            if not (isinstance(one, Real) and self.least[0] < float(one) < np.inf):
                what = f"The {self.limit_name!r} of {type(self).__name__} must be {self.least[1]}"
                raise FoedusError(f"{what}. Got {one!r} instead.")

    @property
    def limit(self) -> Limit:
        """The limit as it was given."""
        return getattr(self, self.limit_name)

    @property
    def _takes_none(self) -> bool:
        """Whether the limit may be left out at single clients."""
        return False

    def applies_at(self, name: str) -> bool:
        """Return whether there is a limit at the client of this name."""
        return (self.limit.get(name) if isinstance(self.limit, Mapping) else self.limit) is not None

    def _identity(self) -> tuple[object, ...]:
        fields = (f.name for f in dataclasses.fields(self) if f.name != self.limit_name)
        return (type(self), *(getattr(self, name) for name in fields), "" if self.key else repr(self.limit))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Capped) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def with_key(self, number: int, names: list[str]) -> "Capped":
        limit = self.limit
        if isinstance(limit, tuple):
            if len(limit) != len(names):
                raise FoedusError(
                    f"The {self.limit_name!r} of {type(self).__name__} must be a number, or one for each of the "
                    f"{len(names)} clients. Got {limit!r} instead."
                )
            limit = dict(zip(names, limit, strict=True))
        return dataclasses.replace(self, key=f"cap{number}", **{self.limit_name: limit})

    def at(self, name: str) -> "Capped":
        """Return the constraint with the limit of the client of this name."""
        if not isinstance(self.limit, Mapping):
            return self
        return dataclasses.replace(self, **{self.limit_name: self.limit[name]})

    def arrays(self, clients: int, dim: int, names: list[str]) -> dict[str, np.ndarray]:
        what = f"The {self.limit_name!r} of {type(self).__name__}"
        limit = np.nan if self.limit is None else self.limit
        if not isinstance(limit, Real) and self.scope != "local":
            raise FoedusError(f"{what} must be one number, as its scope is {self.scope!r}. Got {limit!r} instead.")
        limits = np.asarray(by_client(limit, names, what) if isinstance(limit, Mapping) else limit, dtype=float)
        caps = np.where(np.isnan(limits), NO_CAP, self.cap_from(limits))  # None is NaN among numbers
        return {f"{self.key}.cap": np.broadcast_to(caps[..., None], (clients, self.count))}

    def cap_from(self, limit: np.ndarray) -> np.ndarray:
        """Return the cap of a row's value, from the limit that was given."""
        return limit

    def caps(self, terms: Terms, data: Data) -> Array:
        if self.key and f"{self.key}.cap" in data:
            return data[f"{self.key}.cap"]
        return jnp.full(self.count, self.cap_from(np.asarray(self.limit, dtype=float)))


@dataclass(frozen=True, kw_only=True, eq=False)
class LossRows(Capped):
    """Rows that are weighted sums of per-example losses, so that their derivatives share the objective's structure."""

    loss: Loss | None = None
    skip: str = ""

    def __post_init__(self) -> None:
        if self.skip not in ("", UNDEFINED):
            raise FoedusError(f"The 'skip' of {type(self).__name__} must be {UNDEFINED!r} or ''. Got {self.skip!r}.")
        if self.skip and not self._takes_none:
            raise FoedusError(
                f"The 'skip' of {type(self).__name__} goes with scope 'local' and kind '<=' alone. "
                f"Got {self.scope!r} and {self.kind!r} instead."
            )
        super().__post_init__()
        if self.loss is not None:
            object.__setattr__(self, "loss", as_loss(self.loss))
        for wrong in (mask for mask in self.masks() if not callable(mask)):
            raise FoedusError(
                f"The subgroup of {type(self).__name__} must be fd.label(v), fd.group(v) or a function of the data. "
                f"Got {wrong!r} instead."
            )

    def loss_in(self, terms: Terms) -> Loss:
        loss = self.loss or terms.loss
        if loss is None:
            raise FoedusError(f"{type(self).__name__} needs a loss of xᵀw: give it loss=, or the problem.")
        return loss

    @property
    def _takes_none(self) -> bool:
        return self.scope == "local" and self.kind == "<="

    @property
    def may_be_left_out(self) -> bool:
        """Whether there may be clients to which the rows do not apply."""
        return bool(self.skip) or not all(map(self.applies_at, self.limit if isinstance(self.limit, Mapping) else [""]))

    def _identity(self) -> tuple[object, ...]:
        return (*super()._identity(), self.may_be_left_out)

    def applies(self, data: Data) -> Array:
        """Whether the rows apply to a client: it has a limit and, where they may be skipped, rows in each subgroup."""
        caps = data[f"{self.key}.cap"] if self.key and f"{self.key}.cap" in data else None
        has_limit = jnp.asarray(self.limit is not None) if caps is None else caps[..., 0] != NO_CAP
        if not self.skip:
            return has_limit
        sizes = jnp.stack([jnp.sum(data["weight"] * mask(data)) for mask in self.masks()])
        return has_limit & jnp.all(sizes > 0)

    def means(self, data: Data) -> Array:
        """The weight of each example's loss in each row, where the rows apply. (rows, examples)"""
        raise NotImplementedError

    def weights(self, data: Data) -> Array:
        """The weight of each example's loss in each row. (rows, examples)"""
        means = self.means(data)
        return jnp.where(self.applies(data), means, 0.0) if self.may_be_left_out else means

    def caps(self, terms: Terms, data: Data) -> Array:
        caps = super().caps(terms, data)
        return jnp.where(self.applies(data), caps, NO_CAP) if self.may_be_left_out else caps

    def value(self, terms: Terms, w: Array, data: Data) -> Array:
        return self.weights(data) @ self.loss_in(terms).value(data["x"] @ w, data["y"])


@dataclass(frozen=True, eq=False)
class LossCap(LossRows):
    """The mean loss over a subgroup is at most `at_most` (Neyman-Pearson: the loss on label 1).

    Args:
        where: the subgroup: `fd.label(v)`, `fd.group(v)` or a function of the data giving a mask.
        at_most: the limit, a number; or one for each client, as a list or as a dict by name; None where there is none.
        loss: another loss than the problem's.
        skip: "undefined" leaves out clients where a subgroup is empty, which the certificate then names.
        scope: "local", "global" or "coupled".
        kind: "<=" or "==".

    Example:
        >>> import foedus as fd
        >>> fd.constraints.LossCap(fd.label(1), at_most=0.3).scope
        'local'
    """

    where: Mask
    at_most: Limit

    @property
    def convex(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loss is None or self.loss.convex  # the objective's loss is judged with the objective

    def labels(self, terms: Terms, data: Data) -> list[str]:
        return [f"loss on {_words(self.where)}"]

    def means(self, data: Data) -> Array:
        return _mean_weights(data, self.where)[None, :]

    def masks(self) -> tuple[Mask, ...]:
        return (self.where,)


def check_caps(terms: Terms) -> None:
    """Raise where a cap is at a mean loss of 0 or below that no model has, because the loss is always above 0."""
    for constraint in terms.constraints:
        if not isinstance(constraint, LossCap) or not constraint.loss_in(terms).above_zero:
            continue
        limit, loss = constraint.limit, constraint.loss_in(terms)
        by_name = limit.items() if isinstance(limit, Mapping) else [("", limit)]
        for name, one in by_name:
            if isinstance(one, Real) and float(one) <= 0.0:
                raise FoedusError(
                    f"The 'at_most' of LossCap{f' of {name!r}' if name else ''} must be a number > 0: the "
                    f"{loss.words or loss.name} is above 0 for every model, so that none keeps a cap of {one:g}."
                )


@dataclass(frozen=True, eq=False)
class LossGap(LossRows):
    """The mean losses over two subgroups differ by at most `at_most`: two one-sided rows, neither convex.

    Args:
        first: one subgroup: `fd.label(v)`, `fd.group(v)` or a function of the data giving a mask.
        second: the other subgroup.
        at_most: the largest difference, >= 0; or one for each client, as a list or as a dict by name; None where there
            is none.
        loss: another loss than the problem's.
        skip: "undefined" leaves out clients where a subgroup is empty, which the certificate then names.
        scope: "local", "global" or "coupled".

    Example:
        >>> import foedus as fd
        >>> gap = fd.constraints.LossGap(fd.group(0), fd.group(1), at_most=0.05, scope="coupled")
        >>> gap.convex
        False
    """

    first: Mask
    second: Mask
    at_most: Limit
    convex: ClassVar[bool] = False
    count: ClassVar[int] = 2
    least: ClassVar[tuple[float, str]] = (np.nextafter(0.0, -1.0), "a number >= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.equality:
            raise FoedusError("A LossGap is an inequality; use at_most=0 to ask for equal losses.")

    def labels(self, terms: Terms, data: Data) -> list[str]:
        a, b = _words(self.first), _words(self.second)
        what = "loss" if self.loss is None else self.loss.name.replace("_", " ")
        return [f"{what} on {a} − {b}", f"{what} on {b} − {a}"]

    def means(self, data: Data) -> Array:
        gap = _mean_weights(data, self.first) - _mean_weights(data, self.second)
        return jnp.stack([gap, -gap])

    def masks(self) -> tuple[Mask, ...]:
        return (self.first, self.second)


class Linear(Constraint):
    """The linear constraint C·w ≤ d, or C·w = d.

    The matrices are stored among the parties' arrays, so problems that differ only in them share a compiled program.

    Args:
        C: a matrix (rows, dim) for all clients; or one for each, as a list, a dict by name or an array (clients, rows,
            dim).
        d: the right-hand side, (rows,); or one for each client likewise.
        kind: "<=" or "==".
        scope: "local", "global" or "coupled".

    Example:
        >>> import foedus as fd, numpy as np
        >>> sites = [(np.eye(2), np.array([1.0, 2.0]))]
        >>> sum_is_one = fd.constraints.Linear([[1.0, 1.0]], [1.0], "==")
        >>> fd.Problem(sites, loss=fd.losses.least_squares, constraints=[sum_is_one]).terms.rows
        (1, 0, 0)
    """

    key: str
    _coefficients: tuple[ByClient | None, ByClient | None]

    def __init__(self, C: ByClient | None, d: ByClient | None, kind: str = "<=", *, scope: str = "local"):
        for name, value in (("scope", scope), ("kind", kind), ("key", "")):
            object.__setattr__(self, name, value)
        super().__post_init__()
        object.__setattr__(self, "_coefficients", (C, d))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Linear) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((type(self), self.scope, self.kind, self.key))

    def with_key(self, number: int, names: list[str]) -> "Linear":
        """Return this constraint with the name under which its matrices lie beside a party's data."""
        copy = object.__new__(Linear)
        for name, value in (("scope", self.scope), ("kind", self.kind), ("_coefficients", self._coefficients)):
            object.__setattr__(copy, name, value)
        object.__setattr__(copy, "key", f"linear{number}")
        return copy

    def __repr__(self) -> str:
        return f"Linear(kind={self.kind!r}, scope={self.scope!r})"

    def arrays(self, clients: int, dim: int, names: list[str]) -> dict[str, np.ndarray]:
        try:
            parts = (
                by_client(part, names, "Linear") if isinstance(part, Mapping) else part for part in self._coefficients
            )
            C, d = (np.asarray(part, dtype=float) for part in parts)
        except (TypeError, ValueError) as error:
            if isinstance(error, FoedusError):
                raise
            raise FoedusError("Linear: C and d must hold numbers, and as many rows for each client.") from None
        if C.ndim == 1:
            C = C[None, :]
        if C.ndim == 2:
            C = np.broadcast_to(C, (clients, *C.shape))
        if d.ndim == 0:
            d = d[None]
        if d.ndim == 1 and not (d.shape[0] == clients and clients != C.shape[1]):
            d = np.broadcast_to(d, (clients, d.shape[0]))
        elif d.ndim == 1:
            d = d[:, None]
        if C.ndim != 3 or C.shape[0] != clients or C.shape[2] != dim or d.shape != C.shape[:2]:
            raise FoedusError(
                f"Linear: C must have {dim} columns and d one entry per row of C, for one party or for {clients}. "
                f"Got C of shape {C.shape} and d of shape {d.shape} instead."
            )
        if not (np.all(np.isfinite(C)) and np.all(np.isfinite(d))):
            raise FoedusError("Linear: C and d must be finite numbers.")
        return {f"{self.key}.C": C, f"{self.key}.d": d}

    def labels(self, terms: Terms, data: Data) -> list[str]:
        count = data[f"{self.key}.d"].shape[-1]
        return ["linear" if count == 1 else f"linear row {i}" for i in range(count)]

    def caps(self, terms: Terms, data: Data) -> Array:
        return data[f"{self.key}.d"]

    def value(self, terms: Terms, w: Array, data: Data) -> Array:
        return data[f"{self.key}.C"] @ w


def by_client(values: Mapping[str, T], names: list[str], what: str) -> list[T]:
    """Return the values that are given by name in the order of the clients."""
    for name in names:
        if name not in values:
            raise FoedusError(f"{what} gives nothing for client {name!r}.{did_you_mean(name, values)}")
    for name in values:
        if name not in names:
            raise FoedusError(f"{what} is given for {name!r}, but there is no such client.{did_you_mean(name, names)}")
    return [values[name] for name in names]


@dataclass(frozen=True, eq=False)
class NormBall(Capped):
    """The ball ‖w‖ ≤ radius, as the smooth row ‖w‖² − radius².

    Args:
        radius: its radius, > 0; or one for each client, as a list or as a dict by name.
        scope: "local" or "global".

    Example:
        >>> import foedus as fd
        >>> fd.constraints.NormBall(2.0, scope="global").radius
        2.0
    """

    radius: Limit
    limit_name: ClassVar[str] = "radius"
    least: ClassVar[tuple[float, str]] = (0.0, "a number > 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.equality:
            raise FoedusError("A NormBall is an inequality; a sphere is not convex and not offered.")

    def labels(self, terms: Terms, data: Data) -> list[str]:
        return ["‖w‖²"]

    def cap_from(self, limit: np.ndarray) -> np.ndarray:
        return limit**2

    def value(self, terms: Terms, w: Array, data: Data) -> Array:
        return jnp.sum(w**2)[None]


@dataclass(frozen=True)
class Custom(Constraint):
    """Your own rows, which must be ≤ 0 or = 0.

    Args:
        fn: `fn(w, data)`, a scalar or a vector, differentiable in JAX; take means over examples with
            `data.mean(values)`.
        name: what messages and reports call it; the function's name when left out.
        is_convex: say True only where every row is convex in w.
        scope: "local", "global" or "coupled".
        kind: "<=" or "==".

    Example:
        >>> import foedus as fd
        >>> def below_one(w, data):
        ...     return data.mean(data.x @ w) - 1.0
        >>> fd.constraints.Custom(below_one, is_convex=True).convex
        True
    """

    fn: Callable[[PyTree, Data], Array]
    name: str = ""
    is_convex: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise FoedusError(f"The 'fn' of Custom must be a function of (w, data). Got {self.fn!r} instead.")

    @property
    def convex(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.is_convex

    def masks(self) -> tuple[Mask, ...]:
        return subsets_of(self.fn)

    def _count(self, terms: Terms, data: Data) -> int:
        out = jax.eval_shape(lambda d: jnp.ravel(self.fn(terms.shape.unravel(jnp.zeros(terms.dim)), d)), data)
        return out.shape[0]

    def labels(self, terms: Terms, data: Data) -> list[str]:
        name = self.name or getattr(self.fn, "__name__", "custom")
        count = self._count(terms, data)
        return [name] if count == 1 else [f"{name} row {i}" for i in range(count)]

    def caps(self, terms: Terms, data: Data) -> Array:
        return jnp.zeros(self._count(terms, data))

    def value(self, terms: Terms, w: Array, data: Data) -> Array:
        return jnp.ravel(self.fn(terms.shape.unravel(w), data))


def _words(mask: Mask) -> str:
    if dataclasses.is_dataclass(mask):
        return str(mask)
    return getattr(mask, "__name__", "a subgroup")
