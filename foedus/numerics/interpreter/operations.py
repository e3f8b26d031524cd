"""JAX's operations in NumPy: for each a maker, which takes the parameters and the shapes and returns a function."""

import math
from collections.abc import Sequence

import numpy as np

from foedus.numerics.interpreter import random_bits
from foedus.numerics.interpreter.indexing import COMBINE, make_gather, make_scatter
from foedus.numerics.interpreter.linear_algebra import make_cholesky, make_dot, make_eigh, make_triangular
from foedus.numerics.interpreter.marks import MARK
from foedus.numerics.interpreter.shapes import CannotInterpret, Operation, Shaped

# --- one element at a time ---


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    quotient = np.floor_divide(np.abs(x), np.abs(y))  # XLA rounds towards 0
    return np.sign(x) * np.sign(y) * quotient


def _integer_power(params: dict, x: Shaped, out: Shaped) -> Operation:
    power = int(params["y"])
    if power == 2:
        return np.square
    if power >= 0:
        return lambda a: np.power(a, power)
    return lambda a: 1.0 / np.power(a, -power)


def _round(params: dict, x: Shaped, out: Shaped) -> Operation:
    if int(params["rounding_method"]) == 1:
        return np.rint
    return lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a)


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _select(params: dict, which: Shaped, *cases: Shaped) -> Operation:
    if which.dtype == bool and not which.shape:
        return lambda w, no, yes: yes if w else no
    if which.dtype == bool:
        return lambda w, no, yes: np.where(w, yes, no)
    return lambda w, *values: np.choose(w, values)


def _convert(params: dict, x: Shaped, out: Shaped) -> Operation:
    source, target = np.dtype(x.dtype), np.dtype(params["new_dtype"])
    if source == target:
        return np.asarray
    if source.kind == "f" and target.kind in "iu":
        limits = np.iinfo(target)
        low, high = float(limits.min), float(np.nextafter(float(limits.max), 0.0))
        return lambda a: np.clip(np.nan_to_num(a, nan=0.0), low, high).astype(target)
    return lambda a: np.asarray(a).astype(target)


def _bitcast(params: dict, x: Shaped, out: Shaped) -> Operation:
    target = np.dtype(params["new_dtype"])
    if np.dtype(x.dtype).itemsize != target.itemsize:
        raise CannotInterpret("bitcast_convert_type between sizes")
    return lambda a: np.ascontiguousarray(a).view(target).reshape(out.shape)


def _reduce_precision(params: dict, x: Shaped, out: Shaped) -> Operation:
    if (params["exponent_bits"], params["mantissa_bits"]) != (11, 52):
        raise CannotInterpret("reduce_precision")
    return np.asarray


def _special(name: str) -> Operation:
    def make(params: dict, *shapes: Shaped) -> Operation:
        from scipy import special

        return getattr(special, name)

    return make


# --- shapes ---


def _broadcast(params: dict, *shapes: Shaped) -> Operation:
    if len(shapes) != 2:
        raise CannotInterpret("broadcast_in_dim to a shape that is computed")
    x, shape = shapes[0], tuple(int(k) for k in params["shape"])
    alignment = [1] * len(shape)
    for axis, place in enumerate(params["broadcast_dimensions"]):
        alignment[int(place)] = x.shape[axis]
    alignment = tuple(alignment)
    if alignment == shape:
        return lambda a: np.reshape(a, shape)
    return lambda a: np.broadcast_to(np.reshape(a, alignment), shape)


def _reshape(params: dict, x: Shaped, out: Shaped) -> Operation:
    return lambda a: np.reshape(a, out.shape)


def _slice(params: dict, x: Shaped, out: Shaped) -> Operation:
    strides = params["strides"] or (1,) * len(x.shape)
    cut = tuple(
        slice(int(a), int(b), int(s))
        for a, b, s in zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    )
    return lambda a: a[cut]


def _pad(params: dict, x: Shaped, value: Shaped, out: Shaped) -> Operation:
    places, source_places = [], []
    for size, (low, _, between), length in zip(x.shape, params["padding_config"], out.shape, strict=True):
        where = int(low) + np.arange(size) * (int(between) + 1)
        inside = (where >= 0) & (where < length)
        places.append(where[inside])
        source_places.append(np.flatnonzero(inside))
    target, source = np.ix_(*places) if places else (), np.ix_(*source_places) if source_places else ()

    def pad(a: np.ndarray, fill: np.ndarray) -> np.ndarray:
        result = np.full(out.shape, fill, dtype=out.dtype)
        result[target] = np.asarray(a)[source]
        return result

    return pad


def _split(params: dict, x: Shaped, *outs: Shaped) -> Operation:
    ends, axis = np.cumsum([int(k) for k in params["sizes"]])[:-1], int(params["axis"])
    return lambda a: tuple(np.split(a, ends, axis=axis))


def _unstack(params: dict, x: Shaped, *outs: Shaped) -> Operation:
    axis = int(params["axis"])
    return lambda a: tuple(np.moveaxis(a, axis, 0))


def _iota(params: dict, *shapes: Shaped) -> Operation:
    shape, axis = tuple(int(k) for k in params["shape"]), int(params["dimension"])
    along = [1] * len(shape)
    along[axis] = shape[axis]
    values = np.broadcast_to(np.arange(shape[axis]).astype(params["dtype"]).reshape(along), shape)
    return lambda: values


def _starts(shape: Sequence[int], size: Sequence[int], at: Sequence[np.ndarray]) -> tuple[slice, ...]:
    """The window of `dynamic_slice`: moved so that it lies inside."""
    first = [min(max(int(i), 0), n - k) for i, n, k in zip(at, shape, size, strict=True)]
    return tuple(slice(i, i + k) for i, k in zip(first, size, strict=True))


def _dynamic_slice(params: dict, x: Shaped, *rest: Shaped) -> Operation:
    size = tuple(int(k) for k in params["slice_sizes"])
    return lambda a, *at: a[_starts(x.shape, size, at)]


def _dynamic_update(params: dict, x: Shaped, part: Shaped, *rest: Shaped) -> Operation:
    def update(a: np.ndarray, new: np.ndarray, *at: np.ndarray) -> np.ndarray:
        result = np.array(a, copy=True)
        result[_starts(x.shape, part.shape, at)] = new
        return result

    return update


def _top(params: dict, x: Shaped, *outs: Shaped) -> Operation:
    many = int(params["k"])
    if params.get("axis", len(x.shape) - 1) not in (-1, len(x.shape) - 1):
        raise CannotInterpret("top_k along another axis than the last")

    def top(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-a, axis=-1, kind="stable")[..., :many]
        return np.take_along_axis(a, order, axis=-1), order.astype(np.int32)

    return top


def _sort(params: dict, *shapes: Shaped) -> Operation:
    axis, keys = int(params["dimension"]), int(params["num_keys"])

    def sort(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        order = np.lexsort(arrays[:keys][::-1], axis=axis)
        return tuple(np.take_along_axis(a, order, axis=axis) for a in arrays)

    return sort


# --- sums and products ---


def _reduction(ufunc: np.ufunc) -> Operation:
    def make(params: dict, x: Shaped, out: Shaped) -> Operation:
        axes, kind = tuple(int(k) for k in params["axes"]), out.dtype
        return lambda a: ufunc.reduce(a, axis=axes, dtype=kind)

    return make


def _extreme(ufunc: np.ufunc, least: bool) -> Operation:
    def make(params: dict, x: Shaped, out: Shaped) -> Operation:
        axes = tuple(int(k) for k in params["axes"])
        if math.prod(x.shape[k] for k in axes):
            return lambda a: ufunc.reduce(a, axis=axes)
        kind = np.dtype(x.dtype)
        if kind.kind == "f":
            nothing = -np.inf if least else np.inf
        elif kind.kind == "b":
            nothing = not least
        else:
            nothing = np.iinfo(kind).min if least else np.iinfo(kind).max
        return lambda a: np.full(out.shape, nothing, dtype=out.dtype)

    return make


def _arg(best: Operation) -> Operation:
    def make(params: dict, x: Shaped, out: Shaped) -> Operation:
        (axis,) = params["axes"]
        return lambda a: np.asarray(best(a, axis=int(axis))).astype(params["index_dtype"])

    return make


def _cumulative(ufunc: np.ufunc) -> Operation:
    def make(params: dict, x: Shaped, out: Shaped) -> Operation:
        axis, kind = int(params["axis"]), out.dtype
        if params["reverse"]:
            return lambda a: np.flip(ufunc.accumulate(np.flip(a, axis), axis=axis, dtype=kind), axis)
        return lambda a: ufunc.accumulate(a, axis=axis, dtype=kind)

    return make


# --- the table ---


def _same(operation: Operation) -> Operation:
    """The maker of an operation that needs no parameters."""
    return lambda params, *shapes: operation


def _by_type(number: Operation, whole: Operation) -> Operation:
    """The maker of an operation that is another one for integers, or for truth values."""

    def make(params: dict, x: Shaped, *rest: Shaped) -> Operation:
        return number if np.dtype(x.dtype).kind == "f" else whole

    return make


def _not(params: dict, x: Shaped, out: Shaped) -> Operation:
    return np.logical_not if x.dtype == bool else np.invert


def _shift_right(params: dict, x: Shaped, *rest: Shaped) -> Operation:
    if np.dtype(x.dtype).kind != "u":
        raise CannotInterpret("shift_right_logical of signed numbers")
    return np.right_shift


def _platform(params: dict, *shapes: Shaped) -> Operation:
    """The branch for processors, of those that are told apart by platform."""
    for place, platforms in enumerate(params["platforms"]):
        if platforms is None or "cpu" in platforms:
            return lambda: np.int32(place)
    raise CannotInterpret("platform_index")


ELEMENTWISE: dict[str, Operation] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "max": np.maximum, "min": np.minimum, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p,
    "expm1": np.expm1, "sqrt": np.sqrt, "cbrt": np.cbrt, "square": np.square, "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "atan2": np.arctan2, "floor": np.floor, "ceil": np.ceil, "pow": np.power,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "is_finite": np.isfinite,
    "nextafter": np.nextafter, "rem": np.fmod, "add_any": np.add, "clamp": _clamp,
    "rsqrt": lambda a: 1.0 / np.sqrt(a), "logistic": lambda a: 1.0 / (1.0 + np.exp(-a)),
    "copy": np.asarray, "copy_p": np.asarray, "stop_gradient": np.asarray,
}  # fmt: skip

MAKERS: dict[str, Operation] = (
    {name: _same(operation) for name, operation in ELEMENTWISE.items()}
    | {
        "div": _by_type(np.divide, _divide),
        "not": _not,
        "integer_pow": _integer_power,
        "round": _round,
        "select_n": _select,
        "convert_element_type": _convert,
        "bitcast_convert_type": _bitcast,
        "reduce_precision": _reduce_precision,
        "erf": _special("erf"),
        "erfc": _special("erfc"),
        "erf_inv": _special("erfinv"),
        "lgamma": _special("gammaln"),
        "digamma": _special("digamma"),
        "broadcast_in_dim": _broadcast,
        "reshape": _reshape,
        "squeeze": _reshape,
        "expand_dims": _reshape,
        "transpose": lambda params, *shapes: lambda a: np.transpose(a, params["permutation"]),
        "rev": lambda params, *shapes: lambda a: np.flip(a, tuple(params["dimensions"])),
        "concatenate": lambda params, *shapes: lambda *a: np.concatenate(a, axis=int(params["dimension"])),
        "stack": lambda params, *shapes: lambda *a: np.stack(a, axis=int(params["axis"])),
        "unstack": _unstack,
        "tile": lambda params, *shapes: lambda a: np.tile(a, tuple(int(k) for k in params["reps"])),
        "slice": _slice,
        "split": _split,
        "pad": _pad,
        "iota": _iota,
        "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update,
        "gather": make_gather,
        "sort": _sort,
        "top_k": _top,
        "reduce_sum": _reduction(np.add),
        "reduce_prod": _reduction(np.multiply),
        "reduce_and": _reduction(np.bitwise_and),
        "reduce_or": _reduction(np.bitwise_or),
        "reduce_max": _extreme(np.maximum, least=True),
        "reduce_min": _extreme(np.minimum, least=False),
        "argmax": _arg(np.argmax),
        "argmin": _arg(np.argmin),
        "cumsum": _cumulative(np.add),
        "cumprod": _cumulative(np.multiply),
        "cummax": _cumulative(np.maximum),
        "cummin": _cumulative(np.minimum),
        "dot_general": make_dot,
        "cholesky": make_cholesky,
        "triangular_solve": make_triangular,
        "eigh": make_eigh,
        "platform_index": _platform,
        MARK: lambda params, *shapes: lambda *a: a,
        "shift_left": _same(np.left_shift),
        "shift_right_logical": _shift_right,
        "random_wrap": _same(np.asarray),
        "random_unwrap": _same(np.asarray),
        "random_seed": _same(random_bits.key_words),
        "random_fold_in": _same(random_bits.fold_in),
        "random_split": lambda params, *shapes: lambda keys: random_bits.split(keys, params["shape"]),
        "random_bits": lambda params, *shapes: (
            lambda keys: random_bits.bits(keys, params["shape"], int(params["bit_width"]))
        ),
        "threefry2x32": _same(random_bits.threefry),
    }
    | {name: make_scatter(name) for name in COMBINE}
)
