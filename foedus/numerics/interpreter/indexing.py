"""Gather and scatter of XLA in NumPy: windows of an array that start at given indices."""

from collections.abc import Callable, Sequence

import numpy as np
from jax.lax import GatherScatterMode

Maker = Callable[..., Callable[..., np.ndarray]]


def _window_index(
    shape: Sequence[int],
    window: Sequence[int],
    starts: np.ndarray,
    index_map: Sequence[int],
    batching: Sequence[int],
    index_batching: Sequence[int],
    clip: bool,
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The index of every element of every window, an array for each axis, and which windows lie inside.

    The arrays have the axes of the batch of windows first and then one axis for each axis of the operand.
    """
    batch, rank = starts.shape[:-1], len(shape)
    index, inside = [], None
    for axis in range(rank):
        start = np.zeros((1,) * len(batch), dtype=np.int64)
        if axis in index_map:
            start = starts[..., list(index_map).index(axis)].astype(np.int64)
            last = shape[axis] - window[axis]
            if clip:
                start = np.clip(start, 0, last)
            else:
                here = (start >= 0) & (start <= last)
                inside = here if inside is None else inside & here
        elif axis in batching:
            place = index_batching[list(batching).index(axis)]
            ones = [1] * len(batch)
            ones[place] = batch[place]
            start = np.arange(batch[place]).reshape(ones)
        along = [1] * rank
        along[axis] = window[axis]
        index.append(start.reshape(start.shape + (1,) * rank) + np.arange(window[axis]).reshape(along))
    return index, inside


def _one_window(
    shape: Sequence[int], window: Sequence[int], starts: np.ndarray, index_map: Sequence[int], clip: bool
) -> tuple[slice, ...] | None:
    """The only window as slices, which NumPy reads and writes far faster than an index of every element.

    None where the window does not lie inside and must not be moved there.
    """
    first = [0] * len(shape)
    for axis, start in zip(index_map, starts.tolist(), strict=True):
        last = shape[axis] - window[axis]
        if not 0 <= start <= last:
            if not clip:
                return None
            start = min(max(start, 0), last)
        first[axis] = start
    return tuple(slice(start, start + size) for start, size in zip(first, window, strict=True))


def make_gather(params: dict, operand, indices, out) -> Callable[..., np.ndarray]:
    """`lax.gather`."""
    numbers, mode = params["dimension_numbers"], params["mode"]
    window, shape = [int(k) for k in params["slice_sizes"]], operand.shape
    axes_left_out = {int(k) for k in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)}
    fills = mode == GatherScatterMode.FILL_OR_DROP
    batch = indices.shape[:-1]
    windows = tuple(window[k] for k in range(len(shape)) if k not in axes_left_out)
    offsets = [int(k) for k in numbers.offset_dims]
    others = [k for k in range(len(out.shape)) if k not in offsets]
    order = np.argsort([*others, *offsets])
    missing = params["fill_value"]
    if missing is None:
        missing = np.nan if np.issubdtype(out.dtype, np.inexact) else 0

    index_map = [int(k) for k in numbers.start_index_map]
    of_vector = len(shape) == 1 and window == [1] and not offsets

    def gather(x: np.ndarray, starts: np.ndarray) -> np.ndarray:
        if of_vector:
            at = np.asarray(starts)[..., 0]
            if not fills or not at.size or (at.min() >= 0 and at.max() < shape[0]):
                return np.take(x, at, mode="clip")
        if not batch:
            place = _one_window(shape, window, np.asarray(starts), index_map, clip=not fills)
            if place is not None:
                return x[place].reshape(windows)
        index, inside = _window_index(
            shape, window, np.asarray(starts), index_map,
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, clip=not fills,
        )  # fmt: skip
        if inside is not None and not np.all(inside):
            mask = inside.reshape(inside.shape + (1,) * len(shape))
            safe = [np.where(mask, i, 0) for i in index]
            values = np.where(mask, x[tuple(safe)], missing).astype(out.dtype)
        else:
            values = x[tuple(index)]
        return values.reshape(batch + windows).transpose(order)

    return gather


COMBINE = {
    "scatter-add": np.add,
    "scatter-mul": np.multiply,
    "scatter-min": np.minimum,
    "scatter-max": np.maximum,
    "scatter": None,
}


def make_scatter(name: str) -> Maker:
    """`lax.scatter` and those that add, multiply or compare."""
    combine = COMBINE[name]

    def make(params: dict, operand, indices, updates, out) -> Callable[..., np.ndarray]:
        numbers, mode = params["dimension_numbers"], params["mode"]
        shape, batch = operand.shape, indices.shape[:-1]
        axes_left_out = {int(k) for k in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)}
        window_axes = [int(k) for k in numbers.update_window_dims]
        batch_axes = [k for k in range(len(updates.shape)) if k not in window_axes]
        sizes = iter([updates.shape[k] for k in window_axes])
        window = [1 if k in axes_left_out else next(sizes) for k in range(len(shape))]
        clip, everywhere = mode == GatherScatterMode.CLIP, list(window) == list(shape)
        unique = params["unique_indices"]
        index_map = [int(k) for k in numbers.scatter_dims_to_operand_dims]

        def scatter(x: np.ndarray, starts: np.ndarray, new: np.ndarray) -> np.ndarray:
            if not batch:
                place = _one_window(shape, window, np.asarray(starts), index_map, clip)
                values = np.asarray(new).reshape(window)
                if place is not None and everywhere:
                    return values if combine is None else combine(x, values)
                result = np.array(x, copy=True)
                if place is None:  # nothing is written
                    return result
                if combine is None:
                    result[place] = values
                else:
                    combine(result[place], values, out=result[place])
                return result
            index, inside = _window_index(
                shape, window, np.asarray(starts), index_map,
                numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, clip,
            )  # fmt: skip
            full = np.broadcast_arrays(*index) if index else []
            values = np.asarray(new).transpose([*batch_axes, *window_axes]).reshape(batch + tuple(window))
            result = np.array(x, copy=True)
            at = tuple(np.broadcast_to(i, values.shape) for i in full)
            if inside is not None and not np.all(inside):
                keep = np.broadcast_to(inside.reshape(inside.shape + (1,) * len(shape)), values.shape)
                at, values = tuple(i[keep] for i in at), values[keep]
            if combine is None:
                result[at] = values
            elif unique:
                result[at] = combine(result[at], values)
            else:
                combine.at(result, at, values)
            return result

        return scatter

    return make
