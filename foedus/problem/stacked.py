"""The clients' data: any of the accepted forms, checked and stacked on a leading client axis."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from foedus.base.errors import FoedusError
from foedus.base.pytrees import device_array
from foedus.problem.losses import Loss
from foedus.problem.terms import Data
from foedus.problem.weights import FACTOR

ALIGNMENT = 64  # bytes
SMALL = 256  # rows of all sites together; padding up to this number costs less than compiling for another shape
LARGE = 2**25  # bytes of an array, from which filling costs more than compiling

Client = tuple[ArrayLike, ...] | Mapping[str, ArrayLike]


@runtime_checkable
class PreparedSites(Protocol):
    """Sites whose rows were made numbers by rules, as `fd.data.prepare` returns them."""

    @property
    def sites(self) -> Mapping[str, "Client"]: ...

    @property
    def rules(self) -> object: ...


@dataclass(frozen=True)
class Stacked:
    """Arrays of many clients on a leading client axis; a client with fewer rows is filled up with rows of weight 0.

    Give one to `Problem` when there are too many clients for a Python list.

    Args:
        arrays: the arrays by name, each with a leading client axis: `x` (clients, rows, dim), `y` (clients, rows).
        counts: the number of rows that each client really has, (clients,); all rows when left out.
        names: the clients' names; their random draws depend on the name, or on the place when left out.
        rectangles: (clients, rows) of several smaller rectangles, by falling size, that a simulation works on instead
            of one; problems that share them share compiled programs.

    Example:
        >>> import foedus as fd, numpy as np
        >>> arrays = {"x": np.ones((3, 4, 2)), "y": np.zeros((3, 4))}
        >>> clients = fd.data.Stacked(arrays, counts=[4, 2, 3])
        >>> fd.Problem(clients, loss=fd.losses.least_squares).counts.tolist()
        [4, 2, 3]
    """

    arrays: Mapping[str, ArrayLike]
    counts: ArrayLike | None = None
    names: tuple[str, ...] | None = None
    rectangles: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        lengths = {k: np.shape(v)[0] for k, v in self.arrays.items()}
        if not lengths or len(set(lengths.values())) != 1 or next(iter(lengths.values())) == 0:
            raise FoedusError(f"stacked arrays need one common number of clients > 0. Got {lengths} instead.")
        for key in ("y", "group") if "x" in self.arrays else ():
            if key in self.arrays and np.shape(self.arrays[key])[:2] != (self.clients, self.rows):
                shape = np.shape(self.arrays[key])
                raise FoedusError(f"stacked {key} must have one entry for each of {self.rows} rows. Got shape {shape}.")
        if self.names is not None and len(set(self.names)) != self.clients:
            raise FoedusError(f"stacked arrays of {self.clients} clients need as many different names.")
        if self.counts is not None:
            self._check_counts(np.asarray(self.counts))
        if self.rectangles is not None:
            self._check_rectangles(self.rectangles)

    def _check_rectangles(self, rectangles: tuple[tuple[int, int], ...]) -> None:
        if sum(many for many, _ in rectangles) != self.clients or any(many < 1 for many, _ in rectangles):
            raise FoedusError(f"stacked rectangles must hold {self.clients} clients in all. Got {rectangles} instead.")
        counts = np.full(self.clients, self.rows) if self.counts is None else np.asarray(self.counts)
        room = np.repeat([rows for _, rows in rectangles], [many for many, _ in rectangles])
        if np.any(np.sort(counts)[::-1] > room) or np.max(room) > self.rows:
            raise FoedusError(f"stacked rectangles {rectangles} do not hold the clients' rows.")

    def _check_counts(self, counts: np.ndarray) -> None:
        if counts.shape != (self.clients,):
            raise FoedusError(f"stacked counts must have {self.clients} entries. Got shape {counts.shape} instead.")
        wrong = (counts < 1) | (counts > self.rows)
        if np.any(wrong):
            i = int(np.argmax(wrong))
            name = self.name(i)
            if counts[i] < 1:
                raise FoedusError(f"client {name!r}: it has no examples; drop the client or merge it with another.")
            raise FoedusError(f"client {name!r}: its count is {counts[i]}, but it has only {self.rows} rows.")

    @property
    def clients(self) -> int:
        """The number of clients."""
        return np.shape(next(iter(self.arrays.values())))[0]

    @property
    def rows(self) -> int:
        """The rows of the rectangle: as many as the largest client needs."""
        key = next((k for k in ("x", "y") if k in self.arrays), next(iter(self.arrays)))
        shape = np.shape(self.arrays[key])
        return shape[1] if len(shape) > 1 else 1

    def name(self, i: int) -> str:
        """The name of a client; its place, as text, where clients have none."""
        return self.names[i] if self.names is not None else str(i)

    def uids(self) -> np.ndarray:
        """Two 32-bit words per client, from its name alone, that key the client's random draws. (n, 2)"""
        if self.names is None:
            return np.stack([np.zeros(self.clients, np.uint32), np.arange(self.clients, dtype=np.uint32)], axis=1)
        digests = [hashlib.sha256(name.encode()).digest()[:8] for name in self.names]
        return np.frombuffer(b"".join(digests), dtype=np.uint32).reshape(-1, 2)

    def data(self) -> Data:
        """The arrays for JAX, with `weight`: 1 for an example and 0 for a row that only fills the rectangle."""
        counts = np.full(self.clients, self.rows) if self.counts is None else np.asarray(self.counts)
        weight = (np.arange(self.rows)[None, :] < counts[:, None]).astype(float)
        arrays = {k: device_array(np.asarray(v, dtype=_dtype(v))) for k, v in self.arrays.items()}
        return Data(arrays | {"weight": device_array(weight)})


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array without content that begins where JAX wants it, so that JAX takes it over without a copy."""
    size = 8 * int(np.prod(shape, dtype=np.int64))
    room = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(np.float64).reshape(shape)


def few_heights(rows: int) -> int:
    """Return the next of a few numbers of rows: four to each power of two, so that at most a quarter is filling."""
    step = 2 ** (max(rows, 4).bit_length() - 3)
    return max(rows, 4) + -max(rows, 4) % step


def pad_rows(sites: Stacked) -> Stacked:
    """Pad all sites with rows of weight 0, up to one of a few numbers of rows.

    JAX compiles a program for each shape. After padding, the folds of a cross-validation share one program, and so do
    most small problems.
    """
    filling = few_heights(max(sites.rows, SMALL // sites.clients)) - sites.rows
    arrays = {
        key: np.pad(array, [(0, 0), (0, filling)] + [(0, 0)] * (np.ndim(array) - 2), mode="edge")
        for key, array in sites.arrays.items()
    }
    counts = np.full(sites.clients, sites.rows) if sites.counts is None else sites.counts
    return Stacked(arrays, counts, sites.names)


def _dtype(array: ArrayLike) -> type[float] | None:
    return float if np.issubdtype(np.asarray(array).dtype, np.number) or np.asarray(array).dtype == bool else None


def _arrays_of(name: str, client: object) -> dict[str, np.ndarray]:
    """One client's arrays by name, from any of the accepted forms."""
    if isinstance(client, Mapping):
        by_name = dict(client)
    elif isinstance(client, tuple | list) and len(client) in (2, 3):
        by_name = dict(zip(("x", "y", "group"), client, strict=False))
    else:
        raise FoedusError(
            f"client {name!r}: expected (X, y), (X, y, group) or a dict of arrays. Got {type(client).__name__} instead."
        )
    arrays = {}
    for key, value in by_name.items():
        if key in ("weight", FACTOR):
            raise FoedusError(f"client {name!r}: the array name {key!r} is taken; call yours something else.")
        try:
            array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)  # a sparse table of SciPy
            if array.dtype.kind == "c":
                raise TypeError
            if array.dtype.kind not in "biuf":
                array = array.astype(float)
        except (TypeError, ValueError):
            kind = getattr(np.asarray(value, dtype=object), "dtype", "objects")
            raise FoedusError(f"client {name!r}: {_title(key)} must hold numbers. Got {kind} instead.") from None
        arrays[key] = array
    if not arrays:
        raise FoedusError(f"client {name!r}: it holds no arrays.")
    return arrays


def _title(key: str) -> str:
    return {"x": "X"}.get(key, key)


def _row_count(name: str, arrays: dict[str, np.ndarray]) -> int:
    key = next((k for k in ("x", "y") if k in arrays), next(iter(arrays)))
    if "x" in arrays and arrays["x"].ndim == 0:
        raise FoedusError(f"client {name!r}: X must have 2 axes (rows, columns). Got shape () instead.")
    if arrays[key].ndim == 0:
        return 1
    if len(arrays[key]) == 0:
        raise FoedusError(f"client {name!r}: it has no examples; drop the client or merge it with another.")
    for other in ("y", "group"):
        if "x" in arrays and other in arrays and arrays[other].shape[:1] != arrays["x"].shape[:1]:
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
    elif isinstance(clients, Iterable):
        members = list(clients)
        names = None
    else:
        raise FoedusError(f"clients must be a list, a dict by name or a Stacked. Got {type(clients).__name__} instead.")
    if not members:
        raise FoedusError("a problem needs at least one client. Got none.")
    labels = names or tuple(str(i) for i in range(len(members)))
    arrays = [_arrays_of(n, c) for n, c in zip(labels, members, strict=True)]
    counts = np.array([_row_count(n, a) for n, a in zip(labels, arrays, strict=True)])
    keys = list(arrays[0])
    for name, mine in zip(labels, arrays, strict=True):
        if set(mine) != set(keys):
            raise FoedusError(
                f"client {name!r}: it has arrays {sorted(mine)}, but client {labels[0]!r} has {sorted(keys)}."
            )
    height = _height(arrays, counts)
    by_key = {key: _stack_one(key, labels, [a[key] for a in arrays], counts, height) for key in keys}
    result = Stacked(by_key, None if len(set(counts)) == 1 else counts, names)
    _check_finite(result)
    return result


def _height(arrays: Sequence[Mapping[str, np.ndarray]], counts: np.ndarray) -> int:
    """The rows of the rectangle: one of a few numbers, so that another division of the rows needs no new program.

    Where the arrays are large it is what the largest client needs.
    """
    height = few_heights(int(counts.max()))
    numbers = max(int(np.prod(array.shape[1:])) for array in arrays[0].values())
    return int(counts.max()) if 8 * len(arrays) * height * numbers > LARGE else height


def _stack_one(key: str, names: Sequence[str], arrays: list[np.ndarray], counts: np.ndarray, height: int) -> np.ndarray:
    first = arrays[0]
    for name, array in zip(names, arrays, strict=True):
        if array.shape[1:] != first.shape[1:] or array.ndim != first.ndim:
            if key == "x" and array.ndim == first.ndim == 2:
                raise FoedusError(
                    f"client {name!r}: X has {array.shape[1]} columns, but client {names[0]!r} has {first.shape[1]}."
                )
            raise FoedusError(
                f"client {name!r}: {key} has shape {array.shape}, but client {names[0]!r} has {first.shape}."
            )
    if all(a.shape == first.shape for a in arrays):
        whole = aligned((len(arrays), *first.shape))
        for place, array in zip(whole, arrays, strict=True) if first.ndim else ():
            place[...] = array
        return whole if first.ndim else np.array(arrays, dtype=float)
    for name, array, count in zip(names, arrays, counts, strict=True):
        if len(array) != count:
            raise FoedusError(f"client {name!r}: {key} has {len(array)} rows, but the client has {count} examples.")
    out = aligned((len(arrays), height, *first.shape[1:]))
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
            f"client {stacked.name(int(where[0]))!r}: {_title(key)} has {value!r} at "
            f"{', '.join(words) or 'its only entry'}; expected finite numbers."
        )


def check_rows(stacked: Stacked, targets: int = 1) -> None:
    """Raise where the clients' arrays are not those of a linear model: a row of X and a number y for each example."""
    for key in ("x", "y"):
        if key not in stacked.arrays:
            raise FoedusError(
                f"loss= needs clients with X and y; array {key!r} is missing, found {list(stacked.arrays)}."
            )
    name, x = stacked.name(0), np.shape(stacked.arrays["x"])[1:]
    if len(x) != 2:
        raise FoedusError(f"client {name!r}: X must have 2 axes (rows, columns). Got shape {x} instead.")
    if x[1] == 0:
        raise FoedusError(f"client {name!r}: X has no columns. Got shape {x} instead.")
    for key in ("y", "group"):
        shape = np.shape(stacked.arrays[key])[1:] if key in stacked.arrays else x[:1]
        if key == "y" and targets > 1:
            if shape != (x[0], targets):
                raise FoedusError(
                    f"client {name!r}: y must have {targets} columns, as this loss has an offset or a weight for each "
                    f"row. Got shape {shape} instead."
                )
        elif shape != x[:1]:
            raise FoedusError(
                f"client {name!r}: {key} must have one entry per row of X ({x[0]}). Got shape {shape} instead."
            )


def check_labels(stacked: Stacked, loss: Loss) -> None:
    """Raise where the loss is not defined for a target, as one of classification for a label of 7."""
    y = np.asarray(stacked.arrays["y"])
    wrong = loss.wrong_targets(y)
    if not wrong:
        return
    what = "label" if loss.kind == "classification" else "value"
    client, row, *_ = np.argwhere(y == wrong[0])[0]
    raise FoedusError(
        f"client {stacked.name(int(client))!r}: y has the {what} {wrong[0]:g} at row {row}; "
        f"{loss.name} expects {loss.expects} at every client."
    )


def server_data(server: Client, width: int | None) -> Data:
    """Check the server's own arrays, given in the form of one client; `width` is the number of columns of X."""
    arrays = _arrays_of("server", server)
    rows = _row_count("server", arrays)
    if width is not None and "x" in arrays and arrays["x"].ndim == 2 and arrays["x"].shape[1] != width:
        raise FoedusError(f"server: X has {arrays['x'].shape[1]} columns, but the clients have {width}.")
    _check_finite(Stacked({k: v[None] for k, v in arrays.items()}, names=("server",)))
    numbers = {k: device_array(v.astype(float)) for k, v in arrays.items()}
    return Data(numbers | {"weight": device_array(np.ones(rows))})
