"""Problem: the clients' data, checked at the door and stacked, together with the terms they agree on."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from foedus.errors import FoedusError
from foedus.losses import Loss, as_loss
from foedus.penalties import Penalty
from foedus.regularizers import Regularizer, Zero
from foedus.terms import Data, Mask, Shape, Terms

Client = tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Stacked:
    """Clients' arrays on a leading client axis, ragged ones filled up with rows of weight 0.

    Give one to `Problem` when there are too many clients for a Python list: `Stacked({"x": (n, rows, dim), "y":
    (n, rows)})`, with `counts` where clients have fewer rows than the rectangle.
    """

    arrays: Mapping[str, Any]
    counts: Any = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        lengths = {k: np.shape(v)[0] for k, v in self.arrays.items()}
        if not lengths or len(set(lengths.values())) != 1 or next(iter(lengths.values())) == 0:
            raise FoedusError(f"stacked arrays need one common number of clients > 0. Got {lengths} instead.")

    @property
    def clients(self) -> int:
        return np.shape(next(iter(self.arrays.values())))[0]

    @property
    def rows(self) -> int:
        key = next((k for k in ("x", "y") if k in self.arrays), next(iter(self.arrays)))
        shape = np.shape(self.arrays[key])
        return shape[1] if len(shape) > 1 else 1

    def name(self, i: int) -> str:
        return self.names[i] if self.names is not None else str(i)

    def uids(self) -> np.ndarray:
        """Two words per client that depend on its own name alone; they key the client's random draws. (n, 2)"""
        if self.names is None:
            return np.stack([np.zeros(self.clients, np.uint32), np.arange(self.clients, dtype=np.uint32)], axis=1)
        digests = [hashlib.sha256(name.encode()).digest()[:8] for name in self.names]
        return np.frombuffer(b"".join(digests), dtype=np.uint32).reshape(-1, 2)

    def data(self) -> Data:
        counts = np.full(self.clients, self.rows) if self.counts is None else np.asarray(self.counts)
        weight = (np.arange(self.rows)[None, :] < counts[:, None]).astype(float)
        arrays = {k: jnp.asarray(np.asarray(v), dtype=_dtype(v)) for k, v in self.arrays.items()}
        return Data(arrays | {"weight": jnp.asarray(weight)})


def _dtype(array: Any) -> Any:
    return float if np.issubdtype(np.asarray(array).dtype, np.number) or np.asarray(array).dtype == bool else None


def _arrays_of(name: str, client: Any) -> dict[str, np.ndarray]:
    """One client's arrays by name, from any of the accepted forms."""
    if isinstance(client, Mapping):
        named = dict(client)
    elif isinstance(client, tuple | list) and len(client) in (2, 3):
        named = dict(zip(("x", "y", "group"), client, strict=False))
    else:
        raise FoedusError(
            f"client {name!r}: expected (X, y), (X, y, group) or a dict of arrays. Got {type(client).__name__} instead."
        )
    arrays = {}
    for key, value in named.items():
        if key == "weight":
            raise FoedusError(f"client {name!r}: the array name 'weight' is taken; call yours something else.")
        try:
            array = np.asarray(value)
            if array.dtype.kind not in "biuf":
                array = array.astype(float)
        except (TypeError, ValueError):
            found = getattr(np.asarray(value, dtype=object), "dtype", "objects")
            raise FoedusError(f"client {name!r}: {_title(key)} must hold numbers. Got {found} instead.") from None
        arrays[key] = array
    if not arrays:
        raise FoedusError(f"client {name!r}: it holds no arrays.")
    return arrays


def _title(key: str) -> str:
    return {"x": "X"}.get(key, key)


def _row_count(name: str, arrays: dict[str, np.ndarray]) -> int:
    key = next((k for k in ("x", "y") if k in arrays), next(iter(arrays)))
    if arrays[key].ndim == 0:
        return 1
    if "x" in arrays and arrays["x"].ndim != 2:
        raise FoedusError(f"client {name!r}: X must have 2 axes (rows, columns). Got shape {arrays['x'].shape} instead.")
    if len(arrays[key]) == 0:
        raise FoedusError(f"client {name!r}: it has no examples; drop the client or merge it with another.")
    for other in ("y", "group"):
        if "x" in arrays and other in arrays and arrays[other].shape != (len(arrays["x"]),):
            raise FoedusError(
                f"client {name!r}: {other} must have one entry per row of X ({len(arrays['x'])}). "
                f"Got shape {arrays[other].shape} instead."
            )
    return len(arrays[key])


def stack(clients: "Sequence[Client] | Mapping[str, Client] | Stacked") -> Stacked:
    """Check the clients' arrays and put them on a leading axis, filling ragged ones with copies of their last row."""
    if isinstance(clients, Stacked):
        _check_finite(clients)
        return clients
    if isinstance(clients, Mapping):
        names, members = tuple(str(k) for k in clients), list(clients.values())
    else:
        members = list(clients)
        names = None
    if not members:
        raise FoedusError("a problem needs at least one client. Got none.")
    called = names or tuple(str(i) for i in range(len(members)))
    arrays = [_arrays_of(n, c) for n, c in zip(called, members, strict=True)]
    counts = np.array([_row_count(n, a) for n, a in zip(called, arrays, strict=True)])
    keys = list(arrays[0])
    for name, mine in zip(called, arrays, strict=True):
        if set(mine) != set(keys):
            raise FoedusError(f"client {name!r}: it has arrays {sorted(mine)}, but client {called[0]!r} has {sorted(keys)}.")
    stacked = {key: _stack_one(key, called, [a[key] for a in arrays], counts) for key in keys}
    result = Stacked(stacked, None if len(set(counts)) == 1 else counts, names)
    _check_finite(result)
    return result


def _stack_one(key: str, names: Sequence[str], arrays: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
    first = arrays[0]
    for name, array in zip(names, arrays, strict=True):
        if array.shape[1:] != first.shape[1:] or array.ndim != first.ndim:
            if key == "x":
                raise FoedusError(
                    f"client {name!r}: X has {array.shape[1]} columns, but client {names[0]!r} has {first.shape[1]}."
                )
            raise FoedusError(
                f"client {name!r}: {key} has shape {array.shape}, but client {names[0]!r} has {first.shape}."
            )
    if all(a.shape == first.shape for a in arrays):
        return np.stack(arrays).astype(float)
    for name, array, count in zip(names, arrays, counts, strict=True):
        if len(array) != count:
            raise FoedusError(f"client {name!r}: {key} has {len(array)} rows, but the client has {count} examples.")
    out = np.empty((len(arrays), int(counts.max()), *first.shape[1:]))
    for i, (array, count) in enumerate(zip(arrays, counts, strict=True)):
        out[i, :count] = array
        out[i, count:] = array[-1]
    return out


def _check_finite(stacked: Stacked) -> None:
    for key, array in stacked.arrays.items():
        array = np.asarray(array)
        if array.dtype.kind != "f" or np.isfinite(np.sum(array)):
            continue
        bad = np.argwhere(~np.isfinite(array))
        if len(bad) == 0:
            continue  # the sum overflowed; every entry is finite
        where = bad[0]
        value = float(array[tuple(where)])
        words = [f"{axis} {int(k)}" for axis, k in zip(("row", "column", "axis 3", "axis 4"), where[1:], strict=False)]
        raise FoedusError(
            f"client {stacked.name(int(where[0]))!r}: {_title(key)} has {value!r} at {', '.join(words) or 'its only entry'}; "
            "expected finite numbers."
        )


def _check_labels(stacked: Stacked, loss: Loss) -> None:
    y = np.asarray(stacked.arrays["y"])
    found = set(np.unique(y).tolist())
    if found <= {0.0, 1.0} or found <= {-1.0, 1.0}:
        return
    wrong = sorted(found - {0.0, 1.0}) if 0.0 in found else sorted(found - {-1.0, 1.0})
    client, row = np.argwhere(y == wrong[0])[0]
    raise FoedusError(
        f"client {stacked.name(int(client))!r}: y has the label {wrong[0]:g} at row {row}; "
        f"{loss.name} expects 0/1 or -1/+1 at every client."
    )


class Problem:
    """A federated problem: minimise (1/n) Σ f_i(w) + h(w) subject to constraints (SPEC 1).

    Args:
        clients: a list, or a dict by name, of `(X, y)`, `(X, y, group)` or dicts of arrays; or a `Stacked`.
        loss: a per-example loss of xᵀw, from `fd.losses` or your own elementwise `fn(z, y)`.
        objective: instead of `loss`, any `objective(w, data) -> scalar` in JAX; take means with `data.mean(values)`.
        where: the examples that count in f_i: `fd.label(v)`, `fd.group(v)` or a function of the data giving a mask.
        penalty: a smooth term of each f_i, from `fd.penalties`.
        constraints: from `fd.constraints`.
        regularizer: h, from `fd.regularizers`.
        server: data that the server itself holds, in the form of one client; for constraints of global scope.
    """

    def __init__(
        self,
        clients: "Sequence[Client] | Mapping[str, Client] | Stacked",
        *,
        loss: "Loss | Callable[[Array, Array], Array] | None" = None,
        objective: Callable[[Any, Data], Array] | None = None,
        where: Mask | None = None,
        penalty: Penalty | None = None,
        constraints: Sequence[Any] = (),
        regularizer: Regularizer | None = None,
        server: Client | None = None,
    ):
        if (loss is None) == (objective is None):
            raise FoedusError("a problem needs either loss= or objective=, and not both.")
        self.stacked = stack(clients)
        arrays = self.stacked.arrays
        checked_loss = None if loss is None else as_loss(loss)
        if checked_loss is not None:
            for key in ("x", "y"):
                if key not in arrays:
                    raise FoedusError(f"loss= needs clients with X and y; array {key!r} is missing, found {list(arrays)}.")
            if checked_loss.kind == "classification":
                _check_labels(self.stacked, checked_loss)
        width = np.shape(arrays["x"])[2] if "x" in arrays else None
        self.data: Data = self.stacked.data()
        self.server: Data | None = None if server is None else _server_data(server, width)
        self.terms = Terms(
            clients=self.stacked.clients,
            shape=Shape.of(np.zeros(width)) if width is not None else Shape.of(np.zeros(0)),
            loss=checked_loss,
            objective=objective,
            where=where,
            penalty=penalty,
            regularizer=regularizer or Zero(),
            constraints=tuple(constraints),
        )
        self.terms.regularizer.check(self.terms.dim) if width is not None else None
        if where is not None:
            self._check_mask(where, "its objective")

    @property
    def names(self) -> list[str]:
        return [self.stacked.name(i) for i in range(self.terms.clients)]

    @property
    def counts(self) -> np.ndarray:
        """The number of examples of each client."""
        return np.asarray(jnp.sum(self.data["weight"], axis=1)).astype(int)

    def over(self, w0: Any) -> "Problem":
        """This problem with its parameters shaped like `w0`."""
        shape = Shape.of(w0)
        if self.terms.linear and shape != self.terms.shape:
            raise FoedusError(f"w0 must be a vector of {self.terms.dim} numbers. Got shapes {list(shape.shapes)} instead.")
        if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(w0)):
            raise FoedusError("w0 has an entry that is not finite.")
        problem = object.__new__(Problem)
        problem.__dict__.update(self.__dict__)
        problem.terms = replace(self.terms, shape=shape)
        problem.terms.regularizer.check(shape.dim)
        if self.terms.objective is not None:
            problem._check_objective(w0)
        return problem

    def client(self, i: int) -> Data:
        """One client's arrays without filling rows."""
        count = int(self.counts[i])
        arrays = {k: v[i] for k, v in self.data.items()}
        rows = self.stacked.rows
        return Data({k: v[:count] if v.ndim and v.shape[0] == rows else v for k, v in arrays.items()})

    def _check_mask(self, where: Mask, what: str) -> None:
        chosen = np.asarray(jax.vmap(lambda d: jnp.sum(d["weight"] * where(d)))(self.data))
        if np.any(chosen == 0):
            name = self.stacked.name(int(np.argmin(chosen)))
            raise FoedusError(f"client {name!r}: no example has {where}, so {what} is undefined; drop or merge the client.")

    def _check_objective(self, w0: Any) -> None:
        """A user's objective must give a finite scalar, and must not see the rows that fill a ragged client."""
        objective = self.terms.objective
        assert objective is not None
        small = int(np.argmin(self.counts))
        name = self.stacked.name(small)
        filled = objective(w0, Data({k: v[small] for k, v in self.data.items()}))
        if jnp.shape(filled) != ():
            raise FoedusError(f"client {name!r}: objective must return a scalar. Got shape {jnp.shape(filled)} instead.")
        if not np.isfinite(filled):
            raise FoedusError(f"client {name!r}: the objective at w0 is {float(filled)!r}; expected a finite number.")
        if self.stacked.counts is None:
            return
        exact = objective(w0, self.client(small))
        if not np.isclose(filled, exact, rtol=1e-9, atol=1e-12):
            raise FoedusError(
                f"client {name!r}: the objective changes when the client is filled up with rows of weight 0; "
                "take means over examples with data.mean(values), which leaves them out."
            )

    def __repr__(self) -> str:
        counts = self.counts
        what = self.terms.loss.name if self.terms.loss else getattr(self.terms.objective, "__name__", "objective")
        size = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"
        return f"Problem({self.terms.clients} clients of {size} examples, {what}, {len(self.terms.constraints)} constraints)"


def _server_data(server: Client, width: int | None) -> Data:
    arrays = _arrays_of("server", server)
    rows = _row_count("server", arrays)
    if width is not None and "x" in arrays and arrays["x"].shape[1] != width:
        raise FoedusError(f"server: X has {arrays['x'].shape[1]} columns, but the clients have {width}.")
    _check_finite(Stacked({k: v[None] for k, v in arrays.items()}, names=("server",)))
    named = {k: jnp.asarray(v, dtype=float) for k, v in arrays.items()}
    return Data(named | {"weight": jnp.ones(rows)})
